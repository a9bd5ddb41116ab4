// Command bench compares ways to reach one MCP server in one run: its own stdio, one
// process per session; roundhouse in front of it; a plain proxy of the official Go
// SDK's typed client and server in front of it; the SDK's own Streamable HTTP server,
// and roundhouse in front of that; and the same in protocol version 2026-07-28.
// Then it compares ways to read a model's streams: a bare httputil.ReverseProxy, nginx, and
// roundhouse with each recording policy. README.md says what is measured and how to read it.
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
	only := flags.String("only", "", "measure only `what`: calls or streams")
	roundhouse := flags.String("roundhouse", "", "measure this roundhouse `binary` (default: built from ./cmd/roundhouse)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *only != "" && *only != "calls" && *only != "streams" {
		return fmt.Errorf("-only must be calls or streams, not %q", *only)
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

	plan, streams, limit := fullPlan, fullStreamPlan, 10*time.Minute
	if *quick {
		plan, streams, limit = quickPlan, quickStreamPlan, 2*time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the measurement took more than %v", limit))
	defer cancel()
	var report report
	if *only != "streams" {
		if report, err = measureCalls(ctx, dir, bin, plan, progress); err != nil {
			return err
		}
	}
	if *only != "calls" {
		var bars []bar
		if report.Streams, bars, err = measureStreams(ctx, dir, bin, streams, progress); err != nil {
			return err
		}
		report.Bars = append(report.Bars, bars...)
	}
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

// measureCalls measures everything about calls of tools.
func measureCalls(ctx context.Context, dir string, bin binaries, p plan, progress func(string, ...any)) (_ report, err error) {
	progress("counting the processes of %d sessions with %d servers each", fleetSessions, fleetServers)
	fleets, err := measureFleets(ctx, dir, bin)
	if err != nil {
		return report{}, err
	}
	fronts, err := startFronts(ctx, dir, bin)
	defer func() { err = errors.Join(err, stopFronts(fronts)) }()
	if err != nil {
		return report{}, err
	}
	results, err := p.measure(ctx, fronts, progress)
	if err != nil {
		return report{}, err
	}
	r := newReport(p, results)
	r.Fleets = fleets
	return r, nil
}
