package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/signal"

	"github.com/spf13/cobra"

	"roundhouse/internal/wire"
)

func callCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "call SERVER TOOL [JSON]",
		Short: "Call a tool of a server through the daemon",
		Long: `Call runs one tool in a session of its own and prints the text of its result, or
with --json the whole result as the server sent it. A result that the tool marks
as an error is printed too, and the exit status is 1.`,
		Example: `  roundhouse call everything echo '{"message": "hello"}'`,
		Args:    arguments(2, 3, "a server, a tool and, if it needs any, its arguments as a JSON object"),

		ValidArgsFunction: completeCall,
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the whole result as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		arguments := []byte("{}")
		if len(args) == 3 {
			arguments = bytes.TrimSpace([]byte(args[2]))
			if err := wire.Valid(arguments); err != nil || arguments[0] != '{' {
				return usageError{fmt.Errorf("the tool's arguments must be a JSON object such as '{\"message\": \"hello\"}'")}
			}
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		m, err := a.dialMCP(ctx, args[0])
		if err != nil {
			return err
		}
		defer m.close(ctx)
		params := append(append([]byte(`{"name":`), wire.Quote(args[1])...), `,"arguments":`...)
		params = append(append(params, arguments...), '}')
		raw, err := m.call(ctx, wire.ToolsCall, wire.Flatten(params))
		if err != nil {
			return err
		}
		var result struct {
			Content []struct{ Type, Text, MimeType string }
			IsError bool
		}
		if err := json.Unmarshal(raw, &result); err != nil {
			return fmt.Errorf("read the tool's result: %w", err)
		}
		out := cmd.OutOrStdout()
		switch {
		case asJSON:
			fmt.Fprintln(out, string(raw))
		case len(result.Content) == 0:
			fmt.Fprintln(cmd.ErrOrStderr(), "roundhouse: the result has no text; see it with --json")
		default:
			for _, c := range result.Content {
				if c.Type == "text" {
					fmt.Fprintln(out, c.Text)
				} else {
					fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: the result has a part of type %s %s; see it with --json\n", c.Type, c.MimeType)
				}
			}
		}
		if result.IsError {
			return shownError{exitFailed}
		}
		return nil
	}
	return cmd
}
