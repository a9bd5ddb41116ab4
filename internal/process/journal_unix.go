//go:build unix

package process

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	journalPrefix = "processes-"
	journalSuffix = ".journal"
	recordSize    = 2048 // bytes of a slot, the line end included
	maxServerName = 128  // bytes of a server's name that a record keeps
)

// record is one owned server, or directory. PID and Start are 0 until it runs.
type record struct {
	Marker string    `json:"marker"`
	Server string    `json:"server"`
	Time   time.Time `json:"time"`
	PID    int       `json:"pid,omitempty"`
	Start  uint64    `json:"start,omitempty"` // in the units of the process table

	Container *container `json:"container,omitempty"`
	Dir       string     `json:"dir,omitempty"` // its path, of a record of a directory; else ""
}

// line is the record as it fills its slot: JSON, spaces, a line end.
func (r record) line() ([]byte, error) {
	r.Server = r.Server[:min(len(r.Server), maxServerName)]
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(b) >= recordSize {
		// Escapes can make a name several times as long. It is for people only.
		r.Server = ""
		if b, err = json.Marshal(r); err != nil {
			return nil, err
		}
	}
	if len(b) >= recordSize {
		return nil, errors.New("the flags before \"run\", or the paths, of its container command are too long, or the path of a directory is")
	}
	return append(append(b, bytes.Repeat([]byte{' '}, recordSize-1-len(b))...), '\n'), nil
}

// parseRecords reads a journal; lines that are empty or that nobody finished are
// skipped.
func parseRecords(b []byte) []record {
	var out []record
	for line := range bytes.Lines(b) {
		var r record
		if json.Unmarshal(line, &r) == nil && r.Marker != "" {
			out = append(out, r)
		}
	}
	return out
}

// journal is the file that names what a daemon owns, a slot of fixed size per
// server, so that every change is one write and the file does not grow with time. The
// daemon holds its lock; a journal that nobody holds belonged to a daemon that died. It need not
// survive the machine, whose processes do not either, so it is never synced. A nil journal keeps
// nothing.
type journal struct {
	file *os.File // constant after openJournal

	mu    sync.Mutex
	taken []bool // which slots are in use; guarded by mu
}

// openJournal makes a journal under a random name and locks it.
func openJournal(dir string) (*journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// Between our creating a file and locking it, another daemon's sweep may take it
	// for a dead one's. The next name then does.
	for range 10 {
		path := filepath.Join(dir, journalPrefix+rand.Text()+journalSuffix)
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		ours, err := lock(f)
		if err != nil {
			return nil, errors.Join(err, f.Close(), os.Remove(path))
		}
		if ours {
			return &journal{file: f}, nil
		}
		f.Close()
	}
	return nil, errors.New("other daemons remove every new journal")
}

// lock reports whether f, which must still bear its name, is locked by us now.
func lock(f *os.File) (bool, error) {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	named, err := os.Stat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	held, err := f.Stat()
	return err == nil && os.SameFile(named, held), err
}

// add writes a record into a free slot and returns the slot.
func (j *journal) add(r record) (int, error) {
	if j == nil {
		return 0, nil
	}
	j.mu.Lock()
	slot := 0
	for slot < len(j.taken) && j.taken[slot] {
		slot++
	}
	if slot == len(j.taken) {
		j.taken = append(j.taken, false)
	}
	j.taken[slot] = true
	j.mu.Unlock()
	if err := j.put(slot, r); err != nil {
		j.release(slot)
		return 0, err
	}
	return slot, nil
}

// put replaces the record of a slot.
func (j *journal) put(slot int, r record) error {
	if j == nil {
		return nil
	}
	b, err := r.line()
	if err == nil {
		_, err = j.file.WriteAt(b, int64(slot)*recordSize)
	}
	return err
}

// clear empties a slot. If that fails, the next start looks for a marker that
// nobody carries, which does no harm.
func (j *journal) clear(slot int) {
	if j == nil {
		return
	}
	blank := append(bytes.Repeat([]byte{' '}, recordSize-1), '\n')
	_, _ = j.file.WriteAt(blank, int64(slot)*recordSize)
	j.release(slot)
}

func (j *journal) release(slot int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.taken[slot] = false
}

