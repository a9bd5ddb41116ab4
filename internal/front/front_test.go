package front_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/secret"
)

const (
	aliceToken = "alice-s3cr3t-token"
	rootToken  = "root-s3cr3t-token"
)

var twoTokens = []config.Token{
	{Principal: "alice", Token: secret.New(aliceToken)},
	{Principal: "root", Token: secret.New(rootToken), Admin: true},
}

// newFront has a route of every kind; each answers 200 with the caller's name.
func newFront(t testing.TB, cfg front.Config) *front.Front {
	t.Helper()
	f, err := front.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	hello := func(w http.ResponseWriter, r *http.Request, c front.Caller) {
		fmt.Fprintf(w, "%s %t", c.Principal, c.Admin)
	}
	for _, p := range []string{
		"/mcp", "/mcp/{server}", "/v1/", "/sessions/{id}/mcp", "GET /api/v1/status",
		"DELETE /api/v1/sessions/{id}", "GET /{$}", "/console/",
	} {
		f.Handle(p, hello)
	}
	f.HandleOpen("/healthz", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	f.HandleOpen("GET /readyz", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ready") })
	return f
}

// kinds holds one request of every kind of route, open and unknown ones included.
var kinds = []string{
	"POST /mcp", "GET /mcp", "DELETE /mcp", "POST /mcp/files", "POST /v1/responses", "POST /v1/chat/completions",
	"POST /v1/messages", "GET /v1/models", "POST /sessions/s1/mcp", "GET /api/v1/status", "DELETE /api/v1/sessions/s1",
	"GET /", "GET /healthz", "POST /healthz", "GET /readyz", "GET /nowhere", "POST /nowhere", "POST /api/v1/status", "GET //mcp",
}

// request makes a request with a JSON body where the method has one. Header pairs
// are name, value; the name Host sets the host.
func request(kind string, header ...string) *http.Request {
	method, path, _ := strings.Cut(kind, " ")
	var body io.Reader
	if method == "POST" {
		body = strings.NewReader("{}")
	}
	r := httptest.NewRequest(method, "http://127.0.0.1:7420/", body)
	r.URL.Path, r.RequestURI, r.Host = path, path, "127.0.0.1:7420"
	if path, query, ok := strings.Cut(path, "?"); ok {
		r.URL.Path, r.URL.RawQuery = path, query
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		} else {
			r.Header.Add(header[i], header[i+1])
		}
	}
	return r
}

func serve(f http.Handler, r *http.Request) *http.Response {
	rec := httptest.NewRecorder()
	f.ServeHTTP(rec, r)
	return rec.Result()
}

type errorBody struct {
	Error struct {
		Reason  fault.Reason `json:"reason"`
		Message string       `json:"message"`
	} `json:"error"`
}

func readError(t *testing.T, res *http.Response) errorBody {
	t.Helper()
	var b errorBody
	if err := json.NewDecoder(res.Body).Decode(&b); err != nil {
		t.Fatalf("the answer is no JSON error: %v", err)
	}
	if ct := res.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("Content-Type of an error is %q", ct)
	}
	if res.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Error("an error may be sniffed")
	}
	return b
}

// Without tokens every caller is local and an admin, whatever it sends.
func TestWithoutTokensEveryCallerIsLocal(t *testing.T) {
	f := newFront(t, front.Config{})
	for _, header := range [][]string{nil, {"Authorization", "Bearer x"}, {"Authorization", "Basic eDp5"}} {
		res := serve(f, request("POST /mcp", header...))
		if body, _ := io.ReadAll(res.Body); res.StatusCode != 200 || string(body) != "local true" {
			t.Errorf("with %v: %d %q", header, res.StatusCode, body)
		}
	}
}

// Case 69: a token of ours does not reach a handler, who might forward it; a
// credential that is not for us stays.
func TestOurTokenIsTakenOutOfTheRequest(t *testing.T) {
	for _, withTokens := range []bool{true, false} {
		var cfg front.Config
		if withTokens {
			cfg.Tokens = twoTokens
		}
		f, err := front.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var got string
		f.Handle("/mcp", func(w http.ResponseWriter, r *http.Request, c front.Caller) { got = r.Header.Get("Authorization") })
		serve(f, request("POST /mcp", "Authorization", "Bearer "+aliceToken))
		if withTokens == (got != "") {
			t.Errorf("tokens configured: %t, the handler saw %q", withTokens, got)
		}
	}
}

