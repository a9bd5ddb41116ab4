package loop

import (
	"crypto/rand"
	"encoding/json"
	"strconv"
	"strings"
)

// ItemType is what an item is, in the words of the Responses API.
type ItemType string

// The types of items that runs make.
const (
	Message         ItemType = "message"
	ReasoningItem   ItemType = "reasoning"
	FunctionCall    ItemType = "function_call"
	CustomCall      ItemType = "custom_tool_call"
	ToolList        ItemType = "mcp_list_tools"
	ToolCall        ItemType = "mcp_call"
	ApprovalRequest ItemType = "mcp_approval_request"
)

// prefixes of the ids of items.
var prefixes = map[ItemType]string{
	Message: "msg_", ReasoningItem: "rs_", FunctionCall: "fc_", CustomCall: "ctc_", ToolList: "mcpl_", ToolCall: "mcp_", ApprovalRequest: "mcpr_",
}

// NewID returns a random id with a prefix.
func NewID(prefix string) string { return prefix + strings.ToLower(rand.Text()) }

// ItemID returns the id of an item of a run. It says whose it is, since clients send items
// back without all that they hold.
func ItemID(of ItemType, run string, index int) string {
	return prefixes[of] + strings.TrimPrefix(run, RunPrefix) + "_" + strconv.Itoa(index)
}

// idLength is how long the part of an id is that is chance.
const idLength = 26

// RunOf returns the run of an item of any type, by its id. ok is false for an id that is not
// one of ours.
func RunOf(id string) (run string, ok bool) {
	_, name, _ := strings.Cut(id, "_")
	if len(name) < idLength {
		return "", false
	}
	return RunPrefix + name[:idLength], true
}

// RunPrefix begins the names of runs that are responses.
const RunPrefix = "resp_"

// The states of items.
const (
	StatusInProgress = "in_progress"
	StatusCompleted  = "completed"
	StatusIncomplete = "incomplete"
	StatusFailed     = "failed"
)

// Item is one item of what a run says and does. Which members it has depends on its type.
type Item struct {
	Index  int // its place in the output
	ID     string
	Type   ItemType
	Status string

	Text, Refusal string   // of a message
	Phase         string   // of a message, by the upstream: what it is to the answer as a whole; "" is none
	Thoughts      string   // of a reasoning
	Summary       []string // of a reasoning, by the upstream; its parts

	CallID    string // of a function's or custom tool's call, by the model
	Label     string // of the server
	Name      string // of the function or tool
	Arguments string // JSON, or a custom tool's input

	Output   string     // of a server's tool, for the model
	Pictures []Picture  // that came with it
	Err      *CallError // in place of Output
	Approval string     // the id of the request that was approved, or ""

	Tools     []ListedTool // of a list
	ListError string       // in place of Tools, or ""

	raw json.RawMessage // as the upstream gave it, if that speaks the Responses API
}

// ListedTool is a tool in a list.
type ListedTool struct {
	Name        string          `json:"name"`
	Schema      json.RawMessage `json:"input_schema"`
	Description string          `json:"description,omitempty"`
	Annotations json.RawMessage `json:"annotations,omitempty"`
}

// Picture is an image in a tool's result.
type Picture struct {
	MIME string
	Data string // base64
}

// URL returns the picture as a data URL.
func (p Picture) URL() string { return "data:" + p.MIME + ";base64," + p.Data }

// CallError is why a call of a server's tool has no output.
type CallError struct {
	Type    string // "mcp_protocol_error", "mcp_tool_execution_error" or "http_error"
	Code    int
	Message string
	Content json.RawMessage // of mcp_tool_execution_error: what the tool said
}

// The types of errors of calls.
const (
	ProtocolError  = "mcp_protocol_error"
	ExecutionError = "mcp_tool_execution_error"
	HTTPError      = "http_error"
)

