package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"roundhouse/internal/control"
	"roundhouse/internal/event"
	"roundhouse/internal/fault"
	"roundhouse/internal/store"
	"roundhouse/internal/trace"
)

func tracesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "traces",
		Short: "Look at recorded model calls",
		Long: `Traces shows what the daemon has recorded of model calls: all of it to an admin, to
others that of their own sessions. 'roundhouse export' turns it into data to train on.`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(tracesListCommand(), tracesShowCommand(), tracesTailCommand(), tracesCheckCommand(), tracesSealCommand(), tracesDeleteCommand())
	return cmd
}

// recording is how the commands name a recorded session.
type recording struct {
	*api
	principal   string
	incarnation int
}

// namesRecording adds the flags that say which recording is meant.
func namesRecording(cmd *cobra.Command) *recording {
	r := &recording{api: remote(cmd)}
	cmd.Flags().StringVar(&r.principal, "principal", "", "the `name` of the principal whose session it is, if several have one of this id")
	cmd.Flags().IntVar(&r.incarnation, "incarnation", 0, "which `life` of the id, from 1; the default is the newest")
	return r
}

// path is that of a resource of the session.
func (r *recording) path(session, resource string, query url.Values) (string, error) {
	if session == "" {
		return "", usageError{errors.New("the session's id is empty; 'roundhouse traces ls' lists them")}
	}
	if query == nil {
		query = url.Values{}
	}
	if r.principal != "" {
		query.Set("principal", r.principal)
	}
	if r.incarnation != 0 {
		query.Set("incarnation", strconv.Itoa(r.incarnation))
	}
	return "/api/v1/sessions/" + url.PathEscape(session) + resource + "?" + query.Encode(), nil
}

// helpfully says where the names of sessions are.
func helpfully(err error) error {
	if e, ok := errors.AsType[*remoteError](err); ok && e.reason == fault.UnknownSession {
		return fmt.Errorf("%w; 'roundhouse traces ls' lists what is recorded", err)
	}
	return err
}

const oneRecordedSession = "one argument, the session's id ('roundhouse traces ls' lists them)"

func tracesListCommand() *cobra.Command {
	var asJSON bool
	var state string
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List the recorded sessions",
		Long:    "Ls lists the recorded sessions in the order in which they began, and says which recordings\nare complete.",
		Example: "  roundhouse traces ls\n  roundhouse traces ls --state open --json",
		Args:    arguments(0, 0, "no arguments"),
	}
	a := remote(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&state, "state", "", "only those that are `open` or sealed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, err := a.traces(cmd.Context(), state)
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(control.Traces{Traces: all})
		}
		if len(all) == 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "roundhouse: nothing is recorded; the configuration's \"llm\" says what is, of model calls that name a session")
			return nil
		}
		t := newTable(cmd.OutOrStdout(), "SESSION", "PRINCIPAL", "STATE", "CALLS", "TURNS", "LAST CALL", "COMPLETE")
		for _, r := range all {
			name := r.ID
			if r.Incarnation > 1 {
				name = fmt.Sprintf("%s (%d)", name, r.Incarnation)
			}
			ago := max(time.Since(r.LastActivity), 0).Round(time.Second)
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%s ago\t%s\n", oneLine(name), oneLine(r.Principal), r.State, r.Calls, r.Turns, ago, verdict(r.Verdict))
		}
		return t.Flush()
	}
	return cmd
}

// traces lists all recordings in a state, or with "" in any.
func (a *api) traces(ctx context.Context, state string) ([]control.Recording, error) {
	all := []control.Recording{}
	for after := "0"; after != ""; {
		var page control.Traces
		query := url.Values{"after": {after}}
		if state != "" {
			query.Set("state", state)
		}
		if err := a.get(ctx, "/api/v1/traces?"+query.Encode(), &page); err != nil {
			return nil, err
		}
		all, after = append(all, page.Traces...), page.Next
	}
	return all, nil
}

// verdict is a verdict in a line.
func verdict(v trace.Verdict) string {
	if v.Complete {
		return "yes"
	}
	text := "no"
	if len(v.Why) > 0 {
		text += ": " + brief(v.Why[0], 60)
	}
	if n := len(v.Why) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more)", n)
	}
	return text
}

