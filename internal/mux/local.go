package mux

import (
	"slices"
	"strconv"

	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// What the connection answers for a client, or forwards only when it must: log
// levels (M5) and subscriptions (M4).

const (
	levelUnset = -1
	levelInfo  = 1
)

var levels = [...]string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// IsLevel reports whether a JSON value is the name of a log level.
func IsLevel(raw []byte) bool { return levelOf(raw) != levelUnset }

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
	if m.newer != nil {
		return m.newerInterceptLocked(p, c, f, r)
	}
	switch f.Method {
	case wire.LoggingSetLevel:
		return m.setLevelLocked(p, c, levelOf(r.Level.Of(f.Raw)))
	case wire.ResourcesSubscribe:
		if uri, err := wire.Text(r.URI.Of(f.Raw)); err == nil {
			return m.subscribeLocked(p, c, uri)
		}
	case wire.ResourcesUnsubscribe:
		if uri, err := wire.Text(r.URI.Of(f.Raw)); err == nil {
			return m.unsubscribeLocked(p, c, uri)
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
	c.after = m.levelSet(least)
	if least != want {
		c.level = least
	}
	return forward
}

// levelSet returns what is due when a call that told the server a level has ended.
func (m *Mux) levelSet(level int) func(ok bool) {
	return func(ok bool) {
		switch {
		case !ok:
			m.level = levelUnset // unknown: the next setLevel is forwarded
		case m.level != levelUnset && m.level != level:
			m.tellLevelLocked() // another one may have overtaken this one
		}
	}
}

func (m *Mux) tellLevelLocked() {
	params := append(append([]byte(`{"level":`), wire.Quote(levels[m.level])...), '}')
	m.callLocked(wire.LoggingSetLevel, params, m.levelSet(m.level))
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
}

type subscriber struct {
	peer Peer
	id0  []byte
	out  Outlet
	call *Call // which its request became, if it was the first
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

// withdraw takes out the subscriber whose request became c; no answer follows.
func (s *subscription) withdraw(c *Call) bool {
	s.m.mu.Lock()
	i := slices.IndexFunc(s.waiting, func(w subscriber) bool { return w.call == c })
	if i < 0 {
		s.m.mu.Unlock()
		return false
	}
	out := s.waiting[i].out
	s.waiting = slices.Delete(s.waiting, i, i+1)
	s.m.mu.Unlock()
	out.Done(Pieces{})
	return true
}

func (m *Mux) subscribeLocked(p Peer, c *Call, uri string) verdict {
	if m.subs[uri] != nil {
		return m.joinLocked(p, c, m.subs[uri])
	}
	s := &subscription{m: m, uri: uri, waiting: []subscriber{{p, c.id0, c.out, c}}}
	m.subs[uri] = s
	c.peer, c.out, c.sub, c.after = nil, s, s, s.endedLocked
	return forward
}

// joinLocked adds a subscriber to a subscription that there is, or that is being made.
func (m *Mux) joinLocked(p Peer, c *Call, s *subscription) verdict {
	if s.active {
		m.addURILocked(p, s)
		return answered
	}
	s.waiting = append(s.waiting, subscriber{p, c.id0, c.out, c})
	return parked
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
		s.m.unsubscribeAllLocked(s.uri)
	}
}

// Note implements Outlet; a subscription has no progress.
func (s *subscription) Note(Pieces) {}

// Done implements Outlet: each subscriber gets the server's answer with its own id.
func (s *subscription) Done(p Pieces) {
	for _, w := range s.due {
		w.out.Done(Pieces{p[0], w.id0, p[2]})
	}
}

// Failed implements Failer: what becomes of the call is up to each subscriber.
func (s *subscription) Failed(err *fault.Error) bool {
	for _, w := range s.due {
		deliver([]delivery{{w.out, w.id0, err}})
	}
	return true
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

// unsubscribeLocked ends one member's subscription. Only the last one's request is
// forwarded, or one for a URI that nobody has: the server says what it thinks of that.
func (m *Mux) unsubscribeLocked(p Peer, c *Call, uri string) verdict {
	had := m.subs[uri] != nil
	if had {
		mem := m.members[p]
		if mem == nil {
			return answered
		}
		if _, ok := mem.uris[uri]; !ok || !m.dropURILocked(p, mem, uri) {
			return answered
		}
	}
	c.after = func(ok bool) {
		if had && !ok && c.course.Load() == stopped && m.subs[uri] == nil {
			m.unsubscribeAllLocked(uri) // the server may not have got the request
			return
		}
		m.subscribeAgainLocked(uri)
	}
	return forward
}

// unsubscribeAllLocked tells the server that nobody has the URI any more.
func (m *Mux) unsubscribeAllLocked(uri string) {
	if m.newer != nil {
		m.unlistenLocked(uri)
		return
	}
	m.callLocked(wire.ResourcesUnsubscribe, uriParams(uri), func(bool) { m.subscribeAgainLocked(uri) })
}

// subscribeAgainLocked is due when an unsubscribe has ended. A client that has come
// meanwhile may have overtaken it; without this the server would forget that client. If
// that one has left by then, its unsubscribe may have overtaken this subscribe.
func (m *Mux) subscribeAgainLocked(uri string) {
	if m.subs[uri] != nil {
		m.callLocked(wire.ResourcesSubscribe, uriParams(uri), func(bool) {
			if m.subs[uri] == nil {
				m.unsubscribeAllLocked(uri)
			}
		})
	}
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

// forgetLocked ends what a leaving member has, and tells the server of subscriptions
// that nobody has any more and of a less verbose level.
func (m *Mux) forgetLocked(p Peer, mem *member) {
	for uri := range mem.uris {
		if m.dropURILocked(p, mem, uri) {
			m.unsubscribeAllLocked(uri)
		}
	}
	delete(m.members, p)
	if mem.level == levelUnset {
		return
	}
	if least := m.mostVerboseLocked(); least != m.level && least != levelUnset {
		m.level = least
		m.tellLevelLocked()
	}
}

// nobody is the outlet of calls whose answer nobody needs.
type nobody struct{}

// Note implements Outlet.
func (nobody) Note(Pieces) {}

// Done implements Outlet.
func (nobody) Done(Pieces) {}

// callLocked makes a call of our own; after may be nil.
func (m *Mux) callLocked(method string, params []byte, after func(ok bool)) {
	if m.lost != nil {
		return
	}
	m.callForLocked(nobody{}, method, params, after)
}

// callForLocked makes a call of our own whose answer goes to out.
func (m *Mux) callForLocked(out Outlet, method string, params []byte, after func(ok bool)) *Call {
	c := &Call{m: m, method: method, id0: []byte("0"), out: out, after: after, level: levelUnset, logs: levelUnset}
	m.registerLocked(c)
	id := strconv.AppendUint(nil, c.id, 10)
	c.message.ID, c.message.Method, c.message.Bytes = id, method, wire.NewRequest(id, method, params)
	m.posts = append(m.posts, post{call: c})
	return c
}
