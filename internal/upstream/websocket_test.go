package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

// dialFake opens a link to a server that runs serve for its WebSocket.
func dialFake(t *testing.T, serve func(ctx context.Context, c *websocket.Conn)) (*remoteLink, *fake) {
	t.Helper()
	f := newFake(t)
	f.handle(http.MethodGet, func(w http.ResponseWriter, r *http.Request, _ string) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		if c.Subprotocol() != "mcp" {
			t.Errorf("the subprotocol is %q", c.Subprotocol())
		}
		defer c.CloseNow()
		c.SetReadLimit(-1)
		serve(r.Context(), c)
	})
	config := f.config(t)
	config.URL = "ws://user:s3cr3t@server/mcp?key=s3cr3t"
	config.MaxFrame = 1 << 20
	w, err := DialWebSocket(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, w), f
}

// echo sends everything back.
func echo(ctx context.Context, c *websocket.Conn) {
	for {
		kind, m, err := c.Read(ctx)
		if err != nil {
			return
		}
		c.Write(ctx, kind, m)
	}
}

func TestEachFrameIsAMessageOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		messages := make(chan string, 10)
		r, f := dialFake(t, func(ctx context.Context, c *websocket.Conn) {
			for {
				kind, m, err := c.Read(ctx)
				if err != nil {
					return
				}
				if kind != websocket.MessageText {
					t.Errorf("a message is %s", kind)
				}
				messages <- string(m)
				c.Write(ctx, kind, m)
			}
		})
		long := `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"x":"` + strings.Repeat("é", 100_000) + `"}}`
		var events []string
		for _, frame := range []string{pinged, progress, long, one} {
			r.send(frame)
			events = append(events, "frame "+frame)
		}
		r.wants(events...)
		for _, frame := range []string{pinged, progress, long, one} {
			if got := <-messages; got != frame {
				t.Errorf("the server got %.100q", got)
			}
		}
		if f.head[0].Get("Authorization") == "" || !strings.Contains(f.log[0], "GET") {
			t.Errorf("the server got %v", f.head[0])
		}
	})
}

// P6, P7, W3: the rules for lines hold for messages.
func TestWhatAWebSocketMayCarry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := `{"jsonrpc":"2.0","result":"` + strings.Repeat("x", 1<<20) + `","id":2}`
		r, _ := dialFake(t, func(ctx context.Context, c *websocket.Conn) {
			for _, m := range []string{"{\"jsonrpc\":\"2.0\",\r\n\"id\":1,\"result\":{}\n}", "hello\nworld", "", "[" + one + "," + said + "]", long, asked} {
				c.Write(ctx, websocket.MessageText, []byte(m))
			}
			c.Write(ctx, websocket.MessageBinary, []byte(one))
			w, _ := c.Writer(ctx, websocket.MessageText)
			for _, b := range []byte(one) {
				w.Write([]byte{b})
			}
			w.Close()
			c.Read(ctx)
		})
		r.wants(`frame {"jsonrpc":"2.0",  "id":1,"result":{} }`, "noise hello world", "noise ", "frame "+one, "frame "+said,
			fmt.Sprintf("oversize 2 response %d", len(long)), "frame "+asked, "noise a binary message was skipped", "frame "+one)
	})
}

// R1: the end of the WebSocket ends the link, after what came before it.
func TestTheEndOfAWebSocketIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(ctx context.Context, c *websocket.Conn)
		want  string
	}{
		"close": {func(_ context.Context, c *websocket.Conn) { c.Close(websocket.StatusGoingAway, "see you s3cr3t\x07") },
			"the server closed its WebSocket with 1001: see you ***"},
		"close without a word": {func(_ context.Context, c *websocket.Conn) { c.Close(websocket.StatusNormalClosure, "") },
			"the server closed its WebSocket with 1000"},
		"broken": {func(_ context.Context, c *websocket.Conn) { c.CloseNow() }, "read the server's WebSocket: "},
	} {
		inBubble(t, name, func(t *testing.T) {
			r, _ := dialFake(t, func(ctx context.Context, conn *websocket.Conn) {
				conn.Write(ctx, websocket.MessageText, []byte(one))
				c.serve(ctx, conn)
			})
			if err := r.end(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("Run gives %v", err)
			}
			r.wants("frame " + one)
			if err := r.Send(t.Context(), NewMessage([]byte(pinged))); err != ErrClosed {
				t.Errorf("Send gives %v", err)
			}
		})
	}
}

