package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"roundhouse/internal/config"
	roundhouse "roundhouse/internal/daemon"
	"roundhouse/internal/fault"
)

// The environment of TestChaos: how long its storm takes, and the seed of its choices.
const (
	chaosForVar  = "ROUNDHOUSE_CHAOS"
	chaosSeedVar = "ROUNDHOUSE_CHAOS_SEED"
)

// TestChaos has sessions of both eras call servers that are killed, stopped, restarted
// and configured anew meanwhile, while sessions are ended under their callers. Every
// call must get an answer or a reason, and no call may be executed twice, or although
// it was said not to be (R2, R5); when the sessions are gone nothing may be left of
// them (S6, P2, B1), and when the daemon has ended nothing of it, even if it was told
// to in mid-storm (G1, R10). Its seed does not repeat a run, but what a run chose from.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	storm, sessions := 2*time.Second, 40
	if text := os.Getenv(chaosForVar); text != "" {
		var err error
		if storm, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", chaosForVar, err)
		}
		sessions = 200
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(chaosSeedVar); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", chaosSeedVar, err)
		}
	}
	t.Logf("%s=%d", chaosSeedVar, seed)

	goroutines := runtime.NumGoroutine()
	c := newChaos(t, seed)
	c.start()
	c.storm(storm, sessions)
	c.wantNothing()
	c.stormAndStop(sessions)
	c.audit()

	c.http.CloseIdleConnections()
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > goroutines; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), goroutines, stacks[:runtime.Stack(stacks, true)])
			break
		}
	}
	if left := c.leftovers(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("children are left: %v", left)
	}
	if files := c.journals(); len(files) > 0 {
		t.Errorf("journals are left: %q", files)
	}
}

// children lists this process's own children, which are the reapers of a daemon that
// runs in it.
func children(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range files {
		b, _ := os.ReadFile(file) // the thread may have ended
		all = append(all, strings.Fields(string(b))...)
	}
	return all
}

// chaos is a daemon in this process, and what happens to it.
type chaos struct {
	*nest
	seed   uint64
	http   *http.Client
	url    string
	ledger string
	hangup chan os.Signal
	log    *output

	end  context.CancelFunc // tells the daemon to stop
	done chan error         // what its Run returned

	ending atomic.Bool // it was told to stop
	nonce  atomic.Int64

	mu       sync.Mutex
	outcomes map[string]outcome // of calls of the ledger, by nonce
	counts   map[string]int     // of all that was done and answered, for the log
}

// outcome is how often a call may have been executed.
type outcome struct {
	least, most int
	why         string
}

func newChaos(t *testing.T, seed uint64) *chaos {
	n := newNest(t)
	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	return &chaos{
		nest: n, seed: seed, http: &http.Client{Transport: transport}, ledger: n.path("ledger"), hangup: make(chan os.Signal), log: &output{},
		outcomes: map[string]outcome{}, counts: map[string]int{},
	}
}

// dice are the choices of one of those who take part.
func (c *chaos) dice(who int) *rand.Rand { return rand.New(rand.NewPCG(c.seed, uint64(who))) }

func (c *chaos) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
}

func (c *chaos) record(nonce string, o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outcomes[nonce] = o
}

// chaosServers are the entries of mcpServers. FLIP is replaced by what makes no
// difference to the server, and all to its connection. Their startTimeout is far below
// patience, since one that is stopped while it starts takes all of it, and callers wait.
var chaosServers = []string{
	`"command": "SERVER", "args": ["FLIP"]`,
	`"command": "SERVER", "args": ["FLIP"], "retry": "idempotent"`,
	`"command": "SERVER", "args": ["FLIP", "-noise-between", "-banner"]`,
	`"command": "SERVER", "args": ["FLIP", "-result-before-id"], "retry": "idempotent"`,
	`"command": "SERVER", "args": ["FLIP", "-grandchild", "setsid"]`,
	`"command": "SERVER", "args": ["FLIP", "-ignore-eof", "-ignore-term", "-grandchild", "ignore_term"]`,
	`"command": "SERVER", "args": ["FLIP", "-start-delay", "300ms"]`,
	`"command": "SERVER", "args": ["FLIP", "-exit-after", "1500ms"]`,
	`"command": "SERVER", "args": ["FLIP"], "sharing": "session"`,
	`"command": "SERVER", "args": ["FLIP", "-fail-list", "tools", "-fail-list-after", "1"]`,
}

