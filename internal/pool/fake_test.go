package pool

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

const (
	testDrainDelay = 30 * time.Second
	testMaxIdle    = 5 * time.Minute
)

// A world is a pool in a bubble whose servers are scripts in memory, behind real
// links.
type world struct {
	*testing.T
	pool *Pool

	mu      sync.Mutex
	scripts map[string]*script // by server name
	procs   []*proc            // in the order of their starts
	dials   []time.Time        // when they began
	dialing map[string]int     // dials under way, by what is dialled

	onLog func(line string) // set before anything is logged; may be nil
	eras  int               // in which clients come, each of which may have a dial under way; 0 is 1
	heard uint64            // the last event that the test has taken
}

// inWorld runs test in a bubble. Afterwards nothing of the pool may be left: no
// process, no entry, and no goroutine, which the bubble sees to.
func inWorld(t *testing.T, c Config, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, scripts: map[string]*script{}, dialing: map[string]int{}}
		c.Dial = w.dial
		c.Log = slog.New(slog.NewTextHandler(w, nil))
		w.pool = New(c)
		defer w.end()
		test(w)
	})
}

// defaults are the timers as they are without configuration, without a circuit.
var defaults = Config{DrainDelay: testDrainDelay, MaxIdle: testMaxIdle}

// guarded has the circuit as well.
var guarded = Config{DrainDelay: testDrainDelay, MaxIdle: testMaxIdle, Circuit: config.Defaults().Pool.Circuit}

func (w *world) end() {
	w.Helper()
	w.pool.Drain(context.Background(), true)
	w.pool.mu.Lock()
	defer w.pool.mu.Unlock()
	if len(w.pool.entries)+len(w.pool.dying) > 0 {
		w.Errorf("the drained pool still has %d entries and %d dying connections", len(w.pool.entries), len(w.pool.dying))
	}
	if n := w.alive(); n > 0 {
		w.Errorf("%d processes outlived the pool", n)
	}
}

// unlocked reports an error if the pool calls something that may be slow with its
// lock held: others hold it for moments only.
func (w *world) unlocked(what string) {
	for range 10_000_000 { // a second or more
		if w.pool.mu.TryLock() {
			w.pool.mu.Unlock()
			return
		}
		runtime.Gosched()
	}
	w.Errorf("%s is called with Pool.mu held", what)
}

// Write takes the pool's log.
func (w *world) Write(line []byte) (int, error) {
	w.unlocked("Log")
	if w.onLog != nil {
		w.onLog(string(line))
	}
	return len(line), nil
}

// A script says what the processes of a server do. Its zero value is a server with
// the tool echo. It may be changed at any time with set.
type script struct {
	mu        sync.Mutex
	dialDelay time.Duration
	deaf      bool // the dial ignores its context
	dialErr   error
	failArg   string // servers with this first argument are refused
	initDelay time.Duration
	silent    bool   // initialize is never answered
	modern    bool   // it has the newer era, too
	noLegacy  bool   // it refuses initialize
	untaken   error  // it refuses notifications/initialized with this status, as over HTTP
	noProbe   string // what a server without the newer era does when it is asked: "" is an error, else "silence" or "exit"
	stillborn bool   // it ends instead of answering initialize
	linger    time.Duration
	ignores   []string // methods that it does not answer
	refuses   []string // methods that it does not know
	caps      string
	tools     []string
	list      func(method, cursor string) string // a result, or an error object in parentheses; nil for tools
	output    []string
}

func (s *script) set(f func(s *script)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *script) get() script {
	s.mu.Lock()
	defer s.mu.Unlock()
	return script{
		dialDelay: s.dialDelay, deaf: s.deaf, dialErr: s.dialErr, failArg: s.failArg, initDelay: s.initDelay, silent: s.silent, stillborn: s.stillborn,
		modern: s.modern, noLegacy: s.noLegacy, untaken: s.untaken, noProbe: s.noProbe, linger: s.linger, ignores: s.ignores, refuses: s.refuses, caps: s.caps, tools: s.tools, list: s.list, output: s.output,
	}
}

// server returns a shared server and the script that its processes follow.
func (w *world) server(name string) (*config.Server, *script) {
	s := &script{caps: `{"tools":{"listChanged":true}}`, tools: []string{"echo"}}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scripts[name] = s
	return &config.Server{Name: name, Transport: config.Stdio, Command: name, Sharing: config.Shared, StartTimeout: time.Minute}, s
}

// lasting returns a server that is watched and that recovers as without configuration.
func (w *world) lasting(name string) (*config.Server, *script) {
	server, s := w.server(name)
	d := config.Defaults()
	server.Recovery, server.Health = d.Pool.Recovery.Stdio, d.Pool.Health
	return server, s
}

// own returns a server of which every session has a connection of its own.
func (w *world) own(name string) (*config.Server, *script) {
	server, s := w.server(name)
	server.Sharing = config.Session
	return server, s
}

