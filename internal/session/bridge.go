package session

import (
	"bytes"
	"context"
	"encoding/json"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// The bridge between the eras (M8) is here, where a client's request meets a connection:
// one aggregate may have servers of both. Between a client and a connection of one era
// frames pass as they are.

// era returns the era in which the client speaks.
func (c *Client) era() era.Era {
	if c.visitor != nil {
		return era.Modern
	}
	return era.Legacy
}

// newer returns the client's capabilities as its requests declare them to a server of the
// newer era: without what the bridge does not carry.
func newerCapabilities(shareable []byte) []byte {
	if !bytes.Contains(shareable, []byte("tasks")) {
		return shareable
	}
	kept, err := wire.Keep(shareable, func(key string) bool { return key != "tasks" })
	if err != nil {
		return noCapabilities // cannot be: we spelled it
	}
	return kept
}

// maxInfo is how much a client's clientInfo may say to servers of the newer era; of a
// longer one they learn name and version.
const maxInfo = 1 << 10

// keepInfo keeps the clientInfo of an initialize request.
func (c *Client) keepInfo(raw json.RawMessage, name, version string) {
	if len(raw) > 0 && len(raw) <= maxInfo && raw[0] == '{' {
		c.clientInfo = bytes.Clone(raw)
		return
	}
	c.clientInfo = append(append([]byte(`{"name":`), wire.Quote(name)...), `,"version":`...)
	c.clientInfo = append(append(c.clientInfo, wire.Quote(version)...), '}')
}

// crossing is a client's request at a server: how the request is spelled there, and how
// its answer becomes the client's. It is the outlet of the call.
type crossing struct {
	*call
	p    *peer
	att  *pool.Attachment
	f    wire.Frame // as the server gets it
	r    wire.Routing
	from era.Era // of the client
	to   era.Era // of the server

	d dialogue // of a client of the older era with a server of the newer one
}

// methodsNotBridged are those of the older era that mean something else in the newer one.
var methodsNotBridged = map[string]bool{"tasks/get": true, "tasks/result": true, "tasks/list": true, "tasks/cancel": true}

// cross sends a request through the attachment's connection, spelled for that. A nil call
// with a nil error has been, or will be, answered without one.
func (p *peer) cross(att *pool.Attachment, k *call, f wire.Frame, r wire.Routing) (*mux.Call, error) {
	from, to := k.c.era(), att.Era()
	if from == era.Legacy && to == era.Legacy {
		return p.do(att, f, r, k)
	}
	x := &crossing{call: k, p: p, att: att, f: f, r: r, from: from, to: to}
	if ready, err := x.spell(); !ready {
		return nil, err
	}
	return p.do(att, x.f, x.r, x)
}

// spell spells the request for the server. It reports false if it was answered here, or
// cannot be sent.
func (x *crossing) spell() (bool, error) {
	switch {
	case x.from == era.Modern && x.to == era.Legacy:
		older, err := era.Older(x.f)
		return x.spelled(older, err)
	case x.from == era.Legacy && x.to == era.Modern:
		return x.spellNewer()
	case x.r.ClientCapabilities.Present() && x.att.Settings().Interactive == config.Refuse:
		f, err := wire.Parse(wire.Splice(nil, x.f.Raw, wire.Edit{At: x.r.ClientCapabilities, With: noCapabilities}))
		return x.spelled(f, err)
	}
	return true, nil
}

// spelled sets how the server gets the request.
func (x *crossing) spelled(f wire.Frame, err error) (bool, error) {
	if err == nil {
		x.f = f
		x.r, err = f.Routing()
	}
	return err == nil, err
}

func (x *crossing) spellNewer() (bool, error) {
	switch {
	case x.f.Method == wire.LoggingSetLevel: // each request will say it
		if !mux.IsLevel(x.r.Level.Of(x.f.Raw)) {
			return false, errNoLevel
		}
		x.result([]byte("{}"))
		return false, nil
	case x.f.Method == wire.ResourcesSubscribe, x.f.Method == wire.ResourcesUnsubscribe:
		return true, nil // the connection makes a listen of it
	case methodsNotBridged[x.f.Method]:
		return false, &pool.RPCError{Object: wire.ErrorObject(wire.MethodNotFound, x.f.Method+" is not part of the protocol version that the server speaks")}
	}
	sender, err := x.p.sender(x.att)
	if err != nil {
		return false, err
	}
	newer, err := era.Newer(x.f, sender)
	return x.spelled(newer, err)
}

// sender says who the client is, in each of its requests.
func (p *peer) sender(att *pool.Attachment) (era.Sender, error) {
	c := p.c
	s := era.Sender{Info: c.clientInfo, Capabilities: newerCapabilities(c.shareable)}
	if att.Settings().Interactive == config.Refuse {
		s.Capabilities = noCapabilities
	}
	h, err := att.Handshake(p.b.s.ctx)
	if err != nil {
		return s, err
	}
	if h.Has("logging") {
		p.mu.Lock()
		s.Level = p.logs
		p.mu.Unlock()
		if s.Level == nil {
			s.Level = []byte(`"info"`) // a client that says nothing leaves it to the server
		}
	}
	return s, nil
}

var errNoLevel = &wire.ParseFailure{Code: wire.InvalidParams, Message: "params.level must be debug, info, notice, warning, error, critical, alert or emergency"}

// Note implements mux.Outlet.
func (x *crossing) Note(p mux.Pieces) {
	if x.from == era.Legacy && x.to == era.Modern && x.d.repeats(p) {
		return
	}
	x.call.Note(p)
}

// Done implements mux.Outlet.
func (x *crossing) Done(p mux.Pieces) {
	switch {
	case p.Empty(), x.from == x.to && x.to == era.Legacy:
		x.call.Done(p)
		return
	case x.to == era.Modern && x.refused(p):
		return
	case x.from == x.to && (x.c.scope != "" || x.f.Method != wire.ResourcesRead):
		x.call.Done(p)
		return
	}
	f, err := wire.Parse(whole(p))
	switch {
	case err != nil:
		x.call.Done(p)
	case x.to == era.Legacy:
		x.call.Done(mux.Pieces{era.Completed(f, x.f.Method, x.c.visitor.declared)})
	case x.from == era.Modern:
		if f.ResultSpan.Present() { // in the aggregate a resource may have another name
			p = mux.Replace(f.Raw, f.ResultSpan, era.Private(f.Result(), x.f.Method))
		}
		x.call.Done(p)
	default:
		x.answered(f)
	}
}

// whole is a frame in one piece.
func whole(p mux.Pieces) []byte {
	if len(p[1]) == 0 && len(p[2]) == 0 {
		return p[0]
	}
	return p.AppendTo(nil)
}

// Failed implements mux.Failer.
func (x *crossing) Failed(err *fault.Error) bool {
	if x.d.later() {
		return false // the server has seen earlier rounds: the client decides what to do
	}
	return x.call.Failed(err)
}

// refused takes the errors by which a server of the newer era says that we know too
// little of it: headers that its tool wants and we did not send, for our list of tools is
// stale, or another era than it speaks by now. Either way it has done nothing, and the
// request is sent again, once.
func (x *crossing) refused(p mux.Pieces) bool {
	if !bytes.Contains(p[0], []byte("-3202")) && !bytes.Contains(p[2], []byte("-3202")) {
		return false
	}
	f, err := wire.Parse(whole(p))
	if err != nil || !f.ErrorSpan.Present() {
		return false
	}
	switch era.ErrorCode(f.ErrorValue()) {
	case wire.HeaderMismatch:
		if x.f.Method != wire.ToolsCall || x.d.later() {
			return false
		}
		return x.sendAgain(func(ctx context.Context) { _ = x.att.Reread(ctx, pool.Tools) }) // if that fails, so does the call
	case wire.UnsupportedVersion:
		return x.sendAgain(func(context.Context) { x.att.Outdated() })
	}
	return false
}

// sendAgain sends the client's request once more, from its beginning, after before. It
// reports false if that was done already.
func (x *crossing) sendAgain(before func(ctx context.Context)) bool {
	k := x.call
	k.mu.Lock()
	again := k.again
	k.again, k.mc = nil, nil
	done := k.done
	k.mu.Unlock()
	if again == nil || done {
		return false
	}
	s := k.c.session
	return s.m.spawn(func() {
		before(s.ctx)
		again()
	})
}

// listed is a server's list as a client of the given era gets it.
func listed(l *pool.Listing, kind pool.Kind, method string, from, to era.Era) []byte {
	switch {
	case from == era.Modern && to == era.Modern && l.Raw != nil:
		return l.Raw
	case from == era.Modern:
		return era.CompletedResult(l.Result(kind), method)
	case to == era.Modern:
		return era.BareResult(olderListing(l, kind).Result(kind))
	}
	return l.Result(kind)
}

// olderListing is a list of a server of the newer era for clients of the older one.
func olderListing(l *pool.Listing, kind pool.Kind) *pool.Listing {
	if kind != pool.Tools {
		return l
	}
	var out *pool.Listing
	for i, it := range l.Items {
		bare := era.BareTool(it.Raw)
		if len(bare) == len(it.Raw) {
			continue
		}
		if out == nil {
			out = &pool.Listing{Items: append([]pool.Item(nil), l.Items...)}
		}
		out.Items[i] = changed(it, bare)
	}
	if out == nil {
		return l
	}
	return out
}

// changed is an item that was edited, with the place of its name in what it is now.
func changed(it pool.Item, raw []byte) pool.Item {
	out := pool.Item{Key: it.Key, Raw: raw}
	for m, err := range wire.Members(raw) {
		if err == nil && m.Key == "name" {
			out.KeySpan = m.Value
		}
	}
	return out
}
