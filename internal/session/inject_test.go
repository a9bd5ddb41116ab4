package session

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// own is a server as it is injected.
func own(name string, args ...string) *config.Server {
	s := with(name, args...)
	s.Sharing, s.Injected = config.Session, true
	return s
}

func (w *world) inject(session string, server *config.Server) {
	w.Helper()
	if err := w.m.Inject("local", session, server); err != nil {
		w.Fatal(err)
	}
}

// K1, N4, U1: an injected server is there for its session's clients alone, on a connection
// that nobody shares, and goes with the session.
func TestAnInjectedServerIsItsSessionsAlone(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		one, two := w.client("", "one"), w.client("", "two")
		w.inject("one", own("x"))
		if got := one.heard(); !slices.Equal(got, allLists) {
			t.Errorf("its client heard %v", got)
		}
		if got := two.heard(); got != nil {
			t.Errorf("another session's client heard %v", got)
		}
		if got := one.do(2, wire.ToolsList, `{}`); !strings.Contains(got, `"a__echo"`) || !strings.Contains(got, `"x__echo"`) {
			t.Error(got)
		}
		if got := two.do(2, wire.ToolsList, `{}`); strings.Contains(got, "x__") {
			t.Error(got)
		}
		if got := one.do(3, wire.ToolsCall, `{"name":"x__echo"}`); !strings.Contains(got, `"result"`) {
			t.Error(got)
		}
		if got := two.do(3, wire.ToolsCall, `{"name":"x__echo"}`); !strings.Contains(got, "forbidden_tool") {
			t.Error(got)
		}
		alone := w.client("x", "one")
		if got := alone.do(4, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, `"result"`) {
			t.Error(got)
		}
		if _, err := w.initialize("x", "two"); !fault.Is(err, fault.UnknownServer) {
			t.Errorf("another session: %v", err)
		}
		if _, err := w.initialize("x", "three"); !fault.Is(err, fault.UnknownServer) {
			t.Errorf("a new session: %v", err)
		}
		w.inject("two", own("x"))
		if got := two.do(5, wire.ToolsCall, `{"name":"x__echo"}`); !strings.Contains(got, `"result"`) || w.up() != 3 {
			t.Errorf("the same entry twice: %d connections, %s", w.up(), got)
		}

		infos := w.m.Injected("local", false)
		if len(infos) != 2 || infos[0].Session != "one" || len(infos[0].Connections) != 1 || len(w.m.Injected("other", false)) != 0 {
			t.Errorf("listed: %+v", infos)
		}
		if info, _ := w.m.Get("local", false, "one"); !slices.Equal(info.Injected, []string{"x"}) {
			t.Errorf("of the session: %v", info.Injected)
		}
		link := w.link("x")
		if err := w.m.End(context.Background(), "local", false, "two", true); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case <-link.aborted:
		default:
			t.Error("it outlives its session")
		}
		w.client("", "two")
		if got := w.m.Injected("local", false); len(got) != 1 {
			t.Errorf("a new session of the name has it: %+v", got)
		}
	})
}

