package pool

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"roundhouse/internal/fault"
)

// Restarted says how the restart of one entry went.
type Restarted struct {
	ID         string
	Index      int
	OK         bool
	Duration   time.Duration
	Reason     string // why not, if not OK
	Generation uint64
}

// Restart ends and starts anew every connection of a server, at the same time;
// attachments stay. Calls in flight are interrupted. A restart under way is waited
// for instead of being doubled. The results are in the order of the indexes; without
// a connection, and so once the pool drains, there are none. ctx bounds the waiting, not
// the restarts.
func (p *Pool) Restart(ctx context.Context, name string) []Restarted {
	begun := time.Now()
	entries := p.restartAll(name)
	results := make([]Restarted, 0, len(entries))
	for _, e := range entries {
		results = append(results, p.restarted(ctx, e, begun))
	}
	return results
}

// restartAll puts the entries of a server into recovery and returns them in the order
// of their indexes.
func (p *Pool) restartAll(name string) []*entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	var entries []*entry
	for _, e := range p.entries {
		if e.name == name {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, func(a, b *entry) int { return cmp.Compare(a.index, b.index) })
	for i, e := range entries {
		entries[i] = p.restartLocked(e)
	}
	return entries
}

// restartLocked puts a live entry into recovery and returns it; for a failed one it
// returns a new entry that dials.
func (p *Pool) restartLocked(e *entry) *entry {
	switch e.state {
	case Failed, Closed:
		if e.owner == nil {
			e = p.spawnLocked(e.id, Want{Server: e.server, Principal: e.principal, Capabilities: e.capabilities, Workspace: e.workspace}, nil)
			e.restart = time.Now()
		}
	case Active, Draining:
		old := e.conn.Swap(nil)
		for k := range e.before {
			e.before[k] = old.cat.peek(Kind(k))
		}
		e.generation++
		e.ready, e.restart = make(chan struct{}), time.Now()
		p.setLocked(e, Recovering)
		generation := e.generation
		p.dying[old] = e
		p.wg.Go(func() {
			old.end(fault.New(fault.Interrupted, "server %q is being restarted", e.name))
			p.bury(e, old)
			p.mu.Lock()
			defer p.mu.Unlock()
			if e.state == Recovering && e.generation == generation {
				p.dialLocked(e)
			}
		})
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
