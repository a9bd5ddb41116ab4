package pool

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/process"
	"roundhouse/internal/upstream"
)

// NewDialer returns a Dialer for servers of every transport. Local ones are started as
// processes of m; remote ones share one set of network connections. log takes what no
// caller can be told; nil discards.
func NewDialer(m *process.Manager, log *slog.Logger) Dialer {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	transport := upstream.NewTransport()
	return func(ctx context.Context, s *config.Server) (Link, error) {
		if s.Transport == config.Stdio {
			return dialStdio(ctx, m, s)
		}
		return dialRemote(ctx, s, transport, log)
	}
}

// dialRemote makes a link to a remote server. Only a WebSocket is opened at once.
func dialRemote(ctx context.Context, s *config.Server, transport http.RoundTripper, log *slog.Logger) (Link, error) {
	cfg := upstream.HTTPConfig{URL: s.URL.Reveal(), Header: http.Header{}, Transport: transport, Log: log.With("server", s.Name)}
	if s.Dialer != nil {
		cfg.Transport, cfg.Dial = nil, s.Dialer.DialContext
	}
	for name, value := range s.Headers {
		cfg.Header.Set(name, value.Reveal())
	}
	var carrier carrier
	var err error
	switch {
	case s.Transport == config.WebSocket:
		carrier, err = upstream.DialWebSocket(ctx, cfg)
	case s.Transport == config.SSE:
		carrier, err = upstream.NewSSE(cfg)
	case s.SSEFallback:
		carrier, err = upstream.NewAuto(cfg)
	default:
		carrier, err = upstream.NewHTTP(cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("reach the server: %w", err)
	}
	return &remoteLink{carrier: carrier, since: time.Now(), notes: process.NewRing(remoteNotes)}, nil
}

// remoteNotes is how many bytes of notes are kept of a remote server, which has no
// output that we could see.
const remoteNotes = 32 << 10

// carrier is what the remote links of package upstream have in common.
type carrier interface {
	Send(ctx context.Context, m *upstream.Message) error
	Post(m *upstream.Message) bool
	Run(h upstream.Handler) error
	Abort(err error)
	Close(ctx context.Context)
	Cancel(m *upstream.Message)
}

// remoteLink is a server elsewhere.
type remoteLink struct {
	carrier
	since time.Time
	notes *process.Ring
}

// Post implements Link.
func (l *remoteLink) Post(m *upstream.Message) { _ = l.carrier.Post(m) } // a link that ended has nobody to tell

// Modern implements eraLink; a transport of the older era only has nothing to switch.
func (l *remoteLink) Modern(version string) {
	if c, ok := l.carrier.(interface{ Modern(version string) }); ok {
		c.Modern(version)
	}
}

// Taken implements eraLink; where there is no knowing, the server has taken it.
func (l *remoteLink) Taken(ctx context.Context) error {
	if c, ok := l.carrier.(interface{ Taken(context.Context) error }); ok {
		return c.Taken(ctx)
	}
	return nil
}

// Facts implements Link.
func (l *remoteLink) Facts() LinkFacts { return LinkFacts{Started: l.since} }

// Output implements Link.
func (l *remoteLink) Output(lines int) []string { return l.notes.Lines(lines) }

// Note implements Link.
func (l *remoteLink) Note(line string) { _, _ = fmt.Fprintln(l.notes, line) } // a ring takes everything
