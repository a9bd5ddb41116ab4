package wire

import "fmt"

// The members of params._meta that roundhouse reads.
const (
	metaSession      = "roundhouse/session"
	metaToken        = "progressToken"
	metaVersion      = MetaPrefix + "protocolVersion"
	metaCapabilities = MetaPrefix + "clientCapabilities"
	metaClient       = MetaPrefix + "clientInfo"
	metaLevel        = MetaPrefix + "logLevel"
)

var (
	paramNames = []string{"name", "uri", "_meta", "arguments", "requestId", "level", "cursor", "ref", "progressToken"}
	metaNames  = []string{metaSession, metaToken, metaVersion, metaCapabilities, metaClient, metaLevel}
)

// Routing says where the values stand that decide where a frame goes. All spans are
// offsets into the frame's Raw; those of members that do not stand in params are
// absent. Their values may be of any type.
type Routing struct {
	Name      Span // of the tool or prompt
	URI       Span // of the resource
	Arguments Span
	RequestID Span // of the call that notifications/cancelled is about
	Level     Span // of logging/setLevel and notifications/message
	Cursor    Span
	Ref       Span // of completion/complete

	// ProgressOf is params.progressToken, which a notifications/progress reports on.
	ProgressOf Span

	Meta          Span // params._meta
	ProgressToken Span // in _meta, by which a request asks for progress
	Session       Span // in _meta, the value of "roundhouse/session"
	// SessionMember is what to cut to remove that member: it and one comma.
	SessionMember Span

	// In _meta, from 2026-07-28 on.
	ProtocolVersion, ClientCapabilities, ClientInfo, LogLevel Span
}

// Routing finds the values in params that decide where the frame goes. Absent params,
// and params in an array, have none.
//
// If one of these members stands twice, or in another case or with escapes, the
// frame is refused: what was checked is what is sent (W2). An error is a
// *ParseFailure with the code InvalidParams and the frame's id.
func (f Frame) Routing() (Routing, error) {
	var r Routing
	if !f.ParamsSpan.Present() || f.Raw[f.ParamsSpan.Start] != '{' {
		return r, nil
	}
	w := walker{t: f.Raw, at: f.ParamsSpan.Start, depth: 2}
	for w.member() {
		var span *Span
		name := f.Raw[w.key.Start+1 : w.key.End-1]
		switch string(name) {
		case "name":
			span = &r.Name
		case "uri":
			span = &r.URI
		case "arguments":
			span = &r.Arguments
		case "requestId":
			span = &r.RequestID
		case "level":
			span = &r.Level
		case "cursor":
			span = &r.Cursor
		case "ref":
			span = &r.Ref
		case "progressToken":
			span = &r.ProgressOf
		case "_meta":
			span = &r.Meta
		default:
			if variant := variantOf(name, paramNames); variant != "" {
				return Routing{}, f.refuse("params: the member %q is spelled in another way", variant)
			}
			continue
		}
		if span.Present() {
			return Routing{}, f.refuse("params: the member %q stands twice", name)
		}
		*span = w.value
	}
	if w.err != nil {
		return Routing{}, f.refuse("params: %v", w.err)
	}
	if r.Meta.Present() && f.Raw[r.Meta.Start] == '{' {
		if err := f.readMeta(&r); err != nil {
			return Routing{}, err
		}
	}
	return r, nil
}

func (f Frame) readMeta(r *Routing) error {
	w := walker{t: f.Raw, at: r.Meta.Start, depth: 3}
	for w.member() {
		var span *Span
		name := f.Raw[w.key.Start+1 : w.key.End-1]
		switch string(name) {
		case metaToken:
			span = &r.ProgressToken
		case metaVersion:
			span = &r.ProtocolVersion
		case metaCapabilities:
			span = &r.ClientCapabilities
		case metaClient:
			span = &r.ClientInfo
		case metaLevel:
			span = &r.LogLevel
		case metaSession:
			span = &r.Session
			r.SessionMember = cut(f.Raw, Member{KeySpan: w.key, Value: w.value})
		default:
			if variant := variantOf(name, metaNames); variant != "" {
				return f.refuse("params._meta: the member %q is spelled in another way", variant)
			}
			continue
		}
		if span.Present() {
			return f.refuse("params._meta: the member %q stands twice", name)
		}
		*span = w.value
	}
	if w.err != nil {
		return f.refuse("params._meta: %v", w.err)
	}
	return nil
}

func (f Frame) refuse(format string, args ...any) error {
	return &ParseFailure{Code: InvalidParams, Message: "read " + fmt.Sprintf(format, args...), ID: f.ID()}
}
