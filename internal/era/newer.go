package era

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"roundhouse/internal/wire"
)

// A client of the older era at a server of the newer one: each request says who sends it,
// and what the new era adds to answers is taken out.

// Sender is what a request of the newer era says of who sends it. Its fields are JSON.
type Sender struct {
	Info         []byte // name and version: an object, or nil
	Capabilities []byte // an object
	Level        []byte // of the log messages that it wants, or nil for none
}

// Meta returns the members by which a request says so, for its _meta.
func (s Sender) Meta() []byte {
	b := append([]byte(`"`+metaVersion+`":"`+wire.Version20260728+`","`+metaCapabilities+`":`), s.Capabilities...)
	if s.Info != nil {
		b = append(append(b, `,"`+metaInfo+`":`...), s.Info...)
	}
	if s.Level != nil {
		b = append(append(b, `,"`+metaLevel+`":`...), s.Level...)
	}
	return b
}

// Newer is a request of the older era as a server of the newer one gets it. Params that
// are an array, and a _meta that is none, stay as they are: the server says what it
// thinks of them.
func Newer(f wire.Frame, s Sender) (wire.Frame, error) {
	meta := append(append([]byte(`{`), s.Meta()...), '}')
	params := f.Params()
	switch {
	case params == nil:
		end := len(f.Raw) - 1
		with := append(append([]byte(`,"params":{"_meta":`), meta...), '}')
		return wire.Parse(wire.Splice(nil, f.Raw, wire.Edit{At: wire.Span{Start: end, End: end}, With: with}))
	case params[0] == 'n':
		params = []byte("{}")
	case params[0] != '{':
		return f, nil
	}
	var err error
	if bytes.Contains(params, []byte("requestState")) || bytes.Contains(params, []byte("inputResponses")) {
		if params, err = wire.Keep(params, func(key string) bool { return !isAnswer(key) }); err != nil {
			return f, err
		}
	}
	if hasReserved(params) {
		if params, err = withMeta(params, PublicMeta); err != nil {
			return f, err
		}
	}
	edit, ok := addMeta(params, meta)
	if !ok {
		return f, nil
	}
	params = wire.Splice(nil, params, edit)
	return wire.Parse(wire.Splice(nil, f.Raw, wire.Edit{At: f.ParamsSpan, With: params}))
}

// addMeta returns the edit that adds the members of meta to the _meta of params. It
// reports false for one that is no object.
func addMeta(params, meta []byte) (wire.Edit, bool) {
	empty := true
	for m, err := range wire.Members(params) {
		if err != nil {
			return wire.Edit{}, false // cannot be: it was read before
		}
		empty = false
		if m.Key != "_meta" {
			continue
		}
		switch old := m.Value.Of(params); old[0] {
		case '{':
			return wire.Edit{At: m.Value, With: joined(meta, old)}, true
		case 'n':
			return wire.Edit{At: m.Value, With: meta}, true
		}
		return wire.Edit{}, false
	}
	with := append([]byte(`"_meta":`), meta...)
	if !empty {
		with = append(with, ',')
	}
	return wire.Edit{At: wire.Span{Start: 1, End: 1}, With: with}, true
}

// joined returns one object with the members of two; the first has some.
func joined(a, b []byte) []byte {
	rest := bytes.TrimLeft(b[1:], " \t\r\n")
	if rest[0] == '}' {
		return a
	}
	return slices.Concat(a[:len(a)-1], []byte(","), b[1:])
}

// Round is what an input_required result asks for.
type Round struct {
	Asks  []Ask  // in the order of the server
	State []byte // JSON string to send back, or nil
}

// Ask is one request to the client.
type Ask struct {
	Key    []byte // JSON string
	Method string
	Params []byte // an object, or nil
}

// ReadRound reports whether a result is an input_required one, and reads it. An error
// says what is wrong with it, or that its resultType is unknown.
func ReadRound(result []byte) (r Round, more bool, err error) {
	if len(result) == 0 || result[0] != '{' {
		return r, false, nil
	}
	kind := complete
	var requests []byte
	for m, err := range wire.Members(result) {
		if err != nil {
			return r, false, err
		}
		value := m.Value.Of(result)
		switch m.Key {
		case "resultType":
			if kind, err = wire.Text(value); err != nil {
				return r, false, errors.New("its resultType is no string")
			}
		case "inputRequests":
			requests = value
		case "requestState":
			if value[0] == '"' {
				r.State = value
			}
		}
	}
	switch kind {
	case complete:
		return Round{}, false, nil
	case inputRequired:
	default:
		return r, false, fmt.Errorf("its resultType %.100q is not supported", kind)
	}
	if len(requests) > 0 && requests[0] == '{' {
		if r.Asks, err = readAsks(requests); err != nil {
			return r, false, err
		}
	}
	if len(r.Asks) == 0 && r.State == nil {
		return r, false, errors.New("it requires input, but does not say which")
	}
	return r, true, nil
}

func readAsks(requests []byte) ([]Ask, error) {
	var list []Ask
	for m, err := range wire.Members(requests) {
		if err != nil {
			return nil, err
		}
		a := Ask{Key: m.KeySpan.Of(requests)}
		request := m.Value.Of(requests)
		if request[0] != '{' {
			return nil, errors.New("one of its inputRequests is no object")
		}
		for x, err := range wire.Members(request) {
			if err != nil {
				return nil, err
			}
			switch value := x.Value.Of(request); x.Key {
			case "method":
				a.Method, _ = wire.Text(value) // what is no text is no method
			case "params":
				if value[0] == '{' {
					a.Params = value
				}
			}
		}
		list = append(list, a)
	}
	return list, nil
}

