package mux

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// What comes on the stream of a call, where the transport tells which (M6).

// receiveOn takes a frame of the server that came on the stream of a call of ours.
func (w *world) receiveOn(call string, format string, args ...any) {
	w.t.Helper()
	f, err := wire.Parse(fmt.Appendf(nil, format, args...))
	if err != nil {
		w.t.Fatal(err)
	}
	w.m.Receive(f, []byte(call))
}

// ourID returns the id under which a call went to the server.
func ourID(c *Call) string { return string(c.Message.ID) }

const (
	sampling  = `{"jsonrpc":"2.0","id":"s","method":"sampling/createMessage","params":{"n":1.0}}`
	rootsList = `{"jsonrpc":"2.0","id":"s","method":"roots/list"}`
	stranger  = `{"jsonrpc":"2.0","method":"notifications/x","params":[1.0]}`
)

func saying(level string) string {
	return `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"` + level + `"}}`
}

// M6, case 33: with two clients in flight, what comes on one call's stream is that
// call's, whichever of the client's calls it is; nobody else hears of it, and the
// connection never takes turns.
func TestWhatComesOnACallsStreamIsThatCalls(t *testing.T) {
	for name, raw := range map[string]string{
		"sampling": sampling, "elicitation": eliciting(`"s"`), "roots": rootsList, "log": saying("info"), "unknown": stranger,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			a, b := &client{}, &client{}
			_, first := w.call(a, `1`)
			c, second := w.call(a, `2`)
			_, other := w.call(b, `1`)
			w.receiveOn(ourID(c), "%s", raw)
			if strings.Contains(raw, `"id"`) {
				if len(a.asks) != 1 || a.outs[0] != Outlet(second) || string(a.asks[0].Frame.Raw) != raw {
					t.Fatalf("%d requests, with %v", len(a.asks), a.outs)
				}
				f, _ := frame(t, `{"jsonrpc":"2.0","id":9,"result":{"x":1.0}}`)
				a.asks[0].Answer(f)
				w.wantPosts(`{"jsonrpc":"2.0","id":"s","result":{"x":1.0}}`)
			} else {
				equal(t, "with the call", second.notes, raw)
				w.wantPosts()
			}
			equal(t, "elsewhere", slices.Concat(first.notes, other.notes, a.notices, b.notices, w.logs))
			if len(b.asks) != 0 || w.m.Serial() {
				t.Errorf("the other client was asked %d times; turns: %v", len(b.asks), w.m.Serial())
			}
		})
	}
}

// M6: both of two clients in flight are asked at the same time, and each answer goes
// back to the request that it is for.
func TestTwoClientsAreAskedAtTheSameTime(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := &client{}, &client{}
	ca, _ := w.call(a, `1`)
	cb, _ := w.call(b, `1`)
	w.receiveOn(ourID(ca), "%s", eliciting(`1`))
	w.receiveOn(ourID(cb), "%s", eliciting(`2`))
	if len(a.asks) != 1 || len(b.asks) != 1 {
		t.Fatalf("%d and %d requests", len(a.asks), len(b.asks))
	}
	b.asks[0].Fail(-1, "no")
	a.asks[0].Fail(-2, "no")
	w.wantPosts(`{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"no"}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-2,"message":"no"}}`)
}

// M5: a log message on a call's stream passes the level of that call's client only.
func TestALogMessageOnACallsStreamPassesItsClientsLevel(t *testing.T) {
	w := newWorld(t, Config{})
	terse, verbose := &client{}, &client{}
	w.setLevel(verbose, "debug", "debug")
	w.setLevel(terse, "error", "")
	c, out := w.call(terse, `1`)
	_, other := w.call(verbose, `1`)
	w.receiveOn(ourID(c), "%s", saying("info"))
	w.receiveOn(ourID(c), "%s", saying("critical"))
	equal(t, "notes", out.notes, saying("critical"))
	equal(t, "elsewhere", slices.Concat(other.notes, terse.notices, verbose.notices, w.logs))
}

// Case 34: what comes on the stream of a call that has ended, or of one that never
// was, is nobody's, though another client has a call in flight: what routes a call's
// frames dies with it.
func TestTheStreamOfACallThatHasEndedIsNobodys(t *testing.T) {
	ways := map[string]func(*world, *client, *Call){
		"answered":   func(w *world, _ *client, c *Call) { w.result(c) },
		"cancelled":  func(_ *world, _ *client, c *Call) { c.Cancel(wire.Frame{}, wire.Span{}) },
		"refused":    func(w *world, _ *client, c *Call) { w.m.Refuse(c.Message.ID, fault.New(fault.Interrupted, "x")) },
		"client has": func(w *world, a *client, _ *Call) { w.m.Leave(a, nil) },
	}
	for name, end := range ways {
		for _, sole := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " sole ", sole), func(t *testing.T) {
				w := newWorld(t, Config{Sole: sole})
				a, b := &client{}, &client{}
				c, out := w.call(a, `1`)
				_, other := w.call(b, `1`)
				end(w, a, c)
				w.posted()
				for _, call := range []string{ourID(c), `4711`, `"x"`} {
					w.logs = nil
					w.receiveOn(call, "%s", saying("emergency"))
					w.receiveOn(call, "%s", stranger)
					equal(t, "log", w.logs, saying("emergency"), stranger)
					w.receiveOn(call, "%s", eliciting(`1`))
					w.wantError(`1`, fault.AmbiguousOwner)
				}
				equal(t, "clients", slices.Concat(out.notes, other.notes, a.notices, b.notices))
				if len(a.asks)+len(b.asks) != 0 || w.m.Serial() {
					t.Errorf("%d requests; turns: %v", len(a.asks)+len(b.asks), w.m.Serial())
				}
			})
		}
	}
}

