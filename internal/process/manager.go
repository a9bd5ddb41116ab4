// Package process runs servers as child processes that are owned as trees: a
// server is gone when its last descendant is gone, and that is verified.
//
// On Linux every server has a reaper (P1), a small re-execution of our own
// binary between the daemon and the server. It is a child subreaper, so whatever
// the server leaves behind, double forks and new sessions included, becomes its
// child; it ends the tree on request, and by itself when the daemon's end of
// their control socket closes, however the daemon died. ReaperMain must therefore
// be the first call of main. On Windows a job object that kills on close does the
// same; on macOS the server's session, its descendants and its marker are walked,
// and what a killed daemon left there is ended by the next start.
//
// Every server carries a random marker in its environment (ROUNDHOUSE_PROCESS).
// A journal names the markers of a daemon, written before the fork, so that the
// next start can end what is left, and only that (P4). Directories for what servers leave
// lying about are in the journal, too.
//
// A container of `docker run` or `podman run` is no descendant of that command. It
// gets a label, by which it is stopped and removed when the tree has been ended, or
// by the next start. Whatever else asks another daemon to run its work is out of reach.
package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// markerVar holds a server's marker in the environment of its whole tree.
	markerVar = "ROUNDHOUSE_PROCESS"
	// reaperVar makes a process of our binary the reaper of the server with that
	// marker; the server does not get it.
	reaperVar = "ROUNDHOUSE_REAPER"
)

// Config says how a Manager works. The zero value works and keeps no journal.
type Config struct {
	StateDir   string       // where the journal lives; made with mode 0700; "" keeps none
	Executable string       // our own binary, run as the reaper; "" is the one that runs now
	Log        *slog.Logger // nil discards
}

// Manager starts servers and keeps the journal of what it owns. Its methods may
// be called concurrently. Close it after its processes.
type Manager struct {
	// Constant after NewManager.
	executable string
	log        *slog.Logger
	journal    *journal // nil without a state directory
	swept      []string
	metrics    metrics
	disown     func() // ends what adopt began

	// Guarded by mu.
	mu      sync.Mutex
	closed  bool
	live    map[*Process]bool // not known to be gone; whether it has been started
	reapers map[int]struct{}  // pids of reapers that will be waited for; Linux only
}

// NewManager takes a journal of its own in the state directory and then ends
// whatever the journals of dead daemons prove to be left of their servers (P4):
// processes that carry a recorded marker, and their descendants, and the containers that
// are labelled with one, and the directories of MakeDir that hold one. It waits at most a few seconds, and only if something of that
// kind lives or a container's engine does not answer. Journals of daemons
// that live are left alone.
func NewManager(c Config) (*Manager, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	executable, err := reaperExecutable(c.Executable)
	if err != nil {
		return nil, err
	}
	m := &Manager{executable: executable, log: c.Log, metrics: newMetrics(), live: map[*Process]bool{}, reapers: map[int]struct{}{}, disown: func() {}}
	if c.StateDir == "" {
		m.disown = m.adopt()
		return m, nil
	}
	if m.journal, err = openJournal(c.StateDir); err != nil {
		return nil, fmt.Errorf("open process journal: %w", err)
	}
	if m.swept, err = sweepJournals(c.StateDir, c.Log); err != nil {
		return nil, errors.Join(fmt.Errorf("sweep process journals: %w", err), m.journal.remove())
	}
	m.disown = m.adopt()
	return m, nil
}

// Swept lists what NewManager ended, such as "server files, pid 123 (node)"
// or "server files, container 0a1b2c3d4e5f".
func (m *Manager) Swept() []string { return slices.Clone(m.swept) }

// Close removes the journal. While processes live it changes nothing and
// returns an error that names them: close them first. After a Close that
// succeeded Start refuses, and Close does nothing more.
func (m *Manager) Close() error {
	m.mu.Lock()
	closed := m.closed
	var names []string
	for p := range m.live {
		names = append(names, p.server)
	}
	m.closed = len(names) == 0
	m.mu.Unlock()
	if len(names) > 0 {
		slices.Sort(names)
		return fmt.Errorf("close process manager: servers still live: %s", strings.Join(names, ", "))
	}
	if closed {
		return nil
	}
	m.disown()
	if err := m.journal.remove(); err != nil {
		return fmt.Errorf("remove process journal: %w", err)
	}
	return nil
}