// config writes a configuration in which each server is as flips says: 0 and 1 differ
// in an argument, 2 in a filter, 3 is none at all.
func (c *chaos) config(flips []int, budget int) {
	var servers []string
	for i, entry := range chaosServers {
		flip := "-blank"
		switch flips[i] {
		case 1:
			flip = "-cr"
		case 2:
			entry += `, "excludeTools": ["echo"]`
		case 3:
			continue
		}
		servers = append(servers, fmt.Sprintf(`"s%d": {%s, "startTimeout": "5s", "callTimeout": "3s", "closeTimeouts": {"eof": "200ms", "term": "200ms", "kill": "10s"}}`, i, strings.ReplaceAll(entry, "FLIP", flip)))
	}
	c.write(fmt.Sprintf(`{
		"sessions": {"max": 250, "idleTimeout": "500ms", "expireAfter": "5s"},
		"gateway": {"listWait": "1s"},
		"shutdown": {"grace": "1s", "total": "20s"},
		"pool": {
			"drainDelay": "300ms", "maxIdle": "1s", "budget": {"servers": %d, "mode": "enforce"},
			"recovery": {"stdio": {"attempts": 3, "delay": "100ms", "maxDelay": "400ms"}},
			"health": {"interval": "300ms", "timeout": "500ms"},
			"circuit": {"failures": 8, "window": "2s", "wait": "500ms", "stable": "2s"}
		},
		"mcpServers": {%s}}`, budget, strings.Join(servers, ",\n")))
}

func (c *chaos) write(text string) {
	file := c.path("config.json")
	err := os.WriteFile(file+"~", []byte(strings.ReplaceAll(text, "SERVER", c.path("badserver"))), 0o600)
	if err == nil {
		err = os.Rename(file+"~", file)
	}
	if err != nil {
		c.t.Error(err)
	}
}

// start runs the daemon.
func (c *chaos) start() {
	c.t.Helper()
	c.config(make([]int, len(chaosServers)), len(chaosServers))
	load := func() (*config.Config, error) {
		return config.Load(config.Options{File: c.path("config.json"), Overrides: config.Overrides{
			Listen: "127.0.0.1:0", StateDir: c.path("state"), Socket: c.path("socket"),
		}})
	}
	cfg, err := load()
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	address := make(chan net.Addr, 1)
	c.end, c.done = end, make(chan error, 1)
	go func() { // joined by stop
		c.done <- roundhouse.Run(ctx, context.Background(), roundhouse.Options{
			Config: cfg, Load: load, Hangup: c.hangup, Log: slog.New(slog.NewTextHandler(c.log, nil)),
			Ready: func(addr net.Addr) { address <- addr },
		})
	}()
	c.t.Cleanup(func() {
		end()
		if c.t.Failed() {
			log := c.log.String()
			c.t.Logf("the end of the daemon's log:\n%s", log[max(0, len(log)-20_000):])
		}
	})
	select {
	case addr := <-address:
		c.url = "http://" + addr.String()
	case err := <-c.done:
		c.t.Fatalf("the daemon ended: %v", err)
	}
}

// storm has everything happen at once, and returns when every call has ended.
func (c *chaos) storm(d time.Duration, sessions int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	begun := time.Now()
	var wg sync.WaitGroup
	for who, act := range []func(context.Context, *rand.Rand){c.kill, c.restart, c.flip, c.drop, c.look} {
		wg.Go(func() { act(ctx, c.dice(1_000_000+who)) })
	}
	for who := range sessions {
		wg.Go(func() { c.live(ctx, who) })
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		c.t.Logf("%6d %s", c.counts[what], what)
	}
	c.t.Logf("the storm took %s", time.Since(begun).Round(10*time.Millisecond))
	clear(c.counts)
}

