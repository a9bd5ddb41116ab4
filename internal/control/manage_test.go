package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"roundhouse/internal/config"
	"roundhouse/internal/control"
	"roundhouse/internal/instance"
	"roundhouse/internal/session"
)

// restart restarts what a path names, at once as the answer has it.
func (w *world) restart(path string) control.RestartReply {
	w.t.Helper()
	r := w.send("", "POST", path, "")
	var v control.RestartReply
	if err := json.Unmarshal(r.body, &v); err != nil || r.status != 200 {
		w.t.Fatalf("restart: %d %s %v", r.status, r.body, err)
	}
	return v
}

// R6: a restart gives every connection of the server a new process; sessions stay.
func TestRestart(t *testing.T) {
	for _, path := range []string{"/api/v1/servers/a/restart", "/api/v1/servers/a/restart?entry=*", "/api/v1/servers/a/restart?entry=0", "/workspace/mcp/a/restart?entryIndex=*"} {
		w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER"}, "b": {"command": "SERVER"}}}`)
		one, two := w.client("", "a", "s1"), w.client("", "a", "s2")
		w.client("", "b", "s1")
		one.call("count", `{}`)
		before, other := w.connections("", "a")[0], w.connections("", "b")[0]
		slow := two.begin(600000)

		r := w.restart(path)
		if r.Server+r.ServerName != "a" || len(r.Entries) != 0 || !r.Restarted.Restarted || *r.EntryIndex != 0 || r.Reason != "" || r.Skipped || *r.DurationMs < 0 {
			t.Errorf("%+v", r)
		}
		if reason := receive(t, slow); reason != "interrupted" {
			t.Errorf("the call in flight: %s", reason)
		}
		after := w.connections("", "a")[0]
		if after.PID == before.PID || after.ID != before.ID || after.Generation <= before.Generation || after.Refs != 2 || !slices.Equal(after.Sessions, before.Sessions) {
			t.Errorf("before %+v, after %+v", before, after)
		}
		if now := w.connections("", "b")[0]; now.PID != other.PID {
			t.Error("another server was restarted too")
		}
		if n := one.call("count", `{}`); n != "1" {
			t.Errorf("the first call of the new process: %s", n)
		}
	}
}

// R6: a server that cannot start again is said to have failed, and why.
func TestRestartThatFails(t *testing.T) {
	w := newWorld(t, fmt.Sprintf(`{"mcpServers": {"a": {"command": "sh", "args": ["-c", "mkdir %s && exec SERVER"]}}}`, t.TempDir()+"/once"))
	w.client("", "a", "s1")
	r := w.restart("/api/v1/servers/a/restart")
	if r.Restarted.Restarted || r.Skipped || !strings.Contains(r.Reason, `server "a" did not start`) {
		t.Errorf("%+v", r)
	}
}

// R6: of several connections each has its result, and one can be restarted alone.
func TestRestartOfOneOfSeveral(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER", "sharing": "session"}}}`)
	w.client("", "a", "s1")
	w.client("", "a", "s2")
	before := w.connections("", "a")
	if r := w.restart("/api/v1/servers/a/restart"); r.Restarted != nil || len(r.Entries) != 2 || !r.Entries[0].Restarted || *r.Entries[1].EntryIndex != 1 {
		t.Errorf("%+v", r)
	}
	middle := w.connections("", "a")
	if r := w.restart("/workspace/mcp/a/restart?entryIndex=1"); r.Restarted == nil || !r.Restarted.Restarted || r.ServerName != "a" || *r.EntryIndex != 1 {
		t.Errorf("%+v", r)
	}
	after := w.connections("", "a")
	if before[0].PID == middle[0].PID || before[1].PID == middle[1].PID || middle[0].PID != after[0].PID || middle[1].PID == after[1].PID {
		t.Errorf("before %+v, then %+v, after %+v", before, middle, after)
	}
	for query, status := range map[string]int{"2": 404, "x": 400, "-1": 400, "0.5": 400} {
		if r := w.send("", "POST", "/api/v1/servers/a/restart?entry="+query, ""); r.status != status {
			t.Errorf("entry=%s: %d %s", query, r.status, r.body)
		}
	}
	if w.connections("", "a")[0].PID != after[0].PID {
		t.Error("a refused restart restarts")
	}
}

// R7: a server without a connection has nothing to restart, and a disabled one is skipped.
func TestRestartOfNothing(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER"}, "off": {"command": "SERVER", "disabled": true}}}`)
	if r := w.send("", "POST", "/api/v1/servers/a/restart", ""); string(r.body) != `{"server":"a","entries":[]}` {
		t.Errorf("%s", r.body)
	}
	if r := w.send("", "POST", "/workspace/mcp/off/restart", ""); string(r.body) != `{"serverName":"off","restarted":false,"skipped":true,"reason":"disabled"}` {
		t.Errorf("%s", r.body)
	}
}

