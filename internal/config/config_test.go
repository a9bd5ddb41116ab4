package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/secret"
)

// parse reads text as /conf/mcp.json with HOME and the given environment.
func parse(t testing.TB, text string, pairs ...string) (*config.Config, error) {
	t.Helper()
	return config.Parse("/conf/mcp.json", []byte(text), config.Options{Env: env(append(pairs, "HOME", "/home/me")...)})
}

// server reads an entry and returns it.
func server(t testing.TB, entry string, pairs ...string) *config.Server {
	t.Helper()
	c, err := parse(t, `{"mcpServers": {"s": `+entry+`}}`, pairs...)
	if err != nil {
		t.Fatal(err)
	}
	return c.Servers[0]
}

// Every default has the value that the table of defaults gives.
func TestDefaults(t *testing.T) {
	got, err := config.Load(config.Options{Env: env("HOME", "/home/me", "XDG_RUNTIME_DIR", "/run/me")})
	if err != nil {
		t.Fatal(err)
	}
	want := &config.Config{
		Listen:   "127.0.0.1:7420",
		StateDir: "/home/me/.local/state/roundhouse",
		Socket:   "/run/me/roundhouse/roundhouse.sock",
		Sessions: config.Sessions{Max: 1000, IdleTimeout: 10 * time.Minute, ExpireAfter: 24 * time.Hour, MaxTasks: 16},
		Pool: config.Pool{
			Enabled: true, Transports: []config.Transport{config.Stdio, config.WebSocket}, DrainDelay: 30 * time.Second, MaxIdle: 5 * time.Minute,
			Budget: config.Budget{Mode: config.BudgetOff},
			Recovery: config.PoolRecovery{
				Stdio:  config.Recovery{Attempts: 3, Delay: 5 * time.Second, MaxDelay: 5 * time.Second},
				Remote: config.Recovery{Attempts: 5, Delay: time.Second, MaxDelay: 16 * time.Second},
			},
			Health:  config.Health{Interval: 30 * time.Second, Timeout: 5 * time.Second, Misses: 2},
			Circuit: config.Circuit{Failures: 5, Window: time.Minute, Wait: 30 * time.Second, Stable: 5 * time.Minute},
		},
		Gateway: config.Gateway{
			MaxBody: 64 << 20, KeepAlive: 15 * time.Second, WriteDeadline: 10 * time.Second, ListWait: 15 * time.Second, InteractiveTimeout: 10 * time.Minute,
		},
		Shutdown:  config.Shutdown{Grace: 10 * time.Second, Total: 30 * time.Second},
		Autostart: config.Autostart{Enabled: true, IdleExit: 30 * time.Minute},
		Store:     "/home/me/.local/state/roundhouse/roundhouse.db",
		LLM: config.LLM{
			Record:    config.Record{Policy: config.RecordObserve, Unnamed: config.RecordOff, ClientGone: config.ClientGoneAuto},
			Responses: config.Responses{Rounds: 32, MaxImages: 3, CallTimeout: time.Minute, Parallel: 16, Background: 100, MaxResult: 1 << 20, ToolSessions: config.ToolSessionsSession, Retention: config.ResponseRetention{Age: 720 * time.Hour, Events: 24 * time.Hour, Size: 1 << 30}},
			MaxBody:   256 << 20, MaxQueued: 512 << 20,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}

	// P2, P9, R1, R3, I1, N5: and those of a server.
	s := server(t, `{"command": "npx"}`)
	wantServer := &config.Server{
		Name: "s", Position: "/conf/mcp.json:1:17", Transport: config.Stdio, Command: "npx", Cwd: "/conf", Sharing: config.Shared, Interactive: config.Auto, Era: config.EraAuto,
		StartTimeout: 60 * time.Second, CloseEOFWait: 2 * time.Second, CloseTermWait: 3 * time.Second, CloseKillWait: 2 * time.Second,
		Recovery: want.Pool.Recovery.Stdio, Health: want.Pool.Health, Retry: config.RetryNever,
		Instances: config.Instances{Max: 5, IdleTimeout: 5 * time.Minute, MaxWait: time.Minute, OnRelease: config.ReleaseDestroy},
		Cleanup:   config.Cleanup{Timeout: 5 * time.Second},
	}
	if !reflect.DeepEqual(s, wantServer) {
		t.Errorf("got %+v\nwant %+v", s, wantServer)
	}
}

func TestStateDirFollowsXDG(t *testing.T) {
	c, err := config.Load(config.Options{Env: env("XDG_STATE_HOME", "/xdg", "HOME", "/home/me")})
	if err != nil || c.StateDir != "/xdg/roundhouse" {
		t.Errorf("StateDir = %+v, %v", c, err)
	}
	_, err = config.Load(config.Options{Env: env()})
	if err == nil || !strings.Contains(err.Error(), "stateDir") {
		t.Errorf("without a home directory: %v", err)
	}
}

// A flag wins over the environment, that over the file, that over the defaults.
func TestPrecedence(t *testing.T) {
	const file = `{"mcpServers": {}, "listen": "127.0.0.1:1", "stateDir": "~/state"}`
	vars := []string{"HOME", "/home/me", "ROUNDHOUSE_LISTEN", "127.0.0.1:2", "ROUNDHOUSE_STATE_DIR", "/env"}
	flags := config.Overrides{Listen: "127.0.0.1:3", StateDir: "/flag"}
	for _, test := range []struct {
		name             string
		options          config.Options
		listen, stateDir string
	}{
		{"file", config.Options{Env: env(vars[:2]...)}, "127.0.0.1:1", "/home/me/state"},
		{"environment", config.Options{Env: env(vars...)}, "127.0.0.1:2", "/env"},
		{"flags", config.Options{Env: env(vars...), Overrides: flags}, "127.0.0.1:3", "/flag"},
	} {
		c, err := config.Parse("/conf/mcp.json", []byte(file), test.options)
		if err != nil {
			t.Fatal(err)
		}
		if c.Listen != test.listen || c.StateDir != test.stateDir {
			t.Errorf("%s: listen %s, stateDir %s", test.name, c.Listen, c.StateDir)
		}
	}
}

// H8: a daemon and those who look for it find the same socket, also where a host
// passes on few variables.
func TestSocket(t *testing.T) {
	home := []string{"HOME", "/home/me"}
	run := append(home, "XDG_RUNTIME_DIR", "/run/me")
	for _, test := range []struct {
		name, file string
		vars       []string
		flags      config.Overrides
		want       string
	}{
		{"the runtime directory", `{"mcpServers": {}}`, run, config.Overrides{}, "/run/me/roundhouse/roundhouse.sock"},
		{"a state directory of its own", `{"mcpServers": {}, "stateDir": "/s"}`, run, config.Overrides{}, "/s/roundhouse.sock"},
		{"and by flag", `{"mcpServers": {}}`, run, config.Overrides{StateDir: "/f"}, "/f/roundhouse.sock"},
		{"and by variable", `{"mcpServers": {}}`, append(run, "ROUNDHOUSE_STATE_DIR", "/v"), config.Overrides{}, "/v/roundhouse.sock"},
		{"the file", `{"mcpServers": {}, "socket": "a/b.sock"}`, run, config.Overrides{}, "/conf/a/b.sock"},
		{"the file, from home", `{"mcpServers": {}, "socket": "~/b.sock"}`, run, config.Overrides{}, "/home/me/b.sock"},
		{"the variable", `{"mcpServers": {}, "socket": "a"}`, append(run, "ROUNDHOUSE_SOCKET", "/v.sock"), config.Overrides{}, "/v.sock"},
		{"the flag", `{"mcpServers": {}, "socket": "a"}`, append(run, "ROUNDHOUSE_SOCKET", "/v.sock"), config.Overrides{Socket: "/f.sock"}, "/f.sock"},
	} {
		c, err := config.Parse("/conf/mcp.json", []byte(test.file), config.Options{Env: env(test.vars...), Overrides: test.flags})
		if err != nil || c.Socket != test.want {
			t.Errorf("%s: %+v, %v; want %s", test.name, c, err, test.want)
		}
	}
	if c, err := config.Load(config.Options{Env: env(home...)}); err != nil || !strings.HasSuffix(c.Socket, "/roundhouse/roundhouse.sock") {
		t.Errorf("without a runtime directory: %+v, %v", c, err)
	}
	if _, err := parse(t, `{"mcpServers": {}, "socket": ""}`); err == nil {
		t.Error("an empty socket is accepted")
	}
}

// H8: a daemon that was started for a shim listens on TCP only if somebody said so.
func TestListenGiven(t *testing.T) {
	for _, test := range []struct {
		name, file string
		vars       []string
		flags      config.Overrides
		want       bool
	}{
		{"default", `{"mcpServers": {}}`, nil, config.Overrides{}, false},
		{"file", `{"mcpServers": {}, "listen": "127.0.0.1:7420"}`, nil, config.Overrides{}, true},
		{"variable", `{"mcpServers": {}}`, []string{"ROUNDHOUSE_LISTEN", "127.0.0.1:1"}, config.Overrides{}, true},
		{"flag", `{"mcpServers": {}}`, nil, config.Overrides{Listen: "127.0.0.1:1"}, true},
	} {
		c, err := config.Parse("/conf/mcp.json", []byte(test.file), config.Options{Env: env(append(test.vars, "HOME", "/h")...), Overrides: test.flags})
		if err != nil || c.ListenGiven != test.want {
			t.Errorf("%s: %+v, %v", test.name, c, err)
		}
	}
}

func TestAutostart(t *testing.T) {
	c, err := parse(t, `{"mcpServers": {}, "autostart": {"enabled": false, "idleExit": "1m"}}`)
	if err != nil || c.Autostart != (config.Autostart{IdleExit: time.Minute}) {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := parse(t, `{"mcpServers": {}, "autostart": {"idleExit": "0s"}}`); err == nil {
		t.Error("a daemon that ends at once is accepted")
	}
}

// K7: a server's own sharing wins over the transports, and the switch over all.
func TestSharing(t *testing.T) {
	for _, test := range []struct {
		name, entry, pool string
		vars              []string
		want              config.Sharing
	}{
		{"stdio is shared", `{"command": "x"}`, `{}`, nil, config.Shared},
		{"WebSocket is shared", `{"url": "ws://h/"}`, `{}`, nil, config.Shared},
		{"HTTP is not", `{"type": "http", "url": "http://h/"}`, `{}`, nil, config.Session},
		{"SSE is not", `{"type": "sse", "url": "http://h/"}`, `{}`, nil, config.Session},
		{"the transports decide", `{"command": "x"}`, `{"transports": ["http"]}`, nil, config.Session},
		{"no transports", `{"command": "x"}`, `{"transports": []}`, nil, config.Session},
		{"its own wins", `{"command": "x", "sharing": "session"}`, `{}`, nil, config.Session},
		{"its own wins over the transports", `{"command": "x", "sharing": "shared"}`, `{"transports": []}`, nil, config.Shared},
		{"exclusive is kept", `{"command": "x", "sharing": "exclusive"}`, `{}`, nil, config.Exclusive},
		{"the switch wins", `{"command": "x", "sharing": "shared"}`, `{"enabled": false}`, nil, config.Session},
		{"the variable wins", `{"command": "x", "sharing": "exclusive"}`, `{}`, []string{"ROUNDHOUSE_NO_POOL", "1"}, config.Session},
		{"the variable can say no", `{"command": "x"}`, `{}`, []string{"ROUNDHOUSE_NO_POOL", "0"}, config.Shared},
		{"a browser is not shared", `{"command": "npx", "args": ["-y", "@playwright/mcp@latest"]}`, `{}`, nil, config.Exclusive},
		{"nor as an image", `{"command": "docker", "args": ["run", "mcr.microsoft.com/playwright/mcp"]}`, `{}`, nil, config.Exclusive},
		{"nor by its path", `{"command": "/opt/bin/chrome-devtools-mcp"}`, `{}`, nil, config.Exclusive},
		{"but not where it needs the workspace", `{"command": "npx", "args": ["@playwright/mcp"], "cwd": "workspace"}`, `{}`, nil, config.Session},
		{"unless it says so", `{"command": "npx", "args": ["@playwright/mcp"], "sharing": "shared"}`, `{}`, nil, config.Shared},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := parse(t, `{"mcpServers": {"s": `+test.entry+`}, "pool": `+test.pool+`}`, test.vars...)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Servers[0].Sharing; got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	c, err := config.Parse("f", []byte(`{"mcpServers": {"s": {"command": "x"}}}`), config.Options{Overrides: config.Overrides{NoPool: true}})
	if err != nil || c.Pool.Enabled || c.Servers[0].Sharing != config.Session {
		t.Errorf("the flag does not switch the pool off: %v", err)
	}
	if _, err := parse(t, `{"mcpServers": {}}`, "ROUNDHOUSE_NO_POOL", "maybe"); err == nil {
		t.Error("an unknown value of ROUNDHOUSE_NO_POOL is accepted")
	}
}

// Positions are exact: each case marks the place with "@" before it.
func TestPositions(t *testing.T) {
	for _, test := range []struct{ name, text, path string }{
		{"element", "{\n\t\"mcpServers\": {\n\t\t\"s\": {\"command\": \"x\", \"args\": [\"a\", @1]}}}", "mcpServers.s.args[1]"},
		{"unknown key", `{"mcpServers": {"s": {"command": "x", @"colour": 1}}}`, "mcpServers.s.colour"},
		{"after a mark and CRLF", "\xef\xbb\xbf{\r\n\"mcpServers\": {},\r\n  \"listen\": @1}", "listen"},
		{"mark on the first line", "\xef\xbb\xbf{\"mcpServers\": @1}", "mcpServers"},
		{"after comments", "{/* \n */ \"mcpServers\": {}, // x\n \"pool\": {\"enabled\": @\"yes\"}}", "pool.enabled"},
		{"columns are bytes", `{"mcpServers": {"日本": {"command": @1}}}`, `mcpServers["日本"].command`},
		{"name that is no word", `{"mcpServers": {"a.b": {"command": @1}}}`, `mcpServers["a.b"].command`},
		{"duplicate", `{"mcpServers": {"s": {"command": "x", @"command": "x"}}}`, "mcpServers.s.command"},
		{"variable", `{"mcpServers": {"s": {"command": "x", "env": {"A": @"${MISSING}"}}}}`, "mcpServers.s.env.A"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, after, _ := strings.Cut(test.text, "@")
			c, err := parse(t, before+after)
			var problems []config.Problem
			if err != nil {
				problems = err.(*config.Invalid).Problems
			} else {
				problems = c.Problems
			}
			before = strings.TrimPrefix(before, "\xef\xbb\xbf")
			line := 1 + strings.Count(before, "\n")
			column := len(before) - strings.LastIndex(before, "\n")
			if len(problems) != 1 || problems[0].Line != line || problems[0].Column != column || problems[0].Path != test.path || problems[0].File != "/conf/mcp.json" {
				t.Errorf("got %+v, want one at %d:%d, %s", problems, line, column, test.path)
			}
		})
	}
}

// Case 7: every form of a variable, in every field.
func TestVariables(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"${V}", "value"},
		{"a${V}b${V}c", "avaluebvaluec"},
		{"${V:-d}", "value"},
		{"${env:V}", "value"},
		{"${env:V:-d}", "value"},
		{"${MISSING:-d}", "d"},
		{"${env:MISSING:-d}", "d"},
		{"${MISSING:-}", ""},
		{"${EMPTY:-d}", "d"},
		{"${EMPTY}", ""},
		{"${MISSING:-${V}}", "value"},
		{"${MISSING:-a:-b}", "a:-b"},
		{"$V $$V $", "$V $$V $"},
		{"$${V}", "$value"},
		{"${TRICKY}", "${V}"}, // A value is not expanded again.
		{"${DOLLAR:-$}{V}", "${V}"},
		{"${userHome}/x", "/home/me/x"},
		{"${workspaceFolder}/x", "${WORKSPACE}/x"},
		{"${WORKSPACE}/x", "${WORKSPACE}/x"},
		{"${env:WORKSPACE}", "from the environment"},
	} {
		vars := []string{"V", "value", "EMPTY", "", "TRICKY", "${V}", "WORKSPACE", "from the environment"}
		s := server(t, `{"command": "c", "args": ["`+test.text+`"], "env": {"A": "`+test.text+`"}}`, vars...)
		if s.DisabledReason != "" || s.Args[0] != test.want || s.Env["A"].Reveal() != test.want {
			t.Errorf("%s: got %q and %q, want %q; %s", test.text, s.Args, s.Env["A"].Reveal(), test.want, s.DisabledReason)
		}
	}

	s := server(t, `{"type": "http", "url": "${V}://h/${V}", "headers": {"A": "${V}"}}`, "V", "http")
	if s.URL.Reveal() != "http://h/http" || s.Headers["A"].Reveal() != "http" {
		t.Errorf("url and headers are not expanded: %q, %q", s.URL.Reveal(), s.Headers["A"].Reveal())
	}
	s = server(t, `{"command": "${V}", "cwd": "${V}"}`, "V", "/v")
	if s.Command != "/v" || s.Cwd != "/v" {
		t.Errorf("command and cwd are not expanded: %q, %q", s.Command, s.Cwd)
	}
}

