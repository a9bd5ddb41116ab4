package mux

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// world is a Mux between fake clients and the test, which plays the server.
type world struct {
	t *testing.T
	m *Mux

	mu      sync.Mutex
	posts   []string // frames for the server, since the last posted
	logs    []string
	changes []List
}

func newWorld(t *testing.T, cfg Config) *world {
	w := &world{t: t}
	cfg.Post = func(b []byte) { w.mu.Lock(); defer w.mu.Unlock(); w.posts = append(w.posts, string(b)) }
	cfg.Log = func(b []byte) { w.mu.Lock(); defer w.mu.Unlock(); w.logs = append(w.logs, string(b)) }
	cfg.Changed = func(l List) { w.mu.Lock(); defer w.mu.Unlock(); w.changes = append(w.changes, l) }
	w.m = New(cfg)
	return w
}

// client is a fake peer.
type client struct {
	name string

	mu      sync.Mutex
	notices []string // by Notify
	asks    []*Ask
	outs    []Outlet // with each of asks
	unasked []*Ask
}

func (c *client) Notify(p Pieces) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notices = append(c.notices, string(p.AppendTo(nil)))
}

func (c *client) Ask(a *Ask, out Outlet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asks, c.outs = append(c.asks, a), append(c.outs, out)
}

func (c *client) Unask(a *Ask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unasked = append(c.unasked, a)
}

// slot is the fake outlet of one call.
type slot struct {
	mu    sync.Mutex
	notes []string
	dones []string // what came through Done
	ids   []string // the second parts of that
}

func (s *slot) Note(p Pieces) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, string(p.AppendTo(nil)))
}

func (s *slot) Done(p Pieces) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dones, s.ids = append(s.dones, string(p.AppendTo(nil))), append(s.ids, string(p[1]))
}

func frame(t *testing.T, raw string) (wire.Frame, wire.Routing) {
	t.Helper()
	f, err := wire.Parse([]byte(raw))
	if err != nil {
		t.Fatalf("parse %s: %v", raw, err)
	}
	r, err := f.Routing()
	if err != nil {
		t.Fatalf("read %s: %v", raw, err)
	}
	return f, r
}

// begin makes a call of a client that counts as given to the server. It is nil if nothing
// is to be sent.
func (w *world) begin(p Peer, raw string) (*Call, *slot) {
	w.t.Helper()
	f, r := frame(w.t, raw)
	out := &slot{}
	c, err := w.m.Begin(p, f, r, out)
	if err != nil {
		w.t.Fatalf("begin %s: %v", raw, err)
	}
	if c != nil {
		_ = c.Send(func(*upstream.Message) error { return nil })
	}
	return c, out
}

// call makes a call with an id of the client's and nothing special about it.
func (w *world) call(p Peer, id string) (*Call, *slot) {
	w.t.Helper()
	c, out := w.begin(p, `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"x"}}`)
	if c == nil {
		w.t.Fatal("the call was not to be sent")
	}
	return c, out
}

// receive takes a frame of the server.
func (w *world) receive(format string, args ...any) {
	w.t.Helper()
	f, err := wire.Parse(fmt.Appendf(nil, format, args...))
	if err != nil {
		w.t.Fatal(err)
	}
	w.m.Receive(f, nil)
}

// result answers a call with an empty result.
func (w *world) result(c *Call) {
	w.t.Helper()
	w.receive(`{"jsonrpc":"2.0","id":%d,"result":{}}`, c.id)
}

// posted returns what was posted to the server since it was last asked.
func (w *world) posted() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	posts := w.posts
	w.posts = nil
	return posts
}

// wantPosts checks what was posted to the server since it was last asked.
func (w *world) wantPosts(want ...string) {
	w.t.Helper()
	equal(w.t, "posts", w.posted(), want...)
}

// empty checks that nothing of any client is left.
func (w *world) empty() {
	w.t.Helper()
	m := w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.calls)+len(m.members)+len(m.queue)+len(m.subs)+len(m.asks)+len(m.posts)+m.busy != 0 {
		w.t.Errorf("left: calls %v, members %v, queue %v, subscriptions %v, asks %v, posts %v, %d busy",
			m.calls, m.members, m.queue, m.subs, m.asks, m.posts, m.busy)
	}
}

func equal(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\ngot  %s\nwant %s", what, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// answeredWith checks that a call got one answer, byte for byte, whose second part is
// the client's id.
func answeredWith(t *testing.T, out *slot, id, want string) {
	t.Helper()
	out.mu.Lock()
	defer out.mu.Unlock()
	equal(t, "answers", out.dones, want)
	equal(t, "ids", out.ids, id)
}

// pending checks that a call has no answer yet.
func pending(t *testing.T, out *slot) {
	t.Helper()
	out.mu.Lock()
	defer out.mu.Unlock()
	if len(out.dones) != 0 {
		t.Errorf("answered already: %q", out.dones)
	}
}

// silentEnd checks that a call has ended without an answer.
func silentEnd(t *testing.T, out *slot) {
	t.Helper()
	out.mu.Lock()
	defer out.mu.Unlock()
	equal(t, "answers", out.dones, "")
}

// failedWith checks that a call got one error with a reason, and returns its frame.
func failedWith(t *testing.T, out *slot, id string, reason fault.Reason) string {
	t.Helper()
	out.mu.Lock()
	defer out.mu.Unlock()
	if len(out.dones) != 1 || out.ids[0] != id || !strings.Contains(out.dones[0], `"reason":"`+string(reason)+`"`) {
		t.Errorf("answers %q with the ids %q; want one for %s with the reason %s", out.dones, out.ids, id, reason)
		return ""
	}
	f, err := wire.Parse([]byte(out.dones[0]))
	if err != nil || !f.ErrorSpan.Present() || string(f.ID()) != id {
		t.Errorf("%s is no error for %s (%v)", out.dones[0], id, err)
	}
	return out.dones[0]
}

// ready reports whether a call may be sent.
func ready(c *Call) bool {
	if c.Ready() == nil {
		return admitted(c)
	}
	select {
	case <-c.Ready():
		return admitted(c)
	default:
		return false
	}
}

// admitted reports whether a call is in flight: its turn has come and it has not ended.
func admitted(c *Call) bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return !c.waiting && !c.ended
}

func cancelOf(c *Call, reason string) string {
	return string(cancelFrame(fmt.Append(nil, c.id), reason))
}
