package badserver

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestDocListsExactlyTheSwitches(t *testing.T) {
	documented := regexp.MustCompile(`(?m)^\t-([a-z-]+) `).FindAllStringSubmatch(help(), -1)
	var doc, real []string
	for _, m := range documented {
		doc = append(doc, m[1])
	}
	flags, _ := newFlags()
	flags.VisitAll(func(f *flag.Flag) { real = append(real, f.Name) })
	slices.Sort(doc)
	if !slices.Equal(doc, real) {
		t.Errorf("doc.go lists %q,\nthe switches are %q", doc, real)
	}
}

func TestDocListsExactlyTheTools(t *testing.T) {
	_, section, _ := strings.Cut(help(), "# Tools")
	var doc, real []string
	for _, m := range regexp.MustCompile(`(?m)^\t([a-z_]+)(\{(.*?)\})? `).FindAllStringSubmatch(section, -1) {
		doc = append(doc, m[1]+" "+m[3])
	}
	for _, tool := range tools {
		var names []string
		for arg := range strings.FieldsSeq(tool.args) {
			name, _, _ := strings.Cut(arg, ":")
			names = append(names, name)
		}
		real = append(real, tool.name+" "+strings.Join(names, ", "))
	}
	if !slices.Equal(doc, real) {
		t.Errorf("doc.go lists %q,\nthe tools are %q", doc, real)
	}
}

