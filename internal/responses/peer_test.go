package responses_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// peerSays is an upstream that speaks the Responses API itself: items, told of in pieces.
func peerSays(items ...string) http.HandlerFunc {
	var pieces []string
	event := func(kind, members string) {
		pieces = append(pieces, fmt.Sprintf("event: %s\ndata: {\"type\":%q,\"sequence_number\":%d%s}\n\n", kind, kind, len(pieces), members))
	}
	event("response.created", `,"response":{"id":"r","status":"in_progress","output":[]}`)
	for i, item := range items {
		var v map[string]any
		if err := json.Unmarshal([]byte(item), &v); err != nil {
			panic(err)
		}
		begun := map[string]any{"type": v["type"], "id": v["id"], "status": "in_progress"}
		for _, name := range []string{"call_id", "name", "phase"} {
			if v[name] != nil {
				begun[name] = v[name]
			}
		}
		b, err := json.Marshal(begun)
		if err != nil {
			panic(err)
		}
		event("response.output_item.added", fmt.Sprintf(`,"output_index":%d,"item":%s`, i, b))
		switch v["type"] {
		case "reasoning":
			summary, _ := v["summary"].([]any)
			for n, part := range summary {
				for _, piece := range strings.SplitAfter(at(part, "text").(string), " ") {
					event("response.reasoning_summary_text.delta", fmt.Sprintf(`,"output_index":%d,"summary_index":%d,"delta":%q`, i, n, piece))
				}
			}
		case "message":
			event("response.output_text.delta", fmt.Sprintf(`,"output_index":%d,"content_index":0,"delta":%q`, i, at(v, "content.0.text")))
		case "function_call":
			for _, piece := range strings.SplitAfter(v["arguments"].(string), ":") {
				event("response.function_call_arguments.delta", fmt.Sprintf(`,"output_index":%d,"delta":%q`, i, piece))
			}
		case "custom_tool_call":
			event("response.custom_tool_call_input.delta", fmt.Sprintf(`,"output_index":%d,"delta":%q`, i, v["input"]))
		}
		event("response.output_item.done", fmt.Sprintf(`,"output_index":%d,"item":%s`, i, item))
	}
	event("response.completed", `,"response":{"id":"r","status":"completed","output":[`+strings.Join(items, ",")+`],"usage":{"input_tokens":7,"output_tokens":3,"output_tokens_details":{"reasoning_tokens":2}}}`)
	return stream(pieces...)
}

// X1: an upstream that speaks the Responses API is spoken to in that, with servers' tools as
// functions, and what it said comes back to it as it was.
func TestAnUpstreamOfTheSameAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses, w.llm.Upstreams[0].Engine = true, "openai" })
	reasoning := `{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"I think"}],"encrypted_content":"xyz"}`
	w.answers(
		peerSays(reasoning, `{"type":"function_call","id":"fc_1","call_id":"c1","name":"a__echo","arguments":"{\"n\":1}","status":"completed"}`),
		peerSays(`{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"done","annotations":[]}]}`))
	tools := `"reasoning":{"effort":"low"},"max_output_tokens":50,"instructions":"be kind",` + oneServer
	events := w.streamed(`{"model":"m","input":"go","stream":true,` + tools + `}`)
	checkOrder(t, events)
	o := events[len(events)-1]["response"].(map[string]any)
	want(t, o, "status", "completed", "output.1.type", "reasoning", "output.1.id", "rs_1", "output.1.encrypted_content", "xyz", "output.1.summary.0.text", "I think",
		"output.2.type", "mcp_call", "output.2.output", `echo {"n":1}`, "output.2.arguments", `{"n":1}`, "output.3.type", "message", "output.3.content.0.text", "done",
		"usage.input_tokens", 14, "usage.output_tokens_details.reasoning_tokens", 4)
	p := w.prompts()
	want(t, p[0], "input.0.role", "user", "instructions", "be kind", "store", false, "stream", true, "include.0", "reasoning.encrypted_content", "tools.0.type", "function", "tools.0.name", "a__echo",
		"tools.0.parameters.type", "object", "reasoning.effort", "low", "max_output_tokens", 50)
	want(t, p[1], "input.1.type", "reasoning", "input.1.id", "rs_1", "input.2.type", "function_call", "input.2.id", nil, "input.2.call_id", "c1", "input.3.type", "function_call_output", "input.3.call_id", "c1",
		"input.3.output", `echo {"n":1}`, "max_output_tokens", 47, "input.4", nil)

	// All of it goes on in a further request.
	w.answers(peerSays(`{"type":"message","id":"msg_2","role":"assistant","content":[{"type":"output_text","text":"more"}]}`))
	again := w.post(`{"model":"m","input":` + again(t, o) + `,` + oneServer + `}`).object(t)
	want(t, again, "status", "completed", "output.0.content.0.text", "more")
	want(t, w.prompts()[0], "input.1.type", "reasoning", "input.2.type", "function_call", "input.2.name", "a__echo", "input.3.output", `echo {"n":1}`, "input.4.type", "message", "input.4.id", nil, "input.5", nil)
}

