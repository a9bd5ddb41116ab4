package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/secret"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// only describes the one session that there is.
func (w *world) only() session.Info {
	w.Helper()
	list := w.sessions.List("local", false)
	if len(list) != 1 {
		w.Fatalf("%d sessions: %+v", len(list), list)
	}
	return list[0]
}

// N3, M4, M5: a session that goes dormant gives its connections back and loses
// nothing: no 404, and subscriptions and log level are there again.
func TestADormantSessionWakesUpAsItWas(t *testing.T) {
	for _, path := range []string{"/mcp/a", "/mcp"} {
		t.Run(path, func(t *testing.T) {
			inWorld(t, settings{}, oneServer(), func(w *world) {
				w.scripts["a"].resources = []string{"file:///x"}
				p := w.connect(path)
				stream := p.listen("")
				p.result(wire.ToolsList, "{}")
				p.result(wire.LoggingSetLevel, `{"level":"debug"}`)
				p.result(wire.ResourcesSubscribe, `{"uri":"file:///x"}`)
				p.result(wire.ResourcesSubscribe, `{"uri":"file:///y"}`)
				p.result(wire.ResourcesUnsubscribe, `{"uri":"file:///y"}`)
				first := w.proc("a")
				time.Sleep(11 * time.Minute)
				synctest.Wait()
				if s := w.only(); s.State != session.Dormant || len(s.Connections) != 0 || w.refs() != 0 || !first.dead() {
					t.Errorf("%+v, %d references, process ended: %v", s, w.refs(), first.dead())
				}
				if stream.ended() {
					t.Error("the stream ended")
				}
				time.Sleep(time.Hour)
				p.result(wire.ToolsList, "{}")
				synctest.Wait()
				second := w.proc("a")
				if second == first || w.only().State != session.Active {
					t.Errorf("%+v", w.only())
				}
				for _, method := range []string{wire.LoggingSetLevel, wire.ResourcesSubscribe} {
					got := second.got(method)
					if len(got) != 1 || !strings.Contains(got[0], "debug") && !strings.Contains(got[0], "file:///x") {
						t.Errorf("%s: the new process got %q", method, got)
					}
				}
				second.say(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///x"}}`)
				synctest.Wait()
				if got := stream.methods(); !slices.Contains(got, wire.ResourceUpdated) {
					t.Errorf("the client got %q", got)
				}
				stream.hangUp()
			})
		})
	}
}

// R1, R2, M4: a server that dies costs its calls an error at once, and nothing else:
// the next call starts it anew, with what clients had there.
func TestAServerThatDiesIsReplacedWithItsSubscriptions(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].resources = []string{"file:///x"}
		p, q := w.connect("/mcp/a"), w.connect("/mcp")
		stream := p.listen("")
		p.result(wire.ResourcesSubscribe, `{"uri":"file:///x"}`)
		q.result(wire.LoggingSetLevel, `{"level":"error"}`)
		q.tool("a__echo", "{}")
		slow, other := p.beginTool("echo", `{"ms":60000}`), q.beginTool("a__echo", `{"ms":60000}`)
		time.Sleep(time.Second)
		begun := time.Now()
		w.proc("a").die()
		<-slow.done
		<-other.done
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the error took %s", took)
		}
		for _, x := range []*pending{slow, other} {
			if e := decode(w, x.frames()[0]).fault(w); e.Code != -32010 || e.Data["reason"] != "interrupted" || e.Data["sent"] != "maybe" || e.Data["server"] != "a" || e.Data["generation"] != 1.0 {
				t.Errorf("%+v", e)
			}
		}
		if got := p.tool("echo", "{}"); got["process"] != 2.0 {
			t.Errorf("the next call got %v", got)
		}
		q.tool("a__echo", "{}")
		synctest.Wait()
		second := w.proc("a")
		if n := len(second.got(wire.ResourcesSubscribe)); n != 1 {
			t.Errorf("%d subscriptions at the new process", n)
		}
		if n := len(second.got(wire.LoggingSetLevel)); n != 1 {
			t.Errorf("%d levels at the new process", n)
		}
		second.say(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///x"}}`)
		synctest.Wait()
		if got := stream.methods(); !slices.Contains(got, wire.ResourceUpdated) {
			t.Errorf("the client got %q", got)
		}
		stream.hangUp()
	})
}

