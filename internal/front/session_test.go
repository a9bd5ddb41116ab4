package front_test

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"roundhouse/internal/fault"
	"roundhouse/internal/front"
)

// The design's rule "a session is named by": all names agree, or the request is
// refused with the two places that do not.
func TestSessionName(t *testing.T) {
	long := strings.Repeat("x", 129)
	for _, c := range []struct {
		name   string
		path   string
		header []string
		others []string
		want   string
		errors []string // what the fault says; nil is none
	}{
		{name: "nothing"},
		{name: "empty others are none", others: []string{"", ""}},
		{name: "path", path: "s1", want: "s1"},
		{name: "header", header: []string{"s1"}, want: "s1"},
		{name: "body", others: []string{"s1"}, want: "s1"},
		{name: "_meta beside an absent body name", others: []string{"", "s1"}, want: "s1"},
		{name: "all agree", path: "s1", header: []string{"s1", "s1"}, others: []string{"s1", "s1"}, want: "s1"},
		{name: "longest", path: long[1:], want: long[1:]},
		{name: "path and header differ", path: "s1", header: []string{"s2"}, errors: []string{"URL path", `"s1"`, "X-Session-Id", `"s2"`}},
		{name: "path and body differ", path: "s1", others: []string{"s2"}, errors: []string{"URL path", `"s1"`, "body", `"s2"`}},
		{name: "header and body differ", header: []string{"s1"}, others: []string{"s2"}, errors: []string{"X-Session-Id", "body"}},
		{name: "two headers differ", header: []string{"s1", "s2"}, errors: []string{"X-Session-Id", `"s1"`, `"s2"`}},
		{name: "two in the body differ", others: []string{"s1", "s2"}, errors: []string{"body", `"s1"`, `"s2"`}},
		{name: "case differs", path: "s1", header: []string{"S1"}, errors: []string{`"s1"`, `"S1"`}},
		{name: "the third differs", path: "s1", header: []string{"s1"}, others: []string{"s2"}, errors: []string{`"s1"`, `"s2"`}},
		{name: "malformed path", path: "a b", errors: []string{"URL path", "128"}},
		{name: "malformed header", header: []string{"s1, s2"}, errors: []string{"X-Session-Id", "128"}},
		{name: "empty header", header: []string{""}, errors: []string{"X-Session-Id", "128"}},
		{name: "malformed body", others: []string{"a/b"}, errors: []string{"body", "128"}},
		{name: "too long", header: []string{long}, errors: []string{"X-Session-Id", "128"}},
		{name: "malformed though another is good", path: "s1", header: []string{"a b"}, errors: []string{"X-Session-Id"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("POST", "/", nil)
			r.SetPathValue("id", c.path)
			for _, h := range c.header {
				r.Header.Add("x-session-id", h)
			}
			got, err := front.SessionName(r, c.others...)
			if got != c.want || (err != nil) != (c.errors != nil) {
				t.Fatalf("%q, %v; want %q, error %t", got, err, c.want, c.errors != nil)
			}
			if err == nil {
				return
			}
			if !fault.Is(err, fault.BadRequest) {
				t.Errorf("the reason of %v is not bad_request", err)
			}
			for _, want := range c.errors {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
		})
	}
}

// FuzzSessionName: a name is valid by the design's pattern, or it is not given.
func FuzzSessionName(f *testing.F) {
	f.Add("s1", "s1", "s1")
	f.Add("", "a b", "")
	f.Add("a", "", "b")
	pattern := regexp.MustCompile(`\A[A-Za-z0-9._:-]{1,128}\z`)
	f.Fuzz(func(t *testing.T, path, header, body string) {
		r := httptest.NewRequest("POST", "/", nil)
		r.SetPathValue("id", path)
		if header != "" {
			r.Header.Set("X-Session-Id", header)
		}
		id, err := front.SessionName(r, body)
		if err != nil && id != "" || err == nil && id != "" && !pattern.MatchString(id) {
			t.Fatalf("%q, %v", id, err)
		}
		for _, name := range []string{path, header, body} {
			if err == nil && name != "" && name != id {
				t.Fatalf("%q was overlooked, the session is %q", name, id)
			}
		}
	})
}
