package responses_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/session"
)

// BenchmarkLoop has a model call a tool in each of twenty rounds: by a response, and by hand,
// that is by a client that asks the same model over the same door, reads its stream and
// calls the tool in a session. It tells what each takes a round, and how one relates to the other.
func BenchmarkLoop(b *testing.B) {
	const rounds = 20
	w := newWorld(b, nil)
	var script []http.HandlerFunc
	for i := range rounds {
		script = append(script, calls(call{"c", "a__echo", fmt.Sprintf(`{"n":%d}`, i)}))
	}
	script = append(script, says("done"))
	guest, err := w.sessions.Guest(session.Invitation{Principal: "local", Session: "hand", Server: "a"})
	if err != nil {
		b.Fatal(err)
	}
	defer guest.Leave()
	if _, err := guest.Tools(b.Context()); err != nil {
		b.Fatal(err)
	}
	byLoop := func() {
		w.answers(script...)
		if g := w.post(`{"model":"m","input":"go","store":false,`+oneServer+`}`, "X-Session-Id", "loop"); !strings.Contains(g.body, `"completed"`) {
			b.Fatal(g.body)
		}
	}
	byHand := func() {
		w.answers(script...)
		messages := []any{map[string]any{"role": "user", "content": "go"}}
		for {
			body, err := json.Marshal(map[string]any{"model": "m", "stream": true, "messages": messages, "tools": []any{map[string]any{"type": "function", "function": map[string]any{"name": "a__echo"}}}})
			if err != nil {
				b.Fatal(err)
			}
			r, err := http.NewRequest(http.MethodPost, w.url+"/v1/chat/completions", strings.NewReader(string(body)))
			if err != nil {
				b.Fatal(err)
			}
			r.Header.Set("X-Session-Id", "hand")
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				b.Fatal(err)
			}
			said, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				b.Fatal(err)
			}
			var arguments strings.Builder
			for line := range strings.Lines(string(said)) {
				var chunk map[string]any
				if data, ok := strings.CutPrefix(line, "data: "); ok && json.Unmarshal([]byte(data), &chunk) == nil {
					piece, _ := at(chunk, "choices.0.delta.tool_calls.0.function.arguments").(string)
					arguments.WriteString(piece)
				}
			}
			if arguments.String() == "" {
				return
			}
			result, err := guest.Call(b.Context(), "echo", json.RawMessage(arguments.String()), nil)
			if err != nil {
				b.Fatal(err)
			}
			messages = append(messages,
				map[string]any{"role": "assistant", "tool_calls": []any{map[string]any{"id": "c", "type": "function", "function": map[string]any{"name": "a__echo", "arguments": arguments.String()}}}},
				map[string]any{"role": "tool", "tool_call_id": "c", "content": string(result)})
		}
	}
	byLoop()
	byHand()
	var loop, hand time.Duration
	for b.Loop() {
		begun := time.Now()
		byLoop()
		middle := time.Now()
		byHand()
		loop += middle.Sub(begun)
		hand += time.Since(middle)
	}
	each := float64(b.N * (rounds + 1))
	b.ReportMetric(float64(loop.Microseconds())/each, "loop-µs/round")
	b.ReportMetric(float64(hand.Microseconds())/each, "hand-µs/round")
	b.ReportMetric(float64(loop)/float64(hand), "ratio")
	b.ReportMetric(0, "ns/op")
}
