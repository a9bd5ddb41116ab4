package pool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/event"
	"roundhouse/internal/fault"
)

// R6: a restart by name restarts every entry of the name, and no other; references
// survive, calls in flight are interrupted, and the attachments work again.
func TestRestartKeepsAttachments(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		one, _ := w.server("files")
		two := *one
		two.Args = []string{"two"}
		other, _ := w.server("files::other") // K5: no prefix matching
		e := &ear{}
		h := w.pool.NewHolder("a")
		a, b := w.acquireWith(h, want(one, e)), w.acquire(h, &two)
		w.acquire(h, other)
		out := w.call(a, "hang")

		results := w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		if len(results) != 2 || !results[0].OK || !results[1].OK || results[0].Index != 0 || results[1].Index != 1 ||
			results[0].ID != a.ID() || results[0].Generation != 2 {
			t.Errorf("the results are %+v", results)
		}
		if reason, sent, data := reasonOf(t, out.got()); reason != fault.Interrupted || sent != fault.SentMaybe || data["generation"] != 1.0 {
			t.Errorf("the call in flight got %s, %s, %v", reason, sent, data)
		}
		e.expect(t, "renewed")
		for _, x := range []*Attachment{a, b} {
			if w.call(x, "echo").got() == "" {
				t.Errorf("the attachment to %s does not work", x.ID())
			}
		}
		for _, i := range w.entries("files") {
			if i.State != Active || i.Refs != 1 || i.Generation != 2 {
				t.Errorf("the entry is %+v", i)
			}
		}
		if i := w.only("files::other"); i.Generation != 1 {
			t.Error("another server was restarted")
		}
		if w.started() != 5 || w.alive() != 3 {
			t.Errorf("%d processes started and %d live, want 5 and 3", w.started(), w.alive())
		}
	})
}

// R6: the new process starts when the old one is gone, and calls wait meanwhile,
// each within its own time.
func TestCallsWaitForARestart(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		s.set(func(s *script) { s.linger, s.dialDelay = 2*time.Second, 3*time.Second })
		done := make(chan []Restarted, 1)
		go func() { done <- w.pool.Restart(context.Background(), "files") }()
		synctest.Wait()
		w.expectState("files", Recovering, 1)

		patient, hasty := make(chan error, 1), make(chan error, 1)
		go func() { _, err := call(context.Background(), a, "echo"); patient <- err }()
		mine := errors.New("no time")
		go func() {
			ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, mine)
			defer cancel()
			_, err := call(ctx, a, "echo")
			hasty <- err
		}()
		sleep(time.Second)
		if err := <-hasty; !errors.Is(err, mine) {
			t.Errorf("the hasty call got %v, want %v", err, mine)
		}
		sleep(time.Second)
		if w.alive() != 0 || w.started() != 1 {
			t.Errorf("%d live of %d processes, want none of one", w.alive(), w.started())
		}
		sleep(3*time.Second - time.Nanosecond)
		if len(done) > 0 || len(patient) > 0 {
			t.Fatal("it ended early")
		}
		sleep(time.Nanosecond)
		if err := <-patient; err != nil {
			t.Errorf("the patient call got %v", err)
		}
		if r := <-done; len(r) != 1 || !r[0].OK || r[0].Duration != 5*time.Second {
			t.Errorf("the results are %+v", r)
		}
	})
}

// R6: restarts of one entry at the same time are one restart.
func TestConcurrentRestartsCoalesce(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		w.acquire(w.pool.NewHolder("a"), server)
		s.set(func(s *script) { s.dialDelay = time.Second })
		done := make(chan []Restarted, 10)
		for range 10 {
			go func() { done <- w.pool.Restart(context.Background(), "files") }()
			sleep(90 * time.Millisecond)
		}
		sleep(time.Second)
		for range 10 {
			if r := <-done; len(r) != 1 || !r[0].OK || r[0].Generation != 2 {
				t.Errorf("the results are %+v", r)
			}
		}
		if w.started() != 2 {
			t.Errorf("%d processes, want 2", w.started())
		}
	})
}

// R6: one failure does not hide the others; sessions on the failed one hear of it.
func TestOneFailedRestartDoesNotHideTheOthers(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		one, s := w.server("files")
		two := *one
		two.Args = []string{"bad"}
		e, f := &ear{}, &ear{}
		h := w.pool.NewHolder("a")
		w.acquireWith(h, want(one, e))
		w.acquireWith(h, want(&two, f))
		s.set(func(s *script) { s.failArg = "bad" })
		results := w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		if len(results) != 2 || !results[0].OK || results[1].OK || results[1].Reason == "" {
			t.Errorf("the results are %+v", results)
		}
		e.expect(t, "renewed")
		f.expect(t, "lost: start_failed")
		if all := w.entries("files"); len(all) != 2 || all[0].State != Active || all[1].State != Failed || all[1].Refs != 1 {
			t.Errorf("the entries are %+v", all)
		}
	})
}

