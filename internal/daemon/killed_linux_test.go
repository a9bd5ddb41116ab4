package daemon_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// G1, P1, case 43: kill -9 of the daemon leaves no process, although nothing starts
// again: neither servers, busy and idle ones, nor what they have started.
func TestKilledDaemonLeavesNoProcess(t *testing.T) {
	t.Parallel()
	d := start(t, `{"mcpServers": {
		"polite":   {"command": "SERVER"},
		"busy":     {"command": "SERVER", "args": ["-exit-fast=false"], "sharing": "session", "closeTimeouts": {"eof": "200ms"}},
		"stubborn": {"command": "SERVER", "args": ["-ignore-eof", "-ignore-term", "-grandchild", "ignore_term"],
			"closeTimeouts": {"eof": "200ms", "term": "200ms"}},
		"far":      {"command": "SERVER", "args": ["-grandchild", "setsid"], "closeTimeouts": {"eof": "200ms"}},
		"orphan":   {"command": "SERVER", "args": ["-grandchild", "double_fork"], "closeTimeouts": {"eof": "200ms"}},
		"starting": {"command": "SERVER", "args": ["-never-start", "-ignore-eof"], "closeTimeouts": {"eof": "200ms"}}
	}}`)
	for _, name := range []string{"polite", "stubborn", "far", "orphan"} {
		d.client(name)
	}
	d.client("busy").begin("slow", `{"ms": 600000}`)
	go d.do("POST", "/mcp/starting", helloBody)
	eventually(t, "six servers and three grandchildren live", func() bool { return len(d.leftovers("badserver")) == 9 })
	begun := time.Now()
	d.signal(syscall.SIGKILL)
	d.wait()
	eventually(t, "no process is left", func() bool { return len(d.leftovers()) == 0 })
	if took := time.Since(begun); took > 10*time.Second { // 0.2 s for EOF, 0.2 s for TERM, then KILL
		t.Errorf("the last process lived for %s", took)
	}
}

// parent returns the parent of a process.
func parent(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	ppid, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return ppid
}

// P4, case 43: what even the reaper could not end, the next start ends and names.
func TestNextStartEndsWhatAKilledDaemonLeft(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	config := `{"mcpServers": {"bad": {"command": "SERVER", "args": ["-grandchild", "setsid"]}}}`
	d := n.serve(config)
	d.client("bad")
	server := d.pids()[0]
	reaper := parent(t, server)
	if _, ours := n.leftovers("roundhouse")[reaper]; !ours || reaper == d.cmd.Process.Pid {
		t.Fatalf("the parent of the server is %d, not its reaper", reaper)
	}
	d.signal(syscall.SIGKILL)
	if err := syscall.Kill(reaper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.wait()
	eventually(t, "the grandchild alone is left", func() bool { return len(n.leftovers()) == 1 })
	if len(n.journals()) != 1 {
		t.Errorf("the killed daemon left no journal: %v", n.journals())
	}

	next := n.serve(config)
	if left := n.leftovers("badserver"); len(left) > 0 {
		t.Errorf("left after the next start: %v", left)
	}
	if e := next.stderr.String(); !strings.Contains(e, "ended what an earlier daemon left") || !strings.Contains(e, "server bad") {
		t.Errorf("the next start does not say what it ended: %s", e)
	}
	if len(n.journals()) != 1 {
		t.Errorf("journals: %v", n.journals())
	}
	next.signal(syscall.SIGTERM)
	next.wantExit(0)
}

// P4, case 43: a pid in a killed daemon's journal may be another's by now. The next
// start leaves that process alone, and removes the journal.
func TestNextStartSparesAnUnrelatedProcessOnARecordedPID(t *testing.T) {
	t.Parallel()
	n, other := newNest(t), newNest(t)
	config := oneServer
	d := n.serve(config)
	d.client("bad")
	server := d.pids()[0]
	d.signal(syscall.SIGKILL)
	d.wait()
	eventually(t, "no process is left", func() bool { return len(n.leftovers()) == 0 })

	unrelated := exec.Command(other.path("badserver"))
	input, err := unrelated.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := unrelated.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = unrelated.Wait() // it is asked for its end below
	}()
	t.Cleanup(func() {
		_ = input.Close() // its end
		<-ended
	})
	recordPID(t, n, server, unrelated.Process.Pid)

	next := n.serve(config)
	select {
	case <-ended:
		t.Error("the next start ended a process that was not ours")
	case <-time.After(200 * time.Millisecond):
	}
	if e := next.stderr.String(); strings.Contains(e, "earlier daemon") {
		t.Errorf("the next start says: %s", e)
	}
	if files := n.journals(); len(files) != 1 {
		t.Errorf("journals: %v", files)
	}
	next.signal(syscall.SIGTERM)
	next.wantExit(0)
}

