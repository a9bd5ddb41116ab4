package responses_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/front"
	"roundhouse/internal/instance"
	"roundhouse/internal/loop"
	"roundhouse/internal/model"
	"roundhouse/internal/pool"
	"roundhouse/internal/recorder"
	"roundhouse/internal/responses"
	"roundhouse/internal/session"
	"roundhouse/internal/store"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// patience bounds what must happen; the machine may be busy.
const patience = time.Minute

// world is the face behind real sockets, with a scripted model, and tool servers in memory
// that write down what is done to them.
type world struct {
	testing.TB
	url      string
	face     *responses.Face
	loop     *loop.Engine
	sessions *session.Manager
	models   *model.Models
	store    *store.Store
	events   *event.Feed
	servers  []*config.Server
	llm      config.LLM
	log      lines // of the sessions
	filters  map[string]session.Tools
	real     bool // servers are reached over the network

	mu      sync.Mutex
	script  []http.HandlerFunc // of the model, one a call; the last one stays
	asked   []map[string]any   // bodies that the model got
	heads   []http.Header
	ledger  []string
	dialled []*config.Server
	tools   map[string]handler // by server and tool, as "a.echo"
	listing map[string]string  // the answer to tools/list by server; else three tools
	slow    map[string]chan struct{}
	broken  map[string]error // of dials
}

// handler is what a tool does. done is closed when the call is cancelled or the server goes.
type handler func(arguments string, done <-chan struct{}, progress func(n int)) (result, failure string)

func shared(name string) *config.Server {
	return &config.Server{Name: name, Transport: config.Stdio, Command: name, Sharing: config.Session, StartTimeout: time.Minute, Cleanup: config.Cleanup{Timeout: 5 * time.Second}}
}

// newWorld starts one with the servers a, b and c.
func newWorld(t testing.TB, change func(*world)) *world {
	t.Helper()
	w := &world{TB: t, servers: []*config.Server{shared("a"), shared("b"), shared("c")}, tools: map[string]handler{}, listing: map[string]string{}, slow: map[string]chan struct{}{}, broken: map[string]error{}}
	engine := httptest.NewServer(http.HandlerFunc(w.engine))
	t.Cleanup(engine.Close)
	w.llm = config.Defaults().LLM
	w.llm.Upstreams = []*config.Upstream{{Name: "main", BaseURL: engine.URL, Images: true, Timeouts: config.UpstreamTimeouts{Connect: patience, FirstByte: patience, Idle: patience}}}
	if change != nil {
		change(w)
	}
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "roundhouse.db")})
	if err != nil {
		t.Fatal(err)
	}
	w.store = st
	w.events = event.NewFeed()
	dial := pool.Dialer(w.dial)
	if w.real {
		dial = pool.NewDialer(nil, nil)
	}
	shared := pool.New(pool.Config{Dial: dial, DrainDelay: time.Minute, Events: w.events})
	starter := instance.NewStarter(instance.StarterConfig{Pool: shared, Base: t.TempDir()})
	instances := instance.New(instance.Config{Launcher: starter})
	w.sessions = session.NewManager(session.Config{Pool: shared, Instances: instances, Events: w.events, Log: slog.New(slog.NewTextHandler(&w.log, nil)), Settings: session.Settings{Servers: w.servers, Filters: w.filters, Limits: config.Defaults().Sessions, ListWait: patience}})
	w.models = model.New(model.Config{LLM: w.llm, Store: st, Dir: t.TempDir(), WriteDeadline: patience})
	f, err := front.New(front.Config{})
	if err != nil {
		t.Fatal(err)
	}
	rc := recorder.New(recorder.Config{Models: w.models, MaxBody: w.llm.MaxBody})
	cfg := config.Defaults()
	cfg.Servers, cfg.LLM = w.servers, w.llm
	w.loop = loop.New(loop.Config{Models: w.models, Sessions: w.sessions, Limits: w.llm.Responses, Events: w.events})
	w.face = responses.New(responses.Config{
		Config: func() *config.Config { return cfg }, Models: w.models, Store: st, Pass: rc.Serve, Egress: responses.NewEgress(w.llm.Responses.Egress),
		Engine:  w.loop,
		MaxBody: w.llm.MaxBody, KeepAlive: time.Second,
	})
	w.face.Register(f)
	rc.Register(f)
	door := httptest.NewServer(f)
	w.url = door.URL
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		w.face.Close()
		engine.CloseClientConnections()
		if left := w.models.Close(ctx); left > 0 {
			t.Errorf("%d model calls are left", left)
		}
		w.sessions.Shutdown(ctx)
		instances.Drain(ctx)
		shared.Drain(ctx, true)
		instances.Join()
		starter.Close()
		door.Close()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// engine is the model.
