package main

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"roundhouse/internal/event"
)

func eventsCommand() *cobra.Command {
	var asJSON, past bool
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happens, while it happens",
		Long: `Events prints a line for each thing that happens in the daemon from now on, until it
is interrupted: connections that open, drain, recover or fail, sessions that begin and
end, servers that the budget refuses, and new configurations. Callers without admin
rights see what concerns their own sessions. With --past it begins with what has
happened lately, as far as the daemon keeps it.

With --json each line is a line of JSON.`,
		Example: "  roundhouse events --past\n  roundhouse events --past --json",
		Args:    arguments(0, 0, "no arguments"),
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&past, "past", false, "begin with what has happened lately")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		return unlessStopped(ctx, a.events(ctx, cmd.OutOrStdout(), past, asJSON))
	}
	return cmd
}

// events prints what happens until ctx or the daemon ends.
func (a *api) events(ctx context.Context, w io.Writer, past, asJSON bool) error {
	return a.follow(ctx, "/api/v1/events?past="+strconv.FormatBool(past), "the events", func(data []byte) error {
		if asJSON {
			return printJSON(w, data)
		}
		var x event.Event
		if err := decode(data, &x); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, describeEvent(x))
		return err
	})
}

// describeEvent is an event for people, in one line.
func describeEvent(e event.Event) string {
	parts := []string{e.Time.Local().Format(time.TimeOnly), strings.ReplaceAll(string(e.Kind), "_", " ")}
	add := func(format string, args ...any) { parts = append(parts, oneLine(fmt.Sprintf(format, args...))) }
	if e.EntryIndex != nil {
		add("%s [%d]", e.Server, *e.EntryIndex)
	} else if e.Server != "" {
		add("%s", e.Server)
	}
	if e.Session != "" {
		add("%s (%s)", e.Session, e.Principal)
	}
	if e.Turn != "" {
		add("turn %s: %s", e.Turn, e.Outcome)
	}
	for _, list := range []struct {
		what  string
		names []string
	}{{"lists", e.Lists}, {"refused", e.Refused}, {"added", e.Added}, {"changed", e.Changed}, {"removed", e.Removed}} {
		if len(list.names) > 0 {
			add("%s: %s", list.what, strings.Join(list.names, ", "))
		}
	}
	if e.DurationMs != nil {
		add("in %s", time.Duration(*e.DurationMs)*time.Millisecond)
	}
	if e.Lost > 0 {
		add("%s missed", counted(int(e.Lost), "event"))
	}
	if e.Reason != "" {
		add("%s", e.Reason)
	}
	return strings.Join(parts, "  ")
}
