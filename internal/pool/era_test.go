package pool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// modernWant is what a session with a client of the newer era asks for.
func modernWant(server *config.Server) Want {
	w := want(server, nil)
	w.Era = era.Modern
	return w
}

func (w *world) expectEra(a *Attachment, e era.Era) {
	w.Helper()
	if a.Era() != e {
		w.Errorf("the connection speaks %q, want %q", a.Era(), e)
	}
	h, err := a.Handshake(context.Background())
	if err != nil || h.Era != e || era.Of(h.Version) != e {
		w.Errorf("the handshake is %+v, %v", h, err)
	}
}

// M8: a server of the older era has one connection for clients of both, and is asked once
// whether it knows the newer one.
func TestAServerOfTheOlderEraIsAskedOnce(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		a := w.acquireWith(w.pool.NewHolder("a"), modernWant(server))
		b := w.acquireWith(w.pool.NewHolder("b"), modernWant(server))
		c := w.acquire(w.pool.NewHolder("c"), server)
		for _, x := range []*Attachment{a, b, c} {
			w.expectEra(x, era.Legacy)
		}
		w.expectState("files", Active, 3)
		if w.started() != 1 || w.asked(wire.Discover) != 1 || w.asked(wire.MethodInitialize) != 1 {
			t.Errorf("%d processes, asked %d times for the newer era and %d for the older", w.started(), w.asked(wire.Discover), w.asked(wire.MethodInitialize))
		}
		if a.ID() != c.ID() || !strings.HasPrefix(a.ID(), "files::") {
			t.Errorf("the ids are %s and %s", a.ID(), c.ID())
		}
	})
}

// M8: a server of the newer era only has one connection for clients of both.
func TestAServerOfTheNewerEraOnly(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.modern, s.noLegacy = true, true })
		a := w.acquire(w.pool.NewHolder("a"), server)
		b := w.acquireWith(w.pool.NewHolder("b"), modernWant(server))
		x := want(server, nil)
		x.Capabilities = []byte(`{"sampling":{}}`)
		c := w.acquireWith(w.pool.NewHolder("c"), x)
		for _, x := range []*Attachment{a, b, c} {
			w.expectEra(x, era.Modern)
		}
		w.expectState("files", Active, 3)
		if w.started() != 1 {
			t.Errorf("%d processes", w.started())
		}
		if got := w.tools(a); len(got) != 1 {
			t.Errorf("the tools are %q", got)
		}
	})
}

// M8: a server with both is spoken to in the era of each client. Capabilities tell
// connections apart in the older one only.
func TestAServerWithBothErasHasAConnectionOfEach(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.modern = true })
		old := w.acquire(w.pool.NewHolder("a"), server)
		for i, capabilities := range []string{`{}`, `{"sampling":{}}`} {
			x := modernWant(server)
			x.Capabilities = []byte(capabilities)
			w.expectEra(w.acquireWith(w.pool.NewHolder(fmt.Sprint(i)), x), era.Modern)
		}
		w.expectEra(old, era.Legacy)
		if n := w.alive(); n != 2 {
			t.Errorf("%d processes live, want one of each era", n)
		}
	})
}

// M8: a server that says nothing to the probe gets initialize on the same pipe; one that
// dies of it is started again. Neither is probed a second time.
func TestServersThatDoNotBearTheProbe(t *testing.T) {
	for what, starts := range map[string]int{"silence": 1, "exit": 2} {
		t.Run(what, func(t *testing.T) {
			inWorld(t, defaults, func(w *world) {
				server, s := w.server("files")
				s.set(func(s *script) { s.noProbe = what })
				w.expectEra(w.acquireWith(w.pool.NewHolder("a"), modernWant(server)), era.Legacy)
				w.expectEra(w.acquireWith(w.pool.NewHolder("b"), modernWant(server)), era.Legacy)
				if w.started() != starts || w.alive() != 1 || w.asked(wire.Discover) != 1 {
					t.Errorf("%d processes were started, %d live, %d probes", w.started(), w.alive(), w.asked(wire.Discover))
				}
			})
		})
	}
}

// M8: a server that starts slowly reads the probe and initialize together. One with both
// eras then answers the probe and refuses the rest, and is of the newer era.
func TestALateAnswerToTheProbeCounts(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.modern, s.noLegacy, s.initDelay = true, true, 2*probeSilence })
		w.expectEra(w.acquireWith(w.pool.NewHolder("a"), modernWant(server)), era.Modern)
		if w.started() != 1 {
			t.Errorf("%d processes", w.started())
		}
	})
}

// M8: who comes with the other era to a live connection gets it, and what was started to
// find that out ends.
func TestALiveConnectionIsFoundByClientsOfTheOtherEra(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		var all []*pending
		for i := range 4 {
			all = append(all, w.begin(context.Background(), w.pool.NewHolder(fmt.Sprint(i)), modernWant(server)))
		}
		synctest.Wait()
		for _, p := range all {
			if !p.ended() || p.err != nil || p.att.ID() != a.ID() {
				t.Fatalf("got %+v", p)
			}
		}
		w.expectState("files", Active, 5)
		if w.alive() != 1 || w.started() != 2 {
			t.Errorf("%d of %d processes live", w.alive(), w.started())
		}
	})
}

