package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// R3: a server that dies while nobody calls comes back without a call; attached
// sessions stay attached, hear of it, and of a list only if that differs.
func TestALostServerComesBackWithoutACall(t *testing.T) {
	for _, differs := range []bool{false, true} {
		t.Run(fmt.Sprint("differs ", differs), func(t *testing.T) {
			inWorld(t, guarded, func(w *world) {
				server, s := w.lasting("files")
				e := &ear{}
				a := w.acquireWith(w.pool.NewHolder("a"), want(server, e))
				sleep(time.Minute)
				heard := []string{"renewed"}
				if differs {
					s.set(func(s *script) { s.tools = []string{"other"} })
					heard = append(heard, "tools changed")
				}
				w.proc().die("signal: killed")
				synctest.Wait()
				e.expect(t, heard...)
				w.expectState("files", Active, 1)
				if i := w.only("files"); i.Generation != 2 || i.LastError != "" || i.Circuit == nil || i.Circuit.Failures != 1 {
					t.Errorf("the entry is %+v", i)
				}
				if w.call(a, "echo").got() == "" {
					t.Error("the attachment does not work")
				}
			})
		})
	}
}

// R3: a connection that belongs to one session recovers likewise while the session
// holds it, and not longer.
func TestASessionsOwnConnectionRecovers(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, s := w.lasting("browser")
		server.Sharing = config.Session
		h, e := w.pool.NewHolder("a"), &ear{}
		a := w.acquireWith(h, want(server, e))
		sleep(time.Minute)
		w.proc().die("signal: killed")
		synctest.Wait()
		e.expect(t, "renewed")
		if !a.Own() || w.call(a, "echo").got() == "" {
			t.Error("the attachment does not work")
		}
		s.set(func(s *script) { s.dialDelay = time.Second })
		sleep(time.Minute)
		w.proc().die("signal: killed")
		synctest.Wait()
		w.expectState("browser", Recovering, 1)
		h.Release() // in the middle of the dial
		synctest.Wait()
		w.expectGone("browser")
		sleep(time.Hour)
		if n := w.started(); n != 2 {
			t.Errorf("%d processes were started, want 2", n)
		}
	})
}

// R3: what nobody holds is not recovered, also when the last one leaves in between.
func TestWhatNobodyHoldsIsNotRecovered(t *testing.T) {
	for _, c := range []struct {
		name string
		when time.Duration // of the release, after the loss; the process takes 1 s to go, and a dial 1 s
	}{{"before the loss", -1}, {"while the old process ends", 500 * time.Millisecond}, {"during an attempt", 1500 * time.Millisecond}, {"between two attempts", 3 * time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, guarded, func(w *world) {
				server, s := w.lasting("files")
				h := w.pool.NewHolder("a")
				w.acquire(h, server)
				sleep(10 * time.Second)
				first := Recovering
				if c.when < 0 {
					h.Release()
					first = Failed
				}
				s.set(func(s *script) { s.linger, s.dialDelay, s.dialErr = time.Second, time.Second, errRefused })
				w.proc().out.Close() // and it lingers
				synctest.Wait()
				if i := w.only("files"); i.State != first {
					t.Errorf("after the loss it is %s, want %s", i.State, first)
				}
				if c.when > 0 {
					sleep(c.when)
					w.expectState("files", Recovering, 1)
					h.Release()
				}
				sleep(10 * time.Second)
				w.expectState("files", Failed, 0)
				if len(w.dialled()) > 2 {
					t.Errorf("it was dialled %d times", len(w.dialled()))
				}
				sleep(failedShown)
				w.expectGone("files")
			})
		})
	}
}

