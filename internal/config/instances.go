package config

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"time"

	"roundhouse/internal/secret"
)

// instancesObject is the "instances" section of a server.
var instancesObject = object[entry]{fields: []field[entry]{
	{
		name: "min",
		doc:  "Warm instances that are kept ready beside those that are lent.",
		kind: count[entry]{zero: true, at: func(e *entry) *int { return &e.Instances.Min }},
	}, {
		name: "max",
		doc:  "Instances at once. With endpoints the default is one for each.",
		kind: count[entry]{at: func(e *entry) *int { return &e.Instances.Max }},
	}, {
		name: "idleTimeout",
		doc:  "How long an instance beyond min stays warm unused. \"0s\" is no limit.",
		kind: duration[entry]{zero: true, at: func(e *entry) *time.Duration { return &e.Instances.IdleTimeout }},
	}, {
		name: "maxLifetime",
		doc:  "How old an instance becomes; one that is lent goes when it is given back. \"0s\" is no limit.",
		kind: duration[entry]{zero: true, at: func(e *entry) *time.Duration { return &e.Instances.MaxLifetime }},
	}, {
		name: "maxUses",
		doc:  "How often an instance is lent. 0 is no limit.",
		kind: count[entry]{zero: true, at: func(e *entry) *int { return &e.Instances.MaxUses }},
	}, {
		name: "maxWait",
		doc:  "How long a session waits for an instance, its start and its probe included.",
		kind: duration[entry]{at: func(e *entry) *time.Duration { return &e.Instances.MaxWait }},
	}, {
		name: "onRelease",
		doc: "What becomes of an instance that a session gives back: \"destroy\" ends it, \"reset\" makes it new by a call of reset, " +
			"\"keep\" leaves it as it is, for sessions of the same principal.",
		kind: choice[entry, OnRelease]{options: []OnRelease{ReleaseDestroy, ReleaseReset, ReleaseKeep}, at: func(e *entry) *OnRelease { return &e.Instances.OnRelease }},
	}, {
		name: "warmup",
		doc:  "A call that is made once, before an instance counts as warm.",
		kind: toolCall{func(e *entry) *ToolCall { return &e.Instances.Warmup }},
	}, {
		name: "probe",
		doc:  "A call that must succeed before an instance is lent. The default is a ping.",
		kind: toolCall{func(e *entry) *ToolCall { return &e.Instances.Probe }},
	}, {
		name: "reset",
		doc:  "The call that makes an instance new, with \"onRelease\": \"reset\".",
		kind: toolCall{func(e *entry) *ToolCall { return &e.Instances.Reset }},
	}, {
		name: "snapshot",
		doc:  "The call whose content is a picture of an instance, such as a screenshot; roundhouse's own tools show it.",
		kind: toolCall{func(e *entry) *ToolCall { return &e.Instances.Snapshot }},
	}, {
		name: "endpoints",
		doc:  "Addresses of instances that exist already, in the place of url. Variables are expanded.",
		kind: custom[entry]{from: readEndpoints, shape: func(*entry) schema {
			return schema{"type": "array", "items": schema{"type": "string"}, "minItems": 1}
		}},
	},
}}

// cleanupObject is the "cleanup" section of a server.
var cleanupObject = object[entry]{fields: []field[entry]{
	{
		name: "tool",
		doc: "The tool that is called once before a session's connection is given back, if the session has called any. " +
			"The default is cleanup_session if the server lists a tool of that name.",
		kind: text[entry]{at: func(e *entry) *string { return &e.Cleanup.Tool }},
	}, {
		name: "arguments",
		doc:  "Its arguments.",
		kind: arguments{func(e *entry) *json.RawMessage { return &e.Cleanup.Arguments }},
	}, {
		name: "timeout",
		doc:  "How long it may take; all clean-ups of a session together have 10 s.",
		kind: duration[entry]{at: func(e *entry) *time.Duration { return &e.Cleanup.Timeout }},
	}, {
		name: "shared",
		doc:  "Whether it is called on a shared connection, too, where it concerns the other sessions.",
		kind: flag[entry]{at: func(e *entry) *bool { return &e.Cleanup.Shared }},
	},
}}

// toolCall is an object with a tool and its arguments.
type toolCall struct{ at func(*entry) *ToolCall }

