package dialect

import (
	"bytes"
	"slices"
	"strconv"

	"roundhouse/internal/wire"
)

// A node is a JSON value that can grow, as answers do over a stream. It is taken apart
// no further than it is used, and scalars and the insides of strings keep their
// spelling. A nil node is absent. Nodes refer to the text that they were parsed from.
type node struct {
	form    form
	raw     []byte
	members []member // of an object; in wholeForm what raw has, nil if that is not known
	elems   []*node  // of an array; in wholeForm likewise
}

type member struct {
	key   string
	value *node
}

type form uint8

const (
	wholeForm  form = iota // raw is the value
	textForm               // raw is what stands between the quotes of a string
	listForm               // raw is what stands between the brackets of an array
	objectForm             // members
	arrayForm              // elems
)

// parse returns the node of a text that was found valid.
func parse(raw []byte) *node { return &node{raw: whole(raw).Of(raw)} }

func newObject() *node { return &node{form: objectForm} }

func newArray() *node { return &node{form: arrayForm} }

func newText(s string) *node { return &node{raw: wire.Quote(s)} }

func newNull() *node { return &node{raw: []byte("null")} }

// kind returns the byte that the value starts with, '0' for any number, 0 if it is
// absent.
func (n *node) kind() byte {
	switch {
	case n == nil:
		return 0
	case n.form == textForm:
		return '"'
	case n.form == objectForm:
		return '{'
	case n.form == listForm || n.form == arrayForm:
		return '['
	case len(n.raw) == 0:
		return 0
	case n.raw[0] == '-' || n.raw[0] >= '0' && n.raw[0] <= '9':
		return '0'
	}
	return n.raw[0]
}

// isNullNode reports whether a value is absent or null: for answers that is the same.
func isNullNode(n *node) bool { return n.kind() == 0 || n.kind() == 'n' }

// open takes an object apart, and reports whether the value is one.
func (n *node) open() bool {
	if n.kind() != '{' {
		return false
	}
	if n.form == wholeForm && n.members == nil {
		var few [12]wire.Member // most objects have no more, and are then made in two pieces
		found := few[:0]
		for m, err := range wire.Members(n.raw) {
			if err == nil {
				found = append(found, m)
			}
		}
		n.members = make([]member, len(found))
		values := make([]node, len(found))
		for i, m := range found {
			values[i].raw = m.Value.Of(n.raw)
			n.members[i] = member{m.Key, &values[i]}
		}
	}
	n.form, n.raw = objectForm, nil
	return true
}

// all returns the members of an object, nil of anything else.
func (n *node) all() []member {
	if !n.open() {
		return nil
	}
	return n.members
}

