package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// awkward holds ids and tokens that a careless proxy confuses or rewrites.
var awkward = []string{
	`0`, `1`, `1.0`, `"1"`, `"0"`, `-7`, `1e3`, `9007199254740993`, `1.50`, `""`, `"\u0061"`, `"a"`, `"ü\/\n"`,
	`"` + strings.Repeat("x", 300) + `"`,
}

// M0, M1, W1, case 25: clients with the same ids, answered in any order, get their
// own answers with the id as they spelled it.
func TestSameIDsOfSeveralClientsNeverMeet(t *testing.T) {
	w := newWorld(t, Config{})
	type sent struct {
		c    *Call
		out  *slot
		id   string
		text string
	}
	var all []sent
	ids := map[uint64]bool{}
	for i := range 3 {
		p := &client{}
		for _, id := range awkward {
			c, out := w.call(p, id)
			all = append(all, sent{c, out, id, fmt.Sprintf("%d %d", i, c.id)})
			ids[c.id] = true
		}
	}
	if len(ids) != len(all) {
		t.Fatalf("%d calls have %d ids upstream", len(all), len(ids))
	}
	slices.Reverse(all)
	for _, s := range all {
		w.receive(`{"jsonrpc":"2.0","result":{"text":"%s"},"id":%d}`, s.text, s.c.id)
	}
	for _, s := range all {
		answeredWith(t, s.out, s.id, `{"jsonrpc":"2.0","result":{"text":"`+s.text+`"},"id":`+s.id+`}`)
	}
	w.empty()
}

// M1, W1: only the id and the token of a request change on the way.
func TestNothingElseInARequestChanges(t *testing.T) {
	for _, test := range []struct{ raw, want string }{
		{
			`{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"x"}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`,
		},
		{
			`{ "id" : 5.0, "x":[1e400,"\u00e9"], "method":"tools/call","jsonrpc":"2.0","params":{"_meta":{"z":1,"progressToken":"t"},"n":12345678901234567890} }`,
			`{ "id" : 1, "x":[1e400,"\u00e9"], "method":"tools/call","jsonrpc":"2.0","params":{"_meta":{"z":1,"progressToken":1},"n":12345678901234567890} }`,
		},
		{
			`{"params":{"_meta":{"progressToken":99}},"jsonrpc":"2.0","method":"x/unknown","id":7}`,
			`{"params":{"_meta":{"progressToken":1}},"jsonrpc":"2.0","method":"x/unknown","id":1}`,
		},
	} {
		w := newWorld(t, Config{})
		c, _ := w.begin(&client{}, test.raw)
		if got := string(c.Message.Bytes); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}

// M1, W1: an answer is passed on as the server wrote it, errors too.
func TestNothingElseInAnAnswerChanges(t *testing.T) {
	for _, answer := range []string{
		`{"jsonrpc":"2.0","id":%s,"result":{"b":1,"a":12345678901234567890,"a":"\u00fc","unknown":[{}]}}`,
		`{ "result":null , "x":1.50, "id":%s,"jsonrpc":"2.0"}`,
		`{"error":{"code":-32000,"message":"no","data":{"id":1}},"id":%s,"jsonrpc":"2.0"}`,
	} {
		w := newWorld(t, Config{})
		_, out := w.call(&client{}, `"mine"`)
		w.receive("%s", fmt.Sprintf(answer, "1"))
		answeredWith(t, out, `"mine"`, fmt.Sprintf(answer, `"mine"`))
	}
}

// Who keeps the answer for resumption must not keep the whole request with it.
func TestAnswerHoldsNothingOfTheRequest(t *testing.T) {
	w := newWorld(t, Config{})
	f, r := frame(t, `{"jsonrpc":"2.0","id":"mine","method":"tools/call","params":{"_meta":{"progressToken":"token"}}}`)
	out := &slot{}
	c, err := w.m.Begin(&client{}, f, r, out)
	if err != nil {
		t.Fatal(err)
	}
	clear(f.Raw)
	w.receive(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d}}`, c.id)
	w.result(c)
	equal(t, "notes", out.notes, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"token"}}`)
	answeredWith(t, out, `"mine"`, `{"jsonrpc":"2.0","id":"mine","result":{}}`)
}

// M1: progress reaches the call it is about, with the client's own token, though all
// clients use the same ones.
func TestProgressTokensAreRestoredExactly(t *testing.T) {
	for _, token := range awkward {
		w := newWorld(t, Config{})
		request := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":` + token + `}}}`
		_, other := w.begin(&client{}, request)
		c, out := w.begin(&client{}, request)
		w.receive(`{"method":"notifications/progress","params":{"progress":0.50,"progressToken":%d,"x":[]},"jsonrpc":"2.0"}`, c.id)
		equal(t, "notes", out.notes, `{"method":"notifications/progress","params":{"progress":0.50,"progressToken":`+token+`,"x":[]},"jsonrpc":"2.0"}`)
		equal(t, "notes of the other client", other.notes)
	}
}

