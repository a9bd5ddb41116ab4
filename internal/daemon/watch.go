package daemon

import (
	"log/slog"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// fileWatch says when something happens in the directories of a file: that of its name,
// and if it is a symbolic link also that of what it points to. A file itself cannot be
// watched, because editors put a new one in its place. Where nothing can be watched
// nothing is said.
type fileWatch struct {
	file    string // absolute, or ""
	log     *slog.Logger
	watcher *fsnotify.Watcher // nil if nothing can be watched
	linked  bool              // another file's directory is watched, too; owned by who calls follow
}

// watchFile begins to watch. Close the watch.
func watchFile(file string, log *slog.Logger) *fileWatch {
	w := &fileWatch{file: file, log: log}
	if file == "" {
		return w
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		w.giveUp(err)
		return w
	}
	w.watcher = watcher
	if err := watcher.Add(filepath.Dir(file)); err != nil {
		w.giveUp(err)
	}
	w.follow()
	return w
}

func (w *fileWatch) giveUp(err error) {
	w.log.Warn("the configuration file cannot be watched; 'roundhouse config reload' reads it anew", "file", w.file, "err", err)
}

// follow watches where a symbolic link points to now. Where it pointed to before stays
// watched, which does no harm.
func (w *fileWatch) follow() {
	if w.watcher == nil {
		return
	}
	target, err := filepath.EvalSymlinks(w.file)
	if err != nil || target == w.file {
		return
	}
	w.linked = true
	if err := w.watcher.Add(filepath.Dir(target)); err != nil {
		w.giveUp(err)
	}
}

// news returns the channels of what happens, and of what went wrong, such as that too
// much has happened at once; nil if nothing is watched.
func (w *fileWatch) news() (<-chan fsnotify.Event, <-chan error) {
	if w.watcher == nil {
		return nil, nil
	}
	return w.watcher.Events, w.watcher.Errors
}

// concerns reports whether the file may have changed.
func (w *fileWatch) concerns(e fsnotify.Event) bool {
	return w.linked || filepath.Base(e.Name) == filepath.Base(w.file)
}

func (w *fileWatch) close() {
	if w.watcher != nil {
		_ = w.watcher.Close() // nothing of it is needed any more
	}
}
