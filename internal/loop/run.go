package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"roundhouse/internal/dialect"
	"roundhouse/internal/model"
	"roundhouse/internal/session"
)

// Run is a task under way. Do is called once; nothing else may be called at the same time.
type Run struct {
	// Constant after Prepare.
	engine   *Engine
	t        *Task
	upstream *model.Upstream
	asked    map[string]*inputItem   // requests for approval in the input, by id
	outputs  map[string]bool         // calls of the caller's functions that the input has what came of, by call id
	approved []*inputItem            // those of them that were approved, in the order of the answers
	declined []string                // the ids of those that were declined, now or in an earlier response
	listed   map[string][]ListedTool // what the input says that servers list, by label

	// Owned by the goroutine of Do.
	observe  func(Event)
	speaker  speaker
	sessions *ToolSessions
	open     map[string]*toolSession // by label
	tools    *table
	output   []*Item
	usage    Usage
	rounds   int
	made     int  // calls of servers' tools
	refused  bool // the model was told that it may call no more
	failing  failing
}

// speaker has a model of some API answer.
type speaker interface {
	// remind adds an item that was said or done before the first turn.
	remind(item json.RawMessage) error
	// check returns what is wrong with the settings.
	check() error
	// turn has the model answer. Its errors are *Failure or the cause of ctx.
	turn(ctx context.Context, co *composer, first bool) error
	// answer gives the model what came of the calls of its last turn.
	answer(results []*result)
}

// result is what came of a call, for the model.
type result struct {
	callID   string
	text     string
	pictures []Picture
}

func newRun(e *Engine, t *Task) (*Run, error) {
	u, err := e.cfg.Models.Choose(dialect.Chat, t.Model)
	if err != nil {
		return nil, failureOf(err)
	}
	r := &Run{engine: e, t: t, upstream: u, open: map[string]*toolSession{}, tools: newTable(), listed: map[string][]ListedTool{}, asked: map[string]*inputItem{}, outputs: map[string]bool{}}
	if err := r.readInput(); err != nil {
		return nil, &Failure{Status: http.StatusBadRequest, Code: "invalid_request_error", Message: err.Error()}
	}
	if u.SpeaksResponses() {
		r.speaker = newPeer(r)
	} else {
		r.speaker = newChat(r)
	}
	for i, raw := range t.Input {
		if err := r.speaker.remind(raw); err != nil {
			return nil, &Failure{Status: http.StatusBadRequest, Code: "invalid_request_error", Message: fmt.Sprintf("input[%d]: %v", i, err)}
		}
	}
	if err := r.speaker.check(); err != nil {
		return nil, &Failure{Status: http.StatusBadRequest, Code: "invalid_request_error", Message: err.Error()}
	}
	r.sessions = newToolSessions(e, t)
	return r, nil
}

// Answers returns the ids of the requests for approval that the input answers. Those are left
// out that it shows to have been called already; what was declined may be history, too, which
// changes nothing.
func (r *Run) Answers() (approved, declined []string) {
	for _, request := range r.approved {
		approved = append(approved, request.ID)
	}
	return approved, r.declined
}

// Do works on the task until it is done, tells observe of every step, in order and one at
// a time, and then cleans up (X4): observe has got Ended by then, so nobody need wait for
// that. What has been opened is closed when Do returns. The end of ctx cancels what is
// under way; its cause, ErrCancelled or another, decides between Cancelled and Failed.
func (r *Run) Do(ctx context.Context, observe func(Event)) Outcome {
	r.observe = observe
	r.engine.counts.running.Inc()
	defer r.engine.counts.running.Dec()
	outcome := r.work(ctx)
	r.settle()
	outcome.Usage, outcome.Rounds, outcome.Calls = r.usage, r.rounds, r.made
	for _, it := range r.output {
		outcome.Output = append(outcome.Output, *it)
	}
	r.engine.counts.runs.WithLabelValues(string(outcome.Status)).Inc()
	observe(Event{Kind: Ended, Outcome: &outcome})
	r.sessions.Close()
	return outcome
}