// Case 7: what cannot be expanded disables that server only, and names the field.
func TestUnsetVariableDisablesThatServer(t *testing.T) {
	for field, entry := range map[string]string{
		"command":   `{"command": "${MISSING}"}`,
		"args[1]":   `{"command": "x", "args": ["a", "${MISSING}"]}`,
		"env.A":     `{"command": "x", "env": {"A": "${MISSING}"}}`,
		"cwd":       `{"command": "x", "cwd": "${MISSING}"}`,
		"url":       `{"url": "${MISSING}"}`,
		"headers.A": `{"url": "http://h", "headers": {"A": "Bearer ${MISSING}"}}`,
	} {
		c, err := parse(t, `{"mcpServers": {"bad": `+entry+`, "good": {"command": "x"}}}`)
		if err != nil {
			t.Fatal(err)
		}
		bad, good := c.Servers[0], c.Servers[1]
		if !strings.HasPrefix(bad.DisabledReason, field+": ") || !strings.Contains(bad.DisabledReason, "MISSING is not set") {
			t.Errorf("%s: %q", field, bad.DisabledReason)
		}
		if good.DisabledReason != "" {
			t.Errorf("%s: the other server is disabled too: %s", field, good.DisabledReason)
		}
		if len(c.Problems) != 1 || c.Problems[0].Server != "bad" || c.Problems[0].Severity != config.Error {
			t.Errorf("%s: %v", field, c.Problems)
		}
	}
}

