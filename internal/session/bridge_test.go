package session

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/wire"
)

// newerServer plays a server of the newer era for a world.
type newerServer struct {
	w *world

	mu    sync.Mutex
	got   []string                         // requests but discover, listens and lists, as they came
	reply func(n int, f wire.Frame) string // what follows the id in the answer to the nth call; "" is none
	calls int
	tools string
	older bool // it has the older era, too
	gone  bool // it has the newer era no more
	swift bool // its answers are there before a call is known to be on its way
}

const newerTools = `{"resultType":"complete","tools":[{"name":"echo"},{"name":"list","outputSchema":{"type":"array"}}],"ttlMs":60000,"cacheScope":"public"}`

func (s *newerServer) on(l *link, f wire.Frame) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	say := func(rest string) {
		l.wg.Go(func() { l.say([]byte(`{"jsonrpc":"2.0","id":` + string(f.ID()) + `,` + rest + `}`)) })
	}
	switch f.Method {
	case wire.MethodInitialize:
		if s.older {
			return false
		}
		say(`"error":{"code":-32022,"message":"no"}`)
	case wire.Discover:
		if s.gone {
			say(`"error":{"code":-32601,"message":"no"}`)
			return true
		}
		say(`"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"resources":{"subscribe":true},"logging":{},"extensions":{"x":{}}},"instructions":"Do.","ttlMs":5,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s","version":"3"}}}`)
	case wire.ToolsList:
		if s.tools == "" {
			s.tools = newerTools
		}
		say(`"result":` + s.tools)
	case wire.SubscriptionsListen:
		var p struct{ Notifications json.RawMessage }
		_ = json.Unmarshal(f.Params(), &p)
		id, what := string(f.ID()), string(p.Notifications)
		l.wg.Go(func() {
			l.say(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{%q:%s},"notifications":%s}}`, wire.MetaSubscription, id, what))
		})
	case wire.ResourcesList, wire.ResourcesTemplatesList:
		return false
	default:
		s.got = append(s.got, string(f.Raw))
		if f.Kind != wire.Request {
			return true
		}
		s.calls++
		switch answer := s.reply(s.calls, f); {
		case answer == "":
		case s.swift:
			l.say([]byte(`{"jsonrpc":"2.0","id":` + string(f.ID()) + `,` + answer + `}`))
		default:
			say(answer)
		}
	}
	return true
}

// requests returns what came since it was last asked.
func (s *newerServer) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.got
	s.got = nil
	return got
}

func completeReply(int, wire.Frame) string {
	return `"result":{"resultType":"complete","content":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"},"x":1}}`
}

// inNewerWorld runs a test with one server of the newer era, called a.
func inNewerWorld(t *testing.T, change func(*config.Server), test func(w *world, s *newerServer)) {
	t.Helper()
	a := server("a")
	if change != nil {
		change(a)
	}
	inWorld(t, usual, []*config.Server{a}, func(w *world) {
		s := &newerServer{w: w, reply: completeReply}
		w.on = s.on
		test(w, s)
	})
}

// hello makes a client with a handshake and returns the answer to it.
func (w *world) hello(scope, capabilities string) (*Client, string) {
	w.Helper()
	raw := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":` + capabilities + `,"clientInfo":{"name":"c","version":"2","title":"C"}}}`
	f, err := wire.Parse([]byte(raw))
	if err != nil {
		w.Fatal(err)
	}
	c, p, err := w.m.Initialize(context.Background(), Hello{ClientID: NewID(), Principal: "local", Scope: scope, Frame: f, Stream: newTray()})
	if err != nil {
		w.Fatal(err)
	}
	return c, string(p.AppendTo(nil))
}

// ask makes a request and returns where its answer will be.
func (c *Client) request(raw string) *tray {
	f, err := wire.Parse([]byte(raw))
	if err != nil {
		panic(err)
	}
	x := newTray()
	c.Session().Do(c, f, x)
	return x
}

func (x *tray) answer(t testing.TB) string {
	t.Helper()
	synctest.Wait()
	select {
	case p := <-x.done:
		return string(p.AppendTo(nil))
	default:
		t.Error("there is no answer yet")
		return ""
	}
}

func (x *tray) notes() []string {
	synctest.Wait()
	x.mu.Lock()
	defer x.mu.Unlock()
	got := x.pushed
	x.pushed = nil
	return got
}

// respond is a client's response to a question.
func (c *Client) respond(raw string) {
	f, err := wire.Parse([]byte(raw))
	if err != nil {
		panic(err)
	}
	c.Session().Do(c, f, nil)
}

func expect(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\ngot  %s\nwant %s", what, got, want)
	}
}

func expectOne(t testing.TB, what string, got []string, want string) {
	t.Helper()
	expect(t, what, strings.Join(got, "\n     "), want)
}

const triple = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s,"io.modelcontextprotocol/clientInfo":{"name":"c","version":"2","title":"C"},"io.modelcontextprotocol/logLevel":%q`

// M3, M5, M8: a client of the older era is answered from the server's discovery, and each
// of its requests says who it is; what the new era adds to answers is taken out.
func TestAnOlderClientAtANewerServer(t *testing.T) {
	inNewerWorld(t, nil, func(w *world, s *newerServer) {
		c, hand := w.hello("a", `{"sampling":{},"roots":{"listChanged":true}}`)
		expect(t, "initialize", hand, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"s","version":"3"},"instructions":"Do."}}`)
		expect(t, "tools", c.do(2, wire.ToolsList, `{}`), `{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"echo"},{"name":"list"}]}}`)

		x := c.request(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"echo","arguments":{"n":1.0}}}`)
		expect(t, "answer", x.answer(t), `{"jsonrpc":"2.0","id":"x","result":{"content":[],"_meta":{"x":1}}}`)
		id := w.link("a").last()
		expectOne(t, "request", s.requests(), `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"_meta":{`+fmt.Sprintf(triple, `{"roots":{},"sampling":{}}`, "info")+`},"name":"echo","arguments":{"n":1.0}}}`)

		expect(t, "level", c.do(3, wire.LoggingSetLevel, `{"level":"debug"}`), `{"jsonrpc":"2.0","id":3,"result":{}}`)
		if got := c.do(4, wire.LoggingSetLevel, `{"level":"loud"}`); !strings.Contains(got, "-32602") {
			t.Errorf("no level: %s", got)
		}
		c.do(5, wire.ToolsCall, `{"name":"echo"}`)
		got := s.requests()
		if len(got) != 1 || !strings.Contains(got[0], `logLevel":"debug"`) {
			t.Errorf("the request is %s", got)
		}
		if got := c.do(6, "tasks/list", `{}`); !strings.Contains(got, "-32601") {
			t.Errorf("tasks: %s", got)
		}
		c.Session().Do(c, frameOf(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`), nil)
		synctest.Wait()
		if got := s.requests(); len(got) != 0 {
			t.Errorf("the server heard %s", got)
		}
	})
}

func frameOf(raw string) wire.Frame {
	f, err := wire.Parse([]byte(raw))
	if err != nil {
		panic(err)
	}
	return f
}

// last returns the id of the last request that came.
func (l *link) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastID
}

// M4, M8: subscriptions of both kinds of clients are heard of.
func TestSubscriptionsAtANewerServer(t *testing.T) {
	inNewerWorld(t, nil, func(w *world, s *newerServer) {
		c := w.client("a", "")
		expect(t, "subscribe", c.do(2, wire.ResourcesSubscribe, `{"uri":"file:///x"}`), `{"jsonrpc":"2.0","id":2,"result":{}}`)
		w.link("a").say([]byte(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":9},"uri":"file:///x"}}`))
		expectOne(t, "heard", c.Stream().(*tray).notes(), `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///x"}}`)
		expect(t, "unsubscribe", c.do(3, wire.ResourcesUnsubscribe, `{"uri":"file:///x"}`), `{"jsonrpc":"2.0","id":3,"result":{}}`)
	})
}

