// Package pool keeps the live connections to MCP servers: one for all who ask for
// the same thing, found by fingerprint, counted by attachments, and ended when
// nobody needs them.
//
// The properties that it has are those of the pool specification (K, S, T, R, U,
// V), and tests name them.
package pool

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/event"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
)

// State is where an entry is in its life.
type State string

// The states. Closed and Failed absorb.
const (
	Spawning   State = "spawning"
	Active     State = "active"
	Draining   State = "draining"
	Recovering State = "recovering"
	Failed     State = "failed"
	Closed     State = "closed"
)

func (s State) terminal() bool { return s == Failed || s == Closed }

// Config says how a Pool works.
type Config struct {
	Dial       Dialer         // required
	DrainDelay time.Duration  // T1; 0 closes at the last detach
	MaxIdle    time.Duration  // T2; 0 is no limit
	Budget     config.Budget  // B1; the zero value has no limits
	Circuit    config.Circuit // R4; without failures there is no circuit
	Version    string         // of roundhouse, told to servers; "" is "dev"
	Log        *slog.Logger   // nil discards
	Events     *event.Feed    // takes what happens to connections; nil discards
}

// Pool holds the connections. Its methods may be called at any time. Drain ends
// it for good; a Pool that is not drained leaks its connections.
type Pool struct {
	// Constant after New, but for what Configure sets in cfg, which mu guards.
	cfg        Config
	key        []byte // of fingerprints; never leaves the process (K4)
	clientInfo json.RawMessage
	metrics    metrics
	hurry      context.Context // ends when connections are to be closed without waiting
	hurryNow   context.CancelCauseFunc

	wg sync.WaitGroup // dials, closings and the telling of news; Drain joins it

	// Guarded by mu.
	mu       sync.Mutex
	entries  map[string]*entry      // by id; failed ones too, for a while or until they are replaced
	dying    map[*connection]*entry // connections that have ended but whose processes may still live
	opening  map[*connection]*entry // connections whose dial goes on
	dials    map[*entry]int         // dials that have not ended, of entries that have ended too
	next     map[string]int         // server name → index of its next entry (S8)
	budget   budget
	circuits map[string]*circuit // by identity, of shared servers that failed a moment ago
	swept    time.Time           // when circuits was last looked through
	pardons  map[string]uint64   // server name → how often its failures were forgiven
	amnesty  uint64              // how often those of all were
	verdicts map[string]verdict  // what is known of servers, by names.server
	unpooled uint64
	drained  bool
	report   DrainReport // of what ended since drained was set
}

// New returns an empty pool.
func New(cfg Config) *Pool {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails (crypto/rand)
	info, err := json.Marshal(map[string]string{"name": "roundhouse", "version": cfg.Version})
	if err != nil {
		panic(err) // two strings
	}
	p := &Pool{cfg: cfg, key: key, clientInfo: info, metrics: newMetrics(),
		entries: map[string]*entry{}, dying: map[*connection]*entry{}, opening: map[*connection]*entry{}, dials: map[*entry]int{}, next: map[string]int{},
		circuits: map[string]*circuit{}, verdicts: map[string]verdict{}, pardons: map[string]uint64{},
		budget: budget{refused: map[string]Refusal{}, warned: map[limit]bool{}}}
	p.hurry, p.hurryNow = context.WithCancelCause(context.Background())
	return p
}

// Configure replaces the timers, the budget and the circuit, and forgives all failures so
// far, since what caused them may have been mended (R4). A drain that has begun ends as it
// was to end, and what lives already is not ended because of a smaller budget.
func (p *Pool) Configure(c config.Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cfg.DrainDelay, p.cfg.MaxIdle, p.cfg.Budget, p.cfg.Circuit = c.DrainDelay, c.MaxIdle, c.Budget, c.Circuit
	p.amnesty++
	p.rearmLocked()
}

