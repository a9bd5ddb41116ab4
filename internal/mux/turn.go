package mux

import (
	"slices"
	"time"
)

// Turns: while serial is set only one peer has live calls (M6). A peer that has
// them may start more, also past the queue: a server's request that it is
// answering may need them, and making it wait would be a deadlock.

func (m *Mux) mayStartLocked(p Peer) bool {
	if !m.serial || m.busy == 0 { // then nobody waits either
		return true
	}
	mem := m.members[p]
	return mem != nil && len(mem.live) > 0 && len(mem.live) == m.busy
}

func (m *Mux) startLocked(c *Call) {
	mem := m.memberLocked(c.peer)
	mem.live = append(mem.live, c)
	m.busy++
	c.turn = time.Now().UnixNano()
	m.lastCall.Store(c.turn)
}

func (m *Mux) finishLocked(c *Call, how ending, now int64) {
	m.counts.ended(how, time.Duration(now-c.turn))
	mem := m.members[c.peer]
	mem.live = slices.DeleteFunc(mem.live, func(x *Call) bool { return x == c })
	m.busy--
	m.dropIdleLocked(c.peer, mem)
}

func (m *Mux) unqueueLocked(c *Call) {
	c.waiting = false
	m.queue = slices.DeleteFunc(m.queue, func(x *Call) bool { return x == c })
	close(c.ready)
}

// admitLocked starts waiting calls from the head of the queue for as long as
// their turn has come.
func (m *Mux) admitLocked() {
	for len(m.queue) > 0 {
		c := m.queue[0]
		mem := m.members[c.peer]
		if m.busy > 0 && (mem == nil || len(mem.live) != m.busy) {
			return
		}
		m.unqueueLocked(c)
		m.startLocked(c)
	}
}
