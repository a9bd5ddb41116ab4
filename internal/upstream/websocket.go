package upstream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	// pingEvery is how often the server is pinged, and pongWait how long it has to
	// answer.
	pingEvery = 30 * time.Second
	pongWait  = 30 * time.Second

	// goodbyeWait is how long the server has to answer that we close a WebSocket.
	goodbyeWait = 250 * time.Millisecond
)

// WebSocket is a link over a WebSocket, with one JSON-RPC message a text message and the
// subprotocol mcp. All methods may be called concurrently, also from a Handler.
//
// A message is a line of a Stdio link, which has all the rules: order, limits, what is
// noise, and what was sent. The link ends when the WebSocket does, when the server does
// not answer a ping, and by Abort.
type WebSocket struct {
	*Stdio
	conn *socket
}

// DialWebSocket opens a WebSocket. ctx bounds the opening only. Its error is an
// *AuthError or *StatusError if the server answers with an HTTP status; redirects are not
// followed.
func DialWebSocket(ctx context.Context, config HTTPConfig) (*WebSocket, error) {
	e, err := newEndpoint(config, "ws", "wss")
	if err != nil {
		return nil, err
	}
	conn, res, err := websocket.Dial(ctx, e.url.String(), &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport:     e.transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		HTTPHeader:   e.headers(""),
		Host:         e.host,
		Subprotocols: []string{"mcp"},
	})
	if err != nil {
		defer e.close()
		return nil, fmt.Errorf("open a WebSocket to %s: %w", shown(e.url), dialError(e, res, err))
	}
	conn.SetReadLimit(-1) // The lines have a limit, beyond which only one message is lost.
	s := &socket{conn: conn, endpoint: e}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	in := &socketInput{socket: s}
	in.ctx, in.cancel = context.WithCancel(context.Background())
	return &WebSocket{Stdio: NewStdio(StdioConfig{In: in, Out: s, MaxLine: config.maxFrame()}), conn: s}, nil
}

func dialError(e *endpoint, res *http.Response, err error) error {
	if res != nil && res.StatusCode != http.StatusSwitchingProtocols {
		defer res.Body.Close()
		return e.refusal(res, readRefusal(res))
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // What is around it quotes the URL.
	}
	return e.masked(err)
}

// Run delivers frames to h until the link ends, and returns why: how the WebSocket was
// closed, or the error of Abort. It is to be called once. When it returns, all goroutines
// of the link have ended, and h is not called any more.
func (w *WebSocket) Run(h Handler) error {
	var wg sync.WaitGroup
	done, stop := context.WithCancel(w.conn.ctx)
	var unheard error
	wg.Go(func() { unheard = w.keepAlive(done) })
	err := w.Stdio.Run(h)
	stop()
	wg.Wait()
	if isClosed(w.aborted) {
		return err
	}
	return cmp.Or(unheard, w.conn.ended(), err)
}

// keepAlive pings the server until ctx or the WebSocket ends. If the server is not there
// any more it ends the link, and returns why.
func (w *WebSocket) keepAlive(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for sleep(ctx, pingEvery) {
		pong := make(chan error, 1)
		wg.Go(func() { pong <- w.conn.conn.Ping(ctx) })
		timeout := time.NewTimer(pongWait)
		select {
		case err := <-pong:
			timeout.Stop()
			switch {
			case errors.Is(err, context.DeadlineExceeded):
				return errNoPong // It does not even read; the WebSocket was closed for that.
			case err != nil:
				return nil // It has ended, as the reader knows better.
			}
		case <-timeout.C:
			w.Abort(errNoPong)
			return errNoPong
		}
	}
	return nil
}

var errNoPong = fmt.Errorf("the server has not answered a ping on its WebSocket for %s", pongWait)

// Close ends the link and closes the WebSocket, if Run has not. It is called after Run
// has returned, or instead of it; further calls do nothing.
func (w *WebSocket) Close(context.Context) {
	w.Abort(ErrClosed)
	_ = w.conn.Close() // How it ended is of no interest any more.
	w.conn.endpoint.close()
}

// socket is a WebSocket as a server's output: each message is one line of it.
type socket struct {
	conn     *websocket.Conn
	endpoint *endpoint
	ctx      context.Context // ends reads
	cancel   context.CancelFunc

	// Owned by the reader.
	message io.Reader // the message at hand, or nil

	mu  sync.Mutex
	err error // how the WebSocket ended, or nil
}

// Read implements io.Reader.
func (s *socket) Read(p []byte) (int, error) {
	if s.message == nil {
		kind, message, err := s.conn.Reader(s.ctx)
		if err != nil {
			return 0, s.end(err)
		}
		s.message = message
		if kind == websocket.MessageBinary { // It is none of the protocol's.
			if _, err := io.Copy(io.Discard, message); err != nil {
				return 0, s.end(err)
			}
			s.message = strings.NewReader("a binary message was skipped")
		}
	}
	n, err := s.message.Read(p)
	for i, c := range p[:n] {
		if c == '\n' || c == '\r' {
			p[i] = ' ' // Between the tokens of a frame (W3).
		}
	}
	if errors.Is(err, io.EOF) {
		s.message = nil
		if n == len(p) {
			// No room for the line end: a reader always has some for an empty read.
			s.message = strings.NewReader("")
			return n, nil
		}
		p[n] = '\n'
		return n + 1, nil
	}
	if err != nil {
		return n, s.end(err)
	}
	return n, nil
}

// end notes how the WebSocket ended and returns it as the error of a Read.
func (s *socket) end(err error) error {
	var closed websocket.CloseError
	if errors.As(err, &closed) {
		reason := ""
		if closed.Reason != "" {
			reason = ": " + string(clean([]byte(closed.Reason)))
		}
		err = fmt.Errorf("the server closed its WebSocket with %d%s", int(closed.Code), s.endpoint.mask(reason))
	} else {
		err = fmt.Errorf("read the server's WebSocket: %w", s.endpoint.masked(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	return s.err
}

func (s *socket) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends reads and writes, and the connection: with the handshake that the protocol
// wants, if the server answers at once.
func (s *socket) Close() error {
	late := time.AfterFunc(goodbyeWait, s.cancel)
	defer late.Stop()
	err := s.conn.Close(websocket.StatusNormalClosure, "")
	s.cancel()
	return err
}

// socketInput is a WebSocket as a server's input: each line becomes one message.
type socketInput struct {
	*socket
	ctx    context.Context // ends writes
	cancel context.CancelFunc
	long   io.WriteCloser // the message at hand that came without its end, or nil
}

// Write implements io.Writer, for one goroutine. A line without its end is the
// beginning of a message.
func (s *socketInput) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		line, _, ended := bytes.Cut(p[done:], []byte{'\n'})
		if err := s.writeLine(line, ended); err != nil {
			return done, s.endpoint.masked(err)
		}
		done += len(line)
		if ended {
			done++
		}
	}
	return done, nil
}

func (s *socketInput) writeLine(line []byte, ended bool) (err error) {
	if s.long == nil && ended {
		return s.conn.Write(s.ctx, websocket.MessageText, line)
	}
	if s.long == nil {
		if s.long, err = s.conn.Writer(s.ctx, websocket.MessageText); err != nil {
			return err
		}
	}
	if _, err := s.long.Write(line); err != nil || !ended {
		return err
	}
	err = s.long.Close()
	s.long = nil
	return err
}

// Close implements io.Closer: it ends a Write that waits.
func (s *socketInput) Close() error {
	s.cancel()
	return nil
}
