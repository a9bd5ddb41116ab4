package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/wire"
)

// A guest is a client of 2026-07-28.
type guest struct {
	*peer
	caps string // clientCapabilities
	meta string // further members of _meta, each after a comma
}

func (w *world) guest(path string) *guest {
	p := w.dialed(path)
	p.version = wire.Version20260728
	return &guest{peer: p, caps: "{}"}
}

// body is a request of the guest's; members are those of params beside _meta.
func (g *guest) body(id, method, members string) string {
	if members != "" {
		members += ","
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientInfo":{"name":"guest","version":"1"},"io.modelcontextprotocol/clientCapabilities":%s%s}}}`,
		id, method, members, g.version, g.caps, g.meta)
}

// ask makes an HTTP request of the guest's with the headers that belong to it.
func (g *guest) ask(id, method, members string) *http.Request {
	g.w.Helper()
	r := g.peer.request(http.MethodPost, g.body(id, method, members))
	r.Header.Set(versionHeader, g.version)
	r.Header.Set(methodHeader, method)
	if f, err := wire.Parse([]byte(g.body(id, method, members))); err == nil {
		meta, _ := f.Routing()
		name := meta.Name
		if method == wire.ResourcesRead {
			name = meta.URI
		}
		if text, err := wire.Text(name.Of(f.Raw)); err == nil && (method == wire.ToolsCall || method == wire.PromptsGet || method == wire.ResourcesRead) {
			r.Header.Set(nameHeader, text)
		}
	}
	return r
}

func (g *guest) send(id, method, members string) reply {
	g.w.Helper()
	return g.do(g.ask(id, method, members))
}

// echo is a call of the tool that every server has.
func echo(arguments string) string { return `"name":"echo","arguments":` + arguments }

func (r reply) refused(w *world, status, code int) {
	w.Helper()
	if r.status != status || r.sse {
		w.Errorf("got %d %s, want %d", r.status, r.body, status)
		return
	}
	if e := r.last(w).fault(w); e.Code != code {
		w.Errorf("got %s, want the code %d", r.body, code)
	}
}

