package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/secret"
	"roundhouse/internal/wire"
)

// The tests here reach servers over real sockets.

// page collects what is logged.
type page struct {
	mu   sync.Mutex
	text strings.Builder
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *page) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// remotePool is a pool of remote servers, and its log.
func remotePool(t *testing.T) (*Pool, *page) {
	log := &page{}
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p := New(Config{Dial: NewDialer(nil, logger), DrainDelay: time.Minute, Log: logger})
	t.Cleanup(func() { p.Drain(context.Background(), true) })
	return p, log
}

// reached is a server at a URL.
func reached(url string, transport config.Transport, sharing config.Sharing) *config.Server {
	return &config.Server{Name: "far", Transport: transport, URL: secret.New(url), Sharing: sharing, StartTimeout: 20 * time.Second}
}

// served runs a handler until the test ends.
func served(t *testing.T, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// official is a server of the official SDK with a tool that asks its client.
func official() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "official", Version: "1"}, nil)
	type in struct {
		Text string `json:"text"`
	}
	text := func(s string) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
	}
	mcp.AddTool(s, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, a in) (*mcp.CallToolResult, any, error) {
		return text("echo " + a.Text), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "ask"}, func(ctx context.Context, r *mcp.CallToolRequest, a in) (*mcp.CallToolResult, any, error) {
		//lint:ignore SA1019 It is what a server of today asks.
		m, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 1, SystemPrompt: a.Text})
		if err != nil {
			return nil, nil, err
		}
		return text("asked " + a.Text + ", heard " + m.Model), nil, nil
	})
	return s
}

// person is a client that can be asked: it keeps what it was asked.
type person struct {
	mux.Peer
	asked chan *mux.Ask
}

func newPerson() *person { return &person{asked: make(chan *mux.Ask, 10)} }

func (p *person) Ask(a *mux.Ask, _ mux.Outlet) { p.asked <- a }
func (p *person) Unask(*mux.Ask)               {}

