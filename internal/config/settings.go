package config

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"roundhouse/internal/secret"
)

// minTokenLength is the fewest characters of a bearer token.
const minTokenLength = 16

// A document is a Config in the making.
type document struct {
	Config
	servers  []node // the objects that hold server entries
	listenAt node   // where "listen" stands, or zero
	ownState bool   // whether somebody chose StateDir
	storeAt  node   // where "store" stands, or zero

	budgetMode BudgetMode // as the file gives it, or ""
}

// Defaults returns the configuration without a file, flags, or variables that set
// something.
func Defaults() *Config {
	return defaults(osEnv)
}

func defaults(env func(string) (string, bool)) *Config {
	return &Config{
		Listen:   "127.0.0.1:7420",
		StateDir: defaultStateDir(env),
		Sessions: Sessions{Max: 1000, IdleTimeout: 10 * time.Minute, ExpireAfter: 24 * time.Hour, MaxTasks: 16},
		Pool: Pool{
			Enabled:    true,
			Transports: []Transport{Stdio, WebSocket},
			DrainDelay: 30 * time.Second,
			MaxIdle:    5 * time.Minute,
			Budget:     Budget{Mode: BudgetOff},
			Recovery: PoolRecovery{
				Stdio:  Recovery{Attempts: 3, Delay: 5 * time.Second, MaxDelay: 5 * time.Second},
				Remote: Recovery{Attempts: 5, Delay: time.Second, MaxDelay: 16 * time.Second},
			},
			Health:  Health{Interval: 30 * time.Second, Timeout: 5 * time.Second, Misses: 2},
			Circuit: Circuit{Failures: 5, Window: time.Minute, Wait: 30 * time.Second, Stable: 5 * time.Minute},
		},
		Gateway: Gateway{
			MaxBody:            64 << 20,
			KeepAlive:          15 * time.Second,
			WriteDeadline:      10 * time.Second,
			ListWait:           15 * time.Second,
			InteractiveTimeout: 10 * time.Minute,
		},
		Shutdown:  Shutdown{Grace: 10 * time.Second, Total: 30 * time.Second},
		LLM:       defaultLLM(),
		Autostart: Autostart{Enabled: true, IdleExit: 30 * time.Minute},
	}
}

// defaultStateDir is where state lives if nobody says so, or "" if not even the
// home directory is known.
func defaultStateDir(env func(string) (string, bool)) string {
	if dir, _ := env("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "roundhouse")
	}
	if home, ok := homeDir(env); ok {
		return filepath.Join(home, ".local", "state", "roundhouse")
	}
	return ""
}

