package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse/internal/badserver"
	"roundhouse/internal/config"
	"roundhouse/internal/front"
	"roundhouse/internal/pool"
	"roundhouse/internal/process"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

func TestMain(m *testing.M) {
	process.ReaperMain()
	os.Exit(m.Run())
}

// bad returns a server that is a real process of the misbehaving server.
func bad(t *testing.T, name string, args ...string) *config.Server {
	s := shared(name)
	s.Command, s.Args = badserver.Path(t), args
	s.CloseEOFWait, s.CloseTermWait, s.CloseKillWait = 2*time.Second, 3*time.Second, 2*time.Second
	return s
}

// outside returns a world outside bubbles: processes and sockets are real.
func outside(t *testing.T, servers ...*config.Server) *world {
	t.Helper()
	processes, err := process.NewManager(process.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t}
	w.pool = pool.New(pool.Config{Dial: pool.NewDialer(processes, nil), DrainDelay: time.Minute, Circuit: config.Defaults().Pool.Circuit})
	w.sessions = session.NewManager(session.Config{
		Pool:     w.pool,
		Settings: session.Settings{Servers: servers, Limits: config.Sessions{Max: 100, IdleTimeout: time.Hour}, ListWait: 15 * time.Second, InteractiveTimeout: time.Minute},
	})
	w.gateway = New(Config{Sessions: w.sessions})
	if w.front, err = front.New(front.Config{}); err != nil {
		t.Fatal(err)
	}
	w.gateway.Register(w.front)
	server := httptest.NewServer(w.front)
	w.browser = &http.Client{Transport: redirected{server}}
	t.Cleanup(func() {
		w.gateway.CloseStreams()
		w.sessions.Shutdown(context.Background())
		w.pool.Drain(context.Background(), true)
		server.Close()
		if err := processes.Close(); err != nil {
			t.Error(err)
		}
		if n := w.gateway.queued.Load(); n != 0 {
			t.Errorf("%d bytes are still counted as queued", n)
		}
	})
	return w
}

// redirected sends the requests of peers to a listening server.
type redirected struct{ server *httptest.Server }

func (r redirected) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Host = r.server.Listener.Addr().String()
	return r.server.Client().Transport.RoundTrip(req)
}

// text calls a tool and returns the text of its result.
func (p *peer) text(name, arguments string) string {
	p.w.Helper()
	r := p.tool(name, arguments)
	return r["content"].([]any)[0].(map[string]any)["text"].(string)
}

// R1, R2: a server that is killed during calls costs them a typed error within a
// second; the next call starts it anew. A busy machine may stall any one of them, so one
// kill of three has to be so quick.
func TestAKilledServerCostsItsCallsATypedError(t *testing.T) {
	t.Parallel()
	w := outside(t, bad(t, "a"))
	p, q := w.connect("/mcp/a"), w.connect("/mcp")
	whoami := func() (who badserver.WhoAmI) {
		if err := json.Unmarshal([]byte(p.text("whoami", "{}")), &who); err != nil {
			t.Fatal(err)
		}
		return who
	}
	who := whoami()
	for range 3 {
		slow := q.beginTool("a__slow", `{"ms":60000,"steps":60000}`)
		for len(slow.frames()) == 0 {
			time.Sleep(time.Millisecond)
		}
		begun := time.Now()
		e := p.refused(wire.ToolsCall, `{"name":"kill"}`)
		<-slow.done
		took := time.Since(begun)
		frames := slow.frames()
		for _, e := range []rpcError{e, decode(w, frames[len(frames)-1]).fault(w)} {
			if e.Code != -32010 || e.Data["reason"] != "interrupted" || e.Data["sent"] != "maybe" || e.Data["server"] != "a" {
				t.Errorf("%+v", e)
			}
		}
		again := whoami()
		if again.PID == who.PID || again.Calls != 1 {
			t.Errorf("the next call got %+v", again)
		}
		if got := q.text("a__echo", `{"text":"hi"}`); got != "hi" {
			t.Errorf("the other client's next call got %q", got)
		}
		if took <= time.Second {
			return
		}
		t.Logf("the errors took %s", took)
		who = again
	}
	t.Error("of three kills none cost its calls an error within a second")
}

