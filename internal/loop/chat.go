package loop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"roundhouse/internal/dialect"
	"roundhouse/internal/wire"
)

// chat speaks to an upstream of the API chat completions. What it has said stays as it is,
// so that each prompt begins with the one before, but for pictures that have become too
// many.
type chat struct {
	r            *Run
	instructions []string // that are not a message yet
	messages     []*chatMessage
	history      chatHistory // what of the input is not a message yet
	album        *album
}

// chatMessage is one message, as it is sent.
type chatMessage struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"` // a string, an array of parts, or null
	ToolCalls []chatCall      `json:"tool_calls,omitempty"`
	CallID    string          `json:"tool_call_id,omitempty"`

	extra map[string]json.RawMessage // of an answer: what engines want to have back
	shown *page                      // in place of Content: what tools have shown, or nil
}

// MarshalJSON puts the members that are not known behind those that are.
func (m *chatMessage) MarshalJSON() ([]byte, error) {
	type known chatMessage
	v := known(*m)
	if m.shown != nil {
		v.Content = array(m.shown.parts)
	}
	b, err := json.Marshal(&v)
	if err != nil || len(m.extra) == 0 {
		return b, err
	}
	more, err := json.Marshal(m.extra)
	if err != nil {
		return nil, err
	}
	return append(append(b[:len(b)-1], ','), more[1:]...), nil
}

type chatCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`

	extra map[string]json.RawMessage
}

type chatFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// MarshalJSON is as a message's.
func (c chatCall) MarshalJSON() ([]byte, error) {
	type known chatCall
	b, err := json.Marshal(known(c))
	if err != nil || len(c.extra) == 0 {
		return b, err
	}
	more, err := json.Marshal(c.extra)
	if err != nil {
		return nil, err
	}
	return append(append(b[:len(b)-1], ','), more[1:]...), nil
}

// newChat begins a conversation.
func newChat(r *Run) *chat {
	c := &chat{r: r, album: newAlbum(r.engine.cfg.Limits.MaxImages)}
	c.history.c = c
	if r.t.Instructions != "" {
		c.instructions = append(c.instructions, r.t.Instructions)
	}
	return c
}

// remind adds an item that was said or done before the first turn.
func (c *chat) remind(item json.RawMessage) error { return c.history.add(item) }

func (c *chat) add(m *chatMessage) {
	c.introduce()
	c.messages = append(c.messages, m)
}

// instruct takes instructions that the conversation begins with, all of which are one message:
// there are templates that refuse another message of the system behind the first. It reports
// whether they are such.
func (c *chat) instruct(content json.RawMessage) bool {
	var said string
	if len(c.messages) > 0 || json.Unmarshal(content, &said) != nil {
		return false
	}
	c.instructions = append(c.instructions, said)
	return true
}

// introduce makes a message of the instructions, before anything else is said.
func (c *chat) introduce() {
	if len(c.instructions) > 0 {
		c.messages = append(c.messages, &chatMessage{Role: "system", Content: text(strings.Join(c.instructions, "\n\n"))})
		c.instructions = nil
	}
}

// text is a string as JSON.
func text(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string can be written
	}
	return b
}

// answer gives the model what came of its calls.
func (c *chat) answer(results []*result) {
	for _, res := range results {
		c.add(&chatMessage{Role: "tool", CallID: res.callID, Content: text(res.text)})
	}
	// Messages of tools hold text only; what they show follows as the user's.
	if shown := c.album.add(results, textPart, func(p Picture) json.RawMessage { return imagePart(p.URL(), "") }); shown != nil {
		c.add(&chatMessage{Role: "user", shown: shown})
	}
}

func textPart(s string) json.RawMessage { return object("type", text("text"), "text", text(s)) }

func imagePart(url, detail string) json.RawMessage {
	image := object("url", text(url))
	if detail != "" {
		image = object("url", text(url), "detail", text(detail))
	}
	return object("type", text("image_url"), "image_url", image)
}

// object writes an object of names and values in turn.
func object(members ...any) json.RawMessage {
	b := []byte{'{'}
	for i := 0; i < len(members); i += 2 {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), members[i].(string)...), `":`...)
		b = append(b, members[i+1].(json.RawMessage)...)
	}
	return append(b, '}')
}

func array(elements []json.RawMessage) json.RawMessage {
	b := append([]byte{'['}, bytes.Join(rawBytes(elements), []byte(","))...)
	return append(b, ']')
}

func rawBytes(list []json.RawMessage) [][]byte {
	out := make([][]byte, len(list))
	for i, e := range list {
		out[i] = e
	}
	return out
}

