package session

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/store"
	"roundhouse/internal/wire"
)

// Loss is something that a session had when the daemon ended, and that did not outlive it
// (N6).
type Loss struct {
	Server   string     `json:"server"`
	Instance string     `json:"instance,omitempty"` // that the session had of an exclusive server; "" if the server was added to the session
	Since    *time.Time `json:"since,omitempty"`    // when the instance was lent
	At       time.Time  `json:"at"`                 // when the next daemon found it lost
	Told     bool       `json:"told"`               // a result has said so
}

var errOrphaned = fault.New(fault.UnknownSession, "the session's client did not come back after a restart")

// Restore brings back the sessions that the store has from earlier daemons, and stores what
// changes from now on. Their clients go on where they were: with the next request, which
// attaches to what it needs. streams gives a client its Stream. It is called once, before
// there is any session.
func (m *Manager) Restore(ctx context.Context, streams func(*Client) Stream) error {
	if m.cfg.Store == nil {
		return nil
	}
	var rows, over []store.Session
	for row, err := range m.cfg.Store.Sessions(ctx, store.SessionFilter{States: []string{string(Active), string(Dormant), string(Draining)}}) {
		if err != nil {
			return fmt.Errorf("read the stored sessions: %w", err)
		}
		if row.State == string(Draining) {
			over = append(over, row)
		} else {
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b store.Session) int { return b.LastActivity.Compare(a.LastActivity) })
	if most := m.live.Load().Limits.Max; most > 0 && len(rows) > most {
		rows, over = rows[:most], append(over, rows[most:]...)
	}
	accounts := make([]account, 0, len(rows))
	rows = slices.DeleteFunc(rows, func(row store.Session) bool {
		a, err := accountOf(row)
		if err != nil {
			m.cfg.Log.Error("a stored session cannot be restored", "session", row.ID, "principal", row.Principal, "err", err)
			row.Clients = nil
			over = append(over, row)
			return true
		}
		accounts = append(accounts, a)
		return false
	})
	for i := range over {
		over[i].State = string(Closed)
	}
	if err := m.cfg.Store.SaveSession(ctx, over...); err != nil {
		return fmt.Errorf("close stored sessions: %w", err)
	}
	m.mu.Lock()
	for i, row := range rows {
		m.restoreLocked(row, accounts[i], streams)
	}
	clients := slices.Collect(maps.Values(m.clients))
	m.mu.Unlock()
	for _, c := range clients {
		c.listsChanged() // the configuration, and the servers, may be others than before
	}
	if len(rows) > 0 {
		m.cfg.Log.Info("sessions restored", "sessions", len(rows), "clients", len(clients))
	}
	m.keeping.Go(m.keep)
	return nil
}

// restoreLocked makes a dormant session of what is stored.
func (m *Manager) restoreLocked(row store.Session, a account, streams func(*Client) Stream) {
	s := newSession(m, key{row.Principal, row.ID})
	s.incarnation, s.kind, s.metadata, s.workspace, s.created = row.Incarnation, row.Kind, row.Metadata, row.Workspace, row.Created
	s.state, s.lastActivity, s.restored, s.kept = Dormant, row.LastActivity, time.Now(), true
	s.minted, s.unclaimed, s.calls, s.cleanups, s.lost = a.Minted, a.Unclaimed, a.Calls, a.Cleanups, a.Lost
	if a.Limits != nil {
		s.ownLimits = *a.Limits
	}
	s.tools.Store(a.Tools)
	for _, told := range a.Clients {
		c := s.restoreClient(told)
		c.stream = streams(c)
		s.clients[c] = struct{}{}
		m.clients[c.id] = c
	}
	if s.minted && len(s.clients) == 0 {
		s.orphaned = s.restored.Add(orphanGrace)
	}
	m.sessions[key{s.principal, s.id}] = s
	for _, l := range a.Leases {
		s.lost = append(s.lost, Loss{Server: l.Server, Instance: l.Instance, Since: &l.Since, At: s.restored})
	}
	for _, name := range a.Injected {
		s.lost = append(s.lost, Loss{Server: name, At: s.restored})
	}
	s.lost = s.lost[max(0, len(s.lost)-lossesKept):]
	if text := noticeOf(s.lost); text != "" {
		s.notice.Store(&text)
	}
	s.armLocked(s.lastActivity)
	s.changedLocked()
}

