package pool

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// Attachment is a session's reference to a connection, with that session's filter.
// Release it, or the Holder that made it.
type Attachment struct {
	// Constant.
	entry  *entry
	holder *Holder
	want   Want

	settings atomic.Pointer[config.Server] // of the server, as they are now
	detached atomic.Bool                   // written with Pool.mu held
}

// ID returns the id of the connection.
func (a *Attachment) ID() string { return a.entry.id }

// Server returns the server's name.
func (a *Attachment) Server() string { return a.entry.name }

// Own reports whether the connection belongs to this session alone.
func (a *Attachment) Own() bool { return a.entry.owner != nil }

// Release detaches. The second time it does nothing; it never detaches another
// attachment of the same session (S6).
func (a *Attachment) Release() {
	p := a.holder.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detachLocked(a)
}

// Retire releases an attachment that the configuration has replaced: nobody asks for
// its connection any more, so that it ends at once if nobody else holds it. Who waits for
// it to recover gets an error that allows a retry.
func (a *Attachment) Retire() {
	p, e := a.holder.pool, a.entry
	p.mu.Lock()
	defer p.mu.Unlock()
	p.detachLocked(a)
	switch {
	case len(e.atts) > 0:
	case e.state.terminal():
		p.removeLocked(e)
	default:
		p.closeLocked(e, outdated(e.name))
	}
}

// Busy reports whether calls are in flight on the connection, anybody's.
func (a *Attachment) Busy() bool {
	c := a.entry.conn.Load()
	return c != nil && !a.detached.Load() && c.mux.InFlight() > 0
}

// Reconfigure gives the session the view that the filter of s lets through (V4), and
// whatever else a connection does not depend on. The server is told nothing.
func (a *Attachment) Reconfigure(s *config.Server) { a.settings.Store(s) }

// Settings returns the server as it is configured now, as far as the connection does not
// depend on it.
func (a *Attachment) Settings() *config.Server { return a.settings.Load() }

// live returns the connection, waiting under ctx while the entry recovers (R3). An
// error with fault.SafeToRetry asks for a new attachment.
func (a *Attachment) live(ctx context.Context) (*connection, error) {
	if c := a.entry.conn.Load(); c != nil && !c.ending.Load() && !a.detached.Load() {
		return c, nil
	}
	p, e := a.holder.pool, a.entry
	p.mu.Lock()
	defer p.mu.Unlock()
	for waited := false; ; waited = true {
		if e.state.terminal() || a.detached.Load() {
			p.settleLocked(e) // we may have been the last who waited for it
			if waited && e.err != nil && !a.detached.Load() {
				return nil, e.err // the same for all who waited (S2)
			}
			err := fault.New(fault.Interrupted, "the connection to server %q has ended", e.name)
			err.Server, err.Sent, err.Err = e.name, fault.SentNo, e.err
			return nil, err
		}
		c := e.conn.Load()
		switch {
		case c == nil:
			if !waited {
				p.hastenLocked(e)
			}
			if err := p.waitLocked(ctx, a.holder, e); err != nil {
				return nil, err
			}
		case c.ending.Load():
			if err := p.waitForEndLocked(ctx, e, c); err != nil {
				return nil, err
			}
		default:
			return c, nil
		}
	}
}

// Live reports whether there is a connection now; else Wait waits for one.
func (a *Attachment) Live() bool {
	c := a.entry.conn.Load()
	return c != nil && !c.ending.Load() && !a.detached.Load()
}

// Wait returns when the entry has a live connection, waiting under ctx while it
// recovers (R3). Its errors are those of Do.
func (a *Attachment) Wait(ctx context.Context) error {
	_, err := a.live(ctx)
	return err
}

