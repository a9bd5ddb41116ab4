package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/secret"
	"roundhouse/internal/wire"
)

// bindKey tells a session's bindings apart: clients that declare different
// capabilities, or whose headers go to the server, do not share a connection (M3, K1).
type bindKey struct {
	server, capabilities, forwarded string
	era                             era.Era
	only                            bool
}

// binding is a session's use of one server. It survives the loss of the connection,
// and the session's sleep: the next call attaches anew.
type binding struct {
	// Constant.
	s            *Session
	name         string // of the server
	capabilities []byte
	variant      func(*config.Server) *config.Server // the server as the binding's clients use it
	era          era.Era                             // of the clients
	only         bool                                // the server must speak it

	unbound bool // clients do not find it any more; guarded by the manager's mutex

	mu       sync.Mutex
	server   *config.Server // as the next acquire wants it; nil if it is not to be used any more
	att      *pool.Attachment
	old      map[*pool.Attachment]bool          // those that the configuration has replaced: unset while calls are in flight there, set while it is given back
	used     map[*pool.Attachment]bool          // whether a tool was called through it since its clean-up; absent before either
	err      error                              // of the last acquire
	busy     chan struct{}                      // closed when the acquire under way has ended
	giveUp   context.CancelCauseFunc            // of that acquire; nil if it is of no instance
	waiting  int                                // for it
	acquired uint64                             // which acquire of the manager's att is from
	leases   map[*pool.Attachment]*lease        // of those attachments whose server is exclusive; nil before the first
	loss     string                             // what the next result says of an instance that the session has no more, or ""
	cleaning map[*pool.Attachment]chan struct{} // closed when the clean-up under way has ended
	released bool
	peers    map[*Client]*peer
	awaited  bool // by a list for visitors, from which it was left out
}

// bind returns the session's binding for a server and a client's capabilities.
func (s *Session) bind(c *Client, server *config.Server) (*binding, error) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	server, err := s.serverLocked(server.Name) // it may have changed meanwhile
	if err != nil {
		return nil, err
	}
	server = c.variant(server)
	capabilities := c.capabilities
	switch {
	case server.Interactive == config.Refuse:
		capabilities = noCapabilities
	case server.Sharing == config.Shared:
		capabilities = c.shareable
	}
	k := bindKey{server.Name, string(capabilities), c.forwarded(server), c.era(), c.nameless() && server.Sharing != config.Shared}
	if server.Sharing == config.Exclusive { // a session has one lease, whoever its clients are (I2)
		k = bindKey{server: server.Name, only: k.only}
		capabilities = noCapabilities
	}
	if b := s.bindings[k]; b != nil {
		return b, nil
	}
	if s.holder == nil { // it has ended, or it is dormant and this is no request
		return nil, cmp.Or(s.cause, errEnded)
	}
	b := &binding{
		s: s, name: server.Name, server: server, capabilities: capabilities, variant: c.variant, era: k.era, only: k.only, peers: map[*Client]*peer{},
		old: map[*pool.Attachment]bool{}, used: map[*pool.Attachment]bool{}, cleaning: map[*pool.Attachment]chan struct{}{},
	}
	s.bindings[k] = b
	s.order = append(s.order, b)
	return b, nil
}

// errGivenUp ends an acquire that nobody waits for any more.
var errGivenUp = errors.New("nobody waits for the server any more")

// attach returns the live attachment, acquiring it if there is none. The acquire is
// one for all who ask; ctx ends the waiting only. But an acquire of an instance ends with
// the last who waits for it, so that it keeps nobody else from one (I3).
func (b *binding) attach(ctx context.Context) (*pool.Attachment, error) {
	for {
		att, err := b.join(ctx)
		switch {
		case errors.Is(err, errGivenUp) && ctx.Err() == nil:
			// That was an acquire of others, who left in this moment.
		case !errors.Is(err, pool.ErrReleased):
			return att, err
		case b.s.holding() == nil:
			return nil, b.s.whyEnded()
		}
		// Or it was still the acquire from before the session's last sleep.
	}
}

