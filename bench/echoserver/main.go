// Command echoserver is the MCP server of the benchmark: one typed tool, echo,
// built with the official Go SDK. It serves its stdio (-stdio) or Streamable HTTP
// with the SDK's defaults (-http ADDR), so that every front of the benchmark runs
// the same tool.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "echoserver:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends, or until the client closes stdin.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("echoserver", flag.ContinueOnError)
	stdio := flags.Bool("stdio", false, "serve MCP on stdin and stdout")
	addr := flags.String("http", "", "serve MCP as Streamable HTTP on this `address`")
	jsonResponse := flags.Bool("json", false, "with -http, answer as JSON instead of an event stream")
	stateless := flags.Bool("stateless", false, "with -http, keep no sessions, as protocol version 2026-07-28 wants")
	if err := flags.Parse(args); err != nil {
		return err
	}
	server := newServer()
	switch {
	case *stdio && *addr == "":
		err := server.Run(ctx, &mcp.StdioTransport{})
		if ctx.Err() != nil {
			return nil
		}
		return err
	case *addr != "" && !*stdio:
		return serveHTTP(ctx, *addr, mcp.NewStreamableHTTPHandler(
			func(*http.Request) *mcp.Server { return server },
			&mcp.StreamableHTTPOptions{JSONResponse: *jsonResponse, Stateless: *stateless}))
	}
	return errors.New("give one of -stdio and -http ADDR")
}

// echoInput is what the echo tool takes.
type echoInput struct {
	Text string `json:"text" jsonschema:"the text to send back"`
}

func newServer() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "echoserver", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "echo", Description: "Sends the text back."},
		func(_ context.Context, _ *mcp.CallToolRequest, in echoInput) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}}}, nil, nil
		})
	return server
}

// serveHTTP serves h on addr until ctx ends, then closes all connections.
func serveHTTP(ctx context.Context, addr string, h http.Handler) error {
	srv := &http.Server{Addr: addr, Handler: h}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}
