package badserver

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const logObject = `{"level":"info","msg":"badserver is busy"}` + "\n"

func TestNoiseComesFirst(t *testing.T) {
	for _, c := range []struct {
		name     string
		switches []string
		want     []string
	}{
		{"text", []string{"-banner"}, []string{banner + "\n"}},
		{"JSON", []string{"-json-log"}, []string{logObject, `{"level":"info","id":0,"msg":"badserver saw a request"}` + "\n", `["badserver",1,null]` + "\n"}},
		{"empty line", []string{"-blank"}, []string{"\n"}},
		{"colours", []string{"-ansi"}, []string{"\x1b[32m✔\x1b[0m badserver \x1b[1mready\x1b[0m\n"}},
		{"all", []string{"-banner", "-blank", "-bom", "-cr"}, []string{"\ufeff" + banner + "\r\n", "\r\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, c.switches...)
			for _, want := range c.want {
				if line := p.line(); line != want {
					t.Errorf("got %q, want %q", line, want)
				}
			}
			p.request("initialize", `{}`)
			if line := p.line(); !strings.HasPrefix(line, `{"jsonrpc":"2.0","id":1,"result":`) {
				t.Errorf("then came %q", line)
			}
		})
	}
}

func TestNoiseBetweenRequestAndResponse(t *testing.T) {
	p := ready(t, "-noise-between", "-json-log")
	id := p.request("ping", `{}`)
	if line := p.line(); line != logObject {
		t.Errorf("%q", line)
	}
	if line := p.line(); line != fmt.Sprintf(`{"level":"info","id":%d,"msg":"badserver saw a request"}`+"\n", id) {
		t.Errorf("%q", line)
	}
	p.find(`"result":{}`)

	p = ready(t, "-noise-between")
	p.request("ping", `{}`)
	if line := p.line(); line != banner+"\n" {
		t.Errorf("%q", line)
	}
}

func TestBannerOrMarkDirectlyBeforeAMessage(t *testing.T) {
	p := start(t, "-banner-no-newline")
	if line := p.initialize(`{}`); !strings.HasPrefix(line, banner+`{"jsonrpc"`) {
		t.Errorf("%.60q", line)
	}
	if line := p.do("ping", `{}`); !strings.HasPrefix(line, `{"jsonrpc"`) {
		t.Errorf("%.60q", line)
	}
	p = start(t, "-bom")
	if line := p.initialize(`{}`); !strings.HasPrefix(line, "\ufeff{") {
		t.Errorf("%.60q", line)
	}
}

func TestLineEnds(t *testing.T) {
	p := ready(t, "-cr")
	if line := p.do("ping", `{}`); !strings.HasSuffix(line, "}\r\n") {
		t.Errorf("%q", line)
	}
	p = ready(t, "-no-final-newline")
	_ = p.stdin.Close()
	if line := p.line(); !strings.HasSuffix(line, `"data":"bye"}}`) {
		t.Errorf("last line at EOF: %q", line)
	}
	p = ready(t, "-no-final-newline")
	p.startTool("exit", `{"answer":true}`)
	if line := p.line(); !strings.HasSuffix(line, `"text":"exiting"}]}}`) {
		t.Errorf("last line of exit: %q", line)
	}
}

