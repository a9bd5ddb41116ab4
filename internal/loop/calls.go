package loop

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"roundhouse/internal/event"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// approvalID returns the id of a request for approval: the run and the place of the item,
// which an earlier id begins with, and a digest of what is asked for. So one that was
// changed on its way through a caller's history is found out, and two of the same call are two.
func approvalID(earlier, label, name, arguments string) string {
	const run = len("mcpr_") + idLength
	sum := sha256.Sum256([]byte(label + "\x00" + name + "\x00" + arguments))
	if len(earlier) < run {
		return ""
	}
	place, _, _ := strings.Cut(strings.TrimPrefix(earlier[run:], "_"), "_")
	return earlier[:run] + "_" + place + "_" + hex.EncodeToString(sum[:8])
}

// failing counts how often the same call has failed in the same way, one time after the
// other.
type failing struct {
	what  string
	times int
}

// maxFailures is how often that may be (B.5.5).
const maxFailures = 3

// pending is a call of a server's tool that is to be run.
type pending struct {
	item    *Item
	tool    *tool // nil if there is none of the name
	callID  string
	skipped bool // no more calls may be made
	result  *result
	done    chan struct{}
}

// runCalls runs what the model has called of servers' tools. end is not nil if the run ends
// with that.
func (r *Run) runCalls(ctx context.Context, calls []*modelCall) (results []*result, end *Outcome) {
	var run []*pending
	waits := false // for the caller
	for _, k := range calls {
		switch {
		case k.item == nil: // it was dropped
		case k.item.Type == ToolCall:
			run = append(run, &pending{item: k.item, tool: k.tool, callID: k.id, done: make(chan struct{})})
		default:
			waits = true
		}
	}
	over := r.refused && len(run) > 0 // it was told, and calls all the same
	stop := r.runAll(ctx, run)
	for _, p := range run {
		results = append(results, p.result)
	}
	switch {
	case stop:
		return nil, &Outcome{Status: Incomplete, Reason: ToolFailures}
	case over:
		return nil, &Outcome{Status: Incomplete, Reason: MaxToolCalls}
	case waits, len(run) == 0:
		return nil, &Outcome{Status: Completed}
	}
	return results, nil
}

// note is a sign of progress.
type note struct {
	item     Item
	progress session.Progress
}

// runAll runs calls at the same time, as many as may be, and tells what came of them in
// their order. It reports whether the same call has failed too often.
func (r *Run) runAll(ctx context.Context, run []*pending) (stop bool) {
	most := r.t.MaxCalls
	for _, p := range run {
		if most > 0 && r.made >= most {
			p.skipped, r.refused = true, true
			continue
		}
		r.made++
	}
	places := make(chan struct{}, max(1, r.engine.cfg.Limits.Parallel))
	notes := make(chan note, 64)
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, p := range run {
		if ts, err := r.sessionFor(p); err != nil {
			r.fail(p, callFailure(err))
			close(p.done)
		} else {
			announced := *p.item
			wg.Go(func() {
				defer close(p.done)
				places <- struct{}{}
				defer func() { <-places }()
				r.runOne(ctx, p, ts, func(progress session.Progress) {
					select {
					case notes <- note{announced, progress}:
					default: // what nobody has heard yet is as good
					}
				})
			})
		}
	}
	for _, p := range run {
		for waiting := true; waiting; {
			select {
			case n := <-notes:
				r.observe(Event{Kind: Advanced, Item: n.item, Progress: n.progress})
			case <-p.done:
				waiting = false
			}
		}
		r.tell(Done, p.item, "")
		r.publish(p)
		stop = r.failedAgain(p.item) || stop
	}
	return stop
}

// sessionFor returns the open session of the server that is called, nil if the call is not
// made.
func (r *Run) sessionFor(p *pending) (*toolSession, error) {
	if p.tool == nil || p.skipped {
		return nil, nil
	}
	label := p.tool.server.Label
	if ts := r.open[label]; ts != nil {
		return ts, nil
	}
	ts, err := r.sessions.Open(p.tool.server)
	if err == nil {
		r.open[label] = ts
	}
	return ts, err
}

