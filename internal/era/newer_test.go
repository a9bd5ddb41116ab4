package era

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"roundhouse/internal/wire"
)

var someone = Sender{Info: []byte(`{"name":"c"}`), Capabilities: []byte(`{"roots":{}}`), Level: []byte(`"info"`)}

const someMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}},"io.modelcontextprotocol/clientInfo":{"name":"c"},"io.modelcontextprotocol/logLevel":"info"`

// M8: a request of the older era says who sends it, wherever its params allow that.
func TestRequestsForTheNewerEra(t *testing.T) {
	for params, want := range map[string]string{
		``:                               `,"params":{"_meta":{M}}`,
		`,"params":null`:                 `,"params":{"_meta":{M}}`,
		`,"params":{}`:                   `,"params":{"_meta":{M}}`,
		`,"params":{ }`:                  `,"params":{"_meta":{M} }`,
		`,"params":{"b":1.0, "a":[ ]}`:   `,"params":{"_meta":{M},"b":1.0, "a":[ ]}`,
		`,"params":{"a":1,"_meta":{}}`:   `,"params":{"a":1,"_meta":{M}}`,
		`,"params":{"_meta": { "x":1 }}`: `,"params":{"_meta": {M, "x":1 }}`,
		`,"params":{"_meta":null}`:       `,"params":{"_meta":{M}}`,
		`,"params":{"_meta":7}`:          `,"params":{"_meta":7}`,
		`,"params":[1]`:                  `,"params":[1]`,
		`,"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"x","y":1}}`: `,"params":{"_meta":{M,"y":1}}`,
		`,"params":{"requestState":"forged","inputResponses":{},"a":1}`:             `,"params":{"_meta":{M},"a":1}`,
	} {
		head := `{"jsonrpc":"2.0","id":1,"method":"tools/call"`
		got, err := Newer(frame(t, head+params+`}`), someone)
		want = head + strings.Replace(want, "M", someMeta, 1) + `}`
		if err != nil || string(got.Raw) != want {
			t.Errorf("%s: %v\ngot  %s\nwant %s", params, err, got.Raw, want)
		}
	}
}

// M8: answers of the newer era lose what the older one does not have, and nothing else.
func TestAnswersForTheOlderEra(t *testing.T) {
	const head = `{"jsonrpc":"2.0","id":7,`
	for in, want := range map[string]string{
		`"result":{"resultType":"complete","b":1.0,"a":[ ]}}`: `"result":{"b":1.0,"a":[ ]}}`,
		`"result":{"b":1, "resultType":"complete"}}`:          `"result":{"b":1}}`,
		`"result":{"resultType":"complete"}}`:                 `"result":{}}`,
		`"result":{"b":1}}`:                                   `"result":{"b":1}}`,
		`"result":{"_meta":{"io.modelcontextprotocol/serverInfo":{}},"resultType":"complete","x":1}}`: `"result":{"x":1}}`,
		`"result":{"_meta":{"io.modelcontextprotocol/serverInfo":{}, "y":2}}}`:                        `"result":{"_meta":{"y":2}}}`,
		`"result":{"structuredContent":[1, 2]}}`:                                                      `"result":{"structuredContent":{"result":[1, 2]}}}`,
		`"result":{"structuredContent":{"a":1}}}`:                                                     `"result":{"structuredContent":{"a":1}}}`,
		`"error":{"code":-32021,"message":"m","data":1}}`:                                             `"error":{"code":-32602,"message":"m","data":1}}`,
		`"error":{"code":-32020,"message":"m"}}`:                                                      `"error":{"code":-32603,"message":"m"}}`,
		`"error":{"code":-32602,"message":"m"}}`:                                                      `"error":{"code":-32602,"message":"m"}}`,
	} {
		if got := Bare(frame(t, head+in), wire.ToolsCall); string(got) != head+want {
			t.Errorf("%s\ngot  %s\nwant %s", in, got, head+want)
		}
	}
	for in, want := range map[string]string{
		`{"name":"a","outputSchema":{"type":"object"}}`: `{"name":"a","outputSchema":{"type":"object"}}`,
		`{"name":"a","outputSchema":{"type":"array"}}`:  `{"name":"a"}`,
		`{"outputSchema":{"anyOf":[]},"name":"a"}`:      `{"name":"a"}`,
		`{"name":"a"}`: `{"name":"a"}`,
	} {
		if got := BareTool([]byte(in)); string(got) != want {
			t.Errorf("%s became %s", in, got)
		}
	}
}

