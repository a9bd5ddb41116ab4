// Package tools is roundhouse's own MCP tools: they look at sessions, end them, take
// pictures of instances, carry out several calls at once, and have models work on tasks.
// They are served by package session, as those of a server that is called roundhouse, and
// go to servers through packages session and loop alone.
//
// The properties A of the sessions specification are cited where they are kept.
package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/fault"
	"roundhouse/internal/loop"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// Config says how the tools work.
type Config struct {
	// Grace is how long calls in flight have when a session is ended, as it is now; required.
	Grace func() time.Duration
	// Engine has models work on tasks. It is asked for when one is to begin; nil is for
	// where there are no models, and so no tools that run them.
	Engine func() *loop.Engine
	// Describe lists the sessions of a principal as the API does (N7); nil leaves out what
	// only the API knows.
	Describe func(ctx context.Context, principal string) ([]session.Info, error)
	Model    string       // that works on tasks which name none; "" is none
	Log      *slog.Logger // nil discards
}

// Tools are roundhouse's own tools. They keep nothing between calls.
type Tools struct {
	cfg   Config
	calls *prometheus.CounterVec // by tool and outcome
	jobs  *prometheus.CounterVec // by outcome
}

// New returns the tools.
func New(cfg Config) *Tools {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &Tools{
		cfg:   cfg,
		calls: counter("roundhouse_tools_calls_total", "Calls of roundhouse's own tools, by what they ended in: a result (ok), one that says an error (failed), or an error of the call (error).", "tool", "outcome"),
		jobs:  counter("roundhouse_tools_tasks_total", "Calls of batches, and tasks of models, by what they ended in (ok, failed).", "outcome"),
	}
}

// Collectors returns what is exported of the tools.
func (t *Tools) Collectors() []prometheus.Collector { return []prometheus.Collector{t.calls, t.jobs} }

// tool is one tool: how it is shown, and what it does.
type tool struct {
	name        string
	description string
	annotations string // JSON object
	properties  string // of its arguments: members of a JSON object
	required    []string
	run         func(ctx context.Context, c *session.OwnCall) (result, error)
}

// sessionID is the argument by which a tool is told another session than the caller's.
const sessionID = `"session_id": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$", "description": "The session that is meant; without it, that of this connection. A name that is not in use begins a session."}`

// Own returns the tools as a session.Manager serves them.
func (t *Tools) Own() []session.OwnTool {
	all := []tool{t.stats(), t.cleanup(), t.release(), t.screenshot(), t.batch()}
	if t.cfg.Engine != nil {
		all = append(all, t.runTask(), t.runTasks())
	}
	own := make([]session.OwnTool, len(all))
	for i, x := range all {
		own[i] = session.OwnTool{Name: x.name, Listed: x.listed(), Run: func(ctx context.Context, c *session.OwnCall) ([]byte, error) { return t.answer(ctx, x, c) }}
	}
	return own
}

// listed is the tool as tools/list shows it.
func (x tool) listed() []byte {
	return encode(struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema any             `json:"inputSchema"`
		Annotations json.RawMessage `json:"annotations"`
	}{x.name, x.description, struct {
		Type       string          `json:"type"`
		Properties json.RawMessage `json:"properties"`
		Required   []string        `json:"required,omitempty"`
		Additional bool            `json:"additionalProperties"`
	}{"object", json.RawMessage("{" + x.properties + "}"), x.required, false}, json.RawMessage(x.annotations)})
}

// answer runs a tool. Errors that have a reason are errors of the call, for programs;
// what is wrong with the arguments, or with a server, is said in the result, where models
// see it.
func (t *Tools) answer(ctx context.Context, x tool, c *session.OwnCall) ([]byte, error) {
	err := x.check(c.Arguments)
	var r result
	if err == nil {
		r, err = x.run(ctx, c)
	}
	if e, ok := reasoned(err); ok {
		t.calls.WithLabelValues(x.name, "error").Inc()
		return nil, e
	}
	if err != nil {
		r = result{content: []json.RawMessage{text(x.name + ": " + err.Error())}, isError: true}
	}
	t.calls.WithLabelValues(x.name, outcomeOf(r.isError)).Inc()
	return r.encode(), nil
}

