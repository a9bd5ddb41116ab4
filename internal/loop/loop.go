// Package loop is the agent loop: it asks a model, runs the tools that the model calls,
// and asks again, until the model has nothing more to call. The Responses API and the
// tool run_task are made of it.
//
//	run, err := engine.Prepare(loop.Task{…})
//	outcome := run.Do(ctx, func(e loop.Event) { … })
//
// Model calls go through package model, so each is a recorded turn of the session (X7).
// Tools are those of MCP servers, which the session has; ToolSessions is the one owner of
// what a run opens of them (X2). The conversation, what goes in and what comes out, is
// made of items as the Responses API has them (item.go); speaker.go says how they are put
// to an upstream of another API.
package loop

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/model"
	"roundhouse/internal/session"
)

// Config is what New needs.
type Config struct {
	Models   *model.Models
	Sessions *session.Manager
	Limits   config.Responses
	Log      *slog.Logger // nil discards
	Events   *event.Feed  // takes what tools were called; nil discards
}

// Engine runs loops. It is constant, and starts nothing of its own.
type Engine struct {
	cfg    Config
	log    *slog.Logger
	counts *counts
}

// New returns an Engine.
func New(cfg Config) *Engine {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Engine{cfg, log, newCounts()}
}

// Task is what a run is to do. It is not changed.
type Task struct {
	Principal string
	// Session is whose turns the model calls are, and whose tools are called. "" is a
	// session of the run's own, of the name Run, which ends with it; its model calls are
	// those of no session.
	Session string
	// Chain is the session whose tools are called where Session is "", and which goes on
	// after the run; "" is none (X2).
	Chain  string
	Run    string              // names the run
	Policy config.RecordPolicy // of the model calls; "" leaves it to the session
	Header http.Header         // of the model calls, as the sender of the task sent it; nil is fine

	Model        string
	Instructions string
	Input        []json.RawMessage // items, each an object
	// Settings are members for the model's request, such as "temperature", in the spelling
	// of the Responses API.
	Settings map[string]json.RawMessage

	Functions []Function // that the caller runs itself
	Servers   []Server
	Choice    Choice
	// MaxCalls is how many calls of servers' tools are made at most, 0 for no limit.
	MaxCalls int
	Serial   bool // one call a turn; the model is told so, and what it calls beyond is dropped
}

// Function is a tool that the caller runs. A run that calls one ends there.
type Function struct {
	Name        string
	Description string
	Parameters  json.RawMessage // JSON Schema; nil is none
	Strict      json.RawMessage // true, false, or nil
	Custom      bool            // its input is a text rather than an object
	Raw         json.RawMessage // as the caller gave it
}

// Server is an MCP server whose tools the model may call.
type Server struct {
	Label       string
	Description string
	Invitation  session.Invitation // Principal and Session are the task's
	Allowed     *Filter            // which tools there are; nil is all
	Approval    Approval
	Serial      bool // whether its calls are made one after the other
}

// Mode is how free the model is in what it does.
type Mode string

// The modes.
const (
	Auto     Mode = "auto"
	None     Mode = "none"
	Required Mode = "required" // it must call something
)

// Choice is what the model is to do in its first turn, and what it may call in any.
type Choice struct {
	Mode Mode   // "" is Auto; with None nothing is called
	Name string // of the one function that it must call, or with Label of the tool
	// Label is the server whose tools it must call, "" for any. The run fails if that
	// server cannot be opened.
	Label string
	// Allowed are the only functions, and servers by their label, that it may call; nil is all.
	Allowed []Permit
}

// Permit is an entry of Choice.Allowed: a function by its Name, or a server by its Label,
// with Name for one of its tools.
type Permit struct{ Label, Name string }

// Kind says what an Event is about.
type Kind string

// The kinds of events. Of each item comes first Added, then what it is made of, then Done.
const (
	Added     Kind = "added"     // of an item that begins
	Text      Kind = "text"      // more of a message's text
	Refusal   Kind = "refusal"   // more of a message's refusal
	Reasoning Kind = "reasoning" // more of a reasoning's text
	Summary   Kind = "summary"   // more of the last part of a reasoning's summary
	Arguments Kind = "arguments" // more of a call's arguments, or of a custom tool's input
	Called    Kind = "called"    // the arguments are complete; what is run is run now
	Advanced  Kind = "advanced"  // a running call tells how far it is
	Done      Kind = "done"      // the item is as it stays
	Ended     Kind = "ended"     // the run is over, but for its clean-up
)

// Event is a step of a run. Item is a copy, as it is then.
type Event struct {
	Kind     Kind
	Item     Item
	Delta    string           // of Text, Refusal, Reasoning, Summary and Arguments
	Progress session.Progress // of Advanced
	Outcome  *Outcome         // of Ended
}

// Status is how a run ended.
type Status string

// The ends of a run.
const (
	Completed  Status = "completed"
	Incomplete Status = "incomplete"
	Failed     Status = "failed"
	Cancelled  Status = "cancelled"
)

// Why a run is incomplete.
const (
	MaxTokens     = "max_output_tokens"
	ContentFilter = "content_filter"
	MaxRounds     = "max_rounds"
	MaxToolCalls  = "max_tool_calls"
	ToolFailures  = "repeated_tool_failure" // the same call failed in the same way three times in a row
)

// Outcome is what a run came to.
type Outcome struct {
	Status Status
	Reason string   // of Incomplete
	Err    *Failure // of Failed
	Output []Item
	Usage  Usage
	Rounds int // model calls
	Calls  int // of servers' tools
}

// Failure is why a run failed.
type Failure struct {
	Status  int    // of HTTP
	Code    string // a word for programs
	Message string
	// RetryAfter is when to try again, 0 to leave that to the caller.
	RetryAfter time.Duration
}

// Error returns the message.
func (f *Failure) Error() string { return f.Message }

// Usage counts the tokens of all turns, as the engine did.
type Usage struct {
	Input, Cached, Output, Reasoning int64
}

// ErrCancelled is the cause of a context by which the caller cancels a run.
var ErrCancelled = errors.New("the response was cancelled")

// Enough is the cause of a context by which the caller ends a run that is incomplete then;
// it is the reason.
type Enough string

// Error returns the reason.
func (e Enough) Error() string { return string(e) }

// Prepare reads a task. Nothing is opened or asked yet. The error is a *Failure.
func (e *Engine) Prepare(t Task) (*Run, error) { return newRun(e, &t) }
