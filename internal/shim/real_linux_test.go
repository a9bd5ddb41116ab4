package shim_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"roundhouse/internal/badserver"
)

// patience bounds every wait for something that must happen; the machine may be busy.
const patience = time.Minute

// playListen makes the test process listen at that path, as another user.
const playListen = "SHIM_TEST_LISTEN"

var buildDir string // constant after TestMain began

func TestMain(m *testing.M) {
	if path := os.Getenv(playListen); path != "" {
		l, err := net.Listen("unix", path)
		if err == nil {
			err = os.Chmod(path, 0o777)
		}
		fmt.Println(err)
		if err == nil {
			_, _ = io.ReadAll(os.Stdin)
			_ = l.Close()
		}
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "rh")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	buildDir = dir
	return m.Run()
}

// buildBinary builds the real binary, once.
var buildBinary = sync.OnceValue(func() error {
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(buildDir, "roundhouse"), "roundhouse/cmd/roundhouse").CombinedOutput()
	if err != nil {
		return fmt.Errorf("build roundhouse: %w\n%s", err, out)
	}
	return nil
})

var copyServer sync.Once

// machine is a user's machine with nothing running: a home directory with a
// configuration, and executables of its own, by which the processes that a test has caused
// are told from all others.
type machine struct {
	testing.TB
	dir string
	env []string // further variables of every process
}

// newMachine makes one. In settings, further members of the configuration's top level,
// and servers, SERVER is the path of the misbehaving server.
func newMachine(t testing.TB, servers, settings string) *machine {
	t.Helper()
	if err := buildBinary(); err != nil {
		t.Fatal(err)
	}
	server := badserver.Path(t)
	copyServer.Do(func() {
		// A child forked meanwhile would hold the file open for writing, and nobody
		// could execute it.
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		b, err := os.ReadFile(server)
		if err == nil {
			err = os.WriteFile(filepath.Join(buildDir, "badserver"), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	dir, err := os.MkdirTemp("", "rh") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{TB: t, dir: dir}
	for _, name := range []string{"roundhouse", "badserver"} {
		if err := os.Link(filepath.Join(buildDir, name), m.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	m.configure(servers, settings)
	t.Cleanup(m.clear)
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) configure(servers, settings string) {
	m.Helper()
	if servers == "" {
		servers = `"everything": {"command": "SERVER"}`
	}
	if settings != "" {
		settings = ", " + settings
	}
	text := strings.ReplaceAll(`{"mcpServers": {`+servers+`}`+settings+`}`, "SERVER", m.path("badserver"))
	if err := os.WriteFile(m.path("mcp.json"), []byte(text), 0o600); err != nil {
		m.Fatal(err)
	}
}

// command runs the real binary with a small environment.
func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.Command(m.path("roundhouse"), args...)
	cmd.Dir = m.dir
	cmd.Env = append([]string{
		"HOME=" + m.dir, "PATH=" + os.Getenv("PATH"), "ROUNDHOUSE_CONFIG=" + m.path("mcp.json"),
		"ROUNDHOUSE_STATE_DIR=" + m.path("state"), "ROUNDHOUSE_SOCKET=" + m.path("socket"),
	}, m.env...)
	return cmd
}

// processes lists the living processes of an executable whose command line holds word.
func (m *machine) processes(name, word string) []int {
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		m.Fatal(err)
	}
	var found []int
	for _, exe := range exes {
		target, err := os.Readlink(exe)
		if err != nil || target != m.path(name) {
			continue // another user's, gone, or not ours
		}
		pid, err := strconv.Atoi(strings.Split(exe, "/")[2])
		args, argsErr := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && argsErr == nil && bytes.Contains(args, []byte(word)) {
			found = append(found, pid)
		}
	}
	return found
}

func (m *machine) daemons() []int { return m.processes("roundhouse", "\x00serve\x00") }
func (m *machine) servers() []int { return m.processes("badserver", "") }

// theDaemon waits until there is exactly one daemon, and returns its pid.
func (m *machine) theDaemon() int {
	m.Helper()
	m.eventually("one daemon runs", func() bool { return len(m.daemons()) == 1 })
	return m.daemons()[0]
}

// kill ends the daemon and waits until it is gone.
func (m *machine) kill(s syscall.Signal) {
	m.Helper()
	pid := m.theDaemon()
	if err := syscall.Kill(pid, s); err != nil {
		m.Fatal(err)
	}
	m.eventually("the daemon is gone", func() bool { return syscall.Kill(pid, 0) != nil || m.zombie(pid) })
}

// zombie reports whether a process has ended and nobody has waited for it. One whose
// first thread has ended counts as a zombie while others still hold its sockets open.
func (m *machine) zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	threads, threadsErr := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err != nil || threadsErr != nil || bytes.Contains(b, []byte(") Z ")) && len(threads) < 2
}

func (m *machine) eventually(what string, ok func() bool) {
	m.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.Fatalf("after %s it is still not so that %s", patience, what)
		}
	}
}

// clear ends whatever runs, and shows what the started daemons wrote if a test failed.
func (m *machine) clear() {
	for _, pid := range m.daemons() {
		_ = syscall.Kill(pid, syscall.SIGTERM) // it may have gone
	}
	deadline := time.Now().Add(patience / 2)
	for len(m.daemons())+len(m.servers())+len(m.processes("roundhouse", "")) > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	for _, pid := range append(m.processes("roundhouse", ""), m.servers()...) {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have gone
		m.Errorf("process %d is left: %q", pid, args)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if m.Failed() {
		log, err := os.ReadFile(m.path("state/autostart.log"))
		m.Logf("the log of started daemons (%v):\n%s", err, log)
	}
	_ = os.RemoveAll(m.dir)
}

// serve runs a daemon as a person would.
func (m *machine) serve(args ...string) *exec.Cmd {
	m.Helper()
	cmd := m.command(append([]string{"serve"}, args...)...)
	var out output
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have exited
		_ = cmd.Wait()                          // its status says nothing here
		if m.Failed() {
			m.Logf("stderr of a daemon:\n%s", out.String())
		}
	})
	m.eventually("the daemon serves", func() bool { return strings.Contains(out.String(), "serving") })
	return cmd
}

