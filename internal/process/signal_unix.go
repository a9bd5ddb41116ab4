//go:build unix

package process

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// tally counts the processes that were found and those that could be signalled.
// The zero value is ready.
type tally struct {
	found, signalled int
	seen             map[identity]bool // whether it was signalled
}

// send signals a process of a snapshot, if it is still the same one, and counts it.
func (c *tally) send(e entry, sig syscall.Signal) { c.count(e, signalEntry(e, sig)) }

// count notes what a signal to a process met. A process that has ended meanwhile
// does not count.
func (c *tally) count(e entry, err error) {
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return
	}
	if c.seen == nil {
		c.seen = map[identity]bool{}
	}
	id := e.identity()
	done, known := c.seen[id]
	if !known {
		c.found++
	}
	if err == nil && !done {
		c.signalled++
	}
	c.seen[id] = done || err == nil
}

// signalEntry signals a process of a snapshot. It is os.ErrProcessDone if that
// process is no more. Where the system has process handles, the check of the start
// time and the signal meet the same process; elsewhere a moment lies between.
func signalEntry(e entry, sig syscall.Signal) error {
	p, err := os.FindProcess(e.pid)
	if err != nil {
		return err
	}
	defer p.Release()
	if hasEnded(e) {
		return os.ErrProcessDone
	}
	return p.Signal(sig)
}

// hasEnded reports whether a process of a snapshot is no more.
func hasEnded(e entry) bool {
	now, err := readEntry(e.pid)
	return err != nil || now.start != e.start || now.zombie
}

// finish ends processes that are not our children: TERM, then KILL until find
// returns none or kill has passed. TERM is left out if term is less than 1, and
// its wait is over when hurry is closed. What find has returned counts as alive until it
// has ended, also if find no longer does: a process on its way out has no environment any
// more, and has not yet let go of its files.
func finish(find func() ([]entry, error), hurry <-chan struct{}, term, kill time.Duration) outcome {
	o := outcome{stage: "eof"}
	var count tally
	var known []entry // what find has returned and has not ended
	// until is one step of the ladder; it reports whether nothing is left.
	until := func(stage string, sig syscall.Signal, wait time.Duration, hurry <-chan struct{}) bool {
		deadline := time.Now().Add(wait)
		for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
			var list []entry
			list, o.err = find()
			known = slices.DeleteFunc(known, func(e entry) bool {
				return hasEnded(e) || slices.ContainsFunc(list, func(now entry) bool { return now.identity() == e.identity() })
			})
			list = append(list, known...)
			known = list
			o.alive = len(list)
			if o.alive == 0 && o.err == nil {
				return true
			}
			if o.stage == stage && time.Now().After(deadline) {
				return false
			}
			o.stage = stage
			for _, e := range list {
				// A second TERM may mean something else to a process than the first.
				if _, told := count.seen[e.identity()]; sig == syscall.SIGKILL || !told {
					count.send(e, sig)
				}
			}
			select {
			case <-time.After(pause):
			case <-hurry:
				return false
			}
		}
	}
	if term < 1 || !until("term", syscall.SIGTERM, term, hurry) {
		until("kill", syscall.SIGKILL, kill, nil)
	}
	o.found, o.signalled = count.found, count.signalled
	return o
}

// statusText writes a wait status as people know it from os/exec.
func statusText(w syscall.WaitStatus) string {
	if !w.Signaled() {
		return "exit status " + strconv.Itoa(w.ExitStatus())
	}
	s := "signal: " + w.Signal().String()
	if w.CoreDump() {
		s += " (core dumped)"
	}
	return s
}

// apart is how a command starts that no signal of our terminal should reach.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
