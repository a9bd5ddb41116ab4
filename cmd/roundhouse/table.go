package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// newTable begins a table for people; Flush ends it. Cells and rows are written with
// tabs and line ends.
func newTable(w io.Writer, heads ...string) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(heads, "\t"))
	return t
}

// printJSON prints what the daemon said, as it said it.
func printJSON(w io.Writer, raw json.RawMessage) error {
	_, err := fmt.Fprintln(w, string(raw))
	return err
}

// decode reads an answer of the daemon.
func decode(raw json.RawMessage, v any) error {
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("read the daemon's answer: %w", err)
	}
	return nil
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

// brief is the first line of a text, of which at most so many letters.
func brief(s string, most int) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	r := []rune(strings.TrimSpace(oneLine(s)))
	if len(r) <= most {
		return string(r)
	}
	return strings.TrimRight(string(r[:min(len(r), most-1)]), " ") + "…"
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// milliseconds is a duration to the second; 0 is unknown.
func milliseconds(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return (time.Duration(ms) * time.Millisecond).Round(time.Second).String()
}

// counted is a number of things in words.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
