package session

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"roundhouse/internal/config"
	"roundhouse/internal/wire"
)

// schemas are the tools of a server that has four: one with arguments, one without, one
// that takes a session_id itself, and one with a schema that says nothing.
const schemas = `{"tools":[` +
	`{"inputSchema":{"type":"object","properties":{"url":{"type":"string","x-big":9007199254740993}}},"name":"go"},` +
	`{"name":"back","inputSchema":{"type":"object"}},` +
	`{"name":"attach","inputSchema":{"type":"object","properties":{"session_id":{"type":"string"}}}},` +
	`{"name":"odd","inputSchema":true}]}`

// calls keeps the params of the tool calls that servers get, and answers them with the
// instance's number.
type calls struct {
	mu   sync.Mutex
	seen []string
}

// serve lets the world's servers have the tools of schemas.
func (x *calls) serve(w *world, meta string) {
	w.on = func(l *link, f wire.Frame) bool {
		switch f.Method {
		case wire.ToolsList:
			l.wg.Go(func() { l.say(wire.Result(f.ID(), []byte(schemas))) })
		case wire.ToolsCall:
			x.mu.Lock()
			x.seen = append(x.seen, string(f.Params()))
			x.mu.Unlock()
			l.wg.Go(func() { l.say(wire.Result(f.ID(), []byte(`{"content":[]`+meta+`}`))) })
		default:
			return false
		}
		return true
	}
}

func (x *calls) last() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen[len(x.seen)-1]
}

// stateless makes a request that names no session.
func (w *world) stateless(scope, method, params string) string {
	w.Helper()
	c, err := w.m.Visit(Visit{Principal: "local", Scope: scope, Capabilities: noCapabilities})
	if err != nil {
		w.Fatal(err)
	}
	defer c.Leave()
	return c.do(1, method, params)
}

// A6: where nobody named the session, the tools of an exclusive server have an optional
// argument more, unless they have one of that name themselves; the rest of each tool
// stays as the server spells it. Where the session is named nothing is added.
func TestToolsOfExclusiveServersTakeASession(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 2), server("files")}, func(w *world) {
		var x calls
		x.serve(w, "")
		minted := w.client("browser", "").do(1, wire.ToolsList, "{}")
		for name, answer := range map[string]string{
			"handshake":           minted,
			"aggregate":           strings.ReplaceAll(w.client("", "").do(1, wire.ToolsList, "{}"), "browser__", ""),
			"stateless":           w.stateless("browser", wire.ToolsList, "{}"),
			"stateless aggregate": strings.ReplaceAll(w.stateless("", wire.ToolsList, "{}"), "browser__", ""),
		} {
			for _, want := range []string{
				`{"inputSchema":{"type":"object","properties":{"session_id":{`,
				`},"url":{"type":"string","x-big":9007199254740993}}},"name":"go"}`,
				`{"name":"back","inputSchema":{"properties":{"session_id":{`,
				`{"name":"attach","inputSchema":{"type":"object","properties":{"session_id":{"type":"string"}}}}`,
				`{"name":"odd","inputSchema":true}`,
			} {
				if !strings.Contains(answer, want) {
					t.Errorf("%s: no %s in %s", name, want, answer)
				}
			}
			if err := wire.Valid([]byte(answer)); err != nil {
				t.Error(name, err)
			}
		}
		if named := w.client("browser", "mine").do(1, wire.ToolsList, "{}"); !strings.HasSuffix(named, schemas+"}") {
			t.Error(named)
		}
		if shared := w.client("files", "").do(1, wire.ToolsList, "{}"); !strings.HasSuffix(shared, schemas+"}") {
			t.Error(shared)
		}
	})
}

