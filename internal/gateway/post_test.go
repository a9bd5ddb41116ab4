package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/secret"
	"roundhouse/internal/wire"
)

func oneServer() []*config.Server { return []*config.Server{shared("a")} }

// H2: an answer that comes alone is JSON.
func TestAnAnswerAloneIsJSON(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		r := w.connect("/mcp/a").send(wire.ToolsCall, `{"name":"echo","arguments":{"x":1}}`)
		if r.status != 200 || r.sse || r.header.Get("Content-Type") != "application/json" {
			t.Errorf("got %d %v", r.status, r.header)
		}
		if want := `"arguments":{"x":1}`; !strings.Contains(r.body, want) {
			t.Errorf("got %s, want it to hold %s", r.body, want)
		}
	})
}

// H2: as soon as something precedes the answer, both are events.
func TestWhatPrecedesTheAnswerMakesAnEventStream(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		x := w.connect("/mcp/a").beginTool("echo", `{"ms":1000,"steps":2}`)
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		if got := x.methods(); !slices.Equal(got, []string{"notifications/progress"}) {
			t.Errorf("after the first step the client has %q", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := x.methods(); !slices.Equal(got, []string{"notifications/progress", "notifications/progress", "answer"}) || !x.ended() {
			t.Errorf("at the end the client has %q; the response has ended: %v", got, x.ended())
		}
		for _, f := range x.frames()[:2] {
			if token := decode(w, f).Params["progressToken"]; token != "tok" {
				t.Errorf("the progress token is %v (M1)", token)
			}
		}
	})
}

// H4, case 24: a silent call of any length gets comments, and no deadline.
func TestASilentCallIsKeptAliveByComments(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		x := w.connect("/mcp/a").beginTool("echo", `{"ms":150000}`)
		time.Sleep(14 * time.Second)
		if x.status() != 0 {
			t.Errorf("the answer began before the keep-alive interval was over")
		}
		time.Sleep(2 * time.Minute)
		if got := x.comments(); got < 7 || got > 9 {
			t.Errorf("%d comments in 134 s", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := x.methods(); !slices.Equal(got, []string{"answer"}) || !x.ended() {
			t.Errorf("got %q, ended: %v", got, x.ended())
		}
	})
}

