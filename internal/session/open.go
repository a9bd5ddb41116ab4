package session

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/fault"
	"roundhouse/internal/store"
)

// opening says which session is wanted, and what it is if it begins.
type opening struct {
	key
	minted    bool // nobody named it
	unclaimed bool // the same, but its name will be told, to who may name it then
	fresh     bool // it must not be there yet
	workspace string
	kind      string
	metadata  json.RawMessage
	limits    config.SessionLimits
}

// wanted is the opening of the session of that name; without one it is minted, with the id
// of its client.
func wanted(principal, name, client, workspace string) opening {
	o := opening{key: key{principal, name}, workspace: workspace}
	if name == "" {
		o.id, o.minted = client, true
	}
	return o
}

// open enters a session, or begins it. A session that was entered makes no room for a
// newcomer before its client has answered.
func (m *Manager) open(o opening) (*Session, error) {
	s, err := m.enterKnown(o)
	if s != nil || err != nil {
		return s, err
	}
	before := store.Session{SessionKey: store.SessionKey{Incarnation: 1}}
	if !o.minted {
		if before, err = m.before(o.key); err != nil {
			return nil, err
		}
	}
	s, victim, begun, err := m.begin(o, before)
	if err != nil {
		return nil, err
	}
	if victim != nil {
		m.spawn(func() { victim.finishEnd(context.Background(), true) })
	}
	if begun {
		m.cfg.Log.Info("session opened", "session", s.id, "principal", s.principal)
		s.publish(event.SessionBegun, "")
	}
	return s, nil
}

// enterKnown enters the session if it is there, else it is nil.
func (m *Manager) enterKnown(o opening) (*Session, error) {
	m.mu.Lock()
	if m.draining {
		m.mu.Unlock()
		return nil, refusedFault()
	}
	s := m.sessions[o.key]
	switch {
	case s == nil:
		m.mu.Unlock()
		return nil, nil
	case o.fresh:
		m.mu.Unlock()
		return nil, fault.New(fault.NameTaken, "there is a session %q already; choose another id, or end it first", o.id)
	case s.state == Draining:
		m.mu.Unlock()
		return nil, fault.New(fault.SessionLimit, "session %q is ending; try again when it has ended", o.id)
	}
	if !o.unclaimed {
		s.claimLocked()
	}
	begin := s.enterLocked()
	m.mu.Unlock()
	begin()
	return s, nil
}

// before returns what the store knows of an id whose session begins: the life that it goes
// on with, which only a recording of model calls may have begun, or an empty one with the
// next incarnation (N1). A sealed id is over for good.
func (m *Manager) before(k key) (store.Session, error) {
	first := store.Session{SessionKey: store.SessionKey{Incarnation: 1}}
	if m.cfg.Store == nil {
		return first, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	m.mu.Lock()
	var stored chan struct{}
	if left := m.leaving[k]; left != nil {
		stored = left.forgotten
	}
	m.mu.Unlock()
	if stored != nil {
		select {
		case <-stored:
		case <-ctx.Done():
			return first, fault.New(fault.SessionLimit, "the end of the last session %q is not stored yet; try again, and if that goes on look into the daemon's log", k.id)
		}
	}
	row, err := m.cfg.Store.Session(ctx, k.principal, k.id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return first, nil
	case err != nil:
		m.cfg.Log.Error("a session cannot be looked up", "session", k.id, "err", err)
		return first, fault.New(fault.Internal, "what is stored of session %q cannot be read; the daemon's log says why", k.id)
	case !row.Sealed.IsZero():
		return first, fault.New(fault.SessionSealed, "session %q was sealed, and its id is not given again; use another id", k.id)
	case row.State == store.Closed:
		first.Incarnation = row.Incarnation + 1
		return first, nil
	}
	return row, nil
}

// storeTimeout is how long a read or a write of the store, or the store's being behind, may
// hold up the beginning of a session, or the end of all.
const storeTimeout = 15 * time.Second

// begin makes a session and enters it, or enters the one that has come meanwhile. The
// victim, if there is one, is to be ended to make room for it.
func (m *Manager) begin(o opening, before store.Session) (s, victim *Session, begun bool, err error) {
	m.mu.Lock()
	if m.draining || m.sessions[o.key] != nil {
		m.mu.Unlock()
		s, err = m.open(o)
		return s, nil, false, err
	}
	defer m.mu.Unlock()
	if most := m.live.Load().Limits.Max; most > 0 && len(m.sessions) >= most {
		if victim = m.victimLocked(); victim == nil {
			err := fault.New(fault.SessionLimit, "all %d sessions (sessions.max) are busy or have a stream open; end one or raise the limit", len(m.sessions))
			err.RetryAfter = 10 * time.Second
			return nil, nil, false, err
		}
		m.evicted++
		victim.beginEndLocked(errEvicted)
	}
	s = newSession(m, o.key)
	s.minted, s.unclaimed, s.kept = o.minted, o.unclaimed, !o.minted
	s.incarnation, s.kind, s.metadata, s.ownLimits, s.workspace = before.Incarnation, before.Kind, before.Metadata, o.limits, o.workspace
	if !before.Created.IsZero() {
		s.created = before.Created
	}
	if o.kind != "" {
		s.kind = o.kind
	}
	if o.metadata != nil {
		s.metadata = o.metadata
	}
	s.holder = m.cfg.Pool.NewHolder(s.id)
	m.sessions[o.key] = s
	s.enterLocked() // it is active; there is nothing to begin
	s.armLocked(s.lastActivity)
	s.changedLocked()
	return s, victim, true, nil
}

// Spec says what session Create makes.
type Spec struct {
	Principal string
	ID        string // "" is a random one
	Kind      string // "" is none
	Workspace string // an absolute path, or ""
	Metadata  json.RawMessage
	Limits    config.SessionLimits // in the place of its kind's; 0 leaves that
}

// Create begins a session without a client, and stores it (N1). It lives until it expires,
// or is ended. An id that is taken is refused.
func (m *Manager) Create(ctx context.Context, spec Spec) (Info, error) {
	id := spec.ID
	if id == "" {
		id = NewID()
	}
	s, err := m.open(opening{
		key: key{spec.Principal, id}, fresh: true, workspace: spec.Workspace, kind: spec.Kind, metadata: spec.Metadata, limits: spec.Limits,
	})
	if err != nil {
		return Info{}, err
	}
	s.exit()
	// The policy of its recording is read from the store, so it is there before the answer.
	if !s.settle(ctx, storeTimeout) {
		return Info{}, fault.New(fault.Internal, "session %q has begun, but the database has not stored it yet, for the reason that the daemon's log gives; it is stored as soon as that is over: use the session, or end it and create it again", id)
	}
	return m.Get(spec.Principal, false, id)
}
