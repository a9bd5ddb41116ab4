package mux

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

func eliciting(id string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"elicitation/create","params":{"message":"?"}}`
}

// wantError checks that one error with a reason was posted for a server's request.
func (w *world) wantError(id string, reason fault.Reason) string {
	w.t.Helper()
	posts := w.posted()
	if len(posts) != 1 {
		w.t.Errorf("posts %q, want one error", posts)
		return ""
	}
	f, err := wire.Parse([]byte(posts[0]))
	if err != nil || !f.ErrorSpan.Present() || string(f.ID()) != id || !strings.Contains(posts[0], `"reason":"`+string(reason)+`"`) {
		w.t.Errorf("%s is no error %s for %s (%v)", posts[0], reason, id, err)
	}
	return posts[0]
}

// M6: ping is ours to answer, always.
func TestPingIsAnsweredAlways(t *testing.T) {
	for _, policy := range []Policy{Auto, Refuse, Serialize} {
		w := newWorld(t, Config{Policy: policy})
		ping := func(id string) {
			t.Helper()
			w.receive(`{"jsonrpc":"2.0","id":%s,"method":"ping"}`, id)
			w.wantPosts(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`)
		}
		ping(`0`) // with no client
		a, b := &client{}, &client{}
		w.call(a, `0`)
		ping(`"0"`)
		w.call(b, `0`)
		ping(`1.0`)
		if len(a.asks)+len(b.asks) != 0 {
			t.Error("a client was asked")
		}
	}
}

// M6, case 33: a request goes to the one client with calls in flight, with its call,
// and its answer goes back with the server's id, whatever it is.
func TestRequestGoesToTheClientWithACallInFlight(t *testing.T) {
	for _, id := range awkward {
		w := newWorld(t, Config{Server: "files"})
		a, b := &client{}, &client{}
		other, _ := w.call(b, `1`)
		w.result(other)
		_, out := w.call(a, `1`)
		_, _ = w.call(a, `2`)
		w.receive("%s", eliciting(id))
		if len(a.asks) != 1 || len(b.asks) != 0 {
			t.Fatalf("%d and %d requests", len(a.asks), len(b.asks))
		}
		ask := a.asks[0]
		if string(ask.Frame.Raw) != eliciting(id) || ask.Server != "files" || a.outs[0] != Outlet(out) {
			t.Errorf("asked %s of %s with another call", ask.Frame.Raw, ask.Server)
		}
		f, _ := frame(t, `{"jsonrpc":"2.0","result":{"x":1.0},"id":4711}`)
		ask.Answer(f)
		w.wantPosts(`{"jsonrpc":"2.0","result":{"x":1.0},"id":` + id + `}`)
	}
}

// M6: with several clients in flight a request is refused at once and goes to nobody;
// from then on one client's calls run at a time, so the next attempt works.
func TestAmbiguousRequestIsRefusedAndMakesTurns(t *testing.T) {
	w := newWorld(t, Config{Server: "files", Generation: 2})
	a, b := &client{}, &client{}
	first, _ := w.call(a, `1`)
	second, _ := w.call(b, `1`)
	if w.m.Serial() {
		t.Error("there are turns before they are needed")
	}
	w.receive("%s", eliciting(`"s"`))
	got := w.wantError(`"s"`, fault.AmbiguousOwner)
	for _, part := range []string{"several clients", "elicitation/create", "calling the tool again works", `"server":"files"`, `"generation":2`, `"code":-32015`} {
		if !strings.Contains(got, part) {
			t.Errorf("%s lacks %s", got, part)
		}
	}
	if len(a.asks)+len(b.asks) != 0 {
		t.Error("a client was asked")
	}
	w.result(first)
	w.result(second)

	again, _ := w.call(b, `2`)
	waiting, _ := w.call(a, `2`)
	if !w.m.Serial() || !ready(again) || ready(waiting) {
		t.Error("there are no turns")
	}
	w.receive("%s", eliciting(`"s"`))
	if len(b.asks) != 1 || len(a.asks) != 0 {
		t.Errorf("the next attempt asked a %d times and b %d times", len(a.asks), len(b.asks))
	}
}

// M6: a request during no call has nobody to go to, and changes nothing.
func TestRequestOutsideEveryCallIsRefused(t *testing.T) {
	w := newWorld(t, Config{})
	a := &client{}
	w.m.Join(a)
	w.call(nil, `0`) // a call of our own is nobody's
	w.begin(&client{}, subscribing(`"u"`))
	w.receive("%s", eliciting(`1`))
	if got := w.wantError(`1`, fault.AmbiguousOwner); !strings.Contains(got, "no client has a call in flight") {
		t.Error(got)
	}
	if len(a.asks) != 0 || w.m.Serial() {
		t.Errorf("%d requests, serial %v", len(a.asks), w.m.Serial())
	}
}

