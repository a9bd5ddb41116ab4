package session

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// Do is the one door for everything that a client sends: it checks the session's
// state, finds the server, applies the filter, and passes the frame on. A request's
// answer goes to out, exactly once unless it is cancelled, before or after Do
// returns; out is not used for notifications and responses. Do returns when the
// frame is on its way; a request runs on when its caller is gone (M2).
func (s *Session) Do(c *Client, f wire.Frame, out mux.Outlet) {
	switch f.Kind {
	case wire.Request:
		s.request(c, f, out)
	case wire.Notification:
		s.notification(c, f)
	case wire.Response:
		if w := c.take(f.ID()); w != nil {
			w.ask.Answer(f) // an answer counts only from the client that was asked (M7)
		}
	}
}

// call is a client's request from its arrival to its answer.
type call struct {
	c   *Client
	id  []byte
	out mux.Outlet
	uri string // of the resource that it is about, as the aggregate's client names it, or ""

	mu    sync.Mutex
	done  bool
	on    func(ok bool) // what a result or an error changes for us, or nil
	mc    *mux.Call     // once it is at a connection
	again func()        // sends it once more; nil once it was called, and before the first attempt
	twice bool          // the server says that it may be executed twice, and its configuration believes that
	maybe bool          // its first attempt may have been executed
	leave func()        // ends what is done for the call elsewhere, such as waiting for a connection; nil if that is nothing
	taken *withdrawal   // the client has taken it back before it was at a connection; or nil

	notice  string   // to be said with the result, or ""
	from    *binding // whose notice it is
	restart string   // the same, of what the session has lost with a restart
}

// withdrawal is a client's notifications/cancelled, and where its requestId is.
type withdrawal struct {
	frame wire.Frame
	at    wire.Span
}

// begin registers a request of the client. An id that is in flight is the sender's
// error and touches nothing (W1).
func (c *Client) begin(f wire.Frame, out mux.Outlet) (*call, error) {
	k := &call{c: c, id: f.ID(), out: out}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil, errEnded
	}
	if _, twice := c.calls[string(k.id)]; twice {
		return nil, fault.New(fault.BadRequest, "a request with the id %s is in flight already", k.id)
	}
	c.calls[string(k.id)] = k
	return k, nil
}

// Note implements mux.Outlet.
func (k *call) Note(p mux.Pieces) {
	k.mu.Lock()
	done := k.done
	k.mu.Unlock()
	if !done {
		k.out.Note(p)
	}
}

// Done implements mux.Outlet: the request has ended.
func (k *call) Done(p mux.Pieces) {
	k.mu.Lock()
	again, on, leave, notice, from, restart := k.done, k.on, k.leave, k.notice, k.from, k.restart
	k.done = true
	k.mu.Unlock()
	if again {
		return
	}
	if leave != nil {
		leave()
	}
	k.c.mu.Lock()
	delete(k.c.calls, string(k.id))
	k.c.mu.Unlock()
	if on != nil {
		on(isResult(p))
	}
	if notice != "" {
		var told bool
		if p, told = withNotice(p, notice); !told {
			from.keepLoss(notice)
		}
	}
	if restart != "" {
		var told bool
		p, told = withNotice(p, restart)
		k.c.session.told(restart, told)
	}
	k.out.Done(p)
	k.c.exit()
}

func isResult(p mux.Pieces) bool {
	f, err := wire.Parse(p.AppendTo(nil))
	return err == nil && f.ResultSpan.Present()
}

func (k *call) result(raw []byte) { k.Done(mux.Pieces{wire.Result(k.id, raw)}) }

// fail answers with an error. That the last attempt did not reach the server says
// nothing about the first one.
func (k *call) fail(err error) {
	k.mu.Lock()
	maybe := k.maybe
	k.mu.Unlock()
	if maybe && fault.SafeToRetry(err) {
		err = maybeSent(fault.Of(err))
	}
	k.Done(failure(k.id, err))
}

// maybeSent is the error of a call that may have been executed.
func maybeSent(why *fault.Error) *fault.Error {
	err := *why
	err.Sent = fault.SentMaybe
	return &err
}

// Failure is the error answer to a request. A server's own error object passes
// unchanged.
func Failure(id []byte, err error) mux.Pieces { return failure(id, err) }

func failure(id []byte, err error) mux.Pieces {
	if rpc, ok := errors.AsType[*pool.RPCError](err); ok {
		return mux.Pieces{wire.ErrorReply(id, rpc.Object)}
	}
	if bad, ok := errors.AsType[*wire.ParseFailure](err); ok {
		return mux.Pieces{wire.ErrorReply(id, wire.ErrorObject(bad.Code, bad.Message))}
	}
	return mux.Pieces{wire.ErrorReply(id, fault.Of(err).RPC())}
}