const (
	wantsSampling = `"result":{"resultType":"input_required","inputRequests":{"k\u0031":{"method":"sampling/createMessage","params":{"maxTokens":10}},"k2":{"method":"elicitation/create","params":{"message":"Who?"}}},"requestState":"s\u0031"}`
	asking        = `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"_meta":{"progressToken":7},"name":"echo"}}`
)

// M8: what a server of the newer era wants to know is asked of the client on the stream
// of its call, and its answers go back with the same request under a new id.
func TestInputThatIsRequiredIsAskedOfTheClient(t *testing.T) {
	inNewerWorld(t, nil, func(w *world, s *newerServer) {
		s.reply = func(n int, f wire.Frame) string {
			if n == 1 {
				return wantsSampling
			}
			return completeReply(n, f)
		}
		c, _ := w.hello("a", `{"sampling":{},"elicitation":{}}`)
		x := c.request(asking)
		expectOne(t, "asked", x.notes(), `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"maxTokens":10}}
     {"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{"message":"Who?"}}`)
		first := s.requests()
		c.respond(`{"jsonrpc":"2.0","id":2,"result":{"action":"accept","content":{"n":1.0}}}`)
		c.respond(`{"jsonrpc":"2.0","id":2,"result":{"action":"decline"}}`) // answered already (M7)
		synctest.Wait()
		if got := s.requests(); len(got) != 0 {
			t.Errorf("sent again before all was answered: %s", got)
		}
		c.respond(`{"jsonrpc":"2.0","id":1,"result":{"role":"assistant" }}`)
		expect(t, "answer", x.answer(t), `{"jsonrpc":"2.0","id":"x","result":{"content":[],"_meta":{"x":1}}}`)
		again := s.requests()
		if len(first) != 1 || len(again) != 1 {
			t.Fatalf("%d and %d requests", len(first), len(again))
		}
		a, b := frameOf(first[0]), frameOf(again[0])
		if string(a.ID()) == string(b.ID()) {
			t.Error("the same id again")
		}
		want := `{"inputResponses":{"k\u0031":{"role":"assistant" },"k2":{"action":"accept","content":{"n":1.0}}},"requestState":"s\u0031",` + string(a.Params()[1:])
		want = strings.Replace(want, `"progressToken":`+string(a.ID()), `"progressToken":`+string(b.ID()), 1)
		expect(t, "params", string(b.Params()), want)
	})
}

