package session

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// Clients of protocol version 2026-07-28 shake no hands: each request brings all that
// there is to know of its sender, and is a client of its own from its arrival to its
// answer (M0). So two requests never share ids, log levels or subscriptions, whoever
// sent them. What is kept between them, the connections, belongs to their session.

// StatelessSession is the id of the session for the requests of a principal that name
// none and declare nothing. Those that declare something have one for each set of
// capabilities, of which a digest follows this prefix.
const StatelessSession = "stateless"

// Visit is what a request without a handshake brings.
type Visit struct {
	Principal    string
	Session      string          // the name of its session, or ""
	Workspace    string          // the directory of a session that the request begins, or ""; only with Session
	Tools        *Tools          // to be the session's from now on; nil leaves it as it is; only with Session
	Scope        string          // the server, or "" for the aggregate
	Info         string          // name and version of the client, for people
	Capabilities json.RawMessage // as declared: an object; nil declares nothing
	LogLevel     []byte          // JSON string of the least severe level to be told, or nil for no log messages
	Stream       Stream          // of a request that listens, else nil
	// Vet is shown a tool as its server lists it, before the tool is called. Its error
	// is the answer then. nil lets every call through.
	Vet func(tool []byte) error
}

// visitor is what a Client has of its Visit.
type visitor struct {
	declared []byte // its capabilities as it spelled them: an object
	unnamed  bool   // it names no session
	level    []byte // params of logging/setLevel, or nil
	vet      func(tool []byte) error
}

// Visit makes the client of one request and enters its session for it. Client.Leave
// must be called when the request has been answered, or its sender is gone.
func (m *Manager) Visit(v Visit) (*Client, error) {
	c, err := newVisitor(v)
	if err != nil {
		return nil, err
	}
	unnamed := statelessID(c.capabilities)
	if _, err := m.serverFor(v.Principal, cmp.Or(v.Session, unnamed), v.Scope); err != nil {
		return nil, err
	}
	c.visitor.unnamed = v.Session == ""
	if v.Tools != nil && v.Session == "" {
		return nil, fault.New(fault.BadRequest, `_meta["roundhouse/tools"] changes what a session sees; name one with X-Session-Id or _meta["roundhouse/session"]`)
	}
	c.session, err = m.open(wanted(v.Principal, v.Session, unnamed, v.Workspace))
	if err != nil {
		return nil, err
	}
	if v.Tools != nil {
		c.session.setTools(v.Tools)
	}
	return c.arrive()
}

// Visit makes the client of a request whose sender c stands for: it enters c's session.
// Of v, what says where it goes is not used. Client.Leave must be called as for
// Manager.Visit.
func (c *Client) Visit(v Visit) (*Client, error) {
	v.Scope = c.scope
	visitor, err := newVisitor(v)
	if err != nil {
		return nil, err
	}
	if err := c.session.enter(); err != nil {
		return nil, err
	}
	visitor.session = c.session
	if v.Tools != nil {
		c.session.setTools(v.Tools)
	}
	return visitor.arrive()
}

// Enter makes a client that stands for the sender of requests without a handshake, each
// of which is a Visit to it. It sends nothing itself, and keeps its session as clients do
// until Delete, or until the session ends, as its Stream is told. Of h, what comes with a
// handshake is not used; info is the sender's name and version, for people.
func (m *Manager) Enter(h Hello, info string) (*Client, error) {
	if _, err := m.serverFor(h.Principal, h.sessionID(), h.Scope); err != nil {
		return nil, err
	}
	c := &Client{
		id: h.ClientID, scope: h.Scope, capabilities: noCapabilities, shareable: noCapabilities, info: info,
		created: time.Now(), stream: h.Stream, calls: map[string]*call{},
	}
	c.version.Store(new(wire.Version20260728))
	if err := m.admit(c, h); err != nil {
		return nil, err
	}
	c.session.exit()
	c.session.changed()
	return c, nil
}