// sent notes where the request went. One that was cancelled in this moment is
// cancelled there too, with the client's own words if there are any. A first attempt that
// failed already is not noted any more.
func (k *call) sent(mc *mux.Call, again bool) {
	k.mu.Lock()
	if again || k.again != nil {
		k.mc = mc
	}
	done, taken := k.done, k.taken
	k.mu.Unlock()
	switch {
	case taken != nil:
		mc.Cancel(taken.frame, taken.at)
	case done:
		mc.Cancel(wire.Frame{}, wire.Span{})
	}
}

// Failed implements mux.Failer: what certainly did not reach the server is sent once
// more, on a new connection if need be (R5, case 4), and so is what may be executed
// twice when a connection was lost. A server that wants a login would want it again.
func (k *call) Failed(err *fault.Error) bool {
	k.mu.Lock()
	unsent := err.Sent == fault.SentNo && err.Reason != fault.NeedsLogin
	if !unsent && (!k.twice || err.Reason != fault.Interrupted) {
		k.mu.Unlock()
		return false
	}
	again := k.again
	k.again, k.mc = nil, nil
	before := k.maybe
	k.maybe = before || !unsent
	done := k.done
	k.mu.Unlock()
	switch {
	case again != nil && !done && k.c.session.m.spawn(again):
	case before && !done:
		k.fail(err)
	default:
		return false
	}
	return true
}

// cancel ends the call at the client's wish: the server is told, no answer follows.
func (k *call) cancel(f wire.Frame, at wire.Span) {
	k.mu.Lock()
	mc := k.mc
	if mc == nil {
		f.Raw = bytes.Clone(f.Raw)
		k.taken = &withdrawal{f, at}
	}
	k.mu.Unlock()
	if mc != nil && mc.Cancel(f, at) {
		return // through Done
	}
	k.Done(mux.Pieces{}) // not at a connection yet, which forward sees, or not any more
}

func (s *Session) request(c *Client, f wire.Frame, out mux.Outlet) {
	if f.Method == wire.Ping {
		s.ping(f, out)
		return
	}
	if err := c.enter(); err != nil {
		out.Done(failure(f.ID(), err))
		return
	}
	k, err := c.begin(f, out)
	if err != nil {
		out.Done(failure(f.ID(), err))
		c.exit()
		return
	}
	s.route(k, f)
}

// route sends a request that has begun where it is to go.
func (s *Session) route(k *call, f wire.Frame) {
	c := k.c
	f, r, err := routed(f)
	if err != nil {
		k.fail(err)
		return
	}
	switch f.Method {
	case wire.MethodInitialize:
		k.fail(fault.New(fault.BadRequest, "this MCP session is initialized already"))
	default:
		switch c.scope {
		case "":
			s.aggregate(k, f, r)
		case OwnServer:
			s.own(k, f, r)
		default:
			s.single(k, f, r)
		}
	}
}

// transient reports whether the client is there for one request, for which its session was
// entered when the client was made.
func (c *Client) transient() bool { return c.visitor != nil || c.parent != nil }

// enter enters the client's session for a request; a transient one has done so already.
func (c *Client) enter() error {
	if c.transient() {
		return nil
	}
	return c.session.enter()
}

// exit is the end of what enter began.
func (c *Client) exit() {
	if !c.transient() {
		c.session.exit()
	}
}

// ping answers a ping, which is no activity (N3).
func (s *Session) ping(f wire.Frame, out mux.Outlet) {
	s.m.mu.Lock()
	err := s.refusalLocked()
	s.m.mu.Unlock()
	if err != nil {
		out.Done(failure(f.ID(), err))
		return
	}
	out.Done(mux.Pieces{wire.Result(f.ID(), []byte("{}"))})
}

// routed reads what decides where a frame goes, and cuts out the name of the session:
// that is ours and never goes upstream.
func routed(f wire.Frame) (wire.Frame, wire.Routing, error) {
	r, err := f.Routing()
	if err != nil || !r.SessionMember.Present() {
		return f, r, err
	}
	return edited(f, wire.Edit{At: r.SessionMember})
}

// edited applies edits to a frame and reads it again.
func edited(f wire.Frame, edits ...wire.Edit) (wire.Frame, wire.Routing, error) {
	f, err := wire.Parse(wire.Splice(nil, f.Raw, edits...))
	if err != nil {
		return f, wire.Routing{}, err
	}
	r, err := f.Routing()
	return f, r, err
}

