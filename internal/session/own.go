package session

import (
	"bytes"
	"context"
	"strconv"
	"sync"

	"roundhouse/internal/era"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// Roundhouse's own tools (A1) are those of a server that is here: on its own URL, and in
// the aggregate. The filters of principals and sessions hold for them as for any other's.

// OwnServer is the name of the server that roundhouse itself is.
const OwnServer = "roundhouse"

// OwnTool is one of roundhouse's own tools.
type OwnTool struct {
	Name string
	// Listed is the tool as tools/list shows it: an object whose name is Name.
	Listed []byte
	// Run carries out one call, and returns what tools/call returns: an object. ctx ends
	// when the caller wants no answer any more, and with his session. An error becomes
	// the JSON-RPC error of the call.
	Run func(ctx context.Context, c *OwnCall) ([]byte, error)
}

// OwnCall is a call of one of roundhouse's own tools.
type OwnCall struct {
	// Constant.
	Client    *Client // who calls
	Arguments []byte  // an object

	call  *call
	token []byte // of progress, or nil

	mu    sync.Mutex
	done  float64  // of the last progress
	after []func() // to do when the answer is out
}

// Manager returns the manager of all sessions.
func (c *OwnCall) Manager() *Manager { return c.Client.session.m }

// Nameless reports whether nothing tells the caller apart from others of his principal,
// so that his session is theirs, too.
func (c *OwnCall) Nameless() bool { return c.Client.nameless() }

// Progress tells the caller, if he wants to know it, that so much of total is done; a
// total of 0 is unknown. What is no more than the last time is not told: progress grows.
func (c *OwnCall) Progress(done, total float64, message string) {
	if c.token == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock() // held for the call, whose outlet never blocks, so that what is told grows
	if done <= c.done {
		return
	}
	c.done = done
	params := append(append([]byte(`{"progressToken":`), c.token...), `,"progress":`...)
	params = strconv.AppendFloat(params, done, 'g', -1, 64)
	if total > 0 {
		params = strconv.AppendFloat(append(params, `,"total":`...), total, 'g', -1, 64)
	}
	if message != "" {
		params = append(append(params, `,"message":`...), wire.Quote(message)...)
	}
	c.call.Note(mux.Pieces{wire.NewNotification(wire.Progress, append(params, '}'))})
}

// Note passes on what a server says or asks while it is called for this call.
func (c *OwnCall) Note(p mux.Pieces) { c.call.Note(p) }

// After has f called when the answer is out.
func (c *OwnCall) After(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after = append(c.after, f)
}

// own handles a request to roundhouse itself.
func (s *Session) own(k *call, f wire.Frame, r wire.Routing) {
	switch f.Method {
	case wire.ToolsList:
		items := s.ownItems(func(name string) string { return name })
		k.result(listed(&pool.Listing{Items: items}, pool.Tools, f.Method, k.c.era(), era.Legacy))
	case wire.ToolsCall:
		name, err := wire.Text(r.Name.Of(f.Raw))
		if err != nil {
			k.fail(&wire.ParseFailure{Code: wire.InvalidParams, Message: "params.name must be a string"})
			return
		}
		t := s.ownTool(func(t OwnTool) bool { return t.Name == name })
		if t == nil {
			k.fail(unknownName(pool.Tools, name))
			return
		}
		s.runOwn(k, t, f, r)
	default:
		k.Done(mux.Pieces{wire.ErrorReply(k.id, wire.ErrorObject(wire.MethodNotFound, f.Method+" is not served by roundhouse itself"))})
	}
}

// ownItems lists roundhouse's own tools under the names that named gives them.
func (s *Session) ownItems(named func(string) string) []pool.Item {
	var items []pool.Item
	for _, t := range s.m.cfg.Own {
		if !s.seesOwn(t.Name) {
			continue
		}
		it := pool.Item{Key: named(t.Name)}
		for m, err := range wire.Members(t.Listed) {
			if err == nil && m.Key == "name" {
				it.Raw = wire.Splice(nil, t.Listed, wire.Edit{At: m.Value, With: wire.Quote(it.Key)})
			}
		}
		items = append(items, it)
	}
	return items
}

// ownTool returns the first of roundhouse's own tools that the session sees and that is
// meant, or nil.
func (s *Session) ownTool(meant func(OwnTool) bool) *OwnTool {
	for i, t := range s.m.cfg.Own {
		if meant(t) && s.seesOwn(t.Name) {
			return &s.m.cfg.Own[i]
		}
	}
	return nil
}

// seesOwn applies the filters of the principal and the session.
func (s *Session) seesOwn(name string) bool {
	if theirs, filtered := s.m.live.Load().Filters[s.principal]; filtered && !permits(&theirs, OwnServer, name) {
		return false
	}
	own := s.tools.Load()
	return own == nil || permits(own, OwnServer, name)
}

// runOwn runs one of roundhouse's own tools.
func (s *Session) runOwn(k *call, t *OwnTool, f wire.Frame, r wire.Routing) {
	arguments := r.Arguments.Of(f.Raw)
	switch {
	case arguments == nil, bytes.Equal(arguments, []byte("null")):
		arguments = []byte("{}")
	case arguments[0] != '{':
		k.fail(&wire.ParseFailure{Code: wire.InvalidParams, Message: "params.arguments must be an object"})
		return
	}
	ctx, leave := context.WithCancelCause(s.ctx)
	k.whenDone(func() { leave(errCancelled) })
	c := &OwnCall{Client: k.c, Arguments: arguments, call: k, token: r.ProgressToken.Of(f.Raw)}
	running := s.m.spawn(func() {
		defer leave(nil)
		result, err := t.Run(ctx, c)
		switch {
		case err != nil:
			k.fail(err)
		case k.c.era() == era.Modern:
			k.result(era.CompletedResult(result, wire.ToolsCall))
		default:
			k.result(result)
		}
		for _, f := range c.after {
			f()
		}
	})
	if !running {
		leave(nil)
		k.fail(drainingFault())
	}
}