// documentObject is the file.
var documentObject = object[document]{others: beside, fields: []field[document]{
	{
		name: "$schema",
		doc:  "Where an editor finds the JSON Schema of this file. It has no effect.",
		kind: custom[document]{
			from:  func(*reader, node, *document) {},
			shape: func(*document) schema { return schema{} },
		},
	}, {
		name: "mcpServers",
		doc:  "The MCP servers by name, as other hosts write them. A name is not empty and holds no slash and no control character; \"roundhouse\" is reserved.",
		kind: serverMap,
	}, {
		name: "servers",
		doc:  "The same as \"mcpServers\", as VS Code spells it. Both may be given if no name stands in both.",
		kind: serverMap,
	}, {
		name: "listen",
		doc:  "The host and port of the HTTP listener. Beyond loopback needs \"auth.tokens\". ROUNDHOUSE_LISTEN and --listen win over it.",
		kind: custom[document]{from: readListen, shape: func(d *document) schema {
			return schema{"type": "string", "default": d.Listen}
		}},
	}, {
		name: "publicNames",
		doc:  "Host names beside loopback under which clients reach the listener.",
		kind: list[document, string]{
			at:    func(d *document) *[]string { return &d.PublicNames },
			item:  publicName,
			items: schema{"type": "string"},
		},
	}, {
		name: "allowedOrigins",
		doc:  "Browser origins that may send requests, such as \"https://console.example\".",
		kind: list[document, string]{
			at:    func(d *document) *[]string { return &d.AllowedOrigins },
			item:  allowedOrigin,
			items: schema{"type": "string"},
		},
	}, {
		name: "stateDir",
		doc: "The directory of the daemon's own files; ~ and variables are expanded, and a relative one is relative to this file. " +
			"The default is roundhouse in $XDG_STATE_HOME, or ~/.local/state/roundhouse. ROUNDHOUSE_STATE_DIR and --state-dir win over it.",
		kind: custom[document]{from: readStateDir, shape: func(*document) schema { return schema{"type": "string"} }},
	}, {
		name: "socket",
		doc: "The unix socket on which the daemon serves this user's own programs without a token, \"roundhouse connect\" first of all; ~ and variables are expanded, and a relative one is relative to this file. " +
			"The default is roundhouse/roundhouse.sock in the user's runtime directory ($XDG_RUNTIME_DIR), or roundhouse.sock in stateDir if there is none or if stateDir was chosen. ROUNDHOUSE_SOCKET and --socket win over it.",
		kind: custom[document]{from: readSocket, shape: func(*document) schema { return schema{"type": "string"} }},
	}, {
		name: "auth",
		doc:  "Who may come in.",
		kind: section[document]{object: object[document]{fields: []field[document]{{
			name: "tokens",
			doc:  "Bearer tokens. Without any, every caller is the principal \"local\".",
			kind: custom[document]{from: readTokens, shape: func(*document) schema {
				item := tokenObject.schema(&Token{})
				item["required"] = []string{"principal", "token"}
				return schema{"type": "array", "items": item}
			}},
		}}}},
	}, {
		name: "sessions",
		doc:  "How many sessions there may be, and how long they live.",
		kind: sessionsSection,
	}, {
		name: "pool",
		doc:  "Which servers are shared, and how long their connections live.",
		kind: section[document]{object: object[document]{fields: []field[document]{{
			name: "enabled",
			doc:  "False gives each session connections of its own, whatever a server says. ROUNDHOUSE_NO_POOL=1 does the same.",
			kind: flag[document]{at: func(d *document) *bool { return &d.Pool.Enabled }},
		}, {
			name: "transports",
			doc:  "The transports whose servers are shared unless a server says otherwise.",
			kind: list[document, Transport]{
				at:    func(d *document) *[]Transport { return &d.Pool.Transports },
				item:  func(r *reader, n node) (string, bool) { return r.word(n, asStrings(transports)) },
				items: schema{"enum": transports},
			},
		}, {
			name: "drainDelay",
			doc:  "How long a connection outlives the last session that uses it.",
			kind: duration[document]{zero: true, at: func(d *document) *time.Duration { return &d.Pool.DrainDelay }},
		}, {
			name: "maxIdle",
			doc:  "How long a connection that no session uses may go without a call before it is closed, however often sessions come and go.",
			kind: duration[document]{zero: true, at: func(d *document) *time.Duration { return &d.Pool.MaxIdle }},
		}, {
			name: "recovery",
			doc:  "How a lost connection is replaced while sessions hold it. A call does not wait for the next attempt to be due. A server's own \"recovery\" wins over it.",
			kind: section[document]{object: object[document]{fields: []field[document]{{
				name: "stdio",
				doc:  "Of local servers.",
				kind: section[document]{object: recoveryObject(func(d *document) *Recovery { return &d.Pool.Recovery.Stdio }, asItIs)},
			}, {
				name: "remote",
				doc:  "Of remote servers.",
				kind: section[document]{object: recoveryObject(func(d *document) *Recovery { return &d.Pool.Recovery.Remote }, asItIs)},
			}}}},
		}, {
			name: "health",
			doc:  "How an idle connection is found to be dead. A server's own \"health\" wins over it.",
			kind: section[document]{object: healthObject(func(d *document) *Health { return &d.Pool.Health }, asItIs)},
		}, {
			name: "circuit",
			doc:  "When a server that keeps failing is left alone: callers get an error at once.",
			kind: section[document]{object: object[document]{fields: []field[document]{{
				name: "failures",
				doc:  "So many losses and failed starts within window open the circuit; 0 is no circuit.",
				kind: count[document]{zero: true, at: func(d *document) *int { return &d.Pool.Circuit.Failures }},
			}, {
				name: "window",
				doc:  "The time within which failures count together.",
				kind: duration[document]{at: func(d *document) *time.Duration { return &d.Pool.Circuit.Window }},
			}, {
				name: "wait",
				doc:  "How long an open circuit refuses callers before the next of them may try.",
				kind: duration[document]{at: func(d *document) *time.Duration { return &d.Pool.Circuit.Wait }},
			}, {
				name: "stable",
				doc:  "How long the connection must then live before one failure no longer opens the circuit again.",
				kind: duration[document]{zero: true, at: func(d *document) *time.Duration { return &d.Pool.Circuit.Stable }},
			}}}},
		}, {
			name: "budget",
			doc:  "How much may live at once. A server counts once, however many connections it has, until the last of its processes is gone.",
			kind: section[document]{check: checkBudget, object: object[document]{fields: []field[document]{{
				name: "servers",
				doc:  "The most servers.",
				kind: count[document]{at: func(d *document) *int { return &d.Pool.Budget.Servers }},
			}, {
				name: "processes",
				doc:  "The most child processes.",
				kind: count[document]{at: func(d *document) *int { return &d.Pool.Budget.Processes }},
			}, {
				name: "mode",
				doc:  "What happens at the limits: \"warn\", the default if there is one, publishes an event when three quarters are held; \"enforce\" also refuses what is over them; \"off\" does nothing.",
				kind: choice[document, BudgetMode]{options: budgetModes, at: func(d *document) *BudgetMode { return &d.budgetMode }},
			}}}},
		}}}},
	}, {
		name: "gateway",
		doc:  "Limits of the MCP endpoints.",
		kind: section[document]{object: object[document]{fields: []field[document]{{
			name: "maxBody",
			doc:  "The largest body of one HTTP request: a number of bytes, or a size such as \"64MiB\".",
			kind: size[document]{at: func(d *document) *int64 { return &d.Gateway.MaxBody }},
		}, {
			name: "keepAlive",
			doc:  "The time between comments on a silent stream.",
			kind: duration[document]{at: func(d *document) *time.Duration { return &d.Gateway.KeepAlive }},
		}, {
			name: "writeDeadline",
			doc:  "How long one write to a stream may take before its client is dropped.",
			kind: duration[document]{at: func(d *document) *time.Duration { return &d.Gateway.WriteDeadline }},
		}, {
			name: "listWait",
			doc:  "How long a list of all servers' tools waits for a server that is starting.",
			kind: duration[document]{zero: true, at: func(d *document) *time.Duration { return &d.Gateway.ListWait }},
		}, {
			name: "interactiveTimeout",
			doc:  "How long a server's request to a client may stay unanswered.",
			kind: duration[document]{at: func(d *document) *time.Duration { return &d.Gateway.InteractiveTimeout }},
		}}}},
	}, {
		name: "shutdown",
		doc:  "How the daemon ends.",
		kind: section[document]{check: checkShutdown, object: object[document]{fields: []field[document]{{
			name: "grace",
			doc:  "How long requests in flight may go on.",
			kind: duration[document]{zero: true, at: func(d *document) *time.Duration { return &d.Shutdown.Grace }},
		}, {
			name: "total",
			doc:  "How long everything may take, grace included.",
			kind: duration[document]{at: func(d *document) *time.Duration { return &d.Shutdown.Total }},
		}}}},
	},
	{
		name: "llm",
		doc:  "The LLM endpoints behind /v1/…, and what is recorded of their calls.",
		kind: llmSection,
	}, {
		name: "store",
		doc: "The file of the database: a path, or \"sqlite:///…\" with an absolute one. Variables and ~ are expanded, and a relative one is relative to this file. " +
			"The default is roundhouse.db in stateDir.",
		kind: custom[document]{from: readStore, shape: func(*document) schema { return schema{"type": "string"} }},
	}, {
		name: "autostart",
		doc:  "Whether \"roundhouse connect\" starts a daemon where none runs, and how long that one lives.",
		kind: section[document]{object: object[document]{fields: []field[document]{{
			name: "enabled",
			doc:  "False makes \"roundhouse connect\" wait for a daemon that somebody else starts.",
			kind: flag[document]{at: func(d *document) *bool { return &d.Autostart.Enabled }},
		}, {
			name: "idleExit",
			doc:  "How long a daemon that was started so stays when no session is awake and no client connected.",
			kind: duration[document]{at: func(d *document) *time.Duration { return &d.Autostart.IdleExit }},
		}}}},
	},
}}

