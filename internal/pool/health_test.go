package pool

import (
	"context"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// R1: an idle server that has stopped answering is found and replaced, though its
// process lives and nobody calls.
func TestAFrozenServerIsFound(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, _ := w.lasting("files")
		e := &ear{}
		a := w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		sleep(10 * time.Minute)
		first := w.proc()
		first.frozen.Store(true)
		begun := time.Now()
		for !first.dead() && time.Since(begun) < time.Hour {
			sleep(time.Second)
		}
		// The last answer may have come just before, and two questions have to be missed.
		if took := time.Since(begun); took < 35*time.Second || took > 3*35*time.Second {
			t.Errorf("it was found after %s", took)
		}
		sleep(10 * time.Second)
		e.expect(t, "renewed")
		if w.call(a, "echo").got() == "" {
			t.Error("the attachment does not work")
		}
	})
}

// R1, T2: a healthy server is asked once in an interval in which it says nothing, and
// that is no use of it: with nobody attached it closes as without.
func TestHealthIsNoUse(t *testing.T) {
	c := guarded
	c.DrainDelay = time.Hour
	inWorld(t, c, func(w *world) {
		server, _ := w.lasting("files")
		h := w.pool.NewHolder("a")
		a := w.acquire(h, server)
		called := a.entry.conn.Load().mux.LastCall()
		sleep(4 * time.Minute)
		n := w.asked(wire.Ping)
		if n < 3 || n > 8 {
			t.Errorf("it was asked %d times in four minutes", n)
		}
		if got := a.entry.conn.Load().mux.LastCall(); !got.Equal(called) {
			t.Error("a question counts as a call")
		}
		h.Release()
		sleep(time.Minute)
		w.expectGone("files")
	})
}

// R1: a server that speaks is not asked.
func TestWhoSpeaksIsNotAsked(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, _ := w.lasting("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		for range 30 {
			w.call(a, "echo")
			sleep(20 * time.Second)
		}
		if n := w.asked(wire.Ping); n > 0 {
			t.Errorf("it was asked %d times", n)
		}
	})
}

// R1: a server that answers nothing while it works on a call is not taken for dead, nor
// one that a call has reached just after the question; once the call is over it is
// watched again.
func TestABusyServerIsNotTakenForDead(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, s := w.lasting("files")
		server.Health.Misses = 1
		e := &ear{}
		a := w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		s.set(func(s *script) { s.ignores = []string{wire.Ping, wire.ToolsList} })
		before := w.asked(wire.Ping)
		out := w.call(a, "sleep:1h")
		sleep(time.Hour)
		if w.asked(wire.Ping) != before || len(out) != 1 {
			t.Errorf("it was asked %d times", w.asked(wire.Ping))
		}
		for range 20 { // a call beside every question, which ends after that
			asked := w.asked(wire.Ping) + w.asked(wire.ToolsList)
			for w.asked(wire.Ping)+w.asked(wire.ToolsList) == asked {
				sleep(100 * time.Millisecond)
			}
			out := w.call(a, "sleep:8s")
			sleep(8 * time.Second)
			if out.got() == "" {
				t.Fatal("the server is gone")
			}
		}
		if w.started() != 1 {
			t.Fatalf("%d processes were started", w.started())
		}
		e.expect(t)
		sleep(2 * time.Minute)
		if w.started() == 1 {
			t.Error("it is not watched any more")
		}
	})
}

// R1: any answer is a sign of life; a server that never answers ping is asked for
// something else, and one that stops answering it is not.
func TestAnyAnswerIsASignOfLife(t *testing.T) {
	for _, c := range []struct {
		name   string
		script func(s *script)
		lives  bool
	}{
		{"it does not know ping", func(s *script) { s.refuses = []string{wire.Ping} }, true},
		{"it ignores ping", func(s *script) { s.ignores = []string{wire.Ping} }, true},
		{"it refuses to list", func(s *script) { s.ignores, s.refuses = []string{wire.Ping}, []string{wire.ToolsList} }, true},
		{"it has no list and ignores ping", func(s *script) { s.ignores, s.caps = []string{wire.Ping}, "{}" }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, guarded, func(w *world) {
				server, s := w.lasting("files")
				s.set(c.script)
				w.acquire(w.pool.NewHolder("a"), server)
				sleep(20 * time.Minute)
				if lives := w.started() == 1; lives != c.lives {
					t.Errorf("%d processes were started", w.started())
				}
			})
		})
	}
}

// R1: a remote server that refuses a question lives, whatever it says of it; one that
// cannot be reached does not.
func TestAnHTTPStatusIsASignOfLife(t *testing.T) {
	for _, x := range []struct {
		err   error
		lives bool
	}{
		{&upstream.StatusError{Status: 400}, true},
		{&upstream.StatusError{Status: 503}, true},
		{&upstream.AuthError{Status: &upstream.StatusError{Status: 401}}, true},
		{errRefused, false},
		{context.DeadlineExceeded, false},
	} {
		told := &fault.Error{Reason: fault.Interrupted, Message: "no answer", Err: x.err} // as a call is told
		if refused(told) != x.lives {
			t.Errorf("%v: lives is %t", x.err, !x.lives)
		}
	}
}

// R1: without an interval nobody asks; the limits are the server's.
func TestHealthCanBeSetForAServer(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, _ := w.lasting("files")
		server.Health.Interval = 0
		quick, _ := w.lasting("quick")
		quick.Health = config.Health{Interval: time.Second, Timeout: time.Second, Misses: 1}
		w.acquire(w.pool.NewHolder("a"), server)
		w.proc().frozen.Store(true)
		e := &ear{}
		w.acquireWith(w.pool.NewHolder("a"), want(quick, e))
		w.proc().frozen.Store(true)
		sleep(10 * time.Second)
		e.expect(t, "renewed")
		sleep(time.Hour)
		if i := w.only("files"); i.Generation != 1 {
			t.Error("a server without an interval is watched")
		}
	})
}

// R2: a call that meets a server that has just been taken for dead is interrupted like
// any other, and its error says why.
func TestACallIsToldThatTheServerWasTakenForDead(t *testing.T) {
	inWorld(t, guarded, func(w *world) {
		server, _ := w.lasting("files")
		server.Health.Misses = 1
		server.Recovery.Attempts = 0
		e := &ear{}
		w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		w.proc().frozen.Store(true)
		sleep(time.Minute + 10*time.Second)
		e.expect(t, "lost: "+string(fault.Interrupted))
		if i := w.only("files"); i.State != Failed {
			t.Errorf("the entry is %+v", i)
		}
	})
}
