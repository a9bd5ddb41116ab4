package pool

import (
	"context"
	"fmt"
	"time"

	"roundhouse/internal/fault"
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
	e.state = s
	p.cfg.Log.Info("connection "+string(s), "server", e.name, "connection", e.id, "generation", e.generation, "sessions", len(e.atts))
}

// spawnLocked makes an entry and dials it. id is "" for an unpooled one.
func (p *Pool) spawnLocked(id string, w Want, h *Holder) *entry {
	e := &entry{
		id: id, name: w.Server.Name, server: w.Server, capabilities: w.Capabilities, workspace: w.Workspace,
		created: time.Now(), state: Spawning, generation: 1, ready: make(chan struct{}), atts: map[*Attachment]struct{}{},
	}
	if id == "" {
		p.unpooled++
		e.id = fmt.Sprintf("%s::unpooled-%d", e.name, p.unpooled)
		e.owner = h
	}
	if old := p.entries[e.id]; old != nil {
		e.generation = old.generation + 1
		p.removeLocked(old)
	}
	e.index = p.indexLocked(e)
	p.entries[e.id] = e
	p.dialLocked(e)
	return e
}

// indexLocked gives an entry its index among those of its name; a shared id keeps
// its index for good (S8).
func (p *Pool) indexLocked(e *entry) int {
	if i, ok := p.indexes[e.id]; ok {
		return i
	}
	i := p.next[e.name]
	p.next[e.name]++
	if e.owner == nil {
		p.indexes[e.id] = i
	}
	return i
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
	generation := e.generation
	p.wg.Go(func() {
		ctx, cancel := context.WithTimeout(base, e.server.StartTimeout)
		defer cancel()
		c, err := open(ctx, dialed{
			server: e.server, generation: generation, capabilities: e.capabilities, workspace: e.workspace, sole: e.owner != nil,
			dial: p.cfg.Dial, clientInfo: p.clientInfo,
			lost:    func(c *connection) { p.lost(e, c) },
			changed: func(c *connection, k Kind) { p.listChanged(e, c, k) },
		})
		p.dialEnded(e, generation, c, err)
		if err != nil && c != nil {
			p.bury(e, c)
		}
	})
}

// dialEnded takes the outcome of a dial, unless the entry has moved on (R8).
func (p *Pool) dialEnded(e *entry, generation uint64, c *connection, err error) {
	p.mu.Lock()
	if e.state.terminal() || e.generation != generation {
		p.mu.Unlock()
		if err == nil {
			c.abort(errUnused)
			p.bury(e, c)
		}
		return
	}
	renewed := e.state == Recovering
	e.err = err
	if err != nil {
		p.setLocked(e, Failed)
		p.keepFailedLocked(e)
	} else {
		e.conn.Store(c)
		p.setLocked(e, Active)
		p.settleLocked(e)
	}
	close(e.ready)
	told := attachmentsLocked(e)
	before := e.before
	e.before = [kinds]*Listing{}
	p.mu.Unlock()
	if err != nil {
		p.cfg.Log.Warn("a server did not start", "server", e.name, "connection", e.id, "err", err)
		for _, a := range told {
			a.want.Listener.Lost(a, fault.Of(err))
		}
		return
	}
	if renewed {
		for _, a := range told {
			a.want.Listener.Renewed(a)
		}
		for k, old := range before {
			if now := c.cat.peek(Kind(k)); old != nil && now != nil && !same(old, now) {
				p.listChanged(e, c, Kind(k))
			}
		}
	}
	if context.Cause(c.ctx) != nil {
		p.lost(e, c) // it ended before it was ours to lose
	}
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
		e.timer = time.AfterFunc(failedShown, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if len(e.atts) == 0 {
				p.removeLocked(e)
			}
		})
	}
}

// lost takes the end of a connection (R1, R2). Its calls have their errors already.
func (p *Pool) lost(e *entry, c *connection) {
	p.mu.Lock()
	if e.conn.Load() != c {
		p.mu.Unlock()
		return
	}
	f := c.lossFault(context.Cause(c.ctx))
	e.conn.Store(nil)
	e.err = f
	p.setLocked(e, Failed)
	p.keepFailedLocked(e)
	told := attachmentsLocked(e)
	p.wg.Go(func() { p.bury(e, c) })
	p.mu.Unlock()
	p.cfg.Log.Warn("connection lost", "server", e.name, "connection", e.id, "generation", e.generation, "err", f)
	for _, a := range told {
		a.want.Listener.Lost(a, f)
	}
}

