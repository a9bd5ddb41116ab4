package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/wire"
)

// R1, R2, case 35: when the server dies every call in flight of every session gets
// an error at once, which says that the call may have been executed; then the
// listeners are told, while they are still attached. Nothing is sent again (R5).
func TestLossEndsEveryCallAndTellsEverySession(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(p *proc, a *Attachment)
	}{
		{"the process exits", func(p *proc, _ *Attachment) { p.die("signal: killed") }},
		{"the output ends and the process lives on", func(p *proc, _ *Attachment) { p.out.Close() }},
		{"the input breaks", func(p *proc, a *Attachment) { // which is seen when something is written
			p.in.CloseWithError(errors.New("broken pipe"))
			_ = a.Note(context.Background(), wire.NewNotification("notifications/x", nil))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, defaults, func(w *world) {
				server, _ := w.server("files")
				var calls []answer
				var ears []*ear
				var last *Attachment
				for i := range 5 {
					e := &ear{}
					e.on = func(string) {
						for _, out := range calls {
							if len(out) == 0 {
								t.Error("a listener is told before a call has its error")
							}
						}
						if i := w.only("files"); i.Refs != 5 {
							t.Errorf("a listener is told when %d sessions are attached, want 5", i.Refs)
						}
					}
					ears = append(ears, e)
					a := w.acquireWith(w.pool.NewHolder(fmt.Sprint(i)), want(server, e))
					calls, last = append(calls, w.call(a, "hang"), w.call(a, "hang")), a
				}
				if i := w.only("files"); i.InFlight != 10 {
					t.Errorf("%d calls in flight are shown, want 10", i.InFlight)
				}
				c.end(w.proc(), last)
				sleep(time.Second)
				for i, out := range calls {
					answer := out.got()
					if answer == "" {
						t.Fatalf("call %d hangs", i)
					}
					reason, sent, data := reasonOf(t, answer)
					if reason != fault.Interrupted || sent != fault.SentMaybe || data["server"] != "files" || data["generation"] != 1.0 {
						t.Errorf("call %d got %s", i, answer)
					}
				}
				for _, e := range ears {
					e.expect(t, "lost: interrupted")
				}
				if i := w.only("files"); i.State != Failed || i.LastError == "" {
					t.Errorf("the entry is %+v", i)
				}
				sleep(10 * time.Second)
				if n := w.alive(); n > 0 {
					t.Errorf("%d processes live", n)
				}
				if n := w.asked(wire.ToolsCall); n > 10 {
					t.Errorf("the server saw %d calls, want 10", n)
				}
			})
		})
	}
}

// R1: what the server wrote before it died is delivered first.
func TestAnAnswerWrittenBeforeTheLossCounts(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		a := w.acquire(w.pool.NewHolder("a"), server)
		out := w.call(a, "hang")
		p := w.proc()
		p.say(`{"jsonrpc":"2.0","id":3,"result":{"late":true}}`) // after initialize and tools/list
		synctest.Wait()
		p.die("exit status 0")
		synctest.Wait()
		if got := out.got(); got != `{"jsonrpc":"2.0","id":"mine","result":{"late":true}}` {
			t.Errorf("the call got %q", got)
		}
	})
}

// S1, R2, case 4: attachments of a failed entry stay; whoever calls next is told to
// attach anew, and all who do so share one dial.
func TestAfterALossTheNextCallDialsAnewOnce(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		var holders []*Holder
		var atts []*Attachment
		for i := range 10 {
			h := w.pool.NewHolder(fmt.Sprint(i))
			holders, atts = append(holders, h), append(atts, w.acquire(h, server))
		}
		w.proc().die("exit status 1")
		synctest.Wait()
		w.expectState("files", Failed, 10)
		s.set(func(s *script) { s.dialDelay = time.Second })
		var again []*pending
		for i, a := range atts {
			_, err := call(context.Background(), a, "echo")
			if !fault.SafeToRetry(err) || !fault.Is(err, fault.Interrupted) {
				t.Fatalf("a call on the lost connection gave %v", err)
			}
			a.Release()
			again = append(again, w.begin(context.Background(), holders[i], want(server, nil)))
		}
		sleep(time.Second)
		for _, p := range again {
			if !p.ended() || p.err != nil {
				t.Fatalf("ended %v, %v", p.ended(), p.err)
			}
			if w.call(p.att, "echo").got() == "" {
				t.Error("the new attachment does not work")
			}
		}
		w.expectState("files", Active, 10)
		if w.started() != 2 {
			t.Errorf("%d processes, want 2", w.started())
		}
		if i := w.only("files"); i.Generation != 2 {
			t.Errorf("the generation is %d, want 2", i.Generation)
		}
	})
}

