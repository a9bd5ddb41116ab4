// Package session keeps sessions: who runs, what each one uses, and its one clean
// end. Every request of a client goes through Session.Do.
//
// Properties of the sessions specification (N) and of the gateway specification
// (M7, H5, H7) are cited where they are kept.
package session

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/fault"
	"roundhouse/internal/instance"
	"roundhouse/internal/pool"
	"roundhouse/internal/store"
)

// Config says how a Manager works.
type Config struct {
	Settings
	Pool *pool.Pool // required
	// Instances lends those of exclusive servers; the Manager configures it, and Shutdown
	// gives everything back to it. Nil is fine where there are no such servers.
	Instances *instance.Pools
	// Own are roundhouse's own tools (A1), in the order in which they are listed; nil is none.
	Own []OwnTool
	// Store keeps the sessions, so that they go on after a restart, from Restore on; nil
	// keeps nothing.
	Store   *store.Store
	Version string       // of roundhouse, told to clients of the aggregate
	Log     *slog.Logger // nil discards
	Events  *event.Feed  // takes what happens to sessions; nil discards
}

// Settings are what Configure may change while a Manager runs.
type Settings struct {
	Servers            []*config.Server // in the order in which the aggregate lists them
	Limits             config.Sessions
	Filters            map[string]Tools // of principals; who has none sees everything (V3)
	ListWait           time.Duration    // how long an aggregate list waits for servers that start (H7)
	InteractiveTimeout time.Duration    // how long a server's request to a client may stay open (M7); 0 is no limit
	// Grace is how long calls and tasks may go on in a session that has lived as long as it
	// may.
	Grace time.Duration
	// DrainDelay is how long calls may go on at a server whose configuration was
	// replaced.
	DrainDelay time.Duration
}

// Manager holds the sessions. Its methods may be called at any time; Shutdown ends
// it for good.
type Manager struct {
	cfg      Config                   // constant; its Settings are those of the start
	live     atomic.Pointer[settings] // written with mu held
	wg       sync.WaitGroup           // acquires, endings; started through spawn
	acquires atomic.Uint64            // so far; bindings are given back in the reverse order (N4)
	wake     chan struct{}            // a waiting value says that something is to be stored
	storing  context.Context          // until Shutdown, which stores what is left
	leaveOff context.CancelFunc       // ends storing
	keeping  sync.WaitGroup           // the goroutine that stores what changes

	mu       sync.Mutex
	sessions map[key]*Session
	clients  map[string]*Client // by client id
	closed   bool               // nothing new, not even goroutines
	draining bool               // no new sessions and requests
	evicted  int64
	cleanups map[Outcome]int64
	unsaved  map[*Session]bool // true: it is to be stored
	saving   map[*Session]bool // true: it is being stored
	failing  bool              // the last write failed
	wrote    chan struct{}     // closed, and made anew, when a write is over
	leaving  map[key]*Session  // those that have ended, until that is stored
}

// key names a session: ids belong to their principal (N2).
type key struct{ principal, id string }

// NewManager returns a Manager without sessions.
func NewManager(cfg Config) *Manager {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{
		cfg: cfg, sessions: map[key]*Session{}, clients: map[string]*Client{}, cleanups: map[Outcome]int64{},
		wake: make(chan struct{}, 1), unsaved: map[*Session]bool{}, saving: map[*Session]bool{}, wrote: make(chan struct{}), leaving: map[key]*Session{},
	}
	m.storing, m.leaveOff = context.WithCancel(context.Background())
	if cfg.Instances != nil {
		cfg.Instances.Configure(cfg.Servers)
	}
	m.live.Store(newSettings(cfg.Settings))
	return m
}

// spawn runs f in a goroutine that Shutdown joins; after that it runs nothing.
func (m *Manager) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.wg.Go(f)
	return true
}

// NewID returns a random id of 128 bits for a client.
func NewID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// server finds a configured server that can be used.
func (m *Manager) server(name string) (*config.Server, error) {
	return m.live.Load().server(name)
}

func (x *settings) server(name string) (*config.Server, error) {
	s := x.byName[name]
	if s == nil {
		err := fault.New(fault.UnknownServer, "no server is called %q; GET /api/v1/servers lists them", name)
		err.Server = name
		return nil, err
	}
	if s.DisabledReason != "" {
		err := fault.New(fault.UnknownServer, "server %q is disabled: %s", name, s.DisabledReason)
		err.Server = name
		return nil, err
	}
	return s, nil
}

// Serves returns nil if there is a usable server of that name, or for "", the aggregate.
func (m *Manager) Serves(scope string) error {
	if scope == "" || m.isOwn(scope) {
		return nil
	}
	_, err := m.server(scope)
	return err
}

// serves is Manager.Serves for what the session's clients may name.
func (s *Session) serves(scope string) error {
	if scope == "" || s.m.isOwn(scope) {
		return nil
	}
	_, err := s.server(scope)
	return err
}

