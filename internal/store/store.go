package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/driver"
)

// Config says which database to open.
type Config struct {
	Path string       // of the database's file; it is made, with mode 0600, if it is missing
	Log  *slog.Logger // nil discards
	// Linger is how long an intent or a delivery, for neither of which a client waits, may
	// wait for a write that cannot, to share its transaction. 0 is not at all.
	Linger time.Duration
}

// Store is an open database. Its methods may be called at any time by any number of
// goroutines. Close refuses new writes (ErrClosed), finishes those that wait, joins
// the writer and closes the files; it takes as long as one transaction, and twice is
// fine.
type Store struct {
	// Constant after Open.
	path   string
	log    *slog.Logger
	hooks  hooks
	linger time.Duration // Config.Linger
	lock   *os.File      // held for life
	write  *sql.DB       // the writer's connection
	read   *sql.DB       // connections that cannot write
	// anchor is a connection that does nothing. SQLite removes its files beside the
	// database with the last connection, and would make them anew for everybody to read.
	anchor *sql.Conn
	newest *sql.Stmt // newestSession, prepared: each model call asks it
	wg     sync.WaitGroup
	wake   chan struct{} // one waiting value says that the queue is to be looked at

	// Owned by the writer's goroutine, and before it begins by Open.
	conn  *conn // nil until it is needed, and after a failure
	doubt bool  // a commit failed, and none has succeeded since: see settle

	recent recent

	mu     sync.Mutex
	queue  []*write
	due    bool        // the queue is not to wait any longer
	timer  *time.Timer // makes it due; nil if it is, or nothing waits
	closed bool

	shut sync.Once
	err  error // what Close returns
}

// hooks let a test fail a commit: before is called before the transaction is
// committed, after when it was. Nil does nothing.
type hooks struct {
	before, after func(again bool) error // again: it is not these writes' first transaction
	vfs           string                 // the file layer, or "" for the system's
	pragmas       []string               // after the writer's own
}

// readers is how many reads run at once; more wait for each other.
const readers = 4

// Open opens the database, or makes it, and brings it to this binary's schema. Calls
// that a crash left without a result become Lost (C7). A database that is in use, is
// of a newer version or is none of ours is refused and not touched: ErrInUse,
// ErrNewer, ErrForeign.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s, err := open(ctx, cfg, hooks{})
	if err != nil {
		return nil, fmt.Errorf("open the database %s: %w", cfg.Path, err)
	}
	return s, nil
}

