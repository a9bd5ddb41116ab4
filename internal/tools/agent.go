package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"roundhouse/internal/loop"
	"roundhouse/internal/session"
)

const (
	// maxAgents is how many tasks one call of run_tasks may hold.
	maxAgents = 100
	// maxStep is how much of a step is told as progress, in bytes.
	maxStep = 4 << 10
)

// instructions tell the model how it works.
const instructions = "You carry out a task with the tools that you have. Nobody watches, and nobody answers questions: " +
	"decide yourself, and go on until the task is done or cannot be done. Then say in a few words what you have done, and give the answer that was asked for."

// agentProperties are the arguments by which an agent is chosen.
const agentProperties = `"server": {"type": "string", "description": "The only server whose tools may be used; without it, all of the session's are."}, ` +
	`"model": {"type": "string", "description": "The model that works on it; without it, the configured one."}`

// agentChoice says which agent works.
type agentChoice struct {
	Server string `json:"server"`
	Model  string `json:"model"`
}

// runTask is the tool that has a model work on a task (A2).
func (t *Tools) runTask() tool {
	return tool{
		name: "run_task",
		description: "Have a model carry out a task with the tools of your servers, unattended, and say what came of it. " +
			"What it says and does is told as progress; the answer is all that it said, and a picture of the instance that it used, where there is one.",
		annotations: `{"destructiveHint": true}`,
		properties:  `"task": {"type": "string", "description": "What is to be done, in words."}, ` + agentProperties + `, ` + sessionID,
		required:    []string{"task"},
		run: func(ctx context.Context, c *session.OwnCall) (result, error) {
			var a struct {
				Task string `json:"task"`
				agentChoice
				Session string `json:"session_id"`
			}
			if err := read(c.Arguments, &a); err != nil {
				return result{}, err
			}
			var done agentResult
			told := &steps{c: c}
			jobs, err := t.agents(a.agentChoice, []string{a.Task}, "Error during task execution: ", func(_ int, step string) { told.step(step) }, func(_ int, r agentResult) { done = r })
			if err != nil {
				return result{}, err
			}
			outcomes, minted, err := t.tasks(ctx, c, manner{Session: a.Session}, jobs, func(int) {})
			if err != nil {
				return result{}, err
			}
			o := outcomes[0]
			done.Text, done.IsError = o.words(), o.isError
			return result{content: o.content, structured: done, isError: o.isError, session: minted}, nil
		},
	}
}

// runTasks is the tool that has a model work on several tasks (A3).
func (t *Tools) runTasks() tool {
	return tool{
		name:        "run_tasks",
		description: "Have a model carry out several tasks, one after another or at the same time, as run_task does one. The results come in the order of the tasks; one that fails stops no other.",
		annotations: `{"destructiveHint": true}`,
		properties:  `"tasks": {"type": "array", "maxItems": ` + fmt.Sprint(maxAgents) + `, "items": {"type": "string"}}, ` + agentProperties + `, ` + mannerProperties,
		required:    []string{"tasks"},
		run: func(ctx context.Context, c *session.OwnCall) (result, error) {
			var a struct {
				Tasks []string `json:"tasks"`
				agentChoice
				manner
			}
			if err := read(c.Arguments, &a); err != nil {
				return result{}, err
			}
			if len(a.Tasks) > maxAgents {
				return result{}, badArguments(fmt.Sprintf("there may be %d tasks at most", maxAgents))
			}
			n := len(a.Tasks)
			results := make([]agentResult, n)
			told := &steps{c: c, total: n}
			step := func(i int, step string) { told.step(fmt.Sprintf("[%d/%d] %s", i+1, n, step)) }
			jobs, err := t.agents(a.agentChoice, a.Tasks, taskFailed, step, func(i int, r agentResult) { results[i] = r })
			if err != nil {
				return result{}, err
			}
			outcomes, minted, err := t.tasks(ctx, c, a.manner, jobs, told.ended)
			if err != nil {
				return result{}, err
			}
			r := result{session: minted}
			for i, o := range outcomes {
				results[i].Task, results[i].Text, results[i].IsError = a.Tasks[i], o.words(), o.isError
				r.content = append(append(r.content, text(fmt.Sprintf("[%d/%d] %s", i+1, n, a.Tasks[i]))), o.content...)
			}
			r.structured = struct {
				Results []agentResult `json:"results"`
			}{results}
			return r, nil
		},
	}
}

// agentResult is what became of a task, for programs. Pictures are in the content only.
type agentResult struct {
	Task      string      `json:"task,omitempty"`
	IsError   bool        `json:"isError"`
	Text      string      `json:"text"`
	Status    loop.Status `json:"status,omitempty"` // "" if it was not begun
	Rounds    int         `json:"rounds"`           // model calls
	ToolCalls int         `json:"toolCalls"`
}

// agents makes jobs of tasks. told hears of their steps, which may come at the same time,
// and done of how each went. complaint begins what is said of one that fails.
func (t *Tools) agents(choice agentChoice, tasks []string, complaint string, told func(i int, step string), done func(i int, r agentResult)) ([]job, error) {
	if choice.Model == "" {
		choice.Model = t.cfg.Model
	}
	if choice.Model == "" {
		return nil, badArguments("name a model, here or for all tasks in llm.tasks.model of the configuration")
	}
	jobs := make([]job, len(tasks))
	for i, task := range tasks {
		if strings.TrimSpace(task) == "" {
			return nil, badArguments("a task must say what is to be done")
		}
		jobs[i] = job{what: clip(task, 100), complaint: complaint, run: func(ctx context.Context, in *session.Task) outcome {
			a := agent{t: t, in: in, choice: choice, complaint: complaint, told: func(step string) { told(i, clip(step, maxStep)) }}
			o, r := a.work(ctx, task)
			done(i, r)
			return o
		}}
	}
	return jobs, nil
}

