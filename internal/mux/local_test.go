package mux

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

const done = `{"jsonrpc":"2.0","id":1,"result":{}}` // an empty answer to the id 1

func subscribing(uri string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":` + uri + `}}`
}

func unsubscribing(uri string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"resources/unsubscribe","params":{"uri":` + uri + `}}`
}

// subscribe subscribes a client and answers the server's part of it, if there is one.
func (w *world) subscribe(p Peer, uri string) {
	w.t.Helper()
	c, out := w.begin(p, subscribing(`"`+uri+`"`))
	if c != nil {
		w.result(c)
	}
	answeredWith(w.t, out, `1`, done)
}

// update says that a resource has changed and returns who was told.
func (w *world) update(uri string, clients ...*client) (told []string) {
	w.t.Helper()
	raw := `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`
	w.receive("%s", raw)
	for _, c := range clients {
		if slices.Contains(c.notices, raw) {
			told = append(told, c.name)
		}
		c.notices = nil
	}
	return told
}

// M4: only the first subscription to a URI and the last unsubscription go upstream.
func TestSubscriptionsAreCounted(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := &client{name: "a"}, &client{name: "b"}

	c, out := w.begin(a, subscribing(`"file:///x"`))
	if got, want := string(c.Message.Bytes), `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"file:///x"}}`; got != want {
		t.Errorf("got %s", got)
	}
	w.receive(`{"jsonrpc":"2.0","id":%d,"result":{"x":1}}`, c.id)
	answeredWith(t, out, `1`, `{"jsonrpc":"2.0","id":1,"result":{"x":1}}`)

	c, out = w.begin(b, subscribing(`"file:\/\/\/\u0078"`)) // the same URI
	if c != nil {
		t.Error("the second subscription went upstream")
	}
	answeredWith(t, out, `1`, done)
	w.subscribe(b, "file:///x") // twice is once

	c, out = w.begin(a, unsubscribing(`"file:///x"`))
	if c != nil {
		t.Error("an unsubscription went upstream while another client has the URI")
	}
	answeredWith(t, out, `1`, done)

	c, out = w.begin(b, unsubscribing(`"file:///x"`))
	if c == nil {
		t.Fatal("the last unsubscription stayed here")
	}
	w.result(c)
	answeredWith(t, out, `1`, done)
	w.wantPosts()
	w.empty()
}

// M4: updates go to the subscribers of the URI, in flight or not, and to nobody else.
func TestUpdatesGoToSubscribersOnly(t *testing.T) {
	w := newWorld(t, Config{})
	a, b, c := &client{name: "a"}, &client{name: "b"}, &client{name: "c"}
	w.subscribe(a, "file:///x")
	w.subscribe(b, "file:///x")
	w.subscribe(b, "file:///y")
	_, out := w.call(c, `1`)
	for _, test := range []struct {
		uri  string
		want []string
	}{
		{"file:///x", []string{"a", "b"}},
		{"file:///y", []string{"b"}},
		{"file:///z", nil},
		{"file:///X", nil},
		{`file:\/\/\/x`, []string{"a", "b"}},
	} {
		equal(t, test.uri, w.update(test.uri, a, b, c), test.want...)
	}
	w.receive(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":7}}`)
	w.begin(a, unsubscribing(`"file:///x"`))
	w.m.Leave(b, nil)
	equal(t, "after both have gone", w.update("file:///x", a, b, c))
	equal(t, "notes", out.notes)
	equal(t, "log", w.logs)
}

// M4: a server may tell of a change before it answers who has just subscribed to the
// resource. Who has given up waiting hears nothing.
func TestUpdatesBeforeTheAnswerReachTheSubscriber(t *testing.T) {
	const updated = `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///x"}}`
	for _, newer := range []bool{false, true} {
		w := newWorld(t, Config{})
		if newer {
			w, _ = newerWorld(t, false)
		}
		a, b, c, gone := &client{name: "a"}, &client{name: "b"}, &client{name: "c"}, &client{name: "gone"}
		call, outA := w.begin(a, subscribing(`"file:///x"`))
		_, outB := w.begin(b, subscribing(`"file:///x"`))
		w.begin(gone, subscribing(`"file:///x"`))
		w.m.Leave(gone, nil)
		w.receive(updated)
		pending(t, outA)
		if newer {
			w.acknowledge(1, oneURI)
		} else {
			w.result(call)
		}
		answeredWith(t, outA, `1`, done)
		answeredWith(t, outB, `1`, done)
		for _, p := range []*client{a, b} {
			equal(t, "heard by "+p.name, p.notices, updated)
		}
		equal(t, "heard by others", append(c.notices, gone.notices...))
	}
}