// entry is one connection id. Its fields below constant are guarded by Pool.mu and
// change in the functions of entry.go only.
type entry struct {
	id           string // changed only by learnFromLocked, before anybody is attached
	identity     string // the id that a shared entry has, or would have
	name         string
	index        int
	server       *config.Server
	capabilities []byte
	workspace    string
	principal    string  // whose sessions alone can use it; "" is everybody's
	owner        *Holder // of an unpooled entry, else nil
	created      time.Time

	conn atomic.Pointer[connection] // of an active or draining entry; written with Pool.mu held

	state      State
	tongue     tongue // constant once somebody is attached
	generation uint64
	ready      chan struct{} // closed when the first dial, or the recovery, has ended
	stop       context.CancelCauseFunc
	err        error // of the last dial or loss
	atts       map[*Attachment]struct{}
	waiters    int
	restart    time.Time       // when the restart began that is under way, else zero
	changed    time.Time       // when it came into its state
	timer      *time.Timer     // while draining, between attempts, and while a failed entry is kept for show
	due        time.Time       // when the timer fires
	since      time.Time       // when its connection came up
	recovery   recovery        // while recovering
	exit       string          // how the last process ended
	output     []string        // what it wrote last
	written    uint64          // the generation that wrote it
	before     [kinds]*Listing // the catalogue before the loss, while recovering
	news       []func()        // for listeners and the log, to be told in this order
	telling    bool            // a goroutine tells it

	running sync.WaitGroup // dials and closings; one is added with Pool.mu held, while the entry lives
}

// Want is what a session asks the pool for.
type Want struct {
	Server       *config.Server // resolved: no ${WORKSPACE} in it
	Principal    string
	Capabilities []byte // to declare upstream: a canonical JSON object
	Workspace    string // the session's, for roots, if the server depends on it; else ""
	// Era is that of the client. The connection speaks it if the server does, else the
	// other; in the newer one it declares no capabilities. "" is the older.
	Era      era.Era
	Only     bool // rather than the other era, the error ErrOtherEra
	Listener Listener
	// Narrow returns what of the server's tools and prompts, by its own names, the session
	// sees and may call beside the server's filter, nil for all that this lets through. It
	// is asked each time, and never blocks. nil is the same as one that returns nil.
	Narrow func() func(name string) bool

	tongue tongue // decided by Acquire
}

// Listener hears what happens to a connection that its session is attached to.
// Its methods never block; they are called in the order of events.
type Listener interface {
	// ListChanged says that a list differs from before.
	ListChanged(a *Attachment, l mux.List)
	// Lost says that the connection ended for good, and why; calls have got their
	// errors. The attachment is of no more use.
	Lost(a *Attachment, err *fault.Error)
	// Renewed says that the attachment has a new connection to the same server, which
	// knows nothing of subscriptions and log levels.
	Renewed(a *Attachment)
}

// Holder is what one session has in the pool. The zero value is not usable.
type Holder struct {
	pool    *Pool
	session string        // "" for one that only keeps an instance
	done    chan struct{} // closed by Release

	// Guarded by pool.mu.
	released bool
	atts     map[*Attachment]struct{}
	circuits map[string]*circuit // by identity, of its own connections that failed a moment ago
	owned    []*entry            // those that were made for it, if it keeps an instance
}

// NewHolder returns a Holder for a session, or with "" for an instance, which is nobody's
// while it is not lent. Release it.
func (p *Pool) NewHolder(session string) *Holder {
	return &Holder{pool: p, session: session, done: make(chan struct{}), atts: map[*Attachment]struct{}{}, circuits: map[string]*circuit{}}
}

// ErrReleased is returned to an acquire whose holder was released meanwhile (S4).
var ErrReleased = errors.New("the session has ended or gone dormant")

