package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"roundhouse/internal/era"
	"roundhouse/internal/event"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
)

// The one door of an entry's state: every transition is here. Functions that end
// in Locked run with Pool.mu held and never wait.

func (p *Pool) setLocked(e *entry, s State) {
	if e.state.terminal() {
		panic(fmt.Sprintf("pool: %s leaves the terminal state %s for %s", e.id, e.state, s))
	}
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	p.announceLocked(e, s)
	e.state, e.changed = s, time.Now()
	generation := e.generation
	p.tellLocked(e, func() {
		p.cfg.Log.Info("connection "+string(s), "server", e.name, "connection", e.id, "generation", generation)
	})
}

// announceLocked publishes that an entry is about to change to the state s.
func (p *Pool) announceLocked(e *entry, s State) {
	p.countRecoveryLocked(e, s)
	x := event.Event{}
	switch s {
	case Active:
		switch {
		case !e.restart.IsZero():
			x.Kind, x.DurationMs = event.ConnectionRestarted, new(time.Since(e.restart).Milliseconds())
			e.restart = time.Time{}
		case e.state == Draining:
			x.Kind = event.ConnectionResumed
		case e.state == Recovering:
			x.Kind = event.ConnectionRecovered
		default:
			x.Kind = event.ConnectionOpened
		}
	case Draining:
		x.Kind = event.ConnectionDraining
	case Recovering:
		x.Kind = event.ConnectionRecovering
	case Failed:
		x.Kind, x.Reason = event.ConnectionFailed, e.err.Error()
	case Closed:
		x.Kind, x.Reason = event.ConnectionClosed, e.err.Error()
	}
	p.publishLocked(e, x)
}

// countRecoveryLocked counts the end of a recovery that is no restart, when the entry is
// about to change to the state s.
func (p *Pool) countRecoveryLocked(e *entry, s State) {
	if e.state != Recovering || !e.restart.IsZero() {
		return
	}
	outcome := outcomeUnwanted
	switch {
	case s == Active:
		outcome = outcomeOK
	case s == Failed && e.heldLocked():
		outcome = outcomeFailed
	}
	p.metrics.recoveries.WithLabelValues(e.name, outcome).Inc()
}

// publishLocked publishes what happens to an entry, in the order of its news.
func (p *Pool) publishLocked(e *entry, x event.Event) {
	x.Time, x.Principal = time.Now(), e.principal
	x.Server, x.Connection, x.EntryIndex, x.Generation = e.name, e.id, new(e.index), e.generation
	p.tellLocked(e, func() { p.cfg.Events.Publish(x) })
}

// tellLocked has f called without the lock, after whatever else is to be told of
// the entry. What is slow to hear, a listener or the log, holds up only the rest of
// this entry's news.
func (p *Pool) tellLocked(e *entry, f func()) {
	e.news = append(e.news, f)
	if !e.telling {
		e.telling = true
		p.wg.Go(func() { p.tell(e) })
	}
}

func (p *Pool) tell(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(e.news) > 0 {
		news := e.news
		e.news = nil
		p.mu.Unlock()
		for _, f := range news {
			f()
		}
		p.mu.Lock()
	}
	e.telling = false
}

// tellSessionsLocked tells everybody who is attached now.
func (p *Pool) tellSessionsLocked(e *entry, f func(l Listener, a *Attachment)) {
	for a := range e.atts {
		p.tellLocked(e, func() { f(a.want.Listener, a) })
	}
}

func (p *Pool) tellLostLocked(e *entry, err *fault.Error) {
	p.tellSessionsLocked(e, func(l Listener, a *Attachment) { l.Lost(a, err) })
}

