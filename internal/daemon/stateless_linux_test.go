package daemon_test

import (
	"encoding/json"
	"fmt"
	"testing"
)

// stateless makes a request of 2026-07-28 that names no session.
func (d *daemon) stateless(path, method, name, members string) answer {
	d.t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, method, members)
	return d.do("POST", path, body, "Accept", "application/json, text/event-stream",
		"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method, "Mcp-Name", name)
}

// A6: a call that stands alone begins a session with an instance, whose name its result
// says and later calls may say; those of others have others. The aggregate is served, too.
func TestCallsThatStandAloneHaveInstances(t *testing.T) {
	t.Parallel()
	d := start(t, `{"mcpServers": {"bad": {"command": "SERVER", "sharing": "exclusive", "instances": {"max": 3}}}}`)
	count := func(path, tool, arguments string) (n, session string) {
		t.Helper()
		a := d.stateless(path, "tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":%s,`, tool, arguments))
		var r struct {
			Result struct {
				Content []struct{ Text string }
				Meta    map[string]any `json:"_meta"`
			}
		}
		if err := json.Unmarshal(a.body, &r); err != nil || len(r.Result.Content) == 0 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		session, _ = r.Result.Meta["roundhouse/session"].(string)
		return r.Result.Content[len(r.Result.Content)-1].Text, session // before it may be ours
	}
	n, minted := count("/mcp/bad", "count", `{}`)
	if n != "1" || minted == "" {
		t.Errorf("the first call counts %s in session %q", n, minted)
	}
	for i, call := range []struct{ path, tool, session, want string }{
		{"/mcp", "bad__count", minted, "2"},
		{"/mcp/bad", "count", "mine", "1"},
		{"/mcp", "bad__count", "mine", "2"},
		{"/mcp/bad", "count", minted, "3"},
	} {
		if n, told := count(call.path, call.tool, fmt.Sprintf(`{"session_id":%q}`, call.session)); n != call.want || told != "" {
			t.Errorf("call %d counts %s, and is told of %q", i, n, told)
		}
	}
	if n, other := count("/mcp", "bad__count", `{}`); n != "1" || other == minted || other == "" {
		t.Errorf("another call counts %s in session %q", n, other)
	}
}
