package mux

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// TestModel plays clients with colliding ids against a server that answers in any
// order, and checks after each step that nothing reaches whom it is not for (M0 to M2,
// M4 to M7, cases 25, 30, 33 and 34), that turns are kept, and at the end that every
// call was answered once and nothing is left.
func TestModel(t *testing.T) {
	seeds := 100
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		policy := []Policy{Auto, Serialize}[seed%2]
		if ok := t.Run(fmt.Sprintf("%s/%d", policy, seed), func(t *testing.T) { playModel(t, uint64(seed), policy) }); !ok {
			return // one failure is enough to read
		}
	}
}

const modelSteps = 500

// model is the test's own account of what has happened.
type model struct {
	*world
	rnd     *rand.Rand
	policy  Policy
	peers   []*modelPeer
	calls   []*modelCall // that are open
	waiting []*modelCall // for their turn, in order
	nonce   int

	// The server.
	pending []wire.Frame      // requests it has not answered
	subs    map[string]bool   // what it takes for subscribed
	level   string            // what it takes for the level
	asks    map[string]string // its open requests: id to whom they went, "" for nobody
}

type modelPeer struct {
	*client
	m    *model
	uris map[string]bool // for which updates may come
}

// modelCall is one call and its outlet.
type modelCall struct {
	m     *model
	p     *modelPeer
	call  *Call // nil if nothing was to be sent
	id    string
	token string // "" without
	nonce string // in the request, and in the server's answer to it
	uri   string // that it subscribes to
	local bool   // its answer may come from another client's request or from us
	dones int
}

func (p *modelPeer) Notify(f Pieces) {
	frame, r := frame(p.m.t, string(f.AppendTo(nil)))
	uri, err := wire.Text(r.URI.Of(frame.Raw))
	if frame.Method != wire.ResourceUpdated || err != nil || !p.uris[uri] && !p.subscribes(uri) {
		p.m.t.Errorf("%s got %s", p.name, frame.Raw)
	}
}

// subscribes reports whether the client waits for the answer to a subscription.
func (p *modelPeer) subscribes(uri string) bool {
	return slices.ContainsFunc(p.m.calls, func(k *modelCall) bool { return k.p == p && k.uri == uri })
}

func (p *modelPeer) Ask(a *Ask, out Outlet) {
	if owner := p.m.owner(); owner != p {
		p.m.t.Errorf("%s was asked, the owner is %v", p.name, owner)
	}
	if k := out.(*modelCall); k.p != p || k.dones > 0 {
		p.m.t.Errorf("%s was asked during a call of %s with %d answers", p.name, k.p.name, k.dones)
	}
	p.m.asks[string(a.Frame.ID())] = p.name
	p.client.Ask(a, out)
}

func (p *modelPeer) Unask(a *Ask) {
	id := string(a.Frame.ID())
	if p.m.asks[id] != p.name {
		p.m.t.Errorf("%s was relieved of %s, which is with %q", p.name, id, p.m.asks[id])
	}
	delete(p.m.asks, id)
}

func (k *modelCall) Note(f Pieces) {
	t := k.m.t
	if k.dones > 0 {
		t.Errorf("a note after the answer: %s", f.AppendTo(nil))
	}
	frame, r := frame(t, string(f.AppendTo(nil)))
	switch frame.Method {
	case wire.Progress:
		if got := string(r.ProgressOf.Of(frame.Raw)); got != k.token || !bytes.Contains(frame.Raw, []byte(k.nonce)) {
			t.Errorf("%s with the token %s got %s", k.nonce, k.token, frame.Raw)
		}
	case wire.Message:
		if !k.m.live(k) {
			t.Errorf("%s, which is not live, got %s", k.nonce, frame.Raw)
		}
	default:
		t.Errorf("%s got %s", k.nonce, frame.Raw)
	}
}

