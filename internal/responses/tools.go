package responses

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"roundhouse/internal/loop"
	"roundhouse/internal/wire"
)

// readTools reads the tools: functions and custom tools, which the client runs, and MCP
// servers, whose tools roundhouse runs. Any other type is refused by name (X1).
func (f *Face) readTools(ctx context.Context, q *request) *loop.Failure {
	q.shownTools = []json.RawMessage{}
	raw := q.member("tools", "")
	if raw == nil {
		return nil
	}
	if raw[0] != '[' {
		return refused("tools must be an array")
	}
	names, labels := map[string]bool{}, map[string]bool{}
	i := 0
	for span, err := range wire.Elements(raw) {
		at := fmt.Sprintf("tools[%d]", i)
		i++
		entry := span.Of(raw)
		var kind struct {
			Type string `json:"type"`
		}
		if err != nil || json.Unmarshal(entry, &kind) != nil {
			return refused("%s must be an object", at)
		}
		var fail *loop.Failure
		shown := json.RawMessage(entry)
		switch kind.Type {
		case "function", "custom":
			fail = q.readFunction(at, entry, kind.Type == "custom", names)
		case "mcp":
			shown, fail = f.readServer(ctx, q, at, entry, labels)
		case "":
			fail = refused("%s: type is missing", at)
		default:
			fail = refused("%s: tools of the type %q are not supported; supported are function, custom and mcp", at, kind.Type)
		}
		if fail != nil {
			return fail
		}
		q.shownTools = append(q.shownTools, shown)
	}
	return nil
}

func (q *request) readFunction(at string, entry []byte, custom bool, names map[string]bool) *loop.Failure {
	var v struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
		Strict      json.RawMessage `json:"strict"`
		Defer       bool            `json:"defer_loading"`
		Async       bool            `json:"async"`
		Callers     []string        `json:"allowed_callers"`
	}
	if err := json.Unmarshal(entry, &v); err != nil {
		return refused("%s cannot be read: %v", at, err)
	}
	switch {
	case v.Name == "":
		return refused("%s: name is missing", at)
	case names[v.Name]:
		return refused("%s: another function is called %q", at, v.Name)
	case v.Async:
		return refused("%s: async is not supported", at)
	}
	if fail := readLoading(at, v.Defer, v.Callers); fail != nil {
		return fail
	}
	names[v.Name] = true
	fn := loop.Function{Name: v.Name, Description: v.Description, Custom: custom, Raw: entry}
	if !custom {
		fn.Parameters, fn.Strict = orNothing(v.Parameters), orNothing(v.Strict)
	}
	q.task.Functions = append(q.task.Functions, fn)
	return nil
}

// readLoading refuses ways for a model to come to a tool that there are not.
func readLoading(at string, deferred bool, callers []string) *loop.Failure {
	if deferred {
		return refused("%s: defer_loading is not supported", at)
	}
	for _, caller := range callers {
		if caller != "direct" {
			return refused("%s: allowed_callers: %q is not supported; only \"direct\" is", at, caller)
		}
	}
	return nil
}

func orNothing(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// maxServers is how many servers a request may have, to which roundhouse connects at once.
const maxServers = 64

// mcpEntry is a tool of the type mcp.
type mcpEntry struct {
	Label          string            `json:"server_label"`
	URL            string            `json:"server_url"`
	Connector      string            `json:"connector_id"`
	Tunnel         string            `json:"tunnel_id"`
	Authorization  string            `json:"authorization"`
	Headers        map[string]string `json:"headers"`
	Description    string            `json:"server_description"`
	AllowedTools   json.RawMessage   `json:"allowed_tools"`
	Approval       json.RawMessage   `json:"require_approval"`
	DeferLoading   bool              `json:"defer_loading"`
	AllowedCallers []string          `json:"allowed_callers"`
}

func (f *Face) readServer(ctx context.Context, q *request, at string, raw []byte, labels map[string]bool) (shown json.RawMessage, fail *loop.Failure) {
	var e mcpEntry
	if err := json.Unmarshal(raw, &e); err != nil {
		return nil, refused("%s cannot be read: %v", at, err)
	}
	switch {
	case e.Label == "":
		return nil, refused("%s: server_label is missing", at)
	case len(labels) == maxServers:
		return nil, refused("%s: a request may have %d servers", at, maxServers)
	case labels[e.Label]:
		return nil, refused("%s: another entry has the server_label %q", at, e.Label)
	case e.Connector != "":
		return nil, refused("%s: connector_id is not supported; name a configured server by server_label, or give its server_url", at)
	case e.Tunnel != "":
		return nil, refused("%s: tunnel_id is not supported; name a configured server by server_label, or give its server_url", at)
	}
	if fail := readLoading(at, e.DeferLoading, e.AllowedCallers); fail != nil {
		return nil, fail
	}
	labels[e.Label] = true
	s := loop.Server{Label: e.Label, Description: e.Description}
	if s.Allowed, fail = readAllowed(at, e.AllowedTools); fail != nil {
		return nil, fail
	}
	if s.Approval, fail = readApproval(at, e.Approval); fail != nil {
		return nil, fail
	}
	if fail = f.locate(ctx, &s, at, &e); fail != nil {
		return nil, fail
	}
	q.task.Servers = append(q.task.Servers, s)
	q.mcp = true
	return e.shown(), nil
}

// filter is how a request chooses tools.
type filter struct {
	Names    []string `json:"tool_names"`
	ReadOnly *bool    `json:"read_only"`
}

func (v *filter) filter() *loop.Filter { return &loop.Filter{Names: v.Names, ReadOnly: v.ReadOnly} }

func readAllowed(at string, raw json.RawMessage) (*loop.Filter, *loop.Failure) {
	if raw = orNothing(raw); len(raw) == 0 {
		return nil, nil
	}
	var names []string
	if json.Unmarshal(raw, &names) == nil {
		return &loop.Filter{Names: names}, nil
	}
	var v filter
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, refused("%s: allowed_tools must be an array of names, or an object with tool_names and read_only", at)
	}
	if v.Names == nil && v.ReadOnly == nil {
		return nil, nil
	}
	return v.filter(), nil
}

