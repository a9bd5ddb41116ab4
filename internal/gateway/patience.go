package gateway

import (
	"sync"
	"time"
)

// patience notices the answers that take longer than limit. One timer serves them all:
// a timer for each would wake a thread of the runtime for every call.
type patience struct {
	limit time.Duration // constant

	mu          sync.Mutex
	first, last *wait // those that began first come first
	timer       *time.Timer
	armed       bool // the timer runs
}

// wait is one answer that somebody waits for. The zero value is ready; all its fields are
// guarded by the mutex of its patience.
type wait struct {
	late           func() // nil once it was called or the wait is over
	since          time.Time
	earlier, later *wait
}

// begin has late called after the limit, once, unless end comes first. late must not
// block; it may still run when end has returned.
func (p *patience) begin(w *wait, late func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.late, w.since, w.earlier = late, time.Now(), p.last
	if p.last == nil {
		p.first = w
	} else {
		p.last.later = w
	}
	p.last = w
	p.armLocked()
}

// end is the end of a wait; the second time it does nothing.
func (p *patience) end(w *wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeLocked(w)
}

// removeLocked takes w out, and returns what was to be called.
func (p *patience) removeLocked(w *wait) (late func()) {
	if late = w.late; late == nil {
		return nil
	}
	if w.earlier == nil {
		p.first = w.later
	} else {
		w.earlier.later = w.later
	}
	if w.later == nil {
		p.last = w.earlier
	} else {
		w.later.earlier = w.earlier
	}
	*w = wait{}
	return late
}

// armLocked sets the timer for the first wait. When that ends in time the timer is left
// alone: waits are many, and the limit is long.
func (p *patience) armLocked() {
	switch {
	case p.armed || p.first == nil:
		return
	case p.timer == nil:
		p.timer = time.AfterFunc(time.Until(p.first.since.Add(p.limit)), p.expire)
	default:
		p.timer.Reset(time.Until(p.first.since.Add(p.limit)))
	}
	p.armed = true
}

func (p *patience) expire() {
	var late []func()
	p.mu.Lock()
	for p.first != nil && time.Since(p.first.since) >= p.limit {
		late = append(late, p.removeLocked(p.first))
	}
	p.armed = false
	p.armLocked()
	p.mu.Unlock()
	for _, f := range late {
		f()
	}
}