// M8: what is known of a server is forgotten after a day, and when it turns out wrong.
func TestVerdictsAreForgotten(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		use := func() era.Era {
			h := w.pool.NewHolder("a")
			a, err := h.Acquire(context.Background(), modernWant(server))
			if err != nil {
				t.Fatal(err)
			}
			e := a.Era()
			h.Release()
			sleep(2 * testDrainDelay)
			return e
		}
		if e := use(); e != era.Legacy {
			t.Fatalf("the server speaks %s", e)
		}
		s.set(func(s *script) { s.modern = true })
		if e := use(); e != era.Legacy {
			t.Errorf("it is %s before the day is over", e)
		}
		sleep(verdictAge)
		if e := use(); e != era.Modern {
			t.Errorf("it is %s after a day", e)
		}
		s.set(func(s *script) { s.modern = false })
		_, err := w.pool.NewHolder("b").Acquire(context.Background(), modernWant(server))
		expectReason(t, err, fault.StartFailed)
		if e := use(); e != era.Legacy {
			t.Errorf("it is %s after a failure", e)
		}
	})
}

// M8: some servers of the newer era answer initialize, and refuse what comes then.
func TestAHandshakeThatIsRefusedAfterwardsIsInDoubt(t *testing.T) {
	refused := func(status int) error {
		return &upstream.StatusError{Method: http.MethodPost, URL: "http://localhost/mcp", Status: status}
	}
	for _, c := range []struct {
		name    string
		modern  bool
		untaken error
		want    era.Era
		probes  int
	}{
		{"the newer era only", true, refused(400), era.Modern, 1},
		{"the older era, and no notifications", false, refused(400), era.Legacy, 1},
		{"wants a login", true, refused(401), era.Legacy, 0},
		{"overloaded", true, refused(503), era.Legacy, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, defaults, func(w *world) {
				server, s := w.server("files")
				s.set(func(s *script) { s.modern, s.untaken = c.modern, c.untaken })
				for _, holder := range []string{"a", "b"} {
					a := w.acquire(w.pool.NewHolder(holder), server)
					w.expectEra(a, c.want)
					if got := w.tools(a); len(got) != 1 {
						t.Errorf("the tools are %q", got)
					}
				}
				if got := w.asked(wire.Discover); got != c.probes || w.started() != 1 {
					t.Errorf("%d processes, asked %d times for the newer era, want %d", w.started(), got, c.probes)
				}
			})
		})
	}
}

// M8: the file may say which era a server speaks, and then only that is tried.
func TestTheFileChoosesTheEra(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.modern = true })
		old := *server
		old.Era = config.EraLegacy
		w.expectEra(w.acquireWith(w.pool.NewHolder("a"), modernWant(&old)), era.Legacy)
		if w.asked(wire.Discover) != 0 {
			t.Error("a server of the older era by configuration was probed")
		}
		newer := *server
		newer.Era = config.EraModern
		w.expectEra(w.acquire(w.pool.NewHolder("b"), &newer), era.Modern)
		if w.asked(wire.MethodInitialize) != 1 {
			t.Error("a server of the newer era by configuration got initialize")
		}
	})
}

// M8, case 27: who must not be served in the older era is told so, and no second process
// is started to find out.
func TestOnlyTheNewerEra(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.own("browser")
		x := modernWant(server)
		x.Only = true
		if w.pool.SpeaksModern(x) {
			t.Error("nobody asked yet")
		}
		for range 2 {
			if _, err := w.pool.NewHolder("a").Acquire(context.Background(), x); !errors.Is(err, ErrOtherEra) {
				t.Errorf("got %v", err)
			}
		}
		sleep(time.Second)
		if w.started() != 1 || w.alive() != 0 || w.asked(wire.MethodInitialize) != 0 {
			t.Errorf("%d of %d processes live", w.alive(), w.started())
		}
		sleep(verdictAge)
		s.set(func(s *script) { s.modern = true })
		h := w.pool.NewHolder("b")
		w.expectEra(w.acquireWith(h, x), era.Modern)
		if !w.pool.SpeaksModern(x) {
			t.Error("the server is not known to speak the newer era")
		}
	})
}

// V1, M9: what a server of the newer era announces comes on a listen of ours, and the
// list is read anew.
func TestListsOfTheNewerEraAreListenedTo(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.modern = true })
		e := &ear{}
		x := modernWant(server)
		x.Listener = e
		a := w.acquireWith(w.pool.NewHolder("a"), x)
		if n := w.asked(wire.SubscriptionsListen); n != 1 {
			t.Errorf("%d listens", n)
		}
		s.set(func(s *script) { s.tools = []string{"echo", "more"} })
		w.proc().changed(wire.ToolsListChanged)
		sleep(time.Second)
		if got := w.tools(a); len(got) != 2 {
			t.Errorf("the tools are %q", got)
		}
		e.expect(t, "tools changed")
	})
}
