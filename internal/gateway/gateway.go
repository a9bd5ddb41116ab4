// Package gateway is the MCP face: Streamable HTTP of all protocol versions, with a
// handshake and without, for one server (/mcp/{server}) and for all of them (/mcp). It
// turns HTTP into frames and back; what a frame means is decided in package session.
//
// The properties H of the gateway specification are cited where they are kept.
package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// Config says how a Gateway works.
type Config struct {
	Sessions      *session.Manager // required
	MaxBody       int64            // bytes of a request body; 0 is wire.MaxFrame
	KeepAlive     time.Duration    // between comments on a silent stream; 0 is 15 s
	WriteDeadline time.Duration    // for one write to a stream; 0 is 10 s
	Log           *slog.Logger     // nil discards
}

// Gateway serves MCP. Its handlers may run at any time; CloseStreams ends the
// standing ones before a shutdown.
type Gateway struct {
	cfg      Config
	metrics  metrics
	queued   atomic.Int64 // bytes in all queues (H4)
	patience patience     // with the answers to POSTs, until they begin

	mu      sync.Mutex
	closing bool
	readers map[*reader]struct{} // of standing GET streams
}

// New returns a Gateway. Register makes it reachable.
func New(cfg Config) *Gateway {
	if cfg.MaxBody == 0 {
		cfg.MaxBody = wire.MaxFrame
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = 15 * time.Second
	}
	if cfg.WriteDeadline == 0 {
		cfg.WriteDeadline = 10 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Gateway{cfg: cfg, metrics: newMetrics(), patience: patience{limit: cfg.KeepAlive}, readers: map[*reader]struct{}{}}
}

// Register adds the routes. While the front drains, clients may still end
// themselves, cancel calls, and answer what they were asked; requests are refused
// from CloseStreams on.
func (g *Gateway) Register(f *front.Front) {
	for _, base := range []string{"/mcp", "/sessions/{id}/mcp"} {
		for _, path := range []string{base, base + "/{server}"} {
			f.Handle("POST "+path, g.post)
			f.Handle("GET "+path, g.get)
			f.Handle("DELETE "+path, g.delete)
			f.DrainExempt("POST "+path, "DELETE "+path)
		}
	}
	for _, path := range []string{"/sse", "/messages", "/message"} {
		f.Handle(path, oldTransport)
	}
}

// oldTransport answers clients of the HTTP+SSE transport of 2024-11-05, which is
// not served (H1).
func oldTransport(w http.ResponseWriter, _ *http.Request, _ front.Caller) {
	w.Header().Set("Allow", http.MethodPost)
	front.WriteRPCError(w, http.StatusMethodNotAllowed, nil,
		fault.New(fault.BadRequest, "the HTTP+SSE transport of 2024-11-05 is not served; point the client to /mcp or /mcp/{server} and use Streamable HTTP"))
}

// CloseStreams ends every standing GET stream, and refuses new ones and new requests
// from now on (G1, H3).
func (g *Gateway) CloseStreams() {
	g.mu.Lock()
	g.closing = true
	all := make([]*reader, 0, len(g.readers))
	for r := range g.readers {
		all = append(all, r)
	}
	g.mu.Unlock()
	for _, r := range all {
		r.stop()
	}
}

func (g *Gateway) isClosing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closing
}

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
)

// accepts reports whether the request accepts all the media types. No Accept header
// accepts everything.
func accepts(r *http.Request, types ...string) bool {
	values := r.Header.Values("Accept")
	if len(values) == 0 {
		return true
	}
	ok := func(t string) bool {
		family, _, _ := strings.Cut(t, "/")
		for _, v := range values {
			for item := range strings.SplitSeq(v, ",") {
				item, _, _ = strings.Cut(item, ";")
				item = strings.TrimSpace(item)
				if strings.EqualFold(item, t) || item == "*/*" || strings.EqualFold(item, family+"/*") {
					return true
				}
			}
		}
		return false
	}
	return !slices.ContainsFunc(types, func(t string) bool { return !ok(t) })
}

// fail writes a JSON-RPC error. status 0 is the reason's own.
func fail(w http.ResponseWriter, status int, id []byte, err error) {
	front.WriteRPCError(w, status, id, err)
}

// known reports whether a principal has that client of a server.
func (g *Gateway) known(principal, server, id string) bool {
	_, err := g.cfg.Sessions.Client(principal, server, id)
	return err == nil
}

