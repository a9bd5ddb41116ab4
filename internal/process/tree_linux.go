package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reaperExecutable returns what runs as reaper. Our own binary is named by its
// process, so that a reaper is of the same version even if the file was replaced.
func reaperExecutable(configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	if !reaperMainCalled.Load() {
		return "", errors.New("process.ReaperMain was not the first call of main")
	}
	const self = "/proc/self/exe"
	if _, err := os.Stat(self); err == nil {
		return self, nil
	}
	return os.Executable()
}

// tree is the daemon's side of a server's tree: its reaper.
type tree struct {
	// Constant after startTree.
	server string
	marker string
	log    *slog.Logger
	waits  waits
	owner  *Manager
	pid    int    // of the server
	start  uint64 // of the server, as in the process table
	reaper *os.Process

	control *os.File      // written by end, read by watch
	in      *bufio.Reader // of control; owned by startTree, then by watch

	exited  chan struct{} // closed when the server has ended
	status  string        // written by watch before exited is closed
	verdict chan outcome  // what the ladder did; watch sends one at most
	gone    chan struct{} // closed by watch when nothing lives and the reaper is reaped
}

// startTree starts a reaper and has it start the server. If it succeeds, watch
// must be started.
func startTree(ctx context.Context, m *Manager, l launch, child stdio) (*tree, error) {
	t := &tree{
		server: l.server, marker: l.marker, log: m.log, waits: l.waits, owner: m,
		exited: make(chan struct{}), verdict: make(chan outcome, 1), gone: make(chan struct{}),
	}
	if err := t.startReaper(m.executable, child); err != nil {
		return nil, fmt.Errorf("start its reaper: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { t.control.SetDeadline(time.Unix(1, 0)) })
	err := t.launch(l)
	if !stop() {
		err = context.Cause(ctx)
	}
	// The reaper has its own copies. Ours must not keep the pipes open.
	child.close()
	if err != nil {
		t.abort()
		return nil, err
	}
	return t, nil
}

func (t *tree) startReaper(executable string, child stdio) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make control socket: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return errors.Join(err, unix.Close(fds[0]))
	}
	t.control = os.NewFile(uintptr(fds[0]), "control")
	t.in = bufio.NewReader(t.control)
	t.reaper, err = os.StartProcess(executable, []string{"roundhouse: reaper " + t.server}, &os.ProcAttr{
		Dir: "/", // It must not hold a directory.
		// The heap of a reaper is tiny; so is its need of threads.
		Env:   []string{reaperVar + "=" + t.marker, "GOMAXPROCS=1", "GOGC=25"},
		Files: []*os.File{child.in, child.out, child.err, theirs},
		// A session of its own: no signal of our terminal reaches it or the server.
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		t.control.Close()
		return err
	}
	t.owner.own(t.reaper.Pid, true)
	return nil
}

// waitReaper waits for the reaper.
func (t *tree) waitReaper() {
	t.reaper.Wait()
	t.owner.own(t.reaper.Pid, false)
}

// launch sends the order and waits for its answer.
func (t *tree) launch(l launch) error {
	if _, err := t.control.Write(encodeLaunch(l)); err != nil {
		return fmt.Errorf("send its launch order: %w", err)
	}
	line, err := t.in.ReadString('\n')
	if err != nil {
		return fmt.Errorf("its reaper did not answer: %w", err)
	}
	if _, err := fmt.Sscanf(line, sayStarted, &t.pid, &t.start); err == nil {
		return nil
	}
	var errno syscall.Errno
	if _, err := fmt.Sscanf(line, sayFailed, &errno); err != nil {
		return fmt.Errorf("its reaper answered %q", line)
	}
	if errno == syscall.ENOENT {
		// The file was there, so the system misses the interpreter that it names.
		return fmt.Errorf("execute %s: its interpreter was not found: %w", l.path, errno)
	}
	return &fs.PathError{Op: "execute", Path: l.path, Err: errno}
}

// abort ends a tree whose start failed, whatever of it lives.
func (t *tree) abort() {
	if o := t.takeOver(); o.alive > 0 {
		t.log.Warn("a failed start left processes", "server", t.server, "alive", o.alive, "err", o.err)
	}
	t.control.Close()
	t.waitReaper()
}

// takeOver kills the reaper, if it lives, and then what it leaves. The reaper
// must not have been waited for: until then the number of its session, which the
// server shares, is nobody else's.
func (t *tree) takeOver() outcome {
	t.reaper.Kill()
	// Once it is a zombie it forks no more. An error means that it is no child of ours, thus gone.
	for unix.Waitid(unix.P_PID, t.reaper.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	markers := map[string]bool{t.marker: true}
	return finish(func() ([]entry, error) { return survivors(markers, t.reaper.Pid) }, nil, 0, t.waits.kill)
}

// watch follows the reaper to the end of the tree and then calls onGone. It is the
// only goroutine of a tree; end waits for it, unless something cannot be killed:
// then it lasts as long as that.
func (t *tree) watch(onGone func()) {
	if !t.follow() {
		t.log.Warn("the reaper of a server ended unexpectedly; killing what it left", "server", t.server, "pid", t.pid)
		o := t.takeOver()
		o.err = errors.Join(errors.New("its reaper ended unexpectedly"), o.err)
		t.setExited("unknown: its reaper was killed")
		t.setVerdict(o)
		for o.alive > 0 {
			time.Sleep(time.Second)
			o = t.takeOver()
		}
	}
	t.control.Close()
	t.reaper.Kill() // Its work is done. It need not take the time to exit.
	t.waitReaper()
	onGone()
	close(t.gone)
}

// follow reads what the reaper says and reports whether it said that the tree is
// gone.
func (t *tree) follow() bool {
	for {
		line, err := t.in.ReadString('\n')
		if err != nil {
			return false
		}
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "exited":
			var status syscall.WaitStatus
			if _, err := fmt.Sscanf(line, sayExited, &status); err == nil {
				t.setExited(statusText(status))
			}
		case "ladder":
			var o outcome
			if _, err := fmt.Sscanf(line, sayLadder, &o.stage, &o.found, &o.signalled, &o.alive); err == nil {
				t.setVerdict(o)
			}
		case "gone":
			t.setVerdict(outcome{stage: "eof"})
			return true
		}
	}
}

// setExited is called by watch only; the first status counts.
func (t *tree) setExited(status string) {
	select {
	case <-t.exited:
	default:
		t.status = status
		close(t.exited)
	}
}

// setVerdict is called by watch only; the first outcome counts.
func (t *tree) setVerdict(o outcome) {
	select {
	case t.verdict <- o:
	default:
	}
}

// end runs the ladder, whose stdin step the caller has taken. It may be called
// once. It is over when the tree is gone, or when the reaper says what it could
// not end; a reaper that does not answer in time is killed, and its tree with it.
func (t *tree) end(hurry <-chan struct{}) outcome {
	t.tell(orderClose)
	bound := time.NewTimer(t.waits.total())
	defer bound.Stop()
	var late bool
	var o outcome
	verdict, gone := t.verdict, (chan struct{})(nil)
	for {
		select {
		case o = <-verdict:
			if o.alive > 0 {
				return o
			}
			verdict, gone = nil, t.gone
		case <-gone:
			return o
		case <-hurry:
			hurry = nil
			t.tell(orderKill)
			bound.Reset(max(t.waits.kill, 0) + slack)
		case <-bound.C:
			if late {
				return outcome{stage: "kill", alive: 1, err: errors.New("its tree could not be ended in time")}
			}
			late = true
			t.reaper.Kill()
			bound.Reset(max(t.waits.kill, 0) + slack)
		}
	}
}

// total is when a reaper should have ended its tree.
func (w waits) total() time.Duration {
	return max(w.eof, 0) + max(w.term, 0) + max(w.kill, 0) + slack
}

// tell sends an order. A reaper that cannot read it is dead, which watch sees, or
// stuck, which end sees.
func (t *tree) tell(order string) {
	t.control.SetWriteDeadline(time.Now().Add(slack))
	_, _ = t.control.WriteString(order + "\n")
}

// look finds the trees of processes in the process table.
func look(started []*Process) View {
	v := View{Self: Info{PID: os.Getpid()}, Trees: map[*Process]Tree{}}
	all, err := readTable()
	if err != nil {
		return v
	}
	owners := make(map[int]*Process, len(started))
	for _, p := range started {
		owners[p.tree.reaper.Pid] = p
	}
	k := all.kin()
	known := map[int]bool{}
	for _, e := range all {
		switch p := owners[e.pid]; {
		case e.pid == v.Self.PID:
			v.Self = e.info()
		case p != nil && e.parent == v.Self.PID && !e.zombie:
			t := Tree{Reaper: new(e.info()), Members: infos(k.below(e.pid))}
			known[e.pid] = true
			for _, i := range t.Members {
				known[i.PID] = true
			}
			v.Trees[p] = t
		}
	}
	for _, e := range k.below(v.Self.PID) {
		if !known[e.pid] {
			v.Others = append(v.Others, e.info())
		}
	}
	return v
}