// K6: the directory of a stdio server.
func TestWorkingDirectory(t *testing.T) {
	for cwd, want := range map[string]string{
		``:                       "/conf",
		`.`:                      "/conf",
		`sub/../x`:               "/conf/x",
		`/abs/`:                  "/abs",
		`~`:                      "/home/me",
		`~/x`:                    "/home/me/x",
		`~x`:                     "/conf/~x",
		`workspace`:              "${WORKSPACE}",
		`./workspace`:            "/conf/workspace",
		`${workspaceFolder}/sub`: "${WORKSPACE}/sub",
	} {
		if got := server(t, `{"command": "x", "cwd": "`+cwd+`"}`); got.Cwd != want || got.DisabledReason != "" {
			t.Errorf("cwd %q: got %q, want %q; %s", cwd, got.Cwd, want, got.DisabledReason)
		}
	}
}

// K6: ${WORKSPACE} in any field makes the workspace part of the server.
func TestWorkspace(t *testing.T) {
	for _, entry := range []string{
		`{"command": "${WORKSPACE}/x"}`, `{"command": "x", "args": ["a", "${WORKSPACE}"]}`, `{"command": "x", "env": {"A": "${WORKSPACE}"}}`,
		`{"command": "x", "cwd": "workspace"}`, `{"url": "http://h/?w=${WORKSPACE}"}`, `{"url": "http://h/", "headers": {"A": "${WORKSPACE}"}}`,
	} {
		s := server(t, entry)
		before := *s
		if !s.NeedsWorkspace() {
			t.Errorf("%s needs no workspace", entry)
		}
		if _, err := s.Resolve(""); err == nil || !strings.Contains(err.Error(), "roundhouse connect") {
			t.Errorf("%s without a workspace: %v", entry, err)
		}
		if _, err := s.Resolve("relative"); err == nil {
			t.Errorf("%s accepts a relative workspace", entry)
		}
		resolved, err := s.Resolve("/w")
		if err != nil {
			t.Fatal(err)
		}
		if resolved.NeedsWorkspace() {
			t.Errorf("%s is not resolved: %+v", entry, resolved)
		}
		if !reflect.DeepEqual(*s, before) || !s.NeedsWorkspace() {
			t.Errorf("Resolve changed %s", entry)
		}
	}

	s := server(t, `{"command": "x", "args": ["${WORKSPACE}/a"], "env": {"A": "${WORKSPACE}"}, "cwd": "workspace", "includeTools": []}`)
	resolved, err := s.Resolve("/w")
	if err != nil || resolved.Args[0] != "/w/a" || resolved.Env["A"] != secret.New("/w") || resolved.Cwd != "/w" {
		t.Errorf("got %+v, %v", resolved, err)
	}
	if resolved.IncludeTools == nil {
		t.Error("V3: an empty include list became an absent one")
	}

	s = server(t, `{"command": "x", "args": ["a"], "env": {"A": "1"}}`)
	if s.NeedsWorkspace() {
		t.Error("a server without ${WORKSPACE} needs one")
	}
	resolved, err = s.Resolve("")
	if err != nil || !reflect.DeepEqual(resolved, s) || resolved == s {
		t.Errorf("Resolve of it gives %+v, %v", resolved, err)
	}
	resolved.Args[0] = "changed"
	if s.Args[0] != "a" {
		t.Error("the copy shares its arguments")
	}
}

