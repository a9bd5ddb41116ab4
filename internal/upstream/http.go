package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"roundhouse/internal/wire"
)

const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerMethod  = "Mcp-Method"
	headerName    = "Mcp-Name"
	headerLastID  = "Last-Event-Id"

	typeJSON   = "application/json"
	typeStream = "text/event-stream"

	// maxSessionID is how long a session id may be, in bytes.
	maxSessionID = 4 << 10

	// closeWait is how long Close waits for the server to end its session.
	closeWait = 2 * time.Second

	// settleWait is how long a link whose session was lost waits for answers to what is
	// on its way: most are refused too, and then it is known that they were not executed.
	settleWait = 500 * time.Millisecond

	// linger is how long a stream is read on behind the answer. To read it to its end
	// keeps the connection for the next call.
	linger = 250 * time.Millisecond
)

// HTTP is a link over Streamable HTTP. Each message is a POST of its own, and each
// call's answer comes on a stream of its own, so it is known which call a request of the
// server belongs to (M6). All methods may be called concurrently, also from a Handler.
//
// The link learns the session id and the protocol version from the answer to
// initialize. Once the server has taken notifications/initialized, which nothing
// overtakes, the link keeps a GET stream open, if the server has one.
//
// What ends a link: Abort; Close; ErrSessionLost, when the server answers 404, or a 400
// that names the session, to a message of that session; and that no connection to the
// server can be made while no stream of it is open, either. Any other HTTP status, and a
// connection that breaks, fail the one call concerned, or are tried again if it is the
// GET stream's.
//
// Modern makes it a link of a version without handshake and session.
type HTTP struct {
	*remote

	// Guarded by mu.
	session string
	version string   // of the handshake
	open    int      // answers and streams that are being read
	names   spelling // that the server understands
}

// NewHTTP returns a link. It sends nothing before the first Send, and delivers nothing
// before Run. An error says what is wrong with the URL.
func NewHTTP(config HTTPConfig) (*HTTP, error) {
	e, err := newEndpoint(config, "http", "https")
	if err != nil {
		return nil, err
	}
	h := &HTTP{remote: newRemote(config, e)}
	h.carry = h.exchange
	h.shaken = h.learn
	h.ready = func() { h.spawn(h.stand) }
	return h, nil
}

// Run delivers frames to handler until the link ends, and returns why: ErrSessionLost, an
// error of connecting, or that of Abort. It is to be called once. When it returns, all
// goroutines of the link have ended, and handler is not called any more.
func (h *HTTP) Run(handler Handler) error { return h.run(handler) }

// Close ends the link, waits for its goroutines, and asks the server to end the session.
// It waits for that no longer than two seconds, or until ctx ends. It is called after
// Run has returned, or instead of it; further calls do nothing.
func (h *HTTP) Close(ctx context.Context) {
	h.lose(ErrClosed)
	h.wg.Wait()
	h.mu.Lock()
	session := h.session
	h.session = ""
	h.mu.Unlock()
	if session != "" && !errors.Is(context.Cause(h.ctx), ErrSessionLost) {
		ctx, cancel := context.WithTimeout(ctx, closeWait)
		defer cancel()
		header := h.headers("")
		header[headerSession] = []string{session}
		if res, err := h.endpoint.do(ctx, request{method: http.MethodDelete, header: header}); err != nil {
			h.log.Debug("the server's session was not ended", "err", err)
		} else {
			res.Body.Close() // Any status will do: some servers do not let clients end sessions.
		}
	}
	h.endpoint.close()
}

// headers returns the headers of a request in the session, if there is one.
func (h *HTTP) headers(accept string) http.Header {
	header := h.endpoint.headers(accept)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != "" {
		header[headerSession] = []string{h.session}
	}
	if h.version != "" {
		header[headerVersion] = []string{h.version}
	}
	return header
}

