package responses_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// again builds the input of a further request: what came out of one, and more items.
func again(t *testing.T, o map[string]any, more ...any) string {
	t.Helper()
	items := append([]any{map[string]any{"role": "user", "content": "go"}}, o["output"].([]any)...)
	b, err := json.Marshal(append(items, more...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const asking = `"tools":[{"type":"mcp","server_label":"a"}]`

// B.5.8, case 60: a call is asked for unless the request says otherwise, and made once it
// was approved, with its id.
func TestCallsAreApproved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__echo", `{"n":1}`}))
	events := w.streamed(`{"model":"m","input":"go","stream":true,` + asking + `}`)
	checkOrder(t, events)
	o := events[len(events)-1]["response"].(map[string]any)
	want(t, o, "status", "completed", "tools.0.require_approval", "always", "output.1.type", "mcp_approval_request", "output.1.server_label", "a", "output.1.name", "echo", "output.1.arguments", `{"n":1}`, "output.2", nil)
	if n := w.noted(); count(n, "call a.echo") != 0 {
		t.Errorf("it was called all the same: %q", n)
	}
	id := at(o, "output.1.id")

	// Approved: it runs before the model goes on, and the list is not made again.
	w.answers(says("done"))
	yes := map[string]any{"type": "mcp_approval_response", "approval_request_id": id, "approve": true}
	events = w.streamed(`{"model":"m","stream":true,"input":` + again(t, o, yes) + `,` + asking + `}`)
	checkOrder(t, events)
	second := events[len(events)-1]["response"].(map[string]any)
	want(t, second, "status", "completed", "output.0.type", "mcp_call", "output.0.approval_request_id", id, "output.0.output", `echo {"n":1}`, "output.1.type", "message", "output.2", nil)
	want(t, w.prompts()[0], "messages.0.role", "user", "messages.1.tool_calls.0.function.name", "a__echo", "messages.2.role", "tool", "messages.2.content", `echo {"n":1}`, "tools.0.function.name", "a__echo", "messages.3", nil)
	if n := w.noted(); count(n, "call a.echo") != 1 {
		t.Errorf("the ledger is %q", n)
	}

	// What has been called is history, and is not called again.
	all := append(append([]any{}, o["output"].([]any)...), yes)
	all = append(all, second["output"].([]any)...)
	w.answers(says("more"))
	third := w.post(`{"model":"m","input":` + again(t, map[string]any{"output": all}) + `,` + asking + `}`).object(t)
	want(t, third, "status", "completed", "output.0.type", "message")
	if n := w.noted(); count(n, "call a.echo") != 1 {
		t.Errorf("it was called again: %q", n)
	}
}

// B.5.8, case 60: two calls that are the same are asked for, and answered, each for itself.
func TestTheSameCallTwiceIsApprovedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__echo", `{"n":1}`}, call{"c2", "a__echo", `{"n":1}`}))
	o := w.post(`{"model":"m","input":"go",` + asking + `}`).object(t)
	want(t, o, "output.1.type", "mcp_approval_request", "output.2.type", "mcp_approval_request")
	w.answers(says("done"))
	answers := []any{
		map[string]any{"type": "mcp_approval_response", "approval_request_id": at(o, "output.1.id"), "approve": true},
		map[string]any{"type": "mcp_approval_response", "approval_request_id": at(o, "output.2.id"), "approve": true},
	}
	second := w.post(`{"model":"m","input":` + again(t, o, answers...) + `,` + asking + `}`).object(t)
	want(t, second, "status", "completed", "output.0.type", "mcp_call", "output.1.type", "mcp_call", "output.2.type", "message")
	if n := w.noted(); count(n, "call a.echo") != 2 {
		t.Errorf("the ledger is %q", n)
	}
}

// B.5.8, case 60: a call that was declined is never made, and has a result all the same.
func TestCallsAreDeclined(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{}`}))
	o := w.post(`{"model":"m","input":"go",` + asking + `}`).object(t)
	w.answers(says("pity"))
	no := map[string]any{"type": "mcp_approval_response", "approval_request_id": at(o, "output.1.id"), "approve": false, "reason": "too dear"}
	second := w.post(`{"model":"m","input":` + again(t, o, no) + `,` + asking + `}`).object(t)
	want(t, second, "status", "completed", "output.0.type", "message", "output.1", nil)
	want(t, w.prompts()[0], "messages.1.tool_calls.0.function.name", "a__act", "messages.2.content", "declined: too dear")
	yes := map[string]any{"type": "mcp_approval_response", "approval_request_id": at(o, "output.1.id"), "approve": true}
	if g := w.post(`{"model":"m","input":` + again(t, o, yes) + `,` + asking + `}`); g.status != http.StatusBadRequest {
		t.Errorf("it is approved after that: %d %s", g.status, g.body)
	}
	// That it was declined is history then, and the conversation goes on.
	for _, input := range []string{`"previous_response_id":"` + id(second) + `","input":"and now?"`, `"input":` + again(t, o, no, at(second, "output.0"), map[string]any{"role": "user", "content": "and now?"})} {
		w.answers(says("well"))
		third := w.post(`{"model":"m",` + input + `,` + asking + `}`).object(t)
		want(t, third, "status", "completed", "output.0.type", "message")
		want(t, w.prompts()[0], "messages.2.content", "declined: too dear", "messages.3.content", "pity", "messages.4.content", "and now?")
	}
	if n := w.noted(); count(n, "call a.act") != 0 {
		t.Errorf("the ledger is %q", n)
	}
}

// B.5.8, case 60: an approval must be of a request that was made, as it was made, and is
// used once.
func TestApprovalsThatDoNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{"n":1}`}))
	o := w.post(`{"model":"m","input":"go",` + asking + `}`).object(t)
	request := at(o, "output.1").(map[string]any)
	yes := map[string]any{"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": true}
	edited := map[string]any{}
	maps.Copy(edited, request)
	edited["arguments"] = `{"n":1000}`
	for name, input := range map[string]string{
		"a foreign id":     again(t, o, map[string]any{"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": true}),
		"other arguments":  again(t, map[string]any{"output": []any{edited}}, yes),
		"twice":            again(t, o, yes, yes),
		"without a word":   again(t, o, map[string]any{"type": "mcp_approval_response", "approval_request_id": request["id"]}),
		"without requests": again(t, map[string]any{"output": []any{}}, yes),
	} {
		if g := w.post(`{"model":"m","input":` + input + `,` + asking + `}`); g.status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, g.status, g.body)
		}
	}
	if g := w.post(`{"model":"m","input":` + again(t, o, yes) + `}`); g.status != http.StatusBadRequest || !strings.Contains(g.body, "does not name") {
		t.Errorf("of a server that is not there: %d %s", g.status, g.body)
	}
	if n := w.noted(); count(n, "call a.act") != 0 {
		t.Errorf("the ledger is %q", n)
	}
}

