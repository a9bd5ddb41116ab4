package dialect

import (
	"bytes"
	"slices"

	"roundhouse/internal/wire"
)

// An editor collects what is to be changed in a JSON text. All spans are offsets into
// the text; whatever is not edited keeps its spelling.
type editor struct {
	raw   []byte
	edits []wire.Edit
}

// verb says what becomes of a member of an object.
type verb bool

const (
	keep verb = false
	drop verb = true
)

// object asks visit about each member of the object at a span. visit may edit what is
// inside the member's value.
func (e *editor) object(at wire.Span, visit func(key string, value wire.Span) verb) error {
	raw := at.Of(e.raw)
	kept, dropped := -1, -1 // where the last kept member ends, and where the run of dropped ones starts
	end := 0                // where the last member ends
	for m, err := range wire.Members(raw) {
		if err != nil {
			return err
		}
		value := wire.Span{Start: at.Start + m.Value.Start, End: at.Start + m.Value.End}
		if visit(m.Key, value) == drop {
			if dropped < 0 {
				dropped = m.KeySpan.Start
			}
		} else {
			if dropped >= 0 {
				e.cut(at, dropped, m.KeySpan.Start)
			}
			kept, dropped = m.Value.End, -1
		}
		end = m.Value.End
	}
	if dropped >= 0 {
		if kept >= 0 {
			dropped = kept
		}
		e.cut(at, dropped, end)
	}
	return nil
}

// elements asks visit about each element of the array at a span.
func (e *editor) elements(at wire.Span, visit func(element wire.Span) error) error {
	for span, err := range wire.Elements(at.Of(e.raw)) {
		if err != nil {
			return err
		}
		if err := visit(wire.Span{Start: at.Start + span.Start, End: at.Start + span.End}); err != nil {
			return err
		}
	}
	return nil
}

func (e *editor) cut(in wire.Span, from, to int) {
	e.edits = append(e.edits, wire.Edit{At: wire.Span{Start: in.Start + from, End: in.Start + to}})
}

// replace gives the value at a span another text.
func (e *editor) replace(at wire.Span, with []byte) {
	e.edits = append(e.edits, wire.Edit{At: at, With: with})
}

// first returns the byte that tells of what kind the value at a span is.
func (e *editor) first(at wire.Span) byte { return e.raw[at.Start] }

// apply returns the text with everything done.
func (e *editor) apply() []byte {
	if len(e.edits) == 0 {
		return e.raw
	}
	slices.SortStableFunc(e.edits, func(a, b wire.Edit) int { return a.At.Start - b.At.Start })
	return wire.Splice(nil, e.raw, e.edits...)
}

// withMembers returns the object with members, each `"name":value`, added behind its
// last one.
func withMembers(object []byte, members [][]byte) []byte {
	if len(members) == 0 {
		return object
	}
	end := bytes.LastIndexByte(object, '}')
	last := end
	for last > 0 && isSpace(object[last-1]) {
		last--
	}
	added := bytes.Join(members, []byte(","))
	if object[last-1] != '{' {
		added = slices.Concat([]byte(","), added)
	}
	return slices.Concat(object[:last], added, object[last:])
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// whole is the span of a text's value, without the white space around it.
func whole(raw []byte) wire.Span {
	span := wire.Span{End: len(raw)}
	for span.Start < span.End && isSpace(raw[span.Start]) {
		span.Start++
	}
	for span.End > span.Start && isSpace(raw[span.End-1]) {
		span.End--
	}
	return span
}