// runOne runs a call and settles its item.
func (r *Run) runOne(ctx context.Context, p *pending, ts *toolSession, progress func(session.Progress)) {
	arguments := json.RawMessage(strings.TrimSpace(p.item.Arguments))
	switch {
	case p.skipped:
		p.item.Status = StatusIncomplete
		p.result = &result{callID: p.callID, text: fmt.Sprintf("This call was not made: the limit of %d tool calls (max_tool_calls) is reached. Answer with what you have.", r.t.MaxCalls)}
		return
	case p.tool == nil:
		r.fail(p, &CallError{Type: ProtocolError, Code: wire.InvalidParams, Message: "unknown tool: " + p.item.Name})
		return
	case wire.Valid(arguments) != nil || arguments[0] != '{':
		r.fail(p, &CallError{Type: ProtocolError, Code: wire.InvalidParams, Message: "the arguments are no JSON object; call the tool again with arguments that are one"})
		return
	}
	raw, err := ts.Call(ctx, p.tool.listed.Name, arguments, r.engine.cfg.Limits.CallTimeout, progress)
	switch {
	case ctx.Err() != nil:
		p.item.Status = StatusIncomplete
		p.result = &result{callID: p.callID, text: "the call was interrupted"}
	case err != nil:
		r.fail(p, callFailure(err))
	default:
		r.succeed(p, raw)
	}
}

// fail settles a call that has no result.
func (r *Run) fail(p *pending, err *CallError) {
	p.item.Status, p.item.Err = StatusFailed, err
	p.result = &result{callID: p.callID, text: "error: " + err.Message}
}

// callFailure is why a call has no result (B.5.5).
func callFailure(err error) *CallError {
	e, ok := errors.AsType[*session.CallError](err)
	switch {
	case errors.Is(err, errCallTimeout):
		return &CallError{Type: HTTPError, Code: http.StatusGatewayTimeout, Message: err.Error()}
	case !ok:
		return &CallError{Type: HTTPError, Code: http.StatusBadGateway, Message: err.Error()}
	case e.Reason == "", e.Reason.Code() == wire.InvalidParams:
		return &CallError{Type: ProtocolError, Code: e.Code, Message: e.Message}
	}
	return &CallError{Type: HTTPError, Code: e.Reason.Status(), Message: e.Message}
}

