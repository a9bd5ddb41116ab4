package responses

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"roundhouse/internal/loop"
	"roundhouse/internal/wire"
)

// The states of a response (B.6). The last four are final.
const (
	statusQueued     = "queued"
	statusInProgress = "in_progress"
	statusCompleted  = string(loop.Completed)
	statusIncomplete = string(loop.Incomplete)
	statusFailed     = string(loop.Failed)
	statusCancelled  = string(loop.Cancelled)
)

// run is one response from its creation to its end, with the log of what is told of it:
// who streams it, now or later, reads the log. What happens is appended by one goroutine,
// that of the loop; everybody may read.
type run struct {
	// Constant.
	id        string
	principal string
	request   *request
	created   time.Time
	cancel    context.CancelCauseFunc // ends the loop; its cause says why
	ended     chan struct{}           // closed when the loop and its clean-up have ended

	mu     sync.Mutex
	events []entry // by sequence number
	status string
	object []byte        // the response as of the last event about it as a whole
	over   bool          // the last event is there
	grew   chan struct{} // closed when something is appended
	// The outcome, once it is over.
	outcome *loop.Outcome
}

// entry is an event of the log.
type entry struct {
	kind string // its type, which is also the name of the event
	data []byte // JSON
}

func newRun(principal string, req *request, cancel context.CancelCauseFunc) *run {
	return &run{
		id: loop.NewID("resp_"), principal: principal, request: req, created: time.Now(), cancel: cancel,
		ended: make(chan struct{}), grew: make(chan struct{}),
	}
}

// tell appends an event with members: names and JSON values in turn.
func (r *run) tell(kind string, members ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tellLocked(kind, members...)
}

func (r *run) tellLocked(kind string, members ...any) {
	b := append([]byte(`{"type":`), wire.Quote(kind)...)
	b = append(b, `,"sequence_number":`...)
	b = strconv.AppendInt(b, int64(len(r.events)), 10)
	for i := 0; i < len(members); i += 2 {
		b = append(append(append(b, ',', '"'), members[i].(string)...), '"', ':')
		switch v := members[i+1].(type) {
		case int:
			b = strconv.AppendInt(b, int64(v), 10)
		case string:
			b = append(b, wire.Quote(v)...)
		case []byte:
			b = append(b, v...)
		case json.RawMessage:
			b = append(b, v...)
		}
	}
	r.events = append(r.events, entry{kind, append(b, '}')})
	close(r.grew)
	r.grew = make(chan struct{})
}

// become tells that the response as a whole is in another state. out is what has come of
// it, nil before its end. An end is told once; what comes after it is dropped.
func (r *run) become(status string, out *loop.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	r.status = status
	r.object = r.render(status, out)
	kinds := []string{"response." + status}
	if len(r.events) == 0 { // each begins with its creation
		kinds = []string{"response.created", "response." + status}
	}
	for i, kind := range kinds {
		r.over = out != nil && i == len(kinds)-1
		r.outcome = out
		r.tellLocked(kind, "response", r.object)
	}
}

// after waits until there are events behind the first n, or all have been read, or ctx
// ends. over tells that these are the last.
func (r *run) after(ctx context.Context, n int) (events []entry, over bool, err error) {
	for {
		r.mu.Lock()
		events, over = r.events[min(n, len(r.events)):], r.over
		grew := r.grew
		r.mu.Unlock()
		if len(events) > 0 || over {
			return events, over, nil
		}
		select {
		case <-grew:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// wait waits for the end and returns the response, or the error of ctx.
func (r *run) wait(ctx context.Context) ([]byte, *loop.Outcome, error) {
	for n := 0; ; {
		events, over, err := r.after(ctx, n)
		if err != nil {
			return nil, nil, err
		}
		if over {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.object, r.outcome, nil
		}
		n += len(events)
	}
}
