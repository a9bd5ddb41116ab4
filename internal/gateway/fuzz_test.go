package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/front"
	"roundhouse/internal/pool"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// FuzzPost: whatever a client posts, the answer is a legal one, and soon: a response
// for every request, or an error, or 202 without a body.
func FuzzPost(f *testing.F) {
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__x","arguments":{}}}`
	for _, seed := range []string{
		call, `[` + call + `]`, `[` + call + `,1,{}]`, `[]`, ``, ` `, `null`, `{`, `{}`, "\xff", hello(wire.Version20250326, clientCaps),
		`{"jsonrpc":"2.0","id":1,"method":"initialize"}`, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":[]}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":7}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"_meta":{"roundhouse/session":"x","roundhouse/workspace":"/w"}}}`,
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`, `{"jsonrpc":"2.0","id":1.50,"method":"ping","params":null}`, `{"jsonrpc":"2.0","id":"\u0000","result":{}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":[]}}`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"roundhouse:a/x"}}`, `{"jsonrpc":"2.0","id":1,"method":"resources/templates/list"}`,
		`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"a__x"}}}`, `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"name":1,"name":2}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"info"}}`, `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":{}}}`,
		"{\"jsonrpc\":\"2.0\",\r\n\"id\":1,\"method\":\"x\",\"params\":{\"_meta\":{\"roundhouse/session\":\"y\"}}}",
	} {
		f.Add([]byte(seed))
	}
	refused := func(context.Context, *config.Server) (pool.Link, error) { return nil, errors.New("not here") }
	sessions := session.NewManager(session.Config{
		Pool:     pool.New(pool.Config{Dial: refused}),
		Settings: session.Settings{Servers: []*config.Server{shared("a")}, Limits: config.Sessions{Max: 50}, ListWait: time.Second},
	})
	door, err := front.New(front.Config{})
	if err != nil {
		f.Fatal(err)
	}
	New(Config{Sessions: sessions, MaxBody: 1 << 20}).Register(door)
	post := func(body []byte, id string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "http://localhost/mcp", bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		if id != "" {
			r.Header.Set(sessionHeader, id)
		}
		w := httptest.NewRecorder()
		door.ServeHTTP(w, r)
		return w
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, version := range []string{wire.Version20251125, wire.Version20250326} {
			id := post([]byte(hello(version, clientCaps)), "").Header().Get(sessionHeader)
			if id == "" {
				t.Fatal("no session")
			}
			w := post(body, id)
			answer := strings.TrimSpace(w.Body.String())
			switch {
			case w.Code == http.StatusAccepted:
				if answer != "" {
					t.Errorf("202 with the body %q", answer)
				}
			case w.Header().Get("Content-Type") == "text/event-stream":
				if answer != "" { // cancelled within a batch
					t.Errorf("an event stream %q", answer)
				}
			default:
				if !json.Valid([]byte(answer)) || w.Header().Get("Content-Type") != "application/json" {
					t.Errorf("%d %v %q", w.Code, w.Header(), answer)
				}
				if w.Code == http.StatusOK && json.Valid(body) && strings.HasPrefix(answer, "[") != strings.HasPrefix(strings.TrimSpace(string(body)), "[") {
					t.Errorf("%q was answered with %q", body, answer)
				}
			}
			if n := sessions.Stats().InFlight; n != 0 {
				t.Errorf("%d calls are still counted after %q", n, body)
			}
		}
	})
}

// W4, M8: what goes to a server of the older era holds nothing of the new one, and what
// decides where it goes is as it was.
func FuzzStripped(f *testing.F) {
	w := &world{}
	f.Add([]byte((&guest{peer: &peer{w: w, version: wire.Version20260728}, caps: "{}", meta: `,"roundhouse/session":"s","x":1`}).body("1", wire.ToolsCall, `"name":"a","inputResponses":{}`)))
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
		after, err := stripped(before)
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
		got, err := wire.Parse(completed(answer, true))
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
