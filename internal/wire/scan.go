package wire

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects may nest, the frame's own object
// included. It bounds the scanner's recursion.
const maxDepth = 512

// A scanner finds where JSON values end, and refuses what is not strictly JSON. It
// never changes or copies what it reads.
type scanner struct {
	raw []byte
	// high collects the bytes seen in strings eight at a time. If one of its top
	// bits is set, some string is not plain ASCII, and utf8 must look at it.
	high uint64
}

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

// value returns the index behind the value that starts at raw[i]; depth counts the
// arrays and objects around it.
func (s *scanner) value(i, depth int) (int, error) {
	if i >= len(s.raw) {
		return i, broken(i, "the value is missing")
	}
	switch c := s.raw[i]; c {
	case '"':
		return s.str(i)
	case '{':
		return s.object(i, depth+1)
	case '[':
		return s.array(i, depth+1)
	case 't':
		return s.literal(i, "true")
	case 'f':
		return s.literal(i, "false")
	case 'n':
		return s.literal(i, "null")
	default:
		if c == '-' || isDigit(c) {
			return s.number(i)
		}
		return i, broken(i, "a value must start here")
	}
}

func (s *scanner) object(i, depth int) (int, error) {
	if depth > maxDepth {
		return i, broken(i, "nested too deeply")
	}
	w := walker{s: s, at: i, depth: depth}
	for w.member() {
	}
	return w.at, w.err
}

func (s *scanner) array(i, depth int) (int, error) {
	if depth > maxDepth {
		return i, broken(i, "nested too deeply")
	}
	w := walker{s: s, at: i, depth: depth}
	for w.element() {
	}
	return w.at, w.err
}

// str returns the index behind the string literal that opens at raw[i]. It reads
// eight bytes at a time: the lowest set bit of stop is exact, whatever the borrows
// of the subtractions did above it.
func (s *scanner) str(i int) (int, error) {
	raw, open := s.raw, i
	for i++; ; {
		for i+8 <= len(raw) {
			x := binary.LittleEndian.Uint64(raw[i:])
			s.high |= x
			quote, escape := x^('"'*ones), x^('\\'*ones)
			stop := (quote-ones)&^quote | (escape-ones)&^escape | (x-' '*ones)&^x
			if stop &= tops; stop != 0 {
				i += bits.TrailingZeros64(stop) / 8
				break
			}
			i += 8
		}
		for i < len(raw) && raw[i] != '"' && raw[i] != '\\' && raw[i] >= ' ' {
			s.high |= uint64(raw[i])
			i++
		}
		switch {
		case i >= len(raw):
			return i, broken(open, "the string does not end")
		case raw[i] == '"':
			return i + 1, nil
		case raw[i] != '\\':
			return i, broken(i, "a control character stands in a string")
		}
		n := escapeLen(raw[i:])
		if n == 0 {
			return i, broken(i, "the escape is not one of JSON's")
		}
		i += n
	}
}

// escapeLen returns the length of the escape that b starts with, or 0 if it is none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) >= 6 && isHex(b[2]) && isHex(b[3]) && isHex(b[4]) && isHex(b[5]) {
			return 6
		}
	}
	return 0
}

func (s *scanner) number(i int) (int, error) {
	start := i
	if s.raw[i] == '-' {
		i++
	}
	switch first := i; {
	case i < len(s.raw) && s.raw[i] == '0':
		i++
	default:
		if i = s.digits(i); i == first {
			return i, broken(start, "the number has no digits")
		}
	}
	if i < len(s.raw) && s.raw[i] == '.' {
		first := i + 1
		if i = s.digits(first); i == first {
			return i, broken(start, "the number's fraction has no digits")
		}
	}
	if i < len(s.raw) && (s.raw[i] == 'e' || s.raw[i] == 'E') {
		i++
		if i < len(s.raw) && (s.raw[i] == '+' || s.raw[i] == '-') {
			i++
		}
		first := i
		if i = s.digits(first); i == first {
			return i, broken(start, "the number's exponent has no digits")
		}
	}
	return i, nil
}

