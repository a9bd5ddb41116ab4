package gateway

import (
	"encoding/json"
	"net/http"
	"strconv"

	"roundhouse/internal/mux"
	"roundhouse/internal/wire"
)

// Error codes of the older era that must not appear in 2026-07-28.
const (
	resourceNotFound  = -32002
	elicitURLRequired = -32042
)

// cacheable are the methods whose results say for how long they may be kept.
var cacheable = map[string]bool{
	wire.Discover: true, wire.ToolsList: true, wire.PromptsList: true, wire.ResourcesList: true,
	wire.ResourcesTemplatesList: true, wire.ResourcesRead: true,
}

// answer is the answer of a server, or ours, as a client of 2026-07-28 must have it,
// and the HTTP status for it.
func (k *call) answer(p mux.Pieces) (raw []byte, status int) {
	raw = p.AppendTo(nil)
	f, err := wire.Parse(raw)
	switch {
	case err != nil:
		return raw, http.StatusOK
	case f.ErrorSpan.Present():
		return k.failed(f)
	}
	return completed(f, cacheable[k.frame.Method]), http.StatusOK
}

// completed adds to a result what 2026-07-28 wants in it. Its payload stays as it is;
// in the older era the added members have no meaning, and ours is a view of its own, so
// it is private, whatever the server says.
func completed(f wire.Frame, cacheable bool) []byte {
	result := f.Result()
	if result[0] != '{' {
		return f.Raw
	}
	members := []struct{ name, value string }{{"resultType", `"complete"`}}
	if cacheable {
		members = append(members, []struct{ name, value string }{{"ttlMs", "0"}, {"cacheScope", `"private"`}}...)
	}
	edits := []wire.Edit{{At: wire.Span{Start: f.ResultSpan.Start + 1, End: f.ResultSpan.Start + 1}}}
	has := map[string]bool{}
	empty := true
	for m, err := range wire.Members(result) {
		if err != nil {
			return f.Raw // cannot be: it was read before
		}
		empty = false
		for _, add := range members {
			if m.Key == add.name {
				has[m.Key] = true
				at := wire.Span{Start: f.ResultSpan.Start + m.Value.Start, End: f.ResultSpan.Start + m.Value.End}
				edits = append(edits, wire.Edit{At: at, With: []byte(add.value)})
			}
		}
	}
	var head []byte
	for _, add := range members {
		if !has[add.name] {
			head = append(append(append(append(head, wire.Quote(add.name)...), ':'), add.value...), ',')
		}
	}
	if empty {
		head = head[:len(head)-1]
	}
	edits[0].With = head
	return wire.Splice(nil, f.Raw, edits...)
}

// failed gives an error the code that it has in 2026-07-28, and its HTTP status.
func (k *call) failed(f wire.Frame) (raw []byte, status int) {
	object := f.ErrorValue()
	code, at := errorCode(object)
	want := code
	switch {
	case k.mismatch != nil:
		return f.Raw, http.StatusBadRequest
	case code == resourceNotFound && k.frame.Method == wire.ResourcesRead:
		want = wire.InvalidParams
	case code == elicitURLRequired:
		return k.elicit(f, object)
	case code == wire.MissingCapability && k.lacks(object):
		return f.Raw, http.StatusBadRequest
	case -32099 <= code && code <= -32020: // not for a server of the older era to say
		want = wire.InternalError
	}
	raw = f.Raw
	if want != code {
		at.Start, at.End = at.Start+f.ErrorSpan.Start, at.End+f.ErrorSpan.Start
		raw = wire.Splice(nil, raw, wire.Edit{At: at, With: strconv.AppendInt(nil, int64(want), 10)})
	}
	switch want {
	case wire.MethodNotFound:
		return raw, http.StatusNotFound
	case wire.ParseError, wire.InvalidRequest:
		return raw, http.StatusBadRequest
	}
	return raw, http.StatusOK
}

// errorCode reads the code of an error object, 0 if it has none, and where it stands.
func errorCode(object []byte) (code int, at wire.Span) {
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

// lacks reports whether an error names a capability that the client does not declare,
// so that it is true for this client and not only for our connection.
func (k *call) lacks(object []byte) bool {
	var v struct {
		Data struct {
			Required map[string]json.RawMessage `json:"requiredCapabilities"`
		} `json:"data"`
	}
	var declared map[string]json.RawMessage
	if json.Unmarshal(object, &v) != nil || json.Unmarshal(k.visit.Capabilities, &declared) != nil {
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
// into the result by which one of 2026-07-28 does. The client sends its request again
// when it has been there; nothing is kept for that.
func (k *call) elicit(f wire.Frame, object []byte) (raw []byte, status int) {
	if !elicitsURL(k.visit.Capabilities) || k.frame.Method != wire.ToolsCall && k.frame.Method != wire.PromptsGet && k.frame.Method != wire.ResourcesRead {
		missing := []byte(`{"code":` + strconv.Itoa(wire.MissingCapability) +
			`,"message":"the server wants the client to open a URL first, which it does not declare to do","data":{"requiredCapabilities":{"elicitation":{"url":{}}}}}`)
		return wire.ErrorReply(f.ID(), missing), http.StatusBadRequest
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
	if json.Unmarshal(object, &v) != nil || len(v.Data.Elicitations) == 0 {
		return wire.ErrorReply(f.ID(), wire.ErrorObject(wire.InternalError, "the server wants the client to open a URL, but names none")), http.StatusOK
	}
	for i, e := range v.Data.Elicitations {
		requests["url-"+strconv.Itoa(i+1)] = request{wire.ElicitationCreate, map[string]string{"mode": "url", "message": e.Message, "url": e.URL}}
	}
	b, err := json.Marshal(map[string]any{"resultType": "input_required", "inputRequests": requests})
	if err != nil {
		panic(err) // strings
	}
	return wire.Result(f.ID(), b), http.StatusOK
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