func (k *modelCall) Done(f Pieces) {
	t := k.m.t
	if k.dones++; k.dones > 1 {
		t.Errorf("%s was answered again", k.nonce)
	}
	k.m.calls = slices.DeleteFunc(k.m.calls, func(x *modelCall) bool { return x == k })
	if f.Empty() {
		return
	}
	raw := f.AppendTo(nil)
	frame, err := wire.Parse(raw)
	if err != nil || string(frame.ID()) != k.id || string(f[1]) != k.id {
		t.Errorf("%s with the id %s got %s (%v)", k.nonce, k.id, raw, err)
		return
	}
	if !k.local && !bytes.Contains(raw, []byte(k.nonce)) && !bytes.Contains(raw, []byte("reason")) {
		t.Errorf("%s got the answer of another call: %s", k.nonce, raw)
	}
	if k.uri != "" && frame.ResultSpan.Present() {
		k.p.uris[k.uri] = true
	}
}

// live reports whether the server may be at work on a client's call.
func (m *model) live(k *modelCall) bool {
	return k.call != nil && k.uri == "" && k.dones == 0 && ready(k.call)
}

// owner is the one client with live calls, or nil.
func (m *model) owner() *modelPeer {
	owners := map[*modelPeer]bool{}
	for _, k := range m.calls {
		if m.live(k) {
			owners[k.p] = true
		}
	}
	if len(owners) != 1 {
		return nil
	}
	for p := range owners {
		return p
	}
	return nil
}

func pick[E any](m *model, list []E) E { return list[m.rnd.IntN(len(list))] }

func newModel(t *testing.T, seed uint64, policy Policy) *model {
	m := &model{
		world: newWorld(t, Config{Policy: policy}), rnd: rand.New(rand.NewPCG(seed, 1)), policy: policy,
		subs: map[string]bool{}, asks: map[string]string{},
	}
	for i := range 4 {
		m.peers = append(m.peers, &modelPeer{client: &client{name: fmt.Sprintf("peer%d", i)}, m: m, uris: map[string]bool{}})
	}
	return m
}

func playModel(t *testing.T, seed uint64, policy Policy) {
	m := newModel(t, seed, policy)
	steps := []func(){
		m.request, m.request, m.request, m.subscription, m.subscription, m.setLevel, m.cancel, m.leave,
		m.send, m.send, m.send, m.answer, m.answer, m.answer, m.progress, m.noise, m.logMessage, m.updated, m.ask, m.reply, m.takeAskBack,
	}
	for range modelSteps {
		pick(m, steps)()
		m.check()
		if t.Failed() {
			return
		}
	}
	if seed%3 == 0 {
		m.m.Lose(fault.New(fault.Interrupted, "gone"))
		m.pending = nil
	}
	for _, p := range m.peers {
		m.leaveAs(p, nil)
	}
	m.drain()
	if len(m.calls) != 0 {
		t.Errorf("%d calls were never answered", len(m.calls))
	}
	for id, who := range m.asks {
		t.Errorf("the server waits for the answer to %s from %q", id, who)
	}
	m.empty()
}

// check is what holds after each step.
func (m *model) check() {
	m.readPosts()
	live := map[string]int{}
	for _, k := range m.calls {
		if m.live(k) {
			live[k.p.name]++
		}
	}
	if m.policy == Serialize && len(live) > 1 {
		m.t.Errorf("several clients are live: %v", live)
	}
	// Those whose turn has come, or who gave up, are no longer waiting; who waits at
	// the head waits for somebody who is live.
	began := false
	for _, k := range slices.Backward(m.waiting) {
		switch {
		case k.dones == 0 && ready(k.call):
			began = true
		case k.dones == 0 && began:
			m.t.Errorf("%s waits, and one that came later does not", k.nonce)
		}
	}
	m.waiting = slices.DeleteFunc(m.waiting, func(k *modelCall) bool { return k.dones > 0 || ready(k.call) })
	if len(m.waiting) > 0 && len(live) == 0 {
		m.t.Errorf("%d calls wait for nobody", len(m.waiting))
	}
	if got, want := m.m.InFlight(), len(m.waiting)+sum(maps.Values(live)); got != want {
		m.t.Errorf("%d calls are in flight, want %d", got, want)
	}
}

func sum(seq func(func(int) bool)) (n int) {
	for v := range seq {
		n += v
	}
	return n
}

