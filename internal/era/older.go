package era

import (
	"encoding/json"
	"strconv"
	"strings"

	"roundhouse/internal/wire"
)

// A client of the newer era at a server of the older one: what belongs to the new one is
// taken out on the way there, and added on the way back.

// Error codes of the older era that must not appear in the newer one.
const (
	resourceNotFound  = -32002
	elicitURLRequired = -32042
)

// Older is a request of the newer era as a server of the older one gets it: without what
// the protocol and roundhouse keep in _meta, and without the answers to an
// input_required result.
func Older(f wire.Frame) (wire.Frame, error) {
	if p := f.Params(); len(p) == 0 || p[0] != '{' {
		return f, nil
	}
	params, err := wire.Keep(f.Params(), func(key string) bool { return !isAnswer(key) })
	if err == nil {
		params, err = withMeta(params, PublicMeta)
	}
	if err != nil {
		return f, err
	}
	return wire.Parse(wire.Splice(nil, f.Raw, wire.Edit{At: f.ParamsSpan, With: params}))
}

// isAnswer reports whether a member of params answers an input_required result.
func isAnswer(key string) bool {
	return strings.EqualFold(key, "inputResponses") || strings.EqualFold(key, "requestState")
}

// Completed is an answer of the older era to a request with that method as a client of
// the newer one gets it. capabilities are what the client declares: an object.
func Completed(f wire.Frame, method string, capabilities []byte) []byte {
	if f.ErrorSpan.Present() {
		return failed(f, method, capabilities)
	}
	return wire.Splice(nil, f.Raw, wire.Edit{At: f.ResultSpan, With: CompletedResult(f.Result(), method)})
}

// CompletedResult adds to a result what the newer era wants in it. In the older one the
// added members have no meaning, and ours is a view of its own, so it is private and
// fresh for no time, whatever the server says.
func CompletedResult(result []byte, method string) []byte {
	members := []member{{"resultType", `"` + complete + `"`}}
	if cacheable[method] {
		members = append(members, member{"ttlMs", "0"}, member{"cacheScope", `"private"`})
	}
	return withMembers(result, members...)
}

// Private is a result of the newer era that is for nobody but its receiver, because it
// was filtered, merged or renamed on the way.
func Private(result []byte, method string) []byte {
	if !cacheable[method] {
		return result
	}
	return withMembers(result, member{"cacheScope", `"private"`})
}

// member is a member of an object; value is JSON.
type member struct{ name, value string }

// withMembers returns an object in which these members stand, with these values. What is
// no object stays as it is.
func withMembers(object []byte, members ...member) []byte {
	if len(object) == 0 || object[0] != '{' {
		return object
	}
	edits := []wire.Edit{{At: wire.Span{Start: 1, End: 1}}}
	has := map[string]bool{}
	empty := true
	for m, err := range wire.Members(object) {
		if err != nil {
			return object // cannot be: it was read before
		}
		empty = false
		for _, add := range members {
			if m.Key == add.name {
				has[m.Key] = true
				edits = append(edits, wire.Edit{At: m.Value, With: []byte(add.value)})
			}
		}
	}
	var head []byte
	for _, add := range members {
		if !has[add.name] {
			head = append(append(append(append(head, wire.Quote(add.name)...), ':'), add.value...), ',')
		}
	}
	if empty && len(head) > 0 {
		head = head[:len(head)-1]
	}
	edits[0].With = head
	return wire.Splice(nil, object, edits...)
}

// failed gives an error the code that it has in the newer era.
func failed(f wire.Frame, method string, capabilities []byte) []byte {
	object := f.ErrorValue()
	switch code, _ := codeIn(object); {
	case code == resourceNotFound && method == wire.ResourcesRead:
		return recoded(f, wire.InvalidParams)
	case code == elicitURLRequired:
		return elicit(f, method, capabilities)
	case code == wire.MissingCapability && lacks(capabilities, object):
		return f.Raw
	case -32099 <= code && code <= -32020: // not for a server of the older era to say
		return recoded(f, wire.InternalError)
	}
	return f.Raw
}

