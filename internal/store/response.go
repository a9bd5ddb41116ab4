package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Response is an object of the Responses API. It belongs to its principal.
type Response struct {
	Principal string
	ID        string
	// Session is the name of the session that it goes with, the newest life of that name
	// when it was first saved; "", or a session that is not stored, is none.
	Session string
	Created time.Time
	Running bool // it has not ended
	Body    Body // JSON, the Responses package's own account of it
	Events  Body // those of its stream, in that package's own form; empty is none
}

// SaveResponse stores the response, in place of what was stored under its id.
func (s *Store) SaveResponse(ctx context.Context, v Response) error {
	doing := fmt.Sprintf("save response %q", v.ID)
	if v.ID == "" {
		return fmt.Errorf("%s: %w: a response needs an id", doing, ErrInvalid)
	}
	args := append(append([]any{packTime(v.Created), v.Running}, v.Body.columns()...), v.Events.columns()...)
	return s.submit(ctx, doing, len(v.Body.packed)+len(v.Events.packed), func(c *conn) error {
		_, err := c.change(saveResponse, append([]any{v.Principal, v.ID, v.Principal, v.Session}, args...)...)
		return err
	})
}

// Response returns the principal's response of that id.
func (s *Store) Response(ctx context.Context, principal, id string) (Response, error) {
	found, err := readRows(ctx, s, selectResponse, []any{principal, id}, scanResponse)
	if err != nil {
		return Response{}, err
	}
	if len(found) == 0 {
		return Response{}, fmt.Errorf("read response %q: %w", id, ErrNotFound)
	}
	return found[0], nil
}

// RunningResponses returns responses that have not ended, a hundred at most. When a
// daemon starts these are the ones that an earlier one left.
func (s *Store) RunningResponses(ctx context.Context) ([]Response, error) {
	return readRows(ctx, s, selectRunning, nil, scanResponse)
}

func scanResponse(rows *sql.Rows) (Response, int, error) {
	var v Response
	var created int64
	var body, events bodyRow
	err := rows.Scan(&v.Principal, &v.ID, &v.Session, &created, &v.Running, &body.size, &body.digest, &body.packed, &events.size, &events.digest, &events.packed)
	v.Created, v.Body, v.Events = unpackTime(created), body.body(), events.body()
	return v, len(body.packed) + len(events.packed), err
}

// DeleteResponse removes the principal's response of that id, if there is one.
func (s *Store) DeleteResponse(ctx context.Context, principal, id string) error {
	return s.submit(ctx, fmt.Sprintf("delete response %q", id), 0, func(c *conn) error {
		_, err := c.change(deleteResponse, principal, id)
		return err
	})
}

// AnswerApproval says that a request for approval is answered by the response of that
// id. ErrConflict says that another one has answered it (B.5.8).
func (s *Store) AnswerApproval(ctx context.Context, principal, request, response string) error {
	return s.submit(ctx, fmt.Sprintf("answer the request for approval %q", request), 0, func(c *conn) error {
		var by string
		err := c.find(findApproval, []any{principal, request}, &by)
		switch {
		case errors.Is(err, ErrNotFound):
			_, err = c.change(insertApproval, principal, request, response, packTime(time.Now()))
		case err == nil && by != response:
			err = ErrConflict
		}
		return err
	})
}

// ForgetApproval takes back that the response has answered a request for approval. What
// another one has answered stays so.
func (s *Store) ForgetApproval(ctx context.Context, principal, request, response string) error {
	return s.submit(ctx, fmt.Sprintf("take back the answer to the request for approval %q", request), 0, func(c *conn) error {
		_, err := c.change(forgetApproval, principal, request, response)
		return err
	})
}

// ResponseLimits say which responses may stay. Those that have not ended always may.
type ResponseLimits struct {
	Age       time.Duration // since they were created; 0 is for ever. Approvals go with the same age
	EventsAge time.Duration // for their events; 0 is as long as the response
	Bytes     int64         // of all, as stored; the oldest go first; 0 is no limit
}

// TrimResponses removes what is beyond the limits. It is to be called now and then, by one
// goroutine.
func (s *Store) TrimResponses(ctx context.Context, limits ResponseLimits) error {
	now := time.Now()
	if limits.EventsAge > 0 {
		if err := s.trim(ctx, dropEvents, packTime(now.Add(-limits.EventsAge))); err != nil {
			return err
		}
	}
	if limits.Age > 0 {
		for _, statement := range []string{dropResponses, dropApprovals} {
			if err := s.trim(ctx, statement, packTime(now.Add(-limits.Age))); err != nil {
				return err
			}
		}
	}
	if limits.Bytes <= 0 {
		return nil
	}
	over, err := s.numbers(ctx, newestBeyond, limits.Bytes)
	if err != nil || len(over) == 0 {
		return err
	}
	return s.trim(ctx, dropResponses, over[0]+1)
}

// trim repeats a statement that changes some rows, in transactions of their own so that
// others' writes go on, until there is nothing left for it.
func (s *Store) trim(ctx context.Context, statement string, limit int64) error {
	const rows = 100
	for {
		var n int // the writer's, until it has answered
		err := s.submit(ctx, "remove old responses", 0, func(c *conn) (err error) {
			n, err = c.change(statement, limit, rows)
			return err
		})
		if err != nil || n == 0 {
			return err
		}
	}
}