// lent is a configuration with an exclusive server.
const lent = `{"mcpServers": {"bad": {"command": "SERVER", "sharing": "exclusive", "instances": {"max": 3, "min": 1}}}}`

// I7, P4, case 43: what the instances of a killed daemon had for themselves is removed by
// the next start, and nothing else that is beside it. A normal end leaves nothing either.
func TestNextStartRemovesTheDirectoriesOfInstances(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	d := n.serve(lent)
	place := func(c *client) string {
		var who struct{ Env map[string]string }
		if err := json.Unmarshal([]byte(c.call("whoami", `{"env": ["TMPDIR"]}`).text()), &who); err != nil {
			t.Fatal(err)
		}
		return who.Env["TMPDIR"]
	}
	places := []string{place(d.client("bad")), place(d.client("bad"))}
	for _, dir := range places {
		if !strings.HasPrefix(dir, n.path("tmp")+"/roundhouse-") {
			t.Fatalf("an instance lives in %q", dir)
		}
		if err := os.MkdirAll(filepath.Join(dir, "profile", "cache"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	unrelated := n.path("tmp/roundhouse-unrelated")
	if err := os.MkdirAll(filepath.Join(unrelated, "0"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.signal(syscall.SIGKILL)
	d.wait()
	eventually(t, "no process is left", func() bool { return len(n.leftovers()) == 0 })
	if _, err := os.Stat(places[0]); err != nil {
		t.Fatalf("there is nothing to remove: %v", err)
	}

	next := n.serve(lent)
	for _, dir := range places {
		if _, err := os.Stat(filepath.Dir(dir)); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
	if e := next.stderr.String(); !strings.Contains(e, "removed a directory that a dead daemon left") {
		t.Errorf("the next start does not say what it removed: %s", e)
	}
	place(next.client("bad"))
	next.signal(syscall.SIGTERM)
	next.wantExit(0)
	left, err := os.ReadDir(n.path("tmp"))
	if err != nil || len(left) != 1 || left[0].Name() != filepath.Base(unrelated) {
		t.Errorf("left in the end: %v, %v", left, err)
	}
}

// recordPID puts another process in the place of old in the journal that is left,
// with the start time that it really has, as if the pid had been used again.
func recordPID(t *testing.T, n *nest, old, pid int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	began := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[19]
	files := n.journals()
	if len(files) != 1 {
		t.Fatalf("journals: %v", files)
	}
	for name, content := range files {
		found := false
		var lines []string
		for line := range bytes.Lines(content) {
			var record map[string]json.RawMessage
			if err := json.Unmarshal(line, &record); err != nil {
				t.Fatalf("%s holds %q: %v", filepath.Base(name), line, err)
			}
			if string(record["pid"]) == strconv.Itoa(old) {
				found = true
				record["pid"], record["start"] = json.RawMessage(strconv.Itoa(pid)), json.RawMessage(began)
			}
			b, err := json.Marshal(record)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, fmt.Sprintf("%-*s\n", len(line)-1, b))
		}
		if !found {
			t.Fatalf("%s does not hold the pid %d: %s", filepath.Base(name), old, content)
		}
		if err := os.WriteFile(name, []byte(strings.Join(lines, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
