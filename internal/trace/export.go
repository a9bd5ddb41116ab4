package trace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse/internal/store"
)

// Version is that of the rows' form, in each of them.
const Version = 1

// Format is what an export's rows are (J3).
type Format string

// The formats.
const (
	Messages Format = "messages" // a trajectory as messages with tools
	Tokens   Format = "tokens"   // a trajectory as tokens with mask and logprobs
	Calls    Format = "calls"    // a call of the log
)

// Options says what to export. Of a session's turns only those that the filters
// choose are trained; the others of their trajectories are context.
type Options struct {
	Format     Format
	Session    store.SessionFilter // its After is not looked at
	Outcomes   []store.Outcome     // nil is those that are trainable, and with Calls all
	Deliveries []store.Delivery    // nil is all, and with Tokens only Full
	Models     []string            // nil is all
	Since      time.Time           // of a call's start; zero is no limit
	Until      time.Time           // before which it started; zero is no limit

	// Rewards has the rewards of sessions by their ids (ReadRewards); sessions that are
	// not there, or all if it is nil, take that member of their metadata which RewardKey
	// names, if there is one.
	Rewards   map[string]json.RawMessage
	RewardKey string

	// After is the cursor of the last row that the caller has. Rows go on after it, the
	// same ones if the sessions that were begun are sealed.
	After string
}

// Export is one export.
type Export struct {
	store   *store.Store
	options Options
	session int64 // position of the session to go on with
	row     int   // rows of it that the caller has
	call    int64 // position of the last call that the caller has
	skipped map[string]int
}

// NewExport checks the options. Their faults wrap ErrOptions.
func NewExport(st *store.Store, o Options) (*Export, error) {
	x := &Export{store: st, options: o, skipped: map[string]int{}}
	if o.Format != Messages && o.Format != Tokens && o.Format != Calls {
		return nil, fmt.Errorf("%w: there is no format %q; there are messages, tokens and calls", ErrOptions, o.Format)
	}
	if x.options.Deliveries == nil && o.Format == Tokens {
		x.options.Deliveries = []store.Delivery{store.Full}
	}
	if err := x.seek(o.After); err != nil {
		return nil, err
	}
	return x, nil
}

// ErrOptions is an export that cannot be made as it was asked for.
var ErrOptions = errors.New("the export cannot be made")

// seek goes after the row with this cursor: "c" and a call's position, or "s", a
// session's position, "." and the row's number in it.
func (x *Export) seek(cursor string) (err error) {
	if cursor == "" {
		return nil
	}
	bad := fmt.Errorf("%w: %q is no cursor of the format %s", ErrOptions, cursor, x.options.Format)
	if x.options.Format == Calls {
		number, ok := strings.CutPrefix(cursor, "c")
		if x.call, err = strconv.ParseInt(number, 10, 64); !ok || err != nil || x.call < 0 {
			return bad
		}
		return nil
	}
	numbers, ok := strings.CutPrefix(cursor, "s")
	session, row, ok2 := strings.Cut(numbers, ".")
	x.session, err = strconv.ParseInt(session, 10, 64)
	if !ok || !ok2 || err != nil || x.session < 1 {
		return bad
	}
	if x.row, err = strconv.Atoi(row); err != nil || x.row < 0 {
		return bad
	}
	return nil
}

// Skipped counts, after Lines has ended, the turns that the filters chose and the
// format could not take, by reason: "no_token_ids", "several_answers", "unreadable".
func (x *Export) Skipped() map[string]int { return x.skipped }

// Lines returns the rows as JSON without line ends. It holds one session's turns in
// memory at a time; the first error is the last value.
func (x *Export) Lines(ctx context.Context) iter.Seq2[[]byte, error] {
	if x.options.Format == Calls {
		return x.calls(ctx)
	}
	return func(yield func([]byte, error) bool) {
		filter := x.options.Session
		filter.After = max(x.session-1, 0)
		for s, err := range x.store.Sessions(ctx, filter) {
			if err != nil {
				yield(nil, err)
				return
			}
			f, err := x.forest(ctx, s)
			if err != nil {
				yield(nil, err)
				return
			}
			done := 0
			if s.Position == x.session {
				done = x.row
			}
			for i, line := range x.trajectories(s, f) {
				if i >= done && !yield(encode(line()), nil) {
					return
				}
			}
		}
	}
}

// forest reads a session's turns.
func (x *Export) forest(ctx context.Context, s store.Session) (*forest, error) {
	return grow(newForest(), x.store.Calls(ctx, store.CallFilter{Session: store.Of(s.SessionKey)}), s)
}

