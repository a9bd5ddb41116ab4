package responses_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
)

// X1, B.1: each field of the API is honoured, refused by name, or has no effect that is told of
// in the documentation; none is dropped without a word.
func TestFields(t *testing.T) {
	t.Parallel()
	const (
		honoured = iota
		without  // an effect
		refused
	)
	guide, err := os.ReadFile("../../docs/responses.md")
	if err != nil {
		t.Fatal(err)
	}
	chat, peer := newWorld(t, nil), newWorld(t, func(w *world) { w.llm.Upstreams[0].Responses = true })
	chat.answers(says("x"))
	peer.answers(peerSays(`{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"x"}]}`))
	for _, f := range []struct {
		name, value string
		chat, peer  int
		told        string // where a chat completion has it, if the value is passed on; else ""
	}{
		{"access_programs", `{"cyber":"standard"}`, refused, honoured, ""},
		{"background", `false`, honoured, honoured, ""},
		{"background_options", `{"completion_window":"2h"}`, without, without, ""},
		{"context_management", `[{"type":"compaction"}]`, refused, refused, ""},
		{"context_management", `[]`, honoured, honoured, ""},
		{"conversation", `"c"`, refused, refused, ""},
		{"image", `{"context_compression":"enabled"}`, refused, honoured, ""},
		{"image", `{"context_compression":"auto"}`, without, honoured, ""},
		{"include", `["reasoning.encrypted_content","web_search_call.action.sources"]`, without, honoured, ""},
		{"include", `["message.output_text.logprobs"]`, refused, refused, ""},
		{"include", `"x"`, refused, refused, ""},
		{"instructions", `"be kind"`, honoured, honoured, "messages.0.content"},
		{"max_output_tokens", `7`, honoured, honoured, "max_tokens"},
		{"max_tool_calls", `7`, honoured, honoured, ""},
		{"metadata", `{"a":"b"}`, honoured, honoured, ""},
		{"moderation", `{"model":"m"}`, refused, refused, ""},
		{"parallel_tool_calls", `false`, honoured, honoured, "parallel_tool_calls"},
		{"previous_response_id", `null`, honoured, honoured, ""},
		{"prompt", `{"id":"p"}`, refused, refused, ""},
		{"prompt_cache_key", `"k"`, honoured, honoured, "prompt_cache_key"},
		{"prompt_cache_options", `{"mode":"implicit"}`, honoured, honoured, "prompt_cache_options.mode"},
		{"prompt_cache_retention", `"24h"`, honoured, honoured, "prompt_cache_retention"},
		{"reasoning", `{"effort":"low","summary":"auto"}`, honoured, honoured, "reasoning_effort"},
		{"reasoning", `{"mode":"pro"}`, refused, honoured, ""},
		{"reasoning", `{"context":"all_turns"}`, refused, honoured, ""},
		{"safety_identifier", `"s"`, honoured, honoured, "safety_identifier"},
		{"service_tier", `"flex"`, honoured, honoured, "service_tier"},
		{"store", `false`, honoured, honoured, ""},
		{"stream_options", `{"include_obfuscation":false}`, honoured, honoured, ""}, // models are told of others
		{"temperature", `0.5`, honoured, honoured, "temperature"},
		{"text", `{"verbosity":"low"}`, honoured, honoured, "verbosity"},
		{"tool_choice", `"required"`, honoured, honoured, "tool_choice"},
		{"top_logprobs", `2`, honoured, honoured, "top_logprobs"},
		{"top_p", `0.5`, honoured, honoured, "top_p"},
		{"truncation", `"auto"`, without, without, ""},
		{"truncation", `"some"`, refused, refused, ""},
		{"user", `"u"`, honoured, honoured, "user"},
		// Those of chat completions, and roundhouse's own.
		{"messages", `[{"role":"user","content":"x"}]`, refused, refused, ""},
		{"functions", `[{"name":"f"}]`, refused, refused, ""},
		{"function_call", `"auto"`, refused, refused, ""},
		{"n", `2`, refused, refused, ""},
		{"n", `1`, honoured, honoured, ""},
		{"session_id", `"s"`, honoured, honoured, ""},
		{"return_token_ids", `false`, honoured, honoured, "return_token_ids"},
	} {
		if !strings.Contains(string(guide), "`"+f.name) {
			t.Errorf("the documentation does not tell of %s", f.name)
		}
		for w, kind := range map[*world]int{chat: f.chat, peer: f.peer} {
			before := len(w.prompts())
			g := w.post(`{"model":"m","input":"go",` + oneServer + `,"` + f.name + `":` + f.value + `}`)
			if kind == refused {
				if g.status != http.StatusBadRequest || !strings.Contains(g.body, f.name) {
					t.Errorf("%s: %s: %d %s", f.name, f.value, g.status, g.body)
				}
				continue
			}
			if g.status != http.StatusOK {
				t.Errorf("%s: %s: %d %s", f.name, f.value, g.status, g.body)
				continue
			}
			asked := w.prompts()[before]
			if kind == without && asked[f.name] != nil {
				t.Errorf("%s is passed on: %v", f.name, asked[f.name])
			}
			if w == chat && f.told != "" && at(asked, f.told) == nil {
				t.Errorf("%s: %s is not passed on as %s: %v", f.name, f.value, f.told, asked)
			}
			if w == peer && f.chat == refused && asked[f.name] == nil {
				t.Errorf("%s is not passed on", f.name)
			}
		}
	}
}

// X1: so are the fields of the client's functions.
func TestFieldsOfFunctions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(says("x"))
	for field, status := range map[string]int{
		`"defer_loading":true`: 400, `"async":true`: 400, `"allowed_callers":["programmatic"]`: 400,
		`"defer_loading":false,"async":false,"allowed_callers":["direct"],"output_schema":{}`: 200,
	} {
		for _, kind := range []string{"function", "custom"} {
			g := w.post(`{"model":"m","input":"go","tools":[{"type":"` + kind + `","name":"f",` + field + `}]}`)
			name, _, _ := strings.Cut(strings.Trim(field, `"`), `"`)
			if g.status != status || status == 400 && !strings.Contains(g.body, name) {
				t.Errorf("%s: %d %s", field, g.status, g.body)
			}
		}
	}
}