// client finds the client of a request by its Mcp-Session-Id (H3), and checks what
// else the request says of it.
func (g *Gateway) client(w http.ResponseWriter, r *http.Request, caller front.Caller, id []byte) *session.Client {
	server, ids := r.PathValue("server"), r.Header.Values(sessionHeader)
	if err := g.cfg.Sessions.Serves(server); err != nil {
		// It may be one that only the client's session has.
		if len(ids) != 1 || !g.known(caller.Principal, server, ids[0]) {
			fail(w, 0, id, err)
			return nil
		}
	}
	if r.Method != http.MethodPost && r.Header.Get(versionHeader) == wire.Version20260728 {
		w.Header().Set("Allow", http.MethodPost)
		fail(w, http.StatusMethodNotAllowed, id, fault.New(fault.BadRequest, "there is only POST in %s; subscriptions/listen opens a stream", wire.Version20260728))
		return nil
	}
	if v := r.Header.Get(versionHeader); v != "" && !slices.Contains(wire.LegacyVersions, v) {
		writeJSON(w, http.StatusBadRequest, wire.ErrorReply(id, era.UnsupportedVersion(v, wire.Versions)))
		return nil
	}
	if len(ids) == 0 && r.Method == http.MethodGet {
		oldTransport(w, r, caller)
		return nil
	}
	if len(ids) != 1 || ids[0] == "" {
		fail(w, http.StatusBadRequest, id, fault.New(fault.BadRequest, "the request needs one %s header; it is in the answer to initialize", sessionHeader))
		return nil
	}
	c, err := g.cfg.Sessions.Client(caller.Principal, server, ids[0])
	if err == nil {
		if _, ok := c.Stream().(*transport); !ok { // it is on a line
			err = errNotHere
		}
	}
	if err != nil {
		fail(w, 0, id, err)
		return nil
	}
	if c.Headless() {
		c.Recall(r.Header.Values)
	}
	name, err := front.SessionName(r)
	if err == nil && name != "" && name != c.Session().ID() {
		err = fault.New(fault.BadRequest, "the request names session %q, but its %s belongs to another one", name, sessionHeader)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, id, err)
		return nil
	}
	return c
}

var errNotHere = fault.New(fault.UnknownSession, "this MCP session is not one over HTTP; send initialize again")

// requestID is the id under which a refusal answers a frame: only requests have one.
func requestID(f wire.Frame) []byte {
	if f.Kind != wire.Request {
		return nil
	}
	return f.ID()
}

func (g *Gateway) post(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	if !accepts(r, "application/json", "text/event-stream") {
		fail(w, http.StatusNotAcceptable, nil, fault.New(fault.BadRequest, "the client must accept both application/json and text/event-stream"))
		return
	}
	if t, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(t), "application/json") {
		fail(w, http.StatusUnsupportedMediaType, nil, fault.New(fault.BadRequest, "the Content-Type must be application/json"))
		return
	}
	g.metrics.posts.Inc()
	body, err := front.ReadBody(w, r, g.cfg.MaxBody)
	if err != nil {
		fail(w, 0, nil, err)
		return
	}
	if wire.IsBatch(body) {
		g.postBatch(w, r, caller, body)
		return
	}
	f, err := parse(body)
	if err != nil {
		g.malformed(w, err)
		return
	}
	if g.modern(w, r, caller, f) {
		return
	}
	if f.Kind == wire.Request && f.Method == wire.MethodInitialize {
		g.initialize(w, r, caller, f)
		return
	}
	c := g.client(w, r, caller, requestID(f))
	if c == nil {
		return
	}
	if err := misnamed(c, f); err != nil {
		fail(w, http.StatusBadRequest, f.ID(), err)
		return
	}
	g.frames(w, r, c, []wire.Frame{f}, nil, false)
}

// maxBatch is how many messages a batch may hold: without a limit, its smallest
// elements would cost a hundred times their size.
const maxBatch = 1000

func tooMany(body []byte) bool {
	n := 0
	for range wire.Elements(body) {
		if n++; n > maxBatch {
			return true
		}
	}
	return false
}

// misnamed returns what is wrong when a frame names another session than its
// client's.
func misnamed(c *session.Client, f wire.Frame) error {
	r, err := f.Routing()
	if err != nil || !r.Session.Present() {
		return nil // Do says what is wrong with params that cannot be read
	}
	name, err := wire.Text(r.Session.Of(f.Raw))
	if err != nil {
		return errMetaSession
	}
	if name != c.Session().ID() {
		return fault.New(fault.BadRequest, "_meta names the session %.200q, but the %s belongs to another one", name, sessionHeader)
	}
	return nil
}