// turn has the model answer.
func (c *chat) turn(ctx context.Context, co *composer, first bool) error {
	c.history.flush()
	body, err := c.request(first)
	if err != nil {
		return &Failure{Status: http.StatusBadRequest, Code: "invalid_request_error", Message: err.Error()}
	}
	p := &chatReader{co: co, message: &chatMessage{Role: "assistant", Content: json.RawMessage("null")}}
	if err := c.r.ask(ctx, dialect.Chat, "/v1/chat/completions", body, p); err != nil {
		return err
	}
	c.add(p.said())
	return nil
}

// request is the body of the next call.
func (c *chat) request(first bool) ([]byte, error) {
	t := c.r.t
	c.introduce()
	body := map[string]any{"model": t.Model, "messages": c.messages, "stream": true, "stream_options": map[string]bool{"include_usage": true}}
	if err := chatSettings(body, t.Settings, c.r.upstream.Engine(), c.r.usage.Output); err != nil {
		return nil, err
	}
	c.r.offer(first, chatTool, func(name string, _ *tool) any {
		return map[string]any{"type": "function", "function": map[string]string{"name": name}}
	}, body)
	return json.Marshal(body)
}

// chatTool is a tool as the model is told of it.
func chatTool(x *tool) any {
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
		Strict      json.RawMessage `json:"strict,omitempty"`
	}
	f := function{Name: x.name}
	switch {
	case x.function == nil:
		f.Description, f.Parameters = x.description(), x.listed.Schema
	case x.function.Custom:
		f.Description, f.Parameters = x.function.Description, json.RawMessage(`{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`)
	default:
		f.Description, f.Parameters, f.Strict = x.function.Description, x.function.Parameters, x.function.Strict
	}
	return map[string]any{"type": "function", "function": f}
}

// customInput is the input of a custom tool in the arguments of the function that stands
// for it; what is no such object is the input itself.
func customInput(arguments string) string {
	var v struct {
		Input *string `json:"input"`
	}
	if json.Unmarshal([]byte(arguments), &v) != nil || v.Input == nil {
		return arguments
	}
	return *v.Input
}

// chatReader reads one answer.
type chatReader struct {
	co      *composer
	message *chatMessage
	content strings.Builder
	calls   []*chatPiece
	done    bool // why it ended was said
}

// chatPiece is a call that comes in pieces.
type chatPiece struct {
	index   int
	indexed bool
	id      string // as the engine gave it, "" before that
	call    *modelCall
	extra   map[string]json.RawMessage
}

