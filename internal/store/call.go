package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Policy is how strictly a call is recorded (C3).
type Policy string

// The policies; with "off" nothing comes here.
const (
	Train   Policy = "train"   // what cannot be stored fails the call
	Observe Policy = "observe" // what cannot be stored marks the session incomplete
)

// Outcome is how a call ended (C7).
type Outcome string

// The outcomes.
const (
	Complete      Outcome = "complete"
	Truncated     Outcome = "truncated" // by a limit on the number of tokens
	UpstreamError Outcome = "upstream_error"
	UpstreamCut   Outcome = "upstream_cut"
	ClientGone    Outcome = "client_gone"
	StoreFailed   Outcome = "store_failed"
	Unparsed      Outcome = "unparsed"
	Refused       Outcome = "refused"
	Lost          Outcome = "lost" // roundhouse ended, or the session was sealed, before the call did
)

var outcomes = []Outcome{Complete, Truncated, UpstreamError, UpstreamCut, ClientGone, StoreFailed, Unparsed, Refused, Lost}

// Outcomes lists those that there are.
func Outcomes() []Outcome { return slices.Clone(outcomes) }

// Trainable reports whether a call with this outcome is a whole turn (C7).
func (o Outcome) Trainable() bool { return o == Complete || o == Truncated }

// Delivery is how much of an answer the client got (C8).
type Delivery string

// The deliveries.
const (
	Pending Delivery = "pending" // not known, and after a crash never known
	Full    Delivery = "full"
	Partial Delivery = "partial"
	None    Delivery = "none"
)

// Deliveries lists those that there are.
func Deliveries() []Delivery { return []Delivery{Pending, Full, Partial, None} }

// Call is one attempt at a generation: a row of the log, written once.
type Call struct {
	Session  SessionKey // a session that was never saved begins here
	ID       string     // the caller's, one of its kind in the session
	Attempt  int        // 1 for the first
	API      string     // "chat", "messages" or "responses"
	Endpoint string     // the path
	Model    string     // as the request names it
	Upstream string     // the configured upstream that got it
	Policy   Policy
	Stream   bool
	Start    time.Time
	Header   http.Header // of the request; credentials are not stored (C14)
	Request  Body        // as it came

	// What follows is only read; Begin does not write it.

	Position int64   // in the order of the intents, for CallFilter.After
	Result   *Result // nil while it is under way
}

// Result is what became of a call, written once, except for the delivery.
type Result struct {
	Outcome Outcome
	Status  int         // of HTTP; 0 if none came
	Error   string      // why it is not complete, for people
	Header  http.Header // of the answer; credentials are not stored
	Raw     Body        // the answer as it came
	// Response is the answer as one native object if Raw is a stream of events; empty if
	// there is none, or Raw is it. Answer chooses.
	Response Body
	Finish   string          // the native reason for the end
	Usage    json.RawMessage // the native object, or nil

	// The tokens exactly as the engine gave them (J1); nil is not given. OutputIDs and
	// Logprobs have the same length where both are given.
	PromptIDs []int32
	OutputIDs []int32
	Logprobs  []float64

	Weights string    // the version of the weights, or ""
	First   time.Time // when the first byte of the answer came
	End     time.Time // zero for calls that a crash ended
	Flags   []string  // what else is to be known, one word each

	// Delivery and Delivered, the number of bytes, are written by Deliver alone.
	Delivery  Delivery
	Delivered int64
}

// Answer returns the answer as one native object, or as whatever came in its place.
func (r *Result) Answer() Body {
	if r.Response.Size() > 0 {
		return r.Response
	}
	return r.Raw
}

func (r *Result) check() error {
	if !slices.Contains(outcomes, r.Outcome) {
		return fmt.Errorf("%w: there is no outcome %q", ErrInvalid, r.Outcome)
	}
	if r.Logprobs != nil && len(r.Logprobs) != len(r.OutputIDs) {
		return fmt.Errorf("%w: %d tokens with %d logprobs", ErrInvalid, len(r.OutputIDs), len(r.Logprobs))
	}
	if !isJSON(r.Usage) {
		return fmt.Errorf("%w: the usage must be JSON", ErrInvalid)
	}
	return nil
}

// Begin stores the intent of a call (C6).
func (s *Store) Begin(ctx context.Context, v Call) error {
	if ctx.Err() != nil {
		return ended(ctx, "begin a call")
	}
	wait, err := s.Intend(v)
	if err != nil {
		return err
	}
	return wait(ctx)
}

// Intend is Begin in two steps: when it returns nil the intent has its place before
// whatever is written from then on, so that the call may be committed, and wait waits until
// it is stored. The error says that it never will be.
func (s *Store) Intend(v Call) (wait func(context.Context) error, err error) {
	doing := fmt.Sprintf("begin call %q of session %q", v.ID, v.Session.ID)
	if err := v.Session.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	if v.ID == "" || v.Policy != Train && v.Policy != Observe {
		return nil, fmt.Errorf("%s: %w: it needs an id and a policy", doing, ErrInvalid)
	}
	digest := v.Request.Digest()
	start := packTime(v.Start)
	args := append([]any{v.ID, v.Attempt, v.API, v.Endpoint, v.Model, v.Upstream, string(v.Policy), v.Stream, start,
		packHeader(v.Header)}, v.Request.columns()...)
	w := &write{doing: doing, size: len(v.Request.packed), apply: func(c *conn) error {
		session, sealed, err := c.session(v.Session)
		if errors.Is(err, ErrNotFound) {
			k := v.Session
			session, err = c.insert(saveSession, k.Principal, k.ID, k.Incarnation, "", "", "", start, start, nil, nil)
		} else if err == nil {
			var storedDigest []byte
			var storedStart int64
			err = c.find(findCall, []any{session, v.ID}, &storedDigest, &storedStart)
			switch {
			case err == nil && storedStart == start && string(storedDigest) == string(bodyDigest(digest, v.Request)):
				return nil
			case err == nil:
				return ErrConflict
			case errors.Is(err, ErrNotFound) && sealed:
				return ErrSealed
			case errors.Is(err, ErrNotFound):
				err = nil
			}
		}
		if err != nil {
			return err
		}
		seq, err := c.insert(insertCall, append([]any{session}, args...)...)
		if err != nil {
			return err
		}
		_, err = c.change(insertUnfinished, seq)
		return err
	}}
	return s.enqueue(w, s.linger).wait, nil
}

