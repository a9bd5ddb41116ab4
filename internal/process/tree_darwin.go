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

	exited chan struct{} // closed when the server has ended
	status string        // written by watch before exited is closed
	gone   chan struct{} // closed by watch when nothing lives and the leader is reaped
}

// startTree starts the server. onGone is called once, before gone is closed, if
// the start succeeds.
func startTree(_ context.Context, _ *Manager, l launch, child stdio, onGone func()) (*tree, error) {
	t := &tree{marker: l.marker, waits: l.waits, exited: make(chan struct{}), gone: make(chan struct{})}
	queue, err := unix.Kqueue()
	if err != nil {
		return nil, fmt.Errorf("make event queue: %w", err)
	}
	unix.CloseOnExec(queue)
	t.leader, err = os.StartProcess(l.path, l.argv, &os.ProcAttr{
		Dir: l.dir, Env: l.env, Files: []*os.File{child.in, child.out, child.err},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		unix.Close(queue)
		return nil, err
	}
	t.pid = t.leader.Pid
	if e, err := readEntry(t.pid); err == nil {
		t.start = e.start
	}
	go t.watch(queue, onGone)
	return t, nil
}

// watch waits for the end of the leader and then of everything else. The leader
// is reaped last, so that the number of its session stays its own.
func (t *tree) watch(queue int, onGone func()) {
	t.status = t.awaitExit(queue)
	unix.Close(queue)
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
func (t *tree) awaitExit(queue int) string {
	change := unix.Kevent_t{
		Ident: uint64(t.pid), Filter: unix.EVFILT_PROC, Flags: unix.EV_ADD | unix.EV_ONESHOT,
		Fflags: unix.NOTE_EXIT | unix.NOTE_EXITSTATUS,
	}
	events := make([]unix.Kevent_t, 1)
	for {
		n, err := unix.Kevent(queue, []unix.Kevent_t{change}, events, nil)
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
	if !t.await(t.waits.eof, hurry) {
		term := t.waits.term
		select {
		case <-hurry:
			term = 0
		default:
		}
		o := finish(t.survivors, term, t.waits.kill)
		if o.alive == 0 {
			t.await(slack, nil)
		}
		return o
	}
	return outcome{stage: "eof"}
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

// descendants returns the live tree.
func (t *tree) descendants() []Info {
	list, err := t.survivors()
	if err != nil {
		return nil
	}
	return infos(list)
}
