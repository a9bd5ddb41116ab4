package process

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"
)

// stderrGrace is how long Close waits for the end of stderr once the tree is gone.
// It passes only when somebody outside the tree holds the pipe.
const stderrGrace = 100 * time.Millisecond

// Process is a running server with all its descendants. Its methods may be called
// concurrently.
//
// Close ends the whole tree. It is always bounded, by the waits of the Spec and a
// second or two, and it may be called at any time, any number of times, and by
// several at once: all get the same report.
type Process struct {
	// Constant after Start.
	m       *Manager
	server  string
	slot    int // in the journal
	tree    *tree
	started time.Time
	stdin   *os.File
	stdout  *os.File
	stderr  *os.File
	ring    *Ring
	drained chan struct{} // closed when drainStderr has ended

	container *container // nil for most

	holds atomic.Int32 // what must be gone before the slot is free: the tree, the container

	hurry   context.Context // ended when the ladder must go straight to KILL
	hurryUp context.CancelFunc

	closing atomic.Bool   // whether somebody runs the ladder
	closed  chan struct{} // closed when the ladder is over
	report  Report        // written by whoever runs the ladder, before closed is closed
}

func newProcess(m *Manager, s Spec, c *container) *Process {
	p := &Process{
		m: m, server: s.Server, ring: NewRing(s.StderrBytes),
		drained: make(chan struct{}), closed: make(chan struct{}), container: c,
	}
	p.hurry, p.hurryUp = context.WithCancel(context.Background())
	p.holds.Store(1)
	if c != nil {
		p.holds.Store(2)
	}
	return p
}

// Report says how a tree ended.
type Report struct {
	// Found counts the processes that lived when signals became necessary or
	// appeared later, and Signalled those of them that could be signalled. Both
	// are 0 if none was necessary.
	Found, Signalled int
	Alive            int           // processes that outlived KILL and its wait; the slot is still taken
	Stage            string        // the last step that was taken: "eof", "term" or "kill"
	Exit             string        // the server's exit status
	Err              error         // nil if nothing lives and nothing was in the way
	Duration         time.Duration // of the first Close
}

// Stdin is the server's input. Closing it asks the server to end; doing it twice
// is harmless.
func (p *Process) Stdin() io.WriteCloser { return p.stdin }

// Stdout is the server's output. Deadlines work on it. It ends when the tree is
// gone, and is closed by Close at the end of the ladder.
func (p *Process) Stdout() *os.File { return p.stdout }

// PID is the process id of the server, the leader of its tree.
func (p *Process) PID() int { return p.tree.pid }

// Started is when the server was executed.
func (p *Process) Started() time.Time { return p.started }

// Exited is closed when the server itself has ended; descendants may live on.
func (p *Process) Exited() <-chan struct{} { return p.tree.exited }

// ExitStatus is how the server ended, such as "exit status 1" or "signal: killed",
// and "" while it runs.
func (p *Process) ExitStatus() string {
	select {
	case <-p.tree.exited:
		return p.tree.status
	default:
		return ""
	}
}

// Gone is closed when no descendant of the server lives any more. With Alive in
// its report greater than 0, Close has returned before that.
func (p *Process) Gone() <-chan struct{} { return p.tree.gone }

// Stderr holds the end of what the tree wrote to stderr. It is complete after
// Close.
func (p *Process) Stderr() *Ring { return p.ring }

// Close ends the tree (P2): it closes stdin and waits, sends TERM to every
// process and waits, and sends KILL until nothing is left. A server that exits
// at the end of its input closes in milliseconds. When any caller's ctx ends, the
// ladder goes straight to KILL. Afterwards Stdout is closed and Stderr complete,
// whoever still holds the other ends. A container that the command ran is then stopped and
// removed, which may take the wait after TERM once more, and some seconds where its engine
// does not answer. If something survived, it remains owned: Gone
// is closed when it has ended.
func (p *Process) Close(ctx context.Context) Report {
	stop := context.AfterFunc(ctx, p.hurryUp)
	defer stop()
	if p.closing.CompareAndSwap(false, true) {
		p.report = p.end()
		p.hurryUp() // Nobody listens any more; it gives up what the context holds.
		close(p.closed)
	}
	<-p.closed
	return p.report
}

func (p *Process) end() Report {
	begin := time.Now()
	p.stdin.Close() // An error means that it was closed before.
	o := p.tree.end(p.hurry.Done())
	select {
	case <-p.drained:
	case <-time.After(stderrGrace):
	}
	p.stderr.Close()
	<-p.drained
	p.stdout.Close()
	removed := p.endContainer()

	r := Report{
		Found: o.found, Signalled: o.signalled, Alive: o.alive, Stage: o.stage,
		Exit: p.ExitStatus(), Err: o.err, Duration: time.Since(begin),
	}
	if r.Err == nil {
		r.Err = removed
	}
	p.m.metrics.ends.WithLabelValues(r.Stage).Inc()
	if r.Alive > 0 && r.Err == nil {
		r.Err = fmt.Errorf("close server %q: %d processes outlived KILL", p.server, r.Alive)
	}
	if r.Alive > 0 || r.Signalled < r.Found {
		p.m.log.Warn("server processes were not all ended", "server", p.server, "found", r.Found,
			"signalled", r.Signalled, "alive", r.Alive, "stage", r.Stage, "err", r.Err)
	}
	return r
}

// endContainer ends what the tree's command ran elsewhere.
func (p *Process) endContainer() error {
	if p.container == nil {
		return nil
	}
	defer p.letGo()
	_, err := p.container.remove(p.hurry, p.tree.waits.term)
	if err != nil {
		err = fmt.Errorf("remove the container of server %q: %w", p.server, err)
		p.m.log.Warn("the container of a server could not be removed", "server", p.server, "filter", p.container.label, "err", err)
	}
	return err
}

// letGo gives the slot up when it is called for the last of what the process holds.
func (p *Process) letGo() {
	if p.holds.Add(-1) == 0 {
		p.m.journal.clear(p.slot)
		p.m.forget(p)
	}
}

// drainStderr keeps the stderr pipe empty, so that nobody blocks on it (P5). Close
// waits for it.
func (p *Process) drainStderr() {
	defer close(p.drained)
	// The end of the tree and our own Close are the only ways for it to end.
	_, _ = io.Copy(p.ring, p.stderr)
}

// stdio is the server's side of its three pipes.
type stdio struct{ in, out, err *os.File }

// close closes what is open.
func (s stdio) close() { closeAll(s.in, s.out, s.err) }

// openPipes makes the three pipes and returns the server's ends of them. When it
// fails, our ends may be open and the server's are not.
func (p *Process) openPipes() (s stdio, err error) {
	if s.in, p.stdin, err = os.Pipe(); err == nil {
		if p.stdout, s.out, err = os.Pipe(); err == nil {
			p.stderr, s.err, err = os.Pipe()
		}
	}
	if err != nil {
		s.close()
	}
	return s, err
}

func (p *Process) closePipes() { closeAll(p.stdin, p.stdout, p.stderr) }

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// outcome is what the ladder did to a tree; its fields are those of Report.
type outcome struct {
	found, signalled, alive int
	stage                   string
	err                     error
}

// maxProcesses is how many processes of a tree a walk returns (P3). More is a
// fault or an attack; a ladder that repeats its walk gets to the rest later.
const maxProcesses = 4096