// begin makes a call of p; params is the inside of the object.
func (m *model) begin(p *modelPeer, method, params string, k *modelCall) {
	m.nonce++
	k.m, k.p, k.nonce, k.id = m, p, fmt.Sprintf("nonce%d.", m.nonce), pick(m, awkward)
	meta := ""
	if m.rnd.IntN(2) == 0 {
		k.token = pick(m, awkward)
		meta = `,"_meta":{"progressToken":` + k.token + `}`
	}
	raw := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s,"nonce":%q%s}}`, k.id, method, params, k.nonce, meta)
	f, r := frame(m.t, raw)
	m.calls = append(m.calls, k)
	c, err := m.m.Begin(p, f, r, k)
	if err != nil {
		m.t.Fatal(err)
	}
	k.call = c
	if c != nil && c.Ready() != nil {
		m.waiting = append(m.waiting, k)
	}
}

func (m *model) request() {
	m.begin(pick(m, m.peers), "tools/call", `"name":"x"`, &modelCall{})
}

var modelURIs = []string{"u:1", "u:2"}

func (m *model) subscription() {
	p, uri := pick(m, m.peers), pick(m, modelURIs)
	fails := ""
	if m.rnd.IntN(5) == 0 {
		fails = `,"fail":true`
	}
	params := fmt.Sprintf(`"uri":%q%s`, uri, fails)
	if m.rnd.IntN(2) == 0 {
		m.begin(p, wire.ResourcesSubscribe, params, &modelCall{local: true, uri: uri})
		return
	}
	delete(p.uris, uri)
	for _, k := range m.calls { // what comes in spite of it is no fault
		if k.p == p && k.uri == uri {
			return
		}
	}
	m.begin(p, wire.ResourcesUnsubscribe, params, &modelCall{local: true})
}

func (m *model) setLevel() {
	m.begin(pick(m, m.peers), wire.LoggingSetLevel, fmt.Sprintf(`"level":%q`, pick(m, levels[:])), &modelCall{local: true})
}

func (m *model) cancel() {
	if len(m.calls) == 0 {
		return
	}
	k := pick(m, m.calls)
	if k.call == nil {
		return
	}
	var others []string
	for _, x := range m.calls {
		if x != k {
			others = append(others, x.nonce)
		}
	}
	f, r := frame(m.t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+k.id+`}}`)
	ended := m.rnd.IntN(2) == 0 && k.call.Cancel(f, r.RequestID)
	if !ended && k.uri == "" {
		ended = k.call.Fail(fault.New(fault.CallTimeout, "too slow"))
	}
	var left []string
	for _, x := range m.calls {
		left = append(left, x.nonce)
	}
	if ended && !slices.Equal(left, others) {
		m.t.Errorf("the end of %s left %v of %v", k.nonce, left, others)
	}
}

func (m *model) leave() {
	if m.rnd.IntN(6) == 0 {
		m.leaveAs(pick(m, m.peers), fault.New(fault.UnknownSession, "the session ended"))
	}
}

func (m *model) leaveAs(p *modelPeer, err *fault.Error) {
	m.m.Leave(p, err)
	clear(p.uris)
	for _, k := range m.calls {
		if k.p == p {
			m.t.Errorf("%s outlives its client", k.nonce)
		}
	}
	m.readPosts()
}

// give sends a call to the server, unless it was sent, and reports whether it did.
func (m *model) give(c *Call) bool {
	if c.course.Load() != begun {
		return false
	}
	_ = c.Send(func(message *upstream.Message) error {
		m.arrive(string(message.Bytes))
		return nil
	})
	return true
}

// send lets a call that may be sent go to the server.
func (m *model) send() {
	for _, i := range m.rnd.Perm(len(m.calls)) {
		if k := m.calls[i]; k.call != nil && ready(k.call) && m.give(k.call) {
			return
		}
	}
	// One that others may need is sent also if its client gave up.
	for _, id := range slices.Sorted(maps.Keys(m.m.calls)) {
		if c := m.m.calls[id]; ready(c) && m.give(c) {
			return
		}
	}
}