// M8, M7: what the client cannot be asked, does not answer or refuses ends the call with
// an error that says so; a person who is not there has cancelled.
func TestInputThatCannotBeHad(t *testing.T) {
	for _, c := range []struct{ name, capabilities, response, want string }{
		{"not declared", `{"elicitation":{}}`, "", `"message":"server \"a\" wants the client to answer sampling/createMessage, but the client does not declare sampling"`},
		{"an error", `{"sampling":{},"elicitation":{}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"never"}}`, `"isError":true`},
		{"no answer", `{"sampling":{},"elicitation":{}}`, "", `"isError":true`},
		{"only forms", `{"elicitation":{"url":{}},"sampling":{}}`, "", "does not declare elicitation.form"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inNewerWorld(t, nil, func(w *world, s *newerServer) {
				s.reply = func(int, wire.Frame) string { return wantsSampling }
				k, _ := w.hello("a", c.capabilities)
				x := k.request(asking)
				synctest.Wait()
				if c.response != "" {
					k.respond(c.response)
				}
				time.Sleep(time.Minute) // InteractiveTimeout
				if got := x.answer(t); !strings.Contains(got, c.want) {
					t.Errorf("got %s, want %s", got, c.want)
				}
				if n := len(s.requests()); n != 1 {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
	inNewerWorld(t, nil, func(w *world, s *newerServer) {
		s.reply = func(n int, f wire.Frame) string {
			if n == 1 {
				return `"result":{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":{"mode":"url","url":"https://x.example/","message":"m"}}}}`
			}
			return completeReply(n, f)
		}
		c, _ := w.hello("a", `{"elicitation":{"url":{}}}`)
		x := c.request(asking)
		if got := x.notes(); len(got) != 1 || !strings.Contains(got[0], `"elicitationId":"`) {
			t.Errorf("asked %s", got)
		}
		c.respond(`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`)
		x.answer(t)
		if got := s.requests(); len(got) != 2 || !strings.Contains(got[1], `{"inputResponses":{"k":{"action":"cancel"}},"_meta"`) {
			t.Errorf("got %s", got)
		}
	})
}

// M2, M8: a call that is cancelled between two rounds, or whose client leaves, takes its
// questions back and is not made again.
func TestCancelBetweenRounds(t *testing.T) {
	for _, swift := range []bool{false, true} {
		testCancelBetweenRounds(t, swift)
	}
}

func testCancelBetweenRounds(t *testing.T, swift bool) {
	inNewerWorld(t, nil, func(w *world, s *newerServer) {
		s.swift = swift
		s.reply = func(int, wire.Frame) string { return wantsSampling }
		c, _ := w.hello("a", `{"sampling":{},"elicitation":{}}`)
		x := c.request(asking)
		if n := len(x.notes()); n != 2 {
			t.Fatalf("%d questions", n)
		}
		c.Session().Do(c, frameOf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x"}}`), nil)
		expect(t, "answer", x.answer(t), "")
		if got := c.Stream().(*tray).notes(); len(got) != 2 || !strings.Contains(got[0], wire.Cancelled) {
			t.Errorf("the client heard %s", got)
		}
		c.respond(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		c.respond(`{"jsonrpc":"2.0","id":2,"result":{}}`)

		y := c.request(strings.Replace(asking, `"x"`, `"y"`, 1))
		y.notes()
		c.Delete()
		if got := y.answer(t); !strings.Contains(got, "error") {
			t.Errorf("got %s", got)
		}
		if n := len(s.requests()); n != 2 {
			t.Errorf("%d requests", n)
		}
	})
}

// M8: a server that only wants time gets it, more and more; one that never ends is given
// up. Progress that begins anew does not go back.
func TestRoundsHaveAnEnd(t *testing.T) {
	inNewerWorld(t, nil, func(w *world, s *newerServer) {
		s.reply = func(n int, f wire.Frame) string {
			r, _ := f.Routing()
			l := w.link("a")
			l.wg.Go(func() {
				l.say(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, r.ProgressToken.Of(f.Raw), n%3))
			})
			return `"result":{"resultType":"input_required","requestState":"later"}`
		}
		c := w.client("a", "")
		begun := time.Now()
		x := c.request(asking)
		if got := string((<-x.done).AppendTo(nil)); !strings.Contains(got, "10 times") {
			t.Errorf("got %s", got)
		}
		if took := time.Since(begun); took < 30*time.Second {
			t.Errorf("it took %s", took)
		}
		if n := len(s.requests()); n != maxRounds+1 {
			t.Errorf("%d requests", n)
		}
	})
}

// H1: a tool that wants headers which our list does not know of is looked up again, and
// called once more: a refused call was not executed.
func TestAStaleListIsReadAgain(t *testing.T) {
	inNewerWorld(t, nil, func(w *world, s *newerServer) {
		s.reply = func(n int, f wire.Frame) string {
			if n <= 1 || n >= 3 {
				return `"error":{"code":-32020,"message":"headers"}`
			}
			return completeReply(n, f)
		}
		c := w.client("a", "")
		s.mu.Lock()
		s.tools = `{"resultType":"complete","tools":[{"name":"new"}]}`
		s.mu.Unlock()
		if got := c.do(2, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, `"result"`) {
			t.Errorf("got %s", got)
		}
		expect(t, "tools", c.do(3, wire.ToolsList, `{}`), `{"jsonrpc":"2.0","id":3,"result":{"tools":[{"name":"new"}]}}`)
		if got := c.do(4, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(got, "-32603") {
			t.Errorf("got %s", got)
		}
		if n := len(s.requests()); n != 4 {
			t.Errorf("%d requests, want each call twice", n)
		}
	})
}

// M8: a server that has changed its era ends its connection, and the call goes to the next.
func TestAServerThatChangesItsEra(t *testing.T) {
	inNewerWorld(t, nil, func(w *world, s *newerServer) {
		s.reply = func(int, wire.Frame) string {
			s.older, s.gone = true, true
			return `"error":{"code":-32022,"message":"no","data":{"supported":["2025-11-25"]}}`
		}
		c := w.client("a", "")
		before := w.link("a")
		w.on = func(l *link, f wire.Frame) bool {
			if s.gone && f.Method == wire.ToolsCall {
				return false
			}
			return s.on(l, f)
		}
		expect(t, "answer", c.do(2, wire.ToolsCall, `{"name":"echo","ms":0}`), `{"jsonrpc":"2.0","id":2,"result":{}}`)
		if w.link("a") == before {
			t.Error("it is the same connection")
		}
	})
}

// visit makes a client of the newer era for one request.
func (w *world) visit(scope, name string) *Client {
	w.Helper()
	c, err := w.m.Visit(Visit{Principal: "local", Session: name, Scope: scope, Capabilities: json.RawMessage("{}")})
	if err != nil {
		w.Fatal(err)
	}
	return c
}

const spelled = `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"requestState":"\u0061","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28", "io.modelcontextprotocol/clientCapabilities":{"x":1e2},"io.modelcontextprotocol/clientInfo":{ }},"name":"ec\u0068o","inputResponses":{"k":{ }}, "y":12345678901234567890}}`

// W1, M8: between a client and a server of the newer era frames pass byte for byte, but
// for the id.
func TestFramesOfTheNewerEraPassAsTheyAre(t *testing.T) {
	inNewerWorld(t, nil, func(w *world, s *newerServer) {
		const odd = `"result":{ "resultType":"input_required","inputRequests":{"a":{"method":"x/y"}}, "z":1.00,"ttlMs":7}`
		s.reply = func(int, wire.Frame) string { return odd }
		c := w.visit("a", "s")
		defer c.Leave()
		x := c.request(spelled)
		expect(t, "answer", x.answer(t), `{"jsonrpc":"2.0","id":"x",`+odd+`}`)
		expectOne(t, "request", s.requests(), strings.Replace(spelled, `"x"`, w.link("a").last(), 1))
	})
}

// M6: where the file refuses questions to clients, no client declares that it can be asked.
func TestNobodyDeclaresAnythingToAServerThatMayNotAsk(t *testing.T) {
	inNewerWorld(t, func(s *config.Server) { s.Interactive = config.Refuse }, func(w *world, s *newerServer) {
		v := w.visit("a", "s")
		defer v.Leave()
		v.request(spelled).answer(t)
		c, _ := w.hello("a", `{"sampling":{}}`)
		c.do(2, wire.ToolsCall, `{"name":"echo"}`)
		for _, got := range s.requests() {
			if !strings.Contains(got, `clientCapabilities":{},`) {
				t.Errorf("the server got %s", got)
			}
		}
	})
}

// M8: what a server says of how long a list may be kept, and by whom, holds for the whole
// list only; what is filtered or merged is for its receiver alone.
func TestListsForClientsOfTheNewerEra(t *testing.T) {
	for _, c := range []struct {
		scope, want string
		change      func(*config.Server)
	}{
		{"a", newerTools, nil},
		{"a", `{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{"name":"echo"}]}`, func(s *config.Server) { s.IncludeTools = []string{"echo"} }},
		{"", `{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{"name":"a__echo"},{"name":"a__list","outputSchema":{"type":"array"}}]}`, nil},
	} {
		inNewerWorld(t, c.change, func(w *world, s *newerServer) {
			v := w.visit(c.scope, "s")
			defer v.Leave()
			expect(t, c.scope, v.do(1, wire.ToolsList, `{"_meta":{}}`), `{"jsonrpc":"2.0","id":1,"result":`+c.want+`}`)
		})
	}
}

// M3: discovery is the server's own, with the versions that are served here.
func TestDiscoveryOfANewerServer(t *testing.T) {
	inNewerWorld(t, nil, func(w *world, s *newerServer) {
		c := w.visit("a", "s")
		defer c.Leave()
		got, err := c.Discover(context.Background())
		if err != nil || !strings.Contains(string(got), `"supportedVersions":["2026-07-28","2025-11-25"`) || !strings.Contains(string(got), `"ttlMs":5,"cacheScope":"public"`) || !strings.Contains(string(got), `"extensions"`) {
			t.Errorf("got %s, %v", got, err)
		}
	})
}

// Case 27, M8: senders whom nothing tells apart are served by a server of the newer era
// that is not shared, which keeps nothing of them, and by no other.
func TestUnnamedSendersAtAnUnsharedServer(t *testing.T) {
	for _, newer := range []bool{true, false} {
		inNewerWorld(t, func(s *config.Server) { s.Sharing = config.Session }, func(w *world, s *newerServer) {
			s.older, s.gone = true, !newer
			if !w.m.Separates("local") {
				t.Error("nobody asked the server yet")
			}
			for range 2 {
				c := w.visit("a", "")
				got := c.do(1, wire.ToolsCall, `{"name":"echo"}`)
				if newer != strings.Contains(got, `"result"`) || !newer != strings.Contains(got, `"code":-32022`) {
					t.Errorf("newer %t: got %s", newer, got)
				}
				c.Leave()
			}
			if w.m.Separates("local") == newer {
				t.Errorf("newer %t: the aggregate is served: %t", newer, !w.m.Separates("local"))
			}
			w.mu.Lock()
			links := len(w.links)
			w.mu.Unlock()
			if links != 1 {
				t.Errorf("newer %t: %d connections", newer, links)
			}
			c := w.visit("a", "named")
			defer c.Leave()
			if got := c.do(1, wire.ToolsCall, `{"name":"echo","ms":0}`); newer && !strings.Contains(got, `"result"`) {
				t.Errorf("a named session: %s", got)
			}
		})
	}
}
