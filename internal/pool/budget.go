package pool

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/fault"
)

// The budget bounds how much lives at once: servers by name, however many connections
// a name has, and child processes (B1). What is held is never counted up and down: it is
// looked up in what the pool knows of connections, dials and the dying, so that no way
// out of a dial can forget to give something back.

// Refusal is a server that the budget has refused, and that has not been acquired since.
type Refusal struct {
	Server string    `json:"server"`
	Count  int       `json:"count"` // how often
	At     time.Time `json:"at"`    // the last time
	Reason string    `json:"reason"`
}

// BudgetInfo is the state of the budget at one moment.
type BudgetInfo struct {
	Mode      config.BudgetMode `json:"mode"`
	Servers   int               `json:"servers,omitempty"`   // the most; 0 is no limit
	Processes int               `json:"processes,omitempty"` // the most; 0 is no limit
	Held      []HeldSlot        `json:"held"`                // by server
	Refused   []Refusal         `json:"refused"`             // by server
}

// HeldSlot says what holds the slot of one server.
type HeldSlot struct {
	Server      string `json:"server"`
	Connections int    `json:"connections"` // live, on their way, or ending
	Processes   int    `json:"processes"`   // children of ours
	Sessions    int    `json:"sessions"`    // attachments; 0 is a server that drains or ends
}

// String says it for people.
func (h HeldSlot) String() string {
	return fmt.Sprintf("%s (connections: %d, used by sessions: %d)", h.Server, h.Connections, h.Sessions)
}

// budget is what the pool remembers for its budget. It is guarded by Pool.mu.
type budget struct {
	refused map[string]Refusal
	warned  map[limit]bool
	batch   []string    // refused since the timer was set, to be told in one event (B3)
	timer   *time.Timer // of the batch; nil if that is empty
}

// limit is one of the two limits.
type limit string

const (
	serverLimit  limit = "servers"
	processLimit limit = "processes"
)

// batchFor is how long refusals are gathered for one event: those of one pass over all
// servers come in the same moment.
const batchFor = 250 * time.Millisecond

// heldLocked returns who holds what, by server.
func (p *Pool) heldLocked() map[string]HeldSlot {
	connections := map[*entry]int{}
	for e, n := range p.dials {
		connections[e] += n
	}
	for _, e := range p.dying {
		connections[e]++
	}
	for _, e := range p.entries {
		if e.conn.Load() != nil {
			connections[e]++
		}
		if !e.state.terminal() {
			connections[e] = max(1, connections[e]) // between two connections it keeps its place
		}
	}
	held := map[string]HeldSlot{}
	for e, n := range connections {
		if n == 0 {
			continue
		}
		h := held[e.name]
		h.Server = e.name
		h.Connections += n
		if e.server.Transport == config.Stdio {
			h.Processes += n
		}
		for a := range e.atts {
			if a.holder.session != "" {
				h.Sessions++
			}
		}
		held[e.name] = h
	}
	return held
}

func processesOf(held map[string]HeldSlot) (n int) {
	for _, h := range held {
		n += h.Processes
	}
	return n
}

// excess is a limit that another connection would exceed, and who holds what of it.
type excess struct {
	limit limit
	most  int
	held  map[string]HeldSlot
}

// excessLocked returns nil if another connection of that server is within the budget,
// or if the budget refuses nothing. It warns when the connection takes the last quarter
// of a limit (B3).
func (p *Pool) excessLocked(server *config.Server) *excess {
	b := p.cfg.Budget
	if b.Mode == config.BudgetOff {
		return nil
	}
	held := p.heldLocked()
	servers, processes := len(held), processesOf(held)
	_, slot := held[server.Name]
	if !slot {
		servers++
	}
	if server.Transport == config.Stdio {
		processes++
	}
	enforced := b.Mode == config.BudgetEnforce
	switch {
	case enforced && b.Servers > 0 && servers > b.Servers && !slot:
		return &excess{serverLimit, b.Servers, held}
	case enforced && b.Processes > 0 && processes > b.Processes && server.Transport == config.Stdio:
		return &excess{processLimit, b.Processes, held}
	}
	p.warnLocked(serverLimit, b.Servers, servers)
	p.warnLocked(processLimit, b.Processes, processes)
	return nil
}

