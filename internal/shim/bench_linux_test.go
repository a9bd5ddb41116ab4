package shim_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"roundhouse/internal/shim"
)

// ways are those of a host to a server; a daemon is warm.
func ways(b *testing.B) (m *machine, ways map[string]func() *exec.Cmd) {
	m = newMachine(b, "", "")
	m.connect("everything").echo()
	return m, map[string]func() *exec.Cmd{
		"direct":  func() *exec.Cmd { return exec.Command(m.path("badserver")) },
		"connect": func() *exec.Cmd { return m.command("connect", "everything") },
	}
}

// BenchmarkFirstResult is the time from the start of a command to its first tool result
// (H8).
func BenchmarkFirstResult(b *testing.B) {
	m, ways := ways(b)
	for _, name := range []string{"direct", "connect"} {
		b.Run(name, func(b *testing.B) {
			m.TB = b
			for b.Loop() {
				h := m.start(ways[name]())
				if _, err := h.initialize(); err != nil {
					b.Fatal(err)
				}
				h.echo()
				b.StopTimer()
				h.end()
				b.StartTimer()
			}
		})
	}
	m.TB = b
}

// BenchmarkCall is the time of one call of a client that does one after the other, and
// how much memory the process between uses, or the server itself.
func BenchmarkCall(b *testing.B) {
	m, ways := ways(b)
	for _, name := range []string{"direct", "connect"} {
		b.Run(name, func(b *testing.B) {
			m.TB = b
			h := m.start(ways[name]())
			if _, err := h.initialize(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				h.echo()
			}
			b.ReportMetric(resident(b, h.cmd.Process.Pid, "VmRSS:"), "MB-RSS")
			b.ReportMetric(resident(b, h.cmd.Process.Pid, "RssAnon:"), "MB-own")
		})
	}
	m.TB = b
	b.Run("line", func(b *testing.B) { // what a shim adds is the difference to this
		line, err := (&shim.Endpoint{Socket: m.path("socket"), Server: "everything"}).Dial(b.Context(), "")
		if err != nil {
			b.Fatal(err)
		}
		defer line.Conn.Close()
		ask := func(frame string) {
			if _, err := io.WriteString(line.Conn, frame+"\n"); err != nil {
				b.Fatal(err)
			}
			if _, err := line.In.ReadSlice('\n'); err != nil {
				b.Fatal(err)
			}
		}
		ask(hello)
		for b.Loop() {
			ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}`)
		}
	})
}

// resident is a process's resident memory, or with RssAnon what it shares with no other
// process of the same program.
func resident(b *testing.B, pid int, what string) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), what)
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	if err != nil {
		b.Fatal(err)
	}
	return kib / 1024
}
