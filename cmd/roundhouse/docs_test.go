package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
	shellLine = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
)

// commandsIn returns the command lines of ours that a page shows, as code in a sentence or
// in lines for a shell. In a row of a table that begins with one, spans without our name
// belong to it: "`roundhouse config check FILE`, `config schema`".
func commandsIn(page string) (lines []string) {
	for _, m := range shellLine.FindAllStringSubmatch(page, -1) {
		for line := range strings.Lines(m[1]) {
			if line, ok := strings.CutPrefix(strings.TrimPrefix(line, "bin/"), "roundhouse "); ok {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	for line := range strings.Lines(page) {
		cell := strings.HasPrefix(line, "| `roundhouse ")
		if cell {
			line, _, _ = strings.Cut(strings.ReplaceAll(line[2:], `\|`, "/"), " | ")
		}
		for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
			if command, ours := strings.CutPrefix(m[1], "roundhouse "); ours || cell {
				lines = append(lines, command)
			}
		}
	}
	return lines
}

// STYLE 20: the table of commands in the README has every command, with those below it;
// and each command line that the README or a page of docs shows is one of the program's,
// with its flags.
func TestManualShowsTheCommandsThatThereAre(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	inReadme := map[string]bool{}
	for _, page := range append(pages, "../../README.md") {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range commandsIn(string(b)) {
			words := strings.Fields(line)
			cmd, rest, err := newRoot().Find(words)
			if err != nil || cmd.HasParent() && cmd.Runnable() && cmd.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
				t.Errorf("%s shows %q, which is no command: %v", page, line, err)
				continue
			}
			for _, word := range rest {
				word = strings.Trim(word, "[]")
				name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
				switch {
				case strings.HasPrefix(word, "--"):
					if cmd.Flags().Lookup(name) == nil {
						t.Errorf("%s shows %q, and there is no flag %s", page, line, word)
					}
				case strings.HasPrefix(word, "-"):
					if cmd.Flags().ShorthandLookup(word[1:]) == nil {
						t.Errorf("%s shows %q, and there is no flag %s", page, line, word)
					}
				}
			}
			if strings.HasSuffix(page, "README.md") {
				inReadme[cmd.CommandPath()] = true
			}
		}
	}
	for _, cmd := range allCommands(newRoot()) {
		group := cmd.HasSubCommands() && cmd.Example == "" // which only shows its help
		if cmd.IsAvailableCommand() && cmd.Name() != "help" && !group && !inReadme[cmd.CommandPath()] {
			t.Errorf("the README does not show %q", cmd.CommandPath())
		}
	}
}