var errMetaSession = fault.New(fault.BadRequest, "_meta[%q] must be a string", wire.MetaSession)

// parse reads a frame from an HTTP body, on one line (W3).
func parse(raw []byte) (wire.Frame, error) {
	f, err := wire.Parse(raw)
	if err != nil {
		return f, err
	}
	if flat := wire.Flatten(f.Raw); len(flat) != len(f.Raw) {
		return wire.Parse(flat)
	}
	return f, nil
}

// postBatch takes a batch apart; the protocol had them until 2025-03-26 (W3).
func (g *Gateway) postBatch(w http.ResponseWriter, r *http.Request, caller front.Caller, body []byte) {
	if tooMany(body) {
		g.malformed(w, &wire.ParseFailure{Code: wire.InvalidRequest, Message: fmt.Sprintf("a batch may hold %d messages at most", maxBatch)})
		return
	}
	raws, _, err := wire.SplitBatch(body)
	if err != nil {
		g.malformed(w, err)
		return
	}
	if slices.ContainsFunc(raws, isModern) || slices.Contains(r.Header.Values(versionHeader), wire.Version20260728) {
		g.malformed(w, &wire.ParseFailure{Code: wire.InvalidRequest, Message: "there are no batches in " + wire.Version20260728})
		return
	}
	c := g.client(w, r, caller, nil)
	if c == nil {
		return
	}
	if c.Version() != wire.Version20250326 && c.Version() != wire.Version20241105 {
		g.malformed(w, &wire.ParseFailure{Code: wire.InvalidRequest, Message: "batches are part of protocol versions 2024-11-05 and 2025-03-26 only"})
		return
	}
	var frames []wire.Frame
	var bad []error
	for _, raw := range raws {
		f, err := parse(raw)
		if err == nil && f.Method == wire.MethodInitialize {
			err = &wire.ParseFailure{Code: wire.InvalidRequest, Message: "initialize must not be part of a batch", ID: f.ID()}
		}
		if err == nil {
			if wrong := misnamed(c, f); wrong != nil {
				err = &wire.ParseFailure{Code: wire.InvalidRequest, Message: wrong.Error(), ID: f.ID()}
			}
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		frames = append(frames, f)
	}
	g.frames(w, r, c, frames, bad, true)
}

// malformed answers a body that is no JSON-RPC.
func (g *Gateway) malformed(w http.ResponseWriter, err error) {
	bad, ok := errors.AsType[*wire.ParseFailure](err)
	if !ok {
		bad = &wire.ParseFailure{Code: wire.ParseError, Message: err.Error()}
	}
	writeJSON(w, http.StatusBadRequest, wire.ErrorReply(bad.ID, wire.ErrorObject(bad.Code, bad.Message)))
}

// jsonType is the value of a header that never changes, shared by all answers.
var jsonType = []string{"application/json"}

func writeJSON(w http.ResponseWriter, status int, parts ...[]byte) {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	h := w.Header()
	h["Content-Type"] = jsonType
	if n > 1<<10 { // net/http measures what is shorter, and makes nothing for it
		h["Content-Length"] = []string{strconv.Itoa(n)}
	}
	w.WriteHeader(status)
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			return // the client has gone
		}
	}
}

