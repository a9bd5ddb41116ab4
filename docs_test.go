package roundhouse_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	target  = regexp.MustCompile("(?:`|\n)make ((?:[a-z]+ ?)+)")
	noWord  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the names by which the headings of a page are linked.
func anchors(page string) map[string]bool {
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		names[strings.ReplaceAll(noWord.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return names
}

// STYLE 20: what the README, CONTRIBUTING.md and the pages of docs link is there, headings
// too; every page of docs is reached from the README; and what they have made is in the
// Makefile.
func TestManualLinksWhatIsThere(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]bool{}
	for _, page := range append(pages, "README.md", "CONTRIBUTING.md") {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if file != "" {
				to = filepath.Join(filepath.Dir(page), file)
			}
			text, err := os.ReadFile(to)
			switch {
			case err != nil:
				t.Errorf("%s links %s: %v", page, m[1], err)
			case anchor != "" && !anchors(string(text))[anchor]:
				t.Errorf("%s links %s, and %s has no such heading", page, m[1], to)
			}
			if page == "README.md" {
				linked[to] = true
			}
		}
		for _, m := range target.FindAllStringSubmatch(string(b), -1) {
			for name := range strings.FieldsSeq(m[1]) {
				if !strings.Contains(string(makefile), "\n"+name+":") {
					t.Errorf("%s says make %s, which the Makefile does not", page, name)
				}
			}
		}
	}
	for _, page := range pages {
		if !linked[page] {
			t.Errorf("the README does not link %s", page)
		}
	}
}
