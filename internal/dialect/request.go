package dialect

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"roundhouse/internal/wire"
)

// ErrUnreadable is the error of a body that is no JSON object. It is forwarded all the
// same, and the upstream decides what to make of it (A.16, row 12).
var ErrUnreadable = errors.New("the body is no JSON object")

// The members of requests that roundhouse reads or writes.
const (
	sessionMember = "session_id"
	idsMember     = "return_token_ids"
	optionsMember = "stream_options"
	countsMember  = "include_usage"
)

// routing has the members that decide what happens to a request. What was checked is
// what is sent: one that stands twice, or in another letter case, is refused.
var routing = []string{
	"model", "stream", optionsMember, sessionMember, "tools", "tool_choice", "background", idsMember, "return_prompt_token_ids", "return_meta_info",
	"return_logprob", "return_routed_experts", "logprobs", "top_logprobs", "n_probs", "include_stop_str_in_output",
}

// Request is a generation as its client sent it. It is not changed after ParseRequest.
type Request struct {
	API API
	// Model is what the client asks for, "" if it does not say.
	Model string
	// Stream tells that the client wants an event stream. What the upstream answers
	// is told by its Content-Type (A.9), and only if it has none by this.
	Stream bool
	// Session is the session that the body names, "" if it names none. The caller
	// checks whether it can be a session's name.
	Session string
	// NoTokens tells that the client refuses token ids, which turns recording off (C3).
	NoTokens bool
	// HasMCPTool tells that a tool is of type mcp: no upstream but roundhouse's own
	// engine runs it (C1).
	HasMCPTool bool

	body    []byte
	asked   map[string]bool // which routing members are set to something true
	tools   []string        // the names of the functions that the model may call
	options []byte          // stream_options, nil if there are none
}

