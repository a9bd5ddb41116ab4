package wire

import "fmt"

// MetaSession names a session: in the _meta of a request the one that it belongs to, in
// that of a result the one that began with it.
const MetaSession = "roundhouse/session"

// The other members of params._meta that roundhouse reads.
const (
	metaTools        = "roundhouse/tools"
	metaToken        = "progressToken"
	metaVersion      = MetaPrefix + "protocolVersion"
	metaCapabilities = MetaPrefix + "clientCapabilities"
	metaClient       = MetaPrefix + "clientInfo"
	metaLevel        = MetaPrefix + "logLevel"
)

var (
	paramNames = []string{"name", "uri", "_meta", "arguments", "requestId", "level", "cursor", "ref", "progressToken"}
	metaNames  = []string{MetaSession, metaTools, metaToken, metaVersion, metaCapabilities, metaClient, metaLevel}
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
	Tools         Span // in _meta, the value of "roundhouse/tools"
	// SessionMember is what to cut to remove that member: it and one comma.
	SessionMember Span

	// In _meta, from 2026-07-28 on.
	ProtocolVersion, ClientCapabilities, ClientInfo, LogLevel Span
}

// Routing returns the values in params that decide where the frame goes, as Parse found
// them. Absent params, and params in an array, have none.
//
// If one of these members stands twice, or in another case or with escapes, the
// frame is refused: what was checked is what is sent (W2). An error is a
// *ParseFailure with the code InvalidParams and the frame's id.
func (f Frame) Routing() (Routing, error) {
	switch {
	case f.params == nil:
		return Routing{}, nil
	case f.params.refusal != "":
		return Routing{}, &ParseFailure{Code: InvalidParams, Message: "read " + f.params.refusal, ID: f.ID()}
	}
	return f.params.Routing, nil
}

// params is what was found in the object that a frame's params are.
type params struct {
	Routing
	refusal string // why the frame cannot be routed, or ""
}

// refuse keeps the first reason why the frame cannot be routed.
func (p *params) refuse(format string, args ...any) {
	if p.refusal == "" {
		p.refusal = fmt.Sprintf(format, args...)
	}
}

// set notes a member, unless it stood there before.
func (p *params) set(span *Span, value Span, where string, name []byte) {
	if span.Present() {
		p.refuse("%s: the member %q stands twice", where, name)
		return
	}
	*span = value
}

// readParams reads the object that opens at t[i], and returns the index behind it.
func readParams(t source, i int) (*params, int, error) {
	p := &params{}
	w := walker{t: t, at: i, depth: 2}
	for w.member() {
		name := t[w.key.Start+1 : w.key.End-1]
		switch string(name) {
		case "name":
			p.set(&p.Name, w.value, "params", name)
		case "uri":
			p.set(&p.URI, w.value, "params", name)
		case "arguments":
			p.set(&p.Arguments, w.value, "params", name)
		case "requestId":
			p.set(&p.RequestID, w.value, "params", name)
		case "level":
			p.set(&p.Level, w.value, "params", name)
		case "cursor":
			p.set(&p.Cursor, w.value, "params", name)
		case "ref":
			p.set(&p.Ref, w.value, "params", name)
		case "progressToken":
			p.set(&p.ProgressOf, w.value, "params", name)
		case "_meta":
			p.set(&p.Meta, w.value, "params", name)
		default:
			if variant := variantOf(name, paramNames); variant != "" {
				p.refuse("params: the member %q is spelled in another way", variant)
			}
		}
	}
	if w.err == nil && p.Meta.Present() && t[p.Meta.Start] == '{' {
		p.readMeta(t)
	}
	return p, w.at, w.err
}

// readMeta reads the object that params._meta is, which is known to be valid.
func (p *params) readMeta(t source) {
	w := walker{t: t, at: p.Meta.Start, depth: 3}
	for w.member() {
		name := t[w.key.Start+1 : w.key.End-1]
		switch string(name) {
		case metaToken:
			p.set(&p.ProgressToken, w.value, "params._meta", name)
		case metaVersion:
			p.set(&p.ProtocolVersion, w.value, "params._meta", name)
		case metaCapabilities:
			p.set(&p.ClientCapabilities, w.value, "params._meta", name)
		case metaClient:
			p.set(&p.ClientInfo, w.value, "params._meta", name)
		case metaLevel:
			p.set(&p.LogLevel, w.value, "params._meta", name)
		case metaTools:
			p.set(&p.Tools, w.value, "params._meta", name)
		case MetaSession:
			p.set(&p.Session, w.value, "params._meta", name)
			p.SessionMember = cut(t, Member{KeySpan: w.key, Value: w.value})
		default:
			if variant := variantOf(name, metaNames); variant != "" {
				p.refuse("params._meta: the member %q is spelled in another way", variant)
			}
		}
	}
}