// X1: custom tools and pictures of such an upstream, and one that does not stream.
func TestMoreOfAnUpstreamOfTheSameAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses = true })
	w.does("a.act", func(string, <-chan struct{}, func(int)) (string, string) {
		return `{"content":[{"type":"image","data":"AAAA","mimeType":"image/png"}]}`, ""
	})
	w.answers(fails(200, `{"id":"r","status":"completed","output":[{"type":"function_call","id":"f","call_id":"c","name":"a__act","arguments":"{}"}],"usage":{"input_tokens":1,"output_tokens":1}}`),
		peerSays(`{"type":"custom_tool_call","id":"x","call_id":"c2","name":"free","input":"{\"input\":1}"}`))
	o := w.post(`{"model":"m","input":"go","tools":[{"type":"custom","name":"free"},{"type":"mcp","server_label":"a","require_approval":"never"}]}`).object(t)
	want(t, o, "status", "completed", "output.1.type", "mcp_call", "output.2.type", "custom_tool_call", "output.2.input", `{"input":1}`)
	want(t, w.prompts()[0], "tools.0.type", "custom", "include", nil)
	want(t, w.prompts()[1], "input.2.type", "function_call_output", "input.3.content.1.type", "input_image", "input.3.content.1.image_url", "data:image/png;base64,AAAA")
}

// X5, B.2: the summary of what such an upstream has thought is told of as it grows, part by part,
// and stays if the upstream breaks off.
func TestSummariesOfThoughts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses = true })
	w.answers(peerSays(`{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"I think"},{"type":"summary_text","text":"so"}],"encrypted_content":"xyz"}`,
		`{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"done"}]}`))
	events := w.streamed(`{"model":"m","input":"go","stream":true,` + oneServer + `}`)
	checkOrder(t, events)
	var told []string
	for _, e := range events {
		if kind := strings.TrimPrefix(e["type"].(string), "response.reasoning_summary_"); kind != e["type"] {
			told = append(told, fmt.Sprintf("%s %v %v%v%v", kind, e["summary_index"], e["delta"], e["text"], at(e, "part.text")))
		}
	}
	const none = "<nil>"
	wanted := []string{
		"part.added 0 " + none + none, "text.delta 0 I " + none + none, "text.delta 0 think" + none + none, "text.done 0 " + none + "I think" + none, "part.done 0 " + none + none + "I think",
		"part.added 1 " + none + none, "text.delta 1 so" + none + none, "text.done 1 " + none + "so" + none, "part.done 1 " + none + none + "so",
	}
	if !slices.Equal(told, wanted) {
		t.Errorf("got %q, want %q", told, wanted)
	}

	w.answers(stream("data: {\"type\":\"response.output_item.added\",\"output_index\":0,\"item\":{\"type\":\"reasoning\",\"id\":\"rs_2\"}}\n\n",
		"data: {\"type\":\"response.reasoning_summary_text.delta\",\"output_index\":0,\"summary_index\":0,\"delta\":\"half\"}\n\n",
		"data: {\"type\":\"response.reasoning_text.delta\",\"output_index\":0,\"content_index\":0,\"delta\":\"hm\"}\n\n", cut))
	events = w.streamed(`{"model":"m","input":"go","stream":true,` + oneServer + `}`)
	checkOrder(t, events)
	want(t, events[len(events)-1], "type", "response.failed", "response.output.1.summary.0.text", "half", "response.output.1.summary.0.type", "summary_text", "response.output.1.content.0.text", "hm")
	for _, e := range events {
		if e["type"] == "response.reasoning_text.delta" {
			want(t, e, "content_index", 0) // which counts the content alone
		}
	}
}

// B.5.4: of such an upstream, too, only the first call counts where one is wanted.
func TestOneCallATurnOfAnUpstreamOfTheSameAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses = true })
	w.answers(peerSays(`{"type":"function_call","id":"1","call_id":"c1","name":"a__echo","arguments":"{}"}`, `{"type":"function_call","id":"2","call_id":"c2","name":"a__act","arguments":"{}"}`),
		peerSays(`{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"done"}]}`))
	o := w.post(`{"model":"m","input":"go","parallel_tool_calls":false,` + oneServer + `}`).object(t)
	want(t, o, "status", "completed", "output.1.name", "echo", "output.2.type", "message")
	want(t, w.prompts()[0], "parallel_tool_calls", false)
	want(t, w.prompts()[1], "input.1.call_id", "c1", "input.2.type", "function_call_output", "input.3", nil)
}