func TestHandshakeFaults(t *testing.T) {
	t.Run("early notification", func(t *testing.T) {
		p := start(t, "-early-notification")
		p.request("initialize", `{}`)
		for _, want := range []string{"notifications/message", "notifications/tools/list_changed", `"protocolVersion"`} {
			if line := p.line(); !strings.Contains(line, want) {
				t.Errorf("no %s in %s", want, line)
			}
		}
	})
	t.Run("early ping", func(t *testing.T) {
		p := start(t, "-early-ping")
		id := p.request("initialize", `{}`)
		if line := p.line(); line != `{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`+"\n" {
			t.Errorf("%s", line)
		}
		p.do("ping", `{}`) // The server serves, but has not answered initialize.
		p.send(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		p.answer(id)
	})
	t.Run("never start", func(t *testing.T) {
		p := start(t, "-never-start")
		p.request("initialize", `{}`)
		if line := p.do("ping", `{}`); !strings.Contains(line, `"id":2,`) {
			t.Errorf("%s", line)
		}
	})
	t.Run("start delay", func(t *testing.T) {
		p := start(t, "-start-delay", "1h", "-banner")
		p.find(banner)
		p.request("initialize", `{}`)
		if !p.lives() || len(p.lines) > 0 {
			t.Error("did not wait")
		}
	})
	t.Run("shape by capabilities", func(t *testing.T) {
		for caps, want := range map[string]bool{`{}`: false, `{"sampling":{}}`: true} {
			p := start(t, "-shape-by-caps")
			p.initialize(caps)
			if got := strings.Contains(p.do("tools/list", `{}`), `"sampled"`); got != want {
				t.Errorf("with %s: sampled offered: %v", caps, got)
			}
		}
	})
	t.Run("capabilities left out", func(t *testing.T) {
		p := start(t, "-no-cap", "tools,prompts,resources,logging,completions")
		if line := p.initialize(`{}`); !strings.Contains(line, `"capabilities":{"experimental":`) {
			t.Errorf("%s", line)
		}
		for _, method := range []string{"tools/list", "tools/call", "prompts/get", "resources/templates/list", "logging/setLevel", "completion/complete"} {
			if line := p.do(method, `{}`); !strings.Contains(line, "-32601") {
				t.Errorf("%s: %s", method, line)
			}
		}
	})
}

func TestFailedStartLeavesAMessage(t *testing.T) {
	p := start(t, "-fail-start")
	if code := p.ended(); code != exitFailStart || !strings.Contains(p.stderr.String(), "cannot start") {
		t.Errorf("status %d, stderr %q", code, p.stderr.String())
	}
}

func TestFailuresEndWhenTheFileCountsNoMore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "left")
	if err := os.WriteFile(file, []byte("2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		p := ready(t, "-crash-on", "echo", "-crash-times-file", file)
		p.tool("count", `{}`)
		p.startTool("echo", `{}`)
		if code := p.ended(); code != exitCrash {
			t.Errorf("status %d", code)
		}
	}
	p := ready(t, "-crash-on", "echo", "-crash-times-file", file)
	p.tool("echo", `{}`)
	p = start(t, "-fail-start", "-crash-times-file", file+".missing")
	if code := p.ended(); code != exitMisuse || !strings.Contains(p.stderr.String(), "crash times") {
		t.Errorf("without the file: status %d, stderr %q", code, p.stderr.String())
	}
}

func TestExits(t *testing.T) {
	p := start(t, "-exit-after", "1ms")
	p.request("initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"tester","version":"1"}}`) // nothing more, for it may be gone
	if code := p.ended(); code != exitAfterStatus {
		t.Errorf("-exit-after: status %d", code)
	}
	p = ready(t)
	p.startTool("exit", `{"code":7}`)
	if code := p.ended(); code != 7 {
		t.Errorf("exit: status %d", code)
	}
	p = ready(t)
	p.startTool("kill", `{}`)
	if code := p.ended(); code != -1 {
		t.Errorf("kill: status %d", code)
	}
	p = ready(t)
	p.startTool("close_stdout", `{}`)
	if line := p.line(); line != "" || !p.lives() {
		t.Errorf("close_stdout: got %q, lives: %v", line, p.lives())
	}
	_ = p.stdin.Close()
	p.waited()
}

func TestEndOfInput(t *testing.T) {
	p := ready(t)
	p.startTool("slow", `{"ms":300000}`)
	_ = p.stdin.Close()
	if code := p.ended(); code != 0 {
		t.Errorf("exit fast: status %d", code)
	}
	p = ready(t, "-exit-fast=false")
	id := p.startTool("slow", `{"ms":50}`)
	_ = p.stdin.Close()
	p.answer(id)
	p.ended()
	for _, switches := range [][]string{{"-ignore-eof"}, {"-linger", "1h"}} {
		p = ready(t, switches...)
		_ = p.stdin.Close()
		if !p.lives() {
			t.Errorf("%v: ended at EOF", switches)
		}
	}
}

func TestStderrFloodComesBeforeReading(t *testing.T) {
	p := ready(t, "-stderr-flood", "300000")
	p.do("ping", `{}`)
	_ = p.stdin.Close()
	p.ended()
	if n := len(p.stderr.String()); n != 300000 {
		t.Errorf("%d bytes", n)
	}
}

func TestSlowReadTakesItsTime(t *testing.T) {
	p := ready(t, "-slow-read")
	began := time.Now()
	for range 3 {
		p.do("ping", `{}`)
	}
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("read 3 lines more in %v", took)
	}
}

