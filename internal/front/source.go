package front

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/netip"
	"strings"

	"roundhouse/internal/fault"
)

// hostPort is the authority of a Host header or an origin.
type hostPort struct {
	host string // without brackets, as written
	port string // decimal digits, or "" if none was given
}

// splitHost takes "name", "name:port", "[ipv6]" or "[ipv6]:port" apart. Anything
// else, user information and a bare IPv6 address included, is refused.
func splitHost(s string) (hostPort, bool) {
	var hp hostPort
	rest := ""
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return hostPort{}, false
		}
		hp.host, rest = s[1:end], s[end+1:]
		if addr, err := netip.ParseAddr(hp.host); err != nil || !addr.Is6() || addr.Zone() != "" {
			return hostPort{}, false
		}
	} else {
		end := strings.IndexByte(s, ':')
		if end < 0 {
			end = len(s)
		}
		hp.host, rest = s[:end], s[end:]
		if !isHostName(hp.host) {
			return hostPort{}, false
		}
	}
	if rest == "" {
		return hp, true
	}
	hp.port = rest[1:]
	return hp, rest[0] == ':' && isPort(hp.port)
}

// isHostName accepts IPv4 addresses too.
func isHostName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		default:
			return false
		}
	}
	return 1 <= len(s) && len(s) <= 253
}

func isPort(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return 1 <= len(s) && len(s) <= 5
}

// loopback reports whether the name can only mean this machine: localhost itself
// and loopback addresses. A name under localhost is resolved by some as any other
// name, so it does not count.
func (hp hostPort) loopback() bool {
	if strings.EqualFold(hp.host, "localhost") {
		return true
	}
	addr, ok := hp.addr()
	return ok && addr.IsLoopback()
}

