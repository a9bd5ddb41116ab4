package responses

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
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
	input     []json.RawMessage // all that the model is given, of earlier responses too
	session   string            // that the request named, or the one that it goes on from; "" is none
	chain     string            // whose tools it uses if it has no session but goes on from another, which is that of all that follow
	created   time.Time
	cancel    context.CancelCauseFunc // ends the loop; its cause says why
	ended     chan struct{}           // closed when the loop and its clean-up have ended
	// keep stores the response as it is; running says that more will come. nil is for one
	// that is not stored.
	keep func(object []byte, events []entry, running bool) error

	deleted atomic.Bool // nobody finds it any more

	// Owned by the goroutine that appends.
	answers []string      // the requests for approval that it answers, but for those whose calls were begun
	unkept  error         // why the response is not stored, though it was to be
	kept    time.Time     // when it was last stored
	took    time.Duration // how long that was

	mu     sync.Mutex
	events []entry // by sequence number
	size   int     // of their data
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

func newRun(req *request, task *loop.Task, cancel context.CancelCauseFunc) *run {
	return &run{
		id: loop.NewID("resp_"), principal: task.Principal, request: req, input: task.Input, session: task.Session, chain: task.Chain, created: time.Now(), cancel: cancel,
		ended: make(chan struct{}), grew: make(chan struct{}),
	}
}

// tell appends an event with members: names and JSON values in turn.
func (r *run) tell(kind string, members ...any) {
	r.mu.Lock()
	r.appendLocked(newEntry(len(r.events), kind, members...))
	full := r.size > maxLog
	r.mu.Unlock()
	if full {
		r.cancel(tooLarge) // from the second time on this does nothing
	}
}

// maxLog is how long the events of a response may be in all, in bytes: they stay in memory
// while it is under way. What goes beyond that ends as incomplete, and tooLarge is why.
const maxLog = 64 << 20

const tooLarge loop.Enough = "max_response_size"

func (r *run) appendLocked(events ...entry) {
	r.events = append(r.events, events...)
	for _, e := range events {
		r.size += len(e.data)
	}
	close(r.grew)
	r.grew = make(chan struct{})
}

// newEntry returns the event with the sequence number n. members are names and JSON values
// in turn.
func newEntry(n int, kind string, members ...any) entry {
	b := append([]byte(`{"type":`), wire.Quote(kind)...)
	b = append(b, `,"sequence_number":`...)
	b = strconv.AppendInt(b, int64(n), 10)
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
	return entry{kind, append(b, '}')}
}

// become tells that the response as a whole is in another state. out is what has come of
// it, nil before its end. An end is told once; what comes after it is dropped.
//
// It is stored in each state before that is told: who has seen it finds the response, though
// the daemon may have died since (B.6). If it cannot be stored, it says so.
func (r *run) become(status string, out *loop.Outcome) {
	r.mu.Lock()
	events, over := r.events, r.over // nobody else appends
	r.mu.Unlock()
	if over {
		return
	}
	object, news := r.news(status, out, len(events))
	if r.keep != nil {
		if r.unkept = r.store(object, slices.Concat(events, news), out == nil); r.unkept != nil {
			object, news = r.news(status, out, len(events))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status, r.object, r.outcome, r.over = status, object, out, out != nil
	r.appendLocked(news...)
}

// news returns the response in a state, and what is told of it behind n events.
func (r *run) news(status string, out *loop.Outcome, n int) (object []byte, events []entry) {
	object = r.render(status, out)
	kinds := []string{lifecycle(status)}
	if n == 0 { // each begins with its creation
		kinds = []string{"response.created", lifecycle(status)}
	}
	for _, kind := range kinds {
		events = append(events, newEntry(n+len(events), kind, "response", object))
	}
	return object, events
}

// lifecycle is the event that tells of a state. The API has none for a response that was
// cancelled, and clients know no others.
func lifecycle(status string) string {
	if status == statusCancelled {
		status = statusIncomplete
	}
	return "response." + status
}

// store stores the response, and notes how long that takes.
func (r *run) store(object []byte, events []entry, running bool) error {
	began := time.Now()
	err := r.keep(object, events, running)
	r.kept = time.Now()
	r.took = r.kept.Sub(began)
	return err
}

// begun is told that the call is begun which a request for approval has asked for. That is
// stored before the call is made, since what a crash leaves says whether the request can be
// answered again; where it cannot be stored, no call is made.
func (r *run) begun(request string) {
	r.answers = slices.DeleteFunc(r.answers, func(id string) bool { return id == request })
	if r.keep == nil {
		return
	}
	r.mu.Lock()
	events, object := r.events, r.object
	r.mu.Unlock()
	if r.store(object, events, true) != nil {
		r.cancel(errNotStored)
	}
}

// checkpointEvery is the least time between two checkpoints, each of which stores the whole
// log. Of a log that has become long they take a twentieth of the time at most.
const checkpointEvery = time.Second

// checkpoint stores now and then what a response in the background has done so far, which
// is all that a crash of the daemon leaves of it.
func (r *run) checkpoint() {
	if r.keep == nil || !r.request.background || r.unkept != nil || time.Since(r.kept) < max(checkpointEvery, 20*r.took) {
		return
	}
	r.mu.Lock()
	events, object := r.events, r.object
	r.mu.Unlock()
	_ = r.store(object, events, true) // keep has logged it, and the end of the response is what counts
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

// snapshot returns the response as it is.
func (r *run) snapshot() (status string, object []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status, r.object
}