// join is attach for those who ask while the session stays awake; else its error is
// pool.ErrReleased.
func (b *binding) join(ctx context.Context) (*pool.Attachment, error) {
	b.mu.Lock()
	if b.att != nil {
		defer b.mu.Unlock()
		return b.att, nil
	}
	if b.busy == nil {
		if b.released {
			b.mu.Unlock()
			return nil, errEnded
		}
		busy := make(chan struct{})
		acquiring := b.s.ctx
		if b.server != nil && b.server.Sharing == config.Exclusive {
			acquiring, b.giveUp = context.WithCancelCause(acquiring)
		}
		b.busy = busy
		b.mu.Unlock()
		if !b.s.m.spawn(func() { b.acquire(acquiring, busy) }) {
			return nil, drainingFault()
		}
		b.mu.Lock()
	}
	busy := b.busy
	b.waiting++
	b.mu.Unlock()
	var gaveUp error
	if busy != nil {
		select {
		case <-busy:
		case <-ctx.Done():
			gaveUp = context.Cause(ctx)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting--
	switch {
	case gaveUp == nil:
	case b.busy == busy && b.waiting == 0 && b.giveUp != nil:
		b.giveUp(errGivenUp)
		fallthrough
	default:
		return nil, gaveUp
	}
	if b.att == nil && b.err == nil {
		return nil, b.lostAgain()
	}
	return b.att, b.err
}

func (b *binding) lostAgain() *fault.Error {
	err := fault.New(fault.Interrupted, "server %q ended as soon as it had started; the next call starts it anew", b.name)
	err.Server, err.Sent = b.name, fault.SentNo
	return err
}

// acquire attaches to what the configuration asks for, also if that changes meanwhile.
func (b *binding) acquire(ctx context.Context, busy chan struct{}) {
	for !b.acquireAs(ctx, b.wanted()) {
		continue // the configuration has changed
	}
	close(busy)
}

// wanted returns the server as the next acquire wants it, or nil.
func (b *binding) wanted() *config.Server {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.server
}

// acquireAs attaches to the server, or sets the error, unless another one is wanted by
// then.
func (b *binding) acquireAs(ctx context.Context, server *config.Server) (done bool) {
	holder, att, err := b.tryAcquire(ctx, server)
	b.mu.Lock()
	if b.server != server {
		if !sameConnection(b.server, server) {
			b.mu.Unlock()
			if err == nil {
				b.letGo(att, att.Retire)
			}
			return false
		}
		if err == nil {
			att.Reconfigure(b.server)
		}
	}
	if b.giveUp != nil {
		b.giveUp(nil)
		b.giveUp = nil
	}
	b.busy, b.err = nil, err
	var peers []*peer
	late := err == nil && b.released
	switch {
	case late:
		b.err = errEnded
	case err == nil:
		b.att, b.acquired = att, b.s.m.acquires.Add(1)
		peers = slices.Collect(maps.Values(b.peers))
	}
	b.mu.Unlock()
	switch {
	case late:
		b.letGo(att, att.Release)
	case err == nil && b.s.holding() != holder: // the session fell asleep meanwhile
		b.forget(att)
		b.mu.Lock()
		if b.att == nil && b.busy == nil {
			b.err = pool.ErrReleased
		}
		b.mu.Unlock()
	}
	for _, p := range peers {
		p.rejoin(att)
	}
	return true
}

func (b *binding) tryAcquire(ctx context.Context, server *config.Server) (*pool.Holder, *pool.Attachment, error) {
	if server == nil {
		return nil, nil, b.unwanted()
	}
	holder := b.s.holding()
	if holder == nil {
		return nil, nil, pool.ErrReleased
	}
	if server.Sharing == config.Exclusive {
		att, err := b.borrow(ctx, holder, server)
		return holder, att, err
	}
	resolved, err := server.Resolve(b.s.workspace)
	if err != nil {
		return nil, nil, fault.New(fault.BadRequest, "%w", err)
	}
	w := pool.Want{Server: b.named(resolved), Principal: b.s.principal, Capabilities: b.capabilities, Era: b.era, Only: b.only, Listener: b, Narrow: b.narrow}
	if server.NeedsWorkspace() {
		w.Workspace = b.s.workspace
	}
	att, err := holder.Acquire(b.s.ctx, w)
	if errors.Is(err, pool.ErrOtherEra) {
		err = errShakeHands
	}
	return holder, att, err
}

// named is a remote server that is not shared, told which session its connection is for: the
// name is ours, whatever anybody has sent for that header (X4).
func (b *binding) named(server *config.Server) *config.Server {
	if server.Sharing != config.Session || server.Transport == config.Stdio {
		return server
	}
	v := *server
	v.Headers = maps.Clone(server.Headers)
	if v.Headers == nil {
		v.Headers = map[string]secret.String{}
	}
	maps.DeleteFunc(v.Headers, func(name string, _ secret.String) bool { return strings.EqualFold(name, sessionHeader) })
	v.Headers[sessionHeader] = secret.New(b.s.id)
	return &v
}

// sessionHeader tells a remote server the session.
const sessionHeader = "X-Session-Id"

// errShakeHands is the answer to a request that names no session and wants a server that
// keeps something of its clients.
var errShakeHands = &pool.RPCError{Object: era.UnsupportedVersion(wire.Version20260728, wire.LegacyVersions)}

// current returns the attachment if there is one now.
func (b *binding) current() *pool.Attachment {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.att
}

// peer returns the client's side of the binding.
func (b *binding) peer(c *Client) *peer {
	b.mu.Lock()
	p := b.peers[c]
	if p != nil {
		b.mu.Unlock()
		return p
	}
	p = &peer{b: b, c: c}
	recalled := p.recall()
	b.peers[c] = p
	att := b.att
	b.mu.Unlock()
	switch {
	case att == nil: // which tells it when it comes
	case recalled:
		b.s.m.spawn(func() { p.rejoin(att) })
	case att.Own():
		att.Join(p)
	}
	if c.left() {
		b.leave(c, errEnded) // it came while its client was leaving
	}
	return p
}

// leave ends what a client has here; its calls get err.
func (b *binding) leave(c *Client, err *fault.Error) {
	b.mu.Lock()
	p, atts := b.peers[c], b.attachmentsLocked()
	delete(b.peers, c)
	b.mu.Unlock()
	for _, att := range atts {
		if p != nil {
			att.Leave(p, err)
		}
	}
}

// release gives the connection back for good; calls in flight get err.
func (b *binding) release(err *fault.Error) {
	b.mu.Lock()
	b.released = true
	b.mu.Unlock()
	b.rest(err)
}

// rest gives the connection back until the next call; calls in flight get err.
func (b *binding) rest(err *fault.Error) {
	b.mu.Lock()
	atts := b.attachmentsLocked()
	b.att = nil
	clear(b.old)
	peers := slices.Collect(maps.Values(b.peers))
	b.mu.Unlock()
	for _, att := range atts {
		for _, p := range peers {
			att.Leave(p, err)
		}
		b.letGo(att, att.Release)
	}
}

// silence ends what the binding's clients have in flight; it gets err.
func (b *binding) silence(err *fault.Error) {
	b.mu.Lock()
	atts, peers := b.attachmentsLocked(), slices.Collect(maps.Values(b.peers))
	b.mu.Unlock()
	for _, att := range atts {
		for _, p := range peers {
			att.Leave(p, err)
		}
	}
}

// inOrder sorts bindings by when they attached.
func inOrder(order []*binding) []*binding {
	at := map[*binding]uint64{}
	for _, b := range order {
		b.mu.Lock()
		at[b] = b.acquired
		b.mu.Unlock()
	}
	return slices.SortedStableFunc(slices.Values(order), func(x, y *binding) int { return cmp.Compare(at[x], at[y]) })
}

// hasLocked reports whether the binding is attached so, or was before a new configuration
// and has not given that back.
func (b *binding) hasLocked(att *pool.Attachment) bool {
	_, old := b.old[att]
	return b.att == att || old
}

// attachments is attachmentsLocked without the lock.
func (b *binding) attachments() []*pool.Attachment {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.attachmentsLocked()
}

// attachmentsLocked returns all that the binding is attached to.
func (b *binding) attachmentsLocked() []*pool.Attachment {
	atts := slices.Collect(maps.Keys(b.old))
	if b.att != nil {
		atts = append(atts, b.att)
	}
	return atts
}

// connections returns the ids of the connections that the binding is attached to.
func (b *binding) connections() (ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, att := range b.attachmentsLocked() {
		ids = append(ids, att.ID())
	}
	return ids
}

// forget drops an attachment that is of no more use.
func (b *binding) forget(a *pool.Attachment) {
	b.mu.Lock()
	if b.att == a {
		b.att = nil
	}
	delete(b.old, a)
	b.mu.Unlock()
	b.letGo(a, a.Release)
}

// clients returns who uses the binding now.
func (b *binding) clients() []*Client {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.peers))
}

