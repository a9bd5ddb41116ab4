package pool

import (
	"errors"
	"math/rand/v2"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// recovery is how far an entry is with replacing a connection (R3, R6).
type recovery struct {
	most    int       // attempts that there may be
	asked   bool      // by a person: it goes on if nobody holds the entry, and does not try again
	tries   int       // attempts that were due and have begun
	due     time.Time // of the next one
	dialing bool
	wanted  bool // somebody waits for the next attempt, which need not be due
	early   bool // such an attempt was made before the one that is due
}

// recoverLocked puts a live entry into recovery: old is its connection no more. The
// first attempt begins once old has been buried.
func (p *Pool) recoverLocked(e *entry, old *connection, r recovery) {
	for k := range e.before {
		e.before[k] = old.cat.peek(Kind(k))
	}
	e.generation++
	e.ready = make(chan struct{})
	e.recovery = r
	p.setLocked(e, Recovering)
}

// resume goes on with a recovery when nothing is left of what was there before: the
// lost connection, or the attempt that failed. Two processes of one entry never live at
// the same time.
func (p *Pool) resume(e *entry, generation uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.state == Recovering && e.generation == generation {
		p.attemptLocked(e)
	}
}

// attemptLocked begins the next attempt of a recovery, or waits until it is due. Who
// needs the connection need not wait for that, once for each that is due: what is tried
// again and again must keep its distance however many ask for it.
func (p *Pool) attemptLocked(e *entry) {
	r := &e.recovery
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	wait := time.Until(r.due)
	switch {
	case !r.asked && !e.heldLocked():
		p.failLocked(e)
		return
	case wait <= 0:
		r.tries++
		r.early = false
	case r.wanted && !r.early:
		r.early = true
	default:
		e.due = r.due
		var timer *time.Timer
		timer = time.AfterFunc(wait, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if e.timer == timer { // else the entry went on while the timer fired
				p.attemptLocked(e)
			}
		})
		e.timer = timer
		return
	}
	r.dialing, r.wanted = true, false
	p.dialLocked(e)
}

// hastenLocked is called when somebody has come who needs a recovering entry's
// connection.
func (p *Pool) hastenLocked(e *entry) {
	if e.recovery.dialing {
		return
	}
	e.recovery.wanted = true
	if e.timer != nil { // else something has to end first
		p.attemptLocked(e)
	}
}

// tryAgainLocked decides, when an attempt has failed with e.err, whether there will be
// another. A server that wants a login would want it again, and one that has changed its
// era is for the next who comes.
func (p *Pool) tryAgainLocked(e *entry) bool {
	r := &e.recovery
	if e.state != Recovering || r.asked || !e.heldLocked() || r.tries >= r.most || fault.Is(e.err, fault.NeedsLogin) || errors.Is(e.err, ErrOtherEra) {
		return false
	}
	if !r.early {
		r.due = time.Now().Add(delayBefore(e.server.Recovery, r.tries+1))
	}
	r.dialing = false
	e.generation++
	return true
}

// jitter is the part of a delay by which it may be longer or shorter, so that what was
// lost at once does not come back at once.
const jitter = 0.2

// delayBefore is the distance of an attempt, the first being 1, from what was before it.
func delayBefore(c config.Recovery, attempt int) time.Duration {
	delay := c.Delay
	for range attempt - 1 {
		if delay >= c.MaxDelay {
			break
		}
		delay *= 2
	}
	delay = min(delay, max(c.Delay, c.MaxDelay))
	return time.Duration(float64(delay) * (1 - jitter + 2*jitter*rand.Float64()))
}
