// Package responses is the face of the Responses API: POST /v1/responses runs the agent
// loop over the pools and instances of MCP servers, for any model that roundhouse reaches.
//
// A request becomes a run (run.go): a loop in a goroutine of its own, and a log of what is
// told of it. Who asked reads the log, as a stream or until its end. What no loop is needed
// for, that is requests without tools of the type mcp to an upstream that speaks this API
// itself, passes as the recorder does it.
package responses

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/dialect"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/loop"
	"roundhouse/internal/model"
	"roundhouse/internal/sse"
	"roundhouse/internal/store"
)

// Config is what New needs.
type Config struct {
	Config func() *config.Config // as it is now
	Models *model.Models
	Engine *loop.Engine
	Store  *store.Store // keeps responses; nil without upstreams, where none is made
	// Pass serves what is no business of this face's, as any other request of a model API.
	Pass          front.HandlerFunc
	Egress        *Egress       // where requests may send roundhouse with a server_url
	MaxBody       int64         // bytes of a request
	KeepAlive     time.Duration // between comments on a stream on which nothing comes; 0 is none
	WriteDeadline time.Duration // how long a write to a client may take; 0 is for ever
	Log           *slog.Logger  // nil discards
}

// Face serves the Responses API. Its methods may be called at any time.
//
// Wait waits for responses under way. Close cancels them, joins them, their clean-ups
// included, and refuses new ones. Both may be called again.
type Face struct {
	// Constant.
	cfg     Config
	log     *slog.Logger
	metrics metrics
	key     []byte          // of digests of what requests bring
	ctx     context.Context // of all runs
	stop    context.CancelCauseFunc

	wg sync.WaitGroup // of the runs; added to with mu held and closed unset

	mu         sync.Mutex
	closed     bool
	runs       map[string]*run // those under way
	background int             // how many of them are in the background
}

// New returns a Face.
func New(cfg Config) *Face {
	f := &Face{cfg: cfg, log: cfg.Log, metrics: newMetrics(), key: make([]byte, 32), runs: map[string]*run{}}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	_, _ = rand.Read(f.key) // never fails (crypto/rand)
	f.ctx, f.stop = context.WithCancelCause(context.Background())
	return f
}

// Register adds the routes.
func (f *Face) Register(d *front.Front) {
	for _, prefix := range []string{"", "/sessions/{id}"} {
		d.HandleModel("POST "+prefix+"/v1/responses", f.create)
		d.HandleModel("GET "+prefix+"/v1/responses/{response}", f.manage((*exchange).retrieve))
		d.HandleModel("DELETE "+prefix+"/v1/responses/{response}", f.manage((*exchange).remove))
		d.HandleModel("POST "+prefix+"/v1/responses/{response}/cancel", f.manage((*exchange).cancel))
		d.HandleModel("GET "+prefix+"/v1/responses/{response}/input_items", f.manage((*exchange).inputItems))
	}
}

// errShutdown is the cause by which runs end when the daemon does.
var errShutdown = &loop.Failure{Status: http.StatusServiceUnavailable, Code: "server_shutdown", Message: "roundhouse is shutting down", RetryAfter: busyFor}

// busyFor is when to ask again for what cannot be made now.
const busyFor = 5 * time.Second

// errNotStored refuses what needs the store: a response in the background, that nobody could
// ask for later, and a call that was approved, which a crash must not have made twice.
var errNotStored = &loop.Failure{Status: http.StatusServiceUnavailable, Code: "not_stored", Message: "the response cannot be stored now; without that nothing is made in the background, nor is a call that was approved", RetryAfter: busyFor}

// errClientGone is the cause by which a run ends that nobody waits for any more.
var errClientGone = fmt.Errorf("the client left: %w", loop.ErrCancelled)

// Running returns how many responses are under way.
func (f *Face) Running() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.runs)
}

// Wait waits until no response is under way, or ctx ends. New ones are refused.
func (f *Face) Wait(ctx context.Context) {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the last run, which Close joins
		f.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Close cancels the responses that are under way, and waits for them and their clean-ups,
// which have limits of their own.
func (f *Face) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.stop(errShutdown)
	f.wg.Wait()
}

