package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Text decodes a JSON string literal, quotes included. What is no literal, no UTF-8
// or holds half a surrogate pair is an error, so that no two different strings are
// decoded to one text.
func Text(literal []byte) (string, error) {
	if len(literal) == 0 || literal[0] != '"' {
		return "", broken(0, "a string must start here")
	}
	end, err := source(literal).str(0)
	if err != nil {
		return "", err
	}
	if end != len(literal) {
		return "", broken(end, "something follows the string")
	}
	if err := source(literal).checkUTF8(); err != nil {
		return "", err
	}
	inner := literal[1 : len(literal)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	text, whole := appendText(make([]byte, 0, len(inner)), inner)
	if !whole {
		return "", &ParseFailure{Code: ParseError, Message: "parse JSON: a string holds half a surrogate pair"}
	}
	return string(text), nil
}

// name returns the text of a member's name, a valid literal without its quotes.
func name(inner []byte) string {
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner)
	}
	text, _ := appendText(nil, inner)
	return string(text)
}

// appendText appends the text of a valid literal without its quotes. Half a
// surrogate pair becomes U+FFFD, and whole is false then.
func appendText(dst, inner []byte) (text []byte, whole bool) {
	whole = true
	for len(inner) > 0 {
		n := bytes.IndexByte(inner, '\\')
		if n < 0 {
			return append(dst, inner...), whole
		}
		dst = append(dst, inner[:n]...)
		switch inner = inner[n:]; inner[1] {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hexRune(inner)
			inner = inner[6:]
			if utf16.IsSurrogate(r) {
				pair := utf8.RuneError
				if len(inner) >= 6 && inner[0] == '\\' && inner[1] == 'u' {
					pair = utf16.DecodeRune(r, hexRune(inner))
				}
				if pair == utf8.RuneError {
					whole = false
				} else {
					inner = inner[6:]
				}
				r = pair
			}
			dst = utf8.AppendRune(dst, r)
			continue
		default: // the quote, the backslash and the slash stand for themselves
			dst = append(dst, inner[1])
		}
		inner = inner[2:]
	}
	return dst, whole
}

// hexRune returns the number in the escape \uXXXX that b starts with.
func hexRune(b []byte) rune {
	var r rune
	for _, c := range b[2:6] {
		r <<= 4
		switch {
		case isDigit(c):
			r |= rune(c - '0')
		default:
			r |= rune(c|0x20-'a') + 10
		}
	}
	return r
}

// Quote returns s as a JSON string literal. Bytes that are no UTF-8 become U+FFFD.
// Unlike encoding/json it escapes only what must be escaped.
func Quote(s string) []byte {
	const hex = "0123456789abcdef"
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	b := make([]byte, 0, len(s)+2)
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// Encode returns v as encoding/json writes it, but for the escapes that it makes for web
// pages: raw values keep their spelling. An error is encoding/json's.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// maxVariant is how long a spelling of the longest guarded name can be: every
// letter as an escape of six bytes.
const maxVariant = 6 * len(metaCapabilities)

// variantOf returns the one of names that a member's name, a valid literal without
// its quotes, spells with escapes or in another case, or "". Names that were spelled
// exactly must have been sorted out before.
func variantOf(name []byte, names []string) string {
	if len(name) > maxVariant {
		return ""
	}
	var room [maxVariant]byte
	text, _ := appendText(room[:0], name)
	for _, n := range names {
		// A letter outside ASCII may fold to one inside, so lengths say nothing.
		if strings.EqualFold(n, string(text)) {
			return n
		}
	}
	return ""
}