func grow(f *forest, calls iter.Seq2[store.Call, error], s store.Session) (*forest, error) {
	for c, err := range calls {
		if err == nil {
			err = f.add(c)
		}
		if err != nil {
			return nil, fmt.Errorf("read session %q: %w", s.ID, err)
		}
	}
	return f, nil
}

// chosen says which turns are trained.
func (x *Export) chosen(t turn) bool {
	o, r := x.options, t.call.Result
	return (o.Outcomes == nil || slices.Contains(o.Outcomes, r.Outcome)) &&
		(o.Deliveries == nil || slices.Contains(o.Deliveries, r.Delivery)) &&
		(o.Models == nil || slices.Contains(o.Models, t.call.Model)) &&
		(o.Since.IsZero() || !t.call.Start.Before(o.Since)) && (o.Until.IsZero() || t.call.Start.Before(o.Until))
}

// untaken says why the format cannot take a turn, "" if it can. Of several answers in one
// the store has no tokens: each would have its own.
func (x *Export) untaken(t turn) string {
	switch {
	case x.options.Format == Messages && t.messages == none:
		return "unreadable"
	case x.options.Format == Tokens && t.tokens == none && t.answers > 1:
		return "several_answers"
	case x.options.Format == Tokens && t.tokens == none:
		return "no_token_ids"
	}
	return ""
}

// trajectory is what the rows of both formats have.
type trajectory struct {
	V           int             `json:"v"`
	Format      Format          `json:"format"`
	Cursor      string          `json:"cursor"`
	Session     string          `json:"session_id"`
	Principal   string          `json:"principal"`
	Incarnation int             `json:"incarnation"`
	Trajectory  int             `json:"trajectory"` // its number in the session, from 0
	Calls       []string        `json:"call_ids"`
	Model       string          `json:"model"`
	Status      store.Outcome   `json:"status"` // of its last turn
	Break       Reason          `json:"break_reason,omitempty"`
	Reward      json.RawMessage `json:"reward,omitempty"`
	Metadata    json.RawMessage `json:"metadata,omitempty"`
}

// messagesRow is a trajectory as messages. Train is as long as Messages.
type messagesRow struct {
	trajectory
	Messages []json.RawMessage `json:"messages"`
	Train    []bool            `json:"train"`
	Tools    json.RawMessage   `json:"tools,omitempty"`
}

// tokensRow is a trajectory as tokens. Tokens, Mask and Logprobs have one length;
// Mask is 1 on the tokens that are trained here, and Logprobs 0 elsewhere. Logprobs is
// null if a trained turn has none.
type tokensRow struct {
	trajectory
	Tokens   []int32 `json:"tokens"`
	Mask     bits    `json:"mask"`
	Logprobs numbers `json:"logprobs"`
	Spans    []span  `json:"spans"`
}

// span is an answer of a model in a row, from Start to before End.
type span struct {
	Call    string `json:"call_id"`
	Start   int    `json:"start"`
	End     int    `json:"end"`
	Kind    string `json:"kind"` // "sampled" is trained here; "context" is not
	Weights string `json:"weight_version,omitempty"`
}

// trajectories makes a session's rows, each when it is asked for.
func (x *Export) trajectories(s store.Session, f *forest) []func() any {
	reward := x.reward(s)
	for _, t := range f.turns {
		if why := x.untaken(t); why != "" && t.sample == 0 && x.chosen(t) {
			x.skipped[why]++
		}
	}
	entries := f.wordTurns
	var rows []row
	if x.options.Format == Tokens {
		entries = f.tokenTurns
		rows = f.tokens.rows(func(i int) bool { return x.chosen(f.turns[entries[i]]) })
	} else {
		rows = f.words.rows(func(i int) bool { return x.chosen(f.turns[entries[i]]) })
	}
	var out []func() any
	for i, r := range rows {
		out = append(out, func() any {
			last := f.turns[entries[r.path[len(r.path)-1]]]
			row := trajectory{
				V: Version, Format: x.options.Format, Cursor: fmt.Sprintf("s%d.%d", s.Position, i+1), Session: s.ID, Principal: s.Principal,
				Incarnation: s.Incarnation, Trajectory: i, Model: last.call.Model, Status: last.call.Result.Outcome, Reward: reward, Metadata: s.Metadata,
			}
			for n, entry := range r.path {
				t := f.turns[entries[entry]]
				row.Calls = append(row.Calls, t.call.ID)
				if t.split != nil && (r.trained[n] || n == 0) && row.Break == "" {
					row.Break = t.split.Reason
				}
			}
			if x.options.Format == Tokens {
				return f.tokensRow(r, row)
			}
			return f.messagesRow(r, row)
		})
	}
	return out
}

