// Package model is the transport of model calls: it finds the upstream that serves a
// model, sends the request there, and records what comes back. Whoever calls a model
// through it is recorded by construction: an Answer ends for its reader only once the
// turn is stored.
//
//	answer, err := models.Do(ctx, model.Call{…})
//	if err != nil {
//		// a *model.Error says how the API itself tells of it
//	}
//	defer answer.Close()
//	// answer.Status, answer.Header; Read gives the bytes as they come, until io.EOF, or
//	// ErrAborted where the connection is to be broken off
//
// A recorded call is a turn. It lives in a goroutine of its own, so that it goes on
// without the client, in the steps prepare (prepare.go), forward (upstream.go), receive
// (receive.go), and finish (finish.go). The outlet stands between it and the client. A
// call that is not recorded is the upstream's answer as it is.
package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/dialect"
	"roundhouse/internal/event"
	"roundhouse/internal/store"
)

// Config is what New needs.
type Config struct {
	LLM    config.LLM
	Store  *store.Store // may be nil if nothing is recorded, that is if there are no upstreams
	Dir    string       // for what is spooled to disk; "" is the system's directory for temporary files
	Log    *slog.Logger // nil discards
	Events *event.Feed  // nil is fine

	// Occupy is called when a call in the name of a session begins, and its result when it
	// has ended: the session is not idle meanwhile (N3). Nil is fine.
	Occupy func(principal, session string) (release func())

	KeepAlive     time.Duration // between comments while the end of a stream is held; 0 is none
	WriteDeadline time.Duration // how long a client may take nothing before it counts as gone; 0 is 10 s
	// AsideDeadline is how long a turn that has its answer waits for what the engine was
	// asked beside it, when the call began; 0 is 5 s.
	AsideDeadline time.Duration
}

// Models sends and records model calls. Its methods may be called at any time by any
// number of goroutines.
//
// Wait refuses new calls and waits for those under way. Close does too, after it has
// cancelled them; a turn that it cut short is stored as lost. Both may be called again.
// The store is to be closed after them.
type Models struct {
	// Constant after New.
	cfg       Config
	log       *slog.Logger
	upstreams []*Upstream
	queued    *quota
	trouble   store.Trouble // with what is owed

	calls sync.WaitGroup // of the calls under way; added to with mu held and closed unset

	mu     sync.Mutex
	closed bool
	active map[*active]bool // the calls under way, recorded or not
	turns  map[string]*turn // those of them that are recorded, by id
	owed   []missing        // calls that could not be stored
}

// active is a call under way.
type active struct {
	cancel  context.CancelCauseFunc
	session store.SessionKey // "" is the id of none
	turn    *turn            // nil if it is not recorded
	// stored is closed when the turn whose answer it delivers is stored, or certainly not.
	// Nil is never.
	stored <-chan struct{}
	done   chan struct{} // closed when it has ended
}

// New returns Models for a valid configuration.
func New(cfg Config) *Models {
	cfg.WriteDeadline = cmp.Or(cfg.WriteDeadline, 10*time.Second)
	cfg.AsideDeadline = cmp.Or(cfg.AsideDeadline, 5*time.Second)
	m := &Models{cfg: cfg, log: cfg.Log, queued: &quota{limit: cfg.LLM.MaxQueued}, active: map[*active]bool{}, turns: map[string]*turn{}}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	for _, u := range cfg.LLM.Upstreams {
		m.upstreams = append(m.upstreams, newUpstream(u))
	}
	return m
}

// Call is a request for an answer of a model.
type Call struct {
	Principal string
	Session   string // that it names, "" for none
	// Policy is what the request itself says, "" leaves it to its session, the upstream
	// and the configuration (C3).
	Policy config.RecordPolicy

	API      dialect.API
	Path     string // below the upstream's base, escaped, such as /v1/messages
	RawQuery string
	Header   http.Header      // the client's, without what roundhouse consumes; it is not changed
	Body     []byte           // as it came; it is not changed
	Request  *dialect.Request // Body, parsed; nil if it could not be read (A.16, row 12)
	Retries  int              // how often the client has tried this before, as its SDK says (C9)
}

func (c *Call) model() string {
	if c.Request == nil {
		return ""
	}
	return c.Request.Model
}

// Error is a failure before an answer began.
type Error struct {
	Failure dialect.Failure // how to tell the client
	Err     error           // the cause, or nil
}

// Error returns the message with its cause.
func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", e.Failure.Message, e.Err)
	}
	return e.Failure.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func refuse(status int, err error, format string, args ...any) *Error {
	return &Error{dialect.Failure{Status: status, Message: fmt.Sprintf(format, args...)}, err}
}

// Why a call was cut short. They are causes of its context.
var (
	errFirstByte  = errors.New("the upstream did not begin its answer in time")
	errIdle       = errors.New("the upstream fell silent")
	errTotal      = errors.New("the call took too long")
	errClientGone = errors.New("the client left")
	errShutdown   = errors.New("roundhouse is shutting down")
	errEnded      = errors.New("the session was ended")
)

