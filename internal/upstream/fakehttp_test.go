package upstream

import (
	"context"
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

	"roundhouse/internal/wire"
)

// memory is a network of one listener in memory, so that real HTTP runs in virtual time.
type memory struct {
	conns  chan net.Conn
	closed chan struct{}

	mu      sync.Mutex
	refuse  bool // dials fail
	clients []net.Conn
}

func (n *memory) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *memory) Close() error   { close(n.closed); return nil }
func (n *memory) Addr() net.Addr { return &net.IPAddr{} }

var errRefused = errors.New("connection refused")

func (n *memory) dial(context.Context, string, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuse {
		return nil, errRefused
	}
	server, client := net.Pipe()
	n.clients = append(n.clients, client)
	n.conns <- server
	return client, nil
}

// cut breaks all connections, and refuses new ones.
func (n *memory) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = true
	for _, c := range n.clients {
		c.Close()
	}
	n.clients = nil
}

// fake is a server of Streamable HTTP whose answers are set by tests.
type fake struct {
	t       *testing.T
	net     *memory
	session string // that initialize gives, and that is wanted then; "" for none

	mu   sync.Mutex
	log  []string
	head []http.Header
	on   map[string]func(w http.ResponseWriter, r *http.Request, id string) // by method of JSON-RPC or HTTP
}

// newFake runs a server until the test's bubble ends.
func newFake(t *testing.T) *fake {
	f := &fake{t: t, session: "s1", net: &memory{conns: make(chan net.Conn, 100), closed: make(chan struct{})}}
	f.on = map[string]func(http.ResponseWriter, *http.Request, string){}
	server := &http.Server{Handler: f}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(f.net)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return f
}

func (f *fake) handle(name string, h func(w http.ResponseWriter, r *http.Request, id string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on[name] = h
}

// requests returns what was asked so far.
func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// count returns how often something was asked.
func (f *fake) count(prefix string) (n int) {
	for _, r := range f.requests() {
		if strings.HasPrefix(r, prefix) {
			n++
		}
	}
	return n
}

// header returns those of the last request.
func (f *fake) header(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.head[len(f.head)-1].Get(name)
}

// slowBytes is how large a message is that the fake takes its time to read.
const slowBytes = 1 << 20

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength > slowBytes {
		time.Sleep(time.Second)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // The link has ended, or was cut off.
	}
	name, id := r.Method, ""
	if r.Method == http.MethodPost {
		frame, err := wire.Parse(body)
		if err != nil {
			f.t.Errorf("the link posted %q", body)
		}
		id = string(frame.ID())
		if name = frame.Method; name == "" {
			name = "response"
		}
	}
	entry := name
	if s := r.Header.Get("Mcp-Session-Id"); s != "" {
		entry += " in " + s
	}
	if e := r.Header.Get("Last-Event-ID"); e != "" {
		entry += " after " + e
	}
	f.mu.Lock()
	f.log = append(f.log, entry)
	f.head = append(f.head, r.Header.Clone())
	h := f.on[name]
	f.mu.Unlock()
	switch {
	case h != nil:
		h(w, r, id)
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case name == wire.MethodInitialize:
		if f.session != "" {
			w.Header().Set("Mcp-Session-Id", f.session)
		}
		answer(w, "application/json", `{"jsonrpc":"2.0","id":`+id+`,"result":{"protocolVersion":"2025-06-18","capabilities":{}}}`)
	case id == "":
		w.WriteHeader(http.StatusAccepted)
	default:
		answer(w, "application/json", result(id))
	}
}

