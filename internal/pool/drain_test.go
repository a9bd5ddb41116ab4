package pool

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/fault"
)

// R10: all connections are closed at the same time, and politely.
func TestDrainClosesAllAtTheSameTime(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		h := w.pool.NewHolder("a")
		for i := range 5 {
			server, s := w.server(fmt.Sprint(i))
			s.set(func(s *script) { s.linger = 3 * time.Second })
			w.acquire(h, server)
		}
		begun := time.Now()
		report := w.pool.Drain(context.Background(), false)
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("it took %s, want 3s", took)
		}
		if report.Drained != 5 || report.Forced != 0 || len(report.Errors) > 0 {
			t.Errorf("the report is %+v", report)
		}
		for _, p := range w.procs {
			if p.wasKilled() {
				t.Error("a process was killed")
			}
		}
		if again := w.pool.Drain(context.Background(), true); again.Drained != 5 || again.Forced != 0 {
			t.Errorf("a second drain reports %+v", again)
		}
	})
}

// R10: at the deadline what is left is killed, and reported.
func TestDrainKillsWhatIsLeftAtTheDeadline(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		h := w.pool.NewHolder("a")
		var stubborn []string
		for i := range 4 {
			server, s := w.server(fmt.Sprint(i))
			if i%2 == 1 {
				s.set(func(s *script) { s.linger = time.Hour })
			}
			a := w.acquire(h, server)
			if i%2 == 1 {
				stubborn = append(stubborn, a.ID())
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		report := w.pool.Drain(ctx, false)
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("it took %s, want 5s", took)
		}
		if report.Drained != 2 || report.Forced != 2 || len(report.Errors) != 2 {
			t.Fatalf("the report is %+v", report)
		}
		for _, id := range stubborn {
			if !strings.Contains(strings.Join(report.Errors, "\n"), id+" did not end in time") {
				t.Errorf("the errors %q do not name %s", report.Errors, id)
			}
		}
	})
}

// R10: force does not wait, also for what only begins to end when it is called.
func TestAForcedDrainWaitsForNothing(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		h := w.pool.NewHolder("a")
		for i := range 10 {
			server, s := w.server(fmt.Sprint(i))
			s.set(func(s *script) { s.linger = time.Hour })
			w.acquire(h, server)
		}
		slow, s := w.server("slow")
		s.set(func(s *script) { s.dialDelay = time.Minute })
		p := w.begin(context.Background(), h, want(slow, nil))
		synctest.Wait()
		begun := time.Now()
		report := w.pool.Drain(context.Background(), true)
		if took := time.Since(begun); took > 0 {
			t.Errorf("it took %s, want no time", took)
		}
		if report.Drained != 0 || report.Forced != 10 || len(report.Errors) > 0 {
			t.Errorf("the report is %+v", report)
		}
		synctest.Wait()
		if !p.ended() {
			t.Fatal("the acquire goes on")
		}
		expectReason(t, p.err, fault.Draining)
	})
}

// R10: a second drain may force what the first one waits for.
func TestASecondDrainForcesTheFirst(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.linger = time.Hour })
		w.acquire(w.pool.NewHolder("a"), server)
		first := make(chan DrainReport, 1)
		go func() { first <- w.pool.Drain(context.Background(), false) }()
		sleep(time.Minute)
		if len(first) > 0 {
			t.Fatal("the polite drain did not wait")
		}
		second := w.pool.Drain(context.Background(), true)
		if r := <-first; r.Forced != 1 || second.Forced != 1 {
			t.Errorf("the reports are %+v and %+v", r, second)
		}
	})
}

