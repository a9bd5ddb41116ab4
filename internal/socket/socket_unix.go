//go:build linux || darwin

package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Supported reports whether this system has the door.
const Supported = true

// Listener accepts connections of processes of our own user; others are closed at
// once. It is a net.Listener.
type Listener struct {
	*net.UnixListener
	lock *os.File // held for life
	log  *slog.Logger
}

// Listen takes the socket at path and listens there. The directory is made with mode
// 0700 if it is missing; the socket has mode 0600. A lock of the kernel on path.lock,
// which goes with the process that holds it, decides whose socket it is: while another
// daemon lives Listen fails with ErrTaken, and what a dead one left is replaced. A nil
// log discards.
func Listen(path string, log *slog.Logger) (*Listener, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := checkLength(path); err != nil {
		return nil, err
	}
	if err := prepareDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := takeLock(path + ".lock")
	if err != nil {
		return nil, err
	}
	l, err := bind(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(lock.Name()), lock.Close())
	}
	return &Listener{UnixListener: l, lock: lock, log: log}, nil
}

// checkLength refuses what does not fit into an address, which the system would call
// an invalid argument.
func checkLength(path string) error {
	if limit := len(syscall.RawSockaddrUnix{}.Path) - 1; len(path) > limit {
		return fmt.Errorf("the path of the socket %s is longer than %d bytes; choose a shorter one with --socket or ROUNDHOUSE_SOCKET", path, limit)
	}
	return nil
}

// prepareDir makes the socket's directory, or checks that nobody else can put
// another socket in the place of ours.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the socket's directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("look at the socket's directory: %w", err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if owner != 0 && int(owner) != os.Geteuid() {
		return fmt.Errorf("the socket's directory %s belongs to another user; choose another one with --socket or ROUNDHOUSE_SOCKET", dir)
	}
	if info.Mode()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("the socket's directory %s can be written by other users; take that right away (chmod go-w), or choose another one with --socket or ROUNDHOUSE_SOCKET", dir)
	}
	return nil
}

// takeLock returns the lock file, locked, with our process id in it for people. Its
// owner removes it at the end, so one that was opened may be gone when it is locked:
// then whoever comes next would lock another file.
func takeLock(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the socket's lock: %w", err)
		}
		there, err := lockFile(f, path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("take the lock %s: %w", path, err), f.Close())
		}
		if there {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("let go of a lock that was removed: %w", err)
		}
	}
}

// lockFile locks f and reports whether it still stands at path.
func lockFile(f *os.File, path string) (there bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, ErrTaken
	}
	if err != nil {
		return false, err
	}
	ours, err := f.Stat()
	if err != nil {
		return false, err
	}
	theirs, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || !os.SameFile(ours, theirs) {
		return false, err
	}
	if err := f.Truncate(0); err != nil {
		return false, err
	}
	_, err = f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	return true, err
}

// bind makes the socket. Our lock says that nobody uses one that is there already.
func bind(path string) (*net.UnixListener, error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("look for an old socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is in the way of the socket: it is something else; move it away, or choose another path with --socket or ROUNDHOUSE_SOCKET", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the socket that an earlier daemon left: %w; choose another path with --socket or ROUNDHOUSE_SOCKET", err)
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect the socket: %w", err), l.Close())
	}
	return l, nil
}

// Accept waits for the next connection of our own user.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if err := checkPeer(c); err != nil {
			l.log.Warn("a connection to the socket was refused", "err", err)
			_ = c.Close() // it has not been used
			continue
		}
		return c, nil
	}
}

// Close removes the socket and then the lock. Once is enough; another time is an
// error and changes nothing.
func (l *Listener) Close() error {
	if err := l.UnixListener.Close(); err != nil {
		return err
	}
	return errors.Join(os.Remove(l.lock.Name()), l.lock.Close())
}

// Dial connects to the daemon that listens at path. A socket at which nobody listens,
// or none at all, is ErrNobody; a process of another user there is an error.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	if err := checkLength(path); err != nil {
		return nil, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("dial %s: %w", path, ErrNobody)
	case err != nil:
		return nil, fmt.Errorf("dial %s: %w", path, errors.Unwrap(err))
	}
	if err := checkPeer(c.(*net.UnixConn)); err != nil {
		_ = c.Close() // it has not been used
		return nil, fmt.Errorf("dial %s: %w", path, err)
	}
	return c, nil
}

// checkPeer returns an error unless a process of our own user is at the other end.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("ask who is at the other end: %w", err)
	}
	var uid int
	var failed error
	if err := raw.Control(func(fd uintptr) { uid, failed = peerUID(int(fd)) }); err != nil {
		failed = err
	}
	if failed != nil {
		return fmt.Errorf("ask who is at the other end: %w", failed)
	}
	if uid != os.Geteuid() {
		return fmt.Errorf("the process at the other end belongs to another user (uid %d)", uid)
	}
	return nil
}
