package daemon_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// cleaner is a server of the clean-up matrix: how sessions have it, what its clean-up does,
// and what must become of it.
type cleaner struct {
	sharing  string
	cleanup  string   // members of its entry
	lines    []string // of its diary when it is cleaned up
	outcome  string   // of its clean-up, after a call
	unopened bool     // it does not start
}

const (
	counts  = `{"tool": "count"}`
	takes   = `{"tool": "slow", "arguments": {"ms": 150}}`
	refuses = `{"tool": "raw", "arguments": {"result": {"isError": true, "content": [{"type": "text", "text": "no"}]}}}`
	hangs   = `{"tool": "slow", "arguments": {"ms": 600000}, "timeout": "150ms"}`
	reaches = `{"tool": "count", "shared": true}`
)

var cleaners = map[string]cleaner{
	"one":     {"exclusive", counts, []string{"call count", "done count"}, "ok", false},
	"two":     {"exclusive", counts, []string{"call count", "done count"}, "ok", false},
	"three":   {"exclusive", counts, []string{"call count", "done count"}, "ok", false},
	"slow":    {"exclusive", takes, []string{"call slow", "done slow"}, "ok", false},
	"failing": {"exclusive", refuses, []string{"call raw", "done raw"}, "failed", false},
	"hanging": {"exclusive", hangs, []string{"call slow"}, "timeout", false},
	"mine":    {"session", counts, []string{"call count", "done count"}, "ok", false},
	"mine2":   {"session", hangs, []string{"call slow"}, "timeout", false},
	"ours":    {"shared", counts, nil, "skipped", false},
	"told":    {"shared", reaches, []string{"call count", "done count"}, "ok", false},
	"broken":  {"exclusive", counts, nil, "", true},
	"broken2": {"session", counts, nil, "", true},
}

// cleanerConfig is the configuration with all of them; settings are further members.
func cleanerConfig(n *nest, settings string) string {
	var servers []string
	for name, c := range cleaners {
		args := []string{"-diary", n.path("diary"), "-diary-as", name}
		if c.unopened {
			args = append(args, "-fail-start")
		}
		quoted, err := json.Marshal(args)
		if err != nil {
			n.t.Fatal(err)
		}
		servers = append(servers, fmt.Sprintf(`%q: {"command": "SERVER", "args": %s, "sharing": %q, "cleanup": %s, "recovery": {"attempts": 0}}`, name, quoted, c.sharing, c.cleanup))
	}
	return `{"mcpServers": {` + strings.Join(servers, ",") + `}` + settings + `}`
}

// A cleanerCell is what a session does before its end, in this order: "one" opens the server
// and calls a tool, "one?" only opens it, and those that do not start fail.
type cleanerCell []string

