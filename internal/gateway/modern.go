package gateway

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/mux"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// Protocol version 2026-07-28 has no handshake and no MCP session: each POST brings in
// its _meta and its headers all that there is to know of its sender, and is answered
// alone. It is served on the URLs of the older versions; a request is of this version
// if its _meta names a version. What a server of the older era needs to have changed is
// changed behind session.Session.Do (M8).

const (
	methodHeader = "Mcp-Method"
	nameHeader   = "Mcp-Name"
)

// discoverWait is how long server/discover waits for a server that starts. Clients
// give up after 60 s, and take silence for an error.
const discoverWait = 45 * time.Second

// call is a request of 2026-07-28 that has passed the checks.
type call struct {
	frame wire.Frame
	visit session.Visit
	watch session.Watch // what a client that listens wants to hear of
}

// modern answers a frame of 2026-07-28, and reports whether it was one.
func (g *Gateway) modern(w http.ResponseWriter, r *http.Request, caller front.Caller, f wire.Frame) bool {
	claimed := slices.Contains(r.Header.Values(versionHeader), wire.Version20260728)
	meta, err := f.Routing()
	if err != nil && (!claimed || f.Method == wire.MethodInitialize) && !bytes.Contains(f.Raw, []byte(wire.MetaPrefix)) {
		return false
	}
	switch {
	case err == nil && !meta.ProtocolVersion.Present() && (!claimed || f.Method == wire.MethodInitialize):
		return false
	case err != nil && !claimed && r.Header.Get(sessionHeader) != "":
		return false // of a handshake's client, which is told in its own way
	case f.Kind == wire.Response:
		g.malformed(w, &wire.ParseFailure{Code: wire.InvalidRequest, Message: "clients send no responses in " + wire.Version20260728})
	case f.Kind == wire.Notification:
		// There is none that would mean anything here. A notifications/cancelled names a
		// call by an id that other senders may use too: only the disconnect cancels (M2).
		w.WriteHeader(http.StatusAccepted)
	case err != nil:
		g.malformed(w, err)
	default:
		g.modernRequest(w, r, caller, f, meta)
	}
	return true
}

// modernRequest checks a request and answers it.
func (g *Gateway) modernRequest(w http.ResponseWriter, r *http.Request, caller front.Caller, f wire.Frame, meta wire.Routing) {
	if bad := checkModern(r.Header, f, meta); bad != nil {
		writeJSON(w, bad.status, wire.ErrorReply(f.ID(), bad.object))
		return
	}
	if g.isClosing() {
		fail(w, 0, f.ID(), errClosing)
		return
	}
	k, err := requestCall(r, caller, f, meta)
	if err != nil {
		g.refuse(w, f.ID(), err)
		return
	}
	if k.visit.Session == "" && k.visit.Scope == "" && g.cfg.Sessions.Separates(k.visit.Principal) {
		// Nothing tells unnamed senders apart, and such a server must not be shared by
		// them (case 27). With a handshake each gets a session of its own. Of a single
		// server the session finds out.
		writeJSON(w, http.StatusBadRequest, wire.ErrorReply(f.ID(), era.UnsupportedVersion(wire.Version20260728, wire.LegacyVersions)))
		return
	}
	switch f.Method {
	case wire.Discover:
		g.discover(w, r, k)
	case wire.SubscriptionsListen:
		g.listen(w, r, k)
	default:
		g.call(w, r, k)
	}
}

// refuse answers a request that does not get as far as to a server.
func (g *Gateway) refuse(w http.ResponseWriter, id []byte, err error) {
	if bad, ok := err.(*wire.ParseFailure); ok {
		writeJSON(w, http.StatusBadRequest, wire.ErrorReply(id, wire.ErrorObject(bad.Code, bad.Message)))
		return
	}
	e := fault.Of(err)
	writeJSON(w, initializeStatus(w.Header(), e), wire.ErrorReply(id, e.RPC()))
}

// refusal is an error answer with its HTTP status.
type refusal struct {
	status int
	object []byte
}

