package session

import (
	"context"
	"sync"

	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// The aggregate: all servers behind one endpoint (H7). Lists are merged from the
// catalogues; calls are resolved to one server and its own name, and go on through
// forward like any other.

// aggregate handles a request to all servers.
func (s *Session) aggregate(k *call, f wire.Frame, r wire.Routing) {
	switch f.Method {
	case wire.ToolsList:
		s.mergedList(k, pool.Tools, f.Method)
	case wire.PromptsList:
		s.mergedList(k, pool.Prompts, f.Method)
	case wire.ResourcesList:
		s.mergedList(k, pool.Resources, f.Method)
	case wire.ResourcesTemplatesList:
		s.mergedList(k, pool.Templates, f.Method)
	case wire.ToolsCall:
		s.byName(k, pool.Tools, f, r)
	case wire.PromptsGet:
		s.byName(k, pool.Prompts, f, r)
	case wire.ResourcesRead, wire.ResourcesSubscribe, wire.ResourcesUnsubscribe:
		s.byURI(k, f, r)
	case wire.CompletionComplete:
		s.completion(k, f, r)
	case wire.LoggingSetLevel:
		s.levelForAll(k, f)
	default:
		k.Done(mux.Pieces{wire.ErrorReply(k.id, wire.ErrorObject(wire.MethodNotFound, f.Method+" is not served on the aggregate; use /mcp/{server}"))})
	}
}

// members returns the client's bindings of all usable servers, in configured order, the
// session's own ones last.
func (s *Session) members(c *Client) ([]*binding, error) {
	var list []*binding
	for _, server := range s.servers() {
		b, err := s.bind(c, server)
		if err != nil {
			return nil, err
		}
		b.peer(c)
		list = append(list, b)
	}
	return list, nil
}

// part is what one server adds to a list.
type part struct {
	b       *binding
	listing *pool.Listing
	spoken  era.Era // by the server
}

// gather reads one list of every server at the same time. A server that is slower
// than ListWait is left out, and the client hears list_changed when it has come; a
// broken one is left out and logged.
func (s *Session) gather(c *Client, kind pool.Kind) ([]part, error) {
	bindings, err := s.members(c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, s.m.live.Load().ListWait, errSlow)
	defer cancel()
	parts := make([]part, len(bindings))
	var wg sync.WaitGroup
	for i, b := range bindings {
		wg.Go(func() {
			parts[i].b = b
			l, spoken, err := listOf(ctx, b, kind)
			switch {
			case err == nil:
				parts[i].listing, parts[i].spoken = l, spoken
			case ctx.Err() != nil && s.ctx.Err() == nil:
				s.tellWhenThere(c, b, kind)
			case fault.Is(err, fault.BudgetExhausted): // the pool tells of all whom it refuses
			default:
				s.m.cfg.Log.Warn("a server is left out of a list", "session", s.id, "server", b.name, "list", kind.String(), "err", err)
			}
		})
	}
	wg.Wait()
	return parts, context.Cause(s.ctx)
}

var errSlow = fault.New(fault.StartTimeout, "the server takes longer to start than a list waits")

// tellWhenThere sends list_changed when a slow server has come and has the list.
func (s *Session) tellWhenThere(c *Client, b *binding, kind pool.Kind) {
	if c.visitor != nil {
		s.tellListeners(b, kind)
		return
	}
	c.mu.Lock()
	waiting := c.awaited[b]
	if !waiting {
		if c.awaited == nil {
			c.awaited = map[*binding]bool{}
		}
		c.awaited[b] = true
	}
	c.mu.Unlock()
	if waiting {
		return
	}
	s.m.spawn(func() {
		_, _, err := listOf(s.ctx, b, kind)
		c.mu.Lock()
		delete(c.awaited, b)
		c.mu.Unlock()
		if err == nil {
			c.listsChanged()
		}
	})
}

// mergedList answers a list request with what all servers have.
func (s *Session) mergedList(k *call, kind pool.Kind, method string) {
	parts, err := s.gather(k.c, kind)
	if err != nil {
		k.fail(err)
		return
	}
	merged := &pool.Listing{}
	taken := map[string]bool{}
	for _, p := range parts {
		if p.listing == nil {
			continue
		}
		p.listing = p.b.shown(k.c, kind, p.listing)
		if p.spoken == era.Modern && k.c.era() == era.Legacy {
			p.listing = olderListing(p.listing, kind)
		}
		for _, it := range p.listing.Items {
			public := publicKey(kind, p.b.name, it.Key, taken)
			if taken[public] {
				s.m.cfg.Log.Warn("two items have one name; the later one is left out", "server", p.b.name, "list", kind.String(), "name", public)
				continue
			}
			taken[public] = true
			if public != it.Key {
				it.Raw = wire.Splice(nil, it.Raw, wire.Edit{At: it.KeySpan, With: wire.Quote(public)})
			}
			merged.Items = append(merged.Items, it)
		}
	}
	if kind == pool.Tools {
		merged.Items = append(merged.Items, s.ownItems(func(name string) string { return publicName(OwnServer, name) })...)
	}
	k.result(listed(merged, kind, method, k.c.era(), era.Legacy))
}

// publicKey is the key of an item in the aggregate. URIs stay as they are; where two
// servers have the same one, the later server's gets a prefix that names it.
func publicKey(kind pool.Kind, server, key string, taken map[string]bool) string {
	if kind == pool.Tools || kind == pool.Prompts {
		return publicName(server, key)
	}
	if taken[key] {
		return uriPrefix(server) + key
	}
	return key
}

// byName resolves the public name of a tool or prompt and sends the request to its
// server under the server's own name. A name that nobody has is unknown, whether it
// is filtered or does not exist.
func (s *Session) byName(k *call, kind pool.Kind, f wire.Frame, r wire.Routing) {
	public, err := wire.Text(r.Name.Of(f.Raw))
	if err != nil {
		k.fail(&wire.ParseFailure{Code: wire.InvalidParams, Message: "params.name must be a string"})
		return
	}
	if kind == pool.Tools {
		if t := s.ownTool(func(t OwnTool) bool { return publicName(OwnServer, t.Name) == public }); t != nil {
			s.runOwn(k, t, f, r)
			return
		}
	}
	b, own, err := s.resolveName(k.c, kind, public)
	if err != nil {
		k.fail(err)
		return
	}
	f, r, err = edited(f, wire.Edit{At: r.Name, With: wire.Quote(own)})
	if err != nil {
		k.fail(err)
		return
	}
	s.forward(k, b, f, r)
}

// resolveName finds the server and its own name behind a public name. Only servers
// that the name can belong to are started.
func (s *Session) resolveName(c *Client, kind pool.Kind, public string) (*binding, string, error) {
	bindings, err := s.members(c)
	if err != nil {
		return nil, "", err
	}
	var failed error
	for _, b := range bindings {
		if !mayBe(public, b.name) {
			continue
		}
		l, _, err := listOf(s.ctx, b, kind)
		if err != nil {
			failed = err
			continue
		}
		if l == nil {
			continue
		}
		for _, it := range l.Items {
			if publicName(b.name, it.Key) == public {
				return b, it.Key, nil
			}
		}
	}
	if failed != nil {
		return nil, "", failed
	}
	return nil, "", unknownName(kind, public)
}

// levelForAll sets the log level at every server that logs and is attached now;
// those that come later are told when they come.
func (s *Session) levelForAll(k *call, f wire.Frame) {
	bindings, err := s.members(k.c)
	if err != nil {
		k.fail(err)
		return
	}
	r, err := f.Routing()
	if err == nil && !mux.IsLevel(r.Level.Of(f.Raw)) {
		err = errNoLevel
	}
	if err != nil {
		k.fail(err)
		return
	}
	for _, b := range bindings {
		p := b.peer(k.c)
		p.remember(f, r, "")
		if att := b.current(); att != nil {
			p.rejoin(att)
		}
	}
	k.result([]byte("{}"))
}

// completion passes on to the server of the prompt or resource that it is about.
func (s *Session) completion(k *call, f wire.Frame, r wire.Routing) {
	ref := r.Ref.Of(f.Raw)
	if len(ref) == 0 || ref[0] != '{' {
		k.fail(&wire.ParseFailure{Code: wire.InvalidParams, Message: "params.ref must be an object"})
		return
	}
	var b *binding
	var at wire.Span
	var own string
	for m, err := range wire.Members(ref) {
		if err != nil {
			k.fail(err)
			return
		}
		if m.Key != "name" && m.Key != "uri" {
			continue
		}
		key, err := wire.Text(m.Value.Of(ref))
		switch {
		case err != nil:
			err = &wire.ParseFailure{Code: wire.InvalidParams, Message: "params.ref." + m.Key + " must be a string"}
		case m.Key == "name":
			b, own, err = s.resolveName(k.c, pool.Prompts, key)
		default:
			b, own, err = s.resolveURI(k.c, key)
		}
		if err != nil {
			k.fail(err)
			return
		}
		at = wire.Span{Start: r.Ref.Start + m.Value.Start, End: r.Ref.Start + m.Value.End}
	}
	if b == nil {
		k.fail(&wire.ParseFailure{Code: wire.InvalidParams, Message: "params.ref names neither a prompt nor a resource"})
		return
	}
	f, r, err := edited(f, wire.Edit{At: at, With: wire.Quote(own)})
	if err != nil {
		k.fail(err)
		return
	}
	s.forward(k, b, f, r)
}
