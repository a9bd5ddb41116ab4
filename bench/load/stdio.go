package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// stopAfter is how long a child process has to end after its stdin was closed.
const stopAfter = 5 * time.Second

// Stdio is a Session on the stdio of a child process of its own.
type Stdio struct {
	cmd     *exec.Cmd
	in, out *os.File // our ends of the child's stdin and stdout
	lines   *bufio.Reader
	request request
	line    []byte // reused
}

// StartStdio starts command, whose stderr goes to ours, and initializes the session.
// The process is killed when ctx ends before Close.
func StartStdio(ctx context.Context, command ...string) (*Stdio, error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	defer childIn.Close()
	out, childOut, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	defer childOut.Close()
	s := &Stdio{
		cmd: exec.CommandContext(ctx, command[0], command[1:]...),
		in:  in, out: out,
		lines: bufio.NewReaderSize(out, readBuffer),
	}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = childIn, childOut, os.Stderr
	if err := s.cmd.Start(); err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	if err := s.initialize(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Stdio) initialize() error {
	if err := s.SetDeadline(time.Now().Add(grace)); err != nil {
		return fmt.Errorf("initialize over stdio: %w", err)
	}
	if _, err := s.in.WriteString(initializeBody + "\n"); err != nil {
		return fmt.Errorf("initialize over stdio: %w", err)
	}
	for version := ""; version == ""; {
		var err error
		if s.line, err = readLine(s.lines, s.line[:0]); err != nil {
			return fmt.Errorf("initialize over stdio: %w", err)
		}
		if version, err = negotiated(s.line); err != nil {
			return err
		}
	}
	if _, err := s.in.WriteString(initializedBody + "\n"); err != nil {
		return fmt.Errorf("initialize over stdio: %w", err)
	}
	return nil
}

// PID returns the id of the child process.
func (s *Stdio) PID() int { return s.cmd.Process.Pid }

// Call implements Session.
func (s *Stdio) Call(payload []byte) (time.Duration, error) {
	s.request.next(payload)
	s.line = append(append(s.line[:0], s.request.body...), '\n')
	start := time.Now()
	if _, err := s.in.Write(s.line); err != nil {
		return 0, fmt.Errorf("send call %d: %w", s.request.id, err)
	}
	for {
		var err error
		if s.line, err = readLine(s.lines, s.line[:0]); err != nil {
			return 0, fmt.Errorf("wait for the answer to call %d: %w", s.request.id, err)
		}
		latency := time.Since(start)
		if answered, err := s.request.check(s.line); answered || err != nil {
			return latency, err
		}
	}
}

// SetDeadline implements Session.
func (s *Stdio) SetDeadline(t time.Time) error {
	return errors.Join(s.in.SetDeadline(t), s.out.SetDeadline(t))
}

// Close closes the child's stdin and waits until the process has ended; it is killed
// if that takes more than five seconds. Close is called once.
func (s *Stdio) Close() error {
	s.in.Close()
	kill := time.AfterFunc(stopAfter, func() { _ = s.cmd.Process.Kill() })
	err := s.cmd.Wait()
	kill.Stop()
	s.out.Close()
	if err != nil {
		return fmt.Errorf("end %s: %w", s.cmd.Path, err)
	}
	return nil
}
