package badserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait of these tests. Nothing takes so long when it works.
const patience = time.Minute

// peer is a running server and our ends of its pipes.
type peer struct {
	// Constant after start.
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  chan string   // lines of stdout with their line ends, closed at EOF
	exited chan struct{} // closed when the process is reaped
	stderr lockedBuffer

	nextID int // owned by the test
}

// lockedBuffer is a buffer that a command writes and a test reads.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// start runs the server with switches. It is killed and reaped when the test ends.
func start(t *testing.T, switches ...string) *peer {
	t.Helper()
	p := &peer{t: t, cmd: exec.Command(Path(t), switches...), lines: make(chan string, 1<<16), exited: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = time.Second
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Not a StdoutPipe: Wait would close it before it is read.
	stdout, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin, p.cmd.Stdout = stdin, theirs
	err = p.cmd.Start()
	_ = theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // What matters is in ProcessState.
	})
	tasks.Go(func() {
		defer close(p.lines)
		for in := bufio.NewReader(stdout); ; {
			line, err := in.ReadString('\n')
			if line != "" {
				p.lines <- line
			}
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.stdin.Close()
		_ = stdout.Close()
		tasks.Wait()
	})
	return p
}

// ready starts the server and shakes hands, taking for the answer the first line
// that holds the id.
func ready(t *testing.T, switches ...string) *peer {
	t.Helper()
	p := start(t, switches...)
	p.initialize(`{}`)
	return p
}

func (p *peer) initialize(capabilities string) string {
	p.t.Helper()
	p.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":` +
		capabilities + `,"clientInfo":{"name":"tester","version":"1"}}}`)
	answer := p.find(`"id":0,"result"`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return answer
}

func (p *peer) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatalf("send: %v", err)
	}
}

// line returns the next line as it was sent, or "" at EOF.
func (p *peer) line() string {
	p.t.Helper()
	select {
	case line := <-p.lines:
		return line
	case <-time.After(patience):
		p.t.Fatalf("no line came; stderr: %s", p.stderr.String())
		return ""
	}
}

// find returns the next line that holds part.
func (p *peer) find(part string) string {
	p.t.Helper()
	for {
		line := p.line()
		if strings.Contains(line, part) {
			return line
		}
		if line == "" {
			p.t.Fatalf("stdout ended before %q came; stderr: %s", part, p.stderr.String())
		}
	}
}

// answer returns the line that answers a request. The server's own requests use
// the same ids.
func (p *peer) answer(id int) string {
	p.t.Helper()
	for {
		line := p.find(fmt.Sprintf(`"id":%d,`, id))
		if !strings.Contains(line, `"method"`) {
			return line
		}
	}
}

// request sends a request and returns the id that it used.
func (p *peer) request(method, params string) int {
	p.t.Helper()
	p.nextID++
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, p.nextID, method, params))
	return p.nextID
}

func (p *peer) startTool(name, args string) int {
	p.t.Helper()
	return p.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, args))
}

// do sends a request and returns the line that answers it.
func (p *peer) do(method, params string) string {
	p.t.Helper()
	return p.answer(p.request(method, params))
}

// tool calls a tool and returns the text of its result.
func (p *peer) tool(name, args string) string {
	p.t.Helper()
	return text(p.t, p.answer(p.startTool(name, args)))
}

func text(t *testing.T, line string) string {
	t.Helper()
	var m struct {
		Result struct{ Content []struct{ Text string } }
	}
	if err := json.Unmarshal([]byte(line), &m); err != nil || len(m.Result.Content) != 1 {
		t.Fatalf("not a result with one text: %.300s", line)
	}
	return m.Result.Content[0].Text
}

// toolJSON calls a tool and decodes the JSON in its text.
func toolJSON[T any](p *peer, name, args string) T {
	p.t.Helper()
	var v T
	if err := json.Unmarshal([]byte(p.tool(name, args)), &v); err != nil {
		p.t.Fatal(err)
	}
	return v
}

// ended reads stdout to its end and returns the exit status, -1 after a signal.
func (p *peer) ended() int {
	p.t.Helper()
	for p.line() != "" {
	}
	return p.waited()
}

// waited is ended for a process whose stdout may stay open.
func (p *peer) waited() int {
	p.t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatal("the server did not end")
		return 0
	}
}

// lives reports whether the server still runs after a short while.
func (p *peer) lives() bool {
	select {
	case <-p.exited:
		return false
	case <-time.After(100 * time.Millisecond):
		return true
	}
}
