package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"roundhouse/internal/control"
)

func restartCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "restart SERVER",
		Short: "Restart every connection of a server",
		Long: `Restart ends the server's processes, starts new ones, and says how that went for each
connection. Sessions keep theirs; calls in flight get an error. The exit status is
1 if a connection did not start again.`,
		Example:           "  roundhouse restart everything",
		Args:              arguments(1, 1, "one argument, the server"),
		ValidArgsFunction: completeServers,
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		var raw json.RawMessage
		if err := a.send(ctx, http.MethodPost, "/api/v1/servers/"+url.PathEscape(args[0])+"/restart", &raw); err != nil {
			return err
		}
		var result struct {
			Skipped bool
			Entries []control.Restarted
		}
		if err := decode(raw, &result); err != nil {
			return err
		}
		out, failed := cmd.OutOrStdout(), result.Skipped
		for _, e := range result.Entries {
			failed = failed || !e.Restarted
		}
		switch {
		case asJSON:
			if err := printJSON(out, raw); err != nil {
				return err
			}
		case result.Skipped:
			return fmt.Errorf("server %q is disabled; 'roundhouse config check' says why", args[0])
		case len(result.Entries) == 0:
			fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: server %q has no connection to restart; it starts when a session next uses it\n", args[0])
		default:
			t := newTable(out, "ENTRY", "RESTARTED", "TOOK", "REASON")
			for _, e := range result.Entries {
				restarted := "yes"
				if !e.Restarted {
					restarted = "no"
				}
				fmt.Fprintf(t, "%d\t%s\t%s\t%s\n", e.EntryIndex, restarted, time.Duration(e.DurationMs)*time.Millisecond, oneLine(e.Reason))
			}
			if err := t.Flush(); err != nil {
				return err
			}
		}
		if failed {
			return shownError{exitFailed}
		}
		return nil
	}
	return cmd
}
