package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"roundhouse/bench/load"
)

const (
	readyWithin = 15 * time.Second // for a front to answer after its start
	stopWithin  = 10 * time.Second // for a front to end after SIGTERM, before it is killed
)

// The names of the fronts, in tables and JSON.
const (
	stdioFront            = "stdio"
	roundhouseFront       = "roundhouse"
	typedProxyFront       = "typed-proxy"
	sdkHTTPFront          = "sdk-http"
	sdkHTTPJSONFront      = "sdk-http-json"
	roundhouseHTTPFront   = "roundhouse-http"
	roundhouseModernFront = "roundhouse-modern"
	sdkHTTPModernFront    = "sdk-http-modern"
)

// frontNames are all fronts, in the order of the table.
var frontNames = []string{
	stdioFront, roundhouseFront, typedProxyFront, sdkHTTPFront, sdkHTTPJSONFront, roundhouseHTTPFront, roundhouseModernFront, sdkHTTPModernFront,
}

// binaries are the paths of what a run starts.
type binaries struct {
	echoserver, typedproxy string
	engine, plainproxy     string
	roundhouse             string // empty if it could not be built
	roundhouseProblem      string // what the failed build said
}

// build builds the binaries into dir. A given roundhouse is not built. That
// roundhouse cannot be built is not an error; it is then left out of the run.
func build(ctx context.Context, dir, roundhouse string) (binaries, error) {
	bin := binaries{
		echoserver: filepath.Join(dir, "echoserver"),
		typedproxy: filepath.Join(dir, "typedproxy"),
		engine:     filepath.Join(dir, "engine"),
		plainproxy: filepath.Join(dir, "plainproxy"),
		roundhouse: roundhouse,
	}
	for _, path := range []string{bin.echoserver, bin.typedproxy, bin.engine, bin.plainproxy} {
		if err := goBuild(ctx, path, "roundhouse/bench/"+filepath.Base(path)); err != nil {
			return bin, err
		}
	}
	if roundhouse != "" {
		return bin, nil
	}
	bin.roundhouse = filepath.Join(dir, "roundhouse")
	if err := goBuild(ctx, bin.roundhouse, "roundhouse/cmd/roundhouse"); err != nil {
		if ctx.Err() != nil {
			return bin, err
		}
		bin.roundhouse, bin.roundhouseProblem = "", err.Error()
	}
	return bin, nil
}

func goBuild(ctx context.Context, output, pkg string) error {
	out, err := exec.CommandContext(ctx, "go", "build", "-o", output, pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, bytes.TrimSpace(out))
	}
	return nil
}

// front is one way to reach the echo tool. All its fields are constant after start.
type front struct {
	name     string
	command  []string // of the front process, or for stdio that of every session
	modern   bool     // clients speak 2026-07-28
	upstream *front   // a server that is a process of its own; nil for all but roundhouse-http

	// Of a front process; unused for stdio.
	endpoint string
	cmd      *exec.Cmd
	log      string        // the file with its output
	ended    chan struct{} // closed when the process has ended and cmd.ProcessState is set
}

// startFronts starts all fronts that bin allows, in the order of the table. On an
// error it returns those that it had started; the caller stops them.
func startFronts(ctx context.Context, dir string, bin binaries) ([]*front, error) {
	echo := []string{bin.echoserver, "-stdio"}
	fronts := []*front{{name: stdioFront, command: echo}}
	overHTTP := func(name string, options ...string) func() (*front, error) {
		return func() (*front, error) {
			return startFront(ctx, dir, name, "/", "", func(addr string) []string {
				return append([]string{bin.echoserver, "-http", addr}, options...)
			})
		}
	}
	inFront := func(name string, server map[string]any) (*front, error) {
		config, err := writeConfig(dir, name, map[string]any{"echo": server})
		if err != nil {
			return nil, err
		}
		return startFront(ctx, dir, name, "/mcp/echo", "/readyz", func(addr string) []string {
			return []string{bin.roundhouse, "serve", "--config", config, "--listen", addr}
		})
	}
	stdioServer := map[string]any{"command": echo[0], "args": echo[1:]}
	starts := map[string]func() (*front, error){
		roundhouseFront: func() (*front, error) { return inFront(roundhouseFront, stdioServer) },
		typedProxyFront: func() (*front, error) {
			return startFront(ctx, dir, typedProxyFront, "/", "", func(addr string) []string {
				return append([]string{bin.typedproxy, "-http", addr}, echo...)
			})
		},
		sdkHTTPFront:     overHTTP(sdkHTTPFront),
		sdkHTTPJSONFront: overHTTP(sdkHTTPJSONFront, "-json"),
		roundhouseHTTPFront: func() (*front, error) {
			upstream, err := overHTTP("upstream")()
			if err != nil {
				return nil, err
			}
			f, err := inFront(roundhouseHTTPFront, map[string]any{"type": "http", "url": upstream.endpoint})
			if err != nil {
				return nil, errors.Join(err, upstream.stop())
			}
			f.upstream = upstream
			return f, nil
		},
		roundhouseModernFront: func() (*front, error) { return inFront(roundhouseModernFront, stdioServer) },
		sdkHTTPModernFront:    overHTTP(sdkHTTPModernFront, "-stateless"),
	}
	for _, name := range frontNames[len(fronts):] {
		if bin.roundhouse == "" && slices.Contains([]string{roundhouseFront, roundhouseHTTPFront, roundhouseModernFront}, name) {
			continue
		}
		f, err := starts[name]()
		if err != nil {
			return fronts, fmt.Errorf("start %s: %w", name, err)
		}
		f.modern = name == roundhouseModernFront || name == sdkHTTPModernFront
		fronts = append(fronts, f)
	}
	return fronts, nil
}

