package config

import (
	"net/url"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"roundhouse/internal/secret"
)

// LLM is the "llm" section: the model APIs and what is recorded of them.
type LLM struct {
	Upstreams []*Upstream // in the order of the file; none means that model APIs are not served
	Record    Record
	Responses Responses
	Tasks     Tasks
	MaxBody   int64 // bytes of one request, and of one answer that is recorded (C11); 256 MiB
	MaxQueued int64 // bytes of all requests and answers that wait in memory (C11); 512 MiB
}

// Tasks is the "llm.tasks" section: the tasks of run_task and run_tasks (A2).
type Tasks struct {
	Model string // of those that name none; "" is none
}

// Upstream is one entry of "llm.upstreams": an LLM endpoint.
type Upstream struct {
	Name      string
	BaseURL   string                   // http or https, without /v1, a slash at the end, query or credentials
	Engine    string                   // one of Engines, or "": then nothing is injected (C10)
	EndOfText string                   // scrubbed from answers; "" is none
	Experts   bool                     // ask which experts of a mixture were used
	APIKey    secret.String            // sent in place of the client's credentials; empty passes those on
	Headers   map[string]secret.String // set on every request
	Models    []string                 // globs of the models that it serves (C12); none makes it the default for all others
	Policy    RecordPolicy             // "" is that of Record
	Responses bool                     // whether it speaks the Responses API (C1)
	Images    bool                     // whether its models take pictures; true
	Timeouts  UpstreamTimeouts
}

// UpstreamTimeouts are those of C12.
type UpstreamTimeouts struct {
	Connect   time.Duration // 10 s
	FirstByte time.Duration // from the request to the first byte of the answer's body; 10 min
	Idle      time.Duration // between bytes of the answer; 2 min
	Total     time.Duration // of everything; 0 is none
}

// Record is the "llm.record" section.
type Record struct {
	Policy     RecordPolicy // of calls that name a session; RecordObserve
	Unnamed    RecordPolicy // of calls that name none, under a session per principal and day; RecordOff
	ClientGone ClientGone   // ClientGoneAuto
	Retention  Retention
}

// RecordPolicy is how strictly model calls are recorded (C3).
type RecordPolicy string

// The policies.
const (
	RecordTrain   RecordPolicy = "train"   // with tokens, and what cannot be stored fails the call
	RecordObserve RecordPolicy = "observe" // what cannot be stored marks the session incomplete
	RecordOff     RecordPolicy = "off"
)

// ClientGone is what becomes of a recorded call whose client leaves (C8).
type ClientGone string

// The choices.
const (
	ClientGoneAuto   ClientGone = "auto"   // drain under RecordTrain, else cancel
	ClientGoneDrain  ClientGone = "drain"  // the answer is read to its end
	ClientGoneCancel ClientGone = "cancel" // the request is cancelled
)

// Retention says how long recordings stay (C15).
type Retention struct {
	Age  time.Duration // since a session's last activity; 0 is for ever
	Size int64         // bytes of the database; 0 is no limit
}

// EngineOpenAI is the engine of OpenAI's own API.
const EngineOpenAI = "openai"

// Engines are the engines that an upstream may be.
var Engines = []string{EngineOpenAI, "anthropic", "vllm", "sglang", "lmdeploy", "llamacpp"}

func defaultLLM() LLM {
	return LLM{
		Record:    Record{Policy: RecordObserve, Unnamed: RecordOff, ClientGone: ClientGoneAuto},
		Responses: defaultResponses(),
		MaxBody:   256 << 20,
		MaxQueued: 512 << 20,
	}
}

func newUpstream(name string) *Upstream {
	return &Upstream{Name: name, Images: true, Timeouts: UpstreamTimeouts{Connect: 10 * time.Second, FirstByte: 10 * time.Minute, Idle: 2 * time.Minute}}
}

var recordPolicies = []RecordPolicy{RecordTrain, RecordObserve, RecordOff}

var llmSection = section[document]{check: checkLLM, object: object[document]{fields: []field[document]{{
	name: "upstreams",
	doc:  "The LLM endpoints by name. A request goes to the first that serves its model; one without \"models\" serves all that no other does.",
	kind: custom[document]{from: readUpstreams, shape: func(*document) schema {
		item := upstreamObject.schema(newUpstream(""))
		item["required"] = []string{"baseURL"}
		return schema{"type": "object", "additionalProperties": item, "minProperties": 1}
	}},
}, {
	name: "record",
	doc:  "What is recorded of calls of /v1/chat/completions, /v1/messages and /v1/responses.",
	kind: section[document]{object: object[document]{fields: []field[document]{{
		name: "policy",
		doc: "Of calls that name a session: \"train\" records them with token ids, and fails those that cannot be stored; \"observe\" records them, and marks the session incomplete if that fails; \"off\" does not. " +
			"An upstream's own \"policy\" wins over it, a session's over that, and the header X-Roundhouse-Record of a request over all.",
		kind: choice[document, RecordPolicy]{options: recordPolicies, at: func(d *document) *RecordPolicy { return &d.LLM.Record.Policy }},
	}, {
		name: "unnamed",
		doc:  "Of calls that name no session. They are recorded under a session per principal and day.",
		kind: choice[document, RecordPolicy]{options: recordPolicies, at: func(d *document) *RecordPolicy { return &d.LLM.Record.Unnamed }},
	}, {
		name: "clientGone",
		doc:  "What becomes of a recorded call whose client leaves: \"drain\" reads the answer to its end, \"cancel\" ends the request, \"auto\" drains under \"train\" and cancels under \"observe\".",
		kind: choice[document, ClientGone]{
			options: []ClientGone{ClientGoneAuto, ClientGoneDrain, ClientGoneCancel},
			at:      func(d *document) *ClientGone { return &d.LLM.Record.ClientGone },
		},
	}, {
		name: "retention",
		doc:  "How long recordings of closed sessions stay. Whole sessions go, those first that were active longest ago.",
		kind: section[document]{object: object[document]{fields: []field[document]{{
			name: "age",
			doc:  "How long after a session's last activity; \"0s\" is for ever.",
			kind: duration[document]{zero: true, at: func(d *document) *time.Duration { return &d.LLM.Record.Retention.Age }},
		}, {
			name: "size",
			doc:  "The most that the database may use: a number of bytes, or a size such as \"20GiB\". There is no limit if it is absent.",
			kind: unlimited{size[document]{at: func(d *document) *int64 { return &d.LLM.Record.Retention.Size }}},
		}}}},
	}}}},
}, {
	name: "responses",
	doc:  "The Responses API: how tools of the type \"mcp\" are run for it, and for tasks.",
	kind: responsesSection,
}, {
	name: "tasks",
	doc:  "The tasks that roundhouse's own tools run_task and run_tasks have models work on.",
	kind: section[document]{object: object[document]{fields: []field[document]{{
		name: "model",
		doc:  "The model of tasks that name none.",
		kind: plain[document]{at: func(d *document) *string { return &d.LLM.Tasks.Model }},
	}}}},
}, {
	name: "maxBody",
	doc:  "The largest request of a model API, and the largest answer that is recorded: a number of bytes, or a size such as \"256MiB\".",
	kind: size[document]{at: func(d *document) *int64 { return &d.LLM.MaxBody }},
}, {
	name: "maxQueued",
	doc:  "How much of all requests and answers together may wait in memory: a number of bytes, or a size. Requests beyond it are answered with 503.",
	kind: size[document]{at: func(d *document) *int64 { return &d.LLM.MaxQueued }},
}}}}

// unlimited is a size without a default.
type unlimited struct{ size[document] }

func (k unlimited) schema(defaults *document) schema {
	s := k.size.schema(defaults)
	delete(s, "default")
	return s
}

var upstreamObject = object[Upstream]{fields: []field[Upstream]{{
	name: "baseURL",
	doc:  "Where it is, such as \"http://127.0.0.1:8000\"; /v1 at the end makes no difference. Variables are expanded.",
	kind: custom[Upstream]{from: readBaseURL, shape: func(*Upstream) schema { return schema{"type": "string"} }},
}, {
	name: "engine",
	doc:  "What it is, which says how it is asked for token ids under \"train\". Without it nothing is added to requests.",
	kind: choice[Upstream, string]{options: Engines, at: func(u *Upstream) *string { return &u.Engine }},
}, {
	name: "endOfText",
	doc:  "The model's end-of-text string, which is scrubbed from answers under \"train\" and \"observe\".",
	kind: plain[Upstream]{at: func(u *Upstream) *string { return &u.EndOfText }},
}, {
	name: "experts",
	doc:  "Whether to ask, under \"train\", which experts of a mixture were used. The engine must have been started for it.",
	kind: flag[Upstream]{at: func(u *Upstream) *bool { return &u.Experts }},
}, {
	name: "apiKey",
	doc:  "The key that is sent in place of the client's credentials; without it those are passed on. Variables are expanded.",
	kind: custom[Upstream]{
		from: func(r *reader, n node, u *Upstream) {
			if key, ok := r.expanded(n, inToken); ok && headerValue(r, n, key) {
				u.APIKey = secret.New(key)
			}
		},
		shape: func(*Upstream) schema { return schema{"type": "string"} },
	},
}, {
	name: "headers",
	doc:  "HTTP headers that are set on every request. Variables are expanded.",
	kind: custom[Upstream]{from: readUpstreamHeaders, shape: func(*Upstream) schema {
		return schema{"type": "object", "additionalProperties": schema{"type": "string"}}
	}},
}, {
	name: "models",
	doc:  "Which models it serves: names, in which * stands for any text and ? for any character.",
	kind: list[Upstream, string]{at: func(u *Upstream) *[]string { return &u.Models }, item: modelGlob, items: schema{"type": "string"}},
}, {
	name: "policy",
	doc:  "How its calls are recorded. What is absent is as in llm.record.",
	kind: choice[Upstream, RecordPolicy]{options: recordPolicies, at: func(u *Upstream) *RecordPolicy { return &u.Policy }},
}, {
	name: "responses",
	doc:  "Whether it speaks the Responses API. The engine \"openai\" does.",
	kind: custom[Upstream]{
		from:  func(r *reader, n node, u *Upstream) { u.Responses, _ = r.flag(n) },
		shape: func(*Upstream) schema { return schema{"type": "boolean"} },
	},
}, {
	name: "images",
	doc:  "Whether its models take pictures. If not, they are told of those that tools show in words.",
	kind: flag[Upstream]{at: func(u *Upstream) *bool { return &u.Images }},
}, {
	name: "timeouts",
	doc:  "How long it may take.",
	kind: section[Upstream]{object: object[Upstream]{fields: []field[Upstream]{{
		name: "connect",
		doc:  "Until the connection stands.",
		kind: duration[Upstream]{at: func(u *Upstream) *time.Duration { return &u.Timeouts.Connect }},
	}, {
		name: "firstByte",
		doc:  "From the request to the first byte of the answer, which is long for long prompts.",
		kind: duration[Upstream]{at: func(u *Upstream) *time.Duration { return &u.Timeouts.FirstByte }},
	}, {
		name: "idle",
		doc:  "Between bytes of an answer.",
		kind: duration[Upstream]{at: func(u *Upstream) *time.Duration { return &u.Timeouts.Idle }},
	}, {
		name: "total",
		doc:  "Of a whole call; \"0s\" is no limit.",
		kind: duration[Upstream]{zero: true, at: func(u *Upstream) *time.Duration { return &u.Timeouts.Total }},
	}}}},
}}}

func checkLLM(r *reader, n node, d *document, found seen) {
	if !found.has("upstreams") {
		r.errorAtKey(n, `needs "upstreams", such as {"local": {"baseURL": "http://127.0.0.1:8000"}}`)
	}
}

func readUpstreams(r *reader, n node, d *document) {
	members, ok := r.uniqueMembers(n)
	if ok && len(members) == 0 {
		r.errorAt(n, "must have at least one upstream")
	}
	fallback := ""
	for _, m := range members {
		u := newUpstream(m.key)
		found := upstreamObject.read(r, m, u)
		if !found.has("responses") {
			u.Responses = u.Engine == EngineOpenAI
		}
		switch {
		case m.key == "" || strings.ContainsFunc(m.key, unicode.IsControl):
			r.errorAtKey(m, "an upstream's name must not be empty or hold a control character; rename it")
		case m.value.Value.Kind() == '{' && !found.has("baseURL"):
			r.errorAtKey(m, `needs "baseURL"`)
		case found.has("models") && len(u.Models) == 0:
			r.errorAt(found["models"], `serves no model; remove it to serve all models that no other upstream does`)
		case found.has("models"):
		case fallback != "":
			r.errorAtKey(m, `gets no request: %q serves all models that no other does; add "models" to one of them`, fallback)
		default:
			fallback = m.key
		}
		d.LLM.Upstreams = append(d.LLM.Upstreams, u)
	}
}

func readBaseURL(r *reader, n node, u *Upstream) {
	text, ok := r.expanded(n, inToken)
	if !ok {
		return
	}
	base, err := url.Parse(text)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		r.errorAt(n, `must be an http or https address without credentials or query, such as "http://127.0.0.1:8000"; keys belong into apiKey`)
		return
	}
	u.BaseURL = strings.TrimRight(strings.TrimSuffix(strings.TrimRight(text, "/"), "/v1"), "/")
}

func readUpstreamHeaders(r *reader, n node, u *Upstream) {
	members, _ := r.uniqueMembers(n)
	u.Headers = make(map[string]secret.String, len(members))
	for _, m := range members {
		if !headerName(r, m) {
			continue
		}
		if text, ok := r.expanded(m, inToken); ok && headerValue(r, m, text) {
			u.Headers[m.key] = secret.New(text)
		}
	}
}

func modelGlob(r *reader, n node) (string, bool) {
	glob, ok := r.text(n)
	if !ok {
		return "", false
	}
	if glob == "" {
		r.errorAt(n, `must be the name of a model, or a pattern such as "qwen*"`)
	}
	return glob, glob != ""
}

// readStore reads "store", which is a path or a URL of the scheme sqlite.
func readStore(r *reader, n node, d *document) {
	file, ok := r.expanded(n, ordinary)
	if !ok {
		return
	}
	d.storeAt = n
	scheme, rest, isURL := strings.Cut(file, "://")
	switch {
	case isURL && scheme != "sqlite":
		r.errorAt(n, `this version keeps its database in SQLite only: write a path, or "sqlite:///…"`)
	case isURL && !filepath.IsAbs(rest):
		r.errorAt(n, `must be an absolute path behind "sqlite://", such as "sqlite:///var/lib/roundhouse/roundhouse.db"`)
	case isURL:
		d.Store = filepath.Clean(rest)
	default:
		d.Store, _ = r.path(n)
	}
}

// settleStore settles where the database is, once stateDir is known.
func (r *reader) settleStore(d *document) {
	if d.storeAt.value != nil && len(d.LLM.Upstreams) == 0 {
		r.errorAtKey(d.storeAt, `has no effect without "llm", whose calls it keeps; remove it, or add "llm"`)
	}
	if d.Store == "" {
		d.Store = filepath.Join(d.StateDir, "roundhouse.db")
	}
}
