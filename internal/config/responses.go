package config

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Dialer opens the network connections to a server. It may be called concurrently.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Responses is the "llm.responses" section: the Responses API, whose loop runs
// roundhouse's own tasks, too (X9).
type Responses struct {
	Rounds       int           // model calls of one response; 32
	MaxImages    int           // pictures of tools that the model is shown, the newest; 3
	CallTimeout  time.Duration // of one tool call; each sign of progress gives it as long again, up to four times that; 60 s
	Parallel     int           // tool calls of one response at the same time; 16
	Background   int           // responses in the background at the same time; 100
	MaxResult    int64         // bytes of the text of one tool's result; the rest is cut; 1 MiB
	ToolSessions ToolSessions
	Retention    ResponseRetention
	Egress       Egress
}

// ResponseRetention says how long responses are kept that have ended.
type ResponseRetention struct {
	Age    time.Duration // since one was created; 30 days; 0 is for ever
	Events time.Duration // for the events of one in the background; 24 h; 0 is as long as the response
	Size   int64         // bytes of all, as stored; 1 GiB
}

// ToolSessions says how long a named session keeps what a response has opened in it.
type ToolSessions string

// The choices.
const (
	ToolSessionsSession ToolSessions = "session" // until it ends or becomes dormant
	ToolSessionsRequest ToolSessions = "request" // until the response ends
)

func defaultResponses() Responses {
	return Responses{
		Rounds: 32, MaxImages: 3, CallTimeout: time.Minute, Parallel: 16, Background: 100, MaxResult: 1 << 20, ToolSessions: ToolSessionsSession,
		Retention: ResponseRetention{Age: 30 * 24 * time.Hour, Events: 24 * time.Hour, Size: 1 << 30},
	}
}

// Egress is the "llm.responses.egress" section: where a request may send roundhouse with
// the URL of a server.
type Egress struct {
	Allow []EgressRule // beside public addresses with https
}

// EgressRule allows a host by its name or by its address.
type EgressRule struct {
	Host string       // a pattern of names in lower case, or "" for one with Net
	Net  netip.Prefix // valid if Host is ""
	Port string       // "" is every port
}

var responsesSection = section[document]{object: object[document]{fields: []field[document]{{
	name: "rounds",
	doc:  "How many times the model is called for one response at most; it is incomplete then.",
	kind: count[document]{at: func(d *document) *int { return &d.LLM.Responses.Rounds }},
}, {
	name: "maxImages",
	doc:  "How many pictures that tools have shown the model sees, the newest of them; words stand in the place of the others.",
	kind: count[document]{zero: true, at: func(d *document) *int { return &d.LLM.Responses.MaxImages }},
}, {
	name: "callTimeout",
	doc:  "How long one call of a tool may take. Each sign of progress gives it as long again, but not more than four times that in all.",
	kind: duration[document]{at: func(d *document) *time.Duration { return &d.LLM.Responses.CallTimeout }},
}, {
	name: "parallel",
	doc:  "How many tools of one response are called at the same time.",
	kind: count[document]{at: func(d *document) *int { return &d.LLM.Responses.Parallel }},
}, {
	name: "background",
	doc:  "How many responses may be under way in the background at the same time; more are refused with the status 429.",
	kind: count[document]{at: func(d *document) *int { return &d.LLM.Responses.Background }},
}, {
	name: "maxResult",
	doc:  "How much of the text of a tool's result the model and the client get: a number of bytes, or a size such as \"1MiB\". The rest is cut, and that is said.",
	kind: size[document]{at: func(d *document) *int64 { return &d.LLM.Responses.MaxResult }},
}, {
	name: "toolSessions",
	doc:  "How long a named session keeps what a response has opened in it: \"session\" until it ends or becomes dormant, \"request\" until the response has ended. A response that names no session keeps nothing.",
	kind: choice[document, ToolSessions]{
		options: []ToolSessions{ToolSessionsSession, ToolSessionsRequest},
		at:      func(d *document) *ToolSessions { return &d.LLM.Responses.ToolSessions },
	},
}, {
	name: "retention",
	doc:  "How long responses are kept that have ended, to be retrieved and gone on from.",
	kind: section[document]{object: object[document]{fields: []field[document]{{
		name: "age",
		doc:  "How long after a response was created; \"0s\" is for ever.",
		kind: duration[document]{zero: true, at: func(d *document) *time.Duration { return &d.LLM.Responses.Retention.Age }},
	}, {
		name: "events",
		doc:  "How long the events of a response in the background can be streamed again; \"0s\" is as long as the response is kept.",
		kind: duration[document]{zero: true, at: func(d *document) *time.Duration { return &d.LLM.Responses.Retention.Events }},
	}, {
		name: "size",
		doc:  "The most that all responses may take in the database, the oldest go first: a number of bytes, or a size such as \"1GiB\".",
		kind: size[document]{at: func(d *document) *int64 { return &d.LLM.Responses.Retention.Size }},
	}}}},
}, {
	name: "egress",
	doc:  "Where requests may send roundhouse with a server_url. Public addresses with https always are allowed.",
	kind: section[document]{object: object[document]{fields: []field[document]{{
		name: "allow",
		doc: "What is allowed besides, with http too: names such as \"mcp.example\" or \"*.corp.example\", addresses, networks such as \"10.1.0.0/16\", and each of these but networks with a port, such as \"127.0.0.1:8931\". " +
			"Whoever may send requests reaches what is allowed here.",
		kind: custom[document]{from: readEgressRules, shape: func(*document) schema {
			return schema{"type": "array", "items": schema{"type": "string"}}
		}},
	}}}},
}}}}

func readEgressRules(r *reader, n node, d *document) {
	elements, ok := r.elements(n)
	if !ok {
		return
	}
	for _, e := range elements {
		text, ok := r.text(e)
		if !ok {
			continue
		}
		rule, ok := parseEgressRule(text)
		if !ok {
			r.errorAt(e, `must be a host such as "mcp.example", "*.corp.example" or "127.0.0.1:8931", or a network such as "10.1.0.0/16"`)
			continue
		}
		d.LLM.Responses.Egress.Allow = append(d.LLM.Responses.Egress.Allow, rule)
	}
}

func parseEgressRule(text string) (EgressRule, bool) {
	if network, err := netip.ParsePrefix(text); err == nil && !network.Addr().Is4In6() {
		return EgressRule{Net: network.Masked()}, true
	}
	host, port := strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), ""
	if h, p, err := net.SplitHostPort(text); err == nil {
		host, port = h, p
		if v, err := strconv.ParseUint(port, 10, 16); err != nil || v == 0 || strconv.FormatUint(v, 10) != port {
			return EgressRule{}, false
		}
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap().WithZone("")
		return EgressRule{Net: netip.PrefixFrom(addr, addr.BitLen()), Port: port}, true
	}
	const letters = "abcdefghijklmnopqrstuvwxyz"
	host = strings.ToLower(host)
	// A pattern such as 10.1.* would be met by names that begin so, which is not what it means.
	top := host[strings.LastIndexByte(host, '.')+1:]
	ok := host == "*" || strings.ContainsAny(top, letters) && strings.Trim(host, letters+"0123456789-_.*?") == ""
	return EgressRule{Host: host, Port: port}, ok
}
