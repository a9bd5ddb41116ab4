package session

import (
	"fmt"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// A call of an exclusive server's tool that stands alone begins a session, whose name its
// result tells (A6). Many callers never want to know it. Until somebody names such a session
// it is unclaimed: it ends when it falls asleep, and has its instance only as long as no
// other such call needs one, so that those who make them keep neither each other nor other
// sessions out.

var errUnclaimed = fault.New(fault.UnknownSession, "the session, which a call had begun that named none, was not named by another one in time")

// claimLocked notes that somebody has named the session.
func (s *Session) claimLocked() {
	if s.unclaimed {
		s.unclaimed = false
		s.changedLocked()
	}
}

// mint makes a branch in a new session, for a call that named none to the binding's server.
func (c *Client) mint(b *binding) (*Client, error) {
	s := c.session
	if server := b.wanted(); server != nil {
		s.m.makeRoom(s.principal, server)
	}
	o := wanted(s.principal, NewID(), "", s.workspace)
	o.unclaimed = true
	minted, err := s.m.open(o)
	if err != nil {
		return nil, err
	}
	return c.branchInto(minted, b.name)
}

// makeRoom has the principal's unclaimed session that was active longest ago give its
// instance of the server back, if all are lent.
func (m *Manager) makeRoom(principal string, server *config.Server) {
	if m.cfg.Instances == nil || !m.cfg.Instances.Crowded(server) {
		return
	}
	m.mu.Lock()
	var victim *Session
	for _, s := range m.sessions {
		if s.unclaimed && s.principal == principal && s.state == Active && s.idleLocked() && s.boundLocked(server.Name) != nil &&
			(victim == nil || s.lastActivity.Before(victim.lastActivity)) {
			victim = s
		}
	}
	if victim == nil || m.draining {
		m.mu.Unlock()
		return
	}
	b := victim.boundLocked(server.Name)
	release := victim.sleepLocked()
	victim.armLocked(victim.lastActivity)
	m.mu.Unlock()
	b.keepLoss(fmt.Sprintf("roundhouse: the instance of %s that this session used was given to another call, which needed one, before this session was named; "+
		"this result is from a new one, which knows nothing of what was done before: begin anew there", b.name))
	m.spawn(release)
}

// boundLocked returns the session's binding to a server, if it has one, or nil.
func (s *Session) boundLocked(server string) *binding {
	for _, b := range s.order {
		if b.name == server && !b.unbound {
			return b
		}
	}
	return nil
}
