package fidelity

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// An exchange is one conversation of the corpus: a client's request, and all that the
// client and the server send until it is answered.
type exchange struct {
	name  string
	file  string
	line  int
	setup map[string]string // what stands in lines without a mark: by its first word
	steps []step
}

// A step is one frame on its way, or an answer of roundhouse's own.
type step struct {
	line int
	mark string // see the README
	text string // what is sent, or expected if nobody sends it
	as   string // what arrives
}

// The marks of steps.
var marks = []string{">", "<", "<<", "=>", "=<", "!"}

// setups are the words that may begin a line of a setup.
var setups = []string{"id", "token", "initialize", "tools/list", "prompts/list", "resources/list", "resources/templates/list"}

// corpus reads all exchanges in testdata.
func corpus(t *testing.T) (all []*exchange) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		exchanges, err := parse(filepath.Base(file), string(text))
		if err != nil {
			t.Fatalf("%s:%v", file, err)
		}
		all = append(all, exchanges...)
	}
	return all
}

// parse reads the exchanges of one file. White space inside frames is theirs.
func parse(file, text string) (all []*exchange, err error) {
	var x *exchange
	for i, line := range strings.Split(text, "\n") {
		i++
		if line == "" || line[0] == '#' {
			continue
		}
		if name, ok := strings.CutPrefix(line, "== "); ok {
			x = &exchange{name: name, file: file, line: i, setup: map[string]string{"id": "1"}}
			all = append(all, x)
			continue
		}
		word, rest, ok := strings.Cut(line, " ")
		switch {
		case x == nil || !ok:
			return nil, fmt.Errorf("%d: not understood: %s", i, line)
		case word == "~" && len(x.steps) > 0:
			x.steps[len(x.steps)-1].as = rest
		case slices.Contains(marks, word):
			x.steps = append(x.steps, step{i, word, rest, rest})
		case slices.Contains(setups, word):
			x.setup[word] = rest
		default:
			return nil, fmt.Errorf("%d: not understood: %s", i, line)
		}
	}
	return all, nil
}

// values are what one side knows of an exchange: the ids and tokens that stand for
// «id», «token», «ask» and «asktoken».
type values map[string]string

var places = regexp.MustCompile(`«\w+»`)

// fill puts the values into a frame that is sent. newline is what the sender writes
// between tokens for «nl».
func (v values) fill(t *testing.T, frame, newline string) string {
	t.Helper()
	return places.ReplaceAllStringFunc(frame, func(place string) string {
		name := strings.Trim(place, "«»")
		value, known := v[name]
		switch {
		case name == "nl":
			return newline
		case !known:
			t.Fatalf("%s is not known yet in %s", place, frame)
		}
		return value
	})
}

// match reports whether bytes that came are the frame, and takes what stands in the
// place of values that were not known yet. Nothing is parsed: all else must be equal
// byte by byte, but line ends between tokens may be left out, or become spaces.
func (v values) match(frame, got string) bool {
	var pattern strings.Builder
	var unknown []string
	at := 0
	for _, place := range places.FindAllStringIndex(frame, -1) {
		pattern.WriteString(regexp.QuoteMeta(frame[at:place[0]]))
		at = place[1]
		name := strings.Trim(frame[place[0]:place[1]], "«»")
		switch value, known := v[name]; {
		case name == "nl":
			pattern.WriteString(`[\r\n ]*`)
		case known:
			pattern.WriteString(regexp.QuoteMeta(value))
		default:
			pattern.WriteString(`(\d+)`)
			unknown = append(unknown, name)
		}
	}
	pattern.WriteString(regexp.QuoteMeta(frame[at:]))
	found := regexp.MustCompile(`^` + pattern.String() + `$`).FindStringSubmatch(got)
	if found == nil {
		return false
	}
	for i, name := range unknown {
		v[name] = found[i+1]
	}
	return true
}
