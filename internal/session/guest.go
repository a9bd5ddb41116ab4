package session

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// Guest is roundhouse itself as a client of one server of a session, for what calls tools
// in somebody's name without speaking MCP: what it asks for goes the way of every
// client's request, so filters, leases, clean-ups and counts are the same. A guest keeps its session awake
// from Manager.Guest to Leave, and cannot be asked anything by servers. Its methods may be
// called at any time; what it has in flight is cancelled by Leave.
type Guest struct {
	c   *Client
	ids atomic.Uint64
}

// Invitation says whose guest is wanted, and where.
type Invitation struct {
	Principal string
	Session   string // its name; one that is not known yet begins
	// Own says that nobody chose that name: the session is what the guest is for, and whoever
	// invites it ends the session, which does not outlive the daemon.
	Own    bool
	Server string // the name of a server that the session has
	// Brought takes the place of Server for one that the guest brings along: the session
	// has it from then on, for guests only, until it ends, or until another one of the same
	// label is brought and nobody uses this one. Its name is from BroughtName: who brings
	// one of the same name, brings the same one.
	Brought *config.Server
	// Header is what the one for whom the guest works has sent; the server gets of it what
	// its entry names (forwardHeaders). nil is none.
	Header http.Header
}

// Guest enters a session as a client of one server. Nothing is started by that.
func (m *Manager) Guest(v Invitation) (*Guest, error) {
	scope := v.Server
	if v.Brought != nil {
		scope = v.Brought.Name
	} else if _, err := m.serverFor(v.Principal, v.Session, scope); err != nil {
		return nil, err
	}
	s, err := m.open(opening{key: key{v.Principal, v.Session}, minted: v.Own})
	if err != nil {
		return nil, err
	}
	return s.welcome(scope, v)
}

// welcome makes a guest at a server; the session was entered for it.
func (s *Session) welcome(scope string, v Invitation) (*Guest, error) {
	m := s.m
	c := &Client{
		id: NewID(), session: s, scope: scope, capabilities: noCapabilities, shareable: noCapabilities, info: "roundhouse",
		created: time.Now(), calls: map[string]*call{}, mute: true,
	}
	c.version.Store(&wire.LegacyVersions[0])
	c.keepInfo(nil, "roundhouse", m.cfg.Version)
	c.keepHeader(func(name string) []string { return v.Header.Values(name) })
	c.entered.Store(true)
	m.mu.Lock()
	if s.state != Active && !s.lingersLocked() {
		defer m.mu.Unlock()
		s.exitLocked()
		return nil, s.cause
	}
	var old []*binding
	if v.Brought != nil {
		old = s.bringLocked(v.Brought)
	}
	s.clients[c] = struct{}{}
	m.mu.Unlock()
	if len(old) > 0 {
		m.spawn(func() { s.dismiss(old, old[0].name) })
	}
	return &Guest{c: c}, nil
}

// bringLocked adds a server that a guest brings. Those of the same label that nobody uses
// are forgotten, lest each new token leave a connection behind; their bindings are to be
// dismissed.
func (s *Session) bringLocked(server *config.Server) (old []*binding) {
	if s.broughtLocked(server.Name) != nil {
		return nil
	}
	label, _, _ := strings.Cut(server.Name, "/")
	s.brought = slices.DeleteFunc(s.brought, func(x *config.Server) bool {
		its, _, _ := strings.Cut(x.Name, "/")
		if its != label || s.usedByLocked(x.Name) {
			return false
		}
		old = append(old, s.forgetServerLocked(x.Name)...)
		return true
	})
	s.brought = append(s.brought, server)
	return old
}

// usedByLocked reports whether a client of the session is one of that server alone.
func (s *Session) usedByLocked(name string) bool {
	for c := range s.clients {
		if c.scope == name {
			return true
		}
	}
	return false
}

// broughtLocked returns the server of that name that a guest has brought, or nil.
func (s *Session) broughtLocked(name string) *config.Server {
	for _, server := range s.brought {
		if server.Name == name {
			return server
		}
	}
	return nil
}

// Leave ends the guest; what it has in flight is cancelled at the server. The connection
// stays its session's. The second time it does nothing.
func (g *Guest) Leave() { g.c.Leave() }

// Tool is a tool as its server lists it.
type Tool struct {
	Name string
	Raw  json.RawMessage // the whole object; read-only
}

// Tools lists what the session may call of the server, which is started for that unless it
// is exclusive. The tool by which servers are told of a session's end is not among it.
func (g *Guest) Tools(ctx context.Context) ([]Tool, error) {
	b, err := g.bind()
	if err != nil {
		return nil, err
	}
	listing, _, err := listOf(ctx, b, pool.Tools)
	if err != nil || listing == nil {
		return nil, err
	}
	tools := make([]Tool, 0, len(listing.Items))
	for _, it := range listing.Items {
		if it.Key != cleanupTool {
			tools = append(tools, Tool{it.Key, it.Raw})
		}
	}
	return tools, nil
}

// bind returns the guest's binding to its server.
func (g *Guest) bind() (*binding, error) {
	s := g.c.session
	server, err := s.server(g.c.scope)
	if err != nil {
		return nil, err
	}
	b, err := s.bind(g.c, server)
	if err != nil {
		return nil, err
	}
	b.peer(g.c)
	return b, nil
}

// Progress is how far a call is, as its server says.
type Progress struct {
	Progress float64 `json:"progress"`
	Total    float64 `json:"total"` // 0 if it does not say
	Message  string  `json:"message"`
}

