package dialect

import (
	"bytes"

	"roundhouse/internal/wire"
)

const (
	// smallEvent is how long the data of an event may be, in bytes, that is taken apart at
	// once. Most are much shorter; the nodes of a long one would be many, and few of them
	// are ever used.
	smallEvent = 4 << 10
	// usedDepth is how deep it is taken apart: as far as the members of the delta of a
	// choice. What is deeper is mostly carried as it is.
	usedDepth = 4
)

// A parser reads the data of a stream's events, which are much alike. Its zero value is
// ready.
type parser struct {
	items []wire.Item // of the text at hand
	names []string    // of the members of the text before, in their order
	named int         // how many of the text at hand have one

	// What is left of the pieces of memory that the text at hand is taken apart into.
	nodes   []node
	members []member
	elems   []*node
}

// parse returns the node of a text, or why it is none.
func (p *parser) parse(raw []byte) (*node, error) {
	if len(raw) > smallEvent {
		if err := wire.Valid(raw); err != nil {
			return nil, err
		}
		return parse(raw), nil
	}
	var err error
	if p.items, err = wire.Index(p.items[:0], raw, usedDepth); err != nil {
		return nil, err
	}
	p.makeRoom(raw)
	root := &carve(&p.nodes, 1)[0]
	p.fill(root, raw, 0)
	return root, nil
}

// makeRoom makes the pieces of memory that the text at hand needs.
func (p *parser) makeRoom(raw []byte) {
	members, elems := 0, 0
	for _, it := range p.items {
		if raw[it.Value.Start] == '{' {
			members += it.Count
		} else {
			elems += it.Count
		}
	}
	p.nodes, p.members, p.elems, p.named = make([]node, len(p.items)), make([]member, members), make([]*node, elems), 0
}

// carve takes n things off a piece of memory.
func carve[T any](piece *[]T, n int) []T {
	carved := (*piece)[:n:n]
	*piece = (*piece)[n:]
	return carved
}

// fill makes a node of the i-th item, and of what is inside it.
func (p *parser) fill(n *node, raw []byte, i int) {
	it := p.items[i]
	n.raw = it.Value.Of(raw)
	if it.Count == 0 {
		return
	}
	inside := carve(&p.nodes, it.Count)
	object := n.raw[0] == '{'
	if object {
		n.members = carve(&p.members, it.Count)
	} else {
		n.elems = carve(&p.elems, it.Count)
	}
	i++
	for k := range inside {
		if object {
			n.members[k] = member{p.name(p.items[i].Key.Of(raw)), &inside[k]}
		} else {
			n.elems[k] = &inside[k]
		}
		p.fill(&inside[k], raw, i)
		i += 1 + p.items[i].Items
	}
}

// name returns the text of a member's name. It is mostly the one that stood there in the
// text before, and need not be made again.
func (p *parser) name(literal []byte) string {
	i := p.named
	p.named++
	if i == len(p.names) {
		p.names = append(p.names, "")
	}
	inner := literal[1 : len(literal)-1]
	if p.names[i] != string(inner) || bytes.IndexByte(inner, '\\') >= 0 {
		p.names[i] = wire.Name(literal)
	}
	return p.names[i]
}