// H2: notifications and responses get 202.
func TestWhatNeedsNoAnswerGets202(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`,
			`{"jsonrpc":"2.0","id":1,"result":{}}`,
			`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}`,
			`{"jsonrpc":"2.0","method":"notifications/x-unknown","params":{"name":"a","NAME":"b"}}`,
		} {
			if r := p.post(body); r.status != http.StatusAccepted || r.body != "" {
				t.Errorf("%s: %d %q", body, r.status, r.body)
			}
		}
		if n := len(w.proc("a").got(wire.Initialized)); n != 1 {
			t.Errorf("the server got %d initialized (M3)", n)
		}
	})
}

// H3: the table of statuses.
func TestStatus(t *testing.T) {
	call := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo"}}`
	with := func(key, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(key, value) }
	}
	without := func(key string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Del(key) }
	}
	for _, c := range []struct {
		name, method, path, body string
		change                   func(*http.Request)
		status                   int
		code                     int // of the JSON-RPC error, 0 for none
	}{
		{"missing session id", "POST", "/mcp/a", call, without(sessionHeader), 400, -32600},
		{"empty session id", "POST", "/mcp/a", call, with(sessionHeader, ""), 400, -32600},
		{"two session ids", "POST", "/mcp/a", call, func(r *http.Request) { r.Header.Add(sessionHeader, "x") }, 400, -32600},
		{"unknown session id", "POST", "/mcp/a", call, with(sessionHeader, "0123"), 404, -32001},
		{"unknown session id of a notification", "POST", "/mcp/a", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, with(sessionHeader, "0123"), 404, -32001},
		{"session of another scope", "POST", "/mcp", call, nil, 404, -32001},
		{"unknown server", "POST", "/mcp/nobody", call, nil, 404, -32001},
		{"unknown version", "POST", "/mcp/a", call, with(versionHeader, "1999-01-01"), 400, -32022},
		{"a version without a handshake, without what it wants (H1)", "POST", "/mcp/a", `{"jsonrpc":"2.0","id":"d","method":"server/discover"}`, func(r *http.Request) {
			r.Header.Del(sessionHeader)
			r.Header.Set(versionHeader, wire.Version20260728)
		}, 400, -32602},
		{"no version", "POST", "/mcp/a", call, without(versionHeader), 200, 0},
		{"accepts JSON only", "POST", "/mcp/a", call, with("Accept", "application/json"), 406, -32600},
		{"accepts nothing of ours", "POST", "/mcp/a", call, with("Accept", "text/html"), 406, -32600},
		{"accepts everything", "POST", "/mcp/a", call, with("Accept", "*/*"), 200, 0},
		{"accepts families, with weights", "POST", "/mcp/a", call, with("Accept", "application/*;q=0.5, TEXT/event-stream; q=1"), 200, 0},
		{"says nothing of what it accepts", "POST", "/mcp/a", call, without("Accept"), 200, 0},
		{"not JSON", "POST", "/mcp/a", call, with("Content-Type", "text/plain"), 415, -32600},
		{"JSON with a charset", "POST", "/mcp/a", call, with("Content-Type", "Application/JSON; charset=utf-8"), 200, 0},
		{"too large", "POST", "/mcp/a", `{"jsonrpc":"2.0","id":7,"method":"` + strings.Repeat("x", 5000) + `"}`, nil, 413, -32014},
		{"no JSON", "POST", "/mcp/a", `{"jsonrpc":`, nil, 400, -32700},
		{"empty body", "POST", "/mcp/a", ``, nil, 400, -32700},
		{"no JSON-RPC", "POST", "/mcp/a", `{"id":7,"method":"ping"}`, nil, 400, -32600},
		{"duplicate envelope member (W2)", "POST", "/mcp/a", `{"jsonrpc":"2.0","id":7,"method":"ping","method":"tools/call"}`, nil, 400, -32600},
		{"duplicate name (W2)", "POST", "/mcp/a", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","name":"rm"}}`, nil, 200, -32602},
		{"another spelling of name (W2)", "POST", "/mcp/a", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","Name":"rm"}}`, nil, 200, -32602},
		{"unknown method", "POST", "/mcp/a", `{"jsonrpc":"2.0","id":7,"method":"x/unknown"}`, nil, 200, -32601},
		{"initialize twice", "POST", "/mcp/a", hello(wire.Version20251125, "{}"), nil, 200, 0},
		{"batch in a version without", "POST", "/mcp/a", `[` + call + `]`, nil, 400, -32600},
		{"GET without session", "GET", "/mcp/a", "", without(sessionHeader), 405, -32600},
		{"GET of an unknown session", "GET", "/mcp/a", "", with(sessionHeader, "0123"), 404, -32001},
		{"GET of JSON", "GET", "/mcp/a", "", with("Accept", "application/json"), 406, -32600},
		{"DELETE of an unknown session", "DELETE", "/mcp/a", "", with(sessionHeader, "0123"), 404, -32001},
		{"PUT", "PUT", "/mcp/a", "", nil, 405, 0},
		{"the old transport (H1)", "GET", "/sse", "", nil, 405, -32600},
		{"the old transport's POST (H1)", "POST", "/messages?sessionId=1", call, nil, 405, -32600},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, settings{maxBody: 4000}, oneServer(), func(w *world) {
				p := w.connect("/mcp/a")
				p.path = c.path
				r := p.request(c.method, c.body)
				if c.change != nil {
					c.change(r)
				}
				got := p.do(r)
				if got.status != c.status {
					t.Errorf("got %d %s, want %d", got.status, got.body, c.status)
				}
				var e struct {
					Jsonrpc string
					Error   struct {
						Code    int
						Message string
					}
				}
				_ = json.Unmarshal([]byte(got.body), &e)
				if e.Error.Code != c.code || c.code != 0 && (e.Jsonrpc != "2.0" || e.Error.Message == "") {
					t.Errorf("got %s, want an error with code %d", got.body, c.code)
				}
				if strings.Contains(c.body, `"id":"d"`) && !strings.Contains(got.body, `"id":"d"`) {
					t.Errorf("%s does not carry the request's id", got.body)
				}
				if c.path == "/sse" && !strings.Contains(got.body, "/mcp") {
					t.Errorf("%s does not name /mcp", got.body)
				}
			})
		})
	}
}

// H3: initialize with a stale id makes a fresh session.
func TestInitializeWithAStaleIDMakesAFreshSession(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		old := p.id
		p.do(p.request(http.MethodDelete, ""))
		if r := p.send(wire.Ping, "{}"); r.status != http.StatusNotFound {
			t.Errorf("the deleted session answers %d", r.status)
		}
		p.hello()
		if p.id == old {
			t.Error("the session id did not change")
		}
		p.tool("echo", "{}")
	})
}