// M3: initialize is answered from what the server says of itself.
func TestInitializeFromDiscovery(t *testing.T) {
	for in, want := range map[string]string{
		`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"extensions":{"x":{}}},"instructions":"I","ttlMs":1,"cacheScope":"public","new":[ ],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"n","version":"1"},"y":1}}`: `{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"n","version":"1"},"instructions":"I","new":[ ],"_meta":{"y":1}}`,
		`{}`: `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"files","version":""}}`,
	} {
		if got, err := Initialized([]byte(in), "2025-06-18", "files"); err != nil || string(got) != want {
			t.Errorf("%s: %v\ngot  %s\nwant %s", in, err, got, want)
		}
	}
	if got := Relayed([]byte(`{"supportedVersions":["2026-07-28"],"a":1}`)); string(got) != `{"supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"a":1}` {
		t.Errorf("got %s", got)
	}
}

// M8: what an input_required result asks for, and results that are of no use.
func TestRounds(t *testing.T) {
	for in, want := range map[string]string{
		`{"resultType":"complete"}`: "complete",
		`{"content":[]}`:            "complete",
		`[]`:                        "complete",
		`{"resultType":"input_required","requestState":"s"}`:                                                        `"s"`,
		`{"resultType":"input_required","inputRequests":{"a":{"method":"m","params":{"x":1.0}}}}`:                   `"a" m {"x":1.0}`,
		`{"resultType":"input_required","inputRequests":{"a":{"method":"m"},"b":{"method":"n"}},"requestState":""}`: `"a" m  "b" n ""`,
		`{"content":null,"resultType":"input_required","inputRequests":{"a":{"params":7}}}`:                         `"a"`,
		`{"resultType":"input_required"}`:                                                                           "error",
		`{"resultType":"input_required","inputRequests":{}}`:                                                        "error",
		`{"resultType":"input_required","inputRequests":{"a":1}}`:                                                   "error",
		`{"resultType":"task"}`: "error",
		`{"resultType":1}`:      "error",
	} {
		r, more, err := ReadRound([]byte(in))
		var got []string
		switch {
		case err != nil:
			got = append(got, "error")
		case !more:
			got = append(got, "complete")
		}
		for _, a := range r.Asks {
			got = append(got, strings.TrimRight(string(a.Key)+" "+a.Method+" "+string(a.Params), " ")+map[bool]string{true: " ", false: ""}[len(r.Asks) > 1 && string(a.Key) == `"a"`])
		}
		if err == nil && r.State != nil {
			got = append(got, string(r.State))
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: got %q, want %q", in, s, want)
		}
	}
}

// W4, M8: whatever a client of the older era sends, a request stays one, with its own
// members as they were, and says once who sends it.
func FuzzNewer(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"x"}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":{"io.modelcontextprotocol\/logLevel":1, "progressToken":1.0},"arguments":{}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		before, err := wire.Parse(raw)
		if err != nil || before.Kind != wire.Request {
			return
		}
		a, err := before.Routing()
		if err != nil {
			return
		}
		after, err := Newer(before, someone)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if p := before.Params(); len(p) > 0 && p[0] == '[' || a.Meta.Present() && before.Raw[a.Meta.Start] != '{' && before.Raw[a.Meta.Start] != 'n' {
			return
		}
		b, err := after.Routing()
		if err != nil {
			t.Fatalf("%s became %s: %v", raw, after.Raw, err)
		}
		for _, same := range [][2][]byte{
			{before.ID(), after.ID()}, {a.Name.Of(before.Raw), b.Name.Of(after.Raw)}, {a.Arguments.Of(before.Raw), b.Arguments.Of(after.Raw)},
			{a.ProgressToken.Of(before.Raw), b.ProgressToken.Of(after.Raw)}, {someone.Level, b.LogLevel.Of(after.Raw)}, {someone.Capabilities, b.ClientCapabilities.Of(after.Raw)},
		} {
			if !bytes.Equal(same[0], same[1]) {
				t.Errorf("%s became %s", raw, after.Raw)
			}
		}
		again, err := Retry(after, []Answer{{Key: []byte(`"k"`), Result: []byte(`{}`)}}, []byte(`"s"`))
		if err != nil {
			t.Fatalf("%s: %v", after.Raw, err)
		}
		var v struct{ Params struct{ RequestState string } }
		if json.Unmarshal(again.Raw, &v) != nil || v.Params.RequestState != "s" {
			t.Errorf("%s became %s", after.Raw, again.Raw)
		}
	})
}

// W4: an answer stays valid, and has nothing of the newer era any more.
func FuzzBare(f *testing.F) {
	for _, result := range []string{`{}`, `{"resultType":"complete"}`, `{"a":1,"resultType":"complete","_meta":{"io.modelcontextprotocol/x":1}}`, `[]`} {
		f.Add([]byte(result))
	}
	f.Fuzz(func(t *testing.T, result []byte) {
		answer, err := wire.Parse(wire.Result([]byte("1"), result))
		if err != nil || answer.Kind != wire.Response || !answer.ResultSpan.Present() {
			return
		}
		if _, more, err := ReadRound(answer.Result()); more || err != nil {
			return
		}
		if _, err := wire.Parse(Bare(answer, wire.ToolsCall)); err != nil {
			t.Fatalf("%s: %v", result, err)
		}
	})
}
