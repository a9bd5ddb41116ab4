package control_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"roundhouse/internal/control"
)

type createdList struct{ Sessions []control.Session }

// N1: a session is created with what the body says of it, which must make sense; its id is
// its principal's alone, taken while it lives, and gone once it was sealed.
func TestCreateSession(t *testing.T) {
	w := newWorld(t, `{`+auth+`"sessions": {"kinds": {"rollout": {"idleTimeout": "30s"}}}, "mcpServers": {"a": {"command": "SERVER"}}}`)
	for _, test := range []struct {
		token, query, body string
		status             int
		says               string
	}{
		{alice, "", `{"id": "run-1", "kind": "rollout", "metadata": {"seed": 7}, "workspace": "/w/../v", "limits": {"expireAfter": "1h", "maxTasks": 2}}`, 201, ""},
		{alice, "", `{"id": "run-1"}`, 409, "name_taken"},
		{bob, "", `{"id": "run-1"}`, 201, ""}, // N2
		{alice, "", ``, 201, ""},
		{root, "?principal=alice", `{"id": "run-2", "limits": {"maxTasks": 1000}}`, 201, ""},
		{alice, "?principal=bob", `{}`, 403, "admin"},
		{alice, "", `{"limits": {"maxTasks": 1000}}`, 403, "wider"},
		{alice, "", `{"kind": "rollout", "limits": {"idleTimeout": "31s"}}`, 403, "wider"},
		{alice, "", `{"id": "a b"}`, 400, "malformed"},
		{alice, "", `{"kind": "\u0007"}`, 400, "kind"},
		{alice, "", `{"workspace": "v"}`, 400, "absolute"},
		{alice, "", `{"metadata": [1]}`, 400, "object"},
		{alice, "", `{"metadata": {"x": "` + strings.Repeat("x", 17<<10) + `"}}`, 413, "limit"},
		{alice, "", `{"limits": {"maxTasks": -1}}`, 400, "maxTasks"},
		{alice, "", `{"limits": {"idleTimeout": 30}}`, 400, "idleTimeout"},
		{alice, "", `{"limits": {"idleTimeout": "-1s"}}`, 400, "duration"},
		{alice, "", `{"ID": 1, "owner": "x"}`, 400, "members"},
		{alice, "", `[]`, 400, "members"},
	} {
		r := w.send(test.token, "POST", "/api/v1/sessions"+test.query, test.body)
		if r.status != test.status || !strings.Contains(string(r.body), test.says) {
			t.Errorf("%.80s: %d %s, want %d with %q", test.body, r.status, r.body, test.status, test.says)
		}
	}
	made := get[control.Session](w, alice, "/api/v1/sessions/run-1")
	if made.Kind != "rollout" || string(made.Metadata) != `{"seed":7}` || made.Workspace != "/v" || made.Limits.IdleTimeout != "30s" || made.Limits.ExpireAfter != "1h0m0s" || made.Limits.MaxTasks != 2 || !made.Named || made.Incarnation != 1 || made.Sealed {
		t.Errorf("%+v", made)
	}
	if r := w.send(alice, "POST", "/api/v1/sessions/run-1/seal", ""); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	list := get[createdList](w, alice, "/api/v1/sessions")
	for _, s := range list.Sessions {
		if s.Sealed != (s.ID == "run-1") || s.Principal != "alice" {
			t.Errorf("%+v", s)
		}
	}
	if len(list.Sessions) != 3 {
		t.Errorf("alice has %d sessions", len(list.Sessions))
	}
	for _, step := range []struct {
		method, path string
		status       int
	}{
		{"DELETE", "/api/v1/sessions/run-1", 204}, {"DELETE", "/api/v1/sessions/run-1", 404},
		{"POST", "/api/v1/sessions", 410}, // and not 409: it is nobody's any more
	} {
		if r := w.send(alice, step.method, step.path, `{"id": "run-1"}`); r.status != step.status {
			t.Errorf("%s %s: %d %s", step.method, step.path, r.status, r.body)
		}
	}
	eventually(t, "the end of the session is stored", func() bool {
		ended := get[control.Session](w, alice, "/api/v1/sessions/run-1")
		return ended.State == "closed" && ended.Sealed && ended.Ended != ""
	})
}

// N7: a session's own connections are what it uses; of those that it shares the total is
// said, and with how many it does.
func TestWhatASessionUses(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"own": {"command": "SERVER", "sharing": "session"}, "ours": {"command": "SERVER"}}}`)
	for i := range 3 {
		w.client("", "ours", fmt.Sprintf("s%d", i))
	}
	w.client("", "own", "s0")
	list := get[createdList](w, "", "/api/v1/sessions")
	if len(list.Sessions) != 3 {
		t.Fatalf("%+v", list)
	}
	for _, s := range list.Sessions {
		if s.Usage == nil || len(s.Usage.Shared) != 1 {
			t.Fatalf("%+v", s.Usage)
		}
		if u := s.Usage.Shared[0]; u.Server != "ours" || u.Sessions != 3 || runtime.GOOS == "linux" && u.RSSBytes == 0 {
			t.Errorf("%s shares %+v", s.ID, u)
		}
		if runtime.GOOS == "linux" && (s.Usage.RSSBytes > 0) != (s.ID == "s0") {
			t.Errorf("%s has %+v", s.ID, s.Usage)
		}
	}
	one := get[control.Session](w, "", "/api/v1/sessions/s0")
	if b, _ := json.Marshal(one); !strings.Contains(string(b), `"shared":[{"connection":"ours::`) {
		t.Errorf("%s", b)
	}
}