func (hp hostPort) addr() (netip.Addr, bool) {
	// Only digits and a colon can begin an address; this spares names the error.
	if hp.host[0] != ':' && (hp.host[0] < '0' || hp.host[0] > '9') && !strings.Contains(hp.host, ":") {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(hp.host)
	return addr, err == nil
}

// publicNames checks and normalises Config.PublicNames.
func publicNames(list []string) (map[string]bool, error) {
	names := make(map[string]bool, len(list))
	var errs []error
	for _, name := range list {
		hp, ok := splitHost(name)
		if !ok {
			errs = append(errs, fmt.Errorf("publicNames: %q is not a host name: write name, name:port, [ipv6] or [ipv6]:port, without a scheme", name))
			continue
		}
		names[nameKey(hp)] = true
	}
	return names, errors.Join(errs...)
}

func nameKey(hp hostPort) string {
	host := strings.ToLower(hp.host)
	if hp.port == "" {
		return host
	}
	return host + "|" + hp.port
}

// allowedOrigins checks Config.AllowedOrigins. Schemes other than http and https
// are those of browser extensions and desktop shells.
func allowedOrigins(list []string) (map[string]bool, error) {
	origins := make(map[string]bool, len(list))
	var errs []error
	for _, origin := range list {
		scheme, authority, ok := strings.Cut(origin, "://")
		if ok {
			_, ok = splitHost(authority)
		}
		if !ok || !isHostName(scheme) || origin != strings.ToLower(origin) {
			errs = append(errs, fmt.Errorf("allowedOrigins: %q is not an origin: write scheme://host or scheme://host:port in lower case, without a path", origin))
			continue
		}
		origins[origin] = true
	}
	return origins, errors.Join(errs...)
}

// checkSource decides whether r may come from where it says (H6, cases 63 and 64):
// the Host must be a name of ours, so that no foreign name can be made to resolve
// to us, and a browser must be showing a page that we trust. What is no browser
// sends neither Origin nor Sec-Fetch-Site; authentication is for those. status is
// the HTTP status of err, or 0 for that of its reason.
func (f *Front) checkSource(r *http.Request) (status int, err error) {
	hp, ok := splitHost(r.Host)
	if !ok || !f.ownName(hp) {
		return 0, fault.New(fault.ForbiddenOrigin,
			"the host %.100q is not a name of this roundhouse; add it to publicNames if clients are to use it", r.Host)
	}
	origins, site := r.Header["Origin"], r.Header["Sec-Fetch-Site"]
	if origins == nil && site == nil {
		return 0, nil
	}
	if origins == nil && foreignSite(site) && !isNavigation(r) {
		return 0, fault.New(fault.ForbiddenOrigin, "a page of another site may not send this request")
	}
	if origins != nil && (len(origins) > 1 || !f.acceptOrigin(origins[0], site, r.Host, hp)) {
		return 0, fault.New(fault.ForbiddenOrigin,
			"the origin %.100q is not allowed; add it to allowedOrigins if its pages may use this roundhouse", strings.Join(origins, ", "))
	}
	if r.Method == http.MethodPost && !isJSON(r.Header["Content-Type"]) {
		return http.StatusUnsupportedMediaType, fault.New(fault.BadRequest,
			"a browser must send this request with Content-Type: application/json")
	}
	return 0, nil
}

// ownName reports whether a Host names this daemon.
func (f *Front) ownName(hp hostPort) bool {
	if hp.loopback() {
		return true
	}
	if f.beyond {
		if _, ok := hp.addr(); ok {
			return true
		}
	}
	names := f.access.Load().names
	return len(names) > 0 && (names[strings.ToLower(hp.host)] || names[nameKey(hp)])
}

// acceptOrigin reports whether origin is configured, is the very host that the
// request was sent to, or is that host under another loopback name. The Host does
// not tell http from https, so a browser that says that the two differ is
// believed. The port in the Host is the listener's as the browser sees it, through
// a port mapping too.
func (f *Front) acceptOrigin(origin string, site []string, host string, hp hostPort) bool {
	if f.access.Load().origins[origin] {
		return true
	}
	authority, ok := strings.CutPrefix(origin, "http://")
	if !ok {
		if authority, ok = strings.CutPrefix(origin, "https://"); !ok {
			return false
		}
	}
	if strings.EqualFold(authority, host) && (site == nil || !foreignSite(site)) {
		return true
	}
	from, ok := splitHost(authority)
	return ok && from.port == hp.port && from.loopback() && hp.loopback()
}

// foreignSite reads the values of Sec-Fetch-Site. Another port of localhost is
// "same-site" to a browser and still another program.
func foreignSite(values []string) bool {
	return len(values) != 1 || (values[0] != "same-origin" && values[0] != "none")
}

// isNavigation reports whether a browser opens r as a page of its own, as by a
// link to the console.
func isNavigation(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// isJSON reports whether a Content-Type is one that a page can only send after a
// preflight.
func isJSON(values []string) bool {
	if len(values) != 1 {
		return false
	}
	mediaType, _, err := mime.ParseMediaType(values[0])
	return err == nil && mediaType == "application/json"
}

// Values of response headers that never change. Sharing the slices saves an
// allocation each; nobody changes the elements of a header, and adding to one of
// these copies it.
var (
	varyOrigin    = []string{"Origin"}
	exposeHeaders = []string{"Mcp-Session-Id, Retry-After, WWW-Authenticate"}
	allowMethods  = []string{"GET, POST, DELETE"}
	// The star is for what differs from client to client (Mcp-Param-*, the headers
	// of model libraries); it does not cover Authorization, which is why it is not
	// alone.
	allowHeaders = []string{"Authorization, Content-Type, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name, Last-Event-ID, X-Session-Id, *"}
	preflightAge = []string{"600"}
)

// grantOrigin lets the page of an accepted origin read the answer.
func grantOrigin(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["Access-Control-Allow-Origin"] = r.Header["Origin"]
	h["Vary"] = varyOrigin
	h["Access-Control-Expose-Headers"] = exposeHeaders
	if isPreflight(r) {
		h["Access-Control-Allow-Methods"] = allowMethods
		h["Access-Control-Allow-Headers"] = allowHeaders
		h["Access-Control-Max-Age"] = preflightAge
	}
}

func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header["Access-Control-Request-Method"] != nil
}
