package config_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/tailscale/hujson"

	"roundhouse/internal/config"
)

// schemaTree is the schema as plain JSON.
func schemaTree(t *testing.T) map[string]any {
	var tree map[string]any
	if err := json.Unmarshal(config.Schema(), &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

// property walks from an object's schema to the schema of a dotted key.
func property(t *testing.T, s map[string]any, path string) map[string]any {
	t.Helper()
	for key := range strings.SplitSeq(path, ".") {
		next, ok := s["properties"].(map[string]any)[key].(map[string]any)
		if !ok {
			t.Fatalf("the schema has no %s", path)
		}
		s = next
	}
	return s
}

// Every setting of Defaults stands in the schema with that default.
func TestSchemaDefaultsAreTheDefaults(t *testing.T) {
	tree := schemaTree(t)
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			key := path + strings.ToLower(name[:1]) + name[1:]
			if name == "LLM" {
				key = "llm"
			}
			switch value := v.Field(i).Interface().(type) {
			case []*config.Server, []*config.Upstream, []config.Problem:
			case config.Sessions, config.Pool, config.Budget, config.PoolRecovery, config.Recovery, config.Health, config.Circuit, config.Gateway, config.Shutdown, config.Autostart, config.Auth, config.LLM, config.Record, config.Retention, config.Responses, config.ResponseRetention, config.Egress, config.Tasks:
				walk(key+".", v.Field(i))
			case time.Duration:
				text, _ := property(t, tree, key)["default"].(string)
				if d, err := time.ParseDuration(text); err != nil || d != value {
					t.Errorf("%s: the schema says %q, the default is %s", key, text, value)
				}
			default:
				switch key {
				case "file", "listenGiven":
				case "stateDir", "store", "llm.record.retention.size", "llm.responses.egress.allow", "llm.tasks.model", "socket", "auth.tokens", "publicNames", "allowedOrigins", "pool.budget.mode", "pool.budget.servers", "pool.budget.processes":
					if d, ok := property(t, tree, key)["default"]; ok {
						t.Errorf("%s has the default %v", key, d)
					}
				case "llm.responses.retention.size":
					if d := property(t, tree, key)["default"]; d != fmt.Sprintf("%dGiB", value.(int64)>>30) {
						t.Errorf("%s: the schema says %v", key, d)
					}
				case "gateway.maxBody", "llm.maxBody", "llm.maxQueued", "llm.responses.maxResult":
					if d := property(t, tree, key)["default"]; d != fmt.Sprintf("%dMiB", value.(int64)>>20) {
						t.Errorf("%s: the schema says %v", key, d)
					}
				default:
					got, _ := json.Marshal(property(t, tree, key)["default"])
					want, _ := json.Marshal(value)
					if string(got) != string(want) {
						t.Errorf("%s: the schema says %s, the default is %s", key, got, want)
					}
				}
			}
		}
	}
	walk("", reflect.ValueOf(*config.Defaults()))

	entry := tree["$defs"].(map[string]any)["server"].(map[string]any)
	for key, want := range map[string]any{
		"startTimeout": "1m", "callTimeout": "0s", "closeTimeouts.eof": "2s", "closeTimeouts.term": "3s", "closeTimeouts.kill": "2s",
		"recovery.attempts": nil, "recovery.delay": nil, "recovery.maxDelay": nil, "health.interval": nil, "health.timeout": nil, "health.misses": nil,
		"instances.min": 0.0, "instances.max": 5.0, "instances.idleTimeout": "5m", "instances.maxWait": "1m", "instances.onRelease": "destroy", "cleanup.timeout": "5s",
		"retry": "never", "interactive": "auto", "inheritEnv": false, "shareAcrossPrincipals": false,
	} {
		if got := property(t, entry, key)["default"]; got != want {
			t.Errorf("server: %s: the schema says %v, want %v", key, got, want)
		}
	}
}

