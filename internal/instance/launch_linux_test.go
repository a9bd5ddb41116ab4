package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"roundhouse/internal/badserver"
	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/process"
	"roundhouse/internal/secret"
	"roundhouse/internal/wire"
)

func TestMain(m *testing.M) {
	process.ReaperMain()
	os.Exit(m.Run())
}

// A house has real processes.
type house struct {
	*testing.T
	shared *pool.Pool
	pools  *Pools
	base   string // where the directories of instances are
}

func newHouse(t *testing.T, budget config.Budget) *house {
	t.Helper()
	processes, err := process.NewManager(process.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	h := &house{T: t, base: t.TempDir()}
	h.shared = pool.New(pool.Config{Dial: pool.NewDialer(processes, nil), DrainDelay: time.Minute, Budget: budget})
	starter := NewStarter(StarterConfig{Pool: h.shared, Processes: processes, Base: h.base})
	h.pools = New(Config{Launcher: starter})
	t.Cleanup(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		h.pools.Drain(over)
		h.shared.Drain(context.Background(), true)
		h.pools.Join()
		starter.Close()
		if err := processes.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(h.base); err != nil || len(left) > 0 {
			t.Errorf("directories are left: %v, %v", left, err)
		}
	})
	return h
}

// server is an exclusive server whose instances are processes of the misbehaving server.
func (h *house) server(change func(s *config.Server), args ...string) *config.Server {
	s := &config.Server{
		Name: "browser", Transport: config.Stdio, Command: badserver.Path(h.T), Args: args, Sharing: config.Exclusive, StartTimeout: 20 * time.Second,
		CloseEOFWait: 2 * time.Second, CloseTermWait: time.Second, CloseKillWait: 2 * time.Second,
		Instances: config.Instances{Max: 2, IdleTimeout: time.Minute, MaxWait: 20 * time.Second, OnRelease: config.ReleaseDestroy},
	}
	if change != nil {
		change(s)
	}
	h.pools.Configure([]*config.Server{s})
	return s
}

func (h *house) lease(s *config.Server, session string) *Lease {
	h.Helper()
	l, err := h.pools.Acquire(h.Context(), s, Borrower{"local", session})
	if err != nil {
		h.Fatal(err)
	}
	return l
}

// silent is a session that hears nothing.
type silent struct{}

func (silent) ListChanged(*pool.Attachment, mux.List) {}
func (silent) Lost(*pool.Attachment, *fault.Error)    {}
func (silent) Renewed(*pool.Attachment)               {}

// call calls a tool through the lease and returns the first text of the result.
func (h *house) call(l *Lease, tool, arguments string) string {
	h.Helper()
	holder := h.shared.NewHolder("s")
	defer holder.Release()
	att, err := l.Attach(holder, pool.Want{Server: l.in.server.conf, Listener: silent{}})
	if err != nil {
		h.Fatal(err)
	}
	f, err := wire.Parse(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tool, arguments))
	if err != nil {
		h.Fatal(err)
	}
	r, err := f.Routing()
	if err != nil {
		h.Fatal(err)
	}
	out := make(answer, 1)
	if _, err := att.Do(h.Context(), nobody{}, f, r, out); err != nil {
		h.Fatal(err)
	}
	var reply struct {
		Result struct{ Content []struct{ Text string } }
	}
	select {
	case raw := <-out:
		if err := json.Unmarshal(raw, &reply); err != nil || len(reply.Result.Content) == 0 {
			h.Fatal(err, string(raw))
		}
	case <-time.After(time.Minute):
		h.Fatalf("%s was not answered", tool)
	}
	return reply.Result.Content[0].Text
}

type answer chan []byte

func (a answer) Note(mux.Pieces)   {}
func (a answer) Done(p mux.Pieces) { a <- p.AppendTo(nil) }

type nobody struct{}

func (nobody) Notify(mux.Pieces)        {}
func (nobody) Ask(*mux.Ask, mux.Outlet) {}
func (nobody) Unask(*mux.Ask)           {}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 500 {
		if is() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("it never happened that %s", what)
}

