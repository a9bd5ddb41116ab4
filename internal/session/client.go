package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/secret"
	"roundhouse/internal/wire"
)

// Stream is where a client's frames go that belong to no call. Push never blocks;
// it keeps what it can while nobody reads. End says that the client is gone.
type Stream interface {
	Push(mux.Pieces)
	End(why *fault.Error)
}

// Client is one MCP peer of ours: one handshake, its ids and its streams (M0), or one
// request of a version without handshakes, or who stands for the sender of such ones.
type Client struct {
	id           string
	session      *Session
	scope        string                   // the server it talks to, or "" for all of them
	capabilities []byte                   // canonical JSON object
	shareable    []byte                   // the same without what a shared connection cannot keep
	header       map[string]secret.String // of its initialize request, what any server wants forwarded
	info         string                   // name and version of the client, for people
	clientInfo   []byte                   // what it says of itself in initialize: a JSON object; nil for a visitor
	created      time.Time
	stream       Stream
	visitor      *visitor // nil for a client with a handshake
	parent       *Client  // of a branch: in whose place it asks; else nil
	mute         bool     // it is a Guest's, whom nobody can ask anything

	lasting bool // its handshake is stored with its session

	entered atomic.Bool // the session, for the one request of a transient client
	// headless is set while a client that was restored has not shown the header of a request.
	headless atomic.Bool
	recall   sync.Once              // of the header
	version  atomic.Pointer[string] // negotiated; it may become older during Initialize

	mu      sync.Mutex
	calls   map[string]*call // by the client's raw id
	asked   map[string]*asked
	asks    uint64
	awaited map[*binding]bool        // slow servers of which the aggregate's client will be told
	told    map[string]serverAccount // by server: what it said before a restart, and a peer has not taken over; replaced, never changed
	gone    bool
}

// noCapabilities are those of a client that cannot be asked anything.
var noCapabilities = []byte("{}")

// ID returns the client's id, which MCP calls the session id.
func (c *Client) ID() string { return c.id }

// Session returns the session that the client belongs to.
func (c *Client) Session() *Session { return c.session }

// Version returns the negotiated protocol version.
func (c *Client) Version() string { return *c.version.Load() }

// Stream returns what was given at Initialize.
func (c *Client) Stream() Stream { return c.stream }

// Hello is what a new client brings.
type Hello struct {
	ClientID  string // from NewID
	Principal string
	Session   string // the name of its session, or ""
	Resumes   string // without a name: the id of the session that nobody named and that the client goes on with, or ""
	Workspace string // the directory that the client works in, or ""
	Tools     *Tools // to be the session's from now on; nil leaves it as it is
	Scope     string // the server, or "" for the aggregate
	Frame     wire.Frame
	Header    func(name string) []string // looks into the request's header; nil without one
	Stream    Stream
	// Lasting has the client go on after a restart (N6), if its requests then come in the
	// same way, by its id.
	Lasting bool
	// AsksAfter is the number after which the ids of requests to the client begin. A
	// client that continues another one, as a shim's does after a redial, must not take
	// a late answer to its predecessor for one to itself. 0 begins with 1.
	AsksAfter uint64
}

// sessionID is the id of the client's session.
func (h Hello) sessionID() string { return cmp.Or(h.Session, h.Resumes, h.ClientID) }

// Initialize makes a client and its session, and returns the answer to its
// initialize request (M3): for one server that server's own, for the aggregate ours.
func (m *Manager) Initialize(ctx context.Context, h Hello) (*Client, mux.Pieces, error) {
	server, err := m.serverFor(h.Principal, h.sessionID(), h.Scope)
	if err != nil {
		return nil, mux.Pieces{}, err
	}
	c := &Client{id: h.ClientID, scope: h.Scope, created: time.Now(), stream: h.Stream, lasting: h.Lasting, asks: h.AsksAfter, calls: map[string]*call{}}
	if err := c.readHello(h.Frame); err != nil {
		return nil, mux.Pieces{}, err
	}
	if err := m.admit(c, h); err != nil {
		return nil, mux.Pieces{}, err
	}
	defer c.session.exit()
	c.keepHeader(h.Header)
	result := c.ownHandshake()
	if server != nil {
		if result, err = c.serverHandshake(ctx, server); err != nil {
			c.Delete()
			return nil, mux.Pieces{}, err
		}
	}
	c.session.changed()
	c.session.settle(ctx, keepWait)
	return c, mux.Pieces{wire.Result(h.Frame.ID(), result)}, nil
}

