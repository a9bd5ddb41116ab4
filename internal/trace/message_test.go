package trace

import (
	"strings"
	"testing"

	"roundhouse/internal/store"
)

// J2, J3: a tool's output is no message of the model, of whatever kind the tool is, and
// each kind of a call is one.
func TestToolsOfEveryKind(t *testing.T) {
	for name, c := range map[string]struct {
		calls []store.Call
		want  []string
		tools string
	}{
		"responses": {
			[]store.Call{
				turnOf("responses", "1", `{"input":"a"}`,
					`{"output":[{"type":"custom_tool_call","id":"x","call_id":"c1","name":"patch","input":"*** Begin","status":"completed"},
					 {"type":"tool_search_call","id":"y","call_id":null,"execution":"server","arguments":{"paths":["p"]},"status":"completed"}]}`),
				turnOf("responses", "2", `{"input":[{"role":"user","content":"a"},{"type":"custom_tool_call","call_id":"c1","name":"patch","input":"*** Begin"},
					 {"type":"tool_search_call","call_id":null,"execution":"server","arguments":{"paths":["p"]}},
					 {"type":"custom_tool_call_output","call_id":"c1","output":"done"},
					 {"type":"local_shell_call_output","id":"z","call_id":"c2","output":"ok"},
					 {"type":"mcp_approval_response","approval_request_id":"q","approve":true}]}`,
					`{"output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]}]}`),
			},
			[]string{
				`{"role":"user","content":"a"}`,
				`{"role":"assistant","content":[{"arguments":{"paths":["p"]},"call_id":null,"execution":"server","type":"tool_search_call"}],"tool_calls":[{"id":"c1","type":"custom","function":{"name":"patch","arguments":"*** Begin"}}]}`,
				`{"role":"tool","content":"done","tool_call_id":"c1"}`,
				`{"role":"tool","content":[{"call_id":"c2","output":"ok","type":"local_shell_call_output"}],"tool_call_id":"c2"}`,
				`{"role":"user","content":[{"approval_request_id":"q","approve":true,"type":"mcp_approval_response"}]}`,
				`{"role":"assistant","content":"b"}`,
			}, "",
		},
		"chat": {
			[]store.Call{
				turnOf("chat", "1", `{"messages":[{"role":"user","content":"a"}]}`,
					`{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"custom","custom":{"name":"patch","input":"*** Begin"}}]}}]}`),
				turnOf("chat", "2", `{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"c1","type":"custom","custom":{"input":"*** Begin","name":"patch"}}]},
					 {"role":"tool","tool_call_id":"c1","content":"done"}]}`, `{"choices":[{"message":{"role":"assistant","content":"b"}}]}`),
			},
			[]string{
				`{"role":"user","content":"a"}`,
				`{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"custom","function":{"name":"patch","arguments":"*** Begin"}}]}`,
				`{"role":"tool","content":"done","tool_call_id":"c1"}`,
				`{"role":"assistant","content":"b"}`,
			}, "",
		},
		"functions": {
			[]store.Call{
				turnOf("chat", "1", `{"functions":[{"name":"f","parameters":{"type":"object"}}],"messages":[{"role":"user","content":"a"}]}`,
					`{"choices":[{"message":{"role":"assistant","content":null,"function_call":{"name":"f","arguments":"{\"x\": 1}"}}}]}`),
				turnOf("chat", "2", `{"functions":[{"name":"f","parameters":{"type":"object"}}],"messages":[{"role":"user","content":"a"},
					 {"role":"assistant","content":"","function_call":{"name":"f","arguments":"{\"x\":1}"}},{"role":"function","name":"f","content":"r"}]}`,
					`{"choices":[{"message":{"role":"assistant","content":"b"}}]}`),
			},
			[]string{
				`{"role":"user","content":"a"}`,
				`{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]}`,
				`{"role":"function","content":"r","name":"f"}`,
				`{"role":"assistant","content":"b"}`,
			}, `[{"function":{"name":"f","parameters":{"type":"object"}},"type":"function"}]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := forestOf(t, c.calls...)
			if got := shape(f); got != "1, 2<1" {
				t.Errorf("the turns are %s", got)
			}
			rows := f.words.rows(func(int) bool { return true })
			if len(rows) != 1 {
				t.Fatalf("there are %d trajectories", len(rows))
			}
			row := f.messagesRow(rows[0], trajectory{})
			var out []string
			for _, m := range row.Messages {
				out = append(out, string(m))
			}
			if got, want := strings.Join(out, "\n"), strings.Join(c.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			for i, m := range out {
				if byModel := strings.HasPrefix(m, `{"role":"assistant"`); row.Train[i] != byModel {
					t.Errorf("message %d: train is %v", i, row.Train[i])
				}
			}
			if got := string(row.Tools); got != c.tools {
				t.Errorf("tools are %s", got)
			}
		})
	}
}
