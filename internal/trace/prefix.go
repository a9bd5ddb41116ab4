package trace

import "slices"

// tree joins sequences by their beginnings. Each entry is a prompt and an answer; it
// hangs on the longest earlier entry of which both together begin its prompt, and
// keeps only what it adds to that one.
type tree[T comparable] struct {
	nodes []node[T]
}

type node[T comparable] struct {
	parent   int // none is a root
	children []int
	at       int // where it begins: the size of its parent
	prompt   []T // what its prompt adds
	answer   []T
}

// none is no entry.
const none = -1

func (n *node[T]) size() int { return n.at + len(n.prompt) + len(n.answer) }

// place is where a prompt belongs.
type place struct {
	parent int // the longest entry that begins the prompt, or none
	near   int // the entry that has most in common with it, or none
	common int // how much that is
}

// find looks for the place of a prompt. Among parents of the same size, which have the
// same content, the one that better prefers counts; among near ones the latest. Only
// entries that may be a parent are. Of entries that go on from each other in what the
// prompt has not, the near one is the first.
func (t *tree[T]) find(prompt []T, may func(i int) bool, better func(i, than int) bool) place {
	p := place{parent: none, near: none, common: -1}
	var walk func(i int)
	walk = func(i int) {
		n := &t.nodes[i]
		rest := prompt[n.at:]
		same := common(n.prompt, rest)
		whole := same == len(n.prompt)
		if whole {
			more := common(n.answer, rest[same:])
			same, whole = same+more, more == len(n.answer)
		}
		if n.at+same > p.common || n.at+same == p.common && i > p.near {
			p.near, p.common = i, n.at+same
		}
		if !whole {
			return
		}
		if may(i) && (p.parent == none || n.size() > t.nodes[p.parent].size() ||
			n.size() == t.nodes[p.parent].size() && better(i, p.parent)) {
			p.parent = i
		}
		for _, child := range n.children {
			walk(child)
		}
	}
	for i := range t.nodes {
		if t.nodes[i].parent == none {
			walk(i)
		}
	}
	p.common = max(p.common, 0)
	return p
}

func common[T comparable](a, b []T) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// add makes an entry under a parent that find gave, and returns its number.
func (t *tree[T]) add(parent int, prompt, answer []T) int {
	n := node[T]{parent: parent, answer: slices.Clone(answer)}
	i := len(t.nodes)
	if parent != none {
		n.at = t.nodes[parent].size()
		t.nodes[parent].children = append(t.nodes[parent].children, i)
	}
	n.prompt = slices.Clone(prompt[n.at:])
	t.nodes = append(t.nodes, n)
	return i
}

// tip is the newest end of what goes on from i.
func (t *tree[T]) tip(i int) int {
	for len(t.nodes[i].children) > 0 {
		i = t.nodes[i].children[len(t.nodes[i].children)-1]
	}
	return i
}

// path is the entries from the root to i.
func (t *tree[T]) path(i int) (path []int) {
	for ; i != none; i = t.nodes[i].parent {
		path = append(path, i)
	}
	slices.Reverse(path)
	return path
}

// whole is the prompt and the answer of entry i.
func (t *tree[T]) whole(i int) []T {
	out := make([]T, 0, t.nodes[i].size())
	for _, j := range t.path(i) {
		out = append(append(out, t.nodes[j].prompt...), t.nodes[j].answer...)
	}
	return out
}

// row is a trajectory: the entries from the root to a leaf, and which of their answers
// are trained in this row and in no other.
type row struct {
	path    []int
	trained []bool // as long as path
}

// rows are the trajectories of the chosen entries: one for each that has no chosen
// one below it. Every chosen answer is trained in exactly one row, the first that has
// it; others are context.
func (t *tree[T]) rows(chosen func(i int) bool) (rows []row) {
	below := make([]bool, len(t.nodes)) // has a chosen one below it
	for i := len(t.nodes) - 1; i >= 0; i-- {
		if p := t.nodes[i].parent; p != none && (below[i] || chosen(i)) {
			below[p] = true
		}
	}
	done := make([]bool, len(t.nodes))
	for i := range t.nodes {
		if below[i] || !chosen(i) {
			continue
		}
		r := row{path: t.path(i)}
		for _, j := range r.path {
			r.trained = append(r.trained, chosen(j) && !done[j])
			done[j] = true
		}
		rows = append(rows, r)
	}
	return rows
}