// admit opens a client's session and enters it; the caller exits.
func (m *Manager) admit(c *Client, h Hello) (err error) {
	if c.session, err = m.open(wanted(h.Principal, h.Session, cmp.Or(h.Resumes, h.ClientID), h.Workspace)); err != nil {
		return err
	}
	s := c.session
	if h.Tools != nil {
		s.setTools(h.Tools)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.state != Active {
		s.exitLocked()
		return s.cause
	}
	s.clients[c] = struct{}{}
	m.clients[c.id] = c
	s.kept, s.orphaned = true, time.Time{}
	return nil
}

// readHello takes over what the initialize request says.
func (c *Client) readHello(f wire.Frame) error {
	var p struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Capabilities    json.RawMessage `json:"capabilities"`
		ClientInfo      json.RawMessage `json:"clientInfo"`
	}
	var info struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	if err := json.Unmarshal(f.Params(), &p); err != nil {
		return &fault.Error{Reason: fault.BadRequest, Message: "the params of initialize cannot be read: " + err.Error()}
	}
	if len(p.ClientInfo) > 0 {
		if err := json.Unmarshal(p.ClientInfo, &info); err != nil {
			return &fault.Error{Reason: fault.BadRequest, Message: "the clientInfo in initialize cannot be read: " + err.Error()}
		}
	}
	version := p.ProtocolVersion
	if !slices.Contains(wire.LegacyVersions, version) {
		version = wire.LegacyVersions[0]
	}
	c.version.Store(&version)
	c.info = info.Name
	if info.Version != "" {
		c.info += "/" + info.Version
	}
	c.keepInfo(p.ClientInfo, info.Name, info.Version)
	var err error
	if c.capabilities, err = canonical(p.Capabilities, true); err == nil {
		c.shareable, err = canonical(p.Capabilities, false)
	}
	if err != nil {
		return &fault.Error{Reason: fault.BadRequest, Message: "the capabilities in initialize cannot be read: " + err.Error()}
	}
	return nil
}

// keepHeader keeps what servers want forwarded. Several lines of one name become one.
func (c *Client) keepHeader(values func(name string) []string) {
	if values == nil {
		return
	}
	for _, server := range c.session.m.live.Load().Servers {
		for _, name := range server.ForwardHeaders {
			if got := values(name); len(got) > 0 {
				if c.header == nil {
					c.header = map[string]secret.String{}
				}
				c.header[name] = secret.New(strings.Join(got, ", "))
			}
		}
	}
}

// variant is the server as this client uses it: with the client's own headers, and on
// a connection of its session's own if it can be asked and the server wants that (M6).
func (c *Client) variant(server *config.Server) *config.Server {
	own := server.Interactive == config.Dedicate && server.Sharing == config.Shared && string(c.shareable) != string(noCapabilities)
	forwarded := c.forwarded(server) != ""
	if !own && !forwarded {
		return server
	}
	v := *server
	if own {
		v.Sharing = config.Session
	}
	if forwarded {
		v.Headers = maps.Clone(server.Headers)
		if v.Headers == nil {
			v.Headers = map[string]secret.String{}
		}
		for _, name := range server.ForwardHeaders {
			if value, ok := c.header[name]; ok {
				maps.DeleteFunc(v.Headers, func(other string, _ secret.String) bool { return strings.EqualFold(other, name) })
				v.Headers[name] = value
			}
		}
	}
	return &v
}

