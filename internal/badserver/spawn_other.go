//go:build !unix

package badserver

import (
	"errors"
	"os/exec"
)

func leaveSession(*exec.Cmd) error { return errors.ErrUnsupported }

func stopSelf() error { return errors.ErrUnsupported }