func badRequest(code int, message string) *refusal {
	return &refusal{http.StatusBadRequest, wire.ErrorObject(code, message)}
}

// removed are the methods that 2026-07-28 has no more, or that cannot be bridged.
var removed = []string{
	wire.MethodInitialize, wire.Ping, wire.LoggingSetLevel, wire.ResourcesSubscribe, wire.ResourcesUnsubscribe,
	"tasks/get", "tasks/result", "tasks/list", "tasks/cancel", "tasks/update",
}

// checkModern checks a request in the order on which peers rely: the version, what
// else _meta must hold, the headers, the method (H1). On a line, which has none, h is nil.
func checkModern(h http.Header, f wire.Frame, meta wire.Routing) *refusal {
	if !meta.ProtocolVersion.Present() {
		return badRequest(wire.InvalidParams, "params._meta has no "+wire.MetaPrefix+"protocolVersion")
	}
	version, err := wire.Text(meta.ProtocolVersion.Of(f.Raw))
	if err != nil {
		return badRequest(wire.InvalidParams, wire.MetaPrefix+"protocolVersion in params._meta must be a string")
	}
	if bad := agrees(h, versionHeader, "the version in params._meta", func(v string) bool { return v == version }); bad != nil {
		return bad
	}
	if version != wire.Version20260728 {
		return &refusal{http.StatusBadRequest, era.UnsupportedVersion(version, wire.Versions)}
	}
	if bad := checkMeta(f, meta); bad != nil {
		return bad
	}
	if bad := agrees(h, methodHeader, "the method", func(v string) bool { return v == f.Method }); bad != nil {
		return bad
	}
	var name wire.Span
	switch f.Method {
	case wire.ToolsCall, wire.PromptsGet:
		name = meta.Name
	case wire.ResourcesRead:
		name = meta.URI
	}
	if name.Present() {
		text, err := wire.Text(name.Of(f.Raw))
		if err != nil {
			return badRequest(wire.InvalidParams, "the name or uri in params must be a string")
		}
		if bad := agrees(h, nameHeader, "the name in params", func(v string) bool { return wire.HeaderMeans(v, text) }); bad != nil {
			return bad
		}
	}
	if slices.Contains(removed, f.Method) {
		return &refusal{http.StatusNotFound, wire.ErrorObject(wire.MethodNotFound, f.Method+" is not part of "+wire.Version20260728+", or not served in it")}
	}
	return nil
}

// checkMeta checks what _meta must, and may, hold beside the version.
func checkMeta(f wire.Frame, meta wire.Routing) *refusal {
	if raw := meta.ClientCapabilities.Of(f.Raw); len(raw) == 0 || raw[0] != '{' {
		return badRequest(wire.InvalidParams, "params._meta must have an object "+wire.MetaPrefix+"clientCapabilities")
	}
	if raw := meta.ClientInfo.Of(f.Raw); raw != nil {
		if _, ok := clientInfo(raw); !ok {
			return badRequest(wire.InvalidParams, wire.MetaPrefix+"clientInfo in params._meta must be an object with the strings name and version")
		}
	}
	if raw := meta.LogLevel.Of(f.Raw); raw != nil && !mux.IsLevel(raw) {
		return badRequest(wire.InvalidParams, wire.MetaPrefix+"logLevel in params._meta must be debug, info, notice, warning, error, critical, alert or emergency")
	}
	return nil
}

// clientInfo reads the name and version of a client.
func clientInfo(raw []byte) (string, bool) {
	if len(raw) == 0 || raw[0] != '{' {
		return "", false
	}
	var name, version []byte
	for m, err := range wire.Members(raw) {
		switch {
		case err != nil:
			return "", false
		case m.Key == "name":
			name = m.Value.Of(raw)
		case m.Key == "version":
			version = m.Value.Of(raw)
		}
	}
	n, err := wire.Text(name)
	if err != nil {
		return "", false
	}
	v, err := wire.Text(version)
	return n + "/" + v, err == nil
}