// R6, T1: with no references the drain timer is re-armed, in full.
func TestARestartRearmsTheDrainTimer(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		w.acquire(w.pool.NewHolder("a"), server).Release()
		sleep(testDrainDelay - time.Second)
		if r := w.pool.Restart(context.Background(), "files"); len(r) != 1 || !r[0].OK {
			t.Errorf("the results are %+v", r)
		}
		w.expectState("files", Draining, 0)
		sleep(testDrainDelay - time.Nanosecond)
		w.expectState("files", Draining, 0)
		sleep(time.Nanosecond)
		w.expectGone("files")
	})
}

// R6: a failed entry is started anew, and then drains if nobody comes.
func TestARestartStartsAFailedEntry(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		h := w.pool.NewHolder("a")
		a := w.acquire(h, server)
		w.proc().die("exit status 1")
		synctest.Wait()
		if r := w.pool.Restart(context.Background(), "files"); len(r) != 1 || !r[0].OK || r[0].Generation != 2 {
			t.Errorf("the results are %+v", r)
		}
		w.expectState("files", Draining, 0)
		if _, err := call(context.Background(), a, "echo"); !fault.SafeToRetry(err) {
			t.Errorf("the old attachment gives %v, want an error that allows a retry", err)
		}
		a.Release()
		w.acquire(h, server)
		w.expectState("files", Active, 1)
		if w.started() != 2 {
			t.Errorf("%d processes, want 2", w.started())
		}
	})
}

// R6: every failed entry is one result, whatever the table looks like meanwhile.
func TestARestartOfManyFailedEntriesHasOneResultForEach(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		base, s := w.server("files")
		s.set(func(s *script) { s.dialErr = errRefused })
		const n = 30
		for i := range n {
			x := *base
			x.Args = []string{string(rune('a' + i))}
			_, _ = w.pool.NewHolder("a").Acquire(context.Background(), want(&x, nil))
		}
		results := w.pool.Restart(context.Background(), "files")
		if len(results) != n || len(w.dialled()) != 2*n {
			t.Errorf("%d results and %d dials, want %d and %d", len(results), len(w.dialled()), n, 2*n)
		}
		for i, r := range results {
			if r.Index != i {
				t.Fatalf("result %d is of the entry %d", i, r.Index)
			}
		}
	})
}

// R7: what is started for the first time is not restarted; a restart of what is being
// restarted is the same one.
func TestARestartOfWhatIsBeingStarted(t *testing.T) {
	inWorld(t, withEvents(), func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.dialDelay = 10 * time.Second })
		p := w.begin(context.Background(), w.pool.NewHolder("a"), want(server, nil))
		synctest.Wait()
		r := w.pool.Restart(context.Background(), "files")
		if len(r) != 1 || r[0].OK || !r[0].Skipped || r[0].Reason != SkipInFlight || r[0].Index != 0 {
			t.Errorf("the results are %+v", r)
		}
		w.expectTold(event.RestartRefused)
		sleep(10 * time.Second)
		if p.err != nil || w.started() != 1 {
			t.Errorf("%v, %d processes", p.err, w.started())
		}
		s.set(func(s *script) { s.dialErr = errRefused; s.dialDelay = 0 })
		w.pool.Restart(context.Background(), "files") // fails
		s.set(func(s *script) { s.dialErr = nil; s.dialDelay = 10 * time.Second })
		done := make(chan []Restarted, 2)
		for range 2 {
			go func() { done <- w.pool.Restart(context.Background(), "files") }()
			sleep(time.Second)
		}
		sleep(10 * time.Second)
		for range 2 {
			if r := <-done; len(r) != 1 || !r[0].OK || r[0].Skipped {
				t.Errorf("the results are %+v", r)
			}
		}
	})
}

// R6: one connection is restarted alone.
func TestARestartOfOneOfSeveral(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.own("browser")
		for _, name := range []string{"a", "b", "c"} {
			w.acquire(w.pool.NewHolder(name), server)
		}
		if r := w.pool.RestartOne(context.Background(), "browser", 1); len(r) != 1 || !r[0].OK || r[0].Index != 1 {
			t.Errorf("the results are %+v", r)
		}
		if r := w.pool.RestartOne(context.Background(), "browser", 3); len(r) != 0 {
			t.Errorf("the results are %+v", r)
		}
		for i, x := range w.entries("browser") {
			if want := uint64(1 + i%2); x.Generation != want {
				t.Errorf("the entry %d has the generation %d", x.EntryIndex, x.Generation)
			}
		}
	})
}

