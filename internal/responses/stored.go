package responses

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"roundhouse/internal/loop"
	"roundhouse/internal/store"
	"roundhouse/internal/wire"
)

// record is what is stored of a response beside its events (X6). Secrets are in neither.
type record struct {
	Object  json.RawMessage   `json:"object"`
	Input   []json.RawMessage `json:"input"`             // the conversation before it, with what earlier responses said and did (B.5.9)
	Session string            `json:"session,omitempty"` // that its request named, or the one that it goes on from
	Chain   string            `json:"chain,omitempty"`   // as of a run
	// Cut tells that a daemon ended before the response did, so that clients may have seen
	// more events than are there.
	Cut bool `json:"cut,omitempty"`
	// Answers are the requests for approval that a response under way answers, but for those
	// whose calls were begun: what a daemon that dies leaves of them can be answered again.
	Answers []string `json:"answers,omitempty"`
}

// response is one that a request names: it is under way, or stored.
type response struct {
	id         string
	live       *run // nil if it is stored
	record     record
	status     string
	background bool
	events     store.Body // of a stored one
}

// unknown is the answer to an id that is not the caller's.
func unknown(id string) *loop.Failure {
	return &loop.Failure{Status: http.StatusNotFound, Code: "response_not_found", Message: fmt.Sprintf("there is no response %.100q", id)}
}

// find returns a principal's response that is to be kept; the error may be that of unknown.
func (f *Face) find(ctx context.Context, principal, id string) (*response, error) {
	f.mu.Lock()
	r := f.runs[id]
	f.mu.Unlock()
	if r != nil && r.principal == principal && r.request.store {
		if r.deleted.Load() {
			return nil, unknown(id)
		}
		status, object := r.snapshot()
		return &response{id: id, live: r, status: status, background: r.request.background, record: record{Object: object, Input: r.input, Session: r.session, Chain: r.chain}}, nil
	}
	v, err := f.cfg.Store.Response(ctx, principal, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, unknown(id)
	}
	if err != nil {
		return nil, err
	}
	if v.Running { // nobody works on it, so that its end could not be stored
		if v, err = cutOff(v, errEndUnknown); err != nil {
			return nil, err
		}
	}
	rec, o, err := unpack(v)
	if err != nil {
		return nil, err
	}
	return &response{id: id, record: *rec, status: o.Status, background: o.Background, events: v.Events}, nil
}

// unpack reads what is stored of a response, without its events.
func unpack(v store.Response) (*record, *object, error) {
	text, err := v.Body.Bytes()
	var rec record
	var o object
	if err == nil {
		err = json.Unmarshal(text, &rec)
	}
	if err == nil {
		err = json.Unmarshal(rec.Object, &o)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the stored response %q: %w", v.ID, err)
	}
	return &rec, &o, nil
}

// log returns the events of a response, to be read like those of a run. A response that
// was not made in the background has none to be read again.
func (p *response) log() (*run, error) {
	switch {
	case !p.background:
		return nil, &loop.Failure{Status: http.StatusNotFound, Code: "stream_not_found", Message: "only a response that was created with background can be streamed again"}
	case p.live != nil:
		return p.live, nil
	case p.events.Size() == 0:
		return nil, &loop.Failure{Status: http.StatusGone, Code: "stream_expired", Message: "the events of this response are no longer kept; retrieve it without stream"}
	}
	events, err := unpackEvents(p.events)
	if err != nil {
		return nil, fmt.Errorf("read the events of response %q: %w", p.id, err)
	}
	return &run{id: p.id, events: events, status: p.status, object: p.record.Object, over: true}, nil
}

// save stores a run as it is with these events. Nobody may append to it meanwhile.
func (f *Face) save(r *run, object []byte, events []entry, running bool) error {
	rec := record{Object: object, Input: r.input, Session: r.session, Chain: r.chain}
	if running {
		rec.Answers = r.answers
	}
	body, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("store response %q: %w", r.id, err)
	}
	v := store.Response{Principal: r.principal, ID: r.id, Session: r.session, Created: r.created, Running: running, Body: store.Pack(body)}
	if r.request.background {
		v.Events = packEvents(events)
	}
	// What has come of a response must not be lost because its client or the daemon leaves.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), saveTimeout)
	defer cancel()
	return f.cfg.Store.SaveResponse(ctx, v)
}

// saveTimeout is how long the end of a response waits for the store.
const saveTimeout = 30 * time.Second

// packEvents stores events as a JSON array.
func packEvents(events []entry) store.Body {
	b := []byte{'['}
	for i, e := range events {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e.data...)
	}
	return store.Pack(append(b, ']'))
}

func unpackEvents(body store.Body) ([]entry, error) {
	text, err := body.Bytes()
	if err != nil {
		return nil, err
	}
	var events []entry
	for span, err := range wire.Elements(text) {
		if err != nil {
			return nil, err
		}
		var v struct {
			Type string `json:"type"`
		}
		data := span.Of(text)
		if err := json.Unmarshal(data, &v); err != nil {
			return nil, err
		}
		events = append(events, entry{v.Type, data})
	}
	return events, nil
}

