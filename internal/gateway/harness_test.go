package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/front"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/session"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// settings say how a world differs from the defaults.
type settings struct {
	limits      config.Sessions
	tokens      []config.Token
	keepAlive   time.Duration
	maxBody     int64
	interactive time.Duration
	drainDelay  time.Duration
	listWait    time.Duration
}

// A world is everything behind the listener, in one bubble: the real front,
// gateway, sessions and pool, HTTP over pipes, and servers that are scripts.
type world struct {
	*testing.T
	front    *front.Front
	gateway  *Gateway
	sessions *session.Manager
	pool     *pool.Pool
	listener *pipes
	browser  *http.Client // the client's side of HTTP

	mu      sync.Mutex
	scripts map[string]*script
	procs   []*proc
}

// inWorld runs test in a bubble, with servers of which each one follows a script of
// its own name. Afterwards nothing may be left: no session, no connection, no byte
// in a queue, and no goroutine, which the bubble sees to.
func inWorld(t *testing.T, set settings, servers []*config.Server, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, set, servers)
		test(w)
		w.end()
	})
}

func newWorld(t testing.TB, set settings, servers []*config.Server) *world {
	w := &world{scripts: map[string]*script{}, listener: newPipes()}
	w.T, _ = t.(*testing.T)
	for _, s := range servers {
		w.scripts[s.Name] = newScript()
	}
	if set.limits.Max == 0 {
		set.limits = config.Sessions{Max: 1000, IdleTimeout: 10 * time.Minute, ExpireAfter: 24 * time.Hour}
	}
	if set.interactive == 0 {
		set.interactive = 10 * time.Minute
	}
	if set.drainDelay == 0 {
		set.drainDelay = 30 * time.Second
	}
	if set.listWait == 0 {
		set.listWait = 15 * time.Second
	}
	w.pool = pool.New(pool.Config{Dial: w.dial, DrainDelay: set.drainDelay, MaxIdle: 5 * time.Minute})
	w.sessions = session.NewManager(session.Config{
		Pool: w.pool, Version: "test",
		Settings: session.Settings{Servers: servers, Limits: set.limits, ListWait: set.listWait, InteractiveTimeout: set.interactive},
	})
	w.gateway = New(Config{Sessions: w.sessions, KeepAlive: set.keepAlive, MaxBody: set.maxBody})
	var err error
	if w.front, err = front.New(front.Config{Tokens: set.tokens}); err != nil {
		t.Fatal(err)
	}
	w.gateway.Register(w.front)
	server := &http.Server{Handler: w.front}
	served := make(chan struct{})
	go func() { // joined below
		defer close(served)
		_ = server.Serve(w.listener)
	}()
	w.browser = &http.Client{Transport: &http.Transport{DialContext: w.listener.dial, MaxIdleConnsPerHost: 100}}
	t.Cleanup(func() {
		w.browser.CloseIdleConnections()
		_ = server.Close()
		<-served
	})
	return w
}

// end ends the world in the daemon's order, and looks for what is left.
func (w *world) end() {
	w.Helper()
	w.gateway.CloseStreams()
	w.sessions.Drain()
	w.sessions.Shutdown(context.Background())
	w.pool.Drain(context.Background(), true)
	synctest.Wait()
	if n := w.gateway.queued.Load(); n != 0 {
		w.Errorf("%d bytes are still counted as queued", n)
	}
	if st := w.sessions.Stats(); st.Clients != 0 || st.InFlight != 0 || st.Sessions[session.Active]+st.Sessions[session.Dormant]+st.Sessions[session.Draining] != 0 {
		w.Errorf("sessions are left: %+v", st)
	}
	for _, p := range w.all() {
		if !p.dead() {
			w.Errorf("%s outlived the pool", p.server.Name)
		}
	}
}

func (w *world) all() []*proc {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.procs)
}

// proc returns the newest process of a server.
func (w *world) proc(name string) *proc {
	w.Helper()
	for _, p := range slices.Backward(w.all()) {
		if p.server.Name == name {
			return p
		}
	}
	w.Fatalf("%s was never started", name)
	return nil
}

// shared returns a server whose connection sessions share.
func shared(name string) *config.Server {
	return &config.Server{Name: name, Transport: config.Stdio, Command: name, Sharing: config.Shared, StartTimeout: time.Minute}
}

