package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/wire"
)

// M8: a server of the older era sees nothing of the new one, and all else as it was
// spelled.
func TestServersSeeNothingOfTheNewEra(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		g := w.guest("/mcp/a")
		g.meta = `,"io.modelcontextprotocol/logLevel":"info","io.modelcontextprotocol\/future":1,"roundhouse/session":"s","roundhouse/workspace":"/w","traceparent":"00-1","x-own":{ "b":1.0 },"progressToken":"tok"`
		g.send("5", wire.ToolsCall, `"name":"echo","inputResponses":{},"requestState":"s","arguments":{"big":9007199254740993,"é":"\u00e9"},"x-own":[1, 2]`)
		g.meta = ""
		g.send("6", wire.ToolsCall, `"name":"echo"`)
		got := w.proc("a").got(wire.ToolsCall)
		for i, want := range []string{
			`"params":{"name":"echo","arguments":{"big":9007199254740993,"é":"\u00e9"},"x-own":[1, 2],"_meta":{"traceparent":"00-1","x-own":{ "b":1.0 },"progressToken":`,
			`"params":{"name":"echo"}}`,
		} {
			if !strings.Contains(got[i], want) {
				t.Errorf("the server got %s, want %s", got[i], want)
			}
		}
		if strings.Contains(strings.Join(got, ""), "modelcontextprotocol") || strings.Contains(strings.Join(got, ""), "roundhouse") {
			t.Errorf("the server got %s", got)
		}
	})
}

// M1, W1: the scope of an id is its POST; it comes back as it was spelled.
func TestEqualIDsOfTwoPOSTsDoNotCollide(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		for _, id := range []string{"1", "1.0", `"1"`, `"\u0031"`, "9007199254740993"} {
			var pendings []*pending
			for i := range 4 {
				g := w.guest("/mcp/a")
				pendings = append(pendings, g.begin(g.ask(id, wire.ToolsCall, echo(fmt.Sprintf(`{"ms":1000,"i":%d}`, i)))))
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			for i, x := range pendings {
				frames := x.frames()
				if len(frames) != 1 || !strings.Contains(frames[0], `"id":`+id+`,`) || !strings.Contains(frames[0], fmt.Sprintf(`"i":%d`, i)) {
					t.Errorf("%s: got %s", id, frames)
				}
			}
		}
	})
}

// H2, M1: progress makes an event stream of the answer, without event ids; alone the
// answer is JSON.
func TestModernProgress(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		g := w.guest("/mcp/a")
		g.meta = `,"progressToken":"tok"`
		got := g.send("1", wire.ToolsCall, echo(`{"steps":2}`))
		if !got.sse || len(got.events) != 3 || got.header.Get("X-Accel-Buffering") != "no" {
			t.Fatalf("got %s", got.body)
		}
		for i, e := range got.events {
			if e.id != "" {
				t.Errorf("an event has the id %s", e.id)
			}
			if i < 2 && !strings.Contains(e.data, `"progressToken":"tok"`) {
				t.Errorf("got %s", e.data)
			}
		}
		if got.last(w).Result["resultType"] != "complete" {
			t.Errorf("got %s", got.body)
		}
		if r := g.send("2", wire.ToolsCall, echo(`{}`)); r.sse {
			t.Errorf("an answer alone is an event stream: %s", r.body)
		}
	})
}

// H4: a slow answer is kept alive by comments, and a failure after that is still one.
func TestASlowModernAnswerIsKeptAlive(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].delay = 20 * time.Second // the server starts slowly, too
		g := w.guest("/mcp/a")
		got := g.send("1", wire.ToolsCall, echo(`{"ms":20000}`))
		comments := 0
		for _, e := range got.events {
			if e.comment != "" {
				comments++
			}
		}
		if !got.sse || comments != 2 || got.last(w).Result == nil {
			t.Errorf("got %s", got.body)
		}
	})
}

