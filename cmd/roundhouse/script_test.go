package main

import (
	"bytes"
	"encoding/json"
	"errors"
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
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Deadline:            time.Now().Add(time.Minute),
		Cmds:                scriptCommands,
		Setup: func(e *testscript.Env) error {
			e.Setenv("SERVER", server)
			e.Setenv("GORACE", raceOptions)
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("ROUNDHOUSE_STATE_DIR", e.WorkDir+"/state")
			e.Setenv("ROUNDHOUSE_LISTEN", "127.0.0.1:0")
			e.Setenv("ROUNDHOUSE_URL", "http://127.0.0.1:1") // where nobody listens, until serve
			e.Values[servedKey{}] = &served{}
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
	// serve ARGUMENTS… runs roundhouse serve beside the script until halt, or the
	// script's end, and lets ROUNDHOUSE_URL and ADDRESS name it.
	"serve": func(ts *testscript.TestScript, neg bool, args []string) {
		d := startDaemon(ts, "roundhouse", append([]string{"serve"}, args...)...)
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
	// examples runs the examples of every command's help. Those of serve run beside
	// the script, on a free port.
	"examples": func(ts *testscript.TestScript, neg bool, args []string) {
		for _, cmd := range allCommands(newRoot()) {
			for line := range strings.Lines(cmd.Example) {
				line = strings.TrimSpace(line)
				ts.Logf("example: %s", line)
				if cmd.Name() == "serve" {
					startDaemon(ts, "sh", "-c", "exec "+strings.ReplaceAll(line, ":7420", ":0")).stop(ts)
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

type servedKey struct{}

// served is a roundhouse that serves beside a script.
type served struct {
	url    string
	cmd    *exec.Cmd
	log    *output
	exited chan struct{}
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

var serving = regexp.MustCompile(`(?m)^roundhouse: serving (\S+)$`)

// raceOptions keep a binary that looks for races from sleeping for a second whenever it
// exits.
const raceOptions = "atexit_sleep_ms=0"

const patience = 20 * time.Second

func startDaemon(ts *testscript.TestScript, command string, args ...string) *served {
	d := &served{log: &output{}, exited: make(chan struct{})}
	path, err := exec.LookPath(command)
	ts.Check(err)
	d.cmd = exec.Command(path, args...)
	d.cmd.Env = []string{"GORACE=" + raceOptions}
	d.cmd.Dir, d.cmd.Stderr, d.cmd.WaitDelay = ts.MkAbs("."), d.log, patience
	for _, name := range []string{"PATH", "HOME", "ROUNDHOUSE_STATE_DIR", "ROUNDHOUSE_LISTEN", "ROUNDHOUSE_CONFIG", "ROUNDHOUSE_NO_POOL", "SERVER", "TOKEN_ADMIN", "TOKEN_GUEST"} {
		d.cmd.Env = append(d.cmd.Env, name+"="+ts.Getenv(name))
	}
	ts.Check(d.cmd.Start())
	go func() { // joined below
		defer close(d.exited)
		_ = d.cmd.Wait() // its state says all
	}()
	ts.Defer(func() {
		_ = d.cmd.Process.Kill() // it may have exited
		<-d.exited
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if m := serving.FindStringSubmatch(d.log.String()); m != nil {
			d.url = m[1]
			return d
		}
		select {
		case <-d.exited:
			ts.Fatalf("roundhouse ended: %s\n%s", d.cmd.ProcessState, d.log)
		default:
		}
		if time.Now().After(deadline) {
			ts.Fatalf("roundhouse does not serve after %s:\n%s", patience, d.log)
		}
	}
}

func (d *served) stop(ts *testscript.TestScript) {
	ts.Check(d.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-d.exited:
	case <-time.After(patience):
		ts.Fatalf("roundhouse does not end:\n%s", d.log)
	}
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		ts.Fatalf("roundhouse ended with status %d:\n%s", code, d.log)
	}
}