func TestHelpAndMisuse(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := Main([]string{"-help"}, strings.NewReader(""), &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "-crash-on") || stderr.Len() > 0 {
		t.Errorf("-help: status %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
	}
	for _, args := range [][]string{{"-nonsense"}, {"word"}, {"-no-cap", "tools,nonsense"}, {"-grandchild", "nonsense"}} {
		stderr.Reset()
		if code := Main(args, strings.NewReader(""), &stdout, &stderr); code != exitMisuse || stderr.Len() == 0 {
			t.Errorf("%q: status %d, stderr %q", args, code, stderr.String())
		}
	}
}

func TestHandshakeAnswersTheRequestedVersionIfKnown(t *testing.T) {
	for _, c := range []struct {
		switches   []string
		asked, got string
	}{
		{nil, "2024-11-05", "2024-11-05"},
		{nil, "2025-11-25", "2025-11-25"},
		{nil, "2099-01-01", "2025-11-25"},
		{[]string{"-version", "2024-11-05"}, "2025-06-18", "2024-11-05"},
	} {
		p := start(t, c.switches...)
		line := p.do("initialize", fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"x"}}`, c.asked))
		if !strings.Contains(line, fmt.Sprintf(`"protocolVersion":%q`, c.got)) {
			t.Errorf("%v asked for %s: %.200s", c.switches, c.asked, line)
		}
	}
}

func TestGoodServerServesAllLists(t *testing.T) {
	p := ready(t)
	for _, c := range []struct{ method, params, want string }{
		{"ping", `{}`, `"result":{}`},
		{"tools/list", `{}`, `"$defs":{"big"`},
		{"tools/list", `{}`, `"x-é":"\u00e9"`},
		{"prompts/list", `{}`, `"name":"summary"`},
		{"prompts/get", `{"name":"greeting","arguments":{"who":"me"}}`, `\"who\":\"me\"`},
		{"prompts/get", `{"name":"nothing"}`, `"code":-32602`},
		{"resources/list", `{}`, `bad://static/3`},
		{"resources/templates/list", `{}`, `bad://item/{id}`},
		{"resources/read", `{"uri":"bad://static/1"}`, `content of bad://static/1`},
		{"resources/read", `{"uri":"bad://item/7"}`, `content of bad://item/7`},
		{"resources/read", `{"uri":"bad://nothing"}`, `"code":-32002`},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"greeting"},"argument":{"name":"who","value":"al"}}`, `["alpha","alphabet"]`},
		{"logging/setLevel", `{"level":"warning"}`, `"result":{}`},
		{"logging/setLevel", `{"level":"loud"}`, `"code":-32602`},
		{"resources/subscribe", `{"uri":"bad://static/1"}`, `"result":{}`},
		{"nothing/here", `{}`, `"code":-32601`},
		{"tools/call", `{"name":"nothing"}`, `"code":-32602`},
	} {
		if line := p.do(c.method, c.params); !strings.Contains(line, c.want) {
			t.Errorf("%s %s: no %s in %.300s", c.method, c.params, c.want, line)
		}
	}
	stats := toolJSON[Stats](p, "stats", `{}`)
	if stats.Received["tools/list"] != 2 || stats.Received["initialize"] != 1 || stats.Level != "warning" ||
		!slices.Equal(stats.Subscriptions, []string{"bad://static/1"}) {
		t.Errorf("stats: %+v", stats)
	}
	p.do("resources/unsubscribe", `{"uri":"bad://static/1"}`)
	if stats := toolJSON[Stats](p, "stats", `{}`); len(stats.Subscriptions) != 0 {
		t.Errorf("still subscribed: %+v", stats)
	}
}

func TestBatchesAndMalformedLinesAreAnswered(t *testing.T) {
	p := ready(t)
	p.send(`[{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","id":"b","method":"ping"}]`)
	p.find(`"id":"a"`)
	p.find(`"id":"b"`)
	p.send(`{"jsonrpc":`)
	p.find(`"code":-32700`)
	if n := toolJSON[Stats](p, "stats", `{}`).Received["malformed"]; n != 1 {
		t.Errorf("malformed lines: %d", n)
	}
}

func TestWhoAmITellsTheProcessAndTheClient(t *testing.T) {
	t.Setenv("BADSERVER_A", "a value")
	p := ready(t)
	who := toolJSON[WhoAmI](p, "whoami", `{"env":["BADSERVER_A","BADSERVER_B"]}`)
	if who.PID != p.cmd.Process.Pid || who.Cwd == "" || who.Calls != 1 || who.Initialize != 1 || who.Initialized != 1 ||
		string(who.ClientInfo) != `{"name":"tester","version":"1"}` || who.ProtocolVersion != "2025-06-18" {
		t.Errorf("%+v", who)
	}
	if len(who.Env) != 1 || who.Env["BADSERVER_A"] != "a value" || !slices.Contains(who.EnvNames, "PATH") {
		t.Errorf("environment: %v of %v", who.Env, who.EnvNames)
	}
}

func TestSimpleTools(t *testing.T) {
	p := ready(t)
	if got := p.tool("echo", `{"text":"<a>&\u00e9"}`); got != "<a>&é" {
		t.Errorf("echo: %q", got)
	}
	p.tool("count", `{}`)
	if got := p.tool("count", `{}`); got != "2" {
		t.Errorf("count: %q", got)
	}
	if got := p.tool("big", `{"bytes":5000000}`); len(got) != 5000000 {
		t.Errorf("big: %d bytes", len(got))
	}
	for _, c := range []struct{ name, args, want string }{
		{"raw", `{"result":"{\"z\":9007199254740993,\"a\":1.0,\"s\":\"\\u00e9\\/\"}"}`, `"result":{"z":9007199254740993,"a":1.0,"s":"\u00e9\/"}}`},
		{"raw", `{"result":{"b" : 1e2}}`, `"result":{"b" : 1e2}}`},
		{"dup", `{}`, `"isError":true,"isError":false`},
		{"structured", `{}`, `"structuredContent":{"id":9007199254740993`},
		{"echo", `{"text":7}`, `"code":-32602`},
		{"ledger", `{"file":"/nonexistent/file"}`, `"isError":true`},
	} {
		line := p.answer(p.startTool(c.name, c.args))
		if !strings.Contains(line, c.want) {
			t.Errorf("%s %s: no %s in %.300s", c.name, c.args, c.want, line)
		}
	}
	p.startTool("emit", `{"line":"not JSON","base64":"/wA="}`)
	if line := p.line(); line != "\xff\x00not JSON\n" {
		t.Errorf("emit: %q", line)
	}
}

func TestCallsRunConcurrently(t *testing.T) {
	p := ready(t)
	slow := p.startTool("slow", `{"ms":300000}`)
	p.tool("echo", `{"text":"meanwhile"}`)
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{}}}`, slow))
	p.find(`"code":-32600`) // The id is in flight.
}

func TestProgressCarriesTheTokenAsSpelled(t *testing.T) {
	p := ready(t)
	p.request("tools/call", `{"name":"slow","arguments":{"ms":3,"steps":3,"late":1},"_meta":{"progressToken":1.50}}`)
	for i := range 3 {
		if line := p.line(); !strings.Contains(line, fmt.Sprintf(`"progressToken":1.50,"progress":%d`, i+1)) {
			t.Errorf("step %d: %s", i, line)
		}
	}
	if line := p.line(); !strings.Contains(line, "slept 3 ms") {
		t.Errorf("answer: %s", line)
	}
	if line := p.line(); !strings.Contains(line, `"progress":4`) {
		t.Errorf("late progress: %s", line)
	}
}

func TestCancelledCallIsNotAnswered(t *testing.T) {
	p := ready(t)
	id := p.startTool("slow", `{"ms":300000}`)
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"unknown"}}`)
	if got := p.tool("cancelled", `{}`); got != fmt.Sprintf(`[%d,"unknown"]`, id) {
		t.Errorf("cancelled: %s", got)
	}
	// With -exit-fast=false the server would wait for the call if it still ran.
	p = ready(t, "-exit-fast=false")
	id = p.startTool("slow", `{"ms":300000}`)
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
	_ = p.stdin.Close()
	if line := p.line(); line != "" {
		t.Errorf("answered a cancelled call: %s", line)
	}
	p.ended()
}