// I7, case 12: each instance has a directory, which is also that of its temporary files, an
// index and a port of its own; the directory goes with it.
func TestEachInstanceHasItsOwnPlace(t *testing.T) {
	h := newHouse(t, config.Budget{})
	s := h.server(func(s *config.Server) {
		s.Env = map[string]secret.String{"PROFILE": secret.New("${INSTANCE_DIR}/profile"), "N": secret.New("${INSTANCE_INDEX}"), "PORT": secret.New("${INSTANCE_PORT}")}
	})
	type place struct{ Env map[string]string }
	where := func(l *Lease) (p place) {
		if err := json.Unmarshal([]byte(h.call(l, "whoami", `{"env":["PROFILE","N","PORT","TMPDIR"]}`)), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	a, b := h.lease(s, "a"), h.lease(s, "b")
	pa, pb := where(a), where(b)
	for _, name := range []string{"PROFILE", "N", "PORT", "TMPDIR"} {
		if pa.Env[name] == "" || pa.Env[name] == pb.Env[name] {
			t.Errorf("%s is %q and %q", name, pa.Env[name], pb.Env[name])
		}
	}
	dir := pa.Env["TMPDIR"]
	if filepath.Dir(pa.Env["PROFILE"]) != dir || !strings.HasPrefix(dir, h.base) {
		t.Errorf("the directory is %q, the profile %q", dir, pa.Env["PROFILE"])
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Error(info, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cookie"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.Release()
	eventually(t, "the directory is gone", func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
	if _, err := os.Stat(pb.Env["TMPDIR"]); err != nil {
		t.Error(err)
	}
}

// I7: what tidies up where temporary files go may take the directories of instances, too.
func TestADirectoryIsMadeWhereTheOthersAreGone(t *testing.T) {
	h := newHouse(t, config.Budget{})
	s := h.server(nil)
	h.lease(s, "a").Release()
	roots, err := filepath.Glob(filepath.Join(h.base, "*"))
	if err != nil || len(roots) != 1 {
		t.Fatal(roots, err)
	}
	if err := os.RemoveAll(roots[0]); err != nil {
		t.Fatal(err)
	}
	h.lease(s, "b").Release()
}

// I4, case 41: a warm instance that was killed or stopped is not lent.
func TestAKilledOrStoppedProcessIsNotLent(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, config.Budget{})
			s := h.server(func(s *config.Server) { s.Instances.Min = 1 })
			pid := 0
			eventually(t, "one is warm", func() bool {
				for _, i := range h.shared.Snapshot() {
					pid = i.PID
				}
				return h.pools.Snapshot("", true)[0].Warm == 1 && pid != 0
			})
			if err := syscall.Kill(pid, signal); err != nil {
				t.Fatal(err)
			}
			eventually(t, "no thread of it runs", func() bool { return halted(pid) }) // until then it may answer
			l := h.lease(s, "a")
			if got := h.call(l, "echo", `{"text":"well"}`); got != "well" {
				t.Error(got)
			}
			if l.Instance() == "browser#1" {
				t.Error("the first instance is lent")
			}
			l.Release()
		})
	}
}

// halted reports whether a process has no thread that is not stopped, or dead.
func halted(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			continue // it is gone
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		if !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X") {
			return false
		}
	}
	return true
}

// I1: an instance is warmed up before it counts as warm, and one that cannot be is none.
func TestWarmup(t *testing.T) {
	h := newHouse(t, config.Budget{})
	s := h.server(func(s *config.Server) { s.Instances.Warmup = config.ToolCall{Tool: "count"} })
	l := h.lease(s, "a")
	if got := h.call(l, "count", `{}`); got != "2" {
		t.Errorf("the tool was called %s times", got)
	}
	l.Release()
	s = h.server(func(s *config.Server) {
		s.Env = map[string]secret.String{"X": secret.New("other")}
		s.Instances.Warmup = config.ToolCall{Tool: "ledger", Arguments: json.RawMessage(`{"file":"/dev/null","mode":"error"}`)}
	})
	if _, err := h.pools.Acquire(t.Context(), s, Borrower{"local", "b"}); !fault.Is(err, fault.StartFailed) || !strings.Contains(err.Error(), "warmed up") {
		t.Error(err)
	}
}

// I1, P9: an instance that is not ready in time fails as any server does, with what can be
// said of its start; the time is that of the warm-up, too.
func TestAnInstanceThatIsNotReadyInTime(t *testing.T) {
	h := newHouse(t, config.Budget{})
	s := h.server(func(s *config.Server) { s.StartTimeout = time.Second }, "-never-start")
	_, err := h.pools.Acquire(t.Context(), s, Borrower{"local", "a"})
	if !fault.Is(err, fault.StartTimeout) || !strings.Contains(err.Error(), "did not answer initialize and list what it has within 1s") || fault.Of(err).Data["elapsedMs"] == nil {
		t.Error(err)
	}
	h = newHouse(t, config.Budget{})
	s = h.server(func(s *config.Server) {
		s.StartTimeout, s.Instances.MaxWait = 3*time.Second, time.Minute
		s.Instances.Warmup = config.ToolCall{Tool: "slow", Arguments: json.RawMessage(`{"ms":600000}`)}
	})
	if _, err := h.pools.Acquire(t.Context(), s, Borrower{"local", "a"}); !fault.Is(err, fault.StartTimeout) || !strings.Contains(err.Error(), "within 3s") {
		t.Error(err)
	}
}

