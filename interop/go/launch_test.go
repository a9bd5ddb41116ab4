//go:build interop

// Package interop runs the official Go SDK's client and the official TypeScript
// servers against the real daemon. It needs Linux, Node, the packages of
// ../package.json installed, and the daemon's binary (ROUNDHOUSE_BIN, or
// bin/roundhouse of this repository).
package interop

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// markName is the environment variable by which the processes of one daemon's
// servers are found; its value is different in every test.
const markName = "ROUNDHOUSE_INTEROP"

// patience bounds every wait for something that must happen; the machine may be slow,
// and busy.
const patience = time.Minute

// server is one entry of mcpServers, as far as these tests need it.
type server struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env,omitempty"`
}

// daemon is a running roundhouse with a configuration, a state directory and a
// port of its own.
type daemon struct {
	url   string
	files string // the directory that the server "files" serves

	cmd        *exec.Cmd
	output     *tail
	mark       string
	executable string        // a copy of the binary, so that its helper processes can be told from others'
	exited     chan struct{} // closed after cmd.Wait
	waitErr    error         // of cmd.Wait; read it after exited
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	w.text = w.text[max(0, len(w.text)-256<<10):]
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

// startDaemon starts a daemon with the servers "everything", "files" and "memory"
// and those in more, and waits until it is ready. When the test ends, the daemon
// and everything that came of it is killed.
func startDaemon(t *testing.T, more map[string]server) *daemon {
	t.Helper()
	binary := os.Getenv("ROUNDHOUSE_BIN")
	if binary == "" {
		binary = filepath.Join("..", "..", "bin", "roundhouse")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{
		files:      filepath.Join(dir, "files"),
		output:     new(tail),
		mark:       markName + "=" + rand.Text(),
		executable: filepath.Join(dir, "roundhouse"),
		exited:     make(chan struct{}),
	}
	if err := copyFile(d.executable, binary); err != nil {
		t.Fatalf("copying the daemon's binary: %v", err)
	}
	if err := os.Mkdir(d.files, 0o755); err != nil {
		t.Fatal(err)
	}

	servers := map[string]server{
		"everything": nodeServer(t, "everything"),
		"files":      nodeServer(t, "filesystem", d.files),
		"memory":     nodeServer(t, "memory"),
	}
	maps.Copy(servers, more)
	for name, s := range servers {
		s.Env = map[string]string{markName: strings.TrimPrefix(d.mark, markName+"="), "MEMORY_FILE_PATH": filepath.Join(dir, name+".jsonl")}
		servers[name] = s
	}
	config, err := json.Marshal(map[string]any{
		"mcpServers": servers,
		"stateDir":   filepath.Join(dir, "state"),
		"pool":       map[string]any{"drainDelay": "2s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "mcp.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}

	address := freeAddress(t)
	d.url = "http://" + address
	d.cmd = exec.Command(d.executable, "serve", "--config", file, "--listen", address)
	d.cmd.Dir = dir
	d.cmd.Stdout, d.cmd.Stderr = d.output, d.output
	d.cmd.WaitDelay = time.Second
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		t.Fatalf("starting the daemon: %v", err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
		for _, p := range d.processes() {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		<-d.exited
		if t.Failed() {
			t.Logf("the daemon said:\n%s", d.output)
		}
	})
	go func() {
		d.waitErr = d.cmd.Wait()
		close(d.exited)
	}()
	until(t, "the daemon is ready", func() bool {
		select {
		case <-d.exited:
			t.Fatalf("the daemon ended: %v", d.waitErr)
		default:
		}
		response, err := http.Get(d.url + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return d
}

// nodeServer is an official server, run from the installed package.
func nodeServer(t *testing.T, name string, args ...string) server {
	t.Helper()
	script, err := filepath.Abs(filepath.Join("..", "node_modules", "@modelcontextprotocol", "server-"+name, "dist", "index.js"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(script); err != nil {
		t.Fatalf("npm ci in interop/ installs the official servers: %v", err)
	}
	return server{Command: "node", Args: append([]string{script}, args...)}
}

func copyFile(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// freeAddress is a loopback address that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// until polls ask and fails the test if it does not become true.
func until(t *testing.T, what string, ask func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ask() {
		if time.Now().After(deadline) {
			t.Fatalf("gave up after %v waiting until %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// mcp is the endpoint of one server, or of the aggregate if name is empty.
func (d *daemon) mcp(name string) string {
	if name == "" {
		return d.url + "/mcp"
	}
	return d.url + "/mcp/" + name
}

// connection is what the daemon says about one upstream connection.
type connection struct {
	ID         string `json:"id"`
	Server     string `json:"server"`
	PID        int    `json:"pid"`
	State      string `json:"state"`
	Refs       int    `json:"refs"`
	Calls      int    `json:"inFlight"`
	Generation int    `json:"generation"`
}

func (d *daemon) connections(ctx context.Context) ([]connection, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+"/api/v1/connections", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("listing connections: %s", response.Status)
	}
	var list struct {
		Connections []connection `json:"connections"`
	}
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, fmt.Errorf("listing connections: %w", err)
	}
	return list.Connections, nil
}

// calls waits until so many calls are open at a server. The last of them may still be
// on its way there.
func (d *daemon) calls(t *testing.T, server string, count int) {
	t.Helper()
	until(t, fmt.Sprintf("%d calls are open at %s", count, server), func() bool {
		connections, err := d.connections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		open := 0
		for _, c := range connections {
			if c.Server == server {
				open += c.Calls
			}
		}
		return open == count
	})
}

// process is one live process that belongs to a daemon.
type process struct {
	pid     int
	command []string
	server  bool // it carries the mark of a server's configured environment
}

// processes lists the daemon, its helpers, its servers and their descendants.
// Zombies are not listed: they have no command.
func (d *daemon) processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// A process that ended meanwhile, or is not ours to look at, reads as empty.
		command, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		environment, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		executable, _ := os.Readlink(filepath.Join("/proc", entry.Name(), "exe"))
		if len(command) == 0 {
			continue
		}
		marked := slices.ContainsFunc(bytes.Split(environment, []byte{0}), func(v []byte) bool { return string(v) == d.mark })
		if marked || executable == d.executable {
			found = append(found, process{pid: pid, command: strings.Split(strings.TrimRight(string(command), "\x00"), "\x00"), server: marked && executable != d.executable})
		}
	}
	return found
}

// servers lists the live processes of servers whose command line contains name.
func (d *daemon) servers(name string) []process {
	return slices.DeleteFunc(d.processes(), func(p process) bool {
		return !p.server || !strings.Contains(strings.Join(p.command, " "), name)
	})
}
