package control_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"roundhouse/internal/control"
	"roundhouse/internal/pool"
)

// underUs lists the living processes below this one, as /proc tells it.
func underUs(t *testing.T) map[int]bool {
	t.Helper()
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	parents := map[int]int{}
	for _, d := range dirs {
		var pid, parent int
		var state string
		if _, err := fmt.Sscan(d.Name(), &pid); err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue // gone meanwhile
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if _, err := fmt.Sscan(rest, &state, &parent); err == nil && state != "Z" {
			parents[pid] = parent
		}
	}
	under := map[int]bool{}
	for pid := range parents {
		for p := pid; p > 1; p = parents[p] {
			if parents[p] == os.Getpid() {
				under[pid] = true
				break
			}
		}
	}
	return under
}

// Pool specification, section 9: of every process of ours it can be seen why it lives,
// whatever its connection is about to do.
func TestEveryProcessHasAReason(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {
		"used": {"command": "SERVER", "args": ["-grandchild", "setsid"]},
		"left": {"command": "SERVER"},
		"starting": {"command": "SERVER", "args": ["-never-start"]},
		"stubborn": {"command": "SERVER", "args": ["-ignore-eof", "-ignore-term"]}
	}, "pool": {"drainDelay": "1h"}}`)
	w.client("", "used", "s1").call("echo", `{"text": "x"}`)
	w.client("", "left", "s2").call("echo", `{"text": "x"}`)
	w.send("", "DELETE", "/api/v1/sessions/s2", "")
	w.client("", "stubborn", "s3").call("echo", `{"text": "x"}`)
	go w.pool.Retire("stubborn")
	var waiting sync.WaitGroup
	t.Cleanup(waiting.Wait)
	req, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/mcp/starting", strings.NewReader(
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	waiting.Go(func() {
		if res, err := http.DefaultClient.Do(req); err == nil { // it ends with the test
			res.Body.Close()
		}
	})
	eventually(t, "all four are there", func() bool {
		states := map[string]bool{}
		for _, i := range w.connections("", "") {
			states[fmt.Sprint(i.Server, " ", i.State, " ", i.Dying, " ", i.PID > 0)] = true
		}
		return states["used active false true"] && states["left draining false true"] && states["starting spawning false true"] && states["stubborn closed true true"]
	})
	l := get[control.Lives](w, "", "/api/v1/connections?processes=true")
	why := map[int]string{}
	roles := map[pool.Role]int{}
	for _, c := range l.Connections {
		for _, p := range c.Processes {
			why[p.PID] = c.Why
			roles[p.Role]++
		}
	}
	for _, p := range l.Others {
		why[p.PID] = p.Why
	}
	for pid := range underUs(t) {
		if why[pid] == "" {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Errorf("nothing says why process %d lives: %q", pid, command)
		}
	}
	if l.Daemon.PID != os.Getpid() || l.Daemon.Version == "" || l.Daemon.RSSBytes == 0 {
		t.Errorf("the daemon is %+v", l.Daemon)
	}
	if roles[pool.RoleReaper] != 4 || roles[pool.RoleServer] != 4 || roles[pool.RoleChild] != 1 {
		t.Errorf("the roles are %v", roles)
	}
	for _, c := range l.Connections {
		want := map[string]string{
			"used": "used by the session s1", "left": "no session uses it; it ends in ", "starting": "it is being started for",
			"stubborn": "it ends; what is left of its processes is being ended for",
		}[c.Server]
		if !strings.HasPrefix(c.Why, want) {
			t.Errorf("%s: %q", c.Server, c.Why)
		}
	}
}
