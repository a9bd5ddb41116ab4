package responses_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// B.6: responses in the background are limited, and who is refused hears when to try again.
func TestResponsesInTheBackgroundAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Responses.Background = 1 })
	w.answers(calls(call{"c1", "a__act", `{}`}), says("done"))
	release := make(chan struct{})
	w.does("a.act", func(string, <-chan struct{}, func(int)) (string, string) {
		<-release
		return `{"content":[{"type":"text","text":"ok"}]}`, ""
	})
	const body = `{"model":"m","input":"x","background":true,` + toolA + `}`
	first := w.post(body).object(t)
	w.await("call a.act")
	g := w.post(body)
	if g.status != http.StatusTooManyRequests || g.header.Get("Retry-After") == "" || !strings.Contains(g.body, "llm.responses.background") {
		t.Errorf("%d %v %s", g.status, g.header, g.body)
	}
	want(t, g.object(t), "error.code", "too_many_responses", "error.type", "rate_limit_error")
	close(release)
	w.until("it has ended", func() bool { return w.face.Running() == 0 })
	want(t, w.good("GET", "/"+id(first), ""), "status", "completed")
	if g := w.post(body); g.status != http.StatusOK {
		t.Errorf("it still is refused: %d %s", g.status, g.body)
	}
}

// B.6: the events of a response are limited. It is incomplete then, with no call dangling.
func TestEventsAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	piece := delta(map[string]any{"content": strings.Repeat("x", 1<<20)})
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil { // never ends by itself
			if _, err := io.WriteString(rw, piece); err != nil {
				return
			}
		}
	})
	o := w.post(`{"model":"m","input":"x"}`).object(t)
	want(t, o, "status", "incomplete", "incomplete_details.reason", "max_response_size", "error", nil, "output.0.status", "incomplete")
}

// A.10: when the upstream says when to try again, the client hears it, whose SDK waits for
// as long.
func TestRetryAfterOfTheUpstream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Retry-After", "17")
		http.Error(rw, `{"error":{"message":"slow down","code":"rate_limit_exceeded"}}`, http.StatusTooManyRequests)
	})
	if g := w.post(`{"model":"m","input":"x",` + toolA + `}`); g.status != http.StatusTooManyRequests || g.header.Get("Retry-After") != "17" {
		t.Errorf("%d %v %s", g.status, g.header, g.body)
	}
}

// G1: who comes while the daemon ends hears when to try again.
func TestRefusedAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.face.Close()
	if g := w.post(`{"model":"m","input":"x",` + toolA + `}`); g.status != http.StatusServiceUnavailable || g.header.Get("Retry-After") == "" {
		t.Errorf("%d %v %s", g.status, g.header, g.body)
	}
}

// B.5.9: a client may refer to items that are kept, of every type, rather than send them;
// to those of others it cannot.
func TestReferencesToItems(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__echo", `{}`}, call{"c2", "b__act", `{}`}))
	o := w.post(`{"model":"m","input":"go","tools":[{"type":"mcp","server_label":"a","require_approval":"never"},{"type":"mcp","server_label":"b"}]}`).object(t)
	var items []string
	for _, it := range o["output"].([]any) {
		items = append(items, fmt.Sprintf(`{"type":"item_reference","id":%q}`, at(it, "id")))
	}
	want(t, o, "output.2.type", "mcp_call", "output.3.type", "mcp_approval_request")
	items[2] = strings.Replace(items[2], `"type":"item_reference",`, "", 1) // which the API allows
	items = append(items, fmt.Sprintf(`{"type":"mcp_approval_response","approval_request_id":%q,"approve":true}`, at(o, "output.3.id")))
	input := `{"role":"user","content":"go"},` + strings.Join(items, ",")
	w.answers(says("done"))
	second := w.post(`{"model":"m","input":[` + input + `],"tools":[{"type":"mcp","server_label":"a"},{"type":"mcp","server_label":"b"}]}`).object(t)
	want(t, second, "status", "completed", "output.0.type", "mcp_call", "output.0.output", "act {}", "output.1.type", "message")
	want(t, w.prompts()[0], "messages.1.tool_calls.0.function.name", "a__echo", "messages.2.content", "echo {}", "messages.3.tool_calls.0.function.name", "b__act")
	message := fmt.Sprintf(`{"type":"item_reference","id":%q}`, at(second, "output.1.id"))
	want(t, w.post(`{"model":"m","input":[`+message+`,{"role":"user","content":"and?"}]}`).object(t), "status", "completed")
	want(t, w.prompts()[1], "messages.0.role", "assistant", "messages.0.content", "done")
	other := strings.Replace(message, "msg_", "msg_x", 1)
	w.refused(http.StatusBadRequest, "item_reference", "POST", "", `{"model":"m","input":[`+other+`]}`)
	w.good("DELETE", "/"+id(second), "")
	w.refused(http.StatusBadRequest, "item_reference", "POST", "", `{"model":"m","input":[`+message+`]}`)
}

