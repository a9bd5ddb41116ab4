package shim_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The official Go client on a shim. It asks what is served, and shakes hands only if that
// is nothing of its own version.

// heard is what an official client was told.
type heard struct {
	tools    atomic.Int32
	resource atomic.Int32
	progress atomic.Int32
}

// newOfficial connects one; version is "" for its own, or an older one.
func newOfficial(t *testing.T, m *machine, version string, args ...string) (*mcp.ClientSession, *heard) {
	t.Helper()
	h := &heard{}
	client := mcp.NewClient(&mcp.Implementation{Name: "official", Version: "1"}, &mcp.ClientOptions{
		Capabilities:                &mcp.ClientCapabilities{}, // all share one connection
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { h.tools.Add(1) },
		ResourceUpdatedHandler:      func(context.Context, *mcp.ResourceUpdatedNotificationRequest) { h.resource.Add(1) },
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { h.progress.Add(1) },
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := client.Connect(ctx, &mcp.CommandTransport{Command: m.command(append([]string{"connect"}, args...)...)}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // it may be closed
	return c, h
}

// use calls a tool and returns its text.
func use(t *testing.T, c *mcp.ClientSession, tool string, arguments map[string]any) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p := &mcp.CallToolParams{Name: tool, Arguments: arguments}
	p.SetProgressToken("p")
	r, err := c.CallTool(ctx, p)
	if err != nil {
		return "", err
	}
	return r.Content[0].(*mcp.TextContent).Text, nil
}

func mustUse(t *testing.T, c *mcp.ClientSession, tool string, arguments map[string]any) string {
	t.Helper()
	got, err := use(t, c, tool, arguments)
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return got
}

// M8, M9, H8: clients of both eras on shims share one server: calls, progress, cancellation,
// lists and subscriptions are each one's own, and go on when the daemon was killed.
func TestOfficialClientsOfBothEras(t *testing.T) {
	m := newMachine(t, "", "")
	const own, older = "2026-07-28", "2025-11-25"
	versions := []string{"", older, ""}
	var clients []*mcp.ClientSession
	var all []*heard
	for i, version := range versions {
		c, h := newOfficial(t, m, version, "everything")
		clients, all = append(clients, c), append(all, h)
		if got, want := c.InitializeResult().ProtocolVersion, []string{own, older, own}[i]; got != want {
			t.Fatalf("client %d speaks %s", i, got)
		}
		tools, err := c.ListTools(t.Context(), nil)
		if err != nil || !slices.ContainsFunc(tools.Tools, func(tool *mcp.Tool) bool { return tool.Name == "echo" }) {
			t.Errorf("the tools are %v, %v", tools, err)
		}
		if got := mustUse(t, c, "echo", map[string]any{"text": "é"}); got != "é" {
			t.Errorf("echo gives %q", got)
		}
		before := h.progress.Load()
		mustUse(t, c, "slow", map[string]any{"ms": 100, "steps": 4})
		m.eventually("progress has come", func() bool { return h.progress.Load() >= before+4 })
		if err := c.Subscribe(t.Context(), &mcp.SubscribeParams{URI: fmt.Sprintf("bad://r/%d", i)}); err != nil {
			t.Errorf("subscribe: %v", err)
		}
	}
	if d, s := m.daemons(), m.servers(); len(d) != 1 || len(s) != 1 {
		t.Errorf("daemons %v, servers %v", d, s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before, ended := all[0].progress.Load(), make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{Name: "slow", Arguments: map[string]any{"ms": 60_000, "steps": 600}}
		p.SetProgressToken("p")
		_, err := clients[0].CallTool(ctx, p)
		ended <- err
	}()
	m.eventually("the server works at the call", func() bool { return all[0].progress.Load() > before })
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled call has an answer")
	}
	m.eventually("the server knows of the cancellation", func() bool { return mustUse(t, clients[1], "cancelled", nil) != "[]" })

	mustUse(t, clients[0], "add_tool", map[string]any{"name": "new"})
	mustUse(t, clients[0], "touch", map[string]any{"uri": "bad://r/2"})
	m.eventually("all have heard of the tool, and one of its resource", func() bool {
		return all[0].tools.Load() > 0 && all[1].tools.Load() > 0 && all[2].tools.Load() > 0 && all[2].resource.Load() > 0
	})
	if all[0].resource.Load() > 0 || all[1].resource.Load() > 0 {
		t.Error("a client was told of a resource that it has not subscribed to")
	}

	counts := []int32{all[0].tools.Load(), all[1].tools.Load(), all[2].tools.Load()}
	m.kill(syscall.SIGKILL)
	for i, c := range clients {
		m.eventually("calls work again", func() bool { // one may have been sent to the daemon that is gone
			got, err := use(t, c, "echo", map[string]any{"text": "x"})
			return err == nil && got == "x"
		})
		m.eventually("the client has heard that the tools may have changed", func() bool { return all[i].tools.Load() > counts[i] })
	}
	known := all[2].resource.Load()
	m.eventually("the subscription has come back", func() bool {
		mustUse(t, clients[1], "touch", map[string]any{"uri": "bad://r/2"})
		return all[2].resource.Load() > known+1
	})
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}

// Case 27, M8: a server that sessions do not share is another one for each shim, also of
// clients that shake no hands; the aggregate serves them, too.
func TestOfficialClientsOnTheirOwnServers(t *testing.T) {
	m := newMachine(t, `"own": {"command": "SERVER", "sharing": "session"}`, "")
	for _, args := range [][]string{{"own"}, {"own"}, {}} {
		c, _ := newOfficial(t, m, "", args...)
		if v := c.InitializeResult().ProtocolVersion; v != "2026-07-28" {
			t.Errorf("the client speaks %s", v)
		}
		tool := "count"
		if len(args) == 0 {
			tool = "own__count"
		}
		for _, want := range []string{"1", "2"} {
			if got := mustUse(t, c, tool, nil); got != want {
				t.Errorf("%v: the count is %s, want %s", args, got, want)
			}
		}
	}
	if n := len(m.servers()); n != 3 {
		t.Errorf("%d servers run", n)
	}
}