// reasoned returns the error of roundhouse's own in err, if that has one.
func reasoned(err error) (*fault.Error, bool) {
	if e, ok := errors.AsType[*session.CallError](err); ok && e.Reason != "" {
		return &fault.Error{Reason: e.Reason, Message: err.Error(), Sent: e.Sent, Err: err}, true
	}
	return errors.AsType[*fault.Error](err)
}

// outcomeOf names an outcome in metrics.
func outcomeOf(isError bool) string {
	if isError {
		return "failed"
	}
	return "ok"
}

// badArguments is what is wrong with the arguments of a call.
type badArguments string

// Error returns what is wrong.
func (e badArguments) Error() string { return string(e) }

// check refuses arguments that the tool does not have, or that stand there twice, rather
// than let them be without effect.
func (x tool) check(arguments []byte) error {
	var known, seen []string
	for m, err := range wire.Members([]byte("{" + x.properties + "}")) {
		if err == nil {
			known = append(known, m.Key)
		}
	}
	for m, err := range wire.Members(arguments) {
		switch {
		case err != nil:
			return badArguments(err.Error())
		case !slices.Contains(known, m.Key) && len(known) == 0:
			return badArguments("it takes no arguments")
		case !slices.Contains(known, m.Key):
			return badArguments(fmt.Sprintf("the argument %.100q is unknown; there are: %s", m.Key, strings.Join(known, ", ")))
		case slices.Contains(seen, m.Key):
			return badArguments(fmt.Sprintf("the argument %q stands twice", m.Key))
		}
		seen = append(seen, m.Key)
	}
	for _, name := range x.required {
		if !slices.Contains(seen, name) {
			return badArguments(fmt.Sprintf("the argument %q is missing", name))
		}
	}
	return nil
}

// read reads checked arguments into v.
func read(arguments []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(arguments))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return badArguments(strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// place finds the session that a call means: the one that it names, else the caller's. A
// caller of whom nothing is known but his principal has none. It may not exist yet.
func place(c *session.OwnCall, named string) (string, error) {
	switch {
	case named == "" && c.Nameless():
		return "", badArguments("the request belongs to no session; name one with session_id")
	case named == "":
		return c.Client.Session().ID(), nil
	case !wire.ValidSessionID(named):
		return "", badArguments("session_id must be 1 to 128 of A-Z a-z 0-9 . _ : -")
	}
	return named, nil
}

// result is what a tool answers.
type result struct {
	content    []json.RawMessage
	structured any // an object; nil is none
	isError    bool
	session    string // began with the call, and the caller does not know it; or ""
}

// encode is the result on the wire.
func (r result) encode() []byte {
	if r.content == nil {
		r.content = []json.RawMessage{}
	}
	raw := encode(struct {
		Content    []json.RawMessage `json:"content"`
		Structured any               `json:"structuredContent,omitempty"`
		IsError    bool              `json:"isError,omitempty"`
	}{r.content, r.structured, r.isError})
	if r.session != "" {
		return session.InSession(raw, r.session)
	}
	return raw
}

// said is a result in words, and the same for programs.
func said(words string, structured any) result {
	return result{content: []json.RawMessage{text(words)}, structured: structured}
}

// text is a block of content.
func text(words string) json.RawMessage {
	return append(append([]byte(`{"type":"text","text":`), wire.Quote(words)...), '}')
}

// encode writes JSON that leaves the text of servers as it is.
func encode(v any) []byte {
	b, err := wire.Encode(v)
	if err != nil {
		panic(err) // what we are given was read as JSON, and what is ours can be written
	}
	return b
}

// message says what is wrong in words for a model.
func message(err error) string {
	if e, ok := errors.AsType[*fault.Error](err); ok {
		return e.Message
	}
	return err.Error()
}
