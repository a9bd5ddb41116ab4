//go:build unix

package process

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// P3: a walk of a table ends at cycles and limits, and skips the dead.
func TestWalkIsBounded(t *testing.T) {
	pids := func(list []entry) (out []int) {
		for _, e := range list {
			out = append(out, e.pid)
		}
		return out
	}
	cycle := table{{pid: 1, parent: 3}, {pid: 2, parent: 1}, {pid: 3, parent: 2}, {pid: 4, parent: 4}, {pid: 5, parent: 3, zombie: true}}
	if got := pids(cycle.below(1)); len(got) != 2 || got[0] != 2 || got[1] != 3 {
		t.Errorf("cycle: %v", got)
	}
	if got := cycle.below(4); len(got) != 0 {
		t.Errorf("own parent: %v", got)
	}
	if got := cycle.above(2); len(got) != 3 {
		t.Errorf("ancestors: %v", got)
	}
	var deep, wide table
	for i := range 100 {
		deep = append(deep, entry{pid: i + 2, parent: i + 1})
	}
	for i := range 2 * maxProcesses {
		wide = append(wide, entry{pid: i + 2, parent: 1})
	}
	if got := deep.below(1); len(got) != maxDepth {
		t.Errorf("deep: %d", len(got))
	}
	if got := wide.below(1); len(got) != maxProcesses {
		t.Errorf("wide: %d", len(got))
	}
}

// P4: what is marked or in the session is ours with its descendants, but never we or
// our ancestors.
func TestOwnedSparesOurselves(t *testing.T) {
	all := table{
		{pid: 10, parent: 1},               // marked
		{pid: 11, parent: 10},              // by descent
		{pid: 12, parent: 1},               // marked, our ancestor
		{pid: 13, parent: 12},              // ourselves
		{pid: 20, parent: 1, session: 7},   // by session
		{pid: 21, parent: 1, zombie: true}, // marked and dead
		{pid: 22, parent: 1},               // a stranger
	}
	got := map[int]bool{}
	for _, e := range all.owned(7, all.above(13), func(pid int) bool { return pid == 10 || pid == 12 || pid == 21 }) {
		got[e.pid] = true
	}
	if len(got) != 3 || !got[10] || !got[11] || !got[20] {
		t.Errorf("owned %v", got)
	}
	if got := all.owned(0, nil, func(int) bool { return false }); len(got) != 0 {
		t.Errorf("session 0 owns %v", got)
	}
}

// P3: a signal goes to the process of the snapshot and to no later bearer of its pid.
func TestSignalChecksTheStart(t *testing.T) {
	e, err := readEntry(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	e.start++
	var c tally
	c.send(e, 9) // We would not survive it.
	if c.found != 0 || c.signalled != 0 {
		t.Errorf("tally %+v", c)
	}
}

// P2: the counts tell what could not be signalled, once for each process, and do not
// count what ended by itself.
func TestTallyCountsProcessesOnce(t *testing.T) {
	var c tally
	a, b := entry{pid: 1, start: 1}, entry{pid: 1, start: 2}
	c.count(a, syscall.EPERM)
	c.count(a, syscall.EPERM)
	if c.found != 1 || c.signalled != 0 {
		t.Errorf("refused: %+v", c)
	}
	c.count(a, nil)
	c.count(a, nil)
	c.count(b, syscall.ESRCH)
	c.count(b, os.ErrProcessDone)
	if c.found != 1 || c.signalled != 1 {
		t.Errorf("tally %+v", c)
	}
}

func FuzzParseRecords(f *testing.F) {
	line, err := record{Marker: "M", Server: "files", PID: 7}.line()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(line))
	f.Add("{\n{}\n\x00")
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range parseRecords([]byte(text)) {
			if r.Marker == "" {
				t.Error("a record without a marker")
			}
			line, err := record{Marker: "M", Server: r.Server}.line()
			if err != nil || len(line) != recordSize || strings.Count(string(line), "\n") != 1 {
				t.Errorf("line %q, %v", line, err)
			}
		}
	})
}

// P1, P2: what was found once counts until it has ended, also when nothing tells any more
// whose it is, as of a process on its way out.
func TestWhatIsFoundOnceIsSeenToItsEnd(t *testing.T) {
	cmd := exec.Command("sh", "-c", `trap "" TERM; echo; while :; do sleep 600; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its sleep, too
		_ = cmd.Wait()                                      // it was killed
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	e, err := readEntry(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	looks := 0
	o := finish(func() ([]entry, error) {
		if looks++; looks == 1 {
			return []entry{e}, nil
		}
		return nil, nil
	}, nil, 10*time.Millisecond, time.Minute)
	if o.stage != "kill" || o.found != 1 || o.alive != 0 || o.err != nil {
		t.Errorf("%+v", o)
	}
	if !hasEnded(e) {
		t.Error("it lives")
	}
}
