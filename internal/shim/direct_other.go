//go:build !unix

package shim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"roundhouse/internal/config"
)

// Direct runs a server without the daemon, on our standard streams, and returns its
// exit status; err is why it could not be run. workspace is the session's, or "". A
// server with a tool filter is not run, since nobody would apply it.
func Direct(s *config.Server, workspace string) (status int, err error) {
	c, err := directCommand(s, workspace)
	if err != nil {
		return 0, err
	}
	cmd := &exec.Cmd{Path: c.path, Args: c.args, Env: c.env, Dir: c.dir, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("execute %s: %w", c.path, err)
	}
	return 0, nil
}
