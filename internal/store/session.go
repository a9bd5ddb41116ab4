package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"time"
)

// SessionKey names one life of a session. Ids belong to their principal (N2).
type SessionKey struct {
	Principal   string
	ID          string
	Incarnation int // 1 for the first; an id that is used again after its end has the next (N1)
}

// check refuses keys that name nothing.
func (k SessionKey) check() error {
	if k.ID == "" || k.Incarnation < 1 {
		return fmt.Errorf("%w: a session needs an id and an incarnation from 1 on, not %q and %d", ErrInvalid, k.ID, k.Incarnation)
	}
	return nil
}

// Closed is the State of a session that has ended. The other words are the session
// package's own; what is closed may be removed by Retain.
const Closed = "closed"

// Session is what is kept of a session (N1, N6). It holds no fingerprints and no
// secrets: its writer sees to that.
type Session struct {
	SessionKey
	Kind         string
	Workspace    string // its directory, or ""
	State        string
	Created      time.Time
	LastActivity time.Time
	Metadata     json.RawMessage // a small object, or nil
	// Clients is the session package's own account of the clients and of what they use:
	// handshakes, subscriptions, levels, leases. Nil is none.
	Clients json.RawMessage

	// What follows is only read; SaveSession does not write it.

	Position   int64     // in the order of first saves, for SessionFilter.After
	Sealed     time.Time // when its recording was sealed; zero if it is not
	Incomplete string    // what is missing from its recording (MarkIncomplete), or ""
}

// SaveSession stores sessions, in place of what was stored under their keys: all of them,
// or after an error none.
func (s *Store) SaveSession(ctx context.Context, sessions ...Session) error {
	if len(sessions) == 0 {
		return nil
	}
	doing := fmt.Sprintf("save session %q", sessions[0].ID)
	if n := len(sessions) - 1; n > 0 {
		doing += fmt.Sprintf(" and %d more", n)
	}
	size := 0
	for _, v := range sessions {
		if err := v.check(); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		if !isJSON(v.Metadata) || !isJSON(v.Clients) {
			return fmt.Errorf("%s: %w: the metadata and clients of %q must be JSON", doing, ErrInvalid, v.ID)
		}
		size += len(v.Metadata) + len(v.Clients)
	}
	return s.submit(ctx, doing, size, func(c *conn) error {
		for _, v := range sessions {
			if _, err := c.change(saveSession, v.Principal, v.ID, v.Incarnation, v.Kind, v.Workspace, v.State,
				packTime(v.Created), packTime(v.LastActivity), rawJSON(v.Metadata), rawJSON(v.Clients)); err != nil {
				return err
			}
		}
		return nil
	})
}

// session finds a session's row.
func (c *conn) session(k SessionKey) (key int64, sealed bool, err error) {
	var at int64
	err = c.find(findSession, []any{k.Principal, k.ID, k.Incarnation}, &key, &at)
	return key, at != 0, err
}

// MarkIncomplete says that something is missing from the session's recording, such as
// a turn that could not be stored under the policy Observe (C3). The first mark stays.
// It is true of sealed sessions, too.
func (s *Store) MarkIncomplete(ctx context.Context, k SessionKey, why string) error {
	return s.submit(ctx, fmt.Sprintf("mark session %q incomplete", k.ID), len(why), func(c *conn) error {
		key, _, err := c.session(k)
		if err != nil {
			return err
		}
		_, err = c.change(markIncomplete, why, key)
		return err
	})
}

// CloseSession says that the session has ended. Its calls under way may still be
// committed; whoever names its id again begins its next life.
func (s *Store) CloseSession(ctx context.Context, k SessionKey) error {
	return s.submit(ctx, fmt.Sprintf("close session %q", k.ID), 0, func(c *conn) error {
		key, _, err := c.session(k)
		if err != nil {
			return err
		}
		_, err = c.change(closeSession, key)
		return err
	})
}

