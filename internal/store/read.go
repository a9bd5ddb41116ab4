package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
)

// CallFilter chooses calls. Its zero value chooses all.
type CallFilter struct {
	Session    SessionFilter // of which sessions; its After is not looked at
	ID         string        // "" is any
	Models     []string      // nil is any
	Outcomes   []Outcome     // nil is any, and those under way too
	Deliveries []Delivery    // nil is any
	Since      time.Time     // of the start; zero is no limit
	Until      time.Time     // before which it started; zero is no limit
	After      int64         // the Position after which to go on
	// Summary leaves out headers, tokens and the bytes of bodies, whose Size and Digest
	// are still there: then a long list costs little.
	Summary bool
}

// Of is the filter for one life of a session.
func Of(k SessionKey) SessionFilter {
	return SessionFilter{Principal: &k.Principal, ID: k.ID, Incarnation: k.Incarnation}
}

// Call returns one call.
func (s *Store) Call(ctx context.Context, k SessionKey, id string) (Call, error) {
	for v, err := range s.Calls(ctx, CallFilter{Session: Of(k), ID: id}) {
		return v, err
	}
	return Call{}, fmt.Errorf("read call %q of session %q: %w", id, k.ID, ErrNotFound)
}

// Replay returns the newest whole turn of the session whose request to the endpoint
// had the same body, for an attempt that is marked as a retry (C9). One that is under
// way is returned, too, with a nil Result, if there is no whole one. Of several, such as
// samples of one prompt, that counts first which is known not to have arrived, and last
// what has: it is another client's.
func (s *Store) Replay(ctx context.Context, k SessionKey, endpoint string, request Body) (Call, error) {
	const condition = ` AND s.principal = ? AND s.id = ? AND s.incarnation = ? AND c.endpoint = ? AND c.body_digest IS ?
  AND (r.seq IS NULL OR r.outcome IN ('complete', 'truncated'))
  ORDER BY CASE coalesce(d.state, 'pending') WHEN 'pending' THEN 1 WHEN 'full' THEN 2 ELSE 0 END, r.seq IS NULL, c.seq DESC LIMIT 1`
	query := callColumns + callContents + callTables + condition
	args := []any{0, k.Principal, k.ID, k.Incarnation, endpoint, bodyDigest(request.digest, request)}
	found, err := readRows(ctx, s, query, args, scanCall)
	if err != nil {
		return Call{}, err
	}
	if len(found) == 0 {
		return Call{}, fmt.Errorf("find an earlier attempt in session %q: %w", k.ID, ErrNotFound)
	}
	return found[0], nil
}

// Calls returns the calls that the filter chooses, in the order of their intents. It
// holds nothing open while the caller works, and a few megabytes at most; a call that
// ends meanwhile may come with or without its result.
func (s *Store) Calls(ctx context.Context, f CallFilter) iter.Seq2[Call, error] {
	query, scan := callColumns+callContents, scanCall
	if f.Summary {
		query, scan = callColumns, scanSummary
	}
	where, args := f.where()
	query += callTables + where + " ORDER BY c.seq LIMIT 500"
	return pages(f.After, func(after int64) ([]Call, error) {
		return readRows(ctx, s, query, append([]any{after}, args...), scan)
	}, func(v Call) int64 { return v.Position })
}

// where is the condition beside those of callTables.
func (f CallFilter) where() (string, []any) {
	where, args := f.Session.where()
	if f.Session.ID == "" && f.ID == "" {
		// The calls of many sessions are read as they lie: to skip those of others costs less
		// than to sort all for each page.
		where = strings.ReplaceAll(where, "s.principal", "+s.principal")
	}
	add := func(condition string, values ...any) {
		where += " AND " + condition
		args = append(args, values...)
	}
	if f.ID != "" {
		add("c.id = ?", f.ID)
	}
	if f.Models != nil {
		add("c.model IN ("+marks(len(f.Models))+")", anys(f.Models)...)
	}
	if f.Outcomes != nil {
		add("r.outcome IN ("+marks(len(f.Outcomes))+")", anys(f.Outcomes)...)
	}
	if f.Deliveries != nil {
		add("coalesce(d.state, 'pending') IN ("+marks(len(f.Deliveries))+")", anys(f.Deliveries)...)
	}
	if !f.Since.IsZero() {
		add("c.start >= ?", packTime(f.Since))
	}
	if !f.Until.IsZero() {
		add("c.start < ?", packTime(f.Until))
	}
	return where, args
}

