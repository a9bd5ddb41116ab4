package session

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/fault"
	"roundhouse/internal/pool"
)

// State is where a session is in its life (N1).
type State string

// The states. Closed absorbs; the id may then begin a new session.
const (
	Active   State = "active"
	Dormant  State = "dormant"
	Draining State = "draining"
	Closed   State = "closed"
	Recorded State = "recorded" // no session: there is only a recording of model calls
)

// Session is one agent run. What it uses in the pool is held by holder while it is
// active, and by nothing while it is dormant; bindings remember what that was.
type Session struct {
	m           *Manager
	id          string
	principal   string
	incarnation int // 1 for the first life of the id
	kind        string
	metadata    json.RawMessage      // a small object, or nil
	ownLimits   config.SessionLimits // in the place of its kind's; 0 leaves that
	workspace   string
	minted      bool // nobody named it: it ends with its last client
	created     time.Time
	restored    time.Time       // when it was read from the store; zero if it was not
	ctx         context.Context // ends, with the cause, when the session does
	cancel      context.CancelCauseFunc
	ended       chan struct{} // closed when the end is complete

	tools  atomic.Pointer[Tools]  // what its clients see and may call; nil is everything
	notice atomic.Pointer[string] // what the next result says of a restart, or nil

	// Guarded by m.mu.
	state        State
	lastActivity time.Time // when the last request or task began or ended (N3)
	inFlight     int       // requests
	occupied     int       // model calls in its name
	tasks        map[*Task]struct{}
	taskEnded    chan struct{} // closed when a task ends; nil if nobody waits for that
	streams      int           // open streams of its clients
	calls        int64         // requests so far
	clients      map[*Client]struct{}
	holder       *pool.Holder  // nil while dormant
	rested       chan struct{} // closed when what it had before its last sleep is given back; nil before that
	bindings     map[bindKey]*binding
	order        []*binding // in the order in which they were made
	timer        *time.Timer
	idle         chan struct{}    // closed when it is not busy any more while draining
	cause        *fault.Error     // why it ends
	ending       bool             // somebody runs finishEnd
	cleanups     []CleanupInfo    // the last ones
	injected     []*config.Server // its own, in the order in which they came; replaced, never changed
	brought      []*config.Server // its own, for its guests only
	unclaimed    bool             // a call that named no session has begun it, and nobody has named it yet
	orphaned     time.Time        // when it ends unless a client comes; zero is never
	lost         []Loss           // with the daemon's end
	kept         bool             // it is in the store, or will be
	saved        time.Time        // its lastActivity as it is stored
	parting      *draft           // what is stored in the place of its end, since roundhouse stops; or nil
	forgotten    chan struct{}    // closed when its end is stored; nil before the end, and after that
}

