package session

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/pool"
)

// Info describes a session at one moment (N7).
type Info struct {
	ID           string          `json:"id"`
	Principal    string          `json:"principal"`
	State        State           `json:"state"`
	Named        bool            `json:"named"`       // it is no client's alone
	Incarnation  int             `json:"incarnation"` // 1 for the first life of the id
	Kind         string          `json:"kind,omitempty"`
	Metadata     json.RawMessage `json:"metadata,omitempty"`
	Limits       *LimitsInfo     `json:"limits,omitempty"` // of one that lives
	Workspace    string          `json:"workspace,omitempty"`
	CreatedAt    time.Time       `json:"createdAt"`
	LastActivity time.Time       `json:"lastActivityAt"`
	InFlight     int             `json:"inFlight"`
	Tasks        []TaskInfo      `json:"tasks"` // that run, oldest first
	Calls        int64           `json:"calls"`
	Streams      int             `json:"streams"`
	Clients      []ClientInfo    `json:"clients"`
	Connections  []string        `json:"connections"` // ids of those it is attached to
	// Tools is the session's own filter, nil if it has none.
	Tools    *Tools        `json:"tools,omitempty"`
	Leases   []LeaseInfo   `json:"leases"`
	Injected []string      `json:"injected,omitempty"` // names of the servers that were added to it
	Cleanups []CleanupInfo `json:"cleanups"`           // the last ones
	// RestoredAt is when a daemon found it in the store, and went on with it; Lost is what
	// it had then and has no more (N6).
	RestoredAt *time.Time `json:"restoredAt,omitempty"`
	Lost       []Loss     `json:"lost,omitempty"`
	Ended      string     `json:"ended,omitempty"` // why it is closed

	// What follows others know, who add it.

	Turns  int    `json:"turns"`            // recorded model calls that are whole
	Sealed bool   `json:"sealed,omitempty"` // its recording is, and its id is not given again
	Usage  *Usage `json:"usage,omitempty"`  // nil if it is attached to nothing
}

// Usage is what the processes use that a session's connections have (N7); Linux only,
// else 0.
type Usage struct {
	CPUMs    int64         `json:"cpuMs"`    // of the connections that the session has for itself, instances among them
	RSSBytes int64         `json:"rssBytes"` // of the same
	Shared   []SharedUsage `json:"shared"`   // of those that it shares
}

// SharedUsage is what a connection uses in all, of which nobody knows a session's part.
type SharedUsage struct {
	Connection string `json:"connection"`
	Server     string `json:"server"`
	Sessions   int    `json:"sessions"` // that share it
	CPUMs      int64  `json:"cpuMs"`
	RSSBytes   int64  `json:"rssBytes"`
}

// AddUsage adds to sessions what their connections use, which are among those.
func AddUsage(list []Info, connections []pool.Info) {
	byID := map[string]pool.Info{}
	for _, c := range connections {
		if !c.Dying {
			byID[c.ID] = c
		}
	}
	for i := range list {
		if len(list[i].Connections) == 0 {
			continue
		}
		u := &Usage{Shared: []SharedUsage{}}
		for _, id := range list[i].Connections {
			c, ok := byID[id]
			if !ok {
				continue // it has come or gone meanwhile
			}
			var cpu, rss int64
			for _, p := range c.Processes {
				cpu, rss = cpu+p.CPUMs, rss+p.RSSBytes
			}
			if c.Sharing == "shared" {
				u.Shared = append(u.Shared, SharedUsage{Connection: id, Server: c.Server, Sessions: len(c.Sessions), CPUMs: cpu, RSSBytes: rss})
				continue
			}
			u.CPUMs, u.RSSBytes = u.CPUMs+cpu, u.RSSBytes+rss
		}
		list[i].Usage = u
	}
}

// LimitsInfo is what holds for a session, as a configuration says it; "0s" is no limit.
type LimitsInfo struct {
	IdleTimeout string `json:"idleTimeout"`
	ExpireAfter string `json:"expireAfter"`
	MaxLifetime string `json:"maxLifetime"`
	MaxTasks    int    `json:"maxTasks"`
}