func result(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"result":{}}` }

func answer(w http.ResponseWriter, kind, body string) {
	w.Header().Set("Content-Type", kind)
	io.WriteString(w, body)
}

// stream writes raw bytes of an event stream, and flushes after each piece.
func stream(w http.ResponseWriter, pieces ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, p := range pieces {
		io.WriteString(w, p)
		w.(http.Flusher).Flush()
	}
}

// cutOff breaks the connection of an answer that has begun.
func cutOff() { panic(http.ErrAbortHandler) }

func (f *fake) config(t *testing.T) HTTPConfig {
	transport := NewTransport()
	transport.DialContext = f.net.dial
	t.Cleanup(transport.CloseIdleConnections)
	return HTTPConfig{URL: "http://server/mcp", Transport: transport}
}

type link interface {
	Send(context.Context, *Message) error
	Post(*Message) bool
	Run(Handler) error
	Abort(error)
	Close(context.Context)
	Cancel(*Message)
}

// remoteLink is a link that runs, for tests in a bubble.
type remoteLink struct {
	link
	*recorder
	t      *testing.T
	result chan error
	ended  bool
}

func run(t *testing.T, l link) *remoteLink {
	r := &remoteLink{link: l, recorder: &recorder{}, t: t, result: make(chan error, 1)}
	go func() { r.result <- l.Run(r.recorder) }()
	t.Cleanup(func() {
		if !r.ended {
			l.Abort(errTest)
			if err := <-r.result; err != errTest {
				t.Errorf("the link ended with %v", err)
			}
		}
		l.Close(context.Background())
	})
	return r
}

// start runs an HTTP link.
func (f *fake) start(t *testing.T, change ...func(*HTTPConfig)) *remoteLink {
	t.Helper()
	c := f.config(t)
	for _, ch := range change {
		ch(&c)
	}
	h, err := NewHTTP(c)
	if err != nil {
		t.Fatal(err)
	}
	return run(t, h)
}

func (r *remoteLink) send(frame string) *Message {
	r.t.Helper()
	m := NewMessage([]byte(frame))
	if err := r.Send(r.t.Context(), m); err != nil {
		r.t.Fatalf("Send gives %v", err)
	}
	return m
}

func (r *remoteLink) call(id, method string) *Message {
	r.t.Helper()
	return r.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `"}`)
}

// try is call on a link that may have ended.
func (r *remoteLink) try(id, method string) *Message {
	r.t.Helper()
	m := NewMessage([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `"}`))
	if err := r.Send(r.t.Context(), m); err != nil && err != ErrClosed {
		r.t.Errorf("Send gives %v", err)
	}
	return m
}

func (r *remoteLink) notify(method string) *Message {
	r.t.Helper()
	return r.send(`{"jsonrpc":"2.0","method":"` + method + `"}`)
}

// shake makes the handshake, and forgets what was told of it.
func (r *remoteLink) shake() {
	r.t.Helper()
	r.call("0", wire.MethodInitialize)
	synctest.Wait()
	r.notify(wire.Initialized)
	synctest.Wait()
	r.wants(`frame of 0: {"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{}}}`)
}

// wants checks what the handler was told since the last time.
func (r *remoteLink) wants(events ...string) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.events, events) {
		r.t.Errorf("the handler was told:\n %s\nwant:\n %s", strings.Join(r.events, "\n "), strings.Join(events, "\n "))
	}
	r.events, r.frames, r.errs = nil, nil, nil
}

// wantsInAnyOrder is wants for what came on several streams; events are sorted.
func (r *remoteLink) wantsInAnyOrder(events ...string) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	slices.Sort(r.events)
	r.mu.Unlock()
	r.wants(events...)
}

// failure returns the one failure that the handler was told of.
func (r *remoteLink) failure() error {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.errs) != 1 || len(r.events) != 1 {
		r.t.Fatalf("the handler was told %q", r.events)
	}
	err := r.errs[0]
	r.errs, r.events = nil, nil
	return err
}

// end waits for the end of the link.
func (r *remoteLink) end() error {
	r.t.Helper()
	select {
	case err := <-r.result:
		r.ended = true
		return err
	case <-time.After(time.Minute):
		r.t.Fatal("the link has not ended")
		return nil
	}
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

func data(frames ...string) string {
	var b strings.Builder
	for _, f := range frames {
		fmt.Fprintf(&b, "data: %s\n\n", f)
	}
	return b.String()
}