// asItIs is how a kind stands where nothing is inherited.
func asItIs(k kind[document]) kind[document] { return k }

// recoveryObject is a Recovery in a T.
func recoveryObject[T any](at func(*T) *Recovery, as func(kind[T]) kind[T]) object[T] {
	return object[T]{fields: []field[T]{{
		name: "attempts",
		doc:  "How often it is tried; after that, or with 0, the next call does.",
		kind: as(count[T]{zero: true, at: func(t *T) *int { return &at(t).Attempts }}),
	}, {
		name: "delay",
		doc:  "The least time between the start of the lost connection and the first attempt, doubled before each further one; a fifth is added or taken away at random.",
		kind: as(duration[T]{at: func(t *T) *time.Duration { return &at(t).Delay }}),
	}, {
		name: "maxDelay",
		doc:  "The most that the doubled delay becomes; one below delay is the same as delay.",
		kind: as(duration[T]{at: func(t *T) *time.Duration { return &at(t).MaxDelay }}),
	}}}
}

// healthObject is a Health in a T.
func healthObject[T any](at func(*T) *Health, as func(kind[T]) kind[T]) object[T] {
	return object[T]{fields: []field[T]{{
		name: "interval",
		doc:  "How long a server that has no call in flight may say nothing before it is asked for a sign of life; \"0s\" is never.",
		kind: as(duration[T]{zero: true, at: func(t *T) *time.Duration { return &at(t).Interval }}),
	}, {
		name: "timeout",
		doc:  "How long the answer may take.",
		kind: as(duration[T]{at: func(t *T) *time.Duration { return &at(t).Timeout }}),
	}, {
		name: "misses",
		doc:  "After so many questions in a row without an answer the connection counts as lost.",
		kind: as(count[T]{at: func(t *T) *int { return &at(t).Misses }}),
	}}}
}

