//go:build unix

package process

import (
	"bytes"
	"os"
)

// carries reports whether an environment gives the variable name one of the
// values.
func carries(env [][]byte, name string, values map[string]bool) bool {
	for _, v := range env {
		if value, ok := bytes.CutPrefix(v, []byte(name+"=")); ok && values[string(value)] {
			return true
		}
	}
	return false
}

// survivors returns what lives of the servers with these markers: whoever carries
// one in its environment or belongs to session, and all their descendants. session
// must be the id of a process of ours that nobody has reaped, or 0. This process and
// its ancestors are never among them.
func survivors(markers map[string]bool, session int) ([]entry, error) {
	t, err := readTable()
	if err != nil {
		return nil, err
	}
	return t.owned(session, t.above(os.Getpid()), func(pid int) bool {
		return carries(environ(pid), markerVar, markers)
	}), nil
}

// owned returns the living processes that belong to session or are marked, and
// all their descendants, but none of the spared, which are a process and all its
// ancestors.
func (t table) owned(session int, spare map[int]bool, marked func(pid int) bool) []entry {
	var out []entry
	var roots []int
	for _, e := range t {
		if e.zombie || spare[e.pid] {
			continue
		}
		if session != 0 && e.session == session || marked(e.pid) {
			out = append(out, e)
			roots = append(roots, e.pid)
		}
	}
	// A root is no ancestor of the spared, so these are not below it.
	return append(out, t.below(roots...)...)
}
