package responses_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/config"
	"roundhouse/internal/front"
	"roundhouse/internal/loop"
	"roundhouse/internal/secret"
	"roundhouse/internal/store"
)

// call makes a request about responses; path is behind /v1/responses.
func (w *world) call(method, path, body string) got {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, w.url+"/v1/responses"+path, strings.NewReader(body))
	if err != nil {
		w.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return got{resp.StatusCode, resp.Header, string(b)}
}

// good is call for an answer that is a success.
func (w *world) good(method, path, body string) map[string]any {
	w.Helper()
	g := w.call(method, path, body)
	if g.status != http.StatusOK {
		w.Fatalf("%s %s: %d %s", method, path, g.status, g.body)
	}
	return g.object(w)
}

// refused makes a request that is to fail with a status, in the API's form, and with words.
func (w *world) refused(status int, words, method, path, body string) {
	w.Helper()
	g := w.call(method, path, body)
	var v struct {
		Error struct{ Message, Type string }
	}
	if g.status != status || json.Unmarshal([]byte(g.body), &v) != nil || !strings.Contains(v.Error.Message, words) || v.Error.Type == "" {
		w.Errorf("%s %s: %d %s, want %d with %q", method, path, g.status, g.body, status, words)
	}
}

// numbers are the sequence numbers of a stream.
func (g got) numbers(t testing.TB) (numbers []int, kinds []string) {
	t.Helper()
	for line := range strings.Lines(g.body) {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e struct {
			Type   string
			Number int `json:"sequence_number"`
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		numbers, kinds = append(numbers, e.Number), append(kinds, strings.TrimPrefix(e.Type, "response."))
	}
	return numbers, kinds
}

func id(o map[string]any) string { return o["id"].(string) }

const toolA = `"tools":[{"type":"mcp","server_label":"a","require_approval":"never"}]`

// hangs is a tool that waits until it is cancelled.
func hangs(_ string, done <-chan struct{}, _ func(int)) (string, string) {
	<-done
	return `{"content":[]}`, ""
}

// X6, B.5.9: what goes on from a response has all that was said and done, in the order in
// which it was, also where the response itself went on from another.
func TestGoingOnFromAResponse(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__echo", `{"n":1}`}, call{"c2", "a__echo", `{"n":2}`}), says("first"), says("second"), says("third"))
	first := w.post(`{"model":"m","input":"one",` + toolA + `}`).object(t)
	second := w.post(`{"model":"m","input":"two","previous_response_id":"` + id(first) + `",` + toolA + `}`).object(t)
	want(t, second, "status", "completed", "previous_response_id", id(first), "output.0.type", "message")
	third := w.post(`{"model":"m","input":[{"role":"user","content":"three"}],"previous_response_id":"` + id(second) + `"}`).object(t)
	want(t, third, "status", "completed")
	var told []string
	open := map[any]bool{}
	for _, m := range w.prompts()[3]["messages"].([]any) {
		for i := range 2 {
			if c := at(m, fmt.Sprintf("tool_calls.%d.id", i)); c != nil {
				open[c] = true
			}
		}
		if at(m, "role") == "tool" {
			if !open[at(m, "tool_call_id")] {
				t.Errorf("a result without its call: %v", m)
			}
			delete(open, at(m, "tool_call_id"))
		}
		if s, ok := at(m, "content").(string); ok && s != "" {
			told = append(told, s)
		}
	}
	if wanted := []string{"one", `echo {"n":1}`, `echo {"n":2}`, "first", "two", "second", "three"}; !slices.Equal(told, wanted) || len(open) > 0 {
		t.Errorf("got %q, without results %v", told, open)
	}
	if n := count(w.noted(), "call a.echo"); n != 2 {
		t.Errorf("the tool ran %d times", n)
	}
}

// X6, case 58: only a principal's own, kept and ended well, can be gone on from.
func TestWhatCannotBeGoneOnFrom(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(says("x"), fails(500, `{}`), calls(call{"c1", "a__act", `{}`}), says("y"))
	w.does("a.act", hangs)
	on := func(previous string) string {
		return `{"model":"m","input":"x","previous_response_id":"` + previous + `"}`
	}
	apart := w.post(`{"model":"m","input":"x","store":false}`).object(t)
	want(t, apart, "store", false)
	events := w.streamed(`{"model":"m","input":"x","stream":true}`)
	failed := at(events[0], "response.id").(string)
	running := w.post(`{"model":"m","input":"x","background":true,` + toolA + `}`).object(t)
	w.await("call a.act")
	foreign := store.Response{Principal: "bob", ID: "resp_bob", Created: time.Now(), Body: store.Pack([]byte(`{"object":{"status":"completed"},"input":[]}`))}
	if err := w.store.SaveResponse(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	w.refused(404, "no response", "POST", "", on("resp_unknown"))
	w.refused(404, "no response", "POST", "", on("resp_bob"))
	w.refused(404, "no response", "POST", "", on(id(apart)))
	w.refused(400, "is failed", "POST", "", on(failed))
	w.refused(400, "is in_progress", "POST", "", on(id(running)))
	for _, path := range []string{"/resp_bob", "/resp_bob/input_items", "/" + id(apart)} {
		w.refused(404, "no response", "GET", path, "")
	}
	w.refused(404, "no response", "POST", "/resp_bob/cancel", "")
	w.refused(404, "no response", "DELETE", "/resp_bob", "")
	w.good("POST", "/"+id(running)+"/cancel", "")
	w.refused(400, "is cancelled", "POST", "", on(id(running)))
	if _, err := w.store.Response(t.Context(), "bob", "resp_bob"); err != nil {
		t.Errorf("another principal's response: %v", err)
	}
}

// X2: a chain keeps to the session that its first response named.
func TestAChainKeepsItsSession(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__echo", `{}`}), says("x"), calls(call{"c2", "a__echo", `{}`}), says("y"), calls(call{"c3", "a__echo", `{}`}), says("z"))
	first := w.post(`{"model":"m","input":"x",`+toolA+`}`, "X-Session-Id", "s").object(t)
	w.post(`{"model":"m","input":"x","previous_response_id":"` + id(first) + `",` + toolA + `}`).object(t)
	if n := w.noted(); count(n, "open a") != 1 || count(n, "cleanup a") != 0 {
		t.Errorf("the ledger is %q", n)
	}
	w.post(`{"model":"m","input":"x","previous_response_id":"`+id(first)+`",`+toolA+`}`, "X-Session-Id", "other").object(t)
	if n := w.noted(); count(n, "open a") != 2 {
		t.Errorf("the ledger is %q", n)
	}
}

// X2: the tools of a chain of which no link named a session go on from its second link.
func TestAChainWithoutASessionHasOneOfItsOwn(t *testing.T) {
	w := newWorld(t, nil)
	var script []http.HandlerFunc
	for range 4 {
		script = append(script, calls(call{"c", "a__echo", `{}`}), says("x"))
	}
	w.answers(script...)
	first := w.post(`{"model":"m","input":"x",` + toolA + `}`).object(t)
	w.await("close a")
	second := w.post(`{"model":"m","input":"x","previous_response_id":"` + id(first) + `",` + toolA + `}`).object(t)
	third := w.post(`{"model":"m","input":"x","previous_response_id":"` + id(second) + `",` + toolA + `}`).object(t)
	if n := w.noted(); count(n, "open a") != 2 || count(n, "cleanup a") != 1 || count(n, "call a.echo") != 3 {
		t.Errorf("the ledger is %q", n)
	}
	if turns := w.sessions.List("local", false); len(turns) != 1 || turns[0].ID != id(first) {
		t.Errorf("the sessions are %+v", turns)
	}
	w.post(`{"model":"m","input":"x","previous_response_id":"`+id(third)+`",`+toolA+`}`, "X-Session-Id", "s").object(t)
	if n := w.noted(); count(n, "open a") != 3 {
		t.Errorf("the ledger is %q", n)
	}
}

// X6: deleted is gone, also from those that run, which are cancelled.
func TestDelete(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(says("x"), calls(call{"c1", "a__act", `{}`}))
	w.does("a.act", hangs)
	clean := make(chan struct{})
	w.does("a.cleanup_session", func(string, <-chan struct{}, func(int)) (string, string) {
		<-clean
		return `{"content":[]}`, ""
	})
	ended := w.post(`{"model":"m","input":"x"}`).object(t)
	running := w.post(`{"model":"m","input":"x","background":true,` + toolA + `}`).object(t)
	w.await("call a.act")
	for _, o := range []map[string]any{ended, running} {
		want(t, w.good("DELETE", "/"+id(o), ""), "id", id(o), "deleted", true)
		w.refused(404, "no response", "GET", "/"+id(o), "")
		w.refused(404, "no response", "DELETE", "/"+id(o), "")
		if _, err := w.store.Response(t.Context(), "local", id(o)); err == nil {
			t.Error("it is still stored")
		}
	}
	close(clean) // until now one of them was under way, with its clean-up
	w.await("cancelled a")
	w.await("close a")
}

// B.5.8: of many responses that answer one request for approval at once, one runs the call;
// no other ever does.
func TestAnApprovalIsConsumedOnce(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{}`}), says("done"))
	const tool = `"tools":[{"type":"mcp","server_label":"a","require_approval":"always"}]`
	asked := w.post(`{"model":"m","input":"x",` + tool + `}`).object(t)
	want(t, asked, "status", "completed", "output.1.type", "mcp_approval_request")
	answer := `{"type":"mcp_approval_response","approve":true,"approval_request_id":"` + at(asked, "output.1.id").(string) + `"}`
	bodies := []string{`{"model":"m","previous_response_id":"` + id(asked) + `","input":[` + answer + `],` + tool + `}`}
	output, err := json.Marshal(asked["output"])
	if err != nil {
		t.Fatal(err)
	}
	bodies = append(bodies, `{"model":"m","store":false,"input":[{"role":"user","content":"x"},`+strings.Trim(string(output), "[]")+`,`+answer+`],`+tool+`}`)
	for round := range 2 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		statuses := map[int]int{}
		for i := range 8 {
			wg.Go(func() {
				g := w.post(bodies[i%len(bodies)])
				mu.Lock()
				defer mu.Unlock()
				statuses[g.status]++
			})
		}
		wg.Wait()
		if round == 0 && (statuses[200] != 1 || statuses[400] != 7) || round == 1 && statuses[400] != 8 {
			t.Errorf("round %d: %v", round, statuses)
		}
	}
	if n := count(w.noted(), "call a.act"); n != 1 {
		t.Errorf("the call was made %d times", n)
	}
}

// X6: what a response was given is listed in pages, each item with an id that stays.
func TestInputItems(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(says("x"))
	o := w.post(`{"model":"m","input":[{"role":"user","content":"1"},{"id":"own","type":"message","role":"user","content":[{"type":"input_text","text":"2"}]},{"role":"assistant","content":"3"},{"role":"user","content":"4"}]}`).object(t)
	path := "/" + id(o) + "/input_items"
	page := w.good("GET", path+"?limit=3&order=asc", "")
	want(t, page, "object", "list", "has_more", true, "data.0.content.0.text", "1", "data.0.content.0.type", "input_text", "data.0.type", "message", "data.1.id", "own",
		"data.2.content.0.type", "output_text", "data.3", nil, "last_id", at(page, "data.2.id"), "first_id", at(page, "data.0.id"))
	next := w.good("GET", path+"?limit=3&order=asc&after="+at(page, "last_id").(string), "")
	want(t, next, "has_more", false, "data.0.content.0.text", "4", "data.1", nil)
	want(t, w.good("GET", path, ""), "data.0.content.0.text", "4", "data.3.content.0.text", "1", "has_more", false)
	w.refused(400, "limit", "GET", path+"?limit=0", "")
	w.refused(400, "order", "GET", path+"?order=up", "")
	w.refused(400, "after", "GET", path+"?after=no", "")
}

// B.1, B.4: no secret of a tool is stored or shown, in whatever is kept of a response.
func TestStoredResponsesHoldNoSecrets(t *testing.T) {
	w := newWorld(t, func(w *world) {
		w.llm.Responses.Egress.Allow = []config.EgressRule{{Host: "*"}}
	})
	w.answers(calls(call{"c1", "x__echo", `{}`}), says("x"))
	const tool = `"tools":[{"type":"mcp","server_label":"x","server_url":"http://mcp.invalid/mcp?key=sentinel","authorization":"sentinel","headers":{"X-Key":"sentinel"},"require_approval":"never"}]`
	o := w.post(`{"model":"m","input":"x","background":true,` + tool + `}`)
	stored := func() store.Response {
		v, err := w.store.Response(t.Context(), "local", id(o.object(t)))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	w.until("it has ended", func() bool { return !stored().Running && w.face.Running() == 0 })
	v := stored()
	body, err := v.Body.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	events, err := v.Events.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(body), `"completed"`) || len(events) == 0 {
		t.Errorf("stored are %s and %s", body, events)
	}
	for where, text := range map[string]string{"answer": o.body, "object": string(body), "events": string(events)} {
		if strings.Contains(text, "sentinel") {
			t.Errorf("the %s shows a secret: %s", where, text)
		}
	}
}

// What cannot be stored is answered, and says that it is not stored; in the background it is
// refused, since nobody could ask for it.
func TestAResponseThatCannotBeStored(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(says("x"))
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, w.post(`{"model":"m","input":"x"}`).object(t), "status", "completed", "store", false, "output.0.content.0.text", "x")
	w.refused(503, "cannot be stored", "POST", "", `{"model":"m","input":"x","background":true}`)
	w.until("nothing runs", func() bool { return w.face.Running() == 0 })
	r := prometheus.NewRegistry()
	r.MustRegister(w.face.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, family := range families {
		m := family.GetMetric()[0]
		counts[family.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	if counts["roundhouse_responses_unstored_total"] != 3 || counts["roundhouse_responses_ended_total"] != 1 || len(counts) != 3 {
		t.Errorf("the metrics are %v", counts)
	}
}

// Clients leave out what came of a call when they send it back; its id says who knows it.
func TestACallThatComesBackWithoutItsOutput(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__echo", `{}`}), says("x"), says("y"))
	o := w.post(`{"model":"m","input":"x",` + toolA + `}`).object(t)
	bare := `{"type":"mcp_call","id":"` + at(o, "output.1.id").(string) + `","server_label":"a","name":"echo","arguments":"{}"}`
	foreign := strings.Replace(bare, at(o, "output.1.id").(string), loop.ItemID(loop.ToolCall, "resp_bob", 0), 1)
	w.post(`{"model":"m","input":[{"role":"user","content":"x"},` + bare + `,` + foreign + `,{"role":"user","content":"y"}]}`).object(t)
	p := w.prompts()[2]
	want(t, p, "messages.2.role", "tool", "messages.2.content", "echo {}")
	if s, _ := at(p, "messages.4.content").(string); at(p, "messages.4.role") != "tool" || strings.Contains(s, "echo {}") {
		t.Errorf("a call that nobody knows has the result %v", at(p, "messages.4"))
	}
}

// X6: where an upstream keeps responses itself, those that are not ours are its.
func TestResponsesOfAnUpstream(t *testing.T) {
	w := newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses = true })
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, `{"who":"upstream","path":%q}`, r.URL.RequestURI())
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/responses/resp_theirs?include=x", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(b), "/v1/responses/resp_theirs?include=x") {
		t.Errorf("%s, %v", b, err)
	}
}

// X6, case 58: another principal's response is unknown, also while it runs.
func TestResponsesBelongToTheirPrincipal(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{}`}))
	w.does("a.act", hangs)
	f, err := front.New(front.Config{Tokens: []config.Token{{Principal: "ana", Token: secret.New("ana-0123456789abcdef")}, {Principal: "bob", Token: secret.New("bob-0123456789abcdef")}}})
	if err != nil {
		t.Fatal(err)
	}
	w.face.Register(f)
	door := httptest.NewServer(f)
	defer door.Close()
	ask := func(token, method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, door.URL+"/v1/responses"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token+"-0123456789abcdef")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	status, body := ask("ana", "POST", "", `{"model":"m","input":"x","background":true,`+toolA+`}`)
	if status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	o := got{body: body}.object(t)
	w.await("call a.act")
	for _, ended := range []bool{false, true} {
		if ended {
			if status, body := ask("ana", "POST", "/"+id(o)+"/cancel", ""); status != 200 {
				t.Errorf("%d %s", status, body)
			}
			w.until("it has left", func() bool { return w.face.Running() == 0 })
		}
		for path, method := range map[string]string{"": "GET", "/cancel": "POST", "/input_items": "GET", "?stream=true": "GET"} {
			if status, body := ask("bob", method, "/"+id(o)+path, ""); status != 404 {
				t.Errorf("ended %t, %s: %d %s", ended, path, status, body)
			}
		}
		if status, body := ask("bob", "DELETE", "/"+id(o), ""); status != 404 {
			t.Errorf("%d %s", status, body)
		}
		if status, body := ask("bob", "POST", "", `{"model":"m","input":"x","previous_response_id":"`+id(o)+`"}`); status != 404 {
			t.Errorf("%d %s", status, body)
		}
		if status, body := ask("ana", "GET", "/"+id(o), ""); status != 200 {
			t.Errorf("%d %s", status, body)
		}
	}
}

