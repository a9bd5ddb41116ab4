package dialect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// response puts the events of a Responses stream together. The last event has the
// whole response; the items are for streams that do not come to it, and for engines
// that leave them out there.
type response struct {
	root  *node // the latest response object, nil before the first
	items []*item
	remarks
}

type item struct {
	index int64
	node  *node
}

func (a *response) add(event string, data *node) eventKind {
	kind := data.get("type").str()
	if kind == "" {
		kind = event
	}
	if r := data.get("response"); r.kind() == '{' {
		a.root = r
	}
	switch kind {
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		return finalEvent
	case "response.output_item.added", "response.output_item.done":
		index, _ := data.get("output_index").integer()
		if it := a.item(index); it != nil {
			it.node = data.get("item")
		} else {
			a.items = append(a.items, &item{index, data.get("item")})
		}
	case "response.content_part.added", "response.content_part.done":
		a.part(data, "content", "content_index", data.get("part"))
	case "response.reasoning_summary_part.added", "response.reasoning_summary_part.done":
		a.part(data, "summary", "summary_index", data.get("part"))
	default:
		if delta := data.get("delta"); delta.kind() == '"' {
			a.delta(strings.TrimSuffix(strings.TrimPrefix(kind, "response."), ".delta"), data, delta)
		}
	}
	return plainEvent
}

func (a *response) item(index int64) *item {
	for _, it := range a.items {
		if it.index == index {
			return it
		}
	}
	return nil
}

// part puts a part of an item in its place.
func (a *response) part(event *node, list, place string, part *node) {
	index, _ := event.get("output_index").integer()
	at, _ := event.get(place).integer()
	it := a.item(index)
	if it == nil || !it.node.open() || part == nil || at < 0 {
		return
	}
	if it.node.get(list).kind() != '[' {
		it.node.set(list, newArray())
	}
	parts := it.node.get(list)
	switch have := int64(len(parts.items())); {
	case at < have:
		parts.elems[at] = part
	case at == have:
		parts.elems = append(parts.elems, part)
	}
}

// delta continues a text of an item.
func (a *response) delta(of string, event, delta *node) {
	index, _ := event.get("output_index").integer()
	it := a.item(index)
	if it == nil || !it.node.open() {
		return
	}
	list, place, key := "content", "content_index", "text"
	switch of {
	case "output_text", "reasoning_text":
	case "refusal":
		key = "refusal"
	case "reasoning_summary_text":
		list, place = "summary", "summary_index"
	case "function_call_arguments", "mcp_call_arguments":
		a.fits(it.node.mergeMember("arguments", delta))
		return
	case "custom_tool_call_input":
		a.fits(it.node.mergeMember("input", delta))
		return
	default:
		return // the item's last event has it
	}
	at, _ := event.get(place).integer()
	if parts := it.node.get(list).items(); at >= 0 && at < int64(len(parts)) {
		a.fits(parts[at].open() && parts[at].mergeMember(key, delta))
	}
}

func (a *response) answer() *node {
	if !a.root.open() {
		return nil
	}
	if len(a.root.get("output").items()) == 0 && len(a.items) > 0 {
		slices.SortStableFunc(a.items, func(x, y *item) int { return cmp.Compare(x.index, y.index) })
		output := newArray()
		for _, it := range a.items {
			output.elems = append(output.elems, it.node)
		}
		a.root.set("output", output)
	}
	return a.root
}

// judgeResponse reads the verdict off a response object.
func judgeResponse(r *Result, root *node) {
	usage := root.get("usage")
	r.Usage = Usage{count(usage, "input_tokens"), count(usage, "output_tokens")}
	r.Finish = root.get("status").str()
	if root.get("output").kind() != '[' {
		r.worsen(Unparsed, "the response has no output")
		return
	}
	switch r.Finish {
	case "completed":
	case "incomplete":
		reason := root.get("incomplete_details").get("reason").str()
		if reason == "content_filter" {
			r.flag(FlagContentFilter)
		}
		r.worsen(Truncated, fmt.Sprintf("the response is incomplete: %s", cmp.Or(reason, "it does not say why")))
	case "queued", "in_progress":
		r.worsen(UpstreamCut, "the response is not finished")
	case "":
		r.worsen(Unparsed, "the response has no status")
	default:
		r.worsen(UpstreamError, fmt.Sprintf("the response ended with status %q", r.Finish))
	}
	if len(root.get("output").items()) == 0 && r.Finish == "completed" && r.Usage.Output > 0 {
		r.flag(FlagEmpty)
	}
}
