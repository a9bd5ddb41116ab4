package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"roundhouse/internal/wire"
)

// The tests here run against the servers of the official Go SDK, over real sockets.

// A told is one thing that a handler was told.
type told struct {
	frame wire.Frame
	call  string
	err   error
	sent  bool
}

// listener is a Handler for tests in real time. It answers what the server asks.
type listener struct {
	link   link
	heard  chan told
	result chan error
}

// Frame implements Handler.
func (l *listener) Frame(f wire.Frame, call []byte) {
	if f.Kind == wire.Request {
		answer := `{"role":"assistant","model":"m","content":{"type":"text","text":"hi"}}`
		if f.Method == wire.Ping {
			answer = "{}"
		}
		l.link.Post(NewMessage(wire.Result(f.ID(), []byte(answer))))
	}
	l.heard <- told{frame: f, call: string(call)}
}

// Failed implements Handler.
func (l *listener) Failed(call []byte, err error, sent bool) {
	l.heard <- told{call: string(call), err: err, sent: sent}
}

// Oversize implements Handler.
func (l *listener) Oversize([]byte, wire.Kind, int64) { panic("oversize") }

// Noise implements Handler.
func (l *listener) Noise(line []byte) { panic(string(line)) }

func listen(t *testing.T, l link) *listener {
	h := &listener{link: l, heard: make(chan told, 100), result: make(chan error, 1)}
	go func() { h.result <- l.Run(h) }()
	t.Cleanup(func() {
		l.Abort(errTest)
		within(t, 10*time.Second, h.result)
		l.Close(context.Background())
	})
	return h
}

func (l *listener) send(t *testing.T, frame string) {
	t.Helper()
	if err := l.link.Send(t.Context(), NewMessage([]byte(frame))); err != nil {
		t.Fatal(err)
	}
}

func (l *listener) next(t *testing.T) told {
	t.Helper()
	select {
	case m := <-l.heard:
		return m
	case <-time.After(time.Minute):
		t.Fatal("nothing came")
		return told{}
	}
}

// answer returns the response to a call, and what came before it.
func (l *listener) answer(t *testing.T, id string) (told, []told) {
	t.Helper()
	var before []told
	for {
		m := l.next(t)
		if m.err != nil {
			t.Fatalf("call %s failed: %v", m.call, m.err)
		}
		if m.frame.Kind == wire.Response && string(m.frame.ID()) == id {
			return m, before
		}
		before = append(before, m)
	}
}

