package config_test

import (
	"errors"
	"strings"
	"testing"

	"roundhouse/internal/config"
)

// K7: an injected entry is read as one of the file is, with the configuration's defaults,
// and is its session's alone.
func TestAnInjectedEntryIsReadAsOneOfTheFile(t *testing.T) {
	cfg, err := config.Parse(t.TempDir()+"/config.json", []byte(`{"mcpServers": {}, "pool": {"recovery": {"stdio": {"attempts": 7}}}}`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, problems, err := cfg.Inject("x", []byte(`{"command": "@playwright/mcp", "args": ["${WORKSPACE}"], "headers": {}}`))
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "x" || !s.Injected || s.Sharing != config.Session || s.Recovery.Attempts != 7 || s.Args[0] != "${WORKSPACE}" {
		t.Errorf("%+v", s)
	}
	if len(problems) != 1 || problems[0].Path != "server.headers" || problems[0].Line != 0 {
		t.Errorf("warnings: %+v", problems)
	}
}

// Every problem of an injected entry comes at once, and what would have no effect is one.
func TestAnInjectedEntryIsRefusedWithAllProblems(t *testing.T) {
	t.Setenv("INJECT_TEST_SECRET", "hunter2-hunter2")
	cfg, err := config.Parse(t.TempDir()+"/config.json", []byte(`{"mcpServers": {}}`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		`{}`:                                 {"command"},
		`{"command": "a", "disabled": true}`: {"is disabled"},
		`{"command": "a", "args": [1], "startTimeout": "x"}`:                           {"server.args[0]", "server.startTimeout"},
		`{"command": "a", "command": "b"}`:                                             {"twice"},
		`{"command": "a", "args": ["${INJECT_TEST_SECRET}"]}`:                          {"server.args[0]: the daemon's environment"},
		`{"command": "a", "env": {"X": "${env:INJECT_TEST_SECRET:-x}"}}`:               {"server.env.X: the daemon's environment"},
		`{"url": "http://x/", "bearer_token_env_var": "INJECT_TEST_SECRET"}`:           {"server.bearer_token_env_var: the daemon's environment"},
		`{"command": "a", "inheritEnv": true, "sharing": "shared"}`:                    {"server.inheritEnv", "server.sharing"},
		`{"command": "a", "sharing": "exclusive"}`:                                     {"server.sharing"},
		`{"url": "http://x/", "forwardHeaders": ["X-Tenant"]}`:                         {"server.forwardHeaders"},
		`{"url": "http://x/", "env_http_headers": {"X-Secret": "INJECT_TEST_SECRET"}}`: {"server.env_http_headers"},
	} {
		s, _, err := cfg.Inject("x", []byte(text))
		invalid, ok := errors.AsType[*config.Invalid](err)
		if !ok || s != nil {
			t.Errorf("%s: %+v, %v", text, s, err)
			continue
		}
		for _, part := range want {
			if !strings.Contains(invalid.Error(), part) {
				t.Errorf("%s: %q is not in\n%v", text, part, err)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: a secret is in %v", text, err)
		}
	}
	for _, name := range []string{"", "..", "a/b", "roundhouse", "a\n"} {
		if _, _, err := cfg.Inject(name, []byte(`{"command": "a"}`)); err == nil {
			t.Errorf("the name %q was accepted", name)
		}
	}
}
