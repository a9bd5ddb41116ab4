package session

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/store"
)

// Sessions are kept in the store, so that they outlive the daemon (N6). What changes one
// only marks it; one goroutine writes all that are marked together, and what is marked
// meanwhile goes with the next transaction. The times of last activity, which change with
// each request, mark nothing: they are looked through now and then.

const (
	keepLazily  = 30 * time.Second // between two looks at what was active
	keepTidily  = time.Hour        // between two looks at what is closed
	keepRetry   = time.Second      // after a failure
	keepWait    = 2 * time.Second  // how long an answer waits until what it tells of is stored
	maxDrafts   = 100              // sessions of one write
	closedKept  = 24 * time.Hour   // how long a closed session can be looked at of which nothing is recorded
	closedMost  = 10000            // such sessions
	leavingMost = 2000             // ends that wait while the store fails; further ones are not stored, and a restart finds those sessions asleep
	lossesKept  = 32               // in a session's description
	maxAccount  = 1 << 20          // bytes of JSON; a session with more is stored without its clients
	orphanGrace = 5 * time.Minute  // how long a session that nobody named waits for its shim after a restart
)

// account is what is stored of a session beside the columns that others read, too. It holds
// no fingerprints, no forwarded headers and nothing of an injected server but its name.
type account struct {
	Minted    bool                  `json:"minted,omitempty"`
	Unclaimed bool                  `json:"unclaimed,omitempty"`
	Limits    *config.SessionLimits `json:"limits,omitempty"`
	Tools     *Tools                `json:"tools,omitempty"`
	Calls     int64                 `json:"calls,omitempty"`
	Clients   []clientAccount       `json:"clients,omitempty"`
	Leases    []leaseAccount        `json:"leases,omitempty"`
	Injected  []string              `json:"injected,omitempty"`
	Cleanups  []CleanupInfo         `json:"cleanups,omitempty"`
	Lost      []Loss                `json:"lost,omitempty"`
	Restored  time.Time             `json:"restored,omitzero"`
	Ended     string                `json:"ended,omitempty"` // why
}

// clientAccount is what is stored of a client: its handshake, and what it has told servers.
type clientAccount struct {
	ID           string                   `json:"id"`
	Scope        string                   `json:"server,omitempty"`
	Version      string                   `json:"version"`
	Capabilities json.RawMessage          `json:"capabilities"`
	Shareable    json.RawMessage          `json:"shareable"` // Client.shareable
	Name         string                   `json:"name,omitempty"`
	Info         json.RawMessage          `json:"info,omitempty"`
	Created      time.Time                `json:"created"`
	Servers      map[string]serverAccount `json:"servers,omitempty"`
}

// serverAccount is what a client has told a server, and a new connection is told again.
type serverAccount struct {
	Level json.RawMessage   `json:"level,omitempty"` // params of logging/setLevel
	URIs  map[string]string `json:"uris,omitempty"`  // subscribed to, each with the client's name of it
}

type leaseAccount struct {
	Server   string    `json:"server"`
	Instance string    `json:"instance"`
	Since    time.Time `json:"since"`
}

// changedLocked has the session stored soon, if it is one to be kept.
func (s *Session) changedLocked() {
	m := s.m
	if !s.kept || s.state == Closed || m.cfg.Store == nil {
		return
	}
	m.unsaved[s] = true
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// changed is changedLocked without the lock.
func (s *Session) changed() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.changedLocked()
}

// settle waits until what has changed of a session is stored, so that no crash takes from a
// client what it was told of: its session, or an instance that is lent to it (N6). It
// returns false if the store failed, has not answered within that time, or is not written
// to any more because roundhouse ends.
func (s *Session) settle(ctx context.Context, within time.Duration) (stored bool) {
	m := s.m
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for first := true; ; first = false {
		m.mu.Lock()
		waits, failed, wrote := m.unsaved[s] || m.saving[s], m.failing && !first, m.wrote
		m.mu.Unlock()
		if !waits || failed {
			return !waits
		}
		select {
		case <-wrote:
		case <-ctx.Done():
			return false
		case <-m.storing.Done():
			return false
		}
	}
}

// keep writes what changes, until Shutdown.
func (m *Manager) keep() {
	lazily, tidily := time.NewTicker(keepLazily), time.NewTicker(keepTidily)
	defer lazily.Stop()
	defer tidily.Stop()
	var again <-chan time.Time // after a failure
	var trouble store.Trouble
	save := func() {
		again = nil
		err := m.saveAll(m.storing)
		switch {
		case m.storing.Err() != nil: // Shutdown stores what is left
		case err != nil:
			trouble.Note(m.cfg.Log.Error, "sessions could not be stored; this is tried again", "err", err)
			again = time.After(keepRetry)
		default:
			trouble.Over(m.cfg.Log.Info, "sessions are stored again")
		}
	}
	m.forget(m.storing)
	for {
		select {
		case <-m.wake:
			save()
		case <-again:
			save()
		case <-lazily.C:
			m.markMoved()
			save()
		case <-tidily.C:
			m.forget(m.storing)
		case <-m.storing.Done():
			return
		}
	}
}

// markMoved marks the sessions that were active since they were stored.
func (m *Manager) markMoved() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sessions {
		if !s.saved.Equal(s.lastActivity) {
			s.changedLocked()
		}
	}
}

// forget removes what is stored of sessions that ended long ago.
func (m *Manager) forget(ctx context.Context) {
	if _, err := m.cfg.Store.ForgetSessions(ctx, time.Now().Add(-closedKept), closedMost); err != nil && ctx.Err() == nil {
		m.cfg.Log.Error("closed sessions could not be removed; this is tried again", "err", err)
	}
}

