package pool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// T1: the last detach arms the drain delay, an attach cancels it, and the next last
// detach arms it in full.
func TestTheLastDetachArmsTheDrainDelay(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		a, b := w.acquire(w.pool.NewHolder("a"), server), w.acquire(w.pool.NewHolder("b"), server)
		a.Release()
		w.expectState("files", Active, 1)
		b.Release()
		w.expectState("files", Draining, 0)
		sleep(testDrainDelay - time.Second)
		c := w.acquire(w.pool.NewHolder("c"), server)
		w.expectState("files", Active, 1)
		sleep(2 * time.Second)
		w.expectState("files", Active, 1)
		c.Release()
		sleep(testDrainDelay - time.Nanosecond)
		w.expectState("files", Draining, 0)
		sleep(time.Nanosecond)
		w.expectGone("files")
		if w.started() != 1 {
			t.Errorf("%d processes, want one", w.started())
		}
	})
}

// T1: without a drain delay the last detach closes.
func TestWithoutADrainDelayTheLastDetachCloses(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		server, _ := w.server("files")
		w.acquire(w.pool.NewHolder("a"), server).Release()
		synctest.Wait()
		w.expectGone("files")
	})
}

// T1: a timer that fires while the entry goes on does not count, also when the entry
// is draining again by the time it is looked at.
func TestATimerThatFiresLateClosesNothing(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		h := w.pool.NewHolder("a")
		x := want(server, nil)
		w.acquireWith(h, x).Release()
		synctest.Wait()

		w.pool.mu.Lock() // the timer's function will have to wait for this
		time.Sleep(testDrainDelay)
		for _, e := range w.pool.entries {
			w.pool.detachLocked(w.pool.attachLocked(h, e, x))
		}
		w.pool.mu.Unlock()

		synctest.Wait()
		w.expectState("files", Draining, 0)
		sleep(testDrainDelay - time.Nanosecond)
		w.expectState("files", Draining, 0)
		sleep(time.Nanosecond)
		w.expectGone("files")
	})
}

// T2: sessions that come and go and never call do not keep a connection alive.
func TestFlappingSessionsDoNotKeepAConnectionAlive(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		begun := time.Now()
		for w.started() < 2 {
			h := w.pool.NewHolder("flapping")
			w.acquire(h, server)
			sleep(time.Second)
			h.Release()
			sleep(time.Second)
			if time.Since(begun) > 2*testMaxIdle {
				t.Fatal("the connection is as old as two idle limits")
			}
		}
		if lived := time.Since(begun); lived < testMaxIdle || lived > testMaxIdle+3*time.Second {
			t.Errorf("it lived %s, want %s", lived, testMaxIdle)
		}
	})
}

// T2: the limit counts from the last call.
func TestACallPutsTheIdleLimitOff(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		h := w.pool.NewHolder("a")
		a := w.acquire(h, server)
		sleep(testMaxIdle - time.Second)
		w.call(a, "echo")
		a.Release()
		sleep(testDrainDelay - time.Second)
		w.expectState("files", Draining, 0)
		b := w.acquire(h, server)
		if w.started() != 1 {
			t.Error("the connection was closed although it was called")
		}
		b.Release()
	})
}

// T2: a call that takes long is no idleness.
func TestTheIdleLimitCountsFromTheEndOfALongCall(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		out := w.call(a, "sleep:20m")
		sleep(20 * time.Minute)
		if out.got() == "" {
			t.Fatal("the call has no answer")
		}
		a.Release()
		w.expectState("files", Draining, 0)
	})
}

// T2: a session that holds it keeps an idle connection; the next last detach closes
// it without a drain delay.
func TestAnIdleConnectionClosesAtTheLastDetach(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		a, b := w.acquire(w.pool.NewHolder("a"), server), w.acquire(w.pool.NewHolder("b"), server)
		sleep(3 * testMaxIdle)
		w.expectState("files", Active, 2)
		a.Release()
		w.expectState("files", Active, 1)
		b.Release()
		synctest.Wait()
		w.expectGone("files")
	})
}

// T2: what is left of the idle limit shortens the drain delay.
func TestTheIdleLimitShortensTheDrainDelay(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		sleep(testMaxIdle - 10*time.Second)
		a.Release()
		sleep(10*time.Second - time.Nanosecond)
		w.expectState("files", Draining, 0)
		sleep(time.Nanosecond)
		w.expectGone("files")
	})
}

// T2: without an idle limit only the drain delay counts.
func TestWithoutAnIdleLimitSessionsKeepAConnection(t *testing.T) {
	inWorld(t, Config{DrainDelay: testDrainDelay}, func(w *world) {
		server, _ := w.server("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		sleep(24 * time.Hour)
		a.Release()
		w.expectState("files", Draining, 0)
	})
}

// T3: a pool that waits for nothing but its timers has no goroutine of its own but
// those of its links.
func TestTimersKeepNoGoroutine(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.dialErr = errRefused })
		_, _ = w.pool.NewHolder("a").Acquire(context.Background(), want(server, nil))
		w.expectState("files", Failed, 0)
		joined := make(chan struct{})
		go func() {
			w.pool.wg.Wait()
			close(joined)
		}()
		synctest.Wait()
		select {
		case <-joined:
		default:
			t.Error("something runs for an entry that is only kept for show")
		}
	})
}

// A failed entry is shown for a while after the last holder left it, and then gone.
func TestAFailedEntryIsForgotten(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.dialErr = errRefused })
		h := w.pool.NewHolder("a")
		_, _ = h.Acquire(context.Background(), want(server, nil))
		sleep(failedShown - time.Nanosecond)
		w.expectState("files", Failed, 0)
		sleep(time.Nanosecond)
		w.expectGone("files")

		s.set(func(s *script) { s.dialErr = nil })
		a := w.acquire(h, server)
		w.proc().die("exit status 1")
		sleep(2 * failedShown)
		w.expectState("files", Failed, 1) // held
		a.Release()
		sleep(failedShown)
		w.expectGone("files")
	})
}