func (k toolCall) fields() object[entry] {
	return object[entry]{fields: []field[entry]{
		{name: "tool", doc: "The name of the tool.", kind: text[entry]{at: func(e *entry) *string { return &k.at(e).Tool }}},
		{name: "arguments", doc: "Its arguments.", kind: arguments{func(e *entry) *json.RawMessage { return &k.at(e).Arguments }}},
	}}
}

func (k toolCall) read(r *reader, n node, e *entry) {
	if found := k.fields().read(r, n, e); found.has("arguments") && !found.has("tool") {
		r.errorAt(n, `needs a "tool"`)
	}
}

func (k toolCall) schema(defaults *entry) schema {
	return section[entry]{object: k.fields()}.schema(defaults)
}

// arguments is an object that goes to a tool as it stands.
type arguments struct{ at func(*entry) *json.RawMessage }

func (k arguments) read(r *reader, n node, e *entry) {
	if _, ok := r.uniqueMembers(n); !ok {
		return
	}
	v := n.value.Clone()
	v.Standardize()
	v.Minimize()
	*k.at(e) = v.Pack()
}

func (arguments) schema(*entry) schema { return schema{"type": "object"} }

// readEndpoints reads "endpoints".
func readEndpoints(r *reader, n node, e *entry) {
	elements, ok := r.elements(n)
	if !ok {
		return
	}
	if len(elements) == 0 {
		r.errorAt(n, "must not be empty")
	}
	for _, x := range elements {
		address, ok := r.expanded(x, onTheWire)
		if !ok {
			continue
		}
		u, err := url.Parse(address)
		if err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme) {
			r.errorAt(x, `must be an address such as "https://host/mcp"`)
			continue
		}
		if first := e.Instances.Endpoints; len(first) > 0 && strings.HasPrefix(u.Scheme, "ws") != strings.HasPrefix(first[0].Reveal(), "ws") {
			r.errorAt(x, "all endpoints must be reached in the same way")
		}
		e.Instances.Endpoints = append(e.Instances.Endpoints, secret.New(address))
	}
}

// combineEndpoints puts the first endpoint into the place of the address that the entry
// does not give, so that the transport follows from it.
func (e *entry) combineEndpoints(r *reader, found seen) {
	if len(e.Instances.Endpoints) == 0 {
		return
	}
	for _, name := range []string{"command", "url"} {
		if n, ok := found[name]; ok {
			r.errorAtKey(n, `is given beside "instances.endpoints", so it is not clear how to reach the server; keep one of them`)
			return
		}
	}
	e.URL = e.Instances.Endpoints[0]
	n := found["instances"]
	n.key = "url" // the transport follows from it as from a url
	found["url"] = n
}

// combineInstances checks what an entry says about instances, once it is known who gets
// them.
func (e *entry) combineInstances(r *reader, m node, found seen) {
	wrote := e.instances
	at, given := found["instances"]
	if !given {
		at = m
	}
	if e.Sharing != Exclusive {
		if given {
			r.warnAtKey(at, `has no effect unless "sharing" is "exclusive", and pool.enabled is not false`)
		}
		if e.holds(instancePrefix) {
			r.errorAtKey(m, `${INSTANCE_…} is known only to instances; write "sharing": "exclusive"`)
		}
		return
	}
	i := &e.Instances
	if n := len(i.Endpoints); n > 0 {
		switch {
		case !wrote.has("max"):
			i.Max = n
		case i.Max > n:
			r.errorAt(wrote["max"], "is more than there are endpoints")
		}
	}
	switch {
	case i.Min > i.Max:
		r.errorAtKey(at, `"min" is more than "max"`)
	case i.OnRelease == ReleaseReset && i.Reset.Tool == "":
		r.errorAtKey(at, `"onRelease": "reset" needs a "reset" with a "tool"`)
	case i.OnRelease != ReleaseReset && i.Reset.Tool != "":
		r.errorAtKey(wrote["reset"], `has no effect unless "onRelease" is "reset"`)
	}
	if e.NeedsWorkspace() {
		r.errorAtKey(m, `an instance is started before it is known who gets it, so that %s cannot stand in an exclusive server; write "sharing": "session"`, workspaceVariable)
	}
	if n, ok := found["forwardHeaders"]; ok {
		r.errorAtKey(n, `an instance is there before its client, so that none of its headers can be passed on; write "sharing": "session"`)
	}
}