// ListChanged implements pool.Listener.
func (b *binding) ListChanged(_ *pool.Attachment, l mux.List) {
	for _, c := range b.clients() {
		c.listChanged(l)
	}
}

// Lost implements pool.Listener.
func (b *binding) Lost(a *pool.Attachment, why *fault.Error) {
	b.noteLoss(a, fmt.Sprintf("has ended (%s)", why.Message))
	b.forget(a)
}

// Renewed implements pool.Listener. An instance is renewed by hand only. What the new
// connection is told may have to wait for its turn there.
func (b *binding) Renewed(a *pool.Attachment) {
	b.noteLoss(a, "was restarted")
	b.mu.Lock()
	peers := slices.Collect(maps.Values(b.peers))
	b.mu.Unlock()
	b.s.m.spawn(func() {
		for _, p := range peers {
			p.rejoin(a)
		}
	})
}

// peer is one client on one binding. It remembers what a new connection must be
// told again (M4).
type peer struct {
	b *binding
	c *Client

	mu    sync.Mutex
	level []byte            // params of the last logging/setLevel
	logs  []byte            // the level in them, a JSON string
	uris  map[string]string // subscribed to, each with the name that the client knows it by
}

// Notify implements mux.Peer.
func (p *peer) Notify(f mux.Pieces) {
	if p.c.scope == "" {
		f = p.shown(f)
	}
	p.c.push(f)
}

