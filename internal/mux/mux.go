// Package mux lets many clients use one connection to an MCP server. It does no
// I/O: frames come in through Begin and Receive, and what follows leaves through
// the callbacks of Config, Peer and Outlet, which never block and are called
// without a lock held.
//
// The unit is the client (one handshake), not the session (M0): ids, progress
// tokens, log levels and subscriptions of two clients never meet.
package mux

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// Pieces is one frame in up to three parts that are written one after the other,
// so that an id or token can be replaced without copying the payload.
type Pieces [3][]byte

// Len returns the number of bytes in all parts.
func (p Pieces) Len() int { return len(p[0]) + len(p[1]) + len(p[2]) }

// Empty reports whether there is no frame.
func (p Pieces) Empty() bool { return p.Len() == 0 }

// AppendTo appends all parts to dst.
func (p Pieces) AppendTo(dst []byte) []byte {
	for _, b := range p {
		dst = append(dst, b...)
	}
	return dst
}

// Replace returns raw with the bytes of at replaced by with.
func Replace(raw []byte, at wire.Span, with []byte) Pieces {
	return Pieces{raw[:at.Start], with, raw[at.End:]}
}

// Outlet takes what belongs to one call of a client. Its methods never block. They
// may be called from several goroutines.
type Outlet interface {
	// Note takes a notification that belongs to the call. One that comes after Done,
	// because the call was ended while the notification was on its way, is dropped.
	Note(Pieces)
	// Done takes the call's answer, once; the client's own id is the second part. It
	// is empty when the call was cancelled and no answer follows.
	Done(Pieces)
}

// Failer is an Outlet that is told why the server does not answer its call.
type Failer interface {
	Outlet
	// Failed takes the news that the call ended with err. If it returns true it has seen
	// to that, and Done is not called: the call may go on elsewhere, if err.Sent says that
	// the server certainly did not get it (R5).
	Failed(err *fault.Error) bool
}

// Peer is one client as the connection sees it. Values are compared by identity.
// Its methods never block.
type Peer interface {
	// Notify takes a notification that belongs to no call of the client.
	Notify(Pieces)
	// Ask takes a request of the server for this client. out is the call during
	// which it was made, or nil. The client's answer goes to Ask.Answer.
	Ask(a *Ask, out Outlet)
	// Unask says that the server, or the loss of the connection, took the request
	// back; nobody waits for its answer any more.
	Unask(a *Ask)
}

// resultPieces and errorPieces make an answer of which the id is a part by itself,
// as it is in answers that Replace makes.
func resultPieces(id, result []byte) Pieces {
	return Pieces{[]byte(`{"jsonrpc":"2.0","id":`), id, append(append([]byte(`,"result":`), result...), '}')}
}

func errorPieces(id, object []byte) Pieces {
	return Pieces{[]byte(`{"jsonrpc":"2.0","id":`), id, append(append([]byte(`,"error":`), object...), '}')}
}

// Policy is what happens to requests of the server to its client (M6).
type Policy string

// The policies. Auto becomes Serialize for the rest of the connection's life once
// a request had no unambiguous owner.
const (
	Auto      Policy = "auto"
	Refuse    Policy = "refuse"
	Serialize Policy = "serialize"
)

// List names one of the lists of which a server says that it changed.
type List string

// The lists.
const (
	Tools     List = "tools"
	Prompts   List = "prompts"
	Resources List = "resources"
)

// Config says how a Mux reaches the rest.
type Config struct {
	Server     string // for errors
	Generation uint64 // of the connection, for errors
	Policy     Policy // "" is Auto
	// Sole says that the connection belongs to one session: requests, log messages and
	// unknown notifications outside any call go to its only peer.
	Sole bool
	// Post queues a frame for the server. It must not block. Required.
	Post func([]byte)
	// Send queues a call of the mux's own, likewise; nil has Post do it.
	Send func(*upstream.Message)
	// Cancel tells the transport, on a connection of the newer era, that nobody waits for
	// a call any more. It must not block. nil leaves it to notifications/cancelled.
	Cancel func(*upstream.Message)
	// Changed is called when the server says that a list changed. nil ignores it.
	Changed func(List)
	// Log takes a log message (a whole notification) that no client owns. nil drops it.
	Log func([]byte)
	// Metrics counts the clients' calls; nil counts nothing.
	Metrics *Metrics
	// Roots answers roots/list outside any call with a result; nil gives no roots.
	Roots func() []byte
}

