package gateway

import (
	"net/http"
	"sync"
	"time"

	"roundhouse/internal/era"
	"roundhouse/internal/mux"
	"roundhouse/internal/session"
	"roundhouse/internal/sse"
	"roundhouse/internal/wire"
)

// exchange is one POST of 2026-07-28: frames wait in its queue until they are written
// as its answer. Nothing of it can be resumed: it ends with its response. It is the
// outlet of a call, or the stream of a client that listens.
type exchange struct {
	// Constant.
	g    *Gateway
	call *call
	me   *reader // stopped when the client reads too slowly, or the daemon ends what stands
	wake chan struct{}
	late chan struct{} // tells that the client has waited for the keep-alive interval

	waiting wait // of write

	mu      sync.Mutex
	held    bool   // notifications wait for the acknowledgement (listening)
	first   []byte // the acknowledgement, until it is written
	granted session.Watch
	queue   []mux.Pieces
	answer  mux.Pieces
	bytes   int  // in queue and answer
	over    bool // the answer is there
	lost    bool // nobody will read what comes
}

func newExchange(g *Gateway, k *call) *exchange {
	return &exchange{g: g, call: k, me: newReader(), wake: make(chan struct{}, 1), late: make(chan struct{}, 1)}
}

// Note implements mux.Outlet. A client that does not read loses its stream (H4).
func (x *exchange) Note(p mux.Pieces) {
	x.mu.Lock()
	full := false
	if !x.over && !x.lost {
		if full = x.fullLocked(p.Len()); full {
			x.dropLocked()
		} else {
			x.queue = append(x.queue, p)
			x.countLocked(p.Len())
		}
	}
	x.mu.Unlock()
	if full {
		x.g.metrics.cut.Inc()
		x.g.cfg.Log.Warn("a client reads too slowly; its stream was closed", "method", x.call.frame.Method)
		x.me.stop()
	}
	x.signal()
}

// fullLocked reports whether n more bytes are too many for the queue.
func (x *exchange) fullLocked(n int) bool {
	times := burst
	if x.me.slow() {
		times = 1
	}
	return len(x.queue) > 0 && (len(x.queue) >= times*maxQueuedFrames || x.bytes+n > times*maxQueuedBytes ||
		x.g.queued.Load()+int64(n) > maxQueuedTotal)
}

// Done implements mux.Outlet.
func (x *exchange) Done(p mux.Pieces) {
	x.mu.Lock()
	if !x.over && !x.lost {
		x.answer, x.over = p, true
		x.countLocked(p.Len())
	}
	x.mu.Unlock()
	x.signal()
}

func (x *exchange) fail(err error) {
	x.Done(session.Failure(x.call.frame.ID(), err))
}

func (x *exchange) signal() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func (x *exchange) countLocked(n int) {
	x.bytes += n
	x.g.queued.Add(int64(n))
}

// dropLocked gives everything up.
func (x *exchange) dropLocked() {
	x.lost = true
	x.first, x.queue, x.answer = nil, nil, mux.Pieces{}
	x.countLocked(-x.bytes)
}

func (x *exchange) drop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropLocked()
}

// take takes what may be written now out of the queue: notifications as the client
// gets them, then the answer.
func (x *exchange) take() (notes [][]byte, answer mux.Pieces, over bool) {
	x.mu.Lock()
	if x.held && !x.over {
		x.mu.Unlock()
		return nil, answer, false
	}
	first, queue, granted := x.first, x.queue, x.granted
	if x.held { // what was not acknowledged is not told
		queue = nil
	}
	answer, over = x.answer, x.over
	x.first, x.queue, x.answer = nil, nil, mux.Pieces{}
	x.countLocked(-x.bytes)
	x.mu.Unlock()
	if first != nil {
		notes = append(notes, first)
	}
	for _, p := range queue {
		if raw := x.call.shown(p, granted); raw != nil {
			notes = append(notes, raw)
		}
	}
	return notes, answer, over
}

// write writes the answer: as JSON when it is alone, as an event stream as soon as
// something precedes it (H2), or when it is slow, so that comments keep the connection
// alive (H4).
func (x *exchange) write(w http.ResponseWriter, r *http.Request) {
	defer x.drop()
	patience := &x.g.patience
	patience.begin(&x.waiting, func() { x.late <- struct{}{} })
	defer patience.end(&x.waiting)
	var out *sse.Writer
	var keep *time.Timer // from begin on
	var silent <-chan time.Time
	begin := func() {
		if out == nil {
			patience.end(&x.waiting)
			out = sse.NewWriter(w, x.g.cfg.WriteDeadline)
			keep = time.NewTimer(x.g.cfg.KeepAlive)
			silent = keep.C
		}
	}
	stopped := x.me.done
	for {
		select {
		case <-x.wake:
		case <-x.late:
			begin()
			out.Comment("keep-alive")
		case <-silent:
			out.Comment("keep-alive")
		case <-stopped:
			if stopped = nil; !x.close() {
				return
			}
		case <-r.Context().Done():
			return
		}
		x.me.writing.Store(time.Now().UnixNano())
		notes, answer, over := x.take()
		for _, raw := range notes {
			begin()
			out.Event("", raw)
		}
		switch {
		case !over:
		case answer.Empty(): // cancelled: nothing follows
			begin()
		case out == nil:
			raw := whole(answer)
			writeJSON(w, statusOf(raw), raw)
			return
		default:
			out.Event("", whole(answer))
		}
		if out != nil && out.Flush() != nil || over {
			return
		}
		x.me.writing.Store(0)
		if keep != nil {
			keep.Reset(x.g.cfg.KeepAlive)
		}
	}
}

// shown is a notification as the client gets it, or nil if it is not for this one: a
// stream holds what belongs to its request, and log messages only if it asked for
// them. granted is what a client that listens is told of.
func (k *call) shown(p mux.Pieces, granted session.Watch) []byte {
	raw := p.AppendTo(nil)
	f, err := wire.Parse(raw)
	if err != nil || f.Kind != wire.Notification {
		return nil
	}
	if k.frame.Method == wire.SubscriptionsListen {
		return k.heard(f, granted)
	}
	if f.Method == wire.Message && k.visit.LogLevel == nil || era.OfOlderOnly(f.Method) {
		return nil
	}
	return raw
}

// whole is a frame in one piece.
func whole(p mux.Pieces) []byte {
	if len(p[1]) == 0 && len(p[2]) == 0 {
		return p[0]
	}
	return p.AppendTo(nil)
}