// create serves a request for a response.
func (f *Face) create(w http.ResponseWriter, r *http.Request, c front.Caller) {
	x := &exchange{f, w, r, c}
	if len(f.cfg.Models.Upstreams()) == 0 {
		f.cfg.Pass(w, r, c) // which says so in the API's form
		return
	}
	body, release, err := x.body()
	if err != nil {
		x.fail(err)
		return
	}
	defer release()
	req, fail := f.parse(r.Context(), body)
	if fail == nil && !req.mcp && x.passes(req) && !x.goesOn(req) || fail != nil && x.passesOn(body) {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		f.cfg.Pass(w, r, c)
		return
	}
	if fail != nil {
		x.fail(fail)
		return
	}
	if err := x.answer(req); err != nil {
		x.fail(err)
	}
}

// exchange is one request of a client's.
type exchange struct {
	*Face
	w      http.ResponseWriter
	r      *http.Request
	caller front.Caller
}

// body reads the whole body, and counts it as held in memory until release.
func (x *exchange) body() (body []byte, release func(), err error) {
	held := func() {}
	if n := x.r.ContentLength; n > 0 && n <= x.cfg.MaxBody {
		if held, err = x.cfg.Models.Reserve(n); err != nil {
			return nil, nil, err
		}
	}
	if body, err = front.ReadBody(x.w, x.r, x.cfg.MaxBody); err != nil {
		held()
		return nil, nil, err
	}
	return body, held, nil
}

// passes reports whether a request without servers is for an upstream that speaks this API.
func (x *exchange) passes(req *request) bool {
	u, err := x.cfg.Models.Choose(dialect.Responses, req.task.Model)
	if err != nil {
		return false
	}
	// An upstream of the other API that names the model serves it rather than one that
	// serves what no other does.
	chosen, err := x.cfg.Models.Choose(dialect.Chat, req.task.Model)
	return err == nil && chosen == u
}

// passesOn reports whether a request that cannot be read here is another upstream's to
// read: it has no tool of the type mcp.
func (x *exchange) passesOn(body []byte) bool {
	request, err := dialect.ParseRequest(dialect.Responses, body)
	if err != nil || request.HasMCPTool {
		return false
	}
	u, err := x.cfg.Models.Choose(dialect.Responses, request.Model)
	if err != nil {
		return false
	}
	chosen, err := x.cfg.Models.Choose(dialect.Chat, request.Model)
	return err == nil && chosen == u
}

// goesOn reports whether a request goes on from a response that was made here, or refers to
// what such a one has said or done. Nobody else knows these.
func (x *exchange) goesOn(req *request) bool {
	ours := func(id string) bool {
		_, err := x.find(x.r.Context(), x.caller.Principal, id)
		return !isUnknown(err)
	}
	if req.previous != "" {
		return ours(req.previous)
	}
	return slices.ContainsFunc(req.task.Input, func(raw json.RawMessage) bool {
		if len(raw) > maxReference {
			return false
		}
		it := sketchOf(raw)
		run, made := loop.RunOf(it.ID)
		return it.refers() && made && ours(run)
	})
}

// maxReference is how long a reference to an item may be, in bytes: what passes is not read
// once more for that.
const maxReference = 1 << 10

// answer runs the loop for a request, and answers with what comes of it. Its error is
// told before anything is answered.
func (x *exchange) answer(req *request) error {
	r, err := x.begin(req)
	if err != nil {
		return err
	}
	if !req.background {
		defer r.cancel(errClientGone) // nobody waits for it any more; if it has ended, this changes nothing
	}
	if req.stream {
		x.stream(r, 0)
		return nil
	}
	if req.background {
		_, object := r.snapshot()
		x.write(http.StatusOK, object)
		return nil
	}
	object, out, err := r.wait(x.r.Context())
	if err != nil {
		return err
	}
	if f := out.Err; f != nil && out.Calls == 0 {
		// Nothing has happened yet but that the model was asked, so that the client may try
		// it again, which clients do by themselves.
		return f
	}
	x.write(http.StatusOK, object)
	return nil
}