// M6: what comes with a call of roundhouse's own is for no client, though some have
// calls in flight; a subscription is such a call.
func TestTheStreamOfAnOwnCallIsNobodys(t *testing.T) {
	w := newWorld(t, Config{Roots: func() []byte { return []byte(`{"roots":[1]}`) }})
	a, b := &client{}, &client{}
	_, out := w.call(a, `1`)
	_, other := w.call(b, `1`)
	own, _ := w.call(nil, `0`)
	sub, subOut := w.begin(a, subscribing(`"u"`))
	for _, c := range []*Call{own, sub} {
		w.logs = nil
		w.receiveOn(ourID(c), "%s", saying("info"))
		w.receiveOn(ourID(c), "%s", stranger)
		equal(t, "log", w.logs, saying("info"), stranger)
		w.receiveOn(ourID(c), "%s", sampling)
		w.wantError(`"s"`, fault.AmbiguousOwner)
		w.receiveOn(ourID(c), "%s", rootsList)
		w.wantPosts(`{"jsonrpc":"2.0","id":"s","result":{"roots":[1]}}`)
	}
	equal(t, "clients", slices.Concat(out.notes, other.notes, subOut.notes, a.notices, b.notices))
	if len(a.asks)+len(b.asks) != 0 || w.m.Serial() {
		t.Errorf("%d requests; turns: %v", len(a.asks)+len(b.asks), w.m.Serial())
	}
}

// M6: on a session's own connection a call of roundhouse's own is outside any call of
// the only client, which is asked and told then.
func TestOnASessionsOwnConnectionOwnCallsAreTheOnlyClients(t *testing.T) {
	w := newWorld(t, Config{Sole: true})
	a := &client{}
	w.m.Join(a)
	own, _ := w.call(nil, `0`)
	w.receiveOn(ourID(own), "%s", rootsList)
	if len(a.asks) != 1 || a.outs[0] != nil {
		t.Errorf("%d requests, with %v", len(a.asks), a.outs)
	}
	w.receiveOn(ourID(own), "%s", saying("info"))
	w.receiveOn(ourID(own), "%s", stranger)
	equal(t, "notices", a.notices, saying("info"), stranger)
	w.m.Join(&client{}) // now it could be for either
	a.notices = nil
	w.receiveOn(ourID(own), "%s", saying("info"))
	w.receiveOn(ourID(own), "%s", eliciting(`2`))
	w.wantError(`2`, fault.AmbiguousOwner)
	equal(t, "log", w.logs, saying("info"))
	equal(t, "notices", a.notices)
}

// M6: what comes on no call's stream is routed as on stdio, and may begin turns.
func TestWithoutACallTheRulesOfStdioHold(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := &client{}, &client{}
	c, _ := w.call(a, `1`)
	_, out := w.call(b, `1`)
	w.receiveOn(ourID(c), "%s", eliciting(`1`))
	w.receive("%s", eliciting(`2`)) // on the server's own stream
	w.wantError(`2`, fault.AmbiguousOwner)
	if !w.m.Serial() || len(a.asks) != 1 || len(b.asks) != 0 {
		t.Errorf("turns: %v, %d and %d requests", w.m.Serial(), len(a.asks), len(b.asks))
	}
	w.result(c)
	w.receive("%s", eliciting(`3`))
	if len(b.asks) != 1 || b.outs[0] != Outlet(out) {
		t.Errorf("b was asked %d times", len(b.asks))
	}
}

// M1, M4: progress and updates are routed by what they name, whatever stream they come
// on: servers send a progress or an update on another call's stream, too.
func TestProgressAndUpdatesGoByWhatTheyName(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := &client{name: "a"}, &client{name: "b"}
	w.subscribe(a, "u")
	c, out := w.begin(a, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":"t"}}}`)
	cb, other := w.call(b, `1`)
	w.receiveOn(ourID(cb), `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, ourID(c))
	w.receiveOn(ourID(cb), `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"u"}}`)
	equal(t, "a's call", out.notes, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}`)
	equal(t, "a", a.notices, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"u"}}`)
	equal(t, "b", slices.Concat(other.notes, b.notices))
}
