package loop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"roundhouse/internal/config"
	"roundhouse/internal/dialect"
	"roundhouse/internal/session"
)

// peer speaks to an upstream of the Responses API itself, in which the conversation goes as
// it is, but for what only roundhouse knows: calls of servers' tools are calls of functions
// there.
type peer struct {
	r     *Run
	input []peerItem
	album *album
}

// peerItem is an item of the upstream's input.
type peerItem struct {
	raw   json.RawMessage
	shown *page // in its place: what tools have shown, or nil
}

// MarshalJSON implements json.Marshaler.
func (i peerItem) MarshalJSON() ([]byte, error) {
	if i.shown != nil {
		return object("type", text("message"), "role", text("user"), "content", array(i.shown.parts)), nil
	}
	return i.raw, nil
}

func newPeer(r *Run) *peer { return &peer{r: r, album: newAlbum(r.engine.cfg.Limits.MaxImages)} }

func (p *peer) add(raw json.RawMessage) { p.input = append(p.input, peerItem{raw: raw}) }

// remind implements speaker.
func (p *peer) remind(raw json.RawMessage) error {
	it, err := readItem(raw)
	if err != nil {
		return err
	}
	if p.r.dangles(it) {
		return nil
	}
	switch it.Type {
	case string(ToolList), string(ApprovalRequest):
	case string(ToolCall):
		p.call(it.ID, session.PublicName(it.Label, it.Name), it.Arguments)
		p.result(it.ID, toolOutput(it))
	case "mcp_approval_response":
		if r := p.r.asked[it.RequestID]; r != nil && !*it.Approve {
			p.call(r.ID, session.PublicName(r.Label, r.Name), r.Arguments)
			p.result(r.ID, declined(it.Reason))
		}
	case "item_reference":
		return fmt.Errorf("items of the type %q are not supported", it.Type)
	case string(ReasoningItem):
		var v struct {
			Encrypted string `json:"encrypted_content"`
		}
		if json.Unmarshal(raw, &v) == nil && v.Encrypted != "" { // else it is another's, or nothing that could go on
			p.add(raw)
		}
	default:
		p.add(without(raw, "id", "status"))
	}
	return nil
}

// without returns an object less some members: an id of ours is nothing to an upstream that
// keeps no responses.
func without(raw json.RawMessage, names ...string) json.RawMessage {
	var v map[string]json.RawMessage
	if json.Unmarshal(raw, &v) != nil {
		return raw
	}
	for _, name := range names {
		delete(v, name)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return raw
	}
	return b
}

func (p *peer) call(id, name, arguments string) {
	p.add(object("type", text("function_call"), "call_id", text(id), "name", text(name), "arguments", text(arguments)))
}

func (p *peer) result(id, output string) {
	p.add(object("type", text("function_call_output"), "call_id", text(id), "output", text(output)))
}

// answer implements speaker.
func (p *peer) answer(results []*result) {
	for _, res := range results {
		p.result(res.callID, res.text)
	}
	shown := p.album.add(results,
		func(s string) json.RawMessage { return object("type", text("input_text"), "text", text(s)) },
		func(v Picture) json.RawMessage {
			return object("type", text("input_image"), "image_url", text(v.URL()), "detail", text("auto"))
		})
	if shown != nil {
		p.input = append(p.input, peerItem{shown: shown})
	}
}

// check implements speaker.
func (p *peer) check() error {
	_, err := p.request(true)
	return err
}

// request is the body of the next call.
func (p *peer) request(first bool) ([]byte, error) {
	t := p.r.t
	body := map[string]any{"model": t.Model, "input": p.input, "stream": true, "store": false}
	if t.Instructions != "" {
		body["instructions"] = t.Instructions
	}
	if p.r.upstream.Engine() == config.EngineOpenAI {
		body["include"] = []string{"reasoning.encrypted_content"} // without it what was thought is lost between turns
	}
	for name, value := range t.Settings {
		if _, ours := body[name]; ours || string(value) == "null" {
			continue
		}
		body[name] = value
		if name == "max_output_tokens" {
			var most int64
			if err := json.Unmarshal(value, &most); err != nil || most < 1 {
				return nil, errors.New("max_output_tokens must be a positive integer")
			}
			body[name] = max(1, most-p.r.usage.Output)
		}
	}
	p.r.offer(first, func(x *tool) any {
		if x.function != nil {
			return x.function.Raw
		}
		return map[string]any{"type": "function", "name": x.name, "description": x.description(), "parameters": x.listed.Schema, "strict": false}
	}, func(name string, x *tool) any {
		kind := "function"
		if x.function != nil && x.function.Custom {
			kind = "custom"
		}
		return map[string]string{"type": kind, "name": name}
	}, body)
	return json.Marshal(body)
}

// turn implements speaker.
func (p *peer) turn(ctx context.Context, co *composer, first bool) error {
	body, err := p.request(first)
	if err != nil {
		return &Failure{Status: http.StatusBadRequest, Code: "invalid_request_error", Message: err.Error()}
	}
	reader := &peerReader{co: co, calls: map[int]*modelCall{}}
	if err := p.r.ask(ctx, dialect.Responses, "/v1/responses", body, reader); err != nil {
		return err
	}
	for _, raw := range reader.said {
		p.add(raw)
	}
	return nil
}

// peerReader reads one answer.
type peerReader struct {
	co    *composer
	calls map[int]*modelCall // by output_index
	said  []json.RawMessage  // the items, as they are to be sent back
	done  bool               // the response has ended
}

// peerEvent is an event of the stream.
type peerEvent struct {
	Type     string          `json:"type"`
	Index    int             `json:"output_index"`
	Item     json.RawMessage `json:"item"`
	Delta    string          `json:"delta"`
	Summary  int             `json:"summary_index"`
	Response *peerResponse   `json:"response"`
	Message  string          `json:"message"`
	Code     string          `json:"code"`
}

type peerResponse struct {
	Status     string            `json:"status"`
	Output     []json.RawMessage `json:"output"`
	Error      json.RawMessage   `json:"error"`
	Incomplete struct {
		Reason string `json:"reason"`
	} `json:"incomplete_details"`
	Usage struct {
		Input        int64 `json:"input_tokens"`
		Output       int64 `json:"output_tokens"`
		InputDetails struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		OutputDetails struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
	} `json:"usage"`
}

// event implements answerReader.
func (p *peerReader) event(data []byte) error {
	var v peerEvent
	if err := json.Unmarshal(data, &v); err != nil {
		return unreadable(err)
	}
	return p.take(&v, data)
}

// ended implements answerReader.
func (p *peerReader) ended() bool { return p.done }

// whole implements answerReader.
func (p *peerReader) whole(body []byte) error {
	var v peerResponse
	if err := json.Unmarshal(body, &v); err != nil {
		return unreadable(err)
	}
	for i, item := range v.Output {
		p.added(i, item)
		p.told(item)
		p.itemEnded(i, item)
	}
	return p.finish(&v)
}

// take takes an event.
func (p *peerReader) take(e *peerEvent, data []byte) error {
	switch e.Type {
	case "response.output_item.added":
		p.added(e.Index, e.Item)
	case "response.output_text.delta":
		p.co.text(e.Delta)
	case "response.refusal.delta":
		p.co.refusal(e.Delta)
	case "response.reasoning_text.delta":
		p.co.thoughts(e.Delta)
	case "response.reasoning_summary_text.delta":
		p.co.summary(e.Summary, e.Delta)
	case "response.function_call_arguments.delta", "response.custom_tool_call_input.delta":
		if k := p.calls[e.Index]; k != nil {
			p.co.argued(k, e.Delta)
		}
	case "response.output_item.done":
		p.itemEnded(e.Index, e.Item)
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		if e.Response == nil {
			return errCut
		}
		return p.finish(e.Response)
	case "error":
		if e.Message == "" {
			return upstreamFailure(http.StatusBadGateway, data)
		}
		return &Failure{Status: http.StatusBadGateway, Code: e.Code, Message: e.Message}
	}
	return nil
}

// peerOutput is an item of the upstream's output.
type peerOutput struct {
	Type      ItemType                `json:"type"`
	ID        string                  `json:"id"`
	CallID    string                  `json:"call_id"`
	Name      string                  `json:"name"`
	Arguments string                  `json:"arguments"`
	Input     string                  `json:"input"`
	Phase     string                  `json:"phase"`
	Summary   []struct{ Text string } `json:"summary"`
	Content   []struct {
		Type, Text, Refusal string
	} `json:"content"`
}

// added is told that an item begins.
func (p *peerReader) added(index int, raw json.RawMessage) {
	var it peerOutput
	if json.Unmarshal(raw, &it) != nil {
		return // of what cannot be read nothing can be told
	}
	switch it.Type {
	case Message, ReasoningItem:
		p.co.start(it.Type, it.ID, it.Phase)
	case FunctionCall, CustomCall:
		k := p.co.call(it.CallID)
		k.plain = it.Type == CustomCall
		p.co.named(k, it.Name)
		p.calls[index] = k
	}
}

// told tells of a whole item as of one that came in pieces.
func (p *peerReader) told(raw json.RawMessage) {
	var it peerOutput
	if json.Unmarshal(raw, &it) != nil {
		return
	}
	for i, part := range it.Summary {
		p.co.summary(i, part.Text)
	}
	for _, part := range it.Content {
		switch part.Type {
		case "output_text":
			p.co.text(part.Text)
		case "refusal":
			p.co.refusal(part.Refusal)
		case "reasoning_text":
			p.co.thoughts(part.Text)
		}
	}
}

// itemEnded is told that an item stays as it is.
func (p *peerReader) itemEnded(index int, raw json.RawMessage) {
	var it peerOutput
	if json.Unmarshal(raw, &it) != nil {
		return
	}
	switch k := p.calls[index]; {
	case k != nil:
		if k.arguments.Len() == 0 { // an engine that tells of arguments at the end only
			p.co.argued(k, it.Arguments+it.Input)
		}
		if k.dropped {
			return
		}
		p.said = append(p.said, without(raw, "id", "status"))
		return
	case it.Type == ReasoningItem:
		if p.co.open != nil && p.co.open.ID == it.ID {
			var whole bytes.Buffer
			if json.Compact(&whole, raw) == nil {
				p.co.open.raw = whole.Bytes() // its summary and what is encrypted in it are the upstream's
			}
		}
		p.said = append(p.said, raw)
	default:
		if it.Phase != "" && p.co.open != nil {
			p.co.open.Phase = it.Phase
		}
		p.said = append(p.said, without(raw, "id", "status"))
	}
	p.co.close(StatusCompleted)
}

// finish is told of the response as a whole.
func (p *peerReader) finish(v *peerResponse) error {
	u := v.Usage
	p.co.usage = Usage{u.Input, u.InputDetails.Cached, u.Output, u.OutputDetails.Reasoning}
	p.done = true
	switch v.Status {
	case "completed":
		p.co.end(StatusCompleted)
	case "incomplete":
		reason := v.Incomplete.Reason
		if reason == "" {
			reason = MaxTokens
		}
		p.co.end(reason)
	default:
		return upstreamFailure(http.StatusBadGateway, object("error", v.Error))
	}
	return nil
}