// dial is the pool's Dialer.
func (w *world) dial(ctx context.Context, server *config.Server) (Link, error) {
	what := fmt.Sprint(server.Name, server.Args)
	w.mu.Lock()
	w.dials = append(w.dials, time.Now())
	w.dialing[what]++
	if n := w.dialing[what]; n > max(1, w.eras) && server.Sharing == config.Shared {
		w.Errorf("%d dials of %s at once", n, what)
	}
	all := w.scripts[server.Name]
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.dialing[what]--
	}()
	s := all.get()
	end := ctx.Done()
	if s.deaf {
		end = nil
	}
	if !waitFor(s.dialDelay, end) {
		return nil, context.Cause(ctx)
	}
	if s.failArg != "" && slices.Contains(server.Args, s.failArg) {
		return nil, errRefused
	}
	if s.dialErr != nil {
		return nil, s.dialErr
	}
	p := w.start(server, all)
	if s.untaken != nil {
		return untakenLink{p}, nil
	}
	return p, nil
}

// untakenLink is an eraLink to a server that refuses notifications/initialized.
type untakenLink struct{ *proc }

func (l untakenLink) Modern(string)               {}
func (l untakenLink) Cancel(*upstream.Message)    {}
func (l untakenLink) Taken(context.Context) error { return l.script.get().untaken }

// A proc is a process of a scripted server, and the link to it.
type proc struct {
	*upstream.Stdio
	w      *world
	number int // of its start
	server *config.Server
	script *script
	in     *io.PipeReader
	out    *io.PipeWriter
	lines  chan string
	exited chan struct{}
	wg     sync.WaitGroup
	begun  time.Time
	frozen atomic.Bool // it answers nothing any more, as after SIGSTOP

	mu     sync.Mutex
	seen   []string // methods that came
	answer string   // the last one to a request of the server's
	notes  []string
	killed bool
	exit   string
}

func (w *world) start(server *config.Server, s *script) *proc {
	w.mu.Lock()
	defer w.mu.Unlock()
	in, theirIn := io.Pipe()
	theirOut, out := io.Pipe()
	p := &proc{w: w, number: len(w.procs) + 1, server: server, script: s, in: in, out: out, lines: make(chan string, 1000), exited: make(chan struct{}), begun: time.Now()}
	p.Stdio = upstream.NewStdio(upstream.StdioConfig{In: theirIn, Out: theirOut, Exited: p.exited})
	w.procs = append(w.procs, p)
	p.wg.Go(p.read)
	p.wg.Go(p.write)
	return p
}

func (p *proc) read() {
	lines := bufio.NewScanner(p.in)
	for lines.Scan() {
		f, err := wire.Parse(slices.Clone(lines.Bytes()))
		if err != nil {
			p.w.Errorf("%s got a line that is no frame: %v", p.server.Name, err)
			continue
		}
		p.mu.Lock()
		p.seen = append(p.seen, f.Method)
		if f.Kind == wire.Response {
			p.answer = string(f.Raw)
		}
		p.mu.Unlock()
		p.handle(f)
	}
	p.sleep(p.script.get().linger)
	p.die("exit status 0")
}

func (p *proc) write() {
	for {
		select {
		case line := <-p.lines:
			if _, err := io.WriteString(p.out, line+"\n"); err != nil {
				return
			}
		case <-p.exited:
			return
		}
	}
}

