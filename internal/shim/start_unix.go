//go:build linux || darwin

package shim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	restartPause = time.Second // between two starts
	maxLog       = 1 << 20     // bytes of the log when a daemon is started; a longer one is begun anew
)

// Starter starts a daemon that lives on when we end (H8). It is not for concurrent
// use.
type Starter struct {
	Args []string // of our own executable
	Dir  string   // the daemon's working directory
	Log  string   // path of the file that gets its output; made with mode 0600

	child *os.Process
	begun time.Time
}

// Start starts the daemon, in a session of its own and with our environment, unless one
// that it started runs, or has begun less than a second ago. One that has failed is
// an error, once.
func (st *Starter) Start() error {
	if st.child != nil {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(st.child.Pid, &status, syscall.WNOHANG, nil)
		if err == nil && pid == 0 {
			return nil // it runs
		}
		_ = st.child.Release() // it has been waited for
		st.child = nil
		if err == nil && (!status.Exited() || status.ExitStatus() != 0) {
			return fmt.Errorf("the daemon that was started has ended: %s (log: %s)", lastLine(st.Log), st.Log)
		}
	}
	if time.Since(st.begun) < restartPause {
		return nil
	}
	st.begun = time.Now()
	if err := st.start(); err != nil {
		return fmt.Errorf("start a daemon: %w", err)
	}
	return nil
}

func (st *Starter) start() error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(st.Log), 0o700); err != nil {
		return err
	}
	mode := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(st.Log); err == nil && info.Size() > maxLog {
		mode |= os.O_TRUNC
	}
	log, err := os.OpenFile(st.Log, mode, 0o600)
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return errors.Join(err, log.Close())
	}
	st.child, err = os.StartProcess(executable, append([]string{executable}, st.Args...), &os.ProcAttr{
		Dir: st.Dir, Env: os.Environ(), Files: []*os.File{null, log, log},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	return errors.Join(err, log.Close(), null.Close())
}

// lastLine is the last thing that a log says.
func lastLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "it left no log"
	}
	b = bytes.TrimSpace(b)
	return string(bytes.TrimPrefix(b[bytes.LastIndexByte(b, '\n')+1:], []byte("roundhouse: ")))
}
