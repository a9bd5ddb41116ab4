package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"

	"roundhouse/internal/wire"
)

func runCommand() *cobra.Command {
	var server, model, session string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "run TASK",
		Short: "Have a model carry out a task with the tools of servers",
		Long: `Run has a model work on a task, unattended, with the tools of one server or of all,
in a session of its own, or in the one that --session names. What the model says and
does goes to standard error while it works, its answer to standard output. A task that
fails, or is not completed, exits with status 1.

The model is one that llm.upstreams of the configuration serves.`,
		Example: `  roundhouse run "open http://127.0.0.1:8080/ and say what its title is" --server browser --model qwen3`,
		Args:    arguments(1, 1, "one argument, the task in words"),

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	a := remote(cmd)
	f := cmd.Flags()
	f.StringVar(&server, "server", "", "use the tools of this server alone")
	f.StringVar(&model, "model", "", "the model that works on it; the default is llm.tasks.model of the configuration")
	f.StringVar(&session, "session", "", "work in the session of this `id`, and leave it what it has then")
	f.BoolVar(&asJSON, "json", false, "print the whole result as JSON")
	_ = cmd.RegisterFlagCompletionFunc("server", func(cmd *cobra.Command, _ []string, start string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return completeServers(cmd, nil, start)
	}) // it fails for a flag that is not there
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		m, err := a.dialMCP(ctx, "roundhouse")
		if err != nil {
			return err
		}
		defer m.close(ctx) // which ends a task that was interrupted
		m.told = func(f wire.Frame) { showStep(cmd.ErrOrStderr(), f) }
		arguments := map[string]string{"task": args[0]}
		for name, value := range map[string]string{"server": server, "model": model, "session_id": session} {
			if value != "" {
				arguments[name] = value
			}
		}
		params, err := json.Marshal(map[string]any{"name": "run_task", "arguments": arguments, "_meta": map[string]any{"progressToken": 1}})
		if err != nil {
			return err
		}
		raw, err := m.call(ctx, wire.ToolsCall, params)
		if e, ok := errors.AsType[*rpcError](err); ok && e.Code == wire.InvalidParams {
			return errors.New("the daemon runs no models; its configuration must name some in llm.upstreams")
		}
		if err != nil {
			return err
		}
		return showTask(cmd, raw, asJSON)
	}
	return cmd
}

// showStep shows what a task does, on one line or several.
func showStep(w io.Writer, f wire.Frame) {
	var p struct{ Message string }
	if f.Method != wire.Progress || json.Unmarshal(f.Params(), &p) != nil || p.Message == "" {
		return
	}
	fmt.Fprintf(w, "roundhouse: %s\n", strings.ReplaceAll(p.Message, "\n", "\n  "))
}

// showTask shows what came of a task.
func showTask(cmd *cobra.Command, raw json.RawMessage, asJSON bool) error {
	var result struct {
		Content []struct{ Type, Text, MimeType string }
		IsError bool
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return fmt.Errorf("read the result: %w", err)
	}
	switch {
	case asJSON:
		fmt.Fprintln(cmd.OutOrStdout(), string(raw))
	default:
		for _, c := range result.Content {
			if c.Type == "text" {
				fmt.Fprintln(cmd.OutOrStdout(), c.Text)
			} else {
				fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: there is a part of type %s %s; see it with --json\n", c.Type, c.MimeType)
			}
		}
	}
	if result.IsError {
		return shownError{exitFailed}
	}
	return nil
}
