package badserver

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed doc.go
var doc string

// help returns the package comment as text.
func help() string {
	var b strings.Builder
	for line := range strings.Lines(doc) {
		if text, ok := strings.CutPrefix(line, "//"); ok {
			b.WriteString(strings.TrimPrefix(text, " "))
		}
	}
	return b.String()
}

// Exit statuses of the faults, apart from those that a tool call chooses.
const (
	exitAfterStatus = 1
	exitCrash       = 2
	exitFailStart   = 3
	exitMisuse      = 4
)

// leftover is how long what outlives its purpose (a server that ignores EOF, a
// grandchild) stays before it ends by itself.
const leftover = 10 * time.Minute

// versions are the protocol versions spoken, newest last.
var versions = []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}

// Main runs the server with the switches in args (without the program's name)
// and returns the exit status. Main is the whole of a process: many faults end
// the process at once, and when Main returns, calls in flight still run and end
// only with the process. It reads stdin until EOF.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		if role, ok := grandchildRoles[args[0]]; ok {
			return role(args[1:], stdout, stderr)
		}
	}
	flags, opts := newFlags()
	flags.SetOutput(stderr)
	flags.Usage = func() {} // A mistake is one line; -help is below.
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		_, _ = io.WriteString(stdout, help())
		return 0
	case err != nil:
		return exitMisuse
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "badserver: unexpected argument %q\n", flags.Arg(0))
		return exitMisuse
	}
	s := &server{
		opts:     opts,
		stderr:   stderr,
		out:      newOutput(stdout, opts),
		stdout:   stdout,
		items:    newCatalogue(opts),
		received: map[string]int{},
		lists:    map[string]int{},
		inflight: map[string]context.CancelFunc{},
		asking:   map[string]chan message{},
		subs:     map[string]bool{},
	}
	return s.run(stdin)
}

// server is one server process.
type server struct {
	// Constant after Main made it.
	opts   *options
	stderr io.Writer
	out    *output
	stdout io.Writer // for a grandchild to inherit; only out writes to it

	calls sync.WaitGroup // tool calls and asking handshakes; waited for with -exit-fast=false

	mu sync.Mutex
	// Guarded by mu.
	items     map[string][]item // by kind: tools, prompts, resources, templates
	received  map[string]int    // requests and notifications by method
	lists     map[string]int    // list requests by kind
	version   string
	client    json.RawMessage // clientInfo
	caps      json.RawMessage // client capabilities
	shaken    bool            // initialize was answered
	level     string
	subs      map[string]bool
	counter   int
	inflight  map[string]context.CancelFunc // by request id, as spelled
	cancelled []json.RawMessage
	nextAsk   int
	asking    map[string]chan message // our requests, by id
	asked     []Asked
}

// message is any JSON-RPC message received.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// rpcError is an error response.
type rpcError struct {
	code    int
	message string
}

func (e *rpcError) Error() string { return e.message }

func invalidParams(format string, args ...any) error {
	return &rpcError{-32602, fmt.Sprintf(format, args...)}
}

// run starts as the switches say, serves until EOF and returns the exit status.
func (s *server) run(stdin io.Reader) int {
	if s.opts.failStart && s.takeFailure() {
		fmt.Fprintln(s.stderr, "badserver: cannot start: the configuration of badserver is broken")
		return exitFailStart
	}
	if s.opts.ignoreTerm {
		signal.Ignore(syscall.SIGTERM)
	}
	if s.opts.grandchild != "" {
		pid, err := s.spawn(s.opts.grandchild)
		if err != nil {
			fmt.Fprintf(s.stderr, "badserver: start grandchild: %v\n", err)
			return exitMisuse
		}
		fmt.Fprintf(s.stderr, "badserver: started grandchild %d\n", pid)
	}
	s.flood(s.opts.stderrFlood)
	s.out.begin()
	time.Sleep(s.opts.startDelay)

	if err := s.read(stdin); err != nil {
		fmt.Fprintf(s.stderr, "badserver: read stdin: %v\n", err)
	}
	s.note("end")
	if s.opts.ignoreEOF {
		time.Sleep(leftover)
	}
	if !s.opts.exitFast {
		s.calls.Wait()
	}
	time.Sleep(s.opts.linger)
	if s.opts.noFinalNewline {
		s.out.raw(bye())
	}
	return 0
}

// note writes a line into the diary, if one is kept. Several servers may share it: a short
// line that is appended is whole.
func (s *server) note(what string) {
	if s.opts.diary == "" {
		return
	}
	who := s.opts.diaryAs
	if who == "" {
		who = strconv.Itoa(os.Getpid())
	}
	f, err := os.OpenFile(s.opts.diary, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, "%s %s\n", who, what)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintf(s.stderr, "badserver: keep the diary: %v\n", err)
	}
}

