package responses_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/secret"
	"roundhouse/internal/session"
	"roundhouse/internal/store"
)

// B.2: the events about a call of a server's tool, and about a list, in their order.
func TestOrderOfEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		stream(delta(map[string]any{"reasoning_content": "hm"}), delta(map[string]any{"content": "I look."}),
			delta(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "id": "c", "function": map[string]any{"name": "a__echo", "arguments": ""}}}}),
			delta(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "function": map[string]any{"arguments": `{"n":`}}}}),
			delta(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "function": map[string]any{"arguments": `1}`}}}}), finish("tool_calls"))(rw, r)
	}, says("ok"))
	events := w.streamed(`{"model":"m","input":"go","stream":true,` + oneServer + `}`)
	checkOrder(t, events)
	wanted := strings.Fields(`created in_progress
		output_item.added mcp_list_tools.in_progress mcp_list_tools.completed output_item.done
		output_item.added content_part.added reasoning_text.delta reasoning_text.done content_part.done output_item.done
		output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done
		output_item.added mcp_call.in_progress mcp_call_arguments.delta mcp_call_arguments.delta mcp_call_arguments.done mcp_call.completed output_item.done
		output_item.added content_part.added output_text.delta output_text.delta output_text.done content_part.done output_item.done
		completed`)
	if got := kinds(events); !slices.Equal(got, wanted) {
		t.Errorf("got  %q\nwant %q", got, wanted)
	}
	want(t, events[2], "item.tools.0", nil, "item.server_label", "a")
	want(t, events[5], "item.tools.1.name", "act")
	i := slices.Index(kinds(events), "mcp_call_arguments.done")
	want(t, events[i], "arguments", `{"n":1}`)
	want(t, events[i+1], "item_id", at(events[i+2], "item.id"))
	// The model is reminded of what it thought (which engines want while it works with tools).
	want(t, w.prompts()[1], "messages.1.content", "I look.", "messages.1.reasoning_content", "hm")
}

// B.5.4: calls of a turn are made at the same time, and told of in their order; with
// parallel_tool_calls false only the first one counts.
func TestParallelCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	second := make(chan struct{})
	w.does("a.act", func(string, <-chan struct{}, func(int)) (string, string) { // waits for the other
		select {
		case <-second:
		case <-time.After(patience):
		}
		return `{"content":[{"type":"text","text":"first"}]}`, ""
	})
	var once sync.Once
	w.does("b.act", func(string, <-chan struct{}, func(int)) (string, string) {
		once.Do(func() { close(second) })
		return `{"content":[{"type":"text","text":"second"}]}`, ""
	})
	script := []http.HandlerFunc{calls(call{"1", "a__act", "{}"}, call{"2", "b__act", "{}"}), says("done")}
	w.answers(script...)
	events := w.streamed(`{"model":"m","input":"go","stream":true,` + threeServers + `}`)
	checkOrder(t, events)
	want(t, events[len(events)-1], "response.output.3.output", "first", "response.output.4.output", "second")
	want(t, w.prompts()[1], "messages.2.content", "first", "messages.3.content", "second")

	w.answers(script...)
	o := w.post(`{"model":"m","input":"go","parallel_tool_calls":false,` + threeServers + `}`).object(t)
	want(t, o, "parallel_tool_calls", false, "output.3.output", "first", "output.4.type", "message")
	p := w.prompts()
	want(t, p[0], "parallel_tool_calls", false)
	want(t, p[1], "messages.1.tool_calls.0.id", "1", "messages.1.tool_calls.1", nil, "messages.3", nil)
}

// X9: no more calls are made at the same time than may be.
func TestHowManyCallsAreMadeAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Responses.Parallel = 2 })
	var mu sync.Mutex
	now, most := 0, 0
	w.does("a.act", func(string, <-chan struct{}, func(int)) (string, string) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		time.Sleep(30 * time.Millisecond)
		mu.Lock()
		now--
		mu.Unlock()
		return `{"content":[]}`, ""
	})
	var all []call
	for i := range 6 {
		all = append(all, call{fmt.Sprint(i), "a__act", fmt.Sprintf(`{"n":%d}`, i)})
	}
	w.answers(calls(all...), says("done"))
	want(t, w.post(`{"model":"m","input":"go",`+oneServer+`}`).object(t), "status", "completed", "output.6.status", "completed")
	if most > 2 {
		t.Errorf("%d at once", most)
	}
}