// spawnLocked makes an entry and dials it. One with an owner is unpooled.
func (p *Pool) spawnLocked(identity string, w Want, owner *Holder) *entry {
	e := &entry{
		id: identity, identity: identity, name: w.Server.Name, server: w.Server, capabilities: w.Capabilities, workspace: w.Workspace, tongue: w.tongue, owner: owner,
		created: time.Now(), changed: time.Now(), state: Spawning, generation: 1, ready: make(chan struct{}), atts: map[*Attachment]struct{}{},
	}
	if !w.Server.ShareAcrossPrincipals {
		e.principal = w.Principal
	}
	if owner != nil {
		p.unpooled++
		e.id = fmt.Sprintf("%s::unpooled-%d", e.name, p.unpooled)
		if owner.session == "" {
			owner.owned = append(owner.owned, e)
		}
	}
	if old := p.entries[e.id]; old != nil {
		e.index, e.generation = old.index, old.generation+1 // S8: it takes the failed one's place
		p.removeLocked(old)
	} else {
		e.index = p.next[e.name]
		p.next[e.name]++
	}
	p.entries[e.id] = e
	p.dialLocked(e)
	return e
}

// removeLocked takes a terminal entry out of the table.
func (p *Pool) removeLocked(e *entry) {
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	if p.entries[e.id] == e {
		delete(p.entries, e.id)
	}
}

// dialLocked starts the dial of a spawning or recovering entry. It belongs to the
// entry, not to the acquire that caused it (S2).
func (p *Pool) dialLocked(e *entry) {
	base, stop := context.WithCancelCause(context.Background())
	e.stop = stop
	p.dials[e]++
	generation, before, tongue := e.generation, e.before, e.tongue
	e.running.Add(1)
	p.wg.Go(func() {
		defer e.running.Done()
		ctx, cancel := context.WithTimeout(base, e.server.StartTimeout)
		defer cancel()
		d := dialed{
			server: e.server, generation: generation, capabilities: e.capabilities, workspace: e.workspace, tongue: tongue, sole: e.owner != nil,
			before: before, dial: p.cfg.Dial, clientInfo: p.clientInfo,
			metrics: p.metrics.calls,
			begun:   func(c *connection) { p.begun(e, c) },
			lost:    func(c *connection) { p.lost(e, c) },
			changed: func(c *connection, k Kind) { p.listChanged(e, c, k) },
		}
		c, err := open(ctx, d)
		if errors.Is(err, errProbed) {
			p.discard(e, c, err)
			d.tongue.era, d.tongue.fixed = era.Legacy, true
			c, err = open(ctx, d)
		}
		switch taken := p.dialEnded(e, generation, c, err); {
		case taken && c.ctx.Err() != nil:
			p.lost(e, c) // it ended before it was ours to lose
		case !taken && c != nil:
			c.end(errUnused)
			p.bury(e, c)
			fallthrough
		case !taken:
			p.resume(e, generation+1)
		}
	})
}

// dialEnded takes the outcome of a dial, unless the entry has moved on (R8), and
// reports whether the connection is now the entry's.
func (p *Pool) dialEnded(e *entry, generation uint64, c *connection, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dials[e]--; p.dials[e] == 0 {
		delete(p.dials, e)
	}
	delete(p.opening, c)
	dialed := func(outcome string) { p.metrics.dials.WithLabelValues(e.name, outcome).Inc() }
	if e.state.terminal() || e.generation != generation {
		if c != nil {
			p.dieLocked(e, c)
		}
		dialed(outcomeUnwanted)
		p.rearmLocked()
		return false
	}
	e.err = err
	if err != nil {
		dialed(outcomeFailed)
		p.learnFromLocked(e, nil, err)
		if c != nil {
			p.dieLocked(e, c)
		}
		p.tellLocked(e, func() {
			p.cfg.Log.Warn("a server did not start", "server", e.name, "connection", e.id, "err", err)
		})
		if p.tryAgainLocked(e) {
			return false
		}
		if e.state == Spawning {
			p.countFailureLocked(e, fault.Of(err))
		}
		p.failLocked(e)
		p.tellLostLocked(e, fault.Of(err))
		return false
	}
	if !p.learnFromLocked(e, c, nil) {
		dialed(outcomeUnwanted)
		p.dieLocked(e, c)
		e.err = errMoved
		close(e.ready)
		p.setLocked(e, Closed)
		p.removeLocked(e)
		return false
	}
	dialed(outcomeOK)
	renewed := e.state == Recovering
	before := e.before
	close(e.ready)
	e.conn.Store(c)
	delete(p.budget.refused, e.name) // B2
	e.since = time.Now()
	if k := p.circuitLocked(e.identity, e.owner, e.name); k != nil {
		k.started(e.since)
	}
	p.setLocked(e, Active)
	if renewed {
		p.tellSessionsLocked(e, func(l Listener, a *Attachment) { l.Renewed(a) })
		p.listsChangedLocked(e, c.cat.differs(before))
	}
	p.settleLocked(e)
	return true
}