// turnRow is what the commands show of a recorded call.
type turnRow struct {
	Call      string         `json:"call_id"`
	Session   string         `json:"session_id"`
	Principal string         `json:"principal"`
	Cursor    string         `json:"cursor"`
	Attempt   int            `json:"attempt"`
	API       string         `json:"api"`
	Model     string         `json:"model"`
	Upstream  string         `json:"upstream"`
	Policy    store.Policy   `json:"policy"`
	Start     time.Time      `json:"t_start"`
	End       *time.Time     `json:"t_end"`
	Outcome   store.Outcome  `json:"outcome"`
	Status    int            `json:"http_status"`
	Error     string         `json:"error"`
	Finish    string         `json:"finish"`
	Delivered store.Delivery `json:"delivered"`

	Request  json.RawMessage `json:"request"`
	Response json.RawMessage `json:"response"`

	Kind event.Kind `json:"kind"` // of what is no call
	Lost uint64     `json:"lost"`
}

// outcome is what became of the call, in a word.
func (r turnRow) outcome() string { return cmp.Or(string(r.Outcome), "under way") }

// took is how long it took.
func (r turnRow) took() string {
	if r.End == nil {
		return "-"
	}
	return max(r.End.Sub(r.Start), 0).Round(time.Millisecond).String()
}

func tracesShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show SESSION [TURN]",
		Short: "Show the calls of a session, or one with its request and answer",
		Long: `Show lists the recorded calls of a session in the order in which they began, or shows one
of them with its native request and answer. TURN is its id, or its number in the list.`,
		Example:           "  roundhouse traces show review\n  roundhouse traces show review 1\n  roundhouse traces show --json review",
		Args:              arguments(1, 2, "the session's id and, to show one call, its id or number"),
		ValidArgsFunction: completeTraces,
	}
	r := namesRecording(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		turns, err := r.turns(cmd.Context(), args[0])
		if err != nil {
			return helpfully(err)
		}
		if len(args) == 2 {
			return r.showTurn(cmd, turns, args[0], args[1], asJSON)
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(control.Turns{Turns: turns})
		}
		t := newTable(cmd.OutOrStdout(), "NUMBER", "TURN", "API", "MODEL", "POLICY", "STARTED", "TOOK", "OUTCOME", "DELIVERED", "ERROR")
		for i, raw := range turns {
			var v turnRow
			if err := decode(raw, &v); err != nil {
				return err
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i+1, oneLine(v.Call), v.API, oneLine(v.Model), v.Policy,
				v.Start.Local().Format(time.DateTime), v.took(), v.outcome(), cmp.Or(v.Delivered, "-"), brief(v.Error, 60))
		}
		return t.Flush()
	}
	return cmd
}

// turns lists all recorded calls of a session.
func (r *recording) turns(ctx context.Context, session string) ([]json.RawMessage, error) {
	all := []json.RawMessage{}
	for after := "c0"; after != ""; {
		path, err := r.path(session, "/turns", url.Values{"after": {after}, "limit": {"1000"}})
		if err != nil {
			return nil, err
		}
		var page control.Turns
		if err := r.get(ctx, path, &page); err != nil {
			return nil, err
		}
		all, after = append(all, page.Turns...), page.Next
	}
	return all, nil
}