// V3: an absent list and an empty one are different.
func TestToolFilters(t *testing.T) {
	for entry, want := range map[string][]string{
		`{"command": "x"}`:                            nil,
		`{"command": "x", "includeTools": null}`:      nil,
		`{"command": "x", "includeTools": []}`:        {},
		`{"command": "x", "include_tools": ["a"]}`:    {"a"},
		`{"command": "x", "enabled_tools": ["a(b)"]}`: {"a(b)"},
		`{"command": "x", "enabledTools": ["a"]}`:     {"a"},
		`{"command": "x", "allowedTools": ["a"]}`:     {"a"},
		`{"command": "x", "allowed_tools": ["a"]}`:    {"a"},
		`{"command": "x", "tools": ["a", "b"]}`:       {"a", "b"},
		`{"command": "x", "tools": []}`:               {},
		`{"command": "x", "tools": ["*"]}`:            nil,
		`{"command": "x", "tools": {"a": {}}}`:        nil,
		`{"command": "x", "alwaysAllow": ["a"]}`:      nil,
		`{"command": "x", "autoApprove": ["a"]}`:      nil,
	} {
		if got := server(t, entry).IncludeTools; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %#v, want %#v", entry, got, want)
		}
	}
	for _, key := range []string{"excludeTools", "exclude_tools", "disabled_tools", "disabledTools"} {
		if got := server(t, `{"command": "x", "`+key+`": ["a"]}`).ExcludeTools; !slices.Equal(got, []string{"a"}) {
			t.Errorf("%s gives %v", key, got)
		}
	}
	for _, entry := range []string{
		`"excludeTools": ["delete_*"]`, `"includeTools": ["read_*"]`, `"tools": ["read_*"]`, `"tools": ["a"], "includeTools": ["a"]`, `"tools": "*"`,
	} {
		if s := server(t, `{"command": "x", `+entry+`}`); s.DisabledReason == "" {
			t.Errorf("%s: the server may be used with the filter %v, %v", entry, s.IncludeTools, s.ExcludeTools)
		}
	}
}