// failLocked ends an entry because of e.err.
func (p *Pool) failLocked(e *entry) {
	if e.state == Spawning || e.state == Recovering {
		close(e.ready)
	}
	p.setLocked(e, Failed)
	p.keepFailedLocked(e)
	p.rearmLocked()
}

// failedShown is how long a failed entry that nobody holds is kept for show.
const failedShown = 5 * time.Minute

// keepFailedLocked removes a failed entry some time after the last holder left it;
// an unpooled one at once.
func (p *Pool) keepFailedLocked(e *entry) {
	switch {
	case len(e.atts) > 0:
	case e.owner != nil:
		p.removeLocked(e)
	case e.timer == nil:
		e.due = time.Now().Add(failedShown)
		e.timer = time.AfterFunc(failedShown, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(e.atts) == 0 {
				p.removeLocked(e)
			}
		})
	}
}

// lost takes the end of a connection (R1, R2).
func (p *Pool) lost(e *entry, c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.conn.Load() == c {
		p.lostLocked(e, c)
	}
}

func (p *Pool) lostLocked(e *entry, c *connection) {
	p.metrics.losses.WithLabelValues(e.name).Inc()
	e.conn.Store(nil)
	e.err = c.lossForLate()
	generation := e.generation
	p.tellLocked(e, func() {
		p.cfg.Log.Warn("connection lost", "server", e.name, "connection", e.id, "generation", generation, "err", c.loss)
	})
	if errors.Is(c.loss, errOutdated) {
		p.failLocked(e) // a recovery would be in the same era
	} else if open := p.countFailureLocked(e, c.loss); !open && e.heldLocked() && e.server.Recovery.Attempts > 0 {
		p.recoverLocked(e, c, recovery{most: e.server.Recovery.Attempts, due: e.since.Add(delayBefore(e.server.Recovery, 1))})
	} else {
		p.failLocked(e)
	}
	p.endLocked(e, c, c.loss)
}

// heldLocked reports whether somebody needs the entry.
func (e *entry) heldLocked() bool { return len(e.atts) > 0 || e.waiters > 0 }

// endLocked ends a connection that the entry has no more: calls in flight get
// reason, then the listeners hear of it if the entry has ended too, then its processes
// are ended. Nothing is detached (R10). Only when they are gone, a recovery goes on.
func (p *Pool) endLocked(e *entry, c *connection, reason error) {
	p.dieLocked(e, c)
	generation, final := e.generation, e.state.terminal()
	e.running.Add(1)
	p.wg.Go(func() {
		defer e.running.Done()
		c.end(reason)
		if final {
			p.mu.Lock()
			p.tellLostLocked(e, fault.Of(reason))
			p.mu.Unlock()
		}
		p.bury(e, c)
		p.resume(e, generation)
	})
}

// begun notes a connection whose dial goes on.
func (p *Pool) begun(e *entry, c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opening[c] = e
}

// dieLocked counts a connection among the dying until bury has closed it.
func (p *Pool) dieLocked(e *entry, c *connection) {
	c.ended = time.Now()
	p.dying[c] = e
}

// discard ends a connection that never became the entry's.
func (p *Pool) discard(e *entry, c *connection, reason error) {
	p.mu.Lock()
	delete(p.opening, c)
	p.dieLocked(e, c)
	p.mu.Unlock()
	c.end(reason)
	p.bury(e, c)
}

// keptOutput is how many lines of a dead connection's output are kept with its entry.
const keptOutput = 200

