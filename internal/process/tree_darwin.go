package process

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tree is a server that leads a session of its own. What leaves the session is
// found by descent and by its marker.
type tree struct {
	// Constant after startTree.
	marker string
	waits  waits
	pid    int
	start  uint64
	leader *os.Process
	queue  int // of kernel events; closed by watch

	exited chan struct{} // closed when the server has ended
	status string        // written by watch before exited is closed
	gone   chan struct{} // closed by watch when nothing lives and the leader is reaped
}

// startTree starts the server. If it succeeds, watch must be started.
func startTree(_ context.Context, _ *Manager, l launch, child stdio) (*tree, error) {
	t := &tree{marker: l.marker, waits: l.waits, exited: make(chan struct{}), gone: make(chan struct{})}
	var err error
	if t.queue, err = unix.Kqueue(); err != nil {
		return nil, fmt.Errorf("make event queue: %w", err)
	}
	unix.CloseOnExec(t.queue)
	t.leader, err = os.StartProcess(l.path, l.argv, &os.ProcAttr{
		Dir: l.dir, Env: l.env, Files: []*os.File{child.in, child.out, child.err},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		unix.Close(t.queue)
		return nil, err
	}
	t.pid = t.leader.Pid
	if e, err := readEntry(t.pid); err == nil {
		t.start = e.start
	}
	return t, nil
}

// watch waits for the end of the leader and then of everything else, and calls
// onGone. The leader is reaped last, so that the number of its session stays its
// own.
func (t *tree) watch(onGone func()) {
	t.status = t.awaitExit()
	unix.Close(t.queue)
	close(t.exited)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		if list, err := t.survivors(); err == nil && len(list) == 0 {
			break
		}
		time.Sleep(pause)
	}
	t.leader.Wait()
	onGone()
	close(t.gone)
}

// awaitExit waits until the leader has ended, without reaping it, and returns its
// status.
func (t *tree) awaitExit() string {
	change := unix.Kevent_t{
		Ident: uint64(t.pid), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD | unix.EV_ONESHOT,
		Fflags: unix.NOTE_EXIT | unix.NOTE_EXITSTATUS,
	}
	events := make([]unix.Kevent_t, 1)
	for {
		n, err := unix.Kevent(t.queue, []unix.Kevent_t{change}, events, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && n == 1 && events[0].Flags&unix.EV_ERROR == 0:
			return statusText(syscall.WaitStatus(events[0].Data))
		}
		// It has ended already, which the queue does not accept.
		state, err := t.leader.Wait()
		if err != nil {
			return "unknown: " + err.Error()
		}
		return state.String()
	}
}

func (t *tree) survivors() ([]entry, error) {
	return survivors(map[string]bool{t.marker: true}, t.pid)
}

// end runs the ladder, whose stdin step the caller has taken.
func (t *tree) end(hurry <-chan struct{}) outcome {
	if t.await(t.waits.eof, hurry) {
		return outcome{stage: "eof"}
	}
	o := finish(t.survivors, hurry, t.waits.term, t.waits.kill)
	if o.alive == 0 {
		t.await(slack, nil) // The watch sees it a moment later.
	}
	return o
}

// await waits until the tree is gone, d has passed or hurry is closed.
func (t *tree) await(d time.Duration, hurry <-chan struct{}) bool {
	select {
	case <-t.gone:
		return true
	case <-time.After(d):
	case <-hurry:
	}
	return false
}

// look finds the trees of processes in the process table.
func look(started []*Process) View {
	v := View{Self: Info{PID: os.Getpid()}, Trees: map[*Process]Tree{}}
	all, err := readTable()
	if err != nil {
		return v
	}
	spare := all.above(v.Self.PID)
	environs := map[int][][]byte{}
	for _, e := range all {
		if e.pid == v.Self.PID {
			v.Self = e.info()
		} else if !spare[e.pid] && !e.zombie {
			environs[e.pid] = environ(e.pid)
		}
	}
	for _, p := range started {
		markers := map[string]bool{p.tree.marker: true}
		list := all.owned(p.tree.pid, spare, func(pid int) bool { return carries(environs[pid], markerVar, markers) })
		if len(list) > 0 {
			v.Trees[p] = Tree{Members: infos(list)}
		}
	}
	return v
}