// handle answers a frame; what takes time does not hold up the next.
func (p *proc) handle(f wire.Frame) {
	s := p.script.get()
	if p.frozen.Load() || slices.Contains(s.ignores, f.Method) {
		return
	}
	if slices.Contains(s.refuses, f.Method) {
		p.say(string(wire.ErrorReply(f.ID(), wire.ErrorObject(wire.MethodNotFound, "unknown method"))))
		return
	}
	switch f.Method {
	case wire.Ping:
		p.result(f, "{}")
	case wire.MethodInitialize:
		if s.stillborn {
			p.die("exit status 3")
			return
		}
		p.sleep(s.initDelay)
		switch {
		case s.silent:
		case s.noLegacy:
			p.say(string(wire.ErrorReply(f.ID(), []byte(`{"code":-32022,"message":"no","data":{"supported":["2026-07-28"],"requested":"2025-11-25"}}`))))
		default:
			p.result(f, `{"protocolVersion":"2025-11-25","capabilities":`+s.caps+`,"serverInfo":{"name":"script","version":"1"}}`)
		}
	case wire.Discover:
		switch {
		case s.modern:
			p.sleep(s.initDelay)
			p.result(f, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":`+s.caps+`,"ttlMs":0,"cacheScope":"public"}`)
		case s.noProbe == "exit":
			p.die("exit status 4")
		case s.noProbe == "":
			p.say(string(wire.ErrorReply(f.ID(), wire.ErrorObject(wire.MethodNotFound, "unknown method"))))
		}
	case wire.SubscriptionsListen:
		var params struct{ Notifications json.RawMessage }
		_ = json.Unmarshal(f.Params(), &params)
		p.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{"_meta":{%q:%s},"notifications":%s}}`, wire.Acknowledged, wire.MetaSubscription, f.ID(), params.Notifications))
	case wire.ToolsCall:
		var params struct{ Name string }
		_ = json.Unmarshal(f.Params(), &params)
		switch name, arg, _ := strings.Cut(params.Name, ":"); name {
		case "hang":
		case "exit":
			p.die("exit status 7")
		case "sleep":
			d, err := time.ParseDuration(arg)
			if err != nil {
				panic(err)
			}
			p.wg.Go(func() {
				p.sleep(d)
				p.result(f, `{"content":[]}`)
			})
		default:
			p.result(f, fmt.Sprintf(`{"content":[],"process":%d}`, p.number))
		}
	default:
		if _, ok := KindOf(f.Method); !ok {
			return
		}
		if s.list == nil {
			p.result(f, toolsResult(s.tools...))
			return
		}
		var params struct{ Cursor string }
		_ = json.Unmarshal(f.Params(), &params)
		switch text := s.list(f.Method, params.Cursor); {
		case text == "": // no answer
		case text[0] == '(':
			p.say(string(wire.ErrorReply(f.ID(), []byte(strings.Trim(text, "()")))))
		default:
			p.result(f, text)
		}
	}
}

func toolsResult(names ...string) string {
	var items []string
	for _, n := range names {
		items = append(items, fmt.Sprintf(`{"name":%q,"inputSchema":{}}`, n))
	}
	return `{"tools":[` + strings.Join(items, ",") + `]}`
}

func (p *proc) result(f wire.Frame, result string) {
	p.say(string(wire.Result(f.ID(), []byte(result))))
}

// say writes a line to the process's output.
func (p *proc) say(line string) {
	select {
	case p.lines <- line:
	case <-p.exited:
	}
}

// changed says that a list changed.
func (p *proc) changed(method string) { p.say(string(wire.NewNotification(method, nil))) }

func (p *proc) sleep(d time.Duration) { waitFor(d, p.exited) }

// waitFor lets d pass, or reports that end came first. It makes no timer that is due
// at once: in a bubble and with the race detector the runtime (go1.26.8) has crashed
// in a select on one.
func waitFor(d time.Duration, end <-chan struct{}) bool {
	if d <= 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-end:
		return false
	}
}

// die ends the process; the first reason counts.
func (p *proc) die(how string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit == "" {
		p.exit = how
		close(p.exited)
		p.in.Close()
		p.out.Close()
	}
}

func (p *proc) dead() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Send implements Link.
func (p *proc) Send(ctx context.Context, m *upstream.Message) error {
	p.w.unlocked("Link.Send")
	return p.Stdio.Send(ctx, m)
}

// Post implements Link.
func (p *proc) Post(m *upstream.Message) {
	p.w.unlocked("Link.Post")
	p.Stdio.Post(m)
}

// Abort implements Link.
func (p *proc) Abort(err error) {
	p.w.unlocked("Link.Abort")
	p.Stdio.Abort(err)
}

// Close implements Link.
func (p *proc) Close(ctx context.Context) {
	p.w.unlocked("Link.Close")
	_ = p.CloseInput()
	select {
	case <-p.exited:
	case <-ctx.Done():
		p.mu.Lock()
		p.killed = p.exit == ""
		p.mu.Unlock()
		p.die("signal: killed")
	}
	p.wg.Wait()
}

// Facts implements Link.
func (p *proc) Facts() LinkFacts {
	p.w.unlocked("Link.Facts")
	p.mu.Lock()
	defer p.mu.Unlock()
	return LinkFacts{PID: p.number, Started: p.begun, Exit: p.exit}
}

// Output implements Link.
func (p *proc) Output(lines int) []string {
	p.w.unlocked("Link.Output")
	all := slices.Concat(p.script.get().output, p.noted())
	return all[max(0, len(all)-lines):]
}

// Note implements Link.
func (p *proc) Note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, line)
}

func (p *proc) noted() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.notes)
}

func (p *proc) wasKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}

// answered returns what the server's last request was answered.
func (p *proc) answered() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answer
}

// dialled returns when the dials of all servers began.
func (w *world) dialled() []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.dials)
}

// alive counts the processes that live.
func (w *world) alive() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.procs {
		if !p.dead() {
			n++
		}
	}
	return n
}

// started counts the processes that were ever started.
func (w *world) started() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.procs)
}

// proc returns the process that was started last.
func (w *world) proc() *proc {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[len(w.procs)-1]
}

// asked counts the requests of a method that processes have seen.
func (w *world) asked(method string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.procs {
		p.mu.Lock()
		for _, m := range p.seen {
			if m == method {
				n++
			}
		}
		p.mu.Unlock()
	}
	return n
}
