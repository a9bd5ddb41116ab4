package config

import (
	"fmt"
	"strings"
)

// Invalid is the error of Load and Parse: roundhouse's own settings are wrong,
// or the file cannot be read. It holds every problem found, warnings and those
// of single servers too.
type Invalid struct{ Problems []Problem }

// Error returns all problems, one a line.
func (e *Invalid) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// String returns the problem as one line in the form that editors understand:
// "file:line:column: severity: path: message".
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
		if p.Line > 0 {
			fmt.Fprintf(&b, "%d:%d:", p.Line, p.Column)
		}
		b.WriteString(" ")
	}
	b.WriteString(string(p.Severity) + ": ")
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	if p.Suggestion != "" {
		fmt.Fprintf(&b, " (did you mean %q?)", p.Suggestion)
	}
	return b.String()
}