// H2: DELETE ends the session; calls in flight get an error, its stream ends.
func TestDeleteEndsTheSession(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		stream := p.listen("")
		call := p.beginTool("echo", `{"ms":60000}`)
		synctest.Wait()
		if r := p.do(p.request(http.MethodDelete, "")); r.status != http.StatusNoContent {
			t.Errorf("DELETE: %d %s", r.status, r.body)
		}
		synctest.Wait()
		if !stream.ended() || !call.ended() {
			t.Errorf("ended: stream %v, call %v", stream.ended(), call.ended())
		}
		if e := decode(w, call.frames()[0]).fault(w); e.Data["reason"] != "unknown_session" {
			t.Errorf("the call got %+v", e)
		}
		if n := len(w.proc("a").got(wire.Cancelled)); n != 1 {
			t.Errorf("the server was told %d times that the call is over", n)
		}
		if r := p.do(p.request(http.MethodDelete, "")); r.status != http.StatusNotFound {
			t.Errorf("the second DELETE: %d", r.status)
		}
	})
}

// N2, case 65: a session id is no credential.
func TestAnotherPrincipalsSessionIsUnknown(t *testing.T) {
	tokens := []config.Token{{Principal: "ann", Token: secret.New("token-of-ann")}, {Principal: "bob", Token: secret.New("token-of-bob")}}
	inWorld(t, settings{tokens: tokens}, oneServer(), func(w *world) {
		ann := w.dialed("/mcp/a")
		ann.token = "token-of-ann"
		ann.hello()
		stream := ann.listen("")
		thief := &peer{w: w, path: ann.path, id: ann.id, version: ann.version, token: "token-of-bob", header: http.Header{}}
		resume := thief.request(http.MethodGet, "")
		resume.Header.Set("Last-Event-ID", stream.ids()[0])
		for _, r := range []*http.Request{
			thief.request(http.MethodPost, thief.frame(wire.Ping, "{}")), thief.request(http.MethodGet, ""), resume, thief.request(http.MethodDelete, ""),
		} {
			if got := thief.do(r); got.status != http.StatusNotFound {
				t.Errorf("%s with another's session id: %d %s", r.Method, got.status, got.body)
			}
		}
		thief.token = ""
		if got := thief.send(wire.Ping, "{}"); got.status != http.StatusUnauthorized {
			t.Errorf("without a token: %d", got.status)
		}
		if stream.ended() {
			t.Error("the owner's stream ended")
		}
		ann.tool("echo", "{}")
		stream.hangUp()
	})
}

// H3: while the daemon stops, requests get 503 with Retry-After, but calls in flight
// can still be cancelled, answered and ended.
func TestDraining(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		asking := p.beginTool("echo", `{"ask":"roots/list","ms":1}`)
		stream := p.listen("")
		time.Sleep(time.Second)
		slow := p.beginTool("echo", `{"ms":600000}`)
		synctest.Wait()
		w.front.Drain(5 * time.Second)
		w.gateway.CloseStreams()
		synctest.Wait()
		if !stream.ended() {
			t.Error("the standing stream goes on")
		}
		for _, r := range []*http.Request{
			p.request(http.MethodPost, p.frame(wire.ToolsCall, `{"name":"echo"}`)), p.request(http.MethodPost, hello(p.version, "{}")), p.request(http.MethodGet, ""),
		} {
			got := p.do(r)
			if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "5" || !strings.Contains(got.body, `"draining"`) {
				t.Errorf("%s: %d %v %s", r.Method, got.status, got.header, got.body)
			}
		}
		if asking.methods()[0] != "roots/list" {
			t.Fatalf("got %q", asking.methods())
		}
		p.post(`{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}`)
		p.notify(wire.Cancelled, `{"requestId":2}`)
		synctest.Wait()
		if !slow.ended() {
			t.Error("the cancelled call goes on")
		}
		if got := w.proc("a").got(""); len(got) != 1 {
			t.Errorf("the server got the answers %q", got)
		}
		if r := p.do(p.request(http.MethodDelete, "")); r.status != http.StatusNoContent {
			t.Errorf("DELETE: %d", r.status)
		}
	})
}

// W1, case 25: ids keep their spelling and type, and two clients may use the same.
func TestIDsComeBackAsTheyWereSpelled(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p, q := w.connect("/mcp/a"), w.connect("/mcp/a")
		for _, id := range []string{`0`, `1`, `"1"`, `1.0`, `-5`, `9007199254740993`, `"\u00e9é\/"`, `"` + strings.Repeat("x", 300) + `"`} {
			for _, c := range []*peer{p, q} {
				r := c.post(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"echo","arguments":{"of":"` + c.id + `"}}}`)
				if !strings.Contains(r.body, `"id":`+id+`,`) || !strings.Contains(r.body, c.id) {
					t.Errorf("id %s: %s", id, r.body)
				}
			}
		}
	})
}

// W1, case 25: an id that is in flight twice is that sender's error only.
func TestAnIDInFlightTwiceIsItsSendersErrorOnly(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p, q := w.connect("/mcp/a"), w.connect("/mcp/a")
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"ms":5000}}}`
		first, other := p.begin(p.request(http.MethodPost, body)), q.begin(q.request(http.MethodPost, body))
		synctest.Wait()
		e := p.post(body).last(w).fault(w)
		if e.Code != -32600 || !strings.Contains(e.Message, "in flight") {
			t.Errorf("the second got %+v", e)
		}
		if r := p.post(`{"jsonrpc":"2.0","id":"1","method":"ping"}`); !strings.Contains(r.body, "result") {
			t.Errorf(`"1" is another id than 1: %s`, r.body)
		}
		time.Sleep(6 * time.Second)
		for _, x := range []*pending{first, other} {
			if m := decode(w, x.frames()[0]); m.Result == nil {
				t.Errorf("a call in flight got %s", m.Error)
			}
		}
		if m := p.post(body).last(w); m.Result == nil {
			t.Errorf("the id is free again, but got %s", m.Error)
		}
	})
}

