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

// A source is scanned for where its JSON values end; what is not strictly JSON is
// refused. Scanning never changes or copies anything. It does not look at UTF-8.
type source []byte

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

// value returns the index behind the value that starts at t[i]; depth counts the
// arrays and objects around it.
func (t source) value(i, depth int) (int, error) {
	if i >= len(t) {
		return i, broken(i, "the value is missing")
	}
	switch c := t[i]; c {
	case '"':
		return t.str(i)
	case '{':
		return t.object(i, depth+1)
	case '[':
		return t.array(i, depth+1)
	case 't':
		return t.literal(i, "true")
	case 'f':
		return t.literal(i, "false")
	case 'n':
		return t.literal(i, "null")
	default:
		if c == '-' || isDigit(c) {
			return t.number(i)
		}
		return i, broken(i, "a value must start here")
	}
}

func (t source) object(i, depth int) (int, error) {
	if depth > maxDepth {
		return i, broken(i, "nested too deeply")
	}
	w := walker{t: t, at: i, depth: depth}
	for w.member() {
	}
	return w.at, w.err
}

func (t source) array(i, depth int) (int, error) {
	if depth > maxDepth {
		return i, broken(i, "nested too deeply")
	}
	w := walker{t: t, at: i, depth: depth}
	for w.element() {
	}
	return w.at, w.err
}

// str returns the index behind the string literal that opens at t[i]. It reads
// eight bytes at a time: the lowest set bit of stop is exact, whatever the borrows
// of the subtractions did above it.
func (t source) str(i int) (int, error) {
	open := i
	for i++; ; {
		for i+8 <= len(t) {
			x := binary.LittleEndian.Uint64(t[i:])
			quote, escape := x^('"'*ones), x^('\\'*ones)
			stop := (quote-ones)&^quote | (escape-ones)&^escape | (x-' '*ones)&^x
			if stop &= tops; stop != 0 {
				i += bits.TrailingZeros64(stop) / 8
				break
			}
			i += 8
		}
		for i < len(t) && t[i] != '"' && t[i] != '\\' && t[i] >= ' ' {
			i++
		}
		switch {
		case i >= len(t):
			return i, broken(open, "the string does not end")
		case t[i] == '"':
			return i + 1, nil
		case t[i] != '\\':
			return i, broken(i, "a control character stands in a string")
		}
		n := escapeLen(t[i:])
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

func (t source) number(i int) (int, error) {
	start := i
	if t[i] == '-' {
		i++
	}
	if i < len(t) && t[i] == '0' {
		i++
	} else {
		first := i
		if i = t.digits(first); i == first {
			return i, broken(start, "the number has no digits")
		}
	}
	if i < len(t) && t[i] == '.' {
		first := i + 1
		if i = t.digits(first); i == first {
			return i, broken(start, "the number's fraction has no digits")
		}
	}
	if i < len(t) && (t[i] == 'e' || t[i] == 'E') {
		i++
		if i < len(t) && (t[i] == '+' || t[i] == '-') {
			i++
		}
		first := i
		if i = t.digits(first); i == first {
			return i, broken(start, "the number's exponent has no digits")
		}
	}
	return i, nil
}

func (t source) digits(i int) int {
	for i < len(t) && isDigit(t[i]) {
		i++
	}
	return i
}

func (t source) literal(i int, word string) (int, error) {
	if end := i + len(word); end <= len(t) && string(t[i:end]) == word {
		return end, nil
	}
	return i, broken(i, "a value must start here")
}

func (t source) space(i int) int {
	for i < len(t) && isSpace(t[i]) {
		i++
	}
	return i
}

// checkUTF8 refuses strings that are not UTF-8, in text that is JSON otherwise.
func (t source) checkUTF8() error {
	if !utf8.Valid(t) {
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
	t     source
	at    int
	depth int  // of the members, 1 for those of a frame
	begun bool // whether the opening bracket is behind
	key   Span // the member's name with its quotes; absent in arrays
	value Span
	err   error
}

// member steps to the next member of an object.
func (w *walker) member() bool { return w.name() && w.read(w.at) }

// name steps to the next member of an object and reads its name; its value, which must be
// read next, begins at w.at.
func (w *walker) name() bool {
	t := w.t
	i, ok := w.step('{', '}')
	if !ok {
		return false
	}
	if i >= len(t) || t[i] != '"' {
		return w.fail(broken(i, "a member's name must start here"))
	}
	end, err := t.str(i)
	if err != nil {
		return w.fail(err)
	}
	w.key = Span{i, end}
	if i = t.space(end); i >= len(t) || t[i] != ':' {
		return w.fail(broken(i, "a colon is missing"))
	}
	w.at = t.space(i + 1)
	return true
}

// element steps to the next element of an array.
func (w *walker) element() bool {
	i, ok := w.step('[', ']')
	return ok && w.read(i)
}

// step moves behind the opening bracket or a comma, and reports whether something
// must follow.
func (w *walker) step(opening, closing byte) (int, bool) {
	t := w.t
	if !w.begun {
		w.begun = true
		if w.at >= len(t) || t[w.at] != opening {
			return w.at, w.fail(broken(w.at, "another bracket must start here"))
		}
		i := t.space(w.at + 1)
		if i < len(t) && t[i] == closing {
			w.at = i + 1
			return i, false
		}
		return i, true
	}
	i := t.space(w.at)
	switch {
	case i < len(t) && t[i] == ',':
		return t.space(i + 1), true
	case i < len(t) && t[i] == closing:
		w.at = i + 1
		return i, false
	}
	return i, w.fail(broken(i, "a comma or the closing bracket is missing"))
}

func (w *walker) read(i int) bool {
	end, err := w.t.value(i, w.depth)
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
	if i := w.t.space(w.at); i != len(w.t) {
		return broken(i, "something follows the closing bracket")
	}
	return nil
}

func (w *walker) fail(err error) bool {
	w.err = err
	return false
}