// bury closes a connection, one of the dying, whose link has ended.
func (p *Pool) bury(e *entry, c *connection) {
	c.close(p.hurry)
	forced := context.Cause(p.hurry)
	exit, output := c.link.Facts().Exit, c.link.Output(keptOutput)
	p.mu.Lock()
	defer p.mu.Unlock()
	e.exit, e.output, e.written = exit, output, c.generation
	delete(p.dying, c)
	p.rearmLocked()
	switch {
	case !p.drained:
	case forced == nil:
		p.report.Drained++
	default:
		p.report.Forced++
		if forced != errForced {
			p.report.Errors = append(p.report.Errors, e.id+" did not end in time and was killed")
		}
	}
}

// attachLocked makes an attachment to a live entry; a draining one is active again.
func (p *Pool) attachLocked(h *Holder, e *entry, w Want) *Attachment {
	if e.state == Draining {
		p.setLocked(e, Active) // T1: cancels the drain
	}
	a := &Attachment{entry: e, holder: h, want: w}
	a.settings.Store(w.Server)
	e.atts[a] = struct{}{}
	h.atts[a] = struct{}{}
	return a
}

// detachLocked ends an attachment; the second time it does nothing (S6).
func (p *Pool) detachLocked(a *Attachment) {
	e := a.entry
	if a.detached.Load() {
		return
	}
	a.detached.Store(true)
	delete(e.atts, a)
	delete(a.holder.atts, a)
	p.settleLocked(e)
}

// settleLocked lets an entry that nobody holds drain, or ends it (T1, T2, U1).
func (p *Pool) settleLocked(e *entry) {
	switch {
	case e.state == Failed:
		p.keepFailedLocked(e)
	case e.heldLocked():
	case e.state == Recovering && e.owner != nil:
		p.closeLocked(e, errUnused)
	case e.state == Recovering && e.timer != nil: // else what is under way ends, and sees that nobody holds it
		p.failLocked(e)
	case e.state == Active:
		p.drainLocked(e)
	}
}

// drainLocked lets an active entry that nobody holds drain, or closes it.
func (p *Pool) drainLocked(e *entry) {
	delay := p.cfg.DrainDelay
	if p.cfg.MaxIdle > 0 {
		delay = min(delay, time.Until(e.conn.Load().mux.LastCall().Add(p.cfg.MaxIdle)))
	}
	if e.owner != nil || delay <= 0 {
		p.closeLocked(e, errUnused)
		return
	}
	p.setLocked(e, Draining)
	e.due = time.Now().Add(delay)
	var timer *time.Timer
	timer = time.AfterFunc(delay, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if e.timer == timer { // else the entry went on while the timer fired
			p.closeLocked(e, errUnused)
		}
	})
	e.timer = timer
}

var errUnused = fault.New(fault.Interrupted, "the connection is closed because no session uses it")

// closeLocked ends an entry in any state, with reason for everybody. A dial under way
// is given up.
func (p *Pool) closeLocked(e *entry, reason error) {
	if e.state.terminal() {
		return
	}
	if e.state == Spawning || e.state == Recovering {
		close(e.ready)
		e.stop(reason)
	}
	c := e.conn.Swap(nil)
	e.err = reason
	p.setLocked(e, Closed)
	p.removeLocked(e)
	if c == nil {
		p.tellLostLocked(e, fault.Of(reason))
	} else {
		p.endLocked(e, c, reason)
	}
}

// listChanged tells the attached sessions that a list differs (V1).
func (p *Pool) listChanged(e *entry, c *connection, k Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.conn.Load() == c {
		p.listsChangedLocked(e, []mux.List{kindInfo[k].list})
	}
}

func (p *Pool) listsChangedLocked(e *entry, lists []mux.List) {
	if len(lists) == 0 {
		return
	}
	changed := event.Event{Kind: event.CatalogueChanged}
	for _, list := range lists {
		changed.Lists = append(changed.Lists, string(list))
		p.tellSessionsLocked(e, func(l Listener, a *Attachment) { l.ListChanged(a, list) })
	}
	p.publishLocked(e, changed)
}