// MarshalJSON returns the error as the API has it.
func (e *CallError) MarshalJSON() ([]byte, error) {
	if e.Type == ExecutionError {
		content := e.Content
		if content == nil {
			content = json.RawMessage("[]")
		}
		return json.Marshal(struct {
			Type    string          `json:"type"`
			Content json.RawMessage `json:"content"`
		}{e.Type, content})
	}
	return json.Marshal(struct {
		Type    string `json:"type"`
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{e.Type, e.Code, e.Message})
}

// Part is a part of a message's or a reasoning's content, as the API has it.
type Part struct {
	Type        string     `json:"type"`
	Text        *string    `json:"text,omitempty"`
	Refusal     *string    `json:"refusal,omitempty"`
	Annotations []struct{} `json:"annotations,omitzero"`
	Logprobs    []struct{} `json:"logprobs,omitzero"`
}

// TextPart is a part of a message that says something.
func TextPart(text string) Part {
	return Part{Type: "output_text", Text: &text, Annotations: []struct{}{}, Logprobs: []struct{}{}}
}

// RefusalPart is a part of a message that refuses something.
func RefusalPart(text string) Part { return Part{Type: "refusal", Refusal: &text} }

// ThoughtsPart is the part of a reasoning.
func ThoughtsPart(text string) Part { return Part{Type: "reasoning_text", Text: &text} }

// SummaryPart is a part of a reasoning's summary.
func SummaryPart(text string) Part { return Part{Type: "summary_text", Text: &text} }

// parts returns the content of a message.
func (it *Item) parts() []Part {
	parts := []Part{}
	if it.Text != "" {
		parts = append(parts, TextPart(it.Text))
	}
	if it.Refusal != "" {
		parts = append(parts, RefusalPart(it.Refusal))
	}
	return parts
}

// JSON returns the item as the API has it.
func (it *Item) JSON() json.RawMessage {
	if it.raw != nil {
		return it.raw
	}
	var v any
	switch it.Type {
	case Message:
		v = struct {
			ID      string   `json:"id"`
			Type    ItemType `json:"type"`
			Status  string   `json:"status"`
			Role    string   `json:"role"`
			Content []Part   `json:"content"`
			Phase   string   `json:"phase,omitempty"`
		}{it.ID, it.Type, it.Status, "assistant", it.parts(), it.Phase}
	case ReasoningItem:
		thoughts, summary := []Part{}, []Part{}
		for _, s := range it.Summary {
			summary = append(summary, SummaryPart(s))
		}
		if it.Thoughts != "" {
			thoughts = append(thoughts, ThoughtsPart(it.Thoughts))
		}
		v = struct {
			ID      string   `json:"id"`
			Type    ItemType `json:"type"`
			Summary []Part   `json:"summary"`
			Content []Part   `json:"content"`
			Status  string   `json:"status,omitempty"`
		}{it.ID, it.Type, summary, thoughts, it.Status}
	case FunctionCall:
		v = struct {
			ID        string   `json:"id"`
			Type      ItemType `json:"type"`
			Status    string   `json:"status"`
			CallID    string   `json:"call_id"`
			Name      string   `json:"name"`
			Arguments string   `json:"arguments"`
		}{it.ID, it.Type, it.Status, it.CallID, it.Name, it.Arguments}
	case CustomCall:
		v = struct {
			ID     string   `json:"id"`
			Type   ItemType `json:"type"`
			Status string   `json:"status"`
			CallID string   `json:"call_id"`
			Name   string   `json:"name"`
			Input  string   `json:"input"`
		}{it.ID, it.Type, it.Status, it.CallID, it.Name, it.Arguments}
	case ToolList:
		tools := it.Tools
		if tools == nil {
			tools = []ListedTool{}
		}
		v = struct {
			ID    string       `json:"id"`
			Type  ItemType     `json:"type"`
			Label string       `json:"server_label"`
			Tools []ListedTool `json:"tools"`
			Error *string      `json:"error,omitempty"`
		}{it.ID, it.Type, it.Label, tools, orNil(it.ListError)}
	case ToolCall:
		output := &it.Output
		if it.Err != nil || it.Status != StatusCompleted {
			output = nil
		}
		v = struct {
			ID        string     `json:"id"`
			Type      ItemType   `json:"type"`
			Status    string     `json:"status"`
			Label     string     `json:"server_label"`
			Name      string     `json:"name"`
			Arguments string     `json:"arguments"`
			Output    *string    `json:"output"`
			Error     *CallError `json:"error"`
			Approval  *string    `json:"approval_request_id"`
		}{it.ID, it.Type, it.Status, it.Label, it.Name, it.Arguments, output, it.Err, orNil(it.Approval)}
	case ApprovalRequest:
		v = struct {
			ID        string   `json:"id"`
			Type      ItemType `json:"type"`
			Label     string   `json:"server_label"`
			Name      string   `json:"name"`
			Arguments string   `json:"arguments"`
		}{it.ID, it.Type, it.Label, it.Name, it.Arguments}
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic("loop: an item cannot be written: " + err.Error()) // what is raw in it was valid when it came
	}
	return b
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
