// Package secret holds values that must not be printed.
package secret

import "log/slog"

const mask = "***"

// String is a secret text. Every way of printing it (fmt, log/slog, JSON, text)
// shows ***, or nothing if it is empty; Reveal gives the text itself. The zero
// value is an empty secret. Secrets are compared with ==, or in constant time by
// the package that authenticates.
type String struct{ s string }

// New wraps s.
func New(s string) String { return String{s} }

// Reveal returns the secret itself, for use and never for display.
func (s String) Reveal() string { return s.s }

// Empty reports whether the secret is the empty text.
func (s String) Empty() bool { return s.s == "" }

// String implements fmt.Stringer.
func (s String) String() string {
	if s.s == "" {
		return ""
	}
	return mask
}

// GoString implements fmt.GoStringer, for %#v.
func (s String) GoString() string { return s.String() }

// LogValue implements slog.LogValuer.
func (s String) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements encoding.TextMarshaler, which covers JSON too.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
