//go:build interop

package interop

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// client is one session of the SDK with what it was notified of.
type client struct {
	*mcp.ClientSession

	mu       sync.Mutex
	progress map[any][]mcp.ProgressNotificationParams // by progress token
	updated  []string                                 // URIs of resources/updated
}

// connect makes a client that asks for the protocol version, or for the SDK's own
// choice if version is empty. Handlers in opts are kept. Without
// opts.Capabilities the client declares none; the SDK would declare roots. The
// session is closed when the test ends, if it was not before.
func connect(t *testing.T, endpoint, version string, opts mcp.ClientOptions) *client {
	t.Helper()
	c, err := dial(t.Context(), endpoint, version, opts)
	if err != nil {
		t.Fatalf("connecting to %s: %v", endpoint, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func dial(ctx context.Context, endpoint, version string, opts mcp.ClientOptions) (*client, error) {
	c := &client{progress: make(map[any][]mcp.ProgressNotificationParams)}
	if opts.Capabilities == nil {
		opts.Capabilities = &mcp.ClientCapabilities{}
	}
	opts.ProgressNotificationHandler = func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.progress[r.Params.ProgressToken] = append(c.progress[r.Params.ProgressToken], *r.Params)
	}
	opts.ResourceUpdatedHandler = func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.updated = append(c.updated, r.Params.URI)
	}
	// Each client has its own TCP connections, as clients in processes of their own have.
	transport := &mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "interop", Version: "1"}, &opts).
		Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		return nil, err
	}
	c.ClientSession = session
	return c, nil
}

// call calls a tool and returns the text of its result. A tool that refuses is an error.
func (c *client) call(ctx context.Context, tool string, args map[string]any) (string, error) {
	if args == nil {
		args = map[string]any{} // a nil map would be sent as null
	}
	return c.callWith(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
}

func (c *client) callWith(ctx context.Context, params *mcp.CallToolParams) (string, error) {
	result, err := c.CallTool(ctx, params)
	if err != nil {
		return "", err
	}
	text := textOf(result)
	if result.IsError {
		return "", errors.New(text)
	}
	return text, nil
}

// progressOf is what came so far under a token, as the SDK decoded it.
func (c *client) progressOf(token any) []mcp.ProgressNotificationParams {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.progress[token])
}

// tokens are all tokens under which progress came.
func (c *client) tokens() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.progress)
}

// updates are the URIs of resources/updated so far, sorted.
func (c *client) updates() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.updated))
}

func textOf(result *mcp.CallToolResult) string {
	var text []string
	for _, part := range result.Content {
		if t, ok := part.(*mcp.TextContent); ok {
			text = append(text, t.Text)
		}
	}
	return strings.Join(text, "\n")
}

// wireError finds the JSON-RPC error that the daemon answered.
func wireError(err error) *jsonrpc.Error {
	e, _ := errors.AsType[*jsonrpc.Error](err)
	return e
}