// R3: three attempts five seconds apart, with jitter; then the entry has failed, the
// sessions hear why, and the next acquire tries again.
func TestRecoveryGivesUpAfterItsAttempts(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, s := w.lasting("files")
		e := &ear{}
		h := w.pool.NewHolder("a")
		a := w.acquireWith(h, want(server, e))
		sleep(time.Minute)
		s.set(func(s *script) { s.dialErr = errRefused })
		lost := time.Now()
		w.proc().die("exit status 1")
		sleep(15 * time.Second)
		times := w.dialled()[1:]
		if len(times) != 3 || !times[0].Equal(lost) || !about(times[1].Sub(times[0]), 5*time.Second) || !about(times[2].Sub(times[1]), 5*time.Second) {
			t.Errorf("it was lost at %s, and the attempts came at %s", lost, times)
		}
		e.expect(t, "lost: start_failed")
		if i := w.only("files"); i.State != Failed || i.LastError == "" || i.Refs != 1 || i.Exit != "exit status 1" {
			t.Errorf("the entry is %+v", i)
		}
		if _, err := call(context.Background(), a, "echo"); !fault.SafeToRetry(err) {
			t.Errorf("a call got %v, want one that asks for a new attachment", err)
		}
		s.set(func(s *script) { s.dialErr = nil })
		a.Release()
		w.acquire(h, server)
		w.expectState("files", Active, 1)
	})
}

// about allows for the jitter.
func about(got, want time.Duration) bool { return got >= want*8/10 && got <= want*12/10 }

// R3: the delays of remote servers double from 1 s to 16 s.
func TestDelaysDoubleUpToTheirLimit(t *testing.T) {
	c := config.Defaults().Pool.Recovery.Remote
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 16, 16} {
		want *= time.Second
		seen := map[time.Duration]bool{}
		for range 100 {
			d := delayBefore(c, i+1)
			seen[d] = true
			if d < want*8/10 || d > want*12/10 {
				t.Errorf("before attempt %d it waits %s, want %s give or take a fifth", i+1, d, want)
			}
		}
		if len(seen) < 50 {
			t.Errorf("100 delays have %d values: there is no jitter", len(seen))
		}
	}
	if d := delayBefore(config.Recovery{Attempts: 1, Delay: time.Second}, 3); d < 800*time.Millisecond || d > 1200*time.Millisecond {
		t.Errorf("without a limit it waits %s", d)
	}
}

// R3: a call waits for the recovery within its own time, and does not wait for an
// attempt to be due: it makes one at once, once for each that is due.
func TestACallDoesNotWaitForTheNextAttempt(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, s := w.lasting("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		sleep(time.Minute)
		s.set(func(s *script) { s.dialErr = errRefused })
		w.proc().die("signal: killed")
		sleep(time.Second)
		if len(w.dialled()) != 2 {
			t.Fatalf("%d dials, want the first and one attempt", len(w.dialled()))
		}

		// Ten callers make one attempt more, and share its failure in silence.
		done := make(chan error, 10)
		for range 10 {
			go func() { _, err := call(context.Background(), a, "echo"); done <- err }()
			sleep(10 * time.Millisecond)
		}
		if len(w.dialled()) != 3 || len(done) != 0 {
			t.Errorf("%d dials, want 3; %d calls have ended", len(w.dialled()), len(done))
		}
		mine := errors.New("no time")
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, mine)
		defer cancel()
		if _, err := call(ctx, a, "echo"); !errors.Is(err, mine) {
			t.Errorf("a hasty call got %v", err)
		}

		s.set(func(s *script) { s.dialErr = nil })
		sleep(6 * time.Second) // the second attempt is due
		for range 10 {
			if err := <-done; err != nil {
				t.Errorf("a call got %v", err)
			}
		}
		if all := w.dialled(); len(all) != 4 || !about(all[3].Sub(all[1]), 5*time.Second) {
			t.Errorf("the dials were at %s: want four, of which the hasty one put off none", all)
		}
	})
}

