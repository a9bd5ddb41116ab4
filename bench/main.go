// Command bench compares ways to reach one MCP server in one run: its own stdio, one
// process per session; roundhouse in front of it; a plain proxy of the official Go
// SDK's typed client and server in front of it; the SDK's own Streamable HTTP server,
// and roundhouse in front of that; and the same in protocol version 2026-07-28. README.md says what is measured and how to read it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// errBars is the error of a run that measured everything it could, and in which some
// bar failed or could not be measured.
var errBars = errors.New("not every bar passed")

// run does the whole benchmark. The table goes to stdout, progress to stderr. On
// return nothing that it started is left.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "measure once and briefly, in less than a minute")
	jsonFile := flags.String("json", "", "write the results as JSON to this `file` too")
	roundhouse := flags.String("roundhouse", "", "measure this roundhouse `binary` (default: built from ./cmd/roundhouse)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}

	dir, err := os.MkdirTemp("", "roundhouse-bench-")
	if err != nil {
		return fmt.Errorf("make a directory for the run: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	progress := func(format string, args ...any) { fmt.Fprintf(stderr, "bench: "+format+"\n", args...) }

	progress("building the servers")
	bin, err := build(ctx, dir, *roundhouse)
	if err != nil {
		return err
	}
	if bin.roundhouse == "" {
		progress("cannot build ./cmd/roundhouse, so it is not measured:\n%s", bin.roundhouseProblem)
	}

	plan, limit := fullPlan, 7*time.Minute
	if *quick {
		plan, limit = quickPlan, 90*time.Second
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the measurement took more than %v", limit))
	defer cancel()
	progress("counting the processes of %d sessions with %d servers each", fleetSessions, fleetServers)
	fleets, err := measureFleets(ctx, dir, bin)
	if err != nil {
		return err
	}
	fronts, err := startFronts(ctx, dir, bin)
	defer func() { err = errors.Join(err, stopFronts(fronts)) }()
	if err != nil {
		return err
	}
	results, err := plan.measure(ctx, fronts, progress)
	if err != nil {
		return err
	}
	report := newReport(plan, results)
	report.Fleets = fleets
	if err := report.writeTable(stdout); err != nil {
		return err
	}
	if *jsonFile != "" {
		if err := report.writeJSON(*jsonFile); err != nil {
			return err
		}
	}
	if !report.passed() {
		return errBars
	}
	return nil
}
