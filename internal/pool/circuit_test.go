package pool

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// tryAcquire acquires and gives back at once.
func (w *world) tryAcquire(server *config.Server) error {
	h := w.pool.NewHolder("try")
	defer h.Release()
	_, err := h.Acquire(context.Background(), want(server, nil))
	return err
}

// expectCircuit says how the circuit of a server's one entry stands.
func (w *world) expectCircuit(server, state string) {
	w.Helper()
	got := circuitClosed
	i := w.only(server)
	if i.Circuit != nil {
		got = i.Circuit.State
	}
	if got != state || (i.Circuit != nil && i.Circuit.RetryAt != nil) != (state == circuitOpen) {
		w.Errorf("the circuit of %s is %+v, want %s", server, i.Circuit, state)
	}
}

// R4, case 36: a server that exits as soon as it is asked for anything is not started
// in a tight loop, however eager its callers are; they get an error at once, with the
// last failure. Then one of them may try, from time to time.
func TestAServerThatDoesNotStartIsLeftAlone(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, s := w.lasting("files")
		s.set(func(s *script) { s.stillborn, s.output = true, []string{"cannot read config.toml"} })
		for range 5 {
			expectReason(t, w.tryAcquire(server), fault.StartFailed)
		}
		for range 100 {
			begun := time.Now()
			err := w.tryAcquire(server)
			f := fault.Of(err)
			if f.Reason != fault.CircuitOpen || time.Since(begun) != 0 || f.RetryAfter <= 0 || f.RetryAfter > 30*time.Second || f.Server != "files" {
				t.Fatalf("the refusal is %+v", f)
			}
			for _, word := range []string{"cannot read config.toml", "exit status 3", `"files"`, "roundhouse restart"} {
				if !strings.Contains(f.Message, word) {
					t.Errorf("%q is not in the message %q", word, f.Message)
				}
			}
			if f.Data["exit"] != "exit status 3" || f.Data["stderr"] == nil || f.Data["failures"] != 5 {
				t.Errorf("the data is %v", f.Data)
			}
			sleep(200 * time.Millisecond)
		}
		w.expectCircuit("files", circuitOpen)
		if i := w.only("files"); i.State != Failed || i.Exit != "exit status 3" || len(i.LastOutput) != 1 || !strings.Contains(i.LastError, "did not start") {
			t.Errorf("the entry is %+v", i)
		}
		if n := w.started(); n != 5 {
			t.Errorf("%d processes were started, want 5", n)
		}
		sleep(10 * time.Second)
		expectReason(t, w.tryAcquire(server), fault.StartFailed)
		expectReason(t, w.tryAcquire(server), fault.CircuitOpen)
		begun := time.Now()
		for time.Since(begun) < time.Hour {
			_ = w.tryAcquire(server)
			sleep(time.Second)
		}
		if n := w.started(); n > 6+120 {
			t.Errorf("%d processes were started in an hour, want at most one in half a minute", n)
		}
	})
}

// R4: a server that starts and soon ends opens the circuit too, by its own recovery
// alone; the sessions then hear of the loss.
func TestACrashLoopEnds(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, _ := w.lasting("files")
		e := &ear{}
		w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		begun := time.Now()
		for w.only("files").State != Failed && time.Since(begun) < time.Hour {
			if w.only("files").State == Active {
				sleep(time.Second)
				w.proc().die("exit status 1")
			}
			sleep(100 * time.Millisecond)
		}
		if n := w.started(); n != 5 || time.Since(begun) > time.Minute {
			t.Errorf("after %s and %d processes it is %s", time.Since(begun), n, w.only("files").State)
		}
		w.expectCircuit("files", circuitOpen)
		e.expect(t, "renewed", "renewed", "renewed", "renewed", "lost: interrupted")
		expectReason(t, w.tryAcquire(server), fault.CircuitOpen)
		sleep(time.Hour)
		if n := w.started(); n != 5 {
			t.Errorf("%d processes were started without a call", n)
		}
	})
}

// R4: callers that use each new process to kill it are stopped likewise.
func TestACallThatKillsTheServerIsStopped(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, _ := w.lasting("files")
		h := w.pool.NewHolder("a")
		a := w.acquire(h, server)
		for range 100 {
			_, err := call(context.Background(), a, "exit")
			if fault.SafeToRetry(err) {
				if a, err = h.Acquire(context.Background(), want(server, nil)); err != nil {
					expectReason(t, err, fault.CircuitOpen)
					break
				}
			}
			synctest.Wait()
		}
		if n := w.started(); n != 5 {
			t.Errorf("%d processes were started, want 5", n)
		}
	})
}

