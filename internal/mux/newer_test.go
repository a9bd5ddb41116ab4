package mux

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// newerWorld is a world whose connection has no handshake, and announces these lists.
func newerWorld(t *testing.T, streams bool, lists ...List) (*world, <-chan struct{}) {
	w := newWorld(t, Config{})
	w.m.cfg.Cancel = func(m *upstream.Message) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.posts = append(w.posts, "closed "+string(m.ID))
	}
	return w, w.m.Newer(Newer{Meta: []byte(`"m":1`), Lists: lists, Streams: streams})
}

const (
	listsParams = `{"_meta":{"m":1},"notifications":{"promptsListChanged":true,"toolsListChanged":true}}`
	uriParam    = `{"_meta":{"m":1},"notifications":{"resourceSubscriptions":["file:///x"]}}`
)

func listening(id int, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscriptions/listen","params":%s}`, id, params)
}

func withdrawn(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id)
}

// acknowledge grants the listen with that id.
func (w *world) acknowledge(id int, what string) {
	w.t.Helper()
	w.receive(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{%q:%d},"notifications":%s}}`, wire.MetaSubscription, id, what)
}

const (
	allLists = `{"promptsListChanged":true,"toolsListChanged":true}`
	oneURI   = `{"resourceSubscriptions":["file:///x"]}`
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// M9: one listen covers the lists. When it ends it is begun anew, and what may have been
// missed is read again.
func TestListsAreListenedTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, first := newerWorld(t, false, Tools, Prompts)
		w.wantPosts(listening(1, listsParams))
		if isClosed(first) {
			t.Error("acknowledged before the server has said so")
		}
		w.acknowledge(1, allLists)
		if !isClosed(first) || len(w.changes) != 0 {
			t.Errorf("not acknowledged, or changed at once: %v", w.changes)
		}
		w.receive(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{%q:1}}}`, wire.MetaSubscription)
		if !slices.Equal(w.changes, []List{Tools}) {
			t.Errorf("changed: %v", w.changes)
		}
		w.changes = nil
		w.receive(`{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete"}}`)
		w.wantPosts()
		time.Sleep(relistenFirst)
		synctest.Wait()
		w.wantPosts(listening(2, listsParams))
		w.acknowledge(2, `{"toolsListChanged":true}`)
		if !slices.Equal(w.changes, []List{Tools}) {
			t.Errorf("read again: %v", w.changes)
		}
		// One that does not come back is tried more and more seldom.
		for i, wait := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
			w.m.Refuse(fmt.Append(nil, i+2), fault.New(fault.Interrupted, "cut off"))
			time.Sleep(wait*time.Second - time.Nanosecond)
			synctest.Wait()
			w.wantPosts()
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			w.wantPosts(listening(i+3, listsParams))
		}
		w.m.Lose(fault.New(fault.Interrupted, "gone"))
		time.Sleep(time.Hour)
		synctest.Wait()
		w.wantPosts()
	})
}