func (f *forest) messagesRow(r row, head trajectory) messagesRow {
	out := messagesRow{trajectory: head}
	for n, entry := range r.path {
		part := &f.words.nodes[entry]
		for i, id := range part.prompt {
			if n == 0 && i == 0 {
				h := f.heads[id]
				out.Tools = h.tools
				out.Messages = append(out.Messages, h.system...)
				continue
			}
			out.Messages = append(out.Messages, f.contents[id])
		}
		out.Train = append(out.Train, make([]bool, len(out.Messages)-len(out.Train))...)
		for _, id := range part.answer {
			out.Messages = append(out.Messages, f.contents[id])
			out.Train = append(out.Train, r.trained[n])
		}
	}
	return out
}

func (f *forest) tokensRow(r row, head trajectory) tokensRow {
	out := tokensRow{trajectory: head, Logprobs: numbers{}}
	whole := true
	for n, entry := range r.path {
		part := &f.tokens.nodes[entry]
		t := f.turns[f.tokenTurns[entry]]
		out.Tokens = append(append(out.Tokens, part.prompt...), part.answer...)
		s := span{Call: t.call.ID, Start: len(out.Tokens) - len(part.answer), End: len(out.Tokens), Kind: "context", Weights: t.call.Result.Weights}
		out.Mask = append(out.Mask, make(bits, len(out.Tokens)-len(out.Mask))...)
		out.Logprobs = append(out.Logprobs, make(numbers, len(out.Tokens)-len(out.Logprobs))...)
		if r.trained[n] {
			s.Kind = "sampled"
			whole = whole && len(t.logprobs) == len(part.answer)
			copy(out.Logprobs[s.Start:], t.logprobs)
			for i := s.Start; i < s.End; i++ {
				out.Mask[i] = 1
			}
		}
		out.Spans = append(out.Spans, s)
	}
	if !whole {
		out.Logprobs = nil
	}
	return out
}

// bits is a list of 0 and 1, which as bytes would become a string.
type bits []uint8

// MarshalJSON writes a list of numbers.
func (b bits) MarshalJSON() ([]byte, error) {
	out := make([]byte, 0, 2*len(b)+2)
	out = append(out, '[')
	for i, v := range b {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '0'+v)
	}
	return append(out, ']'), nil
}

// numbers is a list of numbers; one that JSON cannot say is null in it.
type numbers []float64

// MarshalJSON writes a list of numbers and nulls; nil is null.
func (n numbers) MarshalJSON() ([]byte, error) {
	if n == nil {
		return []byte("null"), nil
	}
	out := []byte{'['}
	for i, v := range n {
		if i > 0 {
			out = append(out, ',')
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			out = append(out, "null"...)
		} else {
			out = strconv.AppendFloat(out, v, 'g', -1, 64)
		}
	}
	return append(out, ']'), nil
}

// callRow is a call of the log.
type callRow struct {
	V           int             `json:"v"`
	Format      Format          `json:"format"`
	Cursor      string          `json:"cursor"`
	Session     string          `json:"session_id"`
	Principal   string          `json:"principal"`
	Incarnation int             `json:"incarnation"`
	Call        string          `json:"call_id"`
	Attempt     int             `json:"attempt"`
	API         string          `json:"api"`
	Endpoint    string          `json:"endpoint"`
	Model       string          `json:"model"`
	Upstream    string          `json:"upstream"`
	Policy      store.Policy    `json:"policy"`
	Stream      bool            `json:"stream"`
	Start       time.Time       `json:"t_start"`
	First       *time.Time      `json:"t_first,omitempty"`
	End         *time.Time      `json:"t_end,omitempty"`
	Outcome     store.Outcome   `json:"outcome,omitempty"` // absent while it is under way
	Status      int             `json:"http_status,omitempty"`
	Error       string          `json:"error,omitempty"`
	Finish      string          `json:"finish,omitempty"`
	Usage       json.RawMessage `json:"usage,omitempty"`
	Weights     string          `json:"weight_version,omitempty"`
	Flags       []string        `json:"flags,omitempty"`
	Delivered   store.Delivery  `json:"delivered,omitempty"`
	BytesSent   int64           `json:"bytes_sent,omitempty"`

	RequestBytes  int64 `json:"request_bytes"`  // of the native request
	ResponseBytes int64 `json:"response_bytes"` // of the native response

	RequestHeader  http.Header     `json:"request_headers,omitempty"`
	Request        json.RawMessage `json:"request,omitempty"` // native; a string if it is not JSON
	ResponseHeader http.Header     `json:"response_headers,omitempty"`
	Response       json.RawMessage `json:"response,omitempty"` // native, as one object; a string if it is not JSON
	PromptIDs      []int32         `json:"prompt_ids,omitempty"`
	OutputIDs      []int32         `json:"output_ids,omitempty"`
	Logprobs       numbers         `json:"logprobs,omitempty"`
	Reward         json.RawMessage `json:"reward,omitempty"`
}

