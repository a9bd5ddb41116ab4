//go:build unix

package badserver

import (
	"os"
	"os/exec"
	"syscall"
)

// leaveSession makes cmd start in a session and process group of its own.
func leaveSession(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return nil
}

// stopSelf stops this process until somebody continues it.
func stopSelf() error { return syscall.Kill(os.Getpid(), syscall.SIGSTOP) }