// pipes is a listener of connections in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipes) Addr() net.Addr { return &net.IPAddr{} }

func (l *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A script says what the processes of a server do. It is changed before the server
// starts, or with set.
type script struct {
	mu        sync.Mutex
	delay     time.Duration // before initialize is answered
	broken    bool          // it does not start
	version   string
	caps      string
	tools     []string
	prompts   []string
	resources []string
	templates []string
	listDelay time.Duration
	schema    string // inputSchema of all tools, or ""
}

func newScript() *script {
	return &script{
		version: wire.Version20251125,
		caps:    `{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"logging":{},"completions":{}}`,
		tools:   []string{"echo"},
	}
}

func (s *script) set(f func(s *script)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// list renders one list as a result.
func (s *script) list(method string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	member, key, names := "tools", "name", s.tools
	switch method {
	case wire.PromptsList:
		member, names = "prompts", s.prompts
	case wire.ResourcesList:
		member, key, names = "resources", "uri", s.resources
	case wire.ResourcesTemplatesList:
		member, key, names = "resourceTemplates", "uriTemplate", s.templates
	}
	var items []string
	for _, n := range names {
		schema := ""
		if s.schema != "" && method == wire.ToolsList {
			schema = `,"inputSchema":` + s.schema
		}
		items = append(items, fmt.Sprintf(`{%q:%s,"x-big":9007199254740993%s}`, key, wire.Quote(n), schema))
	}
	return fmt.Sprintf(`{%q:[%s]}`, member, strings.Join(items, ","))
}

func (w *world) dial(_ context.Context, server *config.Server) (pool.Link, error) {
	s := w.scripts[server.Name]
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken {
		return nil, errors.New("it is broken")
	}
	in, theirIn := io.Pipe()
	theirOut, out := io.Pipe()
	p := &proc{server: server, script: s, in: in, out: out, exited: make(chan struct{}), calls: map[string]chan struct{}{}, begun: time.Now()}
	p.Stdio = upstream.NewStdio(upstream.StdioConfig{In: theirIn, Out: theirOut, Exited: p.exited})
	w.mu.Lock()
	w.procs = append(w.procs, p)
	p.number = len(w.procs)
	w.mu.Unlock()
	p.wg.Go(p.read)
	return p, nil
}

// A proc is a process of a scripted server, and the link to it.
type proc struct {
	*upstream.Stdio
	number int
	server *config.Server
	script *script
	in     *io.PipeReader
	out    *io.PipeWriter
	exited chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
	begun  time.Time

	writing sync.Mutex // held for one line; nothing else waits for it in virtual time

	mu    sync.Mutex
	seen  []string                 // frames that came, as they were spelled
	calls map[string]chan struct{} // open calls by id; closed when cancelled
	asked int
}

func (p *proc) read() {
	lines := bufio.NewReader(p.in)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			p.die()
			return
		}
		f, err := wire.Parse(line)
		if err != nil {
			panic(fmt.Sprintf("%s got a line that is no frame: %v: %s", p.server.Name, err, line))
		}
		p.mu.Lock()
		p.seen = append(p.seen, string(f.Raw))
		p.mu.Unlock()
		p.wg.Go(func() { p.handle(f) })
	}
}

