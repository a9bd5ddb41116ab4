package pool

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse/internal/badserver"
	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/process"
	"roundhouse/internal/secret"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

func TestMain(m *testing.M) {
	process.ReaperMain()
	os.Exit(m.Run())
}

// tagVar marks every process of a test in its environment, whatever becomes of it.
const tagVar = "POOL_TEST_TAG"

var run = rand.Text() // tells this run's processes from another's

func tag(t *testing.T) string { return run + " " + t.Name() }

// realPool is a pool whose servers are processes. At the end of the test it is
// drained, and nothing that the test started may live.
func realPool(t *testing.T, c Config) *Pool {
	t.Helper()
	p, _ := managedPool(t, c)
	return p
}

// managedPool is realPool with what manages its processes.
func managedPool(t *testing.T, c Config) (*Pool, *process.Manager) {
	t.Helper()
	m, err := process.NewManager(process.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	c.Dial = NewDialer(m, nil)
	p := New(c)
	t.Cleanup(func() {
		p.Drain(context.Background(), true)
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if left := tagged(t); len(left) > 0 {
			t.Errorf("processes outlived the pool: %q", left)
		}
	})
	return p, m
}

// bad is a badserver with switches, marked with the test's name.
func bad(t *testing.T, switches ...string) *config.Server {
	return &config.Server{
		Name: "bad", Transport: config.Stdio, Command: badserver.Path(t), Args: switches,
		Env:     map[string]secret.String{tagVar: secret.New(tag(t))},
		Sharing: config.Shared, StartTimeout: 20 * time.Second,
		CloseEOFWait: 200 * time.Millisecond, CloseTermWait: 200 * time.Millisecond, CloseKillWait: 5 * time.Second,
	}
}

// tagged lists the live processes of the test.
func tagged(t *testing.T) (commands []string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+tagVar+"="+tag(t)+"\x00")) {
			continue // gone meanwhile, or somebody else's
		}
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		commands = append(commands, filepath.Base(dir)+" "+strings.ReplaceAll(string(command), "\x00", " "))
	}
	return commands
}

