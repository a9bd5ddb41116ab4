package process

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// P2, case 44: a server that exits at the end of its input closes in milliseconds.
func TestCloseAtEOFIsFast(t *testing.T) {
	f := newFixture(t)
	s := f.spec("exec cat")
	s.EOFWait, s.TermWait = 0, 0 // the defaults, seconds
	p := f.start(s)
	r := p.Close(t.Context())
	if r.Stage != "eof" || r.Exit != "exit status 0" || r.Found+r.Signalled+r.Alive != 0 || r.Err != nil {
		t.Errorf("report %+v", r)
	}
	if r.Duration > time.Second {
		t.Errorf("close took %v", r.Duration)
	}
	within(t, p.Gone(), "gone")
	if _, lives := p.m.View().Trees[p]; lives {
		t.Error("a tree that is gone has descendants")
	}
	t.Logf("closed in %v", r.Duration)
}

// P2, cases 1 and 44: whatever shape a tree has, none of it outlives Close.
func TestCloseEndsTheWholeTree(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		stage  string
		found  int // at least
	}{
		"launcher that waits for its server":   {"cat; exit 0", "eof", 0},
		"ignores EOF":                          {"echo ready; exec sleep 600", "term", 1},
		"ignores EOF and TERM":                 {`trap "" TERM; echo ready; sleep 600; sleep 600`, "kill", 2},
		"stubborn grandchild in the group":     {`sh -c 'trap "" TERM; echo ready; sleep 600' & exec cat`, "kill", 1},
		"grandchild in a session of its own":   {`setsid sh -c 'echo ready; sleep 600' & exec cat`, "term", 1},
		"stubborn grandchild in a session":     {`setsid sh -c 'trap "" TERM; echo ready; sleep 600' & exec cat`, "kill", 1},
		"double fork":                          {`sh -c 'setsid sh -c "echo ready; exec sleep 600" & exit'; exec cat`, "term", 1},
		"without our marker":                   {`env -i setsid sh -c 'trap "" TERM; echo ready; sleep 600' & exec cat`, "kill", 1},
		"stopped":                              {`echo ready; kill -STOP $$`, "kill", 1},
		"forks for ever in the group":          {`trap "" TERM; echo ready; while :; do (sleep 0.01) & done`, "kill", 1},
		"leader exits, group lives":            {`sleep 600 & echo ready; exit 0`, "term", 1},
		"leader exits, stubborn session lives": {`setsid sh -c 'trap "" TERM; echo ready; sleep 600' & exit 0`, "kill", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := f.start(f.spec(c.script).with(func(s *Spec) {
				switch c.stage { // which ends it, however slow the machine is
				case "eof":
					s.EOFWait = time.Minute
				case "term":
					s.TermWait = time.Minute
				}
			}))
			if strings.Contains(c.script, "echo ready") {
				f.line(p)
			}
			r := p.Close(t.Context())
			if r.Stage != c.stage || r.Found < c.found || r.Signalled != r.Found || r.Alive != 0 || r.Err != nil {
				t.Errorf("report %+v, want stage %s", r, c.stage)
			}
			if r.Exit == "" || r.Exit != p.ExitStatus() {
				t.Errorf("exit %q", r.Exit)
			}
			within(t, p.Gone(), "gone")
			if left := f.tagged(); len(left) != 0 {
				t.Errorf("left: %+v", left)
			}
		})
	}
}

// P2: processes that fork and exit faster than the process table can be read, each
// in a new session, do not run away.
func TestCloseCatchesARelayOfSessions(t *testing.T) {
	if _, err := exec.LookPath("perl"); err != nil {
		t.Skip("a shell is too slow for this, and there is no perl")
	}
	f := newFixture(t)
	s := f.spec(`exec perl -e '$| = 1; $SIG{TERM} = "IGNORE"; print "ready\n"; use POSIX; while (1) { my $p = fork; exit if $p; POSIX::setsid() }'`)
	s.KillWait = 0 // the default
	for range 3 {  // It takes luck to catch one by walks of the table.
		p := f.start(s)
		f.line(p)
		if r := p.Close(t.Context()); r.Alive != 0 || r.Stage != "kill" {
			t.Errorf("report %+v", r)
		}
		within(t, p.Gone(), "gone")
	}
}

