package daemon_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// on is the client as one of the next daemon, which it does not know of.
func (c *client) on(d *daemon) *client { return &client{d, c.path, c.header} }

// stream opens the client's stream after an event, and returns the answer's status and type.
func (c *client) stream(last string) (status int, mediaType string) {
	c.d.t.Helper()
	ctx, cancel := context.WithCancel(c.d.t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.d.url+c.path, nil)
	if err != nil {
		c.d.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Last-Event-ID", last)
	for i := 0; i < len(c.header); i += 2 {
		req.Header.Set(c.header[i], c.header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.d.t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode, res.Header.Get("Content-Type")
}

// N6, P1: after kill -9, and after an orderly end, the same session ids go on, those of MCP
// included: shared servers are started with the first use, instances that were lent are
// said to be lost in the first result and in the API, and others are lent, and an old
// Last-Event-ID opens a fresh stream.
func TestSessionsGoOnAfterTheDaemonsEnd(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"kill -9": syscall.SIGKILL, "SIGTERM": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNest(t)
			const config = `{"mcpServers": {
				"files":   {"command": "SERVER", "closeTimeouts": {"eof": "1s"}},
				"browser": {"command": "SERVER", "sharing": "exclusive", "closeTimeouts": {"eof": "1s"}, "instances": {"max": 5}}
			}}`
			d := n.serve(config)
			var shared, holders []*client
			for i := range 15 {
				var header []string
				if i%2 == 0 {
					header = []string{"X-Session-Id", fmt.Sprintf("run-%d", i)}
				}
				shared = append(shared, d.client("files", header...))
			}
			for i := range 5 {
				c := d.client("browser", "X-Session-Id", fmt.Sprintf("browses-%d", i))
				if a := c.call("echo", `{"text":"before"}`); a.status != http.StatusOK {
					t.Fatalf("%d %s", a.status, a.body)
				}
				holders = append(holders, c)
			}
			type list struct {
				Sessions []struct {
					ID, RestoredAt string
					Leases, Lost   []struct {
						Server, Instance string
						Told             bool
					}
				}
			}
			var before list
			d.get("/api/v1/sessions", &before)
			if len(before.Sessions) != 20 {
				t.Fatalf("%d sessions", len(before.Sessions))
			}
			d.signal(signal)
			d.wait()

			d = n.serve(config)
			eventually(t, "no server runs before the first use", func() bool { return len(d.leftovers("badserver")) == 0 })
			var after list
			d.get("/api/v1/sessions", &after)
			ids, lost := map[string]bool{}, 0
			for _, s := range after.Sessions {
				ids[s.ID] = true
				if s.RestoredAt == "" || len(s.Leases) > 0 {
					t.Errorf("%+v", s)
				}
				for _, l := range s.Lost {
					lost++
					if l.Server != "browser" || l.Instance == "" || l.Told {
						t.Errorf("session %s has lost %+v", s.ID, l)
					}
				}
			}
			for _, s := range before.Sessions {
				if !ids[s.ID] {
					t.Errorf("session %s is gone", s.ID)
				}
			}
			if lost != 5 {
				t.Errorf("%d instances are said to be lost", lost)
			}
			for _, c := range shared {
				if a := c.on(d).call("echo", `{"text":"after"}`); a.status != http.StatusOK || a.text() != "after" {
					t.Errorf("%v: %d %s", c.header, a.status, a.body)
				}
			}
			if left := d.leftovers("badserver"); len(left) != 1 {
				t.Errorf("15 sessions share %v", left)
			}
			for _, c := range holders {
				c = c.on(d)
				for i, says := range []bool{true, false} {
					a := c.call("echo", `{"text":"after"}`)
					if a.status != http.StatusOK || strings.Contains(string(a.body), "roundhouse was restarted: the instance of browser") != says || !strings.Contains(string(a.body), `"after"`) {
						t.Errorf("result %d: %d %s", i+1, a.status, a.body)
					}
				}
			}
			var told struct{ Lost, Leases []struct{ Told bool } }
			d.get("/api/v1/sessions/browses-0", &told)
			if len(told.Lost) != 1 || !told.Lost[0].Told || len(told.Leases) != 1 {
				t.Errorf("%+v", told)
			}
			for i, last := range []string{"0-7", "3-1"} {
				c := shared[i].on(d)
				id := c.header[len(c.header)-1]
				if status, mediaType := c.stream(id[:8] + "-" + last); status != http.StatusOK || mediaType != "text/event-stream" {
					t.Errorf("a stream after event %s: %d %s", last, status, mediaType)
				}
			}
			d.signal(syscall.SIGTERM)
			d.wantExit(0)
		})
	}
}

// N6: the official client notices nothing but the time that the daemon was away: its session
// goes on, and its stream, on which it hears what may have changed.
func TestAnOfficialClientGoesOnAfterKill(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	const config = `{"mcpServers": {"files": {"command": "SERVER", "closeTimeouts": {"eof": "1s"}}}}`
	d := n.serve(config, "--listen", address)
	told := make(chan struct{}, 10)
	c := mcp.NewClient(&mcp.Implementation{Name: "official", Version: "1"}, &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { told <- struct{}{} },
	})
	s, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: d.url + "/mcp/files"}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	call := func(text string) {
		t.Helper()
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": text}})
		if err != nil || len(res.Content) != 1 || res.Content[0].(*mcp.TextContent).Text != text {
			t.Fatalf("%s: %+v, %v", text, res, err)
		}
	}
	call("before")
	id := s.ID()
	d.signal(syscall.SIGKILL)
	d.wait()
	d = n.serve(config, "--listen", address)
	call("after")
	if s.ID() != id {
		t.Errorf("its session was %s and is %s", id, s.ID())
	}
	select {
	case <-told:
	case <-time.After(patience):
		t.Error("it hears nothing on its stream")
	}
	var list struct{ Sessions []struct{ ID string } }
	d.get("/api/v1/sessions", &list)
	if len(list.Sessions) != 1 || list.Sessions[0].ID != id {
		t.Errorf("the sessions are %+v", list.Sessions)
	}
	d.signal(syscall.SIGTERM)
	d.wantExit(0)
}
