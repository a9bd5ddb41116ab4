package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"
)

// DeleteSession removes a session with all that was recorded of it. It is gone for
// every reader at once, and stays so after a crash; its rows go in small steps, so that
// others' writes go on. What is not there is deleted.
func (s *Store) DeleteSession(ctx context.Context, k SessionKey) error {
	err := s.submit(ctx, fmt.Sprintf("delete session %q", k.ID), 0, func(c *conn) error {
		key, _, err := c.session(k)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = c.change(hideSession, key)
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.sweep(ctx)
	return err
}

// Retention says what may stay. Whole sessions go, those first that were active
// longest ago, so that no trajectory has a hole; only sessions that are over go. Those
// are the ones that are Closed, and of the ones without a State, which nobody but the
// recording of their calls made, those that are sealed or quiet.
type Retention struct {
	Age   time.Duration // since the session's last activity; 0 is no limit
	Bytes int64         // that the database may use; 0 is no limit
	Quiet time.Duration // without a call, after which a session without a State is over; 0 is never
}

// Removed is what Retain removed.
type Removed struct {
	Sessions, Calls int
}

// Retain removes what is beyond the limits, and gives room that nobody uses back to
// the disk. It is to be called now and then, by one goroutine.
func (s *Store) Retain(ctx context.Context, limits Retention) (Removed, error) {
	var removed Removed
	for {
		n, err := s.sweep(ctx)
		removed.Calls += n
		if err != nil {
			return removed, err
		}
		hid, err := s.hideOldest(ctx, limits)
		if err != nil {
			return removed, err
		}
		if !hid {
			return removed, s.reclaim(ctx)
		}
		removed.Sessions++
	}
}

// ForgetSessions removes closed sessions of which nothing is recorded: those whose last
// activity was before then, and the oldest of them so that no more than most are left. It
// returns how many went.
func (s *Store) ForgetSessions(ctx context.Context, before time.Time, most int) (forgotten int, err error) {
	var n int // the writer's, until it has answered
	err = s.submit(ctx, "remove closed sessions", 0, func(c *conn) error {
		gone, err := c.change(forgetSessions, packTime(before), most)
		n = max(n, gone) // a repetition finds nothing left
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// candidate is a session that may go.
type candidate struct {
	key    int64
	active int64 // when it was last
	used   int64 // bytes, by the whole database
}

// oldest finds the oldest session that is over, if there is one.
func (s *Store) oldest(ctx context.Context, limits Retention) ([]candidate, error) {
	quiet := int64(math.MinInt64)
	if limits.Quiet > 0 {
		quiet = packTime(time.Now().Add(-limits.Quiet))
	}
	return readRows(ctx, s, oldestOver, []any{quiet}, func(rows *sql.Rows) (v candidate, n int, err error) {
		err = rows.Scan(&v.key, &v.active, &v.used)
		return v, 0, err
	})
}

// hideOldest hides the oldest session that is over, if a limit demands it.
func (s *Store) hideOldest(ctx context.Context, limits Retention) (bool, error) {
	found, err := s.oldest(ctx, limits)
	if err != nil || len(found) == 0 {
		return false, err
	}
	v := found[0]
	old := limits.Age > 0 && time.Since(unpackTime(v.active)) > limits.Age
	if !old && (limits.Bytes <= 0 || v.used <= limits.Bytes) {
		return false, nil
	}
	return s.hide(ctx, v)
}

// hide hides a session, unless it went on since it was found: then a later look is for it.
func (s *Store) hide(ctx context.Context, v candidate) (bool, error) {
	var n int // the writer's, until it has answered
	err := s.submit(ctx, "hide a session that is beyond the limits", 0, func(c *conn) error {
		hid, err := c.change(hideIfStill, v.key, v.active)
		n = max(n, hid) // a repetition finds it hidden
		return err
	})
	return err == nil && n > 0, err
}

// sweep removes hidden sessions, those that a crash left hidden too, a few calls at a
// time. It returns the number of calls.
func (s *Store) sweep(ctx context.Context) (calls int, err error) {
	for {
		hidden, err := s.numbers(ctx, firstHidden)
		if err != nil || len(hidden) == 0 {
			return calls, err
		}
		seqs, err := s.numbers(ctx, firstCalls, hidden[0])
		if err != nil {
			return calls, err
		}
		err = s.submit(ctx, "remove a deleted session", 0, func(c *conn) error {
			if len(seqs) == 0 {
				return c.remove(sessionRemovals, hidden[0])
			}
			for _, seq := range seqs {
				if err := c.remove(callRemovals, seq); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return calls, err
		}
		calls += len(seqs)
	}
}

func (c *conn) remove(statements []string, key int64) error {
	for _, statement := range statements {
		if _, err := c.change(statement, key); err != nil {
			return err
		}
	}
	return nil
}

// reclaim gives free pages back to the disk, some in each transaction, as long as
// that makes them fewer.
func (s *Store) reclaim(ctx context.Context) error {
	for last := int64(math.MaxInt64); ; {
		free, err := s.numbers(ctx, pagesFree)
		if err != nil || free[0] == 0 || free[0] >= last {
			return err
		}
		last = free[0]
		err = s.submit(ctx, "give room back to the disk", 0, func(c *conn) error {
			_, err := c.change(reclaimPages)
			return err
		})
		if err != nil {
			return err
		}
	}
}
