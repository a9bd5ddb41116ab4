package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"roundhouse/internal/badserver"
	"roundhouse/internal/process"
)

func TestMain(m *testing.M) {
	process.ReaperMain()
	testscript.Main(m, map[string]func(){"roundhouse": main})
}

// TestScripts runs testdata/script, where roundhouse is the real command line in a
// process of its own. Beside testscript's own commands the scripts have those of
// scriptCommands, and $SERVER, a server that answers and misbehaves on request.
func TestScripts(t *testing.T) {
	server := badserver.Path(t)
	maps.Copy(scriptCommands, modelCommands)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Deadline:            time.Now().Add(5 * time.Minute),
		Cmds:                scriptCommands,
		Setup: func(e *testscript.Env) error {
			e.Setenv("SERVER", server)
			e.Setenv("GORACE", raceOptions)
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("ROUNDHOUSE_STATE_DIR", e.WorkDir+"/state")
			e.Setenv("ROUNDHOUSE_LISTEN", "127.0.0.1:0")
			e.Setenv("ROUNDHOUSE_URL", "http://127.0.0.1:1") // where nobody listens, until serve
			e.Values[servedKey{}] = &served{}
			e.Values[watchedKey{}] = &background{}
			return nil
		},
	})
}

var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	// exits STATUS COMMAND… is exec that wants an exit status.
	"exits": func(ts *testscript.TestScript, neg bool, args []string) {
		want, err := strconv.Atoi(args[0])
		if neg || err != nil || len(args) < 2 {
			ts.Fatalf("usage: exits STATUS COMMAND…")
		}
		got := 0
		if err := ts.Exec(args[1], args[2:]...); err != nil {
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok {
				ts.Fatalf("%v", err)
			}
			got = exit.ExitCode()
		}
		if got != want {
			ts.Fatalf("the exit status is %d, not %d", got, want)
		}
	},
	// json checks that the last command printed one JSON value, and with arguments
	// PATH VALUE what is in it, such as connections.0.server everything.
	"json": func(ts *testscript.TestScript, neg bool, args []string) {
		var v any
		if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &v); err != nil {
			ts.Fatalf("stdout is no JSON: %v", err)
		}
		if len(args) == 0 {
			return
		}
		for key := range strings.SplitSeq(args[0], ".") {
			switch x := v.(type) {
			case map[string]any:
				v = x[key]
			case []any:
				if i, err := strconv.Atoi(key); err == nil && i < len(x) {
					v = x[i]
					continue
				}
				v = nil
			default:
				v = nil
			}
		}
		got, ok := v.(string)
		if !ok {
			b, err := json.Marshal(v)
			ts.Check(err)
			got = string(b)
		}
		if (got == args[1]) == neg {
			ts.Fatalf("%s is %s", args[0], got)
		}
	},
	// session ID SERVER opens an MCP client of a server in a session of that name.
	"session": func(ts *testscript.TestScript, neg bool, args []string) { openSession(ts, args[0], args[1]) },
	// watch COMMAND… runs a command that does not end by itself beside the script.
	"watch": func(ts *testscript.TestScript, neg bool, args []string) {
		*ts.Value(watchedKey{}).(*background) = *start(ts, nil, args[0], args[1:]...)
	},
	// sees REGEXP waits until that is in its output, and unwatch STATUS interrupts it and
	// wants an exit status; unless it has ended by then.
	"sees": func(ts *testscript.TestScript, neg bool, args []string) {
		ts.Value(watchedKey{}).(*background).sees(ts, regexp.MustCompile("(?m)"+args[0]))
	},
	"unwatch": func(ts *testscript.TestScript, neg bool, args []string) {
		status, err := strconv.Atoi(args[0])
		ts.Check(err)
		w := ts.Value(watchedKey{}).(*background)
		_ = w.cmd.Process.Signal(os.Interrupt) // it may have ended
		w.ended(ts, status)
	},
	// activate SOCKET ARGUMENTS… runs roundhouse as a service manager does that listens
	// at the socket: a client waits there already, and is served.
	"activate": func(ts *testscript.TestScript, neg bool, args []string) {
		path := ts.MkAbs(args[0])
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		ts.Check(err)
		l.SetUnlinkOnClose(false)
		ts.Defer(func() { l.Close() })
		f, err := l.File()
		ts.Check(err)
		defer f.Close()
		early, err := net.Dial("unix", path)
		ts.Check(err)
		defer early.Close()
		d := startDaemon(ts, f, "sh", append([]string{"-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec roundhouse "$@"`, "sh"}, args[1:]...)...)
		*ts.Value(servedKey{}).(*served) = *d
		ts.Check(early.SetDeadline(time.Now().Add(patience)))
		_, err = io.WriteString(early, "GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
		ts.Check(err)
		b, err := io.ReadAll(early)
		ts.Check(err)
		if !bytes.Contains(b, []byte("200 OK")) {
			ts.Fatalf("the client that waited got %q", b)
		}
	},
	// use ID SERVER opens an MCP client in a session of that name and calls a tool.
	"use": func(ts *testscript.TestScript, neg bool, args []string) { useServer(ts, args[0], args[1]) },
	// serve ARGUMENTS… runs roundhouse serve beside the script until halt, or the
	// script's end, and lets ROUNDHOUSE_URL and ADDRESS name it.
	"serve": func(ts *testscript.TestScript, neg bool, args []string) {
		d := startDaemon(ts, nil, "roundhouse", append([]string{"serve"}, args...)...)
		*ts.Value(servedKey{}).(*served) = *d
		ts.Setenv("ROUNDHOUSE_URL", d.url)
		ts.Setenv("ADDRESS", strings.TrimPrefix(d.url, "http://"))
	},
	// halt ends it; what it wrote to stderr is in the file serve.log then.
	"halt": func(ts *testscript.TestScript, neg bool, args []string) {
		d := ts.Value(servedKey{}).(*served)
		d.stop(ts)
		ts.Check(os.WriteFile(ts.MkAbs("serve.log"), []byte(d.log.String()), 0o600))
	},
	// examples runs the examples of every command's help, with a session called review,
	// which has an instance of the server browser, and some that are recorded.
	// Those that serve run beside the script, on a free port, and those that follow
	// something until there is something.
	"examples": func(ts *testscript.TestScript, neg bool, args []string) {
		openSession(ts, "review", "everything")
		useServer(ts, "review", "browser")
		for _, session := range []string{"review", "run-17", "old-run"} {
			ask(ts, session, "hi")
		}
		for _, cmd := range allCommands(newRoot()) {
			for line := range strings.Lines(cmd.Example) {
				line = strings.TrimSpace(line)
				ts.Logf("example: %s", line)
				if cmd.Name() == "serve" && !strings.Contains(line, "install") {
					startDaemon(ts, nil, "sh", "-c", "ROUNDHOUSE_STATE_DIR=$HOME/second exec "+strings.ReplaceAll(line, ":7420", ":0")).stop(ts)
					continue
				}
				if tail := cmd.Name() == "tail"; tail || strings.Contains(line, " -f ") || cmd.Name() == "events" {
					w := start(ts, nil, "sh", "-c", "exec "+line)
					for tail && w.log.String() == "" { // it may not follow yet
						ask(ts, "review", "hi")
					}
					w.sees(ts, regexp.MustCompile("."))
					ts.Check(w.cmd.Process.Signal(os.Interrupt))
					w.ended(ts, 0)
					continue
				}
				ts.Check(ts.Exec("sh", "-c", line))
				quiet := cmd.Name() == "connect" // a client that closes its end at once is owed nothing
				if ts.ReadFile("stdout") == "" && !quiet && !strings.Contains(line, ">") {
					ts.Fatalf("it prints nothing")
				}
			}
		}
	},
}

func allCommands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		all = append(all, allCommands(sub)...)
	}
	return all
}

// STYLE 18: every command that does something shows how.
func TestEveryCommandHasAnExample(t *testing.T) {
	for _, cmd := range allCommands(newRoot()) {
		if !cmd.HasSubCommands() && cmd.Name() != "help" && !strings.Contains(cmd.Example, "roundhouse "+strings.TrimPrefix(cmd.CommandPath(), "roundhouse ")) {
			t.Errorf("%s has the example %q", cmd.CommandPath(), cmd.Example)
		}
	}
}

type (
	servedKey  struct{}
	watchedKey struct{}
)

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"script","version":"1"}}}`

// openSession opens an MCP client of a server in a session of a name.
func openSession(ts *testscript.TestScript, id, server string) {
	post(ts, server, hello, "X-Session-Id", id)
}

// useServer opens one that calls a tool of the server.
func useServer(ts *testscript.TestScript, id, server string) {
	client := post(ts, server, hello, "X-Session-Id", id)
	post(ts, server, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}`, "Mcp-Session-Id", client)
}

