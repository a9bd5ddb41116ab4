package mux

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// Receive takes one frame from the server. The frame's bytes belong to the mux
// from then on. call is our id of the call on whose stream the frame came, where the
// transport tells (M6); else it is nil, and whom the frame is for is found by rule.
func (m *Mux) Receive(f wire.Frame, call []byte) {
	switch f.Kind {
	case wire.Response:
		m.answer(f)
	case wire.Request:
		m.request(f, call)
	case wire.Notification:
		m.notification(f, call)
	}
}

// Refuse ends the call with our id with an error that is its alone. If err says that
// it was not sent, it may be sent again (Failer).
func (m *Mux) Refuse(call []byte, err *fault.Error) {
	c := m.callOf(call)
	if c == nil {
		m.strays.Add(1)
		return
	}
	m.mu.Lock()
	if c.ended || c.waiting {
		m.mu.Unlock()
		m.strays.Add(1)
		return
	}
	m.endLocked(c, endRefused)
	m.unlock()
	deliver([]delivery{{c.out, c.id0, err}})
}

// Oversize says that the server wrote a line over the limit, with the id it
// carried if one was found (P7): the call fails alone.
func (m *Mux) Oversize(id []byte, kind wire.Kind, size, limit int64) {
	if kind == wire.Request && id != nil {
		m.cfg.Post(wire.ErrorReply(id, wire.ErrorObject(wire.InvalidRequest, "the request is too large")))
		return
	}
	method := "a call"
	if c := m.callOf(id); c != nil {
		method = c.method
	}
	err := fault.New(fault.TooLarge, "server %q answered %s with a message of %d bytes; the limit is %d", m.cfg.Server, method, size, limit)
	err.Server, err.Generation, err.Sent = m.cfg.Server, m.cfg.Generation, fault.SentMaybe
	m.Refuse(id, err)
}