// succeed settles a call that has a result.
func (r *Run) succeed(p *pending, raw json.RawMessage) {
	var v struct {
		Content    json.RawMessage `json:"content"`
		Structured json.RawMessage `json:"structuredContent"`
		IsError    bool            `json:"isError"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		r.fail(p, &CallError{Type: ProtocolError, Code: wire.InternalError, Message: "the tool's result cannot be read: " + err.Error()})
		return
	}
	said := r.readContent(v.Content, v.Structured)
	p.result = &result{callID: p.callID, text: said.text, pictures: said.pictures}
	if v.IsError {
		p.item.Status = StatusFailed
		p.item.Err = &CallError{Type: ExecutionError, Message: said.text, Content: r.clipped(v.Content, said.text)}
		p.result.text = "error: " + said.text
		return
	}
	p.item.Status, p.item.Output, p.item.Pictures = StatusCompleted, said.text, said.pictures
}

// clipped is the content of an error, or only its text if it is too long.
func (r *Run) clipped(content json.RawMessage, said string) json.RawMessage {
	if int64(len(content)) <= r.engine.cfg.Limits.MaxResult && len(content) > 0 {
		return content
	}
	return array([]json.RawMessage{textPart(said)})
}

// content is what a tool says.
type content struct {
	text     string
	pictures []Picture
}

// maxPicture is how long a picture may be, in characters of base64.
const maxPicture = 16 << 20

// readContent reads a result: texts, one a line, or what is structured if there are none;
// pictures for models that take them, and a word in the place of anything else (B.5.7).
func (r *Run) readContent(raw, structured json.RawMessage) content {
	var parts []struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		Data     string `json:"data"`
		MIME     string `json:"mimeType"`
		URI      string `json:"uri"`
		Name     string `json:"name"`
		Resource struct {
			URI  string  `json:"uri"`
			MIME string  `json:"mimeType"`
			Text *string `json:"text"`
			Blob string  `json:"blob"`
		} `json:"resource"`
	}
	_ = json.Unmarshal(raw, &parts) // what is no content says nothing
	var c content
	var lines []string
	said := false
	for _, p := range parts {
		switch p.Type {
		case "text":
			lines, said = append(lines, p.Text), true
		case "image":
			if r.upstream.Images() && len(p.Data) <= maxPicture && strings.HasPrefix(p.MIME, "image/") {
				c.pictures = append(c.pictures, Picture{p.MIME, p.Data})
			}
			lines = append(lines, placeholder("image", p.MIME, len(p.Data)*3/4))
		case "audio":
			lines = append(lines, placeholder("audio", p.MIME, len(p.Data)*3/4))
		case "resource":
			if p.Resource.Text != nil {
				lines, said = append(lines, *p.Resource.Text), true
			} else {
				lines = append(lines, placeholder("resource "+p.Resource.URI, p.Resource.MIME, len(p.Resource.Blob)*3/4))
			}
		case "resource_link":
			lines, said = append(lines, strings.TrimSpace(p.Name+" "+p.URI)), true
		}
	}
	if !said && len(structured) > 0 && string(structured) != "null" {
		lines = append([]string{string(structured)}, lines...)
	}
	c.text = truncate(strings.Join(lines, "\n"), int(r.engine.cfg.Limits.MaxResult))
	return c
}

func placeholder(what, mime string, size int) string {
	return fmt.Sprintf("[%s, %s, %d bytes]", what, mime, size)
}

// truncate cuts a text to at most limit bytes, at a character, and says so behind it.
func truncate(s string, limit int) string {
	if limit <= 0 || len(s) <= limit {
		return s
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return fmt.Sprintf("%s\n[cut here: %d of %d bytes]", s[:cut], cut, len(s))
}

// failedAgain notes how a call went, and reports whether that was once too often.
func (r *Run) failedAgain(it *Item) bool {
	if it.Err == nil {
		r.failing = failing{}
		return false
	}
	what := it.Label + "\x00" + it.Name + "\x00" + it.Arguments + "\x00" + it.Err.Message
	if what != r.failing.what {
		r.failing = failing{what: what}
	}
	r.failing.times++
	return r.failing.times >= maxFailures
}

// publish counts a call, and tells those who follow events of it (X7).
func (r *Run) publish(p *pending) {
	r.engine.counts.calls.WithLabelValues(p.item.Status).Inc()
	reason := ""
	if p.item.Err != nil {
		reason = p.item.Err.Type
	}
	r.engine.cfg.Events.Publish(event.Event{
		Kind: event.ToolCalled, Time: time.Now(), Principal: r.t.Principal, Session: r.sessions.id, Server: p.item.Label, Tool: p.item.Name, Outcome: p.item.Status, Reason: reason,
	})
}

// callApproved makes the calls that somebody has approved, before the model goes on.
func (r *Run) callApproved(ctx context.Context) error {
	if len(r.approved) == 0 || ctx.Err() != nil { // what is not begun can be approved again
		return context.Cause(ctx)
	}
	var run []*pending
	for _, request := range r.approved {
		it := r.begin(ToolCall)
		it.Label, it.Name, it.Approval = request.Label, request.Name, request.ID
		r.tell(Added, it, "")
		it.Arguments = request.Arguments
		r.tell(Arguments, it, it.Arguments)
		r.tell(Called, it, "")
		run = append(run, &pending{item: it, tool: r.tools.of(request.Label, request.Name), callID: it.ID, done: make(chan struct{})})
	}
	r.runAll(ctx, run)
	for _, p := range run {
		if err := r.speaker.remind(p.item.JSON()); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
