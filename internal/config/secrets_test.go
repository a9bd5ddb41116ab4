package config_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tailscale/hujson"

	"roundhouse/internal/config"
)

const sentinel = "s3cr3t_Sentinel_0123456789"

// Case 67: whatever a file or the environment holds as a value, right or wrong,
// no problem shows it. Every value of the corpus in turn becomes a secret.
func TestProblemsNeverHoldValues(t *testing.T) {
	secretEnv := func(string) (string, bool) { return sentinel, true }
	check := func(text []byte) {
		t.Helper()
		for _, lookup := range []func(string) (string, bool){secretEnv, env("HOME", "/home/me")} {
			c, err := config.Parse("/conf/mcp.json", text, config.Options{Env: lookup})
			if shown := everythingShown(c, err); strings.Contains(shown, sentinel) {
				t.Fatalf("a value is shown for\n%s\n%s", text, shown)
			}
		}
	}
	for _, file := range corpus(t) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		check(data)
		root, err := hujson.Parse(append(data, '\n'))
		if err != nil {
			continue
		}
		for _, value := range stringValues(&root) {
			before := value.Value
			for _, text := range []string{`"` + sentinel + `"`, `"${` + `V:-` + sentinel + `}"`, `"https://u:` + sentinel + `@h:x/"`, `"-` + sentinel + `\n"`} {
				value.Value = hujson.Literal(text)
				check(root.Pack())
			}
			for _, broken := range []string{`"` + sentinel + "\n\"", `"\x` + sentinel + `"`, sentinel, `'` + sentinel + `'`, `"` + sentinel + `" "` + sentinel + `"`} {
				value.Value = hujson.Literal(broken)
				check(root.Pack())
			}
			value.Value = before
		}
	}
}

// everythingShown is all text that Parse returns for people to read.
func everythingShown(c *config.Config, err error) string {
	var b strings.Builder
	fmt.Fprintln(&b, err)
	if c == nil {
		return b.String()
	}
	for _, p := range c.Problems {
		fmt.Fprintf(&b, "%v %+v\n", p, p)
	}
	for _, s := range c.Servers {
		fmt.Fprintln(&b, s.DisabledReason, s.Position, s.URL, s.Headers, s.Env, s.OAuth.ClientSecret)
	}
	return b.String()
}

// stringValues returns all strings of a tree that are no names of members.
func stringValues(root *hujson.Value) []*hujson.Value {
	var names, values []*hujson.Value
	for v := range root.All() {
		if object, ok := v.Value.(*hujson.Object); ok {
			for i := range object.Members {
				names = append(names, &object.Members[i].Name)
			}
		}
		if v.Value.Kind() == '"' && !slices.Contains(names, v) {
			values = append(values, v)
		}
	}
	return values
}

func FuzzParse(f *testing.F) {
	for _, file := range corpus(f) {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	lookup := func(name string) (string, bool) { return sentinel, !strings.HasPrefix(name, "M") }
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse("/conf/mcp.json", data, config.Options{Env: lookup})
		if (c == nil) == (err == nil) {
			t.Fatalf("neither or both: %v, %v", c, err)
		}
		var problems []config.Problem
		if err != nil {
			problems = err.(*config.Invalid).Problems
			if !slices.ContainsFunc(problems, func(p config.Problem) bool { return p.Severity == config.Error }) {
				t.Fatalf("invalid without an error: %v", problems)
			}
		} else {
			problems = c.Problems
		}
		lines := strings.Split(strings.TrimPrefix(string(data), "\xef\xbb\xbf"), "\n")
		for _, p := range problems {
			if p.File != "" && (p.Line < 1 || p.Line > len(lines) || p.Column < 1 || p.Column > len(lines[p.Line-1])+1) {
				t.Errorf("a problem stands outside the file: %+v", p)
			}
		}
		if !strings.Contains(string(data), sentinel) && strings.Contains(everythingShown(c, err), sentinel) {
			t.Error("a secret is shown")
		}
		if c == nil {
			return
		}
		names := map[string]bool{}
		for _, s := range c.Servers {
			if names[s.Name] || s.Name == "" || s.Name == "roundhouse" || s.Sharing == "" || s.StartTimeout <= 0 {
				t.Errorf("impossible server: %+v", s)
			}
			names[s.Name] = true
			if s.DisabledReason == "" && (s.Transport != config.Stdio || s.Command == "" || s.Cwd == "") {
				t.Errorf("usable without a command: %+v", s)
			}
			if _, err := s.Resolve("/w"); err != nil {
				t.Errorf("cannot be resolved: %v", err)
			}
		}
	})
}