// I2: calls of an instance come one after the other.
func TestCallsOfAnInstanceComeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		s := w.servers[0]
		s.Sharing, s.Instances = config.Exclusive, config.Instances{Max: 1, IdleTimeout: time.Minute, MaxWait: patience, OnRelease: config.ReleaseDestroy}
	})
	var mu sync.Mutex
	now, most := 0, 0
	w.does("a.act", func(string, <-chan struct{}, func(int)) (string, string) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		mu.Lock()
		now--
		mu.Unlock()
		return `{"content":[]}`, ""
	})
	w.answers(calls(call{"1", "a__act", "{}"}, call{"2", "a__act", `{"n":2}`}, call{"3", "a__act", `{"n":3}`}), says("done"))
	want(t, w.post(`{"model":"m","input":"go",`+oneServer+`}`).object(t), "status", "completed", "output.3.status", "completed")
	if most != 1 {
		t.Errorf("%d at once", most)
	}
}

// A6: where nobody named the session, a model's arguments are the tool's all the same: which
// session a response belongs to is never theirs to say.
func TestArgumentsDoNotNameTheSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		s := w.servers[0]
		s.Sharing, s.Instances = config.Exclusive, config.Instances{Max: 1, IdleTimeout: time.Minute, MaxWait: patience, OnRelease: config.ReleaseDestroy}
	})
	w.answers(calls(call{"1", "a__echo", `{"session_id":"other"}`}), says("done"))
	o := w.post(`{"model":"m","input":"go",` + oneServer + `}`).object(t)
	want(t, o, "output.1.output", `echo {"session_id":"other"}`)
	if strings.Contains(fmt.Sprint(w.prompts()[0]["tools"]), "session_id") {
		t.Errorf("the model is told of it: %v", w.prompts()[0]["tools"])
	}
}

