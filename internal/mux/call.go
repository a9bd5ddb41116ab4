package mux

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// Call is one request on its way to the server and back.
type Call struct {
	// Message is what Send gives to the transport.
	Message *upstream.Message

	// Constant after Begin.
	m       *Mux
	id      uint64
	method  string
	id0     []byte           // the client's id
	token   []byte           // the client's progress token, or nil
	ready   chan struct{}    // nil when admitted at once
	after   func(ok bool)    // called with m.mu held when the call has ended; ok: with a result
	sub     *subscription    // for all whose subscribers the call is made, or nil
	level   int              // to be sent instead of the client's, or unset
	logs    int              // of the log messages that the request asks for, or unset; newer era only
	message upstream.Message // that Message points to

	noted atomic.Int64 // Unix nanoseconds of the last progress

	// Whether it was given to the transport or ended first. A call that ended before
	// it was given has its notice from then on.
	course atomic.Int32

	// Guarded by m.mu.
	peer    Peer   // nil for roundhouse's own calls, and when its client has left it
	out     Outlet // nobody when its client has left it
	turn    int64  // Unix nanoseconds of a client's call's turn; 0 before it
	waiting bool
	ended   bool
	notice  []byte // tells the server that nobody waits for it; constant once course is stopped
}

// The courses of a call.
const (
	begun   = iota
	given   // to the transport
	stopped // before it was given, or while it was
)

// keep copies the client's id and token: who holds the answer must not hold the
// whole request with it.
func (c *Call) keep(id, token []byte) {
	b := append(append(make([]byte, 0, len(id)+len(token)), id...), token...)
	c.id0 = b[:len(id):len(id)]
	if token != nil {
		c.token = b[len(id):]
	}
}

// rewrite puts our id (and our token, and a level that differs from what the
// client asked) into the client's frame.
func (c *Call) rewrite(f wire.Frame, r wire.Routing) []byte {
	var level []byte
	if c.level != levelUnset {
		level = wire.Quote(levels[c.level])
	}
	var spans [3]wire.Span
	places := append(spans[:0], f.IDSpan)
	if r.ProgressToken.Present() {
		places = append(places, r.ProgressToken)
	}
	if level != nil {
		places = append(places, r.Level)
	}
	slices.SortFunc(places, func(a, b wire.Span) int { return a.Start - b.Start })

	var edits [3]wire.Edit
	for i, at := range places {
		edits[i] = wire.Edit{At: at, With: c.message.ID}
		if level != nil && at == r.Level {
			edits[i].With = level
		}
	}
	return wire.Splice(nil, f.Raw, edits[:len(places)]...)
}

// Ready returns a channel that is closed when the call may be sent, or nil when
// it may be sent at once.
func (c *Call) Ready() <-chan struct{} { return c.ready }

// Send gives the message to send, once, unless the call has ended by now. One that ends
// meanwhile is cancelled when send is done: servers forget the cancellation of what they
// have not seen yet. The error is that of send.
func (c *Call) Send(send func(*upstream.Message) error) error {
	if c.course.Load() == stopped {
		return nil
	}
	if err := send(c.Message); err != nil {
		return err
	}
	if !c.course.CompareAndSwap(begun, given) && c.notice != nil {
		c.m.cancel(c)
	}
	return nil
}

// LastProgress returns when progress last came, or the zero time.
func (c *Call) LastProgress() time.Time {
	if n := c.noted.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// Cancel ends the call at its client's wish: no answer follows. frame is the
// client's notifications/cancelled and at the place of its requestId, or a zero
// Frame. It reports whether the client was still waiting. A call that others may
// wait for too goes on without it, and so does one that changes what the server has
// been told for all.
func (c *Call) Cancel(frame wire.Frame, at wire.Span) bool {
	if c.sub != nil {
		return c.sub.withdraw(c)
	}
	return c.stop(Pieces{}, true, func(id []byte) []byte {
		if frame.Raw == nil {
			return cancelFrame(id, "")
		}
		return wire.Splice(nil, frame.Raw, wire.Edit{At: at, With: id})
	})
}

// Fail ends the call with an error for its client and tells the server that it
// was cancelled. It reports whether the call was still open.
func (c *Call) Fail(err *fault.Error) bool {
	return c.stop(errorPieces(c.id0, err.RPC()), false, func(id []byte) []byte {
		return cancelFrame(id, string(err.Reason))
	})
}

// stop ends the call, or, where its client leaves it, what it is to the client.
func (c *Call) stop(answer Pieces, left bool, notice func(id []byte) []byte) bool {
	m := c.m
	m.mu.Lock()
	if c.ended || left && c.peer == nil {
		m.mu.Unlock()
		return false
	}
	out := c.out
	switch {
	case left && m.releaseLocked(c):
	case c.waiting:
		m.endLocked(c, endCancelled)
	default:
		m.cancelLocked(c, notice(strconv.AppendUint(nil, c.id, 10)))
		m.endLocked(c, endCancelled)
	}
	m.unlock()
	out.Done(answer)
	return true
}

// releaseLocked takes a call from its client that goes on without him, and reports
// whether it is one: what the server has been told for all is known only once the call
// has its answer, since it may reach the server after others that were made later.
func (m *Mux) releaseLocked(c *Call) bool {
	if c.after == nil || c.waiting {
		return false
	}
	m.finishLocked(c, endCancelled, time.Now().UnixNano())
	c.peer, c.out = nil, nobody{}
	m.admitLocked()
	return true
}

func cancelFrame(id []byte, reason string) []byte {
	params := append([]byte(`{"requestId":`), id...)
	if reason != "" {
		params = append(append(params, `,"reason":`...), wire.Quote(reason)...)
	}
	return wire.NewNotification(wire.Cancelled, append(params, '}'))
}

// cancelLocked tells the server that nobody waits for c any more; while it is not known
// whether the server will get c, that is left to Send.
func (m *Mux) cancelLocked(c *Call, notice []byte) {
	c.notice = notice
	if !c.course.CompareAndSwap(begun, stopped) {
		m.withdrawLocked(c)
	}
}

// cancel tells the server that nobody waits any more for a call which ended while it
// was given to the transport.
func (m *Mux) cancel(c *Call) {
	m.mu.Lock()
	m.withdrawLocked(c)
	m.unlock()
}

func (m *Mux) withdrawLocked(c *Call) {
	m.posts = append(m.posts, post{frame: c.notice})
	if m.newer != nil && m.cfg.Cancel != nil {
		m.posts = append(m.posts, post{call: c, cancel: true})
	}
}