func scanSummary(rows *sql.Rows) (Call, int, error) { return scan(rows, false) }
func scanCall(rows *sql.Rows) (Call, int, error)    { return scan(rows, true) }

// scan reads a row of callColumns, with callContents or without; it returns how many
// bytes it holds, too.
func scan(rows *sql.Rows, whole bool) (Call, int, error) {
	var v Call
	var r Result
	var start, first, ended int64
	var finished bool
	var flags, header, answerHeader string
	var usage sql.Null[string]
	var request, raw, response bodyRow
	var prompt, output, logprobs []byte
	targets := []any{
		&v.Position, &v.Session.Principal, &v.Session.ID, &v.Session.Incarnation, &v.ID, &v.Attempt, &v.API, &v.Endpoint,
		&v.Model, &v.Upstream, &v.Policy, &v.Stream, &start, &finished, &r.Outcome, &r.Status, &r.Error,
		&r.Finish, &r.Weights, &first, &ended, &flags, &usage, &r.Delivery, &r.Delivered,
		&request.size, &request.digest, &raw.size, &raw.digest, &response.size, &response.digest,
	}
	if whole {
		targets = append(targets, &header, &answerHeader, &request.packed, &raw.packed, &response.packed, &prompt, &output, &logprobs)
	}
	if err := rows.Scan(targets...); err != nil {
		return Call{}, 0, err
	}
	v.Start, r.First, r.End = unpackTime(start), unpackTime(first), unpackTime(ended)
	v.Request, r.Raw, r.Response = request.body(), raw.body(), response.body()
	r.Usage = nullJSON(usage)
	err := errors.Join(unpackJSON(flags, &r.Flags), unpackJSON(header, &v.Header), unpackJSON(answerHeader, &r.Header))
	var errs [3]error
	r.PromptIDs, errs[0] = unpackIDs(prompt)
	r.OutputIDs, errs[1] = unpackIDs(output)
	r.Logprobs, errs[2] = unpackLogprobs(logprobs)
	if err = errors.Join(err, errors.Join(errs[:]...)); err != nil {
		return Call{}, 0, fmt.Errorf("call %q of session %q: %w", v.ID, v.Session.ID, err)
	}
	if finished {
		v.Result = &r
	}
	size := len(request.packed) + len(raw.packed) + len(response.packed) + 4*(len(r.PromptIDs)+len(r.OutputIDs)) + 8*len(r.Logprobs)
	return v, size, nil
}

// maxPage is how many bytes of contents are read at once; a row that is larger comes
// alone.
const maxPage = 4 << 20

// pages turns reads of a page each into one sequence. No read is open while the
// caller has a value.
func pages[T any](after int64, fetch func(after int64) ([]T, error), position func(T) int64) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			page, err := fetch(after)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			if len(page) == 0 {
				return
			}
			for _, v := range page {
				if !yield(v, nil) {
					return
				}
			}
			after = position(page[len(page)-1])
		}
	}
}

// readRows runs a query on a connection for reading, until its end or maxPage bytes.
func readRows[T any](ctx context.Context, s *Store, query string, args []any, scan func(*sql.Rows) (T, int, error)) ([]T, error) {
	rows, err := s.read.QueryContext(ctx, query, args...)
	return collect(s, rows, err, scan)
}

// collect reads what a query has found, and closes it; err is the query's.
func collect[T any](s *Store, rows *sql.Rows, err error, scan func(*sql.Rows) (T, int, error)) (page []T, failed error) {
	if err != nil {
		return nil, s.readFailure(err)
	}
	defer func() {
		if err := rows.Close(); failed == nil && err != nil {
			failed = s.readFailure(err)
		}
	}()
	for size := 0; size < maxPage && rows.Next(); {
		v, n, err := scan(rows)
		if err != nil {
			return nil, s.readFailure(err)
		}
		page = append(page, v)
		size += n
	}
	if err := rows.Err(); err != nil {
		return nil, s.readFailure(err)
	}
	return page, nil
}

// numbers reads a column of integers.
func (s *Store) numbers(ctx context.Context, query string, args ...any) ([]int64, error) {
	return readRows(ctx, s, query, args, func(rows *sql.Rows) (n int64, size int, err error) {
		err = rows.Scan(&n)
		return n, 0, err
	})
}

func (s *Store) readFailure(err error) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return failure("read the database", err)
}

func nullJSON(column sql.Null[string]) json.RawMessage {
	if !column.Valid {
		return nil
	}
	return json.RawMessage(column.V)
}