// restoreClient makes a client of what is stored.
func (s *Session) restoreClient(a clientAccount) *Client {
	c := &Client{
		id: a.ID, session: s, scope: a.Scope, capabilities: a.Capabilities, shareable: a.Shareable, info: a.Name, clientInfo: a.Info,
		created: a.Created, calls: map[string]*call{}, lasting: true, told: a.Servers,
		// A late answer to what an earlier daemon asked must not be taken for another.
		asks: uint64(time.Now().UnixMicro()),
	}
	c.headless.Store(true)
	c.version.Store(&a.Version)
	return c
}

func accountOf(row store.Session) (a account, err error) {
	if len(row.Clients) == 0 {
		return a, nil
	}
	if err := json.Unmarshal(row.Clients, &a); err != nil {
		return a, fmt.Errorf("read what is stored of it: %w", err)
	}
	return a, nil
}

// noticeOf is what a result says of losses that no result has told yet; "" is nothing.
func noticeOf(lost []Loss) string {
	var instances, injected []string
	for _, l := range lost {
		switch {
		case l.Told:
		case l.Instance != "":
			instances = append(instances, l.Server)
		default:
			injected = append(injected, l.Server)
		}
	}
	var parts []string
	if len(instances) > 0 {
		parts = append(parts, fmt.Sprintf("the instance of %s that this session used is gone with all that was done there; calls to it get a new one, on which you must begin anew", strings.Join(instances, ", ")))
	}
	if len(injected) > 0 {
		parts = append(parts, fmt.Sprintf("the server %s, which was added to this session, is not stored, and must be added again", strings.Join(injected, ", ")))
	}
	if parts == nil {
		return ""
	}
	return "roundhouse was restarted: " + strings.Join(parts, "; ")
}

// takeNotice returns what the result of the next tool call is to say of a restart, once.
func (s *Session) takeNotice() string {
	if s.notice.Load() == nil { // nearly always
		return ""
	}
	if text := s.notice.Swap(nil); text != nil {
		return *text
	}
	return ""
}

// told notes that a result has said what was lost, or with ok unset that it could not.
func (s *Session) told(notice string, ok bool) {
	if !ok {
		s.notice.CompareAndSwap(nil, &notice)
		return
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.lost = slices.Clone(s.lost)
	for i := range s.lost {
		s.lost[i].Told = true
	}
	s.changedLocked()
}

// Headless reports whether the client, which was restored, is to Recall the header of its
// next request.
func (c *Client) Headless() bool { return c.headless.Load() }

// Recall lets a client that was restored look into the header of its first request for
// what servers want forwarded of it, which is not stored (K1).
func (c *Client) Recall(header func(name string) []string) {
	c.recall.Do(func() {
		c.keepHeader(header)
		c.headless.Store(false)
	})
}

// account describes what the client has told the server.
func (p *peer) account() serverAccount {
	p.mu.Lock()
	defer p.mu.Unlock()
	return serverAccount{Level: slices.Clone(p.level), URIs: maps.Clone(p.uris)}
}

// recall takes over what the client has told the server while an earlier daemon ran. It
// reports whether there is something.
func (p *peer) recall() bool {
	c := p.c
	c.mu.Lock()
	told, ok := c.told[p.b.name]
	if ok {
		c.told = maps.Clone(c.told)
		delete(c.told, p.b.name)
	}
	c.mu.Unlock()
	if !ok {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uris = told.URIs
	if told.Level != nil {
		if f, r, err := newRequest([]byte("0"), wire.LoggingSetLevel, told.Level); err == nil {
			p.level, p.logs = told.Level, slices.Clone(r.Level.Of(f.Raw))
		}
	}
	return true
}

// Stored describes a session of which only the store knows: so it is over, also if that is
// not stored yet.
func Stored(row store.Session) (Info, error) {
	a, err := accountOf(row)
	if err != nil {
		return Info{}, err
	}
	state := Closed
	if row.State == "" {
		state = Recorded
	}
	i := Info{
		ID: row.ID, Principal: row.Principal, State: state, Named: !a.Minted, Kind: row.Kind, Metadata: row.Metadata,
		Incarnation: row.Incarnation, Workspace: row.Workspace, CreatedAt: row.Created, LastActivity: row.LastActivity, Calls: a.Calls, Tools: a.Tools,
		Tasks: []TaskInfo{}, Clients: []ClientInfo{}, Connections: []string{}, Leases: []LeaseInfo{}, Cleanups: append([]CleanupInfo{}, a.Cleanups...),
		Lost: a.Lost, Ended: a.Ended,
	}
	if !a.Restored.IsZero() {
		i.RestoredAt = &a.Restored
	}
	return i, nil
}
