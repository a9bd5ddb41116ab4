package process

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ownerFile is in each directory of a daemon, and holds the marker under which the
// daemon's journal names the directory.
const ownerFile = ".roundhouse"

// Dir is a directory for what servers leave lying about. It goes with its daemon: if that
// is killed, the next one that finds its journal removes it.
type Dir struct {
	m    *Manager
	path string
	slot int // in the journal
}

// MakeDir makes a directory with mode 0700 in base, or with "" where temporary files go.
// Remove it before the Manager is closed. The zero Manager makes one that is in no journal.
func (m *Manager) MakeDir(base string) (*Dir, error) {
	if base == "" {
		base = os.TempDir()
	}
	base, err := filepath.Abs(base) // the next daemon may run somewhere else
	if err != nil {
		return nil, fmt.Errorf("find the place for a directory: %w", err)
	}
	// Sockets may be made in it, so the path is short.
	d := &Dir{m: m, path: filepath.Join(base, "roundhouse-"+strings.ToLower(rand.Text()[:10]))}
	owner := record{Marker: rand.Text(), Time: time.Now(), Dir: d.path}
	if d.slot, err = m.journal.add(owner); err != nil {
		return nil, fmt.Errorf("write process journal: %w", err)
	}
	if err := os.Mkdir(d.path, 0o700); err != nil {
		m.journal.clear(d.slot)
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(d.path, ownerFile), []byte(owner.Marker), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("mark a directory as ours: %w", err), d.Remove())
	}
	return d, nil
}

// Path returns where the directory is.
func (d *Dir) Path() string { return d.path }

// Remove removes the directory and all that is in it. What cannot be removed is left to
// the next start.
func (d *Dir) Remove() error {
	if err := empty(d.path); err != nil {
		return err
	}
	d.m.journal.clear(d.slot)
	return nil
}

// empty removes a directory of ours. The proof that it is ours goes last, since we may
// be killed meanwhile.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != ownerFile {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}

// sweepDir removes the directory of a daemon that died, and reports whether there was
// one. A path proves nothing: what does not hold the record's marker is left alone, unless
// it is empty, as the daemon may have left it.
func sweepDir(r record) (removed bool, err error) {
	info, err := os.Lstat(r.Dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return false, nil
	} else if err != nil {
		return false, err
	}
	owner, err := os.ReadFile(filepath.Join(r.Dir, ownerFile))
	switch {
	case err == nil && string(owner) == r.Marker:
		err := empty(r.Dir)
		return err == nil, err
	case errors.Is(err, fs.ErrNotExist):
		return os.Remove(r.Dir) == nil, nil
	}
	return false, nil
}
