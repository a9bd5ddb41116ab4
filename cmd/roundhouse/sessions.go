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

	"github.com/spf13/cobra"

	"roundhouse/internal/fault"
	"roundhouse/internal/session"
)

func sessionsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "List the sessions, or begin or end one",
		Long: `Sessions lists the sessions, oldest first: all of them for an admin, else those of the
token's own principal. AGE is since a session began, IDLE since its last call or task
ended. Sessions outlive a restart of the daemon: LOST is how many servers' instances, and
servers that had been added to it, a session had then and has no more.`,
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
		t := newTable(cmd.OutOrStdout(), "ID", "PRINCIPAL", "KIND", "STATE", "AGE", "IDLE", "IN FLIGHT", "TASKS", "LEASES", "LOST", "CALLS", "CONNECTIONS", "CLIENTS")
		for _, s := range list.Sessions {
			idle := "-"
			if s.InFlight == 0 && len(s.Tasks) == 0 {
				idle = since(s.LastActivity)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", s.ID, oneLine(s.Principal), orDash(s.Kind), s.State, since(s.CreatedAt), idle,
				s.InFlight, len(s.Tasks), len(s.Leases), len(s.Lost), s.Calls, len(s.Connections), clientNames(s.Clients))
		}
		return t.Flush()
	}
	cmd.AddCommand(sessionsCreateCommand(), sessionsEndCommand())
	return cmd
}

func sessionsCreateCommand() *cobra.Command {
	var asJSON bool
	var principal string
	var spec struct {
		ID        string            `json:"id,omitempty"`
		Kind      string            `json:"kind,omitempty"`
		Workspace string            `json:"workspace,omitempty"`
		Metadata  json.RawMessage   `json:"metadata,omitempty"`
		Limits    map[string]string `json:"limits,omitempty"`
	}
	var metadata string
	limits := map[string]*string{"idleTimeout": new(""), "expireAfter": new(""), "maxLifetime": new("")}
	cmd := &cobra.Command{
		Use:   "create [ID]",
		Short: "Begin a session",
		Long: `Create begins a session before any client does, and prints its id, which is a random
one unless it is given. Clients enter it by that name; it lives until it expires, or is
ended.`,
		Example: "  roundhouse sessions create\n  roundhouse sessions create rollout-7 --kind rollout --metadata '{\"seed\": 7}'",
		Args:    arguments(0, 1, "at most one argument, the session's id"),
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&spec.Kind, "kind", "", "the `name` of its kind, whose limits sessions.kinds of the configuration has")
	cmd.Flags().StringVar(&spec.Workspace, "workspace", "", "the `directory` that it works in")
	cmd.Flags().StringVar(&metadata, "metadata", "", "a JSON `object` to be kept with it")
	cmd.Flags().StringVar(limits["idleTimeout"], "idle-timeout", "", "how long it stays awake without a call, such as 30s")
	cmd.Flags().StringVar(limits["expireAfter"], "expire-after", "", "how long it may be idle before it is closed, such as 24h")
	cmd.Flags().StringVar(limits["maxLifetime"], "max-lifetime", "", "how long it may live, such as 2h")
	cmd.Flags().StringVar(&principal, "principal", "", "the `name` of the principal whose session it is, if that is not the token's own")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			spec.ID = args[0]
		}
		if metadata != "" {
			if !json.Valid([]byte(metadata)) {
				return usageError{errors.New("--metadata is no JSON; an object such as '{\"seed\": 7}' is wanted")}
			}
			spec.Metadata = json.RawMessage(metadata)
		}
		for name, value := range limits {
			if *value != "" {
				if spec.Limits == nil {
					spec.Limits = map[string]string{}
				}
				spec.Limits[name] = *value
			}
		}
		body, err := json.Marshal(spec)
		if err != nil {
			return err
		}
		path := "/api/v1/sessions"
		if principal != "" {
			path += "?" + url.Values{"principal": {principal}}.Encode()
		}
		var raw json.RawMessage
		if err := a.sendJSON(cmd.Context(), http.MethodPost, path, body, &raw); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), raw)
		}
		var made session.Info
		if err := decode(raw, &made); err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), made.ID)
		return err
	}
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
