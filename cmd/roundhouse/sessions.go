package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"roundhouse/internal/fault"
	"roundhouse/internal/session"
)

func sessionsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "List the sessions, or end one",
		Long: `Sessions lists the sessions, oldest first: all of them for an admin, else those of the
token's own principal.`,
		Example: "  roundhouse sessions\n  roundhouse sessions --json",
		Args:    noSuchCommand,
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var raw json.RawMessage
		if err := a.get(cmd.Context(), "/api/v1/sessions", &raw); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), raw)
		}
		var list struct{ Sessions []session.Info }
		if err := decode(raw, &list); err != nil {
			return err
		}
		if len(list.Sessions) == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "roundhouse: there is no session; each client that connects begins or enters one")
			return nil
		}
		t := newTable(cmd.OutOrStdout(), "ID", "PRINCIPAL", "STATE", "IDLE", "IN FLIGHT", "CALLS", "CONNECTIONS", "CLIENTS")
		for _, s := range list.Sessions {
			idle := "-"
			if s.InFlight == 0 {
				idle = max(time.Since(s.LastActivity), 0).Round(time.Second).String()
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\n", s.ID, oneLine(s.Principal), s.State, idle, s.InFlight, s.Calls, len(s.Connections), clientNames(s.Clients))
		}
		return t.Flush()
	}
	cmd.AddCommand(sessionsEndCommand())
	return cmd
}

// clientNames says which clients a session has, each name once.
func clientNames(clients []session.ClientInfo) string {
	var names []string
	for _, c := range clients {
		name := c.Name
		if name == "" {
			name = "unnamed"
		}
		if name = brief(name, 40); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, ", ")
}

func sessionsEndCommand() *cobra.Command {
	var asJSON, force bool
	var principal string
	cmd := &cobra.Command{
		Use:   "end ID",
		Short: "End a session",
		Long: `End waits for the session's calls in flight, at most for shutdown.grace, and ends it:
its connections are free for others, and its clients begin a new session when they
next call. With --force calls in flight are not waited for.`,
		Example:           "  roundhouse sessions end review",
		Args:              arguments(1, 1, "one argument, the session's id ('roundhouse sessions' lists them)"),
		ValidArgsFunction: completeSessions,
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&force, "force", false, "do not wait for calls in flight")
	cmd.Flags().StringVar(&principal, "principal", "", "the `name` of the principal whose session it is, if several have one of this id")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if args[0] == "" {
			return usageError{errors.New("the session's id is empty; 'roundhouse sessions' lists them")}
		}
		query := url.Values{}
		if force {
			query.Set("force", "true")
		}
		if principal != "" {
			query.Set("principal", principal)
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		err := a.send(ctx, http.MethodDelete, "/api/v1/sessions/"+url.PathEscape(args[0])+"?"+query.Encode(), nil)
		if e, ok := errors.AsType[*remoteError](err); ok && e.reason == fault.UnknownSession {
			return fmt.Errorf("%w; 'roundhouse sessions' lists them", err)
		}
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"session": args[0], "ended": true})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "session %s has ended\n", args[0])
		return err
	}
	return cmd
}