// newVisitor makes a client of what a request brings.
func newVisitor(v Visit) (*Client, error) {
	if v.Capabilities == nil {
		v.Capabilities = noCapabilities
	}
	capabilities, err := unasked(v.Capabilities)
	if err != nil {
		return nil, fault.New(fault.BadRequest, "the client's capabilities cannot be read: %w", err)
	}
	c := &Client{
		id: NewID(), scope: v.Scope, capabilities: capabilities, shareable: capabilities, info: v.Info,
		created: time.Now(), stream: v.Stream, calls: map[string]*call{}, visitor: &visitor{declared: v.Capabilities, vet: v.Vet},
	}
	if v.LogLevel != nil {
		c.visitor.level = append(append([]byte(`{"level":`), v.LogLevel...), '}')
	}
	c.version.Store(new(wire.Version20260728))
	return c, nil
}

// arrive adds a transient client to the session that was entered for it.
func (c *Client) arrive() (*Client, error) {
	c.entered.Store(true)
	s := c.session
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.state != Active {
		s.exitLocked()
		return nil, s.cause
	}
	s.clients[c] = struct{}{}
	return c, nil
}

// statelessID is the id of the session for requests that name none.
func statelessID(capabilities []byte) string {
	if bytes.Equal(capabilities, noCapabilities) {
		return StatelessSession
	}
	sum := sha256.Sum256(capabilities)
	return StatelessSession + "-" + hex.EncodeToString(sum[:4])
}

// unasked spells capabilities in one way, without those by which servers would ask
// the client something during a call, or hand out tasks: on a connection with a
// handshake neither can reach it (M6, M8).
func unasked(raw json.RawMessage) ([]byte, error) {
	if bytes.Equal(raw, noCapabilities) {
		return noCapabilities, nil
	}
	var v map[string]json.RawMessage
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, err
	}
	for _, name := range []string{"sampling", "elicitation", "roots", "tasks"} {
		delete(v, name)
	}
	var extensions map[string]json.RawMessage
	if json.Unmarshal(v["extensions"], &extensions) == nil {
		delete(extensions, wire.MetaPrefix+"tasks")
		delete(v, "extensions")
		if len(extensions) > 0 {
			b, err := json.Marshal(extensions)
			if err != nil {
				return nil, err
			}
			v["extensions"] = b
		}
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return canonical(b, true)
}

// Leave ends a client that Visit or Branch made: what is left of its request is cancelled at
// the server. The second time it does nothing.
func (c *Client) Leave() {
	s, m := c.session, c.session.m
	m.mu.Lock()
	delete(s.clients, c)
	m.mu.Unlock()
	c.end(errEnded)
	m.mu.Lock()
	bound := s.order // what a request binds from now on sees that the client has gone
	m.mu.Unlock()
	for _, b := range bound {
		b.leave(c, errEnded)
	}
	c.settle()
}

// nameless reports whether nothing tells the client apart from others of its principal.
func (c *Client) nameless() bool { return c.visitor != nil && c.visitor.unnamed }

// settle ends the client's request, if that has not been done.
func (c *Client) settle() {
	if c.entered.CompareAndSwap(true, false) {
		c.session.exit()
	}
}

// admit vets a request of a visitor, and tells the server the log level that it wants,
// before the request goes there.
func (p *peer) admit(att *pool.Attachment, f wire.Frame, r wire.Routing) error {
	v := p.c.visitor
	if v == nil {
		return nil
	}
	if v.vet != nil && f.Method == wire.ToolsCall {
		if err := v.vetTool(att.Peek(pool.Tools), r.Name.Of(f.Raw)); err != nil {
			return err
		}
	}
	if v.level == nil || att.Era() == era.Modern { // in which the request itself says it
		return nil
	}
	h, err := att.Handshake(p.b.s.ctx)
	if err != nil || !h.Has("logging") {
		return err
	}
	set, r, err := newRequest([]byte("0"), wire.LoggingSetLevel, v.level)
	if err != nil {
		return err
	}
	_, err = p.do(att, set, r, nobody{})
	return err
}

func (v *visitor) vetTool(tools *pool.Listing, literal []byte) error {
	name, err := wire.Text(literal)
	if err != nil || tools == nil {
		return nil // the server says what it thinks of that
	}
	for _, it := range tools.Items {
		if it.Key == name {
			return v.vet(it.Raw)
		}
	}
	return nil
}