// P2, case 44: a grandchild that keeps stdout and stderr open blocks nothing.
func TestHeldOutputBlocksNothing(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec(`setsid sh -c 'trap "" TERM; sleep 600' & exit 3`))
	within(t, p.Exited(), "exit")
	if got := p.ExitStatus(); got != "exit status 3" {
		t.Errorf("exit status %q", got)
	}
	select {
	case <-p.Gone():
		t.Error("gone while a grandchild lives")
	default:
	}
	read := make(chan error, 1)
	go func() {
		_, err := p.Stdout().Read(make([]byte, 1))
		read <- err
	}()
	p.Close(t.Context())
	if err := <-read; err == nil {
		t.Error("reading stdout went on")
	}
}

// P1: the reaper holds none of the pipes: they end when the server lets them go, and
// not only when the tree is gone.
func TestPipesEndWithTheServer(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec("sleep 600 <&- >/dev/null 2>&1 & exit 0"))
	if err := p.Stdout().SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdout().Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("stdout: %v", err)
	}
	within(t, p.drained, "the end of stderr")
	eventually(t, "stdin to break", func() bool {
		_, err := p.Stdin().Write([]byte("x"))
		return errors.Is(err, syscall.EPIPE)
	})
}

// P2: even a holder of the pipes outside the tree cannot keep Close waiting.
func TestOutputHeldOutsideTheTreeBlocksNothing(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec("exec cat").with(patient))
	proc := filepath.Join("/proc", strconv.Itoa(p.PID()), "fd")
	for _, fd := range []string{"1", "2"} {
		held, err := os.OpenFile(filepath.Join(proc, fd), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
	}
	if r := p.Close(t.Context()); r.Stage != "eof" || r.Duration > 5*time.Second {
		t.Errorf("report %+v", r)
	}
	if _, err := p.Stdout().Read(make([]byte, 1)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("stdout after close: %v", err)
	}
}

// P2: the leader is reaped only when its group is empty, so that the number of the
// group cannot become another's; when it is, the tree is gone without any Close.
func TestLeaderIsReapedLast(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec(`setsid sh -c 'exit 0' & cat <&3 >/dev/null & exit 0`).with(func(s *Spec) {
		s.Args[1] = `exec 3<&0; ` + s.Args[1]
	}))
	within(t, p.Exited(), "exit")
	e, err := readEntry(p.PID())
	if err != nil || !e.zombie {
		t.Fatalf("the leader is %+v, %v; want a zombie", e, err)
	}
	p.Stdin().Close()
	within(t, p.Gone(), "gone")
	if _, err := readEntry(p.PID()); err == nil {
		t.Error("the leader was not reaped")
	}
}

// P1: orphans that end are reaped, also while the leader is kept.
func TestOrphansAreReaped(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec(`sh -c 'for i in 1 2 3 4 5; do sh -c "sleep 0.1 & exit"; done; sleep 600' & exit 0`))
	within(t, p.Exited(), "exit")
	eventually(t, "the orphans to be reaped", func() bool {
		all, err := readTable()
		if err != nil {
			t.Fatal(err)
		}
		var zombies, orphans, last int
		for _, e := range all {
			switch {
			case e.parent == p.tree.reaper.Pid && e.zombie:
				zombies++
			case e.parent == p.tree.reaper.Pid:
				orphans++
			}
			for _, own := range all {
				if e.name == "sleep" && e.parent == own.pid && own.parent == p.tree.reaper.Pid {
					last++
				}
			}
		}
		return zombies == 1 && orphans == 1 && last == 1
	})
}

func (s Spec) with(change func(*Spec)) Spec {
	change(&s)
	return s
}

// patient gives a server that ends with its input the time to do so on a busy machine.
func patient(s *Spec) { s.EOFWait = time.Minute }

// P2: every process gets one TERM, since the second may mean "at once" to it.
func TestTermComesOnce(t *testing.T) {
	f := newFixture(t)
	file := filepath.Join(t.TempDir(), "terms")
	member := `trap "echo $0 >> ` + file + `" TERM; echo $0; while :; do sleep 0.01; done`
	s := f.spec(`member='` + member + `'; sh -c "$member" group & setsid sh -c "$member" session & wait; wait; wait`)
	s.TermWait = 4 * time.Second
	p := f.start(s)
	for in, n := bufio.NewScanner(p.Stdout()), 0; n < 2 && in.Scan(); n++ {
	}
	p.Close(t.Context())
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(b); strings.Count(got, "group\n") != 1 || strings.Count(got, "session\n") != 1 {
		t.Errorf("TERM came to %q", got)
	}
}

// Cases 44 and 62: Close runs once, however often and concurrently it is called.
func TestCloseIsIdempotent(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec("exec sleep 600").with(func(s *Spec) { s.TermWait = time.Minute }))
	var wg sync.WaitGroup
	reports := make([]Report, 8)
	for i := range reports {
		wg.Go(func() { reports[i] = p.Close(t.Context()) })
	}
	wg.Wait()
	for _, r := range append(reports, p.Close(t.Context())) {
		if r != reports[0] || r.Stage != "term" {
			t.Errorf("report %+v, first %+v", r, reports[0])
		}
	}
}

