package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/instance"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/session"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// A world is a session.Manager with our tools, over a real pool whose servers live in
// memory.
type world struct {
	*testing.T
	m *session.Manager
	t *Tools
	// cleanup is of the browser.
	cleanup config.Cleanup
	// own are our tools, which a test may replace before it calls one.
	own []session.OwnTool

	// call answers a tool that a server is called with; the default echoes the arguments.
	// An error is one of JSON-RPC. It is set before a server starts.
	call func(l *link, tool string, arguments json.RawMessage) (result string, err error)

	// answered takes a response to what a server asked; nil drops it.
	answered func(f wire.Frame)

	mu    sync.Mutex
	links int
	calls []string // of tools that servers got, as "server#instance tool"
}

// inWorld runs test in a bubble; afterwards no session, connection or goroutine may be
// left.
func inWorld(t *testing.T, maxTasks int, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t}
		end := w.begin(maxTasks, Config{})
		test(w)
		synctest.Wait()
		if st := w.m.Stats(); st.InFlight+st.Tasks > 0 {
			t.Errorf("left: %+v", st)
		}
		end()
	})
}

// begin builds the world, and returns what ends it.
func (w *world) begin(maxTasks int, cfg Config) (end func()) {
	p := pool.New(pool.Config{Dial: w.dial, DrainDelay: time.Second})
	starter := instance.NewStarter(instance.StarterConfig{Pool: p, Base: w.TempDir()})
	instances := instance.New(instance.Config{Launcher: starter})
	cfg.Grace, cfg.Log = func() time.Duration { return 10 * time.Second }, slog.New(slog.DiscardHandler)
	w.t = New(cfg)
	w.own = w.t.Own()
	browser := server("browser")
	browser.Sharing, browser.Cleanup = config.Exclusive, w.cleanup
	browser.Instances = config.Instances{Max: 4, IdleTimeout: time.Minute, MaxWait: time.Minute, OnRelease: config.ReleaseDestroy, Snapshot: config.ToolCall{Tool: "look"}}
	w.m = session.NewManager(session.Config{
		Pool: p, Instances: instances, Own: w.own, Version: "test",
		Settings: session.Settings{
			Servers: []*config.Server{server("files"), browser}, ListWait: time.Minute, InteractiveTimeout: time.Minute,
			Limits: config.Sessions{Max: 100, IdleTimeout: 10 * time.Minute, ExpireAfter: 24 * time.Hour, MaxTasks: maxTasks},
		},
	})
	return func() {
		w.m.Drain()
		w.m.Shutdown(context.Background())
		instances.Drain(context.Background())
		p.Drain(context.Background(), true)
		instances.Join()
		starter.Close()
	}
}

func server(name string) *config.Server {
	return &config.Server{Name: name, Transport: config.Stdio, Command: name, Sharing: config.Shared, StartTimeout: time.Minute, Cleanup: config.Cleanup{Timeout: 5 * time.Second}}
}

func (w *world) dial(_ context.Context, s *config.Server) (pool.Link, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links++
	return &link{w: w, name: fmt.Sprintf("%s#%d", s.Name, w.links), aborted: make(chan struct{}), handler: make(chan upstream.Handler, 1)}, nil
}

// seen returns the calls of tools that servers got.
func (w *world) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.calls)
}

// A link is a server in memory.
type link struct {
	w       *world
	name    string
	aborted chan struct{}
	once    sync.Once
	err     error
	handler chan upstream.Handler // has the one that Run was given
	wg      sync.WaitGroup
}

func (l *link) Send(_ context.Context, m *upstream.Message) error { l.Post(m); return nil }

func (l *link) Post(m *upstream.Message) {
	f, err := wire.Parse(slices.Clone(m.Bytes))
	if err != nil {
		panic(err)
	}
	if f.Method == wire.Cancelled {
		l.note("cancelled")
	}
	switch f.Kind {
	case wire.Request:
		l.wg.Go(func() { l.answer(f) })
	case wire.Response:
		if l.w.answered != nil {
			l.w.answered(f)
		}
	}
}

func (l *link) note(what string) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.w.calls = append(l.w.calls, l.name+" "+what)
}