// R3, S2: when all attempts have failed, everybody who waited gets the error of the
// last one, who was attached and who was not.
func TestWhoWaitedGetsTheLastError(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, s := w.lasting("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		sleep(time.Minute)
		s.set(func(s *script) { s.dialErr = errRefused })
		w.proc().die("signal: killed")
		synctest.Wait()
		done := make(chan error, 1)
		go func() { _, err := call(context.Background(), a, "echo"); done <- err }()
		p := w.begin(context.Background(), w.pool.NewHolder("b"), want(server, nil))
		sleep(20 * time.Second)
		expectReason(t, <-done, fault.StartFailed)
		if !p.ended() {
			t.Fatal("the acquire hangs")
		}
		expectReason(t, p.err, fault.StartFailed)
		w.expectState("files", Failed, 1)
	})
}

// R3: a server that has just started is not started again at once for nobody, but for a
// call it is.
func TestAShortLifeIsFollowedByADelay(t *testing.T) {
	for _, called := range []bool{false, true} {
		t.Run(fmt.Sprint("called ", called), func(t *testing.T) {
			inWorld(t, guarded, func(w *world) {
				server, _ := w.lasting("files")
				a := w.acquire(w.pool.NewHolder("a"), server)
				sleep(time.Second)
				w.proc().die("exit status 1")
				synctest.Wait()
				w.expectState("files", Recovering, 1)
				if i := w.only("files"); i.LastError == "" {
					t.Error("the entry does not say why it recovers")
				}
				if called {
					w.call(a, "echo")
				} else {
					sleep(5 * time.Second)
				}
				w.expectState("files", Active, 1)
			})
		})
	}
}

// R4: the attempts of a recovery keep their distance by themselves and are no failures
// that open the circuit: it is not cut short, and who comes next may try.
func TestARecoveryDoesNotOpenTheCircuit(t *testing.T) {
	c := guarded
	c.Circuit.Failures = 2 // one of which is the loss
	inWorld(t, c, func(w *world) {
		server, s := w.lasting("search")
		server.Recovery = config.Recovery{Attempts: 8, Delay: time.Second, MaxDelay: time.Second}
		w.acquire(w.pool.NewHolder("a"), server)
		sleep(time.Minute)
		s.set(func(s *script) { s.dialErr = errRefused })
		w.proc().die("exit status 1")
		sleep(20 * time.Second)
		w.expectState("search", Failed, 1)
		if n := len(w.dialled()); n != 9 {
			t.Errorf("%d dials, want 9", n)
		}
		s.set(func(s *script) { s.dialErr = nil })
		w.acquire(w.pool.NewHolder("b"), server)
	})
}

// A server that wants a login is not tried again by itself: it would want it again. That
// is no failure either, so that nobody is told that the server is down (R4).
func TestAServerThatWantsALoginIsNotTriedAgain(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, s := w.lasting("search")
		server.Transport = config.HTTP
		e := &ear{}
		w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		sleep(time.Minute)
		s.set(func(s *script) { s.dialErr = &upstream.AuthError{Status: &upstream.StatusError{Status: 401}} })
		w.proc().die("exit status 1")
		sleep(time.Minute)
		e.expect(t, "lost: needs_login")
		if len(w.dialled()) != 2 {
			t.Errorf("%d dials, want 2", len(w.dialled()))
		}
		for range 10 {
			expectReason(t, w.tryAcquire(server), fault.NeedsLogin)
		}
	})
}

