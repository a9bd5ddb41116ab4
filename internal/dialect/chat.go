package dialect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"roundhouse/internal/wire"
)

// perToken reports whether engines send a member of a chunk or a choice piece by piece.
func perToken(key string) bool {
	return key == "token_ids" || key == "output_ids" || key == "output_token_logprobs"
}

// completion is what chunks are no longer when they are put together. It does not change.
var completion = newText("chat.completion")

// chatAnswer puts the chunks of a chat completion together (A.11).
type chatAnswer struct {
	tools   []string
	root    *node // nil before the first chunk
	choices []*chatChoice
	remarks
}

type chatChoice struct {
	index   int64
	node    *node
	message *node
	calls   []*toolCall
}

// toolCall is one call of a tool, which comes in pieces.
type toolCall struct {
	index    int64
	indexed  bool
	node     *node
	function *node // nil if the call is of another type
}

func (a *chatAnswer) add(event string, chunk *node) eventKind {
	if a.root == nil {
		a.root = newObject()
	}
	kind := plainEvent
	for _, m := range chunk.all() {
		switch {
		case m.key == "choices":
			if a.root.get("choices") == nil {
				a.root.set("choices", newArray())
			}
			for i, choice := range m.value.items() {
				if a.addChoice(int64(i), choice) {
					kind = terminalEvent
				}
			}
		case m.key == "object":
			a.root.setFirst("object", completion)
		case m.key == "id" || m.key == "model" || m.key == "created":
			a.root.setFirst(m.key, m.value)
		case perToken(m.key):
			a.fits(a.root.mergeMember(m.key, m.value))
		default:
			a.root.setLast(m.key, m.value)
		}
	}
	return kind
}

// addChoice reports whether the piece of a choice says why it ended.
func (a *chatAnswer) addChoice(position int64, piece *node) (ended bool) {
	index, ok := piece.get("index").integer()
	if !ok {
		index = position
	}
	c := a.choice(index)
	for _, m := range piece.all() {
		switch {
		case m.key == "index":
		case m.key == "delta" || m.key == "message":
			a.addDelta(c, m.value)
		case m.key == "finish_reason":
			ended = m.value.str() != ""
			if ended || c.node.get(m.key) == nil {
				c.node.set(m.key, m.value)
			}
		case m.key == "logprobs" || perToken(m.key):
			a.fits(c.node.mergeMember(m.key, m.value))
		default:
			c.node.setLast(m.key, m.value)
		}
	}
	return ended
}

func (a *chatAnswer) choice(index int64) *chatChoice {
	for _, c := range a.choices {
		if c.index == index {
			return c
		}
	}
	c := &chatChoice{index: index, node: newObject(), message: newObject()}
	c.node.set("index", &node{raw: fmt.Append(nil, index)})
	c.node.set("message", c.message)
	a.choices = append(a.choices, c)
	return c
}

func (a *chatAnswer) addDelta(c *chatChoice, delta *node) {
	for _, m := range delta.all() {
		if m.key != "tool_calls" {
			value := m.value
			if m.key == "content" {
				value = c.content(value)
			}
			a.fits(c.message.mergeMember(m.key, value))
			continue
		}
		for _, piece := range m.value.items() {
			a.addToolCall(c, piece)
		}
	}
}

// content returns a piece of a message's content in the form of the pieces before it. Some
// APIs send what a model thinks in parts, and what it says as text.
func (c *chatChoice) content(piece *node) *node {
	had := c.message.get("content")
	part := func(text *node) *node {
		p := newObject()
		p.set("type", newText("text"))
		p.set("text", text)
		return &node{form: arrayForm, elems: []*node{p}}
	}
	switch {
	case had.kind() == '"' && !had.is("") && piece.kind() == '[':
		c.message.set("content", part(had))
	case had.kind() == '[' && piece.kind() == '"' && !piece.is(""):
		if parts := had.items(); len(parts) > 0 {
			if last := parts[len(parts)-1]; last.get("type").is("text") && last.get("text").kind() == '"' {
				last.get("text").growText(piece)
				return newNull() // it has its place
			}
		}
		return part(piece)
	}
	return piece
}

func (a *chatAnswer) addToolCall(c *chatChoice, piece *node) {
	call := c.call(piece)
	for _, m := range piece.all() {
		switch m.key {
		case "index":
		case "function":
			if isNullNode(m.value) {
				continue
			}
			if call.function == nil {
				call.function = newObject()
				call.node.set("function", call.function)
			}
			a.addFunction(call.function, m.value)
		default:
			a.fits(call.node.mergeMember(m.key, m.value))
		}
	}
}