// Mux multiplexes one connection. Its methods may be called at any time; Receive
// must be called by one goroutine.
type Mux struct {
	cfg    Config  // constant after New
	counts *counts // likewise; nil counts nothing

	lastCall atomic.Int64 // Unix nanoseconds at which a client's call last began or ended
	strays   atomic.Int64 // answers and progress for no call in flight

	mu      sync.Mutex // guards what follows, members and calls included
	lost    *fault.Error
	next    uint64
	calls   map[uint64]*Call
	members map[Peer]*member
	serial  bool
	queue   []*Call // waiting for their turn, first in first out
	busy    int     // live calls of members
	subs    map[string]*subscription
	level   int // what upstream was told last; unset or unknown
	asks    map[string]*Ask
	posts   []post // for the server once mu is released
	newer   *newer // of a connection without a handshake, else nil
}

// post is what is due at the transport: a frame, a call of our own, or the end of a call.
type post struct {
	frame  []byte
	call   *Call
	cancel bool
}

// member is what a peer has on this connection while it has anything.
type member struct {
	joined bool     // by Join, and stays until Leave
	live   []*Call  // in order of their beginning
	first  [1]*Call // room for live: most clients make one call at a time
	level  int
	uris   map[string]struct{}
}

// New returns a Mux for a connection whose handshake is done.
func New(cfg Config) *Mux {
	if cfg.Policy == "" {
		cfg.Policy = Auto
	}
	m := &Mux{
		cfg:     cfg,
		counts:  cfg.Metrics.of(cfg.Server),
		calls:   map[uint64]*Call{},
		members: map[Peer]*member{},
		serial:  cfg.Policy == Serialize,
		subs:    map[string]*subscription{},
		level:   levelUnset,
		asks:    map[string]*Ask{},
	}
	m.lastCall.Store(time.Now().UnixNano())
	return m
}

// delivery is the end of a call that its outlet learns of once the lock is released:
// an error, or nil for no answer.
type delivery struct {
	out Outlet
	id0 []byte
	err *fault.Error
}

func deliver(ds []delivery) {
	for _, d := range ds {
		if f, ok := d.out.(Failer); ok && d.err != nil && f.Failed(d.err) {
			continue
		}
		var p Pieces
		if d.err != nil {
			p = errorPieces(d.id0, d.err.RPC())
		}
		d.out.Done(p)
	}
}

// Begin takes a request of p (nil: of roundhouse itself) with its routing members
// and gives it an id of ours. A nil Call means that nothing is to be sent: the
// answer reached out or will. Otherwise the caller waits for Ready and then calls
// Send, or ends the call by Fail. The error is an *fault.Error; out is not used then.
func (m *Mux) Begin(p Peer, f wire.Frame, r wire.Routing, out Outlet) (*Call, error) {
	m.mu.Lock()
	if m.lost != nil {
		err := m.lostErrorLocked(false)
		m.mu.Unlock()
		return nil, err
	}
	c := &Call{m: m, peer: p, method: f.Method, out: out, level: levelUnset, logs: levelOf(r.LogLevel.Of(f.Raw))}
	c.keep(f.ID(), r.ProgressToken.Of(f.Raw))
	named := m.newer != nil
	if p != nil {
		verdict := m.interceptLocked(p, c, f, r)
		if verdict != forward {
			m.unlock()
			if verdict == answered {
				out.Done(resultPieces(c.id0, emptyResult))
			}
			return nil, nil
		}
	}
	m.registerLocked(c)
	if c.peer != nil {
		if m.mayStartLocked(p) {
			m.startLocked(c)
		} else {
			c.waiting = true
			c.ready = make(chan struct{})
			m.queue = append(m.queue, c)
		}
	}
	m.mu.Unlock()
	// Nobody else looks at the message; copying takes time.
	c.message.ID, c.message.Method = strconv.AppendUint(nil, c.id, 10), c.method
	c.message.Bytes = c.rewrite(f, r)
	if named {
		c.message.Name = nameOf(f, r)
	}
	return c, nil
}

// registerLocked gives c an id of ours.
func (m *Mux) registerLocked(c *Call) {
	m.next++
	c.id = m.next
	c.Message = &c.message
	m.calls[c.id] = c
}

// unlock releases the lock and then posts what was decided under it.
func (m *Mux) unlock() {
	posts := m.posts
	m.posts = nil
	m.mu.Unlock()
	for _, p := range posts {
		switch {
		case p.cancel:
			m.cfg.Cancel(p.call.Message)
		case p.call != nil:
			_ = p.call.Send(m.sendOwn) // which has no error
		default:
			m.cfg.Post(p.frame)
		}
	}
}

