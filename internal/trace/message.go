package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// hash identifies a message, or what stands before the first one.
type hash [sha256.Size]byte

// message is one message of a conversation in the form of OpenAI's chat completions,
// whatever API it came by.
type message struct {
	json json.RawMessage
	id   hash // of its meaning
	bare hash // the same without what it thinks
}

// body is the JSON of a message.
type body struct {
	Role       string            `json:"role"`
	Content    json.RawMessage   `json:"content"` // a string, or a list of parts
	Reasoning  string            `json:"reasoning_content,omitempty"`
	ToolCalls  []toolCall        `json:"tool_calls,omitempty"`
	ToolCallID string            `json:"tool_call_id,omitempty"`
	Name       string            `json:"name,omitempty"`
	Refusal    string            `json:"refusal,omitempty"`
	IsError    bool              `json:"is_error,omitempty"`
	Opaque     []json.RawMessage `json:"reasoning_opaque,omitempty"` // thinking that only its API can read
}

type toolCall struct {
	ID       string   `json:"id,omitempty"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// message seals a body.
func (b body) message() message {
	if len(b.Content) == 0 {
		b.Content = json.RawMessage(`""`)
	}
	m := message{json: encode(b), id: b.hash()}
	b.Reasoning, b.Opaque = "", nil
	m.bare = b.hash()
	return m
}

func (b body) hash() hash {
	h := sha256.New()
	calls := b.ToolCalls
	b.ToolCalls = nil
	h.Write(canonical(encode(b)))
	for _, c := range calls {
		arguments := canonical([]byte(c.Function.Arguments))
		c.Function.Arguments = ""
		h.Write(encode(c))
		h.Write(arguments)
		h.Write([]byte{0})
	}
	return hash(h.Sum(nil))
}

// conversation is what a call's request and answer say.
type conversation struct {
	head     hash      // of system messages and tools
	system   []message // before the first other one
	tools    json.RawMessage
	prompt   []message   // after the system messages
	answers  [][]message // one, unless several were asked for
	previous string      // the id of the response that the prompt goes on from, or ""
	id       string      // of the answer, for the next one's previous
}

// reader reads conversations. It remembers messages, since each turn of a session
// repeats those of the last.
type reader struct {
	seen map[hash][]message // by API, role of the reading and bytes
}

var errUnreadable = errors.New("its request or answer is not that of its API")

// read makes a conversation of a call's native request and answer.
func (r *reader) read(api string, request, answer []byte) (c conversation, err error) {
	switch api {
	case "chat":
		c, err = r.chat(request, answer)
	case "messages":
		c, err = r.anthropic(request, answer)
	case "responses":
		c, err = r.responses(request, answer)
	default:
		err = errors.New("the API " + api + " is not known")
	}
	if err != nil {
		return conversation{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	for len(c.prompt) > 0 && isSystem(c.prompt[0]) {
		c.system = append(c.system, c.prompt[0])
		c.prompt = c.prompt[1:]
	}
	h := sha256.New()
	for _, m := range c.system {
		h.Write(m.id[:])
	}
	h.Write(canonical(c.tools))
	c.head = hash(h.Sum(nil))
	return c, nil
}

func isSystem(m message) bool {
	var b struct{ Role string }
	return json.Unmarshal(m.json, &b) == nil && (b.Role == "system" || b.Role == "developer")
}

// each reads a list of messages, those that were read before from memory.
func (r *reader) each(how string, list []json.RawMessage, read func(json.RawMessage) ([]body, error)) ([]message, error) {
	var out []message
	for _, raw := range list {
		h := sha256.New()
		h.Write([]byte(how))
		h.Write(raw)
		key := hash(h.Sum(nil))
		messages, ok := r.seen[key]
		if !ok {
			bodies, err := read(raw)
			if err != nil {
				return nil, err
			}
			for _, b := range bodies {
				messages = append(messages, b.message())
			}
			if r.seen == nil {
				r.seen = map[hash][]message{}
			}
			r.seen[key] = messages
		}
		out = append(out, messages...)
	}
	return out, nil
}

// chat reads OpenAI chat completions.
func (r *reader) chat(request, answer []byte) (c conversation, err error) {
	var q struct {
		Messages  []json.RawMessage
		Tools     json.RawMessage
		Functions []json.RawMessage
	}
	var a struct {
		Choices []struct{ Message json.RawMessage }
	}
	if err := errors.Join(json.Unmarshal(request, &q), json.Unmarshal(answer, &a)); err != nil {
		return c, err
	}
	if len(a.Choices) == 0 {
		return c, errors.New("the answer has no choice")
	}
	if c.tools = present(q.Tools); c.tools == nil {
		c.tools = tools(q.Functions)
	}
	c.prompt, err = r.each("chat", q.Messages, chatMessage)
	for _, choice := range a.Choices {
		var answer []message
		if err == nil {
			answer, err = r.each("chat", []json.RawMessage{choice.Message}, chatMessage)
		}
		c.answers = append(c.answers, answer)
	}
	return c, err
}

func chatMessage(raw json.RawMessage) ([]body, error) {
	var m struct {
		body
		Thinking  string `json:"reasoning"`
		ToolCalls []struct {
			ID       string
			Type     string
			Function struct {
				Name      string
				Arguments json.RawMessage
			}
			Custom struct {
				Name  string
				Input json.RawMessage
			}
		} `json:"tool_calls"`
		FunctionCall *struct { // what tool_calls have replaced
			Name      string
			Arguments json.RawMessage
		} `json:"function_call"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	b := m.body
	b.ToolCalls = nil
	if b.Reasoning == "" {
		b.Reasoning = m.Thinking
	}
	for _, t := range m.ToolCalls {
		call := toolCall{ID: t.ID, Type: "function", Function: function{t.Function.Name, text(t.Function.Arguments)}}
		if t.Type != "" && t.Type != "function" {
			call.Type, call.Function = t.Type, function{t.Custom.Name, text(t.Custom.Input)}
		}
		b.ToolCalls = append(b.ToolCalls, call)
	}
	if c := m.FunctionCall; c != nil {
		b.ToolCalls = append(b.ToolCalls, toolCall{Type: "function", Function: function{c.Name, text(c.Arguments)}})
	}
	parts, err := list(b.Content)
	if err != nil {
		return nil, err
	}
	b.Content = joined(parts)
	return []body{b}, nil
}

