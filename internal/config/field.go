package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailscale/hujson"

	"roundhouse/internal/secret"
)

// A field is one key of an object in the file. One table of fields both reads an
// object into a T and makes its JSON Schema, so the two cannot disagree.
type field[T any] struct {
	name    string
	aliases []string // other hosts' spellings of the same
	doc     string   // for the schema; says the unit
	kind    kind[T]
}

// A kind knows how to read one value into its place in a T, and what the schema
// says about it, given the defaults.
type kind[T any] interface {
	read(r *reader, n node, to *T)
	schema(defaults *T) schema // nil leaves the key out of the schema
}

// An object is a table of fields, with what happens to other keys.
type object[T any] struct {
	fields []field[T]
	others policy
}

// A policy says what becomes of keys that an object does not know.
type policy int

const (
	// closed is for roundhouse's own sections: an unknown key is an error.
	closed policy = iota
	// beside is for the top level, where other hosts keep their settings: an
	// unknown key is a warning, unless it looks like one of ours misspelt.
	beside
	// open is for what other hosts write too: an unknown key is a warning, and
	// null is the same as absent.
	open
)

// seen maps the name of each field that an object holds to its node, whose key
// is the spelling found.
type seen map[string]node

// has reports whether the object holds the field.
func (s seen) has(name string) bool { _, ok := s[name]; return ok }

// read reads an object into to.
func (o object[T]) read(r *reader, n node, to *T) seen {
	found := seen{}
	members, _ := r.uniqueMembers(n)
	for _, m := range members {
		if o.others == open && m.value.Value.Kind() == 'n' {
			continue
		}
		i := slices.IndexFunc(o.fields, func(f field[T]) bool {
			return f.name == m.key || slices.Contains(f.aliases, m.key)
		})
		if i < 0 {
			o.unknown(r, m)
			continue
		}
		f := o.fields[i]
		if first, twice := found[f.name]; twice {
			r.errorAtKey(m, "%q and %q say the same thing; keep one of them", first.key, m.key)
			continue
		}
		found[f.name] = m
		f.kind.read(r, m, to)
	}
	return found
}

// names are all keys that the object knows.
func (o object[T]) names() []string {
	var names []string
	for _, f := range o.fields {
		names = append(append(names, f.name), f.aliases...)
	}
	return names
}

// unknown reports a key that the object does not know.
func (o object[T]) unknown(r *reader, m node) {
	suggestion := closest(m.key, o.names())
	if o.others == closed || o.others == beside && suggestion != "" {
		r.report(Error, m.path, m.keyOffset, suggestion, "roundhouse has no such setting")
		return
	}
	r.report(Warning, m.path, m.keyOffset, suggestion, "roundhouse does not know this key; it has no effect")
}

// section is an object inside a T; check looks at it as a whole, and may be nil.
type section[T any] struct {
	object[T]
	check func(r *reader, n node, to *T, found seen)
}

func (s section[T]) read(r *reader, n node, to *T) {
	found := s.object.read(r, n, to)
	if s.check != nil {
		s.check(r, n, to, found)
	}
}

// plain is a string that is taken as it stands.
type plain[T any] struct{ at func(*T) *string }

func (k plain[T]) read(r *reader, n node, to *T) {
	if text, ok := r.text(n); ok {
		*k.at(to) = text
	}
}

// text is a string with variables.
type text[T any] struct {
	scheme scheme
	at     func(*T) *string
}

func (k text[T]) read(r *reader, n node, to *T) {
	if text, ok := r.expanded(n, k.scheme); ok {
		*k.at(to) = text
	}
}

// hidden is a secret string with variables.
type hidden[T any] struct {
	scheme scheme
	at     func(*T) *secret.String
}

func (k hidden[T]) read(r *reader, n node, to *T) {
	if text, ok := r.expanded(n, k.scheme); ok {
		*k.at(to) = secret.New(text)
	}
}

// flag is true or false.
type flag[T any] struct{ at func(*T) *bool }

func (k flag[T]) read(r *reader, n node, to *T) {
	if value, ok := r.flag(n); ok {
		*k.at(to) = value
	}
}

// count is a whole number from 1, or from 0 if zero is set.
type count[T any] struct {
	zero bool
	at   func(*T) *int
}

func (k count[T]) least() int64 {
	if k.zero {
		return 0
	}
	return 1
}

func (k count[T]) read(r *reader, n node, to *T) {
	v, ok := r.whole(n, k.least())
	switch {
	case !ok:
	case v > math.MaxInt32:
		r.errorAt(n, "is too large")
	default:
		*k.at(to) = int(v)
	}
}