// chatChunk is a piece of an answer, or all of one that is no stream.
type chatChunk struct {
	Choices []struct {
		Index   int                        `json:"index"`
		Delta   map[string]json.RawMessage `json:"delta"`
		Message map[string]json.RawMessage `json:"message"`
		Finish  string                     `json:"finish_reason"`
	} `json:"choices"`
	Usage *chatUsage      `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type chatUsage struct {
	Prompt        int64 `json:"prompt_tokens"`
	Completion    int64 `json:"completion_tokens"`
	PromptDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// event implements answerReader.
func (p *chatReader) event(data []byte) error { return p.take(data) }

// whole implements answerReader.
func (p *chatReader) whole(body []byte) error { return p.take(body) }

// ended implements answerReader.
func (p *chatReader) ended() bool { return p.done }

// take takes a piece.
func (p *chatReader) take(data []byte) error {
	var chunk chatChunk
	if err := json.Unmarshal(data, &chunk); err != nil {
		return unreadable(err)
	}
	if len(chunk.Error) > 0 && string(chunk.Error) != "null" {
		return upstreamFailure(http.StatusBadGateway, data)
	}
	if u := chunk.Usage; u != nil {
		p.co.usage = Usage{u.Prompt, u.PromptDetails.Cached, u.Completion, u.CompletionDetails.Reasoning}
	}
	for _, choice := range chunk.Choices {
		if choice.Index != 0 {
			continue
		}
		for _, delta := range []map[string]json.RawMessage{choice.Delta, choice.Message} {
			if err := p.delta(delta); err != nil {
				return err
			}
		}
		if choice.Finish != "" {
			if err := p.finish(choice.Finish); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *chatReader) finish(reason string) error {
	if p.done {
		return nil
	}
	p.done = true
	switch reason {
	case "stop", "tool_calls", "function_call":
		p.co.end(StatusCompleted)
	case "length":
		p.co.end(MaxTokens)
	case "content_filter":
		p.co.end(ContentFilter)
	default:
		return &Failure{Status: http.StatusBadGateway, Code: "upstream_error", Message: fmt.Sprintf("the model's answer ended with finish_reason %q", reason)}
	}
	return nil
}

// thoughtMembers are the names under which engines give a model's thoughts.
var thoughtMembers = []string{"reasoning_content", "reasoning"}

func (p *chatReader) delta(members map[string]json.RawMessage) error {
	said := func(name string) (s string) {
		_ = json.Unmarshal(members[name], &s) // what is no string says nothing
		return s
	}
	for _, name := range thoughtMembers {
		if s := said(name); s != "" {
			p.co.thoughts(s)
			p.keep(name, members[name])
			break // some engines give both, with the same text
		}
	}
	if s := said("content"); s != "" {
		p.content.WriteString(s)
		p.co.text(s)
	}
	p.co.refusal(said("refusal"))
	for name, value := range members {
		switch name {
		case "role", "content", "refusal", "tool_calls", "function_call", "reasoning_content", "reasoning", "annotations", "audio":
		default:
			p.keep(name, value)
		}
	}
	var calls []map[string]json.RawMessage
	if raw := members["tool_calls"]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &calls); err != nil {
			return &Failure{Status: http.StatusBadGateway, Code: "upstream_error", Message: "the model's calls cannot be read: " + err.Error()}
		}
	}
	for _, piece := range calls {
		p.callPiece(piece)
	}
	return nil
}

// keep keeps a member of the answer that the engine wants to have back: strings and arrays
// go on, else the last one counts.
func (p *chatReader) keep(name string, value json.RawMessage) {
	if len(value) == 0 || string(value) == "null" {
		return
	}
	if p.message.extra == nil {
		p.message.extra = map[string]json.RawMessage{}
	}
	had := p.message.extra[name]
	switch {
	case len(had) > 1 && had[0] == '"' && value[0] == '"':
		value = append(had[:len(had)-1], value[1:]...) // had is ours alone, and copying it for each piece would take long
	case len(had) > 2 && had[0] == '[' && value[0] == '[' && len(value) > 2:
		value = append(append(had[:len(had)-1], ','), value[1:]...)
	}
	p.message.extra[name] = value
}

// callPiece takes a piece of a call (C-45 to C-52). The key is the index and the id; where
// they are missing, a piece with a name begins a call if the one before is complete.
func (p *chatReader) callPiece(members map[string]json.RawMessage) {
	var v struct {
		Index    *int
		ID       string
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}
	}
	_ = json.Unmarshal(members["index"], &v.Index)
	_ = json.Unmarshal(members["id"], &v.ID)
	_ = json.Unmarshal(members["function"], &v.Function) // what is of another form is no part of a call
	piece := p.piece(v.Index, v.ID, v.Function.Name)
	for name, value := range members {
		switch name {
		case "index", "id", "type", "function":
		default:
			if piece.extra == nil {
				piece.extra = map[string]json.RawMessage{}
			}
			piece.extra[name] = value
		}
	}
	p.co.named(piece.call, v.Function.Name)
	arguments := ""
	switch raw := v.Function.Arguments; {
	case len(raw) == 0 || string(raw) == "null":
	case raw[0] == '"':
		_ = json.Unmarshal(raw, &arguments) // it is a string
	default:
		arguments = string(raw) // some engines send the object itself
	}
	p.co.argued(piece.call, arguments)
}

func (p *chatReader) piece(index *int, id, name string) *chatPiece {
	for i := len(p.calls) - 1; i >= 0; i-- {
		k := p.calls[i]
		if index != nil && (!k.indexed || k.index != *index) {
			continue
		}
		switch {
		case id != "" && k.id != "":
			if id == k.id {
				return k
			}
		case name != "" && k.call.name != "" && (index == nil || name != k.call.name) && json.Valid([]byte(k.call.arguments.String())):
			return p.newPiece(index, id)
		default:
			if k.id == "" {
				k.id = id
			}
			if k.call.id == "" {
				k.call.id = id
			}
			return k
		}
	}
	return p.newPiece(index, id)
}

func (p *chatReader) newPiece(index *int, id string) *chatPiece {
	k := &chatPiece{id: id, call: p.co.call(id)}
	if index != nil {
		k.index, k.indexed = *index, true
	}
	p.calls = append(p.calls, k)
	return k
}

// said is the answer as the model is reminded of it.
func (p *chatReader) said() *chatMessage {
	m := p.message
	if p.content.Len() > 0 {
		m.Content = text(p.content.String())
	}
	for _, k := range p.calls {
		if k.call.dropped {
			continue
		}
		m.ToolCalls = append(m.ToolCalls, chatCall{
			ID: k.call.id, Type: "function", extra: k.extra,
			Function: chatFunction{k.call.name, callArguments(k.call.arguments.String())},
		})
	}
	return m
}

// callArguments are the arguments of a call as the model is reminded of them: as it wrote
// them, unless they are no JSON object, since engines that read them refuse the whole
// request then, and the model could never mend its call (B.5.5).
func callArguments(written string) string {
	raw := bytes.TrimSpace([]byte(written))
	switch {
	case len(raw) == 0:
		return "{}"
	case raw[0] != '{' || wire.Valid(raw) != nil:
		return string(object("invalid", text(written)))
	}
	return written
}

// check implements speaker.
func (c *chat) check() error {
	_, err := c.request(true)
	return err
}
