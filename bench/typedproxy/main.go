// Command typedproxy is the plain proxy that the benchmark compares with: the
// official Go SDK's typed client on the stdio of a command, and the SDK's
// Streamable HTTP server in front of it. All sessions share the one upstream
// connection. It does what can be written in an afternoon, no less and no more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "typedproxy:", err)
		os.Exit(1)
	}
}

// run starts the upstream command, registers its tools, and serves until ctx ends.
func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("typedproxy", flag.ContinueOnError)
	addr := flags.String("http", "", "serve MCP as Streamable HTTP on this `address`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	command := flags.Args()
	if *addr == "" || len(command) == 0 {
		return errors.New("usage: typedproxy -http ADDR COMMAND [ARG...]")
	}

	impl := &mcp.Implementation{Name: "typedproxy", Version: "1"}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	upstream, err := mcp.NewClient(impl, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", command[0], err)
	}
	defer func() { err = errors.Join(err, upstream.Close()) }()

	server := mcp.NewServer(impl, nil)
	for tool, err := range upstream.Tools(ctx, nil) {
		if err != nil {
			return fmt.Errorf("list the tools of %s: %w", command[0], err)
		}
		server.AddTool(tool, forward(upstream))
	}
	return serveHTTP(ctx, *addr, mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return server }, nil))
}

// forward returns a handler that makes the same call upstream.
func forward(upstream *mcp.ClientSession) mcp.ToolHandler {
	return func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return upstream.CallTool(ctx, &mcp.CallToolParams{Name: req.Params.Name, Arguments: req.Params.Arguments})
	}
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
