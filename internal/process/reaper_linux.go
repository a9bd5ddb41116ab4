package process

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// controlFD is the reaper's end of the control socket; the server's stdio is below.
const controlFD = 3

// reaperMainCalled guards against a main that lacks its first line: its reapers
// would be daemons, which start reapers.
var reaperMainCalled atomic.Bool

// ReaperMain must be the first call of main, and of TestMain in packages that
// start processes. It returns at once, unless this process was started to be a
// reaper: then it never returns.
func ReaperMain() {
	reaperMainCalled.Store(true)
	if _, ok := os.LookupEnv(reaperVar); !ok {
		return
	}
	// The signal of the server's death by ours comes when the thread that forked
	// ends, which a locked thread does only with the process.
	runtime.LockOSThread()
	if err := reap(); err != nil {
		fmt.Fprintf(os.Stderr, "roundhouse: reaper: %v\n", err)
		os.Exit(2)
	}
	os.Exit(0)
}

// reaper owns one server's tree. One goroutine runs it; another one reads orders.
type reaper struct {
	control *os.File
	orders  <-chan string    // closed when the daemon has gone
	deaths  <-chan os.Signal // SIGCHLD, coalesced
	waits   waits
	leader  int  // the server's pid, and its group
	exited  bool // the leader is a zombie, kept until everything else is gone
	hurry   bool // go straight to KILL
	tally   tally
}

// reap does the whole work of a reaper. It returns when nothing lives any more.
func reap() error {
	unix.CloseOnExec(controlFD)
	// Whoever started the daemon may have left it descriptors, which servers must
	// not hold. A kernel that cannot do this passes them on, as plain children get them.
	_ = unix.CloseRange(controlFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err := unix.SetNonblock(controlFD, true); err != nil {
		return fmt.Errorf("no control socket, so this is no reaper: %w", err)
	}
	control := os.NewFile(controlFD, "control")
	in := bufio.NewReader(control)
	l, err := readLaunch(in)
	if err != nil {
		return fmt.Errorf("read the launch order: %w", err)
	}

	// They must be caught, not ignored: what is ignored stays so in the server. A
	// terminal's signals do not come here, but people send TERM to everything.
	nothing := make(chan os.Signal, 1)
	signal.Notify(nothing, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2)
	deaths := make(chan os.Signal, 1)
	signal.Notify(deaths, unix.SIGCHLD)

	// Our name in tools that do not show arguments. It is of use to people only.
	name := [16]byte{}
	copy(name[:15], "roundhouse-reap")
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0, 0, 0)

	r := &reaper{control: control, deaths: deaths, waits: l.waits}
	if err := r.start(l); err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		r.say(sayFailed, int(errno))
		return nil
	}
	r.orders = readOrders(in)
	r.run()
	return nil
}

// readOrders turns lines into a channel. Its goroutine ends with the process.
func readOrders(in *bufio.Reader) <-chan string {
	orders := make(chan string)
	go func() {
		defer close(orders)
		for s := bufio.NewScanner(in); s.Scan(); {
			orders <- s.Text()
		}
	}()
	return orders
}

// start forks the server into a group of its own and gives up its stdio.
func (r *reaper) start(l launch) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	r.leader, err = syscall.ForkExec(l.path, l.argv, &syscall.ProcAttr{
		Dir: l.dir, Env: l.env, Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
	})
	if err != nil {
		return err
	}
	e, _ := readEntry(r.leader) // Without /proc the start is unknown, and 0.
	for fd := range controlFD {
		if err := unix.Dup3(null, fd, 0); err != nil {
			// The pipes would never end. Our death ends the server.
			return err
		}
	}
	r.say(sayStarted, r.leader, e.start)
	return nil
}

// say sends a line. If the daemon has gone nobody needs it.
func (r *reaper) say(format string, args ...any) { fmt.Fprintf(r.control, format, args...) }

// run waits for the end of the tree, or for the order or the reason to end it.
func (r *reaper) run() {
	gone := r.await(-1)
	if !gone {
		gone = r.ladder()
	}
	// What outlives KILL stays ours: it may be stuck in the kernel for a while.
	for !gone {
		r.signalTree(unix.SIGKILL)
		gone = r.await(time.Second)
	}
	r.say(sayGone)
}

// ladder ends the tree step by step (P2) and reports whether it is gone. The
// daemon has closed stdin, or its death has.
func (r *reaper) ladder() bool {
	stage, gone := "eof", !r.hurry && r.await(r.waits.eof)
	if !gone && !r.hurry {
		stage = "term"
		r.signalTree(unix.SIGTERM)
		gone = r.await(r.waits.term)
	}
	if !gone {
		stage = "kill"
		gone = r.killTree()
	}
	alive := 0
	if !gone {
		list, _ := r.living() // Without a table we count what we know of.
		alive = max(1, len(list))
	}
	r.say(sayLadder, stage, r.tally.found, r.tally.signalled, alive)
	return gone
}

