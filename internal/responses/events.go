package responses

import (
	"encoding/json"

	"roundhouse/internal/loop"
)

// teller tells of a loop in the events of the API, in their order (B.2).
type teller struct {
	r     *run
	parts map[int]*part // that grow, by the item's place
}

// part is the part of a message or a reasoning that grows.
type part struct {
	index int
	kind  loop.Kind // Text, Refusal, Reasoning or Summary
	text  []byte
}

// place names the kind of place that the part has in its item, and whole how the API calls it.
func (k *part) place() (place, whole string) {
	if k.kind == loop.Summary {
		return "summary_index", "reasoning_summary_part"
	}
	return "content_index", "content_part"
}

// part's events, by what grows.
var partEvents = map[loop.Kind]string{loop.Text: "output_text", loop.Refusal: "refusal", loop.Reasoning: "reasoning_text", loop.Summary: "reasoning_summary_text"}

func (k *part) json() json.RawMessage {
	text := string(k.text)
	p := loop.TextPart(text)
	switch k.kind {
	case loop.Refusal:
		p = loop.RefusalPart(text)
	case loop.Reasoning:
		p = loop.ThoughtsPart(text)
	case loop.Summary:
		p = loop.SummaryPart(text)
	}
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings
	}
	return b
}

var noLogprobs = json.RawMessage("[]")

// itemDone tells that an item stays as it is.
const itemDone = "response.output_item.done"

// observe takes a step of the loop.
func (t *teller) observe(e loop.Event) {
	it := &e.Item
	switch e.Kind {
	case loop.Added:
		t.r.tell("response.output_item.added", "output_index", it.Index, "item", it.JSON())
		switch it.Type {
		case loop.ToolList:
			t.aboutItem("response.mcp_list_tools.in_progress", it)
		case loop.ToolCall:
			t.aboutItem("response.mcp_call.in_progress", it)
		}
	case loop.Text, loop.Refusal, loop.Reasoning:
		t.grow(it, e.Kind, 0, e.Delta)
	case loop.Summary:
		t.grow(it, e.Kind, len(it.Summary)-1, e.Delta)
	case loop.Arguments:
		if name := argumentsOf[it.Type]; name != "" {
			t.aboutItem("response."+name+".delta", it, "delta", e.Delta)
		}
	case loop.Called:
		if it.Approval != "" {
			t.r.begun(it.Approval)
		}
		switch name := argumentsOf[it.Type]; {
		case name == "":
		case it.Type == loop.CustomCall:
			t.aboutItem("response."+name+".done", it, "input", it.Arguments)
		case it.Type == loop.FunctionCall:
			t.aboutItem("response."+name+".done", it, "name", it.Name, "arguments", it.Arguments)
		default:
			t.aboutItem("response."+name+".done", it, "arguments", it.Arguments)
		}
	case loop.Done:
		t.done(it)
	case loop.Ended:
		t.r.become(string(e.Outcome.Status), e.Outcome)
	}
}

// argumentsOf names the events about what a call is given.
var argumentsOf = map[loop.ItemType]string{
	loop.FunctionCall: "function_call_arguments", loop.CustomCall: "custom_tool_call_input", loop.ToolCall: "mcp_call_arguments",
}

func (t *teller) aboutItem(kind string, it *loop.Item, members ...any) {
	t.r.tell(kind, append([]any{"item_id", it.ID, "output_index", it.Index}, members...)...)
}

// grow tells of more of a text, in the part that it belongs to: of a summary in that of the
// index, else in the one that grows, or in a new one if that is of another kind.
func (t *teller) grow(it *loop.Item, kind loop.Kind, index int, delta string) {
	k := t.parts[it.Index]
	if k == nil || k.kind != kind || kind == loop.Summary && k.index != index {
		if k != nil {
			t.closePart(it, k)
			if kind != loop.Summary && k.kind != loop.Summary { // which are counted apart
				index = k.index + 1
			}
		}
		k = &part{index: index, kind: kind}
		t.parts[it.Index] = k
		place, whole := k.place()
		t.aboutItem("response."+whole+".added", it, place, k.index, "part", k.json())
	}
	k.text = append(k.text, delta...)
	place, _ := k.place()
	members := []any{place, k.index, "delta", delta}
	if kind == loop.Text {
		members = append(members, "logprobs", noLogprobs)
	}
	t.aboutItem("response."+partEvents[kind]+".delta", it, members...)
}

func (t *teller) closePart(it *loop.Item, k *part) {
	name := "text"
	if k.kind == loop.Refusal {
		name = "refusal"
	}
	place, whole := k.place()
	members := []any{place, k.index, name, string(k.text)}
	if k.kind == loop.Text {
		members = append(members, "logprobs", noLogprobs)
	}
	t.aboutItem("response."+partEvents[k.kind]+".done", it, members...)
	t.aboutItem("response."+whole+".done", it, place, k.index, "part", k.json())
}

// done tells that an item stays as it is.
func (t *teller) done(it *loop.Item) {
	if k := t.parts[it.Index]; k != nil {
		t.closePart(it, k)
		delete(t.parts, it.Index)
	}
	switch {
	case it.Type == loop.ToolList && it.ListError == "":
		t.aboutItem("response.mcp_list_tools.completed", it)
	case it.Type == loop.ToolList:
		t.aboutItem("response.mcp_list_tools.failed", it)
	case it.Type == loop.ToolCall && it.Status == loop.StatusCompleted:
		t.aboutItem("response.mcp_call.completed", it)
	case it.Type == loop.ToolCall:
		t.aboutItem("response.mcp_call.failed", it)
	}
	t.r.tell(itemDone, "output_index", it.Index, "item", it.JSON())
	t.r.checkpoint()
}
