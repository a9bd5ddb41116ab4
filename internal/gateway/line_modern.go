package gateway

import (
	"bytes"
	"context"

	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// A line serves 2026-07-28, too (M8). What HTTP tells by headers and connections is told
// here by the line: it names the session of its requests, ids are its own, so that
// notifications/cancelled counts, and its end cancels what is in flight (M2).

// lineVisit is a request of 2026-07-28 on a line. It implements mux.Outlet, and
// session.Stream if it listens.
type lineVisit struct {
	// Constant.
	line   *line
	call   *call
	ctx    context.Context // ends with the request
	cancel context.CancelFunc

	// Guarded by line.mu.
	client  *session.Client // nil before it has entered the session
	held    []mux.Pieces    // what came before the acknowledgement, the newest of it
	holding bool            // it listens, and the acknowledgement is still to come
	granted session.Watch
	over    bool
}

// claims reports whether a frame is a request of 2026-07-28. Before anybody has shaken
// hands it may be one that forgot to say so.
func (l *line) claims(f wire.Frame) (meta wire.Routing, modern bool, err error) {
	if f.Kind != wire.Request {
		return meta, false, nil
	}
	marked := bytes.Contains(f.Raw, []byte(wire.MetaPrefix))
	l.mu.Lock()
	shaken, met := l.client != nil, l.sender != nil
	l.mu.Unlock()
	forgot := false
	switch f.Method {
	case wire.Discover, wire.SubscriptionsListen:
		forgot = !shaken
	case wire.MethodInitialize, wire.Ping:
	default:
		forgot = !shaken && met
	}
	if !marked && !forgot {
		return meta, false, nil
	}
	if meta, err = f.Routing(); err != nil && shaken {
		return meta, false, nil // who has shaken hands is told in its own way
	}
	return meta, err == nil && (forgot || meta.ProtocolVersion.Present()), err
}

// visit leads a request of 2026-07-28 on its way, as frame does others.
func (l *line) visit(f wire.Frame, meta wire.Routing, reader bool) bool {
	if bad := checkModern(nil, f, meta); bad != nil {
		l.put(mux.Pieces{wire.ErrorReply(f.ID(), bad.object)}, true)
		return true
	}
	x, err := l.begun(f, meta)
	if err != nil {
		if bad, ok := err.(*wire.ParseFailure); ok {
			l.put(mux.Pieces{wire.ErrorReply(f.ID(), wire.ErrorObject(bad.Code, bad.Message))}, true)
		} else {
			l.put(failure(f.ID(), err), true)
		}
		return true
	}
	return l.lead(reader, x.run)
}

// begun registers a request. An id that is in flight is the sender's error (W1).
func (l *line) begun(f wire.Frame, meta wire.Routing) (*lineVisit, error) {
	k, err := newCall(f, meta)
	if err != nil {
		return nil, err
	}
	if err := l.meet(f, meta, k.visit.Info); err != nil {
		return nil, err
	}
	x := &lineVisit{line: l, call: k}
	if x.holding = f.Method == wire.SubscriptionsListen; x.holding {
		k.visit.Stream = x
	}
	x.ctx, x.cancel = context.WithCancel(l.ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.visits[string(f.ID())] != nil:
		err = fault.New(fault.BadRequest, "a request with the id %s is in flight already", f.ID())
	case l.open >= maxOpen:
		err = errTooManyOpen
	default:
		l.visits[string(f.ID())] = x
		l.open++
		return x, nil
	}
	x.cancel()
	return nil, err
}

// meet lets a client stand in the session for who sends without a handshake. The first
// request may name the session; the others must agree.
func (l *line) meet(f wire.Frame, meta wire.Routing, info string) error {
	hello := l.hello
	hello.Frame = f
	l.mu.Lock()
	sender := l.sender
	l.mu.Unlock()
	if sender != nil && meta.Session.Present() {
		hello.Session = sender.Session().ID()
	}
	if sender == nil || meta.Session.Present() {
		if err := addMeta(&hello, meta); err != nil {
			return err
		}
	}
	if sender != nil {
		return nil
	}
	peer := &linePeer{line: l}
	hello.Stream = peer
	c, err := l.rl.g.cfg.Sessions.Enter(hello, info)
	if err != nil {
		return err
	}
	if over, ok := l.keep(c, peer, &l.sender); ok && over {
		l.end()
	}
	return nil
}

// run brings the request on its way.
func (x *lineVisit) run() {
	l := x.line
	l.mu.Lock()
	sender := l.sender
	l.mu.Unlock()
	if sender == nil {
		return // the line has ended
	}
	c, err := sender.Visit(x.call.visit)
	if err != nil {
		x.fail(err)
		return
	}
	if !x.enter(c) {
		c.Leave() // it was cancelled, or the line has ended
		return
	}
	switch x.call.frame.Method {
	case wire.Discover:
		ctx, cancel := context.WithTimeoutCause(x.ctx, discoverWait, errDiscover)
		defer cancel()
		result, err := c.Discover(ctx)
		if err != nil {
			x.fail(err)
			return
		}
		x.Done(mux.Pieces{wire.Result(x.call.frame.ID(), result)})
	case wire.SubscriptionsListen:
		granted, err := c.Listen(x.ctx, x.call.watch)
		if err != nil {
			x.fail(err)
			return
		}
		x.acknowledge(granted)
	default:
		c.Session().Do(c, x.call.frame, x)
	}
}

func (x *lineVisit) enter(c *session.Client) bool {
	x.line.mu.Lock()
	defer x.line.mu.Unlock()
	if x.over || x.line.deaf {
		return false
	}
	x.client = c
	return true
}

// Note implements mux.Outlet.
func (x *lineVisit) Note(p mux.Pieces) {
	l := x.line
	l.mu.Lock()
	if x.holding && !x.over {
		if len(x.held) == maxQueuedFrames {
			x.held = x.held[1:]
		}
		x.held = append(x.held, p)
		l.mu.Unlock()
		return
	}
	granted := x.granted
	l.mu.Unlock()
	raw := x.call.shown(p, granted)
	l.mu.Lock()
	if !x.over {
		l.putLocked(mux.Pieces{raw}, false)
	}
	l.mu.Unlock()
	l.rouse()
}

// Done implements mux.Outlet.
func (x *lineVisit) Done(p mux.Pieces) {
	if p.Empty() {
		x.settle(nil)
		return
	}
	x.settle(whole(p))
}

func (x *lineVisit) fail(err error) { x.Done(failure(x.call.frame.ID(), err)) }

// settle ends the request, once, with an answer or without.
func (x *lineVisit) settle(answer []byte) {
	l := x.line
	l.mu.Lock()
	if x.over {
		l.mu.Unlock()
		return
	}
	x.over = true
	x.held = nil
	delete(l.visits, string(x.call.frame.ID()))
	l.open--
	if x.client != nil {
		l.leaving = append(l.leaving, x.client)
	}
	l.putLocked(mux.Pieces{answer}, true)
	l.mu.Unlock()
	x.cancel()
	l.rouse()
}

// dismiss lets the clients of requests leave that have ended: what is left of them at
// the server is cancelled.
func (l *line) dismiss() {
	l.mu.Lock()
	all := l.leaving
	l.leaving = nil
	l.mu.Unlock()
	for _, c := range all {
		c.Leave()
	}
}

// acknowledge lets the listening begin: the client first hears what it will be told of,
// and then what has come of that. If it will be told of nothing, that is all.
func (x *lineVisit) acknowledge(granted session.Watch) {
	l := x.line
	l.mu.Lock()
	if !x.over {
		l.putLocked(mux.Pieces{x.call.acknowledgement(granted)}, true)
		for _, p := range x.held {
			l.putLocked(mux.Pieces{x.call.shown(p, granted)}, false)
		}
		x.granted, x.holding, x.held = granted, false, nil
	}
	l.mu.Unlock()
	l.rouse()
	if nothing(granted) {
		x.settle(x.call.ending())
	}
}

// Push implements session.Stream, for a client that listens.
func (x *lineVisit) Push(p mux.Pieces) { x.Note(p) }

// End implements session.Stream. A listening ends with its session without a word: the
// line ends, too, and the shim listens anew on the next (H8).
func (x *lineVisit) End(*fault.Error) {}

// withdraw cancels the request that a notifications/cancelled names, if it is one without
// a handshake. No answer follows (M2).
func (l *line) withdraw(f wire.Frame) bool {
	meta, err := f.Routing()
	if err != nil {
		return false
	}
	l.mu.Lock()
	x := l.visits[string(meta.RequestID.Of(f.Raw))]
	var c *session.Client
	if x != nil {
		c = x.client
	}
	l.mu.Unlock()
	if x == nil {
		return false
	}
	if f, err := era.Older(f); err == nil && c != nil {
		c.Session().Do(c, f, nil) // which tells the server in the client's words
	}
	x.settle(nil)
	return true
}
