package process

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// tagVar marks every process of a test, whatever becomes of our own marker.
const tagVar = "PROCESS_TEST_TAG"

// roleVar makes the test binary a daemon that a test can kill.
const roleVar = "PROCESS_TEST_ROLE"

func TestMain(m *testing.M) {
	ReaperMain()
	switch os.Getenv(roleVar) {
	case "daemon":
		daemonMain()
	case "first":
		firstMain()
	}
	os.Exit(m.Run())
}

// daemonMain starts a server for each argument, a script or a docker command, says so, and waits to be killed.
func daemonMain() {
	mgr, err := NewManager(Config{StateDir: os.Getenv("PROCESS_TEST_STATE")})
	if err != nil {
		panic(err)
	}
	for i, script := range os.Args[1:] {
		command := []string{"sh", "-c", script}
		if strings.HasPrefix(script, "docker ") {
			command = strings.Fields(script)
		}
		p, err := mgr.Start(context.Background(), Spec{
			Server: fmt.Sprintf("server%d", i), Command: command[0], Args: command[1:],
			Env:     Environ(map[string]string{tagVar: os.Getenv(tagVar), "DOCKER_HOST": os.Getenv("DOCKER_HOST")}, false),
			EOFWait: 100 * time.Millisecond, TermWait: 200 * time.Millisecond, KillWait: 5 * time.Second,
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(p.PID(), p.tree.reaper.Pid)
	}
	fmt.Println("ready")
	select {}
}

// fixture is one test's manager and the tag of its processes.
type fixture struct {
	*testing.T
	m   *Manager
	tag string
	log *lockedBuffer
}

// newFixture makes a manager with a journal. At the end of the test nothing that
// the test started may live, and the manager must close.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, tag: rand.Text(), log: &lockedBuffer{}}
	t.Cleanup(func() {
		if left := f.tagged(); len(left) > 0 {
			t.Errorf("processes outlived the test: %+v", left)
			for _, e := range left {
				_ = signalEntry(e, 9)
			}
		}
	})
	m, err := NewManager(Config{StateDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(f.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	f.m = m
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("manager: %v", err)
		}
		if t.Failed() {
			t.Logf("log:\n%s", f.log.String())
		}
	})
	return f
}

// tagged returns what lives of the processes of this test.
func (f *fixture) tagged() []entry {
	t, err := readTable()
	if err != nil {
		f.Fatal(err)
	}
	return slices.DeleteFunc(t, func(e entry) bool {
		return e.zombie || !carries(environ(e.pid), tagVar, map[string]bool{f.tag: true})
	})
}

// spec describes sh -c script with short waits.
func (f *fixture) spec(script string) Spec {
	return Spec{
		Server: f.Name(), Command: "sh", Args: []string{"-c", script},
		Env:     Environ(map[string]string{tagVar: f.tag}, false),
		EOFWait: 150 * time.Millisecond, TermWait: 150 * time.Millisecond, KillWait: 10 * time.Second,
	}
}

// start starts s, and closes it at the end if the test has not.
func (f *fixture) start(s Spec) *Process {
	f.Helper()
	p, err := f.m.Start(f.Context(), s)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		p.Close(context.Background())
		within(f.T, p.Gone(), "the tree to be gone")
	})
	return p
}

// line reads one line of a server's stdout.
func (f *fixture) line(p *Process) string {
	f.Helper()
	if err := p.Stdout().SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		f.Fatal(err)
	}
	s, err := bufio.NewReader(p.Stdout()).ReadString('\n')
	if err != nil {
		f.Fatalf("read a line: %v; stderr: %s", err, p.Stderr().Bytes())
	}
	return strings.TrimSpace(s)
}

// output runs a script to its end and returns its stdout.
func (f *fixture) output(s Spec) string {
	f.Helper()
	p := f.start(s)
	b, err := io.ReadAll(p.Stdout())
	if err != nil {
		f.Fatal(err)
	}
	return string(b)
}

func within(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatalf("waited too long for %s", what)
	}
}

// eventually polls a condition that no channel tells.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