// M4: a server may name the part of a subscribed resource that has changed.
func TestUpdatesOfAPartGoToSubscribersOfTheWhole(t *testing.T) {
	w := newWorld(t, Config{})
	dir, slash, sub := &client{name: "dir"}, &client{name: "slash"}, &client{name: "sub"}
	w.subscribe(dir, "file:///d")
	w.subscribe(slash, "file:///d/")
	w.subscribe(sub, "file:///d/e")
	for _, test := range []struct {
		uri  string
		want []string
	}{
		{"file:///d", []string{"dir"}},
		{"file:///d/", []string{"dir", "slash"}},
		{"file:///d/e", []string{"dir", "slash", "sub"}},
		{"file:///d/e/f", []string{"dir", "slash", "sub"}},
		{"file:///d/ef", []string{"dir", "slash"}},
		{"file:///d?q", []string{"dir"}},
		{"file:///d#f", []string{"dir"}},
		{"file:///de", nil},
		{"file:///", nil},
		{"", nil},
	} {
		equal(t, test.uri, w.update(test.uri, dir, slash, sub), test.want...)
	}
}

// M4: who subscribes before the server has answered the first gets the same answer.
func TestSubscribersShareTheServersAnswer(t *testing.T) {
	for _, test := range []struct{ answer, want string }{
		{`{"jsonrpc":"2.0","result":{"x":1},"id":%s}`, "ab"},
		{`{"jsonrpc":"2.0","error":{"code":-32002,"message":"no such resource"},"id":%s}`, ""},
	} {
		w := newWorld(t, Config{})
		a, b := &client{name: "a"}, &client{name: "b"}
		first, outA := w.begin(a, subscribing(`"u"`))
		f, r := frame(t, `{"jsonrpc":"2.0","id":"b","method":"resources/subscribe","params":{"uri":"u"}}`)
		outB := &slot{}
		if c, err := w.m.Begin(b, f, r, outB); c != nil || err != nil {
			t.Fatalf("%v, %v", c, err)
		}
		pending(t, outB)
		w.receive("%s", fmt.Sprintf(test.answer, fmt.Sprint(first.id)))
		answeredWith(t, outA, `1`, fmt.Sprintf(test.answer, `1`))
		answeredWith(t, outB, `"b"`, fmt.Sprintf(test.answer, `"b"`))
		var got strings.Builder
		for _, name := range w.update("u", a, b) {
			got.WriteString(name)
		}
		if got.String() != test.want {
			t.Errorf("told %q, want %q", got.String(), test.want)
		}
		if test.want == "" {
			w.empty()
			if c, _ := w.begin(a, subscribing(`"u"`)); c == nil {
				t.Error("after an error the next subscription did not go upstream")
			}
		}
	}
}

// M4: what a client does not have it cannot take from others.
func TestUnsubscribingAStrangersURITouchesNobody(t *testing.T) {
	w := newWorld(t, Config{})
	a, stranger, other := &client{name: "a"}, &client{}, &client{}
	w.subscribe(a, "u")
	w.subscribe(other, "v")
	for _, p := range []*client{stranger, other} {
		c, out := w.begin(p, unsubscribing(`"u"`))
		if c != nil {
			t.Error("the server was told to end the subscription of another client")
		}
		answeredWith(t, out, `1`, done)
	}
	equal(t, "told", w.update("u", a), "a")
}