func (l *listener) shake(t *testing.T) {
	t.Helper()
	l.send(t, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"sampling":{}},"clientInfo":{"name":"test","version":"1"}}}`)
	l.answer(t, "0")
	l.send(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

func (l *listener) call(t *testing.T, id, tool string) {
	t.Helper()
	l.send(t, `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"`+tool+`","arguments":{},"_meta":{"progressToken":`+id+`}}}`)
}

// official returns a server of the Go SDK with some tools.
func official(executed *atomic.Int32) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "official", Version: "1"}, nil)
	add := func(name string, f func(context.Context, *mcp.CallToolRequest) error) {
		mcp.AddTool(s, &mcp.Tool{Name: name}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
			executed.Add(1)
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: name}}}, nil, f(ctx, r)
		})
	}
	progress := func(ctx context.Context, r *mcp.CallToolRequest) error {
		return r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
	}
	add("plain", func(context.Context, *mcp.CallToolRequest) error { return nil })
	add("progress", progress)
	add("ask", func(ctx context.Context, r *mcp.CallToolRequest) error {
		//lint:ignore SA1019 It is what a server of today asks.
		_, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 1})
		return err
	})
	add("hang up", func(ctx context.Context, r *mcp.CallToolRequest) error {
		r.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 100 * time.Millisecond})
		return progress(ctx, r)
	})
	add("wait", func(ctx context.Context, _ *mcp.CallToolRequest) error {
		<-ctx.Done()
		return ctx.Err()
	})
	return s
}

func TestAgainstTheOfficialServer(t *testing.T) {
	for name, options := range map[string]*mcp.StreamableHTTPOptions{
		"stateful":        {},
		"JSON":            {JSONResponse: true},
		"stateless":       {Stateless: true},
		"stateless, JSON": {Stateless: true, JSONResponse: true},
		"with events":     {EventStore: mcp.NewMemoryEventStore(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			var executed atomic.Int32
			server := official(&executed)
			options.DisableLocalhostProtection = true
			web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options))
			t.Cleanup(web.Close)
			h, err := NewHTTP(HTTPConfig{URL: web.URL})
			if err != nil {
				t.Fatal(err)
			}
			l := listen(t, h)
			l.shake(t)
			l.call(t, "1", "plain")
			if m, _ := l.answer(t, "1"); m.call != "1" || !strings.Contains(string(m.frame.Raw), `"plain"`) {
				t.Errorf("got %s of %s", m.frame.Raw, m.call)
			}
			for id := range 20 { // at once
				l.call(t, fmt.Sprint(100+id), "plain")
			}
			for range 20 {
				if m := l.next(t); m.err != nil || string(m.frame.ID()) != m.call {
					t.Errorf("got %s of %s, %v", m.frame.Raw, m.call, m.err)
				}
			}
			if !options.JSONResponse {
				l.call(t, "2", "progress")
				if m, before := l.answer(t, "2"); m.call != "2" || len(before) != 1 || before[0].call != "2" || before[0].frame.Method != wire.Progress {
					t.Errorf("got %s of %s after %v", m.frame.Raw, m.call, before)
				}
			}
			if !options.Stateless && !options.JSONResponse {
				l.call(t, "3", "ask")
				if m, before := l.answer(t, "3"); m.call != "3" || len(before) != 1 || before[0].call != "3" || before[0].frame.Method != wire.SamplingCreate || strings.Contains(string(m.frame.Raw), "isError") {
					t.Errorf("got %s of %s after %v", m.frame.Raw, m.call, before)
				}
			}
			if options.EventStore != nil {
				before := executed.Load()
				l.call(t, "4", "hang up")
				m, events := l.answer(t, "4")
				if m.call != "4" || len(events) != 1 || events[0].call != "4" || executed.Load() != before+1 {
					t.Errorf("got %s of %s after %v; it ran %d times", m.frame.Raw, m.call, events, executed.Load()-before)
				}
			}
		})
	}
}

// Case 4: the server was started anew and knows no session. One link ends, and the next
// begins a new session; what was refused can be sent there.
func TestTheOfficialServerIsStartedAnew(t *testing.T) {
	var executed atomic.Int32
	start := func() http.Handler {
		server := official(&executed)
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{DisableLocalhostProtection: true})
	}
	var handler atomic.Pointer[http.Handler]
	first := start()
	handler.Store(&first)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*handler.Load()).ServeHTTP(w, r) }))
	t.Cleanup(web.Close)
	h, err := NewHTTP(HTTPConfig{URL: web.URL})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t, h)
	l.shake(t)
	l.send(t, `{"jsonrpc":"2.0","id":"ready","method":"ping"}`)
	l.answer(t, `"ready"`)
	second := start()
	handler.Store(&second)
	l.call(t, "1", "plain")
	if m := l.next(t); m.call != "1" || !errors.Is(m.err, ErrSessionLost) || m.sent {
		t.Errorf("got %v, sent %t", m.err, m.sent)
	}
	if err := within(t, 10*time.Second, l.result); !errors.Is(err, ErrSessionLost) || executed.Load() != 0 {
		t.Errorf("Run gives %v", err)
	}
	l.result <- err // for the clean-up

	h, err = NewHTTP(HTTPConfig{URL: web.URL})
	if err != nil {
		t.Fatal(err)
	}
	l = listen(t, h)
	l.shake(t)
	l.call(t, "1", "plain")
	l.answer(t, "1")
	if executed.Load() != 1 {
		t.Errorf("the tool ran %d times", executed.Load())
	}
}

// M2: a cancelled call is no longer waited for.
func TestTheOfficialServerCancels(t *testing.T) {
	var executed atomic.Int32
	server := official(&executed)
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(web.Close)
	h, err := NewHTTP(HTTPConfig{URL: web.URL})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t, h)
	l.shake(t)
	l.call(t, "1", "wait")
	for executed.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	l.send(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		h.mu.Lock()
		calls := len(h.calls)
		h.mu.Unlock()
		if calls == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the call is still waited for")
		}
	}
}

func TestAgainstTheOfficialOldServer(t *testing.T) {
	var executed atomic.Int32
	server := official(&executed)
	web := httptest.NewServer(mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(web.Close)
	for name, open := range map[string]func(HTTPConfig) (link, error){
		"SSE":  func(c HTTPConfig) (link, error) { return NewSSE(c) },
		"Auto": func(c HTTPConfig) (link, error) { return NewAuto(c) },
	} {
		t.Run(name, func(t *testing.T) {
			remote, err := open(HTTPConfig{URL: web.URL})
			if err != nil {
				t.Fatal(err)
			}
			l := listen(t, remote)
			l.shake(t)
			for id, tool := range map[string]string{"1": "plain", "2": "progress", "3": "ask"} {
				l.call(t, id, tool)
				if m, before := l.answer(t, id); m.call != "" || tool != "plain" && len(before) != 1 {
					t.Errorf("%s: got %s after %v", tool, m.frame.Raw, before)
				}
			}
		})
	}
}
