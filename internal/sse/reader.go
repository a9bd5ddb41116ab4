package sse

import (
	"bytes"
	"io"
	"strconv"
	"time"
)

const (
	firstReadBytes = 4 << 10 // what an idle stream costs
	maxReadBytes   = 64 << 10

	// maxText is how long the value of a field other than data may be, in bytes. A
	// longer one counts as absent.
	maxText = 4 << 10

	// defaultType is the type of an event that does not say.
	defaultType = "message"

	// maxRetry is the longest wait that a stream can ask for.
	maxRetry = time.Hour
)

// Event is one event of a stream.
type Event struct {
	// Type is what the event calls itself; "message" if it does not say.
	Type string
	// Data is the lines of data, joined by LF. It is the receiver's, and nil if the
	// event is longer than the reader's limit.
	Data []byte
	// Size is the length of the data, in bytes, also of data that was too long.
	Size int64
}

// TooLong reports whether the event's data exceeded the limit and was skipped.
func (e Event) TooLong() bool { return int64(len(e.Data)) < e.Size }

// Reader reads an event stream. It takes everything that is legal: lines that end
// with LF, CR or CRLF, a byte order mark, comments, unknown fields, values with and
// without the space before them; and it delivers an event with the last byte of its
// blank line, wherever reads cut the stream (cases 22, C-1 to C-18). Bytes are not
// decoded, so nothing is lost that is no UTF-8.
//
// It must not be used concurrently.
type Reader struct {
	// Skipped takes the data of an event that is too long, in pieces that are valid
	// until it returns. nil drops them. It is to be set before the first Next.
	Skipped func(piece []byte)

	src io.Reader
	max int

	buf        []byte
	head, tail int   // what of buf was read and not yet looked at
	lf         int   // where in buf the next LF is, if not before head; tail if there is none
	err        error // why src gives nothing more

	marks  int  // bytes of a byte order mark that were seen; -1 once the text has begun
	skipLF bool // whether an LF that comes next belongs to the line before

	// The line at hand.
	name    []byte // of its field, as far as it matters
	named   bool   // whether the colon was seen
	spaced  bool   // whether the space behind the colon was looked for
	field   field
	tooLong bool // whether text lacks its end
	text    []byte

	// The event at hand.
	typ     string
	data    []byte
	size    int64
	hasData bool

	idBuffer string
	id       string
	retry    time.Duration
}

// field is a field that means something.
type field uint8

const (
	ignored field = iota // comments and unknown fields
	dataField
	typeField
	idField
	retryField
)

// maxName is the length of the longest name of a field that means something.
const maxName = len("event")

var (
	bom     = []byte("\xef\xbb\xbf")
	lineEnd = []byte("\n")
)

// NewReader returns a reader of src. max is the longest data of one event, in bytes; a
// longer event is delivered without its data, and the stream goes on.
func NewReader(src io.Reader, max int) *Reader {
	return &Reader{src: src, max: max}
}

// Next returns the next event. An event without a line of data is none. The error is
// that of reading, io.EOF at the end; Rest has then what was cut off.
func (r *Reader) Next() (Event, error) {
	for {
		for r.head < r.tail {
			if e, ok := r.advance(); ok {
				return e, nil
			}
		}
		if r.err != nil {
			return Event{}, r.err
		}
		r.fill()
	}
}

// LastID returns the id to continue the stream with, or "": that of the last event,
// with or without data, whose end was read.
func (r *Reader) LastID() string { return r.id }

// Retry returns how long the stream asks to wait before it is opened again, up to an
// hour; 0 if it does not ask.
func (r *Reader) Retry() time.Duration { return r.retry }

// Rest returns the data of an event whose blank line never came, for those who can
// tell by the text that it is complete; nil if there is none. By the standard such an
// event is none.
func (r *Reader) Rest() []byte { return r.data }

// fill reads once. The buffer grows while reads fill it.
func (r *Reader) fill() {
	switch {
	case r.buf == nil:
		r.buf = make([]byte, firstReadBytes)
	case r.tail == len(r.buf) && len(r.buf) < maxReadBytes:
		r.buf = make([]byte, 2*len(r.buf))
	}
	r.head, r.lf = 0, -1
	r.tail, r.err = r.src.Read(r.buf)
	if r.marks >= 0 {
		r.skipMark()
	}
}

// skipMark skips a byte order mark at the beginning of the stream.
func (r *Reader) skipMark() {
	for r.head < r.tail && r.marks >= 0 {
		if r.buf[r.head] == bom[r.marks] {
			r.head++
			if r.marks++; r.marks == len(bom) {
				r.marks = -1
			}
			continue
		}
		// What looked like a mark is the beginning of some unknown field's name.
		r.add(bom[:r.marks])
		r.marks = -1
	}
}

