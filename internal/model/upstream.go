package model

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/dialect"
	"roundhouse/internal/store"
)

// Upstream is a configured LLM endpoint. It is constant.
type Upstream struct {
	cfg       *config.Upstream
	profile   dialect.Profile
	transport *http.Transport
}

// idleConnection is how long a connection is kept for the next request. Many engines close
// theirs after 5 s, and a request that is sent just then fails: nobody knows whether it
// was executed.
const idleConnection = 4 * time.Second

func newUpstream(cfg *config.Upstream) *Upstream {
	dialer := &net.Dialer{Timeout: cfg.Timeouts.Connect, KeepAlive: 30 * time.Second}
	return &Upstream{
		cfg:     cfg,
		profile: dialect.Profile{Engine: dialect.Engine(cfg.Engine), EndOfText: cfg.EndOfText, Experts: cfg.Experts},
		transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         dialer.DialContext,
			TLSHandshakeTimeout: cfg.Timeouts.Connect,
			ForceAttemptHTTP2:   true,
			MaxIdleConnsPerHost: 1024,
			IdleConnTimeout:     idleConnection,
			DisableCompression:  true, // an answer's bytes are the upstream's own (C14)
		},
	}
}

// Name returns the upstream's name in the configuration.
func (u *Upstream) Name() string { return u.cfg.Name }

// Engine returns what the configuration says that it is, or "".
func (u *Upstream) Engine() string { return u.cfg.Engine }

// Images reports whether its models take pictures.
func (u *Upstream) Images() bool { return u.cfg.Images }

// SpeaksResponses reports whether it speaks the Responses API.
func (u *Upstream) SpeaksResponses() bool { return u.cfg.Responses }

// Upstreams returns all of them, in the order of the configuration.
func (m *Models) Upstreams() []*Upstream { return m.upstreams }

// Choose returns the upstream that serves a model: the first whose globs match, or else
// the one that has none (C12). Without a model it is the one for what is not about any:
// for Messages an Anthropic, for Responses one that speaks it, or else the one without
// globs or the first. The error is an *Error.
func (m *Models) Choose(api dialect.API, model string) (*Upstream, error) {
	u, refusal := m.choose(api, model)
	if refusal != nil {
		return nil, refusal
	}
	return u, nil
}

func (m *Models) choose(api dialect.API, model string) (*Upstream, *Error) {
	suits := func(u *Upstream) bool { return api != dialect.Responses || u.cfg.Responses }
	var fallback, first *Upstream
	for _, u := range m.upstreams {
		if !suits(u) {
			continue
		}
		for _, glob := range u.cfg.Models {
			if model != "" && matches(glob, model) {
				return u, nil
			}
		}
		if model == "" && api == dialect.Messages && u.profile.Engine == dialect.Anthropic {
			return u, nil
		}
		if len(u.cfg.Models) == 0 && fallback == nil {
			fallback = u
		}
		if first == nil {
			first = u
		}
	}
	switch {
	case fallback != nil:
		return fallback, nil
	case model == "" && first != nil:
		return first, nil
	case len(m.upstreams) == 0:
		status := http.StatusNotFound
		if api == dialect.Responses {
			status = http.StatusNotImplemented
		}
		return nil, refuse(status, nil, "roundhouse has no LLM endpoint; add llm.upstreams to its configuration")
	case api == dialect.Responses && first == nil:
		return nil, refuse(http.StatusNotImplemented, nil, "this part of the Responses API needs an upstream that speaks it itself, with \"responses\": true, and none does")
	}
	e := refuse(http.StatusNotFound, nil, "no upstream serves the model %.200q; add it to the \"models\" of one in llm.upstreams", model)
	e.Failure.Code = "model_not_found"
	return nil, e
}

