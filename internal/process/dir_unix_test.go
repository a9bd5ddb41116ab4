//go:build unix

package process

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// crashed writes the journal of a daemon that died, with these records.
func crashed(t *testing.T, state string, records ...record) {
	t.Helper()
	var b []byte
	for _, r := range records {
		line, err := r.line()
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, line...)
	}
	if err := os.WriteFile(filepath.Join(state, journalPrefix+"DEAD"+journalSuffix), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// manager returns a Manager with a state directory.
func manager(t *testing.T, state string) *Manager {
	t.Helper()
	m, err := NewManager(Config{StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// I7, P4, case 43: the directories of a daemon that was killed go with the next start, in
// whatever state it left them, and those of one that lives do not.
func TestNextStartRemovesTheDirectoriesOfAKilledDaemon(t *testing.T) {
	state, base := t.TempDir(), t.TempDir()
	living := manager(t, state)
	theirs, err := living.MakeDir(base)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(theirs.Path(), "0", "cookies"), "x")

	full, begun, half := filepath.Join(base, "full"), filepath.Join(base, "begun"), filepath.Join(base, "half")
	write(t, filepath.Join(full, ownerFile), "M1")
	write(t, filepath.Join(full, "0", "profile", "cookies"), "x")
	if err := os.Mkdir(begun, 0o700); err != nil { // it was killed before it could mark it
		t.Fatal(err)
	}
	write(t, filepath.Join(half, ownerFile), "M3") // it was killed while it removed it
	crashed(t, state, record{Marker: "M1", Time: time.Now(), Dir: full}, record{Marker: "M2", Dir: begun}, record{Marker: "M3", Dir: half}, record{Marker: "M4", Dir: filepath.Join(base, "gone")})
	manager(t, state)
	for _, dir := range []string{full, begun, half} {
		if exists(dir) {
			t.Errorf("%s is left", dir)
		}
	}
	if !exists(filepath.Join(theirs.Path(), "0", "cookies")) {
		t.Error("the directory of a daemon that lives is gone")
	}
	if exists(filepath.Join(state, journalPrefix+"DEAD"+journalSuffix)) {
		t.Error("the journal is left")
	}
	if err := theirs.Remove(); err != nil || exists(theirs.Path()) {
		t.Error("it cannot be removed any more", err)
	}
}

// P4, case 43: a recorded path proves nothing. What does not hold the record's marker is
// untouched, whatever a journal says, and so is what a link leads to.
func TestSweepLeavesUnrelatedDirectories(t *testing.T) {
	state, base := t.TempDir(), t.TempDir()
	unmarked, others, link, file := filepath.Join(base, "unmarked"), filepath.Join(base, "others"), filepath.Join(base, "link"), filepath.Join(base, "file")
	write(t, filepath.Join(unmarked, "thesis"), "x")
	write(t, filepath.Join(others, ownerFile), "ANOTHER")
	write(t, file, "x")
	if err := os.Symlink(others, link); err != nil {
		t.Fatal(err)
	}
	crashed(t, state, record{Marker: "M1", Dir: unmarked}, record{Marker: "M2", Dir: others}, record{Marker: "ANOTHER", Dir: link}, record{Marker: "M4", Dir: file})
	manager(t, state)
	for _, path := range []string{filepath.Join(unmarked, "thesis"), filepath.Join(others, ownerFile), link, file} {
		if !exists(path) {
			t.Errorf("%s is gone", path)
		}
	}
}

// I7: what a directory holds is for this user alone, and nothing of it is left afterwards,
// in the journal neither.
func TestADirectoryIsOursAlone(t *testing.T) {
	m := manager(t, t.TempDir())
	d, err := m.MakeDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(d.Path()); err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info, err)
	}
	write(t, filepath.Join(d.Path(), "a", "b"), "x")
	if err := d.Remove(); err != nil || exists(d.Path()) {
		t.Error("it is left", err)
	}
	if b, err := os.ReadFile(m.journal.file.Name()); err != nil || len(parseRecords(b)) != 0 {
		t.Errorf("the journal holds %s, %v", b, err)
	}
	if _, err := m.MakeDir(filepath.Join(t.TempDir(), "nowhere")); err == nil {
		t.Error("it was made nowhere")
	}
	if b, err := os.ReadFile(m.journal.file.Name()); err != nil || len(parseRecords(b)) != 0 {
		t.Errorf("the journal holds %s, %v", b, err)
	}
}
