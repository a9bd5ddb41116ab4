package responses

import (
	"encoding/json"
	"time"

	"roundhouse/internal/loop"
)

// object is a response as the API has it.
type object struct {
	ID                 string            `json:"id"`
	Object             string            `json:"object"`
	CreatedAt          int64             `json:"created_at"`
	CompletedAt        *int64            `json:"completed_at"`
	Status             string            `json:"status"`
	Background         bool              `json:"background"`
	Error              *objectError      `json:"error"`
	IncompleteDetails  *incomplete       `json:"incomplete_details"`
	Instructions       json.RawMessage   `json:"instructions"`
	MaxOutputTokens    json.RawMessage   `json:"max_output_tokens"`
	MaxToolCalls       *int              `json:"max_tool_calls"`
	Model              string            `json:"model"`
	Output             []json.RawMessage `json:"output"`
	ParallelToolCalls  bool              `json:"parallel_tool_calls"`
	PreviousResponseID *string           `json:"previous_response_id"`
	PromptCacheKey     json.RawMessage   `json:"prompt_cache_key,omitempty"`
	Reasoning          json.RawMessage   `json:"reasoning"`
	SafetyIdentifier   json.RawMessage   `json:"safety_identifier,omitempty"`
	ServiceTier        json.RawMessage   `json:"service_tier"`
	Store              bool              `json:"store"`
	Temperature        json.RawMessage   `json:"temperature"`
	Text               json.RawMessage   `json:"text"`
	ToolChoice         json.RawMessage   `json:"tool_choice"`
	Tools              []json.RawMessage `json:"tools"`
	TopLogprobs        json.RawMessage   `json:"top_logprobs"`
	TopP               json.RawMessage   `json:"top_p"`
	Truncation         json.RawMessage   `json:"truncation"`
	Usage              *usage            `json:"usage"`
	User               json.RawMessage   `json:"user"`
	Metadata           json.RawMessage   `json:"metadata"`
}

type objectError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type usage struct {
	Input        int64 `json:"input_tokens"`
	InputDetails struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Output        int64 `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int64 `json:"total_tokens"`
}

// render returns the response in a state. What it says of its request is what was sent,
// without secrets.
func (r *run) render(status string, out *loop.Outcome) []byte {
	q := r.request
	o := object{
		ID: r.id, Object: "response", CreatedAt: r.created.Unix(), Status: status, Background: q.background,
		Instructions: q.member("instructions", "null"), MaxOutputTokens: q.member("max_output_tokens", "null"), Model: q.task.Model,
		Output: []json.RawMessage{}, ParallelToolCalls: !q.task.Serial, PromptCacheKey: q.member("prompt_cache_key", ""),
		Reasoning: q.member("reasoning", `{"effort":null,"summary":null}`), SafetyIdentifier: q.member("safety_identifier", ""),
		ServiceTier: q.member("service_tier", `"default"`), Store: q.store && r.unkept == nil, Temperature: q.member("temperature", "1.0"),
		Text: q.member("text", `{"format":{"type":"text"}}`), ToolChoice: q.member("tool_choice", `"auto"`), Tools: q.shownTools,
		TopLogprobs: q.member("top_logprobs", "0"), TopP: q.member("top_p", "1.0"), Truncation: q.member("truncation", `"disabled"`),
		User: q.member("user", "null"), Metadata: q.member("metadata", "{}"),
	}
	if q.task.MaxCalls > 0 {
		o.MaxToolCalls = &q.task.MaxCalls
	}
	if q.previous != "" {
		o.PreviousResponseID = &q.previous
	}
	if status == statusCompleted {
		o.CompletedAt = new(time.Now().Unix())
	}
	if out != nil {
		for i := range out.Output {
			o.Output = append(o.Output, out.Output[i].JSON())
		}
		u := &usage{Input: out.Usage.Input, Output: out.Usage.Output, Total: out.Usage.Input + out.Usage.Output}
		u.InputDetails.Cached, u.OutputDetails.Reasoning = out.Usage.Cached, out.Usage.Reasoning
		o.Usage = u
		if out.Err != nil {
			o.Error = &objectError{out.Err.Code, out.Err.Message}
		}
		if out.Reason != "" {
			o.IncompleteDetails = &incomplete{out.Reason}
		}
	}
	b, err := json.Marshal(o)
	if err != nil {
		panic("responses: a response cannot be written: " + err.Error()) // what is raw in it was valid when it came
	}
	return b
}