func holding(t *testing.T, p *Pool, s *config.Server) *Attachment {
	t.Helper()
	w := want(s, nil)
	w.Capabilities = []byte(`{"sampling":{}}`)
	a, err := p.NewHolder(t.Name()).Acquire(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// begin calls a tool with a text.
func begin(t *testing.T, a *Attachment, p mux.Peer, tool, text string) answer {
	t.Helper()
	f, r := request(wire.ToolsCall, fmt.Sprintf(`{"name":%q,"arguments":{"text":%q}}`, tool, text))
	out := make(answer, 1)
	if _, err := a.Do(t.Context(), p, f, r, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (a answer) wait(t *testing.T) string {
	t.Helper()
	select {
	case got := <-a:
		return got
	case <-time.After(time.Minute):
		t.Fatal("the call hangs")
		return ""
	}
}

func (p *person) wait(t *testing.T) *mux.Ask {
	t.Helper()
	select {
	case a := <-p.asked:
		return a
	case <-time.After(time.Minute):
		t.Fatal("nobody asks")
		return nil
	}
}

// answerWith answers a request for a message with the name of a model.
func answerWith(t *testing.T, a *mux.Ask, model string) {
	t.Helper()
	f, err := wire.Parse(wire.Result([]byte("0"), []byte(`{"role":"assistant","model":"`+model+`","content":{"type":"text","text":"x"}}`)))
	if err != nil {
		t.Fatal(err)
	}
	a.Answer(f)
}

// R1, U1, case 51: servers of the official SDK are reached over what they speak: by its
// name, or by finding out.
func TestServersAreReachedOverWhatTheySpeak(t *testing.T) {
	for name, c := range map[string]struct {
		handler   http.Handler
		transport config.Transport
		fallback  bool
	}{
		"http":                   {streamable(official()), config.HTTP, false},
		"http, perhaps":          {streamable(official()), config.HTTP, true},
		"sse":                    {old(official()), config.SSE, false},
		"sse, taken for http":    {old(official()), config.HTTP, true},
		"ws":                     {socket(t), config.WebSocket, false},
		"http, without sessions": {mcp.NewStreamableHTTPHandler(serving(official()), &mcp.StreamableHTTPOptions{Stateless: true}), config.HTTP, false},
	} {
		for _, sharing := range []config.Sharing{config.Shared, config.Session} {
			t.Run(name+" "+string(sharing), func(t *testing.T) {
				p, _ := remotePool(t)
				url := served(t, c.handler)
				if c.transport == config.WebSocket {
					url = "ws" + strings.TrimPrefix(url, "http")
				}
				s := reached(url, c.transport, sharing)
				s.SSEFallback = c.fallback
				a, b := holding(t, p, s), holding(t, p, s)
				if (a.ID() == b.ID()) != (sharing == config.Shared) {
					t.Errorf("the connections are %s and %s", a.ID(), b.ID())
				}
				for i, at := range []*Attachment{a, b} {
					l, err := at.List(t.Context(), Tools)
					if err != nil || !slices.Contains(keysOf(l), "echo") {
						t.Errorf("tools: %q, %v", keysOf(l), err)
					}
					if got := begin(t, at, newPerson(), "echo", fmt.Sprint(i)).wait(t); !strings.Contains(got, fmt.Sprint("echo ", i)) || !strings.Contains(got, `"id":"mine"`) {
						t.Errorf("echo: %s", got)
					}
				}
				for _, i := range p.Snapshot() {
					if i.State != Active || i.PID != 0 || i.Protocol == "" {
						t.Errorf("%+v", i)
					}
				}
			})
		}
	}
}

func serving(s *mcp.Server) func(*http.Request) *mcp.Server {
	return func(*http.Request) *mcp.Server { return s }
}

func streamable(s *mcp.Server) http.Handler { return mcp.NewStreamableHTTPHandler(serving(s), nil) }

func old(s *mcp.Server) http.Handler { return mcp.NewSSEHandler(serving(s), nil) }

// socket is a server that speaks MCP over WebSocket, made by hand.
func socket(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		defer c.CloseNow()
		for {
			_, m, err := c.Read(r.Context())
			if err != nil {
				return
			}
			f, err := wire.Parse(m)
			if err != nil {
				t.Errorf("the server got %s", m)
				return
			}
			var result string
			switch f.Method {
			case wire.MethodInitialize:
				result = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"socket","version":"1"}}`
			case wire.ToolsList:
				result = `{"tools":[{"name":"echo"}]}`
			case wire.ToolsCall:
				var p struct{ Arguments struct{ Text string } }
				_ = json.Unmarshal(f.Params(), &p)
				if p.Arguments.Text == "end" {
					c.Close(websocket.StatusGoingAway, "I am leaving")
					return
				}
				result = `{"content":[{"type":"text","text":"echo ` + p.Arguments.Text + `"}]}`
			default:
				continue
			}
			if err := c.Write(r.Context(), websocket.MessageText, wire.Result(f.ID(), []byte(result))); err != nil {
				return
			}
		}
	})
}

// M6, case 33: the official server asks both of two clients in flight on one connection.
func TestTheOfficialServerAsksBothOfTwoClients(t *testing.T) {
	server := official()
	p, _ := remotePool(t)
	s := reached(served(t, streamable(server)), config.HTTP, config.Shared)
	a, b := holding(t, p, s), holding(t, p, s)
	ann, bob := newPerson(), newPerson()
	first, second := begin(t, a, ann, "ask", "ann"), begin(t, b, bob, "ask", "bob")
	forAnn, forBob := ann.wait(t), bob.wait(t)
	answerWith(t, forBob, "model-of-bob")
	answerWith(t, forAnn, "model-of-ann")
	if got := first.wait(t); !strings.Contains(got, "asked ann, heard model-of-ann") {
		t.Errorf("ann got %s", got)
	}
	if got := second.wait(t); !strings.Contains(got, "asked bob, heard model-of-bob") {
		t.Errorf("bob got %s", got)
	}
	n := 0
	for range server.Sessions() {
		n++
	}
	if i := p.Snapshot(); n != 1 || i[0].Serial {
		t.Errorf("%d sessions at the server, turns: %v", n, i[0].Serial)
	}
}

// U1: a session's own session at the server ends with it.
func TestASessionsOwnSessionAtTheServerEndsWithIt(t *testing.T) {
	server := official()
	p, _ := remotePool(t)
	s := reached(served(t, streamable(server)), config.HTTP, config.Session)
	sessions := func() (n int) {
		for range server.Sessions() {
			n++
		}
		return n
	}
	a := holding(t, p, s)
	holding(t, p, s)
	if n := sessions(); n != 2 {
		t.Errorf("%d sessions at the server", n)
	}
	a.Release()
	for deadline := time.Now().Add(20 * time.Second); sessions() != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions are left at the server", sessions())
		}
	}
}

const (
	token = "t0ken-9f8e7d6c"
	query = "qu3ry-5b4a3c2d"
)

// guard refuses requests as status says, and quotes what it was told.
func guard(status func(r *http.Request) int, behind http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s := status(r); s != 0 {
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="http://far/.well-known/x", error="invalid_token"`)
			w.WriteHeader(s)
			_, _ = io.WriteString(w, "bad token "+r.Header.Get("Authorization")+" "+r.Header.Get("X-Api-Key")+" at "+r.URL.String())
			return
		}
		behind.ServeHTTP(w, r)
	})
}