// showTurn shows one of a session's calls.
func (r *recording) showTurn(cmd *cobra.Command, turns []json.RawMessage, session, turn string, asJSON bool) error {
	n, _ := strconv.Atoi(turn) // else it is an id
	at := slices.IndexFunc(turns, func(raw json.RawMessage) bool {
		var v turnRow
		return json.Unmarshal(raw, &v) == nil && v.Call == turn
	})
	if at < 0 && 1 <= n && n <= len(turns) {
		at = n - 1
	}
	if at < 0 {
		return fmt.Errorf("session %q has no turn %q; 'roundhouse traces show %s' lists them", session, turn, session)
	}
	var v turnRow
	if err := decode(turns[at], &v); err != nil {
		return err
	}
	query := url.Values{"session": {session}, "principal": {v.Principal}}
	var raw json.RawMessage
	if err := r.get(cmd.Context(), "/api/v1/turns/"+url.PathEscape(v.Call)+"?"+query.Encode(), &raw); err != nil {
		return err
	}
	if asJSON {
		return printJSON(cmd.OutOrStdout(), raw)
	}
	if err := decode(raw, &v); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	t := newTable(out, "TURN", v.Call)
	for _, line := range [][2]string{
		{"SESSION", v.Session}, {"API", v.API}, {"MODEL", v.Model}, {"UPSTREAM", v.Upstream}, {"POLICY", string(v.Policy)},
		{"STARTED", v.Start.Local().Format(time.DateTime)}, {"TOOK", v.took()}, {"ATTEMPT", strconv.Itoa(v.Attempt)},
		{"OUTCOME", v.outcome()}, {"STATUS", number(v.Status)}, {"FINISH", cmp.Or(v.Finish, "-")}, {"DELIVERED", cmp.Or(string(v.Delivered), "-")}, {"ERROR", cmp.Or(v.Error, "-")},
	} {
		fmt.Fprintf(t, "%s\t%s\n", line[0], oneLine(line[1]))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		body json.RawMessage
	}{{"REQUEST", v.Request}, {"ANSWER", v.Response}} {
		var b bytes.Buffer
		if len(part.body) > 0 {
			if err := json.Indent(&b, part.body, "", "  "); err != nil {
				return fmt.Errorf("read the daemon's answer: %w", err)
			}
		}
		if _, err := fmt.Fprintf(out, "\n%s\n%s\n", part.name, printable(cmp.Or(b.String(), "none"))); err != nil {
			return err
		}
	}
	return nil
}

// printable is a text of several lines that cannot control the terminal.
func printable(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = oneLine(line)
	}
	return strings.Join(lines, "\n")
}

func tracesTailCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "tail [SESSION]",
		Short: "Follow model calls as they end",
		Long: `Tail prints each recorded call when it has ended, of one session or of all, until it is
interrupted. With --json each is one line of JSON.`,
		Example:           "  roundhouse traces tail review\n  roundhouse traces tail --json",
		Args:              arguments(0, 1, "one argument, the session's id, or none for all sessions"),
		ValidArgsFunction: completeTraces,
	}
	r := namesRecording(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		path := "/api/v1/turns?follow=true"
		if r.principal != "" {
			path += "&principal=" + url.QueryEscape(r.principal)
		}
		if len(args) == 1 {
			var err error
			if path, err = r.path(args[0], "/turns", url.Values{"follow": {"true"}}); err != nil {
				return err
			}
		}
		return unlessStopped(ctx, helpfully(r.tail(ctx, path, cmd.OutOrStdout(), cmd.ErrOrStderr(), asJSON)))
	}
	return cmd
}

// tail prints calls until ctx or the daemon ends.
func (a *api) tail(ctx context.Context, path string, w, note io.Writer, asJSON bool) error {
	return a.follow(ctx, path, "the calls", func(data []byte) error {
		var v turnRow
		if err := decode(data, &v); err != nil {
			return err
		}
		switch {
		case v.Kind == event.EventsLost:
			fmt.Fprintln(note, "roundhouse: this was too slow, and calls may be missing here; 'roundhouse traces show' has them")
			return nil
		case asJSON:
			return printJSON(w, data)
		}
		_, err := fmt.Fprintf(w, "%s  %s  %s  %s  %s  %s\n", v.Start.Local().Format(time.TimeOnly), oneLine(v.Session), oneLine(v.Call),
			oneLine(v.Model), v.outcome(), v.took())
		return err
	})
}

func tracesCheckCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check SESSION",
		Short: "Prove that a session's recording is complete",
		Long: `Check reads all that is recorded of a session and says how its calls ended, whether
each went on from an earlier one and, where not, what differs first. The exit status is
1 if the recording has a hole: if something is missing that the policy "train" wants,
or something does not fit together.`,
		Example:           "  roundhouse traces check review\n  roundhouse traces check --json review",
		Args:              arguments(1, 1, oneRecordedSession),
		ValidArgsFunction: completeTraces,
	}
	r := namesRecording(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		path, err := r.path(args[0], "/check", nil)
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := r.send(ctx, http.MethodGet, path, &raw); err != nil {
			return helpfully(err)
		}
		var report trace.Report
		if err := decode(raw, &report); err != nil {
			return err
		}
		if asJSON {
			err = printJSON(cmd.OutOrStdout(), raw)
		} else {
			err = printReport(cmd.OutOrStdout(), report)
		}
		if err == nil && report.Hole {
			err = shownError{exitFailed}
		}
		return err
	}
	return cmd
}

