package era

import (
	"bytes"
	"encoding/json"
	"testing"

	"roundhouse/internal/wire"
)

func frame(t *testing.T, raw string) wire.Frame {
	t.Helper()
	f, err := wire.Parse([]byte(raw))
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return f
}

// H1: the answers of servers get what the new era wants, and keep their bytes.
func TestAnswersForTheNewerEra(t *testing.T) {
	const head = `{"jsonrpc":"2.0","id":7,`
	for _, c := range []struct {
		method, caps, in, want string
	}{
		{wire.ToolsCall, "", `"result":{"b":1.0,"a":[ ]}}`, `"result":{"resultType":"complete","b":1.0,"a":[ ]}}`},
		{wire.ToolsCall, "", `"result":{}}`, `"result":{"resultType":"complete"}}`},
		{wire.ToolsCall, "", `"result":{ }}`, `"result":{"resultType":"complete" }}`},
		{wire.ToolsCall, "", `"result":{"x":1,"resultType":"input_required"}}`, `"result":{"x":1,"resultType":"complete"}}`},
		{wire.ToolsCall, "", `"result":{"ttlMs":5}}`, `"result":{"resultType":"complete","ttlMs":5}}`},
		{wire.ToolsCall, "", `"result":[1]}`, `"result":[1]}`},
		{wire.ToolsList, "", `"result":{"tools":[]}}`, `"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[]}}`},
		{wire.ResourcesRead, "", `"result":{"cacheScope":"public","contents":[],"ttlMs":60000}}`, `"result":{"resultType":"complete","cacheScope":"private","contents":[],"ttlMs":0}}`},
		{wire.ResourcesRead, "", `"error":{"code":-32002,"message":"m","data":{"uri":"u"}}}`, `"error":{"code":-32602,"message":"m","data":{"uri":"u"}}}`},
		{wire.ToolsCall, "", `"error":{"code":-32002,"message":"m"}}`, `"error":{"code":-32002,"message":"m"}}`},
		{wire.ToolsCall, "", `"error":{"code":-32601,"message":"m"}}`, `"error":{"code":-32601,"message":"m"}}`},
		{wire.ToolsCall, "", `"error":{"code":-32600,"message":"m"}}`, `"error":{"code":-32600,"message":"m"}}`},
		{wire.ToolsCall, "", `"error":{"code":-32603,"message":"m"}}`, `"error":{"code":-32603,"message":"m"}}`},
		{wire.ToolsCall, "", `"error":{"message":"m","code":-32022}}`, `"error":{"message":"m","code":-32603}}`},
		{wire.ToolsCall, "", `"error":{"code":-32021,"message":"m","data":{"requiredCapabilities":{"sampling":{}}}}}`, `"error":{"code":-32021,"message":"m","data":{"requiredCapabilities":{"sampling":{}}}}}`},
		{wire.ToolsCall, `{"sampling":{}}`, `"error":{"code":-32021,"message":"m","data":{"requiredCapabilities":{"sampling":{}}}}}`, `"error":{"code":-32603,"message":"m","data":{"requiredCapabilities":{"sampling":{}}}}}`},
		{wire.ToolsCall, `{"elicitation":{"url":{}}}`, `"error":{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","message":"Log in","url":"https://x.example/?a=1&b=2","elicitationId":"e"}]}}}`,
			`"result":{"inputRequests":{"url-1":{"method":"elicitation/create","params":{"message":"Log in","mode":"url","url":"https://x.example/?a=1\u0026b=2"}}},"resultType":"input_required"}}`},
		{wire.ToolsCall, `{"elicitation":{"form":{}}}`, `"error":{"code":-32042,"message":"m","data":{"elicitations":[]}}}`,
			`"error":{"code":-32021,"message":"the server wants the client to open a URL first, which it does not declare to do","data":{"requiredCapabilities":{"elicitation":{"url":{}}}}}}`},
	} {
		if c.caps == "" {
			c.caps = "{}"
		}
		if raw := Completed(frame(t, head+c.in), c.method, []byte(c.caps)); string(raw) != head+c.want {
			t.Errorf("%s %s\ngot  %s\nwant %s", c.method, c.in, raw, head+c.want)
		}
	}
}

// W4, M8: what goes to a server of the older era holds nothing of the new one, and what
// decides where it goes is as it was.
func FuzzOlder(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"roundhouse/session":"s","x":1},"name":"a","inputResponses":{}}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"\u0061","method":"resources/read","params":{"requestState":1,"_meta":{"io.modelcontextprotocol/protocolVersion":1, "io.modelcontextprotocol\/x":{}, "progressToken":1.0},"uri":"u"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		before, err := wire.Parse(raw)
		if err != nil || before.Kind != wire.Request {
			return
		}
		a, err := before.Routing()
		if err != nil || !a.ProtocolVersion.Present() {
			return
		}
		after, err := Older(before)
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		b, err := after.Routing()
		if err != nil {
			t.Fatalf("%s became %s: %v", raw, after.Raw, err)
		}
		if b.ProtocolVersion.Present() || b.ClientCapabilities.Present() || b.ClientInfo.Present() || b.LogLevel.Present() || b.Session.Present() {
			t.Errorf("%s became %s", raw, after.Raw)
		}
		for _, same := range [][2][]byte{
			{before.ID(), after.ID()}, {[]byte(before.Method), []byte(after.Method)}, {a.Name.Of(before.Raw), b.Name.Of(after.Raw)}, {a.URI.Of(before.Raw), b.URI.Of(after.Raw)},
			{a.Arguments.Of(before.Raw), b.Arguments.Of(after.Raw)}, {a.ProgressToken.Of(before.Raw), b.ProgressToken.Of(after.Raw)},
		} {
			if !bytes.Equal(same[0], same[1]) {
				t.Errorf("%s became %s", raw, after.Raw)
			}
		}
	})
}

// W4, H1: an answer stays valid, with what the new era wants in it.
func FuzzCompleted(f *testing.F) {
	for _, result := range []string{`{}`, `{ }`, `{"ttlMs":1,"resultType":{},"ttlMs":2}`, `{"a":[1, 2]}`, `[]`, `null`} {
		f.Add([]byte(result))
	}
	f.Fuzz(func(t *testing.T, result []byte) {
		answer, err := wire.Parse(wire.Result([]byte("1"), result))
		if err != nil || answer.Kind != wire.Response || !answer.ResultSpan.Present() {
			return
		}
		got, err := wire.Parse(Completed(answer, wire.ToolsList, []byte("{}")))
		if err != nil {
			t.Fatalf("%s: %v", result, err)
		}
		if answer.Result()[0] != '{' {
			return
		}
		var v map[string]any
		if err := json.Unmarshal(got.Result(), &v); err != nil || v["resultType"] != "complete" || v["ttlMs"] != 0.0 || v["cacheScope"] != "private" {
			t.Errorf("%s became %s", result, got.Result())
		}
	})
}