// post sends a request to a server and returns the MCP session id of the answer.
func post(ts *testscript.TestScript, server, body, header, value string) string {
	req, err := http.NewRequest("POST", ts.Getenv("ROUNDHOUSE_URL")+"/mcp/"+server, strings.NewReader(body))
	ts.Check(err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set(header, value)
	if token := ts.Getenv("ROUNDHOUSE_TOKEN"); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != 200 {
		ts.Fatalf("%s: %s %s, %v", body, res.Status, b, err)
	}
	return res.Header.Get("Mcp-Session-Id")
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

// background is a process beside a script.
type background struct {
	cmd    *exec.Cmd
	log    *output // stdout and stderr
	exited chan struct{}
}

// raceOptions keep a binary that looks for races from sleeping for a second whenever it
// exits.
const raceOptions = "atexit_sleep_ms=0"

const patience = time.Minute

// start runs a command until the end of the script, with inherited as its descriptor 3.
func start(ts *testscript.TestScript, inherited *os.File, command string, args ...string) *background {
	b := &background{log: &output{}, exited: make(chan struct{})}
	path, err := exec.LookPath(command)
	ts.Check(err)
	b.cmd = exec.Command(path, args...)
	b.cmd.Env = []string{"GORACE=" + raceOptions}
	b.cmd.Dir, b.cmd.Stdout, b.cmd.Stderr, b.cmd.WaitDelay = ts.MkAbs("."), b.log, b.log, patience
	if inherited != nil {
		b.cmd.ExtraFiles = []*os.File{inherited}
	}
	for _, name := range []string{"PATH", "HOME", "ROUNDHOUSE_STATE_DIR", "ROUNDHOUSE_LISTEN", "ROUNDHOUSE_CONFIG", "ROUNDHOUSE_NO_POOL",
		"ROUNDHOUSE_SOCKET", "ROUNDHOUSE_URL", "ROUNDHOUSE_TOKEN", "SERVER", "ENGINE", "TOKEN_ADMIN", "TOKEN_GUEST"} {
		b.cmd.Env = append(b.cmd.Env, name+"="+ts.Getenv(name))
	}
	ts.Check(b.cmd.Start())
	go func() { // joined below
		defer close(b.exited)
		_ = b.cmd.Wait() // its state says all
	}()
	ts.Defer(func() {
		_ = b.cmd.Process.Kill() // it may have exited
		<-b.exited
	})
	return b
}

// sees waits for something in the output, and returns what matches.
func (b *background) sees(ts *testscript.TestScript, what *regexp.Regexp) []string {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if m := what.FindStringSubmatch(b.log.String()); m != nil {
			return m
		}
		select {
		case <-b.exited:
			if m := what.FindStringSubmatch(b.log.String()); m != nil {
				return m
			}
			ts.Fatalf("%s ended: %s\n%s", b.cmd, b.cmd.ProcessState, b.log)
		default:
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s says no %s after %s:\n%s", b.cmd, what, patience, b.log)
		}
	}
}

// ended waits for the end and wants an exit status.
func (b *background) ended(ts *testscript.TestScript, status int) {
	select {
	case <-b.exited:
	case <-time.After(patience):
		ts.Fatalf("%s does not end:\n%s", b.cmd, b.log)
	}
	if code := b.cmd.ProcessState.ExitCode(); code != status {
		ts.Fatalf("%s ended with status %d, not %d:\n%s", b.cmd, code, status, b.log)
	}
}

// served is a roundhouse that serves beside a script.
type served struct {
	*background
	url string
}

var serving = regexp.MustCompile(`(?m)^roundhouse: serving (\S+)$`)

func startDaemon(ts *testscript.TestScript, inherited *os.File, command string, args ...string) *served {
	d := &served{background: start(ts, inherited, command, args...)}
	d.url = d.sees(ts, serving)[1]
	return d
}

func (d *served) stop(ts *testscript.TestScript) {
	ts.Check(d.cmd.Process.Signal(syscall.SIGTERM))
	d.ended(ts, 0)
}
