package tools

import (
	"context"
	"encoding/json"
	"fmt"

	"roundhouse/internal/session"
)

// maxCalls is how many calls one batch may hold.
const maxCalls = 1000

// batch is the tool that makes several calls of tools, without a model (A4).
func (t *Tools) batch() tool {
	return tool{
		name:        "batch",
		description: "Call several tools of your servers, one after another or at the same time. The results come in the order of the calls; one that fails stops no other.",
		annotations: `{"destructiveHint": true}`,
		properties: `"calls": {"type": "array", "maxItems": ` + fmt.Sprint(maxCalls) + `, "items": {"type": "object", "properties": {` +
			`"server": {"type": "string"}, "tool": {"type": "string", "description": "As the server itself calls it."}, "arguments": {"type": "object"}}, ` +
			`"required": ["server", "tool"], "additionalProperties": false}}, ` + mannerProperties,
		required: []string{"calls"},
		run:      t.runBatch,
	}
}

// batchCall is one call of a batch.
type batchCall struct {
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
}

// batchResult is what became of a call, for programs. What is no text is in the content
// only, in the same order.
type batchResult struct {
	Server     string          `json:"server"`
	Tool       string          `json:"tool"`
	IsError    bool            `json:"isError"`
	Text       string          `json:"text"`
	Structured json.RawMessage `json:"structuredContent,omitempty"`
}

func (t *Tools) runBatch(ctx context.Context, c *session.OwnCall) (result, error) {
	var a struct {
		Calls []batchCall `json:"calls"`
		manner
	}
	if err := read(c.Arguments, &a); err != nil {
		return result{}, err
	}
	if len(a.Calls) > maxCalls {
		return result{}, badArguments(fmt.Sprintf("there may be %d calls at most", maxCalls))
	}
	jobs := make([]job, len(a.Calls))
	for i, call := range a.Calls {
		switch {
		case call.Server == "" || call.Tool == "":
			return result{}, badArguments(fmt.Sprintf("calls[%d] must name a server and a tool", i))
		case call.Server == session.OwnServer: // a batch of batches would have no bound
			return result{}, badArguments(fmt.Sprintf("calls[%d]: roundhouse's own tools cannot be part of a batch", i))
		case call.Arguments == nil || string(call.Arguments) == "null":
			call.Arguments = json.RawMessage("{}")
		case call.Arguments[0] != '{':
			return result{}, badArguments(fmt.Sprintf("calls[%d].arguments must be an object", i))
		}
		jobs[i] = job{what: call.Server + " " + call.Tool, complaint: taskFailed, run: func(ctx context.Context, task *session.Task) outcome {
			b, err := task.Branch(c.Client, call.Server)
			if err != nil {
				return failed(message(err))
			}
			defer b.Leave()
			raw, err := b.Call(ctx, call.Tool, call.Arguments, c.Note)
			if err != nil {
				return failed(message(err))
			}
			return readResult(raw)
		}}
	}
	told := &steps{c: c, total: len(jobs)}
	outcomes, minted, err := t.tasks(ctx, c, a.manner, jobs, told.ended)
	if err != nil {
		return result{}, err
	}
	results := make([]batchResult, len(outcomes))
	r := result{session: minted}
	for i, o := range outcomes {
		call := a.Calls[i]
		results[i] = batchResult{call.Server, call.Tool, o.isError, o.words(), o.structured}
		r.content = append(r.content, text(fmt.Sprintf("[%d/%d] %s %s:", i+1, len(outcomes), call.Server, call.Tool)))
		r.content = append(r.content, o.content...)
	}
	r.structured = struct {
		Results []batchResult `json:"results"`
	}{results}
	return r, nil
}