// X6: what is not to be stored is unknown, also while it runs.
func TestAResponseThatIsNotStoredIsUnknown(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{}`}), says("x"))
	release := make(chan struct{})
	w.does("a.act", func(string, <-chan struct{}, func(int)) (string, string) {
		<-release
		return `{"content":[]}`, ""
	})
	resp := w.send(t.Context(), `{"model":"m","input":"x","stream":true,"store":false,`+toolA+`}`)
	defer resp.Body.Close()
	first := make([]byte, 4096)
	n, err := resp.Body.Read(first)
	if err != nil {
		t.Fatal(err)
	}
	_, name, _ := strings.Cut(string(first[:n]), `"id":"`)
	name, _, _ = strings.Cut(name, `"`)
	w.await("call a.act")
	w.refused(404, name, "GET", "/"+name, "")
	close(release)
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	w.refused(404, name, "GET", "/"+name, "")
}

// X6: what goes on from a response of ours is ours, also where the upstream keeps responses.
func TestGoingOnWhereTheUpstreamKeepsResponses(t *testing.T) {
	w := newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses = true })
	message := `{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"hi","annotations":[]}]}`
	w.answers(peerSays(message))
	first := w.post(`{"model":"m","input":"one",` + toolA + `}`).object(t)
	second := w.post(`{"model":"m","input":"two","previous_response_id":"` + id(first) + `"}`).object(t)
	want(t, second, "status", "completed", "previous_response_id", id(first))
	p := w.prompts()[1]
	want(t, p, "previous_response_id", nil, "input.0.content", "one", "input.2.content", "two")
	theirs := w.post(`{"model":"m","input":"two","previous_response_id":"resp_theirs","stream":true}`)
	if theirs.status != 200 || strings.Contains(theirs.body, `"previous_response_id"`) {
		t.Errorf("%d %s", theirs.status, theirs.body)
	}
	want(t, w.prompts()[2], "previous_response_id", "resp_theirs")
}

