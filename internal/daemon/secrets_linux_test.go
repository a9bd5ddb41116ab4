package daemon_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Case 67: no secret of the configuration appears in logs at debug level, in API
// answers, in ps, in errors, on the command line of our own processes, or in files.
func TestSecretsAppearNowhere(t *testing.T) {
	const admin, guest = "sentinel-admin-token", "sentinel-guest-token"
	// An argument that the server accepts: what it says itself about one is its output.
	argument := filepath.Join(t.TempDir(), "sentinel-argument")
	if err := os.WriteFile(argument, []byte("1000"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SENTINEL_ARG", argument)
	t.Setenv("SENTINEL_ENV", "sentinel-environment")
	t.Setenv("SENTINEL_HEADER", "sentinel-header")
	t.Setenv("SENTINEL_URL", "sentinel-url")
	t.Setenv("SENTINEL_OAUTH", "sentinel-oauth")
	t.Setenv("SENTINEL_ADMIN", admin)
	t.Setenv("SENTINEL_GUEST", guest)
	d := start(t, `{
		"auth": {"tokens": [
			{"principal": "root", "token": "${SENTINEL_ADMIN}", "admin": true},
			{"principal": "guest", "token": "${SENTINEL_GUEST}"}]},
		"mcpServers": {
			"good":    {"command": "SERVER", "args": ["-crash-times-file", "${SENTINEL_ARG}"], "env": {"KEY": "${SENTINEL_ENV}"}},
			"failing": {"command": "SERVER", "args": ["-fail-start", "-crash-times-file", "${SENTINEL_ARG}"], "env": {"KEY": "${SENTINEL_ENV}"}},
			"slow":    {"command": "SERVER", "args": ["-never-start", "-crash-times-file", "${SENTINEL_ARG}"], "startTimeout": "100ms"},
			"absent":  {"command": "no-such-program", "args": ["--api-key", "${SENTINEL_ARG}"], "env": {"KEY": "${SENTINEL_ENV}"}},
			"nodir":   {"command": "SERVER", "args": ["--api-key", "${SENTINEL_ARG}"], "cwd": "/no/such/directory"},
			"nul":     {"command": "SERVER", "args": ["${SENTINEL_ARG}\u0000"]},
			"remote":  {"type": "http", "url": "https://user:${SENTINEL_URL}@host.example/mcp?key=${SENTINEL_URL}",
				"headers": {"Authorization": "Bearer ${SENTINEL_HEADER}", "X-Custom-Key": "${SENTINEL_HEADER}"},
				"oauth": {"clientId": "me", "clientSecret": "${SENTINEL_OAUTH}"}},
			"typo":    {"type": "htp", "url": "https://host.example/${SENTINEL_URL}", "headers": {"X-Custom-Key": "${SENTINEL_HEADER}"}},
			"unset":   {"command": "SERVER", "args": ["${SENTINEL_ARG}", "${SENTINEL_ABSENT}"]}
		}}`, "--log-level", "debug")

	shown := map[string]string{}
	for _, token := range []string{admin, guest} {
		bearer := []string{"Authorization", "Bearer " + token}
		ask := func(method, path, body string) answer {
			a := d.do(method, path, body, bearer...)
			shown[fmt.Sprintf("%s %s for %s", method, path, token)] = fmt.Sprintf("%v %s %v", a.header, a.body, a.err)
			return a
		}
		for _, server := range []string{"good", "failing", "slow", "absent", "nodir", "nul", "remote", "typo", "unset", "nowhere"} {
			ask("POST", "/mcp/"+server, helloBody)
			ask("GET", "/api/v1/servers/"+server, "")
			ask("GET", "/api/v1/servers/"+server+"/logs", "")
			ask("POST", "/api/v1/servers/"+server+"/restart", "")
		}
		c := d.client("good", bearer...)
		shown["a failing call for "+token] = string(c.call("no-such-tool", `{}`).body)
		lost := c.call("kill", `{}`)
		if lost.reason() != "interrupted" {
			t.Errorf("a call of a server that dies: %d %s", lost.status, lost.body)
		}
		shown["a lost call for "+token] = string(lost.body)
		for _, path := range []string{"/api/v1/status", "/api/v1/servers", "/api/v1/connections", "/api/v1/sessions", "/api/v1/sessions/none", "/none"} {
			ask("GET", path, "")
		}
	}
	wrong := d.do("GET", "/api/v1/status", "", "Authorization", "Bearer sentinel-wrong-token")
	if wrong.status != 401 {
		t.Errorf("a wrong token: %d", wrong.status)
	}
	shown["the answer to a wrong token"] = string(wrong.body)

	for _, args := range [][]string{
		{"ps"}, {"ps", "--json"}, {"config", "check", d.path("config.json")}, {"config", "check", "--json", d.path("config.json")},
		{"call", "absent", "echo"}, {"call", "--json", "failing", "echo"},
	} {
		cmd := exec.Command(d.path("roundhouse"), args...)
		cmd.Env = append(os.Environ(), "HOME="+d.dir, "ROUNDHOUSE_URL="+d.url, "ROUNDHOUSE_TOKEN="+admin)
		out, err := cmd.CombinedOutput()
		if err == nil && args[0] == "call" {
			t.Errorf("roundhouse %v should fail: %s", args, out)
		}
		shown["roundhouse "+strings.Join(args, " ")] = string(out)
	}
	for pid, args := range d.leftovers("roundhouse") {
		shown[fmt.Sprintf("the command line of our process %d", pid)] = args
	}
	for name, content := range d.stateFiles() {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
		shown[name] = string(content)
	}
	d.signal(syscall.SIGTERM)
	d.wantExit(0)
	shown["the log"] = d.stderr.String()
	if !strings.Contains(shown["the log"], "level=DEBUG") {
		t.Error("nothing was logged at debug level")
	}
	for where, text := range shown {
		if i := strings.Index(text, "sentinel-"); i >= 0 {
			t.Errorf("%s holds a secret: …%s…", where, text[max(0, i-80):min(len(text), i+60)])
		}
	}
}