// get reads from the daemon's API by its socket.
func (m *machine) get(path string, v any) {
	m.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", m.path("socket"))
	}}}
	res, err := c.Get("http://localhost" + path)
	if err != nil {
		m.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(v); err != nil || res.StatusCode != http.StatusOK {
		m.Fatalf("%s: %s, %v", path, res.Status, err)
	}
}

// output is what a process has written so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// host is an MCP client that has started a command, such as a shim. Its methods may be
// called concurrently.
type host struct {
	testing.TB
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr *output
	ended  chan struct{} // closed when the output has ended and the process too

	mu      sync.Mutex
	last    int
	pending map[int]chan reply
	notes   []string // methods of notifications
}

type reply struct {
	Result json.RawMessage
	Error  *rpcError
}

type rpcError struct {
	Code    int
	Message string
	Data    struct{ Reason, Sent string }
}

func (e *rpcError) Error() string {
	return fmt.Sprintf("%s (reason %s, sent %s)", e.Message, e.Data.Reason, e.Data.Sent)
}

// start starts a command as a host does, without a handshake.
func (m *machine) start(cmd *exec.Cmd) *host {
	m.Helper()
	h := &host{TB: m.TB, cmd: cmd, stderr: &output{}, ended: make(chan struct{}), pending: map[int]chan reply{}}
	cmd.Stderr = h.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		m.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.Fatal(err)
	}
	h.in = in
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	go h.read(out) // joined by the clean-up
	m.Cleanup(func() {
		_ = in.Close() // it may be closed
		select {
		case <-h.ended:
		case <-time.After(patience / 2):
			m.Errorf("the host's process does not end")
			_ = cmd.Process.Kill()
			<-h.ended
		}
		if m.Failed() {
			m.Logf("stderr of a shim:\n%s", h.stderr.String())
		}
	})
	return h
}