// printReport shows what a check has found.
func printReport(w io.Writer, r trace.Report) error {
	t := newTable(w, "SESSION", oneLine(r.Session))
	complete := "yes"
	if !r.Verdict.Complete {
		complete = "no"
	}
	fmt.Fprintf(t, "COMPLETE\t%s\n", complete)
	for _, why := range slices.Concat(r.Verdict.Why, r.Problems) {
		fmt.Fprintf(t, "\t%s\n", oneLine(why))
	}
	fmt.Fprintf(t, "SEALED\t%t\n", r.Sealed)
	fmt.Fprintf(t, "CALLS\t%d: %s\n", r.Calls, counts(r.Outcomes, r.UnderWay))
	fmt.Fprintf(t, "DELIVERED\t%s\n", counts(r.Deliveries, 0))
	fmt.Fprintf(t, "TURNS\t%d in %s, %d with token ids\n", r.Turns, plural(r.Trajectories, "trajectory", "trajectories"), r.WithTokens)
	fmt.Fprintf(t, "MERGED\t%.3g\n", r.MergeRatio)
	for _, b := range r.Breaks {
		fmt.Fprintf(t, "BREAK\t%s: %s\n", oneLine(b.Call), oneLine(strings.Join(explain(b), ", ")))
	}
	return t.Flush()
}

// explain says why a turn left an earlier one, and where.
func explain(b trace.Break) []string {
	parts := []string{string(b.Reason)}
	if b.Near != "" {
		parts = append(parts, fmt.Sprintf("unlike %s from %s %d on", b.Near, b.Unit, b.At))
	}
	if b.Had != nil {
		parts = append(parts, "there "+brief(string(b.Had), 60))
	}
	if b.Have != nil {
		parts = append(parts, "here "+brief(string(b.Have), 60))
	}
	return parts
}

// counts are numbers of what there is, in the order of their words.
func counts[T ~string](all map[T]int, underWay int) string {
	var parts []string
	for word, n := range all {
		parts = append(parts, fmt.Sprintf("%d %s", n, word))
	}
	slices.SortFunc(parts, func(a, b string) int {
		return strings.Compare(a[strings.IndexByte(a, ' '):], b[strings.IndexByte(b, ' '):])
	})
	if underWay > 0 {
		parts = append(parts, fmt.Sprintf("%d under way", underWay))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// plural is a number of things whose plural is a word of its own.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func tracesSealCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "seal SESSION",
		Short: "Close a session's recording for good",
		Long: `Seal closes the recording: it never changes again, later calls that name the session are
refused, and calls under way are lost to it.`,
		Example:           "  roundhouse traces seal run-17",
		Args:              arguments(1, 1, oneRecordedSession),
		ValidArgsFunction: completeTraces,
	}
	r := namesRecording(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := r.path(args[0], "/seal", nil)
		if err != nil {
			return err
		}
		var raw json.RawMessage
		if err := r.send(cmd.Context(), http.MethodPost, path, &raw); err != nil {
			return helpfully(err)
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), raw)
		}
		var s control.Sealed
		if err := decode(raw, &s); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "session %s is sealed, with %s; complete: %s\n", args[0], counted(s.Calls, "call"), verdict(s.Verdict))
		return err
	}
	return cmd
}

func tracesDeleteCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "delete SESSION",
		Short: "Delete what is recorded of a session",
		Long: `Delete removes all that is recorded of a session, of all lives of its id unless
--incarnation names one. There is no way back.`,
		Example:           "  roundhouse traces delete old-run",
		Args:              arguments(1, 1, oneRecordedSession),
		ValidArgsFunction: completeTraces,
	}
	r := namesRecording(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path, err := r.path(args[0], "/turns", nil)
		if err != nil {
			return err
		}
		if err := r.send(cmd.Context(), http.MethodDelete, path, nil); err != nil {
			return helpfully(err)
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"session": args[0], "deleted": true})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "the recording of session %s is deleted\n", args[0])
		return err
	}
	return cmd
}