func (m *Mux) callOf(id []byte) *Call {
	n, ok := number(id)
	if !ok {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[n]
}

// number reads an id of ours. Servers that keep numbers as floats may spell it
// anew (3.0); an integral value is still ours.
func number(id []byte) (uint64, bool) {
	if n, err := strconv.ParseUint(string(id), 10, 64); err == nil {
		return n, true
	}
	if len(id) == 0 || id[0] == '"' {
		return 0, false
	}
	x, err := strconv.ParseFloat(string(id), 64)
	if err != nil || x < 0 || x > 1<<53 || x != float64(uint64(x)) {
		return 0, false
	}
	return uint64(x), true
}

func (m *Mux) answer(f wire.Frame) {
	c := m.callOf(f.ID())
	if c == nil {
		m.strays.Add(1)
		return
	}
	m.mu.Lock()
	if c.ended || c.waiting {
		m.mu.Unlock()
		m.strays.Add(1)
		return
	}
	how := endError
	if f.ResultSpan.Present() {
		how = endResult
	}
	m.endLocked(c, how)
	m.unlock()
	c.out.Done(Replace(f.Raw, f.IDSpan, c.id0))
}

func (m *Mux) notification(f wire.Frame, call []byte) {
	switch f.Method {
	case wire.ToolsListChanged:
		m.changed(Tools)
	case wire.PromptsListChanged:
		m.changed(Prompts)
	case wire.ResourcesListChanged:
		m.changed(Resources)
	case wire.Acknowledged:
		m.acknowledged(f, call)
	default:
		r, err := f.Routing()
		if err != nil {
			m.strays.Add(1)
			return
		}
		switch f.Method {
		case wire.Progress:
			m.progress(f, r)
		case wire.Cancelled:
			m.takeBack(f, r.RequestID)
		case wire.ResourceUpdated:
			m.updated(f, r)
		case wire.Message:
			m.message(f, r, call)
		default:
			m.other(f, call)
		}
	}
}

func (m *Mux) changed(l List) {
	if m.cfg.Changed != nil {
		m.cfg.Changed(l)
	}
}

func (m *Mux) progress(f wire.Frame, r wire.Routing) {
	c := m.callOf(r.ProgressOf.Of(f.Raw))
	if c == nil {
		m.strays.Add(1)
		return
	}
	m.mu.Lock()
	drop, out := c.ended || c.waiting || c.token == nil, c.out
	m.mu.Unlock()
	if drop {
		m.strays.Add(1)
		return
	}
	c.noted.Store(time.Now().UnixNano())
	out.Note(Replace(f.Raw, r.ProgressOf, c.token))
}

// updated goes to the subscribers of the URI only (M4), or of one above it: a server
// may name the part of a resource that has changed. Who waits for the server's word on his
// subscription is one of them, since a server may tell of a change before it gives that.
func (m *Mux) updated(f wire.Frame, r wire.Routing) {
	uri, err := wire.Text(r.URI.Of(f.Raw))
	if err != nil {
		return
	}
	raw := f.Raw
	m.mu.Lock()
	if m.newer != nil {
		raw = era.Unmarked(f)
	}
	above := m.aboveLocked(uri)
	var to []Peer
	for p, mem := range m.members {
		has := func(uri string) bool { _, ok := mem.uris[uri]; return ok }
		if slices.ContainsFunc(above, has) {
			to = append(to, p)
		}
	}
	for _, uri := range above {
		for _, w := range m.subs[uri].waiting {
			if !slices.Contains(to, w.peer) {
				to = append(to, w.peer)
			}
		}
	}
	m.mu.Unlock()
	for _, p := range to {
		p.Notify(Pieces{raw})
	}
}

// aboveLocked returns the subscribed URIs of which uri is a part: itself, and what
// ends before a path segment, the query or the fragment.
func (m *Mux) aboveLocked(uri string) (above []string) {
	for i := range len(uri) {
		if c := uri[i]; c == '/' || c == '?' || c == '#' {
			for _, part := range []string{uri[:i], uri[:i+1]} {
				if m.subs[part] != nil && part != uri {
					above = append(above, part)
				}
			}
		}
	}
	if m.subs[uri] != nil {
		above = append(above, uri)
	}
	return above
}

// message is a log message. On stdio it names no owner: it goes to the clients
// with a call in flight whose level lets it through, else to the server's log (M5).
// On a session's own connection the only client gets it also outside its calls. Where
// the call is known, only its client gets it, or nobody but the log.
func (m *Mux) message(f wire.Frame, r wire.Routing, call []byte) {
	level := levelOf(r.Level.Of(f.Raw))
	if m.isNewer() {
		m.newerMessage(f, level, call)
		return
	}
	if call != nil {
		m.mu.Lock()
		p, out, _ := m.ownerLocked(call)
		heard := p != nil && level >= m.thresholdLocked(m.members[p])
		m.mu.Unlock()
		if p == nil || heard {
			m.tell(p, out, f.Raw)
		}
		return
	}
	var to []Outlet
	m.mu.Lock()
	owned := false
	for _, mem := range m.members {
		if len(mem.live) == 0 {
			continue
		}
		owned = true
		if level >= m.thresholdLocked(mem) {
			to = append(to, mem.live[0].out)
		}
	}
	var sole Peer
	if !owned {
		sole, _, _ = m.ownerLocked(nil)
	}
	heard := sole != nil && level >= m.thresholdLocked(m.members[sole])
	m.mu.Unlock()
	for _, out := range to {
		out.Note(Pieces{f.Raw})
	}
	switch {
	case heard:
		sole.Notify(Pieces{f.Raw})
	case !owned && sole == nil:
		m.log(f.Raw)
	}
}

func (m *Mux) log(raw []byte) {
	if m.cfg.Log != nil {
		m.cfg.Log(raw)
	}
}

// other is a notification that we do not know: it goes where its owner is beyond
// doubt and else to nobody but the log.
func (m *Mux) other(f wire.Frame, call []byte) {
	m.mu.Lock()
	p, out, _ := m.ownerLocked(call)
	m.mu.Unlock()
	m.tell(p, out, f.Raw)
}

// tell gives a notification to what ownerLocked found.
func (m *Mux) tell(p Peer, out Outlet, raw []byte) {
	switch {
	case out != nil:
		out.Note(Pieces{raw})
	case p != nil:
		p.Notify(Pieces{raw})
	default:
		m.log(raw)
	}
}

// ownerLocked finds the one peer that something from the server can be for: that of
// the call, if it is known; else the only one with live calls, or on a session's own
// connection its only peer. many says that several have live calls. A call that has
// ended has no peer any more (case 34); one of our own is outside any client's call.
func (m *Mux) ownerLocked(call []byte) (p Peer, out Outlet, many bool) {
	if call != nil {
		n, _ := number(call)
		c := m.calls[n]
		switch {
		case c == nil:
			return nil, nil, false
		case c.peer != nil:
			return c.peer, c.out, false
		}
		return m.soleLocked(), nil, false
	}
	for q, mem := range m.members {
		if len(mem.live) == 0 {
			continue
		}
		if p != nil {
			return nil, nil, true
		}
		p, out = q, mem.live[0].out
	}
	if p == nil {
		p = m.soleLocked()
	}
	return p, out, false
}

// soleLocked returns the only peer of a session's own connection, or nil.
func (m *Mux) soleLocked() (p Peer) {
	if m.cfg.Sole && len(m.members) == 1 {
		for q := range m.members {
			p = q
		}
	}
	return p
}

// Join makes p known before its first call, so that on a session's own connection
// it can be asked outside a call.
func (m *Mux) Join(p Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost == nil {
		m.memberLocked(p).joined = true
	}
}

// Ask is a request of the server to one client. Exactly one of Answer, Fail, or
// the end of the connection settles it; later ones do nothing (M7).
type Ask struct {
	Frame  wire.Frame // as the server sent it, with the server's id
	Server string

	m    *Mux
	id   []byte
	peer Peer

	// withdrawal is the notification by which the server took the request back, and at
	// the place of its requestId. It is set before Unask, if it is.
	withdrawal wire.Frame
	at         wire.Span
}

// request handles what the server asks of its client.
func (m *Mux) request(f wire.Frame, call []byte) {
	if m.isNewer() {
		m.strays.Add(1) // in this era servers ask in results, and clients send no answers
		return
	}
	if f.Method == wire.Ping {
		m.cfg.Post(wire.Result(f.ID(), []byte("{}")))
		return
	}
	if m.cfg.Policy == Refuse {
		m.cfg.Post(wire.ErrorReply(f.ID(), wire.ErrorObject(wire.MethodNotFound, "roundhouse does not pass requests of this server to clients (interactive: refuse)")))
		return
	}
	m.mu.Lock()
	p, out, many := m.ownerLocked(call)
	if p != nil {
		if _, twice := m.asks[string(f.ID())]; twice {
			m.mu.Unlock()
			m.cfg.Post(wire.ErrorReply(f.ID(), wire.ErrorObject(wire.InvalidRequest, "a request with this id is in flight")))
			return
		}
		a := &Ask{Frame: f, Server: m.cfg.Server, m: m, id: f.ID(), peer: p}
		m.asks[string(a.id)] = a
		m.mu.Unlock()
		p.Ask(a, out)
		return
	}
	if many && m.cfg.Policy == Auto {
		m.serial = true
	}
	serial := m.serial
	m.mu.Unlock()
	if !many && f.Method == wire.RootsList {
		m.cfg.Post(wire.Result(f.ID(), m.roots()))
		return
	}
	m.cfg.Post(wire.ErrorReply(f.ID(), m.ambiguous(f.Method, many, serial).RPC()))
}

func (m *Mux) roots() []byte {
	if m.cfg.Roots != nil {
		return m.cfg.Roots()
	}
	return []byte(`{"roots":[]}`)
}

func (m *Mux) ambiguous(method string, many, serial bool) *fault.Error {
	e := fault.New(fault.AmbiguousOwner, "no client has a call in flight on this shared connection, so %s has nobody to go to", method)
	if many {
		e.Message = fmt.Sprintf("several clients have calls in flight on this shared connection, so it cannot be told whom %s is for", method)
		if serial {
			e.Message += "; from now on one client's calls run at a time, so calling the tool again works"
		}
	}
	e.Server, e.Generation = m.cfg.Server, m.cfg.Generation
	return e
}

// settle takes the request out of the table; only the first one gets true.
func (a *Ask) settle() bool {
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	if a.m.asks[string(a.id)] != a {
		return false
	}
	delete(a.m.asks, string(a.id))
	return true
}

// Answer passes the client's response on, with the server's id.
func (a *Ask) Answer(f wire.Frame) {
	if a.settle() {
		a.m.cfg.Post(wire.Splice(nil, f.Raw, wire.Edit{At: f.IDSpan, With: a.id}))
	}
}

// Fail answers the server with a JSON-RPC error.
func (a *Ask) Fail(code int, message string) {
	if a.settle() {
		a.m.cfg.Post(wire.ErrorReply(a.id, wire.ErrorObject(code, message)))
	}
}

// Progress passes the client's progress on its answer to the server; frame
// already carries the server's token.
func (a *Ask) Progress(frame []byte) { a.m.cfg.Post(frame) }

// takeBack handles a server that cancels its own request.
func (m *Mux) takeBack(f wire.Frame, at wire.Span) {
	if m.isNewer() {
		m.endListen(at.Of(f.Raw))
		return
	}
	id := string(at.Of(f.Raw))
	m.mu.Lock()
	a := m.asks[id]
	delete(m.asks, id)
	m.mu.Unlock()
	if a != nil {
		a.withdrawal, a.at = f, at
		a.peer.Unask(a)
	}
}

// Withdrawal returns what tells a client that knows the request by id that it was taken
// back: the server's own words, if there are any. It is for Unask.
func (a *Ask) Withdrawal(id []byte) Pieces {
	if a.withdrawal.Raw == nil {
		return Pieces{cancelFrame(id, "the server took the request back")}
	}
	return Replace(a.withdrawal.Raw, a.at, id)
}