// use makes a session do that, and returns its clients.
func (cell cleanerCell) use(d *daemon, session string) map[string]*client {
	d.t.Helper()
	clients := map[string]*client{}
	for _, step := range cell {
		name := strings.TrimSuffix(step, "?")
		if cleaners[name].unopened {
			if a := d.do("POST", "/mcp/"+name, helloBody, "X-Session-Id", session); a.status == 200 && a.reason() == "" {
				d.t.Errorf("%s opened: %s", name, a.body)
			}
			continue
		}
		clients[name] = d.client(name, "X-Session-Id", session)
		if name != step {
			continue
		}
		if a := clients[name].call("echo", `{"text": "x"}`); a.text() != "x" {
			d.t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	return clients
}

// wanted is what the diary holds of each server after the end, and how its clean-up went.
func (cell cleanerCell) wanted() (diary map[string][]string, outcomes map[string]string) {
	diary, outcomes = map[string][]string{}, map[string]string{}
	for _, step := range cell {
		name := strings.TrimSuffix(step, "?")
		c := cleaners[name]
		used := name == step
		if c.unopened || c.sharing == "exclusive" && !used {
			continue // nothing was lent
		}
		outcomes[name] = "skipped"
		if used {
			diary[name] = append([]string{"call echo", "done echo"}, c.lines...)
			outcomes[name] = c.outcome
		}
		if c.sharing != "shared" {
			diary[name] = append(diary[name], "end")
		}
	}
	return diary, outcomes
}

// released lists the servers whose instances the session gave back, in the order in which
// that must be.
func (cell cleanerCell) released() (names []string) {
	for _, step := range slices.Backward(cell) {
		if c := cleaners[step]; c.sharing == "exclusive" && !c.unopened {
			names = append(names, step)
		}
	}
	return names
}

// diary reads what the servers have written behind so many bytes, by server.
func (n *nest) diary(from int) map[string][]string {
	n.t.Helper()
	b, err := os.ReadFile(n.path("diary"))
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	lines := map[string][]string{}
	for line := range strings.Lines(string(b[min(from, len(b)):])) {
		name, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines[name] = append(lines[name], what)
	}
	return lines
}

func (n *nest) diaryLength() int {
	info, err := os.Stat(n.path("diary"))
	if err != nil {
		return 0
	}
	return int(info.Size())
}

// check compares what became of a session that has ended with what must; also is what the
// diary holds beside it.
func (cell cleanerCell) check(d *daemon, session string, from int, also map[string][]string) {
	d.t.Helper()
	diary, outcomes := cell.wanted()
	for name, lines := range also {
		diary[name] = append(diary[name], lines...)
	}
	ends := 0
	for _, lines := range diary {
		if slices.Contains(lines, "end") {
			ends++
		}
	}
	eventually(d.t, "what was opened has ended", func() bool {
		n := 0
		for _, lines := range d.diary(from) {
			n += len(slices.DeleteFunc(lines, func(s string) bool { return s != "end" }))
		}
		return n >= ends
	})
	got := d.diary(from)
	for name := range cleaners {
		if !slices.Equal(got[name], diary[name]) {
			d.t.Errorf("%s: the diary of %s is %q, want %q", session, name, got[name], diary[name])
		}
	}
	log := d.stderr.String()
	lines := regexp.MustCompile(`msg="clean-up (\w+)" session=` + session + ` server=(\S+)`)
	eventually(d.t, "the log says how the clean-ups went", func() bool { // it comes through a pipe
		log = d.stderr.String()
		return len(lines.FindAllString(log, -1)) >= len(outcomes)
	})
	told := map[string]string{}
	for _, m := range lines.FindAllStringSubmatch(log, -1) {
		if told[m[2]] != "" {
			d.t.Errorf("%s: %s was cleaned up twice", session, m[2])
		}
		told[m[2]] = m[1]
	}
	if !maps.Equal(told, outcomes) {
		d.t.Errorf("%s: the outcomes are %v, want %v", session, told, outcomes)
	}
	var order []string
	lines = regexp.MustCompile(`msg="instance released" session=` + session + ` server=(\S+)`)
	eventually(d.t, "the log says what was released", func() bool {
		order = nil
		for _, m := range lines.FindAllStringSubmatch(d.stderr.String(), -1) {
			order = append(order, m[1])
		}
		return len(order) >= len(cell.released())
	})
	if want := cell.released(); !slices.Equal(order, want) {
		d.t.Errorf("%s: instances were released in the order %q, want %q", session, order, want)
	}
}

// shown waits until the API shows the session in that state, without anything that it had,
// and with its clean-ups: closed sessions are those that are stored.
func (cell cleanerCell) shown(d *daemon, session, state string) {
	d.t.Helper()
	_, want := cell.wanted()
	eventually(d.t, fmt.Sprintf("%s is %s, has nothing, and was cleaned up as %v", session, state, want), func() bool {
		var info struct {
			State    string
			Leases   []any
			Cleanups []struct{ Server, Outcome string }
		}
		a := d.do("GET", "/api/v1/sessions/"+session, "")
		if a.status != 200 || json.Unmarshal(a.body, &info) != nil || info.State != state || len(info.Leases) > 0 {
			return false
		}
		told := map[string]string{}
		for _, c := range info.Cleanups {
			told[c.Server] = c.Outcome
		}
		return maps.Equal(told, want)
	})
}

// everything has each kind of use, and of clean-up.
var everything = cleanerCell{"one", "mine", "failing", "broken", "ours", "hanging", "mine2?", "two?", "slow", "told", "broken2"}

// N4, N5, case 62: whatever a session has used, each server that it has called is told of the end
// once, before its connection is given back, and nobody else; instances are given back in the
// reverse order.
func TestCleanupByWhatWasUsed(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	d := n.serve(cleanerConfig(n, ""), "--log-level", "info")
	count := map[string]int{}
	for i, cell := range []cleanerCell{
		{}, {"mine?"}, {"one?"}, {"one"}, {"mine"}, // none, unused, one
		{"mine", "mine2?", "one?"}, {"mine?", "one?", "two"}, {"one", "two", "three"}, {"three", "mine", "one"}, // the first, the last, all
		{"slow"}, {"failing"}, {"hanging"}, {"mine2"}, {"one", "slow", "two"}, {"failing", "one", "hanging"}, {"hanging", "mine2", "failing", "slow"},
		{"ours"}, {"told"}, {"told?", "ours?"}, {"told", "one", "ours"},
		{"broken", "one", "two"}, {"one", "broken", "two"}, {"one", "two", "broken"}, // opening fails at each place
		{"broken2", "mine?", "mine2?"}, {"mine?", "broken2", "mine2?"}, {"mine?", "mine2?", "broken2"},
		everything,
	} {
		session, from := fmt.Sprint("cell-", i), d.diaryLength()
		cell.use(d, session)
		a := d.do("DELETE", "/api/v1/sessions/"+session, "")
		if len(cell) > 0 && a.status != 204 {
			t.Errorf("%s: DELETE: %d %s", session, a.status, a.body)
		}
		cell.check(d, session, from, nil)
		if a := d.do("DELETE", "/api/v1/sessions/"+session, ""); a.status != 404 && a.status != 204 { // it does no harm
			t.Errorf("%s: a second DELETE: %d %s", session, a.status, a.body)
		}
		if len(cell) > 0 {
			cell.shown(d, session, "closed")
		}
		_, outcomes := cell.wanted()
		for _, outcome := range outcomes {
			count[outcome]++
		}
	}
	var status struct{ Cleanups map[string]int }
	d.get("/api/v1/status", &status)
	if !maps.Equal(status.Cleanups, count) {
		t.Errorf("counted are %v, want %v", status.Cleanups, count)
	}
	metrics := string(d.do("GET", "/metrics", "").body)
	for outcome, n := range count {
		if want := fmt.Sprintf("roundhouse_session_cleanups_total{outcome=%q} %d\n", outcome, n); !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// N3, N4, N5, G1, case 62: the same, however the session ends.
func TestCleanupByHowASessionEnds(t *testing.T) {
	for name, end := range map[string]struct {
		settings string
		also     map[string][]string
		end      func(d *daemon, session string, clients map[string]*client)
	}{
		"idle": {`, "sessions": {"idleTimeout": "3s"}`, nil, func(d *daemon, session string, _ map[string]*client) {
			everything.shown(d, session, "dormant")
		}},
		"drain": {"", map[string][]string{"ours": {"call slow", "done slow"}}, func(d *daemon, session string, clients map[string]*client) {
			call := clients["ours"].begin("slow", `{"ms": 700}`)
			if a := d.do("DELETE", "/api/v1/sessions/"+session, ""); a.status != 204 {
				d.t.Errorf("DELETE: %d %s", a.status, a.body)
			}
			if a := receive(d.t, call); a.text() != "slept 700 ms" {
				d.t.Errorf("the call in flight: %s", a.body)
			}
		}},
		"force": {"", nil, func(d *daemon, session string, _ map[string]*client) {
			if a := d.do("DELETE", "/api/v1/sessions/"+session+"?force=true", ""); a.status != 204 {
				d.t.Errorf("DELETE: %d %s", a.status, a.body)
			}
		}},
		"SIGTERM": {"", map[string][]string{"ours": {"end"}, "told": {"end"}, "two": {"end"}}, func(d *daemon, session string, _ map[string]*client) {
			d.signal(syscall.SIGTERM)
			d.wantExit(0)
			d.wantLast("stopped: 1 session and ")
			next := d.serve(cleanerConfig(d.nest, ""))
			everything.shown(next, session, "dormant")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNest(t)
			d := n.serve(cleanerConfig(n, end.settings), "--log-level", "info")
			end.end(d, "a", everything.use(d, "a"))
			everything.check(d, "a", 0, end.also)
		})
	}
}

// N5, N6, case 62: a daemon that is killed cannot tell its servers, and the next one, which has
// none of them, does not either. It says once what the session has lost, and cleans up after what
// the session uses then.
func TestCleanupAfterAKill(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	d := n.serve(cleanerConfig(n, ""), "--log-level", "info")
	cell := cleanerCell{"one", "mine", "hanging", "told", "ours"}
	clients := cell.use(d, "a")
	d.signal(syscall.SIGKILL)
	d.wait()
	eventually(t, "no process is left", func() bool { return len(n.leftovers()) == 0 })
	for name, lines := range n.diary(0) {
		lines = slices.DeleteFunc(lines, func(s string) bool { return s == "end" })
		if !slices.Equal(lines, []string{"call echo", "done echo"}) {
			t.Errorf("the diary of %s is %q", name, lines)
		}
	}

	next := n.serve(cleanerConfig(n, ""), "--log-level", "info")
	cleanerCell{}.shown(next, "a", "dormant")
	from := n.diaryLength()
	c := &client{next, clients["one"].path, clients["one"].header}
	if a := c.call("echo", `{"text": "x"}`); !strings.Contains(a.text(), "roundhouse was restarted: the instance of ") || !strings.Contains(a.text(), "one") {
		t.Errorf("the first result: %d %s", a.status, a.body)
	}
	if a := c.call("count", `{}`); a.text() != "1" {
		t.Errorf("the second result: %d %s", a.status, a.body)
	}
	if a := next.do("DELETE", "/api/v1/sessions/a", ""); a.status != 204 {
		t.Errorf("DELETE: %d %s", a.status, a.body)
	}
	eventually(t, "the instance has ended", func() bool { return slices.Contains(n.diary(from)["one"], "end") })
	if got := n.diary(from); len(got) != 1 || !slices.Equal(got["one"], []string{"call echo", "done echo", "call count", "done count", "call count", "done count", "end"}) {
		t.Errorf("the diary is %q", got)
	}
	cleanerCell{"one"}.shown(next, "a", "closed")
}