// keptOutput is how many lines of a dead connection's output are kept with its entry.
const keptOutput = 200

// bury closes a connection whose link has ended, or was aborted, and keeps it among
// the dying until its process tree is gone.
func (p *Pool) bury(e *entry, c *connection) {
	ctx, kill := context.WithCancel(context.Background())
	defer kill()
	p.mu.Lock()
	p.dying[c] = grave{e, kill}
	p.mu.Unlock()
	c.close(ctx)
	exit, output := c.link.Facts().Exit, c.link.Output(keptOutput)
	p.mu.Lock()
	e.exit, e.output = exit, output
	delete(p.dying, c)
	p.mu.Unlock()
}

// attachLocked makes an attachment to a live entry; a draining one is active again.
func (p *Pool) attachLocked(h *Holder, e *entry, w Want) *Attachment {
	if e.state == Draining {
		p.setLocked(e, Active) // T1: cancels the drain
	}
	a := &Attachment{entry: e, holder: h, want: w}
	e.atts[a] = struct{}{}
	h.atts[a] = struct{}{}
	return a
}

// detachLocked ends an attachment; the second time it does nothing (S6).
func (p *Pool) detachLocked(a *Attachment) {
	e := a.entry
	if _, ok := e.atts[a]; !ok {
		return
	}
	delete(e.atts, a)
	delete(a.holder.atts, a)
	p.settleLocked(e)
}

// settleLocked lets an entry that nobody holds drain, or closes it (T1, T2, U1).
func (p *Pool) settleLocked(e *entry) {
	if e.state == Failed {
		p.keepFailedLocked(e)
		return
	}
	if e.state != Active || len(e.atts) > 0 || e.waiters > 0 {
		return
	}
	delay := p.cfg.DrainDelay
	if p.cfg.MaxIdle > 0 {
		delay = min(delay, time.Until(e.conn.Load().mux.LastCall().Add(p.cfg.MaxIdle)))
	}
	if e.owner != nil || delay <= 0 {
		p.closeLocked(e, errUnused)
		return
	}
	p.setLocked(e, Draining)
	e.timer = time.AfterFunc(delay, func() { p.drainOver(e) })
}

var errUnused = fault.New(fault.Interrupted, "the connection is closed because no session uses it")

// drainOver runs when a drain timer fires.
func (p *Pool) drainOver(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.state == Draining && e.timer != nil { // else it was attached to meanwhile
		p.closeLocked(e, errUnused)
	}
}

// closeLocked ends an entry in any state. Its listeners are told before anything
// is detached (R10); a dial under way is given up.
func (p *Pool) closeLocked(e *entry, reason error) {
	if e.state.terminal() {
		return
	}
	dialing := e.state == Spawning || e.state == Recovering
	c := e.conn.Swap(nil)
	e.err = reason
	p.setLocked(e, Closed)
	if dialing {
		close(e.ready)
		e.stop(reason)
	}
	told := attachmentsLocked(e)
	p.removeLocked(e)
	p.wg.Go(func() {
		for _, a := range told {
			a.want.Listener.Lost(a, fault.Of(reason))
		}
		if c != nil {
			c.abort(reason)
			p.bury(e, c)
		}
	})
}

func attachmentsLocked(e *entry) []*Attachment {
	list := make([]*Attachment, 0, len(e.atts))
	for a := range e.atts {
		list = append(list, a)
	}
	return list
}

// listChanged tells the attached sessions that a list differs (V1).
func (p *Pool) listChanged(e *entry, c *connection, k Kind) {
	p.mu.Lock()
	var told []*Attachment
	if e.conn.Load() == c {
		told = attachmentsLocked(e)
	}
	p.mu.Unlock()
	for _, a := range told {
		a.want.Listener.ListChanged(a, kindInfo[k].list)
	}
}