// A name that is taken is refused, and so is who names no session of his.
func TestAnInjectedServerNeedsANameOfItsOwn(t *testing.T) {
	off := server("off")
	off.DisabledReason = "disabled"
	inWorld(t, usual, []*config.Server{server("a"), off}, func(w *world) {
		w.client("", "s")
		w.inject("s", own("x"))
		for _, name := range []string{"a", "off", "x"} {
			if err := w.m.Inject("local", "s", own(name)); !fault.Is(err, fault.NameTaken) {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, err := range []error{w.m.Inject("local", "t", own("y")), w.m.Inject("other", "s", own("y")), w.m.Remove("other", "s", "x")} {
			if !fault.Is(err, fault.UnknownSession) {
				t.Error(err)
			}
		}
		for _, name := range []string{"a", "y"} {
			if err := w.m.Remove("local", "s", name); !fault.Is(err, fault.UnknownServer) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// N1, N3: an injected server sleeps with its session, and is there when it wakes.
func TestAnInjectedServerOutlastsASleep(t *testing.T) {
	inWorld(t, usual, nil, func(w *world) {
		c := w.client("", "s")
		w.inject("s", own("x"))
		c.do(2, wire.ToolsCall, `{"name":"x__echo"}`)
		time.Sleep(usual.IdleTimeout + time.Second)
		synctest.Wait()
		if info, _ := w.m.Get("local", false, "s"); info.State != Dormant || w.up() != 0 || !slices.Equal(info.Injected, []string{"x"}) {
			t.Errorf("%d connections of %+v", w.up(), info)
		}
		w.inject("s", own("y"))
		for _, name := range []string{"x__echo", "y__echo"} {
			if got := c.do(3, wire.ToolsCall, `{"name":"`+name+`"}`); !strings.Contains(got, `"result"`) {
				t.Error(got)
			}
		}
	})
}

// An injected server that is removed is gone at once, with the calls that are in flight
// there; its client and the aggregate's are told, and others not.
func TestAnInjectedServerIsRemoved(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		c, alone, other := w.client("", "s"), (*Client)(nil), w.client("a", "s")
		w.inject("s", own("x"))
		alone = w.client("x", "s")
		c.heard()
		x := newTray()
		c.Session().Do(c, frame(2, wire.ToolsCall, `{"name":"x__echo","ms":60000}`), x)
		synctest.Wait()
		if err := w.m.Remove("local", "s", "x"); err != nil {
			t.Fatal(err)
		}
		if got := string((<-x.done).AppendTo(nil)); !strings.Contains(got, `"interrupted"`) {
			t.Error(got)
		}
		synctest.Wait()
		for client, want := range map[*Client][]string{c: allLists, alone: allLists, other: nil} {
			if got := client.heard(); !slices.Equal(got, want) {
				t.Errorf("%q heard %v", client.scope, got)
			}
		}
		if got := alone.do(3, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, "unknown_server") {
			t.Error(got)
		}
		if got := c.do(3, wire.ToolsList, `{}`); strings.Contains(got, "x__") {
			t.Error(got)
		}
		for _, l := range w.links {
			if l.server.Name != "x" {
				continue
			}
			select {
			case <-l.aborted:
			default:
				t.Error("a connection of it is left")
			}
		}
	})
}

// Removing a server while it starts leaves nothing of it, and fails who waits for it.
func TestAnInjectedServerIsRemovedDuringItsStart(t *testing.T) {
	inWorld(t, usual, nil, func(w *world) {
		w.slow(10 * time.Second)
		c := w.client("", "s")
		w.inject("s", own("x"))
		x := newTray()
		go c.Session().Do(c, frame(2, wire.ToolsCall, `{"name":"x__echo"}`), x)
		synctest.Wait()
		if err := w.m.Remove("local", "s", "x"); err != nil {
			t.Fatal(err)
		}
		if got := string((<-x.done).AppendTo(nil)); !strings.Contains(got, "unknown_server") {
			t.Error(got)
		}
		synctest.Wait()
		if w.up() != 0 {
			t.Errorf("%d connections are left", w.up())
		}
	})
}

// A new configuration leaves injected servers alone. One that has a server of the name has
// to wait for the injected one to go.
func TestAnInjectedServerOutlastsANewConfiguration(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		c, alone := w.client("", "s"), (*Client)(nil)
		w.inject("s", own("x", "mine"))
		alone = w.client("x", "s")
		x := newTray()
		alone.Session().Do(alone, frame(2, wire.ToolsCall, `{"name":"echo","ms":60000}`), x)
		synctest.Wait()
		rebound := with("x", "theirs")
		rebound.Interactive = config.Refuse
		for _, servers := range [][]*config.Server{{server("b")}, {with("x", "theirs"), server("b")}, {with("x", "changed"), server("b")}, {rebound}, {with("x", "theirs")}} {
			alone.heard()
			w.configure(servers...)
			synctest.Wait()
			if got := alone.heard(); got != nil {
				t.Errorf("its client heard %v", got)
			}
		}
		if got := string((<-x.done).AppendTo(nil)); !strings.Contains(got, `"result"`) {
			t.Error(got)
		}
		if got := c.do(3, wire.ToolsList, `{}`); strings.Count(got, `"x__echo"`) != 1 || len(c.Session().servers()) != 1 {
			t.Error(got)
		}
		if got := w.link("x").server.Args[0]; got != "mine" {
			t.Errorf("the session uses %s", got)
		}
		other := w.client("x", "t")
		if got := other.do(4, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, `"result"`) || w.link("x").server.Args[0] != "theirs" {
			t.Error(got)
		}
		if err := w.m.Remove("local", "s", "x"); err != nil {
			t.Fatal(err)
		}
		before := w.up()
		if got := alone.do(5, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, `"result"`) || w.up() > before {
			t.Errorf("the configured one does not take its place: %d connections, %s", w.up(), got)
		}
	})
}

// V3: filters hold for injected servers as for others.
func TestFiltersHoldForInjectedServers(t *testing.T) {
	inWorld(t, usual, nil, func(w *world) {
		c := w.client("", "s")
		w.inject("s", own("x"))
		if err := w.m.SetTools(context.Background(), "local", "s", &Tools{Exclude: []string{"x__echo"}}); err != nil {
			t.Fatal(err)
		}
		if got := c.do(2, wire.ToolsCall, `{"name":"x__echo"}`); !strings.Contains(got, "forbidden_tool") {
			t.Error(got)
		}
		if got := c.do(3, wire.ToolsList, `{}`); strings.Contains(got, "x__") {
			t.Error(got)
		}
	})
}
