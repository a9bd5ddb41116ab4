package control_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/badserver"
	"roundhouse/internal/config"
	"roundhouse/internal/control"
	"roundhouse/internal/event"
	"roundhouse/internal/front"
	"roundhouse/internal/gateway"
	"roundhouse/internal/model"
	"roundhouse/internal/pool"
	"roundhouse/internal/process"
	"roundhouse/internal/session"
	"roundhouse/internal/store"
)

// patience bounds every wait for something that must happen.
const patience = time.Minute

func TestMain(m *testing.M) {
	process.ReaperMain()
	os.Exit(m.Run())
}

// The principals of a daemon with tokens.
const (
	root  = "token-of-the-admin"
	alice = "token-of-alice-herself"
	bob   = "token-of-bob-himself"
)

const auth = `"auth": {"tokens": [
	{"principal": "root", "token": "` + root + `", "admin": true},
	{"principal": "alice", "token": "` + alice + `"},
	{"principal": "bob", "token": "` + bob + `"}]},`

// world is the API with real parts behind it, and the MCP face to give them work.
type world struct {
	t        *testing.T
	url      string
	front    http.Handler // what is behind url
	control  *control.Control
	pool     *pool.Pool
	feed     *event.Feed
	sessions *session.Manager
	store    *store.Store
}

// newWorld builds everything from a configuration, in which SERVER is the path of the
// misbehaving server. The API's own settings may be changed.
func newWorld(t *testing.T, text string, change ...func(*control.Config)) *world {
	t.Helper()
	text = strings.ReplaceAll(text, "SERVER", badserver.Path(t))
	cfg, err := config.Parse(t.TempDir()+"/config.json", []byte(text), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	processes, err := process.NewManager(process.Config{})
	if err != nil {
		t.Fatal(err)
	}
	feed := event.NewFeed()
	shared := pool.New(pool.Config{Dial: pool.NewDialer(processes, nil), DrainDelay: time.Hour, Budget: cfg.Pool.Budget, Events: feed})
	recordings := openStore(t)
	sessions := session.NewManager(session.Config{Pool: shared, Store: recordings, Settings: session.Settings{Servers: cfg.Servers, Limits: cfg.Sessions, Filters: cfg.Auth.Filters()}, Events: feed})
	f, err := front.New(front.Config{Tokens: cfg.Auth.Tokens})
	if err != nil {
		t.Fatal(err)
	}
	mcp := gateway.New(gateway.Config{Sessions: sessions})
	mcp.Register(f)
	if err := sessions.Restore(t.Context(), mcp.Resume); err != nil {
		t.Fatal(err)
	}
	models := model.New(model.Config{LLM: cfg.LLM, Store: recordings})
	c := control.Config{Store: recordings, Models: models, Config: func() *config.Config { return cfg }, Reload: func() control.Reloaded { return control.Reloaded{Refused: true} }, Reloaded: func() *control.Reloaded { return nil }, Pool: shared, Sessions: sessions, Processes: processes, Events: feed, Version: "1.2.3"}
	for _, f := range change {
		f(&c)
	}
	w := &world{t: t, front: f, feed: feed, pool: shared, sessions: sessions, store: recordings, control: control.New(c)}
	w.control.Register(f)
	server := httptest.NewServer(f)
	w.url = server.URL
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		sessions.Shutdown(ctx)
		if r := shared.Drain(ctx, true); len(r.Errors) > 0 && ctx.Err() != nil {
			t.Errorf("drain: %+v", r)
		}
		server.Close()
		if err := processes.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// openStore opens a database where syncs cost nothing, if the machine has such a place.
func openStore(t *testing.T) *store.Store {
	t.Helper()
	dir := t.TempDir()
	if _, err := os.Stat("/dev/shm"); err == nil {
		if dir, err = os.MkdirTemp("/dev/shm", "control"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		})
	}
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(dir, "test.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return st
}

// reply is an HTTP answer that was read to its end.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) reason() string {
	var e struct{ Error struct{ Reason string } }
	if json.Unmarshal(r.body, &e) != nil {
		return ""
	}
	return e.Error.Reason
}

// send makes a request with a token, or "" for none.
func (w *world) send(token, method, path, body string, header ...string) reply {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Error(err)
		return reply{header: http.Header{}}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Error(err)
	}
	return reply{res.StatusCode, res.Header, b}
}

// get reads a resource, of which nothing may be unknown to the caller.
func get[T any](w *world, token, path string) T {
	w.t.Helper()
	var v T
	r := w.send(token, "GET", path, "")
	if r.status != 200 {
		w.t.Fatalf("GET %s: %d %s", path, r.status, r.body)
	}
	if err := json.Unmarshal(r.body, &v); err != nil {
		w.t.Fatalf("GET %s: %v in %s", path, err, r.body)
	}
	return v
}

type connectionList struct{ Connections []pool.Info }

// connections lists the connections of a server, or of all with "".
func (w *world) connections(token, server string) []pool.Info {
	w.t.Helper()
	var list []pool.Info
	for _, i := range get[connectionList](w, token, "/api/v1/connections").Connections {
		if server == "" || i.Server == server {
			list = append(list, i)
		}
	}
	return list
}

// client is an MCP client of one server.
type client struct {
	w      *world
	token  string
	path   string
	header []string
}

// client makes a handshake with a server, or with "" the aggregate; sess names the session, or is "".
func (w *world) client(token, server, sess string) *client {
	w.t.Helper()
	var header []string
	if sess != "" {
		header = []string{"X-Session-Id", sess}
	}
	path := strings.TrimSuffix("/mcp/"+server, "/")
	r := w.send(token, "POST", path, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`, header...)
	id := r.header.Get("Mcp-Session-Id")
	if id == "" {
		w.t.Fatalf("initialize: %d %s", r.status, r.body)
	}
	return &client{w, token, path, append(header, "Mcp-Session-Id", id)}
}

// id is that of the client, and of the session that was minted for it.
func (c *client) id() string { return c.header[len(c.header)-1] }

// call calls a tool and returns the text of its result, or the error.
func (c *client) call(tool, args string) string {
	c.w.t.Helper()
	r := c.w.send(c.token, "POST", c.path, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tool, args), c.header...)
	var a struct {
		Result struct{ Content []struct{ Text string } }
		Error  struct{ Data struct{ Reason string } }
	}
	if err := json.Unmarshal(r.body, &a); err != nil {
		c.w.t.Errorf("call %s: %d %s", tool, r.status, r.body)
		return ""
	}
	if len(a.Result.Content) == 0 {
		return cmp.Or(a.Error.Data.Reason, string(bytes.TrimSpace(r.body)))
	}
	return a.Result.Content[0].Text
}

// begin calls the tool slow and returns when the call is in flight. No other may be,
// and one that was answered is for a moment longer.
func (c *client) begin(ms int) <-chan string {
	c.w.t.Helper()
	eventually(c.w.t, "no other call is in flight", func() bool { return c.w.sessions.Stats().InFlight == 0 })
	done := make(chan string, 1)
	go func() { done <- c.call("slow", fmt.Sprintf(`{"ms": %d}`, ms)) }()
	eventually(c.w.t, "the call is in flight", func() bool { return c.w.sessions.Stats().InFlight > 0 })
	return done
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %s it is still not so that %s", patience, what)
		}
	}
}

func receive(t *testing.T, done <-chan string) string {
	t.Helper()
	select {
	case s := <-done:
		return s
	case <-time.After(patience):
		t.Fatalf("no answer after %s", patience)
		return ""
	}
}
