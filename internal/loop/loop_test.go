package loop

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/config"
	"roundhouse/internal/model"
)

// newTestRun prepares a task for a model of which nothing is asked.
func newTestRun(t *testing.T, engine string, task Task) (*Run, error) {
	t.Helper()
	cfg := config.Defaults().LLM
	cfg.Upstreams = []*config.Upstream{{Name: "u", BaseURL: "http://127.0.0.1:1", Engine: engine, Images: true}}
	task.Model = "m"
	return New(Config{Models: model.New(model.Config{LLM: cfg}), Limits: cfg.Responses}).Prepare(task)
}

func items(text string) (list []json.RawMessage) {
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		panic(err)
	}
	return list
}

// B.5.9, C-44, C-50, case 58: items of a history become messages in which each call has its
// result, behind the message that has the call.
func TestHistoryBecomesMessages(t *testing.T) {
	for name, h := range map[string]struct{ items, messages string }{
		"a text": {`[{"role":"user","content":"hi"}]`, `[{"role":"user","content":"hi"}]`},
		"roles": {`[{"type":"message","role":"developer","content":[{"type":"input_text","text":"be"}]},{"role":"system","content":"kind"},{"role":"assistant","content":[{"type":"output_text","text":"ok"}]},{"role":"developer","content":"be short"}]`,
			`[{"role":"system","content":"be\n\nkind"},{"role":"assistant","content":"ok"},{"role":"system","content":"be short"}]`},
		"instructions that are parts": {`[{"role":"system","content":"be"},{"role":"system","content":[{"type":"input_text","text":"kind"},{"type":"input_text","text":"too"}]}]`,
			`[{"role":"system","content":"be"},{"role":"system","content":[{"type":"text","text":"kind"},{"type":"text","text":"too"}]}]`},
		"parts": {`[{"role":"user","content":[{"type":"input_text","text":"look"},{"type":"input_image","image_url":"data:x","detail":"low"},{"type":"input_file","filename":"f","file_data":"d"}]}]`,
			`[{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:x","detail":"low"}},{"type":"file","file":{"filename":"f","file_data":"d"}}]}]`},
		"calls of a turn": {`[{"role":"assistant","content":"I call"},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
			{"type":"function_call_output","call_id":"1","output":"one"},{"type":"function_call_output","call_id":"2","output":[{"type":"input_text","text":"two"}]},{"role":"user","content":"go on"}]`,
			`[{"role":"assistant","content":"I call","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"g","arguments":"{}"}}]},
			{"role":"tool","content":"one","tool_call_id":"1"},{"role":"tool","content":"two","tool_call_id":"2"},{"role":"user","content":"go on"}]`},
		"calls of servers' tools, one after the other": {`[{"type":"mcp_list_tools","server_label":"a","tools":[]},{"type":"mcp_call","id":"x","server_label":"a","name":"f","arguments":"{}","output":"one"},
			{"type":"mcp_call","id":"y","server_label":"a","name":"g","arguments":"{}","output":null,"error":{"type":"http_error","code":502,"message":"gone"}}]`,
			`[{"role":"assistant","content":null,"tool_calls":[{"id":"x","type":"function","function":{"name":"a__f","arguments":"{}"}}]},{"role":"tool","content":"one","tool_call_id":"x"},
			{"role":"assistant","content":null,"tool_calls":[{"id":"y","type":"function","function":{"name":"a__g","arguments":"{}"}}]},{"role":"tool","content":"error: {\"type\":\"http_error\",\"code\":502,\"message\":\"gone\"}","tool_call_id":"y"}]`},
		"pictures and files of functions": {`[{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"custom_tool_call","call_id":"2","name":"g","input":"x"},
			{"type":"function_call_output","call_id":"1","output":[{"type":"input_text","text":"look"},{"type":"input_image","image_url":"data:x","detail":"low"}]},
			{"type":"custom_tool_call_output","call_id":"2","output":[{"type":"input_file","filename":"f","file_data":"d"}]},{"role":"user","content":"go on"}]`,
			`[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"g","arguments":"{\"input\":\"x\"}"}}]},
			{"role":"tool","content":"look\n[image, shown below]","tool_call_id":"1"},{"role":"tool","content":"[file, shown below]","tool_call_id":"2"},
			{"role":"user","content":[{"type":"text","text":"What the tools have shown:"},{"type":"image_url","image_url":{"url":"data:x","detail":"low"}},{"type":"file","file":{"filename":"f","file_data":"d"}}]},
			{"role":"user","content":"go on"}]`},
		"calls of a turn, of functions and of servers' tools": {`[{"role":"user","content":"go"},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},
			{"type":"mcp_call","id":"x","server_label":"a","name":"g","arguments":"{}","output":"two"},{"type":"mcp_call","id":"y","server_label":"a","name":"h","arguments":"{}","output":"three"},
			{"type":"custom_tool_call","call_id":"2","name":"free","input":"t"},{"type":"function_call_output","call_id":"1","output":"one"},{"type":"custom_tool_call_output","call_id":"2","output":"four"},
			{"type":"mcp_call","id":"z","server_label":"a","name":"g","arguments":"{}","output":"five"}]`,
			`[{"role":"user","content":"go"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"x","type":"function","function":{"name":"a__g","arguments":"{}"}},
			{"id":"y","type":"function","function":{"name":"a__h","arguments":"{}"}},{"id":"2","type":"function","function":{"name":"free","arguments":"{\"input\":\"t\"}"}}]},
			{"role":"tool","content":"two","tool_call_id":"x"},{"role":"tool","content":"three","tool_call_id":"y"},{"role":"tool","content":"one","tool_call_id":"1"},{"role":"tool","content":"four","tool_call_id":"2"},
			{"role":"assistant","content":null,"tool_calls":[{"id":"z","type":"function","function":{"name":"a__g","arguments":"{}"}}]},{"role":"tool","content":"five","tool_call_id":"z"}]`},
		"thoughts of which nothing came": {`[{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},{"role":"user","content":"go on"}]`,
			`[{"role":"assistant","content":"","reasoning_content":"hm"},{"role":"user","content":"go on"}]`},
		"a custom tool": {`[{"type":"custom_tool_call","call_id":"1","name":"free","input":"a \"text\""},{"type":"custom_tool_call_output","call_id":"1","output":"ok"}]`,
			`[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"free","arguments":"{\"input\":\"a \\\"text\\\"\"}"}}]},{"role":"tool","content":"ok","tool_call_id":"1"}]`},
		"thoughts": {`[{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"x"}]`,
			`[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}],"reasoning_content":"hm"},{"role":"tool","content":"x","tool_call_id":"1"}]`},
	} {
		r, err := newTestRun(t, "vllm", Task{Input: items(h.items)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		c := r.speaker.(*chat)
		c.history.flush()
		got, err := json.Marshal(c.messages)
		if err != nil {
			t.Fatal(err)
		}
		wanted, err := json.Marshal(items(h.messages))
		if err != nil {
			t.Fatal(err)
		}
		if canonical(t, got) != canonical(t, wanted) {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, wanted)
		}
	}
}

func canonical(t *testing.T, raw []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// X1: what an input holds that is not supported is named, with its place.
func TestInputsThatAreRefused(t *testing.T) {
	for input, why := range map[string]string{
		`[{"type":"item_reference","id":"x"}]`:                                                            `input[0]: items of the type "item_reference"`,
		`[{"type":"web_search_call"}]`:                                                                    "web_search_call",
		`[{"role":"user","content":"x"},{"role":"alien","content":"x"}]`:                                  `input[1]: the role "alien"`,
		`[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]`:                              "image_url",
		`[{"role":"user","content":[{"type":"input_smell"}]}]`:                                            "input_smell",
		`[{"role":"user","content":7}]`:                                                                   "content",
		`[{"type":"function_call_output","call_id":"x","output":7}]`:                                      "output",
		`[{"type":"function_call_output","call_id":"x","output":[{"type":"input_image","file_id":"f"}]}]`: "output[0]: an image needs image_url",
		`[{"type":"function_call","arguments":{}}]`:                                                       "cannot be read",
	} {
		_, err := newTestRun(t, "", Task{Input: items(input)})
		f, ok := err.(*Failure)
		if !ok || f.Status != http.StatusBadRequest || !strings.Contains(f.Message, why) {
			t.Errorf("%s: %v", input, err)
		}
	}
}

// X1: settings are spelled as the upstream's API has them; those that it may know pass.
func TestSettings(t *testing.T) {
	settings := map[string]json.RawMessage{
		"max_output_tokens": json.RawMessage("100"), "top_logprobs": json.RawMessage("2"), "reasoning": json.RawMessage(`{"effort":"high"}`), "top_k": json.RawMessage("5"), "temperature": json.RawMessage("null"),
		"text": json.RawMessage(`{"verbosity":"low","format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}}`),
	}
	for engine, limit := range map[string]string{"vllm": "max_tokens", "openai": "max_completion_tokens"} {
		body := map[string]any{}
		if err := chatSettings(body, settings, engine, 30); err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		wanted := `{"logprobs":true,"` + limit + `":70,"reasoning_effort":"high","response_format":{"json_schema":{"name":"n","schema":{"type":"object"},"strict":true},"type":"json_schema"},"top_k":5,"top_logprobs":2,"verbosity":"low"}`
		if string(b) != wanted {
			t.Errorf("%s: got %s", engine, b)
		}
	}
	for name, value := range map[string]string{"max_output_tokens": "0", "top_logprobs": `"x"`, "reasoning": "7", "text": `{"format":{"type":"grammar"}}`} {
		if chatSettings(map[string]any{}, map[string]json.RawMessage{name: json.RawMessage(value)}, "", 0) == nil {
			t.Errorf("%s: %s is accepted", name, value)
		}
	}
	// Of two that mean the same neither is chosen by chance.
	for _, pair := range []string{`{"max_output_tokens":5,"max_tokens":6}`, `{"max_output_tokens":5,"max_completion_tokens":6}`, `{"reasoning":{"effort":"low"},"reasoning_effort":"high"}`,
		`{"text":{"format":{"type":"json_object"}},"response_format":{"type":"text"}}`, `{"text":{"verbosity":"low"},"verbosity":"high"}`, `{"top_logprobs":2,"logprobs":false}`} {
		var settings map[string]json.RawMessage
		if err := json.Unmarshal([]byte(pair), &settings); err != nil {
			t.Fatal(err)
		}
		for _, engine := range []string{"vllm", "openai"} {
			for range 20 { // maps have no order
				if err := chatSettings(map[string]any{}, settings, engine, 0); err == nil || !strings.Contains(err.Error(), "mean the same") {
					t.Errorf("%s: %s: %v", engine, pair, err)
				}
			}
		}
		for name, value := range settings {
			if err := chatSettings(map[string]any{}, map[string]json.RawMessage{name: value}, "vllm", 0); err != nil {
				t.Errorf("%s alone: %v", name, err)
			}
		}
	}
	if err := chatSettings(map[string]any{"model": "m"}, map[string]json.RawMessage{"Model": json.RawMessage("1")}, "", 0); err == nil {
		t.Error("what routes a request is set in another spelling")
	}
}

// C-45 to C-52: however an engine sends calls in pieces, each call has its own name, id and
// arguments.
func TestPiecesOfCalls(t *testing.T) {
	piece := func(members string) string { return `{"choices":[{"delta":{"tool_calls":[` + members + `]}}]}` }
	end := `{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`
	for name, p := range map[string]struct {
		pieces []string
		calls  string
	}{
		"one after the other":          {[]string{piece(`{"index":0,"id":"1","function":{"name":"f","arguments":"{\"a\""}}`), piece(`{"index":0,"function":{"arguments":":1}"}}`), piece(`{"index":1,"id":"2","function":{"name":"g","arguments":"{}"}}`)}, `1 f {"a":1} 2 g {}`},
		"interleaved":                  {[]string{piece(`{"index":0,"id":"1","function":{"name":"f","arguments":"{"}},{"index":1,"id":"2","function":{"name":"g","arguments":"{ "}}`), piece(`{"index":1,"function":{"arguments":"}"}},{"index":0,"function":{"arguments":"}"}}`)}, `1 f {} 2 g { }`},
		"all at index 0":               {[]string{piece(`{"index":0,"id":"1","function":{"name":"f","arguments":"{}"}}`), piece(`{"index":0,"id":"2","function":{"name":"f","arguments":"{}"}}`)}, `1 f {} 2 f {}`},
		"without index and id":         {[]string{piece(`{"function":{"name":"f","arguments":"{}"}}`), piece(`{"function":{"name":"g","arguments":"{}"}}`)}, `? f {} ? g {}`},
		"a name in pieces":             {[]string{piece(`{"index":0,"id":"1","function":{"name":"lo"}}`), piece(`{"index":0,"function":{"name":"ng"}}`), piece(`{"index":0,"function":{"arguments":"{}"}}`)}, `1 long {}`},
		"a name that is repeated":      {[]string{piece(`{"index":0,"id":"1","function":{"name":"f","arguments":"{"}}`), piece(`{"index":0,"id":"1","function":{"name":"f","arguments":"}"}}`)}, `1 f {}`},
		"no arguments":                 {[]string{piece(`{"index":0,"id":"1","function":{"name":"f"}}`)}, `1 f {}`},
		"arguments that are an object": {[]string{piece(`{"index":0,"id":"1","function":{"name":"f","arguments":{"a":1}}}`)}, `1 f {"a":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := newTestRun(t, "", Task{Functions: []Function{{Name: "f"}, {Name: "g"}, {Name: "long"}}})
			if err != nil {
				t.Fatal(err)
			}
			r.observe = func(Event) {}
			r.tools.addFunctions(r.t.Functions)
			co := &composer{r: r}
			reader := &chatReader{co: co, message: &chatMessage{Role: "assistant", Content: json.RawMessage("null")}}
			for _, text := range append(p.pieces, end) {
				if err := reader.take([]byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for i, it := range r.output {
				id := it.CallID
				if strings.HasPrefix(id, "call_") {
					id = "?"
				}
				got = append(got, id, it.Name, it.Arguments)
				// The model is reminded of the very call that the client is told of.
				if said := reader.said().ToolCalls[i]; said.ID != it.CallID || said.Function != (chatFunction{it.Name, it.Arguments}) {
					t.Errorf("the model is reminded of %+v", said)
				}
				reader.message.ToolCalls = nil
			}
			if s := strings.Join(got, " "); s != p.calls {
				t.Errorf("got %s, want %s", s, p.calls)
			}
		})
	}
}

// A.11: what an engine wants to have back of its answer comes back: signatures, thoughts,
// and what it said of each call.
func TestWhatEnginesWantToHaveBack(t *testing.T) {
	r, err := newTestRun(t, "", Task{})
	if err != nil {
		t.Fatal(err)
	}
	r.observe = func(Event) {}
	reader := &chatReader{co: &composer{r: r}, message: &chatMessage{Role: "assistant", Content: json.RawMessage("null")}}
	for _, text := range []string{
		`{"choices":[{"delta":{"reasoning":"I ","reasoning_content":"I ","reasoning_details":[{"n":1}]}}]}`,
		`{"choices":[{"delta":{"reasoning":"think","reasoning_content":"think","reasoning_details":[{"n":2}],"content":"so"}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{}"},"extra_content":{"signature":"s"}}]}}]}`,
		`{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`,
	} {
		if err := reader.take([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := json.Marshal(reader.said())
	if err != nil {
		t.Fatal(err)
	}
	wanted := `{"role":"assistant","content":"so","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"},"extra_content":{"signature":"s"}}],"reasoning_content":"I think","reasoning_details":[{"n":1},{"n":2}]}`
	if canonical(t, got) != canonical(t, []byte(wanted)) {
		t.Errorf("got %s", got)
	}
	if len(r.output) != 3 || r.output[0].Thoughts != "I think" || r.output[1].Text != "so" {
		t.Errorf("%+v", r.output)
	}
}

// B.5.1: two servers may have tools of one name, and a model that drops the prefix means the
// only one that is called so; names that model APIs refuse have a short form.
func TestNamesOfTools(t *testing.T) {
	tools := newTable()
	f := []Function{{Name: "a__x"}}
	tools.addFunctions(f)
	a, b := &Server{Label: "a"}, &Server{Label: "b"}
	tools.addServer(a, []ListedTool{{Name: "x"}, {Name: "y"}, {Name: "odd name.with " + strings.Repeat("x", 80)}})
	tools.addServer(b, []ListedTool{{Name: "y"}, {Name: "z"}})
	if x := tools.find("a__x"); x == nil || x.function == nil {
		t.Error("the client's function does not come first")
	}
	if x := tools.find("b__y"); x == nil || x.server != b {
		t.Error("b__y is not found")
	}
	if tools.find("y") != nil {
		t.Error("y means one of two")
	}
	if x := tools.find("z"); x == nil || x.server != b {
		t.Error("z is not found")
	}
	for _, x := range tools.tools {
		if len(x.name) > 64 || strings.ContainsAny(x.name, " .") {
			t.Errorf("%q is no name", x.name)
		}
	}
}

// B.1: filters by name and by what a tool says of itself.
func TestFilters(t *testing.T) {
	yes, no := true, false
	reads := &ListedTool{Name: "r", Annotations: json.RawMessage(`{"readOnlyHint":true}`)}
	writes := &ListedTool{Name: "w"}
	for _, c := range []struct {
		filter        Filter
		reads, writes bool
	}{
		{Filter{}, false, false}, {Filter{Names: []string{"r"}}, true, false}, {Filter{Names: []string{}}, false, false},
		{Filter{ReadOnly: &yes}, true, false}, {Filter{ReadOnly: &no}, false, true}, {Filter{Names: []string{"w"}, ReadOnly: &yes}, false, false},
	} {
		if c.filter.chooses(reads) != c.reads || c.filter.chooses(writes) != c.writes {
			t.Errorf("%+v", c.filter)
		}
	}
}

// B.5.7: a text is cut at a character.
func TestTruncate(t *testing.T) {
	if got := truncate("aä", 2); got != "a\n[cut here: 1 of 3 bytes]" {
		t.Errorf("%q", got)
	}
	if got := truncate("aä", 3); got != "aä" {
		t.Errorf("%q", got)
	}
}

// X9: the newest pictures stay, and a turn may have more than may stay.
func TestAlbum(t *testing.T) {
	a := newAlbum(2)
	word := func(string) json.RawMessage { return text("word") }
	shoot := func(names ...string) *page {
		var pictures []Picture
		for _, n := range names {
			pictures = append(pictures, Picture{Data: n})
		}
		return a.add([]*result{{pictures: pictures}}, word, func(p Picture) json.RawMessage { return text(p.Data) })
	}
	seen := func(p *page) string { return string(array(p.parts)) }
	first := shoot("1")
	second := shoot("2", "3", "4")
	if seen(first) != `["word","word"]` || seen(second) != `["word","word","3","4"]` {
		t.Errorf("%s %s", seen(first), seen(second))
	}
	third := shoot("5")
	if seen(second) != `["word","word","word","4"]` || seen(third) != `["word","5"]` {
		t.Errorf("%s %s", seen(second), seen(third))
	}
	if shoot() != nil {
		t.Error("no pictures are a page")
	}
}

// FuzzHistory: whatever items come, they are refused or become messages of which each call
// has a result behind it.
func FuzzHistory(f *testing.F) {
	for _, seed := range []string{
		`[{"role":"user","content":"hi"},{"type":"function_call","call_id":"1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"1","output":"x"}]`,
		`[{"type":"mcp_call","id":"x","server_label":"a","name":"f","arguments":"{}","output":"one"},{"type":"reasoning","content":[{"text":"hm"}]}]`,
		`[{"type":"mcp_approval_request","id":"mcpr_","server_label":"a"},{"type":"mcp_approval_response","approval_request_id":"mcpr_","approve":false}]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var input []json.RawMessage
		if json.Unmarshal(raw, &input) != nil {
			return
		}
		for _, item := range input {
			if len(item) == 0 || item[0] != '{' {
				return // which the face refuses
			}
		}
		for _, engine := range []string{"", "openai"} {
			r, err := newTestRun(t, engine, Task{Input: slices.Clone(input)})
			if err != nil {
				continue
			}
			r.speaker.(*chat).history.flush()
			body, err := r.speaker.(*chat).request(true)
			if err != nil || !json.Valid(body) {
				t.Fatalf("%v: %s", err, body)
			}
		}
	})
}
