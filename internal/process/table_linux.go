package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is the unit of times in /proc, fixed by the kernel's
// interface on every architecture that Go knows.
const ticksPerSecond = 100

// readTable reads /proc once. A process that ends meanwhile is left out.
func readTable() (table, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	t := make(table, 0, len(names))
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if e, err := readEntry(pid); err == nil {
			t = append(t, e)
		}
	}
	if len(t) == 0 {
		return nil, errors.New("read the process table: /proc shows no process")
	}
	return t, nil
}

// readEntry reads one process.
func readEntry(pid int) (entry, error) {
	// 52 numbers and a name of 16 bytes fit; a file of /proc is read in one call.
	var buf [2048]byte
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return entry{}, err
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return entry{}, err
	}
	return parseStat(buf[:n])
}

// parseStat reads the form of /proc/PID/stat: "pid (name) state ppid pgrp session …
// utime stime … num_threads … starttime vsize rss …". The name may hold anything, parentheses included.
func parseStat(b []byte) (entry, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return entry{}, errors.New("process status without a name")
	}
	const state, parent, group, session, user, kernel, threads, start, rss = 0, 1, 2, 3, 11, 12, 17, 19, 21 // after the name
	fields := bytes.Fields(b[end+1:])
	if len(fields) <= rss {
		return entry{}, errors.New("process status is too short")
	}
	number := func(b []byte) int {
		n, _ := strconv.Atoi(string(b)) // The kernel writes numbers.
		return n
	}
	ticks, err := strconv.ParseUint(string(fields[start]), 10, 64)
	pid := number(bytes.TrimSpace(b[:open]))
	if err != nil || pid < 1 {
		return entry{}, errors.New("process status is malformed")
	}
	return entry{
		pid: pid, parent: number(fields[parent]), group: number(fields[group]), session: number(fields[session]),
		start: ticks, name: string(b[open+1 : end]),
		cpu: time.Duration(number(fields[user])+number(fields[kernel])) * (time.Second / ticksPerSecond),
		rss: int64(number(fields[rss])) * int64(os.Getpagesize()),
		// A process whose main thread has ended shows Z while other threads run on.
		zombie: fields[state][0] == 'X' || fields[state][0] == 'Z' && number(fields[threads]) < 2,
	}, nil
}

// wallTime converts a start time of the table.
func wallTime(start uint64) time.Time {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}
	}
	since := time.Duration(up.Nano()) - time.Duration(start)*(time.Second/ticksPerSecond)
	return time.Now().Add(-since)
}

// environ reads the environment that a process was executed with. It is nil where
// we may not read it.
func environ(pid int) [][]byte {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil
	}
	return bytes.Split(b, []byte{0})
}

// ownChildren lists the direct children of this process, zombies included, in
// microseconds where the kernel keeps such lists, else from the process table. A child may be
// missing while others end, so what depends on it repeats it.
func ownChildren() []int {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	var out []int
	read := false
	for _, l := range lists {
		b, err := os.ReadFile(l)
		if err != nil {
			continue
		}
		read = true
		for f := range bytes.FieldsSeq(b) {
			if pid, err := strconv.Atoi(string(f)); err == nil {
				out = append(out, pid)
			}
		}
	}
	if read {
		return out
	}
	t, _ := readTable() // Without any table there is nothing to list.
	for _, e := range t {
		if e.parent == os.Getpid() {
			out = append(out, e.pid)
		}
	}
	return out
}
