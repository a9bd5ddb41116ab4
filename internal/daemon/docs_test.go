package daemon

import (
	"log/slog"
	"os"
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

// STYLE 20: the table of routes in docs/api.md has every route of a door, and no other.
func TestRoutesAreDocumented(t *testing.T) {
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
	patterns := f.Patterns()
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
