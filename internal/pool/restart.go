package pool

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"roundhouse/internal/event"
	"roundhouse/internal/fault"
)

// Restarted says how the restart of one entry went.
type Restarted struct {
	ID         string
	Index      int
	OK         bool
	Skipped    bool // it was not tried; Reason is one of the Skip words
	Duration   time.Duration
	Reason     string // why not, if not OK
	Generation uint64
}

// Why a restart is not tried (R7).
const (
	SkipInFlight = "in_flight"           // the first start is under way
	SkipBudget   = "budget_would_exceed" // it does not live, and may not
	SkipDisabled = "disabled"            // the server is not to be used
)

// Restart ends and starts anew every connection of a configured server, at the same time;
// attachments stay. Calls in flight are interrupted, and what failed before is forgiven
// (R4). A restart under way is waited for instead of being doubled. The results are in the
// order of the indexes; without a connection, and so once the pool drains, there are none.
// ctx bounds the waiting, not the restarts.
func (p *Pool) Restart(ctx context.Context, name string) []Restarted {
	return p.restart(ctx, name, func(e *entry) bool { return !e.server.Injected })
}

// RestartOne is Restart of the connection with that index, which the result is then of;
// it is empty if there is none.
func (p *Pool) RestartOne(ctx context.Context, name string, index int) []Restarted {
	return p.restart(ctx, name, func(e *entry) bool { return e.index == index && !e.server.Injected })
}

func (p *Pool) restart(ctx context.Context, name string, chosen func(*entry) bool) []Restarted {
	begun := time.Now()
	jobs := p.restartAll(name, chosen)
	results := make([]Restarted, 0, len(jobs))
	for _, j := range jobs {
		if j.skipped != "" {
			p.metrics.restarts.WithLabelValues(name, outcomeSkipped).Inc()
			results = append(results, Restarted{ID: p.idOf(j.entry), Index: j.entry.index, Skipped: true, Reason: j.skipped, Generation: j.generation})
			continue
		}
		r := p.restarted(ctx, j.entry, begun)
		outcome := outcomeFailed
		if r.OK {
			outcome = outcomeOK
		}
		p.metrics.restarts.WithLabelValues(name, outcome).Inc()
		results = append(results, r)
	}
	return results
}

// restarting is one entry's part of a restart.
type restarting struct {
	entry      *entry
	generation uint64
	skipped    string // why it is not restarted, or ""
}

func outdated(name string) *fault.Error {
	return fault.New(fault.Interrupted, "the configuration of server %q has changed", name)
}

// Discard ends those connections of a server that nobody holds, and forgets failed ones:
// its configuration has changed at that time, so that nobody will ask for them. Dials that
// began before that are given up. Connections that are held end with Attachment.Retire.
func (p *Pool) Discard(name string, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		switch {
		case e.name != name || e.server.Injected || len(e.atts) > 0 || e.waiters > 0 && !e.created.Before(at):
		case e.state.terminal():
			p.removeLocked(e)
		default:
			p.closeLocked(e, outdated(name))
		}
	}
}

// Retire ends every connection of a server that is not to be used any more, and reports
// whether there was one (R7).
func (p *Pool) Retire(name string) (found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pardonLocked(name)
	for _, e := range p.entries {
		if e.name != name || e.server.Injected {
			continue
		}
		found = true
		if e.state.terminal() {
			p.removeLocked(e)
		} else {
			p.closeLocked(e, outdated(name))
		}
	}
	return found
}

// restartAll puts the chosen entries of a server into recovery and returns them in the
// order of their indexes.
func (p *Pool) restartAll(name string, chosen func(*entry) bool) []restarting {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pardonLocked(name)
	var jobs []restarting
	for _, e := range p.entries {
		if e.name == name && chosen(e) {
			jobs = append(jobs, restarting{entry: e})
		}
	}
	slices.SortFunc(jobs, func(a, b restarting) int { return cmp.Compare(a.entry.index, b.entry.index) })
	for i := range jobs {
		j := &jobs[i]
		if j.skipped = p.skipLocked(j.entry); j.skipped == "" {
			j.entry = p.restartLocked(j.entry)
		} else {
			p.publishLocked(j.entry, event.Event{Kind: event.RestartRefused, Reason: j.skipped})
		}
		j.generation = j.entry.generation
	}
	return jobs
}

// skipLocked returns why an entry cannot be restarted now, or "".
func (p *Pool) skipLocked(e *entry) string {
	switch {
	case e.state == Spawning && e.restart.IsZero():
		return SkipInFlight
	case e.state == Failed && e.owner == nil:
		if over := p.excessLocked(e.server); over != nil {
			p.refuseLocked(e.name, over)
			return SkipBudget
		}
	}
	return ""
}

// restartLocked puts a live entry into recovery and returns it; for a failed one it
// returns a new entry that dials.
func (p *Pool) restartLocked(e *entry) *entry {
	switch e.state {
	case Failed, Closed:
		if e.owner == nil {
			e = p.spawnLocked(e.identity, Want{Server: e.server, Principal: e.principal, Capabilities: e.capabilities, Workspace: e.workspace, tongue: e.tongue}, nil)
			e.restart = time.Now()
		}
	case Active, Draining:
		old := e.conn.Swap(nil)
		e.restart = time.Now()
		p.recoverLocked(e, old, recovery{most: 1, asked: true})
		p.endLocked(e, old, fault.New(fault.Interrupted, "server %q is being restarted", e.name))
	case Recovering:
		if e.restart.IsZero() {
			e.restart = time.Now()
		}
		e.recovery.asked, e.recovery.due = true, time.Time{}
		p.hastenLocked(e)
	}
	return e
}

// restarted waits for an entry's dial.
func (p *Pool) restarted(ctx context.Context, e *entry, begun time.Time) Restarted {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := Restarted{ID: e.id, Index: e.index}
	ready := e.ready
	p.mu.Unlock()
	var err error
	select {
	case <-ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.mu.Lock()
	r.Duration, r.Generation = time.Since(begun), e.generation
	if err == nil && e.state.terminal() {
		err = e.err
		if err == nil {
			err = errors.New("the connection was closed meanwhile")
		}
	}
	if err != nil {
		r.Reason = err.Error()
	}
	r.OK = err == nil
	return r
}
