package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// Where nobody has named the session that a client is in, because it shook hands without
// a name or sends requests that stand alone, several agents may speak through one client.
// The tools of exclusive servers then have one argument more, by which a call says which
// session it belongs to, and so which instance serves it (A6). It is ours, and never goes
// upstream. A tool with an argument of that name of its own is left alone.

const sessionArgument = "session_id"

// sessionSchema is what the argument is, as tools show it.
var sessionSchema = []byte(`"` + sessionArgument + `":{"type":"string","pattern":"^[A-Za-z0-9._:-]{1,128}$","description":` +
	`"The session that this call belongs to: any name of your choice. Calls with the same name use the same instance, on which nobody else works. ` +
	`Without it, the call is made in the session of this connection or, if that has none, in a new one, whose name the result tells."}`)

// asksForSession reports whether the tools of the binding's server have the argument for
// the client.
func (b *binding) asksForSession(c *Client) bool {
	if !b.s.minted || c.mute {
		return false
	}
	server := b.wanted()
	return server != nil && server.Sharing == config.Exclusive
}

// shown is a list of the binding's server as the client sees it.
func (b *binding) shown(c *Client, kind pool.Kind, l *pool.Listing) *pool.Listing {
	if kind != pool.Tools || !b.asksForSession(c) {
		return l
	}
	out := &pool.Listing{Items: make([]pool.Item, len(l.Items))}
	for i, it := range l.Items {
		if edit, ok := argumentEdit(it.Raw); ok {
			it = changed(it, wire.Splice(nil, it.Raw, edit))
		}
		out.Items[i] = it
	}
	return out
}

// argumentEdit returns how a tool gets the argument. It reports false for one that has
// an argument of that name itself, or a schema that we cannot read.
func argumentEdit(tool []byte) (edit wire.Edit, ok bool) {
	schema, properties := wire.Span{}, wire.Span{}
	for m, err := range wire.Members(tool) {
		if err != nil || m.Key == "inputSchema" && schema.Present() {
			return edit, false
		}
		if m.Key == "inputSchema" {
			schema = m.Value
		}
	}
	raw := schema.Of(tool)
	if len(raw) == 0 || raw[0] != '{' {
		return edit, false
	}
	for m, err := range wire.Members(raw) {
		if err != nil || m.Key == "properties" && properties.Present() {
			return edit, false
		}
		if m.Key == "properties" {
			properties = m.Value
		}
	}
	if !properties.Present() {
		return inserted(raw, schema.Start, append(append([]byte(`"properties":{`), sessionSchema...), '}')), true
	}
	known := properties.Of(raw)
	if known[0] != '{' {
		return edit, false
	}
	for m, err := range wire.Members(known) {
		if err != nil || strings.EqualFold(m.Key, sessionArgument) {
			return edit, false
		}
	}
	return inserted(known, schema.Start+properties.Start, sessionSchema), true
}

// inserted puts a member first into an object that begins at offset.
func inserted(object []byte, offset int, member []byte) wire.Edit {
	with := bytes.Clone(member)
	if bytes.TrimLeft(object[1:], " \t\r\n")[0] != '}' {
		with = append(with, ',')
	}
	return wire.Edit{At: wire.Span{Start: offset + 1, End: offset + 1}, With: with}
}

// redirect takes our argument out of a call of an exclusive server's tool. If the call
// belongs to another session than the client's it is sent there, or has failed, and the
// result is true.
func (s *Session) redirect(k *call, b *binding, f wire.Frame, r wire.Routing) (wire.Frame, wire.Routing, bool) {
	at, name, err := s.takeArgument(k, b, f, r)
	if err == nil && at.Present() {
		f, r, err = edited(f, wire.Edit{At: at})
	}
	mint := name == "" && k.c.nameless()
	if err == nil && !mint && (name == "" || name == s.id) {
		return f, r, false
	}
	var c *Client
	switch {
	case err != nil:
	case mint:
		c, err = k.c.mint(b)
	default:
		c, err = k.c.Branch(name, b.name)
	}
	if err != nil {
		k.fail(err)
		return f, r, true
	}
	leave := func() { s.m.spawn(c.Leave) } // it may have to wait for who calls this
	k.whenDone(leave)
	out := &redirected{k: k}
	if mint {
		out.minted = c.session
	}
	c.session.Do(c, f, out)
	return f, r, true
}