// newRequest makes a request of our own.
func newRequest(id []byte, method string, params []byte) (wire.Frame, wire.Routing, error) {
	f, err := wire.Parse(wire.NewRequest(id, method, params))
	if err != nil {
		return f, wire.Routing{}, err
	}
	r, err := f.Routing()
	return f, r, err
}

// Discover answers server/discover (M3, M8): for one server from its answer to our own, or
// to initialize, for the aggregate with ours. ctx bounds the waiting for a server that
// starts.
func (c *Client) Discover(ctx context.Context) ([]byte, error) {
	if c.scope == "" || c.scope == OwnServer {
		return era.Discovered(c.ownHandshake())
	}
	_, h, err := c.meet(ctx)
	switch {
	case err != nil:
		return nil, err
	case h.Era == era.Modern:
		return era.Relayed(h.Result), nil
	}
	return era.Discovered(h.Result)
}

// meet attaches to the client's one server.
func (c *Client) meet(ctx context.Context) (*binding, *pool.Handshake, error) {
	server, err := c.session.server(c.scope)
	if err != nil {
		return nil, nil, err
	}
	b, err := c.session.bind(c, server)
	if err != nil {
		return nil, nil, err
	}
	b.peer(c)
	h, err := b.handshake(ctx)
	return b, h, err
}

// Watch is what a client wants to hear of with subscriptions/listen, or will.
type Watch struct {
	Tools, Prompts, Resources bool     // changes of the list
	URIs                      []string // of resources
}

// Listen subscribes the client, whose Stream is told from then on, and returns what it
// will hear of: what the server does not announce, or does not let it subscribe to, is
// left out. ctx bounds the waiting. The request counts as over then, so that one that
// listens keeps its session no more awake than a stream does (N3).
func (c *Client) Listen(ctx context.Context, want Watch) (Watch, error) {
	defer c.settle()
	granted := Watch{Tools: want.Tools, Prompts: want.Prompts, Resources: want.Resources}
	switch c.scope {
	case "":
		if _, err := c.session.members(c); err != nil {
			return Watch{}, err
		}
	case OwnServer:
		granted.Prompts, granted.Resources = false, false
	default:
		_, h, err := c.meet(ctx)
		if err != nil {
			return Watch{}, err
		}
		granted.Tools = want.Tools && h.Announces("tools")
		granted.Prompts = want.Prompts && h.Announces("prompts")
		granted.Resources = want.Resources && h.Announces("resources")
	}
	replies := make([]settled, len(want.URIs))
	for i, uri := range want.URIs {
		replies[i] = make(settled, 1)
		params := append(append([]byte(`{"uri":`), wire.Quote(uri)...), '}')
		f, _, err := newRequest(strconv.AppendInt(nil, int64(i), 10), wire.ResourcesSubscribe, params)
		if err != nil {
			return Watch{}, err
		}
		c.session.Do(c, f, replies[i])
	}
	for i, uri := range want.URIs {
		select {
		case ok := <-replies[i]:
			if ok {
				granted.URIs = append(granted.URIs, uri)
			}
		case <-ctx.Done():
			return Watch{}, context.Cause(ctx)
		}
	}
	return granted, nil
}

// settled is the outlet of a request of which only the outcome matters; it must have
// room for that.
type settled chan bool

// Note implements mux.Outlet.
func (s settled) Note(mux.Pieces) {}

// Done implements mux.Outlet.
func (s settled) Done(p mux.Pieces) { s <- isResult(p) }

// tellListeners is tellWhenThere for a visitor, who will be gone: those who listen
// then are told, once, however many visitors have asked.
func (s *Session) tellListeners(b *binding, kind pool.Kind) {
	b.mu.Lock()
	waiting := b.awaited
	b.awaited = true
	b.mu.Unlock()
	if waiting {
		return
	}
	s.m.spawn(func() {
		_, _, err := listOf(s.ctx, b, kind)
		b.mu.Lock()
		b.awaited = false
		b.mu.Unlock()
		if err != nil {
			return
		}
		for _, c := range b.clients() {
			if c.visitor != nil {
				c.listsChanged()
			}
		}
	})
}
