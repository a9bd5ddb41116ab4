package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/relay"
	"roundhouse/internal/secret"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

const (
	shimHello = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"shim","version":"1"}}}`
	caller    = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":%s}}`
)

// withRelay runs a test in a world that shims can reach.
func withRelay(t *testing.T, set settings, test func(w *world, rl *Relay)) {
	t.Helper()
	inWorld(t, set, []*config.Server{shared("s")}, func(w *world) {
		rl := NewRelay(RelayConfig{Gateway: w.gateway, File: "/etc/my file.json"})
		rl.Register(w.front)
		defer rl.Close(context.Background())
		test(w, rl)
	})
}

// shimEnd is a shim's end of a line.
type shimEnd struct {
	*world
	conn    net.Conn
	session string
	header  http.Header
	frames  chan string   // what the daemon sent; closed at the end of the line
	stop    chan struct{} // closed to read no more
}

// openLine opens a line to the server s.
func (w *world) openLine(header http.Header) (*shimEnd, error) {
	conn, err := w.listener.dial(context.Background(), "", "")
	if err != nil {
		return nil, err
	}
	in, answer, err := relay.Open(conn, "localhost", relay.Path("s"), header)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	e := &shimEnd{world: w, conn: conn, session: answer.Get(relay.SessionHeader), header: answer, frames: make(chan string, 10_000), stop: make(chan struct{})}
	go e.read(in) // ends with the line
	w.Cleanup(func() { _ = conn.Close() })
	return e, nil
}

func (e *shimEnd) read(in *bufio.Reader) {
	defer close(e.frames)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		e.frames <- strings.TrimSuffix(line, "\n")
		select {
		case <-e.stop:
			return
		default:
		}
	}
}

// connected opens a line and brings its client through the handshake.
func (w *world) connected(header http.Header) *shimEnd {
	w.Helper()
	e, err := w.openLine(header)
	if err != nil {
		w.Fatal(err)
	}
	e.send(shimHello)
	if got := e.next(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":"hello","result":{"protocolVersion":"2025-11-25"`) {
		w.Fatalf("the handshake gave %s", got)
	}
	e.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return e
}

func (e *shimEnd) send(frames ...string) {
	e.Helper()
	for _, f := range frames {
		if _, err := io.WriteString(e.conn, f+"\n"); err != nil {
			e.Fatal(err)
		}
	}
}

// next waits for a frame; "" is the end of the line.
func (e *shimEnd) next() string {
	e.Helper()
	select {
	case f := <-e.frames:
		return f
	case <-time.After(24 * time.Hour):
		e.Fatal("no frame came within a day")
		return ""
	}
}

func (e *shimEnd) want(parts ...string) {
	e.Helper()
	got := e.next()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			e.Fatalf("%s is not in\n%s", p, got)
		}
	}
}

func (e *shimEnd) quiet() {
	e.Helper()
	synctest.Wait()
	if len(e.frames) > 0 {
		e.Fatalf("the shim got %s", <-e.frames)
	}
}

func (w *world) list() []session.Info { return w.sessions.List("", true) }

// W1, H8: what a shim sends and gets are the client's and the server's bytes.
func TestRelayPassesFramesAsTheyAre(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		e := w.connected(nil)
		e.send(`{ "id":1.50, "x":1, "method":"tools/call","params":{"name":"echo","arguments":{"big":9007199254740993,"a":1.0}},"jsonrpc":"2.0"}`)
		if got := e.next(); got != `{"jsonrpc":"2.0","id":1.50,"result":{"content":[],"server":"s","process":1,"name":"echo","arguments":{"big":9007199254740993,"a":1.0}}}` {
			t.Errorf("got %s", got)
		}
		if got := w.proc("s").got(wire.ToolsCall); len(got) != 1 || !strings.Contains(got[0], `"x":1, "method"`) {
			t.Errorf("the server got %s", got)
		}
	})
}