// flood writes n bytes of numbered lines to stderr.
func (s *server) flood(n int) {
	for line := 1; n > 0; line++ {
		text := fmt.Sprintf("badserver: flood line %d %s\n", line, strings.Repeat("#", 64))
		text = text[:min(n, len(text))]
		n -= len(text)
		_, _ = io.WriteString(s.stderr, text)
	}
}

// read handles each line of stdin until EOF.
func (s *server) read(stdin io.Reader) error {
	size := 64 << 10
	if s.opts.slowRead {
		size = 16 // The smallest there is: what we have not handled stays in the pipe.
	}
	in := bufio.NewReaderSize(stdin, size)
	for {
		if s.opts.noRead && s.handshaken() {
			time.Sleep(leftover)
		}
		line, err := in.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			s.handleLine(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if s.opts.slowRead {
			time.Sleep(200 * time.Millisecond)
		}
	}
}

func (s *server) handshaken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shaken
}

func (s *server) handleLine(line []byte) {
	batch := []json.RawMessage{line}
	if line[0] == '[' {
		if json.Unmarshal(line, &batch) != nil {
			batch = []json.RawMessage{line}
		}
	}
	for _, one := range batch {
		var m message
		if err := json.Unmarshal(one, &m); err != nil {
			s.count("malformed")
			s.answer(json.RawMessage("null"), "", nil, &rpcError{-32700, err.Error()})
			continue
		}
		s.handle(m)
	}
}

func (s *server) count(method string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received[method]++
}

// handle routes one message. Only what has to wait runs in a goroutine of its own.
func (s *server) handle(m message) {
	switch {
	case m.Method == "":
		s.handleResponse(m)
		return
	case m.ID == nil:
		s.count(m.Method)
		if m.Method == "notifications/cancelled" {
			s.cancel(m.Params)
		}
		return
	}
	s.count(m.Method)
	switch {
	case m.Method == "tools/call":
		s.startCall(m)
	case m.Method == "initialize" && s.opts.neverStart:
	case m.Method == "initialize" && s.opts.earlyPing:
		s.calls.Go(func() {
			if got := s.ask(context.Background(), "ping", leftover); got.Result != nil {
				s.initialize(m)
			}
		})
	case m.Method == "initialize":
		s.initialize(m)
	default:
		result, err := s.serve(m.Method, m.Params)
		s.answer(m.ID, m.Method, result, err)
	}
}

// answer sends a result, or err if there is one.
func (s *server) answer(id json.RawMessage, method string, result []byte, err error) {
	if err == nil {
		s.out.answer(id, method, "result", result)
		return
	}
	code := -32603
	if rpc, ok := errors.AsType[*rpcError](err); ok {
		code = rpc.code
	}
	s.out.answer(id, method, "error", fmt.Appendf(nil, `{"code":%d,"message":%s}`, code, quote(err.Error())))
}

func (s *server) handleResponse(m message) {
	s.mu.Lock()
	waiting := s.asking[string(m.ID)]
	delete(s.asking, string(m.ID))
	s.mu.Unlock()
	if waiting != nil {
		waiting <- m // It has room for the one answer.
	}
}

func (s *server) cancel(params json.RawMessage) {
	var p struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	_ = json.Unmarshal(params, &p) // Without an id there is nothing to cancel, but it still shows.
	if p.RequestID == nil {
		p.RequestID = json.RawMessage("null")
	}
	s.mu.Lock()
	s.cancelled = append(s.cancelled, p.RequestID)
	stop := s.inflight[string(p.RequestID)]
	delete(s.inflight, string(p.RequestID))
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// initialize answers the handshake.
func (s *server) initialize(m message) {
	var p struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Capabilities    json.RawMessage `json:"capabilities"`
		ClientInfo      json.RawMessage `json:"clientInfo"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		s.answer(m.ID, m.Method, nil, invalidParams("initialize: %v", err))
		return
	}
	version := p.ProtocolVersion
	if !slices.Contains(versions, version) {
		version = versions[len(versions)-1]
	}
	if s.opts.version != "" {
		version = s.opts.version
	}
	if s.opts.earlyNotification {
		s.out.notify("notifications/message", `{"level":"info","data":"early"}`)
		s.out.notify("notifications/tools/list_changed", `{}`)
	}
	s.mu.Lock()
	s.version, s.caps, s.client = version, p.Capabilities, p.ClientInfo
	s.mu.Unlock()
	s.out.answer(m.ID, m.Method, "result", fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":%s,`+
		`"serverInfo":{"name":"badserver","title":"Bad server","version":"1.0.0","x-build":9007199254740993},`+
		`"instructions":"Call echo first.","x-unknown":{"b":1,"a":1.0}}`, version, s.capabilities()))
	s.mu.Lock()
	s.shaken = true
	s.mu.Unlock()
	if s.opts.exitAfter > 0 && s.takeFailure() {
		time.AfterFunc(s.opts.exitAfter, func() {
			fmt.Fprintln(s.stderr, "badserver: exiting as told")
			s.out.exit(exitAfterStatus, nil)
		})
	}
}

