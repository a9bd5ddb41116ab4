package wire

import (
	"errors"
	"testing"
)

func route(t *testing.T, params string) (Frame, Routing, error) {
	t.Helper()
	f, err := Parse(NewRequest([]byte(`5`), ToolsCall, []byte(params)))
	if err != nil {
		t.Fatalf("%s: %v", params, err)
	}
	r, err := f.Routing()
	return f, r, err
}

func TestRoutingFindsWhatDecidesWhereAFrameGoes(t *testing.T) {
	f, r, err := route(t, `{ "name" : "n", "uri":"u", "arguments":{"name":1,"NAME":2}, "requestId":1.0, "level":"info", "cursor":"c", "ref":{"name":"r"},
		"progressToken": "p", "other": {"_Meta":{}}, "_meta" : { "progressToken" : 9007199254740993, "roundhouse/session":"s",
		"io.modelcontextprotocol/protocolVersion":"2026-07-28", "io.modelcontextprotocol/clientCapabilities":{"x":1.0},
		"io.modelcontextprotocol/clientInfo":{"name":"n"}, "io.modelcontextprotocol/logLevel":"debug", "x":{"ProgressToken":1} } }`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		span Span
		want string
	}{
		{"name", r.Name, `"n"`}, {"uri", r.URI, `"u"`}, {"arguments", r.Arguments, `{"name":1,"NAME":2}`}, {"requestId", r.RequestID, `1.0`},
		{"level", r.Level, `"info"`}, {"cursor", r.Cursor, `"c"`}, {"ref", r.Ref, `{"name":"r"}`}, {"progressOf", r.ProgressOf, `"p"`},
		{"progressToken", r.ProgressToken, `9007199254740993`}, {"session", r.Session, `"s"`}, {"version", r.ProtocolVersion, `"2026-07-28"`},
		{"capabilities", r.ClientCapabilities, `{"x":1.0}`}, {"client", r.ClientInfo, `{"name":"n"}`}, {"logLevel", r.LogLevel, `"debug"`},
	} {
		if got := string(c.span.Of(f.Raw)); got != c.want {
			t.Errorf("%s is %q, want %q", c.what, got, c.want)
		}
	}
}

func TestRoutingOfFramesWithoutNamedParams(t *testing.T) {
	for _, raw := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"a"}`, `{"jsonrpc":"2.0","id":1,"method":"a","params":["name"]}`, `{"jsonrpc":"2.0","id":1,"method":"a","params":{}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"name":1,"name":2}}`,
	} {
		f, err := Parse([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := f.Routing(); err != nil || r != (Routing{}) {
			t.Errorf("%s: %+v, %v", raw, r, err)
		}
	}
	if _, r, err := route(t, `{"_meta":null}`); err != nil || !r.Meta.Present() || r.ProgressToken.Present() {
		t.Errorf("a _meta that is no object: %+v, %v", r, err)
	}
}

// W2: what was checked is what is sent.
func TestRoutingRefusesDuplicatesAndVariants(t *testing.T) {
	for _, params := range []string{
		`{"name":"safe","name":"rm"}`, `{"name":"safe","NAME":"rm"}`, `{"NAME":"rm"}`, `{"name":"safe","n\u0061me":"rm"}`, `{"\u006eame":"rm"}`,
		`{"uri":"a","uri":"b"}`, `{"URI":"a"}`, `{"arguments":{},"arguments":{}}`, `{"Arguments":{}}`, `{"argumentſ":{}}`,
		`{"_meta":{"io.modelcontextprotocol/logLevel":"debug","io.modelcontextprotocol/logLevel":"info"}}`,
		`{"_meta":{"io.modelcontextprotocol/ClientInfo":{}}}`, `{"_meta":{"io.modelcontextprotocol\/clientCapabilities":{}}}`,
		`{"_meta":{},"_meta":{}}`, `{"_META":{}}`, `{"\u005fmeta":{}}`, `{"requestid":1}`, `{"requestId":1,"requestId":1}`, `{"Level":1}`, `{"Cursor":1}`, `{"Ref":1}`,
		`{"progresstoken":1}`,
		`{"_meta":{"progressToken":1,"progressToken":2}}`, `{"_meta":{"progresstoken":1}}`, `{"_meta":{"progressTo\u212Aen":1}}`, `{"_meta":{"progressToKen":1}}`,
		`{"_meta":{"roundhouse/session":"a","roundhouse/session":"a"}}`, `{"_meta":{"roundhouse\/session":"a"}}`, `{"_meta":{"Roundhouse/Session":"a"}}`,
		`{"_meta":{"\u0072\u006f\u0075\u006e\u0064\u0068\u006f\u0075\u0073\u0065\u002f\u0073\u0065\u0073\u0073\u0069\u006f\u006e":"a"}}`,
		`{"_meta":{"IO.modelcontextprotocol/protocolVersion":"a"}}`,
	} {
		_, r, err := route(t, params)
		failure, ok := errors.AsType[*ParseFailure](err)
		if !ok || failure.Code != InvalidParams || string(failure.ID) != "5" || r != (Routing{}) {
			t.Errorf("%s: %+v, %v", params, r, err)
		}
	}
}

func TestSessionMemberIsCutWithOneComma(t *testing.T) {
	for _, c := range []struct{ params, want string }{
		{`{"_meta":{"roundhouse/session":"s"}}`, `{"_meta":{}}`},
		{`{"_meta":{ "roundhouse/session" : "s" }}`, `{"_meta":{  }}`},
		{`{"_meta":{"roundhouse/session":"s","a":1}}`, `{"_meta":{"a":1}}`},
		{`{"_meta":{"a":1 , "roundhouse/session":"s"}}`, `{"_meta":{"a":1 }}`},
		{`{"_meta":{"a":1,"roundhouse/session":"s" , "b":2}}`, `{"_meta":{"a":1,"b":2}}`},
	} {
		f, r, err := route(t, c.params)
		if err != nil {
			t.Fatal(err)
		}
		got := Splice(nil, f.Raw, Edit{At: r.SessionMember})
		if want := string(NewRequest([]byte(`5`), ToolsCall, []byte(c.want))); string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
