//go:build interop

package interop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const modern = "2026-07-28"

// M8: clients without a handshake share a server of the older era with those that
// have one: answers, progress and cancellation are each one's own.
func TestTwentyModernClientsShareOneProcess(t *testing.T) {
	d := startDaemon(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var clients [sessions]*client
	each(t, func(i int) (err error) {
		version := ""
		if i%4 == 3 {
			version = legacy
		}
		clients[i], err = dial(ctx, d.mcp("everything"), version, mcp.ClientOptions{})
		return err
	})
	for i, c := range clients {
		if got, want := c.InitializeResult().ProtocolVersion, []string{modern, modern, modern, legacy}[i%4]; got != want {
			t.Fatalf("client %d speaks %s, want %s", i, got, want)
		}
	}
	each(t, func(i int) error { return useEverything(ctx, clients[i], i) })
	if got := len(d.servers("server-everything")); got != 1 {
		t.Errorf("%d processes of the everything server, want 1", got)
	}
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Errorf("closing a client: %v", err)
		}
	}
}

// M3, M9: what the server has is listed, read and listened to.
func TestModernClientListensAndReads(t *testing.T) {
	d := startDaemon(t, nil)
	ctx := t.Context()
	a, b := connect(t, d.mcp("everything"), modern, mcp.ClientOptions{}), connect(t, d.mcp("everything"), modern, mcp.ClientOptions{})
	if got := a.InitializeResult(); got.ProtocolVersion != modern || got.ServerInfo == nil || got.ServerInfo.Name != "mcp-servers/everything" || got.Instructions == "" {
		t.Errorf("discovered %+v", got)
	}
	tools, err := a.ListTools(ctx, nil)
	if err != nil || !slices.ContainsFunc(tools.Tools, func(tool *mcp.Tool) bool { return tool.Name == "echo" }) {
		t.Errorf("tools: %+v, %v", tools, err)
	}
	if slices.ContainsFunc(tools.Tools, func(tool *mcp.Tool) bool { return tool.Name == "trigger-sampling-request" }) {
		t.Error("a tool is listed that would have to ask the client")
	}
	prompt, err := a.GetPrompt(ctx, &mcp.GetPromptParams{Name: "args-prompt", Arguments: map[string]string{"city": "Turin"}})
	if err != nil || !strings.Contains(prompt.Messages[0].Content.(*mcp.TextContent).Text, "Turin") {
		t.Errorf("prompt: %+v, %v", prompt, err)
	}
	resource, err := a.ReadResource(ctx, &mcp.ReadResourceParams{URI: "demo://resource/dynamic/text/7"})
	if err != nil || !strings.HasPrefix(resource.Contents[0].Text, "Resource 7: ") {
		t.Errorf("resource: %+v, %v", resource, err)
	}
	// The SDK itself sends resources/subscribe as a listen, one for each URI.
	for i, c := range []*client{a, b} {
		for _, uri := range []string{"demo://resource/dynamic/text/1000", fmt.Sprintf("demo://resource/dynamic/text/%d", i+1)} {
			if err := c.Subscribe(ctx, &mcp.SubscribeParams{URI: uri}); err != nil {
				t.Fatalf("subscribe to %s: %v", uri, err)
			}
		}
	}
	if _, err := a.call(ctx, "toggle-subscriber-updates", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "both have their updates", func() bool { return len(a.updates()) >= 2 && len(b.updates()) >= 2 })
	if _, err := a.call(ctx, "toggle-subscriber-updates", nil); err != nil {
		t.Fatal(err)
	}
	for i, c := range []*client{a, b} {
		for _, uri := range c.updates() {
			if uri != "demo://resource/dynamic/text/1000" && uri != fmt.Sprintf("demo://resource/dynamic/text/%d", i+1) {
				t.Errorf("client %d was told of %s", i, uri)
			}
		}
	}
}

// H7, M9: the aggregate without a handshake. A client that has handlers for changed
// lists listens from its beginning on.
func TestModernAggregate(t *testing.T) {
	d := startDaemon(t, nil)
	ctx := t.Context()
	var changed atomic.Int32
	c := connect(t, d.mcp(""), modern, mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed.Add(1) },
	})
	var names []string
	for tool, err := range c.Tools(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	for _, name := range []string{"everything__echo", "files__read_text_file", "memory__read_graph"} {
		if !slices.Contains(names, name) {
			t.Errorf("no tool %s in %v", name, names)
		}
	}
	if got, err := c.call(ctx, "everything__echo", map[string]any{"message": "hi"}); err != nil || got != "Echo: hi" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := c.call(ctx, "everything__nonsense", nil); wireError(err) == nil || wireError(err).Code != -32602 {
		t.Errorf("an unknown tool: %v, want code -32602", err)
	}
}