// M4: the same when the server is restarted while attachments stay.
func TestARestartedServerGetsItsSubscriptionsBack(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].resources = []string{"file:///x"}
		p := w.connect("/mcp/a")
		p.result(wire.ResourcesSubscribe, `{"uri":"file:///x"}`)
		w.pool.Restart(context.Background(), "a")
		synctest.Wait()
		if got := w.proc("a").got(wire.ResourcesSubscribe); len(w.all()) != 2 || len(got) != 1 {
			t.Errorf("%d processes; the last one got %q", len(w.all()), got)
		}
	})
}

// N3, case 38: pings and open streams are no activity, calls are; idle time counts
// from the end of the last one.
func TestWhatKeepsASessionActive(t *testing.T) {
	for name, c := range map[string]struct {
		during func(w *world, p *peer) // 9 minutes
		want   session.State
	}{
		"nothing":       {func(*world, *peer) { time.Sleep(9 * time.Minute) }, session.Dormant},
		"an open GET":   {func(_ *world, p *peer) { p.listen(""); time.Sleep(9 * time.Minute) }, session.Dormant},
		"notifications": {func(_ *world, p *peer) { time.Sleep(9 * time.Minute); p.notify("notifications/x", "{}") }, session.Dormant},
		"pings": {func(w *world, p *peer) {
			for range 9 {
				time.Sleep(time.Minute)
				if r := p.send(wire.Ping, "{}"); r.status != 200 || !strings.Contains(r.body, "result") {
					w.Errorf("ping: %d %s", r.status, r.body)
				}
			}
		}, session.Dormant},
		"a call":      {func(_ *world, p *peer) { time.Sleep(9 * time.Minute); p.tool("echo", "{}") }, session.Active},
		"a long call": {func(_ *world, p *peer) { p.beginTool("echo", `{"ms":3600000}`); time.Sleep(9 * time.Minute) }, session.Active},
		"the end of a long call": {func(_ *world, p *peer) {
			p.beginTool("echo", `{"ms":3600000}`)
			time.Sleep(time.Hour + time.Second)
			time.Sleep(8 * time.Minute)
		}, session.Active},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, settings{}, oneServer(), func(w *world) {
				p := w.connect("/mcp/a")
				c.during(w, p)
				time.Sleep(time.Minute + time.Second)
				synctest.Wait()
				if got := w.only().State; got != c.want {
					t.Errorf("the session is %s", got)
				}
			})
		})
	}
}

// N3: a ping does not wake a dormant session, and is answered all the same.
func TestAPingDoesNotWakeASession(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		time.Sleep(time.Hour)
		if r := p.send(wire.Ping, "{}"); !strings.Contains(r.body, `"result":{}`) {
			t.Errorf("%s", r.body)
		}
		if s := w.only(); s.State != session.Dormant {
			t.Errorf("%+v", s)
		}
	})
}

// N3: a session that nobody uses for expireAfter ends; its streams end with it.
func TestAnUnusedSessionExpires(t *testing.T) {
	for name, limits := range map[string]config.Sessions{
		"by way of dormancy":   {Max: 10, IdleTimeout: 10 * time.Minute, ExpireAfter: 2 * time.Hour},
		"without idle timeout": {Max: 10, ExpireAfter: 2 * time.Hour},
		"before it is dormant": {Max: 10, IdleTimeout: 3 * time.Hour, ExpireAfter: 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, settings{limits: limits}, oneServer(), func(w *world) {
				p := w.connect("/mcp/a")
				stream := p.listen("")
				time.Sleep(time.Hour)
				p.tool("echo", "{}")
				time.Sleep(2*time.Hour - time.Second)
				if r := p.send(wire.Ping, "{}"); r.status != http.StatusOK {
					t.Errorf("too early: %d", r.status)
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if r := p.send(wire.Ping, "{}"); r.status != http.StatusNotFound {
					t.Errorf("after its time: %d", r.status)
				}
				if !stream.ended() {
					t.Error("the stream goes on")
				}
			})
		})
	}
}