// K6, N2, H8: what the request of a line says of the shim.
func TestRelayFacts(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		e := w.connected(http.Header{relay.SessionHeader: {"mine"}, relay.WorkspaceHeader: {url.PathEscape("/home/ü b")}})
		other := w.connected(nil)
		again := w.connected(http.Header{relay.SessionHeader: {"mine"}})
		if e.session != "mine" || again.session != "mine" || other.session == "mine" || other.session == "" {
			t.Errorf("the sessions are %q, %q and %q", e.session, again.session, other.session)
		}
		if got := e.header.Get(relay.ConfigHeader); got != "%2Fetc%2Fmy%20file.json" {
			t.Errorf("the configuration is %q", got)
		}
		if n := rl.Lines(); n != 3 {
			t.Errorf("there are %d lines", n)
		}
		for _, s := range w.list() {
			named := s.ID == "mine"
			want := map[bool]string{true: "/home/ü b"}[named]
			if s.Named != named || s.Workspace != want || (len(s.Clients) == 2) != named || s.Streams != len(s.Clients) {
				t.Errorf("a session is %+v", s)
			}
		}
	})
}

func TestRelayRefusals(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		for name, c := range map[string]struct {
			header http.Header
			want   string
		}{
			"session":   {http.Header{relay.SessionHeader: {"a b"}}, "X-Session-Id is malformed"},
			"workspace": {http.Header{relay.WorkspaceHeader: {"relative"}}, "absolute path"},
		} {
			_, err := w.openLine(c.header)
			if refusal, ok := errors.AsType[*relay.Refusal](err); !ok || refusal.Status != http.StatusBadRequest || !strings.Contains(refusal.Message, c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		res, err := w.browser.Get("http://localhost/relay")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), "point an MCP client to /mcp") {
			t.Errorf("%s: %s, %v", res.Status, b, err)
		}
		if n := rl.Lines(); n != 0 {
			t.Errorf("%d lines are left", n)
		}
	})
}

// A handshake comes first, and one that fails may be repeated.
func TestRelayBeforeTheHandshake(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		w.scripts["s"].set(func(s *script) { s.broken = true })
		e, err := w.openLine(nil)
		if err != nil {
			t.Fatal(err)
		}
		e.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`, fmt.Sprintf(caller, 2, "{}"), `{"jsonrpc":"2.0","method":"notifications/x"}`, `nonsense`,
			`{"jsonrpc":"2.0","id":3,"id":3,"method":"x"}`, `[]`, shimHello)
		e.want(`"id":1,"result":{}`)
		e.want(`"id":2,"error"`, "the first request must be initialize")
		e.want(`"id":null`, "-32700")
		e.want(`"id":null`, "-32600")
		e.want(`"id":null`, "-32600")
		e.want(`"id":"hello","error"`, "start_failed")
		w.scripts["s"].set(func(s *script) { s.broken = false })
		e.send(shimHello, fmt.Sprintf(caller, 4, "{}"))
		e.want(`"id":"hello","result"`)
		e.want(`"id":4,"result"`) // although it came before the handshake was answered
		e.send(shimHello)
		e.want(`"id":"hello","error"`, "initialized already")
	})
}

// W3: a batch is taken apart, and answered one by one.
func TestRelayTakesBatchesApart(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		e := w.connected(nil)
		e.send("[" + fmt.Sprintf(caller, 1, `{"ms":5000}`) + `,{"jsonrpc":"2.0"},` + fmt.Sprintf(caller, 2, "{}") + "]")
		e.want(`"error"`)
		e.want(`"id":2,"result"`)
		e.want(`"id":1,"result"`)
	})
}

// M2: a request that takes its time on its way, here because its server starts, holds
// up neither others nor its own cancellation.
func TestRelayReadsOnWhileARequestWaits(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		e := w.connected(nil)
		w.scripts["s"].set(func(s *script) { s.delay = 30 * time.Second })
		w.proc("s").die()
		synctest.Wait()
		begun := time.Now()
		e.send(fmt.Sprintf(caller, 1, `{}`), fmt.Sprintf(caller, 2, `{}`), fmt.Sprintf(caller, 3, `{}`),
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`, `{"jsonrpc":"2.0","id":4,"method":"ping"}`)
		e.want(`"id":4,"result"`)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the ping took %s", took)
		}
		first, second := e.next(), e.next()
		if took := time.Since(begun); took < 30*time.Second || !strings.Contains(first+second, `"id":1,"result"`) || !strings.Contains(first+second, `"id":3,"result"`) {
			t.Errorf("after %s came %s and %s", took, first, second)
		}
		if n := len(w.proc("s").got(wire.ToolsCall)); n != 2 {
			t.Errorf("the server got %d calls", n)
		}
		e.quiet()
	})
}

