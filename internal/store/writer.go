package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"
	sqlite "github.com/ncruces/go-sqlite3/driver"
)

// write is one caller's transaction on its way through the writer.
type write struct {
	doing string       // for errors
	size  int          // bytes, roughly
	state atomic.Int32 // waiting, then taken or withdrawn
	done  chan error   // has room for the answer

	// apply does it. It may be called several times, so it must succeed without writing
	// when all that it would write is there; and it refuses before it writes.
	apply func(*conn) error
}

const (
	waiting int32 = iota
	taken
	withdrawn
)

// What one transaction takes on, so that the first of many does not wait for ever.
const (
	maxWrites = 256
	maxBytes  = 16 << 20
)

// submit queues a write and waits for it.
func (s *Store) submit(ctx context.Context, doing string, size int, apply func(*conn) error) error {
	if ctx.Err() != nil {
		return ended(ctx, doing)
	}
	return s.enqueue(&write{doing: doing, size: size, apply: apply}, 0).wait(ctx)
}

// enqueue queues a write behind those that were queued before. It, and they, wait no
// longer than linger for others to come.
func (s *Store) enqueue(w *write, linger time.Duration) *write {
	w.done = make(chan error, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		w.done <- fmt.Errorf("%s: %w", w.doing, ErrClosed)
		return w
	case linger == 0:
		s.dueLocked()
	case !s.due && s.timer == nil:
		s.timer = time.AfterFunc(linger, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.dueLocked()
		})
	}
	s.queue = append(s.queue, w)
	return w
}

// dueLocked has the writer look at the queue.
func (s *Store) dueLocked() {
	s.due = true
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.signal()
}

// wait waits for a write. A caller whose context ends takes it back if the writer has not
// begun; later nobody can know (ErrUnknown).
func (w *write) wait(ctx context.Context) error {
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	if w.state.CompareAndSwap(waiting, withdrawn) {
		return ended(ctx, w.doing)
	}
	select {
	case err := <-w.done:
		return err
	default:
		return fmt.Errorf("%s: %w: %w", w.doing, ErrUnknown, context.Cause(ctx))
	}
}

func (s *Store) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run is the writer: it commits what waits, together, until Close and the end of the
// queue.
func (s *Store) run() {
	for range s.wake {
		for {
			batch, closed := s.take()
			if len(batch) > 0 {
				s.commit(batch)
			} else if closed {
				return
			} else {
				break
			}
		}
	}
}

// take removes from the queue what the next transaction is to hold, nothing if it is not
// due.
func (s *Store) take() (batch []*write, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.due {
		return nil, s.closed
	}
	size, n := 0, 0
	for _, w := range s.queue {
		if len(batch) == maxWrites || len(batch) > 0 && size+w.size > maxBytes {
			break
		}
		n++
		if w.state.CompareAndSwap(waiting, taken) {
			batch = append(batch, w)
			size += w.size
		}
	}
	rest := copy(s.queue, s.queue[n:])
	clear(s.queue[rest:])
	s.queue = s.queue[:rest]
	s.due = rest > 0
	return batch, s.closed
}

// commit answers a batch. If its transaction fails each write goes on alone: then one
// that is too large for the disk takes no other with it, and since a write that finds
// itself stored succeeds, this also finds out what a failed commit has stored after
// all.
func (s *Store) commit(batch []*write) {
	errs := make([]error, len(batch))
	if err := s.attempt(batch, errs, false); err == nil {
		answer(batch, errs)
		return
	}
	for i := range batch {
		one, oneErr := batch[i:i+1], errs[i:i+1]
		if err := s.attempt(one, oneErr, true); err != nil {
			oneErr[0] = s.settle(one, err)
		}
		answer(one, oneErr)
	}
}

func answer(batch []*write, errs []error) {
	for i, w := range batch {
		w.done <- failure(w.doing, errs[i])
	}
}

// settle finds out what a write's last failure means. A commit whose sync failed may
// have left a whole transaction in the log, where a crash would bring it back: then
// nothing counts as not stored before another commit has taken its place.
func (s *Store) settle(one []*write, cause error) error {
	if s.doubt {
		if err := s.attempt([]*write{{apply: (*conn).touch}}, make([]error, 1), true); err != nil {
			return fmt.Errorf("%w: %w", ErrUnknown, cause)
		}
	}
	stored, err := s.stored(one[0])
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnknown, cause)
	case stored:
		return nil
	}
	return cause
}

// stored asks whether a write is there: it is if it has nothing to write.
func (s *Store) stored(w *write) (bool, error) {
	c, err := s.connection(context.Background())
	if err != nil {
		return false, err
	}
	defer s.rollback()
	if err := c.begin(); err != nil {
		return false, err
	}
	c.wrote = false
	err = w.apply(c)
	if c.wrote {
		return false, nil
	}
	return err == nil, err
}

