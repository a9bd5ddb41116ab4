package shim_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// A6: two agents behind one shim, whose calls name different sessions, have an instance
// each, in both protocol eras; calls that name none have the shim's own.
func TestSessionsOfSeveralAgentsBehindOneShim(t *testing.T) {
	m := newMachine(t, `"bad": {"command": "SERVER", "sharing": "exclusive", "instances": {"max": 3}}`, "")
	for tool, scope := range map[string][]string{"count": {"bad"}, "bad__count": nil} {
		for _, era := range []string{"", ", " + meta} {
			h := m.start(m.command(append([]string{"connect"}, scope...)...))
			if era == "" {
				if _, err := h.initialize(); err != nil {
					t.Fatal(err)
				}
			}
			call := func(session string) string {
				raw, err := h.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":{%s}%s}`, tool, session, era))
				if err != nil {
					t.Fatal(err)
				}
				var r struct{ Content []struct{ Text string } }
				if err := json.Unmarshal(raw, &r); err != nil || len(r.Content) != 1 {
					t.Fatalf("the result is %s", raw)
				}
				return r.Content[0].Text
			}
			var agents sync.WaitGroup
			for _, session := range []string{`"session_id":"one"`, `"session_id":"two"`, ``} {
				agents.Go(func() {
					for i := range 3 {
						if got := call(session); got != fmt.Sprint(i+1) {
							t.Errorf("%s, %q: call %d of %q is the instance's %s", tool, era, i+1, session, got)
						}
					}
				})
			}
			agents.Wait()
			h.end()
			ender := m.connect("roundhouse")
			for _, name := range []string{"one", "two"} {
				ender.call("session_cleanup", `{"session_id":"`+name+`"}`)
			}
			ender.end()
		}
	}
}

// A1, A4, N7: roundhouse's own tools come through a shim, with their progress, and tell what
// the API does.
func TestOwnToolsThroughAShim(t *testing.T) {
	m := newMachine(t, "", "")
	for tool, scope := range map[string][]string{"batch": {"roundhouse"}, "roundhouse__batch": nil} {
		h := m.connect(scope...)
		raw, err := h.request("tools/call", `{"name":"`+tool+`","arguments":{"concurrent":true,"calls":[`+
			`{"server":"everything","tool":"echo","arguments":{"text":"a"}},{"server":"everything","tool":"nothing"},{"server":"everything","tool":"echo","arguments":{"text":"b"}}]},"_meta":{"progressToken":1}}`)
		if err != nil {
			t.Fatal(err)
		}
		var r struct {
			StructuredContent struct {
				Results []struct {
					Text    string
					IsError bool
				}
			}
		}
		if err := json.Unmarshal(raw, &r); err != nil {
			t.Fatal(err)
		}
		if got := r.StructuredContent.Results; len(got) != 3 || got[0].Text != "a" || !got[1].IsError || got[2].Text != "b" {
			t.Errorf("%s", raw)
		}
		h.mu.Lock()
		if got := strings.Join(h.notes, " "); strings.Count(got, "notifications/progress") != 3 {
			t.Errorf("it was told %s", got)
		}
		h.mu.Unlock()
		var stats struct {
			List []struct {
				Usage *struct{ Shared []struct{ RSSBytes int64 } }
			}
		}
		shown := h.call(strings.Replace(tool, "batch", "session_stats", 1), "{}")
		if err := json.Unmarshal([]byte(shown), &stats); err != nil || len(stats.List) != 1 {
			t.Fatalf("%v: %s", err, shown)
		}
		if u := stats.List[0].Usage; u == nil || len(u.Shared) != 1 || u.Shared[0].RSSBytes == 0 {
			t.Errorf("%s", shown)
		}
		if code := h.end(); code != 0 {
			t.Errorf("the shim exits with %d", code)
		}
	}
}
