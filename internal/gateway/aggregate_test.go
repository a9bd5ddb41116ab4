package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/wire"
)

// names returns one member of every item of a list result.
func names(result map[string]any, list, key string) (all []string) {
	for _, it := range result[list].([]any) {
		all = append(all, it.(map[string]any)[key].(string))
	}
	return all
}

// H7, cases 8 and 9: every server and tool has a name that model APIs take, and it
// leads back to exactly that tool.
func TestEveryToolHasASafeNameThatLeadsBack(t *testing.T) {
	long := strings.Repeat("n", 60)
	servers := []string{"a", "A", "a__b", "a_", "Internet Search (X)", "a.b", "日本", "x-" + strings.Repeat("s", 40)}
	tools := []string{"read", "Read", "calendar.read", "b__read", "_read", "two words", "道具", "a/b", "..", long + "_one", long + "_two", strings.Repeat("t", 40)}
	var list []*config.Server
	for _, s := range servers {
		list = append(list, shared(s))
	}
	inWorld(t, settings{}, list, func(w *world) {
		for _, s := range servers {
			w.scripts[s].tools = tools
		}
		p := w.connect("/mcp")
		public := names(p.result(wire.ToolsList, "{}"), "tools", "name")
		if len(public) != len(servers)*len(tools) {
			t.Fatalf("%d names for %d tools", len(public), len(servers)*len(tools))
		}
		for i, name := range public {
			if len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
				t.Errorf("%q is no safe name", name)
			}
			if slices.Index(public, name) != i {
				t.Errorf("%q stands twice", name)
			}
			got := p.tool(name, "{}")
			if got["server"] != servers[i/len(tools)] || got["name"] != tools[i%len(tools)] {
				t.Errorf("%q led to %v of %v, not to %q of %q", name, got["name"], got["server"], tools[i%len(tools)], servers[i/len(tools)])
			}
		}
		for _, want := range []string{"a__read", "A__read", "a__b__read", "a___read"} {
			if !slices.Contains(public, want) {
				t.Errorf("%q is not among the names", want)
			}
		}
		again := names(w.connect("/mcp").result(wire.ToolsList, "{}"), "tools", "name")
		if !slices.Equal(public, again) {
			t.Error("the names changed")
		}
	})
}

// H7, W1: items of the aggregate keep what roundhouse does not know.
func TestItemsKeepUnknownMembers(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		r := w.connect("/mcp").send(wire.ToolsList, "{}")
		if want := `{"name":"a__echo","x-big":9007199254740993}`; !strings.Contains(r.body, want) {
			t.Errorf("%s does not hold %s", r.body, want)
		}
	})
}

// V3, case 29: what a filter hides cannot be called under any spelling, and looks
// like what does not exist.
func TestAFilteredToolCannotBeCalled(t *testing.T) {
	server := shared("a")
	server.IncludeTools = []string{"echo(text)", "danger"}
	server.ExcludeTools = []string{"danger"}
	inWorld(t, settings{}, []*config.Server{server}, func(w *world) {
		w.scripts["a"].tools = []string{"echo", "danger", "other"}
		w.scripts["a"].prompts = []string{"danger", "echo"}
		one, all := w.connect("/mcp/a"), w.connect("/mcp")
		for p, prefix := range map[*peer]string{one: "", all: "a__"} {
			if got := names(p.result(wire.ToolsList, "{}"), "tools", "name"); !slices.Equal(got, []string{prefix + "echo"}) {
				t.Errorf("listed: %q", got)
			}
			if got := names(p.result(wire.PromptsList, "{}"), "prompts", "name"); !slices.Equal(got, []string{prefix + "echo"}) {
				t.Errorf("prompts listed: %q", got)
			}
			p.tool(prefix+"echo", "{}")
			unknown := p.refused(wire.ToolsCall, fmt.Sprintf(`{"name":%q}`, prefix+"nothing"))
			for _, spelling := range []string{"danger", "a__danger", "other", "Danger", "DANGER", "danger ", "dаnger", "danger\x00", "a__a__danger", "a__Danger"} {
				for _, method := range []string{wire.ToolsCall, wire.PromptsGet} {
					e := p.refused(method, fmt.Sprintf(`{"name":%s}`, wire.Quote(spelling)))
					if method == wire.ToolsCall && (e.Code != unknown.Code || strings.Replace(e.Message, spelling, prefix+"nothing", 1) != unknown.Message) {
						t.Errorf("%q: %+v, but what does not exist: %+v", spelling, e, unknown)
					}
				}
			}
			for _, params := range []string{
				`{"name":["danger"]}`, `{"name":{"toString":"danger"}}`, `{"name":null}`, `{}`, `["danger"]`, `{"name":"\ud800danger"}`,
				`{"name":"danger","name":"echo"}`, `{"name":"echo","name":"danger"}`, `{"name":"echo","Name":"danger"}`, `{"name":"echo","n\u0061me":"danger"}`, `{"name":"d\u0061nger"}`,
			} {
				p.refused(wire.ToolsCall, params)
			}
			for _, ref := range []string{`{"type":"ref/prompt","name":"PREdanger"}`, `{"type":"ref/prompt","name":"PREecho","name":"PREdanger"}`, `{"type":"ref/prompt","name":"PREecho","Name":"PREdanger"}`} {
				p.refused(wire.CompletionComplete, `{"ref":`+strings.ReplaceAll(ref, "PRE", prefix)+`,"argument":{"name":"x","value":""}}`)
			}
		}
		for _, raw := range append(w.proc("a").got(wire.ToolsCall), append(w.proc("a").got(wire.PromptsGet), w.proc("a").got(wire.CompletionComplete)...)...) {
			if strings.Contains(raw, "anger") || strings.Contains(raw, "other") {
				t.Errorf("the server got %s", raw)
			}
		}
	})
}

