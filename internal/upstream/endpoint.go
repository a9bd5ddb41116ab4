package upstream

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse/internal/wire"
)

const (
	connectTimeout   = 10 * time.Second
	maxRedirects     = 5
	maxHeaderBytes   = 256 << 10
	idleConnsPerHost = 64
)

// HTTPConfig describes a link to a server over HTTP or WebSocket.
type HTTPConfig struct {
	// URL is the server's, with http or https (ws or wss for WebSocket). User and
	// password in it become an Authorization header, unless Header has one.
	URL string
	// Header is sent with every request to the server's own origin, and nothing else of
	// ours is (case 69). What belongs to the transport, such as Accept or
	// Mcp-Session-Id, is replaced by what the protocol needs.
	Header http.Header
	// Transport makes the requests; links may share one. nil is a NewTransport that
	// belongs to the link. One that does not call the hooks of net/http/httptrace costs
	// the knowledge that a message was not sent.
	Transport http.RoundTripper
	// Dial opens the connections of the link's own transport, which then uses no proxy;
	// nil is as NewTransport does. It has no effect with Transport.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// MaxFrame is the longest frame that is read, in bytes; 0 is wire.MaxFrame.
	MaxFrame int
	// Log takes what cannot be told to any caller; nil is nowhere.
	Log *slog.Logger
}

// NewTransport returns the transport that links use: certificates are verified, proxies
// come from the environment, connecting has 10 s, and nothing else has a limit, because
// a call may take hours (case 24).
func NewTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: connectTimeout}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    connectTimeout,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    idleConnsPerHost,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeaderBytes,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
}

// endpoint is a server's URL and how requests to it are made. It is constant once
// requests are being made.
type endpoint struct {
	url       *url.URL // without user, password and fragment
	header    http.Header
	host      string // the Host header, if it is not the URL's
	transport http.RoundTripper
	own       *http.Transport // the transport, if it is the link's
	secrets   []string        // what must not be shown, the longest first
}

// ours names the headers that Header cannot set. By an idempotency key a transport takes
// a request to be safe to send twice, which a message is not (R5).
var ours = []string{
	"Accept", "Accept-Encoding", "Connection", "Content-Length", "Content-Type", "Expect", "Host", "Idempotency-Key", headerLastID,
	headerMethod, headerName, headerVersion, headerSession, "Te", "Trailer", "Transfer-Encoding", "Upgrade", "X-Idempotency-Key",
}

func newEndpoint(config HTTPConfig, schemes ...string) (*endpoint, error) {
	u, err := url.Parse(config.URL)
	if err != nil {
		return nil, errors.New("read the server's URL: it is not valid") // err quotes it
	}
	if !slices.Contains(schemes, u.Scheme) || u.Hostname() == "" {
		return nil, fmt.Errorf("read the server's URL: it must be %s://host/path", schemes[len(schemes)-1])
	}
	e := &endpoint{url: u, header: http.Header{}, host: config.Header.Get("Host"), transport: config.Transport}
	if e.transport == nil {
		e.own = NewTransport()
		if config.Dial != nil {
			e.own.Proxy, e.own.DialContext = nil, config.Dial
		}
		e.transport = e.own
	}
	for name, values := range config.Header {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if slices.Contains(ours, name) {
			continue
		}
		e.header[name] = append(e.header[name], values...)
		for _, v := range values {
			e.hide(strings.Fields(v)...)
		}
	}
	if u.User != nil {
		password, _ := u.User.Password()
		basic := base64.StdEncoding.EncodeToString([]byte(u.User.Username() + ":" + password))
		if e.header.Get("Authorization") == "" {
			e.header.Set("Authorization", "Basic "+basic)
		}
		e.hide(password, url.QueryEscape(password), u.User.String(), basic)
	}
	e.hideQuery(u)
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	return e, nil
}

// minSecret is how long a text must be to be looked for: shorter ones stand everywhere.
const minSecret = 4

// hide makes texts secrets. It must not be called once requests are being made.
func (e *endpoint) hide(texts ...string) {
	for _, t := range texts {
		if len(t) >= minSecret && t != "Bearer" && t != "Basic" {
			e.secrets = append(e.secrets, t)
		}
	}
	slices.SortFunc(e.secrets, func(a, b string) int { return len(b) - len(a) })
}

func (e *endpoint) hideQuery(u *url.URL) {
	e.hide(u.RawQuery)
	for _, values := range u.Query() {
		for _, v := range values {
			e.hide(v, url.QueryEscape(v))
		}
	}
}

// mask returns text without our secrets, which servers like to quote (case 67).
func (e *endpoint) mask(text string) string {
	for _, s := range e.secrets {
		text = strings.ReplaceAll(text, s, "***")
	}
	return text
}

// masked returns err, or what of it may be shown.
func (e *endpoint) masked(err error) error {
	text := err.Error()
	if shown := e.mask(text); shown != text {
		return errors.New(shown)
	}
	return err
}

func (e *endpoint) close() {
	if e.own != nil {
		e.own.CloseIdleConnections()
	}
}

// shown returns what may be shown of a URL.
func shown(u *url.URL) string { return u.Scheme + "://" + u.Host + u.EscapedPath() }

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