// attempt applies a batch in one transaction. An error says that the transaction
// failed, and nothing of it counts as stored; errs has the refusals. Again says that
// it is not these writes' first.
func (s *Store) attempt(batch []*write, errs []error, again bool) error {
	c, err := s.connection(context.Background())
	if err == nil {
		err = s.transact(c, batch, errs, again)
		s.recent.drop(&c.sessions) // even if it failed: that may not be certain
	}
	if err != nil {
		s.rollback()
		s.log.Debug("a transaction failed", "writes", len(batch), "err", err)
	}
	return err
}

func (s *Store) transact(c *conn, batch []*write, errs []error, again bool) error {
	if err := c.begin(); err != nil {
		return err
	}
	c.wrote = false
	for i, w := range batch {
		before := c.wrote
		c.wrote = false
		errs[i] = nil
		if err := w.apply(c); err != nil {
			var no refusal
			if !errors.As(err, &no) {
				return err
			}
			if c.wrote {
				panic("store: " + w.doing + " wrote before it refused")
			}
			errs[i] = err
		}
		c.wrote = c.wrote || before
	}
	if s.hooks.before != nil {
		if err := s.hooks.before(again); err != nil {
			return err
		}
	}
	if _, err := c.exec("COMMIT"); err != nil {
		// Without room not even the last page was written, which is what makes the rest count.
		s.doubt = s.doubt || c.wrote && !errors.Is(err, sqlite3.FULL)
		return err
	}
	if c.wrote {
		s.doubt = false
	}
	if s.hooks.after != nil {
		return s.hooks.after(again)
	}
	return nil
}

// conn is the writer's connection. It is used by one goroutine.
type conn struct {
	sql   *sql.Conn
	stmts map[string]*sql.Stmt
	wrote bool // something since it was set to false
	// sessions are those that were changed since they were dropped from recent.
	sessions changes
}

func (s *Store) connection(ctx context.Context) (*conn, error) {
	if s.conn != nil {
		return s.conn, nil
	}
	c, err := s.write.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s.conn = &conn{sql: c, stmts: map[string]*sql.Stmt{}}
	return s.conn, nil
}

// rollback ends a transaction that failed, if it has not ended by itself. A connection
// that cannot even do this is replaced.
func (s *Store) rollback() {
	if s.conn == nil {
		return
	}
	err := s.conn.sql.Raw(func(c any) error {
		db := c.(sqlite.Conn).Raw()
		if db.GetAutocommit() {
			return nil
		}
		return db.Exec("ROLLBACK")
	})
	if err != nil {
		s.disconnect()
	}
}

// disconnect closes the writer's connection; the next transaction makes one.
func (s *Store) disconnect() {
	if s.conn == nil {
		return
	}
	for _, stmt := range s.conn.stmts {
		_ = stmt.Close() // nothing hangs on it
	}
	// An error tells database/sql to close it instead of keeping it.
	_ = s.conn.sql.Raw(func(any) error { return driver.ErrBadConn })
	_ = s.conn.sql.Close()
	s.conn = nil
}

// stmt returns a statement, prepared once for the connection's life.
func (c *conn) stmt(query string) (*sql.Stmt, error) {
	stmt := c.stmts[query]
	if stmt == nil {
		var err error
		if stmt, err = c.sql.PrepareContext(context.Background(), query); err != nil {
			return nil, err
		}
		c.stmts[query] = stmt
	}
	return stmt, nil
}

func (c *conn) exec(query string, args ...any) (sql.Result, error) {
	stmt, err := c.stmt(query)
	if err != nil {
		return nil, err
	}
	return stmt.Exec(args...)
}

// change is exec for a statement that writes; it returns the number of rows. One that
// found no row has written nothing; one that failed wanted to.
func (c *conn) change(query string, args ...any) (int, error) {
	before := c.wrote
	c.wrote = true
	c.sessions.note(query, args)
	result, err := c.exec(query, args...)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	c.wrote = before || n > 0
	return int(n), err
}

// insert is change for a statement that makes one row; it returns the row's key.
func (c *conn) insert(query string, args ...any) (int64, error) {
	c.wrote = true
	c.sessions.note(query, args)
	result, err := c.exec(query, args...)
	if err != nil {
		return 0, err
	}
	return result.LastInsertId()
}

// find reads one row; without one it is ErrNotFound.
func (c *conn) find(query string, args []any, targets ...any) error {
	stmt, err := c.stmt(query)
	if err != nil {
		return err
	}
	err = stmt.QueryRow(args...).Scan(targets...)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

// numbers reads a column of integers.
func (c *conn) numbers(query string, args ...any) (out []int64, err error) {
	stmt, err := c.stmt(query)
	if err != nil {
		return nil, err
	}
	rows, err := stmt.Query(args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, rows.Err()
}

// touch writes a page that says nothing new.
func (c *conn) touch() error {
	c.wrote = true
	_, err := c.exec(fmt.Sprintf("PRAGMA user_version = %d", len(migrationFiles())))
	return err
}

func (c *conn) begin() error {
	_, err := c.exec("BEGIN IMMEDIATE")
	return err
}
