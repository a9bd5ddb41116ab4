package mux

import (
	"strings"
	"testing"

	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// again is an outlet that may send its call elsewhere.
type again struct {
	slot
	take   bool // whether it does
	failed []*fault.Error
}

func (o *again) Failed(err *fault.Error) bool {
	o.failed = append(o.failed, err)
	return o.take
}

// beginWith makes a call that may be sent again.
func (w *world) beginWith(p Peer, raw string, take bool) (*Call, *again) {
	w.t.Helper()
	f, r := frame(w.t, raw)
	out := &again{take: take}
	c, err := w.m.Begin(p, f, r, out)
	if err != nil {
		w.t.Fatal(err)
	}
	return c, out
}

const calling = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`

func unsent() *fault.Error {
	return &fault.Error{Reason: fault.Interrupted, Message: "not taken", Sent: fault.SentNo}
}

// R2, case 35: a call that the server refuses fails alone, once; its id and its turn
// are free again.
func TestARefusedCallFailsAlone(t *testing.T) {
	w := newWorld(t, Config{Policy: Serialize})
	a, b := &client{}, &client{}
	c, out := w.call(a, `1`)
	second, secondOut := w.call(a, `2`)
	waiting, waitingOut := w.call(b, `1`)
	err := unsent()
	err.Sent = fault.SentMaybe
	w.m.Refuse(c.Message.ID, err)
	if got := failedWith(t, out, `1`, fault.Interrupted); !strings.Contains(got, `"sent":"maybe"`) || !strings.Contains(got, "not taken") {
		t.Error(got)
	}
	pending(t, secondOut)
	if ready(waiting) {
		t.Error("the turn went on while the client has a call in flight")
	}
	w.m.Refuse(second.Message.ID, err)
	if !ready(waiting) {
		t.Error("the turn did not go on")
	}
	pending(t, waitingOut)
	w.wantPosts() // the server is told nothing: it has refused

	// Later news of the call is of no interest.
	for _, id := range []string{ourID(c), `4711`, `"x"`, `null`} {
		w.m.Refuse([]byte(id), err)
	}
	w.result(c)
	failedWith(t, out, `1`, fault.Interrupted)
	if n := w.m.Strays(); n != 5 {
		t.Errorf("%d strays", n)
	}
	w.m.Refuse(waiting.Message.ID, err)
	w.empty()
}

// A call that waits for its turn cannot be refused: the server does not know it.
func TestAWaitingCallIsNotRefused(t *testing.T) {
	w := newWorld(t, Config{Policy: Serialize})
	w.call(&client{}, `1`)
	waiting, out := w.call(&client{}, `1`)
	w.m.Refuse(waiting.Message.ID, unsent())
	pending(t, out)
	if w.m.Strays() != 1 || w.m.InFlight() != 2 {
		t.Errorf("%d strays, %d in flight", w.m.Strays(), w.m.InFlight())
	}
}

// R5: an outlet that has its call sent elsewhere gets no answer of this connection;
// one that does not gets the error. Either hears of it once.
func TestACallMayGoOnElsewhere(t *testing.T) {
	for _, take := range []bool{true, false} {
		w := newWorld(t, Config{Server: "files"})
		a := &client{}
		c, out := w.beginWith(a, calling, take)
		w.m.Refuse(c.Message.ID, unsent())
		w.m.Refuse(c.Message.ID, unsent())
		w.m.Lose(fault.New(fault.Interrupted, "gone"))
		w.m.Leave(a, fault.New(fault.Interrupted, "left"))
		if len(out.failed) != 1 || out.failed[0].Sent != fault.SentNo {
			t.Errorf("told of %v", out.failed)
		}
		if take {
			equal(t, "answers", out.dones)
		} else {
			failedWith(t, &out.slot, `1`, fault.Interrupted)
		}
		w.empty()
	}
}

// R2, R5: the loss of a connection says of each call whether it may have been sent.
func TestALossSaysWhetherACallMayGoOnElsewhere(t *testing.T) {
	w := newWorld(t, Config{})
	_, out := w.beginWith(&client{}, calling, true)
	w.m.Lose(fault.New(fault.Interrupted, "gone"))
	if len(out.failed) != 1 || out.failed[0].Sent != fault.SentNo || out.failed[0].Reason != fault.Interrupted {
		t.Errorf("told of %v", out.failed)
	}
	equal(t, "answers", out.dones)
}

// M2: what the client itself ended is not sent again.
func TestACancelledCallDoesNotGoOnElsewhere(t *testing.T) {
	w := newWorld(t, Config{})
	c, out := w.beginWith(&client{}, calling, true)
	c.Cancel(wire.Frame{}, wire.Span{})
	w.m.Refuse(c.Message.ID, unsent())
	if len(out.failed) != 0 {
		t.Errorf("told of %v", out.failed)
	}
	silentEnd(t, &out.slot)

	c, out = w.beginWith(&client{}, calling, true)
	c.Fail(fault.New(fault.CallTimeout, "too long"))
	w.m.Refuse(c.Message.ID, unsent())
	if len(out.failed) != 0 {
		t.Errorf("told of %v", out.failed)
	}
	failedWith(t, &out.slot, `1`, fault.CallTimeout)
}

// R5, M4: a subscription that the server did not get may go on elsewhere for each of
// those who wait for it.
func TestARefusedSubscriptionIsUpToEachSubscriber(t *testing.T) {
	w := newWorld(t, Config{})
	c, first := w.beginWith(&client{}, subscribing(`"u"`), true)
	_, second := w.beginWith(&client{}, subscribing(`"u"`), false)
	_, plain := w.begin(&client{}, subscribing(`"u"`))
	w.m.Refuse(c.Message.ID, unsent())
	if len(first.failed) != 1 || len(second.failed) != 1 {
		t.Errorf("told of %v and %v", first.failed, second.failed)
	}
	equal(t, "answers", first.dones)
	failedWith(t, &second.slot, `1`, fault.Interrupted)
	failedWith(t, plain, `1`, fault.Interrupted)
	w.empty()

	// The next one asks the server again.
	if c, _ := w.begin(&client{}, subscribing(`"u"`)); c == nil {
		t.Error("the server is taken to know of the subscription")
	}
}

// M5: a level that the server refused is not known to it.
func TestARefusedLevelIsUnknown(t *testing.T) {
	w := newWorld(t, Config{})
	a := &client{}
	c, _ := w.begin(a, levelling("info"))
	w.m.Refuse(c.Message.ID, unsent())
	w.setLevel(a, "info", "info")
}
