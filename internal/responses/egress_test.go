package responses

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/config"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// names is a resolver whose answers a test changes.
type names map[string][]string

func (n names) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	texts, ok := n[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var addrs []netip.Addr
	for _, text := range texts {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs, nil
}

// newEgress returns an Egress that looks names up in n, and what it dials.
func newEgress(n names, rules ...config.EgressRule) (*Egress, *[]string) {
	e, dialled := NewEgress(config.Egress{Allow: rules}), &[]string{}
	e.lookup = n.lookup
	e.dial = func(_ context.Context, _, address string) (net.Conn, error) {
		*dialled = append(*dialled, address)
		return nil, errors.New("refused")
	}
	return e, dialled
}

// B.5.10: only public addresses, and only with https.
func TestEgressKnowsPublicAddresses(t *testing.T) {
	blocked := []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255",
		"192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "fe80::1", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1",
		"64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "4000::1",
	}
	for _, text := range blocked {
		e, dialled := newEgress(names{"name.example": {text}})
		for _, host := range []string{text, "name.example"} {
			if err := e.Check(t.Context(), "https://"+join(host, "443")+"/mcp"); !errors.Is(err, ErrEgress) {
				t.Errorf("check %s (%s): %v", host, text, err)
			}
			if _, err := e.DialContext(t.Context(), "tcp", join(host, "443")); !errors.Is(err, ErrEgress) || len(*dialled) > 0 {
				t.Errorf("dial %s (%s): %v, dialled %v", host, text, err, *dialled)
			}
		}
	}
	for _, text := range []string{"93.184.216.34", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"} {
		e, dialled := newEgress(names{"name.example": {text}})
		if err := e.Check(t.Context(), "https://"+join(text, "443")); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		_, err := e.DialContext(t.Context(), "tcp", "name.example:443")
		if want := join(netip.MustParseAddr(text).Unmap().String(), "443"); errors.Is(err, ErrEgress) || !slices.Equal(*dialled, []string{want}) {
			t.Errorf("%s: %v, dialled %v", text, err, *dialled)
		}
	}
}

func join(host, port string) string { return net.JoinHostPort(host, port) }

// B.5.10: spellings of addresses that C programs read, and Go does not.
func TestEgressRefusesOddAddresses(t *testing.T) {
	everything := config.EgressRule{Host: "*"}
	for _, host := range []string{"2130706433", "0x7f000001", "0X7F.1", "127.1", "127.0.1", "0177.0.0.1", "127.0.0.1.", "0x7f.0.0.0x1", "a.example.0x", "1.1.1.1.1"} {
		n := names{host: {"93.184.216.34"}} // whatever a resolver makes of it
		for _, rules := range [][]config.EgressRule{nil, {everything}} {
			e, dialled := newEgress(n, rules...)
			if err := e.Check(t.Context(), "https://"+host+"/mcp"); !errors.Is(err, ErrEgress) {
				t.Errorf("check %s: %v", host, err)
			}
			if _, err := e.DialContext(t.Context(), "tcp", host+":443"); !errors.Is(err, ErrEgress) || len(*dialled) > 0 {
				t.Errorf("dial %s: %v", host, err)
			}
		}
	}
}

// B.5.10: https, or allowed; no other scheme, no credentials in the URL, nothing of it in
// the error but the host.
func TestEgressChecksURLs(t *testing.T) {
	n := names{"mcp.example": {"93.184.216.34"}, "lan.corp.example": {"10.1.2.3"}, "two.corp.example": {"10.1.2.3", "10.2.0.1"}}
	rules := []config.EgressRule{{Host: "*.corp.example", Port: "8443"}, {Net: netip.MustParsePrefix("10.1.0.0/16")}, {Net: netip.MustParsePrefix("127.0.0.1/32"), Port: "8931"}}
	for url, ok := range map[string]bool{
		"https://mcp.example/mcp?key=hidden":     true,
		"https://gone.example/":                  true, // found out when it is dialled
		"http://mcp.example/":                    false,
		"http://gone.example/":                   false,
		"https://user:hidden@mcp.example/":       false,
		"ftp://mcp.example/":                     false,
		"file:///etc/passwd":                     false,
		"javascript:alert(1)":                    false,
		"mcp.example":                            false,
		"https://":                               false,
		"https://[::1":                           false,
		"http://127.0.0.1:8931/mcp":              true,
		"https://127.0.0.1:8931/mcp":             true,
		"http://127.0.0.1:8932/mcp":              false,
		"http://[::ffff:127.0.0.1]:8931/":        true,
		"http://lan.corp.example/":               true, // by its address
		"http://two.corp.example/":               false,
		"http://two.corp.example:8443/":          true, // by its name
		"http://TWO.corp.example.:8443/":         true,
		"https://10.1.2.3/":                      true,
		"http://10.1.2.3/":                       true,
		"https://10.2.0.1/":                      false,
		"https://evil.example.corp.example.net/": true, // a name as any other, which must be public
	} {
		n["TWO.corp.example."] = n["two.corp.example"]
		e, _ := newEgress(n, rules...)
		err := e.Check(t.Context(), url)
		if ok && err != nil || !ok && !errors.Is(err, ErrEgress) {
			t.Errorf("%s: %v", url, err)
		}
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: the error shows a secret: %v", url, err)
		}
	}
}