// advance looks at what was read up to the end of one line, and reports whether that
// completed an event.
func (r *Reader) advance() (Event, bool) {
	p := r.buf[r.head:r.tail]
	if r.skipLF {
		r.skipLF = false
		if p[0] == '\n' {
			r.head++
			return Event{}, false
		}
	}
	// The place of the LF is kept, lest a stream of lines that end with CR be searched
	// to its end for each of them.
	if r.lf < r.head {
		r.lf = r.tail
		if n := bytes.IndexByte(p, '\n'); n >= 0 {
			r.lf = r.head + n
		}
	}
	line := r.buf[r.head:r.lf]
	if n := bytes.IndexByte(line, '\r'); n >= 0 {
		line = line[:n]
	}
	r.add(line)
	r.head += len(line)
	if len(line) == len(p) {
		return Event{}, false
	}
	r.head++
	r.skipLF = p[len(line)] == '\r'
	return r.endLine()
}

// add takes a piece of a line.
func (r *Reader) add(piece []byte) {
	if !r.named {
		n := bytes.IndexByte(piece, ':')
		name := piece
		if n >= 0 {
			name = piece[:n]
		}
		// One byte more than the longest name tells longer ones from it.
		r.name = append(r.name, name[:min(len(name), maxName+1-len(r.name))]...)
		if n < 0 {
			return
		}
		r.startValue()
		piece = piece[n+1:]
	}
	if !r.spaced && len(piece) > 0 {
		r.spaced = true
		if piece[0] == ' ' {
			piece = piece[1:]
		}
	}
	switch r.field {
	case ignored:
	case dataField:
		r.addData(piece)
	default:
		if len(r.text)+len(piece) > maxText {
			r.tooLong = true
			return
		}
		r.text = append(r.text, piece...)
	}
}

// startValue notes which field the line at hand is.
func (r *Reader) startValue() {
	r.named, r.spaced, r.field = true, false, ignored
	switch string(r.name) {
	case "data":
		r.field = dataField
		if r.hasData {
			r.addData(lineEnd)
		}
		r.hasData = true
	case "event":
		r.field = typeField
	case "id":
		r.field = idField
	case "retry":
		r.field = retryField
	}
}

func (r *Reader) addData(piece []byte) {
	r.size += int64(len(piece))
	if r.size > int64(r.max) {
		r.skip(r.data)
		r.data = nil
		r.skip(piece)
		return
	}
	if need := len(r.data) + len(piece); need > cap(r.data) {
		grown := make([]byte, len(r.data), max(need, min(2*cap(r.data), r.max)))
		copy(grown, r.data)
		r.data = grown
	}
	r.data = append(r.data, piece...)
}

func (r *Reader) skip(piece []byte) {
	if r.Skipped != nil && len(piece) > 0 {
		r.Skipped(piece)
	}
}

// endLine takes the end of a line; a blank one ends the event.
func (r *Reader) endLine() (Event, bool) {
	if !r.named {
		if len(r.name) == 0 {
			return r.dispatch()
		}
		r.startValue() // A line without a colon is a field without a value.
	}
	switch r.field {
	case typeField:
		switch {
		case r.tooLong || string(r.text) == defaultType:
			r.typ = ""
		default:
			r.typ = string(r.text)
		}
	case idField:
		switch {
		case r.tooLong:
			r.idBuffer = ""
		case bytes.IndexByte(r.text, 0) < 0:
			r.idBuffer = string(r.text)
		}
	case retryField:
		r.setRetry()
	}
	r.name, r.named, r.text, r.tooLong = r.name[:0], false, r.text[:0], false
	return Event{}, false
}

// setRetry takes a value of digits only; any other is ignored.
func (r *Reader) setRetry() {
	for _, c := range r.text {
		if c < '0' || c > '9' {
			return
		}
	}
	if len(r.text) == 0 || r.tooLong {
		return
	}
	r.retry = maxRetry
	if ms, err := strconv.ParseInt(string(r.text), 10, 64); err == nil && ms < maxRetry.Milliseconds() {
		r.retry = time.Duration(ms) * time.Millisecond
	}
}

func (r *Reader) dispatch() (Event, bool) {
	r.id = r.idBuffer
	e := Event{Type: r.typ, Data: r.data, Size: r.size}
	if e.Type == "" {
		e.Type = defaultType
	}
	ok := r.hasData
	r.typ, r.data, r.size, r.hasData = "", nil, 0, false
	return e, ok
}
