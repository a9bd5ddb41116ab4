package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/tailscale/hujson"
)

const (
	// maxFileSize is the largest file that is read, in bytes.
	maxFileSize = 16 << 20
	// maxBrackets bounds the nesting of a file, because the parser recurses.
	maxBrackets = 50_000
)

var (
	bomUTF8    = []byte("\xef\xbb\xbf")
	bomUTF16LE = []byte("\xff\xfe")
	bomUTF16BE = []byte("\xfe\xff")
)

// parse reads JSON with comments and trailing commas into a tree. The root is an
// object; anything else is reported.
func (r *reader) parse(data []byte) (root node, ok bool) {
	// A final line feed ends a comment on the last line, and a byte order mark is
	// no column of the first (case 50).
	r.data = slices.Concat(bytes.TrimPrefix(data, bomUTF8), []byte("\n"))

	fail := func(offset int, message string) (node, bool) {
		r.report(Error, "", offset, "", message)
		return node{}, false
	}
	const expected = `expected an object such as {"mcpServers": {"name": {"command": "…"}}}`
	switch {
	case len(data) > maxFileSize:
		return fail(0, fmt.Sprintf("the file is larger than %d MiB", maxFileSize>>20))
	case looksUTF16(data):
		return fail(0, "the file is UTF-16; save it as UTF-8")
	case !utf8.Valid(r.data):
		return fail(firstInvalid(r.data), "the file is not valid UTF-8 here; save it as UTF-8")
	case len(bytes.TrimSpace(r.data)) == 0:
		return fail(0, "the file is empty; "+expected)
	case bytes.Count(r.data, []byte("["))+bytes.Count(r.data, []byte("{")) > maxBrackets:
		return fail(0, fmt.Sprintf("the file has more than %d brackets and braces", maxBrackets))
	}
	value, err := hujson.Parse(r.data)
	if err != nil {
		return fail(r.syntaxError(err))
	}
	if value.Value.Kind() != '{' {
		return fail(value.StartOffset, expected+", not "+kindName(value.Value.Kind()))
	}
	return node{keyOffset: value.StartOffset, value: &value}, true
}

// looksUTF16 recognises UTF-16 with and without a byte order mark: JSON begins
// with an ASCII character, whose other byte is zero.
func looksUTF16(data []byte) bool {
	if bytes.HasPrefix(data, bomUTF16LE) || bytes.HasPrefix(data, bomUTF16BE) {
		return true
	}
	return len(data) >= 2 && (data[0] == 0) != (data[1] == 0)
}

// firstInvalid is the offset of the first byte that is not UTF-8.
func firstInvalid(data []byte) int {
	offset := 0
	for offset < len(data) {
		c, size := utf8.DecodeRune(data[offset:])
		if c == utf8.RuneError && size == 1 {
			break
		}
		offset += size
	}
	return offset
}

// syntaxError says where and why the text is no JSON. The parser's own message
// can quote the text, which may hold a secret, so only the position is taken
// from it; it offers that in no other form.
func (r *reader) syntaxError(err error) (offset int, message string) {
	var line, column int
	if _, scanErr := fmt.Sscanf(err.Error(), "hujson: line %d, column %d:", &line, &column); scanErr != nil {
		return 0, "the file is not valid JSON"
	}
	for ; line > 1; line-- {
		offset += bytes.IndexByte(r.data[offset:], '\n') + 1
	}
	offset += column - 1

	if errors.Is(err, io.ErrUnexpectedEOF) || offset >= len(r.data) {
		return min(offset, len(r.data)-1), "the file ends too early: a value is missing, or a quote, bracket, brace or comment is not closed"
	}
	switch c, _ := utf8.DecodeRune(r.data[offset:]); {
	case c == '"' && badString(r.data[offset:]):
		return offset, "this string is not valid JSON: backslashes, quotes and line breaks in it need a backslash before them"
	case c == '"':
		return offset, "something is missing before this string, such as a comma or a colon"
	case c == '\'', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		return offset, "this is not valid JSON: names and strings stand in double quotes"
	default:
		return offset, fmt.Sprintf("the character %q cannot stand here", c)
	}
}

// badString reports whether the string at the beginning of data is at fault
// itself, rather than its place.
func badString(data []byte) bool {
	for i := 1; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return !hujson.Literal(data[:i+1]).IsValid()
		}
	}
	return true
}