// V3, case 29: also where a filter only excludes, what is denied looks like what does
// not exist.
func TestWhatIsExcludedLooksLikeWhatIsUnknown(t *testing.T) {
	server := shared("a")
	server.ExcludeTools = []string{"danger"}
	inWorld(t, settings{}, []*config.Server{server}, func(w *world) {
		w.scripts["a"].tools = []string{"echo", "danger"}
		p := w.connect("/mcp/a")
		denied, unknown := p.refused(wire.ToolsCall, `{"name":"danger"}`), p.refused(wire.ToolsCall, `{"name":"thing"}`)
		if denied.Code != unknown.Code || denied.Message != "unknown tool: danger" || unknown.Message != "unknown tool: thing" {
			t.Errorf("denied: %+v, unknown: %+v", denied, unknown)
		}
		if got := w.proc("a").got(wire.ToolsCall); len(got) != 0 {
			t.Errorf("the server got %q", got)
		}
	})
}

// H7: a slow server is left out of a list; list_changed follows when it comes. A
// broken one hides only its own part. A call waits for its server.
func TestASlowOrBrokenServerHidesOnlyItsOwnPart(t *testing.T) {
	inWorld(t, settings{}, []*config.Server{shared("slow"), shared("broken"), shared("a")}, func(w *world) {
		w.scripts["slow"].delay = 40 * time.Second
		w.scripts["broken"].broken = true
		p := w.connect("/mcp")
		stream := p.listen("")
		begun := time.Now()
		if got := names(p.result(wire.ToolsList, "{}"), "tools", "name"); !slices.Equal(got, []string{"a__echo"}) {
			t.Errorf("listed: %q", got)
		}
		if took := time.Since(begun); took != 15*time.Second {
			t.Errorf("the list took %s", took)
		}
		if got := p.tool("slow__echo", "{}"); got["server"] != "slow" {
			t.Errorf("the call got %v", got)
		}
		if took := time.Since(begun); took != 40*time.Second {
			t.Errorf("the call was answered after %s", took)
		}
		synctest.Wait()
		if got := stream.methods(); !slices.Contains(got, wire.ToolsListChanged) {
			t.Errorf("the client was told %q", got)
		}
		if got := names(p.result(wire.ToolsList, "{}"), "tools", "name"); !slices.Equal(got, []string{"slow__echo", "a__echo"}) {
			t.Errorf("listed at last: %q", got)
		}
		if e := p.refused(wire.ToolsCall, `{"name":"broken__echo"}`); e.Data["reason"] != "start_failed" || e.Data["server"] != "broken" {
			t.Errorf("a call to the broken server got %+v", e)
		}
		w.scripts["broken"].set(func(s *script) { s.broken = false })
		if got := p.tool("broken__echo", "{}"); got["server"] != "broken" {
			t.Errorf("a call to the mended server got %v", got)
		}
		stream.hangUp()
	})
}

