package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestParseReadsEachKindOfFrame(t *testing.T) {
	for _, test := range []struct {
		raw                               string
		kind                              Kind
		method, id, params, result, error string
	}{
		{raw: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`,
			kind: Request, method: ToolsCall, id: `1`, params: `{"name":"x"}`},
		{raw: "\r\n\t {\"method\" : \"own/thing\" , \"params\" : [ 1 ] , \"id\":\"a\" , \"jsonrpc\":\"2.0\"} \n",
			kind: Request, method: "own/thing", id: `"a"`, params: `[ 1 ]`},
		{raw: `{"jsonrpc":"2.0","method":"notifications/initialized"}`, kind: Notification, method: Initialized},
		{raw: `{"jsonrpc":"2.0","method":"tools\/li\u0073t"}`, kind: Notification, method: ToolsList},
		{raw: `{"jsonrpc":"2.0","method":""}`, kind: Notification},
		{raw: `{"result":null,"id":-0,"jsonrpc":"2.0"}`, kind: Response, id: `-0`, result: `null`},
		{raw: `{"jsonrpc":"2.0","id":3,"error":{"code":-1,"message":"no"}}`, kind: Response, id: `3`, error: `{"code":-1,"message":"no"}`},
		{raw: `{"jsonrpc":"2.0","id":1,"method":"a","params":null}`, kind: Request, id: `1`, method: "a", params: `null`},
		{raw: `{"jsonrpc":"2.0","id":null,"error":{}}`, kind: Response, id: `null`, error: `{}`},
		{raw: `{"jsonrpc":"2.0","error":{}}`, kind: Response, error: `{}`},
	} {
		f, err := Parse([]byte(test.raw))
		if err != nil {
			t.Errorf("%s: %v", test.raw, err)
			continue
		}
		if string(f.Raw) != strings.TrimSpace(test.raw) {
			t.Errorf("%s: Raw is %q", test.raw, f.Raw)
		}
		got := fmt.Sprintf("%s %q %q %q %q %q", f.Kind, f.Method, f.ID(), f.Params(), f.Result(), f.ErrorValue())
		want := fmt.Sprintf("%s %q %q %q %q %q", test.kind, test.method, test.id, test.params, test.result, test.error)
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", test.raw, got, want)
		}
	}
}

// W1: ids are raw bytes and distinct by spelling.
func TestIDsStayAsTheyAreSpelled(t *testing.T) {
	for _, id := range []string{
		`0`, `-0`, `1`, `1.0`, `1e0`, `1E+0`, `"1"`, `"\u0031"`, `""`, `9007199254740993`,
		`123456789012345678901234567890`, `"` + strings.Repeat("x", 300) + `"`, `"\ud83d\ude00"`, `"😀"`,
	} {
		f, err := Parse(NewRequest([]byte(id), Ping, nil))
		if err != nil || string(f.ID()) != id {
			t.Errorf("id %s: got %s, %v", id, f.ID(), err)
		}
	}
}

// W1: what Parse does not need to understand is not touched or refused.
func TestUnknownMembersSurvive(t *testing.T) {
	raw := `{"x":1,"x":2,"jsonrpc":"2.0","trace":{"id":7,"ID":8},"id":1,"result":{"b":1,"a":1.50,"b":"\/"},"Result2":[]}`
	f, err := Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if string(f.Raw) != raw || string(f.Result()) != `{"b":1,"a":1.50,"b":"\/"}` {
		t.Errorf("got %s with the result %s", f.Raw, f.Result())
	}
}

// W2: members of the envelope that stand twice, or in another spelling, are refused,
// and so is everything that is not JSON-RPC 2.0. The id is kept for the answer
// wherever exactly one could be read.
func TestParseRefusesWhatIsNoUnambiguousFrame(t *testing.T) {
	for _, test := range []struct{ name, raw, id string }{
		{"no object", `"x"`, ""},
		{"array", `[{"jsonrpc":"2.0","id":1,"method":"a"}]`, ""},
		{"empty object", `{}`, ""},
		{"log line", `{"level":"info","msg":"x"}`, ""},
		{"no version", `{"id":1,"method":"a"}`, "1"},
		{"other version", `{"jsonrpc":"1.0","id":1,"method":"a"}`, "1"},
		{"number as version", `{"jsonrpc":2.0,"id":1,"method":"a"}`, "1"},
		{"escaped version", `{"jsonrpc":"2\u002e0","id":1,"method":"a"}`, "1"},
		{"duplicate version", `{"jsonrpc":"2.0","jsonrpc":"2.0","id":1,"method":"a"}`, "1"},
		{"duplicate id", `{"jsonrpc":"2.0","id":1,"method":"a","id":1}`, ""},
		{"duplicate method", `{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}`, "1"},
		{"duplicate params", `{"jsonrpc":"2.0","params":{},"params":{},"id":1,"method":"b"}`, "1"},
		{"duplicate result", `{"jsonrpc":"2.0","id":1,"result":1,"result":2}`, "1"},
		{"duplicate error", `{"jsonrpc":"2.0","id":1,"error":{},"error":{}}`, "1"},
		{"case variant of version", `{"JsonRPC":"2.0","jsonrpc":"2.0","id":1,"method":"a"}`, "1"},
		{"case variant of id", `{"jsonrpc":"2.0","id":1,"ID":2,"method":"a"}`, ""},
		{"only a case variant of id", `{"jsonrpc":"2.0","Id":2,"method":"a"}`, ""},
		{"case variant of method", `{"jsonrpc":"2.0","id":1,"method":"a","Method":"b"}`, "1"},
		{"case variant of params", `{"jsonrpc":"2.0","id":1,"method":"a","PARAMS":{}}`, "1"},
		{"folded variant of params", `{"jsonrpc":"2.0","id":1,"method":"a","paramſ":{}}`, "1"},
		{"folded, escaped variant of result", `{"jsonrpc":"2.0","id":1,"result":1,"re\u017Fult":1}`, "1"},
		{"escaped method", `{"jsonrpc":"2.0","id":1,"m\u0065thod":"a"}`, "1"},
		{"escaped error", `{"jsonrpc":"2.0","id":1,"result":1,"\u0065\u0072\u0072\u006f\u0072":1}`, "1"},
		{"null id of a request", `{"jsonrpc":"2.0","id":null,"method":"a"}`, ""},
		{"boolean id", `{"jsonrpc":"2.0","id":true,"method":"a"}`, ""},
		{"object as id", `{"jsonrpc":"2.0","id":{"a":1},"method":"a"}`, ""},
		{"null id of a result", `{"jsonrpc":"2.0","id":null,"result":1}`, ""},
		{"no id of a result", `{"jsonrpc":"2.0","result":1}`, ""},
		{"array as id of an error", `{"jsonrpc":"2.0","id":[],"error":{}}`, ""},
		{"result and error", `{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`, "1"},
		{"method and result", `{"jsonrpc":"2.0","id":1,"result":1,"method":"a"}`, "1"},
		{"neither", `{"jsonrpc":"2.0","id":1}`, "1"},
		{"params string", `{"jsonrpc":"2.0","id":1,"method":"a","params":"{}"}`, "1"},
		{"method null", `{"jsonrpc":"2.0","id":1,"method":null}`, "1"},
		{"half a surrogate pair in the method", `{"jsonrpc":"2.0","id":1,"method":"\ud800"}`, "1"},
	} {
		f, err := Parse([]byte(test.raw))
		failure, ok := errors.AsType[*ParseFailure](err)
		switch {
		case !ok:
			t.Errorf("%s: Parse gives %v, %v", test.name, f.Kind, err)
		case failure.Code != InvalidRequest:
			t.Errorf("%s: the code is %d", test.name, failure.Code)
		case string(failure.ID) != test.id:
			t.Errorf("%s: the id is %q, want %q", test.name, failure.ID, test.id)
		}
	}
}

// A broken text is a parse error; an id before the break still serves the answer.
func TestParseRefusesWhatIsNotStrictlyJSON(t *testing.T) {
	for _, bad := range []string{
		``, ` `, `{`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":1 "b":2}`, `{a:1}`, `{'a':1}`, `{"a":1}}`, `{"a":1} {}`,
		`[1,]`, `[1 2]`, `[`, `[1`, `[,1]`, `01`, `1.`, `.5`, `-`, `+1`, `1e`, `1e+`, `0x1`, `1_0`, `--1`, `NaN`, `Infinity`,
		`tru`, `nulll`, `True`, `"a`, `"a\`, `"\x"`, `"\u12"`, `"\u12g4"`, "\"a\nb\"", "\"tab\there\"", "\"\x00\"", "\"1234567\x1f90123456\"",
		"\"\xff\"", "\"\xed\xa0\x80\"", "\"\xc0\xaf\"", "[\"12345678\xe2\x82\"]", "/*c*/1", "1//c", "\ufeff1", "\v1", "\u00a01",
	} {
		err := Valid([]byte(bad))
		if failure, ok := errors.AsType[*ParseFailure](err); !ok || failure.Code != ParseError {
			t.Errorf("%q is taken for JSON: %v", bad, err)
		}
		frame := `{"jsonrpc":"2.0","id":7,"method":"a","params":[` + bad + `]}`
		if bad == `` || bad == ` ` {
			continue // makes an empty array
		}
		_, err = Parse([]byte(frame))
		if failure, ok := errors.AsType[*ParseFailure](err); !ok || failure.Code != ParseError || string(failure.ID) != "7" {
			t.Errorf("%q in a frame: %v", bad, err)
		}
	}
	for _, good := range []string{
		`0`, `-0`, `-1.5e-7`, `1E400`, `"\ud800"`, `"\u0000\"\\\/\b\f\n\r\t"`, `[]`, `{}`, `[{}]`, ` [ ] `, `{ "" : { } , "a" : [ 1 , -2 ] }`,
		"\"\x7f\"", `"é日本😀"`, `true`, `false`, `null`, "\"\u2028\"",
	} {
		if err := Valid([]byte(good)); err != nil || !json.Valid([]byte(good)) {
			t.Errorf("%s is refused: %v", good, err)
		}
	}
}

func TestNestingIsLimited(t *testing.T) {
	nest := func(n int) []byte {
		return []byte(strings.Repeat("[", n-1) + "{}" + strings.Repeat("]", n-1))
	}
	if err := Valid(nest(512)); err != nil {
		t.Errorf("512 levels: %v", err)
	}
	if err := Valid(nest(513)); err == nil {
		t.Error("513 levels are accepted")
	}
	if _, err := Parse(NewNotification("a", nest(511))); err != nil {
		t.Errorf("511 levels inside a frame: %v", err)
	}
	if _, err := Parse(NewNotification("a", nest(512))); err == nil {
		t.Error("512 levels inside a frame are accepted")
	}
	if err := Valid([]byte(strings.Repeat("[", 10<<20))); err == nil {
		t.Error("ten million brackets are accepted")
	}
}

// Messages go to logs and to peers; payloads may hold secrets.
func TestFailuresQuoteNothing(t *testing.T) {
	for _, raw := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"a","params":{"s3cret":s3cret}}`, `{"jsonrpc":"s3cret","id":1,"method":"a"}`, `"s3cret`,
		`{"jsonrpc":"2.0","id":1,"method":"a","params":"s3cret"}`,
	} {
		if _, err := Parse([]byte(raw)); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// A request is read in one pass that makes nothing but a note of its params; an answer
// takes none.
func TestParseAllocatesLittle(t *testing.T) {
	raw := []byte(`{"jsonrpc":"2.0","id":1,"trace":"0","method":"tools/call","params":{"name":"x","arguments":{"a":[1,{"b":"\n"}]},` +
		`"_meta":{"progressToken":1,"roundhouse/session":"s","other":2}}}`)
	if n := testing.AllocsPerRun(100, func() {
		f, err := Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Routing(); err != nil {
			t.Fatal(err)
		}
	}); n != 1 {
		t.Errorf("%v allocations for a request", n)
	}
	raw = []byte(`{"jsonrpc":"2.0","id":1,"result":{"name":1,"params":{}}}`)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := Parse(raw); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations for an answer", n)
	}
}

func TestKnownVersions(t *testing.T) {
	for _, v := range append([]string{Version20260728}, LegacyVersions...) {
		if !KnownVersion(v) {
			t.Errorf("%s is unknown", v)
		}
	}
	if KnownVersion("2024-10-07") || KnownVersion("") {
		t.Error("a version is known that is not spoken")
	}
}
