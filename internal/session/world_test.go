package session

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/instance"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// A world is a Manager over a real pool, whose servers live in memory.
type world struct {
	*testing.T
	m         *Manager
	pool      *pool.Pool
	instances *instance.Pools

	mu    sync.Mutex
	links []*link
	delay time.Duration // before initialize is answered

	// on takes a frame in the place of the server, on the goroutine that sends it, and
	// reports whether it did. It is set before a server starts; nil takes none.
	on func(l *link, f wire.Frame) bool
}

func server(name string) *config.Server {
	return &config.Server{Name: name, Transport: config.Stdio, Command: name, Sharing: config.Shared, StartTimeout: time.Minute}
}

// inWorld runs test in a bubble; afterwards no session, connection or goroutine may
// be left.
func inWorld(t *testing.T, limits config.Sessions, servers []*config.Server, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t}
		w.pool = pool.New(pool.Config{Dial: w.dial, DrainDelay: 30 * time.Second})
		starter := instance.NewStarter(instance.StarterConfig{Pool: w.pool, Base: t.TempDir()})
		w.instances = instance.New(instance.Config{Launcher: starter})
		w.m = NewManager(Config{Pool: w.pool, Instances: w.instances, Settings: Settings{Servers: servers, Limits: limits, ListWait: 15 * time.Second, InteractiveTimeout: time.Minute, Grace: 10 * time.Minute, DrainDelay: 30 * time.Second}, Version: "test"})
		test(w)
		w.m.Drain()
		w.m.Shutdown(context.Background())
		if r := w.instances.Drain(context.Background()); len(r.Lent) > 0 {
			t.Errorf("still lent: %+v", r.Lent)
		}
		w.pool.Drain(context.Background(), true)
		w.instances.Join()
		starter.Close()
		if st := w.m.Stats(); st.Clients+st.InFlight+len(w.m.sessions) != 0 {
			t.Errorf("left: %+v", st)
		}
	})
}

var usual = config.Sessions{Max: 100, IdleTimeout: 10 * time.Minute, ExpireAfter: 24 * time.Hour}

// A link is a server in memory. It keeps what it was told, and answers tools/call
// after the milliseconds in params.ms.
type link struct {
	w       *world
	server  *config.Server
	aborted chan struct{}
	once    sync.Once
	err     error
	handler chan upstream.Handler // has the one that Run was given
	wg      sync.WaitGroup

	mu   sync.Mutex
	over bool // it is closed, and answers nothing more
	subs map[string]bool
	lvls []string
	seen []string

	lastID string // of requests
}

func (w *world) dial(_ context.Context, s *config.Server) (pool.Link, error) {
	l := &link{w: w, server: s, aborted: make(chan struct{}), handler: make(chan upstream.Handler, 1), subs: map[string]bool{}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links = append(w.links, l)
	return l, nil
}

// slow makes servers that start from now on take their time.
func (w *world) slow(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay = d
}

// link returns the newest link of a server.
func (w *world) link(name string) *link {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range slices.Backward(w.links) {
		if l.server.Name == name {
			return l
		}
	}
	w.Fatalf("%s was never started", name)
	return nil
}

// Send implements pool.Link.
func (l *link) Send(_ context.Context, m *upstream.Message) error {
	l.Post(m)
	return nil
}

// Post implements pool.Link.
func (l *link) Post(m *upstream.Message) {
	f, err := wire.Parse(slices.Clone(m.Bytes))
	if err != nil {
		panic(err)
	}
	l.take(f) // in the order of the sends
	if l.w.on != nil && l.w.on(l, f) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.Kind == wire.Request && !l.over {
		l.wg.Go(func() { l.answer(f) })
	}
}

// take notes what a frame changes.
func (l *link) take(f wire.Frame) {
	r, _ := f.Routing()
	uri, _ := wire.Text(r.URI.Of(f.Raw))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, f.Method)
	if f.Kind == wire.Request {
		l.lastID = string(f.ID())
	}
	switch f.Method {
	case wire.ResourcesSubscribe:
		l.subs[uri] = true
	case wire.ResourcesUnsubscribe:
		delete(l.subs, uri)
	case wire.LoggingSetLevel:
		l.lvls = append(l.lvls, string(r.Level.Of(f.Raw)))
	}
}