func TestLogHonoursTheLevel(t *testing.T) {
	p := ready(t)
	p.do("logging/setLevel", `{"level":"error"}`)
	if got := p.tool("log", `{"level":"info"}`); got != "logged 0" {
		t.Errorf("below the level: %s", got)
	}
	p.startTool("log", `{"level":"error","text":"bad","count":2}`)
	for range 2 {
		if line := p.line(); !strings.Contains(line, `"level":"error","logger":"badserver","data":"bad"`) {
			t.Errorf("%s", line)
		}
	}
	p.find("logged 2")
	p.startTool("log", `{"level":"error","when":"after"}`)
	p.find("logged 1")
	p.find("notifications/message")
}

func TestAskReturnsWhatTheClientAnswered(t *testing.T) {
	p := ready(t)
	for kind, q := range questions {
		id := p.startTool("ask", fmt.Sprintf(`{"kind":%q}`, kind))
		var asked message
		if err := json.Unmarshal([]byte(p.line()), &asked); err != nil || asked.Method != q[0] {
			t.Fatalf("%s: asked %+v, %v", kind, asked, err)
		}
		p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"n":9007199254740993}}`, asked.ID))
		want := fmt.Sprintf(`{"kind":%q,"result":{"n":9007199254740993}}`, kind)
		if got := text(t, p.answer(id)); got != want {
			t.Errorf("%s: %s", kind, got)
		}
	}
	if got := p.tool("ask", `{"kind":"ping","timeoutMs":1}`); got != `{"kind":"ping"}` {
		t.Errorf("without an answer: %s", got)
	}
}

func TestAskAfterTheCallKeepsTheOutcome(t *testing.T) {
	p := ready(t)
	if got := p.tool("ask", `{"kind":"roots","when":"after"}`); got != "asking later" {
		t.Errorf("%s", got)
	}
	var asked message
	if err := json.Unmarshal([]byte(p.find("roots/list")), &asked); err != nil {
		t.Fatal(err)
	}
	p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"no"}}`, asked.ID))
	for {
		got := toolJSON[[]Asked](p, "asked", `{}`)
		if len(got) == 0 {
			continue // The server has the answer, and is about to keep it.
		}
		if string(got[0].Error) != `{"code":-1,"message":"no"}` || got[0].Result != nil {
			t.Errorf("%+v", got)
		}
		break
	}
}