// M0, DESIGN: clients that name one session share its connection and its end, and
// nothing else.
func TestTwoClientsOfOneSession(t *testing.T) {
	own := shared("a")
	own.Sharing = config.Session
	inWorld(t, settings{}, []*config.Server{own}, func(w *world) {
		p := w.dialed("/mcp/a")
		p.header.Set("X-Session-Id", "run:1")
		p.hello()
		q := w.dialed("/sessions/run:1/mcp/a")
		q.hello()
		r := w.dialed("/mcp/a")
		if got := r.post(strings.Replace(hello(r.version, clientCaps), `"params":{`, `"params":{"_meta":{"roundhouse/session":"run:1"},`, 1)); got.status != 200 {
			t.Fatal(got.body)
		} else {
			r.id = got.header.Get(sessionHeader)
		}
		if s := w.only(); s.ID != "run:1" || !s.Named || len(s.Clients) != 3 || len(s.Connections) != 1 || len(w.all()) != 1 {
			t.Fatalf("%+v", s)
		}
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"ms":5000,"of":%q}}}`
		calls := map[*peer]*pending{}
		for _, c := range []*peer{p, q, r} {
			calls[c] = c.begin(c.request(http.MethodPost, fmt.Sprintf(body, c.id)))
		}
		synctest.Wait()
		p.notify(wire.Cancelled, `{"requestId":1}`)
		q.do(q.request(http.MethodDelete, ""))
		time.Sleep(6 * time.Second)
		if got := calls[p].frames(); len(got) != 0 {
			t.Errorf("the cancelled call got %q", got)
		}
		if e := decode(w, calls[q].frames()[0]); e.Error == nil {
			t.Errorf("the deleted client's call got %v", e.Result)
		}
		if got := calls[r].frames(); len(got) != 1 || !strings.Contains(got[0], r.id) {
			t.Errorf("the third client's call got %q", got)
		}
		p.do(p.request(http.MethodDelete, ""))
		r.tool("echo", "{}")
		r.do(r.request(http.MethodDelete, ""))
		synctest.Wait()
		if s := w.only(); s.State != session.Dormant || !w.proc("a").dead() {
			t.Errorf("after its last client the session is %+v, process ended: %v", s, w.proc("a").dead())
		}
	})
}

// DESIGN: two names that disagree are a 400, and so is one that is malformed; the
// name of an MCP session's own is fine.
func TestNamesThatDisagreeAre400(t *testing.T) {
	tokenless := func(id string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("X-Session-Id", id) }
	}
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.dialed("/sessions/one/mcp/a")
		p.hello()
		meta := func(id string) string {
			return `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"echo","_meta":{"roundhouse/session":"` + id + `","x":1},"arguments":{}}}`
		}
		batchOf := func(p *peer) *http.Request { return p.request(http.MethodPost, meta("two")) }
		for name, c := range map[string]struct {
			r      *http.Request
			change func(*http.Request)
			status int
		}{
			"header":                    {p.request("POST", p.frame(wire.Ping, "{}")), tokenless("two"), 400},
			"header of a GET":           {p.request("GET", ""), tokenless("two"), 400},
			"header of a DELETE":        {p.request("DELETE", ""), tokenless("two"), 400},
			"malformed header":          {p.request("POST", p.frame(wire.Ping, "{}")), tokenless("a/b"), 400},
			"_meta":                     {batchOf(p), nil, 400},
			"_meta that is no string":   {p.request("POST", strings.Replace(meta("x"), `"x"`, `7`, 1)), nil, 400},
			"_meta of a notification":   {p.request("POST", `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"roundhouse/session":"two"}}}`), nil, 400},
			"path":                      {(&peer{w: w, path: "/sessions/two/mcp/a", id: p.id, version: p.version}).request("POST", p.frame(wire.Ping, "{}")), nil, 400},
			"path and header":           {(&peer{w: w, path: "/sessions/two/mcp/a", version: p.version}).request("POST", hello(p.version, "{}")), tokenless("one"), 400},
			"path of initialize":        {(&peer{w: w, path: "/sessions/a%20b/mcp/a", version: p.version}).request("POST", hello(p.version, "{}")), nil, 400},
			"the same name":             {p.request("POST", meta("one")), tokenless("one"), 200},
			"no name, by another route": {(&peer{w: w, path: "/mcp/a", id: p.id, version: p.version}).request("POST", p.frame(wire.Ping, "{}")), nil, 200},
		} {
			if c.change != nil {
				c.change(c.r)
			}
			if got := p.do(c.r); got.status != c.status {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
		}
		// What names the session is ours, and goes no further.
		if got := w.proc("a").got(wire.ToolsCall); len(got) != 1 || !strings.Contains(got[0], `"_meta":{"x":1}`) {
			t.Errorf("the server got %q", got)
		}
		if s := w.only(); s.ID != "one" {
			t.Errorf("%+v", s)
		}
	})
}

// N1, N2: a name belongs to its principal, and a closed one begins anew.
func TestASessionsNameIsItsPrincipals(t *testing.T) {
	tokens := []config.Token{{Principal: "ann", Token: secret.New("token-of-ann")}, {Principal: "bob", Token: secret.New("token-of-bob")}}
	inWorld(t, settings{tokens: tokens}, oneServer(), func(w *world) {
		var peers []*peer
		for _, token := range []string{"token-of-ann", "token-of-bob"} {
			p := w.dialed("/mcp/a")
			p.token = token
			p.header.Set("X-Session-Id", "same")
			p.hello()
			peers = append(peers, p)
		}
		if all := w.sessions.List("", true); len(all) != 2 || all[0].ID != "same" || all[1].ID != "same" {
			t.Errorf("%+v", all)
		}
		if n := len(w.all()); n != 2 {
			t.Errorf("%d processes for two principals (K1)", n)
		}
		if err := w.sessions.End(w.Context(), "ann", false, "same", true); err != nil {
			t.Error(err)
		}
		if r := peers[0].send(wire.Ping, "{}"); r.status != http.StatusNotFound {
			t.Errorf("ann's ended session: %d", r.status)
		}
		peers[1].tool("echo", "{}")
		peers[0].id = ""
		peers[0].hello()
		peers[0].tool("echo", "{}")
	})
}

// N4: who ends a session without force lets its calls finish, refuses new ones, and
// whoever else ends it waits for that.
func TestASessionIsEndedOnce(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		call := p.beginTool("echo", `{"ms":5000}`)
		synctest.Wait()
		id := w.only().ID
		begun := time.Now()
		ends := make(chan time.Duration, 3)
		for range 3 {
			go func() { // joined below
				if err := w.sessions.End(w.Context(), "local", false, id, false); err != nil {
					t.Error(err)
				}
				ends <- time.Since(begun)
			}()
			synctest.Wait()
		}
		if s := w.only(); s.State != session.Draining {
			t.Errorf("%+v", s)
		}
		for _, method := range []string{wire.ToolsCall, wire.Ping} {
			if e := p.refused(method, `{"name":"echo"}`); e.Data["reason"] != "unknown_session" {
				t.Errorf("%s while it ends: %+v", method, e)
			}
		}
		second := w.dialed("/mcp/a")
		second.header.Set("X-Session-Id", id)
		if r := second.post(hello(second.version, "{}")); r.status != http.StatusTooManyRequests || r.header.Get("Retry-After") == "" {
			t.Errorf("a new client while it ends: %d %s", r.status, r.body)
		}
		for range 3 {
			if took := <-ends; took != 5*time.Second {
				t.Errorf("one end took %s", took)
			}
		}
		<-call.done
		if m := decode(w, call.frames()[0]); m.Result == nil {
			t.Errorf("the call got %s", m.Error)
		}
		if err := w.sessions.End(w.Context(), "local", false, id, true); err == nil {
			t.Error("an ended session was ended again")
		}
		if w.refs() != 0 {
			t.Errorf("%d references", w.refs())
		}
	})
}

// N4: with force, or when the time is over, calls in flight get an error.
func TestAForcedEndInterruptsCalls(t *testing.T) {
	for _, force := range []bool{true, false} {
		inWorld(t, settings{}, oneServer(), func(w *world) {
			p := w.connect("/mcp/a")
			call := p.beginTool("echo", `{"ms":60000}`)
			synctest.Wait()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			begun := time.Now()
			if err := w.sessions.End(ctx, "local", false, w.only().ID, force); err != nil {
				t.Error(err)
			}
			<-call.done
			if took := time.Since(begun); force && took != 0 || !force && took != 2*time.Second {
				t.Errorf("force %v: the end took %s", force, took)
			}
			if e := decode(w, call.frames()[0]).fault(w); e.Data["reason"] != "unknown_session" {
				t.Errorf("%+v", e)
			}
		})
	}
}
