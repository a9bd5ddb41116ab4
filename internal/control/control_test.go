package control_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/control"
	"roundhouse/internal/pool"
)

func TestHealthAndReadiness(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {}}`)
	for _, token := range []string{"", root} {
		if r := w.send(token, "GET", "/healthz", ""); r.status != 200 || string(r.body) != `{"status":"ok"}` {
			t.Errorf("healthz: %d %s", r.status, r.body)
		}
	}
	if r := w.send("", "GET", "/readyz", ""); r.status != 503 || r.header.Get("Retry-After") == "" || r.reason() != "draining" {
		t.Errorf("readyz before the start: %d %v %s", r.status, r.header, r.body)
	}
	w.control.SetReady(true)
	if r := w.send("", "GET", "/readyz", ""); r.status != 200 || string(r.body) != `{"status":"ready"}` {
		t.Errorf("readyz: %d %s", r.status, r.body)
	}
	w.control.SetReady(false)
	if r := w.send("", "GET", "/readyz", ""); r.status != 503 {
		t.Errorf("readyz at the end: %d %s", r.status, r.body)
	}
}

// routes are all of the API that need a caller, with the status for an admin when
// nothing is connected.
var routes = []struct {
	method, path string
	admin, other int
}{
	{"GET", "/api/v1/status", 200, 200},
	{"POST", "/api/v1/reload", 200, 403},
	{"GET", "/api/v1/servers", 200, 200},
	{"GET", "/api/v1/servers/a", 200, 200},
	{"GET", "/api/v1/servers/none", 404, 404},
	{"POST", "/api/v1/servers/a/restart", 200, 403},
	{"POST", "/api/v1/servers/none/restart", 404, 404},
	{"POST", "/workspace/mcp/a/restart", 200, 403},
	{"POST", "/workspace/mcp/none/restart", 404, 404},
	{"GET", "/api/v1/servers/a/logs", 200, 403},
	{"GET", "/api/v1/servers/none/logs", 404, 404},
	{"GET", "/api/v1/connections", 200, 200},
	{"GET", "/api/v1/sessions", 200, 200},
	{"GET", "/api/v1/sessions/none", 404, 404},
	{"DELETE", "/api/v1/sessions/none", 404, 404},
	{"GET", "/api/v1/traces", 200, 200},
	{"GET", "/api/v1/traces?principal=bob", 200, 403},
	{"GET", "/api/v1/turns", 200, 200},
	{"GET", "/api/v1/turns?principal=bob", 200, 403},
	{"GET", "/api/v1/turns/none", 404, 404},
	{"GET", "/api/v1/sessions/none/turns", 404, 404},
	{"DELETE", "/api/v1/sessions/none/turns", 404, 404},
	{"GET", "/api/v1/sessions/none/trajectories", 404, 404},
	{"GET", "/api/v1/sessions/none/check", 404, 404},
	{"POST", "/api/v1/sessions/none/seal", 404, 404},
	{"GET", "/api/v1/export?session=none", 404, 404},
	{"GET", "/api/v1/export?principal=bob&session=none", 404, 403},
	{"POST", "/api/v1/export?format=none", 400, 400},
}

// Case 63: every route needs a token; what concerns all principals needs an admin's;
// and a page of another site gets nowhere.
func TestWhoMayDoWhat(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {"a": {"command": "SERVER"}}}`)
	for _, r := range routes {
		for token, want := range map[string]int{root: r.admin, alice: r.other, "": 401, "token-that-is-wrong": 401} {
			got := w.send(token, r.method, r.path, "")
			if got.status != want {
				t.Errorf("%s %s with token %q: %d %s, want %d", r.method, r.path, token, got.status, got.body, want)
			}
			if h := got.header; h.Get("Content-Type") != "application/json" || h.Get("X-Content-Type-Options") != "nosniff" || !json.Valid(got.body) {
				t.Errorf("%s %s: %v %s", r.method, r.path, h, got.body)
			}
			if want == 403 && (got.reason() != "forbidden" || !strings.Contains(string(got.body), `admin`)) {
				t.Errorf("%s %s does not say what is needed: %s", r.method, r.path, got.body)
			}
		}
		if got := w.send(root, r.method, r.path, "", "Origin", "http://evil.example"); got.status != 403 {
			t.Errorf("%s %s from another origin: %d", r.method, r.path, got.status)
		}
		wrong := "PUT"
		if got := w.send(root, wrong, r.path, ""); got.status != 405 || got.header.Get("Allow") == "" {
			t.Errorf("%s %s: %d %v", wrong, r.path, got.status, got.header)
		}
	}
}

