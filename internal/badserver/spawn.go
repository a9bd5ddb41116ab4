package badserver

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// spawnWays are the ways to start a grandchild. Background stays in the server's
// process group; setsid leaves it; double_fork is re-parented at once;
// ignore_term ignores SIGTERM, SIGINT and SIGHUP; hold_stdout and hold_stderr
// keep the server's pipes open. The others hold no pipe of the server.
var spawnWays = []string{"background", "setsid", "double_fork", "ignore_term", "hold_stdout", "hold_stderr"}

// grandchildRoles are the first arguments that make this program a grandchild
// instead of a server, and what it does then.
var grandchildRoles = map[string]func(args []string, stdout, stderr io.Writer) int{
	"grandchild":      sleep,
	"grandchild-fork": fork,
}

// sleep is a grandchild. One that ignores signals says on stdout when it does.
func sleep(args []string, stdout, _ io.Writer) int {
	if len(args) > 0 && args[0] == "ignore_term" {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		fmt.Fprintln(stdout, "ready")
	}
	time.Sleep(leftover)
	return 0
}

// fork starts a grandchild, prints its pid and ends, which orphans it.
func fork(_ []string, stdout, stderr io.Writer) int {
	cmd, err := selfCommand("grandchild")
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintf(stderr, "badserver: fork grandchild: %v\n", err)
		return exitMisuse
	}
	fmt.Fprintln(stdout, cmd.Process.Pid)
	return 0
}

// selfCommand returns a command that runs this program again.
func selfCommand(args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.Command(self, args...), nil
}

// startReady starts cmd, waits for its first line of output and returns its pid.
func startReady(cmd *exec.Cmd) (int, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = out.Close() }()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return 0, fmt.Errorf("wait for the grandchild: %w", err)
	}
	return cmd.Process.Pid, nil
}

// spawn starts a grandchild and returns its pid. The server never reaps it, as
// careless servers do not: once it has ended it is a zombie for as long as the
// server lives, unless it was re-parented.
func (s *server) spawn(how string) (int, error) {
	role := "grandchild"
	if how == "double_fork" {
		role = "grandchild-fork"
	}
	cmd, err := selfCommand(role, how)
	if err != nil {
		return 0, err
	}
	switch how {
	case "background":
	case "setsid":
		if err := leaveSession(cmd); err != nil {
			return 0, err
		}
	case "hold_stdout":
		cmd.Stdout = s.stdout
	case "hold_stderr":
		cmd.Stderr = s.stderr
	case "ignore_term":
		return startReady(cmd)
	case "double_fork":
		out, err := cmd.Output()
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(string(out)))
	default:
		return 0, fmt.Errorf("unknown way %q to start a grandchild", how)
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
}