// M1: progress after the result, with an unknown token, or that nobody wanted is
// dropped and counted.
func TestProgressWithoutACallIsDropped(t *testing.T) {
	w := newWorld(t, Config{})
	plain, out := w.call(&client{}, `1`)
	ended, endedOut := w.begin(&client{}, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`)
	w.result(ended)
	tokens := []string{fmt.Sprint(plain.id), fmt.Sprint(ended.id), `999`, `"1"`, `null`, `-1`, `1.5`, `{}`}
	for _, token := range tokens {
		w.receive(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s}}`, token)
	}
	w.receive(`{"jsonrpc":"2.0","method":"notifications/progress"}`)
	if len(out.notes)+len(endedOut.notes)+len(w.logs) != 0 {
		t.Errorf("somebody got it: %q, %q, %q", out.notes, endedOut.notes, w.logs)
	}
	if got, want := w.m.Strays(), int64(len(tokens)+1); got != want {
		t.Errorf("%d strays, want %d", got, want)
	}
}

// W2: a notification whose routing members are ambiguous goes nowhere.
func TestAmbiguousNotificationIsDropped(t *testing.T) {
	w := newWorld(t, Config{})
	c, out := w.begin(&client{}, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`)
	w.receive(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d,"progressToken":7}}`, c.id)
	if len(out.notes) != 0 || w.m.Strays() != 1 {
		t.Errorf("notes %q, %d strays", out.notes, w.m.Strays())
	}
}