// H1: what is wrong with a request is found in the order on which peers rely, and its
// answer carries the request's id.
func TestModernRequestsAreChecked(t *testing.T) {
	set := func(key string, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(key)] = values }
	}
	meta := func(members string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":{` + members + `}}}`
	}
	const version = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	const caps = `,"io.modelcontextprotocol/clientCapabilities":{}`
	for _, c := range []struct {
		name, body, method string // body "" calls the tool echo
		change             func(*http.Request)
		status, code       int
	}{
		{"all is well", "", "", nil, 200, 0},
		{"spaces around a value", "", "", set(methodHeader, " tools/call\t"), 200, 0},
		{"a session id of another era", "", "", set(sessionHeader, "zzz"), 200, 0},
		{"no version header", "", "", set(versionHeader), 400, wire.HeaderMismatch},
		{"two version headers", "", "", set(versionHeader, wire.Version20260728, wire.Version20260728), 400, wire.HeaderMismatch},
		{"another version in the header", "", "", set(versionHeader, wire.Version20251125), 400, wire.HeaderMismatch},
		{"no method header", "", "", set(methodHeader), 400, wire.HeaderMismatch},
		{"another method in the header", "", "", set(methodHeader, "tools/list"), 400, wire.HeaderMismatch},
		{"another case of the method", "", "", set(methodHeader, "Tools/Call"), 400, wire.HeaderMismatch},
		{"no name header", "", "", set(nameHeader), 400, wire.HeaderMismatch},
		{"two name headers", "", "", set(nameHeader, "echo", "echo"), 400, wire.HeaderMismatch},
		{"another name in the header", "", "", set(nameHeader, "rm"), 400, wire.HeaderMismatch},
		{"the name in base64", "", "", set(nameHeader, "=?base64?ZWNobw==?="), 200, 0},
		{"broken base64", "", "", set(nameHeader, "=?base64?ZWNobw?="), 400, wire.HeaderMismatch},
		{"no _meta at all", `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, "tools/list", nil, 400, wire.InvalidParams},
		{"no version in _meta", meta(caps[1:]), "tools/list", nil, 400, wire.InvalidParams},
		{"a version that is no string", meta(`"io.modelcontextprotocol/protocolVersion":1` + caps), "tools/list", nil, 400, wire.InvalidParams},
		{"no capabilities", meta(version), "tools/list", nil, 400, wire.InvalidParams},
		{"capabilities that are no object", meta(version + `,"io.modelcontextprotocol/clientCapabilities":[]`), "tools/list", nil, 400, wire.InvalidParams},
		{"a client without a version", meta(version + caps + `,"io.modelcontextprotocol/clientInfo":{"name":"x"}`), "tools/list", nil, 400, wire.InvalidParams},
		{"no client", meta(version + caps), "tools/list", nil, 200, 0},
		{"an unknown level", meta(version + caps + `,"io.modelcontextprotocol/logLevel":"loud"`), "tools/list", nil, 400, wire.InvalidParams},
		{"capabilities twice (W2)", meta(version + caps + caps), "tools/list", nil, 400, wire.InvalidParams},
		{"another case of the version (W2)", meta(version + caps + `,"io.modelcontextprotocol/ProtocolVersion":"2026-07-28"`), "tools/list", nil, 400, wire.InvalidParams},
		{"an escape in the level (W2)", meta(version + caps + `,"io.modelcontextprotocol/log\u004cevel":"debug"`), "tools/list", nil, 400, wire.InvalidParams},
		{"a future version", meta(`"io.modelcontextprotocol/protocolVersion":"2099-01-01"`), "tools/list", set(versionHeader, "2099-01-01"), 400, wire.UnsupportedVersion},
		{"an older version", meta(`"io.modelcontextprotocol/protocolVersion":"2025-11-25"`), "tools/list", set(versionHeader, "2025-11-25"), 400, wire.UnsupportedVersion},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, settings{}, oneServer(), func(w *world) {
				g := w.guest("/mcp/a")
				r := g.ask("7", wire.ToolsCall, echo("{}"))
				if c.body != "" {
					r = g.peer.request(http.MethodPost, c.body)
					r.Header.Set(versionHeader, g.version)
					r.Header.Set(methodHeader, c.method)
				}
				if c.change != nil {
					c.change(r)
				}
				got := g.do(r)
				if !strings.Contains(got.body, `"id":7`) {
					t.Errorf("%s does not carry the request's id", got.body)
				}
				if got.header.Get(sessionHeader) != "" {
					t.Errorf("the answer names an MCP session")
				}
				if c.code != 0 {
					got.refused(w, c.status, c.code)
				} else if got.status != c.status || got.last(w).Result == nil {
					t.Errorf("got %d %s, want a result", got.status, got.body)
				}
				if c.code == wire.UnsupportedVersion && !strings.Contains(got.body, `"supported":["2026-07-28"`) {
					t.Errorf("%s does not say which versions are served", got.body)
				}
			})
		})
	}
}

// H1: methods that the version has no more are not found, and neither is what the
// server does not know; notifications are taken and dropped.
func TestModernMethods(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		g := w.guest("/mcp/a")
		for _, method := range []string{"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", "tasks/get", "x/unknown"} {
			g.send("1", method, "").refused(w, http.StatusNotFound, wire.MethodNotFound)
		}
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
		} {
			r := g.peer.request(http.MethodPost, body)
			r.Header.Set(versionHeader, g.version)
			if got := g.do(r); got.status != http.StatusAccepted || got.body != "" {
				t.Errorf("%s: got %d %s", body, got.status, got.body)
			}
		}
		r := g.peer.request(http.MethodPost, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		r.Header.Set(versionHeader, g.version)
		g.do(r).refused(w, http.StatusBadRequest, wire.InvalidRequest)
		for _, batch := range []string{`[` + g.body("1", "tools/list", "") + `]`, `[{"jsonrpc":"2.0","id":1,"method":"tools/list"},` + g.body("2", "tools/list", "") + `]`} {
			g.do(g.peer.request(http.MethodPost, batch)).refused(w, http.StatusBadRequest, wire.InvalidRequest)
		}
		old := w.dialed("/mcp/a")
		old.version = wire.Version20250326
		old.hello()
		old.do(old.request(http.MethodPost, `[`+g.body("1", "tools/list", "")+`]`)).refused(w, http.StatusBadRequest, wire.InvalidRequest)
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			r := g.peer.request(method, "")
			r.Header.Set(versionHeader, g.version)
			if got := g.do(r); got.status != http.StatusMethodNotAllowed || got.header.Get("Allow") != http.MethodPost {
				t.Errorf("%s: got %d, Allow %q", method, got.status, got.header.Get("Allow"))
			}
		}
		for _, p := range w.all() {
			if got := p.got(wire.RootsListChanged); got != nil {
				t.Errorf("the server got %s", got)
			}
		}
	})
}

// M8: clients of both eras are served on one URL, whichever comes first.
func TestBothErasOnOneURL(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		g, p := w.guest("/mcp/a"), w.connect("/mcp/a")
		g.send("1", wire.ToolsCall, echo(`{"from":"guest"}`)).last(w)
		if r := p.tool("echo", `{"from":"legacy"}`); r["resultType"] != nil {
			t.Errorf("a client with a handshake got %v", r)
		}
		// A header alone does not make initialize a request of the new era.
		r := p.request(http.MethodPost, hello(wire.Version20251125, "{}"))
		r.Header.Set(versionHeader, wire.Version20260728)
		if got := p.do(r); got.header.Get(sessionHeader) == "" {
			t.Errorf("initialize: %d %s", got.status, got.body)
		}
	})
}

// M3, M8: server/discover says of a server what it said in its handshake, without what
// cannot be bridged.
func TestDiscoverIsTheServersHandshake(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].caps = `{"tools":{"listChanged":true},"tasks":{"list":{}},"x-own":{"big":9007199254740993,"n":1.0}}`
		g := w.guest("/mcp/a")
		for range 20 {
			g.send(`"probe"`, wire.Discover, "")
		}
		got := g.send(`"probe"`, wire.Discover, "")
		want := `{"jsonrpc":"2.0","id":"probe","result":{"resultType":"complete","supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],` +
			`"ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"a","version":"1"}},"instructions":"Be kind.",` +
			`"capabilities":{"tools":{"listChanged":true},"x-own":{"big":9007199254740993,"n":1.0}}}}`
		if got.status != 200 || got.body != want {
			t.Errorf("got  %d %s\nwant %s", got.status, got.body, want)
		}
		// Nothing is allocated for each probe.
		if st := w.sessions.Stats(); st.Sessions["active"] != 1 || st.Clients != 0 || len(w.all()) != 1 || len(w.proc("a").got(wire.MethodInitialize)) != 1 {
			t.Errorf("left: %+v, %d processes", st, len(w.all()))
		}
	})
}

func TestDiscoverOfTheAggregateIsOurs(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		r := w.guest("/mcp").send("1", wire.Discover, "").last(w).Result
		if fmt.Sprint(r["_meta"]) != "map[io.modelcontextprotocol/serverInfo:map[name:roundhouse version:test]]" || r["capabilities"] == nil {
			t.Errorf("got %v", r)
		}
		if len(w.all()) != 0 {
			t.Error("a server was started for it")
		}
	})
}

