// Package config reads roundhouse's configuration: one JSON-with-comments file,
// the environment and flags become one validated Config, and every problem comes
// at once with file:line:column.
package config

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"roundhouse/internal/secret"
)

// Config is the whole configuration after expansion, defaults and validation.
// It is read-only once Load returned it.
type Config struct {
	File           string   // absolute path of the file it came from, or ""
	Listen         string   // host:port of the HTTP listener
	ListenGiven    bool     // whether somebody chose Listen: the file, ROUNDHOUSE_LISTEN or --listen
	Socket         string   // absolute path of the unix socket for local callers ("socket"); "" on Windows, which has none
	PublicNames    []string // host names, beside loopback, under which clients reach us ("publicNames")
	AllowedOrigins []string // browser origins that may send requests ("allowedOrigins")
	StateDir       string   // directory of the journal and, unless Store says otherwise, the database ("stateDir")
	Store          string   // absolute path of the database ("store"), which is used if there are LLM.Upstreams
	Auth           Auth
	Sessions       Sessions
	Pool           Pool
	Gateway        Gateway
	Shutdown       Shutdown
	Autostart      Autostart
	LLM            LLM
	Servers        []*Server // in the order of the file, disabled ones too; an entry whose name nothing can address is only a problem
	Problems       []Problem // warnings, and errors that disabled one server
}

// Auth is the "auth" section.
type Auth struct {
	Tokens []Token // static bearer tokens; none means that every caller is the principal "local"
}

// Token lets a caller in as a principal.
type Token struct {
	Principal string
	Token     secret.String
	Tools     ToolFilter // what the principal sees and may call; all its tokens have the same
	Admin     bool       // may see and control what belongs to other principals, and restart servers
	Inject    bool       // may add servers to its sessions, which is to run programs as the daemon's user
}

// ToolFilter says which tools and prompts of all servers may be seen and used, beside what
// a server's own entry leaves out (V3). An entry is the name by which the aggregate lists
// a tool, "server__tool", or "server__*" for all of a server's. The zero value is all.
type ToolFilter struct {
	Include []string `json:"include,omitzero"` // nil is all, empty is none; an entry is cut at its first "("
	Exclude []string `json:"exclude,omitzero"` // whatever Include says
}

// Filters returns the filters of those principals that have one.
func (a Auth) Filters() map[string]ToolFilter {
	filters := map[string]ToolFilter{}
	for _, t := range a.Tokens {
		if t.Tools.Include != nil || len(t.Tools.Exclude) > 0 {
			filters[t.Principal] = t.Tools
		}
	}
	return filters
}

// CheckTool returns what is wrong with an entry of a ToolFilter, in words that follow it.
func CheckTool(entry string) error {
	server, tool, found := strings.Cut(entry, "__")
	tool, _, _ = strings.Cut(tool, "(")
	if !found || server == "" || tool == "" || strings.Contains(server, "*") || tool != "*" && strings.Contains(tool, "*") {
		return errors.New(`must be "server__tool", as tools/list on /mcp has it, or "server__*"`)
	}
	return nil
}

// Pool is the "pool" section.
type Pool struct {
	Enabled    bool          // false makes every server Session (K7)
	Transports []Transport   // those shared by default; stdio and ws
	DrainDelay time.Duration // T1; 30 s
	MaxIdle    time.Duration // T2; 5 min
	Budget     Budget
	Recovery   PoolRecovery
	Health     Health  // R1; after 30 s, within 5 s, 2 misses
	Circuit    Circuit // R4; 5 failures in 1 min, 30 s, 5 min
}

// PoolRecovery is the recovery of servers that say nothing about it (R3).
type PoolRecovery struct {
	Stdio  Recovery // 3 attempts 5 s apart
	Remote Recovery // of the other transports; 5 attempts, 1 s doubling to 16 s
}

// Budget is the "pool.budget" section: how much may live at once (B1).
type Budget struct {
	Mode      BudgetMode // BudgetWarn if there is a limit, else BudgetOff
	Servers   int        // servers that live or still end, by name; 0 is no limit
	Processes int        // child processes; 0 is no limit
}

// BudgetMode is what happens at the limits of a budget.
type BudgetMode string

// The budget modes.
const (
	BudgetOff     BudgetMode = "off"
	BudgetWarn    BudgetMode = "warn"    // an event says that little is left
	BudgetEnforce BudgetMode = "enforce" // and what is over it is refused
)

