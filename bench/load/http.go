package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// HTTP is a Session of Streamable HTTP on one TCP connection of its own, kept alive
// from the first request to the last. It writes requests itself and reads answers with
// net/http, without the goroutines of http.Transport. It opens no GET stream.
type HTTP struct {
	conn    net.Conn
	in      *bufio.Reader // over conn
	host    string
	path    string
	headers string        // of every request after the first: session id, protocol version, and what the version wants
	modern  bool          // there is no session at the server to be ended
	events  *bufio.Reader // over the body of an event stream, reset for each
	request request
	out     []byte // reused: the request as written
	message []byte // reused: the message being read
	broken  bool   // a call failed, and the connection may be in the middle of a message
}

// DialHTTP opens a session at an endpoint like "http://127.0.0.1:7420/mcp/echo", by
// the handshake of 2025-11-25.
func DialHTTP(ctx context.Context, endpoint string) (*HTTP, error) {
	return dial(ctx, endpoint, (*HTTP).initialize)
}

// DialModernHTTP begins to use an endpoint as a client of 2026-07-28. That has no
// handshake; one request asks whether the server knows the version.
func DialModernHTTP(ctx context.Context, endpoint string) (*HTTP, error) {
	return dial(ctx, endpoint, (*HTTP).discover)
}

func dial(ctx context.Context, endpoint string, begin func(*HTTP) error) (*HTTP, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("open a session: %w", err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, fmt.Errorf("open a session at %s: %w", endpoint, err)
	}
	s := &HTTP{
		conn:   conn,
		in:     bufio.NewReaderSize(conn, readBuffer),
		host:   u.Host,
		path:   u.RequestURI(),
		events: bufio.NewReaderSize(nil, readBuffer),
	}
	if err := begin(s); err != nil {
		conn.Close()
		return nil, fmt.Errorf("open a session at %s: %w", endpoint, err)
	}
	return s, nil
}

func (s *HTTP) initialize() error {
	if err := s.SetDeadline(time.Now().Add(grace)); err != nil {
		return err
	}
	resp, err := s.do(http.MethodPost, []byte(initializeBody))
	if err != nil {
		return err
	}
	var version string
	err = s.read(resp, func(message []byte) (bool, error) {
		var err error
		version, err = negotiated(message)
		return version != "", err
	})
	if err != nil {
		return err
	}
	s.headers = "Mcp-Protocol-Version: " + version + "\r\n"
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		s.headers += "Mcp-Session-Id: " + id + "\r\n"
	}
	resp, err = s.do(http.MethodPost, []byte(initializedBody))
	if err != nil {
		return err
	}
	if err := s.drain(resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusAccepted {
		return fmt.Errorf("initialized notification: status %s", resp.Status)
	}
	return nil
}

func (s *HTTP) discover() error {
	if err := s.SetDeadline(time.Now().Add(grace)); err != nil {
		return err
	}
	const version = "Mcp-Protocol-Version: " + modernVersion + "\r\n"
	s.headers = version + "Mcp-Method: server/discover\r\n"
	resp, err := s.do(http.MethodPost, []byte(discoverBody))
	if err != nil {
		return err
	}
	if err := s.read(resp, discovered); err != nil {
		return err
	}
	s.modern = true
	s.request.meta = modernMeta + ","
	s.headers = version + "Mcp-Method: tools/call\r\nMcp-Name: echo\r\n"
	return nil
}

// Call implements Session. The latency ends with the answer itself, which on an
// event stream is before the end of the stream; the next call waits for that end.
func (s *HTTP) Call(payload []byte) (time.Duration, error) {
	s.request.next(payload)
	start := time.Now()
	resp, err := s.do(http.MethodPost, s.request.body)
	if err != nil {
		s.broken = true
		return 0, fmt.Errorf("call %d: %w", s.request.id, err)
	}
	var latency time.Duration
	err = s.read(resp, func(message []byte) (bool, error) {
		latency = time.Since(start)
		return s.request.check(message)
	})
	s.broken = err != nil
	return latency, err
}