// expectTagged waits until so many processes of the test live.
func expectTagged(t *testing.T, n int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		live := tagged(t)
		if len(live) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d processes live, want %d: %q", len(live), n, live)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func mustAcquire(t *testing.T, p *Pool, server *config.Server) *Attachment {
	t.Helper()
	a, err := p.NewHolder(t.Name()).Acquire(t.Context(), want(server, nil))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// use calls a tool with arguments and waits for the answer.
func use(t *testing.T, a *Attachment, tool, arguments string) string {
	t.Helper()
	f, r := request(wire.ToolsCall, fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
	out := make(answer, 1)
	if _, err := a.Do(t.Context(), &client{}, f, r, out); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-out:
		return got
	case <-time.After(time.Minute):
		t.Fatalf("the call of %s hangs", tool)
		return ""
	}
}

func expectEcho(t *testing.T, a *Attachment, text string) {
	t.Helper()
	if got := use(t, a, "echo", fmt.Sprintf(`{"text":%q}`, text)); !strings.Contains(got, text) || !strings.Contains(got, `"id":"mine"`) {
		t.Errorf("echo gave %.200s", got)
	}
}

// P5, P6: noise on stdout kills nothing: it is skipped, counted and shown.
func TestNoiseIsSkippedCountedAndShown(t *testing.T) {
	p := realPool(t, Config{})
	a := mustAcquire(t, p, bad(t, "-banner", "-json-log", "-blank", "-ansi", "-cr", "-noise-between"))
	expectEcho(t, a, "hello")
	infos := p.Snapshot()
	if len(infos) != 1 || infos[0].State != Active || infos[0].Noise < 6 || infos[0].PID == 0 {
		t.Errorf("the pool shows %+v", infos)
	}
	shown := strings.Join(p.Output("bad", 200)[a.ID()], "\n")
	if strings.Count(shown, "stdout: ") < 5 || strings.Count(shown, "stdout: ") > noiseShown {
		t.Errorf("the output shows %q", shown)
	}
}

// P6: a banner without a line end costs nothing either.
func TestABannerOnTheLineOfTheHandshakeIsSkipped(t *testing.T) {
	p := realPool(t, Config{})
	expectEcho(t, mustAcquire(t, p, bad(t, "-banner-no-newline")), "hello")
}

// P7: one byte more than the limit fails that call and nothing else.
func TestALineOverTheLimitFailsItsCallOnly(t *testing.T) {
	p := realPool(t, Config{})
	a := mustAcquire(t, p, bad(t, "-result-before-id"))
	slow := make(chan string, 1)
	go func() { slow <- use(t, a, "slow", `{"ms":300}`) }()
	if reason, sent, _ := reasonOf(t, use(t, a, "big", fmt.Sprintf(`{"bytes":%d}`, wire.MaxFrame+1))); reason != fault.TooLarge || sent != fault.SentMaybe {
		t.Errorf("the call got %s, %s", reason, sent)
	}
	if got := <-slow; strings.Contains(got, `"error"`) {
		t.Errorf("another call got %s", got)
	}
	if got := use(t, a, "big", `{"bytes":5000000}`); len(got) < 5_000_000 {
		t.Errorf("a long line gave %.200s", got)
	}
	expectEcho(t, a, "hello")
}

// P5, P9: an error of a start names the server, its exit status and what it wrote.
func TestAFailedStartIsQuoted(t *testing.T) {
	for range 5 { // the exit status and the output come on other ways than the end of stdout
		p := realPool(t, Config{})
		_, err := p.NewHolder("a").Acquire(t.Context(), want(bad(t, "-fail-start"), nil))
		expectReason(t, err, fault.StartFailed)
		f := fault.Of(err)
		if f == nil || !strings.Contains(f.Message, `"bad"`) || f.Data["exit"] != "exit status 3" || f.Data["stderr"] == nil {
			t.Fatalf("the error is %v with %v", err, f.Data)
		}
	}
}

// Case 6: a server that never answers ends with its own timeout and leaves no process;
// another one that is slow starts meanwhile (P9).
func TestAServerThatNeverStarts(t *testing.T) {
	p := realPool(t, Config{})
	never := bad(t, "-never-start")
	never.StartTimeout = 500 * time.Millisecond
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := p.NewHolder("a").Acquire(t.Context(), want(never, nil))
		expectReason(t, err, fault.StartTimeout)
	})
	expectEcho(t, mustAcquire(t, p, bad(t, "-start-delay", "700ms")), "slow")
	wg.Wait()
}

// S4: a dial that times out leaves no process.
func TestAStartThatTimesOutLeavesNoProcess(t *testing.T) {
	p := realPool(t, Config{})
	never := bad(t, "-never-start", "-ignore-eof", "-ignore-term", "-grandchild", "setsid")
	never.StartTimeout = 500 * time.Millisecond
	_, err := p.NewHolder("a").Acquire(t.Context(), want(never, nil))
	expectReason(t, err, fault.StartTimeout)
	expectTagged(t, 0)
}