// request is one HTTP request to an endpoint.
type request struct {
	method string
	url    *url.URL // nil is the endpoint's
	header http.Header
	body   *exchange // whose message is the body, or nil
}

// A connectError says that no connection to the server could be made.
type connectError struct{ error }

// Unwrap returns the cause.
func (e connectError) Unwrap() error { return e.error }

// do makes a request and follows redirects inside the server's origin, with method and
// body as they are: what was redirected was not executed, except by 303. The caller
// closes the body.
func (e *endpoint) do(ctx context.Context, q request) (*http.Response, error) {
	target := q.url
	if target == nil {
		target = e.url
	}
	for hop := 0; ; hop++ {
		res, err := e.once(ctx, q, target)
		if err != nil {
			return nil, err
		}
		switch res.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		default:
			return res, nil
		}
		res.Body.Close()
		if q.body != nil && res.StatusCode != http.StatusSeeOther {
			q.body.message.sent.Store(false)
		}
		next, err := redirected(res, target, hop)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", q.method, shown(target), err)
		}
		target = next
	}
}

// redirected returns where res leads. Credentials must not follow to another origin, so
// nothing does (case 68).
func redirected(res *http.Response, from *url.URL, hop int) (*url.URL, error) {
	to, err := from.Parse(res.Header.Get("Location"))
	switch {
	case err != nil || res.Header.Get("Location") == "":
		return nil, fmt.Errorf("the server answered %d without a valid Location", res.StatusCode)
	case !sameOrigin(from, to):
		return nil, fmt.Errorf("the server redirects to another origin, %s, which is not followed; if you trust it, make it the server's url", shown(to))
	case res.StatusCode == http.StatusSeeOther:
		return nil, fmt.Errorf("the server redirects to %s with 303, which is no answer to a message", shown(to))
	case hop == maxRedirects:
		return nil, errors.New("the server redirects without end")
	}
	to.User, to.Fragment, to.RawFragment = nil, "", ""
	return to, nil
}

// once makes a request without following redirects. Whether the message may have left is
// what the transport says of its connections; of a transport that says nothing, the worst
// is assumed.
func (e *endpoint) once(ctx context.Context, q request, target *url.URL) (*http.Response, error) {
	var connecting atomic.Bool
	setSent := func(sent bool) {
		if q.body != nil {
			q.body.message.sent.Store(sent)
		}
	}
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// It is called again when a kept connection turned out to be closed, but only if
		// that took nothing.
		GetConn: func(string) {
			connecting.Store(true)
			setSent(false)
		},
		GotConn: func(httptrace.GotConnInfo) {
			connecting.Store(false)
			setSent(true)
		},
		WroteRequest: func(i httptrace.WroteRequestInfo) {
			if q.body != nil && i.Err == nil {
				q.body.writeOnce.Do(func() { close(q.body.written) })
			}
		},
	})
	r := (&http.Request{Method: q.method, URL: target, Header: q.header, Host: e.host}).WithContext(traced)
	if q.body != nil {
		r.ContentLength = int64(len(q.body.message.Bytes))
		r.GetBody = q.body.reader
		r.Body, _ = q.body.reader()
	}
	setSent(true)
	res, err := e.transport.RoundTrip(r)
	if err == nil {
		return res, nil
	}
	err = fmt.Errorf("%s %s: %w", q.method, shown(target), e.masked(err))
	if ctx.Err() == nil && connecting.Load() {
		err = connectError{err}
	}
	return nil, err
}

// headers returns what every request carries; the caller adds to it.
func (e *endpoint) headers(accept string) http.Header {
	h := make(http.Header, len(e.header)+6)
	maps.Copy(h, e.header)
	if accept != "" {
		h["Accept"] = []string{accept}
	}
	return h
}

// exchange is one message that is sent by an HTTP request of its own, and what comes
// back.
type exchange struct {
	// Constant after newExchange.
	message *Message
	modern  string          // the protocol version, of those without sessions; "" for all others
	ctx     context.Context // ends with the exchange, with the link, or by cancel
	cancel  context.CancelFunc
	done    chan struct{} // closed when nothing runs for the exchange any more

	// Owned by the goroutine of the exchange.
	answered bool // see remote.answered
	rawName  bool // Mcp-Name is sent as it is

	written   chan struct{} // closed when the whole message was given to the network
	writeOnce sync.Once
}

func newExchange(ctx context.Context, m *Message, modern string) *exchange {
	x := &exchange{message: m, modern: modern, done: make(chan struct{}), written: make(chan struct{})}
	if m.ID != nil {
		x.ctx, x.cancel = context.WithCancel(ctx)
	} else {
		x.ctx, x.cancel = context.WithTimeout(ctx, ackWait)
	}
	return x
}

// isCall reports whether the message wants an answer.
func (x *exchange) isCall() bool { return x.message.ID != nil }

// reader returns the message as the body of a request. Of this type the transport knows
// that it does not wait, and writes headers and body at once.
func (x *exchange) reader() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(x.message.Bytes)), nil
}

func (c HTTPConfig) maxFrame() int {
	if c.MaxFrame == 0 {
		return wire.MaxFrame
	}
	return c.MaxFrame
}

func (c HTTPConfig) logger() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}
