package model

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// Answer is what came of a call. It is read by one goroutine, which closes it.
type Answer struct {
	Status int
	Header http.Header // for the client, without what is about the connection
	Turn   string      // the id of the recorded turn, "" if it is not recorded

	source interface {
		read(p []byte) (int, error)
		ready() bool
		close()
	}
}

// Ready reports whether Read certainly would not wait now.
func (a *Answer) Ready() bool { return a.source.ready() }

// Read reads the answer. It ends with io.EOF, once the turn is stored, or with
// ErrAborted if the connection is to be broken off; or with the error of Do's context.
func (a *Answer) Read(p []byte) (int, error) { return a.source.read(p) }

// Close lets go of the answer. What was read of it counts as delivered, except the last
// piece if nothing was read after it.
func (a *Answer) Close() error {
	a.source.close()
	return nil
}

// outletBytes is how much of an answer may wait for its client (A.14).
const outletBytes = 1 << 20

// outlet holds what a turn has for its client, so that neither waits for the other
// longer than need be. The turn begins, writes and ends; the client reads and leaves.
type outlet struct {
	// Constant.
	queued    *quota
	patience  time.Duration // with a client that takes nothing
	keepAlive time.Duration
	left      func()        // called, once, when the client leaves before the end
	begun     chan struct{} // closed when head or failure is set
	over      chan struct{} // closed when the client has left, or has everything
	filled    chan struct{} // tells the client that there is something
	emptied   chan struct{} // tells the turn that there is room

	// Guarded by mu.
	mu      sync.Mutex
	head    *Answer // nil if there is none
	failure *Error  // in its place
	buf     []byte
	holding bool  // comments may be sent
	end     error // io.EOF or ErrAborted once nothing follows buf
	gone    bool  // the client has left
	handed  int64 // bytes that were read
	settled int64 // of them, those that were certainly sent on
	full    bool  // the client has read the end
}

func newOutlet(m *Models, left func()) *outlet {
	return &outlet{
		queued: m.queued, patience: m.cfg.WriteDeadline, keepAlive: m.cfg.KeepAlive, left: left,
		begun: make(chan struct{}), over: make(chan struct{}), filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1),
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// answer waits for the head.
func (o *outlet) answer(ctx context.Context, turn string) (*Answer, error) {
	select {
	case <-o.begun:
	case <-ctx.Done():
		o.leave()
		return nil, context.Cause(ctx)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failure != nil {
		return nil, o.failure
	}
	return &Answer{Status: o.head.Status, Header: o.head.Header, Turn: turn, source: &reader{o, ctx}}, nil
}

// begin gives the client a head. It is called once, or fail is.
func (o *outlet) begin(status int, h http.Header) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.head = &Answer{Status: status, Header: h}
	close(o.begun)
}

// hasBegun reports whether the client has a head.
func (o *outlet) hasBegun() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.head != nil
}

// fail gives the client an error in place of an answer.
func (o *outlet) fail(e *Error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failure, o.end = e, io.EOF
	close(o.begun)
	o.overLocked()
}

// write gives the client bytes. It waits for room, and gives the client up if it takes
// nothing for too long.
func (o *outlet) write(p []byte) {
	for len(p) > 0 {
		n := min(len(p), outletBytes)
		o.put(p[:n], nil)
		p = p[n:]
	}
}

// finish is write, and says that nothing more follows; err is io.EOF or ErrAborted. It says
// so together with the last bytes, or a client might have them, and leave, and count as one
// that did not get everything.
func (o *outlet) finish(p []byte, err error) {
	last := max(0, len(p)-outletBytes)
	o.write(p[:last])
	o.put(p[last:], err)
}

// put adds at most outletBytes, and the end if it is not nil.
func (o *outlet) put(p []byte, end error) {
	n := len(p)
	fits := n == 0 || o.room(n)
	o.mu.Lock()
	switch {
	case !fits:
	case o.gone:
		o.queued.give(int64(n))
	default:
		o.buf = append(o.buf, p...)
	}
	if o.end == nil {
		o.end = end
	}
	o.mu.Unlock()
	signal(o.filled)
}

// room waits until n bytes may be added, which it counts. It reports false if the client
// has left. A client that has taken everything has the next piece whatever else waits in
// memory: it is not to be taken for one that stalls.
func (o *outlet) room(n int) bool {
	var stalled <-chan time.Time
	for {
		o.mu.Lock()
		gone, waiting := o.gone, len(o.buf)
		o.mu.Unlock()
		switch {
		case gone:
			return false
		case waiting == 0:
			o.queued.add(int64(n))
			return true
		case waiting+n <= outletBytes && o.queued.take(int64(n)):
			return true
		case stalled == nil:
			stalled = time.After(o.patience)
		}
		select {
		case <-o.emptied:
			stalled = nil
		case <-o.over:
		case <-stalled:
			o.leave()
		}
	}
}

// hold says that the end is held back from now on.
func (o *outlet) hold() {
	o.mu.Lock()
	o.holding = true
	o.mu.Unlock()
	signal(o.filled)
}

// leave is the client's, or gives the client up. It may be called more than once.
func (o *outlet) leave() {
	o.mu.Lock()
	early := !o.gone && !o.full && o.failure == nil
	if !o.gone {
		o.gone = true
		o.queued.give(int64(len(o.buf)))
		o.buf = nil
		o.overLocked()
	}
	o.mu.Unlock()
	signal(o.filled) // a client that was given up is told
	if early {
		o.left()
	}
}

func (o *outlet) overLocked() {
	select {
	case <-o.over:
	default:
		close(o.over)
	}
}

// delivered returns how much the client got. It is called when over is closed.
func (o *outlet) delivered() (bytes int64, full bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.settled, o.full
}

// reader is the client's side of an outlet.
type reader struct {
	o   *outlet
	ctx context.Context // of the request that is answered
}

// keepAliveComment keeps a connection alive. There is no blank line behind it, which
// some clients take for an event (A.9).
const keepAliveComment = ": keepalive\n"

func (r *reader) read(p []byte) (int, error) {
	o := r.o
	var quiet <-chan time.Time
	for {
		n, holding, err := o.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		if holding && quiet == nil && o.keepAlive > 0 {
			quiet = time.After(o.keepAlive)
		}
		select {
		case <-o.filled:
		case <-quiet:
			return copy(p, keepAliveComment), nil
		case <-r.ctx.Done():
			o.leave()
			return 0, context.Cause(r.ctx)
		}
	}
}

func (r *reader) ready() bool {
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	return len(r.o.buf) > 0 || r.o.end != nil
}

func (r *reader) close() { r.o.leave() }

// take takes what there is. That it is called says that what it gave before was sent on.
func (o *outlet) take(p []byte) (n int, holding bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settled = o.handed
	if o.gone && !o.full {
		return 0, false, ErrAborted // it was given up: what is missing must not look like the whole
	}
	if len(o.buf) > 0 {
		n = copy(p, o.buf)
		o.handed += int64(n)
		o.queued.give(int64(n))
		if n == len(o.buf) {
			o.buf = o.buf[:0]
		} else {
			o.buf = append(o.buf[:0], o.buf[n:]...)
		}
		signal(o.emptied)
		return n, o.holding, nil
	}
	if o.end != nil {
		o.full = o.full || !o.gone
		o.overLocked()
	}
	return 0, o.holding, o.end
}