func (w *world) engine(rw http.ResponseWriter, r *http.Request) {
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.Error(err)
	}
	w.mu.Lock()
	w.asked = append(w.asked, body)
	w.heads = append(w.heads, r.Header.Clone())
	script := w.script[min(len(w.asked), len(w.script))-1]
	w.mu.Unlock()
	script(rw, r)
}

// answers sets what the model does, call by call.
func (w *world) answers(script ...http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.script, w.asked = script, nil
}

// prompts returns what the model was asked.
func (w *world) prompts() []map[string]any {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

// says answers with a text, in two pieces.
func says(text string) http.HandlerFunc {
	half := len(text) / 2
	return stream(delta(map[string]any{"role": "assistant", "content": text[:half]}), delta(map[string]any{"content": text[half:]}), finish("stop"))
}

// call is a call of the model's: id, name and arguments.
type call struct{ id, name, arguments string }

// calls answers with calls of tools, whose arguments come in two pieces.
func calls(list ...call) http.HandlerFunc {
	var pieces []string
	for i, c := range list {
		half := len(c.arguments) / 2
		pieces = append(pieces,
			delta(map[string]any{"tool_calls": []any{map[string]any{"index": i, "id": c.id, "type": "function", "function": map[string]any{"name": c.name, "arguments": c.arguments[:half]}}}}),
			delta(map[string]any{"tool_calls": []any{map[string]any{"index": i, "function": map[string]any{"arguments": c.arguments[half:]}}}}))
	}
	return stream(append(pieces, finish("tool_calls"))...)
}

func delta(d map[string]any) string {
	b, err := json.Marshal(map[string]any{"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": []any{map[string]any{"index": 0, "delta": d, "finish_reason": nil}}})
	if err != nil {
		panic(err)
	}
	return "data: " + string(b) + "\n\n"
}

func finish(reason string) string {
	return `data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}` + "\n\n" +
		`data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}` + "\n\ndata: [DONE]\n\n"
}

// cut among the pieces of a stream breaks the connection off.
const cut = "\x00cut"

func stream(pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, p := range pieces {
			if p == cut {
				panic(http.ErrAbortHandler)
			}
			io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// fails answers with a status.
func fails(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// note adds a line to the ledger.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger = append(w.ledger, fmt.Sprintf(format, args...))
}

// noted returns the ledger.
func (w *world) noted() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ledger)
}

// await waits until the ledger has a line.
func (w *world) await(line string) {
	w.Helper()
	w.until("the ledger has "+line, func() bool { return slices.Contains(w.noted(), line) })
}

func (w *world) until(what string, ok func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("it never was so: %s; the ledger is %q", what, w.noted())
		}
	}
}

// does sets what a tool does.
func (w *world) does(tool string, h handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tools[tool] = h
}

// link is a server in memory.
type link struct {
	w       *world
	server  *config.Server
	aborted chan struct{}
	once    sync.Once
	err     error
	handler chan upstream.Handler
	wg      sync.WaitGroup

	mu        sync.Mutex
	cancelled map[string]chan struct{}
}

