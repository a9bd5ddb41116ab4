// Package control is roundhouse's own HTTP API: what lives now, and its control.
package control

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/instance"
	"roundhouse/internal/model"
	"roundhouse/internal/pool"
	"roundhouse/internal/process"
	"roundhouse/internal/session"
	"roundhouse/internal/store"
)

// Config says what the API shows.
type Config struct {
	Config    func() *config.Config // the configuration as it is now; required
	Pool      *pool.Pool            // required
	Instances *instance.Pools       // of exclusive servers; nil is none
	Sessions  *session.Manager      // required
	Processes *process.Manager      // whose processes are shown; nil is nobody's
	Events    *event.Feed           // what /api/v1/events tells; nil is nothing
	Store     *store.Store          // what is recorded; nil is nothing
	Models    *model.Models         // whose calls end with their session; required
	Log       *slog.Logger          // nil discards
	Reload    func() Reloaded       // reads the configuration anew; required
	Reloaded  func() *Reloaded      // what came of that last time, nil before the first; required
	Metrics   prometheus.Gatherer   // what /metrics shows; nil is no such route
	Version   string

	KeepAlive     time.Duration // between comments on a silent stream; 0 is 15 s
	WriteDeadline time.Duration // for one write to a stream; 0 is 10 s
}

// Control serves the API. Its handlers may run at any time; CloseStreams ends those
// that follow something before a shutdown.
type Control struct {
	cfg     Config
	started time.Time
	ready   atomic.Bool

	closing context.Context // ends with CloseStreams
	close   context.CancelFunc
}

// New returns the API. Register makes it reachable.
func New(cfg Config) *Control {
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = 15 * time.Second
	}
	if cfg.WriteDeadline == 0 {
		cfg.WriteDeadline = 10 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Control{cfg: cfg, started: time.Now()}
	c.closing, c.close = context.WithCancel(context.Background())
	return c
}

// CloseStreams ends the streams that follow something, and later ones as soon as
// they have sent what there was (G1). It may be called twice.
func (c *Control) CloseStreams() { c.close() }

// SetReady says whether /readyz answers 200.
func (c *Control) SetReady(ready bool) { c.ready.Store(ready) }

