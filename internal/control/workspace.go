package control

import (
	"net/http"
	"path/filepath"
	"slices"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/pool"
)

// Workspace is the pool's status in qwen-code's shape (GET /workspace/mcp).
type Workspace struct {
	V               int               `json:"v"` // of the shape: 1
	WorkspaceCwd    string            `json:"workspaceCwd"`
	Initialized     bool              `json:"initialized"`
	DiscoveryState  string            `json:"discoveryState"` // completed: servers start when they are wanted
	Capabilities    []string          `json:"capabilities"`
	Servers         []WorkspaceServer `json:"servers"`
	ClientCount     int               `json:"clientCount"` // servers that count for the budget
	ClientBudget    int               `json:"clientBudget,omitempty"`
	BudgetMode      config.BudgetMode `json:"budgetMode"`
	Budgets         []WorkspaceBudget `json:"budgets"`
	SubprocessCount int               `json:"subprocessCount"` // children of ours that are servers
}

// WorkspaceServer is one configured server.
type WorkspaceServer struct {
	Kind           string `json:"kind"` // mcp_server
	Name           string `json:"name"`
	Status         string `json:"status"`    // ok, warning, error, disabled
	MCPStatus      string `json:"mcpStatus"` // connected, connecting, disconnected
	Transport      string `json:"transport"` // stdio, http, sse, websocket
	Disabled       bool   `json:"disabled"`
	DisabledReason string `json:"disabledReason,omitempty"` // config, budget
	ErrorKind      string `json:"errorKind,omitempty"`
	Hint           string `json:"hint,omitempty"` // for people
	Description    string `json:"description,omitempty"`
	RequiresAuth   bool   `json:"requiresAuth,omitempty"`
	*WorkspaceEntries
	ResourceCount int `json:"resourceCount"`
	PromptCount   int `json:"promptCount"`
}

// WorkspaceEntries are a server's connections; without pooling there is neither member.
type WorkspaceEntries struct {
	EntryCount   int              `json:"entryCount"`
	EntrySummary []WorkspaceEntry `json:"entrySummary"`
}

// WorkspaceEntry is one connection.
type WorkspaceEntry struct {
	EntryIndex int    `json:"entryIndex"`
	Refs       int    `json:"refs"`
	Status     string `json:"status"` // as MCPStatus
}

// WorkspaceBudget is one limit of the budget.
type WorkspaceBudget struct {
	Kind         string            `json:"kind"`   // mcp_budget
	Scope        string            `json:"scope"`  // workspace
	Limit        string            `json:"limit"`  // servers, processes
	Status       string            `json:"status"` // ok, warning, error
	LiveCount    int               `json:"liveCount"`
	Mode         config.BudgetMode `json:"mode"`
	RefusedCount int               `json:"refusedCount"`
	Budget       int               `json:"budget,omitempty"`
	ErrorKind    string            `json:"errorKind,omitempty"`
	Hint         string            `json:"hint,omitempty"`
}

// The words of qwen-code's API.
const (
	cellOK       = "ok"
	cellWarning  = "warning"
	cellError    = "error"
	cellDisabled = "disabled"

	mcpConnected    = "connected"
	mcpConnecting   = "connecting"
	mcpDisconnected = "disconnected"

	errorBudget = "budget_exhausted"
	errorSpawn  = "mcp_server_spawn_failed"
	errorAuth   = "auth_env_error"
	errorInit   = "init_timeout"
)

