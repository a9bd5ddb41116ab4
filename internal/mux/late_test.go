package mux

import (
	"testing"

	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// Between Begin and Send of a call anything may happen, and between a decision under the
// lock and its post, too.

// hold begins a call that is not given to the server yet.
func (w *world) hold(p Peer, raw string) (*Call, *slot) {
	w.t.Helper()
	f, r := frame(w.t, raw)
	out := &slot{}
	c, err := w.m.Begin(p, f, r, out)
	if err != nil || c == nil {
		w.t.Fatalf("begin %s: %v, %v", raw, c, err)
	}
	return c, out
}

// give sends a call and reports whether that happened; during comes while it is sent.
func (w *world) give(c *Call, during func()) (sent bool) {
	w.t.Helper()
	if err := c.Send(func(*upstream.Message) error {
		sent = true
		during()
		return nil
	}); err != nil {
		w.t.Error(err)
	}
	return sent
}

func meanwhileNothing() {}

// M5: the level of a client that leaves while it is on its way comes to the server after
// the one that is due without that client, which therefore is told again.
func TestALevelThatComesAfterItsClientLeftIsCorrected(t *testing.T) {
	w := newWorld(t, Config{})
	w.setLevel(&client{}, "error", "error")
	leaving := &client{}
	late, out := w.hold(leaving, levelling("debug"))
	w.m.Leave(leaving, fault.New(fault.UnknownSession, "it left"))
	failedWith(t, out, `1`, fault.UnknownSession)
	w.wantPosts(`{"jsonrpc":"2.0","id":3,"method":"logging/setLevel","params":{"level":"error"}}`)
	w.receive(`{"jsonrpc":"2.0","id":3,"result":{}}`)
	if !w.give(late, meanwhileNothing) {
		t.Fatal("what counts for all was not sent")
	}
	w.result(late)
	w.wantPosts(`{"jsonrpc":"2.0","id":4,"method":"logging/setLevel","params":{"level":"error"}}`)
	w.receive(`{"jsonrpc":"2.0","id":4,"result":{}}`)
	w.wantPosts()
	if n := w.m.InFlight(); n != 0 {
		t.Errorf("%d calls are in flight", n)
	}
}

// M4: the unsubscription of a client that leaves while it is on its way comes to the server
// after another client's subscription, which is repeated.
func TestAnUnsubscriptionThatComesAfterItsClientLeftIsCorrected(t *testing.T) {
	w := newWorld(t, Config{})
	leaving, b := &client{name: "a"}, &client{name: "b"}
	w.subscribe(leaving, "u")
	late, out := w.hold(leaving, unsubscribing(`"u"`))
	w.m.Leave(leaving, nil)
	silentEnd(t, out)
	w.subscribe(b, "u")
	w.give(late, meanwhileNothing)
	w.result(late)
	w.wantPosts(`{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":{"uri":"u"}}`)
	w.m.Leave(b, nil)
	w.wantPosts(`{"jsonrpc":"2.0","id":5,"method":"resources/unsubscribe","params":{"uri":"u"}}`)
	w.receive(`{"jsonrpc":"2.0","id":5,"result":{}}`) // it overtook the fourth
	w.receive(`{"jsonrpc":"2.0","id":4,"result":{}}`)
	w.wantPosts(`{"jsonrpc":"2.0","id":6,"method":"resources/unsubscribe","params":{"uri":"u"}}`)
	w.receive(`{"jsonrpc":"2.0","id":6,"result":{}}`)
	w.wantPosts()
	w.empty()
}

// M4: an unsubscription that the server never gets, because its client leaves or gives up
// first, is made all the same.
func TestAnUnsubscriptionThatIsNotSentIsMade(t *testing.T) {
	for name, end := range map[string]func(w *world, p *client, c *Call){
		"leave": func(w *world, p *client, _ *Call) { w.m.Leave(p, nil) },
		"fail":  func(_ *world, _ *client, c *Call) { c.Fail(fault.New(fault.CallTimeout, "too slow")) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{Policy: Serialize})
			a := &client{}
			w.subscribe(a, "u")
			w.call(&client{}, `1`)
			waiting, _ := w.hold(a, unsubscribing(`"u"`))
			end(w, a, waiting)
			w.wantPosts(`{"jsonrpc":"2.0","id":4,"method":"resources/unsubscribe","params":{"uri":"u"}}`)
			if w.give(waiting, meanwhileNothing) {
				t.Error("it was sent after its end")
			}
		})
	}
}

// M2: a call that ends before it was sent is not sent, and needs no cancellation; one
// that ends meanwhile is cancelled after it was sent, not before.
func TestACancellationFollowsItsCall(t *testing.T) {
	p := &client{}
	for name, end := range map[string]func(w *world, c *Call) string{
		"cancel": func(_ *world, c *Call) string { c.Cancel(wire.Frame{}, wire.Span{}); return "" },
		"fail": func(_ *world, c *Call) string {
			c.Fail(fault.New(fault.CallTimeout, "too slow"))
			return "call_timeout"
		},
		"leave": func(w *world, _ *Call) string { w.m.Leave(p, nil); return "the client left" },
	} {
		t.Run(name, func(t *testing.T) {
			const calling = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`
			w := newWorld(t, Config{})
			c, out := w.hold(p, calling)
			end(w, c)
			if w.give(c, meanwhileNothing) {
				t.Error("it was sent after its end")
			}
			w.wantPosts()

			c, _ = w.hold(p, calling)
			reason := ""
			w.give(c, func() {
				reason = end(w, c)
				w.wantPosts()
			})
			w.wantPosts(cancelOf(c, reason))
			if len(out.dones) != 1 {
				t.Errorf("answers %q", out.dones)
			}

			c, _ = w.hold(p, calling) // answered at once
			w.give(c, func() { w.result(c) })
			w.wantPosts()
			w.empty()
		})
	}
}
