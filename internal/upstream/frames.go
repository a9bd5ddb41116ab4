package upstream

import (
	"bytes"
	"io"
	"slices"
	"strconv"

	"roundhouse/internal/sse"
	"roundhouse/internal/wire"
)

// eventReader reads an event stream and looks for the id of a frame that is too long.
type eventReader struct {
	*sse.Reader
	scan wire.IDScanner // of the event that is skipped
}

func newEventReader(src io.Reader, max int) *eventReader {
	r := &eventReader{Reader: sse.NewReader(src, max)}
	r.Skipped = func(piece []byte) { r.scan.Write(piece) }
	return r
}

// tooLong tells of a frame that was skipped, and reports whether it was the answer to x.
// What cannot be told from that counts as the answer, lest the call wait for ever.
func (r *remote) tooLong(x *exchange, scan wire.IDScanner, size int64) (answered bool) {
	e := event{kind: oversizeEvent, call: scan.ID(), of: scan.Kind(), size: size}
	if x != nil && (e.of == wire.Invalid || e.of == wire.Response && e.call == nil) {
		e.call, e.of = x.message.ID, wire.Response
	}
	r.emit(e)
	return x != nil && e.of == wire.Response && x.isID(e.call)
}

// deliver gives the handler the frames in data: one, or an array of them. It reports
// whether the answer to x was among them; x may be nil. data is given away.
func (r *remote) deliver(x *exchange, data []byte) (answered bool) {
	data = bytes.TrimPrefix(data, bom)
	parts, _, err := wire.SplitBatch(data)
	if err != nil {
		parts = [][]byte{data}
	}
	for _, part := range parts {
		answered = r.deliverFrame(x, part) || answered
	}
	return answered
}

func (r *remote) deliverFrame(x *exchange, raw []byte) (answered bool) {
	e := event{}
	if x != nil {
		e.call = x.message.ID
	}
	f, err := wire.Parse(raw)
	if err != nil {
		r.emit(event{kind: noiseEvent, line: clean(raw)})
		reply, ok := refusal(raw, err)
		if !ok {
			return false
		}
		f = reply
	}
	if x != nil {
		f = x.named(f)
	}
	e.frame = flat(f)
	if x != nil && x.isAnswer(e.frame) {
		answered = true
		if x.message.Method == wire.MethodInitialize && r.shaken != nil {
			r.shaken(e.frame)
		}
	}
	r.emit(e)
	return answered
}

// flat returns f without line ends between its tokens, so that it fits on one line of a
// pipe (W3).
func flat(f wire.Frame) wire.Frame {
	raw := wire.Flatten(f.Raw)
	if len(raw) == len(f.Raw) {
		return f
	}
	again, err := wire.Parse(raw)
	if err != nil {
		panic("upstream: a frame is none without line ends: " + err.Error())
	}
	return again
}

// named gives an error without an id that of the call. Who could not read the id answers
// without, and the stream knows whom.
func (x *exchange) named(f wire.Frame) wire.Frame {
	if !x.isCall() || f.Kind != wire.Response || f.ID() != nil && string(f.ID()) != "null" {
		return f
	}
	named, err := wire.Parse(wire.ErrorReply(x.message.ID, f.ErrorValue()))
	if err != nil {
		return f
	}
	return named
}

// isAnswer reports whether f is the response to the call. Servers that keep numbers as
// floats may spell its id anew.
func (x *exchange) isAnswer(f wire.Frame) bool {
	return f.Kind == wire.Response && x.isID(f.ID())
}

func (x *exchange) isID(id []byte) bool {
	if !x.isCall() || id == nil {
		return false
	}
	if slices.Equal(id, x.message.ID) {
		return true
	}
	want, err := strconv.ParseFloat(string(x.message.ID), 64)
	if err != nil {
		return false
	}
	got, err := strconv.ParseFloat(string(id), 64)
	return err == nil && got == want
}
