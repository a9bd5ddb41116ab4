package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// S1: who asks for what lives already gets it, without another dial.
func TestAcquireAttachesToALiveConnection(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		b := w.acquire(w.pool.NewHolder("b"), server)
		if a.ID() != b.ID() || w.started() != 1 {
			t.Errorf("ids %q and %q, %d processes; want one connection", a.ID(), b.ID(), w.started())
		}
		w.expectState("files", Active, 2)
		if i := w.only("files"); i.Tools != 1 || i.Protocol != "2025-11-25" || i.Sharing != "shared" {
			t.Errorf("the entry shows %+v", i)
		}
	})
}

// S1: a failed entry is evicted and dialled anew; nobody is shown its state.
func TestAcquireDialsAnewInPlaceOfAFailedEntry(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.dialErr = errRefused })
		h := w.pool.NewHolder("a")
		_, err := h.Acquire(context.Background(), want(server, nil))
		expectReason(t, err, fault.StartFailed)
		if !errors.Is(err, errRefused) {
			t.Errorf("the error %v does not name the cause", err)
		}
		w.expectState("files", Failed, 0)
		first := w.only("files")
		if first.LastError == "" {
			t.Error("the failed entry shows no error")
		}

		s.set(func(s *script) { s.dialErr = nil })
		w.acquire(h, server)
		w.expectState("files", Active, 1)
		if i := w.only("files"); i.EntryIndex != first.EntryIndex || i.Generation != first.Generation+1 {
			t.Errorf("the new entry has index %d and generation %d after %d and %d", i.EntryIndex, i.Generation, first.EntryIndex, first.Generation)
		}
	})
}

// S1: a draining pool refuses.
func TestAcquireIsRefusedOnceThePoolDrains(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		w.pool.Drain(context.Background(), false)
		_, err := w.pool.NewHolder("a").Acquire(context.Background(), want(server, nil))
		expectReason(t, err, fault.Draining)
		if len(w.dialled()) > 0 {
			t.Error("it was dialled all the same")
		}
	})
}

// S2, case 37: a stampede is one dial, and one process.
func TestFiftyAcquiresAreOneDial(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.dialDelay, s.initDelay = 2*time.Second, 3*time.Second })
		var all []*pending
		for i := range 50 {
			all = append(all, w.begin(context.Background(), w.pool.NewHolder(fmt.Sprint(i)), want(server, nil)))
		}
		sleep(4 * time.Second)
		w.expectState("files", Spawning, 0)
		sleep(time.Second)
		for i, p := range all {
			if !p.ended() || p.err != nil {
				t.Fatalf("acquire %d: ended %v, %v", i, p.ended(), p.err)
			}
		}
		w.expectState("files", Active, 50)
		if len(w.dialled()) != 1 || w.started() != 1 {
			t.Errorf("%d dials and %d processes, want one", len(w.dialled()), w.started())
		}
	})
}

// S2, case 37: all who wait get the error of the one dial, and nobody dials again.
func TestAllWhoWaitGetTheSameError(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.dialDelay, s.dialErr = time.Second, errRefused })
		var all []*pending
		for i := range 20 {
			all = append(all, w.begin(context.Background(), w.pool.NewHolder(fmt.Sprint(i)), want(server, nil)))
		}
		sleep(time.Second)
		for i, p := range all {
			if !p.ended() || p.err != all[0].err {
				t.Errorf("acquire %d: ended %v with %v, want %v", i, p.ended(), p.err, all[0].err)
			}
		}
		if len(w.dialled()) != 1 {
			t.Errorf("%d dials, want one", len(w.dialled()))
		}
	})
}

// S2: each can give up alone.
func TestOneWaiterGivesUpAlone(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.dialDelay = 10 * time.Second })
		mine := errors.New("I have no time")
		ctx, cancel := context.WithTimeoutCause(context.Background(), time.Second, mine)
		defer cancel()
		hasty := w.begin(ctx, w.pool.NewHolder("hasty"), want(server, nil))
		patient := w.begin(context.Background(), w.pool.NewHolder("patient"), want(server, nil))
		sleep(time.Second)
		if !hasty.ended() || !errors.Is(hasty.err, mine) {
			t.Errorf("hasty: ended %v with %v, want %v", hasty.ended(), hasty.err, mine)
		}
		if patient.ended() {
			t.Fatalf("the patient one ended too: %v", patient.err)
		}
		sleep(9 * time.Second)
		if !patient.ended() || patient.err != nil {
			t.Errorf("patient: ended %v, %v", patient.ended(), patient.err)
		}
		w.expectState("files", Active, 1)
	})
}

// S2, case 6: a dial that nobody waits for any more finishes, and then drains.
func TestADialThatNobodyWaitsForFinishesAndDrains(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.dialDelay = 45 * time.Second })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		p := w.begin(ctx, w.pool.NewHolder("a"), want(server, nil))
		sleep(time.Second)
		if !p.ended() {
			t.Fatal("the acquire goes on")
		}
		sleep(43 * time.Second)
		w.expectState("files", Spawning, 0)
		sleep(time.Second)
		w.expectState("files", Draining, 0)
		sleep(testDrainDelay - time.Second)
		w.expectState("files", Draining, 0)
		sleep(time.Second)
		w.expectGone("files")
		if w.started() != 1 {
			t.Errorf("%d processes, want one", w.started())
		}
	})
}

