package session

import (
	"context"
	"encoding/json"
	"time"

	"roundhouse/internal/era"
	"roundhouse/internal/mux"
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
	if name == "" || name == s.id {
		if err := s.enter(); err != nil {
			return nil, err
		}
		return c.branchInto(s, scope)
	}
	s, err := s.m.open(wanted(s.principal, name, "", s.workspace))
	if err != nil {
		return nil, err
	}
	return c.branchInto(s, scope)
}

// branchInto makes a branch in a session that was entered for it.
func (c *Client) branchInto(s *Session, scope string) (*Client, error) {
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

// Call calls a tool of a branch's server and returns its result as the client gets it, in
// whose place that is. Arguments are an object. What the server says meanwhile, and asks,
// goes to note. When ctx ends the branch leaves, and with it the call, and the cause is
// the error; any other error is a *CallError.
func (c *Client) Call(ctx context.Context, tool string, arguments json.RawMessage, note func(mux.Pieces)) (json.RawMessage, error) {
	params := append(append([]byte(`{"name":`), wire.Quote(tool)...), `,"arguments":`...)
	f, err := wire.Parse(wire.NewRequest([]byte("1"), wire.ToolsCall, append(append(params, arguments...), '}')))
	if err == nil && c.visitor != nil {
		c.visitor.vet = nil // there are no headers with which the arguments must agree
		f, err = era.Newer(f, era.Sender{Capabilities: c.visitor.declared})
	}
	if err != nil {
		return nil, &CallError{Code: wire.InvalidParams, Message: err.Error()}
	}
	defer context.AfterFunc(ctx, c.Leave)()
	answered := reply{note, make(chan mux.Pieces, 1)}
	c.session.Do(c, f, answered)
	p := <-answered.done
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	answer, err := wire.Parse(p.AppendTo(nil))
	if err != nil {
		return nil, &CallError{Code: wire.InternalError, Message: err.Error()}
	}
	return readAnswer(answer)
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