// R9: while a server recovers, and when it comes back without a list that it had,
// sessions have the list from before.
func TestListsOutliveTheServer(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, s := w.lasting("files")
		server.ExcludeTools = []string{"hidden"}
		s.set(func(s *script) { s.tools = []string{"echo", "hidden"} })
		e := &ear{}
		a := w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		sleep(time.Minute)
		s.set(func(s *script) { s.dialErr = errRefused })
		w.proc().die("signal: killed")
		sleep(time.Second)
		expect := func(when string) {
			t.Helper()
			begun := time.Now()
			if got := w.tools(a); !slices.Equal(got, []string{"echo"}) {
				t.Errorf("%s the tools are %q", when, got)
			}
			if got := keysOf(a.Peek(Tools)); !slices.Equal(got, []string{"echo"}) {
				t.Errorf("%s the tools that are known are %q", when, got)
			}
			if took := time.Since(begun); took > staleTimeout {
				t.Errorf("%s the list took %s", when, took)
			}
		}
		w.expectState("files", Recovering, 1)
		expect("without a server")
		s.set(func(s *script) {
			s.dialErr = nil
			s.list = func(string, string) string { return `({"code":-32603,"message":"not now"})` }
		})
		sleep(10 * time.Second)
		w.expectState("files", Active, 1)
		expect("without a list")
		e.expect(t, "renewed")
		s.set(func(s *script) { s.list = func(string, string) string { return `{"tools":[]}` } })
		if got := w.tools(a); len(got) != 0 {
			t.Errorf("the list is empty, and the tools are %q", got)
		}
		synctest.Wait()
		e.expect(t, "renewed", "tools changed")
	})
}

// R8, S4: whatever ends a recovery ends its attempts, wherever they are: the drain of
// the pool, or a release. Nothing is started afterwards, and what starts late is closed.
func TestNothingIsStartedAfterTheEndOfARecovery(t *testing.T) {
	for step := range 40 {
		at := time.Duration(step) * 250 * time.Millisecond
		inWorld(t, guarded, func(w *world) {
			server, s := w.lasting("files")
			server.StartTimeout = 2 * time.Second
			h, e := w.pool.NewHolder("a"), &ear{}
			w.acquireWith(h, want(server, e))
			sleep(time.Minute)
			s.set(func(s *script) { s.linger, s.dialDelay, s.deaf = time.Second, 3*time.Second, true }) // the dial comes up after its timeout
			w.proc().die("signal: killed")
			sleep(at)
			drained := step%2 == 0
			if drained {
				w.pool.Drain(context.Background(), false)
			} else {
				h.Release()
			}
			before := len(w.dialled())
			sleep(time.Minute)
			if len(w.dialled()) != before || w.alive() != 0 {
				t.Errorf("after %s: %d dials later, %d processes live", at, len(w.dialled())-before, w.alive())
			}
			if got := e.all(); drained && len(got) != 1 {
				t.Errorf("after %s: heard %q, want one end", at, got)
			}
		})
	}
}

// R6: a restart during a recovery does not wait until an attempt is due, and reports
// how that one went.
func TestARestartHastensARecovery(t *testing.T) {
	for _, works := range []bool{true, false} {
		t.Run(fmt.Sprint("works ", works), func(t *testing.T) {
			inWorld(t, guarded, func(w *world) {
				server, s := w.lasting("files")
				e := &ear{}
				w.acquireWith(w.pool.NewHolder("a"), want(server, e))
				sleep(time.Minute)
				s.set(func(s *script) { s.dialErr = errRefused })
				w.proc().die("signal: killed")
				sleep(time.Second)
				if works {
					s.set(func(s *script) { s.dialErr = nil })
				}
				begun := time.Now()
				r := w.pool.Restart(context.Background(), "files")
				if len(r) != 1 || r[0].OK != works || time.Since(begun) != 0 {
					t.Errorf("after %s: %+v", time.Since(begun), r)
				}
				synctest.Wait()
				if works {
					e.expect(t, "renewed")
				} else {
					e.expect(t, "lost: start_failed")
				}
			})
		})
	}
}

// R2, R5: calls in flight at the loss get their errors, and only later ones go to the
// new connection.
func TestRecoverySendsNothingAgain(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, _ := w.lasting("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		sleep(time.Minute)
		out := w.call(a, "exit")
		if reason, sent, data := reasonOf(t, out.got()); reason != fault.Interrupted || sent != fault.SentMaybe || data["exit"] != "exit status 7" {
			t.Errorf("the call got %s, %s, %v", reason, sent, data)
		}
		sleep(time.Minute)
		w.expectState("files", Active, 1)
		if n := w.asked(wire.ToolsCall); n != 1 {
			t.Errorf("the server saw %d calls", n)
		}
	})
}
