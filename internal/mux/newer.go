package mux

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// A connection of the newer era (M8): requests say for themselves which log messages they
// want, servers ask nothing, and what a server announces comes on listens of ours (M9):
// one for its lists, and one for each resource that somebody subscribed to.

// Newer says what a connection is like that has no handshake.
type Newer struct {
	Meta  []byte // members of the _meta of our own requests
	Lists []List // of which the server says that it announces changes
	// Streams says that each listen is a stream of its own, which is closed when nobody
	// needs it. Else listens stay: some servers forget all of a pipe's when one ends.
	Streams bool
}

// newer is the state of such a connection.
type newer struct {
	Newer
	lists *listen            // nil if nothing is announced
	uris  map[string]*listen // on pipes also those that nobody needs now
}

// The waiting before a listen that has ended is begun anew.
const (
	relistenFirst = time.Second
	relistenLast  = time.Minute
)

// listen is one subscriptions/listen of ours. It is the outlet of its call. Its fields are
// guarded by Mux.mu.
type listen struct {
	m     *Mux
	uri   string // of the resource, or "" for the lists
	call  *Call  // the one under way; that of an earlier try means nothing any more
	first chan struct{}
	begun time.Time
	heard bool // the server has granted something, at least once
	again bool // it is not the first try: something may have been missed
	wait  time.Duration
	timer *time.Timer // of the next try, or nil
}

// Newer makes this a connection of the newer era, before its first client's call. It
// begins to listen to the server's lists; the channel is closed when the server has
// acknowledged that, or will not.
func (m *Mux) Newer(n Newer) <-chan struct{} {
	first := make(chan struct{})
	m.mu.Lock()
	m.newer = &newer{Newer: n, uris: map[string]*listen{}}
	m.serial = false
	if len(n.Lists) > 0 && m.lost == nil {
		m.newer.lists = &listen{m: m, first: first}
		m.listenLocked(m.newer.lists)
	} else {
		close(first)
	}
	m.unlock()
	return first
}

func (m *Mux) isNewer() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newer != nil
}

// nameOf is what a request's headers call the thing that it is about.
func nameOf(f wire.Frame, r wire.Routing) string {
	var literal []byte
	switch f.Method {
	case wire.ToolsCall, wire.PromptsGet:
		literal = r.Name.Of(f.Raw)
	case wire.ResourcesRead:
		literal = r.URI.Of(f.Raw)
	}
	name, _ := wire.Text(literal) // without one that can be read the server says what is wrong
	return name
}

// newerInterceptLocked handles what is a matter of listening. Everything else, and with
// it the level of log messages, is in the request itself.
func (m *Mux) newerInterceptLocked(p Peer, c *Call, f wire.Frame, r wire.Routing) verdict {
	uri, err := wire.Text(r.URI.Of(f.Raw))
	switch {
	case f.Method == wire.ResourcesSubscribe && err == nil:
		return m.newerSubscribeLocked(p, c, uri)
	case f.Method == wire.ResourcesUnsubscribe && err == nil:
		if mem := m.members[p]; mem != nil {
			if _, ok := mem.uris[uri]; ok && m.dropURILocked(p, mem, uri) {
				m.unlistenLocked(uri)
			}
		}
		return answered
	}
	return forward
}

func (m *Mux) newerSubscribeLocked(p Peer, c *Call, uri string) verdict {
	s := m.subs[uri]
	if s == nil && m.newer.uris[uri] != nil { // it was left open
		s = &subscription{m: m, uri: uri, active: true}
		m.subs[uri] = s
	}
	if s != nil {
		return m.joinLocked(p, c, s)
	}
	m.subs[uri] = &subscription{m: m, uri: uri, waiting: []subscriber{{p, c.id0, c.out, c}}}
	l := &listen{m: m, uri: uri}
	m.newer.uris[uri] = l
	m.listenLocked(l)
	return parked
}