// get returns a member of an object, nil if there is none. Of two of one name it is
// the last, as parsers have it.
func (n *node) get(key string) *node {
	for _, m := range slices.Backward(n.all()) {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// set gives an object a member.
func (n *node) set(key string, value *node) {
	n.open()
	for i, m := range slices.Backward(n.members) {
		if m.key == key {
			n.members[i].value = value
			return
		}
	}
	n.members = append(n.members, member{key, value})
}

// setFirst does so unless the object has one that is something.
func (n *node) setFirst(key string, value *node) {
	if had := n.get(key); isNullNode(had) || had.is("") {
		n.set(key, value)
	}
}

// setLast does so unless that would put nothing in the place of something.
func (n *node) setLast(key string, value *node) {
	if !isNullNode(value) || n.get(key) == nil {
		n.set(key, value)
	}
}

// items returns the elements of an array, nil of anything else.
func (n *node) items() []*node {
	if n.kind() != '[' {
		return nil
	}
	if n.form != arrayForm && n.elems == nil {
		raw := n.raw
		if n.form == listForm {
			raw = slices.Concat([]byte("["), raw, []byte("]"))
		}
		for span, err := range wire.Elements(raw) {
			if err == nil {
				n.elems = append(n.elems, parse(span.Of(raw)))
			}
		}
	}
	n.form, n.raw = arrayForm, nil
	return n.elems
}

// str returns the text of a string, "" of anything else.
func (n *node) str() string {
	if n.kind() != '"' {
		return ""
	}
	literal := n.raw
	if n.form == textForm {
		literal = n.append(nil)
	}
	text, err := wire.Text(literal)
	if err != nil {
		return ""
	}
	return text
}

// is reports whether the value is the string that s is, which needs no escapes.
func (n *node) is(s string) bool {
	if n.kind() != '"' {
		return false
	}
	inner := n.inner()
	return string(inner) == s || s != "" && bytes.IndexByte(inner, '\\') >= 0 && n.str() == s
}

// inner returns what stands between the quotes or brackets.
func (n *node) inner() []byte {
	if n.form == wholeForm {
		return n.raw[1 : len(n.raw)-1]
	}
	return n.raw
}

// growText appends the text of another string. Halves of a surrogate pair that came
// apart find together, since what is joined is the spelling.
func (n *node) growText(by *node) {
	if n.form == wholeForm {
		n.form, n.raw = textForm, slices.Clone(n.inner())
	}
	n.raw = append(n.raw, by.inner()...)
}

// growList appends the elements of another array.
func (n *node) growList(by *node) {
	if n.form == arrayForm || by.form == arrayForm {
		n.elems = append(n.items(), by.items()...)
		return
	}
	if n.form == wholeForm {
		n.form, n.raw, n.elems = listForm, slices.Clone(n.inner()), nil
	}
	more := by.inner()
	if whollySpace(more) {
		return
	}
	if !whollySpace(n.raw) {
		n.raw = append(n.raw, ',')
	}
	n.raw = append(n.raw, more...)
}

// append appends the value's text to dst.
func (n *node) append(dst []byte) []byte {
	switch {
	case n == nil:
		return append(dst, "null"...)
	case n.form == textForm:
		return append(append(append(dst, '"'), n.raw...), '"')
	case n.form == listForm:
		return append(append(append(dst, '['), n.raw...), ']')
	case n.form == objectForm:
		dst = append(dst, '{')
		for i, m := range n.members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(append(dst, wire.Quote(m.key)...), ':')
			dst = m.value.append(dst)
		}
		return append(dst, '}')
	case n.form == arrayForm:
		dst = append(dst, '[')
		for i, e := range n.elems {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = e.append(dst)
		}
		return append(dst, ']')
	}
	return append(dst, n.raw...)
}

// integer returns the value of an integer.
func (n *node) integer() (int64, bool) {
	if n.kind() != '0' {
		return 0, false
	}
	i, err := strconv.ParseInt(string(n.raw), 10, 64)
	return i, err == nil
}

// once reports whether deltas repeat a string rather than continue it.
func once(key string) bool {
	switch key {
	case "role", "type", "id", "name", "format", "object":
		return true
	}
	return false
}

// merge puts a delta into an object: texts are continued, arrays extended, objects
// merged, and anything else is replaced. null is nothing. It reports whether all of it
// fitted together.
func (n *node) merge(delta *node) bool {
	fits := true
	for _, m := range delta.all() {
		if !n.mergeMember(m.key, m.value) {
			fits = false
		}
	}
	return fits
}

func (n *node) mergeMember(key string, value *node) bool {
	had := n.get(key)
	switch a, b := had.kind(), value.kind(); {
	case isNullNode(value):
		if had == nil {
			n.set(key, value)
		}
	case isNullNode(had):
		n.set(key, value)
	case a == '"' && b == '"':
		if once(key) {
			n.setFirst(key, value)
		} else {
			had.growText(value)
		}
	case a == '{' && b == '{':
		return had.merge(value)
	case a == '[' && b == '[':
		return had.mergeArray(value)
	case had.is(""):
		n.set(key, value)
	case value.is(""):
	case scalarKind(a) != scalarKind(b):
		return false
	default:
		n.set(key, value)
	}
	return true
}

// scalarKind folds the kinds of scalars that may replace each other.
func scalarKind(k byte) byte {
	if k == 't' || k == 'f' {
		return 'b'
	}
	return k
}

// mergeArray extends an array. Elements with an index continue the one of the same
// index, id and type.
func (n *node) mergeArray(delta *node) bool {
	if !delta.indexed() {
		n.growList(delta)
		return true
	}
	fits := true
	for _, e := range delta.items() {
		had := n.matching(e)
		if had == nil {
			n.elems = append(n.items(), e)
			n.form, n.raw = arrayForm, nil
			continue
		}
		if !had.merge(e) {
			fits = false
		}
	}
	return fits
}

// indexed reports whether the elements of an array have an index, as its first one has.
// An array that is a text stays one.
func (n *node) indexed() bool {
	if n.form != wholeForm {
		list := n.items()
		return len(list) > 0 && list[0].get("index") != nil
	}
	if !bytes.Contains(n.raw, []byte("index")) && !bytes.Contains(n.raw, []byte(`\u`)) {
		return false // most have none, and need not be taken apart
	}
	for span, err := range wire.Elements(n.raw) {
		return err == nil && parse(span.Of(n.raw)).get("index") != nil
	}
	return false
}

func (n *node) matching(e *node) *node {
	index, ok := e.get("index").integer()
	if !ok {
		return nil
	}
	for _, had := range slices.Backward(n.items()) {
		if i, ok := had.get("index").integer(); ok && i == index && agree(had.get("id"), e.get("id")) && agree(had.get("type"), e.get("type")) {
			return had
		}
	}
	return nil
}

// agree reports whether two strings are the same, as far as both are there.
func agree(a, b *node) bool {
	x, y := a.str(), b.str()
	return x == "" || y == "" || x == y
}
