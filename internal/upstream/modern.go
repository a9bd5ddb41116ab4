package upstream

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"

	"roundhouse/internal/wire"
)

// Modern makes the link one of a protocol version without handshake and session, from
// 2026-07-28 on, or with "" one of the older versions again. It is called before the
// first Send, or when no call is in flight whose answer still matters, as after a
// server/discover in vain.
//
// In such a version the headers of each request repeat the version, the method and the
// name. A session id is neither sent nor learned, and there is no GET stream, no DELETE,
// and no attempt to continue a stream. A call's stream stays open until the answer has
// come, however long that takes, so that of subscriptions/listen is told to have Failed
// if it ends without. notifications/cancelled are not sent: Cancel closes the call's
// stream instead (H1).
func (h *HTTP) Modern(version string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.modern = version
}

// spelling is how names are said in Mcp-Name that cannot stand in a header as they are.
// The protocol wants base64; there are servers that compare bytes.
type spelling uint8

const (
	unknownSpelling spelling = iota // base64 is tried first
	base64Spelling
	rawSpelling
)

// modernHeaders returns the headers of a request without a session.
func (h *HTTP) modernHeaders(x *exchange) http.Header {
	header := h.endpoint.headers(typeJSON + ", " + typeStream)
	maps.Copy(header, x.message.Header)
	header[headerVersion] = []string{x.modern}
	if m := x.message.Method; m != "" {
		header[headerMethod] = []string{m}
	}
	if name := x.message.Name; name != "" {
		if mustEncode(name) && canBeRaw(name) {
			h.mu.Lock()
			x.rawName = x.rawName || h.names == rawSpelling
			h.mu.Unlock()
		}
		if !x.rawName {
			name = wire.HeaderValue(name)
		}
		header[headerName] = []string{name}
	}
	return header
}

// mustEncode reports whether a name is encoded in Mcp-Name.
func mustEncode(name string) bool { return name != "" && wire.HeaderValue(name) != name }

// canBeRaw reports whether a name can stand in a header byte for byte.
func canBeRaw(name string) bool {
	return strings.Trim(name, " \t") == name && !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// misread reports whether a call was refused because the server takes the encoded name
// for another one, as far as can be told. It is sent once more then: what is refused so
// was not executed (R5).
func (h *HTTP) misread(x *exchange, body []byte) bool {
	name := x.message.Name
	if x.modern == "" || x.rawName || !mustEncode(name) || !canBeRaw(name) || !isHeaderMismatch(body) {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	x.rawName = h.names == unknownSpelling
	return x.rawName
}

func isHeaderMismatch(body []byte) bool {
	var v struct{ Error struct{ Code int } }
	return json.Unmarshal(body, &v) == nil && v.Error.Code == wire.HeaderMismatch
}

// understood notes that the server has understood the headers of a call.
func (h *HTTP) understood(x *exchange) {
	if x.modern == "" || !mustEncode(x.message.Name) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names = base64Spelling
	if x.rawName {
		h.names = rawSpelling
	}
}
