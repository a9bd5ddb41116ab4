package session

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/wire"
)

// configure replaces the servers and keeps the rest.
func (w *world) configure(servers ...*config.Server) {
	s := w.m.live.Load().Settings
	s.Servers = servers
	w.m.Configure(s)
}

// with is a server with other arguments.
func with(name string, args ...string) *config.Server {
	s := server(name)
	s.Args = args
	return s
}

// up counts the links that have not ended.
func (w *world) up() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.links {
		select {
		case <-l.aborted:
		default:
			n++
		}
	}
	return n
}

// heard returns what was pushed to the client since the last time, by method.
func (c *Client) heard() (methods []string) {
	x := c.stream.(*tray)
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, raw := range x.pushed {
		f, err := wire.Parse([]byte(raw))
		if err != nil {
			panic(err)
		}
		methods = append(methods, f.Method)
	}
	x.pushed = nil
	return methods
}

var allLists = []string{wire.ToolsListChanged, wire.PromptsListChanged, wire.ResourcesListChanged}

func expectHeard(t *testing.T, c *Client, want ...string) {
	t.Helper()
	if got := c.heard(); !slices.Equal(got, want) {
		t.Errorf("the client heard %v, want %v", got, want)
	}
}

// call begins a tool call that takes a while.
func (w *world) call(c *Client, ms int) *tray {
	x := newTray()
	c.Session().Do(c, frame(77, wire.ToolsCall, fmt.Sprintf(`{"name":"echo","ms":%d}`, ms)), x)
	return x
}

// Case 45: a server whose configuration changed is started anew with the next request,
// while a call in flight ends at the old one, which then ends too. Other servers, and
// clients who do not see the changed one, notice nothing.
func TestAChangedServerIsReplacedWhileItsCallsEnd(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a"), server("b")}, func(w *world) {
		one, all, other := w.client("a", ""), w.client("", ""), w.client("b", "")
		all.do(1, wire.ToolsList, "{}")
		old, b := w.link("a"), w.link("b")
		slow := w.call(one, 10_000)
		synctest.Wait()
		w.configure(with("a", "new"), server("b"))
		synctest.Wait()
		expectHeard(t, one, allLists...)
		expectHeard(t, all, allLists...)
		expectHeard(t, other)
		if got := one.do(2, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, "result") {
			t.Errorf("the next call got %s", got)
		}
		if l := w.link("a"); l == old || !slices.Equal(l.server.Args, []string{"new"}) {
			t.Errorf("it went to %+v", l.server)
		}
		if w.up() != 3 {
			t.Errorf("%d links are up, want 3", w.up())
		}
		time.Sleep(9 * time.Second)
		if len(slow.done) > 0 {
			t.Error("the slow call ended early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(slow.done) != 1 || !isResult(<-slow.done) {
			t.Error("the slow call got no result")
		}
		if w.up() != 2 || w.link("b") != b {
			t.Errorf("%d links are up, want the new one and the unchanged one", w.up())
		}
	})
}

// Case 45: a call that is just being sent when the configuration changes is one of those
// that may end at the old connection.
func TestAChangeInTheMomentOfASend(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		c := w.client("a", "")
		changed := false
		w.on = func(_ *link, f wire.Frame) bool {
			if f.Method == wire.ToolsCall && !changed {
				changed = true
				w.configure(with("a", "new"))
			}
			return false
		}
		if got := c.do(1, wire.ToolsCall, `{"name":"echo","ms":5000}`); !strings.Contains(got, `"result"`) {
			t.Errorf("it got %s", got)
		}
	})
}

// Case 45, R3: a call that waits for a lost server gets the mended one, of which it need not
// wait for the old one's recovery.
func TestAChangeMendsAServerThatRecovers(t *testing.T) {
	inWorld(t, usual, []*config.Server{lasting("a")}, func(w *world) {
		c := w.recovering()
		x := newTray()
		begun := time.Now()
		go c.Session().Do(c, frame(7, wire.ToolsCall, `{"name":"echo"}`), x)
		time.Sleep(time.Second)
		w.slow(0)
		mended := lasting("a")
		mended.Args = []string{"mended"}
		w.configure(mended)
		if got := <-x.done; !isResult(got) || time.Since(begun) > 10*time.Second {
			t.Errorf("after %s it got %s", time.Since(begun), got.AppendTo(nil))
		}
		synctest.Wait()
		if w.up() != 1 || len(w.link("a").server.Args) != 1 {
			t.Errorf("%d are up", w.up())
		}
	})
}

