package daemon

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/event"
	"roundhouse/internal/gateway"
	"roundhouse/internal/instance"
	"roundhouse/internal/loop"
	"roundhouse/internal/pool"
	"roundhouse/internal/process"
	"roundhouse/internal/responses"
	"roundhouse/internal/session"
	"roundhouse/internal/tools"
)

// everything is what the daemon exports.
func everything(t *testing.T) *prometheus.Registry {
	t.Helper()
	processes, err := process.NewManager(process.Config{Executable: "not run"})
	if err != nil {
		t.Fatal(err)
	}
	events := event.NewFeed()
	shared := pool.New(pool.Config{Events: events})
	sessions := session.NewManager(session.Config{Pool: shared, Events: events})
	g := gateway.New(gateway.Config{Sessions: sessions})
	return gather(processes, shared, instance.New(instance.Config{}), sessions, tools.New(tools.Config{}), loop.New(loop.Config{}), responses.New(responses.Config{}), g, gateway.NewRelay(gateway.RelayConfig{Gateway: g}), events)
}

var described = regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: ("(?:[^"\\]|\\.)*"), .* variableLabels: \{(.*)\}\}$`)

// ours describes the daemon's own metrics: a row of the table in docs/metrics.md for
// each name.
func ours(t *testing.T) map[string]string {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		everything(t).Describe(descs)
	}()
	rows := map[string]string{}
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("a description that this test cannot read: %s", d)
		}
		name := m[1]
		if !strings.HasPrefix(name, "roundhouse_") {
			continue // the runtime's and the process's own
		}
		help, err := strconv.Unquote(m[2])
		if err != nil {
			t.Fatal(err)
		}
		kind := "gauge"
		switch {
		case strings.HasSuffix(name, "_total"):
			kind = "counter"
		case strings.HasSuffix(name, "_seconds"):
			kind = "histogram"
		}
		rows[name] = fmt.Sprintf("| `%s` | %s | %s | %s |", name, kind, strings.ReplaceAll(m[3], ",", ", "), help)
	}
	return rows
}

// STYLE 19: names are roundhouse_<package>_<what>_<unit>, and whatever metric the code
// names is exported.
func TestEveryMetricIsExported(t *testing.T) {
	exported := ours(t)
	named := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || !strings.HasPrefix(lit.Value, `"roundhouse_`) {
				return true
			}
			name := strings.Trim(lit.Value, `"`)
			named++
			if exported[name] == "" {
				t.Errorf("%s: %s is not exported", path, name)
			}
			if room := filepath.Base(filepath.Dir(path)); !strings.HasPrefix(name, "roundhouse_"+room+"_") {
				t.Errorf("%s: %s does not name its package", path, name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if named != len(exported) {
		t.Errorf("%d metrics are named and %d exported", named, len(exported))
	}
}

// The table in docs/metrics.md is that of the code. With ROUNDHOUSE_UPDATE_DOCS=1 it is
// written anew.
func TestMetricsAreDocumented(t *testing.T) {
	const path = "../../docs/metrics.md"
	const head = "| name | type | labels | what |\n| --- | --- | --- | --- |\n"
	rows := ours(t)
	var table strings.Builder
	table.WriteString(head)
	names := make([]string, 0, len(rows))
	for name := range rows {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		table.WriteString(rows[name] + "\n")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, old, found := strings.Cut(string(b), head)
	if !found {
		t.Fatalf("%s has no table that begins with %q", path, head)
	}
	old, rest, _ := strings.Cut(old, "\n\n")
	want := text + table.String()
	if rest != "" {
		want += "\n" + rest
	}
	if string(b) == want {
		return
	}
	if os.Getenv("ROUNDHOUSE_UPDATE_DOCS") == "" {
		t.Fatalf("%s is not what the code says; run this test with ROUNDHOUSE_UPDATE_DOCS=1. It has\n%s\nand should have\n%s", path, old, table.String())
	}
	if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}