// B.6: a response that its client has left is cancelled, unless it is in the background, and
// can be looked at.
func TestAClientThatLeavesCancels(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{}`}))
	w.does("a.act", hangs)
	ctx, leave := context.WithCancel(t.Context())
	resp := w.send(ctx, `{"model":"m","input":"x","stream":true,`+toolA+`}`)
	defer resp.Body.Close()
	w.await("call a.act")
	first := make([]byte, 4096)
	n, err := resp.Body.Read(first)
	if err != nil {
		t.Fatal(err)
	}
	_, name, _ := strings.Cut(string(first[:n]), `"id":"`)
	name, _, _ = strings.Cut(name, `"`)
	want(t, w.good("GET", "/"+name, ""), "status", "in_progress")
	leave()
	w.until("it has left", func() bool { return w.face.Running() == 0 })
	want(t, w.good("GET", "/"+name, ""), "status", "cancelled", "output.1.status", "incomplete")
}

// X1: without an LLM endpoint nothing of the API is there, and that is said in its form.
func TestWithoutAnUpstreamNothingIsImplemented(t *testing.T) {
	w := newWorld(t, func(w *world) { w.llm.Upstreams = nil })
	for path, method := range map[string]string{"": "POST", "/r": "GET", "/r/cancel": "POST", "/r/input_items": "GET", "/r/other": "GET", "/compact": "POST"} {
		w.refused(501, "llm.upstreams", method, path, `{"model":"m","input":"x"}`)
	}
	w.refused(501, "llm.upstreams", "DELETE", "/r", "")
}
