package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os/signal"
	"strconv"

	"github.com/spf13/cobra"

	"roundhouse/internal/control"
	"roundhouse/internal/pool"
)

func logsCommand() *cobra.Command {
	var asJSON, follow bool
	var lines int
	cmd := &cobra.Command{
		Use:   "logs SERVER",
		Short: "Show what a server wrote to stderr",
		Long: `Logs prints the last lines that the server's processes wrote to stderr, and what they
wrote to stdout beside the protocol. If the server has several connections, each
line begins with the number of its own, as 'roundhouse ps' shows it.

With --follow it goes on with later lines until it is interrupted, also when the
server is restarted. With --json a followed line is one line of JSON.`,
		Example:           "  roundhouse logs everything\n  roundhouse logs -n 20 --json everything\n  roundhouse logs -f everything",
		Args:              arguments(1, 1, "one argument, the server"),
		ValidArgsFunction: completeServers,
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with later lines")
	cmd.Flags().IntVarP(&lines, "lines", "n", 100, "how `many` of the last lines of each connection to show")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		server := "/api/v1/servers/" + url.PathEscape(args[0])
		path := server + "/logs?lines=" + strconv.Itoa(lines)
		if follow {
			return unlessStopped(ctx, a.followLogs(ctx, server, path+"&follow=true", cmd.OutOrStdout(), asJSON))
		}
		var raw json.RawMessage
		if err := a.get(ctx, path, &raw); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), raw)
		}
		var logs struct{ Connections []control.Log }
		if err := decode(raw, &logs); err != nil {
			return err
		}
		p := linePrinter{w: cmd.OutOrStdout(), seen: map[string]bool{}}
		for _, c := range logs.Connections {
			if len(c.Lines) > 0 {
				p.seen[c.ID] = true
			}
		}
		if len(p.seen) == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: server %q has written nothing, or does not run\n", args[0])
		}
		for _, c := range logs.Connections {
			for _, text := range c.Lines {
				if err := p.print(pool.Line{Connection: c.ID, EntryIndex: c.EntryIndex, Text: text}); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return cmd
}

// linePrinter prints lines for people, with the entry of each if there are several.
type linePrinter struct {
	w    io.Writer
	seen map[string]bool // connections
}

func (p *linePrinter) print(l pool.Line) error {
	p.seen[l.Connection] = true
	prefix := ""
	if len(p.seen) > 1 {
		prefix = fmt.Sprintf("[%d] ", l.EntryIndex)
	}
	_, err := fmt.Fprintln(p.w, prefix+oneLine(l.Text))
	return err
}

// followLogs prints what comes until ctx or the daemon ends.
func (a *api) followLogs(ctx context.Context, server, path string, w io.Writer, asJSON bool) error {
	p := linePrinter{w, map[string]bool{}}
	var now control.Server
	if err := a.get(ctx, server, &now); err != nil {
		return err
	}
	for _, c := range now.Connections {
		p.seen[c.ID] = true
	}
	return a.follow(ctx, path, "the server's output", func(data []byte) error {
		if asJSON {
			return printJSON(w, data)
		}
		var l pool.Line
		if err := decode(data, &l); err != nil {
			return err
		}
		return p.print(l)
	})
}
