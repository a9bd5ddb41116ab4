//go:build unix

package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse/internal/badserver"
	"roundhouse/internal/config"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// lasting is a server that recovers as without configuration.
func lasting(t *testing.T, name string, args ...string) *config.Server {
	s := bad(t, name, args...)
	s.Recovery = config.Defaults().Pool.Recovery.Stdio
	return s
}

// pid asks a server for its process id.
func (p *peer) pid() int {
	p.w.Helper()
	var who badserver.WhoAmI
	if err := json.Unmarshal([]byte(p.text("whoami", "{}")), &who); err != nil {
		p.w.Fatal(err)
	}
	return who.PID
}

// until waits for something that happens by itself.
func (w *world) until(what string, is func() bool) {
	w.Helper()
	for late := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			w.Fatalf("it is still not so that %s: %+v", what, w.pool.Snapshot())
		}
	}
}

// back reports whether the only connection is an active one of a later process.
func (w *world) back() bool {
	all := w.pool.Snapshot()
	return len(all) == 1 && all[0].State == pool.Active && all[0].Generation > 1
}

// R1, R3, M4: an idle server that is killed, or that hangs, comes back without a call,
// with what its clients had subscribed to.
func TestAnIdleServerComesBack(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := lasting(t, "a")
			s.Health = config.Health{Interval: 200 * time.Millisecond, Timeout: time.Second, Misses: 2}
			s.Recovery.Delay, s.Recovery.MaxDelay = 100*time.Millisecond, 100*time.Millisecond
			s.CloseEOFWait, s.CloseTermWait = 100*time.Millisecond, 100*time.Millisecond
			w := outside(t, s)
			p := w.connect("/mcp/a")
			stream := p.begin(p.request(http.MethodGet, ""))
			w.until("the stream is open", func() bool { return stream.status() == http.StatusOK })
			p.result(wire.ResourcesSubscribe, `{"uri":"bad://item/1"}`)
			first := p.pid()
			if err := syscall.Kill(first, signal); err != nil {
				t.Fatal(err)
			}
			w.until("the server is back", w.back)

			q := w.connect("/mcp/a")
			w.until("its client hears of the resource", func() bool {
				q.text("touch", `{"uri":"bad://item/1"}`)
				return slices.Contains(stream.methods(), wire.ResourceUpdated)
			})
			if now := q.pid(); now == first {
				t.Error("it is the same process")
			}
			stream.cancel()
			<-stream.done
		})
	}
}

// R3: the next call after a kill -9 works at once, though the server had lived for a
// moment only and nothing would be due yet.
func TestTheNextCallAfterAKillWorksAtOnce(t *testing.T) {
	t.Parallel()
	s := lasting(t, "a")
	s.Recovery.Delay, s.Recovery.MaxDelay = time.Hour, time.Hour
	w := outside(t, s)
	p := w.connect("/mcp/a")
	first := p.pid()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.until("the loss is seen", func() bool { return w.pool.Snapshot()[0].State != pool.Active })
	if now := p.pid(); now == first {
		t.Error("it is the same process")
	}
}

// R4, case 36: however eager its clients are, a server that does not start is started a
// few times only; each gets an error that says why, and a restart by hand, once it is
// mended, is not refused.
func TestEagerClientsDoNotDriveACrashLoop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	starts, left := filepath.Join(dir, "starts"), filepath.Join(dir, "left")
	s := lasting(t, "a")
	s.Args = []string{"-c", "echo >>" + starts + "; echo no config.toml >&2; exec " + s.Command + " -fail-start -crash-times-file " + left}
	s.Command = "sh"
	if err := os.WriteFile(left, []byte("1000"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := outside(t, s)
	p := w.dialed("/mcp/a")
	var last string
	for range 50 {
		r := p.post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
		last = r.body
	}
	if !strings.Contains(last, `"circuit_open"`) || !strings.Contains(last, "no config.toml") || !strings.Contains(last, "exit") || !strings.Contains(last, "retryAfterMs") {
		t.Errorf("the last of 50 clients got %s", last)
	}
	count := func() int {
		text, err := os.ReadFile(starts)
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(text, []byte("\n"))
	}
	if n := count(); n != 5 {
		t.Errorf("it was started %d times, want 5", n)
	}
	if all := w.pool.Snapshot(); len(all) != 1 || all[0].Circuit == nil || all[0].Circuit.State != "open" || all[0].Exit == "" || len(all[0].LastOutput) == 0 {
		t.Errorf("the connection is shown as %+v", all)
	}

	if err := os.WriteFile(left, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := w.pool.Restart(t.Context(), "a"); len(r) != 1 || !r[0].OK {
		t.Errorf("the restart: %+v", r)
	}
	if n := count(); n != 6 {
		t.Errorf("it was started %d times, want 6", n)
	}
	w.connect("/mcp/a").pid()
}

// R5: a call in which the server dies is made again after the recovery, once, if the
// entry asks for that and the tool declares itself repeatable.
func TestARepeatableCallOutlivesItsServer(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name  string
		retry config.Retry
		dies  string // how often
		works bool
	}{
		{"once", config.RetryIdempotent, "1", true},
		{"twice", config.RetryIdempotent, "2", false},
		{"not asked for", config.RetryNever, "1", false},
	} {
		t.Run(x.name, func(t *testing.T) {
			left := filepath.Join(t.TempDir(), "left")
			if err := os.WriteFile(left, []byte(x.dies), 0o600); err != nil {
				t.Fatal(err)
			}
			s := lasting(t, "a", "-crash-on", "echo", "-crash-times-file", left)
			s.Retry = x.retry
			w := outside(t, s)
			p := w.connect("/mcp/a")
			if x.works {
				if got := p.text("echo", `{"text":"hi"}`); got != "hi" {
					t.Errorf("the client got %q", got)
				}
				return
			}
			if e := p.refused(wire.ToolsCall, `{"name":"echo","arguments":{"text":"hi"}}`); e.Data["reason"] != "interrupted" || e.Data["sent"] != "maybe" {
				t.Errorf("the client got %+v", e)
			}
			if text, err := os.ReadFile(left); err != nil || strings.TrimSpace(string(text)) != "0" {
				t.Errorf("%q crashes are left, %v", text, err)
			}
		})
	}
}