// Without tokens everybody is the principal local, who is an admin.
func TestWithoutTokensEveryCallerIsAdmin(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER"}}}`)
	for _, r := range routes {
		if got := w.send("", r.method, r.path, ""); got.status != r.admin {
			t.Errorf("%s %s: %d %s, want %d", r.method, r.path, got.status, got.body, r.admin)
		}
	}
	w.client("", "a", "mine")
	if s := get[struct{ Principal string }](w, "", "/api/v1/sessions/mine"); s.Principal != "local" {
		t.Errorf("the principal is %q", s.Principal)
	}
}

// K7: the capability tags follow the kill switch.
func TestCapabilitiesFollowTheKillSwitch(t *testing.T) {
	for _, c := range []struct {
		text, env string
		want      []string
		sharing   string
	}{
		{`{"mcpServers": {"a": {"command": "SERVER"}}}`, "", []string{"mcp_workspace_pool", "mcp_pool_restart"}, "shared"},
		{`{"pool": {"enabled": false}, "mcpServers": {"a": {"command": "SERVER"}}}`, "", []string{}, "session"},
		{`{"mcpServers": {"a": {"command": "SERVER"}}}`, "1", []string{}, "session"},
	} {
		t.Setenv("ROUNDHOUSE_NO_POOL", c.env)
		w := newWorld(t, c.text)
		st := get[control.Status](w, "", "/api/v1/status")
		if !slices.Equal(st.Capabilities, c.want) || st.Capabilities == nil || st.Pooling != (len(c.want) > 0) {
			t.Errorf("%s, ROUNDHOUSE_NO_POOL=%s: pooling %t, capabilities %q", c.text, c.env, st.Pooling, st.Capabilities)
		}
		if s := get[control.Server](w, "", "/api/v1/servers/a"); string(s.Sharing) != c.sharing {
			t.Errorf("%s, ROUNDHOUSE_NO_POOL=%s: sharing %s", c.text, c.env, s.Sharing)
		}
	}
}