// takeArgument finds our argument in a call, and what to cut so that it is gone. Both are
// zero if it is not there, or the tool's own.
func (s *Session) takeArgument(k *call, b *binding, f wire.Frame, r wire.Routing) (at wire.Span, name string, err error) {
	arguments := r.Arguments.Of(f.Raw)
	if len(arguments) == 0 || arguments[0] != '{' {
		return at, "", nil
	}
	var found []wire.Member
	for m, err := range wire.Members(arguments) {
		if err != nil {
			return at, "", err
		}
		if strings.EqualFold(m.Key, sessionArgument) {
			found = append(found, m)
		}
	}
	if len(found) == 0 {
		return at, "", nil
	}
	ours, err := s.hasArgument(k, b, r.Name.Of(f.Raw))
	if err != nil || !ours {
		return at, "", err
	}
	m := found[0]
	if len(found) > 1 || string(arguments[m.KeySpan.Start+1:m.KeySpan.End-1]) != sessionArgument {
		return at, "", badArgument("stands twice, or is spelled in another way")
	}
	if value := m.Value.Of(arguments); string(value) != "null" {
		if name, err = wire.Text(value); err != nil || !wire.ValidSessionID(name) {
			return at, "", badArgument("must be 1 to 128 of A-Z a-z 0-9 . _ : -")
		}
	}
	cut := wire.CutMember(arguments, m)
	return wire.Span{Start: r.Arguments.Start + cut.Start, End: r.Arguments.Start + cut.End}, name, nil
}

func badArgument(what string) error {
	return &wire.ParseFailure{Code: wire.InvalidParams, Message: `the argument "` + sessionArgument + `" ` + what}
}

// hasArgument reports whether a tool of the binding's server was given our argument.
func (s *Session) hasArgument(k *call, b *binding, literal []byte) (bool, error) {
	tool, err := wire.Text(literal)
	if err != nil {
		return false, nil // the server says what it thinks of that
	}
	ctx, over := k.waiting(b)
	defer over()
	l, _, err := listOf(ctx, b, pool.Tools)
	if err != nil || l == nil {
		return false, err
	}
	for _, it := range l.Items {
		if it.Key == tool {
			_, ours := argumentEdit(it.Raw)
			return ours, nil
		}
	}
	return false, nil
}

// redirected is the outlet of a call that runs in another session than its client's.
type redirected struct {
	k      *call
	minted *Session // began with the call, and nobody knows its name; or nil
}

// Note implements mux.Outlet.
func (x *redirected) Note(p mux.Pieces) { x.k.Note(p) }

// Done implements mux.Outlet. A session of which the client does not learn is of no use
// to anybody; models see no _meta, so a tool's result says it to them, too.
func (x *redirected) Done(p mux.Pieces) {
	if s := x.minted; s != nil {
		named, ok := withSession(p, s.id)
		if !ok {
			s.m.endOwn(s, nil)
		}
		p, _ = withNotice(named, fmt.Sprintf("This call was made in a new session. To go on where it ended, call with %s %q.", sessionArgument, s.id))
	}
	x.k.Done(p)
}

// withSession says in a result's _meta in which session it was made. It reports false for
// what is no result.
func withSession(p mux.Pieces, id string) (mux.Pieces, bool) {
	if p.Empty() { // cancelled
		return p, false
	}
	f, err := wire.Parse(p.AppendTo(nil))
	if err != nil || !f.ResultSpan.Present() {
		return p, false
	}
	return mux.Replace(f.Raw, f.ResultSpan, InSession(f.Result(), id)), true
}

// InSession says in the _meta of a result, which is an object, in which session it was
// made.
func InSession(result []byte, id string) json.RawMessage {
	if len(result) == 0 || result[0] != '{' {
		return result
	}
	member := append([]byte(`"`+wire.MetaSession+`":`), wire.Quote(id)...)
	for m, err := range wire.Members(result) {
		if err != nil {
			return result // cannot be: it was read before
		}
		if meta := m.Value.Of(result); m.Key == "_meta" && meta[0] == '{' {
			return wire.Splice(nil, result, inserted(meta, m.Value.Start, member))
		}
	}
	return wire.Splice(nil, result, inserted(result, 0, append(append([]byte(`"_meta":{`), member...), '}')))
}

// errUnnamed is the answer to a request that names no session and needs an instance.
func errUnnamed(server string) error {
	err := fault.New(fault.BadRequest, "server %q lends its instances to sessions, and the request names none; name one with the header X-Session-Id or _meta[%q]", server, wire.MetaSession)
	err.Server = server
	return err
}
