package mux

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// M6, serialize: one client's calls run at a time, the others wait first in first out.
func TestTurnsAreFirstInFirstOut(t *testing.T) {
	w := newWorld(t, Config{Policy: Serialize})
	var calls []*Call
	for i := range 5 {
		c, _ := w.call(&client{name: fmt.Sprint(i)}, `1`)
		calls = append(calls, c)
	}
	if w.m.InFlight() != 5 {
		t.Errorf("%d in flight, want 5", w.m.InFlight())
	}
	for i, c := range calls {
		for j := range calls {
			if got := ready(calls[j]); got != (j == i) {
				t.Errorf("in turn %d call %d is ready: %v", i, j, got)
			}
		}
		w.result(c)
	}
	w.empty()
}

// M6: a client that has the turn may make more calls; the turn ends with the last.
// Making them wait would be a deadlock if a request of the server needs them.
func TestATurnIsForAllCallsOfAClient(t *testing.T) {
	w := newWorld(t, Config{Policy: Serialize})
	a, b := &client{}, &client{}
	a1, _ := w.call(a, `1`)
	b1, _ := w.call(b, `1`)
	a2, _ := w.call(a, `2`)
	if !ready(a2) || ready(b1) {
		t.Error("the second call of the client that has the turn waits")
	}
	w.result(a1)
	if ready(b1) {
		t.Error("two clients are live at once")
	}
	w.result(a2)
	if !ready(b1) {
		t.Error("the waiting client was not woken")
	}
}

// M6: neighbours in the queue of one client start together.
func TestATurnBeginsForAllCallsThatWaitInARow(t *testing.T) {
	w := newWorld(t, Config{Policy: Serialize})
	a, b := &client{}, &client{}
	a1, _ := w.call(a, `1`)
	b1, _ := w.call(b, `1`)
	b2, _ := w.call(b, `2`)
	c1, _ := w.call(&client{}, `1`)
	b3, _ := w.call(b, `3`)
	w.result(a1)
	if !ready(b1) || !ready(b2) || ready(c1) || ready(b3) {
		t.Errorf("ready: %v %v %v %v", ready(b1), ready(b2), ready(c1), ready(b3))
	}
}

// M2: a call that waits for its turn ends without a word to the server.
func TestAWaitingCallEndsQuietly(t *testing.T) {
	for name, end := range map[string]func(*world, *client, *Call){
		"cancel": func(_ *world, _ *client, c *Call) { c.Cancel(wire.Frame{}, wire.Span{}) },
		"fail":   func(_ *world, _ *client, c *Call) { c.Fail(fault.New(fault.CallTimeout, "too slow")) },
		"leave":  func(w *world, p *client, _ *Call) { w.m.Leave(p, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{Policy: Serialize})
			first, _ := w.call(&client{}, `1`)
			p := &client{}
			c, out := w.call(p, `1`)
			last, _ := w.call(&client{}, `1`)
			end(w, p, c)
			<-c.Ready() // whoever waits to send it is released
			if admitted(c) {
				t.Error("it may be sent")
			}
			w.wantPosts()
			if len(out.dones) != 1 {
				t.Errorf("answers %q", out.dones)
			}
			if ready(last) {
				t.Error("it gave a turn away that it did not have")
			}
			w.result(first)
			if !ready(last) {
				t.Error("the next one was not woken")
			}
		})
	}
}

// M6: whatever ends the client that has the turn wakes the next one.
func TestTheTurnGoesOnHoweverACallEnds(t *testing.T) {
	for name, end := range map[string]func(*world, *client, *Call){
		"result": func(w *world, _ *client, c *Call) { w.result(c) },
		"error": func(w *world, _ *client, c *Call) {
			w.receive(`{"jsonrpc":"2.0","id":%d,"error":{"code":1,"message":""}}`, c.id)
		},
		"cancel":   func(_ *world, _ *client, c *Call) { c.Cancel(wire.Frame{}, wire.Span{}) },
		"fail":     func(_ *world, _ *client, c *Call) { c.Fail(fault.New(fault.CallTimeout, "too slow")) },
		"leave":    func(w *world, p *client, _ *Call) { w.m.Leave(p, nil) },
		"oversize": func(w *world, _ *client, c *Call) { w.m.Oversize(fmt.Append(nil, c.id), wire.Response, 2, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{Policy: Serialize})
			p := &client{}
			c, _ := w.call(p, `1`)
			next, _ := w.call(&client{}, `1`)
			end(w, p, c)
			if !ready(next) {
				t.Error("the next one was not woken")
			}
		})
	}
}