// M9: a server that grants nothing, or knows no listening, is not asked again.
func TestServersThatAnnounceNothing(t *testing.T) {
	for what, end := range map[string]func(w *world){
		"nothing is granted": func(w *world) {
			w.acknowledge(1, `{}`)
			w.receive(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		},
		"unknown method": func(w *world) { w.receive(`{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, first := newerWorld(t, false, Tools)
				w.posted()
				end(w)
				time.Sleep(time.Hour)
				synctest.Wait()
				w.wantPosts()
				if !isClosed(first) {
					t.Error("somebody waits for it")
				}
			})
		})
	}
	w, first := newerWorld(t, false)
	w.wantPosts()
	if !isClosed(first) {
		t.Error("a server without lists is waited for")
	}
}

// M4: the first subscription to a resource becomes a listen of ours, which the others
// share; on a pipe it stays when the last has left.
func TestSubscriptionsBecomeListens(t *testing.T) {
	for _, streams := range []bool{false, true} {
		w, _ := newerWorld(t, streams)
		a, b, c := &client{name: "a"}, &client{name: "b"}, &client{name: "c"}
		_, outA := w.begin(a, subscribing(`"file:///x"`))
		call, outB := w.begin(b, strings.Replace(subscribing(`"file:///x"`), `"id":1`, `"id":"b"`, 1))
		if call != nil || len(outA.dones)+len(outB.dones) != 0 {
			t.Fatal("a subscription was sent as it is, or answered too early")
		}
		w.wantPosts(listening(1, uriParam))
		w.acknowledge(1, oneURI)
		answeredWith(t, outA, `1`, done)
		answeredWith(t, outB, `"b"`, `{"jsonrpc":"2.0","id":"b","result":{}}`)

		w.receive(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///x","_meta":{%q:1,"x":2}}}`, wire.MetaSubscription)
		for _, p := range []*client{a, b} {
			equal(t, "heard by "+p.name, p.notices, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///x","_meta":{"x":2}}}`)
		}
		if len(c.notices) != 0 {
			t.Errorf("who has not subscribed heard %s", c.notices)
		}

		_, out := w.begin(a, unsubscribing(`"file:///x"`))
		answeredWith(t, out, `1`, done)
		w.wantPosts()
		w.m.Leave(b, nil)
		if streams {
			w.wantPosts(withdrawn(1), "closed 1")
		} else {
			w.wantPosts()
		}
		_, out = w.begin(c, subscribing(`"file:///x"`))
		if streams {
			w.wantPosts(listening(2, uriParam))
			w.acknowledge(2, oneURI)
		}
		answeredWith(t, out, `1`, done)
		w.wantPosts()
	}
}

// M4: who wants to hear of what the server does not announce is told so.
func TestSubscriptionsThatAreNotGranted(t *testing.T) {
	const no = `"error":{"code":-32602,"message":"the server does not announce changes of this resource"}}`
	for what, c := range map[string]struct {
		end  func(w *world)
		want string
	}{
		"not granted": {func(w *world) { w.acknowledge(1, `{}`) }, no},
		"an error":    {func(w *world) { w.receive(`{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"full"}}`) }, `"error":{"code":-32603,"message":"full"}}`},
		"ended":       {func(w *world) { w.receive(`{"jsonrpc":"2.0","id":1,"result":{}}`) }, no},
		"taken back": {func(w *world) {
			w.receive(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		}, no},
	} {
		t.Run(what, func(t *testing.T) {
			w, _ := newerWorld(t, false)
			a, b := &client{}, &client{}
			_, outA := w.begin(a, subscribing(`"file:///x"`))
			_, outB := w.begin(b, strings.Replace(subscribing(`"file:///x"`), `"id":1`, `"id":2`, 1))
			c.end(w)
			answeredWith(t, outA, `1`, `{"jsonrpc":"2.0","id":1,`+c.want)
			answeredWith(t, outB, `2`, `{"jsonrpc":"2.0","id":2,`+c.want)
			w.empty()
		})
	}
	w, _ := newerWorld(t, false)
	_, out := w.begin(&client{}, subscribing(`"file:///x"`))
	w.m.Lose(fault.New(fault.Interrupted, "gone"))
	if len(out.dones) != 1 || !strings.Contains(out.dones[0], "gone") {
		t.Errorf("got %s", out.dones)
	}
}

// M9: a listen to a resource that ends is begun anew, and its subscribers are told that
// they may have missed something. On a pipe the lists are listened to anew as well.
func TestListensThatEndAreBegunAnew(t *testing.T) {
	for _, streams := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, _ := newerWorld(t, streams, Tools, Prompts)
			w.acknowledge(1, allLists)
			a := &client{}
			_, out := w.begin(a, subscribing(`"file:///x"`))
			w.acknowledge(2, oneURI)
			answeredWith(t, out, `1`, done)
			w.posted()
			w.m.Refuse([]byte("2"), fault.New(fault.Interrupted, "cut off"))
			time.Sleep(relistenFirst)
			synctest.Wait()
			got := w.posted()
			slices.Sort(got)
			for i := range got { // the order of two timers is not ours
				got[i] = got[i][strings.Index(got[i], `"notifications"`):]
			}
			want := []string{uriParam[strings.Index(uriParam, `"notifications"`):] + "}"}
			if !streams {
				want = append(want, listsParams[strings.Index(listsParams, `"notifications"`):]+"}")
			}
			slices.Sort(got)
			slices.Sort(want)
			equal(t, "posts", got, want...)
			for id := 3; id <= 4; id++ {
				w.acknowledge(id, oneURI)
			}
			equal(t, "heard", a.notices, `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///x"}}`)
			w.m.Lose(fault.New(fault.Interrupted, "gone"))
		})
	}
}

func (w *world) logging(p Peer, id, level string) *slot {
	w.t.Helper()
	meta := ""
	if level != "" {
		meta = fmt.Sprintf(`,"_meta":{"io.modelcontextprotocol/logLevel":%q}`, level)
	}
	_, out := w.begin(p, `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"x"`+meta+`}}`)
	return out
}

// M5: a log message goes to those whose request in flight asked for it, once each; over
// HTTP to the one of its request. What nobody asked for is the server's log's.
func TestLogMessagesGoToThoseWhoAskedForThem(t *testing.T) {
	w, _ := newerWorld(t, false)
	a, b, c := &client{}, &client{}, &client{}
	outA, outB, outC := w.logging(a, "1", "debug"), w.logging(b, "1", "error"), w.logging(c, "1", "")
	outA2 := w.logging(a, "2", "debug")
	info := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`
	failure := strings.Replace(info, "info", "error", 1)
	w.receive("%s", info)
	w.receive("%s", failure)
	equal(t, "a", append(outA.notes, outA2.notes...), info, failure)
	equal(t, "b", outB.notes, failure)
	equal(t, "c", outC.notes)
	equal(t, "the log", w.logs)

	f, _ := frame(t, info)
	w.m.Receive(f, []byte("4")) // a's second request
	equal(t, "a's second", outA2.notes, info)
	w.m.Receive(f, []byte("2"))
	w.m.Receive(f, []byte("3"))
	w.m.Receive(f, []byte("99"))
	equal(t, "b", outB.notes, failure)
	equal(t, "the log", w.logs, info, info, info)
}

// M6: in this era a server asks nothing by requests, and what a client sends no answer to
// gets none.
func TestRequestsOfServersHaveNoAnswerInTheNewerEra(t *testing.T) {
	w, _ := newerWorld(t, false)
	a := &client{}
	w.logging(a, "1", "")
	w.receive(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	w.receive(`{"jsonrpc":"2.0","id":2,"method":"sampling/createMessage","params":{}}`)
	w.wantPosts()
	if len(a.asks) != 0 || w.m.Strays() != 2 {
		t.Errorf("asked %v, %d strays", a.asks, w.m.Strays())
	}
}

// M2: the transport hears of a call that nobody waits for any more; over HTTP that is all
// that the server hears.
func TestTheTransportHearsOfCancelledCalls(t *testing.T) {
	w, _ := newerWorld(t, true)
	a := &client{}
	one, _ := w.call(a, "1")
	two, _ := w.call(a, "2")
	one.Cancel(wire.Frame{}, wire.Span{})
	w.m.Leave(a, nil)
	posts := w.posted()
	for _, c := range []*Call{one, two} {
		if !slices.Contains(posts, fmt.Sprintf("closed %d", c.id)) {
			t.Errorf("call %d was not closed: %v", c.id, posts)
		}
	}
}

// H1: calls are described for the headers that the newer era wants.
func TestCallsAreNamedForTheTransport(t *testing.T) {
	w, _ := newerWorld(t, true)
	for raw, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t\u006fol"}}`:          "tool",
		`{"jsonrpc":"2.0","id":2,"method":"prompts/get","params":{"name":"p"}}`:                 "p",
		`{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":"file:///x"}}`:       "file:///x",
		`{"jsonrpc":"2.0","id":4,"method":"completion/complete","params":{"name":"c","ref":1}}`: "",
		`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":7}}`:                    "",
	} {
		c, _ := w.begin(&client{}, raw)
		if c.Message.Name != want {
			t.Errorf("%s is named %q", raw, c.Message.Name)
		}
	}
}