// R1: a server that is not there any more is found out by pings; one that is only silent
// stays.
func TestPingsFindOutWhoIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := dialFake(t, echo)
		time.Sleep(time.Hour)
		r.send(pinged)
		r.wants("frame " + pinged)
	})
	synctest.Test(t, func(t *testing.T) {
		r, _ := dialFake(t, func(context.Context, *websocket.Conn) { <-t.Context().Done() }) // It reads nothing.
		time.Sleep(pingEvery + pongWait)
		if err := r.end(); err == nil || !strings.Contains(err.Error(), "has not answered a ping") {
			t.Errorf("Run gives %v", err)
		}
	})
}

// A server that says goodbye gets the time for it; any other does not hold us up, also
// when it does not read.
func TestClosingAWebSocketIsPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code := make(chan websocket.StatusCode, 1)
		r, _ := dialFake(t, func(ctx context.Context, c *websocket.Conn) {
			_, _, err := c.Read(ctx)
			code <- websocket.CloseStatus(err)
		})
		synctest.Wait()
		begun := time.Now()
		r.Abort(errTest)
		if err := r.end(); err != errTest || time.Since(begun) != 0 {
			t.Errorf("Run gives %v after %s", err, time.Since(begun))
		}
		if c := <-code; c != websocket.StatusNormalClosure {
			t.Errorf("the server was told %d", c)
		}
		r.Close(t.Context())
		r.Close(t.Context())
	})
	synctest.Test(t, func(t *testing.T) {
		r, _ := dialFake(t, func(context.Context, *websocket.Conn) { <-t.Context().Done() })
		m := r.send(`{"jsonrpc":"2.0","id":3,"method":"x","params":"` + strings.Repeat("x", 1<<20) + `"}`)
		synctest.Wait()
		begun := time.Now()
		r.Abort(errTest)
		if err := r.end(); err != errTest || time.Since(begun) > time.Second || !m.Sent() {
			t.Errorf("Run gives %v after %s", err, time.Since(begun))
		}
	})
}

func TestAWebSocketMayBeRefused(t *testing.T) {
	for name, c := range map[string]struct {
		handle func(w http.ResponseWriter, r *http.Request, _ string)
		want   string
	}{
		"401": {func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("WWW-Authenticate", "Bearer x")
			w.WriteHeader(401)
		}, "open a WebSocket to ws://server/mcp: GET http://server/mcp was answered with 401 Unauthorized; the server needs"},
		"redirect": {func(w http.ResponseWriter, r *http.Request, _ string) {
			http.Redirect(w, r, "http://evil/x", http.StatusTemporaryRedirect)
		}, "open a WebSocket to ws://server/mcp: GET http://server/mcp was answered with 307 Temporary Redirect"},
		"no upgrade": {func(w http.ResponseWriter, r *http.Request, _ string) { answer(w, "text/plain", "s3cr3t") }, "open a WebSocket to ws://server/mcp: GET http://server/mcp was answered with 200 OK: ***"},
		"cut off":    {func(http.ResponseWriter, *http.Request, string) { cutOff() }, "open a WebSocket to ws://server/mcp: "},
	} {
		inBubble(t, name, func(t *testing.T) {
			f := newFake(t)
			f.handle(http.MethodGet, c.handle)
			config := f.config(t)
			config.URL = "ws://user:s3cr3t@server/mcp?key=s3cr3t"
			_, err := DialWebSocket(t.Context(), config)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("got %v", err)
			}
			if auth, ok := errors.AsType[*AuthError](err); ok != (name == "401") || ok && auth.Challenge != "Bearer x" {
				t.Errorf("got %#v", err)
			}
			if f.count("GET") != 1 {
				t.Errorf("the server got %q", f.requests())
			}
		})
	}
	inBubble(t, "in time", func(t *testing.T) {
		f := newFake(t)
		f.handle(http.MethodGet, func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() })
		config := f.config(t)
		config.URL = "ws://server/mcp"
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := DialWebSocket(ctx, config); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