// Case 45: the old connection ends within the drain limit, whatever runs there.
func TestACallAtAReplacedServerEndsWithinTheDrainDelay(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		c := w.client("a", "")
		slow := w.call(c, 3600_000)
		synctest.Wait()
		w.configure(with("a", "new"))
		time.Sleep(29 * time.Second)
		if len(slow.done) > 0 || w.up() != 1 {
			t.Fatal("it ended early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := string((<-slow.done).AppendTo(nil)); !strings.Contains(got, `"interrupted"`) || !strings.Contains(got, `"maybe"`) || !strings.Contains(got, "configuration") {
			t.Errorf("the call got %s", got)
		}
		if w.up() != 0 {
			t.Error("the old one is still up")
		}
	})
}

// Case 45: a server that was removed or disabled ends, and its name is unknown; when it
// is back, the same clients can use it again.
func TestARemovedServerEndsAndMayComeBack(t *testing.T) {
	off := server("a")
	off.DisabledReason = "broken"
	for name, servers := range map[string][]*config.Server{"removed": {server("b")}, "disabled": {off, server("b")}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, usual, []*config.Server{server("a"), server("b")}, func(w *world) {
				one, all := w.client("a", ""), w.client("", "")
				if got := all.do(1, wire.ToolsList, "{}"); !strings.Contains(got, "a__echo") {
					t.Error(got)
				}
				w.configure(servers...)
				synctest.Wait()
				expectHeard(t, one, allLists...)
				expectHeard(t, all, allLists...)
				if w.up() != 1 {
					t.Errorf("%d links are up", w.up())
				}
				if got := one.do(2, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, "unknown_server") {
					t.Errorf("a call got %s", got)
				}
				if got := all.do(3, wire.ToolsList, "{}"); strings.Contains(got, "a__echo") || !strings.Contains(got, "b__echo") {
					t.Errorf("the aggregate lists %s", got)
				}
				w.configure(server("a"), server("b"))
				expectHeard(t, one, allLists...)
				expectHeard(t, all, allLists...)
				if got := one.do(4, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, "result") {
					t.Errorf("a call got %s", got)
				}
				if got := all.do(5, wire.ToolsList, "{}"); !strings.Contains(got, "a__echo") {
					t.Errorf("the aggregate lists %s", got)
				}
			})
		})
	}
}

// Case 45: what nobody uses in this moment ends at once when its configuration changes.
func TestAnUnusedConnectionOfAChangedServerEndsAtOnce(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a"), server("b")}, func(w *world) {
		w.client("a", "").Delete()
		w.client("b", "").Delete()
		synctest.Wait()
		if w.up() != 2 {
			t.Fatalf("%d are up", w.up())
		}
		filtered := server("b")
		filtered.ExcludeTools = []string{"x"}
		w.configure(with("a", "new"), filtered)
		synctest.Wait()
		if w.up() != 1 {
			t.Errorf("%d are up, want that of b, of which only the filter changed", w.up())
		}
		w.configure()
		synctest.Wait()
		if w.up() != 0 {
			t.Errorf("%d are up", w.up())
		}
	})
}