// X1: requests that are made to cost much are refused at once.
func TestRequestsThatCostMuch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Responses.Egress.Allow = nil })
	var members, servers []string
	for i := range 100_000 {
		members = append(members, fmt.Sprintf(`"m%d":0`, i))
	}
	for i := range 65 {
		servers = append(servers, fmt.Sprintf(`{"type":"mcp","server_label":"s%d","server_url":"https://8.8.8.8/"}`, i))
	}
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	for words, body := range map[string]string{
		"more than":  `{"model":"m","input":"x",` + strings.Join(members, ",") + `}`,
		"64 servers": `{"model":"m","input":"x","tools":[` + strings.Join(servers, ",") + `]}`,
		"JSON":       `{"model":"m","input":"x","metadata":` + deep + `}`,
	} {
		w.refused(http.StatusBadRequest, words, "POST", "", body)
	}
	if len(w.dialled) > 0 {
		t.Error("a server was dialled")
	}
}

// B.5.1, X5: very many tools, with names that model APIs refuse, that are too long, or that
// come twice, and very many calls of them in one turn, with long and deep arguments.
func TestManyToolsAndCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const tools, made = 2000, 200
	var list []string
	name := func(i int) string { return fmt.Sprintf("%s.%d/ü", strings.Repeat("long", 20), i) }
	for i := range tools {
		list = append(list, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name(i)))
	}
	list = append(list, list[0])
	w.listing["a"] = `{"tools":[` + strings.Join(list, ",") + `]}`
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		var turn []call
		for i := range made {
			turn = append(turn, call{fmt.Sprintf("c%d", i), at(w.prompts()[0], fmt.Sprintf("tools.%d.function.name", i)).(string), fmt.Sprintf(`{"i":%d}`, i)})
		}
		turn[0].arguments = `{"x":"` + strings.Repeat("x", 5<<20) + `"}`
		turn[1].arguments = `{"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`
		calls(turn...)(rw, r)
	}, says("done"))
	events := w.streamed(`{"model":"m","input":"x","stream":true,` + toolA + `}`)
	checkOrder(t, events)
	o := events[len(events)-1]["response"].(map[string]any)
	want(t, o, "status", "completed", fmt.Sprintf("output.%d.type", made+1), "message", "output.1.status", "completed", "output.2.status", "failed", "output.2.error.type", "mcp_protocol_error")
	output := o["output"].([]any)
	for i := 2; i < made; i++ {
		if it := output[i+1]; at(it, "name") != name(i) || at(it, "output") != fmt.Sprintf(`%s {"i":%d}`, name(i), i) {
			t.Fatalf("%d: %v", i, it)
		}
	}
	names := map[string]bool{}
	told := w.prompts()[0]["tools"].([]any)
	for _, x := range told {
		n := at(x, "function.name").(string)
		if names[n] || !regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`).MatchString(n) {
			t.Fatalf("the model is told of %q", n)
		}
		names[n] = true
	}
	if len(told) != tools {
		t.Errorf("the model is told of %d tools", len(told))
	}
	// All that engines read of it are objects.
	for _, c := range at(w.prompts()[1], "messages.1.tool_calls").([]any) {
		var v map[string]any
		if json.Unmarshal([]byte(at(c, "function.arguments").(string)), &v) != nil {
			t.Error("the engine gets back arguments that are no object")
		}
	}
}