// A hook is an outlet that does something when the answer comes.
type hook func()

func (hook) Note(mux.Pieces)   {}
func (f hook) Done(mux.Pieces) { f() }

// S1: who has got an error from a loss and asks again does not get the same
// connection once more, however soon it asks.
func TestWhoSawTheLossGetsANewConnection(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		h := w.pool.NewHolder("a")
		a := w.acquire(h, server)
		var again *Attachment
		out := hook(func() { again = w.acquire(h, server) })
		f, r := toolCall("hang")
		if _, err := a.Do(context.Background(), &client{}, f, r, out); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.proc().die("signal: killed")
		synctest.Wait()
		if again == nil || w.started() != 2 {
			t.Fatalf("%d processes were started, want 2", w.started())
		}
		if w.call(again, "echo").got() == "" {
			t.Error("the new attachment does not work")
		}
	})
}

// S6: the release of an attachment to a lost connection does not touch its successor.
func TestReleasingALostAttachmentLeavesTheSuccessor(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		h := w.pool.NewHolder("a")
		old := w.acquire(h, server)
		w.proc().die("exit status 1")
		synctest.Wait()
		w.acquire(h, server)
		old.Release()
		w.expectState("files", Active, 1)
		h.Release()
		w.expectState("files", Draining, 0)
	})
}

// A server that ends as soon as it has started is an error for those who waited, not
// a reason to try for ever.
func TestALossRightAfterTheStartIsNoLoop(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		w.onLog = func(string) { w.proc().die("exit status 1") }
		p := w.begin(context.Background(), w.pool.NewHolder("a"), want(server, nil))
		sleep(time.Second)
		if !p.ended() {
			t.Fatal("the acquire hangs")
		}
		if w.started() > 1 {
			t.Errorf("%d processes were started", w.started())
		}
		w.onLog = nil
	})
}

// R1: a loss between the end of a dial and the moment when the entry takes it is not
// missed, whichever of the two is looked at first.
func TestALossAsTheDialEndsIsNotMissed(t *testing.T) {
	for range 200 { // the order is a matter of chance
		inWorld(t, defaults, func(w *world) {
			server, s := w.server("files")
			s.set(func(s *script) { s.list = func(string, string) string { return "" } })
			p := w.begin(context.Background(), w.pool.NewHolder("a"), want(server, nil))
			synctest.Wait()
			if _, err := io.WriteString(w.proc().out, `{"jsonrpc":"2.0","id":2,"result":`+toolsResult("echo")+"}\n"); err != nil {
				t.Fatal(err)
			}
			w.proc().die("exit status 1")
			synctest.Wait()
			if i := w.only("files"); i.State != Failed {
				t.Fatalf("its process is dead and the entry is %s", i.State)
			}
			if !p.ended() {
				t.Error("the acquire goes on")
			}
			if w.started() > 1 {
				t.Errorf("%d processes were started: it would be tried for ever", w.started())
			}
		})
	}
}