// Frames that come in a row go to the server in that order.
func TestRelayKeepsTheOrder(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		e := w.connected(nil)
		const n = 500
		for i := range n {
			e.send(fmt.Sprintf(caller, i, fmt.Sprintf(`{"n":%d}`, i)))
		}
		for range n {
			e.want(`"result"`)
		}
		for i, frame := range w.proc("s").got(wire.ToolsCall) {
			if !strings.Contains(frame, fmt.Sprintf(`{"n":%d}`, i)) {
				t.Fatalf("frame %d is %s", i, frame)
			}
		}
	})
}

// A client's requests in flight are limited; what it got back it may send again.
func TestRelayLimitsRequestsInFlight(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		e := w.connected(nil)
		for i := range maxOpen {
			e.send(fmt.Sprintf(caller, i, `{"ms":1000}`))
		}
		e.send(fmt.Sprintf(caller, maxOpen, `{}`))
		e.want(fmt.Sprintf(`"id":%d,"error"`, maxOpen), "are in flight")
		for range maxOpen {
			e.want(`"result"`)
		}
		e.send(fmt.Sprintf(caller, 0, `{}`))
		e.want(`"id":0,"result"`)
	})
}

// N4, M2: a client that closes its end has left. Its session ends, if nobody named it,
// and its calls with it.
func TestRelayEndOfAShim(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		e, named := w.connected(nil), w.connected(http.Header{relay.SessionHeader: {"n"}})
		e.send(fmt.Sprintf(caller, 1, `{"ms":100000000}`))
		synctest.Wait()
		_ = e.conn.Close()
		_ = named.conn.Close()
		synctest.Wait()
		if list := w.list(); len(list) != 1 || list[0].ID != "n" || len(list[0].Clients) != 0 || list[0].State != session.Dormant {
			t.Errorf("the sessions are %+v", list)
		}
		if n := len(w.proc("s").got(wire.Cancelled)); n != 1 {
			t.Errorf("the server saw %d cancellations", n)
		}
		if n := rl.Lines(); n != 0 {
			t.Errorf("%d lines are left", n)
		}
	})
}

// stall makes a line break: nobody reads what the daemon writes until its deadline.
func (e *shimEnd) stall() {
	e.Helper()
	e.deafen()
	time.Sleep(10 * time.Second)
	synctest.Wait()
}

// deafen makes the daemon write what nobody reads.
func (e *shimEnd) deafen() {
	e.Helper()
	close(e.stop)
	for id := 901; id <= 902; id++ { // the reader takes the first answer
		e.send(fmt.Sprintf(caller, id, `{}`))
		synctest.Wait()
	}
}

// H8: the session of a line that broke waits, and is entered again by a line that
// resumes it; the client of the old line is gone then.
func TestRelayResumes(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		e := w.connected(nil)
		e.stall()
		time.Sleep(lineGrace - 5*time.Second)
		if n, list := rl.Lines(), w.list(); n != 0 || len(list) != 1 || list[0].ID != e.session || list[0].Streams != 0 {
			t.Errorf("there are %d lines, the sessions are %+v", n, list)
		}
		again := w.connected(http.Header{relay.ResumeHeader: {e.session}})
		synctest.Wait()
		if list := w.list(); again.session != e.session || len(list) != 1 || len(list[0].Clients) != 1 || list[0].Named {
			t.Errorf("the line entered %q, the sessions are %+v", again.session, list)
		}
		time.Sleep(2 * lineGrace)
		again.send(fmt.Sprintf(caller, 1, `{}`))
		again.want(`"id":1,"result"`)
		_ = again.conn.Close()
		synctest.Wait()
		if list := w.list(); len(list) != 0 {
			t.Errorf("the sessions are %+v", list)
		}
	})
}

// H8: a line that broke and does not come back has left; its id is nobody's then, and
// somebody else's never was.
func TestRelayResumesNothingElse(t *testing.T) {
	tokens := []config.Token{{Principal: "a", Token: secret.New("token-of-a-0123456789")}, {Principal: "b", Token: secret.New("token-of-b-0123456789")}}
	as := func(p, resume string) http.Header {
		return http.Header{"Authorization": {"Bearer token-of-" + p + "-0123456789"}, relay.ResumeHeader: {resume}}
	}
	withRelay(t, settings{tokens: tokens}, func(w *world, _ *Relay) {
		e := w.connected(as("a", ""))
		e.stall()
		if other := w.connected(as("b", e.session)); other.session == e.session {
			t.Error("a session of another principal was entered")
		}
		time.Sleep(lineGrace + time.Second)
		late := w.connected(as("a", e.session))
		if late.session == e.session || late.header.Get(relay.ConfigHeader) != "" {
			t.Errorf("the answer is %v", late.header)
		}
		if n := len(w.list()); n != 2 {
			t.Errorf("there are %d sessions", n)
		}
	})
}