// Gateway is the "gateway" section.
type Gateway struct {
	MaxBody            int64         // bytes of one HTTP request body; 64 MiB
	KeepAlive          time.Duration // between comments on a silent stream; 15 s
	WriteDeadline      time.Duration // for one write to a stream; 10 s
	ListWait           time.Duration // how long an aggregate list waits for a server that is starting; 15 s
	InteractiveTimeout time.Duration // how long a server's request to a client may stay unanswered; 10 min
}

// Shutdown is the "shutdown" section (G1).
type Shutdown struct {
	Grace time.Duration // for requests in flight; 10 s
	Total time.Duration // for everything; 30 s
}

// Autostart is the "autostart" section: what "roundhouse connect" does when no
// daemon runs, and how long a daemon lives that was started so (H8).
type Autostart struct {
	Enabled  bool          // false: connect starts none
	IdleExit time.Duration // without a session that is awake or connected; 30 min
}

// Transport is how a server is reached.
type Transport string

// The transports.
const (
	Stdio     Transport = "stdio"
	HTTP      Transport = "http" // Streamable HTTP
	SSE       Transport = "sse"  // the older HTTP with SSE
	WebSocket Transport = "ws"
)

// Sharing is who gets a connection of a server.
type Sharing string

// The kinds of sharing.
const (
	Shared    Sharing = "shared"    // one connection for all sessions with the same fingerprint
	Session   Sharing = "session"   // one connection per session
	Exclusive Sharing = "exclusive" // leased instances
)

// Interactive is what happens to requests that a server sends to its client
// (M6 in the gateway specification).
type Interactive string

// The interactive policies.
const (
	Auto      Interactive = "auto"
	Refuse    Interactive = "refuse"
	Serialize Interactive = "serialize"
	Dedicate  Interactive = "dedicate" // clients that can be asked get a connection of their session's own
)

// Era is which eras of the protocol a server is spoken to in (M8).
type Era string

// The settings.
const (
	EraAuto   Era = "auto"   // that of the client if the server has it, else the other; "" is the same
	EraLegacy Era = "legacy" // 2024-11-05 to 2025-11-25
	EraModern Era = "modern" // 2026-07-28
)

// Server is one entry of mcpServers, expanded. Every field is either part of the
// connection's fingerprint or excluded from it by name (K3); the pool has a test
// that walks this type.
type Server struct {
	Name           string
	Position       string // file:line:column of the entry
	DisabledReason string // why it cannot be used ("disabled" in the file, or a problem), or ""
	Injected       bool   // came over the API, for one session, and not from the file

	Transport  Transport // "" only if the server is disabled because its entry does not say
	Command    string
	Args       []string                 // may hold secrets: never for display
	Env        map[string]secret.String // added to the child's environment (P8)
	Cwd        string                   // absolute, or holding ${WORKSPACE} (the value "workspace" becomes that); stdio only
	InheritEnv bool                     // the child gets the daemon's whole environment (P8)
	URL        secret.String
	Headers    map[string]secret.String // names as the file spells them; no two differ only in case
	// Dialer opens the connections to a remote server that a request named; nil is the
	// machine's own way, by the proxies of the environment too. No file says it.
	Dialer Dialer
	// SSEFallback lets a server that does not speak Streamable HTTP be reached by the
	// older HTTP with SSE: the file does not say which of the two it is.
	SSEFallback bool
	// ForwardHeaders are the names of headers of a client's initialize request that go
	// to the remote server too, as part of the fingerprint (K1).
	ForwardHeaders []string

	Sharing               Sharing // never empty: defaults are applied (K7)
	ShareAcrossPrincipals bool
	Interactive           Interactive
	Era                   Era           // EraAuto; EraModern only for Stdio and HTTP
	StartTimeout          time.Duration // P9; 60 s
	CallTimeout           time.Duration // H4; 0 is none
	CloseEOFWait          time.Duration // P2; 2 s
	CloseTermWait         time.Duration // P2; 3 s
	CloseKillWait         time.Duration // P2; 2 s
	Recovery              Recovery      // R3; of pool.recovery for the transport
	Health                Health        // R1; of pool.health
	Retry                 Retry         // R5; RetryNever
	Instances             Instances     // I1; of an Exclusive server
	Cleanup               Cleanup       // N5

	IncludeTools []string // V3; nil is all, empty is none
	ExcludeTools []string // V3
	Description  string   // for people
	Trust        bool     // other hosts' mark; kept, without effect here

	// What other hosts' files say about logging in; part of the fingerprint (K1).
	OAuth                OAuth
	AuthProviderType     string
	TargetAudience       string
	TargetServiceAccount string
}