// R7: what is not to be used any more is torn down, in whatever state, and forgotten.
func TestRetire(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		slow, bad, other := *server, *server, *server
		slow.Args, bad.Args, other.Name = []string{"slow"}, []string{"bad"}, "other"
		w.scripts["other"] = s
		e := &ear{}
		h := w.pool.NewHolder("a")
		w.acquire(h, &other)
		a := w.acquireWith(h, want(server, e))
		out := w.call(a, "hang")
		s.set(func(s *script) { s.failArg = "bad" })
		_, _ = h.Acquire(context.Background(), want(&bad, nil))
		s.set(func(s *script) { s.dialDelay = time.Minute })
		p := w.begin(context.Background(), h, want(&slow, nil))
		synctest.Wait()
		if !w.pool.Retire("files") || w.pool.Retire("files") || w.pool.Retire("nothing") {
			t.Error("it does not say what there was")
		}
		synctest.Wait()
		if left := w.entries("files"); len(left) != 0 || w.alive() != 1 {
			t.Errorf("left are %+v, and %d processes", left, w.alive())
		}
		if reason, _, _ := reasonOf(t, out.got()); reason != fault.Interrupted || p.err == nil {
			t.Errorf("the call got %s, who waited got %v", reason, p.err)
		}
		e.expect(t, "lost: interrupted")
		w.expectState("other", Active, 1)
	})
}

// R6, R10: what is not there is not restarted, and nothing is once the pool drains.
func TestNothingToRestart(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		if r := w.pool.Restart(context.Background(), "files"); len(r) > 0 {
			t.Errorf("before it was used: %+v", r)
		}
		s.set(func(s *script) { s.dialErr = errRefused })
		_, _ = w.pool.NewHolder("a").Acquire(context.Background(), want(server, nil))
		s.set(func(s *script) { s.dialErr = nil })
		w.pool.Drain(context.Background(), false)
		if r := w.pool.Restart(context.Background(), "files"); len(r) > 0 || w.started() > 0 {
			t.Errorf("after the drain: %+v, %d processes", r, w.started())
		}
	})
}

// R6: the caller's context ends its waiting, not the restart.
func TestARestartGoesOnWhenNobodyWaits(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		w.acquire(w.pool.NewHolder("a"), server)
		s.set(func(s *script) { s.dialDelay = 5 * time.Second })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if r := w.pool.Restart(ctx, "files"); len(r) != 1 || r[0].OK || r[0].Duration != time.Second {
			t.Errorf("the results are %+v", r)
		}
		sleep(4 * time.Second)
		w.expectState("files", Active, 1)
	})
}

// S4: an attachment released while its call waits for a restart leaves a connection
// that drains.
func TestAConnectionDrainsWhenItsOnlyCallerIsReleasedDuringARestart(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		s.set(func(s *script) { s.dialDelay = time.Second })
		go w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		result := make(chan error, 1)
		go func() { _, err := call(context.Background(), a, "echo"); result <- err }()
		synctest.Wait()
		a.Release()
		sleep(time.Second)
		if err := <-result; !fault.SafeToRetry(err) {
			t.Errorf("the call got %v, want an error that allows a retry", err)
		}
		w.expectState("files", Draining, 0)
	})
}

// R6, U1: a session's own connection is restarted like any other.
func TestRestartOfASessionsOwnConnection(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.own("browser")
		e := &ear{}
		a := w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		if r := w.pool.Restart(context.Background(), "browser"); len(r) != 1 || !r[0].OK || r[0].ID != a.ID() {
			t.Errorf("the results are %+v", r)
		}
		synctest.Wait()
		e.expect(t, "renewed")
		if w.call(a, "echo").got() == "" {
			t.Error("the attachment does not work")
		}
		a.Release()
		synctest.Wait()
		w.expectGone("browser")
	})
}

// Case 32: a server that comes back with other lists says so to those attached,
// once for each list that a client knows.
func TestARestartWithOtherListsIsAnnounced(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		version := "1"
		s.set(func(s *script) {
			s.caps = `{"tools":{},"resources":{},"prompts":{}}`
			s.list = func(method, _ string) string {
				switch k, _ := KindOf(method); k {
				case Tools:
					return toolsResult("echo")
				case Prompts:
					return `{"prompts":[]}`
				case Resources:
					return `{"resources":[{"uri":"file:///` + version + `"}]}`
				default:
					return `{"resourceTemplates":[{"uriTemplate":"x` + version + `:{a}"}]}`
				}
			}
		})
		e := &ear{}
		w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		e.expect(t, "renewed")
		version = "2"
		w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		e.expect(t, "renewed", "renewed", "resources changed")
		s.set(func(s *script) { s.caps = `{"tools":{}}` })
		w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		e.expect(t, "renewed", "renewed", "resources changed", "renewed", "prompts changed", "resources changed")
	})
}