// single handles a request to one server, transparently.
func (s *Session) single(k *call, f wire.Frame, r wire.Routing) {
	server, err := s.server(k.c.scope)
	if err != nil {
		k.fail(err)
		return
	}
	b, err := s.bind(k.c, server)
	if err != nil {
		k.fail(err)
		return
	}
	kind, isList := pool.KindOf(f.Method)
	if !isList || r.Cursor.Present() { // we give out no cursors: the server says so
		s.forward(k, b, f, r)
		return
	}
	b.peer(k.c)
	listing, spoken, err := listOf(s.ctx, b, kind)
	switch {
	case err != nil:
		k.fail(err)
	case listing == nil && b.unleased() != nil:
		k.fail(errUndeclared(f.Method))
	case listing == nil: // not declared: the server says what it thinks of that
		s.forward(k, b, f, r)
	default:
		k.result(listed(b.shown(k.c, kind, listing), kind, f.Method, k.c.era(), spoken))
	}
}

// with runs f with the live attachment, and once more with a new one when the first
// turned out to have ended before anything was sent, unless the time is over.
func (b *binding) with(ctx context.Context, f func(*pool.Attachment) error) error {
	for try := 0; ; try++ {
		att, err := b.attach(ctx)
		if err != nil {
			return err
		}
		err = f(att)
		if errors.Is(err, pool.ErrReleased) { // the session's end, or its sleep, came between
			if b.s.holding() == nil {
				return b.s.whyEnded()
			}
			err = b.lostAgain()
		}
		if try > 0 || !fault.SafeToRetry(err) || fault.Is(err, fault.CallTimeout) {
			return err
		}
		b.forget(att)
	}
}

// forward sends a request to the binding's server. The filter is applied here, on
// the server's own name of the tool or prompt, and nowhere else (V3).
func (s *Session) forward(k *call, b *binding, f wire.Frame, r wire.Routing) {
	if f.Method == wire.ToolsCall && b.asksForSession(k.c) {
		var elsewhere bool
		if f, r, elsewhere = s.redirect(k, b, f, r); elsewhere {
			return
		}
	}
	p := b.peer(k.c)
	switch f.Method {
	case wire.LoggingSetLevel, wire.ResourcesSubscribe, wire.ResourcesUnsubscribe:
		k.mu.Lock()
		k.on = func(ok bool) {
			if ok {
				p.remember(f, r, k.uri)
			}
		}
		k.mu.Unlock()
	}
	k.mu.Lock()
	k.again = func() { s.send(k, b, f, r, true) }
	k.mu.Unlock()
	s.send(k, b, f, r, false)
}

// send sends a request through the binding's connection, unless it has ended. again
// says that this is the second attempt.
func (s *Session) send(k *call, b *binding, f wire.Frame, r wire.Routing, again bool) {
	p := b.peer(k.c)
	ctx, over := k.waiting(b)
	defer over()
	err := b.with(ctx, func(att *pool.Attachment) error {
		if err := allowed(att, f, r); err != nil {
			return err
		}
		if err := k.await(ctx, b, att); err != nil {
			return err
		}
		twice := att.Settings().Retry == config.RetryIdempotent && f.Method == wire.ToolsCall && repeatable(att, f, r)
		k.mu.Lock()
		k.twice = twice
		done := k.done
		k.mu.Unlock()
		if done {
			return nil
		}
		if err := p.admit(att, f, r); err != nil {
			return err
		}
		if f.Method == wire.ToolsCall {
			k.mention(b, b.use(att), s.takeNotice()) // before it is sent, for the answer may end the session (N5)
		}
		mc, err := p.cross(att, k, f, r)
		if mc != nil {
			k.sent(mc, again)
		}
		return err
	})
	if err != nil {
		k.fail(err)
	}
}

// await waits under ctx while the server recovers (R3), not longer than the call may take.
func (k *call) await(ctx context.Context, b *binding, att *pool.Attachment) error {
	if att.Live() {
		return nil
	}
	if limit := att.Settings().CallTimeout; limit > 0 {
		err := fault.New(fault.CallTimeout, "server %q is being started again and was not there within %s; callTimeout of the server sets the limit", b.name, limit)
		err.Server, err.Sent = b.name, fault.SentNo
		var leave context.CancelCauseFunc
		ctx, leave = context.WithCancelCause(ctx)
		defer leave(nil)
		timer := time.AfterFunc(limit, func() { leave(err) })
		defer timer.Stop()
	}
	return att.Wait(ctx)
}

// waiting returns a context for what may have to wait until the server is there: it ends
// with the session, and when the client wants no answer any more. Nothing waits where
// there is a live connection.
func (k *call) waiting(b *binding) (ctx context.Context, over func()) {
	ctx = b.s.ctx
	if att := b.current(); att != nil && att.Live() {
		return ctx, func() {}
	}
	ctx, leave := context.WithCancelCause(ctx)
	k.whenDone(func() { leave(errCancelled) })
	return ctx, func() { leave(nil) }
}

