package mux

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/wire"
)

// The model's server: it answers in any order, repeats itself, invents ids, and asks.

// readPosts takes what was posted to the server.
func (m *model) readPosts() {
	for _, raw := range m.posted() {
		m.arrive(raw)
	}
}

// arrive takes one frame.
func (m *model) arrive(raw string) {
	f, r := frame(m.t, raw)
	switch {
	case f.Kind == wire.Request:
		if slices.ContainsFunc(m.pending, func(g wire.Frame) bool { return string(g.ID()) == string(f.ID()) }) {
			m.t.Errorf("the id of %s is in flight", raw)
		}
		m.pending = append(m.pending, f)
	case f.Kind == wire.Response:
		m.settle(f)
	case f.Method == wire.Cancelled:
		id := string(r.RequestID.Of(f.Raw))
		m.pending = slices.DeleteFunc(m.pending, func(g wire.Frame) bool { return string(g.ID()) == id })
	default:
		m.t.Errorf("the server got %s", raw)
	}
}

// settle takes the answer to a request of the server.
func (m *model) settle(f wire.Frame) {
	id := string(f.ID())
	if _, open := m.asks[id]; !open {
		m.t.Errorf("the server got %s, which it does not wait for", f.Raw)
	}
	delete(m.asks, id)
}

// take removes a random pending request.
func (m *model) take() (wire.Frame, wire.Routing, bool) {
	if len(m.pending) == 0 {
		return wire.Frame{}, wire.Routing{}, false
	}
	i := m.rnd.IntN(len(m.pending))
	f := m.pending[i]
	m.pending = slices.Delete(m.pending, i, i+1)
	r, err := f.Routing()
	if err != nil {
		m.t.Fatal(err)
	}
	return f, r, true
}

// nonceOf returns the nonce in a request, "" in those of roundhouse's own.
func nonceOf(f wire.Frame) string {
	_, rest, found := bytes.Cut(f.Raw, []byte(`"nonce":"`))
	if !found {
		return ""
	}
	nonce, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(nonce)
}

// answer does what a random request asks and answers it, perhaps twice.
func (m *model) answer() {
	f, r, ok := m.take()
	if !ok {
		return
	}
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"nonce":%q}}`, f.ID(), nonceOf(f))
	if strings.Contains(string(f.Raw), `"fail":true`) || f.Method == wire.ToolsCall && m.rnd.IntN(4) == 0 {
		answer = fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":%q}}`, f.ID(), nonceOf(f))
	} else {
		m.obey(f, r)
	}
	m.receive("%s", answer)
	m.readPosts()
	if m.rnd.IntN(8) == 0 {
		m.receive("%s", answer)
	}
}

func (m *model) obey(f wire.Frame, r wire.Routing) {
	uri, _ := wire.Text(r.URI.Of(f.Raw))
	switch f.Method {
	case wire.ResourcesSubscribe:
		m.subs[uri] = true
	case wire.ResourcesUnsubscribe:
		delete(m.subs, uri)
	case wire.LoggingSetLevel:
		m.level, _ = wire.Text(r.Level.Of(f.Raw))
	}
}

func (m *model) progress() {
	if len(m.pending) == 0 {
		return
	}
	f := pick(m, m.pending)
	if r, err := f.Routing(); err == nil && r.ProgressToken.Present() {
		m.receive(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"message":%q}}`, r.ProgressToken.Of(f.Raw), nonceOf(f))
	}
}

// noise is what is for nobody.
func (m *model) noise() {
	id := fmt.Sprint(m.m.next + 1 + uint64(m.rnd.IntN(5)))
	switch m.rnd.IntN(5) {
	case 0:
		m.receive(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
	case 1:
		m.receive(`{"jsonrpc":"2.0","id":%q,"result":{}}`, id)
	case 2:
		m.receive(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s}}`, id)
	case 3:
		m.receive(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id)
	case 4:
		m.m.Oversize([]byte(id), wire.Response, 2, 1)
	}
}

func (m *model) logMessage() {
	owner := m.owner()
	logged := len(m.logs)
	m.receive(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":%q}}`, pick(m, levels[:]))
	if owner != nil && len(m.logs) > logged {
		m.t.Error("a log message that had an owner went to the server's log")
	}
}

func (m *model) updated() {
	uri := pick(m, modelURIs)
	if m.subs[uri] {
		m.receive(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":%q}}`, uri)
	}
}

func (m *model) ask() {
	id := pick(m, awkward)
	if _, open := m.asks[id]; open {
		return
	}
	m.asks[id] = "" // until a client is asked
	m.receive(`{"jsonrpc":"2.0","id":%s,"method":%q}`, id, pick(m, []string{"ping", "roots/list", "elicitation/create"}))
	m.readPosts()
	if who, open := m.asks[id]; open && who == "" {
		m.t.Errorf("the request %s hangs", id)
	}
}

// reply lets a client answer one of the requests that it was asked, open or not.
func (m *model) reply() {
	p := pick(m, m.peers)
	if len(p.asks) == 0 {
		return
	}
	a := pick(m, p.asks)
	if m.asks[string(a.Frame.ID())] == p.name || m.rnd.IntN(4) == 0 {
		f, _ := frame(m.t, `{"jsonrpc":"2.0","id":5,"result":{}}`)
		a.Answer(f)
	}
}

func (m *model) takeAskBack() {
	for _, id := range slices.Sorted(maps.Keys(m.asks)) {
		if who := m.asks[id]; who != "" && m.rnd.IntN(3) == 0 {
			m.receive(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id)
			if _, open := m.asks[id]; open {
				m.t.Errorf("%s was not relieved of %s", who, id)
			}
			return
		}
	}
}

// drain answers everything that is to be answered.
func (m *model) drain() {
	for range 10_000 {
		m.readPosts()
		m.send()
		if len(m.pending) == 0 {
			return
		}
		m.answer()
	}
	m.t.Error("the server has no end of work")
}

// M4, M5: whatever overtakes what on the way, the server knows in the end what the
// clients want.
func TestTheServerKnowsInTheEndWhatIsWanted(t *testing.T) {
	for seed := range uint64(100) {
		m := newModel(t, seed, Auto)
		steps := []func(){m.subscription, m.setLevel, m.leave, m.send, m.answer, m.answer, m.cancel}
		for range 100 {
			pick(m, steps)()
			m.readPosts()
		}
		m.drain()
		for uri := range m.m.subs {
			if !m.subs[uri] {
				t.Errorf("seed %d: the server forgot %s", seed, uri)
			}
		}
		for _, p := range m.peers {
			for uri := range p.uris {
				if m.m.subs[uri] == nil {
					t.Errorf("seed %d: %s is no longer subscribed for %s", seed, uri, p.name)
				}
			}
		}
		if l := m.m.level; l != levelUnset && levels[l] != m.level {
			t.Errorf("seed %d: the server has the level %s, want %s", seed, m.level, levels[l])
		}
	}
}