// serverMap only notes where the server entries are: how they are read depends on
// the settings.
var serverMap = custom[document]{
	from: func(_ *reader, n node, d *document) { d.servers = append(d.servers, n) },
	shape: func(*document) schema {
		return schema{"type": "object", "additionalProperties": schema{"$ref": "#/$defs/server"}}
	},
}

var tokenObject = object[Token]{fields: []field[Token]{{
	name: "principal",
	doc:  "Who the bearer is.",
	kind: plain[Token]{at: func(t *Token) *string { return &t.Principal }},
}, {
	name: "token",
	doc:  "The secret, at least 16 visible ASCII characters; best written as ${VAR}.",
	kind: hidden[Token]{scheme: inToken, at: func(t *Token) *secret.String { return &t.Token }},
}, {
	name: "admin",
	doc:  "Whether the bearer may see and control what belongs to other principals, and restart servers.",
	kind: flag[Token]{at: func(t *Token) *bool { return &t.Admin }},
}, {
	name: "inject",
	doc:  "Whether the bearer may add servers to its own sessions while they run, which lets it run programs as the daemon's user. Admins may.",
	kind: flag[Token]{at: func(t *Token) *bool { return &t.Inject }},
}, {
	name: "tools",
	doc:  "Which tools and prompts the principal sees and may call, of all servers. All tokens of a principal need the same.",
	kind: section[Token]{object: object[Token]{fields: []field[Token]{{
		name: "include",
		doc:  "Names such as \"files__read\", as the aggregate lists them, or \"files__*\" for all of a server's. Absent is all, empty is none.",
		kind: list[Token, string]{at: func(t *Token) *[]string { return &t.Tools.Include }, item: filterEntry, items: schema{"type": "string"}},
	}, {
		name: "exclude",
		doc:  "The same for what the principal neither sees nor may call, whatever include says.",
		kind: list[Token, string]{at: func(t *Token) *[]string { return &t.Tools.Exclude }, item: filterEntry, items: schema{"type": "string"}},
	}}}},
}}}

// filterEntry reads an entry of a ToolFilter.
func filterEntry(r *reader, n node) (string, bool) {
	entry, ok := r.text(n)
	if !ok {
		return "", false
	}
	if err := CheckTool(entry); err != nil {
		r.errorAt(n, "%v", err)
		return "", false
	}
	return entry, true
}

