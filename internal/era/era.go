// Package era turns frames of one era of the protocol into those of the other (M8).
//
// The eras differ in what a frame says of its sender and its answer, not in the payload:
// the older one (2024-11-05 to 2025-11-25) begins with a handshake, the newer one
// (2026-07-28) has none and keeps what the handshake said in each request's _meta.
// Functions here are pure; what they do not have to change stays as it was spelled (W1).
// Frames that they take have been parsed, so that none fails for its JSON.
package era

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"roundhouse/internal/wire"
)

// Era is one of the two ways in which peers speak. The zero value is none.
type Era string

// The eras.
const (
	Legacy Era = "legacy" // with a handshake: 2024-11-05 to 2025-11-25
	Modern Era = "modern" // without: 2026-07-28
)

// Of returns the era of a protocol version that roundhouse speaks.
func Of(version string) Era {
	if version == wire.Version20260728 {
		return Modern
	}
	return Legacy
}

// Other returns the other era.
func (e Era) Other() Era {
	if e == Modern {
		return Legacy
	}
	return Modern
}

// The names that requests keep in _meta from 2026-07-28 on.
const (
	metaVersion      = wire.MetaPrefix + "protocolVersion"
	metaCapabilities = wire.MetaPrefix + "clientCapabilities"
	metaInfo         = wire.MetaPrefix + "clientInfo"
	metaLevel        = wire.MetaPrefix + "logLevel"
)

// The values of a result's resultType.
const (
	complete      = "complete"
	inputRequired = "input_required"
)

// cacheable are the methods whose results say for how long they may be kept.
var cacheable = map[string]bool{
	wire.Discover: true, wire.ToolsList: true, wire.PromptsList: true, wire.ResourcesList: true,
	wire.ResourcesTemplatesList: true, wire.ResourcesRead: true,
}

// asks are the methods whose results may ask the client for something.
var asks = map[string]bool{wire.ToolsCall: true, wire.PromptsGet: true, wire.ResourcesRead: true}

// PublicMeta is a _meta object without what the protocol and roundhouse keep in it. It is
// the same text if there is nothing of that.
func PublicMeta(meta []byte) ([]byte, error) {
	return keepMeta(meta, func(key string) bool {
		key = strings.ToLower(key)
		return !strings.HasPrefix(key, wire.MetaPrefix) && !strings.HasPrefix(key, "roundhouse/")
	})
}

// saidByServers is what servers of the newer era, and they only, add to a _meta.
func saidByServers(key string) bool {
	return key == wire.MetaServerInfo || key == wire.MetaSubscription
}

// olderMeta is a server's _meta object without what only the newer era has there.
func olderMeta(meta []byte) ([]byte, error) {
	return keepMeta(meta, func(key string) bool { return !saidByServers(key) })
}

func keepMeta(meta []byte, keep func(key string) bool) ([]byte, error) {
	whole := true
	kept, err := wire.Keep(meta, func(key string) bool {
		keeps := keep(key)
		whole = whole && keeps
		return keeps
	})
	if whole {
		return meta, err
	}
	return kept, err
}

// withMeta returns an object, such as params or a result, whose _meta was cut by cut; one
// that becomes empty is cut out.
func withMeta(object []byte, cut func(meta []byte) ([]byte, error)) ([]byte, error) {
	for m, err := range wire.Members(object) {
		if err != nil {
			return nil, err
		}
		meta := m.Value.Of(object)
		if m.Key != "_meta" || meta[0] != '{' {
			continue
		}
		kept, err := cut(meta)
		if err != nil || len(kept) == len(meta) {
			return object, err
		}
		edit := wire.Edit{At: m.Value, With: kept}
		if len(kept) == len("{}") {
			edit = wire.Edit{At: wire.CutMember(object, m)}
		}
		return wire.Splice(nil, object, edit), nil
	}
	return object, nil
}

// hasReserved reports whether some name of the protocol's own may stand in raw. Escapes
// hide none: a peer that spells one so is not understood by others, either.
func hasReserved(raw []byte) bool { return bytes.Contains(raw, []byte(wire.MetaPrefix)) }

// Unmarked returns a server's notification without what only the newer era has in its
// _meta, such as the id of a subscription.
func Unmarked(f wire.Frame) []byte {
	if p := f.Params(); len(p) > 0 && p[0] == '{' && hasReserved(p) {
		if kept, err := withMeta(p, olderMeta); err == nil {
			return wire.Splice(nil, f.Raw, wire.Edit{At: f.ParamsSpan, With: kept})
		}
	}
	return f.Raw
}

// WithoutOurs returns a request without what roundhouse reads in its _meta: none of that
// goes to a server.
func WithoutOurs(f wire.Frame, r wire.Routing) (wire.Frame, error) {
	meta := r.Meta.Of(f.Raw)
	if len(meta) == 0 || meta[0] != '{' || !bytes.Contains(bytes.ToLower(meta), []byte("roundhouse/")) {
		return f, nil
	}
	kept, err := wire.Keep(meta, func(key string) bool { return !strings.HasPrefix(strings.ToLower(key), "roundhouse/") })
	if err != nil {
		return f, err
	}
	return wire.Parse(wire.Splice(nil, f.Raw, wire.Edit{At: r.Meta, With: kept}))
}

// UnsupportedVersion is the error object by which clients of the newer era learn which
// versions are served.
func UnsupportedVersion(requested string, supported []string) []byte {
	b, err := json.Marshal(map[string]any{
		"code":    wire.UnsupportedVersion,
		"message": "protocol version " + requested + " is not served here",
		"data":    map[string]any{"supported": supported, "requested": requested},
	})
	if err != nil {
		panic(err) // strings and a number
	}
	return b
}

// ErrorCode reads the code of an error object, 0 if it has none.
func ErrorCode(object []byte) int {
	code, _ := codeIn(object)
	return code
}

// codeIn reads the code of an error object and where it stands.
func codeIn(object []byte) (code int, at wire.Span) {
	if len(object) == 0 || object[0] != '{' {
		return 0, at
	}
	for m, err := range wire.Members(object) {
		if err != nil || m.Key != "code" {
			continue
		}
		n, err := strconv.Atoi(string(m.Value.Of(object)))
		if err != nil {
			return 0, at
		}
		return n, m.Value
	}
	return 0, at
}

// recoded is an error response with another code.
func recoded(f wire.Frame, code int) []byte {
	_, at := codeIn(f.ErrorValue())
	at.Start, at.End = at.Start+f.ErrorSpan.Start, at.End+f.ErrorSpan.Start
	return wire.Splice(nil, f.Raw, wire.Edit{At: at, With: strconv.AppendInt(nil, int64(code), 10)})
}
