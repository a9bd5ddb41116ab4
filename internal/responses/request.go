package responses

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"roundhouse/internal/loop"
	"roundhouse/internal/wire"
)

// request is what a client asks for (B.1). It is constant.
type request struct {
	members    map[string]json.RawMessage // as they came
	task       loop.Task                  // but for whose it is
	shownTools []json.RawMessage          // without secrets
	mcp        bool                       // there are tools of the type mcp
	session    string                     // that the body names, or ""

	stream     bool
	store      bool
	background bool
	previous   string // the id of the response that this goes on from, or ""
}

// member returns a member as it came, or what stands in its place.
func (q *request) member(name, absent string) json.RawMessage {
	if raw := q.members[name]; len(raw) > 0 && string(raw) != "null" {
		return raw
	}
	if absent == "" {
		return nil
	}
	return json.RawMessage(absent)
}

// ours are the members that are not passed on to a model as they are. What has no effect here
// is in docs/responses.md.
var ours = []string{
	"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "stream", "stream_options", "store", "background", "background_options",
	"previous_response_id", "truncation", "metadata", "session_id",
}

// unserved are members that are refused, and why: who sends them counts on what they do. Those
// of chat completions would be sent to the model beside what they are made of here.
var unserved = map[string]string{
	"context_management": "no input is compacted here",
	"conversation":       "go on from a response with previous_response_id",
	"moderation":         "nothing is moderated here",
	"prompt":             "no prompts are kept here; write instructions and input",
	"messages":           "it is input in this API",
	"functions":          "they are tools in this API",
	"function_call":      "it is tool_choice in this API",
	"n":                  "a response is one answer",
}

// empty are values by which nothing is asked for.
var empty = []string{"null", "[]", "{}"}

// includable are the values of include. Those about tools of other types have nothing to
// include; pictures of the input are always there, and what is encrypted is asked for where an
// upstream may have it.
var includable = []string{
	"reasoning.encrypted_content", "message.input_image.image_url", "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
	"computer_call_output.output.image_url", "code_interpreter_call.outputs",
}

// refused is a request that its sender must change.
func refused(format string, args ...any) *loop.Failure {
	return &loop.Failure{Status: http.StatusBadRequest, Code: "invalid_request_error", Message: fmt.Sprintf(format, args...)}
}

// maxMembers is how many members a request may have, of which the API knows some forty.
const maxMembers = 1000

// parse reads a request. ctx bounds the looking up of addresses that it names.
func (f *Face) parse(ctx context.Context, body []byte) (*request, *loop.Failure) {
	q := &request{members: map[string]json.RawMessage{}, store: true}
	if wire.Valid(body) != nil || len(body) == 0 {
		return nil, refused("the body must be a JSON object")
	}
	for m, err := range wire.Members(body) {
		if err != nil {
			return nil, refused("the body must be a JSON object")
		}
		if len(q.members) == maxMembers {
			return nil, refused("the body has more than %d members", maxMembers)
		}
		for had := range q.members {
			if strings.EqualFold(had, m.Key) {
				return nil, refused("the member %q stands twice, or is spelled in another way", m.Key)
			}
		}
		q.members[m.Key] = m.Value.Of(body)
	}
	for _, read := range []func(*request) *loop.Failure{readScalars, readInput, func(q *request) *loop.Failure { return f.readTools(ctx, q) }, readChoice} {
		if fail := read(q); fail != nil {
			return nil, fail
		}
	}
	settings := map[string]json.RawMessage{}
	for name, raw := range q.members {
		if !slices.Contains(ours, name) && unserved[name] == "" {
			settings[name] = raw
		}
	}
	q.task.Settings = settings
	return q, nil
}

// read decodes a member, if it is there and not null.
func (q *request) read(name string, to any, want string) *loop.Failure {
	raw := q.member(name, "")
	if raw == nil {
		return nil
	}
	if err := json.Unmarshal(raw, to); err != nil {
		return refused("%s must be %s", name, want)
	}
	return nil
}

func readScalars(q *request) *loop.Failure {
	parallel := true
	var metadata map[string]string
	var include []string
	var truncation string
	for _, m := range []struct {
		name string
		to   any
		want string
	}{
		{"model", &q.task.Model, "a string"},
		{"instructions", &q.task.Instructions, "a string"},
		{"stream", &q.stream, "true or false"},
		{"store", &q.store, "true or false"},
		{"background", &q.background, "true or false"},
		{"previous_response_id", &q.previous, "a string"},
		{"max_tool_calls", &q.task.MaxCalls, "a positive integer"},
		{"parallel_tool_calls", &parallel, "true or false"},
		{"metadata", &metadata, "an object of strings"},
		{"include", &include, "an array of strings"},
		{"truncation", &truncation, "\"auto\" or \"disabled\""},
		{"session_id", &q.session, "a string"},
	} {
		if fail := q.read(m.name, m.to, m.want); fail != nil {
			return fail
		}
	}
	q.task.Serial = !parallel
	switch {
	case q.task.Model == "":
		return refused("model is missing")
	case q.member("max_tool_calls", "") != nil && q.task.MaxCalls < 1:
		return refused("max_tool_calls must be a positive integer")
	case !slices.Contains([]string{"", "auto", "disabled"}, truncation):
		return refused("truncation must be \"auto\" or \"disabled\"")
	}
	for _, what := range include {
		if !slices.Contains(includable, what) {
			return refused("include: %.100q is not supported", what)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unserved)) {
		if raw := q.member(name, ""); raw != nil && !slices.Contains(empty, string(raw)) && (name != "n" || string(raw) != "1") {
			return refused("%s is not supported: %s", name, unserved[name])
		}
	}
	return nil
}

// readInput reads the input: a text, or items.
func readInput(q *request) *loop.Failure {
	raw := q.member("input", "")
	switch {
	case raw == nil && q.previous == "":
		return refused("input is missing")
	case raw == nil:
		return nil
	case raw[0] == '"':
		item := append(append([]byte(`{"type":"message","role":"user","content":`), raw...), '}')
		q.task.Input = []json.RawMessage{item}
		return nil
	case raw[0] != '[':
		return refused("input must be a string or an array of items")
	}
	for span, err := range wire.Elements(raw) {
		item := span.Of(raw)
		if err != nil || len(item) == 0 || item[0] != '{' {
			return refused("input[%d] must be an object", len(q.task.Input))
		}
		q.task.Input = append(q.task.Input, item)
	}
	return nil
}