// ErrAborted ends an answer whose connection is to be broken off, lest a client take
// what it has for the whole (A.10).
var ErrAborted = errors.New("the answer was broken off")

// Do sends a call and returns the answer when its status and header are known. The
// error is an *Error, or that of ctx. ctx also ends the reading of the answer, which is
// then as if Close had been called.
func (m *Models) Do(ctx context.Context, c Call) (*Answer, error) {
	p, err := m.prepare(ctx, c)
	if err != nil {
		return nil, err
	}
	if p.policy == config.RecordOff {
		return m.pass(ctx, p)
	}
	answer, err := m.replay(ctx, p)
	if answer != nil || err != nil {
		return answer, err
	}
	return m.record(ctx, p)
}

// record starts the turn and waits for the head of its answer.
func (m *Models) record(ctx context.Context, p *prepared) (*Answer, error) {
	t := newTurn(m, p, context.WithoutCancel(ctx))
	leave, err := m.enter(&active{cancel: t.cancel, session: p.key, turn: t, stored: t.ended})
	if err != nil {
		return nil, err
	}
	go func() { // joined by Wait
		defer leave()
		t.run()
	}()
	return t.out.answer(ctx, t.id)
}

// enter counts a call as under way until leave is called.
func (m *Models) enter(a *active) (leave func(), err error) {
	a.done = make(chan struct{})
	release := func() {}
	if m.cfg.Occupy != nil && a.session.ID != "" {
		release = m.cfg.Occupy(a.session.Principal, a.session.ID)
	}
	if !m.count(a) {
		release()
		return nil, errStopping
	}
	return func() {
		m.mu.Lock()
		delete(m.active, a)
		if a.turn != nil {
			delete(m.turns, a.turn.id)
		}
		m.mu.Unlock()
		release()
		close(a.done)
		m.calls.Done()
	}, nil
}

// count adds a call to those under way, unless no more are taken.
func (m *Models) count(a *active) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.active[a] = true
	if a.turn != nil {
		m.turns[a.turn.id] = a.turn
	}
	m.calls.Add(1)
	return true
}

var errStopping = &Error{Failure: dialect.Failure{
	Status: http.StatusServiceUnavailable, Code: "draining", RetryAfter: 5 * time.Second,
	Message: "roundhouse is shutting down and takes no new requests; try again after it has restarted",
}}

// Running returns how many calls are under way, auxiliary ones included.
func (m *Models) Running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.active)
}

// Wait waits until no call is under way, or ctx ends, and returns how many are left. New
// ones are refused.
func (m *Models) Wait(ctx context.Context) int {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the last call
		m.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
		return 0
	case <-ctx.Done():
		return m.Running()
	}
}

// Close cancels the calls that are under way, and waits, while ctx lasts, until those
// that are recorded are stored. It returns how many are left.
func (m *Models) Close(ctx context.Context) int {
	m.mu.Lock()
	m.closed = true
	for a := range m.active {
		a.cancel(errShutdown)
	}
	m.mu.Unlock()
	left := m.Wait(ctx)
	m.settle(ctx)
	for _, u := range m.upstreams {
		u.transport.CloseIdleConnections()
	}
	return left
}

// tidying is how often what is stored is looked through.
const tidying = 10 * time.Minute

// Tidy removes, until ctx ends, what is kept longer, or is more, than llm.record.retention
// says (C15). A session whose last call began longer ago than idle counts as over. It is
// called once.
func (m *Models) Tidy(ctx context.Context, idle time.Duration) {
	keep := m.cfg.LLM.Record.Retention
	if m.cfg.Store == nil || keep.Age == 0 && keep.Size == 0 {
		return
	}
	again := time.NewTicker(tidying)
	defer again.Stop()
	for {
		removed, err := m.cfg.Store.Retain(ctx, store.Retention{Age: keep.Age, Bytes: keep.Size, Quiet: idle})
		switch {
		case err != nil && ctx.Err() == nil:
			m.log.Error("recordings could not be looked through; this is tried again", "err", err)
		case removed.Sessions > 0:
			m.log.Info("recordings were removed (llm.record.retention)", "sessions", removed.Sessions, "calls", removed.Calls)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// Reserve counts n bytes of a request that is held in memory, until release is called.
// Its error is an *Error that says to try again (C11).
func (m *Models) Reserve(n int64) (release func(), err error) {
	if !m.queued.take(n) {
		e := refuse(http.StatusServiceUnavailable, nil, "too many bytes of requests and answers wait in memory (llm.maxQueued)")
		e.Failure.RetryAfter = time.Second
		return nil, e
	}
	return func() { m.queued.give(n) }, nil
}

// quota counts bytes up to a limit.
type quota struct {
	limit int64 // constant

	mu   sync.Mutex
	used int64
}

// add counts bytes even beyond the limit.
func (q *quota) add(n int64) { q.give(-n) }

func (q *quota) take(n int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	// What is larger than the limit may still go alone.
	if q.used > 0 && q.used+n > q.limit {
		return false
	}
	q.used += n
	return true
}

func (q *quota) give(n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.used -= n
}
