package dialect

import (
	"errors"
	"slices"
	"strconv"

	"roundhouse/internal/wire"
)

var errUnclean = errors.New("what was asked for on the side cannot be stripped from the answer")

// strips reports whether answers have what the client did not ask for.
func (c *Call) strips() bool { return len(c.strip) > 0 }

// A cleaner strips an answer, or an event of one, of what only roundhouse asked for,
// and finds its texts.
type cleaner struct {
	*editor
	call  *Call
	strip []string
	// text takes the string at a span, ended says that no more of a text comes. Both
	// are nil if nothing is to be scrubbed.
	text  func(key textKey, at wire.Span)
	ended func(index int64)
	err   error
}

// clean collects what is to be changed in a piece: an event, whose data is event, or an
// answer that is no stream, if event is nil.
func (c *Call) clean(p *piece, scrub *scrubber, event *node) error {
	if !c.strips() && c.endOfText == "" {
		return nil
	}
	data := p.frame.data
	cl := &cleaner{editor: &editor{raw: data}, call: c, strip: c.strip}
	if c.stripUsage && event != nil {
		cl.strip = append(slices.Clip(c.strip), "usage")
		p.dropped = countsOnly(event)
	}
	if c.endOfText != "" {
		cl.text = func(key textKey, at wire.Span) { scrub.text(key, p, data, at) }
		cl.ended = scrub.end
	}
	cl.answer(whole(data))
	p.edits = append(p.edits, cl.edits...)
	return cl.err
}

// countsOnly reports whether a chunk is there for its counts of tokens alone.
func countsOnly(chunk *node) bool {
	choices := chunk.get("choices")
	return choices.kind() == '[' && len(choices.items()) == 0 && !isNullNode(chunk.get("usage"))
}

// cleaned returns an answer that is no stream as the client is to see it.
func (c *Call) cleaned(body []byte) ([]byte, error) {
	if !c.strips() && c.endOfText == "" {
		return body, nil
	}
	p := &piece{frame: &frame{data: body}}
	scrub := &scrubber{stop: c.endOfText}
	if err := c.clean(p, scrub, nil); err != nil {
		return nil, err
	}
	e := &editor{raw: body, edits: p.edits}
	return e.apply(), nil
}

// object is editor's, with the names that are stripped dropped.
func (c *cleaner) object(at wire.Span, visit func(key string, value wire.Span)) {
	err := c.editor.object(at, func(key string, value wire.Span) verb {
		if slices.Contains(c.strip, key) || c.first(value) == '{' && c.inside(key, value) {
			return drop
		}
		visit(key, value)
		return keep
	})
	if err != nil {
		c.err = err
	}
}

// inside strips what is stripped of a member that stays otherwise, and reports whether
// nothing of it would stay.
func (c *cleaner) inside(key string, at wire.Span) (nothing bool) {
	leads := func(path string) bool { return len(path) > len(key) && path[len(key)] == '.' && path[:len(key)] == key }
	if !slices.ContainsFunc(c.strip, leads) {
		return false
	}
	stripped := func(name string) bool { return slices.Contains(c.strip, key+"."+name) }
	all := parse(at.Of(c.raw)).all()
	switch n := len(slices.DeleteFunc(slices.Clone(all), func(m member) bool { return stripped(m.key) })); {
	case n == len(all):
		return false
	case n == 0:
		return true
	}
	_ = c.editor.object(at, func(name string, _ wire.Span) verb { return verb(stripped(name)) })
	return false
}

// each visits the objects of an array. Whatever else stands there cannot be cleaned.
func (c *cleaner) each(at wire.Span, visit func(i int64, element wire.Span)) {
	switch c.first(at) {
	case 'n':
		return
	case '[':
	default:
		c.err = errUnclean
		return
	}
	i := int64(0)
	err := c.elements(at, func(element wire.Span) error {
		if c.first(element) != '{' {
			return errUnclean
		}
		visit(i, element)
		i++
		return nil
	})
	if err != nil {
		c.err = err
	}
}

