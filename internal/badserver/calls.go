package badserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// call is one tools/call in flight.
type call struct {
	s     *server
	id    json.RawMessage
	name  string
	token json.RawMessage // progress token, nil without one
	args  json.RawMessage // nil without arguments

	replied bool // owned by the goroutine that runs the tool
}

// startCall runs a tool in a goroutine of its own.
func (s *server) startCall(m message) {
	var p struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Meta      struct {
			ProgressToken json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		s.answer(m.ID, m.Method, nil, invalidParams("%v", err))
		return
	}
	if slices.Contains(s.opts.noCap, "tools") {
		s.answer(m.ID, m.Method, nil, &rpcError{-32601, "no such method: " + m.Method})
		return
	}
	if !s.has("tools", p.Name) {
		s.answer(m.ID, m.Method, nil, invalidParams("unknown tool %q", p.Name))
		return
	}
	s.note("call " + p.Name)
	if p.Name == s.opts.crashOn && s.takeFailure() {
		fmt.Fprintf(s.stderr, "badserver: crashing on %s\n", p.Name)
		s.out.exit(exitCrash, nil)
	}
	run := runAdded
	if i := slices.IndexFunc(tools, func(t tool) bool { return t.name == p.Name }); i >= 0 {
		run = tools[i].run
	}
	ctx, stop := context.WithCancel(context.Background())
	s.mu.Lock()
	_, twice := s.inflight[string(m.ID)]
	if !twice {
		s.inflight[string(m.ID)] = stop
	}
	s.mu.Unlock()
	if twice {
		stop()
		s.answer(m.ID, m.Method, nil, &rpcError{-32600, "a request with this id is in flight"})
		return
	}
	c := &call{s: s, id: m.ID, name: p.Name, token: p.Meta.ProgressToken, args: p.Arguments}
	s.calls.Go(func() {
		defer stop()
		result, err := run(ctx, c)
		c.reply(result, err)
	})
}

// reply answers the call unless it was answered or cancelled before. An error
// that is not a JSON-RPC error makes a result with isError.
func (c *call) reply(result []byte, err error) {
	if c.replied {
		return
	}
	c.replied = true
	c.s.mu.Lock()
	_, live := c.s.inflight[string(c.id)]
	delete(c.s.inflight, string(c.id))
	c.s.mu.Unlock()
	if !live {
		return
	}
	c.s.note("done " + c.name)
	if _, rpc := errors.AsType[*rpcError](err); err != nil && !rpc {
		result, err = fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}],"isError":true}`, quote(err.Error())), nil
	}
	c.s.answer(c.id, "tools/call", result, err)
}

// decode reads the arguments into dst.
func (c *call) decode(dst any) error {
	if c.args == nil {
		return nil
	}
	if err := json.Unmarshal(c.args, dst); err != nil {
		return invalidParams("arguments: %v", err)
	}
	return nil
}

func (c *call) progress(done, total int) {
	if c.token != nil {
		c.s.out.notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":%d,"total":%d}`, c.token, done, total))
	}
}

// textResult is a result of one text.
func textResult(text string) []byte {
	return fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}]}`, quote(text))
}

// jsonResult is a result of one text that holds v as JSON.
func jsonResult(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return textResult(string(data)), nil
}

// wait waits for d, and returns an error if the call is cancelled meanwhile.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Asked is what came of a request to the client.
type Asked struct {
	Kind string `json:"kind"`
	// Result or Error is the client's answer; neither is set if none came in time.
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// questions are the requests to the client by kind: method and params.
var questions = map[string][2]string{
	"ping": {"ping", `{}`},
	"sampling": {"sampling/createMessage",
		`{"messages":[{"role":"user","content":{"type":"text","text":"What is 1+1?"}}],"maxTokens":16}`},
	"elicitation": {"elicitation/create",
		`{"message":"Who are you?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}`},
	"roots": {"roots/list", `{}`},
}

// ask sends a request to the client and waits for its answer.
func (s *server) ask(ctx context.Context, kind string, timeout time.Duration) Asked {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer := make(chan message, 1)
	s.mu.Lock()
	s.nextAsk++
	id := strconv.Itoa(s.nextAsk)
	s.asking[id] = answer
	s.mu.Unlock()

	q := questions[kind]
	s.out.raw(s.out.lines(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, q[0], q[1])))
	got := Asked{Kind: kind}
	select {
	case m := <-answer:
		got.Result, got.Error = m.Result, m.Error
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.asking, id)
		s.mu.Unlock()
	}
	return got
}
