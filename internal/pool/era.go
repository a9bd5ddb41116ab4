package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// A connection speaks one era of the protocol (M8): that of the client who wants it if the
// server has that, else the other. Which ones a server has is found out by its first
// answers and remembered for a day, so that one with a single era has one connection for
// clients of both.

// ErrOtherEra means that a server does not speak the era that was asked for (Want.Only).
var ErrOtherEra = errors.New("the server does not speak this protocol era")

const (
	verdictAge   = 24 * time.Hour  // after it the server may have been replaced by a newer one
	maxVerdicts  = 10_000          // servers of which something is remembered
	probeSilence = 5 * time.Second // after it a server on a pipe is taken for one that ignores the probe
	listenWait   = 2 * time.Second // for the server to acknowledge that we listen, before its lists are read
)

// known is what is known of a server and an era.
type known int8

const (
	unknown known = iota
	yes
	no
)

// verdict is what is known of a server.
type verdict struct {
	has   map[era.Era]known
	until time.Time
}

// names are the fingerprints of what a Want asks for.
type names struct {
	server string // without the era and what depends on it
	id     map[era.Era]string
}

// namesOf computes the fingerprints; it takes a while and is not to be called with the
// lock held.
func (p *Pool) namesOf(w Want) names {
	n := names{id: map[era.Era]string{}}
	for _, e := range []era.Era{era.Legacy, era.Modern} {
		w.Era = e
		n.id[e] = fingerprint(p.key, w)
	}
	w.Era, w.Capabilities = "", nil
	n.server = fingerprint(p.key, w)
	return n
}

// tongue is the era in which a connection is begun.
type tongue struct {
	names names
	era   era.Era // once the connection is open, that in which it is
	fixed bool    // the other one is not tried
}

// identity is the id that a shared connection of the server in that era has.
func (t tongue) identity(server string) string { return server + "::" + t.names.id[t.era] }

// otherLocked returns the entry that a shared server has in the other era, or nil if
// there is none that could be used.
func (p *Pool) otherLocked(w Want) *entry {
	if w.Server.Sharing != config.Shared || w.tongue.fixed {
		return nil
	}
	t := w.tongue
	t.era = t.era.Other()
	if e := p.entries[t.identity(w.Server.Name)]; e != nil && !e.state.terminal() {
		return e
	}
	return nil
}

// tongueLocked decides in which era a Want is served.
func (p *Pool) tongueLocked(w Want, n names) (tongue, error) {
	want := w.Era
	if want == "" {
		want = era.Legacy
	}
	t := tongue{names: n, era: want, fixed: w.Only}
	switch s := w.Server; {
	case s.Era == config.EraModern:
		t.era, t.fixed = era.Modern, true
	case s.Era == config.EraLegacy, s.Transport == config.SSE, s.Transport == config.WebSocket:
		t.era, t.fixed = era.Legacy, true
	default:
		v := p.verdictLocked(n.server)
		switch v.has[want] {
		case yes:
			t.fixed = true
		case no:
			t.era, t.fixed = want.Other(), true
		}
	}
	if w.Only && t.era != want {
		return t, ErrOtherEra
	}
	return t, nil
}

func (p *Pool) verdictLocked(server string) verdict {
	v := p.verdicts[server]
	if time.Now().After(v.until) {
		return verdict{}
	}
	return v
}

// learnLocked remembers what came out about a server.
func (p *Pool) learnLocked(server string, e era.Era, a known) {
	v := p.verdictLocked(server)
	if v.has == nil {
		if len(p.verdicts) >= maxVerdicts {
			maps.DeleteFunc(p.verdicts, func(_ string, v verdict) bool { return time.Now().After(v.until) })
		}
		if len(p.verdicts) >= maxVerdicts {
			return // it is found out again
		}
		v = verdict{has: map[era.Era]known{}, until: time.Now().Add(verdictAge)}
	}
	v.has[e] = a
	if a == no && v.has[e.Other()] == no {
		v.has[e.Other()] = unknown // it must have one: the older news is wrong by now
	}
	p.verdicts[server] = v
}

// learnFromLocked takes over what a dial told of the server: c is open, or err says why
// not. A connection in another era than the entry's is put under that era's id. It
// reports false if there is one already; the entry is closed then, and those who wait
// find the other.
func (p *Pool) learnFromLocked(e *entry, c *connection, err error) bool {
	t := &e.tongue
	switch {
	case errors.Is(err, ErrOtherEra):
		p.learnLocked(t.names.server, t.era, no)
		return true
	case err != nil:
		p.learnLocked(t.names.server, t.era, unknown) // a verdict that does not hold is forgotten
		return true
	}
	p.learnLocked(t.names.server, c.hand.Era, yes)
	if c.hand.Era == t.era {
		t.fixed = true
		return true
	}
	p.learnLocked(t.names.server, t.era, no)
	t.era, t.fixed = c.hand.Era, true
	id := t.identity(e.name)
	if e.owner != nil {
		e.identity = id
		return true
	}
	if other := p.entries[id]; other != nil {
		if !other.state.terminal() {
			return false
		}
		p.removeLocked(other)
	}
	delete(p.entries, e.id)
	e.id, e.identity = id, id
	p.entries[id] = e
	return true
}

