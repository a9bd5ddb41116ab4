package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the unit of CPU times in /proc on every architecture that Go knows.
const tick = 10 * time.Millisecond

// process is one reading of /proc/PID/stat.
type process struct {
	pid, parent int
	started     uint64        // in ticks since boot; with pid it identifies the process
	cpu         time.Duration // user and system, in whole ticks
	resident    int64         // bytes, pages shared with other processes included
	ended       bool          // and nobody has waited for it yet
}

// readProcess reads process pid. The error is fs.ErrNotExist if there is none.
func readProcess(pid int) (process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return parseStat(text)
}

// parseStat parses the content of a /proc/PID/stat file.
func parseStat(text []byte) (process, error) {
	bad := func() (process, error) { return process{}, fmt.Errorf("unexpected /proc stat line %q", text) }
	// The command name, in parentheses, may hold anything, so the fields are counted
	// from its end. The first is the state, field 3 of proc_pid_stat(5).
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return bad()
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text[:open])))
	fields := bytes.Fields(text[end+1:])
	if err != nil || len(fields) < 22 {
		return bad()
	}
	number := func(field int) uint64 {
		n, nErr := strconv.ParseUint(string(fields[field-3]), 10, 63)
		err = errors.Join(err, nErr)
		return n
	}
	p := process{
		pid:      pid,
		parent:   int(number(4)),
		started:  number(22),
		cpu:      time.Duration(number(14)+number(15)) * tick,
		resident: int64(number(24)) * int64(os.Getpagesize()),
		// One whose first thread has ended counts as a zombie while others run on.
		ended: string(fields[0]) == "Z" && number(20) < 2,
	}
	if err != nil {
		return bad()
	}
	return p, nil
}

// descendants returns all processes below pid, at one moment as nearly as /proc allows.
func descendants(pid int) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := make(map[int][]process)
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := readProcess(n)
		if err != nil {
			continue // It has ended since.
		}
		children[p.parent] = append(children[p.parent], p)
	}
	var below []process
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, p := range children[next[0]] {
			below = append(below, p)
			next = append(next, p.pid)
		}
	}
	return below, nil
}

// endAll waits a moment until the processes have ended by themselves, kills those
// that have not, and reports them.
func endAll(processes []process) error {
	var errs []error
	giveUp := time.Now().Add(2 * time.Second)
	for _, p := range processes {
		for p.alive() && time.Now().Before(giveUp) {
			time.Sleep(10 * time.Millisecond)
		}
		if !p.alive() {
			continue
		}
		errs = append(errs, fmt.Errorf("process %d outlived its parent and was killed", p.pid))
		if left, err := os.FindProcess(p.pid); err == nil {
			_ = left.Kill() // It fails only if the process has just ended.
		}
	}
	return errors.Join(errs...)
}

// alive reports whether the very process p still runs.
func (p process) alive() bool {
	now, err := readProcess(p.pid)
	return err == nil && now.started == p.started && !now.ended
}

// machineBusy returns the CPU time that all processors have spent working since boot.
func machineBusy() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	return parseBusy(text)
}

// parseBusy parses the first line of /proc/stat: "cpu user nice system idle iowait
// irq softirq steal …". What other machines stole counts as busy: it was not ours.
func parseBusy(text []byte) (time.Duration, error) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0, fmt.Errorf("unexpected first line of /proc/stat %q", line)
	}
	var busy time.Duration
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.ParseUint(string(fields[i]), 10, 63)
		if err != nil {
			return 0, fmt.Errorf("unexpected first line of /proc/stat %q", line)
		}
		busy += time.Duration(n) * tick
	}
	return busy, nil
}