// continued puts what a request goes on from in front of its input: all that was said and
// done (B.5.9). A session that was named once is that of all that follow, unless the
// request names one. Where none was named, the tools of those that follow have one
// together, of the name of the first: it had its own, which ended with it (X2).
func (f *Face) continued(ctx context.Context, task *loop.Task, previous string) error {
	p, err := f.find(ctx, task.Principal, previous)
	if err != nil {
		return err
	}
	if p.status != statusCompleted && p.status != statusIncomplete {
		return refused("previous_response_id: the response %q is %s; only one that is completed or incomplete can be gone on from", previous, p.status)
	}
	var o object
	if err := json.Unmarshal(p.record.Object, &o); err != nil {
		return fmt.Errorf("read the response %q: %w", previous, err)
	}
	task.Input = slices.Concat(p.record.Input, o.Output, task.Input)
	if task.Session == "" {
		task.Session = p.record.Session
	}
	if task.Session == "" {
		task.Chain = cmp.Or(p.record.Chain, previous)
	}
	return nil
}

// sketch is what complete reads of an item of the input.
type sketch struct {
	Type          string
	ID, Role      string
	Output, Error json.RawMessage
}

// refers reports whether the item stands for one that was made before.
func (it *sketch) refers() bool {
	return it.Type == "item_reference" || it.Type == "" && it.Role == "" && it.ID != ""
}

// lacks reports whether the item is a call without what came of it.
func (it *sketch) lacks() bool {
	return it.Type == string(loop.ToolCall) && !present(it.Output) && !present(it.Error)
}

// sketchOf reads an item. What cannot be read is empty; the loop says so.
func sketchOf(raw json.RawMessage) (it sketch) {
	if json.Unmarshal(raw, &it) != nil {
		return sketch{}
	}
	return it
}

func sketches(items []json.RawMessage) []sketch {
	list := make([]sketch, len(items))
	for i, raw := range items {
		list[i] = sketchOf(raw)
	}
	return list
}

// complete puts the items of stored responses in place of references to them, and of calls
// that the input has without what came of them: clients leave that out, and count on who made
// an item to know it. The id of an item says which response has made it, but for a reasoning
// under its upstream's id: that one is looked for in the responses that the rest of the input
// names, since clients send it with what it led to.
func (f *Face) complete(ctx context.Context, task *loop.Task) error {
	made := map[string]json.RawMessage{} // items, by id
	known := map[string]bool{}           // responses that were looked up
	lookUp := func(id string) error {
		run, ours := loop.RunOf(id)
		if !ours || known[run] {
			return nil
		}
		known[run] = true
		output, err := f.outputOf(ctx, task.Principal, run)
		if err != nil && !isUnknown(err) { // what was not stored, or is not kept, stays as it is
			return err
		}
		for i, it := range sketches(output) {
			made[it.ID] = output[i]
		}
		return nil
	}
	input := sketches(task.Input)
	for _, it := range input {
		if it.refers() || it.lacks() {
			if err := lookUp(it.ID); err != nil {
				return err
			}
		}
	}
	if slices.ContainsFunc(input, func(it sketch) bool { return it.refers() && made[it.ID] == nil }) {
		for i, it := range input {
			if err := lookUp(it.ID); err != nil {
				return err
			}
			if it.Type == string(loop.ReasoningItem) {
				made[it.ID] = task.Input[i]
			}
		}
	}
	task.Input = slices.Clone(task.Input) // the request's own is not changed
	for i, it := range input {
		switch {
		case !it.refers() && !it.lacks():
		case made[it.ID] != nil:
			task.Input[i] = made[it.ID]
		case it.refers():
			return refused("input[%d]: item_reference: no item is kept that has the id %.100q", i, it.ID)
		}
	}
	return nil
}

// outputOf returns what a response has said and done.
func (f *Face) outputOf(ctx context.Context, principal, id string) ([]json.RawMessage, error) {
	p, err := f.find(ctx, principal, id)
	if err != nil {
		return nil, err
	}
	var o object
	if err := json.Unmarshal(p.record.Object, &o); err != nil {
		return nil, fmt.Errorf("read the response %q: %w", id, err)
	}
	return o.Output, nil
}

