package pool

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/wire"
)

// told returns what was published since the last time, by kind.
func (w *world) told() (kinds []event.Kind) {
	w.Helper()
	synctest.Wait()
	for _, e := range w.news() {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func (w *world) news() []event.Event {
	w.Helper()
	events, lost, _ := w.pool.cfg.Events.After(w.heard)
	if lost > 0 {
		w.Errorf("%d events are lost", lost)
	}
	w.heard += uint64(len(events))
	return events
}

func (w *world) expectTold(want ...event.Kind) {
	w.Helper()
	if got := w.told(); !slices.Equal(got, want) {
		w.Errorf("published was %v, want %v", got, want)
	}
}

func withEvents() Config {
	c := defaults
	c.Events = event.NewFeed()
	return c
}

// pool.md §9: every change of a connection is an event, in order.
func TestTheLifeOfAConnectionIsToldInEvents(t *testing.T) {
	inWorld(t, withEvents(), func(w *world) {
		server, s := w.server("files")
		h := w.pool.NewHolder("a")
		a := w.acquire(h, server)
		w.expectTold(event.ConnectionOpened)
		a.Release()
		w.expectTold(event.ConnectionDraining)
		a = w.acquire(h, server)
		w.expectTold(event.ConnectionResumed)

		s.set(func(s *script) { s.tools = []string{"other"}; s.dialDelay = 3 * time.Second })
		w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		all := w.news()
		if len(all) != 3 || all[0].Kind != event.ConnectionRecovering || all[1].Kind != event.ConnectionRestarted || all[2].Kind != event.CatalogueChanged {
			t.Fatalf("a restart is %+v", all)
		}
		if r := all[1]; *r.DurationMs != 3000 || r.Generation != 2 || *r.EntryIndex != 0 || r.Server != "files" || r.Connection != a.ID() || r.Principal != "local" {
			t.Errorf("the event is %+v", r)
		}
		if !slices.Equal(all[2].Lists, []string{"tools"}) {
			t.Errorf("changed are %v", all[2].Lists)
		}
		s.set(func(s *script) { s.tools = []string{"third"} })
		w.proc().changed(wire.ToolsListChanged)
		sleep(time.Second)
		w.expectTold(event.CatalogueChanged)

		w.proc().die("exit status 7")
		synctest.Wait()
		if all = w.news(); len(all) != 1 || all[0].Kind != event.ConnectionFailed || !strings.Contains(all[0].Reason, "exit status 7") {
			t.Fatalf("a loss is %+v", all)
		}
		s.set(func(s *script) { s.dialErr = errRefused })
		w.pool.Restart(context.Background(), "files")
		w.expectTold(event.ConnectionFailed)
		s.set(func(s *script) { s.dialErr = nil })
		w.pool.Restart(context.Background(), "files")
		w.expectTold(event.ConnectionRestarted, event.ConnectionDraining)
		sleep(testDrainDelay)
		w.expectTold(event.ConnectionClosed)
	})
}

// N2: an event says whose sessions alone can use the connection.
func TestAnEventNamesThePrincipalOfAConnection(t *testing.T) {
	inWorld(t, withEvents(), func(w *world) {
		server, s := w.server("files")
		x := want(server, nil)
		x.Principal = "alice"
		w.acquireWith(w.pool.NewHolder("a"), x)
		synctest.Wait() // events of different entries have no order
		all := *server
		all.ShareAcrossPrincipals, all.Args = true, []string{"all"}
		x.Server = &all
		w.acquireWith(w.pool.NewHolder("a"), x)
		synctest.Wait()
		own := *server
		own.Sharing, own.Args = config.Session, []string{"own"}
		x.Server, x.Principal = &own, "bob"
		w.acquireWith(w.pool.NewHolder("b"), x)
		synctest.Wait()
		s.set(func(s *script) { s.dialErr = errRefused })
		w.proc().die("exit status 1")
		w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		var got []string
		for _, e := range w.news() {
			got = append(got, e.Principal)
			if n := len(got); n <= 3 && !slices.Equal(got, []string{"alice", "", "bob"}[:n]) {
				t.Errorf("event %d is %+v", n, e)
			}
		}
	})
}

// pool.md §9: who is slow to hear of events of one connection does not hold up the pool.
func TestEventsArePublishedWithoutTheLock(t *testing.T) {
	c := withEvents()
	inWorld(t, c, func(w *world) {
		server, _ := w.server("files")
		w.onLog = func(string) { time.Sleep(time.Minute) } // in front of the event
		w.acquire(w.pool.NewHolder("a"), server)
		w.expectState("files", Active, 1)
		sleep(10 * time.Minute)
		w.expectTold(event.ConnectionOpened)
	})
}
