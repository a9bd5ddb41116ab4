package pool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/process"
)

// Info describes an entry at one moment.
type Info struct {
	ID          string       `json:"id"`
	Server      string       `json:"server"`
	EntryIndex  int          `json:"entryIndex"`
	State       State        `json:"state"`
	Dying       bool         `json:"dying,omitempty"`    // ended, but its processes may still live
	Since       time.Time    `json:"since"`              // when it came into its state, or began to die
	DueAt       *time.Time   `json:"dueAt,omitempty"`    // when that ends: a drain, the wait for an attempt, the time a failure is shown
	Why         string       `json:"why"`                // why it is still there, for people
	Sharing     string       `json:"sharing"`            // shared, session or exclusive
	Injected    bool         `json:"injected,omitempty"` // its server was added to the session that holds it
	Generation  uint64       `json:"generation"`
	Refs        int          `json:"refs"`
	Sessions    []string     `json:"sessions"`
	Waiters     int          `json:"waiters,omitempty"` // requests that wait for the connection
	InFlight    int          `json:"inFlight"`
	PID         int          `json:"pid,omitempty"`
	Descendants int          `json:"descendants,omitempty"` // live processes of the server beside PID
	Processes   []Process    `json:"processes,omitempty"`   // those that live, parents before children
	StartedAt   *time.Time   `json:"startedAt,omitempty"`
	UptimeMs    int64        `json:"uptimeMs,omitempty"`
	LastError   string       `json:"lastError,omitempty"`
	LastReason  fault.Reason `json:"lastReason,omitempty"` // of LastError
	Exit        string       `json:"exit,omitempty"`
	LastOutput  []string     `json:"lastOutput,omitempty"` // of one that failed or recovers: its last lines beside the protocol
	Circuit     *Circuit     `json:"circuit,omitempty"`    // of a server that failed lately
	Noise       int64        `json:"noise"`
	Strays      int64        `json:"strays"`
	Serial      bool         `json:"serial,omitempty"` // runs one client's calls at a time
	Protocol    string       `json:"protocolVersion,omitempty"`
	Tools       int          `json:"tools"`
	Prompts     int          `json:"prompts"`
	Resources   int          `json:"resources"`
	Templates   int          `json:"resourceTemplates"`
}

// Process is one live process of a connection.
type Process struct {
	PID      int    `json:"pid"`
	PPID     int    `json:"ppid"`
	Role     Role   `json:"role"`
	Name     string `json:"name"`
	CPUMs    int64  `json:"cpuMs"`    // that it has run; Linux only, else 0
	RSSBytes int64  `json:"rssBytes"` // of resident memory; Linux only, else 0
}

// Role is what a process is to its connection.
type Role string

// The roles.
const (
	RoleDaemon Role = "daemon" // roundhouse itself
	RoleReaper Role = "reaper" // roundhouse's own, which ends the server's tree
	RoleServer Role = "server"
	RoleChild  Role = "child" // a descendant of the server
)

// Live counts the connections that are up or on their way. Unlike Snapshot it reads no
// process table.
func (p *Pool) Live() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, e := range p.entries {
		if !e.state.terminal() {
			n++
		}
	}
	return n
}

// Snapshot lists every entry, failed and dying ones too, by server and index. It
// blocks nothing, and knows nothing of processes but the servers' own.
func (p *Pool) Snapshot() []Info { return p.SnapshotOf(process.View{}) }

// SnapshotOf is Snapshot with the processes of a view.
func (p *Pool) SnapshotOf(view process.View) []Info {
	type part struct {
		info Info
		conn *connection
	}
	var parts []part
	p.mu.Lock()
	opening := map[*entry]*connection{}
	for c, e := range p.opening {
		if e.state.terminal() || c.generation != e.generation {
			parts = append(parts, part{p.endingLocked(e, c, e.changed), c}) // its dial was given up
		} else {
			opening[e] = c
		}
	}
	for _, e := range p.entries {
		parts = append(parts, part{p.infoLocked(e), cmp.Or(e.conn.Load(), opening[e])})
	}
	for c, e := range p.dying {
		parts = append(parts, part{p.endingLocked(e, c, c.ended), c})
	}
	p.mu.Unlock()
	infos := make([]Info, 0, len(parts))
	for _, x := range parts {
		if x.conn != nil {
			x.conn.describe(&x.info, view)
		}
		x.info.Explain(false)
		infos = append(infos, x.info)
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.EntryIndex, b.EntryIndex), cmp.Compare(a.Generation, b.Generation))
	})
	return infos
}

// endingLocked describes a connection of an entry that ends since then.
func (p *Pool) endingLocked(e *entry, c *connection, since time.Time) Info {
	i := p.infoLocked(e)
	i.Dying, i.Generation, i.Since, i.DueAt, i.Waiters = true, c.generation, since, nil, 0
	if !e.state.terminal() { // a restart: the entry itself is listed too
		i.State, i.Refs, i.Sessions = Closed, 0, []string{}
	}
	return i
}