// launcher counts starts of instances, all of which fail.
type launcher struct{ starts atomic.Int32 }

func (l *launcher) Launch(context.Context, *config.Server, int, func(error), func()) (instance.Unit, error) {
	l.starts.Add(1)
	return nil, errors.New("no display")
}

// R4, I6: who has mended an exclusive server need not wait for the end of the pause after
// starts that failed.
func TestARestartForgivesFailedStartsOfInstances(t *testing.T) {
	var l launcher
	instances := instance.New(instance.Config{Launcher: &l})
	var servers []*config.Server
	w := newWorld(t, `{"mcpServers": {"browser": {"command": "SERVER", "sharing": "exclusive"}}}`, func(c *control.Config) {
		c.Instances, servers = instances, c.Config().Servers
		instances.Configure(servers)
	})
	defer instances.Join()
	defer instances.Drain(t.Context())
	for n := range int32(2) {
		if _, err := instances.Describe(t.Context(), servers[0]); err == nil || l.starts.Load() != n+1 {
			t.Errorf("%d starts; %v", l.starts.Load(), err)
		}
		w.restart("/api/v1/servers/browser/restart")
	}
}

// R7: a server that was disabled or removed is torn down by a restart.
func TestRestartOfWhatIsNotToBeUsed(t *testing.T) {
	for _, text := range []string{`{"mcpServers": {}}`, `{"mcpServers": {"a": {"command": "x", "disabled": true}}}`} {
		var now atomic.Pointer[config.Config]
		w := newWorld(t, `{`+auth+`"mcpServers": {"a": {"command": "SERVER"}}}`, func(c *control.Config) {
			now.Store(c.Config())
			c.Config = now.Load
		})
		w.client(alice, "a", "")
		later, err := config.Parse("/conf/x.json", []byte(text), config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		now.Store(later)
		if r := w.send(alice, "POST", "/workspace/mcp/a/restart", ""); r.status != 403 && r.status != 404 || len(w.connections(root, "a")) != 1 {
			t.Errorf("alice got %d %s", r.status, r.body)
		}
		if r := w.send(root, "POST", "/workspace/mcp/a/restart", ""); string(r.body) != `{"serverName":"a","restarted":false,"skipped":true,"reason":"disabled"}` {
			t.Errorf("%d %s", r.status, r.body)
		}
		eventually(t, "it has ended", func() bool { return len(w.connections(root, "a")) == 0 })
	}
}

// R7, B1: a connection that does not live, and for which the budget has no room, is not
// restarted.
func TestRestartOverTheBudget(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {
		"a":      {"command": "SERVER"},
		"failed": {"command": "SERVER", "args": ["-fail-start"]}},
		"pool": {"budget": {"servers": 1, "mode": "enforce"}}}`)
	w.send("", "POST", "/mcp/failed", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
	eventually(t, "nothing is held", func() bool { return len(get[control.Status](w, "", "/api/v1/status").Budget.Held) == 0 })
	w.client("", "a", "")
	if r := w.send("", "POST", "/workspace/mcp/failed/restart", ""); string(r.body) != `{"serverName":"failed","entryIndex":0,"restarted":false,"skipped":true,"reason":"budget_would_exceed"}` {
		t.Errorf("%s", r.body)
	}
	st := get[control.Status](w, "", "/api/v1/status")
	if b := st.Budget; b.Mode != "enforce" || b.Servers != 1 || len(b.Held) != 1 || b.Held[0].Server != "a" || len(b.Refused) != 1 || b.Refused[0].Server != "failed" {
		t.Errorf("%+v", b)
	}
}

type logList struct {
	Server      string
	Connections []struct {
		ID    string
		Lines []string
	}
}

// P5, P6: stderr and what a server writes on stdout beside the protocol are shown,
// also of one that has crashed.
func TestLogs(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {
		"a":      {"command": "sh", "args": ["-c", "echo '<b>first</b>' >&2; echo second >&2; exec SERVER -banner"]},
		"failed": {"command": "SERVER", "args": ["-fail-start"]},
		"none":   {"command": "SERVER"}}}`)
	c := w.client("", "a", "")
	logs := func(path string) []string {
		t.Helper()
		list := get[logList](w, "", path)
		if len(list.Connections) != 1 {
			t.Fatalf("GET %s: %+v", path, list)
		}
		if id := w.connections("", list.Server)[0].ID; list.Connections[0].ID != id {
			t.Errorf("the id is %s, not %s", list.Connections[0].ID, id)
		}
		return list.Connections[0].Lines
	}
	lines := logs("/api/v1/servers/a/logs")
	has := func(part string) bool {
		return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, part) })
	}
	if len(lines) != 3 || !has("<b>first</b>") || !has("second") || !has("stdout: ") {
		t.Errorf("alive: %q", lines)
	}
	if last := logs("/api/v1/servers/a/logs?lines=1"); len(last) != 1 || last[0] != lines[2] {
		t.Errorf("the last line: %q of %q", last, lines)
	}

	c.call("exit", `{"code": 9}`)
	eventually(t, "the process has ended", func() bool {
		i := w.connections("", "a")
		return len(i) == 1 && i[0].Exit == "exit status 9" && !i[0].Dying
	})
	if crashed := logs("/api/v1/servers/a/logs"); !slices.Equal(crashed[:min(3, len(crashed))], lines) {
		t.Errorf("crashed: %q, alive %q", crashed, lines)
	}
	if last := logs("/api/v1/servers/a/logs?lines=1"); len(last) != 1 {
		t.Errorf("the last line of a crashed one: %q", last)
	}

	w.send("", "POST", "/mcp/failed", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
	if lines := logs("/api/v1/servers/failed/logs"); len(lines) == 0 {
		t.Error("a server that did not start has no log")
	}
	if r := w.send("", "GET", "/api/v1/servers/none/logs", ""); string(r.body) != `{"connections":[],"server":"none"}` {
		t.Errorf("never started: %s", r.body)
	}
	for _, lines := range []string{"0", "-1", "10001", "x", "1.5"} {
		if r := w.send("", "GET", "/api/v1/servers/a/logs?lines="+lines, ""); r.status != 400 || r.reason() != "bad_request" {
			t.Errorf("lines=%s: %d %s", lines, r.status, r.body)
		}
	}
}

