package process

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// daemon is another daemon that the test may kill.
type daemon struct {
	cmd     *exec.Cmd
	state   string
	servers []int
	reapers []int
}

// daemon starts one with a server for each script.
func (f *fixture) daemon(scripts ...string) *daemon {
	f.Helper()
	d := &daemon{state: f.TempDir()}
	d.cmd = exec.Command("/proc/self/exe", scripts...)
	d.cmd.Env = append(os.Environ(), roleVar+"=daemon", tagVar+"="+f.tag, "PROCESS_TEST_STATE="+d.state)
	d.cmd.Stderr = os.Stderr
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		f.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(d.kill)
	for in := bufio.NewScanner(out); in.Scan() && in.Text() != "ready"; {
		var server, reaper int
		if _, err := fmt.Sscan(in.Text(), &server, &reaper); err != nil {
			f.Fatalf("daemon said %q", in.Text())
		}
		d.servers, d.reapers = append(d.servers, server), append(d.reapers, reaper)
	}
	if len(d.servers) != len(scripts) {
		f.Fatal("the daemon did not start its servers")
	}
	return d
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait() // It says that it was killed.
}

// dead reports whether a process has ended, even if init has yet to reap it.
func dead(pid int) bool {
	e, err := readEntry(pid)
	return err != nil || e.zombie
}

// sleeping counts the processes that sleep: those of the test, and children of such ones. When
// a script has come to its sleep, what stands before it is done.
func (f *fixture) sleeping() int {
	f.Helper()
	all, err := readTable()
	if err != nil {
		f.Fatal(err)
	}
	ours := map[int]bool{}
	for _, e := range f.tagged() {
		ours[e.pid] = true
	}
	return len(slices.DeleteFunc(all, func(e entry) bool { return e.zombie || e.name != "sleep" || !ours[e.pid] && !ours[e.parent] }))
}

func (d *daemon) journals(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(d.state, journalPrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// P1, case 43: when the daemon is killed, its servers end within the close
// deadlines, polite or not, without any next start.
func TestKilledDaemonLeavesNothing(t *testing.T) {
	f := newFixture(t)
	d := f.daemon("exec cat", `setsid sh -c 'trap "" TERM; sleep 600' & trap "" TERM; sleep 600; sleep 600`)
	eventually(t, "the grandchildren", func() bool { return f.sleeping() == 2 })
	begin := time.Now()
	d.kill()
	eventually(t, "the servers to end", func() bool { return len(f.tagged()) == 0 })
	eventually(t, "the reapers to end", func() bool {
		return dead(d.reapers[0]) && dead(d.reapers[1])
	})
	t.Logf("gone %v after the kill", time.Since(begin))

	// P4: the next start finds nothing to do and removes the journal.
	m, err := NewManager(Config{StateDir: d.state})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Swept()) != 0 {
		t.Errorf("swept %q", m.Swept())
	}
	if j := d.journals(t); len(j) != 1 || j[0] != m.journal.file.Name() {
		t.Errorf("journals %q", j)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if j := d.journals(t); len(j) != 0 {
		t.Errorf("journals after close %q", j)
	}
}

// P4, case 43: what outlives daemon and reaper is ended by the next start, with its
// descendants, and a reaper that cannot run is ended, too.
func TestNextStartEndsWhatIsLeft(t *testing.T) {
	f := newFixture(t)
	d := f.daemon(
		`setsid sh -c 'trap "" TERM HUP; sleep 600; sleep 600' & sleep 600; exit`,
		`setsid sh -c 'env -i sleep 600; exit' & exec cat`,
	)
	eventually(t, "the grandchildren", func() bool { return f.sleeping() == 3 })
	kill(t, d.reapers[1], unix.SIGSTOP)
	kill(t, d.reapers[0], unix.SIGKILL)
	d.kill()
	// P1: the death of the reaper ends the server, even with no daemon to see it.
	eventually(t, "the first leader to end", func() bool { return dead(d.servers[0]) })

	m, err := NewManager(Config{StateDir: d.state})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if left := f.tagged(); len(left) > 0 {
		t.Errorf("left %+v", left)
	}
	for _, want := range []string{"server server0, pid ", "server server1, pid ", "(sleep)"} {
		if !slices.ContainsFunc(m.Swept(), func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("swept %q lacks %q", m.Swept(), want)
		}
	}
	eventually(t, "the stopped reaper to end", func() bool { return dead(d.reapers[1]) })
}

// P4, case 43: a recorded pid proves nothing. Without the marker a process is
// untouched, whatever a journal says.
func TestSweepLeavesUnrelatedProcesses(t *testing.T) {
	innocent := exec.Command("sleep", "600")
	innocent.Env = append(os.Environ(), markerVar+"=ANOTHER-DAEMONS-MARKER")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		innocent.Process.Kill()
		innocent.Wait()
	}()
	e, err := readEntry(innocent.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	line, err := record{Marker: "GONE", Server: "files", Time: time.Now(), PID: e.pid, Start: e.start}.line()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(state, journalPrefix+"X"+journalSuffix)
	if err := os.WriteFile(file, line, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := NewManager(Config{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if now, err := readEntry(e.pid); err != nil || now.zombie || len(m.Swept()) != 0 {
		t.Errorf("the process is %+v, %v; swept %q", now, err, m.Swept())
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the dead journal remains")
	}
}

// P4: a sweep leaves the journal and the servers of a daemon that lives alone.
func TestDaemonsDoNotSweepEachOther(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec("exec cat").with(patient))
	m, err := NewManager(Config{StateDir: filepath.Dir(f.m.journal.file.Name())})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Swept()) != 0 {
		t.Errorf("swept %q", m.Swept())
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if r := p.Close(t.Context()); r.Stage != "eof" || r.Exit != "exit status 0" {
		t.Errorf("report %+v", r)
	}
}

// P4: the journal names marker, pid and start while a server lives, in a file that
// only we can read, and nothing afterwards.
func TestJournalFollowsTheServer(t *testing.T) {
	f := newFixture(t)
	read := func() []record {
		b, err := os.ReadFile(f.m.journal.file.Name())
		if err != nil {
			t.Fatal(err)
		}
		return parseRecords(b)
	}
	p := f.start(f.spec("exec cat").with(func(s *Spec) { s.Server = strings.Repeat("\x01long ", 200) }))
	q := f.start(f.spec("exec cat").with(func(s *Spec) { s.Server = "files" }))
	e, err := readEntry(q.PID())
	if err != nil {
		t.Fatal(err)
	}
	if got := read(); len(got) != 2 || got[1].PID != q.PID() || got[1].Start != e.start || got[1].Marker != q.tree.marker || got[1].Server != "files" {
		t.Errorf("records %+v, process %+v", got, e)
	}
	info, err := os.Stat(f.m.journal.file.Name())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("journal %v, %v", info.Mode(), err)
	}
	p.Close(t.Context())
	if got := read(); len(got) != 1 || got[0].Server != "files" {
		t.Errorf("records %+v", got)
	}
	p = f.start(f.spec("exec cat"))
	if p.slot != 0 {
		t.Errorf("slot %d; the free one was not used again", p.slot)
	}
	p.Close(t.Context())
	q.Close(t.Context())
	if got := read(); len(got) != 0 {
		t.Errorf("records %+v", got)
	}
}