// anthropic reads Anthropic messages.
func (r *reader) anthropic(request, answer []byte) (c conversation, err error) {
	var q struct {
		System   json.RawMessage
		Messages []json.RawMessage
		Tools    []json.RawMessage
	}
	if err := json.Unmarshal(request, &q); err != nil {
		return c, err
	}
	system, err := list(q.System)
	if err != nil {
		return c, err
	}
	if len(system) > 0 {
		m := body{Role: "system", Content: joined(system)}.message()
		m.id = body{Role: "system", Content: joined(unstamped(system))}.hash()
		c.system = append(c.system, m)
	}
	c.tools = tools(q.Tools)
	if c.prompt, err = r.each("messages", q.Messages, anthropicMessage); err != nil {
		return c, err
	}
	said, err := r.each("messages", []json.RawMessage{answer}, anthropicMessage)
	if err == nil && len(said) == 0 {
		err = errors.New("the answer is empty")
	}
	c.answers = [][]message{said}
	return c, err
}

// stamp begins the line that Claude Code writes before its system prompt, another one with
// each request. It is for the API's accounts, and no word to the model.
const stamp = "x-anthropic-billing-header:"

// unstamped is system prompts without it.
func unstamped(parts []json.RawMessage) (out []json.RawMessage) {
	for _, part := range parts {
		if t, ok := partText(part); ok && strings.HasPrefix(t, stamp) {
			_, rest, _ := strings.Cut(t, "\n")
			if rest == "" {
				continue
			}
			part = textPart(rest)
		}
		out = append(out, part)
	}
	return out
}