type sessionList struct{ Sessions []session.Info }

func (w *world) sessionIDs(token string) []string {
	w.t.Helper()
	ids := []string{}
	for _, s := range get[sessionList](w, token, "/api/v1/sessions").Sessions {
		ids = append(ids, s.Principal+"/"+s.ID)
	}
	slices.Sort(ids)
	return ids
}

// N2: a session id is no credential; another principal's session is unknown, in lists,
// by its id, at connections, and for its end. An admin sees and ends all.
func TestSessionsOfOtherPrincipalsAreUnknown(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {"a": {"command": "SERVER", "shareAcrossPrincipals": true}}}`)
	if r := w.send(alice, "GET", "/api/v1/sessions", ""); string(r.body) != `{"sessions":[]}` {
		t.Errorf("none: %s", r.body)
	}
	w.client(alice, "a", "hers")
	w.client(alice, "a", "both")
	mine := w.client(bob, "a", "his")
	if c := w.connections(root, ""); len(c) != 1 || c[0].Refs != 3 {
		t.Fatalf("not shared: %+v", c)
	}
	for token, want := range map[string][]string{
		alice: {"alice/both", "alice/hers"}, bob: {"bob/his"}, root: {"alice/both", "alice/hers", "bob/his"},
	} {
		if ids := w.sessionIDs(token); !slices.Equal(ids, want) {
			t.Errorf("sessions for %s: %q", token, ids)
		}
	}
	for token, want := range map[string][]string{alice: {"both", "hers"}, bob: {"his"}, root: {"both", "hers", "his"}} {
		if c := w.connections(token, "")[0]; !slices.Equal(c.Sessions, want) || c.Refs != 3 {
			t.Errorf("sessions of the connection for %s: %q, refs %d", token, c.Sessions, c.Refs)
		}
		if c := get[control.Server](w, token, "/api/v1/servers/a").Connections[0]; !slices.Equal(c.Sessions, want) {
			t.Errorf("sessions of the server for %s: %q", token, c.Sessions)
		}
		if c := get[struct{ Servers []control.Server }](w, token, "/api/v1/servers").Servers[0].Connections[0]; !slices.Equal(c.Sessions, want) {
			t.Errorf("sessions in the list for %s: %q", token, c.Sessions)
		}
	}
	for _, method := range []string{"GET", "DELETE"} {
		foreign, absent := w.send(bob, method, "/api/v1/sessions/hers", ""), w.send(bob, method, "/api/v1/sessions/same", "")
		if foreign.status != 404 || strings.ReplaceAll(string(foreign.body), "hers", "same") != string(absent.body) {
			t.Errorf("%s: another's %d %s, none %s", method, foreign.status, foreign.body, absent.body)
		}
		if r := w.send(bob, method, "/api/v1/sessions/hers?principal=alice", ""); r.status != 403 {
			t.Errorf("%s with another's name: %d %s", method, r.status, r.body)
		}
	}
	if got := mine.call("echo", `{"text": "x"}`); got != "x" {
		t.Errorf("%s", got)
	}
	if r := w.send(root, "DELETE", "/api/v1/sessions/hers", ""); r.status != 204 {
		t.Errorf("an admin's end: %d %s", r.status, r.body)
	}
	if ids := w.sessionIDs(root); !slices.Equal(ids, []string{"alice/both", "bob/his"}) {
		t.Errorf("left: %q", ids)
	}
}

// N2: ids belong to principals. Where two have a session of one id, each sees his own
// uses of connections only, and an admin must say whose he means.
func TestSessionsOfOneIDBelongToTheirPrincipals(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {"a": {"command": "SERVER"}, "b": {"command": "SERVER"}}}`)
	w.client(alice, "a", "same")
	w.client(bob, "b", "same")
	for token, server := range map[string]string{alice: "a", bob: "b"} {
		for _, c := range w.connections(token, "") {
			if mine := len(c.Sessions) == 1; mine != (c.Server == server) {
				t.Errorf("%s at the connection to %s: %q", token, c.Server, c.Sessions)
			}
		}
		if s := get[session.Info](w, token, "/api/v1/sessions/same"); s.Clients[0].Server != server {
			t.Errorf("%s gets %+v", token, s)
		}
	}
	for _, method := range []string{"GET", "DELETE"} {
		r := w.send(root, method, "/api/v1/sessions/same", "")
		if r.status != 400 || !strings.Contains(string(r.body), "?principal= or --principal one of alice, bob") {
			t.Errorf("%s: %d %s", method, r.status, r.body)
		}
	}
	if s := get[session.Info](w, root, "/api/v1/sessions/same?principal=bob"); s.Principal != "bob" {
		t.Errorf("%+v", s)
	}
	if r := w.send(root, "DELETE", "/api/v1/sessions/same?principal=bob", ""); r.status != 204 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if ids := w.sessionIDs(root); !slices.Equal(ids, []string{"alice/same"}) {
		t.Errorf("left: %q", ids)
	}
	if s := get[session.Info](w, root, "/api/v1/sessions/same"); s.Principal != "alice" {
		t.Errorf("%+v", s)
	}
}