// Cases 1 and 44: whatever a server leaves behind is gone when a drain says so; one
// that ends at the end of its input takes milliseconds, one that ignores everything
// its waits.
func TestDrainLeavesNothing(t *testing.T) {
	for _, switches := range [][]string{
		nil,
		{"-grandchild", "background"},
		{"-grandchild", "setsid"},
		{"-grandchild", "hold_stdout"},
		{"-grandchild", "ignore_term", "-ignore-eof", "-ignore-term"},
	} {
		t.Run(strings.Join(switches, " "), func(t *testing.T) {
			p, m := managedPool(t, Config{})
			server := bad(t, switches...)
			if switches == nil {
				server.CloseEOFWait = 20 * time.Second
			}
			expectEcho(t, mustAcquire(t, p, server), "hello")
			if i := p.SnapshotOf(m.View())[0]; (i.Descendants > 0) != (switches != nil) {
				t.Errorf("the pool shows %d descendants", i.Descendants)
			}
			begun := time.Now()
			if r := p.Drain(t.Context(), false); r.Drained != 1 || r.Forced != 0 {
				t.Errorf("the report is %+v", r)
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			if left := tagged(t); len(left) > 0 {
				t.Errorf("left are %q", left)
			}
		})
	}
}

// Case 1: so it is with a restart.
func TestARestartLeavesNothingOfTheOldProcess(t *testing.T) {
	p := realPool(t, Config{})
	a := mustAcquire(t, p, bad(t, "-grandchild", "setsid"))
	old := p.Snapshot()[0].PID
	if r := p.Restart(t.Context(), "bad"); len(r) != 1 || !r[0].OK {
		t.Fatalf("the restart says %+v", r)
	}
	expectEcho(t, a, "hello")
	for _, command := range tagged(t) {
		if strings.HasPrefix(command, fmt.Sprint(old, " ")) {
			t.Errorf("the old process lives: %s", command)
		}
	}
	expectTagged(t, 2) // the new server and its grandchild
}

// R1, R2, R5, case 35: a server that dies during a call, in any way, answers every
// call within a second; the call ran once, and the next one finds a new server.
func TestAServerThatDiesDuringACall(t *testing.T) {
	for _, c := range []struct{ name, tool, arguments string }{
		{"crash", "ledger", `{"mode":"crash"`},
		{"killed", "kill", `{`},
		{"stdout closed", "ledger", `{"mode":"close_stdout"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := realPool(t, Config{})
			server := bad(t)
			a, b := mustAcquire(t, p, server), mustAcquire(t, p, server)
			hanging := make(chan string, 1)
			go func() { hanging <- use(t, b, "slow", `{"ms":60000}`) }()
			for p.Snapshot()[0].InFlight == 0 {
				time.Sleep(time.Millisecond)
			}
			ledger := filepath.Join(t.TempDir(), "ledger")
			arguments := c.arguments
			if c.tool == "ledger" {
				arguments += fmt.Sprintf(`,"file":%q`, ledger)
			}
			begun := time.Now()
			for _, got := range []string{use(t, a, c.tool, arguments+"}"), <-hanging} {
				if reason, sent, _ := reasonOf(t, got); reason != fault.Interrupted || sent != fault.SentMaybe {
					t.Errorf("a call got %s", got)
				}
			}
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("the errors came after %s", took)
			}
			if c.tool == "ledger" {
				lines, err := os.ReadFile(ledger)
				if err != nil || bytes.Count(lines, []byte("\n")) != 1 {
					t.Errorf("the ledger holds %q, %v; want one line", lines, err)
				}
			}
			a.Release()
			expectEcho(t, mustAcquire(t, p, server), "again")
		})
	}
}

// V1, S5 with a real server: a tool that is added is announced and shown.
func TestAnAddedToolIsAnnounced(t *testing.T) {
	p := realPool(t, Config{})
	told := make(chan string, 10)
	e := &ear{on: func(what string) { told <- what }}
	a, err := p.NewHolder("a").Acquire(t.Context(), want(bad(t, "-page-size", "3"), e))
	if err != nil {
		t.Fatal(err)
	}
	use(t, a, "add_tool", `{"name":"brand_new"}`)
	select {
	case what := <-told:
		if what != "tools changed" {
			t.Errorf("heard %q", what)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was announced")
	}
	l, err := a.List(t.Context(), Tools)
	if err != nil || !strings.Contains(strings.Join(keysOf(l), " "), "brand_new") {
		t.Errorf("the tools are %q, %v", keysOf(l), err)
	}
	if !json.Valid(l.Result(Tools)) {
		t.Error("the joined list is no JSON")
	}
}

// P5: a server whose end is first noticed by a write that fails is waited for like any
// other: its exit status is known when the link ends.
func TestTheExitStatusIsWaitedForAfterAWriteThatFails(t *testing.T) {
	m, err := process.NewManager(process.Config{})
	if err != nil {
		t.Fatal(err)
	}
	server := bad(t)
	server.Command, server.Args = "sh", []string{"-c", "exec <&-; echo closed >&2; sleep 0.3; exit 3"}
	l, err := dialStdio(t.Context(), m, server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close(context.Background())
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	for len(l.Output(1)) == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := l.Send(t.Context(), upstream.NewMessage([]byte("{}"))); err != nil { // queued, and fails first
		t.Fatal(err)
	}
	ended := l.Run(&connection{})
	if got := l.Facts().Exit; got != "exit status 3" {
		t.Errorf("the link ended with %v, and the server with %q", ended, got)
	}
}
