package loop

import (
	"slices"
	"strings"
)

// composer makes items of what comes of one answer of a model, piece by piece, and tells
// of them as they grow. Where the pieces come from is the speaker's business.
type composer struct {
	r       *Run
	open    *Item              // the message or reasoning that grows, nil if none does
	growing [3]strings.Builder // its text, refusal and thoughts, since adding each piece to a string would copy all before it
	calls   []*modelCall       // in the order in which they began
	dropped int                // calls beyond the first of a serial turn
	finish  string             // StatusCompleted, or MaxTokens or ContentFilter; "" while the model has not ended
	usage   Usage
}

// modelCall is a tool's call by the model.
type modelCall struct {
	id        string // by the model, or ours if it gives none
	name      string // as far as it came
	arguments strings.Builder
	told      int   // bytes of arguments that were told of
	tool      *tool // nil if there is none of the name
	item      *Item // nil before the call was told of, and of a call that is dropped
	plain     bool  // a custom tool's arguments are its input, rather than an object that holds it
	settled   bool  // all of it has come
	dropped   bool
}

// text adds to the message that is being written.
func (c *composer) text(delta string) { c.say(Message, Text, delta) }

func (c *composer) refusal(delta string) { c.say(Message, Refusal, delta) }

func (c *composer) thoughts(delta string) { c.say(ReasoningItem, Reasoning, delta) }

func (c *composer) say(of ItemType, kind Kind, delta string) {
	if delta == "" {
		return
	}
	if c.open == nil || c.open.Type != of {
		c.close(StatusCompleted)
		c.open = c.r.begin(of)
		c.r.tell(Added, c.open, "")
	}
	text, grows := &c.open.Text, &c.growing[0]
	switch kind {
	case Refusal:
		text, grows = &c.open.Refusal, &c.growing[1]
	case Reasoning:
		text, grows = &c.open.Thoughts, &c.growing[2]
	}
	grows.WriteString(delta)
	*text = grows.String()
	c.r.tell(kind, c.open, delta)
}

// summary adds to a part of the summary of the reasoning that grows; a part that is not there
// yet is the next one.
func (c *composer) summary(part int, delta string) {
	if c.open == nil || c.open.Type != ReasoningItem || delta == "" {
		return
	}
	if n := len(c.open.Summary); n == 0 || part >= n {
		c.open.Summary = append(c.open.Summary, "")
		c.growing[0].Reset()
	}
	c.growing[0].WriteString(delta) // a reasoning has no text
	c.open.Summary[len(c.open.Summary)-1] = c.growing[0].String()
	c.r.tell(Summary, c.open, delta)
}

// start begins a message or reasoning. Its id is ours, so that who is told of it can refer to
// it (B.5.9), but for a reasoning under an id of the upstream's: what is encrypted in it is
// good under that id only.
func (c *composer) start(of ItemType, id, phase string) {
	c.close(StatusCompleted)
	c.open = c.r.begin(of)
	if of == ReasoningItem && id != "" {
		c.open.ID = id
	}
	c.open.Phase = phase
	c.r.tell(Added, c.open, "")
}

// close ends the message or reasoning that grows.
func (c *composer) close(status string) {
	if c.open != nil {
		c.open.Status = status
		c.r.tell(Done, c.open, "")
		c.open = nil
		c.growing = [3]strings.Builder{}
	}
}

// call begins a call.
func (c *composer) call(id string) *modelCall {
	c.close(StatusCompleted)
	k := &modelCall{id: id}
	if c.r.t.Serial && len(c.calls) > c.dropped {
		k.dropped = true
		c.dropped++
	}
	c.calls = append(c.calls, k)
	return k
}

// named adds to the name of a call. Some engines repeat a name with each piece, fewer send
// it in pieces: a piece is taken for one if it leads to a name that is there (C-46).
func (c *composer) named(k *modelCall, piece string) {
	leads := func(name string) bool {
		return slices.ContainsFunc(c.r.tools.tools, func(x *tool) bool { return strings.HasPrefix(x.name, name) })
	}
	switch {
	case piece == "", k.item != nil:
	case k.name == "", k.name != piece && leads(k.name+piece) || !leads(piece) && leads(k.name+piece):
		k.name += piece
	}
}