// agent works on one task in a session.
type agent struct {
	t         *Tools
	in        *session.Task
	choice    agentChoice
	complaint string
	told      func(step string)
}

// work has the model work until it is done.
func (a *agent) work(ctx context.Context, task string) (outcome, agentResult) {
	s := a.in.Session()
	servers := s.Servers()
	if a.choice.Server != "" {
		servers = []string{a.choice.Server}
	}
	spec := loop.Task{
		Principal: s.Principal(), Session: s.ID(), Run: session.NewID(), Model: a.choice.Model, Instructions: instructions,
		Input: []json.RawMessage{encode(map[string]string{"type": "message", "role": "user", "content": task})},
	}
	for _, name := range servers {
		spec.Servers = append(spec.Servers, loop.Server{Label: name, Invitation: session.Invitation{Server: name}, Approval: loop.Approval{Default: "never"}})
	}
	run, err := a.t.cfg.Engine().Prepare(spec)
	if err != nil {
		return a.failed(ctx, nil, message(err)), agentResult{}
	}
	var said []string
	working, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	end := run.Do(working, func(e loop.Event) {
		if e.Item.ListError != "" && e.Item.Label == a.choice.Server {
			giveUp(fmt.Errorf("the tools of server %q cannot be had: %s", a.choice.Server, e.Item.ListError)) // without them the task makes no sense
		}
		if step := stepOf(e); step != "" {
			a.told(step)
		}
		if e.Kind == loop.Done && e.Item.Type == loop.Message {
			said = append(said, words(e.Item))
		}
	})
	r := agentResult{Status: end.Status, Rounds: end.Rounds, ToolCalls: end.Calls}
	switch end.Status {
	case loop.Completed:
		o := outcome{content: []json.RawMessage{text(strings.Join(said, "\n"))}}
		return a.pictured(ctx, o), r
	case loop.Incomplete:
		return a.failed(ctx, said, "the task is not complete: "+incomplete(end.Reason)), r
	case loop.Cancelled:
		return a.failed(ctx, said, "it was cancelled"), r
	}
	return a.failed(ctx, said, end.Err.Message), r
}

// failed is the outcome of a task that an error has ended, with what the model has said so
// far.
func (a *agent) failed(ctx context.Context, said []string, why string) outcome {
	o := outcome{content: []json.RawMessage{text(a.complaint + why)}, isError: true}
	if len(said) > 0 {
		o.content = append(o.content, text(strings.Join(said, "\n")))
	}
	return a.pictured(ctx, o)
}

// pictured adds a picture of the instance that the session has, if one can be taken.
func (a *agent) pictured(ctx context.Context, o outcome) outcome {
	picture, err := a.in.Session().Snapshot(ctx, a.choice.Server, false)
	if err != nil {
		a.t.cfg.Log.Debug("there is no picture of what a task has used", "session", a.in.Session().ID(), "err", err)
		return o
	}
	var content []json.RawMessage
	_ = json.Unmarshal(picture.Content, &content) // what is no content shows nothing
	for _, raw := range content {
		var block struct{ Type string }
		if json.Unmarshal(raw, &block) == nil && block.Type != "text" { // words beside it are not the model's
			o.content = append(o.content, raw)
		}
	}
	return o
}

// incomplete says why a task is not complete.
func incomplete(reason string) string {
	switch reason {
	case loop.MaxTokens:
		return "the model's answer was too long"
	case loop.ContentFilter:
		return "the model's answer was withheld by a filter"
	case loop.MaxRounds:
		return "it took too many rounds (llm.responses.rounds)"
	case loop.ToolFailures:
		return "the same call has failed in the same way several times in a row"
	}
	return reason
}

// words is what a message says.
func words(it loop.Item) string {
	if it.Text == "" {
		return it.Refusal
	}
	return it.Text
}

// stepOf tells in words what a run has done: each message of the model, call of a tool,
// and output of one. It is "" for what is no step.
func stepOf(e loop.Event) string {
	switch {
	case e.Kind == loop.Done && e.Item.Type == loop.Message:
		return words(e.Item)
	case e.Kind == loop.Done && e.Item.Type == loop.ToolList && e.Item.ListError != "":
		return "! " + e.Item.Label + ": " + e.Item.ListError
	case e.Item.Type != loop.ToolCall:
		return ""
	case e.Kind == loop.Called:
		return fmt.Sprintf("> %s %s %s", e.Item.Label, e.Item.Name, e.Item.Arguments)
	case e.Kind == loop.Advanced:
		return fmt.Sprintf("… %s %s: %s", e.Item.Label, e.Item.Name, e.Progress.Message)
	case e.Kind == loop.Done && e.Item.Err != nil:
		return fmt.Sprintf("< %s %s failed: %s", e.Item.Label, e.Item.Name, e.Item.Err.Message)
	case e.Kind == loop.Done:
		return fmt.Sprintf("< %s %s: %s", e.Item.Label, e.Item.Name, e.Item.Output)
	}
	return ""
}

// clip shortens a text to at most limit bytes.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	cut := limit - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