func TestNoReadStopsAfterTheHandshake(t *testing.T) {
	p := start(t, "-no-read")
	p.request("initialize", `{}`)
	p.find(`"protocolVersion"`)
	stuck := make(chan error, 1)
	go func() {
		_, err := io.WriteString(p.stdin, strings.Repeat("\n", 1<<20)) // More than a pipe holds.
		stuck <- err
	}()
	select {
	case err := <-stuck:
		t.Errorf("the pipe took everything: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-stuck
}

// names pages through a list and returns the names or URIs in order.
func (p *peer) names(method, member string) (names []string, pages int) {
	p.t.Helper()
	for params := "{}"; ; pages++ {
		var m struct{ Result map[string]json.RawMessage }
		if err := json.Unmarshal([]byte(p.do(method, params)), &m); err != nil {
			p.t.Fatal(err)
		}
		var items []struct{ Name string }
		if err := json.Unmarshal(m.Result[member], &items); err != nil {
			p.t.Fatal(err)
		}
		for _, it := range items {
			names = append(names, it.Name)
		}
		next, more := m.Result["nextCursor"]
		if !more {
			return names, pages + 1
		}
		params = fmt.Sprintf(`{"cursor":%s}`, next)
	}
}

func TestCatalogueSwitches(t *testing.T) {
	p := ready(t, "-tools", "3", "-odd-names", "-page-size", "4", "-pages", "12")
	names, pages := p.names("tools/list", "tools")
	if pages != 12 || len(names) != 48 {
		t.Errorf("%d tools on %d pages", len(names), pages)
	}
	seen := map[string]bool{}
	for _, name := range names {
		seen[name] = true
	}
	for _, name := range append(OddNames(), "extra_0000", "extra_0002", "echo", "page_0047") {
		if !seen[name] {
			t.Errorf("no tool %q", name)
		}
	}
	if len(seen) != len(names) {
		t.Errorf("%d of %d names differ", len(seen), len(names))
	}
	if names, pages := p.names("resources/list", "resources"); pages != 12 || len(names) != 48 {
		t.Errorf("%d resources on %d pages", len(names), pages)
	}
	if got := p.tool("calendar.read", `{}`); !strings.Contains(got, "calendar.read") {
		t.Errorf("%s", got)
	}
	if line := p.do("tools/list", `{"cursor":"nonsense"}`); !strings.Contains(line, "-32602") {
		t.Errorf("%s", line)
	}
	p = ready(t, "-loop-cursor")
	for _, params := range []string{`{}`, `{"cursor":"again"}`} {
		if line := p.do("tools/list", params); !strings.Contains(line, `"nextCursor":"again"`) {
			t.Errorf("%.100s", line)
		}
	}
}

func TestListsFailAsOftenAsTold(t *testing.T) {
	p := ready(t, "-fail-list", "tools,resources", "-fail-list-after", "1", "-fail-list-times", "2")
	for i, fails := range []bool{false, true, true, false} {
		if line := p.do("tools/list", `{}`); strings.Contains(line, `"error"`) != fails {
			t.Errorf("list %d: %.100s", i, line)
		}
	}
	p = ready(t, "-fail-list", "prompts")
	for range 3 {
		if line := p.do("prompts/list", `{}`); !strings.Contains(line, `"error"`) {
			t.Errorf("%.100s", line)
		}
	}
	p.do("tools/list", `{}`)
}

func TestResponseFaults(t *testing.T) {
	const result = `"result":{"content":[{"type":"text","text":"x"}]}`
	for _, c := range []struct {
		name, id string
		switches []string
		want     []string
	}{
		{"result before id", `7`, []string{"-result-before-id"}, []string{`{"jsonrpc":"2.0",` + result + `,"id":7}`}},
		{"array", `7`, []string{"-batch"}, []string{`[{"jsonrpc":"2.0","id":7,` + result + `}]`}},
		{"twice", `7`, []string{"-dup-id"}, []string{`{"jsonrpc":"2.0","id":7,` + result + `}`, `{"jsonrpc":"2.0","id":7,` + result + `}`}},
		{"unknown id", `7`, []string{"-unknown-id"}, []string{`{"jsonrpc":"2.0","id":"nobody-asked","result":{}}`, `{"jsonrpc":"2.0","id":7,` + result + `}`}},
		{"float", `7`, []string{"-float-id"}, []string{`{"jsonrpc":"2.0","id":7.0,` + result + `}`}},
		{"escaped", `"aé😀"`, []string{"-float-id"}, []string{`{"jsonrpc":"2.0","id":"\u0061\u00e9😀",` + result + `}`}},
		{"null id", `7`, []string{"-error-null-id"}, []string{`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"something was wrong"}}`, `{"jsonrpc":"2.0","id":7,` + result + `}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, c.switches...)
			p.request("initialize", `{}`)
			p.find(`"protocolVersion"`)
			p.send(`{"jsonrpc":"2.0","id":` + c.id + `,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}`)
			for _, want := range c.want {
				if line := p.line(); line != want+"\n" {
					t.Errorf("got  %s\nwant %s", line, want)
				}
			}
		})
	}
}
