package config

import (
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/tailscale/hujson"

	"roundhouse/internal/secret"
)

// An entry is a Server in the making: what its keys say, before they are combined.
type entry struct {
	*Server
	instances    seen                     // the keys of "instances"
	written      Transport                // what "type" says, or ""
	chosen       Sharing                  // what "sharing" says, or ""
	commandRest  []string                 // arguments that stand in "command"
	foreignStart time.Duration            // from "startup_timeout_sec"
	legacyStart  time.Duration            // from "startup_timeout_ms"
	bearer       secret.String            // from "bearer_token_env_var"
	envHeaders   map[string]secret.String // from "env_http_headers"
}

// newServer returns a server with the defaults of its own settings.
func newServer(name string) *Server {
	return &Server{
		Name:          name,
		Interactive:   Auto,
		Retry:         RetryNever,
		Era:           EraAuto,
		StartTimeout:  60 * time.Second,
		CloseEOFWait:  2 * time.Second,
		CloseTermWait: 3 * time.Second,
		CloseKillWait: 2 * time.Second,
		Instances:     Instances{Max: 5, IdleTimeout: 5 * time.Minute, MaxWait: time.Minute, OnRelease: ReleaseDestroy},
		Cleanup:       Cleanup{Timeout: 5 * time.Second},
	}
}

// unset marks what an entry does not say about recovery: the default depends on the
// transport.
const unset = -1

// fromPool is how a kind stands in an entry whose default is a setting of the pool.
func fromPool(k kind[entry]) kind[entry] { return inherited[entry]{k} }

// transports are the names of the transports as roundhouse writes them.
var transports = []Transport{Stdio, HTTP, SSE, WebSocket}

// transportNames are all spellings of "type" (case 51).
var transportNames = map[string]Transport{
	"stdio":           Stdio,
	"local":           Stdio,
	"http":            HTTP,
	"streamable-http": HTTP,
	"streamable_http": HTTP,
	"streamableHttp":  HTTP,
	"remote":          HTTP,
	"sse":             SSE,
	"ws":              WebSocket,
	"websocket":       WebSocket,
}

