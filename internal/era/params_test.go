package era

import (
	"net/http"
	"strings"
	"testing"
)

const paramSchema = `{"type":"object","properties":{
	"region":{"type":"string","x-mcp-header":"Region"},"count":{"type":"integer","x-mcp-header":"Count"},"dry":{"type":"boolean","x-mcp-header":"Dry"},
	"deep":{"type":"object","properties":{"id":{"type":"string","x-mcp-header":"Deep-Id"}}},"plain":{"type":"string"}}}`

// H1: headers for arguments say what the arguments do.
func TestHeadersForArguments(t *testing.T) {
	for _, c := range []struct {
		name, arguments, headers string
		ok                       bool
	}{
		{"none", `{}`, "", true},
		{"no arguments", ``, "", true},
		{"an argument without a mark", `{"plain":"x"}`, "", true},
		{"the same", `{"region":"eu","count":42,"dry":false,"deep":{"id":"x"}}`, "Region: eu; Count: 42; Dry: false; Deep-Id: x", true},
		{"encoded", `{"region":" \u00e9"}`, "Region: =?base64?IMOp?=", true},
		{"numbers are compared as such", `{"count":42}`, "Count: 42.0", true},
		{"too large for a header", `{"count":9007199254740993}`, "", true},
		{"null", `{"region":null}`, "", true},
		{"not what the schema says", `{"region":{"x":1}}`, "", true},
		{"others", `{}`, "Unknown: x", true},
		{"missing", `{"region":"eu"}`, "", false},
		{"missing below", `{"deep":{"id":"x"}}`, "", false},
		{"another value", `{"region":"eu"}`, "Region: us", false},
		{"another number", `{"count":42}`, "Count: 43", false},
		{"another truth", `{"dry":true}`, "Dry: false", false},
		{"twice", `{"region":"eu"}`, "Region: eu; Region: eu", false},
		{"without the argument", `{}`, "Region: eu", false},
		{"the argument twice (W2)", `{"region":"eu","region":"us"}`, "Region: us", false},
	} {
		h := http.Header{}
		for item := range strings.SplitSeq(c.headers, "; ") {
			if name, value, ok := strings.Cut(item, ": "); ok {
				h.Add(paramPrefix+name, value)
			}
		}
		err := VetParams(h, []byte(`{"name":"x","inputSchema":`+paramSchema+`}`), []byte(c.arguments))
		if (err == nil) != c.ok {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	for _, schema := range []string{
		`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`,
		`{"properties":{"a":{"type":"string","x-mcp-header":"not a token"}}}`,
		`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`,
		`{"properties":{"a":{"type":"object","x-mcp-header":"A"}}}`,
		`{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}`,
		`{"x-mcp-header":"A","type":"object"}`,
	} {
		if err := VetParams(http.Header{}, []byte(`{"inputSchema":`+schema+`}`), []byte(`{"a":"1","b":"2"}`)); err != nil {
			t.Errorf("%s has marks that count: %v", schema, err)
		}
		if Callable([]byte(`{"inputSchema":` + schema + `}`)) {
			t.Errorf("a tool with %s may be called over HTTP", schema)
		}
	}
}

// H1: what we say in headers is what we would take for the same.
func TestHeadersThatRepeatArguments(t *testing.T) {
	tool := []byte(`{"name":"x","inputSchema":` + paramSchema + `}`)
	for arguments, want := range map[string]string{
		`{}`: "", ``: "", `{"plain":"x"}`: "", `{"region":null}`: "", `{"region":{"x":1}}`: "", `{"count":9007199254740993}`: "",
		`{"region":"eu","region":"us"}`:                            "",
		`{"region":"eu","count":42,"dry":false,"deep":{"id":"x"}}`: "Count: 42; Deep-Id: x; Dry: false; Region: eu",
		`{"region":" \u00e9"}`:                                     "Region: =?base64?IMOp?=",
		`{"count":4.2e1}`:                                          "Count: 42",
	} {
		h := ParamHeaders(tool, []byte(arguments))
		var got []string
		for _, name := range []string{"Count", "Deep-Id", "Dry", "Region"} {
			if v := h.Get(paramPrefix + name); v != "" {
				got = append(got, name+": "+v)
			}
		}
		if strings.Join(got, "; ") != want || len(h) != len(got) {
			t.Errorf("%s: got %v, want %s", arguments, h, want)
		}
		if err := VetParams(h, tool, []byte(arguments)); err != nil && !strings.Contains(arguments, "us") {
			t.Errorf("%s: %v is refused: %v", arguments, h, err)
		}
	}
}
