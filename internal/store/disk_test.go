package store

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/util/vfsutil"
	"github.com/ncruces/go-sqlite3/vfs"
)

// disk is a layer between SQLite and its files that knows what has been synced. It
// can fail, be full, and say what a machine that loses power would find.
type disk struct {
	vfs.VFS

	mu       sync.Mutex
	files    map[string]*platter
	syncs    int
	badSyncs int   // how many of the next syncs fail; -1 is all
	room     int64 // no file grows beyond this; 0 is no limit
}

// platter is a file as it was at its last sync, and what was written since.
type platter struct {
	synced []byte
	since  []change
}

type change struct {
	off  int64
	data []byte // nil truncates at off
}

func newDisk(t *testing.T) *disk {
	d := &disk{VFS: vfs.Find("os"), files: map[string]*platter{}}
	vfs.Register(t.Name(), d)
	t.Cleanup(func() { vfs.Unregister(t.Name()) })
	return d
}

func (d *disk) Open(name string, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	return vfsutil.WrapOpen(d.VFS, name, flags) // temporary files
}

func (d *disk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	f, flags, err := vfsutil.WrapOpenFilename(d.VFS, name, flags)
	if err != nil || flags&(vfs.OPEN_MAIN_DB|vfs.OPEN_WAL) == 0 {
		return f, flags, err
	}
	base := filepath.Base(name.String())
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[base] == nil {
		there, err := os.ReadFile(name.String())
		if err != nil {
			return nil, 0, err
		}
		d.files[base] = &platter{synced: there}
	}
	return &diskFile{File: f, disk: d, platter: d.files[base]}, flags, nil
}

type diskFile struct {
	vfs.File
	disk    *disk
	platter *platter
}

func (f *diskFile) SharedMemory() vfs.SharedMemory {
	return f.File.(vfs.FileSharedMemory).SharedMemory()
}

func (f *diskFile) WriteAt(p []byte, off int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.room > 0 && off+int64(len(p)) > f.disk.room {
		return 0, sqlite3.FULL
	}
	f.platter.since = append(f.platter.since, change{off, bytes.Clone(p)})
	return f.File.WriteAt(p, off)
}

func (f *diskFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.platter.since = append(f.platter.since, change{off: size})
	return f.File.Truncate(size)
}

func (f *diskFile) Sync(vfs.SyncFlag) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.syncs++
	if f.disk.badSyncs != 0 {
		f.disk.badSyncs--
		return sqlite3.IOERR_FSYNC
	}
	for _, c := range f.platter.since {
		f.platter.synced = c.apply(f.platter.synced)
	}
	f.platter.since = nil
	return nil
}

func (c change) apply(b []byte) []byte {
	if c.data == nil {
		return b[:min(int64(len(b)), c.off)]
	}
	if end := c.off + int64(len(c.data)); end > int64(len(b)) {
		b = append(b, make([]byte, end-int64(len(b)))...)
	}
	copy(b[c.off:], c.data)
	return b
}

// set changes how the disk behaves.
func (d *disk) set(badSyncs int, room int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.badSyncs, d.room = badSyncs, room
}

// size is how long the longest file is.
func (d *disk) size() (n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.files {
		b := bytes.Clone(p.synced)
		for _, c := range p.since {
			b = c.apply(b)
		}
		n = max(n, int64(len(b)))
	}
	return n
}

// powerLoss makes a directory with what the files would be after a loss of power now:
// of what was not synced, each write is there or not as survives says.
func (d *disk) powerLoss(t *testing.T, survives func() bool) string {
	t.Helper()
	images := map[string][]byte{}
	d.mu.Lock()
	for name, p := range d.files {
		b := bytes.Clone(p.synced)
		for _, c := range p.since {
			if survives() {
				b = c.apply(b)
			}
		}
		images[name] = b
	}
	d.mu.Unlock()
	dir := t.TempDir()
	for name, b := range maps.All(images) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func never() bool  { return false }
func always() bool { return true }
func chance() bool { return rand.IntN(2) == 0 }
