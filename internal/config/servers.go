package config

import (
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/tailscale/hujson"

	"roundhouse/internal/secret"
)

// disabledByFile is the DisabledReason of a server that its own entry turns off.
const disabledByFile = "disabled in the configuration file"

// readServers reads all server entries into d.
func (r *reader) readServers(d *document) {
	byName := map[string]*Server{}
	for _, n := range d.servers {
		members, _ := r.members(n)
		for _, m := range members {
			r.scope = &scope{server: m.key, path: m.path}
			if earlier := byName[m.key]; earlier != nil {
				r.errorAtKey(m, "another server has this name already; rename one of them")
				earlier.disable(r.scope)
			} else if s := r.readServer(m, d); s != nil {
				byName[s.Name] = s
				d.Servers = append(d.Servers, s)
			}
			r.scope = nil
		}
	}
}

// disable takes over why a server cannot be used.
func (s *Server) disable(why *scope) {
	if s.DisabledReason != disabledByFile {
		reasons := why.errors
		if s.DisabledReason != "" {
			reasons = slices.Insert(reasons, 0, s.DisabledReason)
		}
		s.DisabledReason = strings.Join(reasons, "; ")
	}
}

// readServer reads one entry. It returns nil for a name that nothing can address.
func (r *reader) readServer(m node, d *document) *Server {
	switch {
	case m.key == "roundhouse":
		r.errorAtKey(m, "this name is reserved for roundhouse itself; rename the server, or remove it if it runs roundhouse")
		return nil
	case m.key == "", m.key == ".", m.key == "..", strings.Contains(m.key, "/"), strings.ContainsFunc(m.key, unicode.IsControl):
		r.errorAtKey(m, "a server's name must not be empty, hold a slash or a control character, or consist of dots; rename it")
		return nil
	}
	s := newServer(m.key)
	s.Position = r.position(m.keyOffset)
	s.Injected = r.injecting
	s.Recovery, s.Health = Recovery{unset, unset, unset}, d.Pool.Health
	e := &entry{Server: s}
	if m.value.Value.Kind() != '{' {
		r.wrongKind(m, "an object")
		e.combineRecovery(d.Pool)
		s.Sharing = Session
		s.disable(r.scope)
		return s
	}
	if fileDisables(m) {
		r.scope.disabled, s.DisabledReason = true, disabledByFile
	}
	found := entryObject.read(r, m, e)
	e.checkSwitches(r, found)
	e.combineEndpoints(r, found)
	e.combineTransport(r, m, found)
	e.combineStart(r, found)
	e.combineRecovery(d.Pool)
	switch s.Transport {
	case Stdio:
		e.combineCommand(r, found)
	case HTTP, SSE, WebSocket:
		e.combineHeaders(r, found)
	}
	if e.Era == EraModern && (s.Transport == SSE || s.Transport == WebSocket) {
		r.errorAt(found["era"], `2026-07-28 is spoken over stdio and Streamable HTTP only; write "auto", or remove it`)
	}
	e.combineSharing(r, m, found, d.Pool)
	e.combineInstances(r, m, found)
	e.checkInjected(r, found)
	s.disable(r.scope)
	return s
}

// fileDisables reports whether an entry turns its server off. It looks ahead, for
// problems of such an entry are only warnings.
func fileDisables(m node) bool {
	for _, member := range m.value.Value.(*hujson.Object).Members {
		lit, ok := member.Value.Value.(hujson.Literal)
		switch member.Name.Value.(hujson.Literal).String() {
		case "disabled":
			if ok && lit.Kind() == 't' {
				return true
			}
		case "enabled":
			if ok && lit.Kind() == 'f' {
				return true
			}
		}
	}
	return false
}

// checkSwitches names a contradiction; the server is off then, which is the safe
// reading.
func (e *entry) checkSwitches(r *reader, found seen) {
	if found.has("disabled") && found.has("enabled") && found["disabled"].value.Value.Kind() == found["enabled"].value.Value.Kind() {
		r.errorAtKey(found["enabled"], `contradicts "disabled"; keep one of them`)
	}
	if found.has("tools") && found.has("includeTools") {
		r.errorAtKey(found["tools"], "%q and %q say the same thing; keep one of them", found["includeTools"].key, "tools")
	}
}

// readType reads "type".
func readType(r *reader, n node, e *entry) {
	if n.value.Value.Kind() == '{' {
		r.errorAt(n, `must be a string; write the members of this object, such as "type" and "url", into the entry itself`)
		return
	}
	name, ok := r.text(n)
	if !ok {
		return
	}
	e.written = transportNames[name]
	switch {
	case name == "sdk":
		r.errorAt(n, `an "sdk" server lives inside another host's process, where roundhouse cannot reach it`)
	case e.written == "":
		names := slices.Sorted(maps.Keys(transportNames))
		r.report(Error, n.path, n.value.StartOffset, closest(name, names), "must be one of "+strings.Join(asStrings(transports), ", "))
	}
}

