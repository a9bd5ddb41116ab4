package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/wire"
)

// Case 35: a bad status fails the one call, and says what to know.
func TestABadStatusFailsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var status int
		var body string
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Retry-After", "7")
			w.Header().Add("WWW-Authenticate", `Bearer resource_metadata="https://server/x"`)
			w.Header().Add("WWW-Authenticate", `Basic`)
			w.WriteHeader(status)
			io.WriteString(w, body)
		})
		r := f.start(t)
		r.shake()
		for _, c := range []struct {
			status  int
			body    string
			message string
			sent    bool
		}{
			{502, "<h1>Bad\x1b[1m</h1>", "POST http://server/mcp was answered with 502 Bad Gateway: <h1>Bad</h1>", true},
			{429, "", "POST http://server/mcp was answered with 429 Too Many Requests", true},
			{400, "bad arguments", "POST http://server/mcp was answered with 400 Bad Request: bad arguments", true},
			{500, strings.Repeat("x", 100_000), "POST http://server/mcp was answered with 500 Internal Server Error: " + strings.Repeat("x", 512), true},
			{401, "who?", "POST http://server/mcp was answered with 401 Unauthorized: who?; the server needs a login, or other credentials in its headers", false},
			{403, "", "POST http://server/mcp was answered with 403 Forbidden; the server needs a login, or other credentials in its headers", true},
		} {
			status, body = c.status, c.body
			m := r.call("1", wire.ToolsCall)
			synctest.Wait()
			if got, want := r.seen(), fmt.Sprintf("failed 1, sent %t: %s", c.sent, c.message); len(got) != 1 || got[0] != want {
				t.Errorf("got %q", got)
			}
			err := r.failure()
			var s *StatusError
			if !errors.As(err, &s) || s.Status != c.status || s.RetryAfter != 7*time.Second || m.Sent() != c.sent {
				t.Errorf("got %#v, sent %t", err, m.Sent())
			}
			auth, ok := errors.AsType[*AuthError](err)
			if wants := c.status == 401 || c.status == 403; ok != wants || ok && auth.Challenge != `Bearer resource_metadata="https://server/x", Basic` {
				t.Errorf("got %#v", err)
			}
		}
		// A JSON-RPC response to the call is its answer, whatever the status.
		status, body = 400, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no such session"}}`
		r.call("1", wire.ToolsCall)
		r.wants("frame of 1: " + body)
	})
}