// S4, P9: a dial that times out names server, time and output, and leaves no process.
func TestADialThatTimesOutLeavesNoProcess(t *testing.T) {
	for _, c := range []struct {
		name string
		with func(s *script)
	}{
		{"before the process starts", func(s *script) { s.dialDelay = time.Hour }},
		{"before initialize is answered", func(s *script) { s.silent = true }},
		{"while a list is read", func(s *script) { s.list = func(string, string) string { return "" } }},
		{"with a process that does not end by itself", func(s *script) { s.silent, s.linger = true, 7*time.Second }},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, defaults, func(w *world) {
				server, s := w.server("slow")
				server.StartTimeout = 20 * time.Second
				s.set(func(s *script) { s.output = []string{"installing"} })
				s.set(c.with)
				p := w.begin(context.Background(), w.pool.NewHolder("a"), want(server, nil))
				sleep(19 * time.Second)
				if p.ended() {
					t.Fatalf("it ended early: %v", p.err)
				}
				sleep(time.Second)
				if !p.ended() {
					t.Fatal("it did not end with its timeout")
				}
				expectReason(t, p.err, fault.StartTimeout)
				f := fault.Of(p.err)
				if f.Server != "slow" || f.Data["elapsedMs"] != int64(20_000) || w.started() > 0 && f.Data["stderr"] == nil {
					t.Errorf("the error says %+v", f)
				}
				if lines := w.pool.Output("slow", 10)[w.only("slow").ID]; w.started() > 0 && !slices.Contains(lines, "installing") {
					t.Errorf("while it ends its output is shown as %q", lines)
				}
				sleep(7 * time.Second)
				if n := w.alive(); n > 0 {
					t.Errorf("%d processes live", n)
				}
				w.expectState("slow", Failed, 0)
			})
		})
	}
}

// P5: a server that ends instead of starting is quoted with its exit status.
func TestAServerThatEndsAtItsStartIsQuoted(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.stillborn, s.output = true, []string{"no such directory: /srv"} })
		_, err := w.pool.NewHolder("a").Acquire(context.Background(), want(server, nil))
		expectReason(t, err, fault.StartFailed)
		const text = `server "files" did not start: it ended after 0s (exit status 3); its last output: no such directory: /srv`
		if err == nil || err.Error() != text {
			t.Errorf("the error is %q, want %q", err, text)
		}
		shown := func(when string) {
			t.Helper()
			lines := w.pool.Output("files", 10)[w.only("files").ID]
			if len(lines) == 0 || lines[0] != "no such directory: /srv" {
				t.Errorf("the output shown %s is %q", when, lines)
			}
		}
		shown("at once")
		synctest.Wait()
		shown("later")
		if i := w.only("files"); i.Exit != "exit status 3" {
			t.Errorf("the entry shows exit %q", i.Exit)
		}
	})
}

// S3: two fingerprints of one name dial at the same time. P9: a slow one does not
// hold up the other.
func TestTwoFingerprintsDialInParallel(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		one, s := w.server("files")
		s.set(func(s *script) { s.dialDelay = 10 * time.Second })
		two := *one
		two.Args = []string{"--other"}
		h := w.pool.NewHolder("a")
		p, q := w.begin(context.Background(), h, want(one, nil)), w.begin(context.Background(), h, want(&two, nil))
		sleep(10 * time.Second)
		if !p.ended() || !q.ended() || p.err != nil || q.err != nil {
			t.Fatalf("ended %v %v, errors %v, %v", p.ended(), q.ended(), p.err, q.err)
		}
		if p.att.ID() == q.att.ID() {
			t.Error("they share a connection")
		}
		all := w.entries("files")
		if len(all) != 2 || all[0].EntryIndex != 0 || all[1].EntryIndex != 1 {
			t.Errorf("entries %+v, want indexes 0 and 1 (S8)", all)
		}
	})
}

// S4: a session released while its dial runs is never attached.
func TestASessionReleasedDuringItsDialIsNotAttached(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		s.set(func(s *script) { s.dialDelay = 5 * time.Second })
		h := w.pool.NewHolder("a")
		p := w.begin(context.Background(), h, want(server, nil))
		sleep(time.Second)
		h.Release()
		synctest.Wait()
		if !p.ended() || !errors.Is(p.err, ErrReleased) {
			t.Fatalf("ended %v with %v, want ErrReleased", p.ended(), p.err)
		}
		sleep(4 * time.Second)
		w.expectState("files", Draining, 0) // S2: the dial went on
		if _, err := h.Acquire(context.Background(), want(server, nil)); !errors.Is(err, ErrReleased) {
			t.Errorf("a later acquire: %v, want ErrReleased", err)
		}
	})
}

