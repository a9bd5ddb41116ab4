package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"roundhouse/internal/wire"
)

// SSE is a link over HTTP with SSE, the transport of 2024-11-05: everything from the
// server comes on one event stream, which also says where messages are posted to. Frames
// therefore name no call. All methods may be called concurrently, also from a Handler.
//
// What ends a link: Abort, Close, the end of the stream, which cannot be continued, and
// that no connection to the server can be made. A status other than success fails the one
// call concerned.
type SSE struct {
	*remote

	// Constant once found is closed.
	target *url.URL // where messages are posted to

	found chan struct{}
}

// NewSSE returns a link. It connects in Run. An error says what is wrong with the URL.
func NewSSE(config HTTPConfig) (*SSE, error) {
	e, err := newEndpoint(config, "http", "https")
	if err != nil {
		return nil, err
	}
	s := &SSE{remote: newRemote(config, e), found: make(chan struct{})}
	s.carry = s.exchange
	return s, nil
}

// Run opens the stream and delivers frames to handler until the link ends, and returns
// why: that the stream was refused (*StatusError, *AuthError) or ended (io.EOF, or an
// error of reading), an error of connecting, or that of Abort. It is to be called once.
// When it returns, all goroutines of the link have ended, and handler is not called any
// more.
func (s *SSE) Run(handler Handler) error {
	s.spawn(func() { s.lose(s.listen()) })
	return s.run(handler)
}

// Close ends the link and waits for its goroutines, which is prompt. It is called after
// Run has returned, or instead of it; further calls do nothing.
func (s *SSE) Close(context.Context) {
	s.lose(ErrClosed)
	s.wg.Wait()
	s.endpoint.close()
}

// listen reads the stream and returns why it ended.
func (s *SSE) listen() error {
	res, err := s.endpoint.do(s.ctx, request{method: http.MethodGet, header: s.endpoint.headers(typeStream)})
	if err != nil {
		return fmt.Errorf("open the server's event stream: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("open the server's event stream: %w", s.endpoint.refusal(res, readRefusal(res)))
	}
	if kind, err := mediaType(res); err != nil || kind != typeStream {
		return fmt.Errorf("open the server's event stream: GET %s: %w", shown(res.Request.URL), errNoStream)
	}
	r := newEventReader(res.Body, s.maxFrame)
	for {
		e, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the server ended its event stream: %w", io.EOF)
		case err != nil:
			return fmt.Errorf("read the server's event stream: %w", s.endpoint.masked(err))
		case e.Type == "endpoint" && s.target == nil:
			if err := s.setTarget(res.Request.URL, string(e.Data)); err != nil {
				return err
			}
		case e.Type != "message" || e.Size == 0:
		case e.TooLong():
			s.tooLong(nil, r.scan, e.Size)
			r.scan = wire.IDScanner{}
		default:
			s.deliver(nil, e.Data)
		}
	}
}

// setTarget takes the URI that messages are posted to. Our credentials go there, so it
// must not lead elsewhere.
func (s *SSE) setTarget(from *url.URL, uri string) error {
	to, err := from.Parse(strings.TrimSpace(uri))
	if err != nil {
		return errors.New("the server names an endpoint for messages that is no URI")
	}
	if !sameOrigin(from, to) {
		return fmt.Errorf("the server wants messages to go to another origin, %s, which is refused", shown(to))
	}
	to.User, to.Fragment, to.RawFragment = nil, "", ""
	s.target = to
	s.endpoint.hideQuery(to) // It names our session. All other requests wait for found.
	close(s.found)
	return nil
}

// exchange posts a message. Its answer, if there is one, comes on the stream.
func (s *SSE) exchange(x *exchange) {
	select {
	case <-s.found:
	case <-x.ctx.Done():
		return
	}
	header := s.endpoint.headers("")
	header["Content-Type"] = []string{typeJSON}
	res, err := s.endpoint.do(x.ctx, request{method: http.MethodPost, url: s.target, header: header, body: x})
	switch {
	case err != nil && (s.ctx.Err() != nil || x.isCall() && x.ctx.Err() != nil):
		// The link has ended, or the call was cancelled: nobody waits.
	case err != nil:
		s.fail(x, err, x.message.Sent())
		if isUnreachable(err) {
			s.lose(err)
		}
	case res.StatusCode >= 300:
		body := readRefusal(res)
		res.Body.Close()
		s.fail(x, s.endpoint.refusal(res, body), res.StatusCode != http.StatusUnauthorized)
	default:
		skip(x, res)
		res.Body.Close()
	}
}
