package responses_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

const oneServer = `"tools":[{"type":"mcp","server_label":"a","require_approval":"never"}]`

// Case 59: what goes wrong is told, by a documented rule, and as a stream in one life cycle.
func TestFaults(t *testing.T) {
	t.Parallel()
	broken := fails(http.StatusUnauthorized, `{"error":{"message":"wrong key","type":"authentication_error","code":"invalid_api_key"}}`)
	for _, f := range []struct {
		name   string
		prep   func(w *world)
		script []http.HandlerFunc
		body   string
		status int   // of the answer that is no stream
		wants  []any // of the response object, in a stream that of the last event
		last   string
	}{
		{"a server that cannot be reached", func(w *world) { w.broken["a"] = errBroken }, []http.HandlerFunc{says("sorry")}, oneServer, 200,
			[]any{"status", "completed", "output.0.type", "mcp_list_tools", "output.0.tools.0", nil, "output.1.content.0.text", "sorry"}, "completed"},
		{"no tool is allowed", nil, []http.HandlerFunc{says("sorry")}, `"tools":[{"type":"mcp","server_label":"a","allowed_tools":["nothing"]}]`, 200,
			[]any{"status", "completed", "output.0.type", "mcp_list_tools", "output.0.error", nil, "output.1.content.0.text", "sorry"}, "completed"},
		{"the model says 401 at once", nil, []http.HandlerFunc{broken}, oneServer, 401,
			[]any{"status", "failed", "error.code", "invalid_api_key", "error.message", "wrong key"}, "failed"},
		{"the model says 401 in the second round", nil, []http.HandlerFunc{calls(call{"c", "a__echo", "{}"}), broken}, oneServer, 200,
			[]any{"status", "failed", "error.code", "invalid_api_key", "output.1.type", "mcp_call", "output.1.status", "completed"}, "failed"},
		{"the model is cut off", nil, []http.HandlerFunc{stream(delta(map[string]any{"content": "half"}), cut)}, oneServer, 502,
			[]any{"status", "failed", "error.code", "upstream_error", "output.1.content.0.text", "half", "output.1.status", "incomplete"}, "failed"},
		{"the model is cut off in a call", nil, []http.HandlerFunc{stream(delta(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "id": "c", "function": map[string]any{"name": "a__echo", "arguments": `{"x`}}}}), cut)}, oneServer, 502,
			[]any{"status", "failed", "output.1.type", "mcp_call", "output.1.status", "incomplete", "output.1.output", nil}, "failed"},
		{"the model fails behind a whole call", nil, []http.HandlerFunc{stream(delta(map[string]any{"tool_calls": []any{map[string]any{"index": 0, "id": "c", "function": map[string]any{"name": "a__echo", "arguments": "{}"}}}}),
			`data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`+"\n\n"+`data: {"error":{"message":"not stored"}}`+"\n\n")}, oneServer, 502,
			[]any{"status", "failed", "error.message", "not stored", "output.1.type", "mcp_call", "output.1.status", "incomplete", "output.1.output", nil}, "failed"},
		{"the model tells of an error in its stream", nil, []http.HandlerFunc{stream(`data: {"error":{"message":"overloaded","code":"busy"}}` + "\n\n")}, oneServer, 502,
			[]any{"status", "failed", "error.message", "overloaded"}, "failed"},
		{"arguments that are no JSON", nil, []http.HandlerFunc{calls(call{"c", "a__echo", `{"x":`}), says("sorry")}, oneServer, 200,
			[]any{"status", "completed", "output.1.status", "failed", "output.1.error.type", "mcp_protocol_error", "output.1.error.code", -32602, "output.1.output", nil}, "completed"},
		{"a tool that is not there", nil, []http.HandlerFunc{calls(call{"c", "a__nothing", `{}`}), says("sorry")}, oneServer, 200,
			[]any{"output.1.type", "mcp_call", "output.1.error.type", "mcp_protocol_error", "output.1.error.message", "unknown tool: a__nothing"}, "completed"},
		{"a tool that is not allowed", nil, []http.HandlerFunc{calls(call{"c", "a__act", `{}`}), says("sorry")}, `"tools":[{"type":"mcp","server_label":"a","require_approval":"never","allowed_tools":["echo"]}]`, 200,
			[]any{"output.1.error.type", "mcp_protocol_error", "output.1.error.message", "unknown tool: a__act"}, "completed"},
		{"a tool that only reads is wanted", nil, []http.HandlerFunc{calls(call{"c", "a__act", `{}`}), says("sorry")}, `"tools":[{"type":"mcp","server_label":"a","require_approval":"never","allowed_tools":{"read_only":true}}]`, 200,
			[]any{"output.1.error.type", "mcp_protocol_error"}, "completed"},
		{"the tool for clean-ups", nil, []http.HandlerFunc{calls(call{"c", "a__cleanup_session", `{}`}), says("sorry")}, oneServer, 200,
			[]any{"output.1.error.type", "mcp_protocol_error"}, "completed"},
		{"an error of the tool's", func(w *world) {
			w.tools["a.act"] = func(string, <-chan struct{}, func(int)) (string, string) {
				return `{"isError":true,"content":[{"type":"text","text":"no such file"}]}`, ""
			}
		}, []http.HandlerFunc{calls(call{"c", "a__act", `{}`}), says("sorry")}, oneServer, 200,
			[]any{"output.1.status", "failed", "output.1.error.type", "mcp_tool_execution_error", "output.1.error.content.0.text", "no such file"}, "completed"},
		{"an error of the server's", func(w *world) {
			w.tools["a.act"] = func(string, <-chan struct{}, func(int)) (string, string) {
				return "", `{"code":-32050,"message":"not today"}`
			}
		}, []http.HandlerFunc{calls(call{"c", "a__act", `{}`}), says("sorry")}, oneServer, 200,
			[]any{"output.1.error.type", "mcp_protocol_error", "output.1.error.code", -32050, "output.1.error.message", "not today"}, "completed"},
		{"a tool that hangs", func(w *world) {
			w.llm.Responses.CallTimeout = 100 * time.Millisecond
			w.tools["a.act"] = hanging(w)
		}, []http.HandlerFunc{calls(call{"c", "a__act", `{}`}), says("sorry")}, oneServer, 200,
			[]any{"output.1.error.type", "http_error", "output.1.error.code", 504}, "completed"},
		{"a tool that always fails", func(w *world) {
			w.tools["a.act"] = func(string, <-chan struct{}, func(int)) (string, string) {
				return `{"isError":true,"content":[{"type":"text","text":"no"}]}`, ""
			}
		}, []http.HandlerFunc{calls(call{"c", "a__act", `{}`})}, oneServer, 200,
			[]any{"status", "incomplete", "incomplete_details.reason", "repeated_tool_failure", "output.3.status", "failed", "output.4", nil}, "incomplete"},
		{"more calls than max_tool_calls", nil, []http.HandlerFunc{calls(call{"1", "a__echo", `{"n":1}`}, call{"2", "a__echo", `{"n":2}`}, call{"3", "a__echo", `{"n":3}`}), says("enough")}, `"max_tool_calls":2,` + oneServer, 200,
			[]any{"status", "completed", "max_tool_calls", 2, "output.1.status", "completed", "output.2.status", "completed", "output.3.status", "incomplete", "output.3.output", nil, "output.4.content.0.text", "enough"}, "completed"},
		{"a model that does not hear of max_tool_calls", nil, []http.HandlerFunc{calls(call{"1", "a__echo", `{}`})}, `"max_tool_calls":1,` + oneServer, 200,
			[]any{"status", "incomplete", "incomplete_details.reason", "max_tool_calls", "output.1.status", "completed", "output.2.status", "incomplete", "output.3.status", "incomplete", "output.4", nil}, "incomplete"},
		{"a model that never ends", func(w *world) { w.llm.Responses.Rounds = 3 }, []http.HandlerFunc{calls(call{"1", "a__echo", `{}`})}, oneServer, 200,
			[]any{"status", "incomplete", "incomplete_details.reason", "max_rounds", "output.3.status", "completed", "output.4", nil}, "incomplete"},
		{"a model that has said all that it may", nil, []http.HandlerFunc{calls(call{"1", "a__echo", `{}`}), says("one word more")}, `"max_output_tokens":5,` + oneServer, 200,
			[]any{"status", "incomplete", "incomplete_details.reason", "max_output_tokens", "output.1.status", "completed", "output.2", nil}, "incomplete"},
		{"an answer that is too long", nil, []http.HandlerFunc{stream(delta(map[string]any{"content": "half"}), finish("length"))}, oneServer, 200,
			[]any{"status", "incomplete", "incomplete_details.reason", "max_output_tokens", "output.1.status", "incomplete"}, "incomplete"},
		{"an answer that is filtered", nil, []http.HandlerFunc{stream(delta(map[string]any{"content": "half"}), finish("content_filter"))}, oneServer, 200,
			[]any{"status", "incomplete", "incomplete_details.reason", "content_filter"}, "incomplete"},
		{"an engine that does not stream", nil, []http.HandlerFunc{fails(200, `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"whole"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`)}, oneServer, 200,
			[]any{"status", "completed", "output.1.content.0.text", "whole", "usage.total_tokens", 3}, "completed"},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, f.prep)
			w.answers(f.script...)
			g := w.post(`{"model":"m","input":"go",` + f.body + `}`)
			if g.status != f.status {
				t.Fatalf("%d %s", g.status, g.body)
			}
			if g.status == http.StatusOK {
				want(t, g.object(t), f.wants...)
			}
			w.answers(f.script...)
			events := w.streamed(`{"model":"m","input":"go","stream":true,` + f.body + `}`)
			checkOrder(t, events)
			last := events[len(events)-1]
			want(t, last, "type", "response."+f.last)
			want(t, last["response"], f.wants...)
		})
	}
}