// entryObject is a server entry: first roundhouse's own keys, then those that
// other hosts write.
var entryObject = object[entry]{others: open, fields: []field[entry]{
	{
		name: "sharing",
		doc: "Who gets a connection: \"shared\" is one for all sessions with the same configuration, \"session\" one for each, \"exclusive\" an instance " +
			"of its own while the session uses it. The default is \"exclusive\" for servers known to keep state per client, \"shared\" for the transports in pool.transports, and \"session\" for others.",
		kind: choice[entry, Sharing]{options: []Sharing{Shared, Session, Exclusive}, at: func(e *entry) *Sharing { return &e.Sharing }},
	}, {
		name: "shareAcrossPrincipals",
		doc:  "Whether sessions of different principals may share a connection.",
		kind: flag[entry]{at: func(e *entry) *bool { return &e.ShareAcrossPrincipals }},
	}, {
		name: "interactive",
		doc: "What happens to a server's requests to its client: \"auto\" routes them while one client has calls in flight, \"refuse\" declares none upstream, " +
			"\"serialize\" runs one client's calls at a time, \"dedicate\" gives sessions whose client can be asked a connection of their own.",
		kind: choice[entry, Interactive]{options: []Interactive{Auto, Refuse, Serialize, Dedicate}, at: func(e *entry) *Interactive { return &e.Interactive }},
	}, {
		name: "era",
		doc: "The protocol era in which the server is spoken to: \"legacy\" is 2024-11-05 to 2025-11-25, \"modern\" is 2026-07-28. " +
			"\"auto\" is that of each client if the server has it, else the other.",
		kind: choice[entry, Era]{options: []Era{EraAuto, EraLegacy, EraModern}, at: func(e *entry) *Era { return &e.Era }},
	}, {
		name: "startTimeout",
		doc:  "How long the server may take to start and answer the handshake.",
		kind: duration[entry]{at: func(e *entry) *time.Duration { return &e.StartTimeout }},
	}, {
		name: "callTimeout",
		doc:  "How long one call may take; progress extends it up to four times. \"0s\" is no limit.",
		kind: duration[entry]{zero: true, at: func(e *entry) *time.Duration { return &e.CallTimeout }},
	}, {
		name: "closeTimeouts",
		doc:  "How long each step of ending the server's process may take.",
		kind: section[entry]{object: object[entry]{fields: []field[entry]{{
			name: "eof",
			doc:  "The wait after its stdin was closed.",
			kind: duration[entry]{zero: true, at: func(e *entry) *time.Duration { return &e.CloseEOFWait }},
		}, {
			name: "term",
			doc:  "The wait after SIGTERM.",
			kind: duration[entry]{zero: true, at: func(e *entry) *time.Duration { return &e.CloseTermWait }},
		}, {
			name: "kill",
			doc:  "The wait after SIGKILL until no descendant lives.",
			kind: duration[entry]{at: func(e *entry) *time.Duration { return &e.CloseKillWait }},
		}}}},
	}, {
		name: "recovery",
		doc:  "How a lost connection is replaced while sessions hold it. What is absent is as in pool.recovery.",
		kind: section[entry]{object: recoveryObject(func(e *entry) *Recovery { return &e.Recovery }, fromPool)},
	}, {
		name: "health",
		doc:  "How an idle connection is found to be dead. What is absent is as in pool.health.",
		kind: section[entry]{object: healthObject(func(e *entry) *Health { return &e.Health }, fromPool)},
	}, {
		name: "retry",
		doc: "Which calls are sent once more that a lost connection may have executed: \"never\" any, or with \"idempotent\" those of tools that declare themselves read-only or idempotent. " +
			"What certainly was not sent is sent once more in any case.",
		kind: choice[entry, Retry]{options: []Retry{RetryNever, RetryIdempotent}, at: func(e *entry) *Retry { return &e.Retry }},
	}, {
		name: "inheritEnv",
		doc:  "Whether the process gets the daemon's whole environment, secrets included, and not only the documented part of it.",
		kind: flag[entry]{at: func(e *entry) *bool { return &e.InheritEnv }},
	}, {
		name:    "includeTools",
		aliases: []string{"include_tools", "enabled_tools", "enabledTools", "allowedTools", "allowed_tools"},
		doc:     "The tools that sessions see and may call, by their exact names. Absent is all, empty is none.",
		kind:    toolNames(func(e *entry) *[]string { return &e.IncludeTools }),
	}, {
		name: "forwardHeaders",
		doc:  "Names of headers of a client's initialize request that go to the remote server too. Clients that send different ones do not share a connection.",
		kind: list[entry, string]{at: func(e *entry) *[]string { return &e.ForwardHeaders }, item: forwardable, items: schema{"type": "string"}},
	}, {
		name:    "excludeTools",
		aliases: []string{"exclude_tools", "disabled_tools", "disabledTools"},
		doc:     "Tools that sessions neither see nor may call, whatever includeTools says.",
		kind:    toolNames(func(e *entry) *[]string { return &e.ExcludeTools }),
	},
	{
		name: "tools",
		doc:  "The same as includeTools, as other hosts write it: [\"*\"] is all.",
		kind: custom[entry]{from: readTools, shape: func(*entry) schema {
			return schema{"type": []string{"array", "object"}, "items": schema{"type": "string"}}
		}},
	},

	{
		name: "instances",
		doc:  "How many instances an exclusive server has, and what is done with them.",
		kind: custom[entry]{
			from:  func(r *reader, n node, e *entry) { e.instances = instancesObject.read(r, n, e) },
			shape: func(e *entry) schema { return section[entry]{object: instancesObject}.schema(e) },
		},
	}, {
		name: "cleanup",
		doc:  "How the server is told that a session has used it for the last time.",
		kind: section[entry]{object: cleanupObject},
	}, {
		name:    "type",
		aliases: []string{"transport"},
		doc:     "How the server is reached. It follows from command, url or httpUrl if it is absent.",
		kind: custom[entry]{from: readType, shape: func(*entry) schema {
			return schema{"enum": []string{"stdio", "local", "http", "streamable-http", "streamable_http", "streamableHttp", "remote", "sse", "ws", "websocket"}}
		}},
	}, {
		name: "command",
		doc:  "The program of a local server, or an array of it and its first arguments. Variables and ~ are expanded.",
		kind: custom[entry]{from: readCommand, shape: func(*entry) schema {
			return schema{"anyOf": []schema{{"type": "string"}, {"type": "array", "items": schema{"type": "string"}, "minItems": 1}}}
		}},
	}, {
		name: "args",
		doc:  "The program's arguments, each one string. Variables are expanded.",
		kind: texts(inServer, func(e *entry) *[]string { return &e.Args }),
	}, {
		name: "env",
		doc:  "Environment variables of the process, beside the documented part of the daemon's. Variables are expanded.",
		kind: textMap{scheme: inServer, key: envName, at: func(e *entry) *map[string]secret.String { return &e.Env }},
	}, {
		name: "cwd",
		doc: "The directory in which the process runs. The default is this file's directory, to which a relative one is relative. " +
			"\"workspace\" is the session's workspace, as is ${WORKSPACE} in any field. Variables and ~ are expanded.",
		kind: text[entry]{scheme: inServer, at: func(e *entry) *string { return &e.Cwd }},
	}, {
		name:    "url",
		aliases: []string{"httpUrl", "serverUrl"},
		doc:     "The address of a remote server. Variables are expanded.",
		kind: custom[entry]{
			from: func(r *reader, n node, e *entry) {
				address, ok := r.expanded(n, onTheWire)
				if ok && address == "" {
					r.errorAt(n, "must not be empty")
				}
				e.URL = secret.New(address)
			},
			shape: func(*entry) schema { return schema{"type": "string"} },
		},
	}, {
		name:    "headers",
		aliases: []string{"http_headers"},
		doc:     "HTTP headers of every request to a remote server. Variables are expanded.",
		kind:    textMap{scheme: onTheWire, key: headerName, value: headerValue, at: func(e *entry) *map[string]secret.String { return &e.Headers }},
	}, {
		name: "env_http_headers",
		doc:  "HTTP headers by the names of the environment variables that hold their values.",
		kind: textMap{fromEnv: true, key: headerName, value: headerValue, at: func(e *entry) *map[string]secret.String { return &e.envHeaders }},
	}, {
		name: "bearer_token_env_var",
		doc:  "The name of the environment variable that holds the bearer token for a remote server.",
		kind: custom[entry]{
			from: func(r *reader, n node, e *entry) {
				if token, ok := r.variable(n); ok && headerValue(r, n, token) {
					e.bearer = secret.New(token)
				}
			},
			shape: func(*entry) schema { return schema{"type": "string"} },
		},
	}, {
		name: "startup_timeout_sec",
		doc:  "The start timeout in seconds, as other hosts write it. startTimeout wins over it.",
		kind: span(time.Second, func(e *entry) *time.Duration { return &e.foreignStart }),
	}, {
		name: "startup_timeout_ms",
		doc:  "The start timeout in milliseconds, as other hosts write it. startTimeout and startup_timeout_sec win over it.",
		kind: span(time.Millisecond, func(e *entry) *time.Duration { return &e.legacyStart }),
	},

	{name: "disabled", doc: "Whether the server is left out.", kind: switchKind},
	{name: "enabled", doc: "Whether the server is used; false is the same as \"disabled\": true.", kind: switchKind},
	{
		name: "description",
		doc:  "What the server is for.",
		kind: plain[entry]{at: func(e *entry) *string { return &e.Description }},
	}, {
		name: "trust",
		doc:  "Another host's mark. It has no effect here.",
		kind: flag[entry]{at: func(e *entry) *bool { return &e.Trust }},
	},
	{name: "autoApprove", doc: "Another host's setting. It has no effect here.", kind: anything},
	{name: "alwaysAllow", doc: "Another host's setting. It has no effect here.", kind: anything},
	{name: "timeout", doc: "Another host's time limit of a call. It has no effect here: write callTimeout.", kind: noCallTimeout},
	{name: "tool_timeout_sec", doc: "Another host's time limit of a call. It has no effect here: write callTimeout.", kind: noCallTimeout},
	{
		name: "envFile",
		doc:  "Another host's file of environment variables. It is not read here.",
		kind: warning("envFile is not read here; write its variables into env, such as {\"KEY\": \"${KEY}\"}"),
	}, {
		name: "oauth",
		doc:  "How to log in to a remote server, as other hosts write it.",
		kind: section[entry]{object: oauthObject},
	}, {
		name: "authProviderType",
		doc:  "How other hosts log in to a remote server.",
		kind: text[entry]{at: func(e *entry) *string { return &e.AuthProviderType }},
	}, {
		name: "targetAudience",
		doc:  "The audience of a service account's token.",
		kind: text[entry]{at: func(e *entry) *string { return &e.TargetAudience }},
	}, {
		name: "targetServiceAccount",
		doc:  "The service account to act as.",
		kind: text[entry]{at: func(e *entry) *string { return &e.TargetServiceAccount }},
	},
}}