// M5: log messages go to requests that ask for them, each with its own level; the
// server is told the most verbose one.
func TestModernLogMessages(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		line := func(level string) string {
			return `{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"` + level + `\",\"data\":\"` + level + `\"}}`
		}
		both := `{"ms":1000,"lines":["` + line("debug") + `","` + line("error") + `"]}`
		begin := func(level, arguments string) *pending {
			g := w.guest("/mcp/a")
			if level != "" {
				g.meta = `,"io.modelcontextprotocol/logLevel":"` + level + `"`
			}
			x := g.begin(g.ask("1", wire.ToolsCall, echo(arguments)))
			synctest.Wait()
			return x
		}
		silent, severe, chatty := begin("", `{"ms":2000}`), begin("error", `{"ms":2000}`), begin("debug", both)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		for _, c := range []struct {
			x    *pending
			want []string
		}{{silent, []string{"answer"}}, {severe, []string{wire.Message, "answer"}}, {chatty, []string{wire.Message, wire.Message, "answer"}}} {
			if got := c.x.methods(); !slices.Equal(got, c.want) {
				t.Errorf("got %s, want %s", c.x.frames(), c.want)
			}
		}
		levels := w.proc("a").got(wire.LoggingSetLevel)
		want := []string{"error", "debug", "error"} // again, when nobody wants more any more
		if !slices.EqualFunc(levels, want, func(frame, level string) bool { return strings.Contains(frame, `"`+level+`"`) }) {
			t.Errorf("the server was told %s", levels)
		}
	})
}

// M5: a server that does not log is not told levels.
func TestNoLevelForAServerThatDoesNotLog(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].caps = `{"tools":{}}`
		g := w.guest("/mcp/a")
		g.meta = `,"io.modelcontextprotocol/logLevel":"debug"`
		if r := g.send("1", wire.ToolsCall, echo("{}")); r.last(w).Result == nil {
			t.Errorf("got %s", r.body)
		}
		if got := w.proc("a").got(wire.LoggingSetLevel); got != nil {
			t.Errorf("the server was told %s", got)
		}
	})
}

// M2: a disconnect cancels the call at the server, whatever the state of its answer;
// notifications/cancelled does not, since its id is anybody's.
func TestADisconnectCancelsAModernCall(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		g, other := w.guest("/mcp/a"), w.guest("/mcp/a")
		g.meta = `,"progressToken":1`
		quiet, streaming := g.begin(g.ask("1", wire.ToolsCall, echo(`{"ms":60000}`))), g.begin(g.ask("1", wire.ToolsCall, echo(`{"ms":60000,"steps":60}`)))
		stays := other.begin(other.ask("1", wire.ToolsCall, echo(`{"ms":10000}`)))
		time.Sleep(1500 * time.Millisecond)
		r := other.peer.request(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		r.Header.Set(versionHeader, wire.Version20260728)
		other.do(r)
		synctest.Wait()
		if got := w.proc("a").got(wire.Cancelled); got != nil {
			t.Fatalf("the server got %s", got)
		}
		quiet.hangUp()
		streaming.hangUp()
		if got := w.proc("a").got(wire.Cancelled); len(got) != 2 {
			t.Errorf("the server got %s", got)
		}
		if n := w.sessions.Stats().InFlight; n != 1 {
			t.Errorf("%d calls are in flight", n)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(stays.frames()) != 1 {
			t.Error("the other call was not answered")
		}
	})
}

// M2: a call whose client leaves before its server has started is never made.
func TestACallIsNotMadeForAClientThatLeft(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].delay = 10 * time.Second
		g := w.guest("/mcp/a")
		x := g.begin(g.ask("1", wire.ToolsCall, echo(`{}`)))
		time.Sleep(5 * time.Second)
		x.hangUp()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := w.proc("a").got(wire.ToolsCall); got != nil {
			t.Errorf("the server got %s", got)
		}
	})
}

// M6, M8: what a server asks during a call is answered at once with an error that says
// why, and the call goes on.
func TestAModernClientIsNotAsked(t *testing.T) {
	for _, method := range []string{wire.ElicitationCreate, wire.SamplingCreate, wire.RootsList} {
		inWorld(t, settings{}, oneServer(), func(w *world) {
			g := w.guest("/mcp/a")
			got := g.send("1", wire.ToolsCall, echo(fmt.Sprintf(`{"ask":%q,"params":{}}`, method)))
			if got.sse || got.last(w).Result == nil {
				t.Errorf("%s: got %s", method, got.body)
			}
			synctest.Wait()
			answers := answersOf(w.proc("a"))
			if len(answers) != 1 || !strings.Contains(answers[0], "cannot be asked during a call") {
				t.Errorf("%s: the server got %s", method, answers)
			}
		})
	}
}

