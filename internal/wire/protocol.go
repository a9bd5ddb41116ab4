package wire

import "slices"

// MaxFrame is the documented default limit of one frame, line or HTTP body, in
// bytes.
const MaxFrame = 64 << 20

// The protocol versions that roundhouse speaks.
const (
	Version20241105 = "2024-11-05"
	Version20250326 = "2025-03-26"
	Version20250618 = "2025-06-18"
	Version20251125 = "2025-11-25"
	Version20260728 = "2026-07-28"
)

// LegacyVersions lists the versions of the era that begins with an initialize
// handshake, newest first. It must not be changed.
var LegacyVersions = []string{Version20251125, Version20250618, Version20250326, Version20241105}

// Versions lists all versions that roundhouse speaks, newest first. It must not be
// changed.
var Versions = append([]string{Version20260728}, LegacyVersions...)

// KnownVersion reports whether roundhouse speaks the version, of either era.
func KnownVersion(version string) bool {
	return slices.Contains(Versions, version)
}

// The methods of requests.
const (
	MethodInitialize       = "initialize"
	Discover               = "server/discover"
	Ping                   = "ping"
	ToolsList              = "tools/list"
	ToolsCall              = "tools/call"
	PromptsList            = "prompts/list"
	PromptsGet             = "prompts/get"
	ResourcesList          = "resources/list"
	ResourcesTemplatesList = "resources/templates/list"
	ResourcesRead          = "resources/read"
	ResourcesSubscribe     = "resources/subscribe"
	ResourcesUnsubscribe   = "resources/unsubscribe"
	SubscriptionsListen    = "subscriptions/listen"
	LoggingSetLevel        = "logging/setLevel"
	CompletionComplete     = "completion/complete"
	SamplingCreate         = "sampling/createMessage"
	ElicitationCreate      = "elicitation/create"
	RootsList              = "roots/list"
)

// The methods of notifications.
const (
	Initialized          = "notifications/initialized"
	Cancelled            = "notifications/cancelled"
	Progress             = "notifications/progress"
	Message              = "notifications/message"
	ToolsListChanged     = "notifications/tools/list_changed"
	PromptsListChanged   = "notifications/prompts/list_changed"
	ResourcesListChanged = "notifications/resources/list_changed"
	ResourceUpdated      = "notifications/resources/updated"
	RootsListChanged     = "notifications/roots/list_changed"
	Acknowledged         = "notifications/subscriptions/acknowledged"
)

// knownMethods gives the constant for a method's bytes, so that parsing a frame
// of a known method allocates nothing.
var knownMethods = func() map[string]string {
	m := map[string]string{}
	for _, method := range []string{
		MethodInitialize, Discover, Ping, ToolsList, ToolsCall, PromptsList, PromptsGet,
		ResourcesList, ResourcesTemplatesList, ResourcesRead, ResourcesSubscribe, ResourcesUnsubscribe,
		SubscriptionsListen, LoggingSetLevel, CompletionComplete, SamplingCreate, ElicitationCreate, RootsList,
		Initialized, Cancelled, Progress, Message, ToolsListChanged, PromptsListChanged,
		ResourcesListChanged, ResourceUpdated, RootsListChanged, Acknowledged,
	} {
		m[method] = method
	}
	return m
}()

// The error codes that JSON-RPC reserves.
const (
	ParseError     = -32700
	InvalidRequest = -32600
	MethodNotFound = -32601
	InvalidParams  = -32602
	InternalError  = -32603
)

// The error codes of MCP, from 2026-07-28 on.
const (
	HeaderMismatch     = -32020 // a header is missing, malformed, or says something else than the body
	MissingCapability  = -32021 // data.requiredCapabilities says what the client would have to declare
	UnsupportedVersion = -32022 // data.supported lists the versions that the receiver speaks
)

// MetaPrefix begins the names in _meta that the protocol keeps to itself, from
// 2026-07-28 on. Peers of older versions must not see them.
const MetaPrefix = "io.modelcontextprotocol/"

// Names in the _meta of what servers send, from 2026-07-28 on.
const (
	MetaServerInfo   = MetaPrefix + "serverInfo"
	MetaSubscription = MetaPrefix + "subscriptionId"
)
