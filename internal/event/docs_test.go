package event

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
)

// STYLE 20: docs/events.md has every kind of event and every member that one may have,
// and no others.
func TestEventsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(line, "| `"); ok {
			name, _, _ = strings.Cut(name, "`")
			rows[name] = true
		}
	}
	check := func(name string) {
		if !rows[name] {
			t.Errorf("there is no row for %s", name)
		}
		delete(rows, name)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "event.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if kind, ok := v.Type.(*ast.Ident); ok && kind.Name == "Kind" {
				check(strings.Trim(v.Values[0].(*ast.BasicLit).Value, `"`))
			}
		}
		return true
	})
	for f := range reflect.TypeFor[Event]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			check(name)
		}
	}
	for name := range rows {
		t.Errorf("there is no %s in the code", name)
	}
}