// readCommand reads "command": a program, or an array that goes on with arguments.
func readCommand(r *reader, n node, e *entry) {
	words := []node{n}
	if n.value.Value.Kind() == '[' {
		words, _ = r.elements(n)
		if len(words) == 0 {
			r.errorAt(n, "must not be empty")
		}
	}
	for i, w := range words {
		word, ok := r.expanded(w, inServer)
		switch {
		case !ok:
		case i > 0:
			e.commandRest = append(e.commandRest, word)
		case word == "":
			r.errorAt(w, "must not be empty")
		default:
			home, err := expandHome(word, r.env)
			if err != nil {
				r.errorAt(w, "%v", err)
			}
			e.Command = home
		}
	}
}

// combineTransport decides how the server is reached, and names what is
// ambiguous (case 51).
func (e *entry) combineTransport(r *reader, m node, found seen) {
	command, hasCommand := found["command"]
	address, hasURL := found["url"]
	kind := found["type"]
	switch {
	case hasCommand && hasURL:
		r.errorAtKey(standingLast(command, address), "%q and %q are both given, so it is not clear how to reach the server; keep one of them", command.key, address.key)
	case hasCommand:
		e.Transport = Stdio
		if e.written != "" && e.written != Stdio {
			r.errorAt(kind, `this is a type of remote servers, but the entry has a "command"; write "url" instead, or "type": "stdio"`)
		}
	case hasURL:
		e.Transport = e.remoteTransport(r, kind, address)
	case e.written == Stdio:
		r.errorAtKey(m, `a stdio server needs a "command"`)
	case e.written != "":
		r.errorAtKey(m, `a remote server needs a "url"`)
	case !found.has("type"): // Otherwise the type is wrong, and reported.
		r.errorAtKey(m, `needs a "command" (a local server) or a "url" (a remote one)`)
	}
}

// standingLast is the one of two nodes that stands later in the file.
func standingLast(a, b node) node {
	if b.keyOffset > a.keyOffset {
		return b
	}
	return a
}

// remoteTransport decides between the remote transports and checks the address.
func (e *entry) remoteTransport(r *reader, kind, address node) Transport {
	u, err := url.Parse(e.URL.Reveal())
	switch known := !e.URL.Empty() && !strings.Contains(e.URL.Reveal(), workspaceVariable) && !strings.Contains(e.URL.Reveal(), instancePrefix); {
	case !known: // Expanding it failed, or it is complete only in a session.
		u = &url.URL{Scheme: "http"}
	case err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme):
		r.errorAt(address, `must be an address such as "https://host/mcp"`)
		u = &url.URL{Scheme: "http"}
	}
	webSocket := strings.HasPrefix(u.Scheme, "ws")
	switch {
	case e.written == Stdio:
		r.errorAt(kind, `this is a type of local servers, but the entry has %q; write "command" instead, or "type": "http"`, address.key)
	case address.key == "httpUrl" && e.written != "" && e.written != HTTP:
		r.errorAt(kind, `contradicts "httpUrl", which means "http"; write "url" instead`)
	case e.written == WebSocket && !webSocket && u.Host != "":
		r.errorAt(address, `a "ws" server needs an address that begins with ws:// or wss://`)
	case e.written != "" && e.written != WebSocket && webSocket:
		r.errorAt(kind, `the address begins with ws:// or wss://, so this must be "ws"`)
	case e.written != "":
		return e.written
	case webSocket:
		return WebSocket
	case address.key == "url" && strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), "/sse"):
		r.warnAtKey(address, `taken for "type": "sse", because the address ends in /sse; write the type`)
		return SSE
	case address.key != "httpUrl":
		e.SSEFallback = true
	}
	return HTTP
}

// combineStart chooses among the spellings of the start timeout (P9).
func (e *entry) combineStart(r *reader, found seen) {
	if e.foreignStart == 0 {
		e.foreignStart = e.legacyStart
	}
	if e.foreignStart != 0 && !found.has("startTimeout") {
		e.StartTimeout = e.foreignStart
	}
	winner := ""
	for _, name := range []string{"startTimeout", "startup_timeout_sec", "startup_timeout_ms"} {
		switch {
		case !found.has(name):
		case winner == "":
			winner = name
		default:
			r.warnAtKey(found[name], "has no effect beside %q", winner)
		}
	}
}

// combineRecovery completes what the entry says about recovery.
func (e *entry) combineRecovery(p Pool) {
	usual := p.Recovery.Remote
	if e.Transport == Stdio {
		usual = p.Recovery.Stdio
	}
	own := &e.Recovery
	if own.Attempts == unset {
		own.Attempts = usual.Attempts
	}
	if own.Delay == unset {
		own.Delay = usual.Delay
	}
	if own.MaxDelay == unset {
		own.MaxDelay = usual.MaxDelay
	}
}