// V3: a principal's filter names tools as the aggregate does; what would have no effect is
// an error, and so are two filters of one principal.
func TestFiltersOfPrincipals(t *testing.T) {
	token := func(n int, principal, more string) string {
		return fmt.Sprintf(`{"principal": %q, "token": "0123456789abcde%d"%s}`, principal, n, more)
	}
	read := func(tokens ...string) (*config.Config, error) {
		return config.Parse("/conf/x.json", []byte(`{"mcpServers": {}, "auth": {"tokens": [`+strings.Join(tokens, ",")+`]}}`), config.Options{Env: corpusEnv})
	}
	c, err := read(token(1, "ann", `, "tools": {"include": ["a__*", "b__c"], "exclude": ["a__d"]}`), token(2, "bob", ""), token(3, "eve", `, "tools": {"include": []}`))
	want := map[string]config.ToolFilter{"ann": {Include: []string{"a__*", "b__c"}, Exclude: []string{"a__d"}}, "eve": {Include: []string{}}}
	if err != nil || !reflect.DeepEqual(c.Auth.Filters(), want) {
		t.Errorf("%v %v", c, err)
	}
	for _, tokens := range [][]string{
		{token(1, "ann", `, "tools": {"include": ["c"]}`)},
		{token(1, "ann", `, "tools": {"exclude": ["b__c*"]}`)},
		{token(1, "ann", `, "tools": {"exclude": ["*__c"]}`)},
		{token(1, "ann", `, "tools": {"exclude": ["__c"]}`)},
		{token(1, "ann", `, "tools": ["a__b"]`)},
		{token(1, "ann", `, "tools": {"includes": []}`)},
		{token(1, "ann", `, "tools": {"include": ["a__b"]}`), token(2, "ann", "")},
	} {
		if _, err := read(tokens...); err == nil {
			t.Errorf("%s is accepted", tokens)
		}
	}
}