// Case 4: the server has forgotten the session. What it refused was not executed, and may
// be sent again on a new link.
func TestALostSessionEndsTheLink(t *testing.T) {
	refuse := func(status int, body string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, _ *http.Request, _ string) {
			time.Sleep(100 * time.Millisecond)
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for name, h := range map[string]func(http.ResponseWriter, *http.Request, string){
		"404":            refuse(404, ""),
		"404 as JSON":    refuse(404, `{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"Session not found"}}`),
		"400 as JSON":    refuse(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`),
		"400 in English": refuse(400, "Unknown SESSION"),
	} {
		inBubble(t, name, func(t *testing.T) {
			f := newFake(t)
			f.handle("slow", func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() })
			r := f.start(t)
			r.shake()
			slow := r.call("0", "slow")
			synctest.Wait()
			f.handle(wire.ToolsCall, h)
			f.handle(http.MethodDelete, func(http.ResponseWriter, *http.Request, string) { t.Error("the lost session was ended") })
			var refused []*Message
			for id := 1; id <= 5; id++ {
				refused = append(refused, r.call(fmt.Sprint(id), wire.ToolsCall))
				time.Sleep(time.Millisecond)
			}
			if err := r.end(); !errors.Is(err, ErrSessionLost) {
				t.Errorf("Run gives %v", err)
			}
			if len(r.errs) != 5 {
				t.Errorf("the handler was told %q", r.seen())
			}
			for _, m := range refused {
				if m.Sent() {
					t.Errorf("message %s may have been executed", m.ID)
				}
			}
			for _, err := range r.errs {
				if !errors.Is(err, ErrSessionLost) {
					t.Errorf("got %v", err)
				}
			}
			if !slow.Sent() {
				t.Error("a call that was in flight can safely be sent again")
			}
			r.Close(t.Context())
		})
	}
}

// Case 4: what looks like a lost session and is none.
func TestASessionIsNotLostLightly(t *testing.T) {
	notFound := func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusNotFound) }
	inBubble(t, "404 for the GET stream only", func(t *testing.T) {
		f := newFake(t)
		f.handle(http.MethodGet, notFound)
		r := f.start(t)
		r.shake()
		time.Sleep(time.Hour)
		r.call("1", wire.ToolsCall)
		r.wants("frame of 1: " + result("1"))
		if n := f.count("GET"); n != 1 {
			t.Errorf("the stream was asked for %d times", n)
		}
	})
	inBubble(t, "404 without a session", func(t *testing.T) {
		f := newFake(t)
		f.session = ""
		f.handle(wire.ToolsCall, notFound)
		r := f.start(t)
		r.shake()
		r.call("1", wire.ToolsCall)
		r.wants("failed 1, sent true: POST http://server/mcp was answered with 404 Not Found")
		r.call("2", wire.ToolsList)
		r.wants("frame of 2: " + result("2"))
		r.Abort(errTest)
		r.end()
		r.Close(t.Context())
		if f.count("DELETE") != 0 {
			t.Error("a session was ended that never was")
		}
	})
	inBubble(t, "400 for another reason", func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.ToolsCall, func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusBadRequest) })
		r := f.start(t)
		r.shake()
		r.call("1", wire.ToolsCall)
		r.wants("failed 1, sent true: POST http://server/mcp was answered with 400 Bad Request")
		r.call("2", wire.ToolsList)
		r.wants("frame of 2: " + result("2"))
	})
}

// R1, R2: that no connection can be made ends the link, and the call was not sent; but
// not while others still have one.
func TestAServerThatCannotBeReachedEndsTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		hold := make(chan struct{})
		f.handle("slow", func(w http.ResponseWriter, _ *http.Request, id string) {
			stream(w, data(progress))
			<-hold
			stream(w, data(result(id)))
		})
		c := f.config(t)
		c.Transport.(*http.Transport).DisableKeepAlives = true
		h, err := NewHTTP(c)
		if err != nil {
			t.Fatal(err)
		}
		r := run(t, h)
		r.shake()
		r.call("1", "slow")
		r.wants("frame of 1: " + progress)
		f.net.mu.Lock()
		f.net.refuse = true
		f.net.mu.Unlock()
		for range 2 {
			m := r.call("2", wire.ToolsCall)
			r.wants("failed 2, sent false: POST http://server/mcp: connection refused")
			if m.Sent() {
				t.Error("the call counts as sent")
			}
		}
		close(hold)
		r.wants("frame of 1: " + result("1"))
		r.call("3", wire.ToolsCall)
		if err := r.end(); !errors.Is(err, errRefused) {
			t.Errorf("Run gives %v", err)
		}
		r.wants("failed 3, sent false: POST http://server/mcp: connection refused")
	})
}

// deafConn is a connection that takes nothing any more once deaf is set.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Write(p []byte) (int, error) {
	if c.deaf.Load() {
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(p)
}

// R5: of a message that a kept connection did not take, nothing has left.
func TestAConnectionThatWasClosedMeanwhileTookNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var deaf atomic.Bool
		r := f.start(t, func(c *HTTPConfig) {
			c.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				if deaf.Load() {
					return nil, errRefused
				}
				c, err := f.net.dial(ctx, network, address)
				return deafConn{c, &deaf}, err
			}
		})
		r.shake()
		deaf.Store(true)
		m := r.call("1", wire.ToolsCall)
		if err := r.end(); !errors.Is(err, errRefused) || m.Sent() {
			t.Errorf("Run gives %v, sent %t", err, m.Sent())
		}
		r.wants("failed 1, sent false: POST http://server/mcp: connection refused")
	})
}

// R5: a connection that breaks behind the request fails the call, which may have been
// executed and is not sent again; the link goes on.
func TestAConnectionThatBreaksFailsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.handle(wire.ToolsCall, func(http.ResponseWriter, *http.Request, string) { cutOff() })
		f.handle("half", func(w http.ResponseWriter, _ *http.Request, id string) {
			w.Header().Set("Content-Length", "1000")
			answer(w, "application/json", result(id))
			w.(http.Flusher).Flush()
			cutOff()
		})
		r := f.start(t)
		r.shake()
		m := r.call("1", wire.ToolsCall)
		r.wants("failed 1, sent true: POST http://server/mcp: EOF")
		if n := f.count(wire.ToolsCall); n != 1 || !m.Sent() {
			t.Errorf("the server got it %d times; sent %t", n, m.Sent())
		}
		r.call("2", "half")
		if err := r.failure(); !errors.Is(err, ErrInterrupted) {
			t.Errorf("got %v", err)
		}
		r.call("3", wire.ToolsList)
		r.wants("frame of 3: " + result("3"))
	})
}
