package dialect

import (
	"cmp"
	"fmt"
	"slices"

	"roundhouse/internal/wire"
)

// message puts the events of an Anthropic message together (A.11).
type message struct {
	root   *node // nil before message_start
	blocks []*block
	remarks
}

// block is one content block, which comes in pieces.
type block struct {
	index  int64
	node   *node
	input  *node // the text of its input that came in pieces, nil if none did
	closed bool
}

func (a *message) add(event string, data *node) eventKind {
	kind := data.get("type").str()
	if kind == "" {
		kind = event
	}
	switch kind {
	case "content_block_start", "content_block_delta", "message_delta":
		if a.root == nil {
			a.misfit = true
			a.root = newObject()
		}
	}
	switch kind {
	case "message_start":
		if a.root = data.get("message"); !a.root.open() {
			a.misfit = true
			a.root = newObject()
		}
	case "content_block_start":
		a.start(data)
	case "content_block_delta":
		a.delta(data)
	case "content_block_stop":
		if b := a.block(data); b != nil {
			b.closed = true
		}
	case "message_delta":
		return a.messageDelta(data)
	case "message_stop":
		return finalEvent
	}
	return plainEvent
}

// block returns the block that an event is about: the latest of its index, since some
// engines give one index to several.
func (a *message) block(event *node) *block {
	index, _ := event.get("index").integer()
	for _, b := range slices.Backward(a.blocks) {
		if b.index == index {
			return b
		}
	}
	return nil
}

func (a *message) start(event *node) {
	if before := a.block(event); before != nil && !before.closed {
		a.flags = append(a.flags, FlagRepaired)
	}
	index, _ := event.get("index").integer()
	b := &block{index: index, node: event.get("content_block")}
	if !b.node.open() {
		a.misfit = true
		return
	}
	a.blocks = append(a.blocks, b)
}

func (a *message) delta(event *node) {
	b := a.block(event)
	if b == nil {
		a.misfit = true
		return
	}
	if b.closed {
		// Some engines go back to a block when the pieces of several tools alternate.
		a.flags = append(a.flags, FlagRepaired)
	}
	delta := event.get("delta")
	for _, m := range delta.all() {
		switch m.key {
		case "type":
		case "partial_json":
			switch {
			case m.value.kind() != '"':
			case b.input == nil:
				b.input = m.value
			default:
				b.input.growText(m.value)
			}
		case "citation":
			if b.node.get("citations").kind() != '[' {
				b.node.set("citations", newArray())
			}
			list := b.node.get("citations")
			list.elems = append(list.items(), m.value)
		default:
			a.fits(b.node.mergeMember(m.key, m.value))
		}
	}
	for _, m := range event.all() {
		if perToken(m.key) {
			a.fits(a.root.mergeMember(m.key, m.value))
		}
	}
}

// messageDelta takes what is known at the end. The counts of usage are of the whole
// message, whatever was said before.
func (a *message) messageDelta(event *node) eventKind {
	kind := plainEvent
	for _, m := range event.all() {
		switch m.key {
		case "type":
		case "delta":
			for _, d := range m.value.all() {
				a.root.setLast(d.key, d.value)
			}
			if m.value.get("stop_reason").str() != "" {
				kind = terminalEvent
			}
		case "usage":
			if a.root.get("usage").kind() != '{' {
				a.root.set("usage", newObject())
			}
			for _, u := range m.value.all() {
				a.root.get("usage").setLast(u.key, u.value)
			}
		default:
			if perToken(m.key) {
				a.fits(a.root.mergeMember(m.key, m.value))
			} else {
				a.root.setLast(m.key, m.value)
			}
		}
	}
	return kind
}

func (a *message) answer() *node {
	if a.root == nil {
		return nil
	}
	slices.SortStableFunc(a.blocks, func(x, y *block) int { return cmp.Compare(x.index, y.index) })
	content := newArray()
	for _, b := range a.blocks {
		if !b.closed {
			a.flags = append(a.flags, FlagRepaired)
		}
		if b.input != nil && len(b.input.inner()) > 0 {
			// What is no JSON is kept as the text that the model wrote.
			b.node.set("input", b.input)
			if text := []byte(b.input.str()); wire.Valid(text) == nil && parse(text).kind() == '{' {
				b.node.set("input", parse(text))
			}
		}
		content.elems = append(content.elems, b.node)
	}
	if len(a.blocks) > 0 || a.root.get("content").kind() != '[' {
		a.root.set("content", content)
	}
	return a.root
}

// judgeMessage reads the verdict off an Anthropic message (A.8).
func judgeMessage(r *Result, root *node) {
	content := root.get("content")
	if content.kind() != '[' {
		r.worsen(Unparsed, "the message has no content")
		return
	}
	usage := root.get("usage")
	r.Usage = Usage{count(usage, "input_tokens"), count(usage, "output_tokens")}
	r.Finish = root.get("stop_reason").str()
	switch r.Finish {
	case "end_turn", "tool_use":
	case "max_tokens", "model_context_window_exceeded":
		r.worsen(Truncated, "the message ended at a limit of length")
	case "stop_sequence":
		// Engines pass off their errors as this, without a sequence.
		if isNullNode(root.get("stop_sequence")) {
			r.worsen(UpstreamError, "the message ended with a stop sequence that is none")
		}
	case "pause_turn":
		r.flag(FlagPauseTurn)
	case "refusal":
		r.flag(FlagRefusal)
	case "":
		r.worsen(UpstreamCut, "the message does not say why it ended")
	default:
		r.worsen(UpstreamError, fmt.Sprintf("the message ended with stop_reason %q", r.Finish))
	}
	blocks := content.items()
	for _, b := range blocks {
		if b.get("type").str() == "tool_use" && b.get("input").kind() != '{' {
			r.flag(FlagBadToolJSON)
		}
	}
	if len(blocks) == 0 && r.Usage.Output > 0 {
		r.flag(FlagEmpty)
	}
}
