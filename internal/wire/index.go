package wire

// Item is one value of a text that Index has taken apart.
type Item struct {
	Key   Span // of the member's name with its quotes; absent of what is no member
	Value Span
	Count int // how many of its members or elements are items
	Items int // how many of the items that follow it are inside it
}

// Index appends the items of the one JSON value that raw is to dst: the value, and behind
// each object and array what is in it, in the order of the text, but nothing that is
// inside more than deep others. It refuses what Valid refuses, and reads the text once.
func Index(dst []Item, raw []byte, deep int) ([]Item, error) {
	x := indexer{source(raw), deep, dst}
	end, err := x.value(x.t.space(0), 0)
	if err != nil {
		return dst, err
	}
	if end = x.t.space(end); end != len(raw) {
		return dst, broken(end, "something follows the value")
	}
	return x.items, x.t.checkUTF8()
}

type indexer struct {
	t     source
	deep  int
	items []Item
}

// value is source's, and appends what it reads.
func (x *indexer) value(i, depth int) (end int, err error) {
	at := len(x.items)
	x.items = append(x.items, Item{})
	count := 0
	switch {
	case depth < x.deep && i < len(x.t) && (x.t[i] == '{' || x.t[i] == '['):
		count, end, err = x.inside(i, depth+1)
	default:
		end, err = x.t.value(i, depth)
	}
	x.items[at] = Item{Value: Span{i, end}, Count: count, Items: len(x.items) - at - 1}
	return end, err
}

// inside reads the object or array that begins at i.
func (x *indexer) inside(i, depth int) (count, end int, err error) {
	if depth > maxDepth {
		return 0, i, broken(i, "nested too deeply")
	}
	w := walker{t: x.t, at: i, depth: depth}
	for object := x.t[i] == '{'; ; count++ {
		var ok bool
		var next int
		if object {
			ok = w.name()
			next = w.at
		} else {
			next, ok = w.step('[', ']')
		}
		if !ok {
			return count, w.at, w.err
		}
		at := len(x.items)
		if w.at, err = x.value(next, depth); err != nil {
			return count, w.at, err
		}
		x.items[at].Key = w.key
	}
}

// Name returns the text of a member's name, a valid literal. Half a surrogate pair is
// U+FFFD.
func Name(literal []byte) string { return name(literal[1 : len(literal)-1]) }