// ParseRequest reads a generation. The body is kept, not copied. ErrUnreadable aside,
// errors are the client's and are worth a 400.
func ParseRequest(api API, body []byte) (*Request, error) {
	r := &Request{API: api, body: body, asked: map[string]bool{}}
	e := &editor{raw: body}
	at := whole(body)
	if wire.Valid(body) != nil || e.first(at) != '{' {
		return nil, ErrUnreadable
	}
	var refused error
	seen := map[string]bool{}
	err := e.object(at, func(key string, value wire.Span) verb {
		name, err := routingName(key, seen)
		if err != nil || name == "" {
			refused = errors.Join(refused, err)
			return keep
		}
		raw := value.Of(body)
		r.asked[name] = truthy(raw)
		switch name {
		case "model":
			r.Model, _ = wire.Text(raw)
		case "stream":
			r.Stream = flag(raw, false)
		case idsMember:
			r.NoTokens = !flag(raw, true)
		case sessionMember:
			r.Session, err = session(raw)
			refused = errors.Join(refused, err)
		case optionsMember:
			r.options = raw
		case "tools":
			r.readTools(value)
		}
		return keep
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	return r, nil
}

// CutSession returns the body of an auxiliary request without the member that names a
// session, and that session's name. Any other body comes back as it is (A.3).
func CutSession(body []byte) (cut []byte, name string, err error) {
	at := whole(body)
	e := &editor{raw: body}
	if at.Start == at.End || e.first(at) != '{' || wire.Valid(body) != nil {
		return body, "", nil
	}
	var refused error
	seen := map[string]bool{}
	err = e.object(at, func(key string, value wire.Span) verb {
		if !strings.EqualFold(key, sessionMember) {
			return keep
		}
		if _, err := routingName(key, seen); err != nil {
			refused = err
			return keep
		}
		if name, err = session(value.Of(body)); err != nil {
			refused = err
		}
		return drop
	})
	if err = errors.Join(err, refused); err != nil {
		return nil, "", fmt.Errorf("read the request: %w", err)
	}
	return e.apply(), name, nil
}

// routingName returns a member's name if it is one that routes, or else "", and notes
// that it was seen.
func routingName(key string, seen map[string]bool) (string, error) {
	for _, name := range routing {
		switch {
		case !strings.EqualFold(name, key):
			continue
		case name != key:
			return "", fmt.Errorf("the member %q is spelled in another way", name)
		case seen[name]:
			return "", fmt.Errorf("the member %q stands twice", name)
		}
		seen[name] = true
		return name, nil
	}
	return "", nil
}

// session returns the name in a session_id: a string, or an integer as it is spelled.
// null names none (A.3).
func session(raw []byte) (string, error) {
	if isNull(raw) {
		return "", nil
	}
	if raw[0] == '"' {
		name, err := wire.Text(raw)
		if err != nil || name == "" {
			return "", fmt.Errorf("the member %q is empty or broken", sessionMember)
		}
		return name, nil
	}
	if digits := strings.TrimPrefix(string(raw), "-"); digits != "" && strings.Trim(digits, "0123456789") == "" {
		return string(raw), nil
	}
	return "", fmt.Errorf("the member %q is neither a string nor an integer", sessionMember)
}

// readTools notes what the model may call.
func (r *Request) readTools(at wire.Span) {
	tools := parse(at.Of(r.body))
	for _, tool := range tools.items() {
		if tool.get("type").str() == "mcp" {
			r.HasMCPTool = true
		}
		name := tool.get("name")
		if function := tool.get("function"); function.kind() == '{' {
			name = function.get("name")
		}
		if text := name.str(); text != "" {
			r.tools = append(r.tools, text)
		}
	}
}

// Call is a request on its way: what to send, and how to read the answer. It may be
// used for several attempts, one after the other or at once.
type Call struct {
	// Body is what goes upstream.
	Body []byte

	api       API
	engine    Engine
	tools     []string
	strip     []string // the members of answers that only roundhouse asked for
	wantsIDs  bool     // whether token ids are wanted of an engine that has them
	endOfText string   // what is scrubbed from the answer's texts

	// stripUsage tells that only roundhouse asked for the counts on a stream. An answer
	// that is none has them anyway.
	stripUsage bool
}

// Opaque returns the call of a body that could not be read. It goes upstream as it
// is, and nothing is stripped from the answer.
func Opaque(api API, body []byte) *Call { return &Call{Body: body, api: api} }

// Forward returns the call that sends the request to an engine: less what roundhouse
// consumes, and with what makes the engine tell token ids if tokens is set and the
// engine can (C10). All else keeps its bytes (C2).
func (r *Request) Forward(p Profile, tokens bool) *Call {
	c := &Call{api: r.API, engine: p.Engine, tools: r.tools}
	set := map[string]string{}
	if tokens {
		c.wantsIDs = p.Engine.runsLocally()
		var asked []string
		for _, f := range p.fields(r) {
			if r.asked[f.ask] {
				asked = append(asked, f.back...)
				continue
			}
			set[f.ask] = f.value
			c.strip = append(c.strip, f.back...)
		}
		c.strip = slices.DeleteFunc(c.strip, func(name string) bool { return slices.Contains(asked, name) })
		if len(set) > 0 && r.API == Chat && r.Stream && !r.countsTokens() {
			set[optionsMember], c.stripUsage = r.withCounts(), true
		}
	}
	if p.EndOfText != "" && (r.API == Chat || r.API == Messages) {
		c.endOfText = p.EndOfText
	}
	noTools := r.API == Messages && p.Engine.runsLocally() && r.onlyServerTools()
	e := &editor{raw: r.body}
	// ParseRequest has found the body valid.
	_ = e.object(whole(r.body), func(key string, value wire.Span) verb {
		if with, ok := set[key]; ok {
			e.replace(value, []byte(with))
			delete(set, key)
			return keep
		}
		switch {
		case key == sessionMember, key == idsMember && p.Engine.refusesUnknown():
			return drop
		case noTools && (key == "tools" || key == "tool_choice"):
			return drop
		case key == "tools" && r.API == Messages && p.Engine.runsLocally():
			r.dropServerTools(e, value)
		}
		return keep
	})
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	added := make([][]byte, 0, len(set))
	for _, name := range names {
		added = append(added, slices.Concat(wire.Quote(name), []byte(":"), []byte(set[name])))
	}
	c.Body = withMembers(e.apply(), added)
	return c
}

// countsTokens reports whether the client wants a stream to tell how many tokens there
// were.
func (r *Request) countsTokens() bool {
	return r.options != nil && truthy(parse(r.options).get(countsMember).append(nil))
}

// withCounts returns the options of a stream that tells so. By the counts it is found
// out whether ids are missing (C-88).
func (r *Request) withCounts() string {
	options := newObject()
	if r.options != nil && r.options[0] == '{' {
		options = parse(r.options)
	}
	options.set(countsMember, &node{raw: []byte("true")})
	return string(options.append(nil))
}

// serverTool reports whether an entry of tools is one that Anthropic itself runs.
func serverTool(tool *node) bool { return tool.kind() == '{' && isNullNode(tool.get("input_schema")) }

func (r *Request) onlyServerTools() bool {
	tools := parse(r.body).get("tools").items()
	return len(tools) > 0 && !slices.ContainsFunc(tools, func(t *node) bool { return !serverTool(t) })
}

// dropServerTools cuts the tools without input_schema out of the array at a span. At
// least one other is there.
func (r *Request) dropServerTools(e *editor, at wire.Span) {
	kept, dropped, end := -1, -1, 0
	_ = e.elements(at, func(span wire.Span) error {
		switch {
		case serverTool(parse(span.Of(e.raw))):
			if dropped < 0 {
				dropped = span.Start
			}
		default:
			if dropped >= 0 {
				e.cut(wire.Span{}, dropped, span.Start)
			}
			kept, dropped = span.End, -1
		}
		end = span.End
		return nil
	})
	if dropped >= 0 && kept >= 0 {
		e.cut(wire.Span{}, kept, end)
	}
}

func isNull(raw []byte) bool { return len(raw) == 0 || raw[0] == 'n' }

// flag reads a member as a switch, as generously as the reference does (A.4).
func flag(raw []byte, absent bool) bool {
	if isNull(raw) {
		return absent
	}
	if raw[0] == '"' {
		text, _ := wire.Text(raw)
		switch strings.ToLower(strings.TrimSpace(text)) {
		case "", "0", "false", "no", "off":
			return false
		}
		return true
	}
	return truthy(raw)
}

// truthy reports whether a value is something: not null, false, zero or empty.
func truthy(raw []byte) bool {
	if isNull(raw) {
		return false
	}
	switch raw[0] {
	case 'f':
		return false
	case 't':
		return true
	case '"':
		return flag(raw, false)
	case '[', '{':
		return !whollySpace(raw[1 : len(raw)-1])
	}
	// A number is zero if no digit before its exponent is another.
	mantissa, _, _ := strings.Cut(strings.ToLower(string(raw)), "e")
	return strings.ContainsAny(mantissa, "123456789")
}

func whollySpace(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return !isSpace(c) })
}
