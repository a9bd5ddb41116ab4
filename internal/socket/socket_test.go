//go:build linux || darwin

package socket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"roundhouse/internal/socket"
)

// shortDir is a directory whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func listen(t *testing.T, path string) *socket.Listener {
	t.Helper()
	l, err := socket.Listen(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// reach reports whether a daemon that listens on l is the one at path.
func reach(t *testing.T, l net.Listener, path string) {
	t.Helper()
	c, err := socket.Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := accepted.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// H8: the socket is for its owner only, in a directory that others cannot enter.
func TestModes(t *testing.T) {
	dir := filepath.Join(shortDir(t), "made")
	path := filepath.Join(dir, "a.sock")
	l := listen(t, path)
	for name, want := range map[string]fs.FileMode{dir: fs.ModeDir | 0o700, path: fs.ModeSocket | 0o600, path + ".lock": 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	reach(t, l, path)
}

// H8, case 72: one winner, by a lock of the kernel.
func TestOneDaemonOwnsTheSocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "a.sock")
	first := listen(t, path)
	if _, err := socket.Listen(path, nil); !errors.Is(err, socket.ErrTaken) {
		t.Fatalf("a second daemon gets %v", err)
	}
	reach(t, first, path)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := listen(t, path)
	reach(t, second, path)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if second.Close() == nil {
		t.Error("a second Close is no error")
	}
	if left, err := os.ReadDir(filepath.Dir(path)); len(left) > 0 || err != nil {
		t.Errorf("%v is left, %v", left, err)
	}
}

// Case 72: a lock that its owner has removed is nobody's, however late it is taken.
func TestComingAndGoing(t *testing.T) {
	path := filepath.Join(shortDir(t), "a.sock")
	var owners, most atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				l, err := socket.Listen(path, nil)
				if errors.Is(err, socket.ErrTaken) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := owners.Add(1); n > 1 {
					most.Store(n)
				}
				owners.Add(-1)
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if most.Load() > 0 {
		t.Errorf("%d daemons had the socket at once", most.Load())
	}
}

// Case 72: of many that start at once just one has the socket.
func TestManyAtOnce(t *testing.T) {
	path := filepath.Join(shortDir(t), "a.sock")
	var won atomic.Int32
	errs := make(chan error)
	for range 20 {
		go func() {
			_, err := socket.Listen(path, nil) // the winner's ends with the test process
			if err == nil {
				won.Add(1)
			} else if errors.Is(err, socket.ErrTaken) {
				err = nil
			}
			errs <- err
		}()
	}
	for range 20 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if won.Load() != 1 {
		t.Errorf("%d daemons have the socket", won.Load())
	}
}

// Case 72: what a killed daemon leaves is replaced, and is nobody until then.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "a.sock")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := socket.Dial(t.Context(), path); !errors.Is(err, socket.ErrNobody) {
		t.Errorf("a stale socket: %v", err)
	}
	reach(t, listen(t, path), path)
}

func TestNoSocketIsNobody(t *testing.T) {
	if _, err := socket.Dial(t.Context(), filepath.Join(shortDir(t), "none", "a.sock")); !errors.Is(err, socket.ErrNobody) {
		t.Errorf("got %v", err)
	}
}

// What is no socket is not removed.
func TestAnotherFileIsLeftAlone(t *testing.T) {
	path := filepath.Join(shortDir(t), "a.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := socket.Listen(path, nil); err == nil || !strings.Contains(err.Error(), "in the way") {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

func TestADirectoryThatOthersWriteIsRefused(t *testing.T) {
	dir := shortDir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "a.sock")
	if _, err := socket.Listen(path, nil); err == nil || !strings.Contains(err.Error(), "written by other users") {
		t.Errorf("got %v", err)
	}
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	reach(t, listen(t, path), path)
}

func TestALongPathIsExplained(t *testing.T) {
	path := filepath.Join(shortDir(t), strings.Repeat("long", 40))
	_, err := socket.Listen(path, nil)
	_, dialErr := socket.Dial(t.Context(), path)
	for _, err := range []error{err, dialErr} {
		if err == nil || !strings.Contains(err.Error(), "--socket") {
			t.Errorf("got %v", err)
		}
	}
}

// The environment of the test process when it plays another user.
const (
	playDial   = "SOCKET_TEST_DIAL"
	playListen = "SOCKET_TEST_LISTEN"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(playDial) != "":
		c, err := net.Dial("unix", os.Getenv(playDial))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		fmt.Print(err)
	case os.Getenv(playListen) != "":
		l, err := net.Listen("unix", os.Getenv(playListen))
		if err == nil {
			err = os.Chmod(os.Getenv(playListen), 0o777)
		}
		fmt.Println(err)
		if err == nil {
			_, _ = l.Accept()
			_, _ = io.ReadAll(os.Stdin)
		}
	default:
		os.Exit(m.Run())
	}
}

// asNobody runs the test process as another user; only root can.
func asNobody(t *testing.T, ctx context.Context, variable, path string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can play another user")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(filepath.Dir(path), "test")
	syscall.ForkLock.RLock() // a child forked meanwhile would hold the file open for writing
	err = os.WriteFile(copied, b, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, copied)
	cmd.Dir = filepath.Dir(path)
	cmd.Env = []string{variable + "=" + path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return cmd
}

// H8: the daemon serves processes of its own user only, whatever the file's mode is.
func TestAnotherUserIsRefused(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, "a.sock")
	l := listen(t, path)
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(path, 0o777)); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn)
	go func() {
		c, _ := l.Accept() // nil once the listener is closed
		accepted <- c
	}()
	out, err := asNobody(t, t.Context(), playDial, path).CombinedOutput()
	if err != nil || string(out) != "EOF" {
		t.Errorf("the other user saw %q, %v", out, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if c := <-accepted; c != nil {
		t.Error("a connection of another user was accepted")
	}
}

// H8, case 72: a socket of someone else in the place of the daemon's gets nothing.
func TestAnotherUsersDaemonIsRefused(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, "a.sock")
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := asNobody(t, ctx, playListen, path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, len("<nil>"))
	if _, err := io.ReadFull(out, ready); err != nil || string(ready) != "<nil>" {
		t.Fatalf("the other user's listener says %q, %v", ready, err)
	}
	if _, err := socket.Dial(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("got %v", err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its status says nothing here
}