// bodyDigest is the column of a body's digest.
func bodyDigest(digest [32]byte, b Body) []byte {
	if b.size == 0 {
		return nil
	}
	return digest[:]
}

// Commit stores what became of a call that has begun. When it returns nil, the turn
// survives the loss of power.
func (s *Store) Commit(ctx context.Context, k SessionKey, id string, v Result) error {
	doing := fmt.Sprintf("commit call %q of session %q", id, k.ID)
	if err := v.check(); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	row := v.row()
	size := len(v.Raw.packed) + len(v.Response.packed) + 4*(len(v.PromptIDs)+len(v.OutputIDs))
	return s.submit(ctx, doing, size, func(c *conn) error {
		seq, sealed, err := c.call(k, id)
		if err != nil {
			return err
		}
		same, err := c.sameResult(seq, v)
		switch {
		case errors.Is(err, ErrNotFound): // so the session is not sealed: Seal leaves none without
			return c.finish(seq, row)
		case err != nil:
			return err
		case same:
			return nil
		case sealed:
			return ErrSealed
		}
		return ErrConflict
	})
}

// call finds a call's row and whether its session is sealed.
func (c *conn) call(k SessionKey, id string) (seq int64, sealed bool, err error) {
	var at int64
	err = c.find(findCallOf, []any{k.Principal, k.ID, k.Incarnation, id}, &seq, &at)
	return seq, at != 0, err
}

// sameResult reports whether v is the call's result; without a result it is
// ErrNotFound.
func (c *conn) sameResult(seq int64, v Result) (bool, error) {
	var outcome string
	var ended int64
	var digest []byte
	err := c.find(findResult, []any{seq}, &outcome, &ended, &digest)
	return outcome == string(v.Outcome) && ended == packTime(v.End) &&
		string(digest) == string(bodyDigest(v.Raw.digest, v.Raw)), err
}

// finish writes a call's result.
func (c *conn) finish(seq int64, row []any) error {
	if _, err := c.insert(insertResult, append([]any{seq}, row...)...); err != nil {
		return err
	}
	_, err := c.change(deleteUnfinished, seq)
	return err
}

// finishOpen gives a session's calls without a result this one; session 0 is all of
// them. It returns how many they were.
func (c *conn) finishOpen(session int64, v Result) (int, error) {
	seqs, err := c.numbers(selectUnfinished, session)
	if err != nil {
		return 0, err
	}
	row := v.row()
	for _, seq := range seqs {
		if err := c.finish(seq, row); err != nil {
			return 0, err
		}
	}
	return len(seqs), nil
}

// row is a result's columns after its key.
func (r *Result) row() []any {
	var flags any
	if len(r.Flags) > 0 {
		flags = packJSON(r.Flags)
	}
	row := []any{string(r.Outcome), r.Status, r.Error, r.Finish, r.Weights, packTime(r.First), packTime(r.End),
		flags, rawJSON(r.Usage), packHeader(r.Header)}
	row = append(row, r.Raw.columns()...)
	row = append(row, r.Response.columns()...)
	return append(row, packIDs(r.PromptIDs), packIDs(r.OutputIDs), packLogprobs(r.Logprobs))
}

// Deliver stores how much of a call's answer the client got, and the number of bytes. A
// client may try again and get the answer anew (C9): the most that it ever got stays.
func (s *Store) Deliver(ctx context.Context, k SessionKey, id string, d Delivery, bytes int64) error {
	doing := fmt.Sprintf("store the delivery of call %q of session %q", id, k.ID)
	if d != Full && d != Partial && d != None {
		return fmt.Errorf("%s: %w: there is no delivery %q", doing, ErrInvalid, d)
	}
	if ctx.Err() != nil {
		return ended(ctx, doing)
	}
	w := &write{doing: doing, apply: func(c *conn) error {
		seq, sealed, err := c.call(k, id)
		if err != nil {
			return err
		}
		var stored string
		var storedBytes int64
		err = c.find(findDelivery, []any{seq}, &stored, &storedBytes)
		write := updateDelivery
		switch {
		case errors.Is(err, ErrNotFound):
			write = insertDelivery
		case err != nil:
			return err
		case !d.exceeds(Delivery(stored)) && (d != Delivery(stored) || bytes <= storedBytes):
			return nil
		}
		if sealed {
			return ErrSealed
		}
		_, err = c.change(write, string(d), bytes, seq)
		return err
	}}
	return s.enqueue(w, s.linger).wait(ctx)
}

// exceeds reports whether a client got more than it did by another delivery.
func (d Delivery) exceeds(other Delivery) bool {
	order := []Delivery{Pending, None, Partial, Full}
	return slices.Index(order, d) > slices.Index(order, other)
}