func (w *world) dial(ctx context.Context, s *config.Server) (pool.Link, error) {
	w.mu.Lock()
	slow, err := w.slow[s.Name], w.broken[s.Name]
	w.dialled = append(w.dialled, s)
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if slow != nil {
		w.note("opening %s", s.Name)
		select {
		case <-slow:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	w.note("open %s", s.Name)
	return &link{w: w, server: s, aborted: make(chan struct{}), handler: make(chan upstream.Handler, 1), cancelled: map[string]chan struct{}{}}, nil
}

func (l *link) Send(_ context.Context, m *upstream.Message) error {
	l.Post(m)
	return nil
}

func (l *link) Post(m *upstream.Message) {
	f, err := wire.Parse(slices.Clone(m.Bytes))
	if err != nil {
		panic(err)
	}
	switch {
	case f.Method == wire.Cancelled:
		r, _ := f.Routing()
		l.mu.Lock()
		if c := l.cancelled[string(r.RequestID.Of(f.Raw))]; c != nil {
			close(c)
			delete(l.cancelled, string(r.RequestID.Of(f.Raw)))
		}
		l.mu.Unlock()
		l.w.note("cancelled %s", l.server.Name)
	case f.Kind == wire.Request:
		done := make(chan struct{})
		l.mu.Lock()
		l.cancelled[string(f.ID())] = done
		l.mu.Unlock()
		l.wg.Go(func() { l.answer(f, done) })
	}
}

const plainTools = `{"tools":[{"name":"echo","description":"says it again","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},{"name":"act","inputSchema":{"type":"object"}},{"name":"cleanup_session","inputSchema":{"type":"object"}}]}`

func (l *link) answer(f wire.Frame, done chan struct{}) {
	name := l.server.Name
	result := "{}"
	switch f.Method {
	case wire.MethodInitialize:
		result = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`
	case wire.ToolsList:
		l.w.mu.Lock()
		result = l.w.listing[name]
		l.w.mu.Unlock()
		if result == "" {
			result = plainTools
		}
	case wire.ToolsCall:
		var p struct {
			Name      string
			Arguments json.RawMessage
			Meta      struct {
				Token json.RawMessage `json:"progressToken"`
			} `json:"_meta"`
		}
		if err := json.Unmarshal(f.Params(), &p); err != nil {
			panic(err)
		}
		line := "call " + name + "." + p.Name
		if p.Name == "cleanup_session" {
			line = "cleanup " + name
		}
		l.w.note("%s", line)
		l.w.mu.Lock()
		h := l.w.tools[name+"."+p.Name]
		l.w.mu.Unlock()
		result = `{"content":[{"type":"text","text":` + string(wire.Quote(p.Name+" "+string(p.Arguments))) + `}]}`
		if h != nil {
			gone := make(chan struct{})
			stop := make(chan struct{})
			l.wg.Go(func() {
				defer close(gone)
				select {
				case <-done:
				case <-l.aborted:
				case <-stop:
				}
			})
			var failure string
			result, failure = h(string(p.Arguments), gone, func(n int) {
				l.say(wire.NewNotification(wire.Progress, fmt.Appendf(nil, `{"progressToken":%s,"progress":%d}`, p.Meta.Token, n)))
			})
			close(stop)
			if failure != "" {
				l.say(wire.ErrorReply(f.ID(), []byte(failure)))
				return
			}
		}
	}
	l.say(wire.Result(f.ID(), []byte(result)))
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

func (l *link) Close(context.Context) {
	l.wg.Wait()
	l.w.note("close %s", l.server.Name)
}

func (l *link) Facts() pool.LinkFacts { return pool.LinkFacts{PID: 1} }
func (l *link) Output(int) []string   { return nil }
func (l *link) Note(string)           {}

// got is what a client saw of an answer that is no stream.
type got struct {
	status int
	header http.Header
	body   string
}

// object is the body as JSON.
func (g got) object(t testing.TB) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(g.body), &v); err != nil {
		t.Fatalf("%v: %s", err, g.body)
	}
	return v
}

func (w *world) post(body string, header ...string) got {
	w.Helper()
	resp := w.send(context.Background(), body, header...)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return got{resp.StatusCode, resp.Header, string(b)}
}

func (w *world) send(ctx context.Context, body string, header ...string) *http.Response {
	w.Helper()
	resp, err := w.trySend(ctx, body, header...)
	if err != nil {
		w.Fatal(err)
	}
	return resp
}

func (w *world) trySend(ctx context.Context, body string, header ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v1/responses", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return http.DefaultClient.Do(r)
}

// streamed sends a request for a stream, and returns its events.
func (w *world) streamed(body string, header ...string) []map[string]any {
	w.Helper()
	resp := w.send(context.Background(), body, header...)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		b, _ := io.ReadAll(resp.Body)
		w.Fatalf("%d %s: %s", resp.StatusCode, resp.Header.Get("Content-Type"), b)
	}
	events, err := readEvents(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return events
}

// readEvents reads a stream, and checks its form.
func readEvents(r io.Reader) (events []map[string]any, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	kind := ""
	for lines.Scan() {
		switch name, value, _ := bytes.Cut(lines.Bytes(), []byte(": ")); string(name) {
		case "event":
			kind = string(value)
		case "data":
			var e map[string]any
			if err := json.Unmarshal(value, &e); err != nil {
				return nil, err
			}
			if e["type"] != kind {
				return nil, fmt.Errorf("the event %s calls itself %v", kind, e["type"])
			}
			if int(e["sequence_number"].(float64)) != len(events) {
				return nil, fmt.Errorf("event %d has the number %v", len(events), e["sequence_number"])
			}
			events = append(events, e)
		}
	}
	return events, lines.Err()
}

// kinds returns the types of events.
func kinds(events []map[string]any) []string {
	var list []string
	for _, e := range events {
		list = append(list, strings.TrimPrefix(e["type"].(string), "response."))
	}
	return list
}

// at follows a path into JSON, such as "output.0.type".
func at(v any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[name]
		case []any:
			i := 0
			if _, err := fmt.Sscan(name, &i); err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

// want checks values in JSON, as pairs of path and value.
func want(t testing.TB, v any, pairs ...any) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		path, wanted := pairs[i].(string), pairs[i+1]
		if n, ok := wanted.(int); ok {
			wanted = float64(n)
		}
		if have := at(v, path); have != wanted {
			t.Errorf("%s is %v, want %v", path, have, wanted)
		}
	}
}

var errBroken = errors.New("it does not start")

// lines keeps what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
