package trace

import (
	"fmt"
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

// J2: what a client writes anew into each system prompt, for the API's accounts, starts no
// branch. Another system prompt does.
func TestAStampStartsNoBranch(t *testing.T) {
	ask := func(id, system, messages, answer string) store.Call {
		return turnOf("messages", id, fmt.Sprintf(`{"system":%s,"messages":[%s]}`, system, chatMessages(messages)),
			fmt.Sprintf(`{"role":"assistant","content":[{"type":"text","text":%q}]}`, answer))
	}
	f := forestOf(t,
		ask("1", `[{"type":"text","text":"x-anthropic-billing-header: cc_version=2; cch=1a;"},{"type":"text","text":"s"}]`, "user:a", "b"),
		ask("2", `[{"type":"text","text":"x-anthropic-billing-header: cc_version=2; cch=2b;"},{"type":"text","text":"s"}]`, "user:a|assistant:b|user:c", "d"),
		ask("3", `"x-anthropic-billing-header: cc_version=2; cch=3c;\ns"`, "user:a|assistant:b|user:c|assistant:d|user:e", "f"),
		ask("4", `[{"type":"text","text":"x-anthropic-billing-header: cc_version=2; cch=4d;"},{"type":"text","text":"t"}]`, "user:a|assistant:b|user:c", "d"),
	)
	if got := shape(f); got != "1, 2<1, 3<2, 4 changed_head(3 message 0)" {
		t.Errorf("the turns are %s", got)
	}
	row := f.messagesRow(f.words.rows(always)[0], trajectory{})
	if got := string(row.Messages[0]); !strings.Contains(got, "cch=1a;") {
		t.Errorf("the system message is %s, not as it was sent", got)
	}
}
