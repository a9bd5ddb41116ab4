package config

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"
)

// A reader goes through one file and collects what is wrong with it. Its
// messages name keys of the file and names of variables, but never quote a
// value: any value may be a secret (case 67).
type reader struct {
	file string // as the caller named it, for problems
	dir  string // absolute directory of the file, or "" without one
	env  func(string) (string, bool)
	data []byte // the file's text, without a byte order mark

	injecting bool // it is no file but the entry of a server that is injected

	problems []Problem
	fatal    bool   // an error outside all server entries
	scope    *scope // the server entry that is being read, or nil
}

// A scope is the server entry to which problems belong.
type scope struct {
	server   string
	path     string   // of the entry
	disabled bool     // by the file itself: then errors are mere warnings
	errors   []string // why the server cannot be used
}

// A node is one value of the file: a member of an object, or an element of an
// array.
type node struct {
	path      string // such as mcpServers.files.args[2]
	key       string // the member's name, or "" for an element
	keyOffset int    // where the name stands; for an element, the value
	value     *hujson.Value
}

// errorAt reports that the value of n is wrong.
func (r *reader) errorAt(n node, format string, args ...any) {
	r.report(Error, n.path, n.value.StartOffset, "", fmt.Sprintf(format, args...))
}

// errorAtKey reports that n should not stand there, or lacks something.
func (r *reader) errorAtKey(n node, format string, args ...any) {
	r.report(Error, n.path, n.keyOffset, "", fmt.Sprintf(format, args...))
}

// warnAtKey reports something about n that stops nothing.
func (r *reader) warnAtKey(n node, format string, args ...any) {
	r.report(Warning, n.path, n.keyOffset, "", fmt.Sprintf(format, args...))
}

// report adds a problem at a byte offset of the file; a negative offset means
// that it has no place in the file.
func (r *reader) report(severity Severity, path string, offset int, suggestion, message string) {
	p := Problem{Severity: severity, Path: path, Message: message, Suggestion: suggestion}
	if offset >= 0 {
		p.File = r.file
		p.Line, p.Column = r.lineColumn(offset)
	}
	switch {
	case r.scope == nil:
		r.fatal = r.fatal || severity == Error
	case severity == Error && r.scope.disabled:
		p.Server, p.Severity = r.scope.server, Warning
	case severity == Error:
		p.Server = r.scope.server
		if inside, found := strings.CutPrefix(path, r.scope.path+"."); found {
			message = inside + ": " + message
		}
		r.scope.errors = append(r.scope.errors, message)
	default:
		p.Server = r.scope.server
	}
	r.problems = append(r.problems, p)
}

// lineColumn counts both from 1, the column in bytes.
func (r *reader) lineColumn(offset int) (line, column int) {
	before := r.data[:offset]
	return 1 + bytes.Count(before, []byte("\n")), offset - bytes.LastIndexByte(before, '\n')
}

// position is the place of an offset as "file:line:column".
func (r *reader) position(offset int) string {
	line, column := r.lineColumn(offset)
	return fmt.Sprintf("%s:%d:%d", r.file, line, column)
}

// sorted returns the problems in the order of the file, those without a place first.
func (r *reader) sorted() []Problem {
	slices.SortStableFunc(r.problems, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return r.problems
}

// kindName is what a person calls the kind of a JSON value.
func kindName(k hujson.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "true or false"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	default:
		return "an array"
	}
}

// wrongKind reports a value of the wrong type.
func (r *reader) wrongKind(n node, want string) {
	r.errorAt(n, "must be %s, not %s", want, kindName(n.value.Value.Kind()))
}

// text reads a string.
func (r *reader) text(n node) (string, bool) {
	lit, ok := n.value.Value.(hujson.Literal)
	if !ok || lit.Kind() != '"' {
		r.wrongKind(n, "a string")
		return "", false
	}
	return lit.String(), true
}

// flag reads true or false.
func (r *reader) flag(n node) (value, ok bool) {
	lit, ok := n.value.Value.(hujson.Literal)
	if !ok || lit.Kind() != 't' && lit.Kind() != 'f' {
		r.wrongKind(n, "true or false")
		return false, false
	}
	return lit.Bool(), true
}

// whole reads a whole number of at least lowest.
func (r *reader) whole(n node, lowest int64) (int64, bool) {
	lit, ok := n.value.Value.(hujson.Literal)
	if !ok || lit.Kind() != '0' {
		r.wrongKind(n, "a whole number")
		return 0, false
	}
	v, err := strconv.ParseInt(string(lit), 10, 64)
	if err != nil || v < lowest {
		r.errorAt(n, "must be a whole number, at least %d", lowest)
		return 0, false
	}
	return v, true
}

// elements returns the elements of an array.
func (r *reader) elements(n node) ([]node, bool) {
	array, ok := n.value.Value.(*hujson.Array)
	if !ok {
		r.wrongKind(n, "an array")
		return nil, false
	}
	elements := make([]node, len(array.Elements))
	for i := range array.Elements {
		v := &array.Elements[i]
		elements[i] = node{path: fmt.Sprintf("%s[%d]", n.path, i), keyOffset: v.StartOffset, value: v}
	}
	return elements, true
}

var plainKey = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$-]*$`)

// members returns the members of an object, duplicates too.
func (r *reader) members(n node) ([]node, bool) {
	object, ok := n.value.Value.(*hujson.Object)
	if !ok {
		r.wrongKind(n, "an object")
		return nil, false
	}
	members := make([]node, len(object.Members))
	for i := range object.Members {
		m := &object.Members[i]
		key := m.Name.Value.(hujson.Literal).String()
		path := n.path + "[" + strconv.Quote(key) + "]"
		switch {
		case plainKey.MatchString(key) && n.path == "":
			path = key
		case plainKey.MatchString(key):
			path = n.path + "." + key
		}
		members[i] = node{path: path, key: key, keyOffset: m.Name.StartOffset, value: &m.Value}
	}
	return members, true
}

// uniqueMembers returns the members of an object and reports duplicate names,
// of which it returns the first.
func (r *reader) uniqueMembers(n node) ([]node, bool) {
	all, ok := r.members(n)
	seen := make(map[string]bool, len(all))
	members := all[:0]
	for _, m := range all {
		if seen[m.key] {
			r.errorAtKey(m, "this key is given twice; keep one of them")
			continue
		}
		seen[m.key] = true
		members = append(members, m)
	}
	return members, ok
}
