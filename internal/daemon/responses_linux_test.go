package daemon_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// agent is a model that calls tools: in each round the next one of its calls, and then it
// says that it is done.
func agent(t *testing.T, calls ...string) *httptest.Server {
	t.Helper()
	var round atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // what it is told does not matter
		w.Header().Set("Content-Type", "text/event-stream")
		delta, reason := `{"content":"done"}`, "stop"
		if n := int(round.Add(1)); n <= len(calls) {
			name, arguments, _ := strings.Cut(calls[n-1], " ")
			delta, reason = fmt.Sprintf(`{"tool_calls":[{"index":0,"id":"c%d","type":"function","function":{"name":%q,"arguments":%q}}]}`, n, name, arguments), "tool_calls"
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":%s}]}\n\n", delta)
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":%q}]}\n\ndata: [DONE]\n\n", reason)
	}))
	t.Cleanup(s.Close)
	return s
}

// What a session counts as calls is its two guests, and then the tools that they call.

// withAgent is a configuration with a model, and a server whose clean-up leaves a line in a
// file.
func withAgent(model, ledger, more string) string {
	return fmt.Sprintf(`{"mcpServers": {
		"bad":    {"command": "SERVER", "sharing": "session", "cleanup": {"tool": "ledger", "arguments": {"file": %q, "mode": "answer", "note": "clean-up"}}},
		"unused": {"command": "SERVER", "sharing": "session", "cleanup": {"tool": "ledger", "arguments": {"file": %q, "mode": "answer", "note": "of the unused"}}}
	}, "llm": {"upstreams": {"m": {"baseURL": %q}}}%s}`, ledger, ledger, model, more)
}

const respond = `{"model":"m","input":"go","stream":true,"tools":[{"type":"mcp","server_label":"bad","require_approval":"never"},{"type":"mcp","server_label":"unused","require_approval":"never"}]}`

// G1, X3: a response that is under way when the signal comes goes on within the grace, with
// further calls of models and tools; its clean-up is made once, and nothing is left.
func TestAResponseFinishesWithinTheGrace(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	ledger := n.path("ledger")
	model := agent(t, `bad__slow {"ms":1500}`, `bad__echo {"text":"second"}`)
	d := n.serve(withAgent(model.URL, ledger, ""))
	got := make(chan answer, 1)
	go func() { got <- d.do("POST", "/v1/responses", respond, "Content-Type", "application/json") }()
	eventually(t, "the tool is being called", func() bool {
		return strings.Contains(string(d.do("GET", "/api/v1/sessions", "").body), `"calls":3`)
	})
	d.signal(syscall.SIGTERM)
	a := receive(t, got)
	if a.err != nil || !strings.Contains(string(a.body), "event: response.completed") || !strings.Contains(string(a.body), `"output":"second"`) {
		t.Errorf("%v: %s", a.err, a.body)
	}
	d.wantExit(0)
	checkCleanup(t, ledger)
}

// G1, X3: one that takes longer than the grace ends with an error in the API's form, its call
// is cancelled, and its clean-up is made once all the same.
func TestAResponseIsEndedWhenTheGraceIsOver(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	ledger := n.path("ledger")
	model := agent(t, `bad__echo {"text":"first"}`, `bad__slow {"ms":600000}`)
	d := n.serve(withAgent(model.URL, ledger, `, "shutdown": {"grace": "500ms"}`))
	got := make(chan answer, 1)
	go func() { got <- d.do("POST", "/v1/responses", respond, "Content-Type", "application/json") }()
	eventually(t, "the slow tool is being called", func() bool {
		return strings.Contains(string(d.do("GET", "/api/v1/sessions", "").body), `"calls":4`)
	})
	d.signal(syscall.SIGTERM)
	a := receive(t, got)
	if a.err != nil || !strings.Contains(string(a.body), "event: response.failed") || !strings.Contains(string(a.body), "server_shutdown") {
		t.Errorf("%v: %s", a.err, a.body)
	}
	d.wantExit(0)
	checkCleanup(t, ledger)
}

// X3: of a response whose client leaves in the middle of a call, nothing is left.
func TestAResponseWhoseClientLeaves(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	ledger := n.path("ledger")
	model := agent(t, `bad__slow {"ms":600000}`)
	d := n.serve(withAgent(model.URL, ledger, ""))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/v1/responses", strings.NewReader(respond))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the tool is being called", func() bool {
		return strings.Contains(string(d.do("GET", "/api/v1/sessions", "").body), `"calls":3`)
	})
	_ = resp.Body.Close()
	eventually(t, "the session is gone, and its servers", func() bool {
		return string(d.do("GET", "/api/v1/sessions", "").body) == `{"sessions":[]}` && len(d.leftovers("badserver")) == 0
	})
	checkCleanup(t, ledger)
}

// B.5.6: a call that may have been executed is not made again, whatever becomes of its server;
// the next call finds a new process.
func TestALostCallOfAResponseIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	ledger, calls := n.path("ledger"), n.path("calls")
	model := agent(t, fmt.Sprintf(`bad__ledger {"file":%q,"mode":"crash","note":"crash"}`, calls), `bad__echo {"text":"second"}`)
	d := n.serve(withAgent(model.URL, ledger, ""))
	a := d.do("POST", "/v1/responses", respond, "Content-Type", "application/json")
	if a.err != nil || !strings.Contains(string(a.body), `"type":"http_error","code":502`) || !strings.Contains(string(a.body), `"output":"second"`) || !strings.Contains(string(a.body), "event: response.completed") {
		t.Errorf("%v: %s", a.err, a.body)
	}
	b, err := os.ReadFile(calls)
	if err != nil || strings.Count(string(b), "\n") != 1 {
		t.Errorf("%v: the call was made so often: %q", err, b)
	}
	eventually(t, "the servers are gone", func() bool { return len(d.leftovers("badserver")) == 0 })
	checkCleanup(t, ledger)
}

// checkCleanup checks that the server that was used got one clean-up, and the other none.
func checkCleanup(t *testing.T, ledger string) {
	t.Helper()
	b, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(b), "\n") != 1 || !strings.Contains(string(b), "clean-up") {
		t.Errorf("the ledger is %q", b)
	}
}