// Spec describes a server to start.
type Spec struct {
	Server  string   // its name, for the journal, the log and errors
	Command string   // a path, or a name that is looked up in the PATH of Env
	Args    []string // without the command itself
	Env     []string // the complete environment, see Environ; of equal names the last counts
	Dir     string   // working directory; "" is ours

	StderrBytes int // how much of the end of stderr is kept; 0 is 256 KiB

	// How long Close waits after the end of stdin, after TERM and after KILL
	// (P2). 0 is 2 s, 3 s and 2 s; less than 0 does not wait.
	EOFWait, TermWait, KillWait time.Duration
}

// waits are the bounds of the ladder that ends a tree (P2).
type waits struct{ eof, term, kill time.Duration }

// slack is what the ladder may take beyond its waits before we help.
const slack = time.Second

func (s *Spec) waits() waits {
	pick := func(d, def time.Duration) time.Duration {
		if d == 0 {
			return def
		}
		return d
	}
	return waits{pick(s.EOFWait, 2*time.Second), pick(s.TermWait, 3*time.Second), pick(s.KillWait, 2*time.Second)}
}

// launch is a checked Spec: what a platform needs to start a tree.
type launch struct {
	server string
	marker string
	path   string   // of the command, looked up
	argv   []string // with the command as written
	env    []string // with the marker
	dir    string   // absolute
	waits  waits

	container *container // what the command runs elsewhere; nil for most
}

func (s *Spec) launch(marker string) (launch, error) {
	l := launch{server: s.Server, marker: marker, dir: s.Dir, waits: s.waits()}
	for _, v := range slices.Concat([]string{s.Server, s.Command, s.Dir}, s.Args, s.Env) {
		if strings.ContainsRune(v, 0) {
			return l, errors.New("its configuration holds a NUL byte")
		}
	}
	if s.Command == "" {
		return l, errors.New("it has no command")
	}
	if l.dir == "" {
		d, err := os.Getwd()
		if err != nil {
			return l, fmt.Errorf("find the working directory: %w", err)
		}
		l.dir = d
	}
	switch info, err := os.Stat(l.dir); {
	case err != nil:
		return l, fmt.Errorf("working directory: %w", err)
	case !info.IsDir():
		return l, fmt.Errorf("working directory %q is not a directory", l.dir)
	}
	var err error
	if l.path, err = LookPath(s.Command, l.dir, s.Env); err != nil {
		return l, err
	}
	l.argv = append([]string{s.Command}, s.Args...)
	l.env = append(mergeEnv(s.Env), markerVar+"="+marker)
	l.container = l.contain()
	return l, nil
}

// Start runs a server. ctx bounds the start alone, which ends when the command
// has been executed; the process does not depend on ctx afterwards. A start that
// fails leaves nothing behind. The caller must Close the process.
func (m *Manager) Start(ctx context.Context, s Spec) (*Process, error) {
	p, err := m.start(ctx, s)
	if err != nil {
		m.metrics.starts.WithLabelValues("failed").Inc()
		return nil, fmt.Errorf("start server %q: %w", s.Server, err)
	}
	m.metrics.starts.WithLabelValues("ok").Inc()
	m.log.Debug("server process started", "server", s.Server, "pid", p.PID())
	return p, nil
}

func (m *Manager) start(ctx context.Context, s Spec) (_ *Process, err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	l, err := s.launch(rand.Text())
	if err != nil {
		return nil, err
	}
	p := newProcess(m, s, l.container)
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, errors.New("the process manager is closed")
	}
	m.live[p] = false
	m.mu.Unlock()
	undo := []func(){func() { m.forget(p) }}
	defer func() {
		if err != nil {
			for _, f := range slices.Backward(undo) {
				f()
			}
		}
	}()

	rec := record{Marker: l.marker, Server: s.Server, Time: time.Now(), Container: l.container}
	if p.slot, err = m.journal.add(rec); err != nil {
		return nil, fmt.Errorf("write process journal: %w", err)
	}
	undo = append(undo, func() { m.journal.clear(p.slot) })

	undo = append(undo, p.closePipes)
	child, err := p.openPipes()
	if err != nil {
		return nil, fmt.Errorf("make pipes: %w", err)
	}
	p.tree, err = startTree(ctx, m, l, child)
	child.close()
	if err != nil {
		return nil, err
	}
	p.started = time.Now()
	m.mu.Lock()
	m.live[p] = true
	m.mu.Unlock()
	rec.PID, rec.Start = p.tree.pid, p.tree.start
	if err := m.journal.put(p.slot, rec); err != nil {
		// The marker, which is what proves ownership, is in the journal already.
		m.log.Warn("cannot add a pid to the process journal", "server", s.Server, "pid", p.tree.pid, "err", err)
	}
	// The watch gives the slot up, so it must not begin before the slot is complete.
	go p.tree.watch(p.letGo)
	go p.drainStderr()
	return p, nil
}

func (m *Manager) forget(p *Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, p)
}
