package wire

import "bytes"

// maxScannedID is how long an id that an IDScanner finds may be, in bytes as spelled.
const maxScannedID = 256

// IDScanner finds the id of a frame that is too long to be held. It is fed the line
// in pieces of any size, and keeps no more of it than one id (P7). The id may stand
// anywhere in the envelope. The line need be neither valid JSON nor complete.
//
// The zero value is ready. It must not be used concurrently.
type IDScanner struct {
	depth  int  // of the brackets around the next byte
	inside bool // in a string
	escape bool // in a string, behind a backslash

	part    part
	text    []byte // the name or value at hand, if it is kept
	tooLong bool   // whether text lacks its end

	ids     int    // how many ids were seen
	id      []byte // the last of them, if it can be an id
	version bool   // whether jsonrpc is "2.0"
	method  bool
	answers bool // whether result or error was seen
}

// A part is where in the envelope an IDScanner stands.
type part uint8

const (
	beforeObject part = iota
	inName            // of a member, or before it
	afterName
	inID
	inVersion
	inOther // in a value of which nothing is kept
	afterObject
)

// Write reads the next piece of the line.
func (s *IDScanner) Write(p []byte) {
	for i := 0; i < len(p) && s.part != afterObject; i++ {
		if s.inside && s.part == inOther {
			if i += s.skipInside(p[i:]); i == len(p) {
				return
			}
		}
		s.read(p[i])
	}
}

// ID returns the id as it is spelled. It is nil if none or several were found, if it
// is neither string nor number, or if it is longer than 256 bytes.
func (s *IDScanner) ID() []byte {
	if s.ids != 1 {
		return nil
	}
	return s.id
}

// Kind returns what the line is as far as it was read. It is Invalid unless the line
// says that it is JSON-RPC 2.0 and has either a method or a result or error. Two answers
// in one make no frame, but who waits for an answer can be told.
func (s *IDScanner) Kind() Kind {
	switch {
	case !s.version, s.method == s.answers:
		return Invalid
	case s.answers:
		return Response
	case s.ids > 0:
		return Request
	}
	return Notification
}

func (s *IDScanner) read(c byte) {
	switch {
	case s.part == beforeObject:
		if c == '{' {
			s.depth, s.part = 1, inName
		} else if !isSpace(c) {
			s.part = afterObject
		}
	case s.inside:
		s.keep(c)
		s.readInside(c)
	case isSpace(c):
		// It is no part of any value.
	case s.depth == 1 && (c == ',' || c == '}' || c == ']'):
		s.endValue()
		s.part = inName
		if c != ',' {
			s.part = afterObject
		}
	case s.depth == 1 && c == ':' && s.part == afterName:
		s.startValue()
	default:
		s.keep(c)
		switch c {
		case '"':
			s.inside = true
		case '{', '[':
			s.depth++
		case '}', ']':
			s.depth--
		}
	}
}

// skipInside returns the length of what comes before the next quote in a string of
// which nothing is kept. The quote ends the string unless an odd number of backslashes
// stands before it.
func (s *IDScanner) skipInside(p []byte) int {
	n := bytes.IndexByte(p, '"')
	if n < 0 {
		n = len(p)
	}
	run := 0
	for run < n && p[n-1-run] == '\\' {
		run++
	}
	// If there are only backslashes, one may have come before this piece.
	s.escape = (run%2 == 1) != (run == n && s.escape)
	return n
}

func (s *IDScanner) readInside(c byte) {
	switch {
	case s.escape:
		s.escape = false
	case c == '\\':
		s.escape = true
	case c == '"':
		s.inside = false
		if s.part == inName && s.depth == 1 {
			s.part = afterName
		}
	}
}

// keep adds a byte to the name or value at hand, if it matters and has room.
func (s *IDScanner) keep(c byte) {
	switch {
	case s.part == afterName || s.part == inOther:
	case len(s.text) == maxScannedID:
		s.tooLong = true
	default:
		s.text = append(s.text, c)
	}
}

// startValue notes which member the text at hand names.
func (s *IDScanner) startValue() {
	name := string(s.text)
	if s.tooLong {
		name = ""
	}
	s.text, s.tooLong = s.text[:0], false
	s.part = inOther
	switch name {
	case `"jsonrpc"`:
		s.part = inVersion
	case `"id"`:
		s.part = inID
		s.ids++
	case `"method"`:
		s.method = true
	case `"result"`, `"error"`:
		s.answers = true
	}
}

// endValue notes the value at hand, if it matters.
func (s *IDScanner) endValue() {
	switch s.part {
	case inVersion:
		s.version = string(s.text) == `"2.0"`
	case inID:
		if s.id = nil; !s.tooLong && isID(s.text) && Valid(s.text) == nil {
			s.id = append(s.id, s.text...)
		}
	}
	s.text, s.tooLong = s.text[:0], false
}