// Cases 67, 69: a server that refuses our credentials, however it is reached, is told of
// as one that needs a login, and no credential is shown anywhere.
func TestAServerThatWantsALogin(t *testing.T) {
	for _, c := range []struct {
		transport config.Transport
		fallback  bool
	}{{config.HTTP, false}, {config.HTTP, true}, {config.SSE, false}, {config.WebSocket, false}} {
		for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
			t.Run(fmt.Sprint(c.transport, c.fallback, status), func(t *testing.T) {
				p, log := remotePool(t)
				url := served(t, guard(func(*http.Request) int { return status }, nil)) + "/mcp?key=" + query
				if c.transport == config.WebSocket {
					url = "ws" + strings.TrimPrefix(url, "http")
				}
				s := reached(url, c.transport, config.Shared)
				s.SSEFallback = c.fallback
				s.Headers = map[string]secret.String{"authorization": secret.New("Bearer " + token), "X-API-Key": secret.New(token)}
				_, err := p.NewHolder("a").Acquire(t.Context(), want(s, nil))
				expectReason(t, err, fault.NeedsLogin)
				for _, part := range []string{`server "far"`, fmt.Sprint(status), "needs a login"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%q lacks %q", err, part)
					}
				}
				expectNoSecret(t, p, log, string(fault.Of(err).RPC()))
			})
		}
	}
}