// B.5.10: one bad address of several refuses a name; of several good ones each is tried.
func TestEgressLooksAtEveryAddress(t *testing.T) {
	e, dialled := newEgress(names{"mixed.example": {"93.184.216.34", "127.0.0.1"}, "good.example": {"2606:4700::1111", "93.184.216.34"}})
	if _, err := e.DialContext(t.Context(), "tcp", "mixed.example:443"); !errors.Is(err, ErrEgress) || len(*dialled) > 0 {
		t.Errorf("%v, dialled %v", err, *dialled)
	}
	if _, err := e.DialContext(t.Context(), "tcp", "good.example:443"); err == nil || errors.Is(err, ErrEgress) || len(*dialled) != 2 {
		t.Errorf("%v, dialled %v", err, *dialled)
	}
	if _, err := e.DialContext(t.Context(), "tcp", "gone.example:443"); err == nil || errors.Is(err, ErrEgress) {
		t.Errorf("%v", err)
	}
}

// B.5.10: a name that meant a public address when it was checked means another one when
// it is dialled.
func TestEgressChecksWhatIsDialled(t *testing.T) {
	n := names{"rebind.example": {"93.184.216.34"}}
	e, dialled := newEgress(n)
	if err := e.Check(t.Context(), "https://rebind.example/mcp"); err != nil {
		t.Fatal(err)
	}
	n["rebind.example"] = []string{"169.254.169.254"}
	if _, err := e.DialContext(t.Context(), "tcp", "rebind.example:443"); !errors.Is(err, ErrEgress) || len(*dialled) > 0 {
		t.Errorf("%v, dialled %v", err, *dialled)
	}
}

// B.5.10: a link dials as its Egress says, whatever proxy the environment names, and its
// credentials follow no redirect to another origin.
func TestLinksKeepToTheirEgress(t *testing.T) {
	var elsewhere []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		elsewhere = append(elsewhere, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	server := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer server.Close()
	t.Setenv("HTTP_PROXY", other.URL)

	at := server.Listener.Addr().String()
	_, port, _ := net.SplitHostPort(at)
	n := names{"mcp.example": {"127.0.0.1"}}
	for _, rules := range [][]config.EgressRule{nil, {{Host: "mcp.example", Port: port}}} {
		e := NewEgress(config.Egress{Allow: rules})
		e.lookup = n.lookup
		link, err := upstream.NewHTTP(upstream.HTTPConfig{
			URL: "http://mcp.example:" + port, Header: http.Header{"Authorization": {"Bearer hidden"}}, Dial: e.DialContext,
		})
		if err != nil {
			t.Fatal(err)
		}
		h := &failures{link: link}
		if err := link.Send(t.Context(), &upstream.Message{ID: []byte("1"), Method: "initialize", Bytes: []byte(`{"jsonrpc":"2.0","id":1,"method":"initialize"}`)}); err != nil {
			t.Fatal(err)
		}
		_ = link.Run(h) // the handler ends it
		if refused := errors.Is(h.err, ErrEgress); refused != (rules == nil) || h.err == nil {
			t.Errorf("with %v: %v", rules, h.err)
		}
		if rules != nil && !strings.Contains(h.err.Error(), "another origin") {
			t.Errorf("the redirect: %v", h.err)
		}
	}
	if len(elsewhere) > 0 {
		t.Errorf("the other server was asked, with %q", elsewhere)
	}
}

// failures is a Handler that keeps the first failure and ends the link.
type failures struct {
	upstream.Handler
	link *upstream.HTTP
	err  error
}

func (h *failures) Failed(_ []byte, err error, _ bool) {
	h.err = err
	h.link.Abort(err)
}

func (h *failures) Frame(wire.Frame, []byte) {}
func (h *failures) Noise([]byte)             {}

// B.5.10: whatever a host looks like, nothing but a public address is dialled, or looked up
// to one.
func FuzzEgressDialsPublicAddressesOnly(f *testing.F) {
	for _, host := range []string{"127.0.0.1", "[::1]", "0x7f.1", "2130706433", "::ffff:10.0.0.1", "fe80::1%eth0", "mcp.example", "1.1.1.1", "127.0.0.1.", "64:ff9b::7f00:1"} {
		f.Add(host, "10.0.0.1")
		f.Add(host, "1.1.1.1")
	}
	f.Fuzz(func(t *testing.T, host, meaning string) {
		addr, err := netip.ParseAddr(meaning)
		if err != nil {
			return
		}
		e, dialled := newEgress(nil)
		e.lookup = func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{addr}, nil }
		checked := e.Check(t.Context(), "https://"+host+"/mcp")
		_, err = e.DialContext(t.Context(), "tcp", join(host, "443"))
		for _, address := range *dialled {
			to, parseErr := netip.ParseAddrPort(address)
			if parseErr != nil || to.Addr().IsPrivate() || to.Addr().IsLoopback() || to.Addr().IsLinkLocalUnicast() || to.Addr().Is4In6() || !to.Addr().IsGlobalUnicast() {
				t.Errorf("%q, which means %q, led to %q", host, meaning, address)
			}
		}
		if len(*dialled) == 0 && checked == nil && errors.Is(err, ErrEgress) && !strings.ContainsAny(host, "/?#@:[]%") {
			t.Errorf("%q, which means %q, passes the check alone", host, meaning)
		}
	})
}