// refuseLocked makes the error of a server that is over the budget (B2), and notes it.
func (p *Pool) refuseLocked(server string, x *excess) *fault.Error {
	p.metrics.refusals.WithLabelValues(server, refusedBudget).Inc()
	r := p.budget.refused[server]
	r.Server, r.Count, r.At = server, r.Count+1, time.Now()
	r.Reason = fmt.Sprintf("all %d of pool.budget.%s are held", x.most, x.limit)
	p.budget.refused[server] = r
	if !slices.Contains(p.budget.batch, server) {
		p.budget.batch = append(p.budget.batch, server)
	}
	if p.budget.timer == nil && !p.drained {
		p.budget.timer = time.AfterFunc(batchFor, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.tellRefusalsLocked()
		})
	}
	slots := sortedSlots(x.held)
	var holders []string
	for _, h := range slots {
		holders = append(holders, h.String())
	}
	err := fault.New(fault.BudgetExhausted, "server %q is not started: %s, by %s; end a session that uses one of them, or raise the limit",
		server, r.Reason, strings.Join(holders, ", "))
	err.Server = server
	err.Data = map[string]any{
		"budget":  map[string]any{"limit": x.limit, "most": x.most},
		"held":    slots,
		"refused": slices.Sorted(maps.Keys(p.budget.refused)),
	}
	return err
}

// tellRefusalsLocked publishes the refusals that were gathered.
func (p *Pool) tellRefusalsLocked() {
	if p.budget.timer != nil {
		p.budget.timer.Stop()
		p.budget.timer = nil
	}
	if len(p.budget.batch) == 0 {
		return
	}
	x := event.Event{Kind: event.BudgetRefused, Refused: p.budget.batch, Reason: p.budget.refused[p.budget.batch[0]].Reason}
	p.budget.batch = nil
	p.wg.Go(func() {
		p.cfg.Log.Warn("the budget refused servers", "servers", x.Refused, "reason", x.Reason)
		p.cfg.Events.Publish(x)
	})
}

// warnLocked warns once when three quarters of a limit are held. rearmLocked lets it
// warn again (B3).
func (p *Pool) warnLocked(l limit, most, held int) {
	if most == 0 || held*4 < most*3 || p.budget.warned[l] {
		return
	}
	p.budget.warned[l] = true
	x := event.Event{Kind: event.BudgetWarning, Time: time.Now(), Reason: fmt.Sprintf("%d of %d of pool.budget.%s are held", held, most, l)}
	p.wg.Go(func() {
		p.cfg.Log.Warn("the budget is nearly used up", "limit", string(l), "held", held, "most", most)
		p.cfg.Events.Publish(x)
	})
}

// rearmLocked looks after something was given back whether a warning has become news
// again: when less than half of what it warned of is held.
func (p *Pool) rearmLocked() {
	if len(p.budget.warned) == 0 {
		return
	}
	held := p.heldLocked()
	b := p.cfg.Budget
	for l, x := range map[limit]struct{ most, held int }{serverLimit: {b.Servers, len(held)}, processLimit: {b.Processes, processesOf(held)}} {
		if x.held*8 < x.most*3 || x.most == 0 {
			delete(p.budget.warned, l)
		}
	}
}

// Budget says who holds what of the budget, and whom it has refused.
func (p *Pool) Budget() BudgetInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.cfg.Budget
	info := BudgetInfo{Mode: b.Mode, Servers: b.Servers, Processes: b.Processes, Held: sortedSlots(p.heldLocked()), Refused: []Refusal{}}
	for _, name := range slices.Sorted(maps.Keys(p.budget.refused)) {
		info.Refused = append(info.Refused, p.budget.refused[name])
	}
	return info
}

func sortedSlots(held map[string]HeldSlot) []HeldSlot {
	slots := make([]HeldSlot, 0, len(held))
	for _, name := range slices.Sorted(maps.Keys(held)) {
		slots = append(slots, held[name])
	}
	return slots
}