// expectNoSecret looks for the credentials wherever something is shown.
func expectNoSecret(t *testing.T, p *Pool, log *page, texts ...string) {
	t.Helper()
	infos, err := json.Marshal(p.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	texts = append(texts, string(infos), log.String(), fmt.Sprint(p.Output("far", 100)))
	for _, text := range texts {
		for _, s := range []string{token, query} {
			if strings.Contains(text, s) {
				t.Errorf("%q shows a secret", text)
			}
		}
	}
}

// Case 69: a login that has become void costs calls an error that says so, and not the
// connection; the call was not executed.
func TestALoginThatBecomesVoid(t *testing.T) {
	var mu sync.Mutex
	status := 0
	set := func(s int) { mu.Lock(); defer mu.Unlock(); status = s }
	p, log := remotePool(t)
	url := served(t, guard(func(*http.Request) int { mu.Lock(); defer mu.Unlock(); return status }, streamable(official())))
	s := reached(url+"/mcp?key="+query, config.HTTP, config.Shared)
	s.Headers = map[string]secret.String{"Authorization": secret.New("Bearer " + token)}
	a := holding(t, p, s)
	set(http.StatusUnauthorized)
	got := begin(t, a, newPerson(), "echo", "x").wait(t)
	if reason, sent, data := reasonOf(t, got); reason != fault.NeedsLogin || sent != fault.SentNo || data["server"] != "far" {
		t.Errorf("got %s", got)
	}
	expectNoSecret(t, p, log, got)
	set(0)
	if got := begin(t, a, newPerson(), "echo", "x").wait(t); !strings.Contains(got, "echo x") {
		t.Errorf("then it got %s", got)
	}
	if i := p.Snapshot(); len(i) != 1 || i[0].Generation != 1 || i[0].State != Active {
		t.Errorf("%+v", i)
	}
}

// Case 69: the configured headers go with every request, by whatever transport.
func TestConfiguredHeadersGoWithEveryRequest(t *testing.T) {
	for transport, handler := range map[config.Transport]http.Handler{
		config.HTTP: streamable(official()), config.SSE: old(official()), config.WebSocket: socket(t),
	} {
		t.Run(string(transport), func(t *testing.T) {
			var mu sync.Mutex
			methods := map[string]bool{}
			p, _ := remotePool(t)
			url := served(t, guard(func(r *http.Request) int {
				mu.Lock()
				defer mu.Unlock()
				methods[r.Method] = true
				if r.Header.Get("Authorization") != "Bearer "+token || r.Header.Get("X-Team") != "blue" {
					t.Errorf("%s came with %v", r.Method, r.Header)
				}
				return 0
			}, handler))
			if transport == config.WebSocket {
				url = "ws" + strings.TrimPrefix(url, "http")
			}
			s := reached(url, transport, config.Session)
			s.Headers = map[string]secret.String{"AUTHORIZATION": secret.New("Bearer " + token), "x-team": secret.New("blue")}
			a := holding(t, p, s)
			begin(t, a, newPerson(), "echo", "x").wait(t)
			p.Drain(t.Context(), false)
			mu.Lock()
			defer mu.Unlock()
			for _, m := range map[config.Transport][]string{
				config.HTTP: {http.MethodPost, http.MethodDelete}, config.SSE: {http.MethodGet, http.MethodPost}, config.WebSocket: {http.MethodGet},
			}[transport] {
				if !methods[m] {
					t.Errorf("the server got no %s", m)
				}
			}
		})
	}
}

// R1: a server that is not there is named, with what is wrong; nothing is started.
func TestARemoteServerThatIsNotThere(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, transport := range []config.Transport{config.HTTP, config.SSE, config.WebSocket} {
		p, _ := remotePool(t)
		url := gone.URL
		if transport == config.WebSocket {
			url = "ws" + strings.TrimPrefix(url, "http")
		}
		_, err := p.NewHolder("a").Acquire(t.Context(), want(reached(url, transport, config.Shared), nil))
		expectReason(t, err, fault.StartFailed)
		if text := err.Error(); !strings.Contains(text, `server "far" cannot be reached`) || !strings.Contains(text, "connection refused") || strings.Contains(text, "code -32") {
			t.Errorf("%s: %s", transport, text)
		}
	}
}

// R1: what a server answers to initialize instead of speaking the protocol is quoted.
func TestAServerThatSpeaksSomethingElse(t *testing.T) {
	for _, c := range []struct {
		status   int
		fallback bool
		parts    []string
	}{
		{http.StatusBadGateway, false, []string{"502 Bad Gateway", "<h1>no</h1>"}},
		{http.StatusNotFound, false, []string{"404 Not Found"}},
		{http.StatusNotFound, true, []string{"404 Not Found", "event stream"}},
		{http.StatusOK, false, []string{"text/html"}},
	} {
		p, _ := remotePool(t)
		url := served(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, "<h1>no</h1>")
		}))
		s := reached(url, config.HTTP, config.Shared)
		s.SSEFallback = c.fallback
		_, err := p.NewHolder("a").Acquire(t.Context(), want(s, nil))
		expectReason(t, err, fault.StartFailed)
		for _, part := range append(c.parts, `server "far" cannot be reached`) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%d: %q lacks %q", c.status, err, part)
			}
		}
		if strings.Contains(err.Error(), "code -32") || strings.Count(err.Error(), `"far"`) != 1 {
			t.Errorf("%d: %q says it twice", c.status, err)
		}
	}
}

// R1, R2: a WebSocket that the server closes costs the call in flight an error that says
// why, and the next acquire opens another.
func TestAWebSocketThatTheServerCloses(t *testing.T) {
	p, _ := remotePool(t)
	s := reached("ws"+strings.TrimPrefix(served(t, socket(t)), "http"), config.WebSocket, config.Shared)
	got := begin(t, holding(t, p, s), newPerson(), "echo", "end").wait(t)
	if reason, sent, _ := reasonOf(t, got); reason != fault.Interrupted || sent != fault.SentMaybe || !strings.Contains(got, "I am leaving") {
		t.Errorf("got %s", got)
	}
	if got := begin(t, holding(t, p, s), newPerson(), "echo", "again").wait(t); !strings.Contains(got, "echo again") {
		t.Errorf("then it got %s", got)
	}
}