// R10, R2: calls get their errors, then every session hears of it while it is still
// attached; all of it before Drain returns.
func TestDrainTellsListenersBeforeItDetaches(t *testing.T) {
	for _, force := range []bool{false, true} {
		t.Run(fmt.Sprint("force ", force), func(t *testing.T) {
			inWorld(t, defaults, func(w *world) {
				server, _ := w.server("files")
				var out answer
				e := &ear{}
				var a *Attachment
				e.on = func(string) {
					if len(out) == 0 {
						t.Error("the listener is told before the call has its error")
					}
					w.pool.mu.Lock()
					defer w.pool.mu.Unlock()
					if a.detached.Load() || len(a.holder.atts) != 1 {
						t.Error("the listener is told after the view is detached")
					}
				}
				a = w.acquireWith(w.pool.NewHolder("a"), want(server, e))
				out = w.call(a, "hang")
				w.pool.Drain(context.Background(), force)
				e.expect(t, "lost: draining")
				if reason, _, _ := reasonOf(t, out.got()); reason != fault.Draining {
					t.Errorf("the call got %s", reason)
				}
			})
		})
	}
}

// R10, S4: dials under way are given up and waited for; one that ends with a
// connection all the same is closed.
func TestADialThatEndsAfterTheDrainBeganIsClosed(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.dialDelay, s.deaf = 10*time.Second, true })
		p := w.begin(context.Background(), w.pool.NewHolder("a"), want(server, nil))
		sleep(time.Second)
		begun := time.Now()
		w.pool.Drain(context.Background(), false)
		if took := time.Since(begun); took != 9*time.Second {
			t.Errorf("the drain took %s, want 9s", took)
		}
		if w.started() != 1 || w.alive() != 0 {
			t.Errorf("%d of %d processes live, want none of one", w.alive(), w.started())
		}
		if !p.ended() {
			t.Fatal("the acquire goes on")
		}
		expectReason(t, p.err, fault.Draining)
	})
}

// R10: a drain during a restart ends it.
func TestDrainDuringARestart(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		s.set(func(s *script) { s.linger = 5 * time.Second })
		restarted := make(chan []Restarted, 1)
		go func() { restarted <- w.pool.Restart(context.Background(), "files") }()
		sleep(time.Second)
		begun := time.Now()
		report := w.pool.Drain(context.Background(), false)
		if took := time.Since(begun); took != 4*time.Second || report.Drained != 1 {
			t.Errorf("it took %s, want 4s; the report is %+v", took, report)
		}
		if r := <-restarted; len(r) != 1 || r[0].OK || r[0].Reason == "" {
			t.Errorf("the restart says %+v", r)
		}
		if _, err := call(context.Background(), a, "echo"); err == nil {
			t.Error("the attachment still works")
		}
		if w.started() != 1 {
			t.Errorf("%d processes, want one", w.started())
		}
	})
}

// R10: what was dying before the drain began is waited for, and counted.
func TestDrainWaitsForWhatIsDyingAlready(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.linger = 5 * time.Second })
		w.acquire(w.pool.NewHolder("a"), server).Release()
		sleep(time.Second)
		dying := w.pool.Snapshot()
		if len(dying) != 1 || !dying[0].Dying || dying[0].State != Closed {
			t.Fatalf("while it dies the pool shows %+v", dying)
		}
		begun := time.Now()
		report := w.pool.Drain(context.Background(), false)
		if took := time.Since(begun); took != 4*time.Second || report.Drained != 1 {
			t.Errorf("it took %s, want 4s; the report is %+v", took, report)
		}
	})
}

// Section 9 of the specification: a connection is listed as long as it lives, from
// its dial to the end of its process, without a gap.
func TestEveryConnectionIsListedWhileItLives(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.linger = time.Second })
		w.acquire(w.pool.NewHolder("a"), server)
		listed := func(when string, n int) {
			t.Helper()
			if all := w.pool.Snapshot(); len(all) != n {
				t.Errorf("%s %d are listed, want %d: %+v", when, len(all), n, all)
			}
		}
		listed("active", 1)
		w.pool.mu.Lock()
		for _, e := range w.pool.entries {
			w.pool.closeLocked(e, errUnused)
		}
		if len(w.pool.dying) != 1 {
			t.Error("a closed connection is not at once among the dying")
		}
		w.pool.mu.Unlock()
		synctest.Wait()
		listed("dying", 1)
		sleep(time.Second)
		listed("gone", 0)

		a := w.acquire(w.pool.NewHolder("b"), server)
		go w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		listed("during a restart", 2) // the entry, and its old connection
		sleep(time.Second)
		listed("after the restart", 1)
		a.Release()
		synctest.Wait()
	})
}
