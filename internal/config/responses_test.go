package config_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/config"
)

// B.5.10: what requests may reach beside public addresses.
func TestEgressRules(t *testing.T) {
	c, err := parse(t, `{"llm": {"upstreams": {"a": {"baseURL": "http://a.example"}}, "responses": {"egress": {"allow": [
		"MCP.example", "*.corp.example:8443", "10.1.2.3/16", "127.0.0.1:8931", "[::1]:80", "fd00::/8", "::ffff:10.9.9.9", "*"]}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	want := []config.EgressRule{
		{Host: "mcp.example"}, {Host: "*.corp.example", Port: "8443"}, {Net: netip.MustParsePrefix("10.1.0.0/16")},
		{Net: netip.MustParsePrefix("127.0.0.1/32"), Port: "8931"}, {Net: netip.MustParsePrefix("::1/128"), Port: "80"},
		{Net: netip.MustParsePrefix("fd00::/8")}, {Net: netip.MustParsePrefix("10.9.9.9/32")}, {Host: "*"},
	}
	if got := c.LLM.Responses.Egress.Allow; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	for _, bad := range []string{"", "10.1.*", "10.*:80", "https://a.example", "a.example/path", "a.example:http", "a.example:070", "a.example:0", "a b", "[a-z].example", "10.0.0.0/33", "127.1"} {
		_, err := parse(t, `{"llm": {"upstreams": {"a": {"baseURL": "http://a.example"}}, "responses": {"egress": {"allow": ["`+bad+`"]}}}}`)
		if err == nil || !strings.Contains(err.Error(), "must be a host") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
