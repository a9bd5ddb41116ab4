package upstream

import (
	"context"
	"encoding/json"
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

// modernMeta is what each request of 2026-07-28 holds, and a progress token.
const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},` +
	`"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},"progressToken":"t"}`

// ask sends a request of 2026-07-28; params are its further members, each with a comma
// behind it.
func (l *listener) ask(t *testing.T, id, method, params string) *Message {
	t.Helper()
	m := NewMessage([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + params + modernMeta + `}}`))
	if err := l.link.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// openModern returns a link of 2026-07-28 to the official server, which takes a
// disconnect for a cancellation.
func openModern(t *testing.T, server *mcp.Server, options *mcp.StreamableHTTPOptions) *listener {
	t.Helper()
	options.DisableLocalhostProtection, options.PropagateRequestCancellation = true, true
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, options))
	t.Cleanup(web.Close)
	a, err := NewAuto(HTTPConfig{URL: web.URL})
	if err != nil {
		t.Fatal(err)
	}
	a.Modern(wire.Version20260728)
	return listen(t, a)
}

// H1, M6: calls, progress and a name that Go servers compare byte for byte.
func TestAgainstTheOfficialServerWithoutASession(t *testing.T) {
	for name, options := range map[string]*mcp.StreamableHTTPOptions{
		"streams": {Stateless: true},
		"JSON":    {Stateless: true, JSONResponse: true},
	} {
		t.Run(name, func(t *testing.T) {
			var executed atomic.Int32
			server := official(&executed)
			server.AddTool(&mcp.Tool{Name: "naïve", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				executed.Add(1)
				return &mcp.CallToolResult{}, nil
			})
			l := openModern(t, server, options)
			l.ask(t, "0", wire.Discover, "")
			if m, _ := l.answer(t, "0"); !strings.Contains(string(m.frame.Result()), wire.Version20260728) {
				t.Errorf("got %s", m.frame.Raw)
			}
			for id := range 20 { // at once
				l.ask(t, fmt.Sprint(100+id), wire.ToolsCall, `"name":"plain","arguments":{},`)
			}
			for range 20 {
				if m := l.next(t); m.err != nil || string(m.frame.ID()) != m.call || !strings.Contains(string(m.frame.Raw), `"resultType":"complete"`) {
					t.Errorf("got %s of %s, %v", m.frame.Raw, m.call, m.err)
				}
			}
			if !options.JSONResponse {
				l.ask(t, "1", wire.ToolsCall, `"name":"progress","arguments":{},`)
				if m, before := l.answer(t, "1"); m.call != "1" || len(before) != 1 || before[0].call != "1" || before[0].frame.Method != wire.Progress {
					t.Errorf("got %s of %s after %v", m.frame.Raw, m.call, before)
				}
			}
			executed.Store(0)
			for id := range 3 {
				l.ask(t, fmt.Sprint(id), wire.ToolsCall, `"name":"naïve","arguments":{},`)
				if m, _ := l.answer(t, fmt.Sprint(id)); m.frame.ErrorSpan.Present() || int(executed.Load()) != id+1 {
					t.Errorf("got %s; it ran %d times", m.frame.Raw, executed.Load())
				}
			}
			l.ask(t, "9", wire.ResourcesSubscribe, `"uri":"x:y",`)
			if m, _ := l.answer(t, "9"); !strings.Contains(string(m.frame.ErrorValue()), "-32601") {
				t.Errorf("got %s", m.frame.Raw)
			}
		})
	}
}

// M8: a server that has sessions only says so, and the link goes back to them.
func TestTheOfficialServerWithSessionsRefusesToDoWithout(t *testing.T) {
	var executed atomic.Int32
	l := openModern(t, official(&executed), &mcp.StreamableHTTPOptions{})
	l.ask(t, "0", wire.Discover, "")
	if m, _ := l.answer(t, "0"); strings.Contains(string(m.frame.Result()), wire.Version20260728) {
		t.Errorf("got %s", m.frame.Raw)
	}
	l.ask(t, "1", wire.ToolsCall, `"name":"plain","arguments":{},`)
	if m, _ := l.answer(t, "1"); !strings.Contains(string(m.frame.ErrorValue()), "-32022") {
		t.Errorf("got %s", m.frame.Raw)
	}
	l.link.(*Auto).Modern("")
	l.shake(t)
	l.call(t, "2", "plain")
	if m, _ := l.answer(t, "2"); m.frame.ErrorSpan.Present() || executed.Load() != 1 {
		t.Errorf("got %s", m.frame.Raw)
	}
}

// M2: the server sees that a call is cancelled by the end of its POST.
func TestTheOfficialServerSeesACancelledCall(t *testing.T) {
	var executed atomic.Int32
	server := official(&executed)
	cancelled := make(chan struct{})
	server.AddTool(&mcp.Tool{Name: "watch", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		executed.Add(1)
		<-ctx.Done()
		close(cancelled)
		return nil, ctx.Err()
	})
	l := openModern(t, server, &mcp.StreamableHTTPOptions{Stateless: true})
	m := l.ask(t, "1", wire.ToolsCall, `"name":"watch","arguments":{},`)
	for executed.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	l.link.(*Auto).Cancel(m)
	select {
	case <-cancelled:
	case <-time.After(time.Minute):
		t.Fatal("the server does not know that the call is cancelled")
	}
	l.ask(t, "2", wire.ToolsCall, `"name":"plain","arguments":{},`)
	l.answer(t, "2") // and nothing of call 1
}

// M9: a listen hears of changes, on its own stream, until it is cancelled.
func TestListeningToTheOfficialServer(t *testing.T) {
	var executed atomic.Int32
	server := official(&executed)
	l := openModern(t, server, &mcp.StreamableHTTPOptions{Stateless: true})
	m := l.ask(t, "1", wire.SubscriptionsListen, `"notifications":{"toolsListChanged":true},`)
	if a := l.next(t); a.call != "1" || a.frame.Method != wire.Acknowledged {
		t.Fatalf("got %s of %s", a.frame.Raw, a.call)
	}
	server.RemoveTools("plain")
	if a := l.next(t); a.call != "1" || a.frame.Method != wire.ToolsListChanged {
		t.Errorf("got %s of %s", a.frame.Raw, a.call)
	}
	l.link.(*Auto).Cancel(m)
	h := l.link.(*Auto).http
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		h.mu.Lock()
		open := h.open
		h.mu.Unlock()
		if open == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the listen is still open")
		}
	}
}