// listenLocked sends a listen.
func (m *Mux) listenLocked(l *listen) {
	what := map[string]any{}
	if l.uri != "" {
		what["resourceSubscriptions"] = []string{l.uri}
	} else {
		for _, list := range m.newer.Lists {
			what[string(list)+"ListChanged"] = true
		}
	}
	b, err := json.Marshal(what)
	if err != nil {
		panic(err) // strings and booleans
	}
	params := append(append([]byte(`{"_meta":{`), m.newer.Meta...), `},"notifications":`...)
	l.begun = time.Now()
	l.call = m.callForLocked(l, wire.SubscriptionsListen, append(append(params, b...), '}'), nil)
}

// unlistenLocked ends the listen to a resource that nobody is subscribed to any more.
func (m *Mux) unlistenLocked(uri string) {
	l := m.newer.uris[uri]
	if l == nil || !m.newer.Streams && l.timer == nil {
		return
	}
	delete(m.newer.uris, uri)
	l.stopLocked()
	if c := l.call; c != nil && !c.ended {
		m.cancelLocked(c, cancelFrame(strconv.AppendUint(nil, c.id, 10), ""))
		l.call = nil
		m.endLocked(c, endCancelled)
	}
}

func (l *listen) stopLocked() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// stopLocked is due when the connection is lost. n may be nil.
func (n *newer) stopLocked() {
	if n == nil {
		return
	}
	if n.lists != nil {
		n.lists.stopLocked()
	}
	for _, l := range n.uris {
		l.stopLocked()
	}
}

// grant is what an acknowledgement says.
type grant struct {
	Meta          map[string]json.RawMessage `json:"_meta"`
	Notifications struct {
		Tools     bool     `json:"toolsListChanged"`
		Prompts   bool     `json:"promptsListChanged"`
		Resources bool     `json:"resourcesListChanged"`
		URIs      []string `json:"resourceSubscriptions"`
	} `json:"notifications"`
}

// acknowledged takes the server's word on a listen.
func (m *Mux) acknowledged(f wire.Frame, call []byte) {
	var g grant
	if json.Unmarshal(f.Params(), &g) != nil {
		m.strays.Add(1)
		return
	}
	if call == nil {
		call = g.Meta[wire.MetaSubscription]
	}
	c := m.callOf(call)
	if c == nil {
		m.strays.Add(1)
		return
	}
	m.mu.Lock()
	l, ok := c.out.(*listen)
	if !ok {
		m.mu.Unlock()
		m.strays.Add(1)
		return
	}
	if l.call != c || c.ended {
		m.mu.Unlock()
		return
	}
	l.tellFirstLocked()
	if l.uri == "" {
		l.heard = l.heard || g.Notifications.Tools || g.Notifications.Prompts || g.Notifications.Resources
		again := l.again
		m.mu.Unlock()
		if again {
			for list, granted := range map[List]bool{Tools: g.Notifications.Tools, Prompts: g.Notifications.Prompts, Resources: g.Notifications.Resources} {
				if granted {
					m.changed(list)
				}
			}
		}
		return
	}
	granted := slices.Contains(g.Notifications.URIs, l.uri)
	l.heard = l.heard || granted
	s := m.subs[l.uri]
	if s == nil || s.active {
		again := l.again && granted && s != nil
		m.mu.Unlock()
		if again {
			m.maybeUpdated(l.uri)
		}
		return
	}
	s.endedLocked(granted)
	if !granted {
		l.call = nil
		delete(m.newer.uris, l.uri)
		m.cancelLocked(c, cancelFrame(strconv.AppendUint(nil, c.id, 10), ""))
		m.endLocked(c, endCancelled)
	}
	due := s.due
	m.unlock()
	for _, w := range due {
		if granted {
			w.out.Done(resultPieces(w.id0, emptyResult))
		} else {
			w.out.Done(notAnnounced(w.id0))
		}
	}
}

// notAnnounced is the answer to who wants to hear of a resource of which the server does
// not speak.
func notAnnounced(id []byte) Pieces {
	return errorPieces(id, wire.ErrorObject(wire.InvalidParams, "the server does not announce changes of this resource"))
}

// maybeUpdated tells the subscribers of a resource that they may have missed a change.
func (m *Mux) maybeUpdated(uri string) {
	raw := wire.NewNotification(wire.ResourceUpdated, uriParams(uri))
	m.mu.Lock()
	var to []Peer
	for p, mem := range m.members {
		if _, ok := mem.uris[uri]; ok {
			to = append(to, p)
		}
	}
	m.mu.Unlock()
	for _, p := range to {
		p.Notify(Pieces{raw})
	}
}

