package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/process"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// Link is one live transport to a server.
type Link interface {
	// Send queues a frame; it waits only while the queue is full. An error means
	// that the frame was not sent, because ctx ended or because Run has returned or is
	// about to.
	Send(ctx context.Context, m *upstream.Message) error
	// Post queues a small frame without waiting; on an ended link it does nothing.
	Post(m *upstream.Message)
	// Run delivers frames until the link ends, and returns why. It is called once.
	Run(h upstream.Handler) error
	// Abort makes Run return err. It returns at once and may be called twice.
	Abort(err error)
	// Close ends what is behind the link and returns when nothing of it lives any
	// more, or when that could not be achieved in the configured time. It is called
	// after Run has returned, or instead of it.
	Close(ctx context.Context)
	// Facts describes the link; it may be called at any time.
	Facts() LinkFacts
	// Output returns the last lines that the server wrote beside the protocol.
	Output(lines int) []string
	// Note adds a line of ours to that output.
	Note(line string)
}

// LinkFacts is what a link says of itself.
type LinkFacts struct {
	Process *process.Process // nil without one that we have started
	PID     int              // 0 without a process
	Started time.Time        // of the process
	Exit    string           // how the process ended, or ""
}

// Dialer opens a link to a server. ctx bounds the opening only. The server's
// fields hold no ${WORKSPACE} any more.
type Dialer func(ctx context.Context, s *config.Server) (Link, error)

// Handshake is the outcome of initialize, or of server/discover in the newer era.
type Handshake struct {
	Era          era.Era
	Result       []byte    // the server's whole result; read-only
	Version      string    // the protocol version that the server chose, or the newest that it and we speak
	VersionSpan  wire.Span // in Result; absent in the newer era
	Capabilities map[string]json.RawMessage
}

// Has reports whether the server declared a capability.
func (h *Handshake) Has(name string) bool {
	_, ok := h.Capabilities[name]
	return ok
}

// connection is one generation of an entry: a live link with its mux and
// catalogue.
type connection struct {
	server     *config.Server
	generation uint64
	link       Link
	mux        *mux.Mux
	cat        *catalogue
	ctx        context.Context // ends with the link; its cause says why
	loss       *fault.Error    // what callers get; constant once ctx has ended

	// ending says that the link takes no more calls and soon ends: Run waits for what
	// the server says to those that are on their way.
	ending atomic.Bool

	opened chan struct{} // closed by open when hand and the catalogue are there
	hand   *Handshake    // constant once opened is closed
	meta   []byte        // members of the _meta of our own requests in the newer era; likewise

	wg    sync.WaitGroup // everything that runs for the connection
	heard atomic.Uint64  // frames that came
	noise atomic.Int64

	ended time.Time // when it became one of the dying; guarded by Pool.mu
}

// dialed is what open needs beside the server.
type dialed struct {
	server       *config.Server
	generation   uint64
	capabilities []byte // declared upstream: a JSON object
	workspace    string
	tongue       tongue
	sole         bool
	before       [kinds]*Listing // what the generation before listed
	dial         Dialer
	metrics      *mux.Metrics
	begun        func(*connection) // the link is there, and not yet open
	clientInfo   json.RawMessage
	lost         func(*connection) // the link ended, by itself or by abort
	changed      func(*connection, Kind)
}