func TestStatus(t *testing.T) {
	w := newWorld(t, `{`+auth+`"sessions": {"max": 7}, "mcpServers": {
		"a": {"command": "SERVER"}, "b": {"command": "SERVER", "args": ["${NO_SUCH_VARIABLE}"]}, "c": {"command": "SERVER", "args": ["-fail-start"]}}}`)
	w.client(alice, "a", "")
	w.send(bob, "POST", "/mcp/c", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
	slow := w.client(bob, "a", "").begin(1000)
	st := get[control.Status](w, root, "/api/v1/status")
	if st.Version != "1.2.3" || st.StartedAt.IsZero() || st.UptimeMs < 0 || st.Servers != 3 || st.Disabled != 1 {
		t.Errorf("%+v", st)
	}
	if st.Connections[pool.Active] != 2 || st.Connections[pool.Failed] != 1 {
		t.Errorf("connections: %v", st.Connections)
	}
	if st.Sessions["active"] != 2 || st.Clients != 2 || st.InFlight != 1 || st.Max != 7 {
		t.Errorf("sessions: %+v", st.Stats)
	}
	if st.Config == "" || len(st.Problems) != 1 || st.Problems[0].Server != "b" {
		t.Errorf("for an admin: config %q, problems %v", st.Config, st.Problems)
	}
	st = get[control.Status](w, alice, "/api/v1/status")
	if st.Config != "" || st.Problems == nil || len(st.Problems) != 0 {
		t.Errorf("for alice: config %q, problems %v", st.Config, st.Problems)
	}
	receive(t, slow)
}

func TestServers(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {
		"up":      {"command": "SERVER", "description": "Echoes."},
		"idle":    {"command": "SERVER", "sharing": "session", "interactive": "refuse"},
		"failed":  {"command": "SERVER", "args": ["-fail-start"]},
		"slow":    {"command": "SERVER", "args": ["-start-delay", "1h"], "startTimeout": "1h"},
		"off":     {"command": "SERVER", "disabled": true},
		"broken":  {"command": "SERVER", "args": ["${NO_SUCH_VARIABLE}"]},
		"<b>&":    {"command": "SERVER"}
	}}`)
	w.client("", "up", "s1")
	hello := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`
	w.send("", "POST", "/mcp/failed", hello)
	starting := make(chan struct{})
	go func() {
		defer close(starting)
		w.send("", "POST", "/mcp/slow", hello, "X-Session-Id", "patient")
	}()
	defer func() {
		w.send("", "DELETE", "/api/v1/sessions/patient?force=true", "")
		<-starting
	}()
	eventually(t, "the slow server starts", func() bool { return len(w.connections("", "slow")) == 1 })

	list := get[struct{ Servers []control.Server }](w, "", "/api/v1/servers").Servers
	want := []control.Server{
		{Name: "up", Sharing: "shared", Status: "up", Description: "Echoes."},
		{Name: "idle", Sharing: "session", Status: "idle", Interactive: "refuse"},
		{Name: "failed", Sharing: "shared", Status: "failed"},
		{Name: "slow", Sharing: "shared", Status: "starting"},
		{Name: "off", Sharing: "shared", Status: "disabled", DisabledReason: "disabled in the configuration file"},
		{Name: "broken", Sharing: "shared", Status: "disabled", DisabledReason: "args[0]: the environment variable NO_SUCH_VARIABLE is not set; set it, or write ${NO_SUCH_VARIABLE:-default}"},
		{Name: "<b>&", Sharing: "shared", Status: "idle"},
	}
	if len(list) != len(want) {
		t.Fatalf("%d servers", len(list))
	}
	for i, s := range want {
		got := list[i]
		if got.Connections == nil {
			t.Errorf("%s: the connections are null", s.Name)
		}
		if s.Interactive == "" {
			s.Interactive = got.Interactive
		}
		s.Connections, got.Connections = nil, nil
		s.Transport = "stdio"
		if got, want := asJSON(got), asJSON(s); got != want {
			t.Errorf("%s: %s, want %s", s.Name, got, want)
		}
	}
	up := get[control.Server](w, "", "/api/v1/servers/up")
	if len(up.Connections) != 1 || up.Connections[0].State != pool.Active || !slices.Equal(up.Connections[0].Sessions, []string{"s1"}) {
		t.Errorf("%+v", up.Connections)
	}
	if s := get[control.Server](w, "", "/api/v1/servers/%3Cb%3E&"); s.Name != "<b>&" {
		t.Errorf("%+v", s)
	}
	r := w.send("", "GET", "/api/v1/servers/none", "")
	if r.reason() != "unknown_server" || !strings.Contains(string(r.body), "there are: up, idle, failed, slow, off, broken, ") {
		t.Errorf("%s", r.body)
	}
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Pool specification, section 9: what is shown of every connection.
func TestConnections(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {
		"a": {"command": "SERVER", "args": ["-banner", "-grandchild", "background", "-pages", "2"]},
		"own": {"command": "SERVER", "sharing": "session"},
		"failed": {"command": "SERVER", "args": ["-fail-start"]}}}`)
	if r := w.send("", "GET", "/api/v1/connections", ""); string(r.body) != `{"connections":[]}` {
		t.Errorf("none: %s", r.body)
	}
	slow := w.client("", "a", "s1").begin(600000)
	w.client("", "a", "s2")
	w.client("", "own", "s1")
	w.client("", "own", "s2")
	w.send("", "POST", "/mcp/failed", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)

	var c []map[string]json.RawMessage
	eventually(t, "the catalogue is read", func() bool {
		c = get[struct{ Connections []map[string]json.RawMessage }](w, "", "/api/v1/connections").Connections
		return len(c) == 4 && string(c[0]["tools"]) != "0" && string(c[0]["resources"]) != "0"
	})
	a := c[0]
	for field, want := range map[string]string{
		"server": `"a"`, "entryIndex": "0", "state": `"active"`, "sharing": `"shared"`, "generation": "1", "refs": "2", "sessions": `["s1","s2"]`,
		"inFlight": "1", "descendants": "1", "noise": "1", "strays": "0", "protocolVersion": `"2025-11-25"`, "prompts": "2", "resourceTemplates": "1",
	} {
		if string(a[field]) != want {
			t.Errorf("%s is %s, want %s", field, a[field], want)
		}
	}
	for _, field := range []string{"id", "pid", "startedAt", "uptimeMs", "tools", "resources"} {
		if v := string(a[field]); v == "" || v == "0" || v == `""` {
			t.Errorf("%s is %q", field, v)
		}
	}
	if f := c[1]; string(f["server"]) != `"failed"` || string(f["state"]) != `"failed"` || string(f["exit"]) != `"exit status 3"` ||
		!strings.Contains(string(f["lastError"]), "did not start") {
		t.Errorf("a failed one: %s", asJSON(f))
	}
	for i, own := range c[2:] {
		if string(own["sharing"]) != `"session"` || string(own["entryIndex"]) != asJSON(i) || string(own["refs"]) != "1" {
			t.Errorf("an unpooled one: %s", asJSON(own))
		}
	}
	w.send("", "DELETE", "/api/v1/sessions/s1?force=true", "")
	receive(t, slow)
}

// Pool specification, section 9: what ends is listed until its processes are gone.
func TestDyingConnectionsAreListed(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER", "args": ["-linger", "500ms"], "sharing": "session"}}}`)
	w.client("", "a", "s1")
	pid := w.connections("", "a")[0].PID
	if r := w.send("", "DELETE", "/api/v1/sessions/s1", ""); r.status != 204 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	eventually(t, "the connection is listed as dying", func() bool {
		c := w.connections("", "a")
		return len(c) == 1 && c[0].Dying && c[0].PID == pid && c[0].State == pool.Closed
	})
	eventually(t, "it is gone", func() bool { return len(w.connections("", "a")) == 0 })
}