// waitForEndLocked waits without the lock until an ending connection has ended, which
// is soon, and takes it off its entry.
func (p *Pool) waitForEndLocked(ctx context.Context, e *entry, c *connection) (err error) {
	p.mu.Unlock()
	select {
	case <-c.ctx.Done():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.mu.Lock()
	if err == nil && e.conn.Load() == c {
		p.lostLocked(e, c)
	}
	return err
}

// Handshake returns the server's answer to initialize.
func (a *Attachment) Handshake(ctx context.Context) (*Handshake, error) {
	c, err := a.live(ctx)
	if err != nil {
		return nil, err
	}
	return c.hand, nil
}

// Do sends a request of p; out gets its answer unless an error is returned, which
// then means that nothing was sent. ctx bounds the time until the request is on its
// way, not the call. A nil call with a nil error has been, or will be, answered
// without one.
func (a *Attachment) Do(ctx context.Context, p mux.Peer, f wire.Frame, r wire.Routing, out mux.Outlet) (*mux.Call, error) {
	c, err := a.live(ctx)
	if err != nil {
		return nil, err
	}
	return c.do(ctx, p, f, r, out)
}

// Note sends a client's notification as it is.
func (a *Attachment) Note(ctx context.Context, raw []byte) error {
	c, err := a.live(ctx)
	if err != nil {
		return err
	}
	return c.link.Send(ctx, upstream.NewMessage(raw))
}

// Join makes p known to the connection before its first call.
func (a *Attachment) Join(p mux.Peer) {
	if c := a.entry.conn.Load(); c != nil && !a.detached.Load() {
		c.mux.Join(p)
	}
}

// Leave ends what p has on the connection; its calls get err, or no answer.
func (a *Attachment) Leave(p mux.Peer, err *fault.Error) {
	if c := a.entry.conn.Load(); c != nil {
		c.mux.Leave(p, err)
	}
}

// List returns one of the server's lists as this session sees it (V3, S5). A list
// that the server never declared is nil. While the entry recovers it is the last one
// that was read, if any was (R9); the sessions hear of a difference later.
func (a *Attachment) List(ctx context.Context, k Kind) (*Listing, error) {
	if l := a.kept(k); l != nil {
		return a.filtered(k, l), nil
	}
	c, err := a.live(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(c.declared(), k) {
		return nil, nil
	}
	l, err := c.cat.get(ctx, k)
	if err != nil {
		return nil, err
	}
	return a.filtered(k, l), nil
}

// filtered returns what this session may see of a list.
func (a *Attachment) filtered(k Kind, l *Listing) *Listing {
	return Filtered(a.settings.Load(), a.narrowed(), k, l)
}

// Filtered returns what the filter of s lets through of a list, and of that what narrow
// does, as Want.Narrow returns it.
func Filtered(s *config.Server, narrow func(name string) bool, k Kind, l *Listing) *Listing {
	if k == Tools || k == Prompts {
		return l.Only(func(name string) bool { return allows(s, narrow, name) })
	}
	return l
}

// kept returns a list from before the loss while the entry recovers, else nil.
func (a *Attachment) kept(k Kind) *Listing {
	e := a.entry
	if e.conn.Load() != nil || a.detached.Load() {
		return nil
	}
	p := a.holder.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.state != Recovering || e.before[k] == nil {
		return nil
	}
	p.hastenLocked(e)
	return e.before[k]
}

// Peek is List of what is known already; nil when nothing is.
func (a *Attachment) Peek(k Kind) *Listing {
	l := a.kept(k)
	if c := a.entry.conn.Load(); l == nil && c != nil {
		l = c.cat.peek(k)
	}
	if l == nil {
		return nil
	}
	return a.filtered(k, l)
}

// Allows reports whether this session may see and use the tool or prompt of that
// name: what the server's filter and the session's further ones let through (V3).
func (a *Attachment) Allows(name string) bool {
	return allows(a.settings.Load(), a.narrowed(), name)
}

// allows reports whether the filter of s, and narrow if it is not nil, let the tool or
// prompt of that name through: exclude first, then include, where an entry is cut at its
// first "(".
func allows(s *config.Server, narrow func(name string) bool, name string) bool {
	if narrow != nil && !narrow(name) {
		return false
	}
	if slices.Contains(s.ExcludeTools, name) {
		return false
	}
	if s.IncludeTools == nil {
		return true
	}
	return slices.ContainsFunc(s.IncludeTools, func(entry string) bool {
		entry, _, _ = strings.Cut(entry, "(")
		return entry == name
	})
}

// Filtered reports whether this session's view leaves tools or prompts out.
func (a *Attachment) Filtered() bool {
	s := a.settings.Load()
	return s.IncludeTools != nil || len(s.ExcludeTools) > 0 || a.narrowed() != nil
}

// narrowed returns what the session's further filters let through now, nil for all.
func (a *Attachment) narrowed() func(name string) bool {
	if a.want.Narrow == nil {
		return nil
	}
	return a.want.Narrow()
}

// Repeatable reports whether the server says of a tool that a call of it may be made
// twice: that it only reads, or that the second call changes nothing (R5). A tool that is
// not listed, or about which the server says so in an unclear way, is not.
func (a *Attachment) Repeatable(tool string) bool {
	l := a.Peek(Tools)
	if l == nil {
		return false
	}
	i := slices.IndexFunc(l.Items, func(it Item) bool { return it.Key == tool })
	return i >= 0 && repeatable(l.Items[i].Raw)
}

// repeatable reads a tool's annotations. What stands twice, or is spelled in another
// way, counts as false (W2).
func repeatable(tool []byte) bool {
	annotations, _ := memberOf(tool, "annotations")
	readOnly, _ := memberOf(annotations, "readOnlyHint")
	idempotent, _ := memberOf(annotations, "idempotentHint")
	return string(readOnly) == "true" || string(idempotent) == "true"
}

// memberOf returns the value of an object's only member of that name in any spelling.
func memberOf(object []byte, name string) (value []byte, ok bool) {
	if len(object) == 0 || object[0] != '{' {
		return nil, false
	}
	for m, err := range wire.Members(object) {
		switch {
		case err != nil:
			return nil, false
		case !strings.EqualFold(m.Key, name):
		case ok || m.Key != name:
			return nil, false
		default:
			value, ok = m.Value.Of(object), true
		}
	}
	return value, ok
}

// HasTool reports whether the server lists a tool of that name, as far as is known,
// whatever the session's filter says.
func (a *Attachment) HasTool(name string) bool {
	c := a.entry.conn.Load()
	if c == nil {
		return false
	}
	l := c.cat.peek(Tools)
	return l != nil && slices.ContainsFunc(l.Items, func(it Item) bool { return it.Key == name })
}

// Knows reports whether the server lists something under that key, as far as is
// known; a list that could not be read knows everything.
func (a *Attachment) Knows(k Kind, key string) bool {
	c := a.entry.conn.Load()
	if c == nil {
		return true
	}
	l := c.cat.peek(k)
	return l == nil || slices.ContainsFunc(l.Items, func(it Item) bool { return it.Key == key })
}