// Answer is what a client gave for one Ask: a result.
type Answer struct{ Key, Result []byte }

// Retry is a request of the newer era, as Newer made it, with the answers to the round
// before and its state.
func Retry(f wire.Frame, answers []Answer, state []byte) (wire.Frame, error) {
	var with []byte
	if len(answers) > 0 {
		with = append(with, `"inputResponses":{`...)
		for i, a := range answers {
			if i > 0 {
				with = append(with, ',')
			}
			with = append(append(append(with, a.Key...), ':'), a.Result...)
		}
		with = append(with, `},`...)
	}
	if state != nil {
		with = append(append(append(with, `"requestState":`...), state...), ',')
	}
	at := f.ParamsSpan.Start + 1 // of an object that has a _meta
	return wire.Parse(wire.Splice(nil, f.Raw, wire.Edit{At: wire.Span{Start: at, End: at}, With: with}))
}

// Bare is a complete answer of the newer era as a client of the older one gets it.
func Bare(f wire.Frame, method string) []byte {
	if f.ErrorSpan.Present() {
		switch code, _ := codeIn(f.ErrorValue()); code {
		case wire.MissingCapability:
			return recoded(f, wire.InvalidParams)
		case wire.HeaderMismatch, wire.UnsupportedVersion:
			return recoded(f, wire.InternalError)
		}
		return f.Raw
	}
	bare := BareResult(f.Result())
	if method == wire.ToolsCall {
		bare = wrapped(bare)
	}
	if len(bare) == len(f.Result()) {
		return f.Raw
	}
	return wire.Splice(nil, f.Raw, wire.Edit{At: f.ResultSpan, With: bare})
}

// BareResult is a result of the newer era without what that adds to it.
func BareResult(result []byte) []byte {
	if len(result) == 0 || result[0] != '{' {
		return result
	}
	bare := result
	for m, err := range wire.Members(result) {
		if err == nil && m.Key == "resultType" {
			bare = wire.Splice(nil, result, wire.Edit{At: wire.CutMember(result, m)})
			break
		}
	}
	if hasReserved(bare) {
		if kept, err := withMeta(bare, olderMeta); err == nil {
			bare = kept
		}
	}
	return bare
}

// wrapped is a tool's result whose structuredContent is an object, as the older era wants
// it: any other value becomes the member "result" of one.
func wrapped(result []byte) []byte {
	if !bytes.Contains(result, []byte("structuredContent")) {
		return result
	}
	for m, err := range wire.Members(result) {
		if err != nil || m.Key != "structuredContent" {
			continue
		}
		value := m.Value.Of(result)
		if value[0] == '{' || value[0] == 'n' {
			return result
		}
		return wire.Splice(nil, result, wire.Edit{At: m.Value, With: slices.Concat([]byte(`{"result":`), value, []byte(`}`))})
	}
	return result
}

// BareTool is a tool of the newer era as a client of the older one gets it: without an
// outputSchema of something else than an object, which that era does not have.
func BareTool(tool []byte) []byte {
	if !bytes.Contains(tool, []byte("outputSchema")) {
		return tool
	}
	for m, err := range wire.Members(tool) {
		if err != nil || m.Key != "outputSchema" {
			continue
		}
		var schema struct{ Type json.RawMessage }
		if json.Unmarshal(m.Value.Of(tool), &schema) == nil && string(schema.Type) == `"object"` {
			return tool
		}
		return wire.Splice(nil, tool, wire.Edit{At: wire.CutMember(tool, m)})
	}
	return tool
}

// Initialized turns a server's result of server/discover into that of an initialize
// request with this version. name is what a server is called that does not say.
func Initialized(discover []byte, version, name string) ([]byte, error) {
	info := append(append([]byte(`{"name":`), wire.Quote(name)...), `,"version":""}`...)
	capabilities := []byte("{}")
	var rest []byte
	for m, err := range wire.Members(discover) {
		if err != nil {
			return nil, err
		}
		value := m.Value.Of(discover)
		switch m.Key {
		case "resultType", "supportedVersions", "ttlMs", "cacheScope", "protocolVersion", "serverInfo":
			continue
		case "capabilities":
			if value[0] == '{' {
				if capabilities, err = wire.Keep(value, func(key string) bool { return key != "extensions" }); err != nil {
					return nil, err
				}
			}
			continue
		case "_meta":
			if value[0] != '{' {
				continue
			}
			for x, err := range wire.Members(value) {
				if err == nil && x.Key == wire.MetaServerInfo && value[x.Value.Start] == '{' {
					info = x.Value.Of(value)
				}
			}
			if value, err = olderMeta(value); err != nil {
				return nil, err
			}
			if len(value) == len("{}") {
				continue
			}
		}
		rest = append(append(append(append(rest, ','), wire.Quote(m.Key)...), ':'), value...)
	}
	return slices.Concat([]byte(`{"protocolVersion":`), wire.Quote(version), []byte(`,"capabilities":`), capabilities,
		[]byte(`,"serverInfo":`), info, rest, []byte("}")), nil
}

// Supported returns the versions of the newer era that a result of server/discover, or
// the data of an UnsupportedVersion error, lists and that we speak. It reports false if
// there is no list.
func Supported(raw []byte, member string) (ours []string, ok bool) {
	var v map[string]json.RawMessage
	var list []string
	if json.Unmarshal(raw, &v) != nil || json.Unmarshal(v[member], &list) != nil || list == nil {
		return nil, false
	}
	for _, version := range list {
		if version == wire.Version20260728 {
			ours = append(ours, version)
		}
	}
	return ours, true
}