// stormAndStop tells the daemon to stop in mid-storm.
func (c *chaos) stormAndStop(sessions int) {
	c.t.Helper()
	stop := time.AfterFunc(time.Second, func() {
		c.ending.Store(true)
		c.end()
	})
	defer stop.Stop()
	c.storm(1500*time.Millisecond, sessions)
	select {
	case err := <-c.done:
		if err != nil {
			c.t.Errorf("the daemon ended: %v", err)
		}
	case <-time.After(2 * patience):
		c.t.Fatal("the daemon does not end")
	}
}

// pause waits a while that is random, at most; false says that the storm is over.
func pause(ctx context.Context, dice *rand.Rand, most time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Duration(dice.Int64N(int64(most)))):
		return true
	}
}

// kill sends signals to processes of servers, and sometimes to those that own them.
func (c *chaos) kill(ctx context.Context, dice *rand.Rand) {
	for pause(ctx, dice, 300*time.Millisecond) {
		var pids []int
		for pid := range c.leftovers("badserver") {
			pids = append(pids, pid)
		}
		if len(pids) == 0 {
			continue
		}
		slices.Sort(pids)
		pid, sig, what := pids[dice.IntN(len(pids))], syscall.SIGKILL, "kill"
		switch n := dice.IntN(20); {
		case n < 6:
			sig, what = syscall.SIGTERM, "terminate"
		case n < 12:
			sig, what = syscall.SIGSTOP, "stop"
		case n < 13:
			if parent := c.parent(pid); slices.Contains(children(c.t), strconv.Itoa(parent)) {
				pid, what = parent, "kill an owner"
			}
		}
		_ = syscall.Kill(pid, sig) // it may have gone
		c.count(what)
	}
}

// parent returns the parent of a process, or 0.
func (c *chaos) parent(pid int) int {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have gone
	_, rest, _ := strings.Cut(string(b), ") ")
	if fields := strings.Fields(rest); len(fields) > 1 {
		n, _ := strconv.Atoi(fields[1])
		return n
	}
	return 0
}

// restart restarts servers by hand.
func (c *chaos) restart(ctx context.Context, dice *rand.Rand) {
	for pause(ctx, dice, 600*time.Millisecond) {
		entry := "*"
		if dice.IntN(2) == 0 {
			entry = strconv.Itoa(dice.IntN(5))
		}
		c.own("POST", fmt.Sprintf("/api/v1/servers/s%d/restart?entry=%s", dice.IntN(len(chaosServers)), entry))
	}
}

// flip changes the configuration, and has it read in one of three ways.
func (c *chaos) flip(ctx context.Context, dice *rand.Rand) {
	flips := make([]int, len(chaosServers))
	for pause(ctx, dice, 700*time.Millisecond) {
		flips[dice.IntN(len(flips))] = dice.IntN(4)
		if dice.IntN(10) == 0 {
			c.write(`{"mcpServers": {"s1": `)
		} else {
			c.config(flips, len(chaosServers)-dice.IntN(4))
		}
		switch dice.IntN(3) {
		case 0:
			c.own("POST", "/api/v1/reload")
		case 1:
			select {
			case c.hangup <- syscall.SIGHUP:
			case <-ctx.Done():
			}
		}
		c.count("change the configuration")
	}
}

// drop ends sessions that others use.
func (c *chaos) drop(ctx context.Context, dice *rand.Rand) {
	for pause(ctx, dice, 300*time.Millisecond) {
		var list struct{ Sessions []struct{ ID string } }
		if a := c.own("GET", "/api/v1/sessions"); json.Unmarshal(a.body, &list) != nil || len(list.Sessions) == 0 {
			continue
		}
		c.own("DELETE", fmt.Sprintf("/api/v1/sessions/%s?force=%t", list.Sessions[dice.IntN(len(list.Sessions))].ID, dice.IntN(2) == 0))
	}
}

// look reads what can be seen.
func (c *chaos) look(ctx context.Context, dice *rand.Rand) {
	for pause(ctx, dice, 300*time.Millisecond) {
		for _, path := range []string{"/api/v1/status", "/api/v1/servers", "/api/v1/connections?processes=true", "/api/v1/servers/s0/logs"} {
			c.own("GET", path)
		}
	}
}