// Case 3, M1: answers that are for no call are dropped; the first answer counts.
func TestAnswersWithoutACallAreDropped(t *testing.T) {
	w := newWorld(t, Config{})
	c, out := w.call(&client{}, `"a"`)
	for _, id := range []string{`2`, `0`, `"1"`, `"a"`, `-1`, `1.5`, `18446744073709551617`, `1e99`} {
		w.receive(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
	}
	w.receive(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}`)
	w.receive(`{"jsonrpc":"2.0","error":{"code":-32700,"message":"?"}}`)
	pending(t, out)
	w.result(c)
	w.receive(`{"jsonrpc":"2.0","id":%d,"result":{"again":true}}`, c.id)
	answeredWith(t, out, `"a"`, `{"jsonrpc":"2.0","id":"a","result":{}}`)
	if got := w.m.Strays(); got != 11 {
		t.Errorf("%d strays, want 11", got)
	}
}

// M1: servers that keep numbers as floats spell our ids anew.
func TestOurIDSpelledAsAFloatIsOurs(t *testing.T) {
	for _, id := range []string{`1.0`, `1e0`, `10E-1`} {
		w := newWorld(t, Config{})
		_, out := w.call(&client{}, `"a"`)
		w.receive(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
		answeredWith(t, out, `"a"`, `{"jsonrpc":"2.0","id":"a","result":{}}`)
	}
}

// M2, case 30: a cancellation carries our id, and only that of the sender's call.
func TestCancelIsTranslated(t *testing.T) {
	for _, id := range []string{`0`, `"x"`} {
		w := newWorld(t, Config{})
		_, otherOut := w.call(&client{}, id)
		c, out := w.call(&client{}, id)
		f, r := frame(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"\u0062ored","requestId":`+id+`,"x":1.0}}`)
		if !c.Cancel(f, r.RequestID) {
			t.Error("the call was not ended")
		}
		w.wantPosts(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"\u0062ored","requestId":%d,"x":1.0}}`, c.id))
		silentEnd(t, out)
		pending(t, otherOut)
	}
}

// M2: no answer and no progress follow a cancelled call.
func TestNothingFollowsACancelledCall(t *testing.T) {
	w := newWorld(t, Config{})
	c, out := w.begin(&client{}, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`)
	c.Cancel(wire.Frame{}, wire.Span{})
	w.wantPosts(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, c.id))
	w.receive(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d}}`, c.id)
	w.result(c)
	silentEnd(t, out)
	equal(t, "notes", out.notes)
	if w.m.Strays() != 2 {
		t.Errorf("%d strays, want 2", w.m.Strays())
	}
	w.empty()
}

// M2: a call that has ended cannot be cancelled, and the server hears nothing of it.
func TestCancelOfAFinishedCallIsIgnored(t *testing.T) {
	w := newWorld(t, Config{})
	c, out := w.call(&client{}, `1`)
	w.result(c)
	if c.Cancel(wire.Frame{}, wire.Span{}) || c.Fail(fault.New(fault.CallTimeout, "late")) {
		t.Error("the call was ended twice")
	}
	w.wantPosts()
	answeredWith(t, out, `1`, `{"jsonrpc":"2.0","id":1,"result":{}}`)
}

func TestFailAnswersTheClientAndCancelsUpstream(t *testing.T) {
	w := newWorld(t, Config{})
	c, out := w.call(&client{}, `"a"`)
	if !c.Fail(fault.New(fault.CallTimeout, "too slow")) {
		t.Error("the call was not ended")
	}
	failedWith(t, out, `"a"`, fault.CallTimeout)
	w.wantPosts(cancelOf(c, "call_timeout"))
	w.result(c)
	w.empty()
}

// M2: a client that leaves ends its own calls only, with an answer or without.
func TestLeavingEndsOnlyTheClientsOwnCalls(t *testing.T) {
	for _, err := range []*fault.Error{nil, fault.New(fault.UnknownSession, "the session ended")} {
		w := newWorld(t, Config{})
		a, b := &client{}, &client{}
		c1, out1 := w.call(a, `1`)
		c2, out2 := w.call(a, `2`)
		c3, out3 := w.call(b, `1`)
		w.m.Leave(a, err)
		w.wantPosts(cancelOf(c1, "the client left"), cancelOf(c2, "the client left"))
		if err == nil {
			silentEnd(t, out1)
			silentEnd(t, out2)
		} else {
			failedWith(t, out1, `1`, fault.UnknownSession)
			failedWith(t, out2, `2`, fault.UnknownSession)
		}
		pending(t, out3)
		w.result(c3)
		w.m.Leave(a, err) // once more is harmless
		w.m.Leave(&client{}, err)
		w.wantPosts()
		w.empty()
	}
}

// link is a server's pipes in memory, of which the test holds the far end.
func link(t *testing.T) (*upstream.Stdio, io.Closer) {
	out, far := io.Pipe()
	return upstream.NewStdio(upstream.StdioConfig{In: nopCloser{io.Discard}, Out: out}), far
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// R2, case 35: when the connection is lost every call of everybody gets an error that
// says whether the call may have been executed.
func TestLossAnswersEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Server: "files", Generation: 3, Policy: Serialize})
		a, b := &client{}, &client{}
		sent, sentOut := w.call(a, `1`)
		_, unsentOut := w.call(a, `2`)
		waiting, waitingOut := w.call(b, `1`)
		own, ownOut := w.begin(nil, `{"jsonrpc":"2.0","id":0,"method":"tools/list"}`)
		_, subOut := w.begin(b, `{"jsonrpc":"2.0","id":"s","method":"resources/subscribe","params":{"uri":"u"}}`)
		_, parkedOut := w.begin(a, `{"jsonrpc":"2.0","id":"s","method":"resources/subscribe","params":{"uri":"u"}}`)

		l, far := link(t)
		ended := make(chan error)
		go func() { ended <- l.Run(nil) }()
		for _, c := range []*Call{sent, own} {
			if err := l.Send(t.Context(), c.Message); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		far.Close()
		<-ended
		w.m.Lose(fault.New(fault.Interrupted, "the server has died"))
		w.m.Lose(fault.New(fault.Internal, "again"))

		for _, x := range []struct {
			out      *slot
			id, sent string
		}{{sentOut, `1`, "maybe"}, {unsentOut, `2`, "no"}, {waitingOut, `1`, "no"}, {ownOut, `0`, "maybe"}, {subOut, `"s"`, "no"}, {parkedOut, `"s"`, "no"}} {
			got := failedWith(t, x.out, x.id, fault.Interrupted)
			for _, part := range []string{`"sent":"` + x.sent + `"`, `"server":"files"`, `"generation":3`, `the server has died`} {
				if !strings.Contains(got, part) {
					t.Errorf("%s lacks %s", got, part)
				}
			}
		}
		<-waiting.Ready()
		if admitted(waiting) {
			t.Error("a waiting call may be sent after the loss")
		}
		w.wantPosts() // nobody reads it
		w.m.Leave(a, nil)
		w.m.Leave(b, nil)
		w.empty()
	})
}

// R2, R5: a call after the loss fails at once, and may be retried.
func TestCallsAfterTheLossAreRefused(t *testing.T) {
	w := newWorld(t, Config{Server: "files"})
	w.m.Lose(fault.New(fault.Interrupted, "the server has died"))
	for _, raw := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"u"}}`,
	} {
		f, r := frame(t, raw)
		out := &slot{}
		c, err := w.m.Begin(&client{}, f, r, out)
		if c != nil || !fault.Is(err, fault.Interrupted) || !fault.SafeToRetry(err) {
			t.Errorf("%v, %v", c, err)
		}
		pending(t, out)
	}
	w.m.Join(&client{})
	w.empty()
}