// CallError is the answer to a call that is no result.
type CallError struct {
	Code    int
	Message string
	Reason  fault.Reason // of roundhouse's own errors; "" if the server answered with one
	Sent    fault.Sent   // of those: whether the server may have executed the call
}

// Error returns the message.
func (e *CallError) Error() string { return e.Message }

// Call calls a tool and returns the server's result as it is. arguments is an object.
// progress is told how far the call is, by the goroutine that called; nil is fine. The tool
// by which servers are told of a session's end is unknown to guests. The end of ctx cancels
// the call at the server, and its cause is the error; any other error is a *CallError.
func (g *Guest) Call(ctx context.Context, tool string, arguments json.RawMessage, progress func(Progress)) (json.RawMessage, error) {
	if tool == cleanupTool {
		return nil, callErrorOf(fault.Of(unknownName(pool.Tools, tool)))
	}
	id := strconv.AppendUint(nil, g.ids.Add(1), 10)
	params := append([]byte(`{"name":`), wire.Quote(tool)...)
	params = append(append(params, `,"arguments":`...), arguments...)
	params = append(append(append(params, `,"_meta":{"progressToken":`...), id...), "}}"...)
	f, err := wire.Parse(wire.NewRequest(id, wire.ToolsCall, params))
	if err != nil {
		return nil, &CallError{Code: wire.InvalidParams, Message: err.Error()}
	}
	out := &guestCall{notes: make(chan Progress, 16), done: make(chan wire.Frame, 1)}
	k, err := g.begin(f, out)
	if err != nil {
		return nil, callErrorOf(fault.Of(err))
	}
	sent := make(chan struct{})
	if s := g.c.session; !s.m.spawn(func() { defer close(sent); s.route(k, f) }) { // it may have to wait for the server
		k.fail(refusedFault())
		close(sent)
	}
	defer func() { <-sent }()
	for {
		select {
		case p := <-out.notes:
			if progress != nil {
				progress(p)
			}
		case answer := <-out.done:
			return readAnswer(answer)
		case <-ctx.Done():
			k.cancel(wire.Frame{}, wire.Span{})
			return nil, context.Cause(ctx)
		}
	}
}

// begin begins a call. What a guest does is part of a request that has begun: it goes on
// while the session, or the Manager, drains.
func (g *Guest) begin(f wire.Frame, out mux.Outlet) (*call, error) {
	s := g.c.session
	s.m.mu.Lock()
	if s.state == Closed {
		defer s.m.mu.Unlock()
		return nil, s.cause
	}
	s.enterLocked()
	s.m.mu.Unlock()
	k, err := g.c.begin(f, out)
	if err != nil {
		s.exit()
	}
	return k, err
}

// readAnswer reads the answer to a call.
func readAnswer(f wire.Frame) (json.RawMessage, error) {
	if f.ResultSpan.Present() {
		return f.Result(), nil
	}
	var object struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    struct {
			Reason fault.Reason `json:"reason"`
			Sent   fault.Sent   `json:"sent"`
		} `json:"data"`
	}
	if err := json.Unmarshal(f.ErrorValue(), &object); err != nil && object.Message == "" {
		return nil, &CallError{Code: wire.InternalError, Message: "the answer is neither a result nor an error"}
	}
	return nil, &CallError{object.Code, object.Message, object.Data.Reason, object.Data.Sent}
}

func callErrorOf(err *fault.Error) *CallError {
	return &CallError{err.Reason.Code(), err.Message, err.Reason, err.Sent}
}

// guestCall is the outlet of a guest's call.
type guestCall struct {
	notes chan Progress
	done  chan wire.Frame
}

// Note implements mux.Outlet. Progress that nobody has taken yet makes later progress
// needless.
func (k *guestCall) Note(p mux.Pieces) {
	f, err := wire.Parse(p.AppendTo(nil))
	if err != nil || f.Method != wire.Progress {
		return
	}
	var note Progress
	if json.Unmarshal(f.Params(), &note) != nil {
		return
	}
	select {
	case k.notes <- note:
	default:
	}
}

// Done implements mux.Outlet.
func (k *guestCall) Done(p mux.Pieces) {
	f, err := wire.Parse(p.AppendTo(nil))
	if err != nil {
		f = wire.Frame{} // it was cancelled, by the one who does not wait for it
	}
	k.done <- f
}

// PublicName returns the name under which a server's tool is listed where several servers'
// tools stand together, and which model APIs accept (H7).
func PublicName(server, tool string) string { return publicName(server, tool) }

// BroughtName is the name of a server that a guest brings: what it is called, and a digest
// of what it is.
func BroughtName(label, digest string) string {
	return strings.ReplaceAll(label, "/", "_") + "/" + digest
}

// Alone reports whether the server is lent to one session at a time, so that it keeps what
// is done with it, and calls had better come one after the other.
func (g *Guest) Alone() bool {
	server, err := g.c.session.server(g.c.scope)
	return err == nil && server.Sharing == config.Exclusive
}

// Rest gives back what a session has, after its clean-up, as if it had been idle for long,
// if nobody uses it now, and no client is there that may want to go on. Another principal's
// session is unknown, as is one that is gone. A model call in its name, such as the one that has
// just ended the response, uses nothing of it.
func (m *Manager) Rest(principal, id string) {
	m.mu.Lock()
	s := m.sessions[key{principal, id}]
	if s == nil || s.state != Active || s.busyLocked() || s.inhabitedLocked() || m.draining {
		m.mu.Unlock()
		return
	}
	release := s.sleepLocked()
	s.armLocked(s.lastActivity)
	m.mu.Unlock()
	release()
}
