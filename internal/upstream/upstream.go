// Package upstream makes one connection to a server a stream of JSON-RPC frames. It
// moves bytes and knows nothing of what they mean: ids, owners and deadlines are the
// business of those who use it.
package upstream

import (
	"errors"
	"sync/atomic"

	"roundhouse/internal/wire"
)

// ErrClosed means that a link takes no more messages: it has ended, is about to, or
// its input was closed. The message was not sent and may safely go elsewhere.
var ErrClosed = errors.New("the link to the server is closed")

// ErrExited means that a link ended because the server's process did.
var ErrExited = errors.New("the server's process has ended")

// Message is one outgoing frame. It belongs to one Send of one link.
type Message struct {
	// Bytes is the frame: complete JSON without a line end in it. It must not be
	// changed after Send.
	Bytes []byte

	sent atomic.Bool
}

// NewMessage returns a message of b, which it keeps.
func NewMessage(b []byte) *Message { return &Message{Bytes: b} }

// Sent reports whether bytes of the message may have left. It turns true just before
// the first of them can, so false means certainly not (R2, R5). It may be called at
// any time; after the link's Run has returned it no longer changes.
func (m *Message) Sent() bool { return m.sent.Load() }

// Handler takes what a server sends. Its methods are called one at a time, in the
// order of the server's output, by the goroutine in Run. Nothing is read while one
// runs, so they must not wait for anything that needs the server to go on, as Send does
// when the queue is full; Post does not.
type Handler interface {
	// Frame takes a frame. The receiver owns its Raw.
	//
	// A response that names its call but is not valid JSON-RPC is replaced by an error
	// response that says so, after Noise: that call fails, the others go on.
	Frame(f wire.Frame)
	// Oversize takes the news that a line longer than the limit was skipped. The id
	// is as it was spelled, and nil if none was found; size is the line's in bytes (P7).
	Oversize(id []byte, kind wire.Kind, size int64)
	// Noise takes output that is no JSON-RPC, for people to see: at most 512 bytes
	// without control characters. It is called once for each such line, also for a
	// blank one, with an empty line then (P6).
	Noise(line []byte)
}
