package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"

	"roundhouse/internal/session"
)

// Tasks are carried out one after another, in order, or all at once as far as the limit
// of tasks allows (A3). Each has an outcome, at its place in the list, whatever becomes of
// the others.

// outcome is what became of a task.
type outcome struct {
	content    []json.RawMessage
	structured json.RawMessage // nil is none
	isError    bool
}

// failed is the outcome of one of several tasks that has no other.
func failed(why string) outcome { return job{complaint: taskFailed}.failed(why) }

const taskFailed = "Task failed: "

// words is the text of an outcome.
func (o outcome) words() string {
	var all []string
	for _, raw := range o.content {
		var block struct{ Type, Text string }
		if json.Unmarshal(raw, &block) == nil && block.Type == "text" {
			all = append(all, block.Text)
		}
	}
	return strings.Join(all, "\n")
}

// carryOut runs do for each of the jobs, atOnce of them at the same time, and returns what
// became of them, in their order. One that panics has failed. ended is told how many have
// ended, each number once, in rising order.
func (t *Tools) carryOut(jobs []job, atOnce int, do func(i int) outcome, ended func(done int)) []outcome {
	n := len(jobs)
	outcomes := make([]outcome, n)
	var mu sync.Mutex
	next, done := 0, 0
	var workers sync.WaitGroup
	for range min(n, atOnce) {
		workers.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= n {
					return
				}
				outcomes[i] = t.contained(jobs[i], func() outcome { return do(i) })
				t.jobs.WithLabelValues(outcomeOf(outcomes[i].isError)).Inc()
				mu.Lock()
				done++
				ended(done)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return outcomes
}

// contained turns a panic of a job into its failure.
func (t *Tools) contained(j job, do func() outcome) (o outcome) {
	defer func() {
		if p := recover(); p != nil {
			t.cfg.Log.Error("a task panicked", "err", p, "stack", string(debug.Stack()))
			o = j.failed(fmt.Sprintf("roundhouse has a defect: %v", p))
		}
	}()
	return do()
}

// manner says how tasks are carried out; these are arguments of the tools that do.
type manner struct {
	Concurrent bool   `json:"concurrent"`
	Isolate    bool   `json:"isolate"`
	Session    string `json:"session_id"`
}

// mannerProperties are the arguments in a schema.
const mannerProperties = `"concurrent": {"type": "boolean", "default": false, "description": "Carry them out at the same time instead of one after another."}, ` +
	`"isolate": {"type": "boolean", "default": false, "description": "Give each a session of its own, and so instances of its own, which ends with it. Otherwise all share one session and what it has."}, ` + sessionID

// job is a task that is to be carried out.
type job struct {
	what      string // in a few words, for people
	complaint string // begins what is said if it has no outcome of its own
	run       func(ctx context.Context, task *session.Task) outcome
}

// failed is the outcome of a job that has no other.
func (j job) failed(why string) outcome {
	return outcome{content: []json.RawMessage{text(j.complaint + why)}, isError: true}
}

// tasks carries out jobs as tasks of sessions (A3, A5) and returns what became of them, in
// their order, and the name of the session that began for a caller who has none, or "".
// ended is told how many have ended, in rising order.
func (t *Tools) tasks(ctx context.Context, c *session.OwnCall, how manner, jobs []job, ended func(done int)) (outcomes []outcome, minted string, err error) {
	spec := session.TaskSpec{Principal: c.Client.Session().Principal(), Workspace: c.Client.Session().Workspace(), Wait: true}
	switch {
	case how.Isolate && how.Session != "":
		return nil, "", badArguments("with isolate each has a session of its own; leave session_id out")
	case how.Isolate, how.Session == "" && len(jobs) == 0: // with nothing to do no session begins
	case how.Session == "" && c.Nameless():
		minted = session.NewID()
		spec.Session, spec.Unclaimed = minted, true
	default:
		if spec.Session, err = place(c, how.Session); err != nil {
			return nil, "", err
		}
	}
	n, atOnce := len(jobs), 1
	if how.Concurrent {
		if atOnce = c.Manager().MaxTasks(spec.Principal, spec.Session); atOnce <= 0 {
			atOnce = n
		}
	}
	// A session of a task's own has its place until it has been cleaned up, which the last ones'
	// results do not wait for.
	places := make(chan struct{}, max(1, min(n, atOnce)))
	if how.Isolate {
		spec.Ended = func() { <-places }
	}
	one := func(i int) outcome {
		if ctx.Err() != nil { // its session may be gone, and must not begin anew
			return jobs[i].failed(message(context.Cause(ctx)))
		}
		if how.Isolate {
			select {
			case places <- struct{}{}:
			case <-ctx.Done():
				return jobs[i].failed(message(context.Cause(ctx)))
			}
		}
		var o outcome
		spec := spec
		spec.What = jobs[i].what
		err := c.Manager().RunTask(ctx, spec, func(ctx context.Context, task *session.Task) { o = jobs[i].run(ctx, task) })
		if err != nil {
			o = jobs[i].failed(message(err))
		}
		return o
	}
	outcomes = t.carryOut(jobs, atOnce, one, ended)
	return outcomes, minted, context.Cause(ctx)
}

// readResult reads the result of a tool.
func readResult(raw json.RawMessage) outcome {
	var r struct {
		Type       string            `json:"resultType"`
		Content    []json.RawMessage `json:"content"`
		Structured json.RawMessage   `json:"structuredContent"`
		IsError    bool              `json:"isError"`
	}
	switch err := json.Unmarshal(raw, &r); {
	case err != nil:
		return failed("the result cannot be read: " + err.Error())
	case r.Type != "" && r.Type != "complete":
		return failed("the server wants to know something during the call, and can be told only when the tool is called by itself")
	}
	return outcome{r.Content, r.Structured, r.IsError}
}

// steps tells the caller how far his tasks are, in numbers that grow: how many have ended,
// and in between what is done. Of one task nobody knows how many steps it has.
type steps struct {
	c     *session.OwnCall
	total int // tasks; 0 for one alone

	mu   sync.Mutex
	done int // tasks that have ended
	told int // steps
}

// step tells of a step.
func (s *steps) step(what string) {
	s.mu.Lock()
	defer s.mu.Unlock() // held for the call, which never blocks, so that steps come in order
	s.told++
	progress := float64(s.told)
	if s.total > 0 {
		progress = float64(s.done) + progress/(progress+1)
	}
	s.c.Progress(progress, float64(s.total), what)
}

// ended tells that so many tasks have ended.
func (s *steps) ended(done int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = done
	s.c.Progress(float64(done), float64(s.total), fmt.Sprintf("%d of %d done", done, s.total))
}