// open dials, shakes hands and reads the catalogue, all within ctx. After an error
// the connection, if there is one, is to be closed.
func open(ctx context.Context, d dialed) (*connection, error) {
	begun := time.Now()
	link, err := d.dial(ctx, d.server)
	if err != nil {
		return nil, startError(ctx, d.server, begun, nil, err)
	}
	c := &connection{server: d.server, generation: d.generation, link: link, opened: make(chan struct{})}
	var cancel context.CancelCauseFunc
	c.ctx, cancel = context.WithCancelCause(context.Background())
	c.mux = mux.New(mux.Config{
		Server:     d.server.Name,
		Generation: d.generation,
		Policy:     policyOf(d.server),
		Metrics:    d.metrics,
		Sole:       d.sole,
		Post:       func(b []byte) { link.Post(upstream.NewMessage(b)) },
		Send:       link.Post,
		Cancel:     c.cancelCall,
		Changed:    c.listChanged,
		Log:        func(b []byte) { link.Note("log: " + string(b)) },
		Roots:      func() []byte { return rootsOf(d.workspace) },
	})
	d.begun(c)
	c.cat = &catalogue{fetch: c.fetchPage, changed: func(k Kind) { d.changed(c, k) }}
	c.wg.Go(func() {
		err := link.Run(c)
		c.loss = c.lossFault(err)
		cancel(err)
		c.mux.Lose(c.loss)
		d.lost(c)
	})
	err = c.greet(ctx, d)
	if err == nil {
		c.cat.load(ctx, c.declared(), d.before)
		err = context.Cause(ctx)
	}
	if c.ctx.Err() != nil && !errors.Is(err, errProbed) {
		err = context.Cause(c.ctx) // why the handshake got no answer
	}
	if err != nil {
		f := startError(ctx, d.server, begun, c, err)
		link.Abort(f)
		return c, f
	}
	close(c.opened)
	if d.server.Health.Interval > 0 {
		c.wg.Go(c.watch)
	}
	return c, nil
}

// policyOf is the mux's policy: one that dedicates connections routes on each as Auto
// does.
func policyOf(s *config.Server) mux.Policy {
	if s.Interactive == config.Dedicate {
		return mux.Auto
	}
	return mux.Policy(s.Interactive)
}

// end ends the link. When it returns, calls in flight have got reason as their
// error and nothing runs for the connection any more.
func (c *connection) end(reason error) {
	c.link.Abort(reason)
	c.wg.Wait()
}

// close waits for everything of an ended or lost connection, and returns when its
// process tree is gone, or could not be ended in time. When ctx ends the tree is
// killed at once.
func (c *connection) close(ctx context.Context) {
	c.wg.Wait()
	c.link.Close(ctx)
}

// shakeHands sends initialize and initialized.
func (c *connection) shakeHands(ctx context.Context, d dialed) error {
	params, err := json.Marshal(struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Capabilities    json.RawMessage `json:"capabilities"`
		ClientInfo      json.RawMessage `json:"clientInfo"`
	}{wire.LegacyVersions[0], d.capabilities, d.clientInfo})
	if err != nil {
		return fmt.Errorf("make the initialize request: %w", err)
	}
	raw, err := c.request(ctx, wire.MethodInitialize, params)
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	c.hand, err = parseHandshake(raw)
	if err != nil {
		return fmt.Errorf("read the answer to initialize: %w", err)
	}
	c.link.Post(upstream.NewMessage(wire.NewNotification(wire.Initialized, nil)))
	return nil
}

func parseHandshake(raw []byte) (*Handshake, error) {
	h := &Handshake{Result: raw, Era: era.Legacy}
	if len(raw) == 0 || raw[0] != '{' {
		return nil, errors.New("the result is no object")
	}
	for m, err := range wire.Members(raw) {
		if err != nil {
			return nil, err
		}
		switch m.Key {
		case "protocolVersion":
			h.VersionSpan = m.Value
			if h.Version, err = wire.Text(m.Value.Of(raw)); err != nil {
				return nil, fmt.Errorf("protocolVersion: %w", err)
			}
		case "capabilities":
			if err := json.Unmarshal(m.Value.Of(raw), &h.Capabilities); err != nil {
				return nil, fmt.Errorf("capabilities: %w", err)
			}
		}
	}
	if h.Version == "" {
		return nil, errors.New("the result has no protocolVersion")
	}
	switch {
	case era.Of(h.Version) == era.Modern:
		return nil, errNoHandshake
	case !wire.KnownVersion(h.Version):
		return nil, fmt.Errorf("the server chose the protocol version %q, which roundhouse does not know", h.Version)
	}
	return h, nil
}

// declared returns the lists that the server says it has.
func (c *connection) declared() []Kind {
	var ks []Kind
	for k, info := range kindInfo {
		if c.hand.Has(info.capability) {
			ks = append(ks, Kind(k))
		}
	}
	return ks
}