// remove deletes the journal and gives up its lock.
func (j *journal) remove() error {
	if j == nil {
		return nil
	}
	return errors.Join(os.Remove(j.file.Name()), j.file.Close())
}

// How long a sweep waits after TERM and after KILL. Nobody waits for an answer of
// these servers any more, so TERM has less time than in a normal close.
const (
	sweepTermWait = time.Second
	sweepKillWait = 2 * time.Second
)

// sweepJournals ends what the journals of dead daemons prove to be theirs (P4),
// removes their directories and these journals, and lists what was ended. A journal whose
// processes outlive even KILL, or whose containers or directories could not be removed,
// stays for the next start.
func sweepJournals(dir string, log *slog.Logger) ([]string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	servers := map[string]string{} // by marker
	var all []record
	var stale []*os.File
	defer func() {
		for _, f := range stale {
			f.Close()
		}
	}()
	for _, file := range files {
		if n := file.Name(); !strings.HasPrefix(n, journalPrefix) || !strings.HasSuffix(n, journalSuffix) {
			continue
		}
		f, records, err := readStale(filepath.Join(dir, file.Name()))
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		stale = append(stale, f)
		for _, r := range records {
			if r.Dir == "" {
				servers[r.Marker] = r.Server
			}
		}
		all = append(all, records...)
	}
	swept, alive := sweep(servers, log)
	containers, left := sweepContainers(all, sweepTermWait, log)
	swept = append(swept, containers...)
	if alive > 0 || left > 0 || sweepDirs(all, log) > 0 {
		return swept, nil
	}
	for _, f := range stale {
		if err := os.Remove(f.Name()); err != nil {
			return swept, err
		}
	}
	return swept, nil
}

// sweepDirs removes the directories of dead daemons, in which nothing lives any more, and
// counts those that could not be removed.
func sweepDirs(records []record, log *slog.Logger) (left int) {
	for _, r := range records {
		if r.Dir == "" {
			continue
		}
		switch removed, err := sweepDir(r); {
		case err != nil:
			left++
			log.Warn("a directory that a dead daemon left could not be removed", "dir", r.Dir, "err", err)
		case removed:
			log.Warn("removed a directory that a dead daemon left", "dir", r.Dir)
		}
	}
	return left
}

// readStale locks and reads the journal of a dead daemon. The file is nil if the
// daemon lives, or another sweep was faster.
func readStale(name string) (*os.File, []record, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, err
	}
	ours, err := lock(f)
	if err != nil || !ours {
		return nil, nil, errors.Join(err, f.Close())
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, parseRecords(b), nil
}

// sweep ends the survivors of servers, which are keyed by marker, lists them, and
// counts those that could not be ended.
func sweep(servers map[string]string, log *slog.Logger) (swept []string, alive int) {
	if len(servers) == 0 {
		return nil, 0
	}
	markers := map[string]bool{}
	for m := range servers {
		markers[m] = true
	}
	listed := map[identity]bool{}
	o := finish(func() ([]entry, error) {
		list, err := survivors(markers, 0)
		for _, e := range list {
			if !listed[e.identity()] {
				listed[e.identity()] = true
				swept = append(swept, fmt.Sprintf("server %s, pid %d (%s)", serverOf(e, servers), e.pid, e.name))
			}
		}
		return list, err
	}, nil, sweepTermWait, sweepKillWait)
	// A reaper ends with its tree. One that still lives cannot run.
	t, err := readTable()
	for _, e := range t {
		if carries(environ(e.pid), reaperVar, markers) {
			_ = signalEntry(e, syscall.SIGKILL) // It has no tree any more; at worst it sleeps on.
		}
	}
	if err := errors.Join(o.err, err); err != nil || o.alive > 0 || o.signalled < o.found {
		log.Warn("what a dead daemon left was not all ended", "found", o.found, "signalled", o.signalled,
			"alive", o.alive, "err", err)
	}
	return swept, o.alive
}

// serverOf names the server of a survivor; one that descends from a marked process
// without carrying the marker has none.
func serverOf(e entry, servers map[string]string) string {
	env := environ(e.pid)
	for marker, server := range servers {
		if carries(env, markerVar, map[string]bool{marker: true}) {
			return server
		}
	}
	return "unknown"
}