// work does all but telling of the end.
func (r *Run) work(ctx context.Context) Outcome {
	r.tools.addFunctions(r.t.Functions)
	if f := r.openServers(ctx); f != nil {
		return r.broken(ctx, f)
	}
	if err := r.callApproved(ctx); err != nil {
		return r.broken(ctx, err)
	}
	for limit := r.engine.cfg.Limits.Rounds; ; {
		co := &composer{r: r}
		err := r.speaker.turn(ctx, co, r.rounds == 0)
		r.rounds++
		r.engine.counts.rounds.Inc()
		r.usage.add(co.usage)
		if err != nil {
			co.abandon()
			return r.broken(ctx, err)
		}
		if co.finish != StatusCompleted {
			return Outcome{Status: Incomplete, Reason: co.finish}
		}
		results, end := r.runCalls(ctx, co.calls)
		switch {
		case ctx.Err() != nil:
			return r.broken(ctx, context.Cause(ctx))
		case end != nil:
			return *end
		case r.rounds >= limit:
			return Outcome{Status: Incomplete, Reason: MaxRounds}
		case r.exhausted():
			return Outcome{Status: Incomplete, Reason: MaxTokens}
		}
		r.speaker.answer(results)
	}
}

// exhausted reports whether the model has said all that it may.
func (r *Run) exhausted() bool {
	var most int64
	return json.Unmarshal(r.t.Settings["max_output_tokens"], &most) == nil && most > 0 && r.usage.Output >= most
}

// broken is the outcome of a run that an error has ended.
func (r *Run) broken(ctx context.Context, err error) Outcome {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, ErrCancelled) {
		return Outcome{Status: Cancelled}
	}
	if reason, ok := errors.AsType[Enough](err); ok {
		return Outcome{Status: Incomplete, Reason: string(reason)}
	}
	return Outcome{Status: Failed, Err: failureOf(err)}
}

// settle ends the items that the end of the run has caught in the middle.
func (r *Run) settle() {
	for _, it := range r.output {
		if it.Status == StatusInProgress {
			it.Status = StatusIncomplete
			r.tell(Done, it, "")
		}
	}
}

// begin adds an item to the output.
func (r *Run) begin(of ItemType) *Item {
	it := &Item{Index: len(r.output), Type: of, Status: StatusInProgress}
	it.ID = ItemID(of, r.t.Run, it.Index)
	if of == ToolList || of == ApprovalRequest {
		it.Status = "" // they have none
	}
	r.output = append(r.output, it)
	return it
}

func (r *Run) tell(kind Kind, it *Item, delta string) {
	r.observe(Event{Kind: kind, Item: *it, Delta: delta})
}

// servesTools reports whether there are servers' tools.
func (r *Run) servesTools() bool { return len(r.t.Servers) > 0 }

func (u *Usage) add(v Usage) {
	u.Input += v.Input
	u.Cached += v.Cached
	u.Output += v.Output
	u.Reasoning += v.Reasoning
}

// openServers opens the servers and tells which tools each lists that are allowed, all at
// the same time. A server
// that cannot be opened has a list with an error, unless the choice demands it: then what
// was opened is closed with the run, and nothing is asked (X2).
func (r *Run) openServers(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type listing struct {
		item  *Item // nil if the input has the list
		tools []ListedTool
		ts    *toolSession
		err   error
		done  chan struct{}
	}
	list := make([]*listing, len(r.t.Servers))
	var wg sync.WaitGroup
	for i := range r.t.Servers {
		server := &r.t.Servers[i]
		l := &listing{done: make(chan struct{})}
		list[i] = l
		if known, ok := r.listed[server.Label]; ok && server.Allowed.coveredBy(known) { // it is in the context, and opened when it is used
			l.tools = server.Allowed.allowed(known)
			close(l.done)
			continue
		}
		l.item = r.begin(ToolList)
		l.item.Label = server.Label
		r.tell(Added, l.item, "")
		wg.Go(func() {
			defer close(l.done)
			if l.ts, l.err = r.sessions.Open(server); l.err == nil {
				var tools []session.Tool
				tools, l.err = l.ts.Tools(ctx)
				l.tools = server.Allowed.allowed(listedTools(tools))
			}
			if l.err != nil && r.t.Choice.Label == server.Label {
				cancel(l.err) // nothing comes of the others, either
			}
		})
	}
	defer wg.Wait()
	var demanded error
	for i, l := range list {
		<-l.done
		server := &r.t.Servers[i]
		if l.ts != nil {
			r.open[server.Label] = l.ts
		}
		r.tools.addServer(server, l.tools)
		if l.item == nil {
			continue
		}
		l.item.Tools = l.tools
		if l.err != nil {
			l.item.ListError = l.err.Error()
			r.engine.log.Warn("a server's tools cannot be listed", "session", r.sessions.id, "server", server.Label, "err", l.err)
			if r.t.Choice.Label == server.Label {
				demanded = &Failure{Status: http.StatusFailedDependency, Code: "mcp_server_unavailable", Message: fmt.Sprintf("tool_choice demands the server %q, which cannot be used: %v", server.Label, l.err)}
			}
		}
		r.tell(Done, l.item, "")
	}
	if demanded == nil {
		if f := r.tools.missing(&r.t.Choice); f != nil {
			return f
		}
	}
	return demanded
}