// matches reports whether a glob matches the whole of a name. * stands for any text, ?
// for any one byte.
func matches(glob, name string) bool {
	for i := range len(glob) {
		switch {
		case glob[i] == '*':
			for j := 0; j <= len(name)-i; j++ {
				if matches(glob[i+1:], name[i+j:]) {
					return true
				}
			}
			return false
		case i == len(name) || glob[i] != '?' && glob[i] != name[i]:
			return false
		}
	}
	return len(glob) == len(name)
}

// Message is what is sent to an upstream.
type Message struct {
	Method   string
	Path     string // below the base, escaped
	RawQuery string
	Header   http.Header // the client's; it is not changed
	Body     io.Reader   // nil is none
	Length   int64       // of Body, -1 if it is not known
}

// Forward sends a message to an upstream and returns its answer, whatever its status.
// ctx covers the reading of the answer, too. The error is an *Error, or ctx's.
func (m *Models) Forward(ctx context.Context, u *Upstream, msg Message) (*Answer, error) {
	return m.forward(ctx, u, msg, store.SessionKey{})
}

// forward is Forward for a session, or for none.
func (m *Models) forward(ctx context.Context, u *Upstream, msg Message, session store.SessionKey) (*Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	leave, err := m.enter(&active{cancel: cancel, session: session})
	if err != nil {
		cancel(nil)
		return nil, err
	}
	resp, watch, err := u.send(ctx, cancel, msg, nil)
	if err != nil {
		cancel(nil)
		leave()
		return nil, err
	}
	return &Answer{Status: resp.StatusCode, Header: answerHeader(resp.Header), source: &passage{resp.Body, watch, cancel, leave}}, nil
}

// pass sends a call that is not recorded.
func (m *Models) pass(ctx context.Context, p *prepared) (*Answer, error) {
	return m.forward(ctx, p.upstream, Message{
		Method: http.MethodPost, Path: p.call.Path, RawQuery: p.call.RawQuery, Header: p.call.Header,
		Body: bytes.NewReader(p.forward.Body), Length: int64(len(p.forward.Body)),
	}, p.key)
}

// send sends a message. It returns when the header of the answer has come, with a watch
// over its body. edit may change the header that goes out.
func (u *Upstream) send(ctx context.Context, cancel context.CancelCauseFunc, msg Message, edit func(http.Header)) (*http.Response, *watch, error) {
	req, err := u.request(ctx, msg, edit)
	if err != nil {
		return nil, nil, refuse(http.StatusBadRequest, err, "the request cannot be sent to the upstream %q", u.cfg.Name)
	}
	w := watchOver(cancel, u.cfg.Timeouts)
	// The transport itself follows no redirects: they are the client's.
	resp, err := u.transport.RoundTrip(req)
	if err != nil {
		w.stop()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, u.unreachable(err)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		w.stop()
		_ = resp.Body.Close() // no answer of an API is behind it
		return nil, nil, refuse(http.StatusBadGateway, nil, "the upstream %q changes the protocol, which was not asked for", u.cfg.Name)
	}
	return resp, w, nil
}

// unreachable says that no answer began, and why (C12).
func (u *Upstream) unreachable(err error) *Error {
	if e := cutShort(err); e != nil {
		return e
	}
	if isTimeout(err) {
		return refuse(http.StatusGatewayTimeout, err, "the upstream %q did not answer in time", u.cfg.Name)
	}
	// The cause may hold the address, which is no client's business; it is logged.
	return refuse(http.StatusBadGateway, err, "the upstream %q cannot be reached", u.cfg.Name)
}

