package pool

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

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

	detached atomic.Bool // written with Pool.mu held
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

// live returns the connection, waiting under ctx while the entry is restarted. An
// error with fault.SafeToRetry asks for a new attachment.
func (a *Attachment) live(ctx context.Context) (*connection, error) {
	if c := a.entry.conn.Load(); c != nil && !c.ending.Load() && !a.detached.Load() {
		return c, nil
	}
	p, e := a.holder.pool, a.entry
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if e.state.terminal() || a.detached.Load() {
			p.settleLocked(e) // we may have been the last who waited for it
			err := fault.New(fault.Interrupted, "the connection to server %q has ended", e.name)
			err.Server, err.Sent, err.Err = e.name, fault.SentNo, e.err
			return nil, err
		}
		c := e.conn.Load()
		switch {
		case c == nil:
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
// that the server never declared is nil.
func (a *Attachment) List(ctx context.Context, k Kind) (*Listing, error) {
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
	if k == Tools || k == Prompts {
		return l.Only(a.Allows), nil
	}
	return l, nil
}

// Peek is List of what is known already; nil when nothing is.
func (a *Attachment) Peek(k Kind) *Listing {
	c := a.entry.conn.Load()
	if c == nil {
		return nil
	}
	l := c.cat.peek(k)
	if l != nil && (k == Tools || k == Prompts) {
		l = l.Only(a.Allows)
	}
	return l
}

// Allows reports whether this session may see and use the tool or prompt of that
// name: exclude first, then include, where an entry is cut at its first "(" (V3).
func (a *Attachment) Allows(name string) bool {
	s := a.want.Server
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
	return a.want.Server.IncludeTools != nil || len(a.want.Server.ExcludeTools) > 0
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
