package front_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"roundhouse/internal/fault"
	"roundhouse/internal/front"
)

// checkEverywhere sends a request of every kind and wants the door to refuse all
// or none of them as foreign.
func checkEverywhere(t *testing.T, f *front.Front, allowed bool, header ...string) {
	t.Helper()
	for _, kind := range kinds {
		res := serve(f, request(kind, header...))
		if allowed {
			if res.StatusCode == 403 {
				t.Errorf("%s with %q is refused", kind, header)
			}
			continue
		}
		if e := readError(t, res); res.StatusCode != 403 || e.Error.Reason != fault.ForbiddenOrigin {
			t.Errorf("%s with %q: %d %+v", kind, header, res.StatusCode, e)
		}
		if res.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s with %q: the refused page may read the answer", kind, header)
		}
	}
}

// H6, case 64: a name that is not ours is refused on every route, so that none can
// be made to resolve to us.
func TestHost(t *testing.T) {
	plain := newFront(t, front.Config{})
	named := newFront(t, front.Config{PublicNames: []string{"Box.example", "port.example:8443", "[2001:db8::1]", "10.1.2.3"}})
	beyond := newFront(t, front.Config{Beyond: true, Tokens: twoTokens, PublicNames: []string{"box.example"}})
	for _, c := range []struct {
		host                 string
		plain, named, beyond bool
	}{
		{"localhost", true, true, true},
		{"localhost:7420", true, true, true},
		{"LocalHost:1", true, true, true},
		{"127.0.0.1", true, true, true},
		{"127.0.0.1:7420", true, true, true},
		{"127.1.2.3:7420", true, true, true},
		{"[::1]", true, true, true},
		{"[::1]:7420", true, true, true},
		{"", false, false, false},
		{"evil.com", false, false, false},
		{"evil.com:7420", false, false, false},
		{"localhost.evil.com", false, false, false},
		{"localhost.evil.com:7420", false, false, false},
		{"127.0.0.1.evil.com", false, false, false},
		{"evil.localhost", false, false, false},
		{"evil-localhost", false, false, false},
		{"localhost.", false, false, false},
		{"localhost:", false, false, false},
		{"localhost:http", false, false, false},
		{"localhost:7420:1", false, false, false},
		{"localhost:123456", false, false, false},
		{"localhost@evil.com", false, false, false},
		{"localhost:7420@evil.com", false, false, false},
		{"localhost/evil.com", false, false, false},
		{"localhost evil.com", false, false, false},
		{"localhost,evil.com", false, false, false},
		{"::1", false, false, false},
		{"[::1", false, false, false},
		{"[::1]7420", false, false, false},
		{"[::1%lo]", false, false, false},
		{"[localhost]", false, false, false},
		{"[127.0.0.1]", false, false, false},
		{":7420", false, false, false},
		{"127.1", false, false, false},
		{"0x7f.0.0.1", false, false, false},
		{"2130706433", false, false, false},
		{"0.0.0.0:7420", false, false, true},
		{"10.1.2.3:7420", false, true, true},
		{"192.168.1.5:7420", false, false, true},
		{"[fe80::1]:7420", false, false, true},
		{"[2001:db8::1]:7420", false, true, true},
		{"box.example", false, true, true},
		{"BOX.EXAMPLE:99", false, true, true},
		{"sub.box.example", false, false, false},
		{"box.example.evil.com", false, false, false},
		{"port.example:8443", false, true, false},
		{"port.example:443", false, false, false},
		{"port.example", false, false, false},
	} {
		t.Run(c.host, func(t *testing.T) {
			checkEverywhere(t, plain, c.plain, "Host", c.host)
			checkEverywhere(t, named, c.named, "Host", c.host)
			checkEverywhere(t, beyond, c.beyond, "Host", c.host)
		})
	}
	res := serve(plain, request("GET /healthz", "Host", "box.example"))
	if e := readError(t, res); !strings.Contains(e.Error.Message, "publicNames") {
		t.Errorf("the refusal does not say what to set: %+v", e)
	}
}

