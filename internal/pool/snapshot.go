package pool

import (
	"cmp"
	"slices"
	"time"
)

// Info describes an entry at one moment.
type Info struct {
	ID          string     `json:"id"`
	Server      string     `json:"server"`
	EntryIndex  int        `json:"entryIndex"`
	State       State      `json:"state"`
	Dying       bool       `json:"dying,omitempty"` // ended, but its processes may still live
	Sharing     string     `json:"sharing"`         // shared or session
	Generation  uint64     `json:"generation"`
	Refs        int        `json:"refs"`
	Sessions    []string   `json:"sessions"`
	InFlight    int        `json:"inFlight"`
	PID         int        `json:"pid,omitempty"`
	Descendants int        `json:"descendants,omitempty"` // live processes below PID
	Processes   []Process  `json:"processes,omitempty"`   // those that live, parents before children
	StartedAt   *time.Time `json:"startedAt,omitempty"`
	UptimeMs    int64      `json:"uptimeMs,omitempty"`
	LastError   string     `json:"lastError,omitempty"`
	Exit        string     `json:"exit,omitempty"`
	LastOutput  []string   `json:"lastOutput,omitempty"` // of one that failed or recovers: its last lines beside the protocol
	Circuit     *Circuit   `json:"circuit,omitempty"`    // of a server that failed lately
	Noise       int64      `json:"noise"`
	Strays      int64      `json:"strays"`
	Serial      bool       `json:"serial,omitempty"` // runs one client's calls at a time
	Protocol    string     `json:"protocolVersion,omitempty"`
	Tools       int        `json:"tools"`
	Prompts     int        `json:"prompts"`
	Resources   int        `json:"resources"`
	Templates   int        `json:"resourceTemplates"`
}

// Process is one live process of a connection.
type Process struct {
	PID      int    `json:"pid"`
	PPID     int    `json:"ppid"`
	Name     string `json:"name"`
	CPUMs    int64  `json:"cpuMs"`    // that it has run; Linux only, else 0
	RSSBytes int64  `json:"rssBytes"` // of resident memory; Linux only, else 0
}

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
// blocks nothing.
func (p *Pool) Snapshot() []Info {
	type part struct {
		info Info
		conn *connection
	}
	var parts []part
	p.mu.Lock()
	for _, e := range p.entries {
		parts = append(parts, part{p.infoLocked(e), e.conn.Load()})
	}
	for c, e := range p.dying {
		info := p.infoLocked(e)
		info.Dying = true
		if !e.state.terminal() { // a restart: the entry itself is listed too
			info.State, info.Refs, info.Sessions = Closed, 0, []string{}
		}
		info.Generation = c.generation
		parts = append(parts, part{info, c})
	}
	p.mu.Unlock()
	infos := make([]Info, 0, len(parts))
	for _, x := range parts {
		if x.conn != nil {
			x.conn.describe(&x.info)
		}
		infos = append(infos, x.info)
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.EntryIndex, b.EntryIndex), cmp.Compare(a.Generation, b.Generation))
	})
	return infos
}

func (p *Pool) infoLocked(e *entry) Info {
	i := Info{ID: e.id, Server: e.name, EntryIndex: e.index, State: e.state, Sharing: "shared", Generation: e.generation, Refs: len(e.atts), Sessions: []string{}, Exit: e.exit}
	if e.owner != nil {
		i.Sharing = "session"
	}
	for a := range e.atts {
		i.Sessions = append(i.Sessions, a.holder.session)
	}
	slices.Sort(i.Sessions)
	if e.err != nil && (e.state == Failed || e.state == Recovering) {
		i.LastError = e.err.Error()
		i.LastOutput = e.output[max(0, len(e.output)-quotedOutput):]
	}
	i.Circuit = p.circuitLocked(e.identity, e.owner, e.name).describe(p.cfg.Circuit, time.Now())
	return i
}

func (c *connection) describe(i *Info) {
	f := c.link.Facts()
	i.PID, i.Descendants, i.Noise, i.Strays = f.PID, max(0, len(f.Processes)-1), c.noise.Load(), c.mux.Strays()
	for _, x := range f.Processes {
		i.Processes = append(i.Processes, Process{PID: x.PID, PPID: x.PPID, Name: x.Name, CPUMs: x.CPU.Milliseconds(), RSSBytes: x.RSS})
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