// P6, W1, cases 3, 11, 25: noise, odd spellings and long lines of a server reach no
// client, and cost none its session.
func TestABadServerIsServedAllTheSame(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-banner", "-json-log", "-blank", "-ansi", "-noise-between", "-bom", "-cr"},
		{"-float-id", "-dup-id", "-unknown-id", "-error-null-id", "-result-before-id"},
		{"-early-notification", "-early-ping", "-batch", "-banner-no-newline"},
		{"-page-size", "5"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			w := outside(t, bad(t, "a", args...))
			var wg sync.WaitGroup
			for i := range 3 {
				wg.Go(func() {
					p := w.connect([]string{"/mcp/a", "/mcp"}[i%2])
					prefix := []string{"", "a__"}[i%2]
					if n := len(names(p.result(wire.ToolsList, "{}"), "tools", "name")); n != 24 {
						t.Errorf("%d tools", n)
					}
					if got, want := p.text(prefix+"echo", fmt.Sprintf(`{"text":"%d"}`, i)), fmt.Sprint(i); got != want {
						t.Errorf("echo: %q, want %q", got, want)
					}
					if got := p.send(wire.ToolsCall, `{"name":"`+prefix+`structured"}`); !strings.Contains(got.body, `{"id":9007199254740993,"list":[18446744073709551615,1.0,1e2]}`) {
						t.Errorf("structured: %s", got.body)
					}
				})
			}
			wg.Wait()
			if got := w.connect("/mcp/a").text("big", `{"bytes":5000000}`); len(got) != 5000000 {
				t.Errorf("big: %d bytes", len(got))
			}
		})
	}
}

// Cases 8, 9: odd names of a real server.
func TestOddNamesLeadBack(t *testing.T) {
	w := outside(t, bad(t, "日本 x", "-odd-names"))
	p := w.connect("/mcp")
	listed := names(p.result(wire.ToolsList, "{}"), "tools", "name")
	odd := badserver.OddNames()
	for i, name := range listed[len(listed)-len(odd):] {
		if got := p.text(name, `{}`); !strings.HasPrefix(got, odd[i]+" called") {
			t.Errorf("%q: %q", name, got)
		}
	}
}

// M6, M7: a real server asks, through a real connection, during a call.
func TestARealServerAsks(t *testing.T) {
	w := outside(t, bad(t, "a"))
	p := w.connect("/mcp/a")
	call := p.beginTool("ask", `{"kind":"sampling"}`)
	for len(call.frames()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if r := p.post(string(wire.Result(decode(w, call.frames()[0]).ID, []byte(`{"model":"m"}`)))); r.status != http.StatusAccepted {
		t.Fatal(r.status)
	}
	<-call.done
	if got := call.frames()[1]; !strings.Contains(got, `{\"kind\":\"sampling\",\"result\":{\"model\":\"m\"}}`) {
		t.Errorf("the tool got %s", got)
	}
}

// H4: a burst of notifications costs a client that reads none of them, nor its answer.
func TestABurstReachesAClientThatReads(t *testing.T) {
	w := outside(t, bad(t, "a"))
	const n = 5000
	r := w.connect("/mcp/a").send(wire.ToolsCall, fmt.Sprintf(`{"name":"log","arguments":{"count":%d}}`, n))
	if len(r.frames) != n+1 || decode(w, r.frames[len(r.frames)-1]).Result == nil {
		t.Errorf("%d frames, the last one is %s", len(r.frames), r.frames[len(r.frames)-1])
	}
}

// H6, case 64: Host and Origin are checked before anything else.
func TestHostAndOriginAreChecked(t *testing.T) {
	w := outside(t, bad(t, "a"))
	for _, c := range []struct{ host, origin string }{{"evil.example", ""}, {"localhost.evil.example", ""}, {"localhost", "http://evil.example"}, {"localhost", "null"}} {
		r := w.dialed("/mcp").request(http.MethodPost, hello(wire.Version20251125, "{}"))
		r.Host = c.host
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		resp, err := w.browser.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusMisdirectedRequest {
			t.Errorf("%+v: %d %s", c, resp.StatusCode, body)
		}
	}
	if len(w.sessions.List("", true)) != 0 {
		t.Error("a session was opened")
	}
}