func (c *Control) workspace(w http.ResponseWriter, _ *http.Request, caller front.Caller) {
	cfg, budget := c.cfg.Config(), c.cfg.Pool.Budget()
	v := Workspace{
		V: 1, Initialized: true, DiscoveryState: "completed", Capabilities: c.capabilities(), Servers: []WorkspaceServer{},
		ClientCount: len(budget.Held), ClientBudget: budget.Servers, BudgetMode: budget.Mode, Budgets: workspaceBudgets(budget),
	}
	if caller.Admin && cfg.File != "" {
		v.WorkspaceCwd = filepath.Dir(cfg.File)
	}
	all := c.cfg.Pool.Snapshot()
	for _, i := range all {
		if i.PID != 0 && i.Exit == "" {
			v.SubprocessCount++
		}
	}
	for _, s := range cfg.Servers {
		refused := slices.ContainsFunc(budget.Refused, func(r pool.Refusal) bool { return r.Server == s.Name })
		x := workspaceServer(s, all, refused)
		if !cfg.Pool.Enabled {
			x.WorkspaceEntries = nil
		}
		v.Servers = append(v.Servers, x)
	}
	front.WriteJSON(w, http.StatusOK, v)
}

func workspaceServer(s *config.Server, all []pool.Info, refused bool) WorkspaceServer {
	x := WorkspaceServer{
		Kind: "mcp_server", Name: s.Name, Status: cellOK, MCPStatus: mcpDisconnected, Transport: string(s.Transport), Description: s.Description,
		WorkspaceEntries: &WorkspaceEntries{EntrySummary: []WorkspaceEntry{}},
	}
	if s.Transport == config.WebSocket {
		x.Transport = "websocket"
	}
	var failed *pool.Info
	for i := range all {
		e := &all[i]
		if e.Server != s.Name || e.Injected || e.Dying {
			continue
		}
		status := mcpStatusOf(e.State)
		x.EntrySummary = append(x.EntrySummary, WorkspaceEntry{e.EntryIndex, e.Refs, status})
		x.EntryCount++
		x.ResourceCount, x.PromptCount = max(x.ResourceCount, e.Resources), max(x.PromptCount, e.Prompts)
		if status == mcpConnected || x.MCPStatus == mcpDisconnected {
			x.MCPStatus = status
		}
		if e.State == pool.Failed {
			failed = e
		}
	}
	switch {
	case s.DisabledReason != "":
		x.Status, x.Disabled, x.DisabledReason, x.Hint = cellDisabled, true, "config", s.DisabledReason
	case refused:
		x.Status, x.DisabledReason, x.ErrorKind = cellError, "budget", errorBudget
		x.Hint = "raise pool.budget, or end sessions that use other servers"
	case x.MCPStatus == mcpConnecting:
		x.Status = cellWarning
	case x.MCPStatus == mcpDisconnected && failed != nil: // one that nobody has wanted yet is fine
		x.Status, x.Hint, x.ErrorKind = cellError, failed.LastError, errorSpawn
		switch failed.LastReason {
		case fault.NeedsLogin:
			x.ErrorKind, x.RequiresAuth = errorAuth, true
		case fault.StartTimeout:
			x.ErrorKind = errorInit
		}
	}
	return x
}

func mcpStatusOf(s pool.State) string {
	switch s {
	case pool.Active, pool.Draining:
		return mcpConnected
	case pool.Spawning, pool.Recovering:
		return mcpConnecting
	}
	return mcpDisconnected
}

// workspaceBudgets has one cell for each limit; without a budget there is none.
func workspaceBudgets(b pool.BudgetInfo) []WorkspaceBudget {
	cells := []WorkspaceBudget{}
	if b.Mode == config.BudgetOff {
		return cells
	}
	processes := 0
	for _, h := range b.Held {
		processes += h.Processes
	}
	add := func(limit string, most, held int) {
		if most == 0 {
			return
		}
		cell := WorkspaceBudget{Kind: "mcp_budget", Scope: "workspace", Limit: limit, Status: cellOK, LiveCount: held, Mode: b.Mode, RefusedCount: len(b.Refused), Budget: most}
		switch {
		case len(b.Refused) > 0:
			cell.Status, cell.ErrorKind, cell.Hint = cellError, errorBudget, "raise pool.budget, or end sessions"
		case held*4 >= most*3:
			cell.Status, cell.Hint = cellWarning, "three quarters of the budget are held"
		}
		cells = append(cells, cell)
	}
	add("servers", b.Servers, len(b.Held))
	add("processes", b.Processes, processes)
	return cells
}
