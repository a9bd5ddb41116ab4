// The matrix client holds sessions of the official Go SDK's client, and does with them
// what it is told, one JSON object a line on standard input; on standard output comes
// one for each when it is done. interop/js/peers.mjs says what can be asked.
//
//lint:file-ignore SA1019 Sampling and roots are deprecated, and have to work as long as there are clients and servers that have them.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const modern = "2026-07-28"

// order is one line of input.
type order struct {
	ID        int            `json:"id"`
	Op        string         `json:"op"`
	Session   string         `json:"session"`
	URL       string         `json:"url"`
	Command   []string       `json:"command"`
	Era       string         `json:"era"`
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
	Key       string         `json:"key"`
	URI       string         `json:"uri"`
}

// reply is one line of output. Exactly one of its members besides ID is set.
type reply struct {
	ID     int     `json:"id"`
	Result any     `json:"result,omitempty"`
	Error  *failed `json:"error,omitempty"`
}

type failed struct {
	Code    int64  `json:"code,omitempty"`
	Message string `json:"message"`
}

type progress struct {
	Progress float64 `json:"progress"`
	Total    float64 `json:"total"`
	Message  string  `json:"message"`
}

// session is one client and what it has heard.
type session struct {
	*mcp.ClientSession
	name string

	mu       sync.Mutex
	updated  []string
	changes  int
	progress map[string][]progress // by token
	calls    map[string]context.CancelFunc
	granted  []string // URIs, and lists: what the server has said it will tell of
}

// lists stands for the lists of tools where a URI would stand for a resource.
const lists = "lists"

// acknowledged takes the server's word on what it will tell of.
func (s *session) acknowledged(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
		if p, ok := r.GetParams().(*mcp.SubscriptionsAcknowledgedParams); ok {
			s.mu.Lock()
			s.granted = append(s.granted, p.Notifications.ResourceSubscriptions...)
			if p.Notifications.ToolsListChanged {
				s.granted = append(s.granted, lists)
			}
			s.mu.Unlock()
		}
		return next(ctx, method, r)
	}
}

// await waits for the server's word. The SDK's client of 2026-07-28 asks for it and does
// not wait, so that the server may get to a call that it makes then before it listens.
func (s *session) await(what string) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		granted := slices.Contains(s.granted, what)
		s.mu.Unlock()
		if granted {
			return nil
		}
	}
	return fmt.Errorf("the server has not acknowledged that it will tell of %s", what)
}

// isModern reports whether the session is of 2026-07-28.
func (s *session) isModern() bool { return s.InitializeResult().ProtocolVersion == modern }

func main() {
	var mu sync.Mutex // guards sessions and the output
	sessions := make(map[string]*session)
	output := json.NewEncoder(os.Stdout)
	var pending sync.WaitGroup
	defer pending.Wait()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			log.Fatal(err)
		}
		pending.Go(func() {
			mu.Lock()
			s := sessions[o.Session]
			mu.Unlock()
			result, err := obey(s, o)
			answer := reply{ID: o.ID, Result: result}
			if err != nil {
				answer = reply{ID: o.ID, Error: &failed{Message: err.Error()}}
				if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
					answer.Error.Code = e.Code
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if opened, ok := result.(*session); ok {
				sessions[o.Session] = opened
				answer.Result = opened.InitializeResult().ProtocolVersion
			}
			if err := output.Encode(answer); err != nil {
				log.Fatal(err)
			}
		})
	}
}

func obey(s *session, o order) (any, error) {
	ctx := context.Background()
	if o.Op == "open" {
		return open(ctx, o)
	}
	switch o.Op {
	case "call":
		return s.call(ctx, o)
	case "progress":
		s.mu.Lock()
		defer s.mu.Unlock()
		return append([]progress{}, s.progress[o.Key]...), nil
	case "cancel":
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls[o.Key]()
		return true, nil
	case "subscribe":
		if err := s.Subscribe(ctx, &mcp.SubscribeParams{URI: o.URI}); err != nil || !s.isModern() {
			return true, err
		}
		return true, s.await(o.URI)
	case "tools":
		var names []string
		for tool, err := range s.Tools(ctx, nil) {
			if err != nil {
				return nil, err
			}
			names = append(names, tool.Name)
		}
		return names, nil
	case "heard":
		s.mu.Lock()
		defer s.mu.Unlock()
		return map[string]any{"updated": append([]string{}, s.updated...), "changes": s.changes, "errors": []string{}}, nil
	case "close":
		return true, s.Close()
	default:
		return nil, fmt.Errorf("no such order: %s", o.Op)
	}
}

func open(ctx context.Context, o order) (*session, error) {
	s := &session{name: o.Session, progress: make(map[string][]progress), calls: make(map[string]context.CancelFunc)}
	client := mcp.NewClient(&mcp.Implementation{Name: s.name, Version: "1"}, &mcp.ClientOptions{
		CreateMessageHandler: func(_ context.Context, r *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{
				Model: s.name, Role: "assistant",
				Content: &mcp.TextContent{Text: s.name + " heard " + r.Params.Messages[0].Content.(*mcp.TextContent).Text},
			}, nil
		},
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": s.name}}, nil
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changes++
		},
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.updated = append(s.updated, r.Params.URI)
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			s.mu.Lock()
			defer s.mu.Unlock()
			token := fmt.Sprint(r.Params.ProgressToken)
			s.progress[token] = append(s.progress[token], progress{r.Params.Progress, r.Params.Total, r.Params.Message})
		},
	})
	client.AddRoots(&mcp.Root{URI: "file:///" + s.name, Name: s.name})
	client.AddReceivingMiddleware(s.acknowledged)
	version := "2025-11-25"
	if o.Era == "modern" {
		version = modern
	}
	// Each client has its own TCP connections, as clients in processes of their own have.
	var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: o.URL, HTTPClient: &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}}
	if o.URL == "" {
		transport = &mcp.CommandTransport{Command: exec.Command(o.Command[0], o.Command[1:]...)}
	}
	var err error
	s.ClientSession, err = client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil || !s.isModern() {
		return s, err
	}
	if tools := s.InitializeResult().Capabilities.Tools; tools == nil || !tools.ListChanged {
		return s, nil
	}
	return s, s.await(lists)
}

// result is what came of a call.
type result struct {
	Text    string `json:"text"`
	IsError bool   `json:"isError"`
}

func (s *session) call(ctx context.Context, o order) (*result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.calls[o.Key] = cancel
	delete(s.progress, o.Key)
	s.mu.Unlock()
	params := &mcp.CallToolParams{Name: o.Tool, Arguments: o.Arguments}
	params.SetProgressToken(o.Key) // the same in all sessions
	answer, err := s.CallTool(ctx, params)
	if err != nil {
		return nil, err
	}
	got := &result{IsError: answer.IsError}
	for _, part := range answer.Content {
		if t, ok := part.(*mcp.TextContent); ok {
			got.Text += t.Text
		}
	}
	return got, nil
}