// writeConfig writes the configuration file of a roundhouse with these servers, and
// returns its path. name is that of the front.
func writeConfig(dir, name string, servers map[string]any) (string, error) {
	state := filepath.Join(dir, name+".state")
	if err := os.Mkdir(state, 0o700); err != nil {
		return "", fmt.Errorf("make a state directory: %w", err)
	}
	text, err := json.Marshal(map[string]any{"mcpServers": servers, "stateDir": state})
	if err != nil {
		return "", fmt.Errorf("write a configuration: %w", err)
	}
	path := filepath.Join(dir, name+".json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write a configuration: %w", err)
	}
	return path, nil
}

// startFront starts a front process on a free loopback port and waits until it is
// ready: until GET ready answers 200, or if ready is empty until it accepts a
// connection. On an error nothing is left running.
func startFront(ctx context.Context, dir, name, path, ready string, command func(addr string) []string) (*front, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	return startFrontAt(ctx, dir, name, addr, path, ready, command(addr))
}

// startFrontAt is startFront with an address that was chosen before.
func startFrontAt(ctx context.Context, dir, name, addr, path, ready string, command []string) (*front, error) {
	f := &front{
		name:     name,
		command:  command,
		endpoint: "http://" + addr + path,
		log:      filepath.Join(dir, name+".log"),
		ended:    make(chan struct{}),
	}
	log, err := os.Create(f.log)
	if err != nil {
		return nil, fmt.Errorf("open its log: %w", err)
	}
	defer log.Close()
	f.cmd = exec.Command(f.command[0], f.command[1:]...)
	f.cmd.Dir = dir
	f.cmd.Stdout, f.cmd.Stderr = log, log
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	go f.wait() // Joined by stop.
	if err := f.awaitReady(ctx, addr, ready); err != nil {
		return nil, errors.Join(fmt.Errorf("%w%s", err, f.logTail()), f.stop())
	}
	return f, nil
}

func (f *front) wait() {
	_ = f.cmd.Wait() // ProcessState keeps what there is to know.
	close(f.ended)
}

func (f *front) awaitReady(ctx context.Context, addr, path string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not ready within %v", readyWithin))
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		if isReady(ctx, addr, path) {
			return nil
		}
		select {
		case <-poll.C:
		case <-f.ended:
			return fmt.Errorf("it ended at once: %v", f.cmd.ProcessState)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func isReady(ctx context.Context, addr, path string) bool {
	if path == "" {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// freeAddr returns a loopback address that nobody listens on now.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// open opens a session.
func (f *front) open(ctx context.Context) (load.Session, error) {
	if f.cmd == nil {
		return load.StartStdio(ctx, f.command...)
	}
	if f.modern {
		return load.DialModernHTTP(ctx, f.endpoint)
	}
	return load.DialHTTP(ctx, f.endpoint)
}

// logTail returns the end of the front's output as an addition to an error message.
// A stdio session's stderr goes to ours and is not kept.
func (f *front) logTail() string {
	const most = 2000
	if f.cmd == nil {
		return ""
	}
	text, err := os.ReadFile(f.log)
	if err != nil {
		return fmt.Sprintf("; its output is lost: %v", err)
	}
	tail := bytes.TrimSpace(text[max(0, len(text)-most):])
	if len(tail) == 0 {
		return ""
	}
	return fmt.Sprintf("; its output ends with:\n%s", tail)
}

// stop ends the front process, everything below it and its upstream, and returns when
// all of it is gone. It may be called once, and on a stdio front does nothing.
func (f *front) stop() error {
	if f.cmd == nil {
		return nil
	}
	below, err := descendants(f.cmd.Process.Pid)
	_ = f.cmd.Process.Signal(syscall.SIGTERM) // It fails only if the process has ended.
	timeout := time.NewTimer(stopWithin)
	defer timeout.Stop()
	select {
	case <-f.ended:
	case <-timeout.C:
		err = errors.Join(err, fmt.Errorf("stop %s: killed, because it did not end within %v of SIGTERM", f.name, stopWithin))
		_ = f.cmd.Process.Kill()
		<-f.ended
	}
	err = errors.Join(err, endAll(below))
	if f.upstream != nil {
		err = errors.Join(err, f.upstream.stop())
	}
	return err
}

// stopFronts stops fronts in reverse order.
func stopFronts(fronts []*front) error {
	var errs []error
	for i := len(fronts) - 1; i >= 0; i-- {
		errs = append(errs, fronts[i].stop())
	}
	return errors.Join(errs...)
}
