//go:build unix

package process

import "time"

// maxDepth is how many generations a walk follows (P3).
const maxDepth = 64

// entry is one row of the process table.
type entry struct {
	pid, parent    int
	group, session int    // 0 where the platform has none
	start          uint64 // in units and from an origin of the platform's choice; with pid it names a process
	name           string
	cpu            time.Duration // run so far
	rss            int64         // bytes
	zombie         bool          // it has ended, and its parent does not know yet
}

// info converts an entry for our callers.
func (e entry) info() Info {
	return Info{PID: e.pid, PPID: e.parent, Name: e.name, Start: wallTime(e.start), CPU: e.cpu, RSS: e.rss}
}

// infos converts entries for our callers.
func infos(list []entry) []Info {
	var out []Info
	for _, e := range list {
		out = append(out, e.info())
	}
	return out
}

// table is one snapshot of all processes.
type table []entry

// below returns the living descendants of the processes roots, without these,
// parents before children. Cycles end it no less than leaves do, and the limits of P3 hold.
func (t table) below(roots ...int) []entry { return t.kin().below(roots...) }

// kin is a table in which many walks begin.
type kin struct {
	table
	children map[int][]int // pid → places of its children in the table
}

func (t table) kin() kin {
	k := kin{t, make(map[int][]int, len(t))}
	for i, e := range t {
		k.children[e.parent] = append(k.children[e.parent], i)
	}
	return k
}

// below is that of the table.
func (k kin) below(roots ...int) []entry {
	seen := make(map[int]bool, len(roots))
	for _, r := range roots {
		seen[r] = true
	}
	var out []entry
	for depth := 0; depth < maxDepth && len(roots) > 0; depth++ {
		var next []int
		for _, r := range roots {
			for _, i := range k.children[r] {
				e := k.table[i]
				if seen[e.pid] || e.zombie {
					continue
				}
				if len(out) == maxProcesses {
					return out
				}
				seen[e.pid] = true
				out = append(out, e)
				next = append(next, e.pid)
			}
		}
		roots = next
	}
	return out
}

// above returns pid and its ancestors.
func (t table) above(pid int) map[int]bool {
	parents := make(map[int]int, len(t))
	for _, e := range t {
		parents[e.pid] = e.parent
	}
	out := map[int]bool{}
	for pid > 0 && !out[pid] {
		out[pid] = true
		pid = parents[pid]
	}
	return out
}

// identity names a process for ever, unlike its pid.
type identity struct {
	pid   int
	start uint64
}

func (e entry) identity() identity { return identity{e.pid, e.start} }