// S4: whichever of the release and the dial's end is seen first, the connection
// drains: a waiter that was counted on, and then does not attach, must say so.
func TestAConnectionDrainsWhenItsOnlyWaiterIsReleasedAsTheDialEnds(t *testing.T) {
	for range 50 { // which one a select sees is a matter of chance
		inWorld(t, defaults, func(w *world) {
			server, s := w.server("files")
			s.set(func(s *script) { s.dialDelay = time.Second })
			h := w.pool.NewHolder("a")
			w.onLog = func(line string) {
				if strings.Contains(line, `msg="connection active"`) {
					h.Release()
				}
			}
			w.begin(context.Background(), h, want(server, nil))
			sleep(time.Second)
			w.expectState("files", Draining, 0)
		})
	}
}

// S6: releasing is idempotent, and an old handle does not detach a new one.
func TestReleasingAnOldAttachmentDoesNotDetachTheNewOne(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		h := w.pool.NewHolder("a")
		old := w.acquire(h, server)
		old.Release()
		now := w.acquire(h, server)
		old.Release()
		w.expectState("files", Active, 1)
		if got := w.call(now, "echo").got(); got == "" {
			t.Error("the new attachment does not work")
		}
		now.Release()
		now.Release()
		h.Release()
		h.Release()
		w.expectState("files", Draining, 0)
	})
}

// S6: a released attachment has no connection any more.
func TestAReleasedAttachmentSendsNothing(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		mine, other := w.pool.NewHolder("mine"), w.pool.NewHolder("other")
		w.acquire(other, server)
		a := w.acquire(mine, server)
		a.Release()
		if _, err := call(context.Background(), a, "echo"); !fault.SafeToRetry(err) {
			t.Errorf("the call gave %v, want an error that allows a retry", err)
		}
		w.expectState("files", Active, 1)
	})
}

// S6: releasing a session does not look at the connections of others.
func TestReleasingASessionCostsItsAttachmentsOnly(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		other := w.pool.NewHolder("other")
		for i := range 20 {
			server, _ := w.server(fmt.Sprint("server", i))
			w.acquire(other, server)
		}
		mine := w.pool.NewHolder("mine")
		one, _ := w.server("one")
		two, _ := w.server("two")
		w.acquire(mine, one)
		w.acquire(mine, two)
		if len(mine.atts) != 2 {
			t.Fatalf("the session has %d attachments, want 2", len(mine.atts))
		}
		mine.Release()
		if len(mine.atts) != 0 {
			t.Errorf("%d attachments are left", len(mine.atts))
		}
		w.expectState("one", Draining, 0)
		w.expectState("two", Draining, 0)
		w.expectState("server7", Active, 1)
	})
}

// S7: a session and its sub-agent are two attachments.
func TestEndingOneOfTwoAttachmentsLeavesTheOther(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		parent := w.pool.NewHolder("s")
		a, b := w.acquire(parent, server), w.acquire(parent, server)
		w.expectState("files", Active, 2)
		a.Release()
		w.expectState("files", Active, 1)
		if w.call(b, "echo").got() == "" {
			t.Error("the other does not work")
		}
	})
}

// S8: indexes begin at 0 for each name, only grow, and survive restart; nothing is
// kept for ids that are gone.
func TestEntryIndexesOnlyGrow(t *testing.T) {
	inWorld(t, Config{}, func(w *world) { // closes at the last detach
		base, _ := w.server("files")
		w.server("other")
		h := w.pool.NewHolder("a")
		with := func(arg string) *config.Server {
			s := *base
			s.Args = []string{arg}
			return &s
		}
		index := func(id string) int {
			for _, i := range w.entries("files") {
				if i.ID == id {
					return i.EntryIndex
				}
			}
			t.Fatalf("no entry %s", id)
			return 0
		}
		a, b := w.acquire(h, with("a")), w.acquire(h, with("b"))
		if index(a.ID()) != 0 || index(b.ID()) != 1 {
			t.Errorf("indexes %d and %d, want 0 and 1", index(a.ID()), index(b.ID()))
		}
		w.pool.Restart(context.Background(), "files")
		if index(a.ID()) != 0 || index(b.ID()) != 1 {
			t.Errorf("after a restart the indexes are %d and %d", index(a.ID()), index(b.ID()))
		}
		a.Release()
		c := w.acquire(h, with("c"))
		if index(c.ID()) != 2 {
			t.Errorf("the third has the index %d, want 2", index(c.ID()))
		}
		other := w.acquire(h, &config.Server{Name: "other", Command: "other", Sharing: config.Shared, StartTimeout: time.Minute})
		if i := w.only("other"); i.EntryIndex != 0 || i.ID != other.ID() {
			t.Errorf("the first entry of another name is %+v", i)
		}
		for i := range 100 {
			w.acquire(h, with(fmt.Sprint(i))).Release()
		}
		synctest.Wait()
		w.pool.mu.Lock()
		defer w.pool.mu.Unlock()
		if len(w.pool.entries) != 3 || len(w.pool.next) != 2 || len(w.pool.dying) != 0 {
			t.Errorf("after 100 ids came and went: %d entries, %d counters, %d dying", len(w.pool.entries), len(w.pool.next), len(w.pool.dying))
		}
	})
}