// B.5.5: errors go to the model as what came of its calls, and each call has something.
func TestTheModelHearsOfErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.does("a.act", func(string, <-chan struct{}, func(int)) (string, string) {
		return `{"isError":true,"content":[{"type":"text","text":"no such file"}]}`, ""
	})
	w.answers(calls(call{"1", "a__act", "{}"}, call{"2", "a__nothing", "{}"}, call{"3", "a__echo", "[1]"}, call{"4", "a__echo", ""}), says("sorry"))
	w.post(`{"model":"m","input":"go",` + oneServer + `}`)
	want(t, w.prompts()[1], "messages.2.content", "error: no such file", "messages.2.tool_call_id", "1", "messages.3.content", "error: unknown tool: a__nothing",
		"messages.4.tool_call_id", "3", "messages.5.content", "echo {}", "messages.6", nil, "messages.1.tool_calls.3.function.arguments", "{}")
	if n := w.noted(); count(n, "call a.echo") != 1 || count(n, "call a.act") != 1 {
		t.Errorf("the ledger is %q", n)
	}
}

// B.5.5: progress gives a call more time, up to four times as much.
func TestProgressGivesACallMoreTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Responses.CallTimeout = 400 * time.Millisecond })
	steady := func(steps int) handler {
		return func(_ string, done <-chan struct{}, progress func(int)) (string, string) {
			for i := range steps {
				progress(i + 1)
				select {
				case <-time.After(100 * time.Millisecond):
				case <-done:
					return `{"content":[]}`, ""
				}
			}
			return `{"content":[{"type":"text","text":"at last"}]}`, ""
		}
	}
	w.does("a.act", steady(7))
	w.does("a.echo", steady(1000))
	w.answers(calls(call{"1", "a__act", "{}"}, call{"2", "a__echo", "{}"}), says("done"))
	o := w.post(`{"model":"m","input":"go",` + oneServer + `}`).object(t)
	want(t, o, "output.1.output", "at last", "output.2.error.code", 504)
	if w.noted()[len(w.noted())-1] == "" || count(w.noted(), "cancelled a") != 1 {
		t.Errorf("the server was not told: %q", w.noted())
	}
}

