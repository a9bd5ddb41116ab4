package control_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/session"
)

// V3, V4: a session's filter is changed by who owns it, and by admins; the servers run on.
func TestASessionsFilterIsChanged(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {"a": {"command": "SERVER"}}}`)
	c := w.client(alice, "a", "s")
	before := w.connections(root, "a")[0]
	if got := c.call("count", `{}`); got != "1" {
		t.Fatal(got)
	}
	const filter = `{"tools": {"exclude": ["a__count"]}}`
	r := w.send(alice, "PATCH", "/api/v1/sessions/s", filter)
	var info session.Info
	if err := json.Unmarshal(r.body, &info); err != nil || r.status != 200 || info.Tools == nil || !slices.Equal(info.Tools.Exclude, []string{"a__count"}) {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := c.call("count", `{}`); got != "forbidden_tool" {
		t.Error(got)
	}
	if r := w.send(root, "PATCH", "/api/v1/sessions/s", `{"tools": null}`); r.status != 200 || strings.Contains(string(r.body), "tools") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := c.call("count", `{}`); got != "2" {
		t.Error(got)
	}
	if after := w.connections(root, "a")[0]; after.PID != before.PID {
		t.Error("the server was started anew")
	}
	if r := w.send(bob, "PATCH", "/api/v1/sessions/s", filter); r.status != 404 || r.reason() != "unknown_session" {
		t.Errorf("another principal: %d %s", r.status, r.body)
	}
	for _, body := range []string{``, `{}`, `[]`, `{"tools": []}`, `{"Tools": null}`, `{"tools": null, "tools": {}}`, `{"tools": null, "id": "x"}`, `{"tools": {"include": ["count"]}}`, `{"tools": null} x`} {
		if r := w.send(alice, "PATCH", "/api/v1/sessions/s", body); r.status != 400 || r.reason() != "bad_request" {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}
}

// V3: what a principal may not use it cannot allow itself.
func TestAPrincipalsFilterHoldsForItsSessions(t *testing.T) {
	w := newWorld(t, strings.Replace(`{`+auth+`"mcpServers": {"a": {"command": "SERVER"}}}`, `"token": "`+alice+`"`, `"token": "`+alice+`", "tools": {"exclude": ["a__count"]}`, 1))
	c := w.client(alice, "a", "s")
	if r := w.send(alice, "PATCH", "/api/v1/sessions/s", `{"tools": {"include": ["a__*"]}}`); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := c.call("count", `{}`); got != "forbidden_tool" {
		t.Error(got)
	}
	if got := w.client(bob, "a", "s").call("count", `{}`); got != "1" {
		t.Errorf("another principal: %s", got)
	}
}
