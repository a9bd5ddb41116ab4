package loop

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"roundhouse/internal/config"
	"roundhouse/internal/session"
)

// chatHistory turns items into messages. What the model called in one go is one message,
// as far as that can be seen: its calls, and behind them what came of each.
type chatHistory struct {
	c       *chat
	said    *chatMessage // what the model said, to which calls may still be added
	results []*chatMessage
	awaited map[string]bool   // calls whose results follow in the input
	shown   []json.RawMessage // of the results, what is no text
}

// inputItem is an item of the input, of any type.
type inputItem struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Input     string          `json:"input"`
	Output    json.RawMessage `json:"output"`
	Label     string          `json:"server_label"`
	Error     json.RawMessage `json:"error"`
	Tools     []ListedTool    `json:"tools"`
	Status    string          `json:"status"`

	RequestID string `json:"approval_request_id"`
	Approve   *bool  `json:"approve"`
	Reason    string `json:"reason"`
}

// readItem reads an item of the input.
func readItem(raw json.RawMessage) (*inputItem, error) {
	var it inputItem
	if err := json.Unmarshal(raw, &it); err != nil {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}
	if it.Type == "" && it.Role != "" {
		it.Type = string(Message)
	}
	return &it, nil
}

// add adds an item.
func (h *chatHistory) add(raw json.RawMessage) error {
	it, err := readItem(raw)
	if err != nil {
		return err
	}
	if h.c.r.dangles(it) {
		return nil
	}
	switch it.Type {
	case string(Message):
		return h.message(it)
	case string(ReasoningItem):
		h.thoughts(it)
	case string(FunctionCall):
		h.call(it.CallID, it.Name, it.Arguments)
	case string(CustomCall):
		h.call(it.CallID, it.Name, string(object("input", text(it.Input))))
	case "function_call_output", "custom_tool_call_output":
		output, shown, err := h.output(it.Output)
		if err != nil {
			return err
		}
		h.result(it.CallID, output)
		h.shown = append(h.shown, shown...)
	case string(ToolCall):
		h.flushResults() // of calls that came one after the other
		h.call(it.ID, session.PublicName(it.Label, it.Name), it.Arguments)
		h.result(it.ID, toolOutput(it))
	case "mcp_approval_response":
		if r := h.c.r.asked[it.RequestID]; r != nil && !*it.Approve {
			h.call(r.ID, session.PublicName(r.Label, r.Name), r.Arguments)
			h.result(r.ID, declined(it.Reason))
		}
	case string(ToolList), string(ApprovalRequest):
	default:
		return fmt.Errorf("items of the type %q are not supported", it.Type)
	}
	return nil
}

// declined is what the model gets for a call that was not approved.
func declined(reason string) string {
	if reason == "" {
		return "declined"
	}
	return "declined: " + reason
}

// toolOutput is what an mcp_call has brought, for the model.
func toolOutput(it *inputItem) string {
	var output string
	if json.Unmarshal(it.Output, &output) == nil && len(it.Output) > 0 && string(it.Output) != "null" {
		return output
	}
	if len(it.Error) > 0 && string(it.Error) != "null" {
		return "error: " + string(it.Error)
	}
	return "the call has no output"
}

// flush makes messages of what waits.
func (h *chatHistory) flush() {
	if h.said != nil {
		if len(h.said.ToolCalls) == 0 && string(h.said.Content) == "null" {
			h.said.Content = text("") // engines take none only beside calls
		}
		h.c.add(h.said)
		h.said = nil
	}
	for _, m := range h.results {
		h.c.add(m)
	}
	if len(h.shown) > 0 { // messages of tools hold text only; what they show follows as the user's
		h.c.add(&chatMessage{Role: "user", Content: array(append([]json.RawMessage{textPart(haveShown)}, h.shown...))})
	}
	h.results, h.shown, h.awaited = nil, nil, nil
}

// flushResults does so if the last thing was what came of a call: what follows is another
// turn of the model's. While a call of the caller's function has no result yet, it is the same
// one, since servers' tools have theirs at once; results belong right behind their calls.
func (h *chatHistory) flushResults() {
	if len(h.results) > 0 && len(h.awaited) == 0 {
		h.flush()
	}
}

// assistant returns the message of the model's that goes on.
func (h *chatHistory) assistant() *chatMessage {
	h.flushResults()
	if h.said == nil {
		h.said = &chatMessage{Role: "assistant", Content: json.RawMessage("null")}
	}
	return h.said
}

func (h *chatHistory) call(id, name, arguments string) {
	m := h.assistant()
	m.ToolCalls = append(m.ToolCalls, chatCall{ID: id, Type: "function", Function: chatFunction{name, callArguments(arguments)}})
	if h.c.r.outputs[id] {
		if h.awaited == nil {
			h.awaited = map[string]bool{}
		}
		h.awaited[id] = true
	}
}