var oauthObject = object[entry]{others: open, fields: []field[entry]{
	{name: "enabled", doc: "Whether to log in by OAuth.", kind: flag[entry]{at: func(e *entry) *bool { return &e.OAuth.Enabled }}},
	{name: "clientId", doc: "The client's id.", kind: text[entry]{at: func(e *entry) *string { return &e.OAuth.ClientID }}},
	{name: "clientSecret", doc: "The client's secret.", kind: hidden[entry]{at: func(e *entry) *secret.String { return &e.OAuth.ClientSecret }}},
	{name: "scopes", doc: "The scopes to ask for.", kind: texts(ordinary, func(e *entry) *[]string { return &e.OAuth.Scopes })},
	{name: "audiences", doc: "The audiences to ask for.", kind: texts(ordinary, func(e *entry) *[]string { return &e.OAuth.Audiences })},
	{name: "authorizationUrl", doc: "The authorization endpoint.", kind: text[entry]{at: func(e *entry) *string { return &e.OAuth.AuthorizationURL }}},
	{name: "tokenUrl", doc: "The token endpoint.", kind: text[entry]{at: func(e *entry) *string { return &e.OAuth.TokenURL }}},
	{name: "redirectUri", doc: "The redirect address.", kind: text[entry]{at: func(e *entry) *string { return &e.OAuth.RedirectURI }}},
	{name: "registrationUrl", doc: "The endpoint for dynamic registration.", kind: text[entry]{at: func(e *entry) *string { return &e.OAuth.RegistrationURL }}},
	{name: "tokenParamName", doc: "The query parameter that carries the token.", kind: text[entry]{at: func(e *entry) *string { return &e.OAuth.TokenParamName }}},
}}

