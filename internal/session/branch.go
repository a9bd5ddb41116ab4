package session

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// What roundhouse calls in the place of a client, because one of its own tools was called
// or because a call names another session than the client's, comes from a branch of that
// client.

// Branch makes a client for one request in the place of c: in c's session, or in the one
// of its principal with that name, which begins if there is none. It declares what c
// does, so that it uses the same connections in the same session, and what servers ask it
// c is asked. Leave must be called when the request has been answered.
func (c *Client) Branch(name, scope string) (*Client, error) {
	s := c.session
	var err error
	if name == "" || name == s.id {
		err = s.enter()
	} else {
		s, err = s.m.open(wanted(s.principal, name, "", s.workspace))
	}
	if err != nil {
		return nil, err
	}
	b := c.branch(scope)
	b.session = s
	if err := s.serves(scope); err != nil {
		s.exit()
		return nil, err
	}
	return b.arrive()
}

// branch makes a branch that is in no session yet.
func (c *Client) branch(scope string) *Client {
	b := &Client{
		id: NewID(), scope: scope, parent: c,
		capabilities: c.capabilities, shareable: c.shareable, header: c.header, info: c.info, clientInfo: c.clientInfo,
		created: time.Now(), calls: map[string]*call{},
	}
	b.version.Store(new(c.Version()))
	if v := c.visitor; v != nil {
		b.visitor = &visitor{declared: v.declared, level: v.level, vet: v.vet}
	}
	return b
}

// Call calls a tool of the client's server, which must be one, on roundhouse's behalf, and
// returns the result as the client gets it. Arguments are an object, or nil for none. What
// the server says meanwhile, and asks, goes to note. When ctx ends the client leaves, and
// with it the call. An error of roundhouse's own is a *fault.Error.
func (c *Client) Call(ctx context.Context, tool string, arguments []byte, note func(mux.Pieces)) (json.RawMessage, error) {
	params := append([]byte(`{"name":`), wire.Quote(tool)...)
	if arguments != nil {
		params = append(append(params, `,"arguments":`...), arguments...)
	}
	f, _, err := newRequest([]byte("1"), wire.ToolsCall, append(params, '}'))
	if err == nil && c.visitor != nil {
		c.visitor.vet = nil // there are no headers with which the arguments must agree
		f, err = era.Newer(f, era.Sender{Capabilities: c.visitor.declared})
	}
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", tool, err)
	}
	defer context.AfterFunc(ctx, c.Leave)()
	answered := reply{note, make(chan mux.Pieces, 1)}
	c.session.Do(c, f, answered)
	p := <-answered.done
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return resultOf(p)
}

// reply is the outlet of a call for whose answer somebody waits.
type reply struct {
	note func(mux.Pieces)
	done chan mux.Pieces // has room for the answer
}

// Note implements mux.Outlet.
func (r reply) Note(p mux.Pieces) { r.note(p) }

// Done implements mux.Outlet.
func (r reply) Done(p mux.Pieces) { r.done <- p }

// resultOf takes an answer apart. An error of roundhouse's own has its reason again.
func resultOf(p mux.Pieces) (json.RawMessage, error) {
	if p.Empty() {
		return nil, errCancelled
	}
	f, err := wire.Parse(p.AppendTo(nil))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if f.ResultSpan.Present() {
		return f.Result(), nil
	}
	var e struct {
		Message string `json:"message"`
		Data    struct {
			Reason fault.Reason `json:"reason"`
			Server string       `json:"server"`
			Sent   fault.Sent   `json:"sent"`
		} `json:"data"`
	}
	if json.Unmarshal(f.ErrorValue(), &e) != nil || !slices.Contains(fault.Reasons(), e.Data.Reason) {
		return nil, &pool.RPCError{Object: f.ErrorValue()}
	}
	return nil, &fault.Error{Reason: e.Data.Reason, Message: e.Message, Server: e.Data.Server, Sent: e.Data.Sent}
}