func (l *link) answer(f wire.Frame) {
	result := "{}"
	switch f.Method {
	case wire.MethodInitialize:
		result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`
	case wire.ToolsList:
		result = `{"tools":[{"name":"do","inputSchema":{"type":"object"}},{"name":"look","inputSchema":{"type":"object"}}]}`
	case wire.ToolsCall:
		r, _ := f.Routing()
		tool, _ := wire.Text(r.Name.Of(f.Raw))
		l.note(tool)
		call := l.w.call
		if call == nil {
			call = func(_ *link, _ string, arguments json.RawMessage) (string, error) {
				return saying(string(arguments)), nil
			}
		}
		var err error
		if result, err = call(l, tool, r.Arguments.Of(f.Raw)); err != nil {
			l.say(wire.ErrorReply(f.ID(), wire.ErrorObject(-5, err.Error())))
			return
		}
	}
	l.say(wire.Result(f.ID(), []byte(result)))
}

// saying is the result of a tool that says one thing.
func saying(words string) string {
	return string(result{content: []json.RawMessage{text(words)}}.encode())
}

// sleep waits, unless the link ends.
func (l *link) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.aborted:
	}
}

func (l *link) say(raw []byte) {
	f, err := wire.Parse(raw)
	if err != nil {
		panic(err)
	}
	select {
	case h := <-l.handler:
		h.Frame(f, nil)
		l.handler <- h
	case <-l.aborted:
	}
}

func (l *link) Run(h upstream.Handler) error {
	l.handler <- h
	<-l.aborted
	l.wg.Wait()
	return l.err
}

func (l *link) Abort(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.aborted)
	})
}

func (l *link) Close(context.Context) { l.wg.Wait() }
func (l *link) Facts() pool.LinkFacts { return pool.LinkFacts{PID: 1} }
func (l *link) Output(int) []string   { return nil }
func (l *link) Note(string)           {}

// A tray is a client's stream and the outlet of its calls.
type tray struct {
	mu    sync.Mutex
	notes []wire.Frame
	done  chan mux.Pieces
}

func newTray() *tray { return &tray{done: make(chan mux.Pieces, 1)} }

func (x *tray) Push(p mux.Pieces) { x.Note(p) }
func (x *tray) End(*fault.Error)  {}

func (x *tray) Note(p mux.Pieces) {
	f, err := wire.Parse(p.AppendTo(nil))
	if err != nil {
		panic(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.notes = append(x.notes, f)
}

func (x *tray) Done(p mux.Pieces) { x.done <- p }

// said returns the notes with a method, as their params.
func (x *tray) said(method string) (all []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.notes {
		if f.Method == method {
			all = append(all, string(f.Params()))
		}
	}
	return all
}

// client makes a client of a session ("" names none) that can be asked things.
func (w *world) client(principal, scope, name string) *session.Client {
	w.Helper()
	f := request(0, wire.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"c","version":"2"}}`)
	c, _, err := w.m.Initialize(w.Context(), session.Hello{ClientID: session.NewID(), Principal: principal, Session: name, Scope: scope, Frame: f, Stream: newTray()})
	if err != nil {
		w.Fatal(err)
	}
	return c
}

func request(id int, method, params string) wire.Frame {
	f, err := wire.Parse(wire.NewRequest(fmt.Append(nil, id), method, []byte(params)))
	if err != nil {
		panic(err)
	}
	return f
}

// reply is what a tool answered.
type reply struct {
	Result struct {
		Content    []struct{ Type, Text string }
		IsError    bool
		Meta       map[string]any `json:"_meta"`
		Structured struct {
			Results []struct {
				Text    string
				IsError bool
			}
		} `json:"structuredContent"`
	}
	Error struct {
		Code    int
		Message string
		Data    struct{ Reason string }
	}
	raw string
}

// texts are the texts of a batch's results.
func (r reply) texts() (all []string) {
	for _, x := range r.Result.Structured.Results {
		all = append(all, x.Text)
	}
	return all
}

// tool calls one of our tools. Progress goes to out, which may be nil.
func (w *world) tool(c *session.Client, out *tray, name, arguments string) reply {
	w.Helper()
	if out == nil {
		out = newTray()
	}
	c.Session().Do(c, request(7, wire.ToolsCall, `{"name":"`+name+`","arguments":`+arguments+`,"_meta":{"progressToken":"p"}}`), out)
	return w.read(<-out.done)
}

func (w *world) read(p mux.Pieces) (r reply) {
	w.Helper()
	r.raw = string(p.AppendTo(nil))
	if r.raw == "" {
		return r
	}
	if err := json.Unmarshal([]byte(r.raw), &r); err != nil {
		w.Fatal(err, r.raw)
	}
	return r
}

// sessions lists the ids of a principal's sessions.
func (w *world) sessions(principal string) (ids []string) {
	for _, i := range w.m.List(principal, false) {
		ids = append(ids, i.ID)
	}
	return ids
}

// batchOf is the arguments of a batch of calls of a server's tool do, with a number each.
func batchOf(server string, n int, more string) string {
	var calls []string
	for i := range n {
		calls = append(calls, fmt.Sprintf(`{"server":%q,"tool":"do","arguments":{"n":%d}}`, server, i))
	}
	return `{"calls":[` + strings.Join(calls, ",") + `]` + more + `}`
}