// H1: the errors by which the protocol itself refuses a request have an HTTP status.
func TestStatusOfModernAnswers(t *testing.T) {
	for rest, want := range map[string]int{
		`"result":{"error":{"code":-32601}}`:         200,
		`"error":{"code":-32601,"message":"m"}`:      404,
		`"error":{"message":"m","code":-32600}`:      400,
		`"error":{"code":-32020,"message":"m"}`:      400,
		`"error":{"code":-32021,"message":"m"}`:      400,
		`"error":{"code":-32022,"message":"m"}`:      400,
		`"error":{"code":-32602,"message":"m"}`:      200,
		`"error":{"code":-32603,"message":"m"}`:      200,
		`"error":{"code":-32010,"message":"\u0065"}`: 200,
	} {
		if got := statusOf([]byte(`{"jsonrpc":"2.0","id":1,` + rest + `}`)); got != want {
			t.Errorf("%s has the status %d, want %d", rest, got, want)
		}
	}
}

// H1: HTTP/1.1 has taken the space around a header's value away; HTTP/2 has not.
func TestSpaceAroundAHeadersValueMeansNothing(t *testing.T) {
	if bad := agrees(http.Header{methodHeader: {" tools/call\t"}}, methodHeader, "", func(v string) bool { return v == wire.ToolsCall }); bad != nil {
		t.Errorf("space around a value counts: %s", bad.object)
	}
}

const paramSchema = `{"type":"object","properties":{
	"region":{"type":"string","x-mcp-header":"Region"},"count":{"type":"integer","x-mcp-header":"Count"},"dry":{"type":"boolean","x-mcp-header":"Dry"},
	"deep":{"type":"object","properties":{"id":{"type":"string","x-mcp-header":"Deep-Id"}}},"plain":{"type":"string"}}}`

// H1: a call with wrong headers does not reach its server, under whichever name.
func TestACallWithWrongHeadersIsNotMade(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].schema = strings.ReplaceAll(strings.ReplaceAll(paramSchema, "\n", ""), "\t", "")
		for path, name := range map[string]string{"/mcp/a": "echo", "/mcp": "a__echo"} {
			g := w.guest(path)
			r := g.ask("1", wire.ToolsCall, `"name":"`+name+`","arguments":{"region":"eu"}`)
			r.Header.Set("Mcp-Param-Region", "us")
			g.do(r).refused(w, http.StatusBadRequest, wire.HeaderMismatch)
			if got := w.proc("a").got(wire.ToolsCall); got != nil {
				t.Errorf("the server got %s", got)
			}
		}
		g := w.guest("/mcp/a")
		r := g.ask("1", wire.ToolsCall, `"name":"echo","arguments":{"region":"eu"}`)
		r.Header.Set("mcp-param-region", "eu")
		if got := g.do(r); got.last(w).Result == nil {
			t.Errorf("got %s", got.body)
		}
	})
}

// R2: a call whose server dies, and one whose session ends, are answered with why.
func TestModernCallsEndWithTheirServerAndTheirSession(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		g := w.guest("/mcp/a")
		g.send("1", wire.ToolsCall, echo(`{"die":true}`)).refused(w, http.StatusOK, -32010)
		x := g.begin(g.ask("2", wire.ToolsCall, echo(`{"ms":60000}`)))
		time.Sleep(time.Second)
		if err := w.sessions.End(t.Context(), "local", false, "stateless", true); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := x.frames(); !x.ended() || len(got) != 1 || decode(w, got[0]).fault(w).Code != -32001 {
			t.Errorf("got %s", got)
		}
		if r := g.send("3", wire.ToolsCall, echo(`{}`)); r.last(w).Result == nil { // the next one begins it anew
			t.Errorf("got %s", r.body)
		}
	})
}

// H3: while the daemon stops, requests are refused with a time to try again.
func TestModernRequestsWhileDraining(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		g := w.guest("/mcp/a")
		w.sessions.Drain()
		for _, method := range []string{wire.ToolsList, wire.Discover, wire.SubscriptionsListen} {
			got := g.send("1", method, `"notifications":{}`)
			if got.refused(w, http.StatusServiceUnavailable, -32016); got.header.Get("Retry-After") == "" {
				t.Errorf("%s: no Retry-After", method)
			}
		}
	})
	inWorld(t, settings{}, oneServer(), func(w *world) { // G1: the standing streams end first
		w.gateway.CloseStreams()
		for _, method := range []string{wire.ToolsList, wire.Discover, wire.SubscriptionsListen} {
			w.guest("/mcp/a").send("1", method, `"notifications":{}`).refused(w, http.StatusServiceUnavailable, -32016)
		}
	})
}

