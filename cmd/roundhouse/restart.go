package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"roundhouse/internal/control"
	"roundhouse/internal/pool"
)

func restartCommand() *cobra.Command {
	var asJSON bool
	entry := -1
	cmd := &cobra.Command{
		Use:   "restart SERVER",
		Short: "Restart the connections of a server",
		Long: `Restart ends the server's processes, starts new ones, and says how that went for each
connection, or for the one that --entry names. Sessions keep theirs; calls in flight get an
error. The exit status is 1 if a connection did not start again. What made the server fail
before is forgiven: if it was left alone, the next call starts it, too.`,
		Example:           "  roundhouse restart everything\n  roundhouse restart everything --entry 0",
		Args:              arguments(1, 1, "one argument, the server"),
		ValidArgsFunction: completeServers,
	}
	a := remote(cmd)
	cmd.Flags().IntVar(&entry, "entry", -1, "restart only the connection with this `number`, as ps shows it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		path := "/api/v1/servers/" + url.PathEscape(args[0]) + "/restart"
		if cmd.Flag("entry").Changed {
			path += "?entry=" + strconv.Itoa(entry)
		}
		var raw json.RawMessage
		if err := a.send(ctx, http.MethodPost, path, &raw); err != nil {
			return err
		}
		var reply control.RestartReply
		if err := decode(raw, &reply); err != nil {
			return err
		}
		results := reply.Entries
		if reply.Restarted != nil {
			results = []control.Restarted{*reply.Restarted}
		}
		if asJSON {
			if err := printJSON(cmd.OutOrStdout(), raw); err != nil {
				return err
			}
		} else if err := printRestarts(cmd, args[0], results); err != nil {
			return err
		}
		for _, r := range results {
			if !r.Restarted {
				return shownError{exitFailed}
			}
		}
		return nil
	}
	return cmd
}

// printRestarts shows how the restarts of a server's connections went.
func printRestarts(cmd *cobra.Command, server string, results []control.Restarted) error {
	switch {
	case len(results) == 0:
		fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: server %q has no connection to restart; it starts when a session next uses it\n", server)
		return nil
	case len(results) == 1 && results[0].Reason == pool.SkipDisabled:
		return fmt.Errorf("server %q is disabled; 'roundhouse config check' says why", server)
	}
	t := newTable(cmd.OutOrStdout(), "ENTRY", "RESTARTED", "TOOK", "REASON")
	for _, r := range results {
		restarted, entry, took := "yes", "-", "-"
		switch {
		case r.Skipped:
			restarted = "skipped"
		case !r.Restarted:
			restarted = "no"
		}
		if r.EntryIndex != nil {
			entry = strconv.Itoa(*r.EntryIndex)
		}
		if r.DurationMs != nil {
			took = (time.Duration(*r.DurationMs) * time.Millisecond).String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", entry, restarted, took, oneLine(r.Reason))
	}
	return t.Flush()
}