// capabilities returns the server's capabilities as JSON.
func (s *server) capabilities() string {
	var all []string
	for _, c := range []struct{ name, value string }{
		{"tools", `{"listChanged":true}`},
		{"prompts", `{"listChanged":true}`},
		{"resources", `{"subscribe":true,"listChanged":true}`},
		{"logging", `{}`},
		{"completions", `{}`},
		{"experimental", `{"x-bad":{"depth":[1,2.50,3e0]}}`},
	} {
		if !slices.Contains(s.opts.noCap, c.name) {
			all = append(all, fmt.Sprintf("%q:%s", c.name, c.value))
		}
	}
	return "{" + strings.Join(all, ",") + "}"
}

// capabilityOf names the capability that a method needs.
func capabilityOf(method string) string {
	switch family, _, _ := strings.Cut(method, "/"); family {
	case "completion":
		return "completions"
	default:
		return family
	}
}

// serve answers every request but initialize and tools/call.
func (s *server) serve(method string, params json.RawMessage) ([]byte, error) {
	unknown := &rpcError{-32601, "no such method: " + method}
	if slices.Contains(s.opts.noCap, capabilityOf(method)) {
		return nil, unknown
	}
	switch method {
	case "ping":
		return []byte(`{}`), nil
	case "tools/list":
		return s.list("tools", "tools", params)
	case "prompts/list":
		return s.list("prompts", "prompts", params)
	case "resources/list":
		return s.list("resources", "resources", params)
	case "resources/templates/list":
		return s.list("templates", "resourceTemplates", params)
	case "prompts/get":
		return s.getPrompt(params)
	case "resources/read":
		return s.readResource(params)
	case "resources/subscribe":
		return s.subscribe(params, true)
	case "resources/unsubscribe":
		return s.subscribe(params, false)
	case "completion/complete":
		return complete(params)
	case "logging/setLevel":
		return s.setLevel(params)
	}
	return nil, unknown
}

func (s *server) subscribe(params json.RawMessage, on bool) ([]byte, error) {
	var p struct{ URI string }
	if err := json.Unmarshal(params, &p); err != nil || p.URI == "" {
		return nil, invalidParams("uri is missing")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		s.subs[p.URI] = true
	} else {
		delete(s.subs, p.URI)
	}
	return []byte(`{}`), nil
}

// levels are the log levels, most verbose first.
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

func (s *server) setLevel(params json.RawMessage) ([]byte, error) {
	var p struct{ Level string }
	if err := json.Unmarshal(params, &p); err != nil || !slices.Contains(levels, p.Level) {
		return nil, invalidParams("unknown level %q", p.Level)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.level = p.Level
	return []byte(`{}`), nil
}

// takeFailure reports whether a fault is due, and takes it off the file that
// counts what is left. A file that cannot be used is a broken test, and loud.
func (s *server) takeFailure() bool {
	name := s.opts.crashTimesFile
	if name == "" {
		return true
	}
	data, err := os.ReadFile(name)
	left := 0
	if err == nil {
		left, err = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	if err == nil && left > 0 {
		err = os.WriteFile(name, []byte(strconv.Itoa(left-1)), 0o600)
	}
	if err != nil {
		fmt.Fprintf(s.stderr, "badserver: crash times: %v\n", err)
		s.out.exit(exitMisuse, nil)
	}
	return left > 0
}

// Stats is the result of the tool stats.
type Stats struct {
	// Received counts requests and notifications by method, and lines that were
	// not JSON under "malformed".
	Received map[string]int `json:"received"`
	// Subscriptions are the URIs subscribed to now, sorted.
	Subscriptions []string `json:"subscriptions"`
	// Level is the log level set last, or empty.
	Level string `json:"level"`
}

func (s *server) stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Received:      maps.Clone(s.received),
		Subscriptions: slices.Sorted(maps.Keys(s.subs)),
		Level:         s.level,
	}
}
