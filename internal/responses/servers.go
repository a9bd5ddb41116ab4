package responses

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"

	"roundhouse/internal/config"
	"roundhouse/internal/loop"
	"roundhouse/internal/session"
)

// withheld are headers that a request cannot set at a tool server (B.4): they are about the
// connection, or name its session, which is roundhouse's own (X4). They are left out, in
// whatever spelling.
var withheld = []string{
	"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Upgrade", "Te", "Trailer", "Proxy-Authorization", "Proxy-Connection", "Expect",
	"Accept", "Accept-Encoding", "Content-Encoding", "Content-Type", "Last-Event-Id", "Mcp-Session-Id", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name",
	"X-Session-Id", "Cookie",
}

// header is what a request wants a tool server to get: its headers, and the token of
// authorization in the place of any that these have. Spellings collapse.
func (e *mcpEntry) header() http.Header {
	h := http.Header{}
	names := make([]string, 0, len(e.Headers))
	for name := range e.Headers {
		names = append(names, name)
	}
	slices.Sort(names) // of two spellings of a name the same one counts each time
	for _, name := range names {
		if !slices.Contains(withheld, http.CanonicalHeaderKey(name)) {
			h.Set(name, e.Headers[name])
		}
	}
	if e.Authorization != "" {
		h.Set("Authorization", "Bearer "+e.Authorization)
	}
	return h
}

// label is what a server that a request brings may be called.
var label = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// locate finds the server that an entry means: a configured one by its label, or one at an
// address.
func (f *Face) locate(ctx context.Context, s *loop.Server, at string, e *mcpEntry) *loop.Failure {
	header := e.header()
	if e.URL == "" {
		s.Invitation = session.Invitation{Server: e.Label, Header: header}
		return f.checkHeader(at, e.Label, header)
	}
	if !label.MatchString(e.Label) {
		return refused("%s: server_label must be 1 to 64 letters, digits, _, . or -, and begin with a letter or digit", at)
	}
	if err := f.cfg.Egress.Check(ctx, e.URL); err != nil {
		return refused("%s: server_url: %v", at, err)
	}
	entry := map[string]any{"url": e.URL}
	if len(header) > 0 {
		headers := map[string]string{}
		for name := range header {
			headers[name] = header.Get(name)
		}
		entry["headers"] = headers
	}
	text, err := json.Marshal(entry)
	if err != nil {
		return refused("%s cannot be read: %v", at, err)
	}
	server, _, err := f.cfg.Config().Inject(e.Label, text)
	if err != nil {
		return refused("%s: %v", at, err)
	}
	server.Dialer = f.cfg.Egress
	mac := hmac.New(sha256.New, f.key)
	mac.Write(text)
	server.Name = session.BroughtName(e.Label, hex.EncodeToString(mac.Sum(nil)[:8]))
	s.Invitation = session.Invitation{Brought: server}
	return nil
}

// checkHeader refuses headers that a configured server does not get from its callers.
func (f *Face) checkHeader(at, name string, header http.Header) *loop.Failure {
	i := slices.IndexFunc(f.cfg.Config().Servers, func(s *config.Server) bool { return s.Name == name })
	for given := range header {
		if i < 0 || !slices.Contains(f.cfg.Config().Servers[i].ForwardHeaders, given) {
			return refused("%s: the configured server %q takes no header %s from requests; forwardHeaders of its entry names those that it does", at, name, given)
		}
	}
	return nil
}

// checkServers refuses the name of a server that no session can have. One that is named may
// have servers of its own.
func (f *Face) checkServers(t *loop.Task) error {
	for _, s := range t.Servers {
		if t.Session == "" && s.Invitation.Brought == nil && !slices.ContainsFunc(f.cfg.Config().Servers, func(c *config.Server) bool { return c.Name == s.Label }) {
			return refused("no configured server is called %q; give the server_url of one that is not configured", s.Label)
		}
	}
	return nil
}
