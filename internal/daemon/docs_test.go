package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/config"
	"roundhouse/internal/control"
	"roundhouse/internal/front"
	"roundhouse/internal/gateway"
	"roundhouse/internal/recorder"
	"roundhouse/internal/responses"
	"roundhouse/internal/session"
)

var (
	routeSpan = regexp.MustCompile("`((?:GET|POST|PATCH|DELETE) )?(/[^`? ]*)(?:\\?[^`]*)?`")
	methods   = regexp.MustCompile("`(GET|POST|PATCH|DELETE)`")
)

// routes are the routes of a door.
func routes(t *testing.T) []string {
	t.Helper()
	g := gateway.New(gateway.Config{Sessions: session.NewManager(session.Config{})})
	s := &server{
		Options: Options{Config: config.Defaults(), Log: slog.New(slog.DiscardHandler)}, gateway: g, relay: gateway.NewRelay(gateway.RelayConfig{Gateway: g}),
		responses: responses.New(responses.Config{}), recorder: recorder.New(recorder.Config{}),
		control: control.New(control.Config{Metrics: prometheus.NewRegistry()}),
	}
	f, err := s.addDoor(nil, front.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return f.Patterns()
}

// STYLE 20: the table of routes in docs/api.md has every route of a door, and no other.
func TestRoutesAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(b), "| route | what |\n| --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if !found {
		t.Fatal("docs/api.md has no table of routes")
	}
	var documented []string
	for row := range strings.Lines(table) {
		cell, _, _ := strings.Cut(strings.ReplaceAll(row[2:], `\|`, ""), " | ")
		for _, m := range routeSpan.FindAllStringSubmatch(cell, -1) {
			several := methods.FindAllStringSubmatch(cell, -1) // for all paths of the row
			for _, method := range several {
				documented = append(documented, method[1]+" "+m[2])
			}
			if several == nil {
				documented = append(documented, m[1]+m[2])
			}
		}
	}
	patterns := routes(t)
	for _, p := range patterns {
		if !slices.Contains(documented, p) {
			t.Errorf("docs/api.md does not name %s", p)
		}
	}
	for _, p := range documented {
		if !slices.Contains(patterns, p) {
			t.Errorf("docs/api.md names %s, and there is no such route", p)
		}
	}
}

var variable = regexp.MustCompile(`\{\w+\}`)

// A route that stands with its method in the README or a page of docs is one of a door,
// however its variables are called; and each path of the README's table begins one.
func TestRoutesThatTheManualNamesAreThere(t *testing.T) {
	var patterns []string
	for _, p := range routes(t) {
		patterns = append(patterns, variable.ReplaceAllString(p, "{}"))
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, page := range append(pages, "../../README.md") {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range routeSpan.FindAllStringSubmatch(string(b), -1) {
			if m[1] == "" {
				continue
			}
			named++
			path := variable.ReplaceAllString(m[2], "{}")
			if !slices.ContainsFunc(patterns, func(p string) bool {
				return p == m[1]+path || strings.HasPrefix(p, "/") && strings.HasSuffix(p, "/") && strings.HasPrefix(path, p)
			}) {
				t.Errorf("%s names %s%s, and there is no such route", page, m[1], path)
			}
		}
		_, table, _ := strings.Cut(string(b), "## HTTP routes\n")
		table, _, _ = strings.Cut(table, "\n## ")
		for row := range strings.Lines(table) {
			cell, _, _ := strings.Cut(row, " | ")
			for _, m := range routeSpan.FindAllStringSubmatch(cell, -1) {
				path := strings.TrimSuffix(variable.ReplaceAllString(m[2], "{}"), "…")
				if !slices.ContainsFunc(patterns, func(p string) bool {
					p = p[strings.Index(p, "/"):]
					return strings.HasPrefix(p, path) || strings.HasPrefix(p, "/api/v1"+path)
				}) {
					t.Errorf("%s names %s, and no route begins so", page, m[2])
				}
			}
		}
	}
	if named < 30 {
		t.Errorf("only %d routes are named", named)
	}
}