// H4: a shim that reads too slowly loses notifications and, when it takes nothing for
// ten seconds, its line; it delays nobody.
func TestRelayAndASlowShim(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		slow, other := w.connected(nil), w.connected(nil)
		note := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + strings.Repeat("x", 4000) + `"}}`
		quoted := `"` + strings.ReplaceAll(note, `"`, `\"`) + `"`
		lines := strings.Repeat(quoted+",", 999) + quoted
		close(slow.stop)
		call := fmt.Sprintf(caller, 1, `{"ms":1000,"lines":[`+lines+`]}`) // its answer repeats the arguments
		slow.send(call)
		synctest.Wait()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := w.gateway.queued.Load(); n > maxQueuedBytes+int64(len(call)) {
			t.Errorf("%d bytes wait", n)
		}
		other.send(fmt.Sprintf(caller, 1, `{}`))
		other.want(`"id":1,"result"`)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if _, err := io.WriteString(slow.conn, "\n"); err == nil {
			t.Error("the slow shim still has its line")
		}
		if n := w.gateway.queued.Load(); n != 0 {
			t.Errorf("%d bytes wait for nobody", n)
		}
	})
}

// G1, H8: while the daemon stops, a request on a line is refused in a way that says that
// it was not sent, one in flight is answered, and then the line ends.
func TestRelayWhileStopping(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		e := w.connected(nil)
		e.send(fmt.Sprintf(caller, 1, `{"ms":3000}`), fmt.Sprintf(caller, 2, `{"ms":1000000}`))
		synctest.Wait()
		w.front.Drain(time.Second)
		w.sessions.Drain()
		e.send(fmt.Sprintf(caller, 3, `{}`))
		e.want(`"id":3,"error"`, `"reason":"draining"`, `"sent":"no"`)
		_, err := w.openLine(nil)
		if refusal, ok := errors.AsType[*relay.Refusal](err); !ok || refusal.Status != http.StatusServiceUnavailable {
			t.Errorf("a new line: %v", err)
		}
		e.want(`"id":1,"result"`)
		w.sessions.Shutdown(context.Background())
		if got := e.next(); !strings.Contains(got, `"id":2,"error"`) || strings.Contains(got, `"sent":"no"`) {
			t.Errorf("the call that was cut off got %s", got)
		}
		rl.Close(context.Background())
		if got := e.next(); got != "" {
			t.Errorf("after the end came %s", got)
		}
		if n := rl.Lines(); n != 0 {
			t.Errorf("%d lines are left", n)
		}
	})
}

// M7: a server's question reaches the shim's client under an id that no earlier line
// used, and its answer the server.
func TestRelayAsks(t *testing.T) {
	hello := strings.Replace(shimHello, `"capabilities":{}`, `"capabilities":{"roots":{}}`, 1)
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		seen := map[string]bool{}
		for range 2 {
			time.Sleep(time.Second)
			e, err := w.openLine(nil)
			if err != nil {
				t.Fatal(err)
			}
			e.send(hello)
			e.want(`"result"`)
			e.send(fmt.Sprintf(caller, 1, `{"ask":"roots/list","ms":1000}`))
			f, err := wire.Parse([]byte(e.next()))
			if err != nil || f.Method != wire.RootsList || seen[string(f.ID())] || len(f.ID()) < 10 {
				t.Fatalf("the question is %s, %v", f.Raw, err)
			}
			seen[string(f.ID())] = true
			e.send(string(wire.Result(f.ID(), []byte(`{"roots":[]}`))))
			e.want(`"id":1,"result"`)
			synctest.Wait()
			_ = e.conn.Close()
		}
		answers := 0
		for _, raw := range w.proc("s").seen {
			if strings.Contains(raw, `"result":{"roots":[]}`) {
				answers++
			}
		}
		if answers == 0 {
			t.Error("no answer reached the server")
		}
	})
}

// A daemon's end does not wait for a line that takes nothing.
func TestRelayCloseIsBounded(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		e := w.connected(nil)
		e.deafen()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		begun := time.Now()
		rl.Close(ctx)
		if took := time.Since(begun); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