// M6: roots/list belongs to the client whose call it comes with, else to the workspace.
func TestRootsComeFromTheOwnerElseFromTheWorkspace(t *testing.T) {
	const ask = `{"jsonrpc":"2.0","id":"r","method":"roots/list"}`
	w := newWorld(t, Config{Roots: func() []byte { return []byte(`{"roots":[{"uri":"file:///w"}]}`) }})
	w.receive(ask)
	w.wantPosts(`{"jsonrpc":"2.0","id":"r","result":{"roots":[{"uri":"file:///w"}]}}`)
	a := &client{}
	w.call(a, `1`)
	w.receive(ask)
	w.wantPosts()
	if len(a.asks) != 1 {
		t.Errorf("the owner was asked %d times", len(a.asks))
	}
	w.call(&client{}, `1`)
	w.receive(`{"jsonrpc":"2.0","id":"r2","method":"roots/list"}`)
	w.wantError(`"r2"`, fault.AmbiguousOwner)

	w = newWorld(t, Config{})
	w.receive(ask)
	w.wantPosts(`{"jsonrpc":"2.0","id":"r","result":{"roots":[]}}`)
}

// M6: refuse passes nothing on, and says so.
func TestRefusePassesNoRequestOn(t *testing.T) {
	w := newWorld(t, Config{Policy: Refuse, Sole: true})
	a := &client{}
	w.call(a, `1`)
	for _, method := range []string{"elicitation/create", "sampling/createMessage", "roots/list"} {
		w.receive(`{"jsonrpc":"2.0","id":1,"method":"%s"}`, method)
		posts := w.posted()
		if len(posts) != 1 || !strings.Contains(posts[0], `"code":-32601`) || !strings.Contains(posts[0], "interactive: refuse") {
			t.Errorf("%s: %q", method, posts)
		}
	}
	if len(a.asks) != 0 || w.m.Serial() {
		t.Errorf("%d requests, serial %v", len(a.asks), w.m.Serial())
	}
}

// M6: on a session's own connection the only client is asked also outside its calls.
func TestOnASessionsOwnConnectionTheOnlyClientIsAsked(t *testing.T) {
	w := newWorld(t, Config{Sole: true})
	w.receive("%s", eliciting(`1`))
	w.wantError(`1`, fault.AmbiguousOwner) // nobody has come yet
	a := &client{}
	w.m.Join(a)
	w.m.Join(a)
	w.receive("%s", eliciting(`1`))
	if len(a.asks) != 1 || a.outs[0] != nil {
		t.Fatalf("%d requests, with the calls %v", len(a.asks), a.outs)
	}
	a.asks[0].Fail(-1, "no")
	w.wantPosts(`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`)

	b := &client{}
	w.m.Join(b)
	w.receive("%s", eliciting(`2`))
	w.wantError(`2`, fault.AmbiguousOwner)
	w.m.Leave(a, nil)
	w.receive("%s", eliciting(`3`))
	if len(a.asks) != 1 || len(b.asks) != 1 {
		t.Error("the client that stayed was not asked")
	}
	w.m.Leave(b, nil)
	w.wantPosts(`{"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"the client that was asked has left"}}`)
	w.empty()
}

// W1, M7: a server's id that is in flight already is the server's error; the request
// that came first lives on.
func TestRequestWithAnIDInFlightIsRefused(t *testing.T) {
	w := newWorld(t, Config{})
	a := &client{}
	w.call(a, `1`)
	w.receive("%s", eliciting(`7`))
	w.receive("%s", eliciting(`7`))
	w.wantPosts(`{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"a request with this id is in flight"}}`)
	w.receive("%s", eliciting(`"7"`)) // another id
	w.wantPosts()
	if len(a.asks) != 2 {
		t.Fatalf("%d requests", len(a.asks))
	}
	a.asks[0].Fail(-1, "no")
	w.wantPosts(`{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"no"}}`)
}