// R8: a dial that ends after its entry was given up is closed, and changes nothing.
func TestADialThatEndsLateIsClosed(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.own("browser")
		s.set(func(s *script) { s.dialDelay, s.deaf = 10*time.Second, true })
		h := w.pool.NewHolder("a")
		p := w.begin(context.Background(), h, want(server, nil))
		sleep(time.Second)
		h.Release()
		synctest.Wait()
		if !p.ended() || !errors.Is(p.err, ErrReleased) {
			t.Fatalf("ended %v, %v", p.ended(), p.err)
		}
		w.expectGone("browser")
		sleep(10 * time.Second)
		w.expectGone("browser")
		if w.started() != 1 {
			t.Errorf("%d processes were started, want the late one", w.started())
		}
	})
}

// Closed and failed absorb: whatever comes late for such an entry changes nothing.
func TestTerminalStatesAbsorb(t *testing.T) {
	for _, final := range []State{Failed, Closed} {
		t.Run(string(final), func(t *testing.T) {
			inWorld(t, defaults, func(w *world) {
				server, _ := w.server("files")
				h := w.pool.NewHolder("a")
				x := want(server, nil)
				a := w.acquireWith(h, x)
				e, c := a.entry, a.entry.conn.Load()
				if final == Failed {
					w.proc().die("exit status 1")
				} else {
					w.pool.mu.Lock()
					w.pool.closeLocked(e, errUnused)
					w.pool.mu.Unlock()
				}
				sleep(10 * time.Second)
				expect := func(after string) {
					t.Helper()
					w.pool.mu.Lock()
					defer w.pool.mu.Unlock()
					if e.state != final || e.conn.Load() != nil {
						t.Errorf("after %s the state is %s", after, e.state)
					}
				}
				expect("the end")
				w.pool.lost(e, c)
				expect("another loss")
				if w.pool.dialEnded(e, e.generation, nil, errRefused) {
					t.Error("a late dial is taken")
				}
				expect("a late dial")
				w.pool.listChanged(e, c, Tools)
				expect("a late change")
				a.Release()
				expect("a release")
				sleep(2 * failedShown)
				expect("all timers")
				w.pool.mu.Lock()
				defer w.pool.mu.Unlock()
				defer func() {
					if recover() == nil {
						t.Error("a terminal entry can be given another state")
					}
				}()
				w.pool.setLocked(e, Active)
			})
		})
	}
}

// R8: what a connection reports after its entry has gone on to another generation is
// discarded: its loss, its changes, and the end of its dial.
func TestAnOlderGenerationChangesNothing(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		e := &ear{}
		a := w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		old := a.entry.conn.Load()
		w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		e.expect(t, "renewed")
		w.pool.lost(a.entry, old)
		w.pool.listChanged(a.entry, old, Tools)
		if w.pool.dialEnded(a.entry, 1, nil, errRefused) {
			t.Error("an old dial is taken")
		}
		synctest.Wait()
		e.expect(t, "renewed")
		w.expectState("files", Active, 1)
		if w.call(a, "echo").got() == "" {
			t.Error("the attachment does not work")
		}
		s.set(func(s *script) { s.linger = time.Second })
		go w.pool.Restart(context.Background(), "files")
		synctest.Wait()
		w.pool.resume(a.entry, 2) // the old process still ends
		synctest.Wait()
		if n := len(w.dialled()); n != 2 {
			t.Errorf("%d dials: an attempt began before its time", n)
		}
		sleep(time.Second)
		w.expectState("files", Active, 1)
	})
}

// The events of one connection come in their order, however slow a listener is, and
// a slow one holds up nobody else.
func TestEventsComeInOrder(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		e := &ear{}
		e.on = func(string) { time.Sleep(time.Minute) }
		w.acquireWith(w.pool.NewHolder("a"), want(server, e))
		s.set(func(s *script) { s.tools = []string{"other"} })
		w.pool.Restart(context.Background(), "files")
		w.proc().die("exit status 1")
		begun := time.Now()
		other, _ := w.server("other")
		w.acquire(w.pool.NewHolder("b"), other)
		if time.Since(begun) > 0 {
			t.Error("another server waits for the slow listener")
		}
		sleep(4 * time.Minute)
		e.expect(t, "renewed", "tools changed", "lost: interrupted")
		e.on = nil
	})
}