// SetDeadline implements Session.
func (s *HTTP) SetDeadline(t time.Time) error { return s.conn.SetDeadline(t) }

// Close ends the session with a DELETE, as a well-behaved client does, and closes the
// connection. After a failed call, and where there is no session, it only closes the
// connection.
func (s *HTTP) Close() error {
	defer s.conn.Close()
	if s.broken || s.modern {
		return nil
	}
	resp, err := s.do(http.MethodDelete, nil)
	if err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("end the session: status %s", resp.Status)
	}
	return nil
}

// do sends a request and reads the answer's header.
func (s *HTTP) do(method string, body []byte) (*http.Response, error) {
	s.out = append(s.out[:0], method...)
	s.out = append(s.out, ' ')
	s.out = append(s.out, s.path...)
	s.out = append(s.out, " HTTP/1.1\r\nHost: "...)
	s.out = append(s.out, s.host...)
	s.out = append(s.out, "\r\nAccept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"...)
	s.out = append(s.out, s.headers...)
	s.out = append(s.out, "Content-Length: "...)
	s.out = strconv.AppendInt(s.out, int64(len(body)), 10)
	s.out = append(s.out, "\r\n\r\n"...)
	s.out = append(s.out, body...)
	if _, err := s.conn.Write(s.out); err != nil {
		return nil, fmt.Errorf("send the request: %w", err)
	}
	resp, err := http.ReadResponse(s.in, nil)
	if err != nil {
		return nil, fmt.Errorf("wait for the response: %w", err)
	}
	if resp.Close && method != http.MethodDelete {
		return nil, fmt.Errorf("the server closes the connection (status %s)", resp.Status)
	}
	return resp, nil
}

// read passes the messages of an answer to accept until that returns true or an
// error, and then reads the body to its end, so that the connection can be used again.
func (s *HTTP) read(resp *http.Response, accept func([]byte) (bool, error)) error {
	contentType, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	switch {
	case resp.StatusCode != http.StatusOK:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // Only to explain the status.
		return fmt.Errorf("status %s: %s", resp.Status, bytes.TrimSpace(text))
	case contentType == "application/json":
		return s.readJSON(resp.Body, accept)
	case contentType == "text/event-stream":
		s.events.Reset(resp.Body)
		if err := s.readEvents(accept); err != nil {
			return err
		}
		return s.drain(s.events)
	}
	return fmt.Errorf("unexpected content type %q", contentType)
}

func (s *HTTP) readJSON(body io.Reader, accept func([]byte) (bool, error)) error {
	buf := bytes.NewBuffer(s.message[:0])
	if _, err := buf.ReadFrom(body); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	s.message = buf.Bytes()
	done, err := accept(s.message)
	if err == nil && !done {
		err = fmt.Errorf("the JSON body is no answer: %s", head(s.message))
	}
	return err
}

// readEvents reads messages until accept returns true or an error. Events without
// data, which only carry an id, and comments are skipped.
func (s *HTTP) readEvents(accept func([]byte) (bool, error)) error {
	s.message = s.message[:0]
	for {
		start := len(s.message)
		var err error
		if s.message, err = readLine(s.events, s.message); errors.Is(err, io.EOF) {
			return errors.New("the event stream ended before the answer")
		} else if err != nil {
			return fmt.Errorf("read the event stream: %w", err)
		}
		line := s.message[start:]
		data, isData := bytes.CutPrefix(line, []byte("data:"))
		switch {
		case isData:
			// The lines of one event's data are kept one after the other: JSON may be
			// broken only where a space may stand.
			data = bytes.TrimPrefix(data, []byte(" "))
			s.message = append(s.message[:start], data...)
		case len(line) > 0:
			s.message = s.message[:start]
		case start > 0:
			if done, err := accept(s.message); done || err != nil {
				return err
			}
			s.message = s.message[:0]
		}
	}
}

// drain reads body to its end.
func (s *HTTP) drain(body io.Reader) error {
	if _, err := io.Copy(io.Discard, body); err != nil {
		return fmt.Errorf("read to the end of the response: %w", err)
	}
	return nil
}