// H6, cases 63 and 64: a page that is not ours is refused on every route, before
// anything is executed.
func TestOrigin(t *testing.T) {
	f := newFront(t, front.Config{
		PublicNames:    []string{"box.example"},
		AllowedOrigins: []string{"https://app.example", "chrome-extension://abcdef"},
	})
	for _, c := range []struct {
		host, origin string
		allowed      bool
	}{
		{"127.0.0.1:7420", "http://127.0.0.1:7420", true},
		{"127.0.0.1:7420", "http://localhost:7420", true},
		{"localhost:7420", "http://[::1]:7420", true},
		{"[::1]:7420", "http://127.0.0.1:7420", true},
		{"localhost", "http://localhost", true},
		{"localhost:7420", "https://localhost:7420", true},
		{"box.example", "https://box.example", true},
		{"box.example:8443", "https://box.example:8443", true},
		{"BOX.example", "https://box.example", true},
		{"127.0.0.1:7420", "https://app.example", true},
		{"box.example", "https://app.example", true},
		{"127.0.0.1:7420", "chrome-extension://abcdef", true},
		{"127.0.0.1:7420", "http://evil.com", false},
		{"127.0.0.1:7420", "http://evil.com:7420", false},
		{"127.0.0.1:7420", "null", false},
		{"127.0.0.1:7420", "", false},
		{"127.0.0.1:7420", "http://", false},
		{"127.0.0.1:7420", "http://127.0.0.1:3000", false},
		{"127.0.0.1:7420", "http://localhost", false},
		{"localhost", "http://localhost:80", false},
		{"127.0.0.1:7420", "http://localhost.evil.com:7420", false},
		{"127.0.0.1:7420", "http://localhost:7420.evil.com", false},
		{"127.0.0.1:7420", "http://evil.com@127.0.0.1:7420", false},
		{"127.0.0.1:7420", "http://127.0.0.1:7420/", false},
		{"127.0.0.1:7420", "http://127.0.0.1:7420 http://evil.com", false},
		{"127.0.0.1:7420", "HTTP://127.0.0.1:7420", false},
		{"127.0.0.1:7420", "ftp://127.0.0.1:7420", false},
		{"127.0.0.1:7420", "file://", false},
		{"127.0.0.1:7420", "127.0.0.1:7420", false},
		{"127.0.0.1:7420", "https://box.example", false},
		{"127.0.0.1:7420", "http://app.example", false},
		{"127.0.0.1:7420", "https://app.example:443", false},
		{"127.0.0.1:7420", "https://APP.example", false},
		{"127.0.0.1:7420", "https://sub.app.example", false},
		{"box.example:7420", "http://localhost:7420", false},
		{"box.example", "https://box.example:8443", false},
	} {
		t.Run(c.host+" "+c.origin, func(t *testing.T) {
			checkEverywhere(t, f, c.allowed, "Host", c.host, "Origin", c.origin)
		})
	}
	checkEverywhere(t, f, false, "Origin", "http://127.0.0.1:7420", "Origin", "http://127.0.0.1:7420")
	checkEverywhere(t, f, true)
	res := serve(f, request("POST /mcp", "Origin", "http://evil.com"))
	if e := readError(t, res); !strings.Contains(e.Error.Message, "allowedOrigins") {
		t.Errorf("the refusal does not say what to set: %+v", e)
	}
}

// H6, case 64: where a browser sends no Origin, Sec-Fetch-Site says whether a
// foreign page is behind the request. Only opening a page is left to those.
func TestFetchMetadata(t *testing.T) {
	f := newFront(t, front.Config{PublicNames: []string{"box.example"}, AllowedOrigins: []string{"https://app.example"}})
	for _, site := range []string{"same-origin", "none"} {
		checkEverywhere(t, f, true, "Sec-Fetch-Site", site)
	}
	for _, site := range []string{"cross-site", "same-site", "", "new-kind"} {
		checkEverywhere(t, f, false, "Sec-Fetch-Site", site, "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image")
		checkEverywhere(t, f, false, "Sec-Fetch-Site", site)
	}
	checkEverywhere(t, f, false, "Sec-Fetch-Site", "none", "Sec-Fetch-Site", "cross-site")
	checkEverywhere(t, f, true, "Sec-Fetch-Site", "cross-site", "Origin", "https://app.example")
	checkEverywhere(t, f, true, "Sec-Fetch-Site", "cross-site", "Origin", "http://localhost:7420")
	checkEverywhere(t, f, false, "Sec-Fetch-Site", "same-origin", "Origin", "http://evil.com")
	// http://box.example is another origin than https://box.example.
	checkEverywhere(t, f, false, "Host", "box.example", "Sec-Fetch-Site", "cross-site", "Origin", "http://box.example")
	checkEverywhere(t, f, true, "Host", "box.example", "Sec-Fetch-Site", "same-origin", "Origin", "https://box.example")

	open := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	if res := serve(f, request("GET /", open...)); res.StatusCode != 200 {
		t.Errorf("a link to the console: %d", res.StatusCode)
	}
	if res := serve(f, request("POST /mcp", open...)); res.StatusCode != 403 {
		t.Errorf("a form that posts: %d", res.StatusCode)
	}
	frame := []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}
	if res := serve(f, request("GET /", frame...)); res.StatusCode != 403 {
		t.Errorf("a frame in a foreign page: %d", res.StatusCode)
	}
}

