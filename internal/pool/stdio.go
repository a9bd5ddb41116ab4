package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/process"
	"roundhouse/internal/upstream"
)

// dialStdio starts a server as a process of m.
func dialStdio(ctx context.Context, m *process.Manager, s *config.Server) (Link, error) {
	p, err := m.Start(ctx, process.Spec{
		Server:   s.Name,
		Command:  s.Command,
		Args:     s.Args,
		Env:      process.Environ(reveal(s.Env), s.InheritEnv),
		Dir:      s.Cwd,
		EOFWait:  s.CloseEOFWait,
		TermWait: s.CloseTermWait,
		KillWait: s.CloseKillWait,
	})
	if err != nil {
		return nil, err
	}
	return &stdioLink{
		process: p,
		Stdio:   upstream.NewStdio(upstream.StdioConfig{In: p.Stdin(), Out: p.Stdout(), Exited: p.Exited()}),
	}, nil
}

// stdioLink is a process and the frames on its standard streams.
type stdioLink struct {
	*upstream.Stdio
	process *process.Process
}

const (
	exitWait   = 250 * time.Millisecond // for the exit of a process whose output or input has ended
	stderrWait = 50 * time.Millisecond  // for the reader of its stderr to get to the end
)

// Run implements Link. A server that ends is seen in its stdin, its stdout, its exit and
// its stderr, in any order. Errors should name its status and its last words (P5), so
// these are waited for.
func (l *stdioLink) Run(h upstream.Handler) error {
	err := l.Stdio.Run(h)
	if !errors.Is(err, io.EOF) && !errors.Is(err, upstream.ErrExited) && !errors.Is(err, upstream.ErrBrokenInput) {
		return err
	}
	select {
	case <-l.process.Exited():
		time.Sleep(stderrWait)
	case <-time.After(exitWait):
	}
	return err
}

// Post implements Link.
func (l *stdioLink) Post(m *upstream.Message) { _ = l.Stdio.Post(m) } // a link that ended, or a server that is stuck: nobody to tell

// Close implements Link: the server's stdin is closed, and its tree ended (P2).
func (l *stdioLink) Close(ctx context.Context) {
	_ = l.CloseInput() // the process is ended in any case
	l.process.Close(ctx)
}

// Facts implements Link.
func (l *stdioLink) Facts() LinkFacts {
	return LinkFacts{Process: l.process, PID: l.process.PID(), Started: l.process.Started(), Exit: l.process.ExitStatus()}
}

// Output implements Link.
func (l *stdioLink) Output(lines int) []string { return l.process.Stderr().Lines(lines) }

// Note implements Link: the line joins the server's stderr.
func (l *stdioLink) Note(line string) {
	_, _ = io.WriteString(l.process.Stderr(), fmt.Sprintln(line)) // a ring takes everything
}
