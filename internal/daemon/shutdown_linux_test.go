package daemon_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse/internal/config"
	roundhouse "roundhouse/internal/daemon"
)

const oneServer = `{"mcpServers": {"bad": {"command": "SERVER"}}}`

// G1: what is in flight when the signal comes gets its answer; what comes after it is
// turned away with Retry-After on the open listener; streams end; the exit is 0.
func TestFirstSignalLetsCallsFinishAndRefusesNewOnes(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			d := start(t, oneServer)
			if a := d.do("GET", "/readyz", ""); a.status != 200 {
				t.Errorf("readyz of a running daemon: %d %s", a.status, a.body)
			}
			c := d.client("bad")
			stream := make(chan answer, 1)
			go func() { stream <- d.do("GET", c.path, "", append(c.header, "Accept", "text/event-stream")...) }()
			open, err := http.Get(d.url + "/api/v1/events")
			if err != nil {
				t.Fatal(err)
			}
			defer open.Body.Close()
			events := make(chan answer, 1)
			go func() {
				body, err := io.ReadAll(open.Body)
				events <- answer{open.StatusCode, open.Header, body, err}
			}()
			call := c.begin("slow", `{"ms": 6000}`)

			d.signal(sig)
			eventually(t, "readyz says that the daemon stops", func() bool {
				return d.do("GET", "/readyz", "").status == 503
			})
			for _, r := range [][3]string{
				{"POST", "/mcp/bad", helloBody},
				{"POST", "/mcp", helloBody},
				{"POST", "/api/v1/servers/bad/restart", ""},
				{"GET", "/readyz", ""},
			} {
				a := d.do(r[0], r[1], r[2])
				seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
				if a.status != 503 || err != nil || seconds < 1 || a.reason() != "draining" {
					t.Errorf("%s %s while stopping: %d %v %s", r[0], r[1], a.status, a.header, a.body)
				}
			}
			late := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // who was not connected before
			if res, err := late.Get(d.url + "/readyz"); err != nil {
				t.Errorf("a new connection while stopping: %v", err)
			} else if _ = res.Body.Close(); res.StatusCode != 503 {
				t.Errorf("a new connection while stopping gets %d", res.StatusCode)
			}
			if a := c.call("echo", `{"text": "late"}`); a.status != 503 {
				t.Errorf("a new call of an old client while stopping: %d %s", a.status, a.body)
			}
			for _, path := range []string{"/healthz", "/api/v1/status", "/api/v1/connections", "/api/v1/sessions"} {
				if a := d.do("GET", path, ""); a.status != 200 {
					t.Errorf("GET %s while stopping: %d %s", path, a.status, a.body)
				}
			}
			for what, standing := range map[string]chan answer{"client": stream, "API": events} {
				if a := receive(t, standing); a.status != 200 || a.err != nil {
					t.Errorf("the standing stream of the %s: %d %v", what, a.status, a.err)
				}
			}
			select {
			case <-call:
				t.Error("the call ended before the streams did")
			default:
			}
			if a := receive(t, call); a.status != 200 || a.text() != "slept 6000 ms" {
				t.Errorf("the call in flight: %d %s %v", a.status, a.body, a.err)
			}
			d.wantExit(0)
			d.wantLast("stopped: 1 session and 1 connection ended, in ")
		})
	}
}

// wantLast checks the one line with which the daemon ends (G1).
func (d *daemon) wantLast(want string) {
	d.t.Helper()
	lines := strings.Split(strings.TrimSpace(d.stderr.String()), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "roundhouse: "+want) {
		d.t.Errorf("the last line is %q, want %q…", last, want)
	}
}

// G1, P2: without work, and with servers that exit at the end of their input, nothing
// is waited for: no grace, no closeTimeouts, no connection of a client that is open
// but says nothing. A busy machine may stall anything, so one daemon of three has to be
// so quick.
func TestIdleDaemonStopsAtOnce(t *testing.T) {
	t.Parallel()
	for range 3 {
		took := stopIdle(t)
		if took <= 4*time.Second { // measured: 0.1 s; net/http alone takes more than 5 s
			return
		}
		t.Logf("the daemon took %s to stop", took)
	}
	t.Error("of three daemons none stopped at once")
}