// N7: what is shown of a session.
func TestSession(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {"a": {"command": "SERVER"}}}`)
	c := w.client(alice, "a", "")
	c.call("echo", `{"text": "x"}`)
	slow := c.begin(300)
	s := get[session.Info](w, alice, "/api/v1/sessions/"+c.id())
	if s.ID != c.id() || s.Principal != "alice" || s.State != session.Active || s.Named || s.CreatedAt.IsZero() || s.LastActivity.Before(s.CreatedAt) ||
		s.InFlight != 1 || s.Calls < 2 || len(s.Connections) != 1 || s.Connections[0] != w.connections(alice, "a")[0].ID {
		t.Errorf("%+v", s)
	}
	if len(s.Clients) != 1 || s.Clients[0].Name != "test/1" || s.Clients[0].Server != "a" || s.Clients[0].Version != "2025-11-25" {
		t.Errorf("%+v", s.Clients)
	}
	receive(t, slow)
}

// N4: an end waits for calls in flight up to the grace; force does not.
func TestEndOfASession(t *testing.T) {
	w := newWorld(t, `{"shutdown": {"grace": "200ms"}, "mcpServers": {"a": {"command": "SERVER"}}}`)
	slow := w.client("", "a", "s1").begin(100)
	if r := w.send("", "DELETE", "/api/v1/sessions/s1", ""); r.status != 204 || len(r.body) != 0 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := receive(t, slow); got != "slept 100 ms" {
		t.Errorf("a call within the grace: %s", got)
	}
	if s := get[control.Session](w, "", "/api/v1/sessions/s1"); s.State != session.Closed || len(s.Connections) != 0 {
		t.Errorf("after the end: %+v", s)
	}

	slow = w.client("", "a", "s2").begin(600000)
	if r := w.send("", "DELETE", "/api/v1/sessions/s2?force=false", ""); r.status != 204 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := receive(t, slow); got != "unknown_session" {
		t.Errorf("a call beyond the grace: %s", got)
	}
	if r := w.send("", "DELETE", "/api/v1/sessions/s2?force=perhaps", ""); r.status != 400 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestForcedEndOfASession(t *testing.T) {
	w := newWorld(t, `{"shutdown": {"grace": "10m", "total": "20m"}, "mcpServers": {"a": {"command": "SERVER"}}}`)
	slow := w.client("", "a", "s1").begin(600000)
	if r := w.send("", "DELETE", "/api/v1/sessions/s1?force=true", ""); r.status != 204 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if got := receive(t, slow); got != "unknown_session" {
		t.Errorf("the call in flight: %s", got)
	}
}