// A6: calls of one client that name different sessions are served by different
// instances; the argument goes no further, and nothing else of the call changes.
func TestOneClientsCallsInSeveralSessions(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 3)}, func(w *world) {
		var x calls
		x.serve(w, "")
		c := w.client("browser", "")
		w.works(c.do(1, wire.ToolsCall, `{"name":"go","arguments":{"session_id":"a"  , "url":"u","n":9007199254740993}}`))
		if got, want := x.last(), `{"name":"go","arguments":{"url":"u","n":9007199254740993}}`; got != want {
			t.Errorf("%s, not %s", got, want)
		}
		w.works(c.do(2, wire.ToolsCall, `{"name":"back","arguments":{"session_id":"b"}}`))
		if got, want := x.last(), `{"name":"back","arguments":{}}`; got != want {
			t.Errorf("%s, not %s", got, want)
		}
		w.works(c.do(3, wire.ToolsCall, `{"name":"go","arguments":{"n":1,"session_id":"a"}}`))
		w.expectLeases("a=browser#1", "b=browser#2")
		all := w.client("", "")
		answer := all.do(4, wire.ToolsCall, `{"name":"browser__go","arguments":{"n":1,"session_id":"a"}}`)
		w.works(answer)
		if strings.Contains(answer, "_meta") {
			t.Errorf("it is told a name that it gave: %s", answer)
		}
		w.expectLeases("a=browser#1", "b=browser#2")
		w.works(c.do(5, wire.ToolsCall, `{"name":"go","arguments":{"session_id":null}}`))
		want := []string{"a=browser#1", "b=browser#2", c.Session().ID() + "=browser#3"}
		slices.Sort(want)
		w.expectLeases(want...)
		if n := len(c.calls); n != 0 {
			t.Errorf("%d calls are left", n)
		}
	})
}

// A6: what a tool takes itself, and what a named session says, is the server's.
func TestASessionOfTheServersOwnIsLeftAlone(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 2), server("files")}, func(w *world) {
		var x calls
		x.serve(w, "")
		for _, call := range []struct{ scope, session, params string }{
			{"browser", "", `{"name":"attach","arguments":{"session_id":"theirs","Session_Id":1}}`},
			{"browser", "", `{"name":"odd","arguments":{"session_id":"theirs"}}`},
			{"browser", "", `{"name":"unknown","arguments":{"session_id":"theirs"}}`},
			{"browser", "mine", `{"name":"go","arguments":{"session_id":"theirs"}}`},
			{"files", "", `{"name":"go","arguments":{"session_id":"theirs"}}`},
			{"browser", "", `{"name":"go","arguments":{"nested":{"session_id":"x"}}}`},
			{"browser", "", `{"name":"go","arguments":["session_id"]}`},
		} {
			c := w.client(call.scope, call.session)
			w.works(c.do(1, wire.ToolsCall, call.params))
			if got := x.last(); got != call.params {
				t.Errorf("%s became %s", call.params, got)
			}
			c.Delete()
		}
	})
}

// A6, W2: what would be read in two ways is refused, and reaches no server.
func TestADoubtfulSessionArgumentIsRefused(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 2)}, func(w *world) {
		var x calls
		x.serve(w, "")
		c := w.client("browser", "")
		for _, arguments := range []string{
			`{"session_id":"a","session_id":"b"}`,
			`{"session_id":"a","SESSION_ID":"b"}`,
			`{"Session_Id":"a"}`,
			`{"session\u005fid":"a"}`,
			`{"session_id":7}`,
			`{"session_id":""}`,
			`{"session_id":"a b"}`,
		} {
			answer := c.do(1, wire.ToolsCall, `{"name":"go","arguments":`+arguments+`}`)
			if !strings.Contains(answer, "-32602") {
				t.Errorf("%s: %s", arguments, answer)
			}
		}
		if len(x.seen) > 0 {
			t.Error(x.seen)
		}
	})
}

// A6: a call that stands alone begins a session, whose name its result says; with the
// name later ones go on there.
func TestACallThatStandsAloneBeginsASession(t *testing.T) {
	for _, meta := range []string{``, `,"_meta":{}`, `,"_meta":{"x":1}`} {
		inWorld(t, usual, []*config.Server{exclusive("browser", 2)}, func(w *world) {
			var x calls
			x.serve(w, meta)
			if w.m.Separates("local") {
				t.Error("the aggregate is not served without a session")
			}
			answer := w.stateless("browser", wire.ToolsCall, `{"name":"go","arguments":{"url":"u"}}`)
			_, after, ok := strings.Cut(answer, `"roundhouse/session":"`)
			if !ok {
				t.Fatal(answer)
			}
			name, _, _ := strings.Cut(after, `"`)
			if err := wire.Valid([]byte(answer)); err != nil || strings.Count(answer, "_meta") != 1 {
				t.Error(answer, err)
			}
			if !strings.Contains(answer, `call with session_id \"`+name+`\".`) {
				t.Errorf("no text of the result says how to go on: %s", answer)
			}
			w.expectLeases(name + "=browser#1")
			again := w.stateless("", wire.ToolsCall, `{"name":"browser__go","arguments":{"session_id":"`+name+`"}}`)
			w.works(again)
			w.expectLeases(name + "=browser#1")
			if strings.Contains(again, "roundhouse/session") {
				t.Error(again)
			}
			w.works(w.stateless("browser", wire.ToolsCall, `{"name":"go"}`))
			if n := len(w.m.List("local", false)); n != 3 {
				t.Errorf("%d sessions", n)
			}
		})
	}
}