// isOwn reports whether a name means the server that roundhouse itself is.
func (m *Manager) isOwn(scope string) bool { return scope == OwnServer && len(m.cfg.Own) > 0 }

// Separates reports whether the aggregate has a usable server with a connection for each
// session that is not known to speak the newer era, in which it keeps nothing of them. Of
// an exclusive one a call says in its arguments which session it belongs to (A6).
func (m *Manager) Separates(principal string) bool {
	return slices.ContainsFunc(m.live.Load().Servers, func(s *config.Server) bool {
		return s.DisabledReason == "" && s.Sharing == config.Session && !m.cfg.Pool.SpeaksModern(pool.Want{Server: s, Principal: principal})
	})
}

// Client finds a client by its id, for its principal and scope only; the error for
// another's client is the one for none (N2).
func (m *Manager) Client(principal, scope, id string) (*Client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.clients[id]
	if c == nil || c.session.principal != principal || c.scope != scope {
		return nil, fault.New(fault.UnknownSession, "this MCP session is not known here; send initialize again")
	}
	return c, nil
}

var errEvicted = fault.New(fault.UnknownSession, "the session was ended to make room for a newer one (sessions.max)")

// victimLocked chooses whom a newcomer replaces: the dormant session that was active
// longest ago (N2), else the idle one without a stream of which that holds, so that
// clients which went away without a word never keep others out (H5).
func (m *Manager) victimLocked() *Session {
	var victim *Session
	rank := func(s *Session) int {
		switch {
		case s.state == Dormant:
			return 0
		case s.minted || s.unclaimed:
			return 1
		}
		return 2
	}
	for _, s := range m.sessions {
		if s.state == Draining || !s.idleLocked() || s.state == Active && s.streams > 0 {
			continue
		}
		if victim == nil || rank(s) < rank(victim) || rank(s) == rank(victim) && s.lastActivity.Before(victim.lastActivity) {
			victim = s
		}
	}
	return victim
}

// End ends a session (N4). Without force it waits for calls in flight and tasks until ctx
// ends. Afterwards the end is stored, unless the store fails or hangs (N6). Another
// principal's session is unknown, unless admin.
func (m *Manager) End(ctx context.Context, principal string, admin bool, id string, force bool) error {
	m.mu.Lock()
	s := m.findLocked(principal, admin, id)
	if s == nil {
		m.mu.Unlock()
		return unknownSession(id)
	}
	s.beginEndLocked(errEnded)
	m.mu.Unlock()
	s.finishEnd(ctx, force)
	s.settle(context.WithoutCancel(ctx), keepWait) // or a crash would bring it back
	return nil
}

var errEnded = fault.New(fault.UnknownSession, "the session was ended")

func unknownSession(id string) error {
	return fault.New(fault.UnknownSession, "no session is called %q", id)
}

func (m *Manager) findLocked(principal string, admin bool, id string) *Session {
	if s := m.sessions[key{principal, id}]; s != nil {
		return s
	}
	if admin {
		for k, s := range m.sessions {
			if k.id == id {
				return s
			}
		}
	}
	return nil
}

func drainingFault() *fault.Error {
	err := fault.New(fault.Draining, "roundhouse is shutting down")
	err.RetryAfter = 5 * time.Second
	return err
}

// refusedFault is the error for what was not begun because roundhouse stops. It may be
// sent to its successor, so it says sent: no, which the error of a call that was in
// flight at the end of the grace does not.
func refusedFault() *fault.Error {
	err := drainingFault()
	err.Sent = fault.SentNo
	return err
}

// Drain refuses new sessions and requests from now on.
func (m *Manager) Drain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining = true
}

// Wait returns when no call is in flight and no task runs, or when ctx ends; it reports
// how many are left.
func (m *Manager) Wait(ctx context.Context) int {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		m.mu.Lock()
		n := 0
		for _, s := range m.sessions {
			n += s.inFlight + len(s.tasks)
		}
		m.mu.Unlock()
		if n == 0 || ctx.Err() != nil {
			return n
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// Shutdown ends every session at once, stores them as they go on after a restart (N6),
// and joins what runs for them. It returns how many it ended.
func (m *Manager) Shutdown(ctx context.Context) int {
	m.leaveOff() // also a write that hangs; those that wait are stored below
	m.keeping.Wait()
	m.mu.Lock()
	m.draining = true
	all := slices.Collect(maps.Values(m.sessions))
	for _, s := range all {
		if s.kept && s.state != Draining && s.parting == nil {
			s.parting = s.draftLocked()
			s.parting.row.State = string(Dormant)
		}
		s.beginEndLocked(drainingFault())
	}
	m.mu.Unlock()
	for _, s := range all {
		if s.parting != nil {
			s.parting.fill()
		}
	}
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() { s.finishEnd(ctx, true) })
	}
	wg.Wait()
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.wg.Wait()
	if err := m.saveAll(ctx); err != nil {
		m.cfg.Log.Error("sessions could not be stored at their end; they go on as they were stored before", "err", err)
	}
	return len(all)
}