// P8: nothing but an explicit wish passes the whole environment on.
func TestInheritEnv(t *testing.T) {
	if server(t, `{"command": "x", "env": {"A": "1"}}`).InheritEnv || !server(t, `{"command": "x", "inheritEnv": true}`).InheritEnv {
		t.Error("inheritEnv is not what the file says")
	}
}

// Nothing listens beyond loopback without authentication.
func TestListeningBeyondLoopbackNeedsTokens(t *testing.T) {
	const token = `{"tokens": [{"principal": "ann", "token": "0123456789abcdef"}]}`
	for address, beyond := range map[string]bool{
		"127.0.0.1:1": false, "127.9.9.9:1": false, "[::1]:1": false, "localhost:1": false, "[::ffff:127.0.0.1]:1": false, "127.0.0.1:0": false,
		"0.0.0.0:1": true, ":1": true, "[::]:1": true, "10.0.0.1:1": true, "example.com:1": true, "localhost.evil.example:1": true,
	} {
		text := `{"mcpServers": {}, "listen": "` + address + `", "auth": ` + token + `}`
		c, err := parse(t, text)
		if err != nil || c.BeyondLoopback() != beyond {
			t.Errorf("%s with a token: beyond %v, %v", address, c.BeyondLoopback(), err)
		}
		_, err = parse(t, strings.Replace(text, token, "{}", 1))
		if (err != nil) != beyond {
			t.Errorf("%s without a token: %v", address, err)
		}
	}
	_, err := parse(t, `{"mcpServers": {}}`, "ROUNDHOUSE_LISTEN", "0.0.0.0:1")
	if err == nil || !strings.HasPrefix(err.Error(), "error: ROUNDHOUSE_LISTEN: ") || !strings.Contains(err.Error(), "auth") {
		t.Errorf("by the environment: %v", err)
	}
	_, err = config.Load(config.Options{Env: env("HOME", "/h"), Overrides: config.Overrides{Listen: "nonsense"}})
	if err == nil || !strings.HasPrefix(err.Error(), "error: --listen: ") {
		t.Errorf("by a flag: %v", err)
	}
}