// V4: a changed filter changes what sessions see and may call, and nothing at the server,
// which is told nothing, whether it is shared or not.
func TestAChangedFilterIsNotTheServersBusiness(t *testing.T) {
	for _, sharing := range []config.Sharing{config.Shared, config.Session} {
		base := server("a")
		base.Sharing = sharing
		inWorld(t, usual, []*config.Server{base}, func(w *world) {
			one, all := w.client("a", ""), w.client("", "")
			one.do(1, wire.ToolsList, "{}")
			all.do(1, wire.ToolsList, "{}")
			links := len(w.links)
			seen := func() (n int) {
				for _, l := range w.links {
					l.mu.Lock()
					n += len(l.seen)
					l.mu.Unlock()
				}
				return n
			}
			before := seen()
			hidden := *base
			hidden.ExcludeTools = []string{"echo"}
			w.configure(&hidden)
			for _, c := range []*Client{one, all} {
				expectHeard(t, c, wire.ToolsListChanged, wire.PromptsListChanged)
				if got := c.do(2, wire.ToolsList, "{}"); strings.Contains(got, "echo") {
					t.Errorf("listed is %s", got)
				}
			}
			if got := one.do(3, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, "forbidden_tool") {
				t.Errorf("a call got %s", got)
			}
			none := *base
			none.IncludeTools = []string{}
			w.configure(&none)
			if got := one.do(4, wire.ToolsList, "{}"); strings.Contains(got, "echo") {
				t.Errorf("with an empty include listed is %s", got)
			}
			w.configure(base)
			if got := one.do(5, wire.ToolsList, "{}"); !strings.Contains(got, "echo") {
				t.Errorf("without a filter listed is %s", got)
			}
			if n := seen(); n != before || len(w.links) != links {
				t.Errorf("the server saw %d requests more, and %d connections", n-before, len(w.links)-links)
			}
			described := *base
			described.Description = "x"
			one.heard()
			w.configure(&described)
			expectHeard(t, one)
		})
	}
}

// Case 45: a change while the old configuration is being dialled is not missed: who waits
// gets the new one at once, and the old one ends.
func TestAChangeDuringTheStart(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		w.slow(50 * time.Second)
		var wg sync.WaitGroup
		var c *Client
		wg.Go(func() { c = w.client("a", "") })
		time.Sleep(time.Second)
		w.slow(10 * time.Second)
		begun := time.Now()
		w.configure(with("a", "new"))
		wg.Wait()
		if took := time.Since(begun); took > 11*time.Second {
			t.Errorf("the new one was there after %s", took)
		}
		if got := c.do(1, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, "result") {
			t.Error(got)
		}
		if l := w.link("a"); !slices.Equal(l.server.Args, []string{"new"}) || w.up() != 1 {
			t.Errorf("%d are up, the newest is %+v", w.up(), l.server)
		}

		w.configure(with("a", "third"))
		wg.Go(func() { c.do(2, wire.ToolsCall, `{"name":"echo"}`) })
		time.Sleep(time.Second)
		hidden := with("a", "third")
		hidden.ExcludeTools = []string{"echo"}
		w.configure(hidden)
		wg.Wait()
		if got := c.do(3, wire.ToolsList, "{}"); strings.Contains(got, "echo") {
			t.Errorf("the filter that came during the start does not apply: %s", got)
		}
		wg.Go(func() { c.do(4, wire.ToolsCall, `{"name":"echo"}`) })
		w.configure(with("a", "fourth"))
		time.Sleep(time.Second)
		w.configure()
		wg.Wait()
		synctest.Wait()
		if got := c.do(5, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, "unknown_server") {
			t.Error(got)
		}
		time.Sleep(time.Minute)
		if w.up() != 0 {
			t.Errorf("%d are up", w.up())
		}
	})
}

// M4: subscriptions and log levels are told to the new connection, at once.
func TestSubscriptionsMoveToTheNewConnection(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		c := w.client("a", "")
		c.do(1, wire.ResourcesSubscribe, `{"uri":"file:///x"}`)
		c.do(2, wire.LoggingSetLevel, `{"level":"error"}`)
		w.configure(with("a", "new"))
		synctest.Wait()
		l := w.link("a")
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.server.Args) == 0 || !l.subs["file:///x"] || !slices.Equal(l.lvls, []string{`"error"`}) {
			t.Errorf("%+v knows %v and %v", l.server, l.subs, l.lvls)
		}
	})
}

// K7: a server may become shared, or unshared, while it is used.
func TestAnotherSharing(t *testing.T) {
	own := server("a")
	own.Sharing = config.Session
	inWorld(t, usual, []*config.Server{own}, func(w *world) {
		one, two := w.client("a", ""), w.client("a", "")
		if w.up() != 2 {
			t.Fatalf("%d are up", w.up())
		}
		for i, s := range []*config.Server{server("a"), own, server("a")} {
			w.configure(s)
			synctest.Wait()
			for _, c := range []*Client{one, two} {
				expectHeard(t, c, allLists...)
				if got := c.do(1, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, "result") {
					t.Error(got)
				}
			}
			synctest.Wait()
			if want := 1 + i%2; w.up() != want {
				t.Errorf("as %s %d are up, want %d", s.Sharing, w.up(), want)
			}
		}
	})
}

// K7: nothing stays of a binding that clients would not find any more, and that has nothing to
// give back.
func TestABindingOfASleepingSessionIsForgotten(t *testing.T) {
	own := server("a")
	own.Sharing = config.Session
	inWorld(t, usual, []*config.Server{own}, func(w *world) {
		c := w.client("a", "a")
		w.works(c.do(1, wire.ToolsCall, echo))
		time.Sleep(11 * time.Minute)
		w.configure(server("a"))
		synctest.Wait()
		w.m.mu.Lock()
		defer w.m.mu.Unlock()
		if order := c.session.order; len(order) > 0 {
			t.Errorf("the session has %d bindings", len(order))
		}
	})
}

// M3, M6: a binding that clients would not find any more is given up: they declare
// something else to the server now.
func TestABindingThatNobodyFindsIsGivenUp(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		c := w.client("", "")
		c.capabilities, c.shareable = []byte(`{"sampling":{}}`), []byte(`{"sampling":{}}`)
		c.do(1, wire.ToolsList, "{}")
		refusing := server("a")
		refusing.Interactive = config.Refuse
		w.configure(refusing)
		if got := c.do(2, wire.ToolsList, "{}"); !strings.Contains(got, "a__echo") {
			t.Errorf("listed is %s", got)
		}
		synctest.Wait()
		w.m.mu.Lock()
		defer w.m.mu.Unlock()
		if order := c.session.order; len(order) != 1 || string(order[0].capabilities) != "{}" || len(c.session.bindings) != 1 {
			t.Errorf("the session has %d bindings", len(order))
		}
		if w.up() != 1 {
			t.Errorf("%d are up", w.up())
		}
	})
}

// N3: new limits apply to the sessions that there are.
func TestNewLimitsApplyToOldSessions(t *testing.T) {
	inWorld(t, config.Sessions{Max: 10, IdleTimeout: 10 * time.Hour, ExpireAfter: 24 * time.Hour}, []*config.Server{server("a")}, func(w *world) {
		w.client("a", "run")
		time.Sleep(time.Hour)
		s := w.m.live.Load().Settings
		s.Limits = config.Sessions{Max: 1, IdleTimeout: 2 * time.Hour, ExpireAfter: 3 * time.Hour}
		w.m.Configure(s)
		state := func() State {
			i, err := w.m.Get("local", false, "run")
			if err != nil {
				return Closed
			}
			return i.State
		}
		for _, step := range []struct {
			after time.Duration
			want  State
		}{{59 * time.Minute, Active}, {2 * time.Minute, Dormant}, {time.Hour, Closed}} {
			time.Sleep(step.after)
			synctest.Wait()
			if got := state(); got != step.want {
				t.Errorf("it is %s, want %s", got, step.want)
			}
		}
		if w.m.Stats().Max != 1 {
			t.Error("the old limit still holds")
		}
	})
}

// Case 45: whatever clients do while the configuration changes again and again, every
// request has an answer, and in the end what is up is what is configured.
func TestChangesUnderLoad(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a"), server("b")}, func(w *world) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		odd := map[string]int{}
		for i := range 8 {
			scope := []string{"a", "b", ""}[i%3]
			c := w.client(scope, "")
			wg.Go(func() {
				for n := range 60 {
					method, params := wire.ToolsCall, fmt.Sprintf(`{"name":"echo","ms":%d}`, n%7*100)
					if scope == "" {
						method, params = wire.ToolsList, "{}"
					}
					if got := c.do(n, method, params); !strings.Contains(got, `"result"`) {
						mu.Lock()
						odd[got[strings.Index(got, "reason"):][:30]]++
						mu.Unlock()
					}
					time.Sleep(70 * time.Millisecond)
				}
			})
		}
		for i := range 40 {
			time.Sleep(300 * time.Millisecond)
			b := server("b")
			switch i % 4 {
			case 1:
				b.ExcludeTools = []string{"other"}
			case 2:
				b = with("b", "x")
			}
			w.configure(with("a", fmt.Sprint(i/3)), b)
		}
		wg.Wait()
		if len(odd) > 0 {
			t.Errorf("some requests got %v", odd)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.up() != 2 {
			t.Errorf("%d links are up, want 2", w.up())
		}
	})
}
