package responses_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// X1, X5: a text without tools, as a whole and as a stream with one life cycle.
func TestPlainText(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(says("Hello, world"))
	o := w.post(`{"model":"m","input":"hi","instructions":"be kind","temperature":0.5,"max_output_tokens":100,"metadata":{"k":"v"}}`).object(t)
	want(t, o, "object", "response", "status", "completed", "model", "m", "output.0.type", "message", "output.0.role", "assistant", "output.0.status", "completed",
		"output.0.content.0.type", "output_text", "output.0.content.0.text", "Hello, world", "usage.input_tokens", 10, "usage.output_tokens", 5, "usage.total_tokens", 15,
		"temperature", 0.5, "metadata.k", "v", "instructions", "be kind", "tool_choice", "auto", "error", nil)
	w.post(`{"model":"m","instructions":"be kind","input":[{"role":"developer","content":"and brief"},{"role":"user","content":"hi"}]}`)
	want(t, w.prompts()[1], "messages.0.role", "system", "messages.0.content", "be kind\n\nand brief", "messages.1.content", "hi")
	if begun, ended := o["created_at"].(float64), o["completed_at"]; ended == nil || ended.(float64) < begun {
		t.Errorf("created at %v, completed at %v", begun, ended)
	}
	p := w.prompts()[0]
	want(t, p, "model", "m", "messages.0.role", "system", "messages.0.content", "be kind", "messages.1.role", "user", "messages.1.content", "hi", "temperature", 0.5, "max_tokens", 100, "stream", true, "metadata", nil, "tools", nil)

	events := w.streamed(`{"model":"m","input":"hi","stream":true}`)
	wanted := strings.Fields("created in_progress output_item.added content_part.added output_text.delta output_text.delta output_text.done content_part.done output_item.done completed")
	if got := kinds(events); !slices.Equal(got, wanted) {
		t.Errorf("got %q", got)
	}
	want(t, events[2], "output_index", 0, "item.status", "in_progress", "item.type", "message")
	want(t, events[6], "text", "Hello, world", "content_index", 0)
	want(t, events[9], "response.status", "completed", "response.output.0.content.0.text", "Hello, world")
	if got := w.noted(); len(got) > 0 { // X2: a request without tools opens nothing
		t.Errorf("servers: %q", got)
	}
}

// X1, X2, X3, X5: tools of two servers, called in one turn; only the one that is called gets a
// clean-up, and what was opened last is given back first.
func TestToolsAreRunUntilTheModelIsDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__echo", `{"n":1}`}, call{"c2", "a__act", `{"n":2}`}), says("done"))
	events := w.streamed(`{"model":"m","input":"go","stream":true,"tools":[{"type":"mcp","server_label":"a","require_approval":"never"},{"type":"mcp","server_label":"b","require_approval":"never"}]}`)
	checkOrder(t, events)
	final := events[len(events)-1]
	want(t, final, "type", "response.completed", "response.output.0.type", "mcp_list_tools", "response.output.0.server_label", "a", "response.output.0.tools.0.name", "echo", "response.output.0.tools.2", nil,
		"response.output.1.type", "mcp_list_tools", "response.output.2.type", "mcp_call", "response.output.2.name", "echo", "response.output.2.server_label", "a", "response.output.2.arguments", `{"n":1}`,
		"response.output.2.output", `echo {"n":1}`, "response.output.2.status", "completed", "response.output.2.error", nil, "response.output.3.name", "act",
		"response.output.4.content.0.text", "done", "response.usage.input_tokens", 20)
	p := w.prompts()
	if len(p) != 2 {
		t.Fatalf("%d model calls", len(p))
	}
	want(t, p[0], "tools.0.function.name", "a__echo", "tools.2.function.name", "b__echo", "tools.4", nil)
	want(t, p[1], "messages.1.role", "assistant", "messages.1.tool_calls.0.id", "c1", "messages.1.tool_calls.1.function.name", "a__act", "messages.2.role", "tool", "messages.2.tool_call_id", "c1", "messages.2.content", `echo {"n":1}`, "messages.3.tool_call_id", "c2")
	w.await("close a")
	w.await("close b")
	if n := w.noted(); count(n, "cleanup a") != 1 || count(n, "cleanup b") != 0 || slices.Index(n, "cleanup a") > slices.Index(n, "close a") {
		t.Errorf("the ledger is %q", n)
	}
}

func count(list []string, line string) (n int) {
	for _, x := range list {
		if x == line {
			n++
		}
	}
	return n
}