// await reaps for a while, for ever if d is -1, and reports whether the tree is
// gone. Without a limit every order ends it, otherwise the order to kill.
func (r *reaper) await(d time.Duration) bool {
	var over <-chan time.Time
	if d != -1 {
		t := time.NewTimer(d)
		defer t.Stop()
		over = t.C
	}
	for {
		if r.reap() {
			return true
		}
		select {
		case <-r.deaths:
		case <-over:
			return false
		case order, ok := <-r.orders:
			if !ok {
				r.orders = nil // The daemon has gone. That is the order to close.
			}
			r.hurry = r.hurry || order == orderKill
			if r.hurry || d == -1 {
				return false
			}
		}
	}
}

// reap takes the exit of every child that has ended and reports whether nothing
// lives any more: this process is the subreaper of the whole tree, so it has no
// child exactly then. The leader stays a zombie to the last, for as long as we may
// signal its group, the number of the group must not become another's.
func (r *reaper) reap() (gone bool) {
	for {
		pid, status, err := waitAny(unix.WEXITED)
		switch {
		case err != nil:
			return true
		case pid == 0:
			return false
		case pid != r.leader:
			reapChild(pid)
			continue
		}
		if !r.exited {
			r.exited = true
			r.say(sayExited, int(status))
		}
		// The kernel names the oldest zombie, so from now on always the leader.
		// Asked for stops and not for exits, it counts living children only.
		if _, _, err := waitAny(unix.WSTOPPED); err != nil {
			reapChild(r.leader)
			continue
		}
		for _, child := range ownChildren() {
			if child != r.leader {
				reapChild(child)
			}
		}
		return false
	}
}

// waitAny looks for a child that has ended (WEXITED) or stopped (WSTOPPED) without
// taking its status; pid is 0 if there is none. It is ECHILD if no child can ever
// become one.
func waitAny(what int) (pid int, status syscall.WaitStatus, err error) {
	var info siginfo
	for {
		err = unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), what|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break
		}
	}
	status = syscall.WaitStatus(info.status << 8)
	if info.code != exitedNormally {
		status = syscall.WaitStatus(info.status)
		if info.code == dumpedCore {
			status |= 0x80
		}
	}
	return int(info.pid), status, err
}

// The kernel's codes for how a child ended; any other one is a signal.
const (
	exitedNormally = 1
	dumpedCore     = 3
)

// siginfo is the kernel's siginfo_t as waitid fills it.
type siginfo struct {
	signo, errno, code int32
	_                  [0]uintptr // What follows is aligned like a pointer.
	pid                int32
	uid                uint32
	status             int32
	_                  [128]byte
}

// reapChild takes the status of a child if it has ended.
func reapChild(pid int) {
	for {
		if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != unix.EINTR {
			return
		}
	}
}

// living returns all living descendants.
func (r *reaper) living() ([]entry, error) {
	t, err := readTable()
	if err != nil {
		return nil, err
	}
	return t.below(os.Getpid()), nil
}

// signalTree signals every living descendant once: those in the leader's group
// through the group, which no fork escapes, and the others one by one. Where the
// process table cannot be read it is the group alone.
func (r *reaper) signalTree(sig syscall.Signal) {
	list, err := r.living()
	// The leader has not been reaped, so the group is its group.
	groupErr := unix.Kill(-r.leader, sig)
	if err != nil {
		r.tally.count(entry{pid: r.leader}, groupErr)
		return
	}
	for _, e := range list {
		if e.group != r.leader {
			r.tally.send(e, sig)
			continue
		}
		// A group signal succeeds if it reaches anybody. Ask for each.
		r.tally.count(e, unix.Kill(e.pid, 0))
	}
}

// killTree kills until nothing is left or the wait is over. Between the walks of
// the table it kills the direct children in a tight loop: processes that fork and
// exit faster than a walk become our children with every generation, and a child's
// pid is its own until we reap it.
func (r *reaper) killTree() bool {
	deadline := time.Now().Add(r.waits.kill)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		r.signalTree(unix.SIGKILL)
		for begin := time.Now(); time.Since(begin) < 5*time.Millisecond; {
			for _, pid := range ownChildren() {
				_ = unix.Kill(pid, unix.SIGKILL) // signalTree has counted who refuses.
			}
			if r.reap() {
				return true
			}
		}
		if r.await(pause) {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}