func (a *chatAnswer) addFunction(function, piece *node) {
	for _, m := range piece.all() {
		if m.key == "name" && m.value.kind() == '"' {
			if name := a.joinName(function.get("name").str(), m.value.str()); name != "" {
				function.set("name", newText(name))
			}
			continue
		}
		a.fits(function.mergeMember(m.key, m.value))
	}
}

// joinName joins what came of a function's name with a further piece of it. Engines
// that repeat the name are more common than engines that split it: the piece is taken
// as one only if it leads to the name of a tool that was declared.
func (a *chatAnswer) joinName(name, piece string) string {
	if name == "" || piece == "" {
		return name + piece
	}
	if slices.Contains(a.tools, name) && piece == name {
		return name
	}
	if slices.ContainsFunc(a.tools, func(tool string) bool { return strings.HasPrefix(tool, name+piece) }) {
		return name + piece
	}
	return name
}

// call returns the call that a piece belongs to. The key is the index and the id;
// where they are missing, a piece with a name begins a call if the one before is
// complete.
func (c *chatChoice) call(piece *node) *toolCall {
	index, indexed := piece.get("index").integer()
	id := piece.get("id").str()
	name := piece.get("function").get("name").str()
	more := piece.get("function").get("arguments").str()
	for _, call := range slices.Backward(c.calls) {
		if indexed && (!call.indexed || call.index != index) {
			continue
		}
		had := call.node.get("id").str()
		switch {
		case id != "" && had != "":
			if id == had {
				return call
			}
		case name != "" && call.complete() && (!indexed || more != "" || name != call.function.get("name").str()):
			return c.newCall(index, indexed)
		default:
			return call
		}
	}
	return c.newCall(index, indexed)
}

func (c *chatChoice) newCall(index int64, indexed bool) *toolCall {
	call := &toolCall{index: index, indexed: indexed, node: newObject()}
	c.calls = append(c.calls, call)
	return call
}

// complete reports whether the call has all of its arguments.
func (t *toolCall) complete() bool {
	arguments := t.function.get("arguments").str()
	return arguments != "" && wire.Valid([]byte(arguments)) == nil
}

// answer returns what came of the answer, nil if nothing did.
func (a *chatAnswer) answer() *node {
	if a.root == nil {
		return nil
	}
	slices.SortStableFunc(a.choices, func(x, y *chatChoice) int { return cmp.Compare(x.index, y.index) })
	choices := newArray()
	for _, c := range a.choices {
		c.message.setFirst("role", newText("assistant"))
		c.message.setLast("content", newNull())
		if len(c.calls) > 0 {
			slices.SortStableFunc(c.calls, func(x, y *toolCall) int { return cmp.Compare(x.index, y.index) })
			calls := newArray()
			for _, call := range c.calls {
				calls.elems = append(calls.elems, call.node)
			}
			c.message.set("tool_calls", calls)
		}
		choices.elems = append(choices.elems, c.node)
	}
	a.root.set("choices", choices)
	return a.root
}

// judgeChat reads the verdict off a chat completion (A.8).
func judgeChat(r *Result, root *node) {
	choices := root.get("choices").items()
	if len(choices) == 0 {
		r.worsen(Unparsed, "the answer has no choices")
		return
	}
	if len(choices) > 1 {
		r.flag(FlagChoices)
	}
	usage := root.get("usage")
	r.Usage = Usage{count(usage, "prompt_tokens"), count(usage, "completion_tokens")}
	said := false
	for i, choice := range choices {
		message := choice.get("message")
		if message.kind() != '{' {
			r.worsen(Unparsed, "a choice has no message")
			return
		}
		finish := choice.get("finish_reason").str()
		if i == 0 {
			r.Finish = finish
		}
		switch finish {
		case "stop", "tool_calls", "function_call":
		case "content_filter":
			r.flag(FlagContentFilter)
		case "length":
			r.worsen(Truncated, "the answer ended at a limit of length")
		case "":
			r.worsen(UpstreamCut, "the answer does not say why it ended")
		default:
			r.worsen(UpstreamError, fmt.Sprintf("the answer ended with finish_reason %q", finish))
		}
		if message.get("refusal").str() != "" {
			r.flag(FlagRefusal)
		}
		for _, call := range message.get("tool_calls").items() {
			if function := call.get("function"); function.kind() == '{' && wire.Valid([]byte(function.get("arguments").str())) != nil && function.get("arguments").kind() != '{' {
				r.flag(FlagBadToolJSON)
			}
		}
		for _, m := range message.all() {
			said = said || m.key != "role" && says(m.value)
		}
	}
	if !said && r.Usage.Output > 0 {
		r.flag(FlagEmpty)
	}
}

// says reports whether a value holds anything.
func says(n *node) bool {
	switch n.kind() {
	case '"':
		return len(n.inner()) > 0
	case '[':
		return len(n.items()) > 0
	}
	return !isNullNode(n)
}