// anything is a key of other hosts that changes nothing here, by its nature.
var anything = custom[entry]{
	from:  func(*reader, node, *entry) {},
	shape: func(*entry) schema { return schema{} },
}

// warning is a key of other hosts that one may expect to have an effect.
func warning(message string) kind[entry] {
	return custom[entry]{
		from:  func(r *reader, n node, _ *entry) { r.warnAtKey(n, "%s", message) },
		shape: func(*entry) schema { return schema{} },
	}
}

var noCallTimeout = warning(`this key has no effect here; write "callTimeout", such as "2m", to limit a call`)

// switchKind checks "disabled" and "enabled"; fileDisables interprets them.
var switchKind = custom[entry]{
	from:  func(r *reader, n node, _ *entry) { r.flag(n) },
	shape: func(*entry) schema { return schema{"type": "boolean"} },
}

// span is a number of a unit of time.
func span(unit time.Duration, at func(*entry) *time.Duration) kind[entry] {
	return custom[entry]{
		from: func(r *reader, n node, e *entry) {
			if d, ok := r.timespan(n, unit); ok {
				*at(e) = d
			}
		},
		shape: func(*entry) schema { return schema{"type": "number", "exclusiveMinimum": 0} },
	}
}

// texts is an array of strings with variables.
func texts(s scheme, at func(*entry) *[]string) kind[entry] {
	return list[entry, string]{
		at:    at,
		item:  func(r *reader, n node) (string, bool) { return r.expanded(n, s) },
		items: schema{"type": "string"},
	}
}

// toolNames is an array of names, taken as they stand.
func toolNames(at func(*entry) *[]string) kind[entry] {
	return list[entry, string]{at: at, item: toolName, items: schema{"type": "string"}}
}

// toolName reads a name in a filter. A pattern, which some hosts have there, would let
// through what it should not.
func toolName(r *reader, n node) (string, bool) {
	name, ok := r.text(n)
	if bare, _, _ := strings.Cut(name, "("); ok && strings.Contains(bare, "*") {
		r.errorAt(n, "is a pattern, but tools are filtered by their exact names; list them")
		return "", false
	}
	return name, ok
}

