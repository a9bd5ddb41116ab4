//go:build linux || darwin

package socket

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// firstInherited is the descriptor of the first socket that a service manager passes.
const firstInherited = 3

// Inherited takes the listening socket that a service manager passed to this process
// (systemd's LISTEN_PID and LISTEN_FDS), or returns nil if it passed none. It belongs to
// the manager: its Close leaves the socket where it is. The lock is taken as by Listen,
// so that no other daemon takes the socket's place; the error is never ErrTaken. The
// variables that were meant for us are removed from the environment, so call it once,
// and early.
func Inherited(log *slog.Logger) (*Listener, error) {
	if pid, err := strconv.Atoi(os.Getenv("LISTEN_PID")); err != nil || pid != os.Getpid() {
		return nil, nil
	}
	count := os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, fmt.Errorf("remove %s from the environment: %w", name, err)
		}
	}
	if count != "1" {
		return nil, fmt.Errorf("the service manager passed %s sockets (LISTEN_FDS), not one", count)
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(firstInherited, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		return nil, fmt.Errorf("the service manager passed no socket as descriptor %d (%w)", firstInherited, errors.Join(err, syscall.ENOTSOCK))
	}
	l, err := inherit(os.NewFile(firstInherited, "inherited socket"), log)
	if err != nil {
		return nil, fmt.Errorf("take the socket of the service manager: %w", err)
	}
	return l, nil
}

// inherit takes a listening socket, and closes f.
func inherit(f *os.File, log *slog.Logger) (*Listener, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	listener, err := net.FileListener(f) // a duplicate, which no child inherits
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	l, ok := listener.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is no unix socket", listener.Addr()), listener.Close())
	}
	lock, err := lockInherited(l.Addr().String())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &Listener{UnixListener: l, lock: lock, log: log}, nil
}

// lockInherited takes the lock of a socket that is there already.
func lockInherited(path string) (*os.File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("its address %q is no absolute path", path)
	}
	if err := prepareDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := takeLock(path + ".lock")
	if errors.Is(err, ErrTaken) {
		return nil, fmt.Errorf("another daemon holds the lock %s; end that one", path+".lock")
	}
	return lock, err
}
