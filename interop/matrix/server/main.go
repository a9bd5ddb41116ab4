// The matrix server is made of the official Go SDK, and has one tool for each thing
// that a client can experience. Its tools work in one era only, so that it is known
// which one was spoken.
//
//	server -era legacy|modern [-http ADDRESS]
//
//lint:file-ignore SA1019 Sampling and roots are deprecated, and have to work as long as there are clients and servers that have them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const modern = "2026-07-28"

func main() {
	era := flag.String("era", "legacy", "legacy: with a handshake; modern: "+modern+" only")
	address := flag.String("http", "", "serve Streamable HTTP at this address instead of standard input and output")
	flag.Parse()
	if err := run(*era == "modern", *address); err != nil {
		log.Fatal(err)
	}
}

func run(isModern bool, address string) error {
	// A server of the older era knows everything but the newest version.
	versions := slices.DeleteFunc(mcp.SupportedProtocolVersions(), func(v string) bool { return (v == modern) != isModern })
	accept := func(context.Context, *mcp.SubscribeRequest) error { return nil }
	server := mcp.NewServer(&mcp.Implementation{Name: "matrix", Version: "1"}, &mcp.ServerOptions{
		SupportedProtocolVersions: versions,
		SubscribeHandler:          accept,
		UnsubscribeHandler:        func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	addTools(server, isModern)
	server.AddResourceTemplate(&mcp.ResourceTemplate{Name: "marks", URITemplate: "mark://{name}"},
		func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "this is " + r.Params.URI}}}, nil
		})
	if address == "" {
		return server.Run(context.Background(), &mcp.StdioTransport{})
	}
	return http.ListenAndServe(address, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: isModern, PropagateRequestCancellation: true}))
}

// arguments of all tools; each uses what it needs.
type arguments struct {
	Mark  string `json:"mark,omitempty"`  // names who calls
	Kind  string `json:"kind,omitempty"`  // what ask asks for
	Steps int    `json:"steps,omitempty"` // how often count reports progress
}

// held are the marks of the calls of hold that were cancelled.
type held struct {
	mu    sync.Mutex
	marks []string
}

func addTools(server *mcp.Server, isModern bool) {
	add := func(name string, f func(context.Context, *mcp.CallToolRequest, arguments) (*mcp.CallToolResult, error)) {
		mcp.AddTool(server, &mcp.Tool{Name: name}, func(ctx context.Context, r *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, any, error) {
			if version := r.ProtocolVersion(); (version >= modern) != isModern {
				return nil, nil, fmt.Errorf("called in protocol version %s", version)
			}
			result, err := f(ctx, r, a)
			return result, nil, err
		})
	}
	add("echo", func(_ context.Context, _ *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, error) {
		return text(a.Mark), nil
	})
	add("count", count)
	var cancelled held
	add("hold", cancelled.hold)
	add("held", func(context.Context, *mcp.CallToolRequest, arguments) (*mcp.CallToolResult, error) {
		cancelled.mu.Lock()
		defer cancelled.mu.Unlock()
		return text(strings.Join(cancelled.marks, " ")), nil
	})
	add("ask", ask)
	add("touch", func(ctx context.Context, _ *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, error) {
		return text("touched"), server.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: "mark://" + a.Mark})
	})
	add("grow", func(_ context.Context, _ *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, error) {
		add("grown-"+a.Mark, func(context.Context, *mcp.CallToolRequest, arguments) (*mcp.CallToolResult, error) {
			return text(a.Mark), nil
		})
		return text("grown"), nil
	})
}

// count reports progress under the caller's mark.
func count(ctx context.Context, r *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, error) {
	for k := range a.Steps {
		if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: r.Params.GetProgressToken(), Message: a.Mark, Progress: float64(k + 1), Total: float64(a.Steps),
		}); err != nil {
			return nil, err
		}
		time.Sleep(20 * time.Millisecond) // others come in between
	}
	return text(a.Mark), nil
}

// hold says that it has begun, waits for its cancellation, and remembers whose it was.
func (h *held) hold(ctx context.Context, r *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, error) {
	if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Message: a.Mark}); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		h.marks = append(h.marks, a.Mark)
		return nil, ctx.Err()
	case <-time.After(30 * time.Second):
		return nil, errors.New("nobody cancelled")
	}
}

// ask asks the caller: in the older era by a request while the call runs, in the new
// one by a result that says what is missing.
func ask(ctx context.Context, r *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, error) {
	sampling := &mcp.CreateMessageParams{MaxTokens: 100, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: a.Mark}}}}
	elicitation := &mcp.ElicitParams{Message: a.Mark, RequestedSchema: map[string]any{
		"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}, "required": []string{"name"},
	}}
	if r.ProtocolVersion() < modern {
		return push(ctx, r.Session, a.Kind, sampling, elicitation)
	}
	if answer, ok := r.Params.InputResponses[a.Kind]; ok {
		if r.Params.RequestState != "state of "+a.Mark {
			return nil, fmt.Errorf("%s came back with the state %q", a.Mark, r.Params.RequestState)
		}
		return said(answer)
	}
	wanted := map[string]mcp.InputRequest{"sampling": sampling, "elicitation": elicitation, "roots": &mcp.ListRootsParams{}}[a.Kind]
	return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{a.Kind: wanted}, RequestState: "state of " + a.Mark}, nil
}

func push(ctx context.Context, session *mcp.ServerSession, kind string, sampling *mcp.CreateMessageParams, elicitation *mcp.ElicitParams) (*mcp.CallToolResult, error) {
	switch kind {
	case "sampling":
		answer, err := session.CreateMessage(ctx, sampling)
		if err != nil {
			return nil, err
		}
		return said(answer)
	case "elicitation":
		answer, err := session.Elicit(ctx, elicitation)
		if err != nil {
			return nil, err
		}
		return said(answer)
	default:
		answer, err := session.ListRoots(ctx, nil)
		if err != nil {
			return nil, err
		}
		return said(answer)
	}
}

// said is what the client answered, as text.
func said(answer any) (*mcp.CallToolResult, error) {
	switch answer := answer.(type) {
	case *mcp.CreateMessageResult:
		return text(answer.Content.(*mcp.TextContent).Text), nil
	case *mcp.CreateMessageWithToolsResult: // the SDK reads retries as this
		return text(answer.Content[0].(*mcp.TextContent).Text), nil
	case *mcp.ElicitResult:
		return text(fmt.Sprint(answer.Action, " ", answer.Content["name"])), nil
	case *mcp.ListRootsResult:
		var uris []string
		for _, root := range answer.Roots {
			uris = append(uris, root.URI)
		}
		return text(strings.Join(uris, " ")), nil
	default:
		return nil, fmt.Errorf("an answer of type %T", answer)
	}
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}