// newSession makes an active session without a timer and a holder.
func newSession(m *Manager, k key) *Session {
	now := time.Now()
	s := &Session{
		m: m, id: k.id, principal: k.principal, incarnation: 1, created: now,
		ended: make(chan struct{}), state: Active, lastActivity: now,
		clients: map[*Client]struct{}{}, tasks: map[*Task]struct{}{}, bindings: map[bindKey]*binding{},
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// ID returns the session's id.
func (s *Session) ID() string { return s.id }

// Principal returns whose session it is.
func (s *Session) Principal() string { return s.principal }

// Workspace returns the directory that the session works in, or "".
func (s *Session) Workspace() string { return s.workspace }

func (s *Session) publish(k event.Kind, reason string) {
	s.m.cfg.Events.Publish(event.Event{Kind: k, Principal: s.principal, Session: s.id, Reason: reason})
}

// limits returns what holds for the session: its own limits, else its kind's, else the
// general ones (N3).
func (s *Session) limits() config.SessionLimits {
	return s.m.live.Load().Limits.Of(s.kind).With(s.ownLimits)
}

// armLocked sets the timer for the next thing that idleness since then, or age, brings
// (N3). Requests leave it alone, since they are many: when it fires it looks at the time
// of the last one, and is set anew.
func (s *Session) armLocked(since time.Time) {
	if s.timer != nil {
		s.timer.Stop()
	}
	var due time.Time
	sooner := func(at time.Time) {
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	limits := s.limits()
	if limits.ExpireAfter > 0 {
		sooner(since.Add(limits.ExpireAfter))
	}
	if limits.IdleTimeout > 0 && (s.state == Active || s.unclaimed) {
		sooner(since.Add(limits.IdleTimeout))
	}
	if limits.MaxLifetime > 0 {
		sooner(s.created.Add(limits.MaxLifetime))
	}
	if !s.orphaned.IsZero() {
		sooner(s.orphaned)
	}
	if !due.IsZero() {
		s.timer = time.AfterFunc(time.Until(due), s.aged)
	}
}

// aged makes an idle session dormant, ends a dormant one that has expired, and has one
// whose life is over end with what runs.
func (s *Session) aged() {
	m := s.m
	m.mu.Lock()
	if s.state != Active && s.state != Dormant || m.draining {
		m.mu.Unlock()
		return
	}
	limits, now := s.limits(), time.Now()
	quiet := now.Sub(s.lastActivity)
	if limits.MaxLifetime > 0 && !now.Before(s.created.Add(limits.MaxLifetime)) {
		s.beginEndLocked(fault.New(fault.UnknownSession, "the session has lived for %s, which is as long as it may (maxLifetime)", limits.MaxLifetime))
		m.mu.Unlock()
		m.spawn(func() {
			ctx, cancel := context.WithTimeout(context.Background(), m.live.Load().Grace)
			defer cancel()
			s.finishEnd(ctx, false)
		})
		return
	}
	if !s.idleLocked() { // idle time counts from the end of what runs
		s.armLocked(time.Now())
		m.mu.Unlock()
		return
	}
	if orphan := !s.orphaned.IsZero() && !now.Before(s.orphaned); orphan {
		s.beginEndLocked(errOrphaned)
		m.mu.Unlock()
		m.spawn(func() { s.finishEnd(context.Background(), true) })
		return
	}
	if limits.ExpireAfter > 0 && quiet >= limits.ExpireAfter {
		s.beginEndLocked(fault.New(fault.UnknownSession, "the session expired after %s without a request", limits.ExpireAfter))
		m.mu.Unlock()
		m.spawn(func() { s.finishEnd(context.Background(), true) })
		return
	}
	if s.unclaimed && limits.IdleTimeout > 0 && quiet >= limits.IdleTimeout {
		s.beginEndLocked(errUnclaimed)
		m.mu.Unlock()
		m.spawn(func() { s.finishEnd(context.Background(), true) })
		return
	}
	var release func()
	if s.state == Active && limits.IdleTimeout > 0 && quiet >= limits.IdleTimeout {
		release = s.sleepLocked()
	}
	s.armLocked(s.lastActivity)
	m.mu.Unlock()
	if release != nil {
		release()
	}
}

// sleepLocked makes the session dormant: handshakes stay, attachments go. The
// function that it returns does the going, without the lock.
func (s *Session) sleepLocked() (release func()) {
	s.state = Dormant
	s.changedLocked()
	holder, order, rested := s.holder, slices.Clone(s.order), make(chan struct{})
	s.holder, s.rested = nil, rested
	return func() {
		defer close(rested)
		s.m.cfg.Log.Info("session dormant", "session", s.id)
		s.publish(event.SessionDormant, "")
		s.cleanUp(order)
		for _, b := range slices.Backward(inOrder(order)) {
			b.rest(errEnded)
		}
		holder.Release()
	}
}

// holding returns the session's holder, or nil while it is dormant or has ended.
func (s *Session) holding() *pool.Holder {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.holder
}

// whyEnded returns why a session has ended that has no holder any more.
func (s *Session) whyEnded() error { return cmp.Or(context.Cause(s.ctx), error(errEnded)) }

// enter begins a request: it wakes a dormant session and keeps it awake until exit.
func (s *Session) enter() error { return s.enterUnless(s.refusalLocked) }

// enterUnless is enter with its own reason to refuse, which is asked for under the lock.
func (s *Session) enterUnless(refusalLocked func() error) error {
	m := s.m
	m.mu.Lock()
	if err := refusalLocked(); err != nil {
		m.mu.Unlock()
		return err
	}
	begin := s.enterLocked()
	m.mu.Unlock()
	begin()
	return nil
}

// refusalLocked returns why the session takes no requests, or nil.
func (s *Session) refusalLocked() error {
	switch {
	case s.m.draining:
		return refusedFault()
	case s.state == Draining || s.state == Closed:
		return s.cause
	}
	return nil
}

// enterLocked is enter for a session that takes requests. What is left to do of it,
// without the lock, is the function that it returns.
func (s *Session) enterLocked() (begin func()) {
	s.inFlight++
	s.calls++
	s.lastActivity = time.Now()
	woke := s.state == Dormant
	if woke {
		s.state = Active
		s.changedLocked()
		s.holder = s.m.cfg.Pool.NewHolder(s.id)
		s.armLocked(s.lastActivity)
	}
	rested := s.rested
	if !woke && rested == nil {
		return func() {}
	}
	return func() {
		if rested != nil {
			<-rested // what is given back must not be used; clean-ups on the way there have their time
		}
		if woke {
			s.m.cfg.Log.Info("session active", "session", s.id)
			s.publish(event.SessionResumed, "")
		}
	}
}

// exit ends a request.
func (s *Session) exit() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.exitLocked()
}

func (s *Session) exitLocked() {
	s.inFlight--
	s.lastActivity = time.Now()
	s.restLocked()
}

// busyLocked reports whether the session works on a request, or a task.
func (s *Session) busyLocked() bool { return s.inFlight > 0 || len(s.tasks) > 0 }

// idleLocked reports whether nothing of the session goes on, model calls included (N3).
func (s *Session) idleLocked() bool { return !s.busyLocked() && s.occupied == 0 }

// Occupy counts a model call in the name of a session, if there is one, until release is
// called: so long it neither falls asleep nor expires, nor makes room for others (N3). It
// does not wake one that sleeps.
func (m *Manager) Occupy(principal, id string) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[key{principal, id}]
	if s == nil {
		return func() {}
	}
	s.occupied++
	s.claimLocked()
	s.lastActivity = time.Now()
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		s.occupied--
		s.lastActivity = time.Now()
	}
}

