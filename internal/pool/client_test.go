package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/wire"
)

// An ear is a Listener that remembers.
type ear struct {
	on func(what string) // called for everything heard; may be nil

	mu    sync.Mutex
	heard []string
}

func (e *ear) add(what string) {
	e.mu.Lock()
	e.heard = append(e.heard, what)
	e.mu.Unlock()
	if e.on != nil {
		e.on(what)
	}
}

func (e *ear) ListChanged(_ *Attachment, l mux.List) { e.add(string(l) + " changed") }
func (e *ear) Lost(_ *Attachment, err *fault.Error)  { e.add("lost: " + string(err.Reason)) }
func (e *ear) Renewed(*Attachment)                   { e.add("renewed") }
func (e *ear) all() []string                         { e.mu.Lock(); defer e.mu.Unlock(); return slices.Clone(e.heard) }
func (e *ear) expect(t testing.TB, want ...string) {
	t.Helper()
	if got := e.all(); !slices.Equal(got, want) {
		t.Errorf("heard %q, want %q", got, want)
	}
}

// want is what a session of the principal local asks for.
func want(server *config.Server, l Listener) Want {
	if l == nil {
		l = &ear{}
	}
	return Want{Server: server, Principal: "local", Capabilities: []byte("{}"), Listener: l}
}

// acquire attaches or ends the test.
func (w *world) acquire(h *Holder, server *config.Server) *Attachment {
	w.Helper()
	return w.acquireWith(h, want(server, nil))
}

func (w *world) acquireWith(h *Holder, x Want) *Attachment {
	w.Helper()
	a, err := h.Acquire(context.Background(), x)
	if err != nil {
		w.Fatalf("acquire %s: %v", x.Server.Name, err)
	}
	return a
}

// A pending is an acquire that runs.
type pending struct {
	att  *Attachment
	err  error
	done chan struct{}
}

func (w *world) begin(ctx context.Context, h *Holder, x Want) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		p.att, p.err = h.Acquire(ctx, x)
		close(p.done)
	}()
	return p
}

func (p *pending) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// entries lists what the pool has of a server, without what is dying.
func (w *world) entries(server string) []Info {
	return slices.DeleteFunc(w.pool.Snapshot(), func(i Info) bool { return i.Server != server || i.Dying })
}

// only returns the one entry of a server.
func (w *world) only(server string) Info {
	w.Helper()
	all := w.entries(server)
	if len(all) != 1 {
		w.Fatalf("server %s has %d entries, want one: %+v", server, len(all), all)
	}
	return all[0]
}

func (w *world) expectState(server string, s State, refs int) {
	w.Helper()
	if i := w.only(server); i.State != s || i.Refs != refs {
		w.Errorf("%s is %s with %d refs, want %s with %d", server, i.State, i.Refs, s, refs)
	}
}

// expectGone says that a server has no entry and no process left.
func (w *world) expectGone(server string) {
	w.Helper()
	if all := w.entries(server); len(all) > 0 {
		w.Errorf("%s still has entries: %+v", server, all)
	}
	if n := w.alive(); n > 0 {
		w.Errorf("%d processes live, want none", n)
	}
}

// A client is a mux.Peer that hears nothing.
type client struct{ mux.Peer }

// answer takes a call's answer.
type answer chan string

func (a answer) Note(mux.Pieces)   {}
func (a answer) Done(p mux.Pieces) { a <- string(p.AppendTo(nil)) }

// got returns the answer if it has come, else "".
func (a answer) got() string {
	select {
	case s := <-a:
		return s
	default:
		return ""
	}
}

// request makes a frame of a client.
func request(method, params string) (wire.Frame, wire.Routing) {
	f, err := wire.Parse(wire.NewRequest([]byte(`"mine"`), method, []byte(params)))
	if err != nil {
		panic(err)
	}
	r, err := f.Routing()
	if err != nil {
		panic(err)
	}
	return f, r
}

func toolCall(tool string) (wire.Frame, wire.Routing) {
	return request(wire.ToolsCall, fmt.Sprintf(`{"name":%q}`, tool))
}

// call makes a tools/call.
func call(ctx context.Context, a *Attachment, tool string) (answer, error) {
	f, r := toolCall(tool)
	out := make(answer, 1)
	_, err := a.Do(ctx, &client{}, f, r, out)
	return out, err
}

// call makes a tools/call, which must be on its way, and lets what follows happen.
func (w *world) call(a *Attachment, tool string) answer {
	w.Helper()
	out, err := call(context.Background(), a, tool)
	if err != nil {
		w.Fatalf("call %s: %v", tool, err)
	}
	synctest.Wait()
	return out
}

// reasonOf reads the reason and sent from a JSON-RPC error answer.
func reasonOf(t testing.TB, answer string) (r fault.Reason, sent fault.Sent, data map[string]any) {
	t.Helper()
	var f struct {
		Error struct{ Data map[string]any }
	}
	if err := json.Unmarshal([]byte(answer), &f); err != nil {
		t.Fatalf("the answer %q: %v", answer, err)
	}
	reason, _ := f.Error.Data["reason"].(string)
	s, _ := f.Error.Data["sent"].(string)
	return fault.Reason(reason), fault.Sent(s), f.Error.Data
}

func expectReason(t testing.TB, err error, r fault.Reason) {
	t.Helper()
	if !fault.Is(err, r) {
		t.Errorf("the error is %v, want the reason %s", err, r)
	}
}

// tools lists the names of the tools that a session sees.
func (w *world) tools(a *Attachment) []string {
	w.Helper()
	return w.keys(a, Tools)
}

func (w *world) keys(a *Attachment, k Kind) []string {
	w.Helper()
	l, err := a.List(context.Background(), k)
	if err != nil {
		w.Fatalf("list %s: %v", k, err)
	}
	return keysOf(l)
}

func keysOf(l *Listing) []string {
	keys := []string{}
	if l != nil {
		for _, it := range l.Items {
			keys = append(keys, it.Key)
		}
	}
	return keys
}

// sleep lets virtual time pass, and everything that is due happen.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var errRefused = errors.New("connection refused")
