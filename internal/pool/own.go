package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// Calls of roundhouse's own: the handshake, the lists, signs of life.

// RPCError is a JSON-RPC error with which a server answered a request of ours.
type RPCError struct{ Object []byte } // the raw error object

// Error gives the server's message.
func (e *RPCError) Error() string {
	var o struct {
		Code    int
		Message string
	}
	if json.Unmarshal(e.Object, &o) != nil {
		return "the server answered with an error"
	}
	return fmt.Sprintf("the server answered %q (code %d)", o.Message, o.Code)
}

// request makes a call of roundhouse's own and returns the raw result.
func (c *connection) request(ctx context.Context, method string, params []byte) ([]byte, error) {
	q, err := c.begin(ctx, method, params)
	if err != nil {
		return nil, err
	}
	return q.wait(ctx, nil)
}

// params are those of a request of our own.
func (c *connection) params() []byte {
	if c.meta == nil {
		return []byte("{}")
	}
	return append(append([]byte(`{"_meta":{`), c.meta...), "}}"...)
}

// ownCall is a call of roundhouse's own.
type ownCall struct {
	call *mux.Call
	out  *ownOutlet
}

// begin sends a call of roundhouse's own.
func (c *connection) begin(ctx context.Context, method string, params []byte) (ownCall, error) {
	f, err := wire.Parse(wire.NewRequest([]byte("0"), method, params))
	if err != nil {
		return ownCall{}, fmt.Errorf("make a %s request: %w", method, err)
	}
	out := &ownOutlet{make(chan mux.Pieces, 1), make(chan error, 1)}
	call, err := c.mux.Begin(nil, f, wire.Routing{}, out)
	if err != nil {
		return ownCall{}, err
	}
	// The end of ctx is seen by wait, and that of the link fails the call.
	_ = call.Send(func(m *upstream.Message) error { return c.link.Send(ctx, m) })
	return ownCall{call, out}, nil
}

// errSilent means that a server has not answered in time, but may do so yet.
var errSilent = errors.New("the server has not answered yet")

// wait returns the raw result. When ctx ends the call does; when silence comes it goes on.
func (q ownCall) wait(ctx context.Context, silence <-chan time.Time) ([]byte, error) {
	select {
	case p := <-q.out.answer:
		return resultOf(p)
	case err := <-q.out.failure:
		return nil, err
	case <-silence:
		return nil, errSilent
	case <-ctx.Done():
		q.call.Fail(fault.New(fault.CallTimeout, "roundhouse no longer waits"))
		return nil, context.Cause(ctx)
	}
}

// cancelCall tells the transport that nobody waits for a call any more.
func (c *connection) cancelCall(m *upstream.Message) {
	if l, ok := c.link.(eraLink); ok {
		l.Cancel(m)
	}
}

// ownOutlet takes the outcome of a call of roundhouse's own.
type ownOutlet struct {
	answer  chan mux.Pieces
	failure chan error
}

func (o *ownOutlet) Note(mux.Pieces)   {}
func (o *ownOutlet) Done(p mux.Pieces) { o.answer <- p }

// Failed implements mux.Failer.
func (o *ownOutlet) Failed(err *fault.Error) bool {
	o.failure <- err
	return true
}

func resultOf(p mux.Pieces) ([]byte, error) {
	f, err := wire.Parse(p.AppendTo(nil))
	if err != nil {
		return nil, err
	}
	if f.ErrorSpan.Present() {
		return nil, &RPCError{f.ErrorValue()}
	}
	return f.Result(), nil
}
