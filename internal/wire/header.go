package wire

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// The marks around a header's value that is base64 of UTF-8.
const (
	base64Mark = "=?base64?"
	base64End  = "?="
)

// HeaderValue returns text as the value of an HTTP header that repeats a part of its
// message (Mcp-Name and Mcp-Param-…, from 2026-07-28 on): as it is if that survives the
// way, else as base64 of its UTF-8 between marks. Empty text is encoded, too: an empty
// header cannot be told from none.
func HeaderValue(text string) string {
	if plainInHeader(text) {
		return text
	}
	return base64Mark + base64.StdEncoding.EncodeToString([]byte(text)) + base64End
}

// HeaderMeans reports whether the value of such a header, without white space around it,
// means text. What has the marks of base64 means what is in it; all else means itself,
// bytes beyond ASCII included, which not every client encodes.
func HeaderMeans(value, text string) bool {
	if !markedBase64(value) {
		return value == text
	}
	b, err := base64.StdEncoding.Strict().DecodeString(value[len(base64Mark) : len(value)-len(base64End)])
	return err == nil && utf8.Valid(b) && string(b) == text
}

// plainInHeader reports whether text can be a header's value that means itself.
func plainInHeader(text string) bool {
	if text == "" || text != strings.Trim(text, " \t") || markedBase64(text) {
		return false
	}
	for i := range len(text) {
		if c := text[i]; (c < ' ' || c > '~') && c != '\t' {
			return false
		}
	}
	return true
}

func markedBase64(value string) bool {
	return len(value) >= len(base64Mark)+len(base64End) && strings.HasPrefix(value, base64Mark) && strings.HasSuffix(value, base64End)
}