// calls are the rows of the log.
func (x *Export) calls(ctx context.Context) iter.Seq2[[]byte, error] {
	o := x.options
	filter := store.CallFilter{
		Session: o.Session, Models: o.Models, Outcomes: o.Outcomes, Deliveries: o.Deliveries, Since: o.Since, Until: o.Until, After: x.call,
	}
	return func(yield func([]byte, error) bool) {
		rewards := map[store.SessionKey]json.RawMessage{}
		for c, err := range x.store.Calls(ctx, filter) {
			if err != nil {
				yield(nil, err)
				return
			}
			reward, known := rewards[c.Session]
			if !known {
				for s, err := range x.store.Sessions(ctx, store.Of(c.Session)) {
					if err != nil {
						yield(nil, err)
						return
					}
					reward = x.reward(s)
				}
				clear(rewards) // neighbours are mostly of one session
				rewards[c.Session] = reward
			}
			row, err := newCallRow(c)
			if err != nil {
				yield(nil, err)
				return
			}
			row.Reward = reward
			if !yield(encode(row), nil) {
				return
			}
		}
	}
}

// newSummary is the row of a call without what store.CallFilter.Summary leaves out.
func newSummary(c store.Call) callRow {
	row := callRow{
		V: Version, Format: Calls, Cursor: fmt.Sprintf("c%d", c.Position), Session: c.Session.ID, Principal: c.Session.Principal,
		Incarnation: c.Session.Incarnation, Call: c.ID, Attempt: c.Attempt, API: c.API, Endpoint: c.Endpoint, Model: c.Model,
		Upstream: c.Upstream, Policy: c.Policy, Stream: c.Stream, Start: c.Start, RequestBytes: c.Request.Size(),
	}
	if r := c.Result; r != nil {
		row.Outcome, row.Status, row.Error, row.Finish, row.Usage = r.Outcome, r.Status, r.Error, r.Finish, r.Usage
		row.Weights, row.Flags, row.Delivered, row.BytesSent = r.Weights, r.Flags, r.Delivery, r.Delivered
		row.First, row.End, row.ResponseBytes = moment(r.First), moment(r.End), r.Answer().Size()
	}
	return row
}

func newCallRow(c store.Call) (callRow, error) {
	row := newSummary(c)
	row.RequestHeader = c.Header
	var errs [2]error
	row.Request, errs[0] = native(c.Request)
	if r := c.Result; r != nil {
		row.ResponseHeader = r.Header
		row.PromptIDs, row.OutputIDs, row.Logprobs = r.PromptIDs, r.OutputIDs, r.Logprobs
		row.Response, errs[1] = native(r.Answer())
	}
	if err := errors.Join(errs[:]...); err != nil {
		return callRow{}, fmt.Errorf("call %q of session %q: %w", c.ID, c.Session.ID, err)
	}
	return row, nil
}

func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// native is a body as it came, if it is JSON, and else as a string.
func native(b store.Body) (json.RawMessage, error) {
	raw, err := b.Bytes()
	if err != nil || len(raw) == 0 {
		return nil, err
	}
	if json.Valid(raw) {
		return raw, nil
	}
	return encode(string(raw)), nil
}

// Row returns a call as a row of the format Calls, such as the own API shows it.
func Row(c store.Call) (json.RawMessage, error) {
	row, err := newCallRow(c)
	if err != nil {
		return nil, err
	}
	return encode(row), nil
}

// Summary returns the row of a call without headers, bodies and tokens, which need not
// have been read (store.CallFilter.Summary).
func Summary(c store.Call) json.RawMessage { return encode(newSummary(c)) }

// reward is the session's.
func (x *Export) reward(s store.Session) json.RawMessage {
	if r, ok := x.options.Rewards[s.ID]; ok {
		return r
	}
	var metadata map[string]json.RawMessage
	if x.options.RewardKey == "" || json.Unmarshal(s.Metadata, &metadata) != nil {
		return nil
	}
	return metadata[x.options.RewardKey]
}