func (l *listen) tellFirstLocked() {
	if l.first != nil {
		close(l.first)
		l.first = nil
	}
}

// Note implements Outlet; a listen has no progress.
func (l *listen) Note(Pieces) {}

// Done implements Outlet: the server has ended the listen.
func (l *listen) Done(p Pieces) {
	f, err := wire.Parse(p.AppendTo(nil))
	refused := err == nil && f.ErrorSpan.Present()
	for _, w := range l.over(true) {
		if refused {
			w.out.Done(Pieces{p[0], w.id0, p[2]})
		} else {
			w.out.Done(notAnnounced(w.id0))
		}
	}
}

// Failed implements Failer: the connection, or the listen's stream, was lost.
func (l *listen) Failed(err *fault.Error) bool {
	for _, w := range l.over(false) {
		deliver([]delivery{{w.out, w.id0, err}})
	}
	return true
}

// over takes the end of the listen's call and returns who waited for its first word.
// answered says that the server ended it. The listen is begun anew in a while, unless
// nobody needs it or the server announces nothing.
func (l *listen) over(answered bool) (waited []subscriber) {
	m := l.m
	m.mu.Lock()
	defer m.unlock()
	if l.call == nil || !l.call.ended { // it is not needed, or a later one is under way
		return nil
	}
	l.call = nil
	l.tellFirstLocked()
	s := m.subs[l.uri]
	switch {
	case l.uri != "" && s != nil && !s.active:
		delete(m.newer.uris, l.uri)
		s.endedLocked(false)
		return s.due
	case m.lost != nil:
		return nil
	case l.uri == "" && answered && !l.heard:
		return nil // whatever it said, it announces nothing
	case l.uri != "" && s == nil:
		delete(m.newer.uris, l.uri)
	default:
		l.retryLocked()
	}
	if lists := m.newer.lists; l.uri != "" && !m.newer.Streams && lists != nil && lists.heard {
		lists.retryLocked() // the server may have forgotten it together with this one
	}
	return nil
}

// retryLocked has the listen begun anew in a while; one that fails again and again more
// and more seldom.
func (l *listen) retryLocked() {
	if l.timer != nil {
		return
	}
	if time.Since(l.begun) >= relistenLast {
		l.wait = 0
	}
	l.wait = min(max(2*l.wait, relistenFirst), relistenLast)
	l.again = true
	var timer *time.Timer
	timer = time.AfterFunc(l.wait, func() {
		l.m.mu.Lock()
		if l.timer == timer && l.m.lost == nil {
			l.timer = nil
			l.m.listenLocked(l)
		}
		l.m.unlock()
	})
	l.timer = timer
}

// endListen takes a server's notifications/cancelled: the only thing of ours that a
// server may end so is a listen.
func (m *Mux) endListen(id []byte) {
	c := m.callOf(id)
	if c == nil {
		return
	}
	m.mu.Lock()
	if _, ok := c.out.(*listen); !ok || c.ended {
		m.mu.Unlock()
		return
	}
	m.endLocked(c, endCancelled)
	m.unlock()
	c.out.Done(Pieces{})
}

// newerMessage delivers a log message: to the client of its call, where that is known;
// else to each client with a request in flight that asked for such ones (M5). What nobody
// asked for goes to the server's log.
func (m *Mux) newerMessage(f wire.Frame, level int, call []byte) {
	wants := func(c *Call) bool { return c.peer != nil && c.logs != levelUnset && level >= c.logs }
	var to []Outlet
	m.mu.Lock()
	if call != nil {
		n, _ := number(call)
		if c := m.calls[n]; c != nil && wants(c) {
			to = append(to, c.out)
		}
	} else {
		for _, mem := range m.members {
			if i := slices.IndexFunc(mem.live, wants); i >= 0 {
				to = append(to, mem.live[i].out)
			}
		}
	}
	m.mu.Unlock()
	for _, out := range to {
		out.Note(Pieces{f.Raw})
	}
	if len(to) == 0 {
		m.log(f.Raw)
	}
}
