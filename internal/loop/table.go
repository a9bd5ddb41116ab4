package loop

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"roundhouse/internal/session"
)

// Filter chooses tools. The zero value chooses none; nil pointers to it all or none, as
// their place says.
type Filter struct {
	Names    []string // nil is any
	ReadOnly *bool    // whether the tool must say that it only reads, or not say so; nil is either
}

// chooses reports whether the filter chooses a tool.
func (f *Filter) chooses(t *ListedTool) bool {
	if f.Names == nil && f.ReadOnly == nil {
		return false
	}
	return (f.Names == nil || slices.Contains(f.Names, t.Name)) && (f.ReadOnly == nil || *f.ReadOnly == t.readOnly())
}

func (t *ListedTool) readOnly() bool {
	var a struct {
		ReadOnly bool `json:"readOnlyHint"`
	}
	return json.Unmarshal(t.Annotations, &a) == nil && a.ReadOnly
}

// Approval says which calls wait for somebody's approval: those that Never does not
// choose, unless Default is "never", and those that Always chooses.
type Approval struct {
	Default string // "always", also if it is "", or "never"
	Always  *Filter
	Never   *Filter
}

// wants reports whether calls of a tool wait for approval (B.5.8).
func (a *Approval) wants(t *ListedTool) bool {
	switch {
	case a.Never != nil && a.Never.chooses(t):
		return false
	case a.Always != nil && a.Always.chooses(t):
		return true
	}
	return a.Default != "never"
}

// tool is what a name that the model calls stands for.
type tool struct {
	name     string // for the model
	function *Function
	server   *Server // of the tool; nil of a function
	listed   ListedTool
	approval bool // its calls wait for approval
}

// description says what a server's tool is for.
func (x *tool) description() string {
	return strings.TrimSpace(x.listed.Description + "\n\n" + x.server.Description)
}

// table has what the model may call.
type table struct {
	tools  []*tool // in the order in which the model is told of them
	byName map[string]*tool
}

func newTable() *table { return &table{byName: map[string]*tool{}} }

// addFunctions adds what the caller runs.
func (t *table) addFunctions(functions []Function) {
	for i := range functions {
		t.add(&tool{name: functions[i].Name, function: &functions[i]})
	}
}

// addServer adds a server's tools, all of which are allowed.
func (t *table) addServer(s *Server, allowed []ListedTool) {
	for _, l := range allowed {
		t.add(&tool{name: session.PublicName(s.Label, l.Name), server: s, listed: l, approval: s.Approval.wants(&l)})
	}
}

// allowed returns those of a server's tools that a filter lets through; a nil one lets all.
func (f *Filter) allowed(tools []ListedTool) []ListedTool {
	if f == nil {
		return tools
	}
	return slices.DeleteFunc(slices.Clone(tools), func(t ListedTool) bool { return !f.chooses(&t) })
}

// coveredBy reports whether a list can hold all that a filter names. One that was made under
// another filter need not.
func (f *Filter) coveredBy(tools []ListedTool) bool {
	return f == nil || !slices.ContainsFunc(f.Names, func(name string) bool {
		return !slices.ContainsFunc(tools, func(t ListedTool) bool { return t.Name == name })
	})
}

// add adds a tool, unless one of its name is there: the caller's functions come first.
func (t *table) add(x *tool) {
	if t.byName[x.name] != nil {
		return
	}
	t.byName[x.name] = x
	t.tools = append(t.tools, x)
}

// find returns what a model means by a name: the tool that is called so, or the only one
// that its server calls so, for models drop prefixes. nil if there is none.
func (t *table) find(name string) *tool {
	if x := t.byName[name]; x != nil {
		return x
	}
	var found *tool
	for _, x := range t.tools {
		if x.server != nil && x.listed.Name == name {
			if found != nil {
				return nil
			}
			found = x
		}
	}
	return found
}

// of returns the tool of a server, by the server's name for it, or nil.
func (t *table) of(label, name string) *tool {
	for _, x := range t.tools {
		if x.server != nil && x.server.Label == label && x.listed.Name == name {
			return x
		}
	}
	return nil
}

// allows reports whether the choice lets a tool be called, in any turn: what the model is not
// told of it may call all the same.
func (c *Choice) allows(x *tool) bool {
	return c.Mode != None && (c.Allowed == nil || slices.ContainsFunc(c.Allowed, func(p Permit) bool { return p.permits(x) }))
}

func (p Permit) permits(x *tool) bool {
	if p.Label == "" {
		return x.function != nil && x.function.Name == p.Name
	}
	return x.server != nil && x.server.Label == p.Label && (p.Name == "" || p.Name == x.listed.Name)
}

// listedTools reads what a server lists.
func listedTools(tools []session.Tool) []ListedTool {
	list := make([]ListedTool, 0, len(tools))
	for _, t := range tools {
		var v struct {
			Description string          `json:"description"`
			Schema      json.RawMessage `json:"inputSchema"`
			Annotations json.RawMessage `json:"annotations"`
		}
		if json.Unmarshal(t.Raw, &v) != nil {
			continue // what is no tool cannot be called
		}
		if len(v.Schema) == 0 || v.Schema[0] != '{' {
			v.Schema = json.RawMessage(`{"type":"object"}`)
		}
		list = append(list, ListedTool{Name: t.Name, Description: v.Description, Schema: v.Schema, Annotations: v.Annotations})
	}
	return list
}

// missing returns what the choice demands of servers, in words, if that is not there.
func (t *table) missing(c *Choice) *Failure {
	switch {
	case c.Label != "" && c.Name != "" && t.of(c.Label, c.Name) == nil:
		return &Failure{Status: 400, Code: "invalid_tool_choice", Message: fmt.Sprintf("tool_choice demands the tool %q of the server %q, which has none of that name that is allowed", c.Name, c.Label)}
	case c.Label != "" && !slices.ContainsFunc(t.tools, func(x *tool) bool { return x.server != nil && x.server.Label == c.Label }):
		return &Failure{Status: 400, Code: "invalid_tool_choice", Message: fmt.Sprintf("tool_choice demands the server %q, which has no tool that is allowed", c.Label)}
	}
	return nil
}

// or returns the mode with its default.
func (m Mode) or() Mode { return cmp.Or(m, Auto) }

// offer puts into a model's request what it may call, and what it must: tools as told makes
// them, and the one that it must call as must does.
func (r *Run) offer(first bool, told func(*tool) any, must func(name string, x *tool) any, body map[string]any) {
	choice := r.t.Choice
	if !first && choice.Mode != None { // later it would have to call for ever
		choice = Choice{Allowed: choice.Allowed}
	}
	var tools []any
	for _, x := range r.tools.tools {
		switch {
		case choice.Mode != None && !choice.allows(x):
		case choice.Label != "" && choice.Name == "" && (x.server == nil || x.server.Label != choice.Label):
			// Only by leaving out the others can it be made to choose among one server's.
		default:
			tools = append(tools, told(x))
		}
	}
	if len(tools) == 0 {
		return
	}
	body["tools"] = tools
	if r.t.Serial {
		body["parallel_tool_calls"] = false
	}
	named := r.tools.byName[choice.Name]
	if choice.Label != "" {
		named = r.tools.of(choice.Label, choice.Name)
	}
	switch {
	case choice.Name != "" && named != nil:
		body["tool_choice"] = must(named.name, named)
	case choice.Label != "":
		body["tool_choice"] = Required
	case choice.Mode.or() != Auto:
		body["tool_choice"] = choice.Mode
	}
}