// B.5.7: what tools bring: texts a line each, structure where there is no text, pictures for
// the model, a word in the place of anything else, and no more than there is room for.
func TestResultsOfTools(t *testing.T) {
	t.Parallel()
	png := strings.Repeat("iVBO", 3)
	for _, r := range []struct {
		name, result, output string
		pictures             int
	}{
		{"texts", `{"content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}`, "one\ntwo", 0},
		{"nothing", `{"content":[]}`, "", 0},
		{"only structure", `{"content":[],"structuredContent":{"n":12345678901234567890}}`, `{"n":12345678901234567890}`, 0},
		{"text and structure", `{"content":[{"type":"text","text":"one"}],"structuredContent":{"n":1}}`, "one", 0},
		{"a picture", `{"content":[{"type":"text","text":"look"},{"type":"image","data":"` + png + `","mimeType":"image/png"}]}`, "look\n[image, image/png, 9 bytes]", 1},
		{"a sound", `{"content":[{"type":"audio","data":"` + png + `","mimeType":"audio/wav"}]}`, "[audio, audio/wav, 9 bytes]", 0},
		{"a resource", `{"content":[{"type":"resource","resource":{"uri":"file:///x","text":"inside"}},{"type":"resource","resource":{"uri":"file:///y","mimeType":"a/b","blob":"` + png + `"}},{"type":"resource_link","name":"n","uri":"u:z"}]}`,
			"inside\n[resource file:///y, a/b, 9 bytes]\nn u:z", 0},
		{"five megabytes", `{"content":[{"type":"text","text":"` + strings.Repeat("x", 5<<20) + `"}]}`, strings.Repeat("x", 1<<20) + "\n[cut here: 1048576 of 5242880 bytes]", 0},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			w.does("a.act", func(string, <-chan struct{}, func(int)) (string, string) { return r.result, "" })
			w.answers(calls(call{"1", "a__act", "{}"}), says("done"))
			o := w.post(`{"model":"m","input":"go",` + oneServer + `}`).object(t)
			if got := at(o, "output.1.output"); got != r.output {
				t.Errorf("got %.200q, want %.200q", got, r.output)
			}
			p := w.prompts()[1]
			if got := at(p, "messages.2.content"); got != r.output {
				t.Errorf("the model got %.200q", got)
			}
			if r.pictures > 0 {
				want(t, p, "messages.3.role", "user", "messages.3.content.1.image_url.url", "data:image/png;base64,"+png, "messages.4", nil)
			} else {
				want(t, p, "messages.3", nil)
			}
		})
	}
}