// tool_choice decides the first turn: among all, one server's tools, one tool or one function.
func TestToolChoice(t *testing.T) {
	t.Parallel()
	tools := `"tools":[{"type":"function","name":"f"},{"type":"mcp","server_label":"a","require_approval":"never"},{"type":"mcp","server_label":"b","require_approval":"never"}]`
	for choice, wants := range map[string][]any{
		`"none"`:                         {"tool_choice", "none"},
		`"required"`:                     {"tool_choice", "required"},
		`{"type":"function","name":"f"}`: {"tool_choice.function.name", "f"},
		`{"type":"mcp","server_label":"b","name":"act"}`:                                                                        {"tool_choice.function.name", "b__act", "tools.4.function.name", "b__act"},
		`{"type":"mcp","server_label":"b"}`:                                                                                     {"tool_choice", "required", "tools.0.function.name", "b__echo", "tools.1.function.name", "b__act", "tools.2", nil},
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"mcp","server_label":"a"}]}`:                                    {"tool_choice", nil, "tools.0.function.name", "a__echo", "tools.2", nil},
		`{"type":"allowed_tools","mode":"auto","tools":[{"type":"mcp","server_label":"b"}]}`:                                    {"tools.0.function.name", "b__echo", "tools.2", nil},
		`{"type":"allowed_tools","mode":"required","tools":[{"type":"mcp","server_label":"a"},{"type":"function","name":"f"}]}`: {"tool_choice", "required", "tools.0.function.name", "f", "tools.3", nil},
	} {
		w := newWorld(t, nil)
		w.answers(calls(call{"1", "a__echo", "{}"}), says("done"))
		w.post(`{"model":"m","input":"go","tool_choice":` + choice + `,` + tools + `}`)
		p := w.prompts()
		want(t, p[0], wants...)
		if len(p) > 1 && choice != `"none"` {
			want(t, p[1], "tool_choice", nil) // else it would call for ever
		}
		allowed := 1
		if choice == `"none"` || strings.Contains(choice, `"auto","tools":[{"type":"mcp","server_label":"b"}]`) {
			allowed = 0 // the model calls it all the same
		}
		if n := w.noted(); count(n, "call a.echo") != allowed {
			t.Errorf("%s: the ledger is %q", choice, n)
		}
	}
}

// X7: each model call of the loop is a recorded turn of the session, each call of a tool an
// event of it.
func TestModelCallsAreTurnsAndToolCallsEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"1", "a__echo", "{}"}), says("done"))
	w.post(`{"model":"m","input":"go",`+oneServer+`}`, "X-Session-Id", "mine")
	var turns []store.Call
	for c, err := range w.store.Calls(t.Context(), store.CallFilter{Session: store.Of(store.SessionKey{Principal: "local", ID: "mine", Incarnation: 1})}) {
		if err != nil {
			t.Fatal(err)
		}
		turns = append(turns, c)
	}
	if len(turns) != 2 || turns[0].API != "chat" || turns[1].Result == nil || turns[1].Result.Outcome != store.Complete {
		t.Errorf("%d turns: %+v", len(turns), turns)
	}
	events, _, _ := w.events.After(0)
	i := slices.IndexFunc(events, func(e event.Event) bool { return e.Kind == event.ToolCalled })
	if i < 0 || events[i].Session != "mine" || events[i].Server != "a" || events[i].Tool != "echo" || events[i].Outcome != "completed" || events[i].Principal != "local" {
		t.Errorf("%+v", events)
	}
}

// STYLE 19: how many responses, rounds and calls there were is counted.
func TestCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"1", "a__echo", "{}"}, call{"2", "a__nothing", "{}"}), says("done"))
	w.post(`{"model":"m","input":"go",` + oneServer + `}`)
	w.until("it is over", func() bool { return w.face.Running() == 0 })
	r := prometheus.NewRegistry()
	r.MustRegister(w.loop.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var name strings.Builder
			name.WriteString(f.GetName())
			for _, l := range m.GetLabel() {
				name.WriteString(" " + l.GetValue())
			}
			got[strings.TrimPrefix(name.String(), "roundhouse_loop_")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, n := range map[string]float64{"running": 0, "runs_total completed": 1, "runs_total failed": 0, "rounds_total": 2, "tool_calls_total completed": 1, "tool_calls_total failed": 1} {
		if have, ok := got[name]; !ok || have != n {
			t.Errorf("%s is %v, want %v", name, have, n)
		}
	}
}

// X1, B.4: a server by its address, with the request's headers; what they may not be, and what
// is nobody's to see.
func TestServersByAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.llm.Responses.Egress.Allow = []config.EgressRule{{Host: "tools.example"}}
	})
	w.answers(calls(call{"1", "far__echo", "{}"}), says("done"))
	entry := `{"type":"mcp","server_label":"far","server_url":"http://tools.example/s3cret/mcp?key=s3cret","authorization":"s3cret","require_approval":"never",
		"headers":{"X-Key":"s3cret","x-session-id":"evil","X-SESSION-ID":"evil","mcp-session-id":"evil","Host":"evil","Cookie":"evil","AUTHORIZATION":"evil"}}`
	body := `{"model":"m","input":"go","tools":[` + entry + `]}`
	g := w.post(body)
	want(t, g.object(t), "status", "completed", "output.1.output", "echo {}", "tools.0.server_url", "http://tools.example", "tools.0.authorization", nil, "tools.0.headers.X-Key", "***")
	if strings.Contains(g.body, "s3cret") || strings.Contains(g.body, "evil") {
		t.Errorf("a secret is shown: %s", g.body)
	}
	w.mu.Lock()
	s := w.dialled[0]
	w.mu.Unlock()
	if s.URL.Reveal() != "http://tools.example/s3cret/mcp?key=s3cret" || s.Headers["X-Key"].Reveal() != "s3cret" || s.Headers["Authorization"].Reveal() != "Bearer s3cret" || s.Dialer == nil {
		t.Errorf("dialled %+v", s)
	}
	var own strings.Builder
	for name, value := range s.Headers { // X4
		switch {
		case strings.EqualFold(name, "X-Session-Id"):
			own.WriteString(value.Reveal())
		case value.Reveal() == "evil":
			t.Errorf("%s was passed on", name)
		}
	}
	if own.String() != g.object(t)["id"] {
		t.Errorf("X-Session-Id is %q", own.String())
	}
	w.until("it is closed", func() bool { return count(w.noted(), "close "+s.Name) == 1 })
	if n := w.noted(); count(n, "cleanup "+s.Name) != 1 {
		t.Errorf("the ledger is %q", n)
	}

	for address, why := range map[string]string{
		"http://127.0.0.1/": "no public address", "http://example.com/": "https", "http://user:pw@tools.example/": "credentials", "ftp://tools.example/": "https://",
	} {
		g := w.post(strings.Replace(body, "http://tools.example/s3cret/mcp?key=s3cret", address, 1))
		if g.status != http.StatusBadRequest || !strings.Contains(g.body, why) || strings.Contains(g.body, "s3cret") || strings.Contains(g.body, "pw") {
			t.Errorf("%s: %d %s", address, g.status, g.body)
		}
	}
}

// B.4, X2: in a named session a server by its address stays open for the next request with the
// same headers, and one with others is another one. Nobody else sees either.
func TestServersByAddressInANamedSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.llm.Responses.Egress.Allow = []config.EgressRule{{Host: "tools.example"}}
	})
	script := []http.HandlerFunc{calls(call{"1", "far__echo", "{}"}), says("done")}
	w.answers(slices.Concat(script, script, script)...)
	for _, token := range []string{"one", "one", "two"} {
		body := `{"model":"m","input":"go","tools":[{"type":"mcp","server_label":"far","server_url":"http://tools.example/","authorization":"` + token + `","require_approval":"never"}]}`
		want(t, w.post(body, "X-Session-Id", "mine").object(t), "status", "completed", "output.1.status", "completed")
	}
	w.mu.Lock()
	dialled := len(w.dialled)
	w.mu.Unlock()
	if dialled != 2 {
		t.Errorf("%d connections", dialled)
	}
	w.mu.Lock()
	first := w.dialled[0].Name
	w.mu.Unlock()
	w.until("the one that is not wanted any more is closed", func() bool { return count(w.noted(), "close "+first) == 1 })
	if n := w.noted(); count(n, "cleanup "+first) != 1 {
		t.Errorf("the ledger is %q", n)
	}
	if len(w.sessions.Injected("local", true)) != 0 {
		t.Error("it is listed among the session's servers")
	}
}

// X4, K1: what of a request's headers a configured server gets is what its entry names.
func TestHeadersForConfiguredServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.servers[0].Transport, w.servers[0].ForwardHeaders = config.HTTP, []string{"X-Tenant", "Authorization"}
		w.servers[0].Headers = map[string]secret.String{"x-session-id": secret.New("evil")}
	})
	w.answers(says("done"))
	g := w.post(`{"model":"m","input":"go","tools":[{"type":"mcp","server_label":"a","authorization":"s3cret","headers":{"x-tenant":"t1","x-session-id":"evil"}}]}`)
	want(t, g.object(t), "status", "completed")
	w.mu.Lock()
	s := w.dialled[0]
	w.mu.Unlock()
	if s.Headers["X-Tenant"].Reveal() != "t1" || s.Headers["Authorization"].Reveal() != "Bearer s3cret" || s.Headers["X-Session-Id"].Reveal() != g.object(t)["id"] || len(s.Headers) != 3 {
		t.Errorf("dialled with %d headers: %+v", len(s.Headers), s.Headers)
	}
}

// V3: the filters of servers' entries and principals hold for responses, too; a list of what
// is allowed lets nothing through of a server that a request brings.
func TestFiltersHoldForResponses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.llm.Responses.Egress.Allow = []config.EgressRule{{Host: "tools.example"}}
		w.servers[1].ExcludeTools = []string{"act"}
		w.filters = map[string]session.Tools{"local": {Include: []string{"a__echo", "b__*"}}}
	})
	w.answers(calls(call{"1", "a__act", "{}"}, call{"2", "b__act", "{}"}, call{"3", "far__echo", "{}"}, call{"4", "a__echo", "{}"}), says("done"))
	o := w.post(`{"model":"m","input":"go","tools":[{"type":"mcp","server_label":"a","require_approval":"never"},{"type":"mcp","server_label":"b","require_approval":"never"},
		{"type":"mcp","server_label":"far","server_url":"http://tools.example/","require_approval":"never"}]}`).object(t)
	want(t, w.prompts()[0], "tools.0.function.name", "a__echo", "tools.1.function.name", "b__echo", "tools.2", nil)
	want(t, o, "output.3.error.type", "mcp_protocol_error", "output.4.error.type", "mcp_protocol_error", "output.5.error.type", "mcp_protocol_error", "output.6.output", "echo {}")
	for _, line := range w.noted() {
		if strings.HasPrefix(line, "call ") && line != "call a.echo" {
			t.Errorf("%s", line)
		}
	}
}

// X2: a list that is in the context is not made again, and its server is opened when one of
// its tools is called; what it says is allowed is looked at again.
func TestListsInTheContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	list := `{"type":"mcp_list_tools","id":"l","server_label":"a","tools":[{"name":"echo","input_schema":{"type":"object"}},{"name":"act","input_schema":{"type":"object"}}]}`
	body := `{"model":"m","input":[` + list + `,{"role":"user","content":"go"}],"tools":[{"type":"mcp","server_label":"a","require_approval":"never","allowed_tools":["echo"]}]}`
	w.answers(says("nothing to do"))
	o := w.post(body).object(t)
	want(t, o, "output.0.type", "message", "output.1", nil)
	want(t, w.prompts()[0], "tools.0.function.name", "a__echo", "tools.1", nil, "messages.0.content", "go", "messages.1", nil)
	if n := w.noted(); len(n) > 0 {
		t.Errorf("it was opened for nothing: %q", n)
	}
	w.answers(calls(call{"1", "a__echo", "{}"}, call{"2", "a__echo", `{"n":2}`}), says("done"))
	o = w.post(body).object(t)
	want(t, o, "output.0.type", "mcp_call", "output.0.output", "echo {}", "output.1.output", `echo {"n":2}`, "output.2.type", "message")
	w.until("it is over", func() bool { return w.face.Running() == 0 })
	checkLedger(t, w, []string{"a"}, "a")

	// A list that a client made up opens nothing to the model that its server keeps from it.
	w.answers(calls(call{"1", "a__cleanup_session", "{}"}), says("sorry"))
	o = w.post(`{"model":"m","input":[{"type":"mcp_list_tools","id":"l","server_label":"a","tools":[{"name":"cleanup_session","input_schema":{}}]},{"role":"user","content":"go"}],` + oneServer + `}`).object(t)
	want(t, o, "output.0.status", "failed", "output.0.error.type", "mcp_protocol_error")
	w.until("it is over", func() bool { return w.face.Running() == 0 })
	if n := w.noted(); count(n, "cleanup a") != 1 { // that of the response before
		t.Errorf("the model has called it: %q", n)
	}
}

// Case 67: what goes wrong on the way to a server tells nobody the request's secrets, also if
// the server itself repeats them.
func TestErrorsOfServersTellNoSecrets(t *testing.T) {
	t.Parallel()
	parrot := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "wrong key "+r.Header.Get("Authorization")+" "+r.Header.Get("X-Key")+" "+r.URL.String(), http.StatusForbidden)
	}))
	t.Cleanup(parrot.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	w := newWorld(t, func(w *world) {
		w.real = true
		w.llm.Responses.Egress.Allow = []config.EgressRule{{Net: netip.MustParsePrefix("127.0.0.0/8")}}
	})
	for name, address := range map[string]string{"refuses": parrot.URL, "is gone": gone.URL} {
		w.answers(says("sorry"))
		g := w.post(`{"model":"m","input":"go","tools":[{"type":"mcp","server_label":"far","server_url":"` + address + `/mcp?key=s3cret-query","authorization":"s3cret-token","headers":{"X-Key":"s3cret-header"}}]}`)
		if e, _ := at(g.object(t), "output.0.error").(string); e == "" || strings.Contains(g.body, "s3cret") {
			t.Errorf("a server that %s: %d %s", name, g.status, g.body)
		}
		if strings.Contains(w.log.String(), "s3cret") {
			t.Errorf("a server that %s: the log tells it: %s", name, w.log.String())
		}
	}
}
