package dialect

import (
	"bytes"

	"roundhouse/internal/wire"
)

// A frame is the lines of one event, up to its blank line, as they came.
type frame struct {
	raw   []byte
	event string
	data  []byte  // the lines of data, joined by LF
	lines []line  // those lines
	one   [1]line // room for them, mostly
}

type line struct {
	whole wire.Span // with its end
	value wire.Span
}

var mark = []byte("\xef\xbb\xbf")

// parseFrame reads what was found to be the lines of one event. first tells that the
// stream begins with it, where a byte order mark may stand.
func parseFrame(raw []byte, first bool) *frame {
	f := &frame{raw: raw}
	f.lines = f.one[:0]
	at := 0
	if first && bytes.HasPrefix(raw, mark) {
		at = len(mark)
	}
	for at < len(raw) {
		start := at
		end := len(raw)
		if n := lineEnd(raw[at:]); n >= 0 {
			end = at + n
		}
		at = end
		if at < len(raw) {
			if at++; raw[at-1] == '\r' && at < len(raw) && raw[at] == '\n' {
				at++
			}
		}
		name, value := raw[start:end], wire.Span{Start: end, End: end}
		if n := bytes.IndexByte(name, ':'); n >= 0 {
			value.Start = start + n + 1
			if value.Start < end && raw[value.Start] == ' ' {
				value.Start++
			}
			name = name[:n]
		}
		switch string(name) {
		case "event":
			f.event = string(value.Of(raw))
		case "data":
			f.lines = append(f.lines, line{wire.Span{Start: start, End: at}, value})
		}
	}
	if len(f.lines) == 1 {
		f.data = f.lines[0].value.Of(raw)
		return f
	}
	for i, l := range f.lines {
		if i > 0 {
			f.data = append(f.data, '\n')
		}
		f.data = append(f.data, raw[l.value.Start:l.value.End]...)
	}
	return f
}

// lineEnd returns where the first CR or LF is, -1 if there is none.
func lineEnd(b []byte) int {
	n := bytes.IndexByte(b, '\n')
	if n >= 0 {
		b = b[:n]
	}
	if cr := bytes.IndexByte(b, '\r'); cr >= 0 {
		return cr
	}
	return n
}

// with returns the frame's lines with other data, which is JSON.
func (f *frame) with(data []byte) []byte {
	edits := []wire.Edit{{At: f.lines[0].value, With: wire.Flatten(data)}}
	for _, l := range f.lines[1:] {
		edits = append(edits, wire.Edit{At: l.whole})
	}
	return wire.Splice(nil, f.raw, edits...)
}

// A splitter finds frames in bytes as they come. It holds what is not yet one.
type splitter struct {
	buf     []byte
	scanned int  // how much of buf was looked at
	start   int  // where in buf the line at hand starts
	skipLF  bool // whether an LF that comes next belongs to the end of the line before
}

// part is what a splitter finds.
type part uint8

const (
	nothing    part = iota // more bytes are needed
	eventPart              // the lines of an event with their blank line
	comment                // a comment between events, with its line end
	blankPart              // a blank line that ends nothing
	secondHalf             // the LF that ends what came before, which ended with CR
)

// add takes bytes.
func (s *splitter) add(p []byte) { s.buf = append(s.buf, p...) }

// next takes the next part. Its bytes are never overwritten, so that what is made of
// them may refer to them.
func (s *splitter) next() (part, []byte) {
	for s.scanned < len(s.buf) {
		if s.skipLF {
			s.skipLF = false
			if s.buf[s.scanned] == '\n' {
				s.scanned++
				if s.scanned == 1 {
					return secondHalf, s.take()
				}
				s.start = s.scanned
				continue
			}
		}
		n := lineEnd(s.buf[s.scanned:])
		if n < 0 {
			s.scanned = len(s.buf)
			break
		}
		end := s.scanned + n
		s.scanned = end + 1
		s.skipLF = s.buf[end] == '\r'
		line := s.buf[s.start:end]
		switch only := s.start == 0; {
		case len(line) == 0 && only:
			return blankPart, s.take()
		case len(line) == 0:
			return eventPart, s.take()
		case line[0] == ':' && only:
			return comment, s.take()
		}
		s.start = s.scanned
	}
	return nothing, nil
}

// take returns what was looked at and goes on behind it.
func (s *splitter) take() []byte {
	taken := s.buf[:s.scanned:s.scanned]
	s.buf = s.buf[s.scanned:]
	s.scanned, s.start = 0, 0
	return taken
}

// rest takes what did not become a frame.
func (s *splitter) rest() []byte {
	s.scanned = len(s.buf)
	return s.take()
}
