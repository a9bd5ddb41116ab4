package session

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/instance"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// A binding to an exclusive server is attached to an instance of it while it has the lease
// (I2). What the server is, and what it lists, is known without one, so that only a session
// that does something with it has an instance.

// lease is an instance in the hands of a binding.
type lease struct {
	*instance.Lease
	since  time.Time
	coming chan struct{} // closed when the acquire has ended that has lent it
}

// borrow leases an instance and attaches to it.
func (b *binding) borrow(ctx context.Context, h *pool.Holder, server *config.Server) (*pool.Attachment, error) {
	if b.only {
		return nil, errUnnamed(b.name)
	}
	got, err := b.s.m.cfg.Instances.Acquire(ctx, server, instance.Borrower{Principal: b.s.principal, Session: b.s.id})
	if err != nil {
		return nil, err
	}
	att, err := got.Attach(h, pool.Want{Server: server, Listener: b, Narrow: b.narrow})
	if err != nil {
		got.Release()
		return nil, err
	}
	b.mu.Lock()
	if b.leases == nil {
		b.leases = map[*pool.Attachment]*lease{}
	}
	b.leases[att] = &lease{got, time.Now(), b.busy}
	b.mu.Unlock()
	b.s.changed()
	b.s.settle(ctx, keepWait)
	b.s.m.cfg.Log.Info("instance leased", "session", b.s.id, "server", b.name, "instance", got.Instance())
	return att, nil
}

// letGo gives an attachment up, by release or retire, and after it the instance that it is
// attached to.
func (b *binding) letGo(att *pool.Attachment, giveUp func()) {
	giveUp()
	b.mu.Lock()
	l := b.leases[att]
	delete(b.leases, att)
	delete(b.used, att)
	b.mu.Unlock()
	if l == nil {
		return
	}
	l.Release()
	b.s.changed()
	b.s.m.cfg.Log.Info("instance released", "session", b.s.id, "server", b.name, "instance", l.Instance())
}

// unleased returns the server if it is exclusive and the binding has no instance, else nil.
func (b *binding) unleased() *config.Server {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.att != nil || b.server == nil || b.server.Sharing != config.Exclusive {
		return nil
	}
	return b.server
}

// describe returns what is known of the instances of an exclusive server.
func (b *binding) describe(ctx context.Context, server *config.Server) (*instance.Catalogue, error) {
	return b.s.m.cfg.Instances.Describe(ctx, server)
}

// handshake returns the server's answer to initialize, of the attachment or, for an
// exclusive server, of any instance.
func (b *binding) handshake(ctx context.Context) (h *pool.Handshake, err error) {
	if server := b.unleased(); server != nil {
		known, err := b.describe(ctx, server)
		if err != nil {
			return nil, err
		}
		return known.Handshake, nil
	}
	err = b.with(ctx, func(att *pool.Attachment) error {
		h, err = att.Handshake(ctx)
		return err
	})
	return h, err
}

// listOf reads a list through an attachment, with a new one if the old is of no use, and
// returns the era in which its server speaks. A list that the server does not declare is
// nil.
func listOf(ctx context.Context, b *binding, kind pool.Kind) (l *pool.Listing, spoken era.Era, err error) {
	if server := b.unleased(); server != nil {
		known, err := b.describe(ctx, server)
		if err == nil && known.Failed[kind] != nil {
			known, err = b.s.m.cfg.Instances.Refresh(ctx, server)
		}
		if err == nil {
			err = known.Failed[kind]
		}
		if err != nil {
			return nil, "", err
		}
		if l = known.Lists[kind]; l != nil {
			l = pool.Filtered(server, b.narrow(), kind, l)
		}
		return l, known.Handshake.Era, nil
	}
	err = b.with(ctx, func(att *pool.Attachment) error {
		l, err = att.List(ctx, kind)
		spoken = att.Era()
		return err
	})
	return l, spoken, err
}

// errUndeclared is the answer to a list that an exclusive server does not declare.
func errUndeclared(method string) error {
	return &wire.ParseFailure{Code: wire.MethodNotFound, Message: "the server does not declare " + method}
}