// frames passes on what one POST holds and answers it: 202 when nothing in it asks
// for an answer (H2).
func (g *Gateway) frames(w http.ResponseWriter, r *http.Request, c *session.Client, frames []wire.Frame, bad []error, batch bool) {
	s := c.Session()
	asked := len(bad)
	for _, f := range frames {
		if f.Kind == wire.Request {
			asked++
		}
	}
	if asked == 0 {
		for _, f := range frames {
			s.Do(c, f, nil)
		}
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if g.isClosing() {
		var id []byte
		if !batch {
			id = frames[0].ID()
		}
		fail(w, 0, id, errClosing)
		return
	}
	out := newStream(c.Stream().(*transport), asked, batch)
	for _, err := range bad {
		p, _ := errors.AsType[*wire.ParseFailure](err)
		out.answer(wire.ErrorReply(p.ID, wire.ErrorObject(p.Code, p.Message)))
	}
	out.serve(w, r, func() {
		for _, f := range frames {
			s.Do(c, f, out)
		}
	})
}

// initialize makes a client. A stale session id in the request is ignored: the
// client begins anew (H3).
func (g *Gateway) initialize(w http.ResponseWriter, r *http.Request, caller front.Caller, f wire.Frame) {
	if g.isClosing() {
		fail(w, 0, f.ID(), errClosing)
		return
	}
	hello := session.Hello{Principal: caller.Principal, Scope: r.PathValue("server"), Frame: f, Header: r.Header.Values}
	meta, err := f.Routing()
	if err != nil {
		g.malformed(w, err)
		return
	}
	var names []string
	if meta.Session.Present() {
		name, err := wire.Text(meta.Session.Of(f.Raw))
		if err != nil {
			fail(w, 0, f.ID(), errMetaSession)
			return
		}
		names = append(names, name)
	}
	if hello.Session, err = front.SessionName(r, names...); err != nil {
		fail(w, 0, f.ID(), err)
		return
	}
	if hello.Workspace, err = workspaceOf(f, meta); err != nil {
		fail(w, 0, f.ID(), err)
		return
	}
	if hello.Tools, err = toolsOf(f, meta); err != nil {
		fail(w, 0, f.ID(), err)
		return
	}
	hello.ClientID, hello.Lasting = session.NewID(), true
	t := newTransport(g, hello.ClientID)
	hello.Stream = t
	out := newStream(t, 1, false)
	out.header = func(h http.Header) int { // also when the answer is late and its headers early
		h.Set(sessionHeader, hello.ClientID)
		return http.StatusOK
	}
	out.serve(w, r, func() {
		c, answer, err := g.cfg.Sessions.Initialize(r.Context(), hello)
		if err != nil {
			e := fault.Of(err)
			out.setHeader(func(h http.Header) int { return initializeStatus(h, e) })
			out.answer(wire.ErrorReply(f.ID(), e.RPC()))
			return
		}
		t.begin(c)
		out.Done(answer)
	})
}

// initializeStatus is the HTTP status of a refused initialize: what concerns the
// request itself has one of its own, a server that does not start is the answer of a
// protocol that works.
func initializeStatus(h http.Header, e *fault.Error) int {
	switch e.Reason {
	case fault.UnknownServer, fault.SessionLimit, fault.SessionSealed, fault.Draining, fault.BadRequest:
		if s := e.RetrySeconds(); s > 0 {
			h.Set("Retry-After", strconv.Itoa(s))
		}
		return e.Reason.Status()
	}
	return http.StatusOK
}

// workspaceMeta names the directory that a client works in, in the _meta of its
// initialize request (K6).
const workspaceMeta = "roundhouse/workspace"

func workspaceOf(f wire.Frame, meta wire.Routing) (string, error) {
	raw := meta.Meta.Of(f.Raw)
	if len(raw) == 0 || raw[0] != '{' {
		return "", nil
	}
	for m, err := range wire.Members(raw) {
		if err != nil {
			return "", fault.New(fault.BadRequest, "_meta cannot be read: %w", err)
		}
		if m.Key != workspaceMeta {
			continue
		}
		dir, err := wire.Text(m.Value.Of(raw))
		if err != nil || !filepath.IsAbs(dir) {
			return "", fault.New(fault.BadRequest, "_meta[%q] must be an absolute path", workspaceMeta)
		}
		return filepath.Clean(dir), nil
	}
	return "", nil
}

// toolsOf reads what _meta["roundhouse/tools"] says that a session may see (V4), nil if
// it says nothing.
func toolsOf(f wire.Frame, meta wire.Routing) (*session.Tools, error) {
	if !meta.Tools.Present() {
		return nil, nil
	}
	return session.ParseTools(meta.Tools.Of(f.Raw))
}

func (g *Gateway) get(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	if !accepts(r, "text/event-stream") {
		fail(w, http.StatusNotAcceptable, nil, fault.New(fault.BadRequest, "the client must accept text/event-stream"))
		return
	}
	c := g.client(w, r, caller, nil)
	if c == nil {
		return
	}
	t := c.Stream().(*transport)
	var last *eventID
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		e, ok := t.parse(id)
		if !ok {
			fail(w, http.StatusBadRequest, nil, fault.New(fault.BadRequest, "the Last-Event-ID is not one of this MCP session's; open the stream without it"))
			return
		}
		last = &e
	}
	closed := c.StreamOpened()
	defer closed()
	t.listen(w, r, last)
}

func (g *Gateway) delete(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	if c := g.client(w, r, caller, nil); c != nil {
		c.Delete()
		w.WriteHeader(http.StatusNoContent)
	}
}
