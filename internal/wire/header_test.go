package wire

import (
	"strings"
	"testing"
)

// H1: a header says a value as it is, or in base64; some say it in bytes beyond ASCII.
func TestHeaderMeans(t *testing.T) {
	for _, c := range []struct {
		value, text string
		same        bool
	}{
		{"echo", "echo", true}, {"echo", "Echo", false}, {"", "", true}, {"=?base64??=", "", true},
		{"=?base64?bmHDr3Zl?=", "naïve", true}, {"naïve", "naïve", true}, {"na\u00efve ", "naïve", false},
		{"=?base64?bmHDr3Zl", "naïve", false}, {"=?Base64?bmHDr3Zl?=", "naïve", false},
		{"=?base64?YQ?=", "a", false}, {"=?base64?YR==?=", "a", false}, {"=?base64?/w==?=", "\xff", false},
		{"=?base64?YQ==?=", "=?base64?YQ==?=", false}, {"=?base64?PT9iYXNlNjQ/WVE9PT89?=", "=?base64?YQ==?=", true},
		{"=?base64?=", "=?base64?=", true},
	} {
		if HeaderMeans(c.value, c.text) != c.same {
			t.Errorf("HeaderMeans(%q, %q) is %t", c.value, c.text, !c.same)
		}
	}
}

// H1: what does not survive the way as it is goes as base64.
func TestHeaderValue(t *testing.T) {
	for text, want := range map[string]string{
		"echo": "echo", "a b\tc": "a b\tc", "file:///a?b=c~": "file:///a?b=c~", "=?base64?": "=?base64?", "=?base64?=": "=?base64?=",
		"": "=?base64??=", "naïve": "=?base64?bmHDr3Zl?=", " a": "=?base64?IGE=?=", "a\t": "=?base64?YQk=?=", "a\nb": "=?base64?YQpi?=",
		"a\x7f": "=?base64?YX8=?=", "=?base64?YQ==?=": "=?base64?PT9iYXNlNjQ/WVE9PT89?=",
	} {
		if got := HeaderValue(text); got != want {
			t.Errorf("HeaderValue(%q) is %q, want %q", text, got, want)
		}
	}
}

func FuzzHeaderValue(f *testing.F) {
	f.Add("naïve")
	f.Add("=?base64?YQ==?=")
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		value := HeaderValue(text)
		if value == "" || !HeaderMeans(value, text) || strings.Trim(value, " \t") != value || strings.ContainsFunc(value, func(r rune) bool { return r > '~' || r < ' ' && r != '\t' }) {
			t.Errorf("HeaderValue(%q) is %q", text, value)
		}
	})
}