// A.7: how such an upstream tells of its failures.
func TestFailuresOfAnUpstreamOfTheSameAPI(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]struct {
		script http.HandlerFunc
		status string
		why    string
	}{
		"failed":     {stream("data: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"output\":[],\"error\":{\"code\":\"server_error\",\"message\":\"oh no\"}}}\n\n"), "failed", "oh no"},
		"an error":   {stream("data: {\"type\":\"error\",\"code\":\"busy\",\"message\":\"oh no\"}\n\n"), "failed", "oh no"},
		"cut":        {stream("data: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\",\"output\":[]}}\n\n", cut), "failed", "broke off"},
		"incomplete": {stream("data: {\"type\":\"response.incomplete\",\"response\":{\"status\":\"incomplete\",\"output\":[],\"incomplete_details\":{\"reason\":\"content_filter\"}}}\n\n"), "incomplete", "content_filter"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses = true })
			w.answers(f.script)
			events := w.streamed(`{"model":"m","input":"go","stream":true,` + oneServer + `}`)
			checkOrder(t, events)
			last := events[len(events)-1]
			want(t, last, "type", "response."+f.status)
			if b, _ := json.Marshal(last); !strings.Contains(string(b), f.why) {
				t.Errorf("%s", b)
			}
		})
	}
}

// B.5.9: what a client has got of a response it can refer to, whoever has said it, also where
// the request needs no loop; what its upstream has thought goes back under the id that it has there.
func TestReferencesToWhatAnUpstreamOfTheSameAPISaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses = true })
	reasoning := `{"type":"reasoning","id":"rs_0123456789abcdef0123456789abcdef","summary":[],"encrypted_content":"xyz"}`
	w.answers(peerSays(reasoning, `{"type":"message","id":"msg_0123456789abcdef0123456789abcdef","role":"assistant","phase":"final_answer","content":[{"type":"output_text","text":"done"}]}`))
	events := w.streamed(`{"model":"m","input":"go","stream":true,` + oneServer + `}`)
	checkOrder(t, events)
	o := events[len(events)-1]["response"].(map[string]any)
	want(t, o, "output.1.id", "rs_0123456789abcdef0123456789abcdef", "output.2.type", "message", "output.2.phase", "final_answer")
	for _, e := range events {
		if e["output_index"] == 2.0 && e["item"] != nil {
			want(t, e, "item.phase", "final_answer")
		}
	}
	refer := func(i int) string {
		return fmt.Sprintf(`{"type":"item_reference","id":%q}`, at(o, fmt.Sprintf("output.%d.id", i)))
	}
	whole, err := json.Marshal(at(o, "output.2"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ message, tools string }{{refer(2), oneServer}, {refer(2), `"tools":[]`}, {string(whole), oneServer}} {
		input, tools := `{"role":"user","content":"go"},`+refer(1)+`,`+c.message+`,{"role":"user","content":"and?"}`, c.tools
		w.answers(peerSays(`{"type":"message","id":"msg_2","role":"assistant","content":[{"type":"output_text","text":"well"}]}`))
		second := w.post(`{"model":"m","input":[` + input + `],` + tools + `}`).object(t)
		want(t, second, "status", "completed")
		want(t, w.prompts()[0], "input.1.id", "rs_0123456789abcdef0123456789abcdef", "input.1.encrypted_content", "xyz", "input.2.type", "message", "input.2.id", nil, "input.2.phase", "final_answer", "input.2.content.0.text", "done", "input.3.content", "and?", "input.4", nil)
	}
	w.refused(http.StatusBadRequest, "item_reference", "POST", "", `{"model":"m","input":[{"role":"user","content":"go"},`+refer(1)+`],`+oneServer+`}`)

	// What is the upstream's own is left to it.
	w.answers(peerSays(`{"type":"message","id":"msg_3","role":"assistant","content":[{"type":"output_text","text":"hi"}]}`))
	theirs := `{"type":"item_reference","id":"msg_fedcba9876543210fedcba9876543210"}`
	if g := w.post(`{"model":"m","stream":true,"input":[` + theirs + `]}`); g.status != http.StatusOK || strings.Contains(g.body, "resp_") {
		t.Errorf("%d %s", g.status, g.body)
	}
	want(t, w.prompts()[0], "input.0.type", "item_reference")
}

// X1: what needs no loop passes to such an upstream as it is.
func TestWhatNeedsNoLoopPasses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses = true })
	w.answers(peerSays(`{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"hi"}]}`))
	for _, body := range []string{
		`{"model":"m","input":"hi","stream":true}`,
		`{"model":"m","input":"hi","stream":true,"tools":[{"type":"web_search"}],"conversation":"c"}`,
	} {
		g := w.post(body)
		if g.status != http.StatusOK || !strings.Contains(g.body, `"id":"msg_1"`) || strings.Contains(g.body, "resp_") {
			t.Errorf("%s: %d %s", body, g.status, g.body)
		}
	}
	p := w.prompts()[1]
	want(t, p, "tools.0.type", "web_search", "conversation", "c")
}

// X9, B.5.9: nor does such an upstream get a call of the caller's that was cut off.
func TestACallThatWasCutOffDoesNotDangleThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses = true })
	w.answers(peerSays(`{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"well"}]}`))
	o := w.post(`{"model":"m","input":[{"role":"user","content":"go"},{"type":"function_call","call_id":"c1","name":"f","arguments":"{}","status":"incomplete"},{"role":"user","content":"and now?"}],` + oneServer + `}`).object(t)
	want(t, o, "status", "completed")
	want(t, w.prompts()[0], "input.0.content", "go", "input.1.content", "and now?", "input.2", nil)
}