// exchange sends a message and delivers what comes back.
func (h *HTTP) exchange(x *exchange) {
	header := h.headers(typeJSON + ", " + typeStream)
	if x.modern != "" {
		header = h.modernHeaders(x)
	}
	header["Content-Type"] = []string{typeJSON}
	res, err := h.endpoint.do(x.ctx, request{method: http.MethodPost, header: header, body: x})
	if err != nil {
		h.unanswered(x, err)
		return
	}
	if res.StatusCode >= 300 {
		body := readRefusal(res)
		res.Body.Close()
		if h.misread(x, body) {
			h.exchange(x)
			return
		}
		h.refused(x, res, body)
		return
	}
	h.understood(x)
	if x.message.Method == wire.MethodInitialize {
		h.setSession(res.Header.Get(headerSession))
	}
	h.countOpen(1)
	if !x.isCall() {
		h.answered(x)
		skip(x, res)
		h.release(res.Body)
		return
	}
	h.answer(x, res)
}

// release closes the body of an answer that counts as open.
func (h *HTTP) release(body io.Closer) {
	body.Close()
	h.countOpen(-1)
}

func (h *HTTP) countOpen(by int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open += by
}

// skip reads what comes instead of the answer to a notification, for a moment.
func skip(x *exchange, res *http.Response) {
	stop := time.AfterFunc(linger, x.cancel)
	defer stop.Stop()
	_, _ = io.CopyN(io.Discard, res.Body, refusalBytes) // Only to keep the connection.
}

// unanswered takes the error of a request that got no answer.
func (h *HTTP) unanswered(x *exchange, err error) {
	if h.ctx.Err() != nil || x.isCall() && x.ctx.Err() != nil {
		return // The link has ended, or the call was cancelled: nobody waits.
	}
	h.fail(x, err, x.message.Sent())
	h.unreachable(err)
}

// unreachable ends the link if err says that no connection could be made, unless there
// are streams that still have one.
func (h *HTTP) unreachable(err error) {
	if !isUnreachable(err) {
		return
	}
	h.mu.Lock()
	open := h.open
	h.mu.Unlock()
	if open == 0 {
		h.lose(err)
	}
}

// refused takes an answer with a bad status, of which body was read.
func (h *HTTP) refused(x *exchange, res *http.Response, body []byte) {
	f, err := wire.Parse(body)
	answered := err == nil && x.isAnswer(f) && answers(res.StatusCode, x.message.Method)
	session := res.Request.Header.Get(headerSession)
	if session != "" && (res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusBadRequest && !answered && namesSession(body)) {
		h.fail(x, fmt.Errorf("%w (it answered %d)", ErrSessionLost, res.StatusCode), false)
		h.forget(session)
		return
	}
	if err == nil && !answered && (res.StatusCode == http.StatusBadRequest || res.StatusCode == http.StatusNotFound) {
		// With these the protocol itself refuses a message. To other statuses any proxy
		// may add what looks like JSON-RPC.
		f = x.named(f)
		answered = x.isAnswer(f)
	}
	if answered {
		h.emit(event{frame: flat(f), call: x.message.ID})
		return
	}
	// A server that wants to know us first has done nothing.
	h.fail(x, h.endpoint.refusal(res, body), res.StatusCode != http.StatusUnauthorized)
}

// answers reports whether JSON-RPC behind a bad status is the answer to a request. A
// login comes before any answer, and that a server is out of order says nothing of the
// versions that it speaks.
func answers(status int, method string) bool {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return false
	case status >= 500 || status == http.StatusTooManyRequests:
		return method != wire.MethodInitialize && method != wire.Discover
	}
	return true
}

// namesSession reports whether the body of a 400 is about the session rather than the
// message. There is no other sign of it: the protocol wants 404 for sessions that are
// gone, but servers answer 400 to an id that they do not know, as to none (case 4). A
// wrong guess costs one new session, and the call is not lost.
func namesSession(body []byte) bool {
	return bytes.Contains(bytes.ToLower(body), []byte("session"))
}