// checkOrder checks what holds of every stream (B.2).
func checkOrder(t *testing.T, events []map[string]any) {
	t.Helper()
	open, done := map[float64]string{}, 0
	next := 0.0
	for i, e := range events {
		kind := e["type"].(string)
		switch kind {
		case "response.created":
			if i != 0 {
				t.Errorf("event %d is response.created", i)
			}
		case "response.completed", "response.failed", "response.incomplete", "response.cancelled":
			if i != len(events)-1 {
				t.Errorf("%s is event %d of %d", kind, i, len(events))
			}
		case "response.output_item.added":
			if e["output_index"].(float64) != next {
				t.Errorf("event %d has the output_index %v, want %v", i, e["output_index"], next)
			}
			open[next] = at(e, "item.id").(string)
			next++
		case "response.output_item.done":
			index := e["output_index"].(float64)
			if open[index] != at(e, "item.id") {
				t.Errorf("event %d ends the item %v, which is %q", i, at(e, "item.id"), open[index])
			}
			delete(open, index)
			done++
		default:
			if index, ok := e["output_index"].(float64); ok && open[index] != e["item_id"] {
				t.Errorf("event %d, %s, is about the item %v at %v, where %q is open", i, kind, e["item_id"], index, open[index])
			}
		}
	}
	if len(events) == 0 || events[0]["type"] != "response.created" {
		t.Fatalf("the stream does not begin with response.created: %q", kinds(events))
	}
	output, _ := at(events[len(events)-1], "response.output").([]any)
	if len(open) > 0 || done != len(output) {
		t.Errorf("%d items are open; %d ended, %d are in the response", len(open), done, len(output))
	}
}

// X1: what is not supported is named.
func TestUnsupportedRequestsAreRefusedByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for body, named := range map[string]string{
		`{"input":"x"}`:             "model",
		`{"model":"m"}`:             "input",
		`{"model":"m","input":[1]}`: "input[0]",
		`{"model":"m","input":"x","tools":[{"type":"web_search"}]}`:                                               "web_search",
		`{"model":"m","input":"x","tools":[{"type":"mcp","server_label":"nobody"}]}`:                              `called \"nobody\"`,
		`{"model":"m","input":"x","tools":[{"type":"mcp"}]}`:                                                      "server_label",
		`{"model":"m","input":"x","tools":[{"type":"mcp","server_label":"a","connector_id":"connector_x"}]}`:      "connector_id",
		`{"model":"m","input":"x","tools":[{"type":"mcp","server_label":"a","require_approval":"sometimes"}]}`:    "sometimes",
		`{"model":"m","input":"x","tools":[{"type":"mcp","server_label":"a","require_approval":{"maybe":{}}}]}`:   "maybe",
		`{"model":"m","input":"x","tools":[{"type":"mcp","server_label":"a"},{"type":"mcp","server_label":"a"}]}`: `server_label \"a\"`,
		`{"model":"m","input":"x","tools":[{"type":"mcp","server_label":"a","headers":{"X-Key":"secret"}}]}`:      "X-Key",
		`{"model":"m","input":"x","tools":[{"type":"mcp","server_label":"a","defer_loading":true}]}`:              "defer_loading",
		`{"model":"m","input":"x","tool_choice":{"type":"mcp","server_label":"z"}}`:                               `server \"z\"`,
		`{"model":"m","input":"x","conversation":"c"}`:                                                            "conversation",
		`{"model":"m","Model":"n","input":"x"}`:                                                                   "twice",
		`{"model":"m","input":[{"type":"item_reference","id":"x"}]}`:                                              "item_reference",
		`{"model":"m","input":[{"type":"mcp_approval_response","approval_request_id":"x","approve":true}]}`:       "no request for approval",
		`{"model":"m","input":"x","session_id":"a b"}`:                                                            "malformed",
	} {
		g := w.post(body)
		if g.status != http.StatusBadRequest || !strings.Contains(g.body, named) || strings.Contains(g.body, "secret") {
			t.Errorf("%s: %d %s", body, g.status, g.body)
		}
	}
	if n := w.noted(); len(n) > 0 {
		t.Errorf("servers: %q", n)
	}
}

// X9, B.5.9: a call of the caller's function that was cut off, and has no result, is no part
// of the conversation that goes on; with a result it is.
func TestACallThatWasCutOffDoesNotDangle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const cut = `{"role":"user","content":"go"},{"type":"function_call","call_id":"c1","name":"f","arguments":"{}","status":"incomplete"},`
	w.answers(says("well"))
	o := w.post(`{"model":"m","input":[` + cut + `{"role":"user","content":"and now?"}],` + asking + `}`).object(t)
	want(t, o, "status", "completed")
	want(t, w.prompts()[0], "messages.0.content", "go", "messages.1.role", "user", "messages.1.content", "and now?", "messages.2", nil)
	w.answers(says("well"))
	o = w.post(`{"model":"m","input":[` + cut + `{"type":"function_call_output","call_id":"c1","output":"1"}],` + asking + `}`).object(t)
	want(t, o, "status", "completed")
	want(t, w.prompts()[0], "messages.1.tool_calls.0.id", "c1", "messages.2.content", "1")
}
