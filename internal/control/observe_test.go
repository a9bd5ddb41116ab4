package control_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/config"
	"roundhouse/internal/control"
	"roundhouse/internal/front"
	"roundhouse/internal/secret"
)

// withMetrics exports the pool and the sessions.
func withMetrics(c *control.Config) {
	r := prometheus.NewRegistry()
	r.MustRegister(c.Pool.Collectors()...)
	r.MustRegister(c.Sessions.Collectors()...)
	c.Metrics = r
}

// STYLE 19: metrics say what happens, to admins only, and at the door's terms.
func TestMetrics(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {"a": {"command": "SERVER", "shareAcrossPrincipals": true}, "bad": {"command": "false"}}}`, withMetrics)
	w.client(alice, "a", "s1").call("echo", `{"text": "x"}`)
	w.client(bob, "a", "s2").call("nosuch", `{}`)
	w.send(alice, "POST", "/mcp/bad", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	r := w.send(root, "GET", "/metrics", "")
	if r.status != 200 || !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain") {
		t.Fatalf("%d %v", r.status, r.header)
	}
	for _, line := range []string{
		`roundhouse_pool_connections{server="a",state="active"} 1`,
		`roundhouse_pool_connections{server="bad",state="failed"} 1`,
		`roundhouse_pool_attachments{server="a"} 2`,
		`roundhouse_pool_dials_total{outcome="ok",server="a"} 1`,
		`roundhouse_pool_dials_total{outcome="failed",server="bad"} 1`,
		`roundhouse_mux_calls_total{outcome="result",server="a"} 1`,
		`roundhouse_mux_call_duration_seconds_count{server="a"} 2`,
		`roundhouse_session_sessions{state="active"} `,
	} {
		if !strings.Contains(string(r.body), "\n"+line) {
			t.Errorf("there is no %s in\n%s", line, r.body)
		}
	}
	if r := w.send(alice, "GET", "/metrics", ""); r.status != 403 || r.reason() != "forbidden" {
		t.Errorf("for who is no admin: %d %s", r.status, r.body)
	}
	if r := w.send("", "GET", "/metrics", ""); r.status != 401 {
		t.Errorf("without a token: %d", r.status)
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", w.url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "rebound.example"
	req.Header.Set("Authorization", "Bearer "+root)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 403 && res.StatusCode != 421 {
		t.Errorf("under another name: %s", res.Status)
	}
}

// STYLE 19: profiles are for admins on this machine.
func TestProfiles(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {}}`)
	if r := w.send(root, "GET", "/debug/pprof/", ""); r.status != 200 || !strings.Contains(string(r.body), "goroutine") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := w.send(root, "GET", "/debug/pprof/heap", ""); r.status != 200 || len(r.body) == 0 {
		t.Errorf("%d %s", r.status, r.body)
	}
	for path, token := range map[string]string{"/debug/pprof/": alice, "/debug/pprof/heap": bob} {
		if r := w.send(token, "GET", path, ""); r.status != 403 {
			t.Errorf("%s for who is no admin: %d %s", path, r.status, r.body)
		}
	}
	if r := w.send(root, "GET", "/debug/pprof/cmdline", ""); r.status != 400 {
		t.Errorf("the command line: %d %s", r.status, r.body)
	}

	f, err := front.New(front.Config{Beyond: true, Tokens: []config.Token{{Principal: "root", Token: secret.New(root), Admin: true}}})
	if err != nil {
		t.Fatal(err)
	}
	w.control.Register(f)
	req := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1/debug/pprof/heap", nil)
	req.Header.Set("Authorization", "Bearer "+root)
	res := httptest.NewRecorder()
	f.ServeHTTP(res, req)
	if res.Code != 403 || !strings.Contains(res.Body.String(), "this machine only") {
		t.Errorf("beyond loopback: %d %s", res.Code, res.Body)
	}
}

// G1: a profile that takes its time does not hold up a shutdown.
func TestAProfileEndsWithTheDaemon(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	time.AfterFunc(100*time.Millisecond, w.control.CloseStreams)
	begun := time.Now()
	w.send("", "GET", "/debug/pprof/trace?seconds=300", "")
	if took := time.Since(begun); took > patience {
		t.Errorf("it took %s", took)
	}
}
