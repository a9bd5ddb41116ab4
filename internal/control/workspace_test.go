package control_test

import (
	"encoding/json"
	"slices"
	"testing"

	"roundhouse/internal/control"
	"roundhouse/internal/pool"
)

// K7, B2, pool specification, section 9: the status in qwen-code's shape.
func TestWorkspaceStatus(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {
		"a": {"command": "SERVER", "description": "the first"}, "bad": {"command": "false"}, "off": {"command": "SERVER", "disabled": true},
		"idle": {"type": "ws", "url": "ws://127.0.0.1:1/"}, "late": {"command": "SERVER"}
	}, "pool": {"budget": {"servers": 1, "mode": "enforce"}}}`)
	handshake := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
	w.send("", "POST", "/mcp/bad", handshake)
	eventually(t, "nothing of bad holds the budget", func() bool {
		for _, i := range w.connections("", "") {
			if i.State != pool.Failed || i.Dying {
				return false
			}
		}
		return true
	})
	w.client("", "a", "s1")
	w.client("", "a", "s2")
	w.send("", "POST", "/mcp/late", handshake)
	v := get[control.Workspace](w, "", "/workspace/mcp")
	servers := map[string]control.WorkspaceServer{}
	for _, s := range v.Servers {
		servers[s.Name] = s
		if s.WorkspaceEntries == nil || s.EntryCount != len(s.EntrySummary) {
			t.Errorf("%s has entries %+v", s.Name, s.WorkspaceEntries)
		}
	}
	for name, want := range map[string][6]string{
		"a":    {"ok", "connected", "stdio", "", ""},
		"bad":  {"error", "disconnected", "stdio", "", "mcp_server_spawn_failed"},
		"off":  {"disabled", "disconnected", "stdio", "config", ""},
		"idle": {"ok", "disconnected", "websocket", "", ""},
		"late": {"error", "disconnected", "stdio", "budget", "budget_exhausted"},
	} {
		s := servers[name]
		if got := [6]string{s.Status, s.MCPStatus, s.Transport, s.DisabledReason, s.ErrorKind}; got != want || s.Kind != "mcp_server" || s.Disabled != (name == "off") {
			t.Errorf("%s is %+v, want %q", name, s, want)
		}
	}
	if e := servers["a"].EntrySummary; len(e) != 1 || e[0] != (control.WorkspaceEntry{EntryIndex: 0, Refs: 2, Status: "connected"}) {
		t.Errorf("the entries of a are %+v", e)
	}
	if v.V != 1 || !v.Initialized || v.SubprocessCount != 1 || v.ClientCount != 1 || v.ClientBudget != 1 || v.BudgetMode != "enforce" ||
		!slices.Equal(v.Capabilities, []string{"mcp_workspace_pool", "mcp_pool_restart"}) {
		t.Errorf("%+v", v)
	}
	if len(v.Budgets) != 1 || v.Budgets[0].Status != "error" || v.Budgets[0].RefusedCount != 1 || v.Budgets[0].LiveCount != 1 || v.Budgets[0].Scope != "workspace" {
		t.Errorf("the budgets are %+v", v.Budgets)
	}
}

// K7: without pooling there are no tags and no entries.
func TestWorkspaceStatusWithoutPooling(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER"}}, "pool": {"enabled": false}}`)
	w.client("", "a", "s1")
	v := get[control.Workspace](w, "", "/workspace/mcp")
	if len(v.Capabilities) != 0 || v.Servers[0].MCPStatus != "connected" || v.SubprocessCount != 1 || len(v.Budgets) != 0 {
		t.Errorf("%+v", v)
	}
	var raw struct{ Servers []map[string]any }
	if err := json.Unmarshal(w.send("", "GET", "/workspace/mcp", "").body, &raw); err != nil {
		t.Fatal(err)
	}
	for _, member := range []string{"entryCount", "entrySummary"} {
		if _, ok := raw.Servers[0][member]; ok {
			t.Errorf("there is %s without pooling", member)
		}
	}
}