// X9, A2: the model sees the newest pictures only; of a model that takes none it is told in words.
func TestPicturesThatAreKept(t *testing.T) {
	t.Parallel()
	shoot := func(w *world) []map[string]any {
		n := 0
		w.does("a.act", func(string, <-chan struct{}, func(int)) (string, string) {
			n++
			return fmt.Sprintf(`{"content":[{"type":"image","data":"AAA%d","mimeType":"image/png"},{"type":"image","data":"BBB%d","mimeType":"image/png"}]}`, n, n), ""
		})
		w.answers(calls(call{"1", "a__act", "{}"}), calls(call{"2", "a__act", "{}"}), calls(call{"3", "a__act", "{}"}), says("done"))
		w.post(`{"model":"m","input":"go",` + oneServer + `}`)
		return w.prompts()
	}
	p := shoot(newWorld(t, nil))
	want(t, p[2], "messages.3.content.1.type", "text", "messages.3.content.2.image_url.url", "data:image/png;base64,BBB1", "messages.6.content.1.image_url.url", "data:image/png;base64,AAA2")
	want(t, p[3], "messages.3.content.2.type", "text", "messages.6.content.1.type", "text", "messages.6.content.2.image_url.url", "data:image/png;base64,BBB2",
		"messages.9.content.1.image_url.url", "data:image/png;base64,AAA3", "messages.9.content.2.image_url.url", "data:image/png;base64,BBB3")
	p = shoot(newWorld(t, func(w *world) { w.llm.Upstreams[0].Images = false }))
	want(t, p[1], "messages.2.content", "[image, image/png, 3 bytes]\n[image, image/png, 3 bytes]", "messages.3", nil)
}

// A.9: an answer of the model that does not say what it is, is the stream that was asked for,
// be it recorded or not.
func TestStreamOfTheModelThatDoesNotSaySo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	answer := func(rw http.ResponseWriter, r *http.Request) { says("hi")(undeclared{rw}, r) }
	w.answers(answer, answer)
	for _, policy := range []string{"observe", "off"} {
		g := w.post(`{"model":"m","input":"x"}`, "X-Session-Id", "s", "X-Roundhouse-Record", policy)
		want(t, g.object(t), "status", "completed", "output.0.content.0.text", "hi")
	}
}

// undeclared writes an answer without its Content-Type.
type undeclared struct{ http.ResponseWriter }

func (u undeclared) Write(p []byte) (int, error) {
	u.Header()["Content-Type"] = nil
	return u.ResponseWriter.Write(p)
}

func (u undeclared) Unwrap() http.ResponseWriter { return u.ResponseWriter }