// errMoved is why an entry is closed whose server turned out to have a connection already.
var errMoved = fault.New(fault.Interrupted, "the server has another connection already, in the only protocol era that it speaks")

// speaksModern reports whether the server is known to speak the newer era, as far as
// anybody asked.
func (p *Pool) SpeaksModern(w Want) bool {
	n := p.namesOf(w)
	w.Era, w.Only = era.Modern, true
	p.mu.Lock()
	defer p.mu.Unlock()
	t, err := p.tongueLocked(w, n)
	return err == nil && (w.Server.Era == config.EraModern || p.verdictLocked(t.names.server).has[era.Modern] == yes)
}

// eraLink is a link whose transport differs between the eras, as HTTP's does.
type eraLink interface {
	// Modern makes it one of that version, or with "" one of the older era again.
	Modern(version string)
	// Taken waits a moment for the server to take notifications/initialized, and returns
	// why it did not.
	Taken(ctx context.Context) error
	// Cancel tells the transport that nobody waits for a call any more.
	Cancel(m *upstream.Message)
}

func (c *connection) switchTo(version string) {
	if l, ok := c.link.(eraLink); ok {
		l.Modern(version)
	}
}

// errProbed means that a server's process died of a request of the newer era. It is to
// be started again and spoken to in the older one.
var errProbed = errors.New("the server ended when it was asked in the newer protocol era")

// greet begins the conversation: in the era that d prefers, and in the other if the
// server turns out not to have that one.
func (c *connection) greet(ctx context.Context, d dialed) error {
	if d.tongue.era == era.Modern {
		return c.greetModern(ctx, d)
	}
	err := c.shakeHands(ctx, d)
	if d.tongue.fixed {
		return err
	}
	doubt := err
	if l, ok := c.link.(eraLink); ok && err == nil {
		doubt = l.Taken(ctx)
	}
	if !isRefusal(doubt) {
		return err
	}
	// A server without the older era refuses initialize, or answers it and refuses all
	// that comes then. So may one that has it.
	hand := c.hand
	brief, cancel := context.WithTimeout(ctx, probeSilence)
	defer cancel()
	c.switchTo(wire.Version20260728)
	raw, probeErr := c.request(brief, wire.Discover, c.probeParams(d))
	if probeErr == nil && c.discovered(raw) {
		return c.becomeModern(ctx, d)
	}
	c.switchTo("")
	c.hand = hand
	return err
}

// greetModern begins with server/discover. What is no evidence for the newer era is none
// against it either, unless it is a refusal: a login that is wanted, or a server that is
// overloaded, ends the attempt.
func (c *connection) greetModern(ctx context.Context, d dialed) error {
	c.switchTo(wire.Version20260728)
	probe, err := c.begin(ctx, wire.Discover, c.probeParams(d))
	if err != nil {
		return err
	}
	var silence <-chan time.Time
	if c.server.Transport == config.Stdio && !d.tongue.fixed {
		timer := time.NewTimer(probeSilence)
		defer timer.Stop()
		silence = timer.C
	}
	raw, err := probe.wait(ctx, silence)
	switch {
	case err == nil && c.discovered(raw):
		return c.becomeModern(ctx, d)
	case errors.Is(err, errSilent):
	case err != nil && c.ctx.Err() != nil && c.server.Transport == config.Stdio && !d.tongue.fixed:
		return fmt.Errorf("%w: %w", errProbed, err)
	case err != nil && !isRefusal(err):
		return fmt.Errorf("server/discover: %w", err)
	case d.tongue.fixed && err != nil:
		return fmt.Errorf("server/discover: %w: %w", ErrOtherEra, err)
	case d.tongue.fixed:
		return fmt.Errorf("server/discover: %w", ErrOtherEra)
	}
	c.switchTo("")
	shaken := c.shakeHands(ctx, d)
	if errors.Is(err, errSilent) {
		// A server that was slow to start has read both: one with both eras may then
		// refuse the second, and has answered the first.
		select {
		case raw := <-probe.out.answer:
			if result, err := resultOf(raw); shaken != nil && err == nil && c.discovered(result) {
				return c.becomeModern(ctx, d)
			}
		default:
			probe.call.Fail(fault.New(fault.CallTimeout, "roundhouse no longer waits"))
		}
	}
	return shaken
}

// errNoHandshake means that a server answered initialize with a version that has none.
var errNoHandshake = errors.New("the server chose a protocol version that has no initialize")