// M3: a server that does not start, or not in time, is an error that clients of the new
// era take for an answer; they would take silence for a failure of ours.
func TestDiscoverOfASlowServer(t *testing.T) {
	inWorld(t, settings{}, []*config.Server{shared("broken"), shared("slow")}, func(w *world) {
		w.scripts["broken"].broken = true
		w.scripts["slow"].delay = 55 * time.Second
		w.guest("/mcp/broken").send("1", wire.Discover, "").refused(w, http.StatusOK, -32011)
		begun := time.Now()
		r := w.guest("/mcp/slow").send("1", wire.Discover, "")
		if e := r.last(w).fault(w); e.Code != -32011 || time.Since(begun) != discoverWait {
			t.Errorf("after %s: %s", time.Since(begun), r.body)
		}
	})
}

// H1: requests to servers that there are not, and with names that contradict each other.
func TestModernSessionsAndServersAreChecked(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.guest("/mcp/nobody").send("1", wire.ToolsList, "").refused(w, http.StatusNotFound, -32001)
		g := w.guest("/sessions/one/mcp/a")
		g.meta = `,"roundhouse/session":"two"`
		g.send("1", wire.ToolsList, "").refused(w, http.StatusBadRequest, wire.InvalidRequest)
		g.meta = `,"roundhouse/session":2`
		g.send("1", wire.ToolsList, "").refused(w, http.StatusBadRequest, wire.InvalidRequest)
	})
}