// begin starts the run of a request.
func (x *exchange) begin(req *request) (*run, error) {
	name, err := front.SessionName(x.r, req.session)
	if err != nil {
		return nil, err
	}
	policy, err := front.RecordPolicy(x.r)
	if err != nil {
		return nil, refused("%v", err)
	}
	if req.background && !req.store {
		return nil, refused("background needs store: what is not stored cannot be asked for later")
	}
	task := req.task
	task.Principal, task.Session, task.Policy, task.Header = x.caller.Principal, name, policy, x.r.Header
	if req.previous != "" {
		if err := x.continued(x.r.Context(), &task, req.previous); err != nil {
			return nil, err
		}
	}
	if err := x.complete(x.r.Context(), &task); err != nil {
		return nil, err
	}
	if err := x.checkServers(&task); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(x.ctx)
	r := newRun(req, &task, cancel)
	if req.store {
		r.keep = func(object []byte, events []entry, running bool) error {
			err := x.save(r, object, events, running)
			if err != nil {
				x.metrics.unstored.Inc()
				x.log.Error("a response could not be stored", "response", r.id, "err", err)
			}
			return err
		}
	}
	task.Run = r.id
	work, err := x.cfg.Engine.Prepare(task)
	if err == nil {
		err = x.enter(r)
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	approved, declined := work.Answers()
	r.answers = slices.Concat(approved, declined)
	err = x.answerApprovals(x.r.Context(), r, approved, declined)
	if err == nil && req.background {
		if r.become(statusQueued, nil); r.unkept != nil {
			err = errNotStored
		}
	}
	if err != nil {
		x.forgetApprovals(r, slices.Concat(approved, declined))
		cancel(nil)
		x.leave(r)
		return nil, err
	}
	go func() { // joined by Close
		defer x.leave(r)
		defer cancel(nil)
		x.work(ctx, r, work)
	}()
	return r, nil
}

// enter adds a run to those under way; leave takes it out again.
func (f *Face) enter(r *run) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return errShutdown
	}
	if r.request.background {
		if most := f.cfg.Config().LLM.Responses.Background; f.background >= most {
			return &loop.Failure{
				Status: http.StatusTooManyRequests, Code: "too_many_responses", RetryAfter: busyFor,
				Message: fmt.Sprintf("%d responses in the background are under way, which is as many as may be (llm.responses.background)", most),
			}
		}
		f.background++
	}
	f.runs[r.id] = r
	f.wg.Add(1)
	return nil
}

func (f *Face) leave(r *run) {
	f.mu.Lock()
	delete(f.runs, r.id)
	if r.request.background {
		f.background--
	}
	f.mu.Unlock()
	f.wg.Done()
}

// work is the life of a run.
func (f *Face) work(ctx context.Context, r *run, work *loop.Run) {
	r.become(statusInProgress, nil)
	t := &teller{r: r, parts: map[int]*part{}}
	outcome := work.Do(ctx, func(e loop.Event) {
		if e.Kind == loop.Ended && (e.Outcome.Status == loop.Failed || e.Outcome.Status == loop.Cancelled) {
			f.forgetApprovals(r, unused(slices.Concat(work.Answers()), e.Outcome.Output))
		}
		t.observe(e)
	})
	f.metrics.ended.WithLabelValues(string(outcome.Status)).Inc()
	close(r.ended)
}

// stream sends the events of a run from the nth on.
func (x *exchange) stream(r *run, n int) {
	out := sse.NewWriter(x.w, x.cfg.WriteDeadline)
	if out.Flush() != nil {
		return // the client is gone
	}
	for {
		ctx, cancel := x.r.Context(), context.CancelFunc(func() {})
		if x.cfg.KeepAlive > 0 {
			ctx, cancel = context.WithTimeoutCause(ctx, x.cfg.KeepAlive, errQuiet)
		}
		events, over, err := r.after(ctx, n)
		cancel()
		switch {
		case errors.Is(err, errQuiet):
			out.Comment("keepalive")
		case err != nil:
			return // nobody is there to be told
		}
		for _, e := range events {
			out.Named(e.kind, e.data)
		}
		n += len(events)
		if out.Flush() != nil || over {
			return
		}
	}
}

var errQuiet = errors.New("nothing has come for a while")

// fail answers with an error in the API's form.
func (x *exchange) fail(err error) {
	d := dialect.Failure{Status: http.StatusInternalServerError, Message: "roundhouse has failed"}
	if f, ok := errors.AsType[*loop.Failure](err); ok {
		d = dialect.Failure{Status: f.Status, Code: f.Code, Message: f.Message, RetryAfter: f.RetryAfter}
	} else if e, ok := errors.AsType[*model.Error](err); ok {
		d = e.Failure
	} else if x.r.Context().Err() != nil {
		return // nobody is there to be told
	} else if e, ok := errors.AsType[*fault.Error](err); ok {
		d = dialect.Failure{Status: e.Reason.Status(), Code: string(e.Reason), Message: e.Message, RetryAfter: e.RetryAfter}
	} else {
		x.log.Error("a response failed", "err", err)
	}
	maps.Copy(x.w.Header(), d.Header())
	x.write(d.Status, d.Body(dialect.Responses))
}

// write answers with JSON.
func (x *exchange) write(status int, body []byte) {
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	_, _ = x.w.Write(body) // a client that is gone misses it alone
}