// Case 63: what a page can send without a preflight is not executed.
func TestBrowsersMustPostJSON(t *testing.T) {
	f := newFront(t, front.Config{})
	browser := [][]string{
		{"Origin", "http://127.0.0.1:7420"}, {"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"},
	}
	for _, c := range []struct {
		contentType string
		allowed     bool
	}{
		{"application/json", true},
		{"Application/JSON; charset=utf-8", true},
		{"", false},
		{"text/plain", false},
		{"text/plain; application/json", false},
		{"text/plain;charset=application/json", false},
		{"application/x-www-form-urlencoded", false},
		{"multipart/form-data; boundary=application/json", false},
		{"application/jsonx", false},
		{"application/json, text/plain", false},
	} {
		for _, header := range browser {
			for _, path := range []string{"/mcp", "/v1/responses", "/v1/chat/completions", "/v1/messages", "/sessions/s/mcp", "/healthz"} {
				r := request("POST "+path, header...)
				r.Header["Content-Type"] = []string{c.contentType}
				if res := serve(f, r); (res.StatusCode == 200) != c.allowed || (!c.allowed && res.StatusCode != 415) {
					t.Errorf("POST %s of %q with %q: %d", path, c.contentType, header, res.StatusCode)
				}
			}
		}
	}
	twice := request("POST /mcp", "Origin", "http://127.0.0.1:7420", "Content-Type", "text/plain")
	if res := serve(f, twice); res.StatusCode != 415 {
		t.Errorf("two content types: %d", res.StatusCode)
	}
	// A program that is no browser may upload a form to a model API.
	form := request("POST /v1/files", "Sec-Fetch-Mode", "cors")
	form.Header.Set("Content-Type", "multipart/form-data; boundary=x")
	if res := serve(f, form); res.StatusCode != 200 {
		t.Errorf("a form from a program: %d", res.StatusCode)
	}
}

// H6: a page of an allowed origin gets what it needs to speak MCP, without a token
// at the preflight, which carries none.
func TestAllowedPagesGetCORSHeaders(t *testing.T) {
	f := newFront(t, front.Config{Tokens: twoTokens, AllowedOrigins: []string{"https://app.example"}})
	ask := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,mcp-session-id"}
	for _, path := range []string{"/mcp", "/mcp/files", "/v1/responses", "/healthz", "/nowhere"} {
		res := serve(f, request("OPTIONS "+path, append(ask, "Origin", "https://app.example")...))
		if res.StatusCode != 204 || res.Header.Get("Access-Control-Allow-Origin") != "https://app.example" || res.Header.Get("Vary") != "Origin" {
			t.Errorf("preflight of %s: %d %v", path, res.StatusCode, res.Header)
		}
		for _, name := range []string{"Authorization", "Content-Type", "Mcp-Session-Id", "Mcp-Protocol-Version", "Last-Event-ID", "X-Session-Id", "Mcp-Method", "Mcp-Name"} {
			if !strings.Contains(res.Header.Get("Access-Control-Allow-Headers"), name) {
				t.Errorf("preflight of %s does not allow %s", path, name)
			}
		}
		for _, method := range []string{"GET", "POST", "DELETE"} {
			if !strings.Contains(res.Header.Get("Access-Control-Allow-Methods"), method) {
				t.Errorf("preflight of %s does not allow %s", path, method)
			}
		}
		res = serve(f, request("OPTIONS "+path, append(ask, "Origin", "https://evil.com")...))
		if res.StatusCode != 403 || res.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("preflight of %s from a stranger: %d %v", path, res.StatusCode, res.Header)
		}
	}
	res := serve(f, request("POST /mcp", "Origin", "https://app.example", "Authorization", "Bearer "+aliceToken))
	if res.StatusCode != 200 || res.Header.Get("Access-Control-Allow-Origin") != "https://app.example" ||
		!strings.Contains(res.Header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id") || res.Header.Get("Vary") != "Origin" {
		t.Errorf("request: %d %v", res.StatusCode, res.Header)
	}
	if res.Header.Get("Access-Control-Allow-Credentials") != "" {
		t.Error("cookies are allowed")
	}
	res = serve(f, request("POST /mcp", "Origin", "https://app.example"))
	if res.StatusCode != 401 || res.Header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("the page cannot see that it needs a token: %d %v", res.StatusCode, res.Header)
	}
	for _, r := range []*http.Request{request("OPTIONS /mcp"), request("OPTIONS /mcp", "Origin", "https://app.example")} {
		if res := serve(f, r); res.StatusCode != 401 {
			t.Errorf("OPTIONS that is no preflight: %d", res.StatusCode)
		}
	}
	if res := serve(f, request("GET /healthz")); res.Header.Get("Access-Control-Allow-Origin") != "" || res.Header.Get("Server") != "" {
		t.Errorf("headers without an origin: %v", res.Header)
	}
}