func (c *connection) fetchPage(ctx context.Context, k Kind, cursor []byte) ([]byte, error) {
	params := c.params()
	if cursor != nil {
		member := append([]byte(`{"cursor":`), cursor...)
		if c.meta != nil {
			member = append(member, ',')
		}
		params = append(member, params[1:]...)
	}
	return c.request(ctx, kindInfo[k].method, params)
}

// do sends a client's request. out gets the answer unless an error is returned.
// A nil call with a nil error means that the answer came, or comes, without one.
func (c *connection) do(ctx context.Context, p mux.Peer, f wire.Frame, r wire.Routing, out mux.Outlet) (*mux.Call, error) {
	var timed *timedOutlet
	if c.server.CallTimeout > 0 {
		timed = &timedOutlet{Outlet: out}
		out = timed
	}
	call, err := c.mux.Begin(p, f, r, out)
	if call == nil {
		return nil, err
	}
	c.mirror(call, f, r)
	if timed != nil {
		timed.start(call, c.server)
	}
	if ready := call.Ready(); ready != nil {
		select {
		case <-ready:
		case <-ctx.Done():
			call.Fail(fault.Of(context.Cause(ctx)))
			return call, nil
		}
	}
	err = call.Send(func(m *upstream.Message) error { return c.link.Send(ctx, m) })
	if err != nil && ctx.Err() != nil {
		call.Fail(fault.Of(context.Cause(ctx)))
	} // a link that has ended answers every call through Lose
	return call, nil
}

// timedOutlet ends a call that takes longer than the server's callTimeout;
// progress extends it up to four times that (H4).
type timedOutlet struct {
	mux.Outlet
	mu    sync.Mutex
	timer *time.Timer
	over  bool
}

const progressExtension = 4

func (o *timedOutlet) start(call *mux.Call, s *config.Server) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over {
		return
	}
	limit, begun := s.CallTimeout, time.Now()
	o.timer = time.AfterFunc(limit, func() {
		if rest := time.Until(call.LastProgress().Add(limit)); rest > 0 {
			if left := time.Until(begun.Add(progressExtension * limit)); left > 0 {
				o.mu.Lock()
				defer o.mu.Unlock()
				if !o.over {
					o.timer.Reset(min(rest, left))
				}
				return
			}
		}
		err := fault.New(fault.CallTimeout, "server %q did not answer within %s; callTimeout of the server sets the limit", s.Name, time.Since(begun).Round(time.Millisecond))
		err.Server, err.Sent = s.Name, fault.SentMaybe
		call.Fail(err)
	})
}

func (o *timedOutlet) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	if o.timer != nil {
		o.timer.Stop()
	}
}

// Failed implements mux.Failer.
func (o *timedOutlet) Failed(err *fault.Error) bool {
	f, ok := o.Outlet.(mux.Failer)
	if !ok || !f.Failed(err) {
		return false
	}
	o.stop()
	return true
}

func (o *timedOutlet) Done(p mux.Pieces) {
	o.stop()
	o.Outlet.Done(p)
}

// Frame implements upstream.Handler.
func (c *connection) Frame(f wire.Frame, call []byte) {
	c.heard.Add(1)
	c.mux.Receive(f, call)
}

// Failed implements upstream.Handler: the call gets an error of its own.
func (c *connection) Failed(call []byte, err error, sent bool) {
	e := &fault.Error{
		Reason: fault.Interrupted, Server: c.server.Name, Generation: c.generation, Sent: fault.SentMaybe, Err: err,
		Message: fmt.Sprintf("server %q did not answer the call: %v", c.server.Name, err),
	}
	if wantsLogin(err) {
		e.Reason = fault.NeedsLogin
	}
	if !sent {
		e.Sent = fault.SentNo
	}
	if errors.Is(err, upstream.ErrSessionLost) {
		c.ending.Store(true) // before the call may be sent again: not on this link
	}
	c.mux.Refuse(call, e)
}

// wantsLogin reports whether err is the server's refusal of our credentials.
func wantsLogin(err error) bool {
	_, refused := errors.AsType[*upstream.AuthError](err)
	return refused
}