func readTokens(r *reader, n node, d *document) {
	elements, _ := r.elements(n)
	used := map[secret.String]bool{}
	for _, e := range elements {
		var t Token
		before := len(r.problems)
		found := tokenObject.read(r, e, &t)
		if len(r.problems) > before {
			continue
		}
		switch {
		case !found.has("principal") || !found.has("token"):
			r.errorAtKey(e, `needs "principal" and "token"`)
		case t.Principal == "" || strings.ContainsFunc(t.Principal, unicode.IsControl):
			r.errorAt(found["principal"], "must be a name without control characters")
		case len(t.Token.Reveal()) < minTokenLength:
			r.errorAt(found["token"], "must have at least %d characters", minTokenLength)
		case strings.ContainsFunc(t.Token.Reveal(), func(c rune) bool { return c <= ' ' || c > '~' }):
			r.errorAt(found["token"], "must be visible ASCII characters, because a header carries it")
		case used[t.Token]:
			r.errorAt(found["token"], "is the same token as an earlier one; every token needs to be its own")
		case slices.ContainsFunc(d.Auth.Tokens, func(o Token) bool { return o.Principal == t.Principal && !reflect.DeepEqual(o.Tools, t.Tools) }):
			r.errorAtKey(e, "has other tools than an earlier token of the same principal, to whom the sessions belong; give both the same")
		}
		used[t.Token] = true
		d.Auth.Tokens = append(d.Auth.Tokens, t)
	}
}

func readListen(r *reader, n node, d *document) {
	text, ok := r.expanded(n, ordinary)
	if !ok {
		return
	}
	if err := checkListen(text); err != nil {
		r.errorAt(n, "%v", err)
		return
	}
	d.Listen, d.listenAt, d.ListenGiven = text, n, true
}

var errListen = errors.New(`must be a host and a port, such as "127.0.0.1:7420"`)

// checkListen checks the address of a listener.
func checkListen(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return errListen
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return errListen
	}
	return nil
}

// BeyondLoopback reports whether the listener can be reached from other machines.
func (c *Config) BeyondLoopback() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return true
	}
	if strings.EqualFold(host, "localhost") {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.Unmap().IsLoopback()
}

func readStateDir(r *reader, n node, d *document) {
	if dir, ok := r.path(n); ok {
		d.StateDir, d.ownState = dir, true
	}
}

func readSocket(r *reader, n node, d *document) {
	if path, ok := r.path(n); ok {
		d.Socket = path
	}
}

// path reads the path of a file or directory and makes it absolute.
func (r *reader) path(n node) (string, bool) {
	path, ok := r.expanded(n, ordinary)
	if !ok {
		return "", false
	}
	path, err := expandHome(path, r.env)
	switch {
	case err != nil:
		r.errorAt(n, "%v", err)
		return "", false
	case path == "":
		r.errorAt(n, "must not be empty")
		return "", false
	case filepath.IsAbs(path):
		return filepath.Clean(path), true
	}
	return filepath.Join(r.dir, path), true
}

func checkShutdown(r *reader, n node, d *document, _ seen) {
	if d.Shutdown.Grace > d.Shutdown.Total {
		r.errorAtKey(n, "grace is longer than total, of which it is a part (total is %s if not given)",
			formatDuration(Defaults().Shutdown.Total))
	}
}

var budgetModes = []BudgetMode{BudgetOff, BudgetWarn, BudgetEnforce}

// checkBudget settles the mode, whose default depends on the limits, and refuses one
// without effect.
func checkBudget(r *reader, n node, d *document, found seen) {
	mode := &d.Pool.Budget.Mode
	switch limited := found.has("servers") || found.has("processes"); {
	case limited:
		*mode = cmp.Or(d.budgetMode, BudgetWarn)
	case d.budgetMode == BudgetWarn || d.budgetMode == BudgetEnforce:
		r.errorAtKey(n, "has no limit, so its mode has no effect; add \"servers\" or \"processes\"")
	}
}

func publicName(r *reader, n node) (string, bool) {
	name, ok := r.text(n)
	if ok && (name == "" || strings.ContainsAny(name, "/*@ ") || strings.ContainsFunc(name, unicode.IsControl)) {
		r.errorAt(n, `must be a host name alone, such as "tools.example"`)
		return "", false
	}
	return name, ok
}

func allowedOrigin(r *reader, n node) (string, bool) {
	origin, ok := r.text(n)
	if !ok {
		return "", false
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme == "" || u.Host == "" || u.Scheme+"://"+u.Host != origin || strings.ContainsAny(u.Host, "*") {
		r.errorAt(n, `must be an origin without a path, such as "https://console.example"`)
		return "", false
	}
	return origin, true
}
