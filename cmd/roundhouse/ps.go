package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"roundhouse/internal/control"
	"roundhouse/internal/pool"
	"roundhouse/internal/session"
)

func psCommand() *cobra.Command {
	var asJSON, asTree bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the live connections to servers",
		Long: `Ps lists the connections that live, and those that failed a moment ago: one for each
process of a server. A server whose circuit is open keeps failing and is left alone
for half a minute or as pool.circuit says; "roundhouse restart" tries at once.

With --tree it shows the daemon and the sessions, under each the connections that
it uses, and under these their processes with the CPU time and the memory that they
have used (on Linux), and says why each is there. Processes that several sessions
share are shown at the first. A reaper is roundhouse's own: it ends its server's
processes, also when the daemon is killed.`,
		Example: "  roundhouse ps\n  roundhouse ps --tree\n  roundhouse ps --json",
		Args:    arguments(0, 0, "no arguments"),
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&asTree, "tree", false, "show sessions, connections and processes as a tree")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var raw, rawSessions json.RawMessage
		path := "/api/v1/connections"
		if asTree {
			path += "?processes=true"
			if err := a.get(cmd.Context(), "/api/v1/sessions", &rawSessions); err != nil {
				return err
			}
		}
		if err := a.get(cmd.Context(), path, &raw); err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if !asJSON {
			if err := warnOfStatus(cmd, a); err != nil {
				return err
			}
		}
		var list control.Lives
		var sessions struct{ Sessions []session.Info }
		switch {
		case asJSON && asTree:
			return joinJSON(out, rawSessions, raw)
		case asJSON:
			return printJSON(out, raw)
		case asTree:
			if err := decode(rawSessions, &sessions); err != nil {
				return err
			}
		}
		if err := decode(raw, &list); err != nil {
			return err
		}
		if len(list.Connections)+len(sessions.Sessions) == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "roundhouse: no server is connected; each one starts when a session first uses it")
			return nil
		}
		if asTree {
			return printTree(out, sessions.Sessions, list)
		}
		t := newTable(out, "SERVER", "ENTRY", "STATE", "SHARING", "SESSIONS", "CALLS", "PID", "CHILDREN", "UPTIME", "TOOLS", "LAST ERROR")
		for _, c := range list.Connections {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%d\t%s\t%d\t%s\t%d\t%s\n", oneLine(c.Server), c.EntryIndex, stateOf(c), sharingOf(c), c.Refs, c.InFlight,
				number(c.PID), c.Descendants, milliseconds(c.UptimeMs), c.Tools, oneLine(c.LastError))
		}
		return t.Flush()
	}
	return cmd
}

// warnOfStatus says on stderr what the daemon would have said in the moment when it came
// about: that the configuration file is broken, and that the budget refuses servers.
func warnOfStatus(cmd *cobra.Command, a *api) error {
	var st control.Status
	if err := a.get(cmd.Context(), "/api/v1/status", &st); err != nil {
		return err
	}
	if st.Reload != nil && st.Reload.Refused {
		fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: the configuration file is broken; the daemon goes on with what it read before; 'roundhouse config reload' says what is wrong\n")
	}
	for _, r := range st.Budget.Refused {
		fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: server %q was refused: %s\n", r.Server, r.Reason)
	}
	return nil
}

// sharingOf says who gets a connection, for people.
func sharingOf(c pool.Info) string {
	if c.Injected {
		return "injected"
	}
	return c.Sharing
}

// stateOf is the state of a connection for people.
func stateOf(c pool.Info) string {
	switch {
	case c.Dying:
		return string(c.State) + " (ending)"
	case c.Circuit != nil && c.Circuit.State != "closed":
		return string(c.State) + " (circuit " + c.Circuit.State + ")"
	}
	return string(c.State)
}