func (s *scanner) digits(i int) int {
	for i < len(s.raw) && isDigit(s.raw[i]) {
		i++
	}
	return i
}

func (s *scanner) literal(i int, word string) (int, error) {
	if end := i + len(word); end <= len(s.raw) && string(s.raw[i:end]) == word {
		return end, nil
	}
	return i, broken(i, "a value must start here")
}

func (s *scanner) space(i int) int {
	for i < len(s.raw) && isSpace(s.raw[i]) {
		i++
	}
	return i
}

// utf8 refuses strings that are not UTF-8; to be called when all was scanned.
func (s *scanner) utf8() error {
	if s.high&tops != 0 && !utf8.Valid(s.raw) {
		return &ParseFailure{Code: ParseError, Message: "parse JSON: a string is not UTF-8"}
	}
	return nil
}

func isDigit(c byte) bool { return c-'0' < 10 }

func isHex(c byte) bool { return isDigit(c) || c|0x20-'a' < 6 }

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// trim returns raw without the white space around it.
func trim(raw []byte) []byte {
	for len(raw) > 0 && isSpace(raw[0]) {
		raw = raw[1:]
	}
	for len(raw) > 0 && isSpace(raw[len(raw)-1]) {
		raw = raw[:len(raw)-1]
	}
	return raw
}

// broken returns the failure of JSON that breaks at an offset. Its message never
// quotes the text, which may hold secrets.
func broken(at int, what string) error {
	return &ParseFailure{Code: ParseError, Message: fmt.Sprintf("parse JSON: %s (at byte %d)", what, at)}
}

// A walker steps through one object or array, whose opening bracket is at `at`.
// After the last step `at` is behind the closing bracket, or err says what is wrong.
type walker struct {
	s     *scanner
	at    int
	depth int  // of the members, 1 for those of a frame
	begun bool // whether the opening bracket is behind
	key   Span // the member's name with its quotes; absent in arrays
	value Span
	err   error
}

// member steps to the next member of an object.
func (w *walker) member() bool {
	s := w.s
	i, ok := w.step('{', '}')
	if !ok {
		return false
	}
	if i >= len(s.raw) || s.raw[i] != '"' {
		return w.fail(broken(i, "a member's name must start here"))
	}
	end, err := s.str(i)
	if err != nil {
		return w.fail(err)
	}
	w.key = Span{i, end}
	if i = s.space(end); i >= len(s.raw) || s.raw[i] != ':' {
		return w.fail(broken(i, "a colon is missing"))
	}
	return w.read(s.space(i + 1))
}

// element steps to the next element of an array.
func (w *walker) element() bool {
	i, ok := w.step('[', ']')
	return ok && w.read(i)
}

// step moves behind the opening bracket or a comma, and reports whether something
// must follow.
func (w *walker) step(opening, closing byte) (int, bool) {
	s := w.s
	if !w.begun {
		w.begun = true
		if w.at >= len(s.raw) || s.raw[w.at] != opening {
			return w.at, w.fail(broken(w.at, "another bracket must start here"))
		}
		i := s.space(w.at + 1)
		if i < len(s.raw) && s.raw[i] == closing {
			w.at = i + 1
			return i, false
		}
		return i, true
	}
	i := s.space(w.at)
	switch {
	case i < len(s.raw) && s.raw[i] == ',':
		return s.space(i + 1), true
	case i < len(s.raw) && s.raw[i] == closing:
		w.at = i + 1
		return i, false
	}
	return i, w.fail(broken(i, "a comma or the closing bracket is missing"))
}

func (w *walker) read(i int) bool {
	end, err := w.s.value(i, w.depth)
	if err != nil {
		return w.fail(err)
	}
	w.value, w.at = Span{i, end}, end
	return true
}

// end returns what is wrong with the text after the last step: the walk's failure, or
// that something other than white space follows the closing bracket.
func (w *walker) end() error {
	if w.err != nil {
		return w.err
	}
	if i := w.s.space(w.at); i != len(w.s.raw) {
		return broken(i, "something follows the closing bracket")
	}
	return nil
}

func (w *walker) fail(err error) bool {
	w.err = err
	return false
}