// Oversize implements upstream.Handler.
func (c *connection) Oversize(id []byte, kind wire.Kind, size int64) {
	c.mux.Oversize(id, kind, size, wire.MaxFrame)
}

// noiseShown is how many lines of noise of one connection are kept with its output.
const noiseShown = 20

// Noise implements upstream.Handler: it is counted, and the first lines are shown
// with the server's output (P6).
func (c *connection) Noise(line []byte) {
	if n := c.noise.Add(1); n <= noiseShown && len(line) > 0 {
		c.link.Note("stdout: " + string(line))
	}
}

func (c *connection) listChanged(l mux.List) {
	if !c.cat.mark(l) {
		return
	}
	c.wg.Go(func() {
		select {
		case <-c.opened:
		case <-c.ctx.Done():
		}
		c.cat.refresh(c.ctx)
	})
}

// lossFault is what callers get when the link ended with err.
func (c *connection) lossFault(err error) *fault.Error {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f
	}
	msg := fmt.Sprintf("the connection to server %q was lost", c.server.Name)
	data := c.evidence()
	if exit := data["exit"]; exit != nil {
		msg += fmt.Sprintf(" (%s)", exit)
	} else if err != nil {
		msg += " (" + err.Error() + ")"
	}
	return &fault.Error{Reason: fault.Interrupted, Message: msg + "; the next call starts it anew", Data: data, Err: err}
}

// evidence is what an error's data says of how the server ended: its exit status and
// its last output, as far as there are any.
func (c *connection) evidence() map[string]any {
	data := map[string]any{}
	if exit := c.link.Facts().Exit; exit != "" {
		data["exit"] = exit
	}
	if tail := c.link.Output(quotedOutput); len(tail) > 0 {
		data["stderr"] = tail
	}
	return data
}

// quotedOutput is how many of a server's last lines an error quotes.
const quotedOutput = 5

// lossForLate is the loss for those who come after it: nothing of theirs was sent.
func (c *connection) lossForLate() *fault.Error {
	e := *c.loss
	e.Server, e.Generation, e.Sent = c.server.Name, c.generation, fault.SentNo
	return &e
}

// startError says why a server did not start, with what it wrote last (P5, P9). err is
// told without what was made of it for a caller.
func startError(ctx context.Context, s *config.Server, begun time.Time, c *connection, err error) *fault.Error {
	took := time.Since(begun).Round(time.Millisecond)
	e := &fault.Error{Reason: fault.StartFailed, Server: s.Name, Err: err, Data: map[string]any{"elapsedMs": took.Milliseconds()}}
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Err != nil {
		err = f.Err
	}
	exit := ""
	if c != nil {
		exit = c.link.Facts().Exit
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.DeadlineExceeded):
		e.Reason = fault.StartTimeout
		e.Message = fmt.Sprintf("server %q did not answer initialize and list what it has within %s; startTimeout of the server sets the limit", s.Name, s.StartTimeout)
	case cause != nil:
		e.Message = fmt.Sprintf("the start of server %q was given up after %s: %v", s.Name, took, cause)
	case exit != "":
		e.Message = fmt.Sprintf("server %q did not start: it ended after %s (%s)", s.Name, took, exit)
		e.Data["exit"] = exit
	case s.Transport == config.Stdio:
		e.Message = fmt.Sprintf("server %q did not start: %v", s.Name, err)
	default:
		e.Message = fmt.Sprintf("server %q cannot be reached: %v", s.Name, err)
		if wantsLogin(err) {
			e.Reason, e.Message = fault.NeedsLogin, fmt.Sprintf("server %q does not let roundhouse in: %v", s.Name, err)
		}
	}
	if c == nil {
		return e
	}
	if tail := c.link.Output(quotedOutput); len(tail) > 0 {
		e.Message += "; its last output: " + strings.Join(tail, " | ")
		e.Data["stderr"] = tail
	}
	return e
}

// rootsOf gives the workspace as the only root; without one there is none.
func rootsOf(workspace string) []byte {
	if workspace == "" {
		return []byte(`{"roots":[]}`)
	}
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(workspace)}
	return append(append([]byte(`{"roots":[{"uri":`), wire.Quote(u.String())...), "}]}"...)
}
