package pool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/fault"
)

// U1: a session's own connection closes when the session detaches, without delay.
func TestASessionsOwnConnectionEndsWithIt(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.own("browser")
		server.ExcludeTools = []string{"danger"}
		h := w.pool.NewHolder("a")
		a := w.acquire(h, server)
		if i := w.only("browser"); i.Sharing != "session" || i.Refs != 1 || i.Tools != 1 {
			t.Errorf("the entry is %+v", i)
		}
		if a.Allows("danger") || !a.Allows("echo") || len(w.tools(a)) != 1 {
			t.Error("its filter does not work")
		}
		h.Release()
		synctest.Wait()
		w.expectGone("browser")
	})
}

// U2: it is known before it dials, and the end of its session cancels the dial.
func TestTheEndOfASessionCancelsItsOwnDial(t *testing.T) {
	for _, c := range []struct {
		name string
		with func(s *script)
	}{
		{"before the process starts", func(s *script) { s.dialDelay = 50 * time.Second }},
		{"during the handshake", func(s *script) { s.silent = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, defaults, func(w *world) {
				server, s := w.own("browser")
				s.set(c.with)
				h := w.pool.NewHolder("a")
				p := w.begin(context.Background(), h, want(server, nil))
				sleep(time.Second)
				w.expectState("browser", Spawning, 0)
				h.Release()
				synctest.Wait()
				if !p.ended() || !errors.Is(p.err, ErrReleased) {
					t.Errorf("ended %v with %v, want ErrReleased", p.ended(), p.err)
				}
				w.expectGone("browser")
			})
		})
	}
}

// U2: so does the caller that gives up, for nobody else can want the connection.
func TestACallerThatGivesUpCancelsItsOwnDial(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.own("browser")
		s.set(func(s *script) { s.silent = true })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		p := w.begin(ctx, w.pool.NewHolder("a"), want(server, nil))
		sleep(time.Second)
		if !p.ended() || !errors.Is(p.err, context.DeadlineExceeded) {
			t.Errorf("ended %v with %v", p.ended(), p.err)
		}
		w.expectGone("browser")
	})
}

// U1: a session that asks twice has two connections, as it has two attachments (S7).
func TestTwoAcquiresOfASessionAreTwoConnections(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.own("browser")
		h := w.pool.NewHolder("a")
		a, b := w.acquire(h, server), w.acquire(h, server)
		a.Release()
		synctest.Wait()
		if i := w.only("browser"); i.ID != b.ID() || i.Refs != 1 {
			t.Errorf("left is %+v, want %s", i, b.ID())
		}
		if w.call(b, "echo").got() == "" {
			t.Error("the other one does not work")
		}
	})
}

// U1: what failed is not kept once the session has let go of it: a session's own
// entry has an id that nobody asks for again.
func TestAFailedConnectionOfASessionIsNotKept(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.own("browser")
		h := w.pool.NewHolder("a")
		s.set(func(s *script) { s.dialErr = errRefused })
		_, err := h.Acquire(context.Background(), want(server, nil))
		expectReason(t, err, fault.StartFailed)
		w.expectGone("browser")

		s.set(func(s *script) { s.dialErr = nil })
		e := &ear{}
		a := w.acquireWith(h, want(server, e))
		w.proc().die("exit status 1")
		synctest.Wait()
		e.expect(t, "lost: interrupted")
		w.expectState("browser", Failed, 1)
		if r := w.pool.Restart(context.Background(), "browser"); len(r) != 1 || r[0].OK {
			t.Errorf("a restart of it says %+v", r)
		}
		a.Release()
		w.expectGone("browser")
		if b := w.acquire(h, server); w.call(b, "echo").got() == "" {
			t.Error("the next one does not work")
		}
	})
}