// Cases 63, 65 and 67: the authentication table, on every route that needs it.
func TestAuthentication(t *testing.T) {
	var log bytes.Buffer
	f := newFront(t, front.Config{Tokens: twoTokens, Log: slog.New(slog.NewTextHandler(&log, nil))})
	for _, c := range []struct {
		name string
		auth []string // values of Authorization
		want string   // body, or "" for 401
	}{
		{"none", nil, ""},
		{"plain token", []string{"Bearer " + aliceToken}, "alice false"},
		{"admin token", []string{"Bearer " + rootToken}, "root true"},
		{"lower case scheme", []string{"bearer " + aliceToken}, "alice false"},
		{"upper case scheme", []string{"BEARER " + aliceToken}, "alice false"},
		{"several spaces", []string{"Bearer   " + aliceToken}, "alice false"},
		{"wrong token", []string{"Bearer " + aliceToken + "x"}, ""},
		{"prefix of a token", []string{"Bearer " + aliceToken[:5]}, ""},
		{"other case", []string{"Bearer " + strings.ToUpper(aliceToken)}, ""},
		{"no scheme", []string{aliceToken}, ""},
		{"no space", []string{"Bearer" + aliceToken}, ""},
		{"empty", []string{""}, ""},
		{"scheme alone", []string{"Bearer"}, ""},
		{"scheme and space", []string{"Bearer "}, ""},
		{"other scheme", []string{"Basic " + aliceToken}, ""},
		{"two tokens in one header", []string{"Bearer " + aliceToken + " " + rootToken}, ""},
		{"two tokens with a comma", []string{"Bearer " + aliceToken + ", Bearer " + rootToken}, ""},
		{"two headers", []string{"Bearer " + aliceToken, "Bearer " + rootToken}, ""},
		{"the same header twice", []string{"Bearer " + aliceToken, "Bearer " + aliceToken}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, kind := range []string{"POST /mcp", "GET /v1/models", "POST /mcp/files", "POST /sessions/s/mcp", "GET /api/v1/status", "GET /"} {
				r := request(kind)
				for _, v := range c.auth {
					r.Header.Add("Authorization", v)
				}
				res := serve(f, r)
				if c.want != "" {
					if body, _ := io.ReadAll(res.Body); res.StatusCode != 200 || string(body) != c.want {
						t.Errorf("%s: %d %q, want %q", kind, res.StatusCode, body, c.want)
					}
					continue
				}
				if res.StatusCode != 401 || res.Header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("%s: %d, WWW-Authenticate %q", kind, res.StatusCode, res.Header.Get("WWW-Authenticate"))
				}
				e := readError(t, res)
				if e.Error.Reason != fault.Unauthorized || strings.Contains(e.Error.Message, "s3cr3t") {
					t.Errorf("%s: %+v", kind, e)
				}
			}
		})
	}
	if strings.Contains(log.String(), "s3cr3t") || !strings.Contains(log.String(), "unauthorized") {
		t.Errorf("the log shows a token, or no refusal: %s", log.String())
	}
}

// Case 65: neither a session id nor a token in the query proves anything, and
// what does not exist is not told apart without a token.
func TestOnlyTheHeaderAuthenticates(t *testing.T) {
	f := newFront(t, front.Config{Tokens: twoTokens})
	for _, kind := range []string{
		"POST /mcp?token=" + aliceToken, "POST /mcp?access_token=" + aliceToken, "DELETE /api/v1/sessions/s1",
		"GET /nowhere", "POST /api/v1/status", "GET //mcp", "GET /console",
	} {
		r := request(kind, "Mcp-Session-Id", "a", "X-Session-Id", "a", "Last-Event-ID", "1", "X-Api-Key", aliceToken, "Cookie", "token="+aliceToken)
		if res := serve(f, r); res.StatusCode != 401 {
			t.Errorf("%s: %d", kind, res.StatusCode)
		}
	}
	for _, kind := range []string{"GET /healthz", "GET /readyz"} {
		if res := serve(f, request(kind)); res.StatusCode != 200 {
			t.Errorf("%s: %d", kind, res.StatusCode)
		}
	}
}