// shown gives the resource in notifications/resources/updated the name under which
// the aggregate's client subscribed to it. Other frames pass as they are.
func (p *peer) shown(frame mux.Pieces) mux.Pieces {
	f, err := wire.Parse(frame.AppendTo(nil))
	if err != nil || f.Method != wire.ResourceUpdated {
		return frame
	}
	r, err := f.Routing()
	if err != nil {
		return frame
	}
	uri, err := wire.Text(r.URI.Of(f.Raw))
	if err != nil {
		return frame
	}
	p.mu.Lock()
	name, ok := p.uris[uri]
	p.mu.Unlock()
	if !ok || name == uri {
		return frame
	}
	return mux.Replace(f.Raw, r.URI, wire.Quote(name))
}

// Ask implements mux.Peer.
func (p *peer) Ask(a *mux.Ask, out mux.Outlet) { p.c.ask(a, out) }

// Unask implements mux.Peer.
func (p *peer) Unask(a *mux.Ask) { p.c.takeBack(a) }

// do sends a request of the client. A client that left meanwhile, or whose session
// gave the connection back, has left nothing there.
func (p *peer) do(att *pool.Attachment, f wire.Frame, r wire.Routing, out mux.Outlet) (*mux.Call, error) {
	mc, err := att.Do(p.b.s.ctx, p, f, r, out)
	if p.over(att) {
		att.Leave(p, errEnded)
	}
	return mc, err
}

// over reports whether the client uses the attachment no more.
func (p *peer) over(att *pool.Attachment) bool {
	if p.c.left() {
		return true
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	leaving, old := p.b.old[att]
	return p.b.att != att && (!old || leaving) || p.b.peers[p.c] != p
}

// remember keeps what a successful request changed at the server. uri is how the
// client names the resource that it is about.
func (p *peer) remember(f wire.Frame, r wire.Routing, uri string) {
	defer p.b.s.changed()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch f.Method {
	case wire.LoggingSetLevel:
		p.level, p.logs = slices.Clone(f.Params()), slices.Clone(r.Level.Of(f.Raw))
	case wire.ResourcesSubscribe, wire.ResourcesUnsubscribe:
		own, err := wire.Text(r.URI.Of(f.Raw))
		if err != nil {
			return
		}
		if f.Method == wire.ResourcesUnsubscribe {
			delete(p.uris, own)
			return
		}
		if p.uris == nil {
			p.uris = map[string]string{}
		}
		p.uris[own] = cmp.Or(uri, own)
	}
}

// rejoin tells a new connection what the client had on the old one. Nobody waits
// for the answers; a failure shows as silence, as it would have at the server.
func (p *peer) rejoin(att *pool.Attachment) {
	if att.Own() {
		att.Join(p)
	}
	p.mu.Lock()
	var again [][]byte
	if p.level != nil && att.Era() == era.Legacy { // in the newer one each request says it
		again = append(again, wire.NewRequest([]byte("0"), wire.LoggingSetLevel, p.level))
	}
	for uri := range p.uris {
		params := append(append([]byte(`{"uri":`), wire.Quote(uri)...), '}')
		again = append(again, wire.NewRequest([]byte("0"), wire.ResourcesSubscribe, params))
	}
	p.mu.Unlock()
	for _, raw := range again {
		f, err := wire.Parse(raw)
		if err != nil {
			continue // made by us; cannot be
		}
		r, err := f.Routing()
		if err != nil {
			continue
		}
		_, _ = p.do(att, f, r, nobody{}) // a lost connection is told of elsewhere
	}
}

// nobody is an outlet for answers that nobody needs.
type nobody struct{}

func (nobody) Note(mux.Pieces) {}
func (nobody) Done(mux.Pieces) {}