// H7: while a list cannot be read there is no list_changed for it, so that a client
// that reacts to it does not go round in circles.
func TestAListThatNeverComesIsAnnouncedNeverAndOnce(t *testing.T) {
	inWorld(t, settings{}, []*config.Server{shared("a"), shared("b")}, func(w *world) {
		p := w.connect("/mcp")
		stream := p.listen("")
		w.scripts["b"].delay = 50 * time.Second
		for range 3 {
			p.result(wire.ToolsList, "{}")
		}
		synctest.Wait()
		if got := stream.methods(); len(got) != 0 {
			t.Errorf("told too early: %q", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := stream.methods(); len(got) != 3 {
			t.Errorf("told %q, want each list once", got)
		}
		stream.hangUp()
	})
}

// H7: resources keep their URIs; where two servers have the same one, the second's
// has a prefix, by which it is read, subscribed to and reported.
func TestResourcesOfTwoServersWithOneURI(t *testing.T) {
	inWorld(t, settings{}, []*config.Server{shared("a"), shared("b_1"), shared("c")}, func(w *world) {
		w.scripts["a"].resources = []string{"file:///x", "file:///a"}
		w.scripts["b_1"].resources = []string{"file:///x", "file:///b"}
		w.scripts["b_1"].templates = []string{"item://{id}/of"}
		w.scripts["c"].caps = `{"tools":{}}`
		p := w.connect("/mcp")
		uris := names(p.result(wire.ResourcesList, "{}"), "resources", "uri")
		second := "roundhouse:b_1/file:///x"
		if want := []string{"file:///x", "file:///a", second, "file:///b"}; !slices.Equal(uris, want) {
			t.Fatalf("listed: %q, want %q", uris, want)
		}
		for uri, want := range map[string][2]string{
			"file:///x": {"a", "file:///x"}, "file:///a": {"a", "file:///a"}, "file:///b": {"b_1", "file:///b"},
			second: {"b_1", "file:///x"}, "roundhouse:a/file:///x": {"a", "file:///x"}, "item://17/of": {"b_1", "item://17/of"},
		} {
			got := p.result(wire.ResourcesRead, `{"uri":"`+uri+`"}`)
			if got["server"] != want[0] || got["params"].(map[string]any)["uri"] != want[1] {
				t.Errorf("%s was read as %v", uri, got)
			}
		}
		if e := p.refused(wire.ResourcesRead, `{"uri":"ftp://nobody"}`); e.Code != -32602 {
			t.Errorf("a resource of nobody: %+v", e)
		}
		if got := names(p.result(wire.ResourcesTemplatesList, "{}"), "resourceTemplates", "uriTemplate"); !slices.Equal(got, []string{"item://{id}/of"}) {
			t.Errorf("templates: %q", got)
		}
		stream := p.listen("")
		p.result(wire.ResourcesSubscribe, `{"uri":"`+second+`"}`)
		for _, s := range []string{"a", "b_1"} {
			w.proc(s).say(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///x","x":1}}`)
		}
		synctest.Wait()
		if got := stream.frames(); len(got) != 1 || !strings.Contains(got[0], `"params":{"uri":"`+second+`","x":1}`) {
			t.Errorf("the subscriber got %q", got)
		}
		p.result(wire.ResourcesUnsubscribe, `{"uri":"`+second+`"}`)
		if got := w.proc("b_1").got(wire.ResourcesUnsubscribe); len(got) != 1 || !strings.Contains(got[0], `"uri":"file:///x"`) {
			t.Errorf("the server got %q", got)
		}
		stream.hangUp()
	})
}

// H7: prompts and completions go to the server that has them, under its own names.
func TestPromptsAndCompletionsOfTheAggregate(t *testing.T) {
	inWorld(t, settings{}, []*config.Server{shared("a"), shared("b")}, func(w *world) {
		w.scripts["a"].prompts, w.scripts["b"].prompts = []string{"greet"}, []string{"greet"}
		w.scripts["b"].templates = []string{"item://{id}"}
		p := w.connect("/mcp")
		if got := names(p.result(wire.PromptsList, "{}"), "prompts", "name"); !slices.Equal(got, []string{"a__greet", "b__greet"}) {
			t.Errorf("prompts: %q", got)
		}
		got := p.result(wire.PromptsGet, `{"name":"b__greet","arguments":{"who":"x"}}`)
		if params := got["params"].(map[string]any); got["server"] != "b" || params["name"] != "greet" {
			t.Errorf("prompts/get: %v", got)
		}
		argument := `,"argument":{"name":"who","value":"x"}}`
		got = p.result(wire.CompletionComplete, `{"ref":{"type":"ref/prompt","name":"b__greet"}`+argument)
		if ref := got["params"].(map[string]any)["ref"].(map[string]any); got["server"] != "b" || ref["name"] != "greet" {
			t.Errorf("completion of a prompt: %v", got)
		}
		got = p.result(wire.CompletionComplete, `{"ref":{"type":"ref/resource","uri":"item://{id}"}`+argument)
		if ref := got["params"].(map[string]any)["ref"].(map[string]any); got["server"] != "b" || ref["uri"] != "item://{id}" {
			t.Errorf("completion of a resource: %v", got)
		}
		for _, bad := range []string{`{"ref":{"type":"ref/prompt","name":"c__greet"}` + argument, `{"ref":{"type":"ref/prompt"}` + argument, `{"ref":7` + argument, `{}`, `{"ref":{"name":7}` + argument} {
			if e := p.refused(wire.CompletionComplete, bad); e.Code != -32602 {
				t.Errorf("%s: %+v", bad, e)
			}
		}
	})
}

// M5, M3: the aggregate tells every server the level, also those that come later;
// what it does not serve is said.
func TestTheAggregatesOtherMethods(t *testing.T) {
	inWorld(t, settings{}, []*config.Server{shared("a"), shared("b")}, func(w *world) {
		p := w.connect("/mcp")
		p.tool("a__echo", "{}")
		if e := p.refused(wire.LoggingSetLevel, `{"level":"loud"}`); e.Code != wire.InvalidParams {
			t.Errorf("a level that there is not: %+v", e)
		}
		p.result(wire.LoggingSetLevel, `{"level":"debug"}`)
		p.tool("b__echo", "{}")
		synctest.Wait()
		for _, s := range []string{"a", "b"} {
			if got := w.proc(s).got(wire.LoggingSetLevel); len(got) != 1 || !strings.Contains(got[0], `"debug"`) {
				t.Errorf("%s got %q", s, got)
			}
		}
		if e := p.refused("x/unknown", "{}"); e.Code != -32601 {
			t.Errorf("an unknown method: %+v", e)
		}
		if r := p.send(wire.Ping, "{}"); !strings.Contains(r.body, `"result":{}`) {
			t.Errorf("ping: %s", r.body)
		}
	})
}

// V1, case 32: a changed list is read once, however often the server says so, and
// the aggregate's clients are told.
func TestAChangedListReachesTheAggregate(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp")
		stream := p.listen("")
		p.result(wire.ToolsList, "{}")
		before := len(w.proc("a").got(wire.ToolsList))
		w.scripts["a"].set(func(s *script) { s.tools = []string{"echo", "added"} })
		for range 100 {
			w.proc("a").say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
		time.Sleep(time.Second)
		if got := stream.methods(); !slices.Equal(got, []string{wire.ToolsListChanged}) {
			t.Errorf("the client was told %q", got)
		}
		if n := len(w.proc("a").got(wire.ToolsList)) - before; n > 2 {
			t.Errorf("the list was read %d times", n)
		}
		if got := names(p.result(wire.ToolsList, "{}"), "tools", "name"); !slices.Equal(got, []string{"a__echo", "a__added"}) {
			t.Errorf("listed: %q", got)
		}
		stream.hangUp()
	})
}

// M3: the aggregate's own answer to initialize.
func TestTheAggregatesHandshake(t *testing.T) {
	for asked, want := range map[string]string{wire.Version20250326: wire.Version20250326, "1999-01-01": wire.Version20251125} {
		inWorld(t, settings{}, oneServer(), func(w *world) {
			p := w.dialed("/mcp")
			p.version = asked
			m := p.post(hello(asked, "{}")).last(w)
			if m.Result["protocolVersion"] != want || m.Result["serverInfo"].(map[string]any)["name"] != "roundhouse" {
				t.Errorf("%v", m.Result)
			}
			if len(w.all()) != 0 {
				t.Error("the handshake started a server")
			}
		})
	}
}

// M3: one server's answer is its own, adapted to the older of the two versions.
func TestOneServersHandshake(t *testing.T) {
	for _, c := range []struct{ client, server, want string }{
		{wire.Version20251125, wire.Version20251125, wire.Version20251125},
		{wire.Version20250326, wire.Version20251125, wire.Version20250326},
		{wire.Version20251125, wire.Version20250326, wire.Version20250326},
		{"2099-01-01", wire.Version20250618, wire.Version20250618},
	} {
		inWorld(t, settings{}, oneServer(), func(w *world) {
			w.scripts["a"].version = c.server
			r := w.dialed("/mcp/a").post(hello(c.client, clientCaps))
			want := `"result":{"protocolVersion":"` + c.want + `","capabilities":` + w.scripts["a"].caps + `,"serverInfo":{"name":"a","version":"1"},"instructions":"Be kind.","x-unknown":{"b":1,"a":1.0}}}`
			if !strings.HasSuffix(r.body, want) {
				t.Errorf("%+v: got %s", c, r.body)
			}
			if n := len(w.proc("a").got(wire.Initialized)); n != 1 {
				t.Errorf("the server got %d initialized", n)
			}
		})
	}
}

// H3, P9: a server that does not start is the answer to initialize, and nothing of
// the client stays.
func TestInitializeAtABrokenServer(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].broken = true
		r := w.dialed("/mcp/a").post(hello(wire.Version20251125, "{}"))
		e := r.last(w).fault(w)
		if r.status != http.StatusOK || e.Data["reason"] != "start_failed" || r.header.Get(sessionHeader) != "" {
			t.Errorf("%d %v %+v", r.status, r.header, e)
		}
		if st := w.sessions.Stats(); st.Clients != 0 || len(w.sessions.List("local", false)) != 0 {
			t.Errorf("%+v", st)
		}
	})
}
