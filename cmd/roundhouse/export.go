package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func exportCommand() *cobra.Command {
	filters := map[string]*string{} // members of the query
	var reward string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print recorded model calls as data to train on",
		Long: `Export prints one line of JSON for each row: with --format messages a trajectory as messages
with tools, with tokens a trajectory as token ids with mask and logprobs, with calls a call
of the log with its native request and answer. Each row has a "cursor"; --after goes on
behind it, so that an export that broke off costs nothing.

Of messages and tokens only calls that are whole are trained, and of tokens only those that
their client got in full; --outcome and --delivered choose others ("any" is all).

--reward joins rewards: a file with lines such as {"session_id":"run-17","reward":0.5}, or
else the name of a member of the sessions' metadata.`,
		Example: `  roundhouse export --format messages > messages.jsonl
  roundhouse export --format tokens --since 24h --reward rewards.jsonl > tokens.jsonl
  roundhouse export --format calls --session review`,
		Args: arguments(0, 0, "no arguments; filters are flags"),
	}
	a := remote(cmd)
	filter := func(name, usage string) {
		filters[name] = cmd.Flags().String(name, "", usage)
	}
	cmd.Flags().String("format", "messages", "`what` a row is: messages, tokens or calls")
	filter("session", "only the session with this `id`")
	filter("principal", "only sessions of the principal with this `name`")
	filter("state", "only sessions that are `open` or sealed")
	filter("outcome", "only calls with these `outcomes`, such as complete,truncated")
	filter("delivered", "only calls that were delivered `so`: full, partial, none, pending")
	filter("model", "only calls of these `models`")
	filter("since", "only calls from this `time` on, such as 2026-01-02T15:04:05Z or 24h ago")
	filter("until", "only calls before this `time`")
	filter("after", "only rows behind this `cursor`")
	cmd.Flags().StringVar(&reward, "reward", "", "a file of rewards, or the name of a member of the metadata (`FILE|KEY`)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		query := url.Values{"format": {cmd.Flag("format").Value.String()}}
		for name, value := range filters {
			if *value != "" {
				query.Set(name, *value)
			}
		}
		rewards, err := readRewardFile(reward)
		if err != nil {
			return err
		}
		if rewards == nil && reward != "" {
			query.Set("reward_key", reward)
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), endSignals...)
		defer stop()
		return helpfully(a.export(ctx, query, rewards, cmd.OutOrStdout(), cmd.ErrOrStderr()))
	}
	return cmd
}

// readRewardFile reads the file that --reward names; nil if it names none, and is a key.
func readRewardFile(reward string) ([]byte, error) {
	if reward == "" {
		return nil, nil
	}
	b, err := os.ReadFile(reward)
	switch {
	case err == nil:
		return b, nil
	case errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(reward, `/\.`):
		return nil, nil
	}
	return nil, fmt.Errorf("read the rewards: %w", err)
}

// export prints the rows as they come. It prints whole lines only, so that what is printed
// can be gone on with.
func (a *api) export(ctx context.Context, query url.Values, rewards []byte, w, note io.Writer) error {
	method := http.MethodGet
	if rewards != nil {
		method = http.MethodPost
	}
	res, err := a.do(ctx, method, "/api/v1/export?"+query.Encode(), nil, rewards)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return apiError(res)
	}
	out := bufio.NewWriterSize(w, 64<<10)
	var last []byte
	lines := bufio.NewReaderSize(res.Body, 64<<10)
	rows, unrewarded := 0, rewards != nil || query.Has("reward_key")
	for err == nil {
		var line []byte
		if line, err = lines.ReadBytes('\n'); err == nil {
			if _, err := out.Write(line); err != nil {
				return err
			}
			last, rows, unrewarded = line, rows+1, unrewarded && !bytes.Contains(line, []byte(`"reward":`))
		}
	}
	if flushErr := out.Flush(); flushErr != nil {
		return flushErr
	}
	if !errors.Is(err, io.EOF) {
		return brokenOff(err, rows, last)
	}
	skipped := res.Trailer.Get("X-Roundhouse-Skipped")
	if rows == 0 && (skipped == "" || skipped == "{}") && !query.Has("after") {
		return tellNone(note, query)
	}
	if rows > 0 && unrewarded {
		fmt.Fprintln(note, "roundhouse: no row has a reward; --reward takes a file with the ids of these sessions, or the name of a member of their metadata")
	}
	return tellSkipped(note, skipped)
}

// tellNone says that there are no rows, which a file does not.
func tellNone(w io.Writer, query url.Values) error {
	hint := "'roundhouse traces ls' lists what is recorded"
	if query.Get("format") == "tokens" && !query.Has("delivered") {
		hint = "only calls that their client got in full are taken, unless --delivered says otherwise"
	}
	_, err := fmt.Fprintf(w, "roundhouse: there are no such rows; %s\n", hint)
	return err
}

// brokenOff says how to go on with an export.
func brokenOff(err error, rows int, last []byte) error {
	var row struct{ Cursor string }
	if rows == 0 || json.Unmarshal(bytes.TrimSpace(last), &row) != nil {
		return fmt.Errorf("the export broke off before its first row; run it again (%w)", err)
	}
	return fmt.Errorf("the export broke off after %s; go on with --after %s (%w)", counted(rows, "row"), row.Cursor, err)
}

// tellSkipped says which turns the format could not take.
func tellSkipped(w io.Writer, trailer string) error {
	skipped := map[string]int{}
	if trailer == "" || json.Unmarshal([]byte(trailer), &skipped) != nil {
		return nil // a proxy may drop it
	}
	why := map[string]string{
		"no_token_ids":    `without token ids, which the policy "train" asks an engine for that gives them`,
		"several_answers": "with several answers in one (n), of which there are no token rows",
		"unreadable":      "with a request or an answer that is not of its API",
	}
	var lines []string
	for reason, n := range skipped {
		lines = append(lines, fmt.Sprintf("roundhouse: left out: %s %s\n", counted(n, "turn"), cmp.Or(why[reason], "("+reason+")")))
	}
	slices.Sort(lines)
	_, err := io.WriteString(w, strings.Join(lines, ""))
	return err
}