// M7: whatever settles a request first counts, and nothing after it.
func TestRequestIsSettledOnce(t *testing.T) {
	answer, _ := frame(t, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	ways := map[string]struct {
		do     func(*world, *client)
		posts  int // that it makes when it comes first
		unasks int
	}{
		"answer": {func(_ *world, a *client) { a.asks[0].Answer(answer) }, 1, 0},
		"fail":   {func(_ *world, a *client) { a.asks[0].Fail(-1, "no") }, 1, 0},
		"leave":  {func(w *world, a *client) { w.m.Leave(a, nil) }, 1, 0},
		"loss":   {func(w *world, _ *client) { w.m.Lose(fault.New(fault.Interrupted, "gone")) }, 0, 1},
		"server cancels": {func(w *world, _ *client) {
			w.receive(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"s"}}`)
		}, 0, 1},
	}
	for first, one := range ways {
		for second, two := range ways {
			t.Run(first+", "+second, func(t *testing.T) {
				w := newWorld(t, Config{})
				a := &client{}
				c, _ := w.call(a, `1`)
				w.receive("%s", eliciting(`"s"`))
				w.result(c) // the request outlives the call
				one.do(w, a)
				if posts := w.posted(); len(posts) != one.posts || len(a.unasked) != one.unasks {
					t.Errorf("%s: posts %q, %d taken back", first, posts, len(a.unasked))
				}
				two.do(w, a)
				if posts := w.posted(); len(posts) != 0 || len(a.unasked) != one.unasks {
					t.Errorf("then %s: posts %q, %d taken back", second, posts, len(a.unasked))
				}
				w.empty()
			})
		}
	}
}

// M7: a client that leaves takes only its own requests with it.
func TestLeavingSettlesOnlyTheClientsOwnRequests(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := &client{}, &client{}
	c, _ := w.call(a, `1`)
	w.receive("%s", eliciting(`1`))
	w.result(c)
	w.call(b, `1`)
	w.receive("%s", eliciting(`2`))
	w.m.Leave(a, nil)
	w.wantPosts(`{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"the client that was asked has left"}}`)
	b.asks[0].Fail(-1, "no")
	w.wantPosts(`{"jsonrpc":"2.0","id":2,"error":{"code":-1,"message":"no"}}`)
}

func TestProgressOnAnAnswerGoesToTheServer(t *testing.T) {
	w := newWorld(t, Config{})
	a := &client{}
	w.call(a, `1`)
	w.receive("%s", eliciting(`1`))
	a.asks[0].Progress([]byte(`{"x":1}`))
	w.wantPosts(`{"x":1}`)
}

func TestServerCancelsWhatItNeverAsked(t *testing.T) {
	w := newWorld(t, Config{})
	a := &client{}
	_, out := w.call(a, `1`)
	for _, id := range []string{`1`, `"s"`, `null`} {
		w.receive(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id)
	}
	w.receive(`{"jsonrpc":"2.0","method":"notifications/cancelled"}`)
	pending(t, out)
	w.wantPosts()
	if len(a.unasked) != 0 {
		t.Error("the client was told")
	}
}

// Case 34: what routes a call's frames dies with the call. Nothing that comes later
// reaches the client that had it.
func TestRoutingStateDiesWithTheCall(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := &client{}, &client{}
	c, outA := w.begin(a, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`)
	w.result(c)
	w.m.Leave(a, nil)
	w.empty()
	_, outB := w.begin(b, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`)
	w.receive(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d}}`, c.id)
	w.log("info")
	w.receive(`{"jsonrpc":"2.0","method":"notifications/unknown"}`)
	w.receive("%s", eliciting(`1`))
	if len(outA.notes)+len(a.notices)+len(a.asks) != 0 {
		t.Errorf("the client that left got %q, %q, %v", outA.notes, a.notices, a.asks)
	}
	if len(outB.notes) != 2 || len(b.asks) != 1 {
		t.Errorf("the other client got %q and %d requests", outB.notes, len(b.asks))
	}
}

// Case 34: a notification that nobody knows goes where its owner is beyond doubt, else
// to the server's log.
func TestUnknownNotificationsGoToTheirOwnerOrNobody(t *testing.T) {
	const raw = `{"jsonrpc":"2.0","method":"notifications/x","params":[1.0]}`
	a, b := &client{}, &client{}
	for _, test := range []struct {
		name                  string
		sole                  bool
		joined, calling       []*client
		call, notices, logged int
	}{
		{name: "nobody", logged: 1},
		{name: "one joined", joined: []*client{a}, logged: 1},
		{name: "one calling", joined: []*client{b}, calling: []*client{a}, call: 1},
		{name: "two calling", calling: []*client{a, b}, logged: 1},
		{name: "own, one joined", sole: true, joined: []*client{a}, notices: 1},
		{name: "own, one calling", sole: true, joined: []*client{a, b}, calling: []*client{a}, call: 1},
		{name: "own, two joined", sole: true, joined: []*client{a, b}, logged: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Config{Sole: test.sole})
			a.notices, b.notices = nil, nil
			for _, c := range test.joined {
				w.m.Join(c)
			}
			var outs []*slot
			for _, c := range test.calling {
				_, out := w.call(c, `1`)
				outs = append(outs, out)
			}
			w.receive(raw)
			var notes []string
			for _, out := range outs {
				notes = append(notes, out.notes...)
			}
			equal(t, "with the call", notes, slices.Repeat([]string{raw}, test.call)...)
			equal(t, "outside", slices.Concat(a.notices, b.notices), slices.Repeat([]string{raw}, test.notices)...)
			equal(t, "log", w.logs, slices.Repeat([]string{raw}, test.logged)...)
		})
	}
}

// A member that only joined stays until it leaves; one that only called is forgotten
// with its last call.
func TestMembersAreForgotten(t *testing.T) {
	w := newWorld(t, Config{})
	for i := range 100 {
		c, _ := w.call(&client{name: fmt.Sprint(i)}, `1`)
		w.result(c)
	}
	w.empty()
	a := &client{}
	w.m.Join(a)
	c, _ := w.call(a, `1`)
	w.result(c)
	if len(w.m.members) != 1 {
		t.Error("a client that joined was forgotten with its call")
	}
	w.m.Leave(a, nil)
	w.empty()
}