// Acquire attaches the holder to the connection that w asks for, dialling it if
// none lives (S1, S2). It waits under ctx; a dial that nobody waits for any more
// goes on. Errors: fault.Draining, fault.StartFailed, fault.StartTimeout,
// fault.Interrupted for a server that ended as soon as it had started,
// fault.CircuitOpen for one that keeps failing (R4), fault.BudgetExhausted for one that
// is over the budget (B2), ErrReleased, or the cause of ctx.
func (h *Holder) Acquire(ctx context.Context, w Want) (*Attachment, error) {
	p := h.pool
	names := p.namesOf(w)
	p.mu.Lock()
	defer p.mu.Unlock()
	var mine *entry // an unpooled entry is found through its holder only
	waited := false // for a dial
	for {
		if p.drained {
			return nil, drainingFault()
		}
		if h.released {
			return nil, ErrReleased
		}
		var err error
		if w.tongue, err = p.tongueLocked(w, names); err != nil {
			return nil, err
		}
		e, identity := mine, w.tongue.identity(w.Server.Name)
		owner := h
		if w.Server.Sharing == config.Shared {
			e, owner = p.entries[identity], nil
		}
		if e == nil || e.state.terminal() && mine == nil {
			if err := p.refusalLocked(w.Server.Name, identity, owner); err != nil {
				return nil, err
			}
			switch over, other := p.excessLocked(w.Server), p.otherLocked(w); {
			case over == nil:
				e = p.spawnLocked(identity, w, owner)
			case other != nil:
				e = other // the other era is better than nothing
			default:
				return nil, p.refuseLocked(w.Server.Name, over)
			}
			if owner != nil {
				mine = e
			}
		}
		switch e.state {
		case Active, Draining:
			c := e.conn.Load()
			if c.ctx.Err() == nil && !c.ending.Load() {
				return p.attachLocked(h, e, w), nil
			}
			// Nobody who saw it end gets it again (S1).
			if err := p.waitForEndLocked(ctx, e, c); err != nil {
				return nil, err
			}
			if waited {
				return nil, c.lossForLate() // it ended as soon as it had started: no reason to try for ever
			}
			continue
		case Failed, Closed:
			return nil, e.err
		case Recovering:
			if waited && e.err != nil {
				p.settleLocked(e)
				return nil, e.err // it was lost again as soon as it had started, as above
			}
			p.hastenLocked(e)
		}
		if err := p.waitLocked(ctx, h, e); err != nil {
			return nil, err
		}
		if e.state.terminal() && e.err != nil && e.err != errMoved {
			return nil, e.err // the dial that we waited for failed: the same error for all
		}
		waited = true
	}
}

// waitLocked waits without the lock until the entry's dial has ended.
func (p *Pool) waitLocked(ctx context.Context, h *Holder, e *entry) error {
	ready := e.ready
	e.waiters++
	p.mu.Unlock()
	var err error
	select {
	case <-ready:
	case <-h.done:
		err = ErrReleased
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.mu.Lock()
	e.waiters--
	if err == nil && h.released {
		err = ErrReleased // S4: both happened before we looked
	}
	switch {
	case err == nil: // the caller goes on with the entry
	case e.owner != nil && e.waiters == 0 && len(e.atts) == 0:
		p.closeLocked(e, ErrReleased) // nobody else can want it (U2)
	default:
		p.settleLocked(e)
	}
	return err
}

func drainingFault() *fault.Error {
	err := fault.New(fault.Draining, "roundhouse is shutting down")
	err.RetryAfter = 5 * time.Second
	return err
}

// Release detaches the session from everything and refuses later acquires, also
// those under way. It returns at once and may be called twice. It costs as much as
// the session has attachments (S6).
func (h *Holder) Release() {
	p := h.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.released {
		return
	}
	h.released = true
	close(h.done)
	for a := range h.atts {
		p.detachLocked(a)
	}
}

// DrainReport says how a drain went. It counts the connections that lived or were
// still ending when the drain began.
type DrainReport struct {
	Drained int      // those that ended in time
	Forced  int      // those that were killed, at the deadline or by wish
	Errors  []string // what went wrong, one line each
}

// errForced is why connections are closed in a hurry when a caller of Drain wants it.
var errForced = errors.New("the drain is forced")

// Drain ends the pool for good (R10): acquires are refused, dials are given up,
// sessions hear of the loss, and all connections are closed at the same time. With
// force, or when ctx ends, processes are killed without waiting for them. It
// returns when everything is gone or was killed. A second call waits likewise, may
// force what the first one waits for, and gets the same report.
func (p *Pool) Drain(ctx context.Context, force bool) DrainReport {
	if force {
		p.hurryNow(errForced)
	}
	p.mu.Lock()
	p.drained = true
	p.tellRefusalsLocked()
	for _, e := range p.entries {
		if e.state.terminal() {
			p.removeLocked(e)
		} else {
			p.closeLocked(e, drainingFault())
		}
	}
	p.mu.Unlock()

	stop := context.AfterFunc(ctx, func() { p.hurryNow(context.Cause(ctx)) })
	p.wg.Wait()
	stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	report := p.report
	report.Errors = slices.Clone(report.Errors)
	return report
}