func open(ctx context.Context, cfg Config, h hooks) (_ *Store, err error) {
	s := &Store{log: cfg.Log, hooks: h, linger: cfg.Linger, recent: recent{rows: map[sessionName]Session{}}, wake: make(chan struct{}, 1)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.path, err = realPath(cfg.Path); err != nil {
		return nil, err
	}
	if s.lock, err = lockFile(s.path + ".lock"); err != nil {
		return nil, err
	}
	defer func() { // the writer, if it runs, and all files
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	version, err := s.inspect(ctx)
	if err != nil {
		return nil, err
	}
	if err := makePrivate(s.path); err != nil {
		return nil, err
	}
	if s.write, err = driver.Open(s.dsn("rwc", slices.Concat(writerPragmas, h.pragmas)...), keepPlans); err != nil {
		return nil, err
	}
	s.write.SetMaxOpenConns(1)
	c, err := s.connection(ctx)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, c, version); err != nil {
		return nil, err
	}
	if err := makePrivate(s.path); err != nil { // beside an empty database SQLite makes its files anew
		return nil, err
	}
	if s.read, err = driver.Open(s.dsn("rw", readerPragmas...), keepPlans); err != nil {
		return nil, err
	}
	s.read.SetMaxOpenConns(readers + 1)
	s.read.SetMaxIdleConns(readers)
	if s.anchor, err = s.read.Conn(ctx); err != nil {
		return nil, err
	}
	if _, err := s.anchor.ExecContext(ctx, "SELECT 1 FROM sqlite_schema"); err != nil {
		return nil, failure("read the database", err)
	}
	if s.newest, err = s.read.PrepareContext(ctx, newestSession); err != nil {
		return nil, failure("read the database", err)
	}
	s.wg.Go(s.run)
	if err := s.loseUnfinished(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// The settings of a connection, in the order in which they must be made. A commit
// returns when its pages are synced (C6); fullfsync is what that takes on macOS.
var (
	writerPragmas = []string{
		"busy_timeout(5000)", "auto_vacuum(incremental)", "journal_mode(wal)", "synchronous(full)",
		"fullfsync(1)", "checkpoint_fullfsync(1)", "foreign_keys(1)", "secure_delete(fast)",
		"journal_size_limit(67108864)", // bytes
	}
	readerPragmas = []string{"busy_timeout(5000)", "query_only(1)"}
)

// keepPlans has a connection keep the plan of a prepared statement. Otherwise SQLite plans
// one that can use a partial index anew whenever it gets other values.
func keepPlans(c *sqlite3.Conn) error {
	_, err := c.Config(sqlite3.DBCONFIG_ENABLE_QPSG, true)
	return err
}

func (s *Store) dsn(mode string, pragmas ...string) string {
	path := filepath.ToSlash(s.path)
	if path[0] != '/' {
		path = "/" + path // a drive letter
	}
	query := url.Values{"mode": {mode}, "_pragma": pragmas}
	if s.hooks.vfs != "" {
		query.Set("vfs", s.hooks.vfs)
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: query.Encode()}).String()
}

// realPath resolves links, so that one file has one lock however it is called.
func realPath(path string) (string, error) {
	if path == "" {
		return "", errors.New("no path is given")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return "", err
		}
		return filepath.Join(dir, filepath.Base(path)), nil
	}
	return real, err
}

// lockFile takes the lock that makes us the only one to use the database. The file
// stays: whoever removed it would let in two who hold different ones.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := tryLock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// inspect looks at what is there through a connection that cannot change it, and
// returns its schema's version.
func (s *Store) inspect(ctx context.Context) (int, error) {
	info, err := os.Stat(s.path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	dsn := s.dsn("ro", "busy_timeout(5000)")
	if log, err := os.Stat(s.path + "-wal"); err != nil || log.Size() == 0 {
		dsn += "&immutable=1" // without a log to read SQLite would leave an empty one
	}
	db, err := driver.Open(dsn)
	if err != nil {
		return 0, failure("look at the database", err)
	}
	version, err := schemaOf(ctx, db)
	return version, errors.Join(err, db.Close())
}

// makePrivate makes the database's files, if need be, so that nobody else can read
// them: SQLite would make its own ones with the mode that the umask leaves.
func makePrivate(path string) error {
	if runtime.GOOS == "windows" { // the directory's list of rights is inherited
		return nil
	}
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the store.
func (s *Store) Close() error {
	s.shut.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.dueLocked()
		s.mu.Unlock()
		s.wg.Wait()
		s.recent.close()
		s.err = s.release()
	})
	return s.err
}

// release closes what is open, the lock last.
func (s *Store) release() error {
	var errs []error
	if s.newest != nil {
		errs = append(errs, s.newest.Close())
	}
	if s.anchor != nil {
		errs = append(errs, s.anchor.Close())
	}
	if s.read != nil {
		errs = append(errs, s.read.Close())
	}
	if s.write != nil {
		s.disconnect()
		errs = append(errs, s.write.Close()) // the last connection moves the log into the database
	}
	errs = append(errs, s.lock.Close())
	return errors.Join(errs...)
}

// loseUnfinished gives the calls of a daemon that died their outcome (C7).
func (s *Store) loseUnfinished(ctx context.Context) error {
	lost := Result{Outcome: Lost, Error: "roundhouse ended before this call did"}
	var n int // the writer's, until it has answered
	err := s.submit(ctx, "mark the calls that were under way", 0, func(c *conn) (err error) {
		n, err = c.finishOpen(0, lost)
		return err
	})
	if err == nil && n > 0 {
		s.log.Warn("calls were under way when roundhouse ended", "lost", n)
	}
	return err
}