// failureOf returns what an error is to the caller.
func failureOf(err error) *Failure {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	if e, ok := errors.AsType[*model.Error](err); ok {
		code := e.Failure.Code
		if code == "" {
			code = "upstream_error"
			if e.Failure.Status < 500 {
				code = "invalid_request_error"
			}
		}
		return &Failure{Status: e.Failure.Status, Code: code, Message: e.Failure.Message, RetryAfter: e.Failure.RetryAfter}
	}
	return &Failure{Status: http.StatusInternalServerError, Code: "server_error", Message: err.Error()}
}

// dangles reports whether an item is a call of the caller's that was cut off, and that nothing
// came of. Models are not told of it, for engines refuse a call without a result (B.5.9).
func (r *Run) dangles(it *inputItem) bool {
	return (it.Type == string(FunctionCall) || it.Type == string(CustomCall)) && it.Status == StatusIncomplete && !r.outputs[it.CallID]
}

// readInput finds in the input what concerns servers: lists, and requests for approval with
// their answers (B.5.8).
func (r *Run) readInput() error {
	items := make([]*inputItem, len(r.t.Input))
	answered := map[string]bool{}
	called := map[string]int{} // where the last call stands that a request has led to, by its id
	for i, raw := range r.t.Input {
		it, err := readItem(raw)
		if err != nil {
			return fmt.Errorf("input[%d]: %w", i, err)
		}
		items[i] = it
		switch it.Type {
		case string(ToolList):
			if len(it.Error) == 0 || string(it.Error) == "null" {
				r.listed[it.Label] = it.Tools
			}
		case string(ApprovalRequest):
			if it.ID != approvalID(it.ID, it.Label, it.Name, it.Arguments) {
				return fmt.Errorf("input[%d]: the request for approval %q is not as it was made", i, it.ID)
			}
			r.asked[it.ID] = it
		case "function_call_output", "custom_tool_call_output":
			r.outputs[it.CallID] = true
		case string(ToolCall):
			if it.RequestID != "" {
				answered[it.RequestID], called[it.RequestID] = true, i
			}
		}
	}
	for i, it := range items {
		if it.Type != "mcp_approval_response" {
			continue
		}
		request := r.asked[it.RequestID]
		switch {
		case it.Approve == nil:
			return fmt.Errorf("input[%d]: an mcp_approval_response needs \"approve\"", i)
		case request == nil:
			return fmt.Errorf("input[%d]: no request for approval has the id %q", i, it.RequestID)
		case called[it.RequestID] > i:
			continue // it is history
		case answered[it.RequestID]:
			return fmt.Errorf("input[%d]: the request for approval %q was answered already; go on from the response that answered it, or have the model ask again", i, it.RequestID)
		}
		answered[it.RequestID] = true
		if !*it.Approve {
			r.declined = append(r.declined, it.RequestID)
			continue
		}
		if !slices.ContainsFunc(r.t.Servers, func(s Server) bool { return s.Label == request.Label }) {
			return fmt.Errorf("input[%d]: approves a call of the server %q, which tools does not name", i, request.Label)
		}
		r.approved = append(r.approved, request)
	}
	return nil
}