// P2: when the context of any caller ends, the ladder goes straight to KILL.
func TestCloseHurries(t *testing.T) {
	for _, at := range []string{"before", "during"} {
		t.Run(at, func(t *testing.T) {
			f := newFixture(t)
			p := f.start(f.spec("exec sleep 600").with(func(s *Spec) { s.EOFWait, s.TermWait = time.Hour, time.Hour }))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var first sync.WaitGroup
			if at == "before" {
				cancel()
			} else {
				first.Go(func() { p.Close(context.Background()) })
				time.AfterFunc(50*time.Millisecond, cancel)
			}
			if r := p.Close(ctx); r.Stage != "kill" || r.Exit != "signal: killed" || r.Err != nil {
				t.Errorf("report %+v", r)
			}
			first.Wait()
		})
	}
}

// P1: when its reaper is killed, the daemon sees it and ends what is left: what has
// lost both session and parent, and what has lost its marker.
func TestKilledReaperLeavesNothing(t *testing.T) {
	for name, script := range map[string]string{
		"other session":     `setsid sh -c 'trap "" TERM HUP; echo $$; sleep 600' & exec cat`,
		"other environment": `env -i sh -c 'trap "" TERM HUP; echo $$; sleep 600' & exec cat`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := f.start(f.spec(script))
			pid, err := strconv.Atoi(f.line(p))
			if err != nil {
				t.Fatal(err)
			}
			kill(t, p.tree.reaper.Pid, unix.SIGKILL)
			within(t, p.Exited(), "exit")
			within(t, p.Gone(), "gone")
			if !dead(pid) {
				t.Error("the grandchild lives")
			}
			if p.ExitStatus() == "" {
				t.Error("no exit status")
			}
			if r := p.Close(t.Context()); r.Err == nil || r.Alive != 0 {
				t.Errorf("report %+v", r)
			}
			if !strings.Contains(f.log.String(), "reaper of a server ended unexpectedly") {
				t.Errorf("log %q", f.log)
			}
		})
	}
}

// P2: a reaper that does not run bounds Close no less.
func TestStoppedReaperBoundsClose(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec("exec sleep 600").with(func(s *Spec) { s.KillWait = 100 * time.Millisecond }))
	kill(t, p.tree.reaper.Pid, unix.SIGSTOP)
	r := p.Close(t.Context())
	if r.Err == nil || r.Alive != 0 || r.Duration > 15*time.Second {
		t.Errorf("report %+v", r)
	}
}

// P1: no signal of our terminal reaches the server or its reaper, and a TERM for
// everything named roundhouse does not end the reaper.
func TestTerminalSignalsDoNotReachServers(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec("exec cat").with(patient))
	for _, pid := range []int{p.PID(), p.tree.reaper.Pid} {
		group, err := unix.Getpgid(pid)
		if err != nil || group == unix.Getpgrp() {
			t.Errorf("group of %d is %d (%v), ours %d", pid, group, err, unix.Getpgrp())
		}
		ours, _ := unix.Getsid(0)
		if session, err := unix.Getsid(pid); err != nil || session == ours {
			t.Errorf("session of %d is %d (%v), ours too", pid, session, err)
		}
	}
	if group, _ := unix.Getpgid(p.PID()); group != p.PID() {
		t.Errorf("the server's group is %d, its pid %d", group, p.PID())
	}
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		kill(t, p.tree.reaper.Pid, sig)
	}
	if _, err := p.Stdin().Write([]byte("alive\n")); err != nil {
		t.Fatal(err)
	}
	if got := f.line(p); got != "alive" {
		t.Errorf("read %q", got)
	}
	if r := p.Close(t.Context()); r.Stage != "eof" || r.Err != nil {
		t.Errorf("report %+v", r)
	}
}

// The manager does not give up what still lives.
func TestManagerCloseRefusesWhileServersLive(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec("exec cat"))
	if err := f.m.Close(); err == nil || !strings.Contains(err.Error(), t.Name()) {
		t.Errorf("close: %v", err)
	}
	p.Close(t.Context())
	if err := f.m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.m.Start(t.Context(), f.spec("exec cat")); err == nil {
		t.Error("a closed manager starts servers")
	}
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := unix.Kill(pid, sig); err != nil {
		t.Fatalf("kill %d: %v", pid, err)
	}
}
