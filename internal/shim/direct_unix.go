//go:build unix

package shim

import (
	"fmt"
	"os"
	"syscall"

	"roundhouse/internal/config"
)

// Direct runs a server without the daemon, in our place: it returns only if that
// fails. workspace is the session's, or "". A server with a tool filter is not run,
// since nobody would apply it.
func Direct(s *config.Server, workspace string) (status int, err error) {
	c, err := directCommand(s, workspace)
	if err != nil {
		return 0, err
	}
	if err := os.Chdir(c.dir); err != nil {
		return 0, fmt.Errorf("enter the server's directory: %w", err)
	}
	if err := syscall.Exec(c.path, c.args, c.env); err != nil {
		return 0, fmt.Errorf("execute %s: %w", c.path, err)
	}
	panic("unreachable")
}