// readTools reads "tools": names, of which "*" is all. Some hosts have an object of
// settings for single tools there.
func readTools(r *reader, n node, e *entry) {
	if n.value.Value.Kind() == '{' {
		r.warnAtKey(n, "settings for single tools have no effect here; write includeTools or excludeTools")
		return
	}
	elements, ok := r.elements(n)
	if !ok {
		return
	}
	if slices.ContainsFunc(elements, func(n node) bool {
		lit, ok := n.value.Value.(hujson.Literal)
		return ok && lit.Kind() == '"' && lit.String() == "*"
	}) {
		return
	}
	names := make([]string, 0, len(elements))
	for _, n := range elements {
		if name, ok := toolName(r, n); ok {
			names = append(names, name)
		}
	}
	e.IncludeTools = names
}

// forwardable reads the name of a header that may be passed on: the transport's own
// may not.
func forwardable(r *reader, n node) (string, bool) {
	name, ok := r.text(n)
	switch {
	case !ok:
		return "", false
	case !isToken(name):
		r.errorAt(n, "must be the name of a header, such as \"X-Tenant\"")
		return "", false
	case slices.Contains(transportHeaders, strings.ToLower(name)) || strings.HasPrefix(strings.ToLower(name), "mcp-"):
		r.errorAt(n, "this header belongs to the transport and is never passed on")
		return "", false
	}
	return http.CanonicalHeaderKey(name), true
}

// transportHeaders are about one connection or one body, in lower case.
var transportHeaders = []string{
	"accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive",
	"last-event-id", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "x-session-id",
}

// textMap is an object of strings that may be secrets.
type textMap struct {
	scheme  scheme
	fromEnv bool // the strings name environment variables
	key     func(r *reader, m node) bool
	value   func(r *reader, m node, text string) bool // nil accepts all
	at      func(*entry) *map[string]secret.String
}

func (k textMap) read(r *reader, n node, e *entry) {
	members, ok := r.uniqueMembers(n)
	if !ok {
		return
	}
	values := make(map[string]secret.String, len(members))
	for _, m := range members {
		if !k.key(r, m) {
			continue
		}
		var text string
		var ok bool
		if k.fromEnv {
			text, ok = r.variable(m)
		} else {
			text, ok = r.expanded(m, k.scheme)
		}
		if ok && (k.value == nil || k.value(r, m, text)) {
			values[m.key] = secret.New(text)
		}
	}
	*k.at(e) = values
}

func (textMap) schema(*entry) schema {
	return schema{"type": "object", "additionalProperties": schema{"type": "string"}}
}

// variable reads the name of an environment variable and returns its value,
// which must not be empty.
func (r *reader) variable(n node) (string, bool) {
	name, ok := r.text(n)
	if !ok {
		return "", false
	}
	if r.injecting {
		r.errorAt(n, "%v", errWithheld)
		return "", false
	}
	if !variableName.MatchString(name) {
		r.errorAt(n, "must be the name of an environment variable, without its value")
		return "", false
	}
	value, _ := r.env(name)
	if value == "" {
		// Whoever wrote the secret itself here must not find it in the log.
		r.errorAt(n, "the environment variable that this names is not set, or empty; set it")
		return "", false
	}
	return value, true
}

// envName checks the name of an environment variable of a child.
func envName(r *reader, m node) bool {
	if m.key == "" || strings.ContainsAny(m.key, "=\x00") {
		r.errorAtKey(m, "is no name of an environment variable")
		return false
	}
	return true
}

// headerName checks the name of an HTTP header.
func headerName(r *reader, m node) bool {
	if !isToken(m.key) {
		r.errorAtKey(m, "is no name of an HTTP header")
		return false
	}
	return true
}

// isToken reports whether a text is a token of HTTP (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(c rune) bool {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}

// headerValue refuses what would end a header, wherever it came from.
func headerValue(r *reader, m node, text string) bool {
	if strings.ContainsFunc(text, func(c rune) bool { return c != '\t' && unicode.IsControl(c) }) {
		r.errorAt(m, "holds a line break or another control character, which a header cannot carry")
		return false
	}
	return true
}