// Case 64 on the wire: every way in which a request carries its host, in HTTP/1.0,
// HTTP/1.1 and h2c (H6).
func TestHostOnTheWire(t *testing.T) {
	srv := httptest.NewUnstartedServer(newFront(t, front.Config{}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	defer srv.Close()
	addr := srv.Listener.Addr().String()

	for head, want := range map[string]int{
		"GET /healthz HTTP/1.1\r\nHost: " + addr:                           200,
		"GET /healthz HTTP/1.1\r\nHost: evil.com":                          403,
		"GET /healthz HTTP/1.1\r\nHost:":                                   403,
		"GET /healthz HTTP/1.1":                                            400,
		"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.com":       400,
		"GET /healthz HTTP/1.0":                                            403,
		"GET http://evil.com/healthz HTTP/1.1\r\nHost: localhost":          403,
		"GET http://localhost/healthz HTTP/1.1\r\nHost: evil.com":          200, // RFC 9112: the target counts
		"GET //evil.com/healthz HTTP/1.1\r\nHost: localhost":               307,
		"POST /mcp HTTP/1.1\r\nHost: localhost\r\nOrigin:":                 403,
		"POST /mcp HTTP/1.1\r\nHost: localhost\r\norigin: http://evil.com": 403,
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "%s\r\n\r\n", head)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%q: %v", head, err)
		}
		if res.StatusCode != want {
			t.Errorf("%q: %d, want %d", head, res.StatusCode, want)
		}
		conn.Close()
	}

	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	for host, want := range map[string]int{addr: 200, "evil.com": 403} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		res, err := h2.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != want || res.ProtoMajor != 2 {
			t.Errorf("h2c %q: %d HTTP/%d, want %d", host, res.StatusCode, res.ProtoMajor, want)
		}
	}
}

// FuzzSource: a host passes only if net/url and net/netip too find a loopback name
// in it, and an origin only if net/url too finds the request's host or another
// loopback name with its port.
func FuzzSource(f *testing.F) {
	for _, s := range [][2]string{
		{"localhost:7420", "http://127.0.0.1:7420"}, {"[::1]:1", "https://[::1]:1"}, {"evil.com", "http://evil.com"},
		{"localhost@evil.com", "http://evil.com#localhost"}, {"127.0.0.1:7420@evil.com", "null"}, {"[::ffff:127.0.0.1]", "http://[::ffff:127.0.0.1]"},
		{"localhost", "http://localhost:80"}, {"127.0.0.1:", "http://127.0.0.1:"},
	} {
		f.Add(s[0], s[1])
	}
	door := newFront(f, front.Config{})
	loopback := func(authority string) (port string, ok bool) {
		u, err := url.Parse("http://" + authority)
		if err != nil || u.Host != authority {
			return "", false
		}
		addr, err := netip.ParseAddr(u.Hostname())
		return u.Port(), strings.EqualFold(u.Hostname(), "localhost") || err == nil && addr.IsLoopback()
	}
	f.Fuzz(func(t *testing.T, host, origin string) {
		if serve(door, request("GET /healthz", "Host", host)).StatusCode == 403 {
			return
		}
		port, ok := loopback(host)
		if !ok {
			t.Fatalf("the host %q passes", host)
		}
		if serve(door, request("GET /healthz", "Host", host, "Origin", origin)).StatusCode == 403 {
			return
		}
		scheme, authority, _ := strings.Cut(origin, "://")
		from, ok := loopback(authority)
		if !ok || from != port || (scheme != "http" && scheme != "https") {
			t.Fatalf("the origin %q passes for the host %q", origin, host)
		}
	})
}
