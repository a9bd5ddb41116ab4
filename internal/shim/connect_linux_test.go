package shim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// H8, case 72: twenty of the official client at once on a cold machine: one daemon, one
// server, no lost call.
func TestTwentyClientsOnAColdMachine(t *testing.T) {
	m := newMachine(t, "", "")
	var wg sync.WaitGroup
	ready := make(chan struct{})
	for i := range 20 {
		wg.Go(func() {
			if err := official(t.Context(), m, i, ready); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	m.theDaemon()
	m.eventually("one server runs", func() bool { return len(m.servers()) == 1 })
	close(ready)
	wg.Wait()
	if d, s := m.daemons(), m.servers(); len(d) != 1 || len(s) != 1 {
		t.Errorf("daemons %v, servers %v", d, s)
	}
}

// official runs one client of the SDK; it stays until ready is closed.
func official(ctx context.Context, m *machine, i int, ready <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "official", Version: "1"}, nil).
		Connect(ctx, &mcp.CommandTransport{Command: m.command("connect", "everything")}, nil)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	for k := range 10 {
		want := fmt.Sprintf("%d/%d", i, k)
		r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": want}})
		if err != nil {
			return errors.Join(fmt.Errorf("call %d: %w", k, err), c.Close())
		}
		if got, ok := r.Content[0].(*mcp.TextContent); !ok || got.Text != want {
			return errors.Join(fmt.Errorf("call %d gave %v", k, r.Content), c.Close())
		}
		if k == 5 {
			<-ready
		}
	}
	return c.Close()
}

// H8, N6, case 5: a daemon that ends between calls is replaced at the next call, however it
// ended, and the call does not notice. It is in the same session.
func TestRestartBetweenCalls(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(s.String(), func(t *testing.T) {
			m := newMachine(t, "", "")
			h := m.connect("everything")
			h.echo()
			var old, now sessionList
			m.get("/api/v1/sessions", &old)
			before := m.theDaemon()
			m.kill(s)
			if n := len(m.daemons()); n > 0 {
				t.Errorf("%d daemons were started without a request", n)
			}
			h.echo()
			if after := m.theDaemon(); after == before {
				t.Error("the daemon is the old one")
			}
			m.get("/api/v1/sessions", &now)
			if len(now.Sessions) != 1 || now.Sessions[0].ID != old.Sessions[0].ID || now.Sessions[0].RestoredAt == "" || now.Sessions[0].Named || len(now.Sessions[0].Clients) != 1 {
				t.Errorf("the sessions were %+v and are %+v", old, now)
			}
			m.eventually("one server runs", func() bool { return len(m.servers()) == 1 })
			h.mu.Lock()
			defer h.mu.Unlock()
			if got := strings.Join(h.notes, " "); !strings.Contains(got, "notifications/tools/list_changed") {
				t.Errorf("the client was told %s", got)
			}
		})
	}
}

type sessionList struct {
	Sessions []struct {
		ID, RestoredAt string
		Named          bool
		Clients        []struct{ Name string }
	}
}

// H8, case 5: a call in flight when the daemon is killed is an error that says so, and
// is executed once; the next call works.
func TestKilledDuringACall(t *testing.T) {
	m := newMachine(t, "", "")
	h := m.connect("everything")
	file := m.path("ledger")
	call := h.beginCall("ledger", fmt.Sprintf(`{"file":%q,"mode":"hang"}`, file))
	m.eventually("the call is executed", func() bool { return m.linesOf(file) == 1 })
	m.kill(syscall.SIGKILL)
	if text := h.interrupted(call, "maybe"); !strings.Contains(text, "may have been executed") {
		t.Errorf("the client is told: %s", text)
	}
	h.echo()
	h.echo()
	if n := m.linesOf(file); n != 1 {
		t.Errorf("the call was executed %d times", n)
	}
}

