package pool

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// Line is one line that a server wrote beside the protocol.
type Line struct {
	Connection string `json:"connection"` // its id
	EntryIndex int    `json:"entryIndex"`
	Text       string `json:"line"` // without a line end
}

// outputReader is a Link of which one can read on where one stopped, as all of ours are;
// another one has nothing to follow.
type outputReader interface {
	// OutputAfter returns what the server wrote after the first offset bytes, as far
	// as it is kept, and how many it wrote in all.
	OutputAfter(offset int64) (text []byte, total int64)
}

// OutputAfter implements outputReader.
func (l *stdioLink) OutputAfter(offset int64) ([]byte, int64) {
	return l.process.Stderr().After(offset)
}

// OutputAfter implements outputReader.
func (l *remoteLink) OutputAfter(offset int64) ([]byte, int64) { return l.notes.After(offset) }

// Follower reads on in the output of a server: that of its connections, of those that
// take their place after a restart or a loss, and of those that come later. It needs
// no closing. It must not be used concurrently.
type Follower struct {
	// Constant after Follow.
	pool *Pool
	name string

	// Owned by the caller of Next.
	first int                   // how many lines of each connection the first Next returns; then -1
	tails map[*connection]*tail // of those that lived at the last Next
	shown map[*entry]uint64     // the latest generation whose output is complete
}

// tail is where a Follower stands in the output of a connection.
type tail struct {
	entry  *entry
	offset int64
	rest   []byte // of a line without an end
}

// Follow returns a Follower of a server's output, whose first Next begins with the
// last lines of each connection.
func (p *Pool) Follow(name string, lines int) *Follower {
	return &Follower{pool: p, name: name, first: lines, tails: map[*connection]*tail{}, shown: map[*entry]uint64{}}
}

// Next returns the whole lines that were written since the last call, those of a
// connection together, those of ended connections first. It blocks nothing.
func (f *Follower) Next() []Line {
	live, failed := f.sources()
	var out []Line
	add := func(e *entry, lines []string) {
		if f.first >= 0 {
			lines = lines[max(0, len(lines)-f.first):]
		}
		id := f.pool.idOf(e)
		for _, l := range lines {
			out = append(out, Line{id, e.index, l})
		}
	}
	for _, c := range f.gone(live) {
		t := f.tails[c]
		add(t.entry, t.read(c, true))
		f.shown[t.entry] = max(f.shown[t.entry], c.generation)
		delete(f.tails, c)
	}
	for _, o := range failed { // it came and went between two calls, or before the first
		if f.shown[o.entry] < o.generation {
			add(o.entry, o.lines)
			f.shown[o.entry] = o.generation
		}
	}
	for _, s := range live {
		t := f.tails[s.conn]
		if t == nil {
			t = &tail{entry: s.entry}
			f.tails[s.conn] = t
		}
		add(s.entry, t.read(s.conn, false))
	}
	f.first = -1
	return out
}

// idOf returns an entry's id, which its first dial may change.
func (p *Pool) idOf(e *entry) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return e.id
}

// source is a connection whose output may grow.
type source struct {
	entry *entry
	conn  *connection
}

// leftover is what the last connection of a failed entry wrote.
type leftover struct {
	entry      *entry
	generation uint64
	lines      []string
}

// sources finds what there is to read, in the order of the entries, and forgets the
// entries that are no more.
func (f *Follower) sources() (live []source, failed []leftover) {
	p := f.pool
	known := map[*entry]bool{}
	p.mu.Lock()
	for _, e := range p.entries {
		if e.name != f.name {
			continue
		}
		known[e] = true
		if c := e.conn.Load(); c != nil {
			live = append(live, source{e, c})
		} else if e.written > 0 {
			failed = append(failed, leftover{e, e.written, e.output})
		}
	}
	for c, e := range p.dying {
		if e.name == f.name {
			known[e] = true
			live = append(live, source{e, c})
		}
	}
	p.mu.Unlock()
	for e := range f.shown {
		if !known[e] {
			delete(f.shown, e)
		}
	}
	slices.SortFunc(live, func(a, b source) int {
		return cmp.Or(cmp.Compare(a.entry.index, b.entry.index), cmp.Compare(a.conn.generation, b.conn.generation))
	})
	slices.SortFunc(failed, func(a, b leftover) int { return cmp.Compare(a.entry.index, b.entry.index) })
	return live, failed
}

// gone returns the connections that have ended since the last call, whose output is
// therefore complete.
func (f *Follower) gone(live []source) []*connection {
	var gone []*connection
	for c := range f.tails {
		if !slices.ContainsFunc(live, func(s source) bool { return s.conn == c }) {
			gone = append(gone, c)
		}
	}
	slices.SortFunc(gone, func(a, b *connection) int {
		return cmp.Or(cmp.Compare(f.tails[a].entry.index, f.tails[b].entry.index), cmp.Compare(a.generation, b.generation))
	})
	return gone
}

// longestRest is how long a line may become before what there is of it counts as one.
const longestRest = 64 << 10

// read returns the lines that are new, and if the connection has ended, also a last
// one without a line end. A line of which the beginning is lost is left out.
func (t *tail) read(c *connection, ended bool) []string {
	var text []byte
	if r, ok := c.link.(outputReader); ok {
		var total int64
		text, total = r.OutputAfter(t.offset)
		if lost := int64(len(text)) < total-t.offset; lost {
			_, text, _ = bytes.Cut(text, []byte("\n"))
			t.rest = nil
		}
		t.offset = total
	}
	text = append(t.rest, text...)
	t.rest = nil
	whole := bytes.LastIndexByte(text, '\n') + 1
	if !ended && len(text)-whole <= longestRest {
		text, t.rest = text[:whole:whole], text[whole:]
	}
	if len(text) == 0 {
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimSuffix(l, "\r")
	}
	return lines
}
