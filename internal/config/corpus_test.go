package config_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/config"
	"roundhouse/internal/secret"
)

var update = flag.Bool("update", false, "write the golden files of the corpus anew")

// env is an environment for tests.
func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// corpusEnv is the environment in which the corpus is read.
var corpusEnv = env(
	"HOME", "/home/me", "XDG_RUNTIME_DIR", "/run/me", "TOKEN", "token-0123456789abcdef", "OTHER_TOKEN", "other-0123456789abcdef",
	"BEARER_TOKEN", "bearer token-0123", "EMPTY", "", "LINES", "a\r\nB: c",
)

// Cases 6, 7, 9, 49, 50, 51, 52: every host's spelling, and every fault, gives
// exactly the servers and problems of its golden file.
func TestCorpus(t *testing.T) {
	files := corpus(t)
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			before := slices.Clone(data)
			c, err := config.Parse("/conf/"+filepath.Base(file), data, config.Options{Env: corpusEnv})
			if string(before) != string(data) {
				t.Error("Parse changed the text it was given")
			}
			got := render(c, err)
			golden := strings.TrimSuffix(file, ".json") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// corpus returns the names of all files in the corpus.
func corpus(t testing.TB) []string {
	var files []string
	for _, pattern := range []string{"testdata/hosts/*.json", "testdata/faults/*.json"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no corpus: %v", err)
		}
		files = append(files, found...)
	}
	return files
}

// render writes a configuration as a person can check it: what differs from the
// defaults, with secrets revealed, and all problems.
func render(c *config.Config, err error) string {
	var b strings.Builder
	if err != nil {
		fmt.Fprintf(&b, "invalid\n%v\n", err)
		return b.String()
	}
	defaults := *config.Defaults()
	defaults.StateDir = "/home/me/.local/state/roundhouse"
	defaults.Socket = "/run/me/roundhouse/roundhouse.sock"
	defaults.Store = filepath.Join(c.StateDir, "roundhouse.db")
	settings := *c
	settings.Servers, settings.Problems = nil, nil
	renderFields(&b, "", reflect.ValueOf(settings), reflect.ValueOf(defaults))
	for _, s := range c.Servers {
		plain := config.Server{
			Transport: config.Stdio, Cwd: "/conf", Sharing: config.Shared, Interactive: config.Auto, Era: config.EraAuto,
			StartTimeout: 60e9, CloseEOFWait: 2e9, CloseTermWait: 3e9, CloseKillWait: 2e9,
			Recovery: c.Pool.Recovery.Remote, Health: c.Pool.Health, Retry: config.RetryNever,
			Instances: config.Instances{Max: 5, IdleTimeout: 300e9, MaxWait: 60e9, OnRelease: config.ReleaseDestroy}, Cleanup: config.Cleanup{Timeout: 5e9},
		}
		if s.Transport == config.Stdio {
			plain.Recovery = c.Pool.Recovery.Stdio
		}
		b.WriteString("server\n")
		renderFields(&b, "  ", reflect.ValueOf(*s), reflect.ValueOf(plain))
	}
	for _, p := range c.Problems {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// renderFields writes the fields of v that differ from base.
func renderFields(b *strings.Builder, indent string, v, base reflect.Value) {
	for i := range v.NumField() {
		name, field := v.Type().Field(i).Name, v.Field(i)
		switch value := field.Interface().(type) {
		case map[string]secret.String:
			for _, key := range slices.Sorted(maps.Keys(value)) {
				fmt.Fprintf(b, "%s%s[%s] %q\n", indent, name, key, value[key].Reveal())
			}
		case secret.String:
			if !value.Empty() {
				fmt.Fprintf(b, "%s%s %q\n", indent, name, value.Reveal())
			}
		case []config.Token:
			for _, token := range value {
				fmt.Fprintf(b, "%s%s %s %q admin=%t\n", indent, name, token.Principal, token.Token.Reveal(), token.Admin)
			}
		default:
			switch {
			case reflect.DeepEqual(value, base.Field(i).Interface()):
			case field.Kind() == reflect.Struct:
				fmt.Fprintf(b, "%s%s\n", indent, name)
				renderFields(b, indent+"  ", field, base.Field(i))
			case field.Kind() == reflect.String || field.Kind() == reflect.Slice:
				fmt.Fprintf(b, "%s%s %q\n", indent, name, value)
			default:
				fmt.Fprintf(b, "%s%s %v\n", indent, name, value)
			}
		}
	}
}
