package era

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"

	"roundhouse/internal/wire"
)

// A tool may mark arguments that its clients repeat in a header, Mcp-Param-{mark}, for
// those who route by headers. What clients say there is checked by us, since servers may
// be of the older era or behind a pipe; to servers of the newer era we say it anew (H1).

const (
	paramPrefix = "Mcp-Param-"
	paramMark   = "x-mcp-header"
	maxMirrored = 1<<53 - 1 // the largest integer that has a header
)

// marked is an argument with a header.
type marked struct {
	header string
	path   []string
}

// VetParams checks the headers for arguments against a tools/call. tool is as its server
// lists it. The error is a *wire.ParseFailure.
func VetParams(h http.Header, tool, arguments []byte) error {
	if !bytes.Contains(tool, []byte(paramMark)) {
		return nil
	}
	for _, m := range marks(tool) {
		if problem := m.check(h, arguments); problem != "" {
			return &wire.ParseFailure{Code: wire.HeaderMismatch, Message: "the header " + m.header + " " + problem}
		}
	}
	return nil
}

// Callable reports whether a tool's marks are valid. A client over HTTP must not use one
// whose are not.
func Callable(tool []byte) bool {
	if !bytes.Contains(tool, []byte(paramMark)) {
		return true
	}
	list, ok := readMarks(tool)
	var v struct {
		InputSchema any `json:"inputSchema"`
	}
	_ = json.Unmarshal(tool, &v) // it was read before
	return ok && countMarks(v.InputSchema) == len(list)
}

// countMarks counts the marks in a schema wherever they stand; those that are not reached
// through properties only are not valid.
func countMarks(schema any) (n int) {
	switch v := schema.(type) {
	case []any:
		for _, x := range v {
			n += countMarks(x)
		}
	case map[string]any:
		for name, x := range v {
			if names, ok := x.(map[string]any); ok && name == "properties" {
				for _, p := range names { // which may have any name
					n += countMarks(p)
				}
				continue
			}
			if name == paramMark {
				n++
			}
			n += countMarks(x)
		}
	}
	return n
}

// marks returns the arguments of a tool that have headers. A tool with a mark that is
// not valid has none: its clients must not use it, and what they send means nothing.
func marks(tool []byte) []marked {
	list, _ := readMarks(tool)
	return list
}

// readMarks returns the marks of a tool, and whether all are valid; if not, there are none.
func readMarks(tool []byte) (list []marked, ok bool) {
	var v struct {
		InputSchema json.RawMessage `json:"inputSchema"`
	}
	if json.Unmarshal(tool, &v) != nil {
		return nil, true
	}
	if !collectMarks(v.InputSchema, nil, &list) {
		return nil, false
	}
	seen := map[string]bool{}
	for _, m := range list {
		if seen[m.header] {
			return nil, false
		}
		seen[m.header] = true
	}
	return list, true
}

// collectMarks adds the marks in a schema's properties. It reports whether all are
// valid.
func collectMarks(schema json.RawMessage, path []string, list *[]marked) bool {
	var v map[string]json.RawMessage
	if json.Unmarshal(schema, &v) != nil {
		return true // true and false are schemas
	}
	if raw, ok := v[paramMark]; ok {
		var name, kind string
		if json.Unmarshal(raw, &name) != nil || !isToken(name) || len(path) == 0 || json.Unmarshal(v["type"], &kind) != nil {
			return false
		}
		if kind != "string" && kind != "integer" && kind != "boolean" && kind != "number" {
			return false
		}
		*list = append(*list, marked{http.CanonicalHeaderKey(paramPrefix + name), path})
	}
	var properties map[string]json.RawMessage
	_ = json.Unmarshal(v["properties"], &properties) // what is no object has none
	for name, p := range properties {
		if !collectMarks(p, append(path[:len(path):len(path)], name), list) {
			return false
		}
	}
	return true
}

// isToken reports whether s can be part of a header's name (RFC 9110).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// check returns what is wrong with the header for an argument, or "".
func (m marked) check(h http.Header, arguments []byte) string {
	values := h.Values(m.header)
	raw, once := m.find(arguments)
	switch {
	case !once:
		return "is for an argument that stands there twice"
	case len(values) > 1:
		return "stands there more than once"
	case raw == nil || string(raw) == "null":
		if len(values) > 0 {
			return "is for an argument that is not there"
		}
		return ""
	case !mirrored(raw):
		return "" // the server says what it thinks of that
	case len(values) == 0:
		return "is missing"
	case !mirrors(strings.Trim(values[0], " \t"), raw):
		return "does not say the same as the argument"
	}
	return ""
}

// find returns the argument, or nil. once is false if one of the names on the way to
// it stands twice.
func (m marked) find(arguments []byte) (raw []byte, once bool) {
	raw = arguments
	for _, name := range m.path {
		if len(raw) == 0 || raw[0] != '{' {
			return nil, true
		}
		object := raw
		raw = nil
		for member, err := range wire.Members(object) {
			if err != nil {
				return nil, true // cannot be: it was read before
			}
			if member.Key != name {
				continue
			}
			if raw != nil {
				return nil, false
			}
			raw = member.Value.Of(object)
		}
	}
	return raw, true
}

// mirrored reports whether a value has a header.
func mirrored(raw []byte) bool {
	switch raw[0] {
	case '"', 't', 'f':
		return true
	case '{', '[', 'n':
		return false
	}
	n, err := strconv.ParseFloat(string(raw), 64)
	return err == nil && -maxMirrored <= n && n <= maxMirrored
}

// mirrors reports whether a header's value says what a JSON value does; numbers are
// compared as such.
func mirrors(value string, raw []byte) bool {
	switch raw[0] {
	case '"':
		text, err := wire.Text(raw)
		return err == nil && wire.HeaderMeans(value, text)
	case 't', 'f':
		return value == string(raw)
	}
	a, err := strconv.ParseFloat(value, 64)
	b, err2 := strconv.ParseFloat(string(raw), 64)
	return err == nil && err2 == nil && a == b
}

// ParamHeaders returns the headers by which a call of a tool repeats its marked arguments,
// or nil if there are none. Arguments that are absent, null or cannot be mirrored have
// none.
func ParamHeaders(tool, arguments []byte) http.Header {
	if !bytes.Contains(tool, []byte(paramMark)) {
		return nil
	}
	var h http.Header
	for _, m := range marks(tool) {
		raw, once := m.find(arguments)
		if !once || raw == nil || !mirrored(raw) {
			continue
		}
		value := string(raw)
		switch n, err := strconv.ParseFloat(value, 64); {
		case raw[0] == '"':
			text, err := wire.Text(raw)
			if err != nil {
				continue
			}
			value = wire.HeaderValue(text)
		case err == nil && strings.ContainsAny(value, ".eE") && n == math.Trunc(n):
			value = strconv.FormatFloat(n, 'f', -1, 64) // an integer is said without a point
		}
		if h == nil {
			h = http.Header{}
		}
		h.Set(m.header, value)
	}
	return h
}