func (c *cleaner) answer(at wire.Span) {
	if c.call.api == Chat {
		c.object(at, func(key string, value wire.Span) {
			if key == "choices" {
				c.each(value, c.choice)
			}
		})
		return
	}
	root := parse(at.Of(c.raw))
	index, _ := root.get("index").integer()
	c.object(at, func(key string, value wire.Span) {
		switch kind := c.first(value); {
		case key == "message" && kind == '{':
			c.object(value, func(string, wire.Span) {})
		case key == "content" && kind == '[':
			c.each(value, func(i int64, block wire.Span) { c.texts(i, block) })
		case (key == "delta" || key == "content_block") && kind == '{':
			c.texts(index, value)
		}
	})
	if c.ended != nil && root.get("type").str() == "content_block_stop" {
		c.ended(index)
	}
}

func (c *cleaner) choice(position int64, at wire.Span) {
	if c.text == nil {
		c.object(at, func(string, wire.Span) {})
		return
	}
	choice := parse(at.Of(c.raw))
	index, ok := choice.get("index").integer()
	if !ok {
		index = position
	}
	c.object(at, func(key string, value wire.Span) {
		if (key == "delta" || key == "message") && c.first(value) == '{' {
			c.texts(index, value)
		}
	})
	if choice.get("finish_reason").str() != "" || len(choice.get("delta").get("tool_calls").items()) > 0 {
		c.ended(index)
	}
}

// prose has the members whose texts are scrubbed.
var prose = []string{"content", "reasoning", "reasoning_content", "text", "thinking"}

// texts finds the texts in a delta, a message or a block.
func (c *cleaner) texts(index int64, at wire.Span) {
	if c.text == nil {
		return
	}
	_ = c.editor.object(at, func(key string, value wire.Span) verb {
		switch kind := c.first(value); {
		case !slices.Contains(prose, key):
		case kind == '"':
			c.text(textKey{index, key}, value)
		case kind == '[':
			// A message's content may be in parts.
			c.each(value, func(i int64, part wire.Span) {
				_ = c.editor.object(part, func(name string, value wire.Span) verb {
					if name == "text" && c.first(value) == '"' {
						c.text(textKey{index, key + strconv.FormatInt(i, 10)}, value)
					}
					return keep
				})
			})
		}
		return keep
	})
}

// finish adds to the verdict on an answer what it tells of tokens, and how the client
// may see it. body is the text of root.
func (c *Call) finish(r *Result, root *node, body []byte) error {
	if c.engine == SGLang { // of others the metadata may be the client's own
		r.Weights = root.get("metadata").get("weight_version").str()
	}
	tokens, fits := tokensOf(c.api, root)
	if len(tokens) == 1 && r.Usage.Output >= 0 && !c.engine.counts(int64(len(tokens[0].Output)), r.Usage.Output) {
		// Some streams lack the ids of what a parser of tools swallowed.
		fits = false
	}
	switch {
	case !fits:
		r.flag(FlagTokenMismatch)
	case len(tokens) > 0:
		r.Tokens = tokens
		if slices.ContainsFunc(tokens, func(t Tokens) bool { return t.Prompt == nil }) {
			r.flag(FlagNoPromptIDs)
		}
	case c.wantsIDs:
		r.flag(FlagNoTokens)
	}
	var err error
	r.Response, err = c.cleaned(body)
	return err
}

// Whole reads an answer that is no stream. Tail is the body for the client.
func (c *Call) Whole(body []byte, opts Options) Result {
	at := whole(body)
	if at.Start == at.End || body[at.Start] != '{' || wire.Valid(body) != nil {
		return Result{
			Outcome: Unparsed, Reason: "the answer is no JSON object", Usage: Usage{-1, -1},
			Tail: body, Release: opts.Lenient && !c.strips(),
		}
	}
	root := parse(body)
	r := judge(c.api, root)
	if isError(root) {
		r.Response, r.Tail, r.Release = body, body, true
		return *r
	}
	if err := c.finish(r, root, body); err != nil {
		r.Outcome, r.Reason = Unparsed, err.Error()
		return *r
	}
	r.Tail = r.Response
	background := c.api == Responses && (r.Finish == "queued" || r.Finish == "in_progress")
	if background {
		r.flag(FlagBackground)
	}
	r.Release = r.Outcome.Good() || opts.Lenient || background
	return *r
}