// restLocked tells the end of the session, if it waits for that, that it is not busy.
func (s *Session) restLocked() {
	if !s.busyLocked() {
		s.wakeEndLocked()
	}
}

// wakeEndLocked has the end of the session, if it waits for calls and tasks, go on.
func (s *Session) wakeEndLocked() {
	if s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// beginEndLocked makes the session refuse new work. Only the first end counts.
func (s *Session) beginEndLocked(why *fault.Error) {
	if s.state == Draining || s.state == Closed {
		return
	}
	s.state = Draining
	s.cause = why
	if s.timer != nil {
		s.timer.Stop()
	}
}

// finishEnd is the one teardown path (N4): wait for calls and tasks unless force, cancel what
// is left, clean up, release in reverse order, forget. The first caller does it; others
// wait for it. The waiting for calls and tasks is over when the context of any of them
// ends, or one of them uses force.
func (s *Session) finishEnd(ctx context.Context, force bool) {
	m := s.m
	m.mu.Lock()
	first := !s.ending
	s.ending = true
	if first && !force && s.busyLocked() {
		s.idle = make(chan struct{})
	}
	idle := s.idle
	m.mu.Unlock()
	if idle != nil && !force {
		select {
		case <-idle:
		case <-ctx.Done():
		}
	}
	if !first {
		m.mu.Lock()
		s.wakeEndLocked()
		m.mu.Unlock()
		<-s.ended
		return
	}
	s.cancel(s.cause)
	m.mu.Lock()
	s.idle = nil
	clients, rested := s.clients, s.rested
	holder, order := s.holder, s.order
	s.clients, s.holder, s.order, s.bindings, s.injected, s.brought = nil, nil, nil, nil, nil, nil
	for c := range clients {
		delete(m.clients, c.id)
	}
	m.mu.Unlock()
	for c := range clients {
		c.end(s.cause)
	}
	if rested != nil {
		<-rested // it was falling asleep
	}
	for _, b := range order {
		b.silence(s.cause)
	}
	s.cleanUp(order)
	for _, b := range slices.Backward(inOrder(order)) {
		b.release(s.cause)
	}
	if holder != nil {
		holder.Release()
	}
	m.mu.Lock()
	s.changedLocked()
	s.state = Closed
	delete(m.sessions, key{s.principal, s.id})
	switch {
	case !m.unsaved[s]:
	case len(m.leaving) >= leavingMost && s.parting == nil: // of a stop all are stored, at once
		delete(m.unsaved, s)
	default:
		s.forgotten = make(chan struct{})
		m.leaving[key{s.principal, s.id}] = s
	}
	m.mu.Unlock()
	close(s.ended)
	m.cfg.Log.Info("session closed", "session", s.id, "cause", s.cause)
	s.publish(event.SessionEnded, s.cause.Message)
}

// inhabitedLocked reports whether the session has clients beside branches and guests, which
// end with what they were made for.
func (s *Session) inhabitedLocked() bool {
	for c := range s.clients {
		if c.parent == nil && !c.mute {
			return true
		}
	}
	return false
}

// removeClient takes a client off the session after its DELETE. A session that
// nobody named ends with its last client, or with the last task that it runs then; a
// named one gives back what it holds and stays known until it expires.
func (s *Session) removeClient(c *Client) {
	m := s.m
	m.mu.Lock()
	if _, ok := s.clients[c]; !ok {
		m.mu.Unlock()
		return
	}
	delete(s.clients, c)
	delete(m.clients, c.id)
	last := !s.inhabitedLocked()
	end, tasks := last && s.minted, len(s.tasks) > 0
	var release func()
	switch {
	case end:
		s.beginEndLocked(errEnded)
	case last && s.state == Active && s.idleLocked():
		release = s.sleepLocked()
		s.armLocked(s.lastActivity)
	}
	s.changedLocked()
	m.mu.Unlock()
	c.end(errEnded)
	m.mu.Lock()
	bound := slices.Clone(s.order) // what a request binds from now on sees that the client has gone
	m.mu.Unlock()
	for _, b := range bound {
		b.leave(c, errEnded)
	}
	if release != nil {
		release()
	}
	switch {
	case end && tasks:
		m.spawn(func() { s.finishEnd(s.ctx, false) })
	case end:
		s.finishEnd(context.Background(), true)
	}
}