func TestLoadReadsTheFileAndLeavesItAlone(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, ".mcp.json")
	text := "\xef\xbb\xbf{\"mcpServers\": {\"s\": {\"command\": \"x\"}}} // end"
	if err := os.WriteFile(name, []byte(text), 0o400); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Options{File: name})
	if err != nil {
		t.Fatal(err)
	}
	if c.File != name || c.Servers[0].Cwd != dir {
		t.Errorf("File %s, Cwd %s", c.File, c.Servers[0].Cwd)
	}
	if after, _ := os.ReadFile(name); string(after) != text {
		t.Error("the file changed")
	}

	t.Chdir(dir)
	c, err = config.Load(config.Options{File: ".mcp.json"})
	if err != nil || c.File != name || c.Servers[0].Position != ".mcp.json:1:17" {
		t.Errorf("by a relative name: %+v, %v", c, err)
	}
}

func TestUnreadableFileIsNamed(t *testing.T) {
	for name, want := range map[string]string{
		filepath.Join(t.TempDir(), "none.json"): "no such file",
		t.TempDir():                             "directory",
	} {
		_, err := config.Load(config.Options{File: name})
		if err == nil || !strings.HasPrefix(err.Error(), name+": error: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A hostile file is refused before it can exhaust the stack or memory.
func TestHugeFilesAreRefused(t *testing.T) {
	for _, text := range []string{strings.Repeat("[", 1<<20), strings.Repeat(" ", 17<<20)} {
		if _, err := parse(t, text); err == nil {
			t.Errorf("a file of %d bytes is accepted", len(text))
		}
	}
}

// N3: a kind of sessions has its own limits, and the general ones where it has none.
func TestKindsOfSessions(t *testing.T) {
	cfg, err := parse(t, `{"mcpServers": {}, "sessions": {"idleTimeout": "2m", "maxTasks": 3, "kinds": {
		"rollout": {"idleTimeout": "30s", "expireAfter": "1h", "maxLifetime": "2h", "maxTasks": 1}, "chat": {"expireAfter": "48h"}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]config.SessionLimits{
		"":        {IdleTimeout: 2 * time.Minute, ExpireAfter: 24 * time.Hour, MaxTasks: 3},
		"unknown": {IdleTimeout: 2 * time.Minute, ExpireAfter: 24 * time.Hour, MaxTasks: 3},
		"chat":    {IdleTimeout: 2 * time.Minute, ExpireAfter: 48 * time.Hour, MaxTasks: 3},
		"rollout": {IdleTimeout: 30 * time.Second, ExpireAfter: time.Hour, MaxLifetime: 2 * time.Hour, MaxTasks: 1},
	} {
		if got := cfg.Sessions.Of(kind); got != want {
			t.Errorf("%q has %+v", kind, got)
		}
	}
}

// B1: the mode of a budget with a limit is warn unless the file says otherwise; a mode
// without a limit is an error, because it has no effect.
func TestTheModeOfABudget(t *testing.T) {
	for text, want := range map[string]config.Budget{
		`{}`:                                {Mode: config.BudgetOff},
		`{"servers": 20}`:                   {Mode: config.BudgetWarn, Servers: 20},
		`{"processes": 3}`:                  {Mode: config.BudgetWarn, Processes: 3},
		`{"mode": "enforce", "servers": 2}`: {Mode: config.BudgetEnforce, Servers: 2},
		`{"servers": 2, "mode": "off"}`:     {Mode: config.BudgetOff, Servers: 2},
		`{"mode": "off"}`:                   {Mode: config.BudgetOff},
		`{"mode": "warn"}`:                  {},
		`{"mode": "enforce"}`:               {},
		`{"mode": "strict", "servers": 1}`:  {},
		`{"servers": 0}`:                    {},
	} {
		cfg, err := config.Parse("/conf/x.json", []byte(`{"mcpServers": {}, "pool": {"budget": `+text+`}}`), config.Options{})
		if want == (config.Budget{}) {
			if err == nil {
				t.Errorf("%s is accepted", text)
			}
			continue
		}
		if err != nil || cfg.Pool.Budget != want {
			t.Errorf("%s: %+v, %v", text, cfg, err)
		}
	}
}
