package control_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/badserver"
	"roundhouse/internal/control"
	"roundhouse/internal/session"
)

// injecting is alice's token with the right to inject.
var injecting = strings.Replace(auth, `"token": "`+alice+`"`, `"token": "`+alice+`", "inject": true`, 1)

func (w *world) injection(name string) string {
	path, err := json.Marshal(badserver.Path(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	return `{"name": "` + name + `", "server": {"command": ` + string(path) + `}}`
}

type serverList struct{ Servers []control.Server }

// K1, N4: an injected server runs for its session alone, is seen with its origin, and its
// process is gone with the session.
func TestAServerIsAddedToASession(t *testing.T) {
	w := newWorld(t, `{`+injecting+`"mcpServers": {"a": {"command": "SERVER"}}}`)
	w.client(alice, "", "s")
	r := w.send(alice, "POST", "/api/v1/sessions/s/servers", w.injection("x"))
	var added control.Added
	if err := json.Unmarshal(r.body, &added); err != nil || r.status != 201 || !added.Injected || added.Session != "s" || added.Status != "idle" || added.Problems == nil {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if got := w.client(alice, "x", "s").call("count", `{}`); got != "1" {
		t.Error(got)
	}
	all := w.client(alice, "", "s")
	if got := all.call("x__count", `{}`); got != "1" && got != "2" {
		t.Error(got)
	}
	if r := w.send(alice, "POST", "/mcp/x", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, "X-Session-Id", "other"); !strings.Contains(string(r.body), "unknown_server") {
		t.Errorf("another session: %d %s", r.status, r.body)
	}
	connections := w.connections(root, "x")
	if len(connections) != 1 || !connections[0].Injected || connections[0].PID == 0 || !slices.Equal(connections[0].Sessions, []string{"s"}) {
		t.Errorf("connections: %+v", connections)
	}
	for token, want := range map[string]bool{root: true, alice: true, bob: false} {
		list := get[serverList](w, token, "/api/v1/servers").Servers
		i := slices.IndexFunc(list, func(s control.Server) bool { return s.Name == "x" })
		if i >= 0 != want || want && (!list[i].Injected || list[i].Session != "s" || list[i].Principal != "alice" || list[i].Status != "up" || len(list[i].Connections) != 1) {
			t.Errorf("%s: %+v", token, list)
		}
	}
	if info := get[session.Info](w, alice, "/api/v1/sessions/s"); !slices.Equal(info.Injected, []string{"x"}) {
		t.Errorf("%+v", info)
	}
	if r := w.send(alice, "POST", "/api/v1/sessions/s/servers", w.injection("y")); r.status != 201 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := all.call("y__count", `{}`); got != "1" {
		t.Error(got)
	}
	if r := w.send(root, "DELETE", "/api/v1/sessions/s/servers/x", ""); r.status != 204 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := all.call("x__count", `{}`); got != "forbidden_tool" {
		t.Error(got)
	}
	eventually(t, "the removed server has ended", func() bool { return len(w.connections(root, "x")) == 0 })
	if r := w.send(alice, "DELETE", "/api/v1/sessions/s", ""); r.status != 204 {
		t.Errorf("%d %s", r.status, r.body)
	}
	eventually(t, "the session's server has ended with it", func() bool { return len(w.connections(root, "y")) == 0 })
}

// Only who is trusted adds servers, to his own sessions; N2.
func TestWhoMayAddServers(t *testing.T) {
	w := newWorld(t, `{`+injecting+`"mcpServers": {"a": {"command": "SERVER"}}}`)
	w.client(alice, "", "s")
	w.client(bob, "", "b")
	for _, c := range []struct {
		token, method, path, body string
		status                    int
		reason                    string
	}{
		{bob, "POST", "/api/v1/sessions/b/servers", w.injection("x"), 403, "forbidden"},
		{bob, "DELETE", "/api/v1/sessions/b/servers/x", "", 403, "forbidden"},
		{alice, "POST", "/api/v1/sessions/b/servers", w.injection("x"), 404, "unknown_session"},
		{alice, "POST", "/api/v1/sessions/s/servers", w.injection("a"), 409, "name_taken"},
		{alice, "DELETE", "/api/v1/sessions/s/servers/a", "", 404, "unknown_server"},
		{root, "POST", "/api/v1/sessions/b/servers", w.injection("x"), 201, ""},
		{root, "POST", "/api/v1/sessions/b/servers", w.injection("x"), 409, "name_taken"},
		{root, "DELETE", "/api/v1/sessions/b/servers/x", "", 204, ""},
	} {
		if r := w.send(c.token, c.method, c.path, c.body); r.status != c.status || r.reason() != c.reason {
			t.Errorf("%s %s: %d %s", c.method, c.path, r.status, r.body)
		}
	}
	for _, body := range []string{``, `{}`, `[]`, `{"name": "x"}`, `{"server": {}}`, `{"name": "x", "server": []}`, `{"name": 1, "server": {}}`, `{"name": "x", "name": "y", "server": {}}`, `{"name": "x", "server": {}, "more": 1}`, `{"name": "x", "server": {}}`} {
		if r := w.send(alice, "POST", "/api/v1/sessions/s/servers", body); r.status != 400 || r.reason() != "bad_request" {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}
	r := w.send(alice, "POST", "/api/v1/sessions/s/servers", `{"name": "x", "server": {"command": "a", "args": [1], "env": {"A": "${HOME}"}, "startTimeout": "soon"}}`)
	for _, path := range []string{"server.args[0]", "server.env.A", "server.startTimeout"} {
		if !strings.Contains(string(r.body), path) {
			t.Errorf("%s is not in %s", path, r.body)
		}
	}
}

// B1, U2: an injected server counts in the budget.
func TestAnAddedServerCountsInTheBudget(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER"}}, "pool": {"budget": {"servers": 1, "mode": "enforce"}}}`)
	c := w.client("", "", "s")
	if r := w.send("", "POST", "/api/v1/sessions/s/servers", w.injection("x")); r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if got := w.client("", "a", "t").call("count", `{}`); got != "1" {
		t.Fatal(got)
	}
	if got := c.call("x__count", `{}`); got != "budget_exhausted" {
		t.Error(got)
	}
}
