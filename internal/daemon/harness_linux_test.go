package daemon_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"roundhouse/internal/badserver"
	"roundhouse/internal/process"
)

// patience bounds every wait for something that must happen; the machine may be busy.
const patience = time.Minute

var (
	buildFlags []string
	buildDir   string // constant after TestMain began
)

func TestMain(m *testing.M) {
	process.ReaperMain()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "roundhouse-daemon-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	buildDir = dir
	// Those side by side wait for daemons and servers far more than they compute.
	if err := flag.Set("test.parallel", strconv.Itoa(max(runtime.GOMAXPROCS(0), 4))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// binaries builds the real binary, and copies the server beside it, once.
var binaries = sync.OnceValue(func() error {
	args := append([]string{"build", "-buildvcs=false"}, buildFlags...)
	out, err := exec.Command("go", append(args, "-o", filepath.Join(buildDir, "roundhouse"), "roundhouse/cmd/roundhouse")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build roundhouse: %w\n%s", err, out)
	}
	return nil
})

var copyServer sync.Once

// nest is a directory with executables of its own, by which the processes that a
// test has caused are told from all others.
type nest struct {
	t   *testing.T
	dir string
}

func newNest(t *testing.T) *nest {
	t.Helper()
	if err := binaries(); err != nil {
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
			err = os.WriteFile(filepath.Join(buildDir, "badserver"), b, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	n := &nest{t, t.TempDir()}
	for _, name := range []string{"roundhouse", "badserver"} {
		if err := os.Link(filepath.Join(buildDir, name), filepath.Join(n.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(n.clear)
	return n
}

func (n *nest) path(name string) string { return filepath.Join(n.dir, name) }

// leftovers lists the living processes of one of the nest's executables, or of all.
func (n *nest) leftovers(names ...string) map[int]string {
	found := map[int]string{}
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, exe := range exes {
		target, err := os.Readlink(exe)
		if err != nil || filepath.Dir(target) != n.dir {
			continue // another user's, gone, or not ours
		}
		for _, name := range names {
			if filepath.Base(target) != name {
				target = ""
			}
		}
		if pid, err := strconv.Atoi(strings.Split(exe, "/")[2]); err == nil && target != "" {
			args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have gone
			found[pid] = strings.ReplaceAll(string(args), "\x00", " ")
		}
	}
	return found
}

// clear ends what a test has left, which is the test's failure.
func (n *nest) clear() {
	deadline := time.Now().Add(patience / 2)
	for len(n.leftovers()) > 0 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	for pid, args := range n.leftovers() {
		n.t.Errorf("process %d is left: %s", pid, args)
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have gone by now
	}
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %s it is still not so that %s", patience, what)
		}
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

// daemon is a running roundhouse.
type daemon struct {
	*nest
	url    string
	cmd    *exec.Cmd
	stderr *output
	exited chan struct{}
}

// command runs the real binary with a small environment and a state directory in
// the nest. In config, SERVER is the path of the misbehaving server.
func (n *nest) command(config string, args ...string) *daemon {
	n.t.Helper()
	file := n.path("config.json")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(config, "SERVER", n.path("badserver"))), 0o600); err != nil {
		n.t.Fatal(err)
	}
	if err := os.MkdirAll(n.path("tmp"), 0o700); err != nil {
		n.t.Fatal(err)
	}
	d := &daemon{nest: n, stderr: &output{}, exited: make(chan struct{})}
	args = append([]string{"serve", "--config", file, "--state-dir", n.path("state"), "--listen", "127.0.0.1:0"}, args...)
	d.cmd = exec.Command(n.path("roundhouse"), args...)
	d.cmd.Env = []string{"HOME=" + n.dir, "TMPDIR=" + n.path("tmp"), "ROUNDHOUSE_SOCKET=" + n.path("socket"), "PATH=" + os.Getenv("PATH"), "GORACE=exitcode=66 atexit_sleep_ms=0"}
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "SENTINEL_") {
			d.cmd.Env = append(d.cmd.Env, v)
		}
	}
	d.cmd.Stderr = d.stderr
	d.cmd.WaitDelay = patience
	if err := d.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() { // joined by the clean-up below
		defer close(d.exited)
		_ = d.cmd.Wait() // its state says all
	}()
	n.t.Cleanup(func() {
		_ = d.cmd.Process.Kill() // it may have exited
		<-d.exited
		if n.t.Failed() {
			n.t.Logf("stderr of roundhouse:\n%s", d.stderr)
		}
		if strings.Contains(d.stderr.String(), "DATA RACE") {
			n.t.Error("the race detector of roundhouse spoke up")
		}
	})
	return d
}

// serve runs the real binary and waits until it serves.
func (n *nest) serve(config string, args ...string) *daemon {
	n.t.Helper()
	d := n.command(config, args...)
	eventually(n.t, "the daemon serves", func() bool {
		select {
		case <-d.exited:
			n.t.Fatalf("the daemon ended: %s", d.cmd.ProcessState)
		default:
		}
		_, after, found := strings.Cut(d.stderr.String(), "roundhouse: serving ")
		url, _, whole := strings.Cut(after, "\n")
		d.url = url
		return found && whole
	})
	return d
}

func start(t *testing.T, config string, args ...string) *daemon {
	t.Helper()
	return newNest(t).serve(config, args...)
}

func (d *daemon) signal(s os.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
}

// wait returns how the daemon exited.
func (d *daemon) wait() *os.ProcessState {
	d.t.Helper()
	select {
	case <-d.exited:
	case <-time.After(patience):
		d.t.Fatalf("the daemon still runs after %s", patience)
	}
	return d.cmd.ProcessState
}

// wantExit waits for an exit with that status, after which no process may be left.
func (d *daemon) wantExit(status int) {
	d.t.Helper()
	if s := d.wait(); s.ExitCode() != status {
		d.t.Errorf("the daemon ended with %q, want status %d", s, status)
	}
	if left := d.leftovers("badserver"); len(left) > 0 {
		d.t.Errorf("servers are left: %v", left)
	}
}

// answer is an HTTP answer that was read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// reason is the reason of an error of the API or of JSON-RPC.
func (a answer) reason() string {
	var e struct {
		Error struct {
			Reason string
			Data   struct{ Reason string }
		}
	}
	if json.Unmarshal(a.body, &e) != nil {
		return ""
	}
	return e.Error.Reason + e.Error.Data.Reason
}

// text is the text of a tool's result.
func (a answer) text() string {
	var r struct {
		Result struct{ Content []struct{ Text string } }
	}
	if json.Unmarshal(a.body, &r) != nil || len(r.Result.Content) == 0 {
		return ""
	}
	return r.Result.Content[0].Text
}

// do sends a request and reads the whole answer.
func (d *daemon) do(method, path, body string, header ...string) answer {
	req, err := http.NewRequestWithContext(d.t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, b, err}
}

// get reads a resource of the API into v.
func (d *daemon) get(path string, v any) {
	d.t.Helper()
	a := d.do("GET", path, "")
	if a.err == nil && a.status != 200 {
		a.err = errors.New(string(a.body))
	}
	if a.err == nil {
		a.err = json.Unmarshal(a.body, v)
	}
	if a.err != nil {
		d.t.Fatalf("GET %s: %v", path, a.err)
	}
}

// client is an MCP client of one server.
type client struct {
	d      *daemon
	path   string
	header []string
}

const helloBody = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

// client makes a handshake; header is sent with everything.
func (d *daemon) client(server string, header ...string) *client {
	d.t.Helper()
	a := d.do("POST", "/mcp/"+server, helloBody, header...)
	id := a.header.Get("Mcp-Session-Id")
	if a.err != nil || a.status != 200 || id == "" {
		d.t.Fatalf("initialize: %d %s %v", a.status, a.body, a.err)
	}
	return &client{d, "/mcp/" + server, append(header, "Mcp-Session-Id", id)}
}

// call calls a tool.
func (c *client) call(tool, args string) answer {
	return c.d.do("POST", c.path, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tool, args), c.header...)
}

// begin calls a tool and returns when the call is in flight.
func (c *client) begin(tool, args string) <-chan answer {
	c.d.t.Helper()
	done := make(chan answer, 1)
	go func() { done <- c.call(tool, args) }()
	c.d.inFlight(1)
	return done
}

// inFlight waits until so many requests are in flight.
func (d *daemon) inFlight(n int) {
	d.t.Helper()
	eventually(d.t, fmt.Sprintf("%d requests are in flight", n), func() bool {
		var st struct{ InFlight int }
		d.get("/api/v1/status", &st)
		return st.InFlight == n
	})
}

// receive returns the answer of a call that must end.
func receive(t *testing.T, done <-chan answer) answer {
	t.Helper()
	select {
	case a := <-done:
		return a
	case <-time.After(patience):
		t.Fatalf("no answer after %s", patience)
		return answer{}
	}
}

// pids are the server's processes as the API shows them.
func (d *daemon) pids() []int {
	d.t.Helper()
	var list struct{ Connections []struct{ PID int } }
	d.get("/api/v1/connections", &list)
	var pids []int
	for _, c := range list.Connections {
		pids = append(pids, c.PID)
	}
	return pids
}

// journals returns the process journals in the state directory.
func (n *nest) journals() map[string][]byte {
	n.t.Helper()
	files := n.stateFiles()
	for name := range files {
		if filepath.Ext(name) != ".journal" {
			delete(files, name)
		}
	}
	return files
}

// stateFiles returns the content of every regular file below the state directory.
func (n *nest) stateFiles() map[string][]byte {
	n.t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(n.path("state"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files[path], err = os.ReadFile(path)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatal(err)
	}
	return files
}