// R2: after the loss nobody reads what a leaving client would have the server told.
func TestLeavingAfterTheLossIsSilent(t *testing.T) {
	w := newWorld(t, Config{})
	a, b := &client{}, &client{}
	w.subscribe(a, "u")
	w.setLevel(a, "debug", "debug")
	w.setLevel(b, "error", "")
	w.m.Lose(fault.New(fault.Interrupted, "gone"))
	w.m.Leave(a, nil)
	w.m.Leave(b, nil)
	w.wantPosts()
	w.empty()
}

// P7: an answer over the limit fails its call alone.
func TestOversizeAnswerFailsItsCallAlone(t *testing.T) {
	w := newWorld(t, Config{Server: "files"})
	c, out := w.call(&client{}, `"a"`)
	_, other := w.call(&client{}, `"a"`)
	w.m.Oversize(fmt.Append(nil, c.id), wire.Response, 1000, 100)
	if got := failedWith(t, out, `"a"`, fault.TooLarge); !strings.Contains(got, "1000 bytes; the limit is 100") || !strings.Contains(got, `"sent":"maybe"`) {
		t.Error(got)
	}
	pending(t, other)
	w.result(c) // it cannot come twice
	w.m.Oversize(fmt.Append(nil, c.id), wire.Response, 1000, 100)
	w.m.Oversize(nil, wire.Notification, 1000, 100)
	if w.m.Strays() != 3 {
		t.Errorf("%d strays, want 3", w.m.Strays())
	}
	w.wantPosts()
}

// P7, M6: a server's request over the limit is answered, so that it does not wait.
func TestOversizeRequestIsAnswered(t *testing.T) {
	w := newWorld(t, Config{})
	w.m.Oversize([]byte(`"s"`), wire.Request, 1000, 100)
	w.wantPosts(`{"jsonrpc":"2.0","id":"s","error":{"code":-32600,"message":"the request is too large"}}`)
}

// Calls of roundhouse itself have nobody: they count for no client and wait for no turn.
func TestOwnCallsStandBesideTheClients(t *testing.T) {
	w := newWorld(t, Config{Policy: Serialize})
	_, _ = w.call(&client{}, `1`)
	own, out := w.begin(nil, `{"jsonrpc":"2.0","id":0,"method":"tools/list"}`)
	if !ready(own) || w.m.InFlight() != 1 {
		t.Errorf("ready %v, %d in flight", ready(own), w.m.InFlight())
	}
	w.receive(`{"jsonrpc":"2.0","id":%d,"result":{"tools":[]}}`, own.id)
	answeredWith(t, out, `0`, `{"jsonrpc":"2.0","id":0,"result":{"tools":[]}}`)
}

func TestLastCallIsWhenACallBeganOrEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		step := func(what string, f func()) {
			time.Sleep(time.Minute)
			f()
			if got := w.m.LastCall(); !got.Equal(time.Now()) {
				t.Errorf("after %s: %s ago", what, time.Since(got))
			}
		}
		if !w.m.LastCall().Equal(time.Now()) {
			t.Error("at first it is not the time of New")
		}
		var c *Call
		step("begin", func() { c, _ = w.call(&client{}, `1`) })
		step("answer", func() { w.result(c) })
		step("begin", func() { c, _ = w.call(&client{}, `1`) })
		step("cancel", func() { c.Cancel(wire.Frame{}, wire.Span{}) })
		at := w.m.LastCall()
		time.Sleep(time.Minute)
		own, _ := w.begin(nil, `{"jsonrpc":"2.0","id":0,"method":"tools/list"}`)
		w.result(own)
		if !w.m.LastCall().Equal(at) {
			t.Error("a call of roundhouse's own counts")
		}
	})
}

func TestLastProgressIsWhenItCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		c, _ := w.begin(&client{}, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`)
		if !c.LastProgress().IsZero() {
			t.Error("there was none yet")
		}
		time.Sleep(time.Minute)
		w.receive(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d}}`, c.id)
		at := time.Now()
		time.Sleep(time.Minute)
		if !c.LastProgress().Equal(at) {
			t.Errorf("%s, want %s", c.LastProgress(), at)
		}
	})
}

func TestErrorsOfBeginAreFaults(t *testing.T) {
	w := newWorld(t, Config{Server: "s", Generation: 9})
	w.m.Lose(fault.New(fault.Interrupted, "gone: %w", context.Canceled))
	f, r := frame(t, `{"jsonrpc":"2.0","id":1,"method":"x"}`)
	_, err := w.m.Begin(&client{}, f, r, &slot{})
	e, ok := errors.AsType[*fault.Error](err)
	if !ok || e.Server != "s" || e.Generation != 9 || !errors.Is(err, context.Canceled) {
		t.Errorf("%#v", err)
	}
}