// M2: the waiting calls of a client that leaves never get the turn that its live ones
// give up, so the server hears only of what it was sent.
func TestLeavingWithLiveAndWaitingCalls(t *testing.T) {
	w := newWorld(t, Config{Policy: Serialize})
	a, b := &client{}, &client{}
	first, _ := w.call(b, `1`)
	a1, _ := w.call(a, `1`)
	b2, _ := w.call(b, `2`) // past the queue: b has the turn
	a2, _ := w.call(a, `2`)
	w.result(first)
	w.result(b2)
	b3, _ := w.call(b, `3`)
	a3, _ := w.call(a, `3`)
	if !ready(a1) || !ready(a2) || !ready(a3) || ready(b3) {
		t.Fatal("the turns are not what this test needs")
	}
	// Now a has the turn, and b waits; let a wait behind b, too.
	w.m.Leave(a, nil)
	if !ready(b3) {
		t.Error("the waiting client was not woken")
	}
	got := w.posted()
	slices.Sort(got)
	equal(t, "posts", got, cancelOf(a1, "the client left"), cancelOf(a2, "the client left"), cancelOf(a3, "the client left"))

	a4, _ := w.call(a, `4`)
	a5, _ := w.call(a, `5`)
	w.m.Leave(a, nil)
	w.wantPosts()
	for _, c := range []*Call{a4, a5} {
		<-c.Ready()
		if admitted(c) {
			t.Error("a call of a client that left may be sent")
		}
	}
}

// M1: the server cannot answer what it was not sent.
func TestAnswerForAWaitingCallIsDropped(t *testing.T) {
	w := newWorld(t, Config{Policy: Serialize})
	w.call(&client{}, `1`)
	c, out := w.begin(&client{}, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`)
	w.result(c)
	w.receive(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d}}`, c.id)
	w.m.Oversize(fmt.Append(nil, c.id), wire.Response, 2, 1)
	pending(t, out)
	equal(t, "notes", out.notes)
	if w.m.Strays() != 3 || ready(c) {
		t.Errorf("%d strays, ready %v", w.m.Strays(), ready(c))
	}
}

// M6: when turns begin in the middle, those in flight are let finish, and newcomers wait
// until only one client is left.
func TestTurnsThatBeginInTheMiddle(t *testing.T) {
	w := newWorld(t, Config{})
	a, b, c := &client{}, &client{}, &client{}
	a1, _ := w.call(a, `1`)
	b1, _ := w.call(b, `1`)
	w.receive("%s", eliciting(`1`))
	a2, _ := w.call(a, `2`)
	c1, _ := w.call(c, `1`)
	if ready(a2) || ready(c1) {
		t.Error("a newcomer joined two that are live")
	}
	w.result(b1)
	if !ready(a2) || ready(c1) {
		t.Error("the client that is alone cannot go on")
	}
	w.result(a1)
	w.result(a2)
	if !ready(c1) {
		t.Error("the last one was not woken")
	}
}

// M6: many clients at once: never two live, nobody waits for ever.
func TestNoWakeUpIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Policy: Serialize})
		var mu sync.Mutex
		live := map[*client]int{}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				p := &client{name: fmt.Sprint(i)}
				for k := range 20 {
					c, out := w.call(p, `1`)
					if r := c.Ready(); r != nil {
						select {
						case <-r:
						case <-time.After(time.Duration(1+(i+k)%7) * time.Second):
							c.Cancel(wire.Frame{}, wire.Span{})
						}
					}
					if admitted(c) {
						mu.Lock()
						live[p]++
						if len(live) != 1 {
							t.Errorf("%d clients are live at once", len(live))
						}
						mu.Unlock()
						time.Sleep(time.Second)
						mu.Lock()
						delete(live, p)
						mu.Unlock()
						w.result(c)
					}
					if len(out.dones) != 1 {
						t.Errorf("answers %q", out.dones)
					}
				}
			})
		}
		wg.Wait()
		w.empty()
	})
}
