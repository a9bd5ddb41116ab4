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