// noteLoss is noteLossLocked for the instance that calls go to.
func (b *binding) noteLoss(att *pool.Attachment, fate string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.att == att {
		b.noteLossLocked(att, fate)
	}
}

// noteLossLocked remembers what has become of the session's instance, if it has the
// attachment's, so that the next result says it: what the session did there is lost, and
// must not be so silently (N6).
func (b *binding) noteLossLocked(att *pool.Attachment, fate string) {
	if b.leases[att] != nil {
		b.loss = fmt.Sprintf("roundhouse: the instance of %s that this session used %s; this result is from a new one, which knows nothing of what was done before: begin anew there", b.name, fate)
	}
}

// keepLoss has the next result say what this one could not.
func (b *binding) keepLoss(loss string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.loss = cmp.Or(b.loss, loss)
}

// mention has it said with the call's result what was lost, of the binding's instance and
// with a restart.
func (k *call) mention(b *binding, loss, restart string) {
	if loss == "" && restart == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.notice, k.from, k.restart = cmp.Or(loss, k.notice), b, cmp.Or(restart, k.restart)
}

// withNotice puts a text before the content of a tool's result. What is no such result
// stays as it is, and told is unset.
func withNotice(p mux.Pieces, notice string) (_ mux.Pieces, told bool) {
	raw := p.AppendTo(nil)
	f, err := wire.Parse(raw)
	if err != nil || !f.ResultSpan.Present() {
		return p, false
	}
	result := f.Result()
	if len(result) == 0 || result[0] != '{' {
		return p, false
	}
	for m, err := range wire.Members(result) {
		if err != nil {
			return p, false
		}
		content := m.Value.Of(result)
		if m.Key != "content" || len(content) == 0 || content[0] != '[' {
			continue
		}
		item := append(append([]byte(`{"type":"text","text":`), wire.Quote(notice)...), '}')
		if len(bytes.TrimSpace(content[1:len(content)-1])) > 0 {
			item = append(item, ',')
		}
		at := f.ResultSpan.Start + m.Value.Start + 1
		return mux.Pieces{wire.Splice(nil, f.Raw, wire.Edit{At: wire.Span{Start: at, End: at}, With: item})}, true
	}
	return p, false
}

// LeaseInfo describes an instance that a session has.
type LeaseInfo struct {
	Server     string    `json:"server"`
	Instance   string    `json:"instance"`
	Connection string    `json:"connection"`
	Since      time.Time `json:"since"`
	AgeMs      int64     `json:"ageMs"`
}

// leased describes the instances that the binding has.
func (b *binding) leased() (infos []LeaseInfo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for att, l := range b.leases {
		infos = append(infos, LeaseInfo{Server: b.name, Instance: l.Instance(), Connection: att.ID(), Since: l.since, AgeMs: time.Since(l.since).Milliseconds()})
	}
	return infos
}

// arrived waits until the binding is attached to the instances that it has: of one that was
// just lent the store may have to know first.
func (b *binding) arrived() {
	b.mu.Lock()
	leases := slices.Collect(maps.Values(b.leases))
	b.mu.Unlock()
	for _, l := range leases {
		<-l.coming
	}
}

// ReleaseLease gives back the instance of a server that a session has, after its clean-up
// (I2): calls in flight there are interrupted, and the next one leases another. Another
// principal's session is unknown, unless admin.
func (m *Manager) ReleaseLease(principal string, admin bool, id, server string) error {
	m.mu.Lock()
	s := m.findLocked(principal, admin, id)
	if s == nil {
		m.mu.Unlock()
		return unknownSession(id)
	}
	var mine []*binding
	for _, b := range s.order {
		if b.name == server {
			mine = append(mine, b)
		}
	}
	m.mu.Unlock()
	found := false
	for _, b := range mine {
		if len(b.leased()) == 0 {
			continue
		}
		found = true
		b.arrived()
		why := fault.New(fault.Interrupted, "the session's instance of server %q was given back", server)
		why.Server, why.Sent = server, fault.SentMaybe
		b.silence(why)
		s.cleanUp([]*binding{b})
		b.rest(why)
	}
	if !found {
		return s.noInstance(server)
	}
	return nil
}