func TestUnknownPathsNameTheKnownRoots(t *testing.T) {
	f := newFront(t, front.Config{})
	res := serve(f, request("GET /nowhere"))
	e := readError(t, res)
	if res.StatusCode != 404 || !strings.Contains(e.Error.Message, "/, /api, /console, /healthz, /mcp, /readyz, /sessions, /v1") {
		t.Errorf("%d %+v", res.StatusCode, e)
	}
	res = serve(f, request("POST /api/v1/status"))
	if e := readError(t, res); res.StatusCode != 405 || res.Header.Get("Allow") != "GET, HEAD" || !strings.Contains(e.Error.Message, "GET, HEAD") {
		t.Errorf("%d %q %+v", res.StatusCode, res.Header.Get("Allow"), e)
	}
	res = serve(f, request("GET /console"))
	if res.StatusCode != 307 || res.Header.Get("Location") != "/console/" {
		t.Errorf("%d %q", res.StatusCode, res.Header.Get("Location"))
	}
}

func TestHandlersGetPathValues(t *testing.T) {
	f, err := front.New(front.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f.Handle("/mcp/{server}", func(w http.ResponseWriter, r *http.Request, _ front.Caller) {
		io.WriteString(w, r.PathValue("server"))
	})
	res := serve(f, request("POST /mcp/files"))
	if body, _ := io.ReadAll(res.Body); string(body) != "files" {
		t.Errorf("path value %q", body)
	}
}

// H3: draining turns new work away with 503 and Retry-After, but not what helps a
// session to end and an operator to look.
func TestDrainRefusesNewWorkButNotTheExemptions(t *testing.T) {
	f := newFront(t, front.Config{Tokens: twoTokens, AllowedOrigins: []string{"https://app.example"}})
	f.DrainExempt("DELETE /api/v1/sessions/{id}", "GET /api/v1/status", "DELETE /mcp")
	auth := []string{"Authorization", "Bearer " + aliceToken}
	for _, kind := range kinds {
		if res := serve(f, request(kind, auth...)); res.StatusCode == 503 {
			t.Fatalf("%s is refused before Drain", kind)
		}
	}
	f.Drain(2500 * time.Millisecond)
	for _, kind := range kinds {
		res := serve(f, request(kind, auth...))
		switch kind {
		case "GET /healthz", "POST /healthz", "DELETE /api/v1/sessions/s1", "GET /api/v1/status", "DELETE /mcp":
			if res.StatusCode != 200 {
				t.Errorf("%s: %d while draining", kind, res.StatusCode)
			}
		default:
			if e := readError(t, res); res.StatusCode != 503 || res.Header.Get("Retry-After") != "3" || e.Error.Reason != fault.Draining {
				t.Errorf("%s: %d, Retry-After %q, %+v", kind, res.StatusCode, res.Header.Get("Retry-After"), e)
			}
		}
	}
	if res := serve(f, request("DELETE /mcp")); res.StatusCode != 401 {
		t.Errorf("an exemption without a token: %d", res.StatusCode)
	}
	if res := serve(f, request("DELETE /mcp", "Host", "evil.com")); res.StatusCode != 403 {
		t.Errorf("an exemption under a foreign name: %d", res.StatusCode)
	}
	// A page learns of the drain only if it may read the answer.
	preflight := serve(f, request("OPTIONS /mcp", "Origin", "https://app.example", "Access-Control-Request-Method", "POST"))
	if preflight.StatusCode != 204 {
		t.Errorf("preflight while draining: %d", preflight.StatusCode)
	}
	res := serve(f, request("POST /mcp", "Origin", "https://app.example"))
	if res.StatusCode != 503 || res.Header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("page while draining: %d %v", res.StatusCode, res.Header)
	}
	f.Drain(0)
	if res := serve(f, request("POST /mcp")); res.Header.Get("Retry-After") != "1" {
		t.Errorf("Drain(0) says Retry-After %q", res.Header.Get("Retry-After"))
	}
}

func TestDrainLeavesRequestsInsideAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := front.New(front.Config{})
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		f.Handle("/mcp", func(w http.ResponseWriter, r *http.Request, _ front.Caller) {
			<-release
			io.WriteString(w, "done")
		})
		answer := make(chan *http.Response, 1)
		go func() { answer <- serve(f, request("POST /mcp")) }()
		synctest.Wait()
		f.Drain(time.Second)
		if res := serve(f, request("POST /mcp")); res.StatusCode != 503 {
			t.Errorf("new request: %d", res.StatusCode)
		}
		close(release)
		if res := <-answer; res.StatusCode != 200 {
			t.Errorf("request inside: %d", res.StatusCode)
		}
	})
}

