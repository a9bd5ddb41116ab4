package config_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/config"
)

// manual is the text of README.md and of each page in docs, by its path.
func manual(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("docs: %v, %v", files, err)
	}
	pages := map[string]string{}
	for _, file := range append(files, "../../README.md") {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pages[file] = string(b)
	}
	return pages
}

var snippet = regexp.MustCompile("(?ms)^```jsonc?\n(.*?)^```$")

// whole makes a file of a snippet: as it stands, with braces around settings of the file,
// or in the place of a server where it is an entry.
func whole(t *testing.T, tree map[string]any, text string) string {
	t.Helper()
	if strings.HasPrefix(text, "{") {
		return text
	}
	inner, ok := decode(t, []byte("{"+text+"}")).(map[string]any)
	if !ok {
		t.Fatalf("%s is no object", text)
	}
	settings := tree["properties"].(map[string]any)
	for key := range inner {
		if _, ok := settings[key]; !ok {
			return `{"mcpServers": {` + text + `}}`
		}
	}
	return `{"mcpServers": {}, ` + text + `}`
}

// What README.md and docs show as JSON is accepted as it stands, without a word, by the
// reader (as "config check" shows) and by the schema.
func TestSnippetsOfTheManualAreAccepted(t *testing.T) {
	tree, resolved := schemaTree(t), validator(t)
	n := 0
	for page, text := range manual(t) {
		for _, m := range snippet.FindAllStringSubmatch(text, -1) {
			n++
			file := whole(t, tree, m[1])
			everySet := func(name string) (string, bool) {
				if name == "HOME" || strings.HasPrefix(name, "XDG_") || strings.HasPrefix(name, "ROUNDHOUSE_") {
					return corpusEnv(name)
				}
				return "value-of-" + name, true
			}
			c, err := config.Parse("/conf/mcp.json", []byte(file), config.Options{Env: everySet})
			if err != nil {
				t.Errorf("%s: %s\n%v", page, file, err)
				continue
			}
			for _, p := range c.Problems {
				t.Errorf("%s: %s\n%v", page, file, p)
			}
			if err := resolved.Validate(decode(t, []byte(file))); err != nil {
				t.Errorf("%s: %s\n%v", page, file, err)
			}
		}
	}
	if n < 8 {
		t.Errorf("only %d snippets were found", n)
	}
}

// settingRows adds to rows those of docs/configuration.md for the settings of a schema and of what is
// in them, by their dotted names.
func settingRows(s map[string]any, prefix string, rows map[string]string) {
	properties, _ := s["properties"].(map[string]any)
	for key, value := range properties {
		p := value.(map[string]any)
		name := prefix + key
		text, _ := p["description"].(string)
		standard := ""
		if d, ok := p["default"]; ok {
			b, _ := json.Marshal(d)
			standard = "`" + string(b) + "`"
		}
		if options, ok := p["enum"].([]any); ok {
			var words []string
			for _, o := range options {
				words = append(words, fmt.Sprintf("`%v`", o))
			}
			text += " One of " + strings.Join(words, ", ") + "."
		}
		rows[name] = fmt.Sprintf("| `%s` | %s | %s |", name, standard, strings.ReplaceAll(text, "|", `\|`))
		settingRows(p, name+".", rows)
		if items, ok := p["items"].(map[string]any); ok {
			settingRows(items, name+"[].", rows)
		}
		if more, ok := p["additionalProperties"].(map[string]any); ok {
			settingRows(more, name+".*.", rows)
		}
	}
}

// STYLE 20: the tables in docs/configuration.md have every setting with its default. With
// ROUNDHOUSE_UPDATE_DOCS=1 they are written anew.
func TestSettingsAreDocumented(t *testing.T) {
	const path = "../../docs/configuration.md"
	tree := schemaTree(t)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for title, s := range map[string]map[string]any{
		"## Every setting of a server\n": tree["$defs"].(map[string]any)["server"].(map[string]any),
		"## Every other setting\n":       tree,
	} {
		rows := map[string]string{}
		settingRows(s, "", rows)
		var table strings.Builder
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			table.WriteString(rows[name] + "\n")
		}
		before, after, found := strings.Cut(text, title)
		intro, after, headed := strings.Cut(after, "| setting | default | what |\n| --- | --- | --- |\n")
		if !found || !headed {
			t.Fatalf("%s has no table below %q", path, title)
		}
		_, rest, more := strings.Cut(after, "\n\n")
		text = before + title + intro + "| setting | default | what |\n| --- | --- | --- |\n" + table.String()
		if more {
			text += "\n" + rest
		}
	}
	if text == string(b) {
		return
	}
	if os.Getenv("ROUNDHOUSE_UPDATE_DOCS") == "" {
		t.Fatalf("%s is not what the schema says; run this test with ROUNDHOUSE_UPDATE_DOCS=1. It should be\n%s", path, text)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

var dotted = regexp.MustCompile("`([a-z][a-zA-Z]*(?:\\[\\])?(?:\\.[a-z*][a-zA-Z]*(?:\\[\\])?)+)`")

// A dotted name such as pool.drainDelay in README.md and docs, which begins with a section
// of ours, is a setting, whatever stands between its parts.
func TestSettingsThatTheManualNamesAreThere(t *testing.T) {
	tree := schemaTree(t)
	entry := tree["$defs"].(map[string]any)["server"].(map[string]any)
	known := map[string]bool{}
	var walk func(prefix string, s map[string]any)
	walk = func(prefix string, s map[string]any) {
		if properties, ok := s["properties"].(map[string]any); ok {
			for key, value := range properties {
				known[prefix+key] = true
				walk(prefix+key+".", value.(map[string]any))
			}
		}
		if items, ok := s["items"].(map[string]any); ok {
			walk(strings.TrimSuffix(prefix, ".")+"[].", items)
		}
		if more, ok := s["additionalProperties"].(map[string]any); ok {
			walk(prefix+"*.", more)
		}
	}
	walk("", tree)
	walk("", entry)
	n := 0
	for page, text := range manual(t) {
		for _, m := range dotted.FindAllStringSubmatch(text, -1) {
			first, _, _ := strings.Cut(strings.TrimSuffix(m[1], "[]"), ".")
			if !known[strings.TrimSuffix(first, "[]")] {
				continue // it is no name of a setting
			}
			n++
			if !known[m[1]] {
				t.Errorf("%s names %s, which is no setting", page, m[1])
			}
		}
	}
	if n < 30 {
		t.Errorf("only %d settings are named", n)
	}
}