func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// answerApprovals says in the store which requests for approval the run answers. To approve
// one that another response has answered is refused (B.5.8); to decline it is what the history
// of that response does, and calls nothing.
func (f *Face) answerApprovals(ctx context.Context, r *run, approved, declined []string) error {
	for i, id := range slices.Concat(approved, declined) {
		err := f.cfg.Store.AnswerApproval(ctx, r.principal, id, r.id)
		if errors.Is(err, store.ErrConflict) {
			if i >= len(approved) {
				continue
			}
			return refused("the request for approval %q was answered already; go on from the response that answered it, or have the model ask again", id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// forgetApprovals takes back what answerApprovals has said of these requests, so that they
// can be answered once more: what was asked for has not been done.
func (f *Face) forgetApprovals(r *run, requests []string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), saveTimeout)
	defer cancel()
	for _, id := range requests {
		if err := f.cfg.Store.ForgetApproval(ctx, r.principal, id, r.id); err != nil {
			f.log.Error("a request for approval stays answered, though nothing has come of that", "request", id, "response", r.id, "err", err)
		}
	}
}

// unused returns those of the requests for approval for which no call was begun.
func unused(requests []string, output []loop.Item) []string {
	return slices.DeleteFunc(slices.Clone(requests), func(id string) bool {
		return slices.ContainsFunc(output, func(it loop.Item) bool { return it.Type == loop.ToolCall && it.Approval == id })
	})
}

// errRestart is what failed a response that an earlier daemon had under way, and
// errEndUnknown one of this daemon's whose end could not be stored.
var (
	errRestart    = objectError{Code: "server_error", Message: "roundhouse ended before the response did"}
	errEndUnknown = objectError{Code: "server_error", Message: "the end of the response could not be stored, so that it is not known what has come of it"}
)

// Recover ends the responses that an earlier daemon has left in the middle: they have
// failed, with what they had done by then (B.6). It is called before requests are served.
func (f *Face) Recover(ctx context.Context) error {
	if f.cfg.Store == nil {
		return nil
	}
	for {
		left, err := f.cfg.Store.RunningResponses(ctx)
		if err != nil || len(left) == 0 {
			return err
		}
		for _, v := range left {
			if err := f.recover(ctx, v); err != nil {
				return err
			}
		}
	}
}

func (f *Face) recover(ctx context.Context, v store.Response) error {
	rec, _, err := unpack(v)
	if err != nil {
		f.log.Error("a response that an earlier daemon left cannot be read, and is removed", "response", v.ID, "err", err)
		return f.cfg.Store.DeleteResponse(ctx, v.Principal, v.ID)
	}
	for _, request := range rec.Answers { // nothing has come of them
		if err := f.cfg.Store.ForgetApproval(ctx, v.Principal, request, v.ID); err != nil {
			return err
		}
	}
	if v, err = cutOff(v, errRestart); err != nil {
		return err
	}
	f.log.Warn("a response that was under way when roundhouse ended has failed", "response", v.ID, "principal", v.Principal)
	return f.cfg.Store.SaveResponse(ctx, v)
}

// cutOff returns a response that nobody works on any more as one that has failed, with what
// it had done.
func cutOff(v store.Response, why objectError) (store.Response, error) {
	rec, o, err := unpack(v)
	if err != nil {
		return v, err
	}
	events, err := unpackEvents(v.Events)
	if err != nil {
		events, v.Events = nil, store.Body{} // what cannot be read is not kept
	}
	o.Status, o.Error, o.Output = statusFailed, &why, done(events)
	if rec.Object, err = json.Marshal(o); err != nil {
		return v, fmt.Errorf("end response %q: %w", v.ID, err)
	}
	rec.Cut, rec.Answers = true, nil
	body, err := json.Marshal(rec)
	if err != nil {
		return v, fmt.Errorf("end response %q: %w", v.ID, err)
	}
	if len(events) > 0 {
		v.Events = packEvents(append(events, newEntry(len(events), "response.failed", "response", rec.Object)))
	}
	v.Body, v.Running = store.Pack(body), false
	return v, nil
}

// done returns the items that were done, in their order.
func done(events []entry) []json.RawMessage {
	items := map[int]json.RawMessage{}
	for _, e := range events {
		var v struct {
			Index int             `json:"output_index"`
			Item  json.RawMessage `json:"item"`
		}
		if e.kind == itemDone && json.Unmarshal(e.data, &v) == nil {
			items[v.Index] = v.Item
		}
	}
	output := []json.RawMessage{}
	for i := 0; len(output) < len(items); i++ {
		if item, ok := items[i]; ok {
			output = append(output, item)
		}
	}
	return output
}

// tidying is the time between two looks at what is kept.
const tidying = 10 * time.Minute

// Tidy removes, until ctx ends, the responses that llm.responses.retention does not keep.
// It is called once.
func (f *Face) Tidy(ctx context.Context) {
	if f.cfg.Store == nil {
		return
	}
	keep := f.cfg.Config().LLM.Responses.Retention
	limits := store.ResponseLimits{Age: keep.Age, EventsAge: keep.Events, Bytes: keep.Size}
	again := time.NewTicker(tidying)
	defer again.Stop()
	for {
		if err := f.cfg.Store.TrimResponses(ctx, limits); err != nil && ctx.Err() == nil {
			f.log.Error("old responses could not be removed; this is tried again", "err", err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}
