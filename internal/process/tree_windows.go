package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// tree is a server in a job object that ends everything in it when the last
// handle to it, ours, is closed, however the daemon dies.
type tree struct {
	// Constant after startTree.
	waits  waits
	pid    int
	start  uint64
	leader *os.Process

	mu  sync.Mutex
	job windows.Handle // 0 once it is closed, which watch does when the job is empty; guarded by mu

	exited chan struct{} // closed when the server has ended
	status string        // written by watch before exited is closed
	gone   chan struct{} // closed by watch when nothing lives
}

// startTree starts the server in a new job. If it succeeds, watch must be started.
func startTree(_ context.Context, _ *Manager, l launch, child stdio) (*tree, error) {
	t := &tree{waits: l.waits, exited: make(chan struct{}), gone: make(chan struct{})}
	var err error
	if t.job, err = newJob(); err != nil {
		return nil, err
	}
	t.leader, err = os.StartProcess(l.path, l.argv, &os.ProcAttr{
		Dir: l.dir, Env: l.env, Files: []*os.File{child.in, child.out, child.err},
		// Suspended, it starts no child before it is in the job. The group keeps our
		// console's Ctrl-C from it.
		Sys: &syscall.SysProcAttr{CreationFlags: windows.CREATE_SUSPENDED | windows.CREATE_NEW_PROCESS_GROUP, HideWindow: true},
	})
	if err != nil {
		windows.CloseHandle(t.job)
		return nil, err
	}
	t.pid = t.leader.Pid
	if err := t.adopt(); err != nil {
		t.leader.Kill()
		t.leader.Wait()
		windows.CloseHandle(t.job)
		return nil, err
	}
	return t, nil
}

// newJob makes a job object that kills on close.
func newJob() (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, fmt.Errorf("make job object: %w", err)
	}
	var limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	if _, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))); err != nil {
		windows.CloseHandle(job)
		return 0, fmt.Errorf("limit job object: %w", err)
	}
	return job, nil
}

// adopt puts the suspended server into the job and lets it run.
func (t *tree) adopt() error {
	const access = windows.PROCESS_SET_QUOTA | windows.PROCESS_TERMINATE | windows.PROCESS_QUERY_LIMITED_INFORMATION
	h, err := windows.OpenProcess(access, false, uint32(t.pid))
	if err != nil {
		return fmt.Errorf("open process: %w", err)
	}
	defer windows.CloseHandle(h)
	if err := windows.AssignProcessToJobObject(t.job, h); err != nil {
		return fmt.Errorf("assign process to job: %w", err)
	}
	t.start = startOf(h)
	return resume(uint32(t.pid))
}

// resume starts the only thread of a suspended process.
func resume(pid uint32) error {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPTHREAD, 0)
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	defer windows.CloseHandle(snapshot)
	te := windows.ThreadEntry32{Size: uint32(unsafe.Sizeof(windows.ThreadEntry32{}))}
	for err = windows.Thread32First(snapshot, &te); err == nil; err = windows.Thread32Next(snapshot, &te) {
		if te.OwnerProcessID != pid {
			continue
		}
		thread, err := windows.OpenThread(windows.THREAD_SUSPEND_RESUME, false, te.ThreadID)
		if err != nil {
			return fmt.Errorf("open thread: %w", err)
		}
		defer windows.CloseHandle(thread)
		if _, err := windows.ResumeThread(thread); err != nil {
			return fmt.Errorf("resume thread: %w", err)
		}
		return nil
	}
	return errors.New("resume process: it has no thread")
}

// watch waits for the end of the leader and then of the job, and calls onGone.
func (t *tree) watch(onGone func()) {
	state, err := t.leader.Wait()
	if err != nil {
		t.status = "unknown: " + err.Error()
	} else {
		t.status = "exit status " + strconv.Itoa(state.ExitCode())
	}
	close(t.exited)
	for pause := 5 * time.Millisecond; len(t.members()) > 0; pause = min(2*pause, 200*time.Millisecond) {
		time.Sleep(pause)
	}
	t.mu.Lock()
	windows.CloseHandle(t.job)
	t.job = 0
	t.mu.Unlock()
	onGone()
	close(t.gone)
}

// members returns the process ids in the job, at most as many as P3 allows.
func (t *tree) members() []uint32 {
	var list struct {
		assigned, listed uint32
		pids             [maxProcesses]uintptr
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.job == 0 {
		return nil
	}
	err := windows.QueryInformationJobObject(t.job, windows.JobObjectBasicProcessIdList,
		uintptr(unsafe.Pointer(&list)), uint32(unsafe.Sizeof(list)), nil)
	if err != nil && !errors.Is(err, windows.ERROR_MORE_DATA) {
		return nil
	}
	pids := make([]uint32, list.listed)
	for i := range pids {
		pids[i] = uint32(list.pids[i])
	}
	return pids
}

// end runs the ladder, whose stdin step the caller has taken. The system has no
// TERM; a break of the server's console group is the nearest thing.
func (t *tree) end(hurry <-chan struct{}) outcome {
	if t.await(t.waits.eof, hurry) {
		return outcome{stage: "eof"}
	}
	o := outcome{stage: "term"}
	o.found = len(t.members())
	o.signalled = o.found
	// A server without a console has no group to signal, and waits for its end.
	_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(t.pid))
	if t.await(t.waits.term, hurry) {
		return o
	}
	o.stage = "kill"
	o.err = t.terminate()
	if !t.await(max(t.waits.kill, 0)+slack, nil) {
		o.alive = max(1, len(t.members()))
	}
	return o
}

// terminate ends everything in the job.
func (t *tree) terminate() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.job == 0 {
		return nil
	}
	if err := windows.TerminateJobObject(t.job, 1); err != nil {
		return fmt.Errorf("terminate job: %w", err)
	}
	return nil
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

// look finds the members of all jobs in one list of the processes.
func look(started []*Process) View {
	v := View{Self: Info{PID: os.Getpid()}, Trees: map[*Process]Tree{}}
	owners := map[uint32]*Process{}
	for _, p := range started {
		for _, pid := range p.tree.members() {
			owners[pid] = p
		}
	}
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return v
	}
	defer windows.CloseHandle(snapshot)
	pe := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &pe); err == nil; err = windows.Process32Next(snapshot, &pe) {
		p := owners[pe.ProcessID]
		if p == nil {
			continue
		}
		e := Info{PID: int(pe.ProcessID), PPID: int(pe.ParentProcessID), Name: windows.UTF16ToString(pe.ExeFile[:])}
		if h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, pe.ProcessID); err == nil {
			e.Start = time.Unix(0, int64(startOf(h)))
			windows.CloseHandle(h)
		}
		t := v.Trees[p]
		t.Members = append(t.Members, e)
		v.Trees[p] = t
	}
	return v
}

// startOf returns when a process started, in nanoseconds since 1970.
func startOf(h windows.Handle) uint64 {
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		return 0
	}
	return uint64(created.Nanoseconds())
}

// apart is how a command starts that no event of our console should reach.
func apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP, HideWindow: true}
}