// lacks reports whether an error names a capability that the client does not declare,
// so that it is true for this client and not only for our connection.
func lacks(capabilities, object []byte) bool {
	var v struct {
		Data struct {
			Required map[string]json.RawMessage `json:"requiredCapabilities"`
		} `json:"data"`
	}
	var declared map[string]json.RawMessage
	if json.Unmarshal(object, &v) != nil || json.Unmarshal(capabilities, &declared) != nil {
		return false
	}
	for name := range v.Data.Required {
		if _, ok := declared[name]; !ok {
			return true
		}
	}
	return false
}

// elicit turns the error by which a server of the older era sends its client to a URL
// into the result by which one of the newer does. The client sends its request again
// when it has been there; nothing is kept for that.
func elicit(f wire.Frame, method string, capabilities []byte) []byte {
	if !elicitsURL(capabilities) || !asks[method] {
		missing := []byte(`{"code":` + strconv.Itoa(wire.MissingCapability) +
			`,"message":"the server wants the client to open a URL first, which it does not declare to do","data":{"requiredCapabilities":{"elicitation":{"url":{}}}}}`)
		return wire.ErrorReply(f.ID(), missing)
	}
	var v struct {
		Data struct {
			Elicitations []struct {
				Message string `json:"message"`
				URL     string `json:"url"`
			} `json:"elicitations"`
		} `json:"data"`
	}
	type request struct {
		Method string            `json:"method"`
		Params map[string]string `json:"params"`
	}
	requests := map[string]request{}
	if json.Unmarshal(f.ErrorValue(), &v) != nil || len(v.Data.Elicitations) == 0 {
		return wire.ErrorReply(f.ID(), wire.ErrorObject(wire.InternalError, "the server wants the client to open a URL, but names none"))
	}
	for i, e := range v.Data.Elicitations {
		requests["url-"+strconv.Itoa(i+1)] = request{wire.ElicitationCreate, map[string]string{"mode": "url", "message": e.Message, "url": e.URL}}
	}
	b, err := json.Marshal(map[string]any{"resultType": inputRequired, "inputRequests": requests})
	if err != nil {
		panic(err) // strings
	}
	return wire.Result(f.ID(), b)
}

// elicitsURL reports whether a client can be sent to a URL.
func elicitsURL(capabilities []byte) bool {
	var v struct {
		Elicitation struct {
			URL json.RawMessage `json:"url"`
		} `json:"elicitation"`
	}
	return json.Unmarshal(capabilities, &v) == nil && len(v.Elicitation.URL) > 0 && v.Elicitation.URL[0] == '{'
}

// OfOlderOnly reports whether a notification has no place in the newer era.
func OfOlderOnly(method string) bool {
	return method == "notifications/elicitation/complete" || method == "notifications/tasks/status"
}

// Discovered turns the result of an initialize request into one of server/discover.
func Discovered(hand []byte) ([]byte, error) {
	out := append(append([]byte(`{"resultType":"complete","supportedVersions":`), versions...), `,"ttlMs":0,"cacheScope":"private"`...)
	capabilities := []byte("{}")
	for m, err := range wire.Members(hand) {
		if err != nil {
			return nil, err
		}
		value := m.Value.Of(hand)
		switch m.Key {
		case "capabilities":
			// Legacy tasks are not those of this version, and are not bridged.
			if capabilities, err = wire.Keep(value, func(key string) bool { return key != "tasks" }); err != nil {
				return nil, err
			}
		case "instructions":
			out = append(append(out, `,"instructions":`...), value...)
		case "serverInfo":
			out = append(append(out, `,"_meta":{"`+wire.MetaServerInfo+`":`...), value...)
			out = append(out, '}')
		}
	}
	out = append(append(out, `,"capabilities":`...), capabilities...)
	return append(out, '}'), nil
}

// versions are those that we speak, as JSON.
var versions = func() string {
	b, err := json.Marshal(wire.Versions)
	if err != nil {
		panic(err) // strings
	}
	return string(b)
}()

// Relayed is a server's result of server/discover as our clients get it: we speak more
// versions than the server need do.
func Relayed(discover []byte) []byte {
	return withMembers(discover, member{"supportedVersions", versions})
}