// What nobody has, or what is no URI, is the server's to answer.
func TestTheServerAnswersWhatItsStateIsNotHere(t *testing.T) {
	for _, raw := range []string{
		unsubscribing(`"u"`), unsubscribing(`7`), subscribing(`7`), subscribing(`"\ud800"`),
		`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe"}`,
		`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"loud"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":7}}`,
		`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel"}`,
	} {
		w := newWorld(t, Config{})
		c, out := w.begin(&client{}, raw)
		if c == nil {
			t.Errorf("%s was not forwarded", raw)
			continue
		}
		w.receive(`{"jsonrpc":"2.0","id":%d,"error":{"code":-32602,"message":"no"}}`, c.id)
		answeredWith(t, out, `1`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}`)
		w.empty()
	}
}

// M4: the last client's leaving unsubscribes upstream.
func TestLeavingUnsubscribes(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := &client{}, &client{}
	w.subscribe(a, "u")
	w.subscribe(b, "u")
	w.m.Leave(a, nil)
	w.wantPosts()
	w.m.Leave(b, nil)
	w.wantPosts(`{"jsonrpc":"2.0","id":2,"method":"resources/unsubscribe","params":{"uri":"u"}}`)
	w.receive(`{"jsonrpc":"2.0","id":2,"result":{}}`)
	if w.m.Strays() != 0 {
		t.Error("the answer to our own request counts as a stray")
	}
	w.empty()
}

// M2, M4: a subscription that several wait for outlives the client that asked first.
func TestSubscriptionOutlivesItsFirstClient(t *testing.T) {
	for name, end := range map[string]func(*world, *client, *Call) bool{
		"leave": func(w *world, p *client, _ *Call) bool { w.m.Leave(p, nil); return true },
		"cancel": func(_ *world, _ *client, c *Call) bool {
			f, r := frame(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			return c.Cancel(f, r.RequestID) && !c.Cancel(f, r.RequestID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			a, b := &client{name: "a"}, &client{name: "b"}
			c, outA := w.begin(a, subscribing(`"u"`))
			_, outB := w.begin(b, subscribing(`"u"`))
			if !end(w, a, c) {
				t.Error("the client was not released once")
			}
			silentEnd(t, outA)
			pending(t, outB)
			w.wantPosts()
			w.result(c)
			silentEnd(t, outA)
			answeredWith(t, outB, `1`, done)
			equal(t, "told", w.update("u", a, b), "b")
		})
	}
}

// M4: a subscription that nobody wants any more when it begins is ended.
func TestSubscriptionThatNobodyWantsIsEnded(t *testing.T) {
	w := newWorld(t, Config{})
	a := &client{}
	c, _ := w.begin(a, subscribing(`"u"`))
	w.m.Leave(a, nil)
	w.wantPosts()
	w.result(c)
	w.wantPosts(`{"jsonrpc":"2.0","id":2,"method":"resources/unsubscribe","params":{"uri":"u"}}`)
	w.receive(`{"jsonrpc":"2.0","id":2,"result":{}}`)
	w.empty()
}

// A subscription's failure reaches all who wait for it.
func TestSubscriptionThatTimesOutFailsForAll(t *testing.T) {
	w := newWorld(t, Config{})
	c, outA := w.begin(&client{}, subscribing(`"u"`))
	_, outB := w.begin(&client{}, subscribing(`"u"`))
	c.Fail(fault.New(fault.CallTimeout, "too slow"))
	failedWith(t, outA, `1`, fault.CallTimeout)
	failedWith(t, outB, `1`, fault.CallTimeout)
	w.wantPosts(cancelOf(c, "call_timeout"))
	w.empty()
}

// M4: a client that subscribes while another's unsubscription is on its way may
// overtake it; the server must know it in the end.
func TestSubscriptionThatOvertakesAnUnsubscriptionIsRepeated(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":2,"result":{}}`
	for _, test := range []struct {
		name   string
		begin  func(*world, *client)
		answer func(*world)
	}{
		{
			"unsubscribe",
			func(w *world, p *client) { w.begin(p, unsubscribing(`"u"`)) },
			func(w *world) { w.receive(answer) },
		},
		{
			"unsubscribe, answer too large",
			func(w *world, p *client) { w.begin(p, unsubscribing(`"u"`)) },
			func(w *world) { w.m.Oversize([]byte(`2`), wire.Response, 2, 1) },
		},
		{
			"leave",
			func(w *world, p *client) { w.m.Leave(p, nil) },
			func(w *world) { w.receive(answer) },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, Config{})
			a, b := &client{name: "a"}, &client{name: "b"}
			w.subscribe(a, "u")
			test.begin(w, a)
			w.posted()
			w.subscribe(b, "u")
			test.answer(w)
			w.wantPosts(`{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":{"uri":"u"}}`)
			w.receive(`{"jsonrpc":"2.0","id":4,"result":{}}`)
			equal(t, "told", w.update("u", a, b), "b")
			if w.m.Strays() != 0 {
				t.Error("an answer counts as a stray")
			}
		})
	}
}