// connect is start with a shim and a handshake.
func (m *machine) connect(args ...string) *host {
	m.Helper()
	h := m.start(m.command(append([]string{"connect"}, args...)...))
	if _, err := h.initialize(); err != nil {
		m.Fatal(err)
	}
	return h
}

func (h *host) initialize() (json.RawMessage, error) {
	result, err := h.request("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"host","version":"1"}}`)
	if err == nil {
		h.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	}
	return result, err
}

func (h *host) read(out io.Reader) {
	defer close(h.ended)
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var f struct {
			ID     *int
			Method string
			reply
		}
		if err := json.Unmarshal(line, &f); err != nil {
			h.Errorf("the host got a line that is no JSON: %v: %s", err, line)
			continue
		}
		h.mu.Lock()
		if f.Method != "" {
			h.notes = append(h.notes, f.Method)
		} else if f.ID != nil && h.pending[*f.ID] != nil {
			h.pending[*f.ID] <- f.reply
			delete(h.pending, *f.ID)
		} else {
			h.Errorf("the host got an answer that it does not wait for: %s", line)
		}
		h.mu.Unlock()
	}
	_ = h.cmd.Wait() // its state says all
}

func (h *host) write(frame string) {
	if _, err := io.WriteString(h.in, frame+"\n"); err != nil {
		h.Errorf("write to the shim: %v", err)
	}
}

// begin sends a request; its answer comes later.
func (h *host) begin(method, params string) <-chan reply {
	h.mu.Lock()
	h.last++
	id := h.last
	answer := make(chan reply, 1)
	h.pending[id] = answer
	h.mu.Unlock()
	h.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params))
	return answer
}

func await(answer <-chan reply) (json.RawMessage, error) {
	select {
	case r := <-answer:
		if r.Error != nil {
			return nil, r.Error
		}
		return r.Result, nil
	case <-time.After(patience):
		return nil, fmt.Errorf("no answer within %s", patience)
	}
}

func (h *host) request(method, params string) (json.RawMessage, error) {
	return await(h.begin(method, params))
}

// beginCall calls a tool.
func (h *host) beginCall(tool, arguments string) <-chan reply {
	return h.begin("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
}

// text waits for the text of a tool's result.
func text(answer <-chan reply) (string, error) {
	raw, err := await(answer)
	if err != nil {
		return "", err
	}
	var r struct{ Content []struct{ Text string } }
	if err := json.Unmarshal(raw, &r); err != nil || len(r.Content) != 1 {
		return "", fmt.Errorf("the result is %s", raw)
	}
	return r.Content[0].Text, nil
}

// call calls a tool that must succeed.
func (h *host) call(tool, arguments string) string {
	h.Helper()
	got, err := text(h.beginCall(tool, arguments))
	if err != nil {
		h.Fatalf("%s: %v", tool, err)
	}
	return got
}

// echo checks that calls work.
func (h *host) echo() {
	h.Helper()
	if got := h.call("echo", `{"text":"x"}`); got != "x" {
		h.Fatalf("echo gives %q", got)
	}
}

// interrupted waits for the error of a call that may have been executed, or was
// certainly not.
func (h *host) interrupted(answer <-chan reply, sent string) string {
	h.Helper()
	_, err := await(answer)
	e, ok := errors.AsType[*rpcError](err)
	if !ok || e.Data.Reason != "interrupted" || e.Data.Sent != sent {
		h.Fatalf("the call ended with %v", err)
	}
	return e.Message
}

// end closes the host's end, and waits for the exit status.
func (h *host) end() int {
	h.Helper()
	if err := h.in.Close(); err != nil {
		h.Fatal(err)
	}
	select {
	case <-h.ended:
	case <-time.After(patience):
		h.Fatal("the shim does not end")
	}
	return h.cmd.ProcessState.ExitCode()
}

// lines counts the lines of a file.
func (m *machine) linesOf(path string) int {
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		m.Fatal(err)
	}
	return bytes.Count(b, []byte("\n"))
}
