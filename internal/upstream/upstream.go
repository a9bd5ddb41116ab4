// Package upstream makes one connection to a server a stream of JSON-RPC frames: over
// the standard streams of a process (Stdio), Streamable HTTP (HTTP), the older HTTP with
// SSE (SSE), whichever of the two a server speaks (Auto), and WebSocket (WebSocket). It
// moves bytes and knows little of what they mean: ids, owners and deadlines are the
// business of those who use it.
package upstream

import (
	"errors"
	"net/http"
	"sync/atomic"

	"roundhouse/internal/wire"
)

// ErrClosed means that a link takes no more messages: it has ended, is about to, or
// its input was closed. The message was not sent and may safely go elsewhere.
var ErrClosed = errors.New("the link to the server is closed")

// ErrExited means that a link ended because the server's process did.
var ErrExited = errors.New("the server's process has ended")

// ErrBrokenInput means that a link ended because the server's stdin could not be written
// to. Its process may be about to end.
var ErrBrokenInput = errors.New("write to the server's stdin")

// ErrSessionLost means that the server no longer knows the session of an HTTP link. A
// new link begins a new one.
var ErrSessionLost = errors.New("the server has forgotten its session with us")

// ErrInterrupted means that a call got no answer because the stream that should have
// carried it ended, and could not be continued. The server may have executed the call.
var ErrInterrupted = errors.New("the server's answer was cut off")

// Message is one outgoing frame. It belongs to one Send of one link.
type Message struct {
	// Bytes is the frame: complete JSON without a line end in it. It must not be
	// changed after Send.
	Bytes []byte
	// ID is the id of a request as it is spelled; nil for any other frame.
	ID []byte
	// Method is that of a request or notification; "" for a response.
	Method string
	// Name is the tool or prompt that a request calls, or the URI of the resource that
	// it reads; "" otherwise.
	Name string
	// Header is what a request to an HTTP link of 2026-07-28 carries beside the headers
	// that follow from Method and Name: those that repeat arguments, Mcp-Param-…, by
	// their canonical names. It must not be changed after Send; nil is none.
	Header http.Header

	sent      atomic.Bool
	withdrawn bool // by Cancel before Send; guarded by the link's mutex
}

// NewMessage returns a message of b, which it keeps, and describes it by what it reads
// there. Bytes that are no frame make a message that only Stdio can use.
func NewMessage(b []byte) *Message {
	f, err := wire.Parse(b)
	if err != nil {
		return &Message{Bytes: b}
	}
	m := MessageOf(f)
	m.Bytes = b
	return m
}

// MessageOf returns a message of f, whose Raw it keeps.
func MessageOf(f wire.Frame) *Message {
	m := &Message{Bytes: f.Raw, Method: f.Method}
	if f.Kind != wire.Request {
		return m
	}
	m.ID = f.ID()
	switch f.Method {
	case wire.ToolsCall, wire.PromptsGet, wire.ResourcesRead:
		// Without a name that can be read the server says what is wrong.
		if r, err := f.Routing(); err == nil {
			name := r.Name
			if f.Method == wire.ResourcesRead {
				name = r.URI
			}
			m.Name, _ = wire.Text(name.Of(f.Raw))
		}
	}
	return m
}

// Sent reports whether bytes of the message may have left. It turns true just before
// the first of them can, so false means certainly not, or that the server certainly
// refused to read it (R2, R5). It may be called at any time; after the link's Run has
// returned it no longer changes.
func (m *Message) Sent() bool { return m.sent.Load() }

// Handler takes what a server sends. Its methods are called one at a time, by the
// goroutine in Run, in the order of the server's output; over HTTP that is the order
// within each of its streams. Nothing is read while one runs, so they must not wait for
// anything that needs the server to go on, as Send does when the queue is full; Post
// does not.
type Handler interface {
	// Frame takes a frame. The receiver owns its Raw. call is the id of our request on
	// whose response stream the frame came, as it is spelled in Message.ID; it is nil
	// if the frame came on no call's stream, as all do that Stdio, SSE and WebSocket
	// deliver (M6).
	//
	// A response that names its call but is not valid JSON-RPC is replaced by an error
	// response that says so, after Noise: that call fails, the others go on.
	Frame(f wire.Frame, call []byte)
	// Failed takes the news that one call failed alone, and that no answer follows:
	// the server refused its request with an HTTP status (*StatusError, *AuthError),
	// its stream was cut off (ErrInterrupted), or its answer was no JSON-RPC. sent is
	// false if the call was certainly not executed, and may be sent again.
	Failed(call []byte, err error, sent bool)
	// Oversize takes the news that a frame longer than the limit was skipped. The id
	// is as it was spelled, and nil if none was found; size is in bytes, and at least
	// that if the rest was not read (P7).
	Oversize(id []byte, kind wire.Kind, size int64)
	// Noise takes output that is no JSON-RPC, for people to see: at most 512 bytes
	// without control characters. It is called once for each such line, also for a
	// blank one, with an empty line then (P6).
	Noise(line []byte)
}