// isRefusal reports whether err is a server's answer that it does not know, or does not
// take, what it was asked. 401, 403, 408 and 429 say nothing about that, nor does 5xx.
func isRefusal(err error) bool {
	if _, ok := errors.AsType[*RPCError](err); ok || errors.Is(err, errNoHandshake) {
		return true
	}
	s, ok := errors.AsType[*upstream.StatusError](err)
	if !ok || s.Status < 400 || s.Status >= 500 {
		return false
	}
	switch s.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusProxyAuthRequired:
		return false
	}
	return true
}

// ourMeta are the members of the _meta of our own requests.
func ourMeta(d dialed) []byte {
	return era.Sender{Info: d.clientInfo, Capabilities: []byte("{}")}.Meta()
}

func (c *connection) probeParams(d dialed) []byte {
	return append(append([]byte(`{"_meta":{`), ourMeta(d)...), "}}"...)
}

// discovered takes a result of server/discover, if it is one and has a version that we
// speak.
func (c *connection) discovered(raw []byte) bool {
	ours, ok := era.Supported(raw, "supportedVersions")
	if !ok || len(ours) == 0 {
		return false
	}
	h := &Handshake{Result: raw, Version: ours[0], Era: era.Modern}
	var v struct {
		Capabilities map[string]json.RawMessage `json:"capabilities"`
	}
	if json.Unmarshal(raw, &v) != nil {
		return false
	}
	h.Capabilities = v.Capabilities
	c.hand = h
	return true
}

// becomeModern makes the connection one of the newer era and begins to listen.
func (c *connection) becomeModern(ctx context.Context, d dialed) error {
	c.meta = ourMeta(d)
	if c.server.Transport != config.Stdio {
		c.cat.usable = c.callable
	}
	n := mux.Newer{Meta: c.meta, Streams: c.server.Transport != config.Stdio}
	for list, capability := range map[mux.List]string{mux.Tools: "tools", mux.Prompts: "prompts", mux.Resources: "resources"} {
		if c.hand.Announces(capability) {
			n.Lists = append(n.Lists, list)
		}
	}
	timeout := time.NewTimer(listenWait)
	defer timeout.Stop()
	select {
	case <-c.mux.Newer(n): // what changes from now on is told
	case <-timeout.C:
	case <-ctx.Done():
	}
	return nil
}

// Announces reports whether the server says when one of its lists, such as "tools",
// changes.
func (h *Handshake) Announces(list string) bool {
	var v struct {
		ListChanged bool `json:"listChanged"`
	}
	return json.Unmarshal(h.Capabilities[list], &v) == nil && v.ListChanged
}

// callable leaves out tools that no client may call over HTTP (H1).
func (c *connection) callable(k Kind, it Item) bool {
	ok := k != Tools || era.Callable(it.Raw)
	if !ok {
		c.link.Note(fmt.Sprintf("the tool %q is left out: its x-mcp-header annotations are not valid", it.Key))
	}
	return ok
}

// mirror says the marked arguments of a tools/call in its headers, as HTTP wants in the
// newer era (H1).
func (c *connection) mirror(call *mux.Call, f wire.Frame, r wire.Routing) {
	if c.hand == nil || c.hand.Era != era.Modern || c.server.Transport == config.Stdio || f.Method != wire.ToolsCall {
		return
	}
	tools := c.cat.peek(Tools)
	if tools == nil {
		return
	}
	name, err := wire.Text(r.Name.Of(f.Raw))
	if err != nil {
		return
	}
	for _, it := range tools.Items {
		if it.Key == name {
			call.Message.Header = era.ParamHeaders(it.Raw, r.Arguments.Of(f.Raw))
			return
		}
	}
}

// Era returns the era of the attachment's connection.
func (a *Attachment) Era() era.Era { return a.entry.tongue.era }

// Reread reads a list of the server's again, which turned out to be stale.
func (a *Attachment) Reread(ctx context.Context, k Kind) error {
	c, err := a.live(ctx)
	if err != nil {
		return err
	}
	if c.cat.reread(ctx, k) {
		c.cat.changed(k)
	}
	return nil
}

// errOutdated is why a connection ends whose server no longer speaks its era.
var errOutdated = errors.New("the server has changed to another protocol era")

// Outdated says that the server no longer speaks the era of its connection. That ends,
// and the next one is begun in whichever era the server has now.
func (a *Attachment) Outdated() {
	p, e := a.holder.pool, a.entry
	p.mu.Lock()
	delete(p.verdicts, e.tongue.names.server)
	p.mu.Unlock()
	if c := e.conn.Load(); c != nil {
		c.ending.Store(true) // before the call may be sent again: not on this link
		c.link.Abort(&fault.Error{Reason: fault.Interrupted, Message: fmt.Sprintf("server %q has changed to another protocol era", e.name), Err: errOutdated})
	}
}