func (p *Pool) infoLocked(e *entry) Info {
	i := Info{Since: e.changed, Waiters: e.waiters, ID: e.id, Server: e.name, EntryIndex: e.index, State: e.state, Sharing: "shared", Injected: e.server.Injected, Generation: e.generation, Refs: len(e.atts), Sessions: []string{}, Exit: e.exit}
	if e.owner != nil {
		i.Sharing = "session"
	}
	if e.server.Sharing == config.Exclusive {
		i.Sharing = "exclusive"
	}
	for a := range e.atts {
		if a.holder.session == "" {
			i.Refs-- // it only keeps the instance
			continue
		}
		i.Sessions = append(i.Sessions, a.holder.session)
	}
	slices.Sort(i.Sessions)
	i.Sessions = slices.Compact(i.Sessions)
	if e.timer != nil {
		i.DueAt = new(e.due)
	}
	if e.err != nil && (e.state == Failed || e.state == Recovering) {
		i.LastError, i.LastReason = e.err.Error(), fault.Of(e.err).Reason
		i.LastOutput = e.output[max(0, len(e.output)-quotedOutput):]
	}
	i.Circuit = p.circuitLocked(e.identity, e.owner, e.name).describe(p.cfg.Circuit, time.Now())
	return i
}

// Explain says in Why what the other members say of why the connection is there. hidden
// is whether sessions use it that are not listed.
func (i *Info) Explain(hidden bool) {
	ago := time.Since(i.Since).Round(time.Second)
	in := func() string { return max(0, time.Until(*i.DueAt)).Round(time.Second).String() }
	switch {
	case i.Dying:
		i.Why = fmt.Sprintf("it ends; what is left of its processes is being ended for %s", ago)
	case i.State == Spawning:
		i.Why = fmt.Sprintf("it is being started for %s", ago)
	case i.State == Recovering && i.DueAt != nil:
		i.Why = fmt.Sprintf("it was lost; the next attempt to start it begins in %s", in())
	case i.State == Recovering:
		i.Why = fmt.Sprintf("it is being started anew for %s", ago)
	case i.State == Draining && i.DueAt != nil:
		i.Why = fmt.Sprintf("no session uses it; it ends in %s unless one comes", in())
	case i.State == Failed:
		i.Why = "it has failed, and is shown until it is wanted again"
	case i.Refs == 0 && i.Waiters > 0:
		i.Why = "a request waits for it"
	case i.Refs == 0 && i.Sharing == "exclusive":
		i.Why = "it is an instance that no session has"
	case i.Refs == 0:
		i.Why = "no session uses it, and it is about to drain"
	case len(i.Sessions) == 0:
		i.Why = "sessions of other principals use it"
	case hidden:
		i.Why = fmt.Sprintf("used by the sessions %s and those of other principals", strings.Join(i.Sessions, ", "))
	case len(i.Sessions) == 1:
		i.Why = fmt.Sprintf("used by the session %s", i.Sessions[0])
	default:
		i.Why = fmt.Sprintf("used by the sessions %s", strings.Join(i.Sessions, ", "))
	}
}

// ProcessOf describes a process of a view.
func ProcessOf(x process.Info, role Role) Process {
	return Process{PID: x.PID, PPID: x.PPID, Role: role, Name: x.Name, CPUMs: x.CPU.Milliseconds(), RSSBytes: x.RSS}
}

// describe adds what the connection knows.
func (c *connection) describe(i *Info, view process.View) {
	f := c.link.Facts()
	i.PID, i.Noise, i.Strays = f.PID, c.noise.Load(), c.mux.Strays()
	tree := view.Trees[f.Process]
	if tree.Reaper != nil {
		i.Processes = append(i.Processes, ProcessOf(*tree.Reaper, RoleReaper))
	}
	for _, x := range tree.Members {
		role := RoleChild
		if x.PID == f.PID {
			role = RoleServer
		} else {
			i.Descendants++
		}
		i.Processes = append(i.Processes, ProcessOf(x, role))
	}
	if !f.Started.IsZero() {
		i.StartedAt, i.UptimeMs = &f.Started, time.Since(f.Started).Milliseconds()
	}
	if f.Exit != "" {
		i.Exit = f.Exit
	}
	i.InFlight, i.Serial = c.mux.InFlight(), c.mux.Serial()
	select {
	case <-c.opened:
		i.Protocol = c.hand.Version
	default:
		return
	}
	count := func(k Kind) int {
		if l := c.cat.peek(k); l != nil {
			return len(l.Items)
		}
		return 0
	}
	i.Tools, i.Prompts, i.Resources, i.Templates = count(Tools), count(Prompts), count(Resources), count(Templates)
}

// Output returns the last lines that the connections of a server wrote beside the
// protocol, by connection id; of one that failed or is dying, what it wrote before.
func (p *Pool) Output(name string, lines int) map[string][]string {
	p.mu.Lock()
	conns := map[string]*connection{}
	out := map[string][]string{}
	for _, e := range p.entries {
		if e.name != name {
			continue
		}
		if c := e.conn.Load(); c != nil {
			conns[e.id] = c
		} else {
			out[e.id] = e.output[max(0, len(e.output)-lines):]
		}
	}
	for c, e := range p.dying {
		if later := conns[e.id]; e.name == name && (later == nil || later.generation < c.generation) {
			conns[e.id] = c
		}
	}
	p.mu.Unlock()
	for id, c := range conns {
		out[id] = c.link.Output(lines)
	}
	return out
}