func isTimeout(err error) bool {
	if err == errFirstByte || err == errIdle || err == errTotal {
		return true
	}
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

func (u *Upstream) request(ctx context.Context, msg Message, edit func(http.Header)) (*http.Request, error) {
	target, err := url.Parse(u.cfg.BaseURL + "/" + strings.TrimLeft(msg.Path, "/"))
	if err != nil {
		return nil, err
	}
	target.RawQuery = msg.RawQuery
	if msg.Length == 0 {
		msg.Body = http.NoBody
	}
	req, err := http.NewRequestWithContext(ctx, msg.Method, target.String(), msg.Body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = msg.Length
	req.Header = u.header(msg.Header)
	if edit != nil {
		edit(req.Header)
	}
	return req, nil
}

// header is what goes upstream of a client's header (C14).
func (u *Upstream) header(client http.Header) http.Header {
	h := client.Clone()
	if h == nil {
		h = http.Header{}
	}
	dropHops(h)
	for _, name := range ours {
		h.Del(name)
	}
	if !u.cfg.APIKey.Empty() {
		for _, name := range credentials {
			h.Del(name)
		}
		if u.profile.Engine == dialect.Anthropic {
			h.Set("X-Api-Key", u.cfg.APIKey.Reveal())
		} else {
			h.Set("Authorization", "Bearer "+u.cfg.APIKey.Reveal())
		}
	}
	for name, value := range u.cfg.Headers {
		h.Set(name, value.Reveal())
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = []string{""} // or else net/http would send its own
	}
	return h
}

// ours are the headers that roundhouse consumes, and those that net/http writes itself.
var ours = []string{"X-Session-Id", "X-Roundhouse-Record", "Host", "Content-Length", "Expect"}

// credentials are those of a client that an upstream's own key replaces.
var credentials = []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie"}

// hops are the headers that are about one connection.
var hops = []string{"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// dropHops deletes the headers that are about one connection, those that Connection names
// too.
func dropHops(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range hops {
		h.Del(name)
	}
}

// answerHeader is what the client gets of an upstream's header.
func answerHeader(upstream http.Header) http.Header {
	h := upstream.Clone()
	dropHops(h)
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // or else net/http would guess one
	}
	return h
}

// setLength sets the length of an answer that is known as a whole.
func setLength(h http.Header, n int) { h.Set("Content-Length", strconv.Itoa(n)) }

// watch cancels a call whose upstream takes too long (C12). It is used by one goroutine
// at a time.
type watch struct {
	cancel context.CancelCauseFunc
	limits config.UpstreamTimeouts
	silent *time.Timer // runs while bytes are waited for
	total  *time.Timer // nil if there is no limit
	idle   bool        // whether bytes have come
}

// watchOver begins to watch, for the first byte.
func watchOver(cancel context.CancelCauseFunc, limits config.UpstreamTimeouts) *watch {
	w := &watch{cancel: cancel, limits: limits}
	w.silent = time.AfterFunc(limits.FirstByte, func() { cancel(errFirstByte) })
	if limits.Total > 0 {
		w.total = time.AfterFunc(limits.Total, func() { cancel(errTotal) })
	}
	return w
}

// read reads from an answer under the watch.
func (w *watch) read(r io.Reader, p []byte) (int, error) {
	if w.idle {
		w.silent.Reset(w.limits.Idle)
	}
	n, err := r.Read(p)
	if n > 0 || err != nil {
		// Whoever takes the bytes may take his time.
		if !w.idle {
			w.idle = true
			w.silent.Stop()
			w.silent = time.AfterFunc(w.limits.Idle, func() { w.cancel(errIdle) })
		}
		w.silent.Stop()
	}
	return n, err
}

func (w *watch) stop() {
	w.silent.Stop()
	if w.total != nil {
		w.total.Stop()
	}
}

// passage is an answer that is not recorded.
type passage struct {
	body   io.ReadCloser
	watch  *watch
	cancel context.CancelCauseFunc
	leave  func() // nil once it was closed
}

// read gives the upstream's bytes. An answer that breaks off breaks off for the client,
// too.
func (s *passage) read(p []byte) (int, error) {
	n, err := s.watch.read(s.body, p)
	if err != nil && err != io.EOF {
		err = ErrAborted
	}
	return n, err
}

func (s *passage) ready() bool { return false } // nobody knows

func (s *passage) close() {
	if s.leave == nil {
		return
	}
	leave := s.leave
	s.leave = nil
	defer leave()
	s.watch.stop()
	s.cancel(nil)
	_ = s.body.Close() // what is left of it interests nobody
}
