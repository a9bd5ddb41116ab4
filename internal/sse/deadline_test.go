package sse_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/sse"
)

// These tests run a real HTTP server over pipes in memory, in virtual time.

const deadline = 10 * time.Second

// pipes is a listener of connections in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes {
	return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error   { close(l.closed); return nil }
func (l *pipes) Addr() net.Addr { return &net.IPAddr{} }

func (l *pipes) dial(context.Context, string, string) (net.Conn, error) {
	server, client := net.Pipe()
	l.conns <- server
	return client, nil
}

// serve runs a server with a handler for event streams until the test's bubble ends.
func serve(t *testing.T, handler func(*sse.Writer) error) *pipes {
	t.Helper()
	l := newPipes()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Protocols: protocols,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if err := handler(sse.NewWriter(w, deadline)); err != nil {
				panic(http.ErrAbortHandler)
			}
		}),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return l
}

// client returns a client of one HTTP version for the server.
func client(t *testing.T, l *pipes, h2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetUnencryptedHTTP2(h2)
	transport := &http.Transport{DialContext: l.dial, Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func get(t *testing.T, c *http.Client) *http.Response {
	t.Helper()
	r, err := c.Get("http://server/")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func overBothVersions(t *testing.T, test func(t *testing.T, h2 bool)) {
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "h2c": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, h2) })
		})
	}
}

// H4: a stalled reader is found out after the write deadline.
func TestAStalledReaderIsFoundOut(t *testing.T) {
	overBothVersions(t, func(t *testing.T, h2 bool) {
		took := make(chan time.Duration, 1)
		l := serve(t, func(s *sse.Writer) error {
			for {
				begun := time.Now()
				s.Event("", bytes.Repeat([]byte("a"), 32<<10))
				if err := s.Flush(); err != nil {
					took <- time.Since(begun)
					return err
				}
			}
		})
		r := get(t, client(t, l, h2))
		defer r.Body.Close()
		if d := <-took; d != deadline {
			t.Errorf("the handler was told after %s, want %s", d, deadline)
		}
	})
}

// H4: a reader that is slow but reads is not cut off, however large an event is.
func TestASlowReaderGetsALargeEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := strings.Repeat("a", 1<<20)
		l := serve(t, func(s *sse.Writer) error {
			s.Event("", []byte(large))
			return s.Flush()
		})
		r := get(t, client(t, l, false))
		defer r.Body.Close()
		begun := time.Now()
		var got strings.Builder
		for {
			time.Sleep(deadline / 4)
			_, err := io.CopyN(&got, r.Body, 32<<10)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%v after %d bytes", err, got.Len())
			}
		}
		if got.String() != "data: "+large+"\n\n" || time.Since(begun) < 2*deadline {
			t.Errorf("got %d bytes in %s", got.Len(), time.Since(begun))
		}
	})
}

// H4: the deadline is for writes; a stream on which nothing happens lives on.
func TestAnIdleStreamOutlivesTheDeadline(t *testing.T) {
	overBothVersions(t, func(t *testing.T, h2 bool) {
		l := serve(t, func(s *sse.Writer) error {
			for _, text := range []string{"first", "second", "third"} {
				s.Event("", []byte(text))
				if err := s.Flush(); err != nil {
					return err
				}
				time.Sleep(3 * deadline)
			}
			return nil
		})
		r := get(t, client(t, l, h2))
		defer r.Body.Close()
		got, err := io.ReadAll(r.Body)
		if want := "data: first\n\ndata: second\n\ndata: third\n\n"; err != nil || string(got) != want {
			t.Errorf("got %q and error %v", got, err)
		}
	})
}

func TestTheConnectionServesFurtherRequestsAfterAStream(t *testing.T) {
	overBothVersions(t, func(t *testing.T, h2 bool) {
		l := serve(t, func(s *sse.Writer) error {
			s.Event("", []byte("x"))
			return s.Flush()
		})
		dials := 0
		c := client(t, l, h2)
		c.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials++
			return l.dial(ctx, network, addr)
		}
		for range 2 {
			r := get(t, c)
			if line, err := bufio.NewReader(r.Body).ReadString('\n'); err != nil || line != "data: x\n" {
				t.Errorf("got %q and error %v", line, err)
			}
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
			time.Sleep(2 * deadline)
		}
		if dials != 1 {
			t.Errorf("%d connections were made", dials)
		}
	})
}
