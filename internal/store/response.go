package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Response is an object of the Responses API.
type Response struct {
	Session SessionKey // which was saved before
	ID      string
	Created time.Time
	Body    Body // JSON, the Responses package's own account of it
}

// SaveResponse stores the response, in place of what was stored under its id.
func (s *Store) SaveResponse(ctx context.Context, v Response) error {
	args := append([]any{v.ID, packTime(v.Created)}, v.Body.columns()...)
	return s.submit(ctx, fmt.Sprintf("save response %q", v.ID), len(v.Body.packed), func(c *conn) error {
		session, _, err := c.session(v.Session)
		if err != nil {
			return err
		}
		_, err = c.change(saveResponse, append([]any{session}, args...)...)
		return err
	})
}

// Response returns the principal's response of that id.
func (s *Store) Response(ctx context.Context, principal, id string) (Response, error) {
	found, err := readRows(ctx, s, selectResponse, []any{principal, id}, func(rows *sql.Rows) (Response, int, error) {
		var v Response
		var created int64
		var body bodyRow
		err := rows.Scan(&v.Session.Principal, &v.Session.ID, &v.Session.Incarnation, &v.ID, &created, &body.size, &body.digest, &body.packed)
		v.Created, v.Body = unpackTime(created), body.body()
		return v, 0, err
	})
	if err != nil {
		return Response{}, err
	}
	if len(found) == 0 {
		return Response{}, fmt.Errorf("read response %q: %w", id, ErrNotFound)
	}
	return found[0], nil
}

// DeleteResponse removes the principal's response of that id, if there is one.
func (s *Store) DeleteResponse(ctx context.Context, principal, id string) error {
	return s.submit(ctx, fmt.Sprintf("delete response %q", id), 0, func(c *conn) error {
		_, err := c.change(deleteResponse, id, principal)
		return err
	})
}