// I1, R9: a list that could not be read is not taken for one that is not declared, and is
// read again when somebody wants it. One that is known stays.
func TestAListThatCouldNotBeReadIsReadAgain(t *testing.T) {
	h := newHouse(t, config.Budget{})
	s := h.server(nil, "-fail-list", "tools", "-fail-list-times", "2") // at the start, and right after it
	known, err := h.pools.Describe(t.Context(), s)
	if err != nil || known.Failed[pool.Tools] == nil || known.Lists[pool.Tools] != nil || known.Lists[pool.Prompts] == nil {
		t.Fatalf("%+v, %v", known, err)
	}
	if known, err = h.pools.Refresh(t.Context(), s); err != nil || known.Failed[pool.Tools] != nil || known.Lists[pool.Tools] == nil {
		t.Fatalf("%+v, %v", known, err)
	}
	tools := known.Lists[pool.Tools]
	h.lease(s, "a")
	h.lease(s, "b") // another one, which fails in the same way
	if known, err = h.pools.Describe(t.Context(), s); err != nil || known.Failed[pool.Tools] != nil || known.Lists[pool.Tools] != tools {
		t.Errorf("%+v, %v", known, err)
	}
}

// I1: a reset through a tool of the server's own; the process stays.
func TestReset(t *testing.T) {
	h := newHouse(t, config.Budget{})
	s := h.server(func(s *config.Server) {
		s.Instances.Max, s.Instances.OnRelease, s.Instances.Reset = 1, config.ReleaseReset, config.ToolCall{Tool: "count"}
	})
	for _, want := range []string{"1", "3", "5"} {
		l := h.lease(s, "a")
		if got := h.call(l, "count", `{}`); got != want {
			t.Errorf("count gave %s; want %s", got, want)
		}
		l.Release()
	}
}

// B1: instances count in the budget, and one that is over it is an error of its own.
func TestTheBudgetCountsInstances(t *testing.T) {
	h := newHouse(t, config.Budget{Mode: config.BudgetEnforce, Processes: 1})
	s := h.server(nil)
	l := h.lease(s, "a")
	if held := h.shared.Budget().Held; len(held) != 1 || held[0].Processes != 1 || held[0].Server != "browser" {
		t.Errorf("%+v", held)
	}
	if _, err := h.pools.Acquire(t.Context(), s, Borrower{"local", "b"}); !fault.Is(err, fault.BudgetExhausted) {
		t.Error(err)
	}
	l.Release()
}

// I8: endpoints are lent like processes, each to one at a time, and nothing is started.
func TestEndpointsAreAFleet(t *testing.T) {
	var urls []secret.String
	for n := range 2 {
		server := mcp.NewServer(&mcp.Implementation{Name: "computer"}, nil)
		mcp.AddTool(server, &mcp.Tool{Name: "which"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(n)}}}, nil, nil
		})
		listener := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
		t.Cleanup(listener.Close)
		urls = append(urls, secret.New(listener.URL))
	}
	h := newHouse(t, config.Budget{})
	s := h.server(func(s *config.Server) {
		s.Transport, s.Command, s.URL, s.Instances.Endpoints = config.HTTP, "", urls[0], urls
	})
	a, b := h.lease(s, "a"), h.lease(s, "b")
	if got := h.call(a, "which", `{}`) + h.call(b, "which", `{}`); got != "01" {
		t.Errorf("they have the endpoints %s", got)
	}
	hasty := *s
	hasty.Instances.MaxWait = 100 * time.Millisecond
	if _, err := h.pools.Acquire(t.Context(), &hasty, Borrower{"local", "c"}); !fault.Is(err, fault.InstanceWaitTimeout) {
		t.Error(err)
	}
	a.Release()
	if got := h.call(h.lease(s, "c"), "which", `{}`); got != "0" {
		t.Errorf("the third has the endpoint %s", got)
	}
}