// H7: the aggregate in the new era.
func TestModernAggregate(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].resources = []string{"file:///x"}
		g := w.guest("/mcp")
		list := g.send("1", wire.ToolsList, "").last(w).Result
		if got := names(list, "tools", "name"); !slices.Equal(got, []string{"a__echo"}) || list["resultType"] != "complete" || list["cacheScope"] != "private" || list["ttlMs"] != 0.0 {
			t.Errorf("got %v", list)
		}
		if r := g.send("2", wire.ToolsCall, `"name":"a__echo"`); r.last(w).Result["name"] != "echo" {
			t.Errorf("got %s", r.body)
		}
		if r := g.send("3", wire.ResourcesRead, `"uri":"file:///x"`); r.last(w).Result["ttlMs"] != 0.0 {
			t.Errorf("got %s", r.body)
		}
		g.send("4", wire.ToolsCall, `"name":"a__nope"`).refused(w, http.StatusOK, wire.InvalidParams)
	})
}

// N4, M2: whatever ends first, the request, its client, the server or the session,
// nothing is left of it; the world sees to that.
func TestModernRequestsLeaveNothing(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].caps = everyList
		var all []*pending
		for i := range 120 {
			g := w.guest("/mcp/a")
			g.meta = fmt.Sprintf(`,"progressToken":%d`, i)
			r := g.ask("1", wire.ToolsCall, echo(fmt.Sprintf(`{"ms":%d,"steps":%d}`, i*37%900, i%4)))
			if i%3 == 0 {
				r = g.ask("1", wire.SubscriptionsListen, `"notifications":{"toolsListChanged":true,"resourceSubscriptions":["x:`+fmt.Sprint(i%5)+`"]}`)
			}
			all = append(all, g.begin(r))
			time.Sleep(time.Duration(i*13%50) * time.Millisecond)
			switch {
			case i%7 == 0:
				all[i*5%len(all)].hangUp()
			case i%40 == 20:
				w.proc("a").die()
			case i%40 == 35:
				_ = w.sessions.End(t.Context(), "local", false, "stateless", i > 40)
			}
		}
		time.Sleep(time.Second)
		for i, x := range all {
			if i%3 != 0 && !x.ended() {
				t.Errorf("call %d goes on: %s", i, x.frames())
			}
			x.hangUp()
		}
		if st := w.sessions.Stats(); st.InFlight != 0 {
			t.Errorf("%+v", st)
		}
		for _, info := range w.sessions.List("local", false) {
			if len(info.Clients) != 0 || info.Streams != 0 {
				t.Errorf("%+v", info)
			}
		}
	})
}

// V4: a request may bring its session's filter, in either era; what is no filter is
// refused, and so is one for a session that is everybody's.
func TestARequestBringsItsSessionsFilter(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		g := w.guest("/mcp/a")
		lists := func(want bool) {
			t.Helper()
			if got := g.send("7", wire.ToolsList, ""); strings.Contains(got.body, `"echo"`) != want {
				t.Errorf("the list is %s", got.body)
			}
		}
		const named = `,"roundhouse/session":"s"`
		g.meta = named + `,"roundhouse/tools":{"exclude":["a__echo"]}`
		lists(false)
		g.meta = named
		lists(false)
		p := w.dialed("/mcp/a")
		hello := p.do(p.request(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"},"_meta":{"roundhouse/session":"s","roundhouse/tools":null}}}`))
		if hello.status != 200 {
			t.Fatalf("%d %s", hello.status, hello.body)
		}
		lists(true)
		for _, meta := range []string{
			named + `,"roundhouse/tools":["a__echo"]`, named + `,"roundhouse/tools":{"exclude":["echo"]}`, named + `,"roundhouse/Tools":null`, `,"roundhouse/tools":null`,
		} {
			g.meta = meta
			if got := g.send("7", wire.ToolsList, ""); got.status != 400 {
				t.Errorf("%s: %d %s", meta, got.status, got.body)
			}
		}
	})
}