// Register adds the routes.
func (c *Control) Register(f *front.Front) {
	f.HandleOpen("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		front.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	f.HandleOpen("GET /readyz", c.readyz)
	f.Handle("GET /api/v1/status", c.status)
	f.Handle("POST /api/v1/reload", c.reload)
	f.Handle("GET /api/v1/servers", c.servers)
	f.Handle("GET /api/v1/servers/{name}", c.server)
	f.Handle("POST /api/v1/servers/{name}/restart", c.restartServer)
	f.Handle("GET /workspace/mcp", c.workspace)
	f.Handle("POST /workspace/mcp/{name}/restart", c.restartWorkspace)
	f.Handle("GET /api/v1/servers/{name}/logs", c.logs)
	f.Handle("GET /api/v1/connections", c.connections)
	f.Handle("GET /api/v1/instances", c.instances)
	f.Handle("GET /api/v1/events", c.events)
	f.Handle("GET /api/v1/sessions", c.sessions)
	f.Handle("POST /api/v1/sessions", c.createSession)
	f.Handle("GET /api/v1/sessions/{id}", c.session)
	f.Handle("PATCH /api/v1/sessions/{id}", c.changeSession)
	f.Handle("DELETE /api/v1/sessions/{id}", c.endSession)
	f.Handle("POST /api/v1/sessions/{id}/servers", c.injectServer)
	f.Handle("DELETE /api/v1/sessions/{id}/servers/{name}", c.removeServer)
	f.Handle("DELETE /api/v1/sessions/{id}/leases/{server}", c.releaseLease)
	f.Handle("GET /api/v1/traces", c.traces)
	f.Handle("GET /api/v1/sessions/{id}/turns", c.turns)
	f.Handle("DELETE /api/v1/sessions/{id}/turns", c.deleteTurns)
	f.Handle("GET /api/v1/sessions/{id}/trajectories", c.trajectories)
	f.Handle("GET /api/v1/sessions/{id}/check", c.check)
	f.Handle("POST /api/v1/sessions/{id}/seal", c.seal)
	f.Handle("GET /api/v1/turns", c.turns)
	f.Handle("GET /api/v1/turns/{turn}", c.turn)
	f.Handle("GET /api/v1/export", c.export)
	f.Handle("POST /api/v1/export", c.export)
	c.registerObservation(f)
	f.DrainExempt("GET /api/v1/status", "GET /api/v1/connections", "GET /api/v1/sessions")
}

func (c *Control) readyz(w http.ResponseWriter, _ *http.Request) {
	if !c.ready.Load() {
		front.WriteError(w, fault.New(fault.Draining, "roundhouse is starting or stopping"))
		return
	}
	front.WriteJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

// Status is the summary of /api/v1/status.
type Status struct {
	Version      string             `json:"version"`
	StartedAt    time.Time          `json:"startedAt"`
	UptimeMs     int64              `json:"uptimeMs"`
	Config       string             `json:"config,omitempty"`
	Capabilities []string           `json:"capabilities"`
	Pooling      bool               `json:"pooling"`
	Servers      int                `json:"servers"`
	Disabled     int                `json:"disabledServers"`
	Connections  map[pool.State]int `json:"connections"`
	session.Stats
	Budget   pool.BudgetInfo  `json:"budget"`
	Problems []config.Problem `json:"problems"`
	Reload   *Reloaded        `json:"reload,omitempty"` // what came of the last one; for admins
}

// capabilities are the tags by which clients of qwen-code's API see what the pool
// can do; they follow the kill switch (K7).
func (c *Control) capabilities() []string {
	if !c.cfg.Config().Pool.Enabled {
		return []string{}
	}
	return []string{"mcp_workspace_pool", "mcp_pool_restart"}
}

func (c *Control) status(w http.ResponseWriter, _ *http.Request, caller front.Caller) {
	cfg := c.cfg.Config()
	st := Status{
		Version: c.cfg.Version, StartedAt: c.started, UptimeMs: time.Since(c.started).Milliseconds(), Capabilities: c.capabilities(),
		Pooling: cfg.Pool.Enabled, Servers: len(cfg.Servers), Connections: map[pool.State]int{}, Stats: c.cfg.Sessions.Stats(), Budget: c.cfg.Pool.Budget(), Problems: []config.Problem{},
	}
	if caller.Admin {
		st.Config = cfg.File
		st.Problems = append(st.Problems, cfg.Problems...)
		st.Reload = c.cfg.Reloaded()
	}
	for _, s := range cfg.Servers {
		if s.DisabledReason != "" {
			st.Disabled++
		}
	}
	for _, i := range c.cfg.Pool.Snapshot() {
		if !i.Dying { // its entry is counted, or has been replaced
			st.Connections[i.State]++
		}
	}
	front.WriteJSON(w, http.StatusOK, st)
}

// Server is one server, configured or injected, as the API shows it: never its command line,
// environment or headers, which may hold secrets.
type Server struct {
	Name           string           `json:"name"`
	Transport      config.Transport `json:"transport"`
	Sharing        config.Sharing   `json:"sharing"`
	Interactive    string           `json:"interactive,omitempty"`
	Description    string           `json:"description,omitempty"`
	Status         string           `json:"status"` // disabled, idle, starting, up, failed
	DisabledReason string           `json:"disabledReason,omitempty"`
	Injected       bool             `json:"injected,omitempty"`  // it was added to one session, and is there for that alone
	Session        string           `json:"session,omitempty"`   // of an injected one
	Principal      string           `json:"principal,omitempty"` // of that session
	Connections    []pool.Info      `json:"connections"`
}

func describe(s *config.Server, all []pool.Info) Server {
	v := Server{
		Name: s.Name, Transport: s.Transport, Sharing: s.Sharing, Interactive: string(s.Interactive), Description: s.Description,
		Status: "idle", DisabledReason: s.DisabledReason, Connections: []pool.Info{},
	}
	for _, i := range all {
		if i.Server == s.Name && i.Injected == s.Injected {
			v.Connections = append(v.Connections, i)
			v.Status = better(v.Status, i.State)
		}
	}
	if s.DisabledReason != "" {
		v.Status = "disabled"
	}
	return v
}

// better is the status that says most about a server with several connections.
func better(old string, s pool.State) string {
	rank := []string{"idle", "failed", "starting", "up"}
	now := "idle"
	switch s {
	case pool.Active, pool.Draining:
		now = "up"
	case pool.Spawning, pool.Recovering:
		now = "starting"
	case pool.Failed:
		now = "failed"
	}
	return rank[max(slices.Index(rank, old), slices.Index(rank, now))]
}

// view reads the process table.
func (c *Control) view() process.View {
	if c.cfg.Processes == nil {
		return process.View{}
	}
	return c.cfg.Processes.View()
}

// snapshot lists the pool's connections as a caller may see them: without the ids of
// other principals' sessions, which are unknown to him (N2). Two principals may have
// sessions of the same id, so what a session of his is attached to decides.
func (c *Control) snapshot(caller front.Caller, view process.View) []pool.Info {
	all := c.cfg.Pool.SnapshotOf(view)
	if caller.Admin {
		return all
	}
	type use struct{ connection, session string }
	mine := map[use]bool{}
	for _, s := range c.cfg.Sessions.List(caller.Principal, false) {
		for _, id := range s.Connections {
			mine[use{id, s.ID}] = true
		}
	}
	for i := range all {
		theirs := func(session string) bool { return !mine[use{all[i].ID, session}] }
		used := len(all[i].Sessions)
		all[i].Sessions = slices.DeleteFunc(all[i].Sessions, theirs)
		all[i].Explain(len(all[i].Sessions) < used)
	}
	return all
}

// withoutProcesses leaves out what only those want who ask for it.
func withoutProcesses(all []pool.Info) []pool.Info {
	for i := range all {
		all[i].Processes = nil
	}
	return all
}

func (c *Control) servers(w http.ResponseWriter, _ *http.Request, caller front.Caller) {
	all := withoutProcesses(c.snapshot(caller, c.view()))
	servers := c.cfg.Config().Servers
	list := make([]Server, 0, len(servers))
	for _, s := range servers {
		list = append(list, describe(s, all))
	}
	for _, x := range c.cfg.Sessions.Injected(caller.Principal, caller.Admin) {
		list = append(list, describeInjected(x, all))
	}
	front.WriteJSON(w, http.StatusOK, map[string]any{"servers": list})
}

// find returns the configured server that the path names.
func (c *Control) find(r *http.Request) (*config.Server, error) {
	name := r.PathValue("name")
	var known []string
	for _, s := range c.cfg.Config().Servers {
		if s.Name == name {
			return s, nil
		}
		known = append(known, s.Name)
	}
	err := fault.New(fault.UnknownServer, "no server is called %q; there are: %s", name, strings.Join(known, ", "))
	err.Server = name
	return nil, err
}

func (c *Control) server(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	s, err := c.find(r)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	front.WriteJSON(w, http.StatusOK, describe(s, withoutProcesses(c.snapshot(caller, c.view()))))
}

var errAdmin = fault.New(fault.Forbidden, "this concerns every principal's sessions and needs a token with \"admin\": true")

func (c *Control) connections(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	processes, err := flag(r, "processes")
	if err != nil {
		front.WriteError(w, err)
		return
	}
	view := c.view()
	list := c.snapshot(caller, view)
	if !processes {
		front.WriteJSON(w, http.StatusOK, map[string]any{"connections": withoutProcesses(list)})
		return
	}
	front.WriteJSON(w, http.StatusOK, c.lives(list, view))
}

// Lives is what lives of a daemon, as /api/v1/connections?processes=true shows it.
type Lives struct {
	Daemon      Daemon         `json:"daemon"`
	Connections []pool.Info    `json:"connections"`
	Others      []OtherProcess `json:"others"` // of no connection
}

// Daemon says which daemon it is whose processes are shown.
type Daemon struct {
	pool.Process
	Version   string    `json:"version"`
	StartedAt time.Time `json:"startedAt"`
}

// OtherProcess is a process of the daemon that belongs to no connection.
type OtherProcess struct {
	pool.Process
	Why string `json:"why"`
}

// lives adds to connections the processes that are no connection's.
func (c *Control) lives(list []pool.Info, view process.View) Lives {
	l := Lives{Daemon: Daemon{Process: pool.ProcessOf(view.Self, pool.RoleDaemon), Version: c.cfg.Version, StartedAt: c.started}, Connections: list, Others: []OtherProcess{}}
	known := map[int]bool{}
	for _, i := range list {
		for _, p := range i.Processes {
			known[p.PID] = true
		}
	}
	other := func(p process.Info, role pool.Role, why string) {
		if !known[p.PID] {
			l.Others = append(l.Others, OtherProcess{pool.ProcessOf(p, role), why})
		}
	}
	for _, tree := range view.Trees {
		const why = "a server whose connection is about to be made, or has just been closed"
		if tree.Reaper != nil {
			other(*tree.Reaper, pool.RoleReaper, why)
		}
		for _, p := range tree.Members {
			other(p, pool.RoleChild, why)
		}
	}
	for _, p := range view.Others {
		other(p, pool.RoleChild, "a server that is being started, or what a start that failed has left")
	}
	slices.SortFunc(l.Others, func(a, b OtherProcess) int { return cmp.Compare(a.PID, b.PID) })
	return l
}

// flag reads a member of the query that is true or false; false if it is not there.
func flag(r *http.Request, name string) (bool, error) {
	q := r.URL.Query().Get(name)
	if q == "" {
		return false, nil
	}
	v, err := strconv.ParseBool(q)
	if err != nil {
		return false, fault.New(fault.BadRequest, "%s must be true or false", name)
	}
	return v, nil
}