// handle answers a frame.
func (p *proc) handle(f wire.Frame) {
	s := p.script
	r, _ := f.Routing()
	switch f.Method {
	case wire.MethodInitialize:
		s.mu.Lock()
		delay, version, caps := s.delay, s.version, s.caps
		s.mu.Unlock()
		p.sleep(delay)
		p.result(f, fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"serverInfo":{"name":%q,"version":"1"},"instructions":"Be kind.","x-unknown":{"b":1,"a":1.0}}`, version, caps, p.server.Name))
	case wire.ToolsList, wire.PromptsList, wire.ResourcesList, wire.ResourcesTemplatesList:
		s.mu.Lock()
		delay := s.listDelay
		s.mu.Unlock()
		p.sleep(delay)
		p.result(f, s.list(f.Method))
	case wire.ToolsCall:
		p.call(f, r)
	case wire.Cancelled:
		p.mu.Lock()
		if c := p.calls[string(r.RequestID.Of(f.Raw))]; c != nil {
			close(c)
			delete(p.calls, string(r.RequestID.Of(f.Raw)))
		}
		p.mu.Unlock()
	case wire.PromptsGet, wire.ResourcesRead, wire.CompletionComplete: // the parameters, to be looked at
		p.result(f, `{"server":"`+p.server.Name+`","params":`+string(f.Params())+`}`)
	case wire.ResourcesSubscribe, wire.ResourcesUnsubscribe, wire.LoggingSetLevel, wire.Ping:
		p.result(f, "{}")
	default:
		if f.Kind == wire.Request {
			p.say(string(wire.ErrorReply(f.ID(), wire.ErrorObject(wire.MethodNotFound, "no "+f.Method))))
		}
	}
}

// arguments of the tools that every script has, listed or not.
type arguments struct {
	MS     int    // how long the call takes
	Steps  int    // progress notifications during it
	Ask    string // what the client is asked during it
	Params json.RawMessage
	Lines  []string // written to stdout before the answer
	Die    bool     // the process ends instead of answering
}

// call runs a tool. It answers with the name and the arguments as they came.
func (p *proc) call(f wire.Frame, r wire.Routing) {
	var a arguments
	_ = json.Unmarshal(r.Arguments.Of(f.Raw), &a)
	cancelled := make(chan struct{})
	p.mu.Lock()
	p.calls[string(f.ID())] = cancelled
	p.mu.Unlock()
	pause := time.Duration(a.MS) * time.Millisecond / time.Duration(max(a.Steps, 1))
	for step := range max(a.Steps, 1) {
		if a.MS > 0 {
			select {
			case <-time.After(pause):
			case <-cancelled:
				return
			case <-p.exited:
				return
			}
		}
		if a.Steps > 0 {
			p.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, r.ProgressToken.Of(f.Raw), step+1))
		}
	}
	for _, l := range a.Lines {
		p.say(l)
	}
	if a.Ask != "" {
		p.ask(a.Ask, a.Params)
	}
	if a.Die {
		p.die()
		return
	}
	p.mu.Lock()
	_, open := p.calls[string(f.ID())]
	delete(p.calls, string(f.ID()))
	p.mu.Unlock()
	if open {
		name := r.Name.Of(f.Raw)
		p.result(f, fmt.Sprintf(`{"content":[],"server":%q,"process":%d,"name":%s,"arguments":%s}`, p.server.Name, p.number, name, orNull(r.Arguments.Of(f.Raw))))
	}
}

func orNull(raw []byte) []byte {
	if raw == nil {
		return []byte("null")
	}
	return raw
}

// ask sends a request to the client and returns its id.
func (p *proc) ask(method string, params json.RawMessage) string {
	p.mu.Lock()
	p.asked++
	id := fmt.Sprintf(`"ask-%d"`, p.asked)
	p.mu.Unlock()
	p.say(string(wire.NewRequest([]byte(id), method, params)))
	return id
}

func (p *proc) result(f wire.Frame, result string) {
	p.say(string(wire.Result(f.ID(), []byte(result))))
}

// say writes a line to the process's output.
func (p *proc) say(line string) {
	p.writing.Lock()
	defer p.writing.Unlock()
	_, _ = io.WriteString(p.out, line+"\n") // nobody reads a process that has ended
}

func (p *proc) sleep(d time.Duration) {
	if d == 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-p.exited:
	}
}

// die ends the process as a kill would.
func (p *proc) die() {
	p.once.Do(func() {
		close(p.exited)
		_ = p.in.Close()
		_ = p.out.Close()
	})
}

func (p *proc) dead() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// got returns the frames of a method that came, as they were spelled.
func (p *proc) got(method string) (frames []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, raw := range p.seen {
		if f, err := wire.Parse([]byte(raw)); err == nil && f.Method == method {
			frames = append(frames, raw)
		}
	}
	return frames
}

// Post implements pool.Link.
func (p *proc) Post(m *upstream.Message) { p.Stdio.Post(m) }

// Close implements pool.Link.
func (p *proc) Close(context.Context) {
	_ = p.CloseInput()
	p.die()
	p.wg.Wait()
}

// Facts implements pool.Link.
func (p *proc) Facts() pool.LinkFacts { return pool.LinkFacts{PID: p.number, Started: p.begun} }

// Output implements pool.Link.
func (p *proc) Output(int) []string { return nil }

// Note implements pool.Link.
func (p *proc) Note(string) {}

var _ mux.Outlet = (*stream)(nil)
