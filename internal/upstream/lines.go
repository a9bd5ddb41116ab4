package upstream

import (
	"bytes"
	"fmt"
	"slices"

	"roundhouse/internal/wire"
)

// A lineReader takes a server's output in pieces and gives its Handler the lines.
//
// It reads into one buffer, which grows for a long line up to the limit; the receiver
// of such a line gets that buffer, and of a short one a copy of its own size. Of a line
// over the limit it keeps an IDScanner only (P7).
type lineReader struct {
	handler Handler
	max     int // the longest line, without its line end

	buf        []byte
	head, tail int  // what of buf is read and no complete line yet
	begun      bool // whether a byte order mark was looked for

	unterminated bool // whether the line at hand is the last, without a line end

	over     *wire.IDScanner // while a line over the limit is skipped, else nil
	overSize int64           // of that line so far
	overCR   bool            // whether the last byte of it so far is a CR
}

var bom = []byte("\xef\xbb\xbf")

// space returns where to read to; it is never empty.
func (r *lineReader) space() []byte {
	switch {
	case r.head == r.tail:
		r.head, r.tail = 0, 0
		if len(r.buf) == 0 {
			r.buf = make([]byte, readBytes)
		}
	case r.tail < len(r.buf):
	case r.head > 0:
		r.tail = copy(r.buf, r.buf[r.head:r.tail])
		r.head = 0
	default:
		// A whole line has no more than the limit and a line end of two bytes.
		grown := make([]byte, min(2*len(r.buf), r.max+2))
		copy(grown, r.buf)
		r.buf = grown
	}
	return r.buf[r.tail:]
}

// add takes the n bytes that were read to the space.
func (r *lineReader) add(n int) {
	from := r.tail
	r.tail += n
	if !r.begun && r.tail-r.head >= len(bom) {
		r.begun = true
		if bytes.HasPrefix(r.buf[r.head:r.tail], bom) {
			r.head += len(bom)
			from = r.head
		}
	}
	for {
		i := bytes.IndexByte(r.buf[from:r.tail], '\n')
		if i < 0 {
			break
		}
		line := r.buf[r.head : from+i]
		r.head = from + i + 1
		from = r.head
		if len(line) > readBytes { // The buffer goes with the line.
			rest := make([]byte, max(readBytes, r.tail-r.head))
			r.tail = copy(rest, r.buf[r.head:r.tail])
			r.buf, r.head, from = rest, 0, 0
		}
		r.line(line)
	}
	if r.over != nil || r.tail-r.head > r.max+1 {
		r.skip(r.buf[r.head:r.tail])
		r.head = r.tail
		if len(r.buf) > readBytes {
			r.buf, r.head, r.tail = nil, 0, 0
		}
	}
}

// end takes the end of the output: a last line counts without its line end, too.
func (r *lineReader) end() {
	last := r.buf[r.head:r.tail]
	r.head = r.tail
	if len(last) == 0 && r.over == nil {
		return
	}
	r.unterminated = true
	r.line(last)
}

// line takes a line, or the end of one that is too long.
func (r *lineReader) line(line []byte) {
	r.begun = true
	if r.over == nil {
		line = bytes.TrimSuffix(line, []byte("\r"))
		if len(line) <= r.max {
			r.deliver(bytes.Trim(line, " \t\r"))
			return
		}
	}
	r.skip(line)
	if r.overCR {
		r.overSize--
	}
	r.handler.Oversize(r.over.ID(), r.over.Kind(), r.overSize)
	r.over, r.overSize = nil, 0
}

// skip takes a piece of a line that is too long.
func (r *lineReader) skip(piece []byte) {
	r.overSize += int64(len(piece))
	if r.over == nil {
		r.over = new(wire.IDScanner)
		piece = piece[max(embedded(piece[:r.max]), 0):]
	}
	if len(piece) > 0 {
		r.overCR = piece[len(piece)-1] == '\r'
	}
	r.over.Write(piece)
}

// deliver gives the handler a line of a bearable length.
func (r *lineReader) deliver(line []byte) {
	switch {
	case len(line) == 0:
		r.handler.Noise(nil)
	case line[0] == '{':
		r.deliverObject(line)
	case line[0] == '[':
		r.deliverBatch(line)
	default:
		r.deliverBanner(line)
	}
}

func (r *lineReader) deliverObject(line []byte) {
	f, err := wire.Parse(line)
	if err == nil {
		r.handler.Frame(own(f), nil)
		return
	}
	r.handler.Noise(clean(line))
	if r.unterminated {
		return // It was cut off, and its call is lost with the link.
	}
	if reply, ok := refusal(line, err); ok {
		r.handler.Frame(reply, nil)
	}
}

// deliverBatch takes an array apart, as servers of 2025-03-26 may answer. An array
// without a frame in it is one piece of noise.
func (r *lineReader) deliverBatch(line []byte) {
	parts, _, err := wire.SplitBatch(line)
	isFrame := func(part []byte) bool { _, err := wire.Parse(part); return err == nil }
	if err != nil || !slices.ContainsFunc(parts, isFrame) {
		r.handler.Noise(clean(line))
		return
	}
	for _, part := range parts {
		r.deliverObject(part)
	}
}

// deliverBanner takes a line that begins with text. Directly behind a banner without a
// line end there may be the first response; nothing else is looked for, because a server
// that logs what it receives must not be taken to send it.
func (r *lineReader) deliverBanner(line []byte) {
	if at := embedded(line); at > 0 {
		if f, err := wire.Parse(line[at:]); err == nil && f.Kind == wire.Response {
			r.handler.Noise(clean(line[:at]))
			r.handler.Frame(own(f), nil)
			return
		}
	}
	r.handler.Noise(clean(line))
}

// embedded returns where in the line the first thing stands that looks like a frame,
// or -1.
func embedded(line []byte) int { return bytes.Index(line, []byte(`{"jsonrpc"`)) }

// own returns f with a Raw that is the receiver's alone: a copy, or, for a long line,
// its part of the buffer, which is not used again.
func own(f wire.Frame) wire.Frame {
	if len(f.Raw) <= readBytes {
		f.Raw = bytes.Clone(f.Raw)
	}
	return f
}

// refusal returns the error response for the call that a broken response names, so
// that the call does not wait for ever. What does not say that it is a response of
// JSON-RPC 2.0, such as a log line with an id in it, names none.
func refusal(line []byte, cause error) (wire.Frame, bool) {
	var scan wire.IDScanner
	scan.Write(line)
	if scan.Kind() != wire.Response || scan.ID() == nil {
		return wire.Frame{}, false
	}
	message := wire.Quote(fmt.Sprintf("the server's response is not valid JSON-RPC: %v", cause))
	f, err := wire.Parse(wire.ErrorReply(scan.ID(), fmt.Appendf(nil, `{"code":%d,"message":%s}`, wire.InternalError, message)))
	return f, err == nil
}