// agrees checks that a header stands there once and says what the body does.
func agrees(h http.Header, name, what string, same func(value string) bool) *refusal {
	values := h.Values(name)
	switch {
	case h == nil:
		return nil
	case len(values) == 0:
		return badRequest(wire.HeaderMismatch, "the header "+name+" is missing")
	case len(values) > 1:
		return badRequest(wire.HeaderMismatch, "the header "+name+" stands there more than once")
	case !same(strings.Trim(values[0], " \t")):
		return badRequest(wire.HeaderMismatch, "the header "+name+" does not say the same as "+what)
	}
	return nil
}

// requestCall makes of an HTTP request that is in order what goes to a server, and who
// sends it.
func requestCall(r *http.Request, caller front.Caller, f wire.Frame, meta wire.Routing) (*call, error) {
	k, err := newCall(f, meta)
	if err != nil {
		return nil, err
	}
	v := &k.visit
	v.Principal, v.Scope = caller.Principal, r.PathValue("server")
	var names []string
	if meta.Session.Present() {
		name, err := wire.Text(meta.Session.Of(f.Raw))
		if err != nil || name == "" {
			return nil, errMetaSession
		}
		names = append(names, name)
	}
	if v.Session, err = front.SessionName(r, names...); err != nil {
		return nil, err
	}
	if v.Session != "" {
		if v.Workspace, err = workspaceOf(f, meta); err != nil {
			return nil, err
		}
	}
	if f.Method == wire.ToolsCall {
		arguments := meta.Arguments.Of(f.Raw)
		v.Vet = func(tool []byte) error {
			return era.VetParams(r.Header, tool, arguments)
		}
	}
	return k, nil
}

// newCall makes a call of a request that is in order. Where its sender comes from is
// still to be said.
func newCall(f wire.Frame, meta wire.Routing) (k *call, err error) {
	k = &call{visit: session.Visit{Capabilities: meta.ClientCapabilities.Of(f.Raw), LogLevel: meta.LogLevel.Of(f.Raw)}}
	k.visit.Info, _ = clientInfo(meta.ClientInfo.Of(f.Raw))
	if k.visit.Tools, err = toolsOf(f, meta); err != nil {
		return nil, err
	}
	if k.frame, err = era.WithoutOurs(f, meta); err != nil {
		return nil, err
	}
	if f.Method == wire.SubscriptionsListen {
		k.visit.LogLevel = nil // log messages never come on its stream
		k.watch, err = readWatch(f.Params())
	}
	return k, err
}

// discover answers server/discover.
func (g *Gateway) discover(w http.ResponseWriter, r *http.Request, k *call) {
	x := newExchange(g, k)
	c, err := g.cfg.Sessions.Visit(k.visit)
	if err != nil {
		g.refuse(w, k.frame.ID(), err)
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), discoverWait, errDiscover)
	defer cancel()
	x.serve(w, r, c, func() {
		result, err := c.Discover(ctx)
		if err != nil {
			x.fail(err)
			return
		}
		x.Done(mux.Pieces{wire.Result(k.frame.ID(), result)})
	})
}

var errDiscover = fault.New(fault.StartTimeout, "the server has not started within %s; try again", discoverWait)

// call passes a request on to a server and answers it.
func (g *Gateway) call(w http.ResponseWriter, r *http.Request, k *call) {
	x := newExchange(g, k)
	c, err := g.cfg.Sessions.Visit(k.visit)
	if err != nil {
		g.refuse(w, k.frame.ID(), err)
		return
	}
	x.serve(w, r, c, func() { c.Session().Do(c, k.frame, x) })
}

// serve writes the answer while work leads to it. When it returns nothing is left of
// the request: if the client has hung up, it is cancelled at the server (M2).
func (x *exchange) serve(w http.ResponseWriter, r *http.Request, c *session.Client, work func()) {
	var wg sync.WaitGroup
	wg.Go(work)
	x.write(w, r)
	c.Leave()
	wg.Wait()
}

// isModern reports whether an element of a batch is of 2026-07-28.
func isModern(raw []byte) bool {
	f, err := wire.Parse(raw)
	if err != nil {
		return false
	}
	meta, err := f.Routing()
	return err == nil && meta.ProtocolVersion.Present()
}