// M4: the same for an unsubscription of what nobody had.
func TestSubscriptionThatOvertakesAVainUnsubscriptionIsRepeated(t *testing.T) {
	w := newWorld(t, Config{})
	vain, _ := w.begin(&client{}, unsubscribing(`"u"`))
	w.subscribe(&client{}, "u")
	w.result(vain)
	w.wantPosts(`{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":"u"}}`)
}

// M6: subscribing interacts with nobody, so it does not wait for a turn; else an
// unsubscription in the queue would come after it.
func TestSubscribingWaitsForNoTurn(t *testing.T) {
	w := newWorld(t, Config{Policy: Serialize})
	w.call(&client{}, `1`)
	if c, _ := w.begin(&client{}, subscribing(`"u"`)); !ready(c) {
		t.Error("it waits")
	}
}

// V1, M4: list changes go to the catalogue, not to the clients.
func TestListChangesGoToTheCatalogue(t *testing.T) {
	w := newWorld(t, Config{})
	a := &client{}
	_, out := w.call(a, `1`)
	for _, list := range []string{"tools", "prompts", "resources"} {
		w.receive(`{"jsonrpc":"2.0","method":"notifications/%s/list_changed"}`, list)
	}
	if !slices.Equal(w.changes, []List{Tools, Prompts, Resources}) {
		t.Errorf("changes %q", w.changes)
	}
	equal(t, "notes", slices.Concat(out.notes, a.notices, w.logs))

	m := New(Config{Post: func([]byte) {}}) // without anybody who wants to know
	f, _ := frame(t, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	m.Receive(f, nil)
	f, _ = frame(t, `{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
	m.Receive(f, nil)
}

func levelling(level string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"` + level + `"}}`
}

// setLevel sets a client's level; sent is what goes upstream, "" if nothing does.
func (w *world) setLevel(p Peer, level, sent string) {
	w.t.Helper()
	c, out := w.begin(p, levelling(level))
	if c == nil {
		if sent != "" {
			w.t.Errorf("%s: nothing was sent", level)
		}
	} else {
		_, r := frame(w.t, string(c.Message.Bytes))
		if got := string(r.Level.Of(c.Message.Bytes)); got != `"`+sent+`"` {
			w.t.Errorf("%s: the server was told %s, want %q", level, got, sent)
		}
		w.result(c)
	}
	answeredWith(w.t, out, `1`, done)
}

// M5: the server is told the most verbose level of all clients.
func TestTheServerHasTheMostVerboseLevel(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := &client{}, &client{}
	w.setLevel(a, "warning", "warning")
	w.setLevel(b, "error", "") // the server says enough already
	w.setLevel(b, "debug", "debug")
	w.setLevel(a, "info", "")
	w.setLevel(b, "emergency", "info") // not what b asked: a wants more
	w.setLevel(a, "alert", "alert")
	w.wantPosts()
	w.m.Leave(a, nil)
	w.wantPosts(`{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"emergency"}}`)
	w.receive(`{"jsonrpc":"2.0","id":5,"result":{}}`)
	w.m.Leave(b, nil)
	w.wantPosts() // nobody cares any more
	w.empty()
	w.setLevel(a, "emergency", "") // it still has that one
	w.setLevel(a, "info", "info")
}

// M5: nothing but the level changes when another one is sent than the client asked for.
func TestARaisedLevelIsSplicedIn(t *testing.T) {
	w := newWorld(t, Config{})
	w.setLevel(&client{}, "info", "info")
	b := &client{}
	w.setLevel(b, "debug", "debug")
	c, _ := w.begin(b, `{"params":{ "level":"error","_meta":{"progressToken":"p"},"x":1.0},"id":"q","method":"logging/setLevel","jsonrpc":"2.0"}`)
	want := fmt.Sprintf(`{"params":{ "level":"info","_meta":{"progressToken":%[1]d},"x":1.0},"id":%[1]d,"method":"logging/setLevel","jsonrpc":"2.0"}`, c.id)
	if got := string(c.Message.Bytes); got != want {
		t.Errorf("got %s", got)
	}
}

// M5: a level that the server refused is not taken for granted.
func TestARefusedLevelIsSentAgain(t *testing.T) {
	w := newWorld(t, Config{})
	for range 2 {
		c, out := w.begin(&client{}, levelling("info"))
		if c == nil {
			t.Fatal("nothing was sent")
		}
		w.receive(`{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"no"}}`, c.id)
		answeredWith(t, out, `1`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`)
	}
}

// M5: of two levels on their way the server may take the wrong one last.
func TestALevelThatWasOvertakenIsRepeated(t *testing.T) {
	w := newWorld(t, Config{})
	first, _ := w.begin(&client{}, levelling("error"))
	w.setLevel(&client{}, "debug", "debug")
	w.result(first)
	w.wantPosts(`{"jsonrpc":"2.0","id":3,"method":"logging/setLevel","params":{"level":"debug"}}`)
	w.receive(`{"jsonrpc":"2.0","id":3,"result":{}}`)
	w.wantPosts()
}

// log receives a log message and returns its frame.
func (w *world) log(level string) string {
	w.t.Helper()
	raw := `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":1.0,"level":"` + level + `"}}`
	w.receive("%s", raw)
	return raw
}

// M5, case 34: log messages go to the clients with a call in flight whose level lets
// them through, with the call, and to nobody else.
func TestLogMessagesGoToClientsWithACallInFlight(t *testing.T) {
	w := newWorld(t, Config{})
	verbose, terse, unset, idle := &client{}, &client{}, &client{}, &client{}
	w.setLevel(verbose, "debug", "debug")
	w.setLevel(terse, "error", "")
	w.setLevel(idle, "debug", "")
	_, verboseOut := w.call(verbose, `1`)
	_, second := w.call(verbose, `2`)
	_, terseOut := w.call(terse, `1`)
	_, unsetOut := w.call(unset, `1`)
	debug, info, critical := w.log("debug"), w.log("info"), w.log("critical")
	equal(t, "the verbose client", verboseOut.notes, debug, info, critical)
	equal(t, "its second call", second.notes)
	equal(t, "the terse client", terseOut.notes, critical)
	// The server would not have said debug by itself, so a client that set nothing
	// does not hear it.
	equal(t, "the client without a level", unsetOut.notes, info, critical)
	equal(t, "outside calls", slices.Concat(verbose.notices, terse.notices, unset.notices, idle.notices, w.logs))
}

// M5: where nobody has set a level, the server's own choice holds.
func TestWithoutLevelsEverythingIsHeard(t *testing.T) {
	w := newWorld(t, Config{})
	_, out := w.call(&client{}, `1`)
	debug, emergency := w.log("debug"), w.log("emergency")
	equal(t, "notes", out.notes, debug, emergency)
}

// M5, case 34: a log message outside every call goes to the server's log.
func TestLogMessagesWithoutACallGoToTheServersLog(t *testing.T) {
	w := newWorld(t, Config{})
	a := &client{}
	w.setLevel(a, "debug", "debug")
	w.m.Join(a)
	c, out := w.call(a, `1`)
	w.result(c)
	info := w.log("info")
	equal(t, "log", w.logs, info)
	equal(t, "client", slices.Concat(a.notices, out.notes))
}

// M5: on a session's own connection a log message has an owner also between calls.
func TestLogMessagesOnASessionsOwnConnection(t *testing.T) {
	w := newWorld(t, Config{Sole: true})
	a := &client{}
	w.m.Join(a)
	debug := w.log("debug")
	equal(t, "before a level is set", a.notices, debug)
	w.setLevel(a, "error", "error")
	a.notices = nil
	w.log("info")
	critical := w.log("critical")
	equal(t, "at the level error", a.notices, critical)
	equal(t, "log", w.logs)

	b := &client{}
	w.m.Join(b) // now it could be for either
	a.notices = nil
	critical = w.log("critical")
	equal(t, "log", w.logs, critical)
	equal(t, "clients", slices.Concat(a.notices, b.notices))
}

// M2, M5: a client may take back its request, not the level: that one counts for all, and
// what becomes of it is known when the server has answered.
func TestACancelledLevelGoesOn(t *testing.T) {
	w := newWorld(t, Config{})
	a := &client{}
	c, out := w.begin(a, levelling("info"))
	if !c.Cancel(wire.Frame{}, wire.Span{}) || c.Cancel(wire.Frame{}, wire.Span{}) {
		t.Error("it was not cancelled once")
	}
	silentEnd(t, out)
	w.wantPosts()
	w.setLevel(a, "info", "")
	w.receive(`{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"no"}}`, c.id)
	w.setLevel(a, "info", "info")
	silentEnd(t, out)
}