// B.5.8: what was approved can be approved again if the response fails before the call is
// made, but not after it.
func TestApprovalsOfResponsesThatFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{}`}))
	o := w.post(`{"model":"m","input":"go",` + asking + `}`).object(t)
	yes := map[string]any{"type": "mcp_approval_response", "approval_request_id": at(o, "output.1.id"), "approve": true}
	w.mu.Lock()
	w.broken["b"] = errBroken
	w.mu.Unlock()
	demanding := `"tools":[{"type":"mcp","server_label":"a"},{"type":"mcp","server_label":"b"}],"tool_choice":{"type":"mcp","server_label":"b"}`
	if g := w.post(`{"model":"m","input":` + again(t, o, yes) + `,` + demanding + `}`); g.status != http.StatusFailedDependency {
		t.Fatalf("%d %s", g.status, g.body)
	}
	w.answers(fails(400, `{"error":{"message":"no"}}`))
	want(t, w.post(`{"model":"m","input":`+again(t, o, yes)+`,`+asking+`}`).object(t), "status", "failed", "output.0.type", "mcp_call", "output.0.status", "completed")
	w.answers(says("done"))
	if g := w.post(`{"model":"m","input":` + again(t, o, yes) + `,` + asking + `}`); g.status != http.StatusBadRequest {
		t.Errorf("%d %s", g.status, g.body)
	}
	if n := w.noted(); count(n, "call a.act") != 1 {
		t.Errorf("the ledger is %q", n)
	}
}

// B.1: a list has what allowed_tools lets through, and what another request allows besides is
// listed when that comes.
func TestListsOfAllowedTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(says("one"))
	entry := func(allowed string) string {
		return `"tools":[{"type":"mcp","server_label":"a","require_approval":"never","allowed_tools":` + allowed + `}]`
	}
	o := w.post(`{"model":"m","input":"go",` + entry(`["act"]`) + `}`).object(t)
	want(t, o, "output.0.tools.0.name", "act", "output.0.tools.1", nil)
	same := w.post(`{"model":"m","input":` + again(t, o) + `,` + entry(`{"tool_names":["act"]}`) + `}`).object(t)
	want(t, same, "output.0.type", "message")
	w.answers(calls(call{"c1", "a__echo", `{}`}), says("two"))
	more := w.post(`{"model":"m","input":` + again(t, o) + `,` + entry(`["act","echo"]`) + `}`).object(t)
	want(t, more, "output.0.type", "mcp_list_tools", "output.0.tools.0.name", "echo", "output.0.tools.1.name", "act", "output.1.type", "mcp_call", "output.1.output", "echo {}")
}

// B.5.8: which calls wait is said by filters, and others of the same turn are made.
func TestWhichCallsWaitForApproval(t *testing.T) {
	t.Parallel()
	for approval, wants := range map[string]string{
		`"always"`: "echo act", `"never"`: "", `null`: "echo act",
		`{"never":{"tool_names":["echo"]}}`: "act", `{"always":{"tool_names":["echo"]}}`: "echo act", `{"never":{"read_only":true}}`: "act",
		`{"always":{"tool_names":["echo"]},"never":{"tool_names":["echo","act"]}}`: "",
	} {
		w := newWorld(t, nil)
		w.answers(calls(call{"1", "a__echo", `{}`}, call{"2", "a__act", `{}`}), says("done"))
		o := w.post(`{"model":"m","input":"go","tools":[{"type":"mcp","server_label":"a","require_approval":` + approval + `}]}`).object(t)
		var asked []string
		for _, it := range o["output"].([]any) {
			if at(it, "type") == "mcp_approval_request" {
				asked = append(asked, at(it, "name").(string))
			}
		}
		if got := strings.Join(asked, " "); got != wants {
			t.Errorf("%s: asked for %q, want %q", approval, got, wants)
		}
		for _, tool := range []string{"echo", "act"} {
			called := 1
			if strings.Contains(wants, tool) {
				called = 0
			}
			if n := w.noted(); count(n, "call a."+tool) != called {
				t.Errorf("%s: the ledger is %q", approval, n)
			}
		}
	}
}

// B.5.2: with calls of the client's own functions, those of servers are made, and then it is
// the client's turn, which goes on with all of them.
func TestFunctionsAreTheClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	tools := `"tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":true},{"type":"custom","name":"free"},{"type":"mcp","server_label":"a","require_approval":"never"}]`
	w.answers(calls(call{"1", "f", `{"x":1}`}, call{"2", "a__echo", `{}`}, call{"3", "free", `{"input":"any text"}`}))
	events := w.streamed(`{"model":"m","input":"go","stream":true,` + tools + `}`)
	checkOrder(t, events)
	o := events[len(events)-1]["response"].(map[string]any)
	want(t, o, "status", "completed", "output.1.type", "function_call", "output.1.name", "f", "output.1.call_id", "1", "output.1.arguments", `{"x":1}`, "output.1.status", "completed",
		"output.2.type", "mcp_call", "output.2.output", "echo {}", "output.3.type", "custom_tool_call", "output.3.input", "any text", "output.3.call_id", "3", "output.4", nil)
	want(t, w.prompts()[0], "tools.0.function.name", "f", "tools.0.function.strict", true, "tools.1.function.parameters.required.0", "input")

	w.answers(says("done"))
	second := w.post(`{"model":"m","input":` + again(t, o, map[string]any{"type": "function_call_output", "call_id": "1", "output": "one"}, map[string]any{"type": "custom_tool_call_output", "call_id": "3", "output": "three"}) + `,` + tools + `}`).object(t)
	want(t, second, "status", "completed", "output.0.type", "message")
	p := w.prompts()[0]
	calls, answered := map[any]bool{}, map[any]bool{}
	for _, m := range p["messages"].([]any) {
		list, _ := at(m, "tool_calls").([]any)
		for _, c := range list {
			calls[at(c, "id")] = true
		}
		if at(m, "role") == "tool" {
			answered[at(m, "tool_call_id")] = true
		}
	}
	if len(calls) != 3 || len(answered) != 3 { // B.5.9: a result for every call
		t.Errorf("%d calls, %d answers: %v", len(calls), len(answered), p["messages"])
	}
}