// Seal closes the session's recording for good: calls, results and deliveries that
// come later are refused (ErrSealed), so its rows never change again (J5). Calls under
// way become Lost; Seal returns how many. Sealing twice is fine.
func (s *Store) Seal(ctx context.Context, k SessionKey) (lost int, err error) {
	now := time.Now()
	result := Result{Outcome: Lost, Error: "the session was sealed before this call ended", End: now}
	var n int // the writer's, until it has answered
	err = s.submit(ctx, fmt.Sprintf("seal session %q", k.ID), 0, func(c *conn) error {
		key, sealed, err := c.session(k)
		if err != nil || sealed {
			return err
		}
		if n, err = c.finishOpen(key, result); err != nil {
			return err
		}
		_, err = c.change(sealSession, packTime(now), key)
		return err
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// SessionFilter chooses sessions. Its zero value chooses all.
type SessionFilter struct {
	Principal   *string  // nil is everybody's
	ID          string   // "" is any
	Incarnation int      // 0 is any
	States      []string // nil is any
	Sealed      *bool    // nil is any
	Recorded    bool     // only those of which a call is recorded, or that are sealed
	After       int64    // the Position after which to go on
}

// Session returns the newest life of the principal's session of that name. Its Metadata and
// Clients are not to be changed.
func (s *Store) Session(ctx context.Context, principal, id string) (Session, error) {
	unknown := func() (Session, error) { return Session{}, fmt.Errorf("read session %q: %w", id, ErrNotFound) }
	v, keep, ok := s.recent.get(sessionName{principal, id})
	switch {
	case ok && v.Incarnation == 0:
		return unknown()
	case ok:
		return v, nil
	}
	// It is one row by its index. To be able to break that off would cost more than it does.
	rows, err := s.newest.QueryContext(context.WithoutCancel(ctx), 0, principal, id)
	found, err := collect(s, rows, err, scanSession)
	switch {
	case err != nil:
		return Session{}, err
	case len(found) == 0:
		keep(Session{}) // calls that are not recorded name it again and again
		return unknown()
	}
	keep(found[0])
	return found[0], nil
}

// Sessions returns the sessions that the filter chooses, in the order of their
// Position. It holds nothing open while the caller works; a session that is saved
// meanwhile may come with its old or its new state.
func (s *Store) Sessions(ctx context.Context, f SessionFilter) iter.Seq2[Session, error] {
	where, args := f.where()
	query := selectSessions + where + " ORDER BY s.key LIMIT 500"
	return pages(f.After, func(after int64) ([]Session, error) {
		return readRows(ctx, s, query, append([]any{after}, args...), scanSession)
	}, func(v Session) int64 { return v.Position })
}

// Turns counts, for each of the sessions that the filter chooses and that has any, the
// calls that are whole turns (C7).
func (s *Store) Turns(ctx context.Context, f SessionFilter) (map[SessionKey]int, error) {
	where, args := f.where()
	type count struct {
		SessionKey
		turns int
	}
	found, err := readRows(ctx, s, selectTurns+where+" GROUP BY s.key", append([]any{f.After}, args...), func(rows *sql.Rows) (v count, n int, err error) {
		err = rows.Scan(&v.Principal, &v.ID, &v.Incarnation, &v.turns)
		return v, 0, err
	})
	if err != nil {
		return nil, err
	}
	turns := map[SessionKey]int{}
	for _, v := range found {
		turns[v.SessionKey] = v.turns
	}
	return turns, nil
}

// where is the condition beside those of selectSessions.
func (f SessionFilter) where() (string, []any) {
	var b strings.Builder
	var args []any
	add := func(condition string, values ...any) {
		b.WriteString(" AND " + condition)
		args = append(args, values...)
	}
	if f.Principal != nil {
		add("s.principal = ?", *f.Principal)
	}
	if f.ID != "" {
		add("s.id = ?", f.ID)
	}
	if f.Incarnation != 0 {
		add("s.incarnation = ?", f.Incarnation)
	}
	if f.States != nil {
		add("s.state IN ("+marks(len(f.States))+")", anys(f.States)...)
	}
	if f.Sealed != nil {
		add("(s.sealed <> 0) = ?", *f.Sealed)
	}
	if f.Recorded {
		b.WriteString(" AND (s.sealed <> 0 OR EXISTS (SELECT 1 FROM calls x WHERE x.session = s.key))")
	}
	return b.String(), args
}

func scanSession(rows *sql.Rows) (Session, int, error) {
	var v Session
	var created, active, sealed int64
	var metadata, clients sql.Null[string]
	err := rows.Scan(&v.Position, &v.Principal, &v.ID, &v.Incarnation, &v.Kind, &v.Workspace, &v.State,
		&created, &active, &metadata, &clients, &sealed, &v.Incomplete)
	v.Created, v.LastActivity, v.Sealed = unpackTime(created), unpackTime(active), unpackTime(sealed)
	v.Metadata, v.Clients = nullJSON(metadata), nullJSON(clients)
	return v, len(v.Metadata) + len(v.Clients), err
}
