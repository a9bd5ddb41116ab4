package daemon_test

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	"roundhouse/internal/control"
)

// edit replaces the configuration as editors do, by another file.
func (d *daemon) edit(config string) {
	d.t.Helper()
	file := d.path("config.json")
	if err := os.WriteFile(file+"~", []byte(strings.ReplaceAll(config, "SERVER", d.path("badserver"))), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Rename(file+"~", file); err != nil {
		d.t.Fatal(err)
	}
}

// reloaded waits for a reload that ends as wanted.
func (d *daemon) reloaded(what string, ok func(control.Reloaded) bool) {
	d.t.Helper()
	eventually(d.t, what, func() bool {
		var st control.Status
		d.get("/api/v1/status", &st)
		return st.Reload != nil && ok(*st.Reload)
	})
}

func (d *daemon) pid(server string) int {
	d.t.Helper()
	var s control.Server
	d.get("/api/v1/servers/"+server, &s)
	for _, c := range s.Connections {
		if !c.Dying && c.PID != 0 {
			return c.PID
		}
	}
	return 0
}

// Case 45: an edit of one argument starts that server anew with the next call, while a
// call in flight ends at the old one, which then ends; others keep their processes. A
// server that is removed ends. Nothing is left.
func TestAnEditIsFollowed(t *testing.T) {
	t.Parallel()
	config := func(servers string) string { return `{"mcpServers": {` + servers + `}}` }
	same := `"same": {"command": "SERVER"}`
	d := start(t, config(`"a": {"command": "SERVER"}, `+same))
	a, other := d.client("a"), d.client("same")
	another := d.client("a")
	pid, otherPID := d.pid("a"), d.pid("same")
	call := a.begin("slow", `{"ms": 1500}`)
	d.edit(config(same + `, "a": {"command": "SERVER", "args": ["-banner"]}`))
	d.reloaded("a has changed", func(r control.Reloaded) bool { return slices.Equal(r.Changed, []string{"a"}) && len(r.Removed) == 0 })
	if got := another.call("echo", `{"text": "new"}`); got.text() != "new" {
		t.Errorf("the next call: %d %s", got.status, got.body)
	}
	select {
	case <-call:
		t.Error("the call in flight has ended")
	default:
	}
	if n := len(d.leftovers("badserver")); n != 3 {
		t.Errorf("%d servers run, want the old one, the new one and the other", n)
	}
	if got := receive(t, call); got.text() != "slept 1500 ms" {
		t.Errorf("the call in flight: %d %s", got.status, got.body)
	}
	eventually(t, "the old one has ended", func() bool { return len(d.leftovers("badserver")) == 2 })
	if now := d.pid("a"); now == pid || d.pid("same") != otherPID {
		t.Errorf("pids %d and %d, then %d and %d", pid, otherPID, now, d.pid("same"))
	}
	if got := other.call("echo", `{"text": "x"}`); got.text() != "x" {
		t.Errorf("the other: %d %s", got.status, got.body)
	}

	d.edit(config(same))
	d.reloaded("a is gone", func(r control.Reloaded) bool { return slices.Equal(r.Removed, []string{"a"}) })
	eventually(t, "its process has ended", func() bool { return len(d.leftovers("badserver")) == 1 })
	if got := a.call("echo", `{"text": "x"}`); got.reason() != "unknown_server" {
		t.Errorf("a call of what is gone: %d %s", got.status, got.body)
	}
	d.signal(syscall.SIGTERM)
	d.wantExit(0)
}

// Case 45: a broken file changes nothing and is told of; one bad server in it disables
// that server only, whose connection ends; SIGHUP reads it, too.
func TestABrokenEdit(t *testing.T) {
	t.Parallel()
	// Below nohup SIGHUP is ignored, also by the daemon. What this process handles is not
	// ignored by those that it starts.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	both := `{"mcpServers": {"a": {"command": "SERVER"}, "b": {"command": "SERVER"}}}`
	d := start(t, both)
	a, b := d.client("a"), d.client("b")
	pid := d.pid("a")
	d.edit(both + "}")
	d.reloaded("the file is refused", func(r control.Reloaded) bool { return r.Refused && len(r.Problems) > 0 })
	if got := a.call("echo", `{"text": "x"}`); got.text() != "x" || d.pid("a") != pid {
		t.Errorf("meanwhile: %d %s", got.status, got.body)
	}
	d.edit(`{"mcpServers": {"a": {"command": "SERVER"}, "b": {"command": "SERVER", "args": ["${NO_SUCH}"]}}}`)
	d.reloaded("b is disabled", func(r control.Reloaded) bool {
		return !r.Refused && slices.Equal(r.Changed, []string{"b"}) && len(r.Problems) == 1
	})
	eventually(t, "its process has ended", func() bool { return len(d.leftovers("badserver")) == 1 })
	if got := b.call("echo", `{"text": "x"}`); got.reason() != "unknown_server" || !strings.Contains(string(got.body), "NO_SUCH") {
		t.Errorf("a call of what is disabled: %d %s", got.status, got.body)
	}
	d.edit(both)
	d.reloaded("b is back", func(r control.Reloaded) bool { return !r.Refused && len(r.Problems) == 0 })
	if got := b.call("echo", `{"text": "x"}`); got.text() != "x" || d.pid("a") != pid {
		t.Errorf("at last: %d %s", got.status, got.body)
	}
	var st control.Status
	d.get("/api/v1/status", &st)
	d.signal(syscall.SIGHUP)
	d.reloaded("the signal was heeded", func(r control.Reloaded) bool { return r.At.After(st.Reload.At) && !r.Refused })
	d.signal(syscall.SIGTERM)
	d.wantExit(0)
}

// Case 45, N2: tokens change while the daemon runs; what cannot change is named.
func TestAnEditOfSettings(t *testing.T) {
	t.Parallel()
	config := func(token, rest string) string {
		return fmt.Sprintf(`{"auth": {"tokens": [{"principal": "root", "token": "%s", "admin": true}]}, %s "mcpServers": {"a": {"command": "SERVER"}}}`, token, rest)
	}
	d := start(t, config("the-first-token-of-root", ""))
	d.edit(config("the-second-token-of-root", `"stateDir": "elsewhere", "sessions": {"max": 7}, `))
	first, second := "Bearer the-first-token-of-root", "Bearer the-second-token-of-root"
	eventually(t, "the new token counts", func() bool { return d.do("GET", "/api/v1/status", "", "Authorization", second).status == 200 })
	if got := d.do("GET", "/api/v1/status", "", "Authorization", first); got.status != 401 {
		t.Errorf("the old token: %d", got.status)
	}
	d.edit(config("the-second-token-of-root", `"gateway": {"keepAlive": "7s"}, "sessions": {"max": 7}, `))
	eventually(t, "the settings are there", func() bool {
		got := d.do("POST", "/api/v1/reload", "", "Authorization", second)
		return strings.Contains(string(got.body), `"needsRestart":["gateway.keepAlive"]`)
	})
	if got := d.do("GET", "/api/v1/status", "", "Authorization", second); !strings.Contains(string(got.body), `"max":7`) {
		t.Errorf("%s", got.body)
	}
}