// forget ends the link because the server does not know its session any more. Messages
// that are on their way have a moment to be refused likewise.
func (h *HTTP) forget(session string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.session != session || h.closing {
		return
	}
	settled := make(chan struct{})
	h.settled = settled // the message that found out is not answered yet
	h.wg.Go(func() {
		timeout := time.NewTimer(settleWait)
		defer timeout.Stop()
		select {
		case <-settled:
		case <-timeout.C:
		case <-h.ctx.Done():
		}
		h.end(ErrSessionLost)
	})
	h.refuseLocked()
}

// setSession takes the session id from the answer to initialize.
func (h *HTTP) setSession(id string) {
	if len(id) > maxSessionID || strings.ContainsFunc(id, func(r rune) bool { return r < '!' || r > '~' }) {
		h.log.Warn("the server's session id is not valid, and is not used", "bytes", len(id))
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.session = id
}

// learn takes the protocol version from the answer to initialize.
func (h *HTTP) learn(f wire.Frame) {
	result := f.Result()
	if len(result) == 0 || result[0] != '{' {
		return
	}
	for m, err := range wire.Members(result) {
		if err != nil || m.Key != "protocolVersion" {
			continue
		}
		// A version that we do not know ends the handshake, and is no header.
		if version, err := wire.Text(m.Value.Of(result)); err == nil && wire.KnownVersion(version) {
			h.mu.Lock()
			h.version = version
			h.mu.Unlock()
		}
	}
}

// answer takes what a call gets with a good status.
func (h *HTTP) answer(x *exchange, res *http.Response) {
	kind, err := mediaType(res)
	if err == nil && kind != typeJSON && kind != typeStream {
		err = fmt.Errorf("the server answered %d with the content type %q, which is neither JSON nor an event stream", res.StatusCode, kind)
		if kind == "" {
			err = fmt.Errorf("the server answered %d without content", res.StatusCode)
		}
	}
	switch {
	case err != nil:
		h.release(res.Body)
		h.fail(x, err, true)
	case kind == typeStream:
		h.answered(x)
		h.follow(x, res.Body)
	default:
		defer h.release(res.Body)
		h.answerJSON(x, res)
	}
}

// mediaType returns the content type without parameters, in lower case. Content that is
// still encoded is an error: the transport has decoded what it asked for.
func mediaType(res *http.Response) (string, error) {
	if coding := res.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return "", fmt.Errorf("the server answered in the content encoding %q, which it was not asked for", coding)
	}
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	if parsed, _, err := mime.ParseMediaType(kind); err == nil {
		kind = parsed
	}
	return string(clean([]byte(kind))), nil
}

// answerJSON takes the answer to a call that comes as JSON: a response, or an array
// with one in it.
func (h *HTTP) answerJSON(x *exchange, res *http.Response) {
	body, err := readBody(res, h.maxFrame)
	switch {
	case x.ctx.Err() != nil:
	case err != nil:
		h.fail(x, fmt.Errorf("%w: %w", ErrInterrupted, h.endpoint.masked(err)), true)
	case len(body) > h.maxFrame:
		h.emit(event{kind: oversizeEvent, call: x.message.ID, of: wire.Response, size: max(res.ContentLength, int64(len(body)))})
	case !h.deliver(x, body):
		h.fail(x, errors.New("the server's answer has no response to the call in it"), true)
	}
}

// readBody reads a body up to one byte more than the limit.
func readBody(res *http.Response, limit int) ([]byte, error) {
	var b bytes.Buffer
	if n := res.ContentLength; n > 0 {
		// One more than bytes.MinRead lets ReadFrom see the end without growing.
		b.Grow(int(min(n, int64(limit))) + bytes.MinRead + 1)
	}
	_, err := b.ReadFrom(io.LimitReader(res.Body, int64(limit)+1))
	return b.Bytes(), err
}