// stopIdle ends a daemon that has no work, and returns how long that took.
func stopIdle(t *testing.T) time.Duration {
	t.Helper()
	d := start(t, `{"mcpServers": {
		"one": {"command": "SERVER", "closeTimeouts": {"eof": "60s", "term": "60s", "kill": "60s"}},
		"two": {"command": "SERVER", "sharing": "session", "closeTimeouts": {"eof": "60s", "term": "60s", "kill": "60s"}}
	}}`)
	for range 3 {
		for _, server := range []string{"one", "two"} {
			if a := d.client(server).call("echo", `{"text": "x"}`); a.text() != "x" {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
	}
	silent, err := net.Dial("tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	d.do("GET", "/healthz", "") // accepted after the silent one, so that one is accepted

	begun := time.Now()
	d.signal(syscall.SIGTERM)
	d.wantExit(0)
	took := time.Since(begun)
	d.wantLast("stopped: 6 sessions and 4 connections ended, in ")
	return took
}

// G1: calls that outlast the grace get an error, and the exit is 0 all the same.
func TestCallsAreInterruptedWhenTheGraceIsOver(t *testing.T) {
	t.Parallel()
	d := start(t, `{"shutdown": {"grace": "300ms"}, "mcpServers": {"bad": {"command": "SERVER"}}}`)
	call := d.client("bad").begin("slow", `{"ms": 600000}`)
	d.signal(syscall.SIGTERM)
	if a := receive(t, call); a.reason() != "draining" {
		t.Errorf("the call in flight: %d %s %v", a.status, a.body, a.err)
	}
	d.wantExit(0)
	d.wantLast("stopped: 1 session and 1 connection ended, 1 call interrupted, in ")
}

// G1: a second signal skips the grace.
func TestSecondSignalSkipsTheGrace(t *testing.T) {
	t.Parallel()
	d := start(t, `{"shutdown": {"grace": "10m", "total": "20m"}, "mcpServers": {"bad": {"command": "SERVER"}}}`)
	call := d.client("bad").begin("slow", `{"ms": 600000}`)
	d.signal(syscall.SIGTERM)
	eventually(t, "the daemon stops", func() bool { return d.do("GET", "/readyz", "").status == 503 })
	select {
	case a := <-call:
		t.Fatalf("the first signal ended the call: %s", a.body)
	case <-time.After(100 * time.Millisecond):
	}
	d.signal(syscall.SIGINT)
	if a := receive(t, call); a.reason() != "draining" {
		t.Errorf("the call in flight: %d %s %v", a.status, a.body, a.err)
	}
	d.wantExit(0)
	d.wantLast("stopped: 1 session and 1 connection ended, 1 call interrupted, in ")
}

// G1, P1: a third signal exits at once, whatever the daemon waits for; the servers are
// ended all the same. It counts, too, if it comes before anything has followed from the second.
func TestThirdSignalExitsAtOnce(t *testing.T) {
	for name, atOnce := range map[string]bool{"later": false, "at once": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			thirdSignal(t, atOnce)
		})
	}
}

func thirdSignal(t *testing.T, atOnce bool) {
	d := start(t, `{"shutdown": {"grace": "10m", "total": "20m"}, "mcpServers": {
		"bad": {"command": "SERVER", "args": ["-ignore-eof", "-ignore-term"], "closeTimeouts": {"eof": "100ms", "term": "100ms", "kill": "10m"}}}}`)
	call := d.client("bad").begin("slow", `{"ms": 600000}`)
	var reaper int
	for pid, args := range d.leftovers("roundhouse") {
		if strings.Contains(args, "reaper") {
			reaper = pid
		}
	}
	if err := syscall.Kill(reaper, syscall.SIGSTOP); reaper == 0 || err != nil { // until the daemon is gone nothing ends the server
		t.Fatalf("stop the reaper %d: %v", reaper, err)
	}
	defer func() {
		if err := syscall.Kill(reaper, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
		eventually(t, "no server is left", func() bool { return len(d.leftovers()) == 0 })
	}()
	d.signal(syscall.SIGTERM)
	eventually(t, "the daemon stops", func() bool { return d.do("GET", "/readyz", "").status == 503 })
	d.signal(syscall.SIGINT) // two of the same may become one
	if !atOnce {
		receive(t, call) // the daemon waits for its server now
	}
	d.signal(syscall.SIGTERM)
	if s := d.wait(); s.Exited() { // with a status of its own
		t.Errorf("the daemon ended with %q", s)
	}
	if len(d.leftovers("badserver")) == 0 {
		t.Error("the daemon waited for its server")
	}
}

// G1: everything is under one deadline, whatever the servers' own closeTimeouts say.
func TestDeadlineKillsServersThatDoNotEnd(t *testing.T) {
	t.Parallel()
	d := start(t, `{"shutdown": {"grace": "100ms", "total": "500ms"}, "mcpServers": {
		"bad": {"command": "SERVER", "args": ["-ignore-eof", "-ignore-term", "-grandchild", "ignore_term"],
			"closeTimeouts": {"eof": "10m", "term": "10m"}}}}`)
	d.client("bad")
	d.signal(syscall.SIGTERM)
	d.wantExit(0)
	d.wantLast("stopped: 1 session and 1 connection ended, 1 server killed at the deadline, in ")
}

// G1, S4: a server that is still starting when the signal comes is given up when the
// grace is over.
func TestSignalDuringTheStartOfAServer(t *testing.T) {
	t.Parallel()
	d := start(t, `{"shutdown": {"grace": "200ms"}, "mcpServers": {"bad": {"command": "SERVER", "args": ["-never-start"], "startTimeout": "10m"}}}`)
	hello := make(chan answer, 1)
	go func() { hello <- d.do("POST", "/mcp/bad", helloBody) }()
	eventually(t, "the server starts", func() bool { return len(d.leftovers("badserver")) == 1 })
	d.signal(syscall.SIGTERM)
	if a := receive(t, hello); a.reason() != "draining" {
		t.Errorf("initialize: %d %s %v", a.status, a.body, a.err)
	}
	d.wantExit(0)
}

var endedLine = regexp.MustCompile(`msg=ended what=(\w+)`)

// ended lists what the daemon says it has ended, in that order.
func (d *daemon) ended() (what []string) {
	for _, m := range endedLine.FindAllStringSubmatch(d.stderr.String(), -1) {
		what = append(what, m[1])
	}
	return what
}

// G1: sessions end first, then what they used, then what is recorded, then the database; until
// all that is gone the listener is open, and says when to come again.
func TestTheWayDownHasAnOrder(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	d := n.serve(`{"mcpServers": {
		"lent": {"command": "SERVER", "sharing": "exclusive", "instances": {"min": 1}},
		"slow": {"command": "SERVER", "args": ["-linger", "3s"], "closeTimeouts": {"eof": "60s"}}},
		"llm": {"upstreams": {"local": {"baseURL": "http://127.0.0.1:9"}}}}`, "--log-level", "debug")
	for _, server := range []string{"lent", "slow"} {
		if a := d.client(server).call("echo", `{"text": "x"}`); a.text() != "x" {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	d.signal(syscall.SIGTERM)
	eventually(t, "the instances are given up, the server is not gone yet, and the listener says so", func() bool {
		if !slices.Equal(d.ended(), []string{"sessions", "instances"}) {
			return false
		}
		a := d.do("POST", "/mcp/lent", helloBody)
		return a.status == 503 && a.header.Get("Retry-After") != ""
	})
	d.wantExit(0)
	d.wantLast("stopped: 2 sessions and 3 connections ended, in ")
	if want := []string{"sessions", "instances", "connections", "recorder", "database", "listeners"}; !slices.Equal(d.ended(), want) {
		t.Errorf("ended were %q, want %q", d.ended(), want)
	}
	if left, err := os.ReadDir(n.path("tmp")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// G1: a start that fails half-way takes the same way down, and says what to do. What had
// been started by then, instances and the socket for local programs too, is gone.
func TestStartFailsHalfWay(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	const config = `{"mcpServers": {"bad": {"command": "SERVER"}, "lent": {"command": "SERVER", "sharing": "exclusive", "instances": {"min": 2}}}}`
	for name, start := range map[string]struct {
		args []string
		says []string
	}{
		"listener": {[]string{"--listen", taken.Addr().String()}, []string{"roundhouse: listen on " + taken.Addr().String(), "--listen"}},
		"database": {nil, []string{"roundhouse: ", "roundhouse.db"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNest(t)
			if name == "database" {
				if err := os.MkdirAll(n.path("state/roundhouse.db/full"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			d := n.command(config, start.args...)
			d.wantExit(1)
			for _, want := range start.says {
				if e := d.stderr.String(); !strings.Contains(e, want) {
					t.Errorf("it did not say %q: %s", want, e)
				}
			}
			if strings.Contains(d.stderr.String(), "stopped:") {
				t.Errorf("what never served was stopped: %s", d.stderr)
			}
			if left := n.leftovers(); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
			if files := n.journals(); len(files) > 0 {
				t.Errorf("files are left: %v", files)
			}
			if _, err := os.Lstat(n.path("socket")); err == nil {
				t.Error("the socket is left")
			}
			if left, err := os.ReadDir(n.path("tmp")); err != nil || len(left) > 0 {
				t.Errorf("directories are left: %v, %v", left, err)
			}
		})
	}
}

// G1: the journal of a daemon goes with it.
func TestNormalEndLeavesNoJournal(t *testing.T) {
	t.Parallel()
	d := start(t, oneServer)
	d.client("bad")
	if info, err := os.Stat(d.path("state")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the state directory: %v %v", info, err)
	}
	d.signal(syscall.SIGTERM)
	d.wantExit(0)
	if files := d.journals(); len(files) > 0 {
		t.Errorf("files are left: %v", files)
	}
}

// G1: a signal that comes before the daemon serves is no failure of its start.
func TestStopBeforeTheStart(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	env := map[string]string{"HOME": n.dir, "ROUNDHOUSE_STATE_DIR": n.path("state"), "ROUNDHOUSE_LISTEN": "127.0.0.1:0"}
	cfg, err := config.Parse(n.path("config.json"), []byte(`{"mcpServers": {}}`), config.Options{
		Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = roundhouse.Run(ctx, t.Context(), roundhouse.Options{
		Config: cfg, Log: slog.New(slog.DiscardHandler),
		Ready:   func(addr net.Addr) { t.Errorf("it served on %s", addr) },
		Stopped: func(s roundhouse.Summary) { t.Errorf("what never served was stopped: %s", s) },
	})
	if err != nil {
		t.Errorf("it says: %v", err)
	}
	if files := n.journals(); len(files) > 0 {
		t.Errorf("files are left: %v", files)
	}
}
