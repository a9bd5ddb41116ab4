// Command engine is the model that the benchmark's streams come from: whatever is asked
// of it, it answers with the same chat completion as an event stream, one token after the
// other at a steady pace.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "engine:", err)
		os.Exit(1)
	}
}

const (
	chunkStart = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":`
	token      = chunkStart + `{"content":" token"},"finish_reason":null}]}` + "\n\n"
	end        = chunkStart + `{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
)

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("engine", flag.ContinueOnError)
	addr := flags.String("http", "127.0.0.1:0", "serve on this `address`")
	tokens := flags.Int("tokens", 100, "a stream has this many tokens")
	pace := flags.Duration("pace", 5*time.Millisecond, "between two tokens of a stream")
	if err := flags.Parse(args); err != nil {
		return err
	}
	srv := &http.Server{Addr: *addr, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a client that is gone shows at the first write
		w.Header().Set("Content-Type", "text/event-stream")
		out := http.NewResponseController(w)
		for range *tokens {
			_, _ = io.WriteString(w, token)
			if out.Flush() != nil {
				return
			}
			time.Sleep(*pace)
		}
		_, _ = io.WriteString(w, end)
	})}
	stop := context.AfterFunc(ctx, func() { srv.Close() })
	defer stop()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}