// forwarded tells apart the clients whose headers differ for a server; it is "" when
// none goes to it.
func (c *Client) forwarded(server *config.Server) string {
	var key []byte
	for _, name := range server.ForwardHeaders {
		if value, ok := c.header[name]; ok {
			key = append(append(append(key, wire.Quote(name)...), ':'), wire.Quote(value.Reveal())...)
		}
	}
	return string(key)
}

// canonical spells a capability object in one way: sorted keys, no white space.
// Without own it leaves out roots.listChanged: on a shared connection nobody passes
// roots/list_changed on, and what is not passed on is not promised (M6).
func canonical(raw json.RawMessage, own bool) ([]byte, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return noCapabilities, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if roots, ok := v["roots"].(map[string]any); ok && !own {
		delete(roots, "listChanged")
	}
	return json.Marshal(v)
}

// serverHandshake attaches to the server, unless it is exclusive, and adapts its answer to the version that
// the client asked for: the older of the two counts.
func (c *Client) serverHandshake(ctx context.Context, server *config.Server) ([]byte, error) {
	b, err := c.session.bind(c, server)
	if err != nil {
		return nil, err
	}
	b.peer(c)
	h, err := b.handshake(ctx)
	if err != nil {
		return nil, err
	}
	if h.Era == era.Modern {
		return era.Initialized(h.Result, c.Version(), server.Name)
	}
	if h.Version <= c.Version() { // versions are dates
		c.version.Store(&h.Version)
		return h.Result, nil
	}
	return wire.Splice(nil, h.Result, wire.Edit{At: h.VersionSpan, With: wire.Quote(c.Version())}), nil
}

// ownHandshake is the aggregate's answer to initialize, or that of the server that
// roundhouse itself is.
func (c *Client) ownHandshake() []byte {
	capabilities := map[string]any{"tools": map[string]any{"listChanged": true}}
	if c.scope == "" {
		capabilities["prompts"] = map[string]any{"listChanged": true}
		capabilities["resources"] = map[string]any{"listChanged": true, "subscribe": true}
		capabilities["logging"] = map[string]any{}
		capabilities["completions"] = map[string]any{}
	}
	b, err := json.Marshal(map[string]any{
		"protocolVersion": c.Version(),
		"capabilities":    capabilities,
		"serverInfo":      map[string]any{"name": OwnServer, "version": c.session.m.cfg.Version},
	})
	if err != nil {
		panic(err) // strings and booleans
	}
	return b
}

// Delete ends the client at its own wish.
func (c *Client) Delete() { c.session.removeClient(c) }

// StreamOpened notes that the client reads its stream, and returns the function that
// notes the end of that. An open stream is no activity, but its session makes no
// room for a newcomer (N3, H5).
func (c *Client) StreamOpened() (closed func()) {
	m, s := c.session.m, c.session
	m.mu.Lock()
	defer m.mu.Unlock()
	s.streams++
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		s.streams--
	})
}

// left reports whether the client has ended.
func (c *Client) left() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

// push sends a frame that belongs to no call.
func (c *Client) push(p mux.Pieces) {
	if c.stream != nil {
		c.stream.Push(p)
	}
}

var listChangedFrames = map[mux.List][]byte{
	mux.Tools:     wire.NewNotification(wire.ToolsListChanged, nil),
	mux.Prompts:   wire.NewNotification(wire.PromptsListChanged, nil),
	mux.Resources: wire.NewNotification(wire.ResourcesListChanged, nil),
}

func (c *Client) listChanged(l mux.List) {
	c.push(mux.Pieces{listChangedFrames[l]})
}

// listsChanged says that all lists changed.
func (c *Client) listsChanged() {
	for _, l := range []mux.List{mux.Tools, mux.Prompts, mux.Resources} {
		c.listChanged(l)
	}
}

// end settles everything that waits for the client and closes its stream.
func (c *Client) end(why *fault.Error) {
	c.mu.Lock()
	c.gone = true
	asks := c.asked
	c.asked = nil
	calls := make([]*call, 0, len(c.calls))
	for _, k := range c.calls {
		calls = append(calls, k)
	}
	c.mu.Unlock()
	for _, k := range calls {
		k.fail(maybeSent(why)) // whether the server works on it already is not looked at
	}
	for _, a := range asks {
		a.stop()
		a.ask.Fail(wire.InternalError, "the client that was asked has left")
	}
	if c.stream != nil {
		c.stream.End(why)
	}
}