// saveAll stores the marked sessions. What cannot be stored stays marked; sessions go on
// without (N6).
func (m *Manager) saveAll(ctx context.Context) error {
	for {
		m.mu.Lock()
		drafts := m.draftsLocked()
		m.mu.Unlock()
		if len(drafts) == 0 {
			return nil
		}
		if err := m.save(ctx, drafts); err != nil {
			return err
		}
	}
}

// draftsLocked begins the drafts of the next write. Ends come first, since who names such a
// session again waits for that.
func (m *Manager) draftsLocked() (drafts []*draft) {
	take := func(s *Session) {
		if len(drafts) < maxDrafts && m.unsaved[s] {
			delete(m.unsaved, s)
			m.saving[s] = true
			drafts = append(drafts, s.draftLocked())
		}
	}
	for _, s := range m.leaving {
		take(s)
	}
	for s := range m.unsaved {
		take(s)
	}
	return drafts
}

// save writes drafts in one transaction. One of which the store says nothing for
// storeTimeout counts as failed.
func (m *Manager) save(ctx context.Context, drafts []*draft) error {
	ctx, cancel := context.WithTimeoutCause(ctx, storeTimeout, errSilent)
	defer cancel()
	rows := make([]store.Session, len(drafts))
	for i, d := range drafts {
		d.fill()
		rows[i] = d.row
	}
	err := m.cfg.Store.SaveSession(ctx, rows...)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failing = err != nil
	clear(m.saving)
	close(m.wrote)
	m.wrote = make(chan struct{})
	for _, d := range drafts {
		s := d.s
		switch {
		case err != nil:
			if s.state != Closed || m.leaving[key{s.principal, s.id}] == s { // else it may not wait
				m.unsaved[s] = true
			}
		case d.last:
			if s.forgotten != nil {
				close(s.forgotten)
				s.forgotten = nil
			}
			if k := (key{s.principal, s.id}); m.leaving[k] == s {
				delete(m.leaving, k)
			}
		default:
			s.saved = d.row.LastActivity
		}
	}
	return err
}

var errSilent = fmt.Errorf("the database has not answered for %s", storeTimeout)

// Resave stores the principal's session of that id anew, if there is one: somebody has
// removed what was stored of it.
func (m *Manager) Resave(principal, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[key{principal, id}]; s != nil {
		s.changedLocked()
	}
}

// draft is a session on its way into the store.
type draft struct {
	s       *Session
	row     store.Session // complete after fill
	account account
	clients []*Client
	order   []*binding
	last    bool // the session has ended
	filled  bool
}

// draftLocked begins the draft of a session as it is. That of a session which ends because
// roundhouse does is from before that, and adds how the end went.
func (s *Session) draftLocked() *draft {
	if d := s.parting; d != nil {
		d.account.Cleanups, d.account.Lost = s.cleanups, s.lost
		d.last, d.filled = s.state == Closed, false
		return d
	}
	d := &draft{s: s, order: slices.Clone(s.order), last: s.state == Closed}
	d.row = store.Session{
		SessionKey: store.SessionKey{Principal: s.principal, ID: s.id, Incarnation: s.incarnation},
		Kind:       s.kind, Workspace: s.workspace, State: string(s.state), Created: s.created, LastActivity: s.lastActivity, Metadata: s.metadata,
	}
	d.account = account{
		Minted: s.minted, Unclaimed: s.unclaimed, Tools: s.tools.Load(), Calls: s.calls, Cleanups: slices.Clone(s.cleanups), Lost: slices.Clone(s.lost), Restored: s.restored,
	}
	if s.ownLimits != (config.SessionLimits{}) {
		d.account.Limits = &s.ownLimits
	}
	if d.last {
		d.account.Ended = s.cause.Message
	}
	for _, server := range s.injected {
		d.account.Injected = append(d.account.Injected, server.Name)
	}
	for c := range s.clients {
		if c.lasting {
			d.clients = append(d.clients, c)
		}
	}
	slices.SortFunc(d.clients, func(a, b *Client) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id, b.id))
	})
	return d
}

// fill completes the draft, without the manager's lock. The second time it only takes up
// what draftLocked has changed.
func (d *draft) fill() {
	if d.filled {
		return
	}
	d.filled = true
	if d.order != nil || d.clients != nil {
		for _, c := range d.clients {
			d.account.Clients = append(d.account.Clients, c.account(d.order))
		}
		for _, b := range d.order {
			for _, l := range b.leased() {
				d.account.Leases = append(d.account.Leases, leaseAccount{l.Server, l.Instance, l.Since})
			}
		}
		d.clients, d.order = nil, nil
	}
	for {
		b, err := json.Marshal(&d.account)
		if err != nil {
			panic(err) // valid JSON, strings and times
		}
		if d.row.Clients = b; len(b) <= maxAccount || d.account.Clients == nil {
			return
		}
		d.s.m.cfg.Log.Warn("a session's clients declare so much that they are not stored; they will not outlive a restart", "session", d.s.id, "bytes", len(b))
		d.account.Clients = nil
	}
}

// account describes the client and what it has told the servers behind bindings.
func (c *Client) account(order []*binding) clientAccount {
	a := clientAccount{
		ID: c.id, Scope: c.scope, Version: c.Version(), Capabilities: c.capabilities, Shareable: c.shareable, Name: c.info, Info: c.clientInfo, Created: c.created,
		Servers: map[string]serverAccount{},
	}
	c.mu.Lock()
	maps.Copy(a.Servers, c.told)
	c.mu.Unlock()
	for _, b := range order {
		b.mu.Lock()
		p := b.peers[c]
		b.mu.Unlock()
		if p != nil {
			if told := p.account(); told.Level != nil || len(told.URIs) > 0 {
				a.Servers[b.name] = told
			}
		}
	}
	return a
}