// A6, I2: what is no call of a tool, and names no session, has no instance.
func TestOnlyCallsBeginASession(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		answer := w.stateless("browser", wire.ResourcesRead, `{"uri":"x"}`)
		if !strings.Contains(answer, "X-Session-Id") {
			t.Error(answer)
		}
		w.expectLeases()
	})
}

// A6: a session that began with a call is forgotten when the call fails, since its caller
// does not learn its name.
func TestASessionThatNobodyKnowsEnds(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		w.on = func(l *link, f wire.Frame) bool {
			if f.Method != wire.ToolsCall {
				return false
			}
			l.wg.Go(func() { l.say(wire.ErrorReply(f.ID(), wire.ErrorObject(-5, "no"))) })
			return true
		}
		if answer := w.stateless("browser", wire.ToolsCall, echo); !strings.Contains(answer, "-5") {
			t.Error(answer)
		}
		synctest.Wait()
		w.expectLeases()
		if n := len(w.m.List("local", false)); n != 1 {
			t.Errorf("%d sessions", n)
		}
	})
}

// A6, M2: a call in another session is cancelled there, also while it waits for an
// instance.
func TestACallInAnotherSessionIsCancelled(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		var x calls
		x.serve(w, "")
		c := w.client("browser", "")
		w.works(c.do(1, wire.ToolsCall, `{"name":"go","arguments":{"session_id":"a"}}`))
		w.on = func(_ *link, f wire.Frame) bool { return f.Method == wire.ToolsCall } // it is never answered
		for id, session := range []string{"a", "b"} {
			out := newTray()
			var wg sync.WaitGroup
			wg.Go(func() {
				c.Session().Do(c, frame(10+id, wire.ToolsCall, `{"name":"go","arguments":{"session_id":"`+session+`"}}`), out)
			})
			synctest.Wait()
			notice, err := wire.Parse(wire.NewNotification(wire.Cancelled, []byte(`{"requestId":1`+string(rune('0'+id))+`}`)))
			if err != nil {
				t.Fatal(err)
			}
			c.Session().Do(c, notice, nil)
			wg.Wait()
			if p := <-out.done; !p.Empty() {
				t.Errorf("%s: %s", session, p.AppendTo(nil))
			}
			synctest.Wait()
			if st := w.m.Stats(); st.InFlight != 0 {
				t.Errorf("%s: %+v", session, st)
			}
		}
		l := w.link("browser")
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.seen[len(l.seen)-1] != wire.Cancelled {
			t.Error(l.seen)
		}
	})
}

// A6: whatever a tool looks like, what is added to it leaves valid JSON, from which it is
// taken out again by the letter.
func FuzzSessionArgument(f *testing.F) {
	for _, tool := range []string{
		`{"name":"go","inputSchema":{"type":"object","properties":{"url":{"type":"string"}}}}`,
		`{"inputSchema" : { } }`, `{"inputSchema":{"properties":{ }}}`, `{"inputSchema":true}`, `{"inputSchema":{"properties":[]}}`,
		`{"inputSchema":{},"inputSchema":{}}`, `{"inputSchema":{"properties":{"SESSION_ID":1}}}`,
	} {
		f.Add([]byte(tool))
	}
	f.Fuzz(func(t *testing.T, tool []byte) {
		if wire.Valid(tool) != nil || tool[0] != '{' {
			return
		}
		edit, ok := argumentEdit(tool)
		if !ok {
			return
		}
		shown := wire.Splice(nil, tool, edit)
		if err := wire.Valid(shown); err != nil {
			t.Fatalf("%s: %v", shown, err)
		}
		if _, again := argumentEdit(shown); again {
			t.Fatalf("%s has no such argument", shown)
		}
		if back := string(shown[:edit.At.Start]) + string(shown[edit.At.Start+len(edit.With):]); back != string(tool) {
			t.Fatalf("%s became %s", tool, back)
		}
	})
}
