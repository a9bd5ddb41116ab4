package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"roundhouse/internal/pool"
)

func psCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ps",
		Short:   "List the live connections to servers",
		Example: "  roundhouse ps\n  roundhouse ps --json",
		Args:    arguments(0, 0, "no arguments"),
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var raw json.RawMessage
		if err := a.get(cmd.Context(), "/api/v1/connections", &raw); err != nil {
			return err
		}
		out := cmd.OutOrStdout()
		if asJSON {
			_, err := fmt.Fprintln(out, string(raw))
			return err
		}
		var list struct{ Connections []pool.Info }
		if err := json.Unmarshal(raw, &list); err != nil {
			return fmt.Errorf("read the daemon's answer: %w", err)
		}
		if len(list.Connections) == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "roundhouse: no server is connected; each one starts when a session first uses it")
			return nil
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "SERVER\tENTRY\tSTATE\tSHARING\tSESSIONS\tCALLS\tPID\tCHILDREN\tUPTIME\tTOOLS\tLAST ERROR")
		for _, c := range list.Connections {
			state := string(c.State)
			if c.Dying {
				state += " (ending)"
			}
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%d\t%s\t%d\t%s\t%d\t%s\n", c.Server, c.EntryIndex, state, c.Sharing, c.Refs, c.InFlight,
				number(c.PID), c.Descendants, uptime(c.UptimeMs), c.Tools, oneLine(c.LastError))
		}
		return w.Flush()
	}
	return cmd
}

// oneLine is a text for a table: what a server wrote may be in it, and must not
// control the terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func uptime(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return (time.Duration(ms) * time.Millisecond).Round(time.Second).String()
}
