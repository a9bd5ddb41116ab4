// Package roundhouse_test checks what concerns the whole repository.
package roundhouse_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// arrows says which of our packages each package may import. A face imports no
// face, a leaf no sibling (docs/design.md has the picture); a new edge is a decision
// and is made here.
var arrows = map[string][]string{
	"cmd/roundhouse": {"config", "control", "daemon", "event", "fault", "instance", "pool", "process", "session", "shim", "socket", "sse", "store", "trace", "wire"},

	"internal/daemon": {"config", "control", "event", "front", "gateway", "instance", "loop", "model", "pool", "process", "recorder", "responses", "session", "socket", "store", "tools"},

	// Faces.
	"internal/control":   {"config", "event", "fault", "front", "instance", "model", "pool", "process", "session", "sse", "store", "trace", "wire"},
	"internal/gateway":   {"era", "fault", "front", "mux", "relay", "session", "sse", "wire"},
	"internal/recorder":  {"dialect", "fault", "front", "model", "wire"},
	"internal/tools":     {"fault", "loop", "session", "wire"},
	"internal/responses": {"config", "dialect", "fault", "front", "loop", "model", "session", "sse", "store", "wire"},

	"internal/shim":     {"config", "fault", "process", "relay", "socket", "wire"},
	"internal/front":    {"config", "fault", "secret", "wire"},
	"internal/session":  {"config", "era", "event", "fault", "instance", "mux", "pool", "secret", "store", "wire"},
	"internal/instance": {"config", "fault", "mux", "pool", "process"},
	"internal/pool":     {"config", "era", "event", "fault", "mux", "process", "secret", "upstream", "wire"},
	"internal/mux":      {"era", "fault", "upstream", "wire"},
	"internal/upstream": {"sse", "wire"},
	"internal/loop":     {"config", "dialect", "event", "fault", "model", "session", "sse", "wire"},
	"internal/model":    {"config", "dialect", "event", "store", "wire"},
	"internal/config":   {"secret"},
	"internal/era":      {"wire"},
	"internal/relay":    {"wire"},
	"internal/trace":    {"store", "wire"},
	"internal/dialect":  {"wire"},

	// Leaves.
	"internal/event":   nil,
	"internal/fault":   nil,
	"internal/process": nil,
	"internal/secret":  nil,
	"internal/socket":  nil,
	"internal/sse":     nil,
	"internal/store":   nil,
	"internal/wire":    nil,

	// The misbehaving server of the tests may send what no package of ours would.
	"internal/badserver":     nil,
	"internal/badserver/cmd": {"badserver"},
}

func TestPackagesImportOnlyWhatTheLayoutAllows(t *testing.T) {
	seen := map[string]bool{}
	walk := func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if strings.Contains(dir, "/testdata") {
			return nil
		}
		seen[dir] = true
		allowed, known := arrows[dir]
		if !known {
			t.Errorf("%s: the package %s is not in the layout; decide what it may import", path, dir)
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range file.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			ours, ok := strings.CutPrefix(name, "roundhouse/internal/")
			if ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s, which the layout does not allow", path, name)
			}
		}
		return nil
	}
	for _, root := range []string{"cmd", "internal"} {
		if err := filepath.WalkDir(root, walk); err != nil {
			t.Fatal(err)
		}
	}
	for dir := range arrows {
		if !seen[dir] {
			t.Errorf("the layout knows %s, which does not exist", dir)
		}
	}
}