func anthropicMessage(raw json.RawMessage) ([]body, error) {
	var m struct {
		Role    string
		Content json.RawMessage
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	if m.Role == "" {
		return nil, errors.New("a message has no role")
	}
	blocks, err := list(m.Content)
	if err != nil {
		return nil, err
	}
	out := []body{}
	own := body{Role: m.Role}
	var parts []json.RawMessage
	for _, block := range blocks {
		var b struct {
			Type      string
			ID        string
			Name      string
			Input     json.RawMessage
			Thinking  string
			ToolUseID string `json:"tool_use_id"`
			Content   json.RawMessage
			IsError   bool `json:"is_error"`
		}
		if err := json.Unmarshal(block, &b); err != nil {
			return nil, err
		}
		switch b.Type {
		case "tool_use":
			own.ToolCalls = append(own.ToolCalls, toolCall{ID: b.ID, Type: "function", Function: function{b.Name, text(b.Input)}})
		case "thinking":
			own.Reasoning += b.Thinking
		case "redacted_thinking":
			own.Opaque = append(own.Opaque, block)
		case "tool_result":
			result, err := list(b.Content)
			if err != nil {
				return nil, err
			}
			out = append(out, body{Role: "tool", ToolCallID: b.ToolUseID, Content: joined(result), IsError: b.IsError})
		default:
			parts = append(parts, block)
		}
	}
	if own.Content = joined(parts); len(parts) > 0 || len(own.ToolCalls) > 0 || own.Reasoning != "" || len(out) == 0 {
		out = append(out, own)
	}
	return out, nil
}

// list is a content as its parts: a string is one part of text; empty texts are none.
func list(content json.RawMessage) ([]json.RawMessage, error) {
	content = present(content)
	if len(content) == 0 {
		return nil, nil
	}
	if content[0] == '"' {
		if string(content) == `""` {
			return nil, nil
		}
		return []json.RawMessage{encode(struct {
			Type string          `json:"type"`
			Text json.RawMessage `json:"text"`
		}{"text", content})}, nil
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(content, &parts); err != nil {
		return nil, err
	}
	kept := parts[:0]
	for _, part := range parts {
		if t, ok := partText(part); !ok || t != "" {
			kept = append(kept, part)
		}
	}
	return kept, nil
}

// joined is parts as a content: one text alone is a string.
func joined(parts []json.RawMessage) json.RawMessage {
	if len(parts) == 0 {
		return nil
	}
	if t, ok := partText(parts[0]); ok && len(parts) == 1 {
		return encode(t)
	}
	out := make([]json.RawMessage, len(parts))
	for i, part := range parts {
		out[i] = part
		if t, ok := partText(part); ok {
			out[i] = textPart(t)
		}
	}
	return encode(out)
}

// textPart is the part that is a text, in the one form that rows have for it.
func textPart(t string) json.RawMessage {
	return encode(struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}{"text", t})
}

// partText is the text of a part that is one.
func partText(part json.RawMessage) (string, bool) {
	var p struct {
		Type string
		Text string
	}
	if json.Unmarshal(part, &p) != nil {
		return "", false
	}
	return p.Text, p.Type == "text" || p.Type == "input_text" || p.Type == "output_text"
}

// text is the string that raw is, or raw itself, compact.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

// present is raw, or nothing if it is null.
func present(raw json.RawMessage) json.RawMessage {
	if raw = bytes.TrimSpace(raw); string(raw) == "null" {
		return nil
	}
	return raw
}

// tools brings the tools of Anthropic and of Responses into the form of chat
// completions; those that are no functions stay as they are.
func tools(list []json.RawMessage) json.RawMessage {
	if len(list) == 0 {
		return nil
	}
	out := make([]json.RawMessage, len(list))
	for i, raw := range list {
		var t struct {
			Type        string          `json:"type"`
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Input       json.RawMessage `json:"input_schema"`
			Parameters  json.RawMessage `json:"parameters"`
		}
		out[i] = raw
		if json.Unmarshal(raw, &t) != nil || t.Name == "" {
			continue
		}
		if t.Type != "" && t.Type != "custom" && t.Type != "function" || t.Input == nil && t.Parameters == nil {
			continue
		}
		if t.Input != nil {
			t.Parameters = t.Input
		}
		out[i] = encode(map[string]any{"type": "function", "function": struct {
			Name        string          `json:"name"`
			Description string          `json:"description,omitempty"`
			Parameters  json.RawMessage `json:"parameters"`
		}{t.Name, t.Description, t.Parameters}})
	}
	return encode(out)
}

// responses reads OpenAI responses.
func (r *reader) responses(request, answer []byte) (c conversation, err error) {
	var q struct {
		Instructions string
		Input        json.RawMessage
		Tools        []json.RawMessage
		Previous     string `json:"previous_response_id"`
	}
	var a struct {
		ID     string
		Output []json.RawMessage
	}
	if err := errors.Join(json.Unmarshal(request, &q), json.Unmarshal(answer, &a)); err != nil {
		return c, err
	}
	if len(a.Output) == 0 {
		return c, errors.New("the answer has no output")
	}
	c.previous, c.id, c.tools = q.Previous, a.ID, tools(q.Tools)
	if q.Instructions != "" {
		c.system = append(c.system, body{Role: "system", Content: encode(q.Instructions)}.message())
	}
	var input []json.RawMessage
	if in := present(q.Input); len(in) > 0 && in[0] == '"' {
		input = []json.RawMessage{[]byte(`{"role":"user","content":` + string(in) + `}`)}
	} else if err := json.Unmarshal(q.Input, &input); err != nil {
		return c, err
	}
	// What the model says in one go is several items there and one message elsewhere.
	turns := goes(input)
	if c.prompt, err = r.each("responses", turns, responsesItems); err != nil {
		return c, err
	}
	said, err := r.each("responses", goes(a.Output), responsesItems)
	c.answers = [][]message{said}
	return c, err
}

// goes joins neighbouring items of the model into lists.
func goes(items []json.RawMessage) (out []json.RawMessage) {
	var open []json.RawMessage
	end := func() {
		if open != nil {
			out = append(out, encode(open))
			open = nil
		}
	}
	for _, item := range items {
		var i struct{ Type, Role string }
		_ = json.Unmarshal(item, &i) // what cannot be read says so when it is
		theirs := i.Role == "assistant" || i.Role == "" && !strings.HasSuffix(i.Type, "_output") && !strings.HasSuffix(i.Type, "_response")
		if !theirs {
			end()
			out = append(out, encode([]json.RawMessage{item}))
			continue
		}
		open = append(open, item)
	}
	end()
	return out
}

// responsesItems reads items that belong to one message.
func responsesItems(raw json.RawMessage) ([]body, error) {
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, err
	}
	own := body{Role: "assistant"}
	var parts []json.RawMessage
	for _, item := range items {
		var i struct {
			Type, Role, Name string
			CallID           string `json:"call_id"`
			Arguments, Input json.RawMessage
			Content          json.RawMessage
			Summary          []json.RawMessage
			Output           json.RawMessage
			Encrypted        string `json:"encrypted_content"`
		}
		if err := json.Unmarshal(item, &i); err != nil {
			return nil, err
		}
		switch {
		case i.Role != "":
			content, err := list(i.Content)
			if err != nil {
				return nil, err
			}
			own.Role = i.Role
			parts = append(parts, content...)
		case i.Type == "function_call":
			own.ToolCalls = append(own.ToolCalls, toolCall{ID: i.CallID, Type: "function", Function: function{i.Name, text(i.Arguments)}})
		case i.Type == "custom_tool_call":
			own.ToolCalls = append(own.ToolCalls, toolCall{ID: i.CallID, Type: "custom", Function: function{i.Name, text(i.Input)}})
		case i.Type == "function_call_output", i.Type == "custom_tool_call_output":
			output, err := list(i.Output)
			if err != nil {
				return nil, err
			}
			own.Role, own.ToolCallID = "tool", i.CallID
			parts = append(parts, output...)
		case i.Type == "reasoning":
			thoughts, err := list(i.Content)
			if err != nil {
				return nil, err
			}
			for _, part := range append(thoughts, i.Summary...) {
				var p struct{ Text string }
				_ = json.Unmarshal(part, &p) // a part of another kind has no text
				own.Reasoning += p.Text
			}
			if i.Encrypted != "" {
				own.Opaque = append(own.Opaque, encode(i.Encrypted))
			}
		case strings.HasSuffix(i.Type, "_output"): // of a tool that only this API has
			own.Role, own.ToolCallID = "tool", i.CallID
			parts = append(parts, anonymous(item))
		case strings.HasSuffix(i.Type, "_response"): // to a request for approval
			own.Role = "user"
			parts = append(parts, anonymous(item))
		default:
			parts = append(parts, anonymous(item))
		}
	}
	own.Content = joined(parts)
	return []body{own}, nil
}

// anonymous is an item without what clients leave out when they send it back.
func anonymous(item json.RawMessage) json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(item, &m) != nil {
		return item
	}
	delete(m, "id")
	delete(m, "status")
	return encode(m)
}