func limitsInfo(l config.SessionLimits) *LimitsInfo {
	return &LimitsInfo{l.IdleTimeout.String(), l.ExpireAfter.String(), l.MaxLifetime.String(), l.MaxTasks}
}

// ClientInfo describes a client.
type ClientInfo struct {
	ID        string    `json:"id"`
	Name      string    `json:"name,omitempty"`
	Server    string    `json:"server,omitempty"` // "" is the aggregate
	Version   string    `json:"protocolVersion"`
	CreatedAt time.Time `json:"createdAt"`
}

// List describes the sessions of a principal, or with admin all of them, oldest
// first. It blocks nothing.
func (m *Manager) List(principal string, admin bool) []Info {
	m.mu.Lock()
	var infos []Info
	var bindings [][]*binding
	for _, s := range m.sessions {
		if s.principal == principal || admin {
			infos = append(infos, s.infoLocked())
			bindings = append(bindings, slices.Clone(s.order))
		}
	}
	m.mu.Unlock()
	for i, list := range bindings {
		for _, b := range list {
			infos[i].uses(b)
		}
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return infos
}

// Get describes one session; the error for another principal's is the one for none.
func (m *Manager) Get(principal string, admin bool, id string) (Info, error) {
	m.mu.Lock()
	s := m.findLocked(principal, admin, id)
	if s == nil {
		m.mu.Unlock()
		return Info{}, unknownSession(id)
	}
	info := s.infoLocked()
	order := slices.Clone(s.order)
	m.mu.Unlock()
	for _, b := range order {
		info.uses(b)
	}
	return info, nil
}

// uses adds what a binding is attached to.
func (i *Info) uses(b *binding) {
	i.Connections = append(i.Connections, b.connections()...)
	i.Leases = append(i.Leases, b.leased()...)
}

func (s *Session) infoLocked() Info {
	i := Info{
		ID: s.id, Principal: s.principal, State: s.state, Named: !s.minted, Workspace: s.workspace, CreatedAt: s.created,
		LastActivity: s.lastActivity, InFlight: s.inFlight, Tasks: s.taskInfosLocked(), Calls: s.calls, Streams: s.streams, Clients: []ClientInfo{}, Connections: []string{},
		Tools:  s.tools.Load(),
		Leases: []LeaseInfo{}, Cleanups: append([]CleanupInfo{}, s.cleanups...),
		Incarnation: s.incarnation, Kind: s.kind, Metadata: s.metadata, Limits: limitsInfo(s.limits()), Lost: slices.Clone(s.lost),
	}
	if !s.restored.IsZero() {
		i.RestoredAt = &s.restored
	}
	for _, server := range s.injected {
		i.Injected = append(i.Injected, server.Name)
	}
	for c := range s.clients {
		if c.parent != nil {
			continue
		}
		i.Clients = append(i.Clients, ClientInfo{ID: c.id, Name: c.info, Server: c.scope, Version: c.Version(), CreatedAt: c.created})
	}
	slices.SortFunc(i.Clients, func(a, b ClientInfo) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return i
}

// Stats are totals of the manager.
type Stats struct {
	Sessions map[State]int     `json:"sessions"`
	Clients  int               `json:"clients"`
	InFlight int               `json:"inFlight"`
	Tasks    int               `json:"tasks"`
	Max      int               `json:"max"`
	Evicted  int64             `json:"evicted"`  // ended to make room (N2)
	Unsaved  int               `json:"unsaved"`  // changed since they were stored (N6); more than a moment says that the store fails
	Cleanups map[Outcome]int64 `json:"cleanups"` // so far, by how they went (N5)
}

// Stats counts what there is now.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	st := Stats{Sessions: map[State]int{Active: 0, Dormant: 0, Draining: 0}, Clients: len(m.clients), Max: m.live.Load().Limits.Max, Evicted: m.evicted, Unsaved: len(m.unsaved), Cleanups: maps.Clone(m.cleanups)}
	for s := range m.saving { // of which a store that hangs is never done
		if !m.unsaved[s] {
			st.Unsaved++
		}
	}
	for _, s := range m.sessions {
		st.Sessions[s.state]++
		st.InFlight += s.inFlight
		st.Tasks += len(s.tasks)
	}
	return st
}