// question is a server's request to a client, of either era.
type question interface {
	Answer(f wire.Frame)             // takes the client's response
	Fail(code int, message string)   // says that there will be none
	Progress(frame []byte)           // takes the client's progress, with the server's token
	Withdrawal(id []byte) mux.Pieces // tells the client that nobody waits any more
}

// asked is a server's request that waits for the client's answer.
type asked struct {
	ask   question
	frame wire.Frame // the request as the server sent it
	id    []byte
	timer *time.Timer
}

func (a *asked) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

// ask passes a server's request on, with an id and progress token of ours: two
// servers may use the same ones (M7).
func (c *Client) ask(a *mux.Ask, out mux.Outlet) {
	if c.mute {
		a.Fail(wire.MethodNotFound, "the client declares no capabilities and cannot be asked")
		return
	}
	if c.visitor != nil {
		a.Fail(wire.MethodNotFound, "the client speaks "+wire.Version20260728+", in which it cannot be asked during a call; roundhouse does not bridge that yet")
		return
	}
	c.put(a, a.Frame, out)
}

// put puts a question to the client, on the stream of the call during which it came, or
// with a nil out on its standing one.
func (c *Client) put(a question, f wire.Frame, out mux.Outlet) {
	if c.parent != nil {
		c.parent.put(a, f, out)
		return
	}
	r, err := f.Routing()
	if err != nil {
		a.Fail(wire.InvalidParams, err.Error())
		return
	}
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		a.Fail(wire.InternalError, "the client that was asked has left")
		return
	}
	c.asks++
	id := strconv.AppendUint(nil, c.asks, 10)
	w := &asked{ask: a, frame: f, id: id}
	if limit := c.session.m.live.Load().InteractiveTimeout; limit > 0 {
		w.timer = time.AfterFunc(limit, func() { c.askExpired(w, limit) })
	}
	if c.asked == nil {
		c.asked = map[string]*asked{}
	}
	c.asked[string(id)] = w
	c.mu.Unlock()
	frame := mux.Replace(f.Raw, f.IDSpan, id)
	if r.ProgressToken.Present() {
		edits := []wire.Edit{{At: f.IDSpan, With: id}, {At: r.ProgressToken, With: id}}
		if r.ProgressToken.Start < f.IDSpan.Start {
			edits[0], edits[1] = edits[1], edits[0]
		}
		frame = mux.Pieces{wire.Splice(nil, f.Raw, edits...)}
	}
	if out != nil {
		out.Note(frame)
		return
	}
	c.push(frame)
}

// take removes and returns the open request with our id.
func (c *Client) take(id []byte) *asked {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.asked[string(id)]
	delete(c.asked, string(id))
	if w != nil {
		w.stop()
	}
	return w
}

func (c *Client) askExpired(w *asked, limit time.Duration) {
	if c.take(w.id) != nil {
		w.ask.Fail(wire.InternalError, fmt.Sprintf("the client did not answer within %s", limit))
		c.push(mux.Pieces{cancelled(w.id, "no answer in time")})
	}
}

// takeBack tells the client that nobody waits for its answer any more.
func (c *Client) takeBack(a question) {
	if c.parent != nil {
		c.parent.takeBack(a)
		return
	}
	c.mu.Lock()
	var found *asked
	for id, w := range c.asked {
		if w.ask == a {
			found = w
			delete(c.asked, id)
			w.stop()
		}
	}
	c.mu.Unlock()
	if found != nil {
		c.push(a.Withdrawal(found.id))
	}
}

func cancelled(id []byte, reason string) []byte {
	params := append(append([]byte(`{"requestId":`), id...), `,"reason":`...)
	return wire.NewNotification(wire.Cancelled, append(append(params, wire.Quote(reason)...), '}'))
}

var _ pool.Listener = (*binding)(nil)