// W1, W3: what passes through is the sender's bytes, on one line.
func TestArgumentsPassAsTheyWereSpelled(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		p.post("{\"jsonrpc\":\"2.0\",\r\n\"id\":1,\"x-extra\":[1.0],\n\"method\":\"tools/call\",\"params\":{\"name\":\"echo\",\"arguments\":{\"z\":9007199254740993,\"a\":1.50e0,\"s\":\"\\u00e9\\n\"}}}\n")
		got := w.proc("a").got(wire.ToolsCall)
		want := `"x-extra":[1.0],"method":"tools/call","params":{"name":"echo","arguments":{"z":9007199254740993,"a":1.50e0,"s":"\u00e9\n"}}}`
		if len(got) != 1 || !strings.HasSuffix(got[0], want) {
			t.Errorf("got %q, want the end %s", got, want)
		}
	})
}

// Case 11: there is no small buffer anywhere on the way.
func TestLargeFramesPass(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		text := strings.Repeat("x", 5<<20)
		got := w.connect("/mcp/a").tool("echo", `{"text":"`+text+`"}`)
		if got["arguments"].(map[string]any)["text"] != text {
			t.Error("the large argument did not come back")
		}
	})
}

// W3: batches of 2025-03-26 are taken apart and answered as a batch.
func TestBatch(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.dialed("/mcp/a")
		p.version = wire.Version20250326
		p.hello()
		call := func(id int) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"n":%d}}}`, id, id)
		}
		for _, c := range []struct {
			name, body string
			answers    int
			status     int
		}{
			{"calls, a notification, and what is no frame", `[` + call(1) + `,{"jsonrpc":"2.0","method":"notifications/x"},` + call(2) + `,17]`, 3, 200},
			{"one call", `[` + call(1) + `]`, 1, 200},
			{"an id twice", `[` + call(1) + `,{"jsonrpc":"2.0","id":1,"method":"ping"}]`, 2, 200},
			{"initialize", `[` + hello(p.version, "{}") + `]`, 1, 200},
			{"notifications alone", `[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":5,"result":{}}]`, 0, 202},
			{"nothing", `[]`, 1, 400},
			{"more than a batch may hold", `[` + strings.Repeat("1,", maxBatch) + `1]`, 1, 400},
		} {
			r := p.post(c.body)
			var list []json.RawMessage
			if c.status == 200 {
				if err := json.Unmarshal([]byte(r.body), &list); err != nil {
					t.Errorf("%s: %v in %s", c.name, err, r.body)
				}
			} else {
				list = make([]json.RawMessage, len(r.frames))
			}
			if r.status != c.status || len(list) != c.answers {
				t.Errorf("%s: %d %s, want %d with %d answers", c.name, r.status, r.body, c.status, c.answers)
			}
		}
	})
}

// H4: a server's callTimeout ends a call with an error of its own, and the server is
// told; progress extends it, up to four times.
func TestACallTimeout(t *testing.T) {
	server := shared("a")
	server.CallTimeout = 10 * time.Second
	inWorld(t, settings{}, []*config.Server{server}, func(w *world) {
		p := w.connect("/mcp/a")
		begun := time.Now()
		e := p.refused(wire.ToolsCall, `{"name":"echo","arguments":{"ms":60000}}`)
		if e.Code != -32013 || e.Data["reason"] != "call_timeout" || time.Since(begun) != 10*time.Second {
			t.Errorf("after %s: %+v", time.Since(begun), e)
		}
		synctest.Wait()
		if n := len(w.proc("a").got(wire.Cancelled)); n != 1 {
			t.Errorf("the server was told %d times", n)
		}
		for steps, want := range map[string]time.Duration{`{"ms":30000,"steps":6}`: 30 * time.Second, `{"ms":90000,"steps":18}`: 40 * time.Second} {
			begun, x := time.Now(), p.beginTool("echo", steps)
			<-x.done
			if took := time.Since(begun); took != want {
				t.Errorf("%s took %s, not %s", steps, took, want)
			}
		}
	})
}