// argued adds to the arguments of a call.
func (c *composer) argued(k *modelCall, delta string) {
	if delta == "" {
		return
	}
	k.arguments.WriteString(delta)
	if k.name != "" {
		c.announce(k)
		c.argue(k)
	}
}

// announce tells of a call whose name is known, if it can be told of before it is complete.
func (c *composer) announce(k *modelCall) {
	if k.item != nil || k.dropped {
		return
	}
	if k.id == "" {
		k.id = NewID("call_")
	}
	if k.tool = c.r.tools.find(k.name); k.tool != nil && !c.r.t.Choice.allows(k.tool) {
		k.tool = nil
	}
	switch {
	case k.tool == nil && !c.r.servesTools():
		k.item = c.r.begin(FunctionCall) // whatever the model means, it is the caller's to say
	case k.tool == nil:
		k.item = c.r.begin(ToolCall)
		k.item.Label, k.item.Name = c.r.t.Servers[0].Label, k.name
	case k.tool.function != nil && k.tool.function.Custom, k.tool.approval:
		return // it is another thing than its arguments say so far
	case k.tool.function != nil:
		k.item = c.r.begin(FunctionCall)
	default:
		k.item = c.r.begin(ToolCall)
		k.item.Label, k.item.Name = k.tool.server.Label, k.tool.listed.Name
	}
	if k.item.Type == FunctionCall {
		k.item.CallID, k.item.Name = k.id, k.name
	}
	c.r.tell(Added, k.item, "")
}

// argue tells of the arguments that were not told of yet.
func (c *composer) argue(k *modelCall) {
	if k.item == nil {
		return
	}
	if all := k.arguments.String(); k.told < len(all) {
		delta := all[k.told:]
		k.told = len(all)
		k.item.Arguments = all
		c.r.tell(Arguments, k.item, delta)
	}
}

// settle is told that all of a call has come. complete is false if the model was cut off.
func (c *composer) settle(k *modelCall, complete bool) {
	if k.settled {
		return
	}
	k.settled = true
	if k.arguments.Len() == 0 && !k.plain {
		k.arguments.WriteString("{}") // which models leave out where there are none
	}
	c.announce(k)
	c.argue(k)
	switch {
	case k.dropped:
	case k.item == nil && !complete: // nothing was told of it, and nothing can be made of it
	case k.item == nil && k.tool.function != nil:
		k.item = c.r.begin(CustomCall)
		k.item.CallID, k.item.Name = k.id, k.name
		c.r.tell(Added, k.item, "")
		if k.item.Arguments = k.arguments.String(); !k.plain {
			k.item.Arguments = customInput(k.item.Arguments)
		}
		c.r.tell(Arguments, k.item, k.item.Arguments)
		c.finishCall(k, StatusCompleted)
	case k.item == nil:
		k.item = c.r.begin(ApprovalRequest)
		k.item.Label, k.item.Name, k.item.Arguments = k.tool.server.Label, k.tool.listed.Name, k.arguments.String()
		k.item.ID = approvalID(k.item.ID, k.item.Label, k.item.Name, k.item.Arguments)
		c.r.tell(Added, k.item, "")
		c.r.tell(Done, k.item, "")
	case !complete:
		c.finishCall(k, StatusIncomplete)
	case k.item.Type == FunctionCall:
		c.finishCall(k, StatusCompleted)
	default: // it is run now
		c.r.tell(Called, k.item, "")
	}
}

func (c *composer) finishCall(k *modelCall, status string) {
	c.r.tell(Called, k.item, "")
	k.item.Status = status
	c.r.tell(Done, k.item, "")
}

// end is told that the answer has ended, and how.
func (c *composer) end(finish string) {
	c.finish = finish
	status := StatusCompleted
	if finish != StatusCompleted {
		status = StatusIncomplete
	}
	c.close(status)
	for _, k := range c.calls {
		c.settle(k, finish == StatusCompleted)
	}
}

// abandon is told that the answer broke off.
func (c *composer) abandon() { c.end(StatusIncomplete) }