func (l *link) answer(f wire.Frame) {
	result, wait := "{}", time.Duration(0)
	switch f.Method {
	case wire.MethodInitialize:
		l.w.mu.Lock()
		wait = l.w.delay
		l.w.mu.Unlock()
		result = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"x","version":"1"}}`
	case wire.ToolsList:
		result = `{"tools":[{"name":"echo"}]}`
	case wire.ResourcesList:
		result = `{"resources":[]}`
	case wire.ResourcesTemplatesList:
		result = `{"resourceTemplates":[]}`
	case wire.ToolsCall:
		var ms int
		_, _ = fmt.Sscanf(string(f.Params()), `{"name":"echo","ms":%d}`, &ms)
		wait = time.Duration(ms) * time.Millisecond
	}
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-l.aborted:
			return
		}
	}
	l.say(wire.Result(f.ID(), []byte(result)))
}

// say delivers a frame of the server.
func (l *link) say(raw []byte) {
	f, err := wire.Parse(raw)
	if err != nil {
		panic(err)
	}
	l.tell(func(h upstream.Handler) { h.Frame(f, nil) })
}

// tell tells the connection something, unless the link has ended.
func (l *link) tell(what func(h upstream.Handler)) {
	var h upstream.Handler
	select {
	case h = <-l.handler:
	case <-l.aborted:
		return
	}
	what(h)
	l.handler <- h
}

// Run implements pool.Link.
func (l *link) Run(h upstream.Handler) error {
	l.handler <- h
	<-l.aborted
	l.Close(context.Background())
	return l.err
}

// Abort implements pool.Link.
func (l *link) Abort(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.aborted)
	})
}

// Close implements pool.Link.
func (l *link) Close(context.Context) {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.wg.Wait()
}

// Facts implements pool.Link.
func (l *link) Facts() pool.LinkFacts { return pool.LinkFacts{PID: 1} }

// Output implements pool.Link.
func (l *link) Output(int) []string { return nil }

// Note implements pool.Link.
func (l *link) Note(string) {}

// A tray is a client's stream and the outlet of its calls.
type tray struct {
	mu     sync.Mutex
	pushed []string
	ended  *fault.Error
	done   chan mux.Pieces
}

func newTray() *tray { return &tray{done: make(chan mux.Pieces, 100)} }

// Push implements Stream.
func (x *tray) Push(p mux.Pieces) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pushed = append(x.pushed, string(p.AppendTo(nil)))
}

// End implements Stream.
func (x *tray) End(why *fault.Error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = why
}

// Note implements mux.Outlet.
func (x *tray) Note(p mux.Pieces) { x.Push(p) }

// Done implements mux.Outlet.
func (x *tray) Done(p mux.Pieces) { x.done <- p }

// initialize makes a client of a session ("" names none).
func (w *world) initialize(scope, name string) (*Client, error) {
	w.Helper()
	return w.initializeFor(scope, name, true)
}

// initializeFor is initialize for a client that may outlive a restart, or not.
func (w *world) initializeFor(scope, name string, lasting bool) (*Client, error) {
	w.Helper()
	f, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"2"}}}`))
	if err != nil {
		w.Fatal(err)
	}
	c, _, err := w.m.Initialize(context.Background(), Hello{ClientID: NewID(), Principal: "local", Session: name, Scope: scope, Frame: f, Stream: newTray(), Lasting: lasting})
	return c, err
}

func (w *world) client(scope, name string) *Client {
	w.Helper()
	c, err := w.initialize(scope, name)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

func frame(id int, method, params string) wire.Frame {
	f, err := wire.Parse(wire.NewRequest(fmt.Append(nil, id), method, []byte(params)))
	if err != nil {
		panic(err)
	}
	return f
}

// do makes a request and returns the whole answer; "" when there came none.
func (c *Client) do(id int, method, params string) string {
	x := newTray()
	c.Session().Do(c, frame(id, method, params), x)
	return string((<-x.done).AppendTo(nil))
}