// G1, H8: while a daemon stops, a call in flight gets its answer, and calls that come
// meanwhile get theirs from the next daemon.
func TestNoCallIsLostInAnOrderlyRestart(t *testing.T) {
	m := newMachine(t, "", "")
	h := m.connect("everything")
	h.echo()
	old := m.theDaemon()
	slow := h.beginCall("slow", `{"ms":1500}`)
	time.Sleep(100 * time.Millisecond) // the call is at the server
	if err := syscall.Kill(old, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var answers []<-chan reply
	for range 20 {
		answers = append(answers, h.beginCall("count", `{}`))
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := text(slow); err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	for i, a := range answers {
		if _, err := text(a); err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if n := m.theDaemon(); n == old {
		t.Error("the daemon is the old one")
	}
}

// Case 5: a daemon that comes back on another port and with other tokens is the same to
// those who use the socket.
func TestAnotherPortAndToken(t *testing.T) {
	tokens := func(token string) string {
		return `"auth": {"tokens": [{"principal": "p", "token": "` + token + `"}]}`
	}
	m := newMachine(t, "", tokens("one-0123456789abcdef"))
	first := m.serve("--listen", "127.0.0.1:0")
	h := m.connect("everything", "--no-autostart")
	h.echo()
	m.stop(first)
	m.configure("", tokens("two-0123456789abcdef"))
	m.serve("--listen", "127.0.0.1:0")
	h.echo()
}

// stop ends a daemon in order.
func (m *machine) stop(cmd *exec.Cmd) {
	m.Helper()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		m.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		m.Fatal(err)
	}
}

// Case 5: a remote daemon's token is read from its file for each line.
func TestRemoteWithATokenFile(t *testing.T) {
	tokens := func(token string) string {
		return `"auth": {"tokens": [{"principal": "p", "token": "` + token + `"}]}`
	}
	port := freePort(t)
	m := newMachine(t, "", tokens("one-0123456789abcdef"))
	write := func(token string) {
		if err := os.WriteFile(m.path("token"), []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one-0123456789abcdef")
	first := m.serve("--listen", port)
	h := m.connect("everything", "--url", "http://"+port, "--token-file", m.path("token"))
	h.echo()
	m.stop(first)
	m.configure("", tokens("two-0123456789abcdef"))
	m.serve("--listen", port)
	call := h.beginCall("echo", `{"text":"x"}`)
	time.Sleep(200 * time.Millisecond) // it is refused for now
	write("two-0123456789abcdef")
	if got, err := text(call); got != "x" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Case 72: a daemon that is away for a while is waited for.
func TestAwayForAWhile(t *testing.T) {
	m := newMachine(t, "", "")
	first := m.serve("--listen", "127.0.0.1:0")
	h := m.connect("everything", "--no-autostart")
	h.echo()
	m.stop(first)
	call := h.beginCall("echo", `{"text":"x"}`)
	time.Sleep(3 * time.Second)
	m.serve("--listen", "127.0.0.1:0")
	if got, err := text(call); got != "x" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// Case 72: a daemon that stays away is a clear error for each call.
func TestAwayForEver(t *testing.T) {
	m := newMachine(t, "", "")
	first := m.serve("--listen", "127.0.0.1:0")
	h := m.connect("everything", "--no-autostart", "--wait", "2s")
	h.echo()
	m.stop(first)
	for range 2 {
		text := h.interrupted(h.beginCall("echo", `{"text":"x"}`), "no")
		if !strings.Contains(text, "no daemon listens at the socket") || !strings.Contains(text, m.path("socket")) {
			t.Errorf("the client is told: %s", text)
		}
	}
}

// H8: if no daemon can be had at first, the server itself takes over, and people are
// told on stderr.
func TestDirectFallback(t *testing.T) {
	m := newMachine(t, `"everything": {"command": "SERVER", "env": {"MARK": "x"}}`, "")
	h := m.connect("everything", "--no-autostart", "--wait", "200ms")
	h.echo()
	if got := h.stderr.String(); !strings.Contains(got, "roundhouse: warning: no daemon can be had within 200ms") || !strings.Contains(got, `running server "everything" directly`) {
		t.Errorf("stderr is %s", got)
	}
	if got := m.servers(); len(got) != 1 || got[0] != h.cmd.Process.Pid {
		t.Errorf("the servers are %v, the host's process is %d", got, h.cmd.Process.Pid)
	}
	if got := h.call("whoami", `{"env":["MARK"]}`); !strings.Contains(got, `"x"`) {
		t.Errorf("the server says it is %s", got)
	}
	if status := h.end(); status != 0 {
		t.Errorf("the exit status is %d", status)
	}
}

// V3, H8: a server with a tool filter is never run without the daemon that applies it;
// neither is one that nobody has configured, the aggregate, or any with --fallback off.
func TestNoFallback(t *testing.T) {
	for name, args := range map[string][]string{
		"filter":    {"filtered"},
		"unknown":   {"nosuch"},
		"aggregate": {},
		"off":       {"everything", "--fallback", "off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, `"everything": {"command": "SERVER"}, "filtered": {"command": "SERVER", "excludeTools": ["count"]}`, "")
			h := m.start(m.command(append(append([]string{"connect"}, args...), "--no-autostart", "--wait", "100ms")...))
			_, err := h.initialize()
			if e, ok := errors.AsType[*rpcError](err); !ok || e.Data.Reason != "interrupted" || !strings.Contains(e.Message, "no roundhouse daemon could be reached") {
				t.Errorf("the client is told: %v", err)
			}
			if n := len(m.servers()); n > 0 {
				t.Errorf("%d servers run", n)
			}
		})
	}
}

// H8: what is wrong with the configuration is what the client is told.
func TestABrokenConfiguration(t *testing.T) {
	m := newMachine(t, "", `"listenn": 1`)
	h := m.start(m.command("connect", "--wait", "4s"))
	if _, err := h.initialize(); err == nil || !strings.Contains(err.Error(), "mcp.json:1:") || !strings.Contains(err.Error(), `"listen"`) {
		t.Errorf("the client is told: %v", err)
	}
}

// Case 72: a socket file that a dead daemon left is no obstacle.
func TestStaleSocket(t *testing.T) {
	m := newMachine(t, "", "")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: m.path("socket"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	h := m.connect("everything")
	h.echo()
	m.theDaemon()
}

// Case 72: a socket of another user gets no frame; the server is run directly, or the
// client is told.
func TestASocketOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can play another user")
	}
	m := newMachine(t, "", "")
	if err := os.Chmod(m.dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	syscall.ForkLock.RLock() // a child forked meanwhile would hold the file open for writing
	err = os.WriteFile(m.path("other"), b, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command(m.path("other"))
	other.Dir, other.Env = m.dir, []string{playListen + "=" + m.path("socket")}
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = other.Wait() // its status says nothing here
	}()
	if _, err := io.ReadFull(out, make([]byte, len("<nil>"))); err != nil {
		t.Fatal(err)
	}
	h := m.connect("everything", "--wait", "2s")
	h.echo()
	if got := h.stderr.String(); !strings.Contains(got, "another user") {
		t.Errorf("stderr is %s", got)
	}
	h = m.start(m.command("connect", "--wait", "2s"))
	if _, err := h.initialize(); err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("the client is told: %v", err)
	}
}

// H8: a daemon that serves another file than the one that was named is not used.
func TestADaemonOfAnotherFile(t *testing.T) {
	m := newMachine(t, "", "")
	m.serve("--listen", "127.0.0.1:0")
	m.connect("everything", "--fallback", "off").echo()
	other := m.path("other.json")
	if err := os.WriteFile(other, []byte(`{"mcpServers": {}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	h := m.start(m.command("connect", "everything", "--config", other, "--wait", "2s"))
	if _, err := h.initialize(); err == nil || !strings.Contains(err.Error(), other) {
		t.Errorf("the client is told: %v", err)
	}
}

// N2, H8, case 27: clients with sessions of different names share nothing that is a
// session's; the same name is one session with two clients.
func TestNamedSessions(t *testing.T) {
	m := newMachine(t, `"everything": {"command": "SERVER", "sharing": "session"}`, "")
	a, b, a2 := m.connect("everything", "--session", "a"), m.connect("everything", "--session", "b"), m.connect("everything", "--session", "a")
	for i, c := range []struct {
		h    *host
		want string
	}{{a, "1"}, {b, "1"}, {a2, "2"}, {b, "2"}, {a, "3"}} {
		if got := c.h.call("count", `{}`); got != c.want {
			t.Errorf("call %d counts %s, want %s", i, got, c.want)
		}
	}
	var list struct {
		Sessions []struct {
			ID        string
			Named     bool
			Workspace string
			Clients   []struct{ Name string }
		}
	}
	m.get("/api/v1/sessions", &list)
	clients := map[string]int{}
	for _, s := range list.Sessions {
		clients[s.ID] = len(s.Clients)
		if !s.Named || s.Workspace != m.dir || s.Clients[0].Name != "host/1" {
			t.Errorf("the session is %+v", s)
		}
	}
	if len(clients) != 2 || clients["a"] != 2 || clients["b"] != 1 {
		t.Errorf("the sessions' clients are %v", clients)
	}
}

// N4, case 44: the end of a client ends its session at once, and the shim in no time.
func TestTheEndOfAClient(t *testing.T) {
	m := newMachine(t, "", "")
	h := m.connect("everything")
	h.echo()
	h.beginCall("slow", `{"ms":600000}`)
	begun := time.Now()
	if status := h.end(); status != 0 {
		t.Errorf("the exit status is %d", status)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the end took %s", took)
	}
	m.eventually("no session is left", func() bool {
		var list struct{ Sessions []any }
		m.get("/api/v1/sessions", &list)
		return len(list.Sessions) == 0
	})
}

func TestSignals(t *testing.T) {
	m := newMachine(t, "", "")
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		h := m.connect("everything")
		h.beginCall("slow", `{"ms":600000}`)
		if err := h.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		select {
		case <-h.ended:
		case <-time.After(patience):
			t.Fatalf("%s does not end the shim", s)
		}
		if status := h.cmd.ProcessState.ExitCode(); status != 0 {
			t.Errorf("%s: the exit status is %d", s, status)
		}
	}
}

// M2: a cancellation overtakes calls that wait.
func TestCancellation(t *testing.T) {
	m := newMachine(t, "", "")
	h := m.connect("everything")
	h.beginCall("slow", `{"ms":600000}`)
	h.mu.Lock()
	id := h.last
	h.mu.Unlock()
	m.eventually("the call is at the server", func() bool { return m.inFlight() == 1 })
	h.write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
	m.eventually("the call is gone", func() bool { return m.inFlight() == 0 })
	if got := h.call("cancelled", `{}`); !strings.Contains(got, "[") || got == "[]" {
		t.Errorf("the server saw the cancellations %s", got)
	}
}

func (m *machine) inFlight() int {
	var status struct{ InFlight int }
	m.get("/api/v1/status", &status)
	return status.InFlight
}

// Case 11: big frames pass in both directions.
func TestBigFrames(t *testing.T) {
	m := newMachine(t, "", "")
	h := m.connect("everything")
	big := strings.Repeat("x", 5<<20)
	if got := h.call("echo", `{"text":"`+big+`"}`); got != big {
		t.Errorf("%d bytes came back", len(got))
	}
}

// H8: a daemon that was started for shims stays while one is connected, ends when it
// was idle long enough, and leaves no socket. It listens on TCP only if it was told to.
func TestIdleExit(t *testing.T) {
	m := newMachine(t, "", `"sessions": {"idleTimeout": "100ms"}, "autostart": {"idleExit": "500ms"}`)
	h := m.connect("everything")
	pid := m.theDaemon()
	time.Sleep(1500 * time.Millisecond) // the session is dormant by now
	h.echo()
	if m.theDaemon() != pid {
		t.Error("the daemon ended while a client was connected")
	}
	if out, err := exec.Command("ls", "-l", fmt.Sprintf("/proc/%d/fd", pid)).Output(); err != nil || len(out) == 0 {
		t.Fatal(err)
	}
	h.end()
	m.eventually("the daemon has ended", func() bool { return len(m.daemons()) == 0 })
	if left, err := filepath.Glob(m.path("socket*")); len(left) > 0 || err != nil {
		t.Errorf("left are %v, %v", left, err)
	}
	log, err := os.ReadFile(m.path("state/autostart.log"))
	if err != nil || strings.Contains(string(log), "http://") {
		t.Errorf("the daemon listened on TCP: %s, %v", log, err)
	}
	if info, err := os.Stat(m.path("state/autostart.log")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log's mode is %v, %v", info.Mode(), err)
	}
}

// H8: a started daemon whose TCP address is taken serves local programs all the same.
func TestATakenPortDoesNotStopAStartedDaemon(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := newMachine(t, "", `"listen": "`+l.Addr().String()+`"`)
	m.connect("everything").echo()
}

// H8: a second daemon on the same socket serves its URL only, and says so.
func TestASecondDaemonServesItsURL(t *testing.T) {
	m := newMachine(t, "", "")
	m.serve("--listen", "127.0.0.1:0")
	port := freePort(t)
	second := m.command("serve", "--listen", port)
	var out output
	second.Stderr = &out
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = second.Process.Signal(syscall.SIGTERM)
		_ = second.Wait() // its status says nothing here
	}()
	m.eventually("the second daemon serves", func() bool { return strings.Contains(out.String(), "serving") })
	if !strings.Contains(out.String(), "another daemon serves local programs") {
		t.Errorf("stderr is %s", out.String())
	}
	m.connect("everything", "--url", (&url.URL{Scheme: "http", Host: port}).String()).echo()
	m.connect("everything").echo()
}

// The commands find the daemon by its socket where no URL is given.
func TestCommandsUseTheSocket(t *testing.T) {
	m := newMachine(t, "", "")
	m.connect("everything").echo()
	out, err := m.command("ps", "--json").Output()
	var list struct{ Connections []struct{ Server string } }
	if err != nil || json.Unmarshal(out, &list) != nil || len(list.Connections) != 1 || list.Connections[0].Server != "everything" {
		t.Errorf("ps says %s, %v", out, err)
	}
	if out, err := m.command("call", "everything", "echo", `{"text":"hi"}`).Output(); err != nil || string(out) != "hi\n" {
		t.Errorf("call says %s, %v", out, err)
	}
}
