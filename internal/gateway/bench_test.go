package gateway

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"roundhouse/internal/config"
	"roundhouse/internal/front"
	"roundhouse/internal/pool"
	"roundhouse/internal/session"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// instant is a link to a server that has answered a message before Send returns, so that
// nothing is measured but what roundhouse does.
type instant struct {
	handler chan upstream.Handler
	ended   chan struct{}
	once    sync.Once
	text    string
}

func (l *instant) Run(h upstream.Handler) error {
	l.handler <- h
	<-l.ended
	return io.EOF
}

func (l *instant) Send(_ context.Context, m *upstream.Message) error {
	h := <-l.handler
	l.handler <- h
	result := `{"content":[{"type":"text","text":"` + l.text + `"}]}`
	switch m.Method {
	case "":
		return nil
	case wire.MethodInitialize:
		result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}`
	case wire.ToolsList:
		result = `{"tools":[{"name":"echo"}]}`
	}
	f, err := wire.Parse(wire.Result(m.ID, []byte(result)))
	if err != nil {
		return err
	}
	h.Frame(f, nil)
	return nil
}

func (l *instant) Post(*upstream.Message)    {}
func (l *instant) Abort(error)               { l.once.Do(func() { close(l.ended) }) }
func (l *instant) Close(context.Context)     { l.Abort(nil) }
func (l *instant) Facts() (f pool.LinkFacts) { return f }
func (l *instant) Output(int) []string       { return nil }
func (l *instant) Note(string)               {}

// answer is a ResponseWriter that keeps the end of what it is told.
type answer struct {
	header http.Header
	status int
	size   int
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(p []byte) (int, error) { a.size += len(p); return len(p), nil }

// face is everything in front of a server echo, whose tool answers with text.
func face(b *testing.B, text string) *front.Front {
	link := &instant{handler: make(chan upstream.Handler, 1), ended: make(chan struct{}), text: text}
	p := pool.New(pool.Config{Dial: func(context.Context, *config.Server) (pool.Link, error) { return link, nil }})
	sessions := session.NewManager(session.Config{Pool: p, Settings: session.Settings{Servers: []*config.Server{shared("echo")}, Limits: config.Sessions{Max: 10}}})
	b.Cleanup(func() {
		sessions.Shutdown(context.Background())
		p.Drain(context.Background(), true)
	})
	f, err := front.New(front.Config{})
	if err != nil {
		b.Fatal(err)
	}
	New(Config{Sessions: sessions}).Register(f)
	return f
}

// BenchmarkCall is one tools/call from the front to the server and back, without net/http
// and without I/O.
func BenchmarkCall(b *testing.B) {
	for _, size := range []int{16, 16 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			text := strings.Repeat("x", size)
			f := face(b, text)
			header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
			post := func(body []byte) *answer {
				r, err := http.NewRequest(http.MethodPost, "http://127.0.0.1/mcp/echo", bytes.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				r.Header = header
				a := &answer{header: http.Header{}}
				f.ServeHTTP(a, r)
				return a
			}
			hello := post([]byte(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`))
			header.Set(sessionHeader, hello.header.Get(sessionHeader))
			header.Set(versionHeader, wire.Version20251125)

			body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + text + `"}}}`)
			want := len(wire.Result([]byte("1"), []byte(`{"content":[{"type":"text","text":"`+text+`"}]}`)))
			reader := bytes.NewReader(body)
			r, err := http.NewRequest(http.MethodPost, "http://127.0.0.1/mcp/echo", reader)
			if err != nil {
				b.Fatal(err)
			}
			r.Header = header
			a := &answer{header: http.Header{}}
			b.SetBytes(int64(2 * size))
			b.ReportAllocs()
			for b.Loop() {
				reader.Reset(body)
				clear(a.header)
				a.status, a.size = 0, 0
				f.ServeHTTP(a, r)
				if a.status != http.StatusOK || a.size != want {
					b.Fatalf("status %d, %s of %d bytes", a.status, strconv.Itoa(a.size), want)
				}
			}
		})
	}
}

// BenchmarkModern is one request without a handshake, from the front to a server of the
// older era and back, without net/http and without I/O.
func BenchmarkModern(b *testing.B) {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"}}`
	for _, c := range []struct{ method, name, params string }{
		{wire.ToolsList, "", ""},
		{wire.ToolsCall, "echo", `"name":"echo","arguments":{"text":"xxxxxxxxxxxxxxxx"},`},
	} {
		b.Run(c.method, func(b *testing.B) {
			f := face(b, "x")
			body := []byte(`{"jsonrpc":"2.0","id":1,"method":"` + c.method + `","params":{` + c.params + meta + `}}`)
			reader := bytes.NewReader(body)
			r, err := http.NewRequest(http.MethodPost, "http://127.0.0.1/mcp/echo", reader)
			if err != nil {
				b.Fatal(err)
			}
			r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, versionHeader: {wire.Version20260728}, methodHeader: {c.method}}
			if c.name != "" {
				r.Header.Set(nameHeader, c.name)
			}
			a := &answer{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				reader.Reset(body)
				clear(a.header)
				a.status, a.size = 0, 0
				f.ServeHTTP(a, r)
				if a.status != http.StatusOK {
					b.Fatalf("status %d", a.status)
				}
			}
		})
	}
}