func (h *chatHistory) result(id, output string) {
	delete(h.awaited, id)
	h.results = append(h.results, &chatMessage{Role: "tool", CallID: id, Content: text(output)})
}

// thoughts adds what the model thought, which engines that run locally want to have back
// while it works with tools.
func (h *chatHistory) thoughts(it *inputItem) {
	if h.c.r.upstream.Engine() == config.EngineOpenAI {
		return
	}
	var parts []struct{ Text string }
	_ = json.Unmarshal(it.Content, &parts) // what has no text has none to pass on
	var thoughts strings.Builder
	for _, p := range parts {
		thoughts.WriteString(p.Text)
	}
	if thoughts.String() == "" {
		return
	}
	h.flush()
	h.assistant().extra = map[string]json.RawMessage{"reasoning_content": text(thoughts.String())}
}

// message adds what somebody said.
func (h *chatHistory) message(it *inputItem) error {
	role := it.Role
	switch role {
	case "user", "system":
	case "developer": // which few engines know
		role = "system"
	case "assistant":
		content, err := h.content(it.Content)
		if err != nil {
			return err
		}
		h.flushResults()
		if h.said == nil || string(h.said.Content) != "null" || len(h.said.ToolCalls) > 0 {
			h.flush()
		}
		h.assistant().Content = content
		return nil
	default:
		return fmt.Errorf("the role %q is not supported", it.Role)
	}
	content, err := h.content(it.Content)
	if err != nil {
		return err
	}
	h.flush()
	if role == "system" && h.c.instruct(content) {
		return nil
	}
	h.c.add(&chatMessage{Role: role, Content: content})
	return nil
}

// content turns the content of a message: a text, or parts. A single text stays one.
func (h *chatHistory) content(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) > 0 && raw[0] == '"' {
		return raw, nil
	}
	var parts []inputPart
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil, fmt.Errorf("its content cannot be read: %w", err)
	}
	var out []json.RawMessage
	for i := range parts {
		part, err := parts[i].chat()
		if err != nil {
			return nil, fmt.Errorf("content[%d]: %w", i, err)
		}
		out = append(out, part)
	}
	if len(parts) == 1 && parts[0].says() {
		return text(parts[0].text()), nil
	}
	if len(out) == 0 {
		return text(""), nil
	}
	return array(out), nil
}

// inputPart is a part of a message, or of what a caller's function has brought.
type inputPart struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	Refusal  string          `json:"refusal"`
	ImageURL string          `json:"image_url"`
	Detail   string          `json:"detail"`
	FileData string          `json:"file_data"`
	FileName string          `json:"filename"`
	Audio    json.RawMessage `json:"input_audio"`
}

// says reports whether the part is a text.
func (p *inputPart) says() bool {
	switch p.Type {
	case "input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal":
		return true
	}
	return false
}

func (p *inputPart) text() string {
	if p.Type == "refusal" {
		return p.Refusal
	}
	return p.Text
}

// chat returns the part as chat completions have it.
func (p *inputPart) chat() (json.RawMessage, error) {
	switch {
	case p.says():
		return textPart(p.text()), nil
	case p.Type == "input_image" && p.ImageURL == "":
		return nil, errors.New("an image needs image_url; files are not kept here")
	case p.Type == "input_image":
		return imagePart(p.ImageURL, p.Detail), nil
	case p.Type == "input_file" && p.FileData == "":
		return nil, errors.New("a file needs file_data; files are neither kept nor fetched here")
	case p.Type == "input_file":
		return object("type", text("file"), "file", object("filename", text(p.FileName), "file_data", text(p.FileData))), nil
	case p.Type == "input_audio" && !isObject(p.Audio):
		return nil, errors.New("a sound needs input_audio")
	case p.Type == "input_audio":
		return object("type", text("input_audio"), "input_audio", p.Audio), nil
	}
	return nil, fmt.Errorf("parts of the type %q are not supported", p.Type)
}

func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// output turns what a caller's function has brought: a text, or parts. Those that are no text
// are shown behind the results, with a word in their place; a picture is not, if the models
// take none.
func (h *chatHistory) output(raw json.RawMessage) (said string, shown []json.RawMessage, err error) {
	if json.Unmarshal(raw, &said) == nil {
		return said, nil, nil
	}
	var parts []inputPart
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", nil, fmt.Errorf("its output is neither a text nor an array of parts")
	}
	lines := make([]string, len(parts))
	for i := range parts {
		p := &parts[i]
		part, err := p.chat()
		switch {
		case err != nil:
			return "", nil, fmt.Errorf("output[%d]: %w", i, err)
		case p.says():
			lines[i] = p.text()
		case p.Type == "input_image" && !h.c.r.upstream.Images():
			lines[i] = "[an image, which cannot be shown]"
		default:
			lines[i] = "[" + strings.TrimPrefix(p.Type, "input_") + ", shown below]"
			shown = append(shown, part)
		}
	}
	return strings.Join(lines, "\n"), shown, nil
}