// Instances says how many instances an exclusive server has, and what is done with them
// (I1).
type Instances struct {
	Min         int           // warm ones that are kept ready; 0
	Max         int           // instances at once, those that start or end included; 5, or one for each endpoint
	IdleTimeout time.Duration // so long one beyond Min stays warm unused; 5 min; 0 is no limit
	MaxLifetime time.Duration // so old an instance becomes, but for the lease that it is in; 0 is no limit
	MaxUses     int           // leases of one instance; 0 is no limit
	MaxWait     time.Duration // for a lease, start and probe included; 60 s
	OnRelease   OnRelease     // ReleaseDestroy
	Warmup      ToolCall      // made once, before an instance counts as warm; none is fine
	Probe       ToolCall      // made before an instance is lent; without a tool it is a ping
	Reset       ToolCall      // of ReleaseReset
	Snapshot    ToolCall      // its content is a picture of an instance (A2); none is fine
	// Endpoints are the addresses of instances that exist already; without any, instances
	// are processes that are started.
	Endpoints []secret.String
}

// Cleanup says how a server is told that a session has used it for the last time (N5).
type Cleanup struct {
	ToolCall               // without a tool it is cleanup_session if the server lists one
	Timeout  time.Duration // for the answer; 5 s
	Shared   bool          // on a shared connection, too, where it concerns other sessions
}

// ToolCall is a call that roundhouse makes itself. Without a tool it is none.
type ToolCall struct {
	Tool      string
	Arguments json.RawMessage // an object, or nil for none
}

// OnRelease is what becomes of an instance that a session gives back (I5).
type OnRelease string

// What becomes of it.
const (
	ReleaseDestroy OnRelease = "destroy"
	ReleaseReset   OnRelease = "reset" // a tool of its own makes it new
	ReleaseKeep    OnRelease = "keep"  // as it is, for sessions of the same principal
)

// Recovery says how a lost connection is replaced while sessions hold it (R3). The
// zero value leaves that to the next call.
type Recovery struct {
	Attempts int
	Delay    time.Duration // least time between the start that was lost and the first attempt, doubled before each further one
	MaxDelay time.Duration // most that it becomes
}

// Health says how an idle connection is found to be dead (R1).
type Health struct {
	Interval time.Duration // without a word from the server, until it is asked; 0 is off
	Timeout  time.Duration // for its answer
	Misses   int           // so many in a row are a loss
}

// Circuit says when a server that keeps failing is left alone (R4).
type Circuit struct {
	Failures int // so many within Window open it; 0 is no circuit
	Window   time.Duration
	Wait     time.Duration // until the next attempt once it is open
	Stable   time.Duration // so long that attempt's connection must live
}

// Retry says which calls are sent again that a lost connection may have executed (R5).
type Retry string

// The kinds of Retry.
const (
	RetryNever      Retry = "never"
	RetryIdempotent Retry = "idempotent" // those of tools that declare themselves read-only or idempotent
)

// OAuth is the "oauth" object of a server entry as other hosts write it.
type OAuth struct {
	Enabled          bool
	ClientID         string
	ClientSecret     secret.String
	Scopes           []string
	Audiences        []string
	AuthorizationURL string
	TokenURL         string
	RedirectURI      string
	RegistrationURL  string
	TokenParamName   string
}

// Severity is how bad a Problem is.
type Severity string

// The severities. An error in a server entry disables that server only; an error
// elsewhere makes Load fail.
const (
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Problem is one thing wrong with a configuration. Its texts name keys and
// variables, and never hold a value.
type Problem struct {
	Severity   Severity `json:"severity"`
	File       string   `json:"file"`   // as the caller named it, or "" for a flag or a variable
	Line       int      `json:"line"`   // from 1; 0 when the problem has no place in the file
	Column     int      `json:"column"` // from 1, in bytes
	Server     string   `json:"server,omitempty"`
	Path       string   `json:"path,omitempty"`       // such as mcpServers.files.args[2], --listen or ROUNDHOUSE_LISTEN
	Message    string   `json:"message"`              // says what to do
	Suggestion string   `json:"suggestion,omitempty"` // the key or word that was probably meant
}
