package session

import (
	"context"
	"slices"
	"time"

	"roundhouse/internal/fault"
)

// A task is work that goes on inside a session for longer than one request (A5): a run of
// an agent, a batch of calls. While it runs its session neither falls asleep nor expires,
// and makes no room for others. A session that is told to end lets its tasks finish, as
// far as the grace goes, and they may go on to call tools for that; it closes by itself
// with the last one (N4).

// TaskSpec says what task is to run.
type TaskSpec struct {
	Principal string
	// Session is the name of the session that the task runs in; one that does not exist
	// begins. "" is a session of the task's own, which ends when the task has.
	Session   string
	Unclaimed bool   // Session is a new name, which who wants the task does not know yet
	Workspace string // of a session that begins, or ""
	What      string // the task does, in a few words, for people
	// Wait has a task wait for a place if the session runs as many as it may; else it is
	// refused then. A task that waits for others must not run them with it in one session.
	Wait bool
	// Ended is called, once, when nothing is left of a session of the task's own, also if none
	// could begin: its clean-up goes on behind the task. Nil is fine.
	Ended func()
}

// MaxTasks returns how many tasks a principal's session may run at once; 0 is any number.
// One that does not exist has the general limit.
func (m *Manager) MaxTasks(principal, id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[key{principal, id}]; s != nil {
		return s.limits().MaxTasks
	}
	return m.live.Load().Limits.MaxTasks
}

// Task is a registered task. Its methods may be called while its function runs.
type Task struct {
	// Constant.
	session *Session
	id      string
	what    string
	started time.Time
}

// Session returns the session that the task runs in.
func (t *Task) Session() *Session { return t.session }

// RunTask registers a task and runs f with it; it is registered until f returns or panics
// (A5). The context that f gets ends with ctx, and with the session. The error says why f
// was not called: task_limit, session_limit, a session that ends, or the end of ctx.
func (m *Manager) RunTask(ctx context.Context, spec TaskSpec, f func(ctx context.Context, t *Task)) error {
	o := wanted(spec.Principal, spec.Session, NewID(), spec.Workspace)
	o.unclaimed = spec.Unclaimed
	s, err := m.open(o)
	if err != nil {
		if spec.Session == "" && spec.Ended != nil {
			spec.Ended()
		}
		return err
	}
	if spec.Session == "" {
		defer m.endOwn(s, spec.Ended)
	}
	t, err := s.register(ctx, spec)
	s.exit() // from here on the task keeps it
	if err != nil {
		return err
	}
	defer s.unregister(t)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })()
	f(ctx, t)
	return nil
}

// endOwn ends the session that a task, or a call, had for itself. Nobody waits for that, whose
// clean-up may take its time; ended, if it is not nil, is called then.
func (m *Manager) endOwn(s *Session, ended func()) {
	m.mu.Lock()
	s.beginEndLocked(errEnded)
	m.mu.Unlock()
	finish := func() {
		s.finishEnd(context.Background(), true)
		if ended != nil {
			ended()
		}
	}
	if !m.spawn(finish) {
		finish() // at once, for Shutdown has ended it
	}
}

// register adds a task to the session, which was entered. It waits for a place if the
// task does.
func (s *Session) register(ctx context.Context, spec TaskSpec) (*Task, error) {
	m := s.m
	t := &Task{session: s, id: NewID(), what: spec.What, started: time.Now()}
	for {
		m.mu.Lock()
		if err := s.refusalLocked(); err != nil {
			m.mu.Unlock()
			return nil, err
		}
		limit := s.limits().MaxTasks
		if limit <= 0 || len(s.tasks) < limit {
			t.started = time.Now()
			s.tasks[t] = struct{}{}
			m.mu.Unlock()
			return t, nil
		}
		if !spec.Wait {
			m.mu.Unlock()
			err := fault.New(fault.TaskLimit, "session %q runs %d tasks, which is as many as it may at once (sessions.maxTasks); try again when one has ended", s.id, limit)
			err.RetryAfter = 10 * time.Second
			return nil, err
		}
		if s.taskEnded == nil {
			s.taskEnded = make(chan struct{})
		}
		ended := s.taskEnded
		m.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
	}
}

// unregister takes an ended task off its session.
func (s *Session) unregister(t *Task) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	delete(s.tasks, t)
	s.lastActivity = time.Now()
	if s.taskEnded != nil {
		close(s.taskEnded) // who waits looks again
		s.taskEnded = nil
	}
	s.restLocked()
}

// Branch makes a client for one request of the task in the place of c, as Client.Branch
// does. It works until the session's grace is over, also when that takes no other requests
// any more.
func (t *Task) Branch(c *Client, scope string) (*Client, error) {
	s, m := t.session, t.session.m
	if err := s.serves(scope); err != nil {
		return nil, err
	}
	b := c.branch(scope)
	m.mu.Lock()
	_, runs := s.tasks[t]
	if !runs || s.ctx.Err() != nil {
		m.mu.Unlock()
		return nil, s.whyEnded()
	}
	begin := s.enterLocked()
	b.session = s
	b.entered.Store(true)
	s.clients[b] = struct{}{}
	m.mu.Unlock()
	begin()
	return b, nil
}

// TaskInfo describes a task that runs.
type TaskInfo struct {
	ID        string    `json:"id"`
	What      string    `json:"what,omitempty"`
	StartedAt time.Time `json:"startedAt"`
	AgeMs     int64     `json:"ageMs"`
}

// taskInfosLocked describes the session's tasks, oldest first.
func (s *Session) taskInfosLocked() []TaskInfo {
	infos := make([]TaskInfo, 0, len(s.tasks))
	for t := range s.tasks {
		infos = append(infos, TaskInfo{ID: t.id, What: t.what, StartedAt: t.started, AgeMs: time.Since(t.started).Milliseconds()})
	}
	slices.SortFunc(infos, func(a, b TaskInfo) int { return a.StartedAt.Compare(b.StartedAt) })
	return infos
}