// M3, M8: requests share their session's connection; which one is decided by what the
// client declares, without what it would be asked for during a call.
func TestModernRequestsShareConnections(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		plain, asking, other := w.guest("/mcp/a"), w.guest("/mcp/a"), w.guest("/mcp/a")
		asking.caps = `{"sampling":{},"elicitation":{"form":{}},"roots":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
		other.caps = `{"experimental":{"y":1,"x":{}}}`
		for range 3 {
			plain.send("1", wire.ToolsList, "")
			asking.send("1", wire.ToolsCall, echo("{}"))
		}
		if n := len(w.all()); n != 1 || !strings.Contains(w.proc("a").got(wire.MethodInitialize)[0], `"capabilities":{}`) {
			t.Fatalf("%d processes; %s", n, w.proc("a").got(wire.MethodInitialize))
		}
		other.send("1", wire.ToolsList, "")
		if n := len(w.all()); n != 2 || !strings.Contains(w.proc("a").got(wire.MethodInitialize)[0], `"capabilities":{"experimental":{"x":{},"y":1}}`) {
			t.Errorf("%d processes; %s", n, w.proc("a").got(wire.MethodInitialize))
		}
		list := w.sessions.List("local", false)
		if len(list) != 2 || list[0].ID != "stateless" || !strings.HasPrefix(list[1].ID, "stateless-") || list[0].Calls != 6 || list[0].InFlight != 0 || len(list[0].Clients) != 0 {
			t.Errorf("sessions: %+v", list)
		}
	})
}

// A request names its session like any other client does; two sessions of one server
// that is not shared have a process each.
func TestModernRequestsNameTheirSession(t *testing.T) {
	inWorld(t, settings{}, []*config.Server{{Name: "a", Transport: config.Stdio, Command: "a", Sharing: config.Session, StartTimeout: time.Minute}}, func(w *world) {
		url, header, meta := w.guest("/sessions/one/mcp/a"), w.guest("/mcp/a"), w.guest("/mcp/a")
		header.header.Set("X-Session-Id", "two")
		meta.meta = `,"roundhouse/session":"one"`
		process := func(g *guest) any { return g.send("1", wire.ToolsCall, echo("{}")).last(w).Result["process"] }
		one, two, again := process(url), process(header), process(meta)
		if one != again || one == two {
			t.Errorf("processes %v, %v and %v", one, two, again)
		}
	})
}

// N3: the session of requests that name none goes to sleep, and wakes with the next.
func TestTheStatelessSessionSleeps(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		g := w.guest("/mcp/a")
		g.send("1", wire.ToolsList, "")
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if st := w.sessions.Stats(); st.Sessions["dormant"] != 1 || !w.proc("a").dead() {
			t.Fatalf("%+v", st)
		}
		if r := g.send("2", wire.ToolsCall, echo("{}")); r.last(w).Result == nil {
			t.Errorf("got %s", r.body)
		}
	})
}

// Case 27, M8: a server that sessions do not share is not served to senders whom
// nothing tells apart; they are told to begin with initialize. A named session is
// served.
func TestAnUnsharedServerNeedsASession(t *testing.T) {
	server := shared("a")
	server.Sharing = config.Session
	inWorld(t, settings{}, []*config.Server{server}, func(w *world) {
		for path, status := range map[string]int{"/mcp/a": 400, "/mcp": 400, "/sessions/s/mcp/a": 200} {
			if got := w.guest(path).send("1", wire.ToolsList, ""); got.status != status || status == 400 && !strings.Contains(got.body, `"supported":["2025-11-25"`) {
				t.Errorf("%s: %d %s", path, got.status, got.body)
			}
		}
	})
}
