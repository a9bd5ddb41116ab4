package loop

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/session"
)

// State is where a tool session is in its life.
type State string

// The states, in their order; closed absorbs.
const (
	opening  State = "opening"
	open     State = "open"
	used     State = "used" // a call may have been sent
	cleaning State = "cleaning"
	closed   State = "closed"
)

// ToolSessions owns what a run opens of servers, from its opening to its end (X2): each is
// a guest of the run's session, so what it uses there are attachments and leases of that
// session, and clean-up and release in the reverse order are the session's (N5), of which
// there is one. Where the session is the run's own, Close ends it; a session that somebody
// named keeps what it has, unless the configuration says otherwise.
//
// Its methods may be called at any time. Close cancels what is in flight and returns when
// all is given back, within the limits of clean-ups; the second time it does nothing, and
// nothing can be opened or called after the first.
type ToolSessions struct {
	// Constant.
	sessions  *session.Manager
	log       *slog.Logger
	principal string
	id        string // of the session
	own       bool   // the session is the run's
	rest      bool   // a session that is not the run's gives back what it has

	mu     sync.Mutex
	list   []*toolSession // in the order in which they were opened
	closed bool
	began  bool          // the session was entered
	done   chan struct{} // closed when Close has ended
}

// toolSession is one server.
type toolSession struct {
	server *Server
	turn   chan struct{} // has room for one call if they are made one after the other, else nil

	mu    sync.Mutex
	state State
	guest *session.Guest // nil before open
}

// newToolSessions returns one that has opened nothing.
func newToolSessions(e *Engine, t *Task) *ToolSessions {
	s := &ToolSessions{
		sessions: e.cfg.Sessions, log: e.log, principal: t.Principal, id: cmp.Or(t.Session, t.Chain), done: make(chan struct{}),
		rest: e.cfg.Limits.ToolSessions == config.ToolSessionsRequest,
	}
	if s.id == "" {
		s.id, s.own = t.Run, true
	}
	return s
}

var errToolsClosed = fault.New(fault.Interrupted, "the response has ended")

// Open opens a server's session, if it is not open, and returns it. Nothing of the server's
// is used before Tools or Call.
func (s *ToolSessions) Open(server *Server) (*toolSession, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errToolsClosed
	}
	ts := &toolSession{server: server, state: opening}
	s.list = append(s.list, ts)
	s.began = true
	s.mu.Unlock()
	invitation := server.Invitation
	invitation.Principal, invitation.Session, invitation.Own = s.principal, s.id, s.own
	guest, err := s.sessions.Guest(invitation)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	switch {
	case err != nil:
		ts.state = closed
		return nil, err
	case ts.state != opening: // Close has come between
		guest.Leave()
		return nil, errToolsClosed
	}
	ts.state, ts.guest = open, guest
	if server.Serial || guest.Alone() {
		ts.turn = make(chan struct{}, 1)
	}
	return ts, nil
}

// Tools lists the server's tools, for which it is started unless it is lent.
func (ts *toolSession) Tools(ctx context.Context) ([]session.Tool, error) {
	guest, err := ts.enter(open)
	if err != nil {
		return nil, err
	}
	return guest.Tools(ctx)
}

// enter moves an open session on to a state, and returns its guest.
func (ts *toolSession) enter(to State) (*session.Guest, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.state != open && ts.state != used {
		return nil, errToolsClosed
	}
	if to == used {
		ts.state = used
	}
	return ts.guest, nil
}

// errCallTimeout is the cause of the end of a call that takes too long.
var errCallTimeout = errors.New("no answer in time")

// Call calls a tool of the server. It may take limit, and as much again after each sign of
// progress, but four times that in all.
func (ts *toolSession) Call(ctx context.Context, tool string, arguments json.RawMessage, limit time.Duration, progress func(session.Progress)) (json.RawMessage, error) {
	if ts.turn != nil {
		select {
		case ts.turn <- struct{}{}:
			defer func() { <-ts.turn }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	guest, err := ts.enter(used)
	if err != nil {
		return nil, err
	}
	if limit <= 0 {
		return guest.Call(ctx, tool, arguments, progress)
	}
	total, stop := context.WithTimeoutCause(ctx, 4*limit, fmt.Errorf("%w: %s, which is as long as a call that tells of progress may take", errCallTimeout, 4*limit))
	defer stop()
	bounded, cancel := context.WithCancelCause(total)
	defer cancel(nil)
	timer := time.AfterFunc(limit, func() { cancel(fmt.Errorf("%w: %s", errCallTimeout, limit)) })
	defer timer.Stop()
	return guest.Call(bounded, tool, arguments, func(p session.Progress) {
		timer.Reset(limit)
		if progress != nil {
			progress(p)
		}
	})
}

// Close ends what is open, in the reverse order. The first caller does it, others wait.
func (s *ToolSessions) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.done
		return
	}
	s.closed = true
	list, began := s.list, s.began
	s.mu.Unlock()
	defer close(s.done)
	if !began {
		return
	}
	guests := make([]*session.Guest, 0, len(list))
	for _, ts := range list {
		ts.mu.Lock()
		if ts.guest != nil {
			guests = append(guests, ts.guest)
			ts.state = cleaning
		} else {
			ts.state = closed
		}
		ts.mu.Unlock()
	}
	if s.own {
		// The session is the one owner of clean-up and release, also of what was in the
		// middle of being opened.
		err := s.sessions.End(context.Background(), s.principal, false, s.id, true)
		if err != nil && !fault.Is(err, fault.UnknownSession) {
			s.log.Error("a response's own session could not be ended", "session", s.id, "err", err)
		}
	}
	for i := range guests {
		guests[len(guests)-1-i].Leave()
	}
	if !s.own && s.rest {
		s.sessions.Rest(s.principal, s.id)
	}
	for _, ts := range list {
		ts.mu.Lock()
		ts.state = closed
		ts.mu.Unlock()
	}
}