// sendOwn gives a call of our own to the transport.
func (m *Mux) sendOwn(message *upstream.Message) error {
	if m.cfg.Send != nil {
		m.cfg.Send(message)
	} else {
		m.cfg.Post(message.Bytes)
	}
	return nil
}

// endLocked takes c out of every table and lets the next ones start.
func (m *Mux) endLocked(c *Call, how ending) {
	c.ended = true
	c.course.CompareAndSwap(begun, stopped)
	delete(m.calls, c.id)
	if c.peer != nil {
		now := time.Now().UnixNano()
		m.lastCall.Store(now)
		if c.waiting {
			m.unqueueLocked(c)
		} else {
			m.finishLocked(c, how, now)
		}
	}
	m.admitLocked()
	if c.after != nil {
		c.after(how == endResult)
	}
}

func (m *Mux) lostErrorLocked(sent bool) *fault.Error {
	e := *m.lost
	e.Sent = fault.SentNo
	if sent {
		e.Sent = fault.SentMaybe
	}
	return &e
}

// Lose ends the connection for everybody (R2): every call gets err, with Sent
// saying whether its bytes may have left, and later calls get it at once. Only
// the first Lose counts.
func (m *Mux) Lose(err *fault.Error) {
	m.mu.Lock()
	if m.lost != nil {
		m.mu.Unlock()
		return
	}
	lost := *err
	lost.Server, lost.Generation = m.cfg.Server, m.cfg.Generation
	m.lost = &lost
	var ds []delivery
	for _, c := range m.calls {
		ds = append(ds, delivery{c.out, c.id0, m.lostErrorLocked(c.Message.Sent())})
	}
	for _, c := range m.calls {
		m.endLocked(c, endLost)
	}
	asks := m.asks
	m.asks = map[string]*Ask{}
	m.newer.stopLocked()
	m.mu.Unlock()
	deliver(ds)
	for _, a := range asks {
		a.peer.Unask(a)
	}
}

// Leave takes a client off the connection: its calls get err (nil: no answer) and
// are cancelled upstream, requests that it was asked are answered with an error,
// its subscriptions and level end. It is harmless for a peer that never came.
func (m *Mux) Leave(p Peer, err *fault.Error) {
	var ds []delivery
	m.mu.Lock()
	for _, c := range slices.Clone(m.queue) { // before its live calls, whose end might admit them
		if c.peer == p {
			ds = append(ds, delivery{c.out, c.id0, err})
			m.endLocked(c, endCancelled)
		}
	}
	if mem := m.members[p]; mem != nil {
		for _, c := range slices.Clone(mem.live) {
			ds = append(ds, delivery{c.out, c.id0, err})
			if !m.releaseLocked(c) {
				m.cancelLocked(c, cancelFrame(strconv.AppendUint(nil, c.id, 10), "the client left"))
				m.endLocked(c, endCancelled)
			}
		}
	}
	for _, s := range m.subs {
		for _, w := range s.drop(p) {
			ds = append(ds, delivery{w.out, w.id0, err})
		}
	}
	for key, a := range m.asks {
		if a.peer == p {
			delete(m.asks, key)
			m.posts = append(m.posts, post{frame: wire.ErrorReply(a.id, wire.ErrorObject(wire.InternalError, "the client that was asked has left"))})
		}
	}
	if mem := m.members[p]; mem != nil {
		m.forgetLocked(p, mem)
	}
	m.unlock()
	deliver(ds)
}

// InFlight returns the number of clients' calls that are open, waiting ones too.
func (m *Mux) InFlight() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.busy + len(m.queue)
}

// LastCall returns when a client's call last began or ended; before the first one
// it is the time of New.
func (m *Mux) LastCall() time.Time { return time.Unix(0, m.lastCall.Load()) }

// Strays returns how many answers and progress notifications came for no call in
// flight.
func (m *Mux) Strays() int64 { return m.strays.Load() }

// Serial reports whether the connection runs one client's calls at a time.
func (m *Mux) Serial() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.serial
}

func (m *Mux) memberLocked(p Peer) *member {
	mem := m.members[p]
	if mem == nil {
		mem = &member{level: levelUnset}
		mem.live = mem.first[:0]
		m.members[p] = mem
	}
	return mem
}

// dropIdleLocked forgets a member that has nothing any more.
func (m *Mux) dropIdleLocked(p Peer, mem *member) {
	if !mem.joined && len(mem.live) == 0 && mem.level == levelUnset && len(mem.uris) == 0 {
		delete(m.members, p)
	}
}
