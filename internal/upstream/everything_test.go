//go:build interop

package upstream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startEverything runs the official TypeScript everything server in a mode.
func startEverything(t *testing.T, mode string) (base string) {
	t.Helper()
	script, err := filepath.Abs("../../interop/node_modules/@modelcontextprotocol/server-everything/dist/index.js")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(script); err != nil {
		t.Skip("npm ci was not run in interop")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	_, port, _ := net.SplitHostPort(address)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "node", script, mode)
	cmd.Env = append(os.Environ(), "PORT="+port)
	if err := cmd.Start(); err != nil {
		t.Skip("there is no Node: ", err)
	}
	t.Cleanup(func() {
		cancel()
		cmd.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", address); err == nil {
			c.Close()
			return "http://" + address
		}
		if time.Now().After(deadline) {
			t.Fatal("the server does not listen")
		}
	}
}

func TestAgainstTheEverythingServer(t *testing.T) {
	for _, c := range []struct {
		mode, path string
		open       func(HTTPConfig) (link, error)
		names      bool // whether frames name their call
	}{
		{"streamableHttp", "/mcp", func(c HTTPConfig) (link, error) { return NewHTTP(c) }, true},
		{"streamableHttp", "/mcp", func(c HTTPConfig) (link, error) { return NewAuto(c) }, true},
		{"sse", "/sse", func(c HTTPConfig) (link, error) { return NewSSE(c) }, false},
		{"sse", "/sse", func(c HTTPConfig) (link, error) { return NewAuto(c) }, false},
	} {
		t.Run(c.mode, func(t *testing.T) {
			remote, err := c.open(HTTPConfig{URL: startEverything(t, c.mode) + c.path})
			if err != nil {
				t.Fatal(err)
			}
			l := listen(t, remote)
			l.shake(t)
			l.send(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"message":"北🙂"}}}`)
			if m, _ := l.answer(t, "1"); !strings.Contains(string(m.frame.Raw), "北🙂") || (m.call == "1") != c.names {
				t.Errorf("got %s of %q", m.frame.Raw, m.call)
			}
			l.send(t, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"trigger-long-running-operation","arguments":{"duration":1,"steps":4},"_meta":{"progressToken":2}}}`)
			m, before := l.answer(t, "2")
			notes := 0
			for _, b := range before {
				if b.frame.Method == "notifications/progress" {
					notes++
				}
				if b.frame.Method == "notifications/progress" && (b.call == "2") != c.names {
					t.Errorf("progress came with call %q", b.call)
				}
			}
			if notes == 0 || strings.Contains(string(m.frame.Raw), "isError") {
				t.Errorf("got %s after %d notes", m.frame.Raw, notes)
			}
			l.send(t, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"trigger-sampling-request","arguments":{"prompt":"x"}}}`)
			m, before = l.answer(t, "3")
			asked := false
			for _, b := range before {
				if b.frame.Method == "sampling/createMessage" {
					asked = true
					if (b.call == "3") != c.names {
						t.Errorf("the request came with call %q", b.call)
					}
				}
			}
			if !asked || strings.Contains(string(m.frame.Raw), "isError") {
				t.Errorf("got %s", m.frame.Raw)
			}
		})
	}
}

// Case 4: the everything server answers 404 or 400 to a session that it does not know.
func TestTheEverythingServerForgetsASession(t *testing.T) {
	base := startEverything(t, "streamableHttp")
	h, err := NewHTTP(HTTPConfig{URL: base + "/mcp"})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t, h)
	l.shake(t)
	l.send(t, `{"jsonrpc":"2.0","id":"ready","method":"ping"}`)
	l.answer(t, `"ready"`)
	r, _ := http.NewRequest(http.MethodDelete, base+"/mcp", nil)
	h.mu.Lock()
	r.Header.Set(headerSession, h.session)
	h.mu.Unlock()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	l.call(t, "1", "echo")
	if m := l.next(t); m.err == nil || m.sent {
		t.Errorf("got %v, sent %t", m.err, m.sent)
	}
	err = within(t, time.Minute, l.result)
	if fmt.Sprint(err) != ErrSessionLost.Error() {
		t.Errorf("Run gives %v", err)
	}
	l.result <- err
}