// The defaults that the schema shows can be written into a file as they stand.
func TestSchemaDefaultsCanBeWritten(t *testing.T) {
	var collect func(s map[string]any) any
	collect = func(s map[string]any) any {
		if d, ok := s["default"]; ok {
			return d
		}
		properties, ok := s["properties"].(map[string]any)
		if !ok {
			return nil
		}
		object := map[string]any{}
		for key := range properties {
			if value := collect(properties[key].(map[string]any)); value != nil {
				object[key] = value
			}
		}
		return object
	}
	tree := schemaTree(t)
	file := collect(tree).(map[string]any)
	file["llm"].(map[string]any)["upstreams"] = map[string]any{"u": map[string]any{"baseURL": "http://a.example"}}
	entry := collect(tree["$defs"].(map[string]any)["server"].(map[string]any)).(map[string]any)
	entry["command"], entry["sharing"] = "npx", "exclusive"
	file["mcpServers"] = map[string]any{"s": entry}
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parse(t, string(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	want, err := parse(t, `{"mcpServers": {"s": {"command": "npx", "sharing": "exclusive"}}, "llm": {"upstreams": {"u": {"baseURL": "http://a.example"}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	got.Servers[0].Position, want.Servers[0].Position = "", ""
	want.ListenGiven = true
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s gives %+v\nwant %+v", text, got, want)
	}
}

// Every property has a description, and a duration or size says its unit by form.
func TestSchemaDescribesEverything(t *testing.T) {
	var walk func(path string, s map[string]any)
	walk = func(path string, s map[string]any) {
		properties, _ := s["properties"].(map[string]any)
		for key, value := range properties {
			p := value.(map[string]any)
			if text, _ := p["description"].(string); !strings.HasSuffix(text, ".") {
				t.Errorf("%s.%s has no description", path, key)
			}
			walk(path+"."+key, p)
		}
	}
	tree := schemaTree(t)
	walk("", tree)
	walk("server", tree["$defs"].(map[string]any)["server"].(map[string]any))
}

// validator resolves the schema as draft 2020-12, its defaults included.
func validator(t *testing.T) *jsonschema.Resolved {
	var s jsonschema.Schema
	if err := json.Unmarshal(config.Schema(), &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// decode reads JSON with comments, as the schema's users do.
func decode(t *testing.T, data []byte) any {
	data, err := hujson.Standardize(append([]byte(strings.TrimPrefix(string(data), "\xef\xbb\xbf")), '\n'))
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// The schema accepts every host's files and the example of the manual, which are
// valid for Parse too.
func TestSchemaAcceptsGoodFiles(t *testing.T) {
	resolved := validator(t)
	files, err := filepath.Glob("testdata/hosts/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "testdata/example.jsonc") {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := resolved.Validate(decode(t, data)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if _, err := config.Parse(file, data, config.Options{Env: corpusEnv}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// The schema refuses what Parse reports as an error.
func TestSchemaRefusesBadSettings(t *testing.T) {
	resolved := validator(t)
	for _, text := range []string{
		`{}`,
		`[]`,
		`{"mcpServers": []}`,
		`{"mcpServers": {"s": []}}`,
		`{"mcpServers": {"s": {"command": 1}}}`,
		`{"mcpServers": {"s": {"command": "x", "args": [1]}}}`,
		`{"mcpServers": {"s": {"command": "x", "startTimeout": 30}}}`,
		`{"mcpServers": {"s": {"command": "x", "sharing": "some"}}}`,
		`{"mcpServers": {"s": {"command": "x", "closeTimeouts": {"stop": "1s"}}}}`,
		`{"mcpServers": {"s": {"command": "x", "include_tools": "a"}}}`,
		`{"mcpServers": {"s": {"type": "sdk"}}}`,
		`{"mcpServers": {}, "sessions": {"max": 0}}`,
		`{"mcpServers": {}, "sessions": {"idle": "1m"}}`,
		`{"mcpServers": {}, "pool": {"transports": ["tcp"]}}`,
		`{"mcpServers": {}, "pool": {"maxIdle": "soon"}}`,
		`{"mcpServers": {}, "gateway": {"maxBody": "64MB"}}`,
		`{"mcpServers": {}, "auth": {"tokens": [{"principal": "ann"}]}}`,
		`{"mcpServers": {}, "llm": {"upstreams": {}}}`,
		`{"llm": {"upstreams": {"a": {"engine": "vllm"}}}}`,
		`{"llm": {"upstreams": {"a": {"baseURL": "http://a.example", "policy": "on"}}}}`,
		`{"llm": {"upstreams": {"a": {"baseURL": "http://a.example", "timeouts": {"idle": 5}}}}}`,
	} {
		if err := resolved.Validate(decode(t, []byte(text))); err == nil {
			t.Errorf("the schema accepts %s", text)
		}
		c, err := parse(t, text)
		if err == nil && c.Servers[0].DisabledReason == "" {
			t.Errorf("Parse accepts %s", text)
		}
	}
}