// open makes a server fail until its circuit is open.
func (w *world) open(server *config.Server, s *script) {
	w.Helper()
	s.set(func(s *script) { s.dialErr = errRefused })
	for range 5 {
		_ = w.tryAcquire(server)
	}
	expectReason(w, w.tryAcquire(server), fault.CircuitOpen)
	s.set(func(s *script) { s.dialErr = nil })
}

// R4: half open, one failure opens the circuit again; after five minutes up it is closed
// and a loss is one like any other.
func TestStableUptimeClosesTheCircuit(t *testing.T) {
	for _, c := range []struct {
		up     time.Duration
		closes bool
	}{{5*time.Minute - time.Second, false}, {5 * time.Minute, true}} {
		t.Run(c.up.String(), func(t *testing.T) {
			inWorld(t, guarded, func(w *world) {
				server, s := w.lasting("files")
				w.open(server, s)
				sleep(30*time.Second - 1)
				expectReason(t, w.tryAcquire(server), fault.CircuitOpen)
				sleep(1)
				w.acquire(w.pool.NewHolder("a"), server)
				w.expectCircuit("files", circuitHalfOpen)
				sleep(c.up)
				if c.closes {
					w.expectCircuit("files", circuitClosed)
				}
				w.proc().die("signal: killed")
				synctest.Wait()
				if c.closes {
					w.expectState("files", Active, 1)
					w.expectCircuit("files", circuitClosed)
				} else {
					w.expectState("files", Failed, 1)
					w.expectCircuit("files", circuitOpen)
				}
			})
		})
	}
}

// R4: failures that are further apart than the window open nothing.
func TestRareFailuresOpenNothing(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, _ := w.lasting("files")
		w.acquire(w.pool.NewHolder("a"), server)
		for range 50 {
			sleep(16 * time.Second)
			w.proc().die("signal: killed")
			synctest.Wait()
			w.expectState("files", Active, 1)
		}
	})
}

// R4: a person who has mended the server does not wait: a restart forgives, whether the
// failed entry is still listed or not, and so does a configuration that is read anew.
func TestARestartForgives(t *testing.T) {
	for i := range 4 {
		own, reload := i%2 == 1, i/2 == 1
		inWorld(t, guarded, func(w *world) {
			server, s := w.lasting("files")
			h := w.pool.NewHolder("a")
			if own {
				server.Sharing = config.Session
			}
			s.set(func(s *script) { s.dialErr = errRefused })
			for range 6 {
				_, _ = h.Acquire(context.Background(), want(server, nil))
			}
			s.set(func(s *script) { s.dialErr = nil })
			_, err := h.Acquire(context.Background(), want(server, nil))
			expectReason(t, err, fault.CircuitOpen)
			if reload {
				w.pool.Configure(config.Pool{DrainDelay: testDrainDelay, Circuit: guarded.Circuit})
			} else {
				for _, r := range w.pool.Restart(context.Background(), "files") {
					if !r.OK {
						t.Errorf("the restart: %+v", r)
					}
				}
			}
			w.acquire(h, server)
			w.expectState("files", Active, 1)
			w.expectCircuit("files", circuitClosed)
		})
	}
}

// R4: the circuit is one identity's. Another configuration of the same name, another
// server, and another session's own connection are not touched.
func TestACircuitIsNobodyElses(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		one, s := w.lasting("files")
		s.set(func(s *script) { s.failArg = "bad" })
		bad := *one
		bad.Args = []string{"bad"}
		for range 6 {
			_ = w.tryAcquire(&bad)
		}
		expectReason(t, w.tryAcquire(&bad), fault.CircuitOpen)
		if err := w.tryAcquire(one); err != nil {
			t.Errorf("the other configuration: %v", err)
		}

		own, s := w.lasting("browser")
		own.Sharing = config.Session
		mine, theirs := w.pool.NewHolder("mine"), w.pool.NewHolder("theirs")
		s.set(func(s *script) { s.dialErr = errRefused })
		for range 6 {
			_, _ = mine.Acquire(context.Background(), want(own, nil))
		}
		s.set(func(s *script) { s.dialErr = nil })
		_, err := mine.Acquire(context.Background(), want(own, nil))
		expectReason(t, err, fault.CircuitOpen)
		w.acquire(theirs, own)
	})
}

// Circuits do not stay for ever.
func TestOldCircuitsAreForgotten(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, s := w.lasting("files")
		s.set(func(s *script) { s.dialErr = errRefused })
		for i := range 500 {
			other := *server
			other.Args = []string{time.Duration(i).String()}
			for range 1 + i%2*5 {
				_ = w.tryAcquire(&other)
			}
			sleep(time.Second)
		}
		sleep(10 * time.Minute)
		_ = w.tryAcquire(server)
		w.pool.mu.Lock()
		defer w.pool.mu.Unlock()
		if n := len(w.pool.circuits); n != 1 {
			t.Errorf("%d circuits are kept", n)
		}
	})
}
