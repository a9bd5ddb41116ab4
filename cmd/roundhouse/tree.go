package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"roundhouse/internal/control"
	"roundhouse/internal/pool"
	"roundhouse/internal/session"
)

// joinJSON prints two answers of the daemon, which are objects, as one.
func joinJSON(w io.Writer, answers ...json.RawMessage) error {
	all := map[string]json.RawMessage{}
	for _, raw := range answers {
		if err := decode(raw, &all); err != nil {
			return err
		}
	}
	return json.NewEncoder(w).Encode(all)
}

// branch is a line of a tree and what is below it.
type branch struct {
	name, state, cpu, memory, why string
	below                         []branch
}

// printTree prints the daemon, and sessions, their connections, and the processes of
// these; connections that are nobody's, or not for the caller to know whose, come last.
func printTree(w io.Writer, sessions []session.Info, lives control.Lives) error {
	connections := lives.Connections
	used := map[string]string{} // connection → the session at which it is shown
	daemon := processBranch(lives.Daemon.Process, "daemon "+oneLine(lives.Daemon.Version))
	daemon.why = "up for " + time.Since(lives.Daemon.StartedAt).Round(time.Second).String()
	roots := []branch{daemon}
	for _, s := range sessions {
		b := branch{name: fmt.Sprintf("%s (%s)", s.ID, oneLine(s.Principal)), state: string(s.State)}
		if s.InFlight > 0 {
			b.state += ", " + counted(s.InFlight, "call")
		}
		for _, c := range connections {
			if !slices.Contains(s.Connections, c.ID) {
				continue
			}
			below := connectionBranch(c)
			if at := used[c.ID]; at != "" && at != s.ID {
				below = branch{name: below.name, state: "shared, see " + at}
			} else {
				used[c.ID] = s.ID
			}
			b.below = append(b.below, below)
		}
		roots = append(roots, b)
	}
	others, free := branch{name: "(other principals)"}, branch{name: "(no session)"}
	for _, c := range connections {
		switch {
		case used[c.ID] != "":
		case c.Refs > 0:
			others.below = append(others.below, connectionBranch(c))
		default:
			free.below = append(free.below, connectionBranch(c))
		}
	}
	stray := branch{name: "(no connection)"}
	for _, p := range lives.Others {
		b := processBranch(p.Process, p.Name)
		b.why = p.Why
		stray.below = append(stray.below, b)
	}
	for _, b := range []branch{others, free, stray} {
		if len(b.below) > 0 {
			roots = append(roots, b)
		}
	}
	t := newTable(w, "SESSION", "STATE", "CPU", "MEMORY", "WHY")
	for _, b := range roots {
		b.print(t, "", "")
	}
	return t.Flush()
}

// connectionBranch is a connection and its processes, with what they use together.
func connectionBranch(c pool.Info) branch {
	b := branch{name: fmt.Sprintf("%s [%d]", oneLine(c.Server), c.EntryIndex), state: stateOf(c), why: c.Why, below: processBranches(c.Processes)}
	var ms, bytes int64
	for _, p := range c.Processes {
		ms += p.CPUMs
		bytes += p.RSSBytes
	}
	if bytes > 0 { // else it is not known
		b.cpu, b.memory = cpu(ms), memory(bytes)
	}
	return b
}

// processBranch is a process without those below it.
func processBranch(p pool.Process, name string) branch {
	b := branch{name: fmt.Sprintf("%d %s", p.PID, oneLine(name))}
	if p.RSSBytes > 0 { // else it is not known
		b.cpu, b.memory = cpu(p.CPUMs), memory(p.RSSBytes)
	}
	return b
}

// processBranches puts processes, parents before children, below their parents. The
// first one's parent is ours, as are all that lost theirs.
func processBranches(list []pool.Process) []branch {
	known := map[int]bool{}
	children := map[int][]pool.Process{}
	for _, p := range list {
		parent := p.PPID
		if !known[parent] {
			parent = 0
		}
		known[p.PID] = true
		children[parent] = append(children[parent], p)
	}
	var under func(pid int) []branch
	under = func(pid int) []branch {
		var out []branch
		for _, p := range children[pid] {
			name := p.Name
			if p.Role == pool.RoleReaper {
				name = string(p.Role)
			}
			b := processBranch(p, name)
			b.below = under(p.PID)
			out = append(out, b)
		}
		return out
	}
	return under(0)
}

// print prints the branch in a line that begins with lead, and what is below it in lines
// that begin with rest.
func (b branch) print(w io.Writer, lead, rest string) {
	fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\t%s\n", lead, b.name, b.state, b.cpu, b.memory, oneLine(b.why))
	for i, x := range b.below {
		if i < len(b.below)-1 {
			x.print(w, rest+"├─ ", rest+"│  ")
		} else {
			x.print(w, rest+"└─ ", rest+"   ")
		}
	}
}

func cpu(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).Round(10 * time.Millisecond).String()
}

func memory(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }
