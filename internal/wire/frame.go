// Package wire handles JSON-RPC frames as bytes. The envelope of a frame is parsed
// once, without decoding or copying its payloads; what must change is spliced in, so
// that unknown members, number spellings, key order and escapes survive (W1).
//
// Everything that is checked is checked on the bytes that are sent on: members that
// matter may stand once only and in one spelling only (W2).
//
// Functions may be called concurrently; values hold no hidden state. No message of
// an error quotes a payload.
package wire

import "fmt"

// Kind says what a frame is.
type Kind uint8

// The kinds of frames.
const (
	Invalid      Kind = iota // no JSON-RPC frame; the zero value
	Request                  // has a method and an id
	Notification             // has a method and no id
	Response                 // has a result or an error
)

// String returns the kind's name in lower case.
func (k Kind) String() string {
	switch k {
	case Request:
		return "request"
	case Notification:
		return "notification"
	case Response:
		return "response"
	}
	return "invalid"
}

// Span is a half-open range of byte offsets. The zero Span means that something is
// absent, which is safe because nothing of interest starts at a text's first byte.
type Span struct{ Start, End int }

// Present reports whether the span is of something.
func (s Span) Present() bool { return s != Span{} }

// Of returns the bytes of raw that the span covers, or nil if it is absent. The
// bytes are shared with raw, and appending to them does not overwrite it.
func (s Span) Of(raw []byte) []byte {
	if !s.Present() {
		return nil
	}
	return raw[s.Start:s.End:s.End]
}

// Frame is one parsed JSON-RPC frame. Its spans are offsets into Raw, which must not
// be changed while they are in use.
type Frame struct {
	Raw    []byte // the frame's object, without white space around it
	Kind   Kind
	Method string // decoded; "" in responses

	IDSpan, ParamsSpan, ResultSpan, ErrorSpan Span

	params *params // read-only; nil if params is no object
}

// ID returns the id as it is spelled, or nil without one. Ids are distinct by
// spelling: 1, 1.0 and "1" are three (W1).
func (f Frame) ID() []byte { return f.IDSpan.Of(f.Raw) }

// Params returns the raw params, or nil without any.
func (f Frame) Params() []byte { return f.ParamsSpan.Of(f.Raw) }

// Result returns the raw result, or nil without one.
func (f Frame) Result() []byte { return f.ResultSpan.Of(f.Raw) }

// ErrorValue returns the raw error object, or nil without one.
func (f Frame) ErrorValue() []byte { return f.ErrorSpan.Of(f.Raw) }

// ParseFailure says why bytes are no frame that roundhouse passes on.
type ParseFailure struct {
	Code    int    // ParseError, InvalidRequest or InvalidParams
	Message string // for people; it quotes nothing of the bytes
	ID      []byte // the frame's id as it is spelled, or nil if none could be read
}

// Error returns the message.
func (e *ParseFailure) Error() string { return e.Message }

// envelope names the members that JSON-RPC gives a meaning.
var envelope = []string{"jsonrpc", "id", "method", "params", "result", "error"}

// Parse reads the envelope of one frame: a JSON object, with or without white space
// around it. The frame keeps raw and copies nothing of it. What Routing tells is read in
// the same pass.
//
// The whole text must be strictly valid JSON in UTF-8, nested at most 512 deep; its
// numbers, escapes and unknown members are left alone. A frame is refused if a
// member of the envelope stands twice or in another spelling ("Id", "\u0069d"; W2),
// if jsonrpc is not "2.0", if the id is neither string nor number (an error response
// may have the id null, or none), if params is neither object nor array nor null, which some
// peers write for no params, or if the
// members do not make exactly one of request, notification and response.
//
// An error is a *ParseFailure.
func Parse(raw []byte) (Frame, error) {
	raw = trim(raw)
	if len(raw) == 0 || raw[0] != '{' {
		if err := Valid(raw); err != nil {
			return Frame{}, err
		}
		return Frame{}, &ParseFailure{Code: InvalidRequest, Message: "parse frame: it is not a JSON object"}
	}
	e := envelopeReader{frame: Frame{Raw: raw}}
	err := e.read()
	if err == nil {
		err = e.classify()
	}
	if err != nil {
		return Frame{}, e.failure(err)
	}
	return e.frame, nil
}

// An envelopeReader collects the envelope's members. It reads on after a refusal
// for the sake of the id, so that the sender can be answered.
type envelopeReader struct {
	frame     Frame
	version   Span
	method    Span
	ambiguous bool // whether a second id, or a variant of it, was seen
	refusal   error
}

func (e *envelopeReader) read() error {
	raw := e.frame.Raw
	w := walker{t: raw, depth: 1}
	for w.name() {
		name := raw[w.key.Start+1 : w.key.End-1]
		if !e.value(&w, name) {
			break
		}
		switch string(name) {
		case "jsonrpc":
			e.set(&e.version, w.value, "jsonrpc")
		case "id":
			e.ambiguous = e.ambiguous || e.frame.IDSpan.Present()
			e.set(&e.frame.IDSpan, w.value, "id")
		case "method":
			e.set(&e.method, w.value, "method")
		case "params":
			e.set(&e.frame.ParamsSpan, w.value, "params")
		case "result":
			e.set(&e.frame.ResultSpan, w.value, "result")
		case "error":
			e.set(&e.frame.ErrorSpan, w.value, "error")
		default:
			if variant := variantOf(name, envelope); variant != "" {
				e.ambiguous = e.ambiguous || variant == "id"
				e.refuse("parse frame: the member %q is spelled in another way", variant)
			}
		}
	}
	if err := w.end(); err != nil {
		return err
	}
	return w.t.checkUTF8()
}

// value reads the value of a member; that of params for its members, too.
func (e *envelopeReader) value(w *walker, name []byte) bool {
	if string(name) != "params" || w.at >= len(w.t) || w.t[w.at] != '{' {
		return w.read(w.at)
	}
	p, end, err := readParams(w.t, w.at)
	if err != nil {
		return w.fail(err)
	}
	e.frame.params = p
	w.value, w.at = Span{w.at, end}, end
	return true
}

func (e *envelopeReader) set(span *Span, value Span, name string) {
	if span.Present() {
		e.refuse("parse frame: the member %q stands twice", name)
		return
	}
	*span = value
}

// refuse keeps the first reason why the frame is refused.
func (e *envelopeReader) refuse(format string, args ...any) {
	if e.refusal == nil {
		e.refusal = &ParseFailure{Code: InvalidRequest, Message: fmt.Sprintf(format, args...)}
	}
}

// classify sets the frame's kind and method, or returns why it has none.
func (e *envelopeReader) classify() error {
	f := &e.frame
	id := f.ID()
	switch version := e.version.Of(f.Raw); {
	case version == nil:
		e.refuse("parse frame: the member %q is missing", "jsonrpc")
	case string(version) != `"2.0"`:
		e.refuse("parse frame: jsonrpc is not %q", "2.0")
	}
	if p := f.Params(); p != nil && p[0] != '{' && p[0] != '[' && p[0] != 'n' {
		e.refuse("parse frame: params is neither an object nor an array nor null")
	}
	answers := f.ResultSpan.Present() || f.ErrorSpan.Present()
	switch {
	case e.method.Present() && answers:
		e.refuse("parse frame: it has a method and a result or error")
	case e.method.Present():
		f.Kind = Notification
		if id != nil {
			f.Kind = Request
		}
		if id != nil && !isID(id) {
			e.refuse("parse frame: the id is neither a string nor a number")
		}
		e.readMethod()
	case f.ResultSpan.Present() && f.ErrorSpan.Present():
		e.refuse("parse frame: it has both a result and an error")
	case answers:
		f.Kind = Response
		// Who could not read a request's id answers with null, or leaves it out.
		if unknown := id == nil || string(id) == "null"; !isID(id) && (!unknown || f.ResultSpan.Present()) {
			e.refuse("parse frame: the response's id is neither a string nor a number")
		}
	default:
		e.refuse("parse frame: it has no method, result or error")
	}
	return e.refusal
}

func (e *envelopeReader) readMethod() {
	literal := e.method.Of(e.frame.Raw)
	if literal[0] != '"' {
		e.refuse("parse frame: the method is not a string")
		return
	}
	if known, ok := knownMethods[string(literal[1:len(literal)-1])]; ok {
		e.frame.Method = known
		return
	}
	method, err := Text(literal)
	if err != nil {
		e.refuse("parse frame: the method is not text")
	}
	e.frame.Method = method
}

// failure adds the id, if there is exactly one, to err.
func (e *envelopeReader) failure(err error) error {
	f := *err.(*ParseFailure)
	if id := e.frame.ID(); !e.ambiguous && isID(id) {
		f.ID = id
	}
	return &f
}

// isID reports whether a valid JSON value can be an id.
func isID(value []byte) bool {
	return len(value) > 0 && (value[0] == '"' || value[0] == '-' || isDigit(value[0]))
}