func readApproval(at string, raw json.RawMessage) (a loop.Approval, fail *loop.Failure) {
	if raw = orNothing(raw); len(raw) == 0 {
		return a, nil
	}
	var word string
	if json.Unmarshal(raw, &word) == nil {
		if word != "always" && word != "never" {
			return a, refused("%s: require_approval must be \"always\", \"never\" or an object with filters, not %q", at, word)
		}
		a.Default = word
		return a, nil
	}
	var v map[string]*filter
	if err := json.Unmarshal(raw, &v); err != nil {
		return a, refused("%s: require_approval must be \"always\", \"never\", or an object with the filters always and never", at)
	}
	for name, one := range v {
		switch {
		case one == nil:
		case name == "always":
			a.Always = one.filter()
		case name == "never":
			a.Never = one.filter()
		default:
			return a, refused("%s: require_approval has no filter %q", at, name)
		}
	}
	return a, nil
}

// shown is the entry as responses show it, and the store keeps it: without what may be a
// secret (B.1).
func (e *mcpEntry) shown() json.RawMessage {
	v := struct {
		Type           string            `json:"type"`
		Label          string            `json:"server_label"`
		URL            string            `json:"server_url,omitempty"`
		Description    string            `json:"server_description,omitempty"`
		AllowedTools   json.RawMessage   `json:"allowed_tools"`
		Approval       json.RawMessage   `json:"require_approval"`
		Headers        map[string]string `json:"headers"`
		AllowedCallers []string          `json:"allowed_callers,omitempty"`
	}{"mcp", e.Label, shownURL(e.URL), e.Description, orNull(e.AllowedTools), e.Approval, nil, e.AllowedCallers}
	if len(v.Approval) == 0 || string(v.Approval) == "null" {
		v.Approval = json.RawMessage(`"always"`)
	}
	for name := range e.Headers {
		if v.Headers == nil {
			v.Headers = map[string]string{}
		}
		v.Headers[name] = "***"
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic("responses: a tool cannot be written: " + err.Error()) // what is raw in it was valid when it came
	}
	return b
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

// shownURL is an address without what may be a secret in it: services put keys into paths,
// too.
func shownURL(address string) string {
	u, err := url.Parse(address)
	if err != nil || address == "" {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
}

// readChoice reads tool_choice.
func readChoice(q *request) *loop.Failure {
	raw := q.member("tool_choice", "")
	if raw == nil {
		return nil
	}
	c := &q.task.Choice
	var word loop.Mode
	if json.Unmarshal(raw, &word) == nil {
		switch word {
		case loop.Auto, loop.None, loop.Required:
			c.Mode = word
			return nil
		}
		return refused("tool_choice must be \"none\", \"auto\", \"required\" or an object, not %q", word)
	}
	type choice struct {
		Type  string    `json:"type"`
		Name  string    `json:"name"`
		Label string    `json:"server_label"`
		Mode  loop.Mode `json:"mode"`
	}
	var v struct {
		choice
		Tools []choice `json:"tools"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return refused("tool_choice cannot be read: %v", err)
	}
	known := func(one choice) *loop.Failure {
		switch one.Type {
		case "function", "custom":
			for _, fn := range q.task.Functions {
				if fn.Name == one.Name {
					return nil
				}
			}
			return refused("tool_choice names the function %q, which tools does not have", one.Name)
		case "mcp":
			for _, s := range q.task.Servers {
				if s.Label == one.Label {
					return nil
				}
			}
			return refused("tool_choice names the server %q, which tools does not have", one.Label)
		}
		return refused("tool_choice: tools of the type %q are not supported", one.Type)
	}
	if v.Type != "allowed_tools" {
		if fail := known(v.choice); fail != nil {
			return fail
		}
		c.Mode, c.Name, c.Label = loop.Required, v.Name, v.Label
		return nil
	}
	if v.Mode != loop.Auto && v.Mode != loop.Required {
		return refused("tool_choice.mode must be \"auto\" or \"required\"")
	}
	c.Mode, c.Allowed = v.Mode, []loop.Permit{}
	for _, one := range v.Tools {
		if fail := known(one); fail != nil {
			return fail
		}
		c.Allowed = append(c.Allowed, loop.Permit{Label: one.Label, Name: one.Name})
	}
	return nil
}