// combineCommand completes a stdio server.
func (e *entry) combineCommand(r *reader, found seen) {
	e.Args = append(e.commandRest, e.Args...)
	if !strings.ContainsAny(e.Command, `/\`) && strings.ContainsAny(e.Command, " \t") {
		r.warnAtKey(found["command"], `names one program, but holds a space; write its arguments into "args"`)
	}
	e.warnUseless(r, found, "stdio", "headers", "env_http_headers", "bearer_token_env_var", "forwardHeaders")
	e.Headers = nil

	dir, err := expandHome(e.Cwd, r.env)
	switch {
	case err != nil:
		r.errorAt(found["cwd"], "%v", err)
	case dir == "workspace":
		e.Cwd = workspaceVariable
	case strings.HasPrefix(dir, workspaceVariable):
		e.Cwd = dir
	case strings.Contains(dir, workspaceVariable):
		r.errorAt(found["cwd"], "${WORKSPACE} is an absolute directory, so it must come first")
	case filepath.IsAbs(dir):
		e.Cwd = filepath.Clean(dir)
	default:
		e.Cwd = filepath.Join(r.dir, dir) // K6: the file's directory is the default.
	}
}

// combineHeaders completes a remote server.
func (e *entry) combineHeaders(r *reader, found seen) {
	e.warnUseless(r, found, "remote", "args", "env", "cwd", "inheritEnv", "closeTimeouts")
	e.Args, e.Env, e.Cwd, e.InheritEnv = nil, nil, "", false

	all := maps.Clone(e.Headers)
	if all == nil {
		all = map[string]secret.String{}
	}
	for name, value := range e.envHeaders {
		if _, twice := all[name]; twice {
			r.errorAtKey(found["env_http_headers"], "the header %q is in %q too; keep one of them", name, found["headers"].key)
		}
		all[name] = value
	}
	if !e.bearer.Empty() {
		token := e.bearer.Reveal()
		if scheme, _, ok := strings.Cut(token, " "); !ok || !strings.EqualFold(scheme, "Bearer") {
			token = "Bearer " + token // Never doubled (case 52).
		}
		if _, twice := all["Authorization"]; twice {
			r.errorAtKey(found["bearer_token_env_var"], "the entry has an Authorization header too; keep one of them")
		}
		all["Authorization"] = secret.New(token)
	}
	folded := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if other, twice := folded[strings.ToLower(name)]; twice {
			r.errorAtKey(found["headers"], "the headers %q and %q are the same one; keep one of them", other, name)
		}
		folded[strings.ToLower(name)] = name
	}
	if len(all) > 0 {
		e.Headers = all
	}
}

// warnUseless warns of keys that have no effect on a server of this kind.
func (e *entry) warnUseless(r *reader, found seen, kind string, names ...string) {
	for _, name := range names {
		if n, ok := found[name]; ok {
			r.warnAtKey(n, "has no effect on a %s server", kind)
		}
	}
}

// combineSharing applies the switch, the entry's own choice and the defaults, in
// this order (K7).
func (e *entry) combineSharing(r *reader, m node, found seen, pool Pool) {
	e.chosen = e.Sharing
	switch {
	case !pool.Enabled || r.injecting:
		e.Sharing = Session
	case e.chosen != "":
	case e.keepsState() && (e.NeedsWorkspace() || found.has("forwardHeaders")):
		e.Sharing = Session
		r.warnAtKey(m, `this server keeps state per client, so every session gets its own; write "sharing" to choose, or to silence this`)
	case e.keepsState():
		e.Sharing = Exclusive
		r.warnAtKey(m, `this server keeps state per client, so each session is lent an instance of its own, of %d at most; write "sharing" to choose, or to silence this`, e.Instances.Max)
	case slices.Contains(pool.Transports, e.Transport):
		e.Sharing = Shared
	default:
		e.Sharing = Session
	}
}

// stateful are programs and packages that keep state per client, such as a page
// in a browser, and would mix up the sessions that share them (case 27).
var stateful = []string{
	"@playwright/mcp", "playwright-mcp", "mcp-server-playwright", "playwright/mcp", "mcp/playwright", "@executeautomation/playwright-mcp-server",
	"@modelcontextprotocol/server-puppeteer", "puppeteer-mcp-server", "mcp/puppeteer", "chrome-devtools-mcp", "@browsermcp/mcp",
	"@browserbasehq/mcp", "@browserbasehq/mcp-server-browserbase", "browser-use", "computer-use-mcp",
}

// keepsState recognises a stateful server by its command, or by a package among
// its arguments, whatever version that names.
func (e *entry) keepsState() bool {
	isStateful := func(word string) bool {
		if i := strings.LastIndexAny(word, "@:"); i > 0 {
			word = word[:i]
		}
		return slices.ContainsFunc(stateful, func(name string) bool {
			return word == name || strings.HasSuffix(word, "/"+name) && !strings.HasPrefix(word, "/")
		})
	}
	return isStateful(filepath.Base(e.Command)) || slices.ContainsFunc(e.Args, isStateful)
}