// own uses roundhouse's own API, which answers always, if with a reason.
func (c *chaos) own(method, path string) answer {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	late := c.ending.Load()
	a := c.send(ctx, method, path, "", nil)
	switch {
	case a.err != nil && (late || c.ending.Load()):
	case a.err != nil:
		c.t.Errorf("%s %s: %v", method, path, a.err)
	case a.status >= 300 && fault.Reason(a.reason()).Status() != a.status:
		c.t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
	}
	path, _, _ = strings.Cut(path, "?")
	c.count(fmt.Sprintf("%s %s", method, strings.Join(strings.Split(path, "/")[:4], "/")))
	return a
}

func (c *chaos) send(ctx context.Context, method, path, body string, header map[string]string) answer {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range header {
		req.Header.Set(name, value)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		for line := range strings.Lines(string(b)) {
			if data, ok := strings.CutPrefix(line, "data:"); ok && strings.TrimSpace(data) != "" {
				b = []byte(data)
			}
		}
	}
	return answer{res.StatusCode, res.Header, b, err}
}

// wantNothing ends all sessions, after which nothing may be left in a daemon that
// goes on.
func (c *chaos) wantNothing() {
	c.t.Helper()
	c.config(make([]int, len(chaosServers)), len(chaosServers))
	c.own("POST", "/api/v1/reload")
	begun := time.Now()
	passed := func(what string) {
		c.t.Logf("%s after %s", what, time.Since(begun).Round(10*time.Millisecond))
	}
	var list struct{ Sessions []struct{ ID string } }
	eventually(c.t, "no session is left", func() bool {
		if err := json.Unmarshal(c.own("GET", "/api/v1/sessions").body, &list); err != nil {
			c.t.Fatal(err)
		}
		for _, s := range list.Sessions {
			c.own("DELETE", "/api/v1/sessions/"+s.ID+"?force=true")
		}
		return len(list.Sessions) == 0
	})
	passed("no session is left")
	var connections struct{ Connections []json.RawMessage }
	defer func() {
		if c.t.Failed() {
			c.t.Logf("connections: %s", connections.Connections)
		}
	}()
	eventually(c.t, "no connection is left", func() bool {
		connections.Connections = nil
		if err := json.Unmarshal(c.own("GET", "/api/v1/connections").body, &connections); err != nil {
			c.t.Fatal(err)
		}
		for _, x := range connections.Connections {
			var i struct {
				Refs  int
				State string
			}
			if err := json.Unmarshal(x, &i); err != nil || i.Refs != 0 || i.State != "failed" {
				return false
			}
		}
		return true
	})
	passed("no connection is left")
	eventually(c.t, "no server is left", func() bool { return len(c.leftovers("badserver")) == 0 && len(children(c.t)) == 0 })
	passed("no server is left")
	// A process is gone a moment before the daemon has heard of it and gives its place back.
	var last string
	defer func() {
		if c.t.Failed() {
			c.t.Logf("status: %s", last)
		}
	}()
	eventually(c.t, "without sessions the status names no client, no call and no place held", func() bool {
		b := c.own("GET", "/api/v1/status").body
		last = string(b)
		var status struct {
			Clients, InFlight int
			Budget            struct{ Held []json.RawMessage }
		}
		if err := json.Unmarshal(b, &status); err != nil {
			c.t.Fatal(err)
		}
		return status.Clients == 0 && status.InFlight == 0 && len(status.Budget.Held) == 0
	})
}

// audit compares the ledger with what callers were told.
func (c *chaos) audit() {
	c.t.Helper()
	b, err := os.ReadFile(c.ledger)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		c.t.Fatal(err)
	}
	executed := map[string]int{}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		executed[fields[len(fields)-1]]++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if int64(len(c.outcomes)) != c.nonce.Load() {
		c.t.Errorf("%d of %d calls of the ledger have an outcome", len(c.outcomes), c.nonce.Load())
	}
	wrong := 0
	for nonce, o := range c.outcomes {
		if n := executed[nonce]; n < o.least || n > o.most {
			if wrong++; wrong <= 10 {
				c.t.Errorf("a call was executed %d times, but its caller was told %s", n, o.why)
			}
		}
	}
	c.t.Logf("%d calls of the ledger, %d executed, %d wrong", len(c.outcomes), len(executed), wrong)
}