// Anybody can be refused, so refusals must not fill the log.
func TestRefusalsAreLoggedAtMostOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := newFront(t, front.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
		for range 1000 {
			serve(f, request("POST /mcp?token=s3cr3t", "Host", "evil.com"))
		}
		time.Sleep(2 * time.Second)
		serve(f, request("POST /mcp", "Host", "evil.com"))
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "host=evil.com") || !strings.Contains(lines[1], "unlogged=999") {
			t.Errorf("%d lines: %.500s", len(lines), log.String())
		}
		if strings.Contains(log.String(), "s3cr3t") {
			t.Error("the query is in the log")
		}
	})
}

func TestNewRefusesBadConfigurations(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  front.Config
		want []string
	}{
		{"no principal", front.Config{Tokens: []config.Token{{Token: secret.New("s3cr3t")}}}, []string{"auth.tokens[0]", "principal"}},
		{"no token", front.Config{Tokens: []config.Token{{Principal: "a"}}}, []string{"auth.tokens[0]", "empty"}},
		{"a token with a space", front.Config{Tokens: []config.Token{{Principal: "a", Token: secret.New("s3cr3t x")}}}, []string{"auth.tokens[0]", "character"}},
		{"a token twice", front.Config{Tokens: []config.Token{
			{Principal: "a", Token: secret.New("s3cr3t")}, {Principal: "b", Token: secret.New("s3cr3t")},
		}}, []string{"auth.tokens[1]", "auth.tokens[0]"}},
		{"beyond loopback without tokens", front.Config{Beyond: true}, []string{"auth.tokens"}},
		{"a URL as public name", front.Config{PublicNames: []string{"https://a.example"}}, []string{"publicNames", "https://a.example"}},
		{"any public name", front.Config{PublicNames: []string{"*"}}, []string{"publicNames"}},
		{"an empty public name", front.Config{PublicNames: []string{""}}, []string{"publicNames"}},
		{"any origin", front.Config{AllowedOrigins: []string{"*"}}, []string{"allowedOrigins"}},
		{"the null origin", front.Config{AllowedOrigins: []string{"null"}}, []string{"allowedOrigins"}},
		{"an origin with a path", front.Config{AllowedOrigins: []string{"https://a.example/"}}, []string{"allowedOrigins"}},
		{"an origin in upper case", front.Config{AllowedOrigins: []string{"https://A.example"}}, []string{"allowedOrigins"}},
		{"a negative limit", front.Config{MaxBody: -1}, []string{"-1"}},
		{"everything at once", front.Config{
			MaxBody: -1, Beyond: true, PublicNames: []string{"/"}, AllowedOrigins: []string{"x"},
		}, []string{"-1", "auth.tokens", "publicNames", "allowedOrigins"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := front.New(c.cfg)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %v", want, err)
				}
			}
			if strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("the error shows a token: %v", err)
			}
		})
	}
}

// Case 45: whom the door lets in may change while it is open; a change for the worse
// changes nothing.
func TestTheDoorIsConfiguredAnew(t *testing.T) {
	f := newFront(t, front.Config{Beyond: true, Tokens: twoTokens})
	as := func(token, host, origin string) int {
		r := request("GET /api/v1/status", "Authorization", "Bearer "+token)
		r.Host = host
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		return serve(f, r).StatusCode
	}
	other := config.Token{Principal: "carol", Token: secret.New("a-token-of-carol")}
	if got := as(aliceToken, "localhost", ""); got != 200 {
		t.Fatalf("at first: %d", got)
	}
	for _, bad := range []front.Config{{}, {Tokens: []config.Token{other, other}}, {Tokens: []config.Token{other}, PublicNames: []string{"*"}}} {
		if f.Configure(bad) == nil {
			t.Errorf("%+v is accepted", bad)
		}
		if got := as(aliceToken, "localhost", ""); got != 200 {
			t.Errorf("after %+v: %d", bad, got)
		}
	}
	if err := f.Configure(front.Config{Tokens: []config.Token{other}, PublicNames: []string{"box.example"}, AllowedOrigins: []string{"https://app.example"}}); err != nil {
		t.Fatal(err)
	}
	if got := as(aliceToken, "localhost", ""); got != 401 {
		t.Errorf("the old token: %d", got)
	}
	if got := as("a-token-of-carol", "box.example", "https://app.example"); got != 200 {
		t.Errorf("the new token, name and origin: %d", got)
	}
}
