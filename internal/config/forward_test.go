package config

import (
	"slices"
	"strings"
	"testing"
)

// K1, case 69: headers that belong to the transport are never passed on, and names are
// spelled in one way.
func TestForwardHeaders(t *testing.T) {
	entry := `{"mcpServers":{"a":{"type":"http","url":"https://a.example/mcp","forwardHeaders":[%s]}}}`
	for names, want := range map[string]string{
		`"x-tenant","X-Chat-Id"`: "",
		`"Cookie:"`:              "name of a header",
		`"content-length"`:       "never passed on",
		`"Mcp-Session-Id"`:       "never passed on",
		`"X-Session-Id"`:         "never passed on",
		`""`:                     "name of a header",
	} {
		cfg, err := Parse("x.json", []byte(strings.Replace(entry, "%s", names, 1)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := cfg.Servers[0]
		if want == "" {
			if got.DisabledReason != "" || !slices.Equal(got.ForwardHeaders, []string{"X-Tenant", "X-Chat-Id"}) {
				t.Errorf("%s: %q, %v", names, got.DisabledReason, got.ForwardHeaders)
			}
		} else if !strings.Contains(got.DisabledReason, want) {
			t.Errorf("%s: %q", names, got.DisabledReason)
		}
	}
}
