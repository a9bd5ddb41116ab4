package mux

import (
	"slices"
	"strconv"

	"roundhouse/internal/wire"
)

// What the connection answers for a client, or forwards only when it must: log
// levels (M5) and subscriptions (M4).

const (
	levelUnset = -1
	levelInfo  = 1
)

var levels = [...]string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// levelOf reads a JSON string; what is not a level is unset.
func levelOf(raw []byte) int {
	for i, name := range levels {
		if len(raw) == len(name)+2 && string(raw[1:len(raw)-1]) == name {
			return i
		}
	}
	return levelUnset
}

// thresholdLocked is the level that a member's log messages must have. A client
// that set none gets what the server sends by itself; once another client made
// the server more verbose it gets info and above.
func (m *Mux) thresholdLocked(mem *member) int {
	switch {
	case mem.level != levelUnset:
		return mem.level
	case m.level != levelUnset:
		return levelInfo
	}
	return levelUnset
}

// mostVerboseLocked is the level that upstream should have.
func (m *Mux) mostVerboseLocked() int {
	least := levelUnset
	for _, mem := range m.members {
		if mem.level != levelUnset && (least == levelUnset || mem.level < least) {
			least = mem.level
		}
	}
	return least
}

var emptyResult = []byte("{}")

// verdict is what Begin does with a call.
type verdict int

const (
	forward  verdict = iota
	answered         // an empty result is due at once
	parked           // another call's outcome will answer it
)

// interceptLocked handles the methods whose effect is per client but whose
// upstream state is shared. It may change c into a call for all.
func (m *Mux) interceptLocked(p Peer, c *Call, f wire.Frame, r wire.Routing) verdict {
	switch f.Method {
	case wire.LoggingSetLevel:
		return m.setLevelLocked(p, c, levelOf(r.Level.Of(f.Raw)))
	case wire.ResourcesSubscribe:
		if uri, err := wire.Text(r.URI.Of(f.Raw)); err == nil {
			return m.subscribeLocked(p, c, uri)
		}
	case wire.ResourcesUnsubscribe:
		if uri, err := wire.Text(r.URI.Of(f.Raw)); err == nil {
			return m.unsubscribeLocked(p, uri)
		}
	}
	return forward // the server says what is wrong with parameters that we cannot read
}

func (m *Mux) setLevelLocked(p Peer, c *Call, want int) verdict {
	if want == levelUnset {
		return forward
	}
	m.memberLocked(p).level = want
	least := m.mostVerboseLocked()
	if least == m.level {
		return answered
	}
	m.level = least
	c.after = func(ok bool) {
		if !ok {
			m.level = levelUnset // unknown: the next setLevel is forwarded
		}
	}
	if least != want {
		c.level = least
	}
	return forward
}

// subscription is one URI with somebody interested. The first subscriber's
// request goes upstream as a call of our own, so that it does not end with that
// client; everybody who comes before its answer gets that answer.
type subscription struct {
	m       *Mux
	uri     string
	active  bool
	count   int // members that have the URI
	waiting []subscriber
	due     []subscriber // those to answer, between the call's end and its delivery
	orphan  bool         // it became active when nobody wanted it any more
}

type subscriber struct {
	peer Peer
	id0  []byte
	out  Outlet
}

// drop takes the waiting subscribers of p out and returns them.
func (s *subscription) drop(p Peer) (dropped []subscriber) {
	s.waiting = slices.DeleteFunc(s.waiting, func(w subscriber) bool {
		if w.peer == p {
			dropped = append(dropped, w)
		}
		return w.peer == p
	})
	return dropped
}

func (m *Mux) subscribeLocked(p Peer, c *Call, uri string) verdict {
	s := m.subs[uri]
	if s != nil && s.active {
		m.addURILocked(p, s)
		return answered
	}
	me := subscriber{p, c.id0, c.out}
	if s != nil {
		s.waiting = append(s.waiting, me)
		return parked
	}
	s = &subscription{m: m, uri: uri, waiting: []subscriber{me}}
	m.subs[uri] = s
	c.peer, c.out, c.common, c.after = nil, s, true, s.endedLocked
	return forward
}

// endedLocked runs when the subscribing call has ended.
func (s *subscription) endedLocked(ok bool) {
	s.due, s.waiting = s.waiting, nil
	if !ok {
		delete(s.m.subs, s.uri)
		return
	}
	s.active = true
	for _, w := range s.due {
		s.m.addURILocked(w.peer, s)
	}
	if s.count == 0 { // all have left meanwhile
		delete(s.m.subs, s.uri)
		s.orphan = true
	}
}

// Note implements Outlet; a subscription has no progress.
func (s *subscription) Note(Pieces) {}

// Done implements Outlet: each subscriber gets the server's answer with its own id.
func (s *subscription) Done(p Pieces) {
	for _, w := range s.due {
		w.out.Done(Pieces{p[0], w.id0, p[2]})
	}
	if s.orphan {
		s.m.mu.Lock()
		b := s.m.ownRequestLocked(wire.ResourcesUnsubscribe, uriParams(s.uri))
		s.m.mu.Unlock()
		s.m.cfg.Post(b)
	}
}

func uriParams(uri string) []byte {
	return append(append([]byte(`{"uri":`), wire.Quote(uri)...), '}')
}

func (m *Mux) addURILocked(p Peer, s *subscription) {
	mem := m.memberLocked(p)
	if _, ok := mem.uris[s.uri]; ok {
		return
	}
	if mem.uris == nil {
		mem.uris = map[string]struct{}{}
	}
	mem.uris[s.uri] = struct{}{}
	s.count++
}

func (m *Mux) unsubscribeLocked(p Peer, uri string) verdict {
	mem, s := m.members[p], m.subs[uri]
	if mem == nil || s == nil {
		return forward // nothing of ours: the server answers
	}
	if _, ok := mem.uris[uri]; ok && m.dropURILocked(p, mem, uri) {
		return forward
	}
	return answered
}

// dropURILocked ends a member's subscription and reports whether it was the last.
func (m *Mux) dropURILocked(p Peer, mem *member, uri string) bool {
	delete(mem.uris, uri)
	m.dropIdleLocked(p, mem)
	s := m.subs[uri]
	if s == nil {
		return false
	}
	s.count--
	if s.count > 0 {
		return false
	}
	delete(m.subs, uri)
	return true
}

// forgetLocked ends what a leaving member has, and returns what upstream must be
// told: subscriptions that nobody has any more and a less verbose level.
func (m *Mux) forgetLocked(p Peer, mem *member) (posts [][]byte) {
	for uri := range mem.uris {
		if m.dropURILocked(p, mem, uri) {
			posts = append(posts, m.ownRequestLocked(wire.ResourcesUnsubscribe, uriParams(uri)))
		}
	}
	delete(m.members, p)
	if mem.level != levelUnset {
		if least := m.mostVerboseLocked(); least != m.level && least != levelUnset {
			m.level = least
			params := append(append([]byte(`{"level":`), wire.Quote(levels[least])...), '}')
			posts = append(posts, m.ownRequestLocked(wire.LoggingSetLevel, params))
		}
	}
	return posts
}

// ownRequestLocked makes a request whose answer nobody needs.
func (m *Mux) ownRequestLocked(method string, params []byte) []byte {
	m.next++
	return wire.NewRequest(strconv.AppendUint(nil, m.next, 10), method, params)
}