// whenDone has leave called when the call is done, or at once if it is.
func (k *call) whenDone(leave func()) {
	k.mu.Lock()
	done := k.done
	k.leave = leave
	k.mu.Unlock()
	if done {
		leave()
	}
}

var errCancelled = errors.New("the client wants no answer any more")

// repeatable reports whether the server says that the call may be executed twice.
func repeatable(att *pool.Attachment, f wire.Frame, r wire.Routing) bool {
	tool, err := wire.Text(r.Name.Of(f.Raw))
	return err == nil && att.Repeatable(tool)
}

// allowed applies the session's filter to what a request names. What is filtered
// and what does not exist get the same answer.
func allowed(att *pool.Attachment, f wire.Frame, r wire.Routing) error {
	var kind pool.Kind
	name := r.Name.Of(f.Raw)
	switch f.Method {
	case wire.ToolsCall:
		kind = pool.Tools
	case wire.PromptsGet:
		kind = pool.Prompts
	case wire.CompletionComplete:
		ref, err := promptRef(r.Ref.Of(f.Raw))
		if err != nil {
			return err
		}
		if ref == nil {
			return nil
		}
		kind, name = pool.Prompts, ref
	default:
		return nil
	}
	if !att.Filtered() {
		return nil
	}
	text, err := wire.Text(name)
	if err != nil { // the server might make a name of it that the filter does not let through
		return &wire.ParseFailure{Code: wire.InvalidParams, Message: "the name of the " + nounOf(kind) + " must be a string"}
	}
	if att.Allows(text) && att.Knows(kind, text) {
		return nil
	}
	return unknownName(kind, text)
}

func unknownName(kind pool.Kind, name string) error {
	return fault.New(fault.ForbiddenTool, "unknown %s: %s", nounOf(kind), name)
}

func nounOf(kind pool.Kind) string {
	if kind == pool.Prompts {
		return "prompt"
	}
	return "tool"
}

// promptRef returns the raw name in a completion's reference to a prompt, or nil. A
// member that stands twice, or in another case, is refused (W2).
func promptRef(ref []byte) ([]byte, error) {
	if len(ref) == 0 || ref[0] != '{' {
		return nil, nil
	}
	var name []byte
	for m, err := range wire.Members(ref) {
		if err != nil {
			return nil, err
		}
		if !strings.EqualFold(m.Key, "name") {
			continue
		}
		if name != nil || m.Key != "name" {
			return nil, &wire.ParseFailure{Code: wire.InvalidParams, Message: "params.ref: the member \"name\" stands twice, or is spelled in another way"}
		}
		name = m.Value.Of(ref)
	}
	return name, nil
}

func (s *Session) notification(c *Client, f wire.Frame) {
	f, r, err := routed(f)
	if err != nil {
		return // nobody can be told
	}
	switch f.Method {
	case wire.Initialized: // the server got its one from us (M3)
	case wire.Cancelled:
		c.mu.Lock()
		k := c.calls[string(r.RequestID.Of(f.Raw))]
		c.mu.Unlock()
		if k != nil {
			k.cancel(f, r.RequestID)
		}
	case wire.Progress:
		c.mu.Lock()
		w := c.asked[string(r.ProgressOf.Of(f.Raw))]
		c.mu.Unlock()
		if w != nil {
			w.progress(f, r)
		}
	default:
		s.passOn(c, f)
	}
}

// progress passes on how far the client is with what the server asked.
func (a *asked) progress(f wire.Frame, r wire.Routing) {
	theirs, err := a.frame.Routing()
	if err != nil || !theirs.ProgressToken.Present() {
		return
	}
	token := theirs.ProgressToken.Of(a.frame.Raw)
	a.ask.Progress(wire.Splice(nil, f.Raw, wire.Edit{At: r.ProgressOf, With: token}))
}

// passOn sends a notification that is none of ours to the client's one server. On a
// shared connection roots/list_changed would speak for others, so it ends here.
func (s *Session) passOn(c *Client, f wire.Frame) {
	if c.scope == "" {
		return
	}
	server, err := s.server(c.scope)
	if err != nil {
		return
	}
	b, err := s.bind(c, server)
	if err != nil {
		return
	}
	att := b.current()
	if att == nil || f.Method == wire.RootsListChanged && (!att.Own() || att.Era() == era.Modern) {
		return
	}
	_ = att.Note(s.ctx, f.Raw) // a lost connection is told of elsewhere
}