func TestListChangesAreMadeAndAnnounced(t *testing.T) {
	p := ready(t)
	for _, kind := range []string{"tools", "prompts", "resources"} {
		id := p.startTool("add_tool", fmt.Sprintf(`{"name":"x://new","kind":%q}`, kind))
		if line := p.line(); !strings.Contains(line, "notifications/"+kind+"/list_changed") {
			t.Errorf("%s: %s", kind, line)
		}
		p.answer(id)
		if line := p.do(kind+"/list", `{}`); !strings.Contains(line, "x://new") {
			t.Errorf("%s: not added: %s", kind, line)
		}
	}
	if got := p.tool("x://new", `{"a":1}`); got != `x://new called with {"a":1}` {
		t.Errorf("added tool: %s", got)
	}
	p.tool("remove_tool", `{"name":"x://new"}`)
	if line := p.do("tools/call", `{"name":"x://new"}`); !strings.Contains(line, "-32602") {
		t.Errorf("removed tool: %s", line)
	}
	p.startTool("flap", `{"n":100}`)
	for range 100 {
		if line := p.line(); !strings.Contains(line, "tools/list_changed") {
			t.Fatalf("flap: %s", line)
		}
	}
}

func TestTouchReachesSubscribersOnly(t *testing.T) {
	p := ready(t)
	if got := p.tool("touch", `{"uri":"bad://static/1"}`); got != "nobody subscribed" {
		t.Errorf("%s", got)
	}
	p.startTool("touch", `{"uri":"bad://static/1","force":true}`)
	p.find("notifications/resources/updated")
	p.do("resources/subscribe", `{"uri":"bad://static/1"}`)
	p.startTool("touch", `{"uri":"bad://static/1"}`)
	p.find(`"method":"notifications/resources/updated","params":{"uri":"bad://static/1"}`)
}

func TestLedgerWritesOneLineWhateverFollows(t *testing.T) {
	for mode, after := range map[string]func(*peer, int){
		"answer": func(p *peer, id int) { p.answer(id) },
		"error":  func(p *peer, _ int) { p.find(`"isError":true`) },
		"crash": func(p *peer, _ int) {
			if code := p.ended(); code != exitCrash {
				t.Errorf("crash: status %d", code)
			}
		},
		"close_stdout": func(p *peer, _ int) {
			if line := p.line(); line != "" || !p.lives() {
				t.Errorf("close_stdout: %q, lives: %v", line, p.lives())
			}
		},
		"hang": func(p *peer, id int) {
			if !p.lives() {
				t.Error("hang: ended")
			}
			p.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
			if line := p.answer(p.startTool("cancelled", `{}`)); text(t, line) != fmt.Sprintf("[%d]", id) {
				t.Errorf("hang: %s", line)
			}
		},
	} {
		t.Run(mode, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "ledger")
			p := ready(t)
			id := p.startTool("ledger", fmt.Sprintf(`{"file":%q,"mode":%q}`, file, mode))
			after(p, id)
			data, err := os.ReadFile(file)
			if want := fmt.Sprintf("%d %s\n", p.cmd.Process.Pid, mode); err != nil || string(data) != want {
				t.Errorf("ledger holds %q, %v", data, err)
			}
		})
	}
}

func TestDiaryFollowsCallsUntilTheEnd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "diary")
	p := ready(t, "-diary", file, "-diary-as", "it")
	p.answer(p.startTool("count", `{}`))
	p.startTool("slow", `{"ms":600000}`)
	_ = p.stdin.Close()
	p.ended()
	data, err := os.ReadFile(file)
	if want := "it call count\nit done count\nit call slow\nit end\n"; err != nil || string(data) != want {
		t.Errorf("the diary holds %q, %v", data, err)
	}
}

func TestPathIsBuiltOnce(t *testing.T) {
	if first, second := Path(t), Path(t); first != second {
		t.Errorf("%s and %s", first, second)
	}
}