// size is a number of bytes, or a string such as "64MiB".
type size[T any] struct{ at func(*T) *int64 }

func (k size[T]) read(r *reader, n node, to *T) {
	if n.value.Value.Kind() == '"' {
		text, _ := r.text(n)
		v, err := parseSize(text)
		if err != nil {
			r.errorAt(n, "%v", err)
			return
		}
		*k.at(to) = v
	} else if v, ok := r.whole(n, 1); ok {
		*k.at(to) = v
	}
}

// sizeUnits are the units of a size, the largest first.
var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// parseSize reads a size in bytes, from 1 byte to 1 TiB.
func parseSize(text string) (int64, error) {
	for _, unit := range sizeUnits {
		digits, found := strings.CutSuffix(text, unit.name)
		if v, err := strconv.ParseInt(digits, 10, 64); found && err == nil && v > 0 && v <= 1<<40/unit.bytes {
			return v * unit.bytes, nil
		}
	}
	return 0, fmt.Errorf(`must be a size such as "64MiB", "512KiB" or "1GiB", or a number of bytes`)
}

// formatSize writes a size as the file has it.
func formatSize(v int64) any {
	for _, unit := range sizeUnits {
		if v%unit.bytes == 0 {
			return fmt.Sprintf("%d%s", v/unit.bytes, unit.name)
		}
	}
	return v
}

// duration is a string such as "30s"; a zero one is an error unless zero is set.
type duration[T any] struct {
	zero bool
	at   func(*T) *time.Duration
}

func (k duration[T]) read(r *reader, n node, to *T) {
	if n.value.Value.Kind() == '0' {
		r.errorAt(n, `a duration needs its unit: write "30s", "5m" or "24h"`)
		return
	}
	if n.value.Value.Kind() != '"' {
		r.wrongKind(n, `a duration such as "30s"`)
		return
	}
	text, _ := r.text(n)
	d, err := parseDuration(text)
	switch {
	case err != nil:
		r.errorAt(n, "%v", err)
	case d == 0 && !k.zero:
		r.errorAt(n, "must be more than nothing")
	default:
		*k.at(to) = d
	}
}

// parseDuration reads a duration as Go writes them, such as "1m30s", not negative.
func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || text == "0" || strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") {
		return 0, fmt.Errorf(`must be a duration with its unit, such as "500ms", "30s", "5m" or "24h"`)
	}
	return d, nil
}

// formatDuration writes a duration as the file has it: "10m", not "10m0s".
func formatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// choice is one of a few words.
type choice[T any, C ~string] struct {
	at      func(*T) *C
	options []C
}

func (k choice[T, C]) read(r *reader, n node, to *T) {
	if word, ok := r.word(n, asStrings(k.options)); ok {
		*k.at(to) = C(word)
	}
}

// word reads one of a few words.
func (r *reader) word(n node, options []string) (string, bool) {
	word, ok := r.text(n)
	if !ok {
		return "", false
	}
	if !slices.Contains(options, word) {
		r.report(Error, n.path, n.value.StartOffset, closest(word, options), "must be one of "+strings.Join(options, ", "))
		return "", false
	}
	return word, true
}

func asStrings[C ~string](words []C) []string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return texts
}

// list is an array of strings; item reads and checks one of them, and items is
// what the schema says of it.
type list[T any, S ~string] struct {
	at    func(*T) *[]S
	item  func(r *reader, n node) (string, bool)
	items schema
}

func (k list[T, S]) read(r *reader, n node, to *T) {
	elements, ok := r.elements(n)
	if !ok {
		return
	}
	texts := make([]S, 0, len(elements))
	for _, e := range elements {
		if text, ok := k.item(r, e); ok {
			texts = append(texts, S(text))
		}
	}
	*k.at(to) = texts
}

// inherited is a setting of one of many whose default is a setting of all of them.
type inherited[T any] struct{ kind[T] }

// custom is a value with a way of its own to be read.
type custom[T any] struct {
	from  func(r *reader, n node, to *T)
	shape func(defaults *T) schema // nil leaves the key out of the schema
}

func (k custom[T]) read(r *reader, n node, to *T) { k.from(r, n, to) }

// timespan reads a number of seconds or milliseconds into a duration.
func (r *reader) timespan(n node, unit time.Duration) (time.Duration, bool) {
	lit, ok := n.value.Value.(hujson.Literal)
	if !ok || lit.Kind() != '0' {
		r.wrongKind(n, "a number")
		return 0, false
	}
	d := lit.Float() * float64(unit)
	if !(d >= 1 && d < math.MaxInt64) {
		r.errorAt(n, "must be more than nothing, and less than 200 years")
		return 0, false
	}
	return time.Duration(d), true
}
