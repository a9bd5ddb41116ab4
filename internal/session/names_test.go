package session

import (
	"strings"
	"testing"
)

// H7, cases 8 and 9: where a name can be taken apart again it is left as it is, and
// every other one gets a short form.
func TestPublicName(t *testing.T) {
	long := strings.Repeat("n", 60)
	for _, c := range []struct {
		server, name string
		plain        bool
	}{
		{"files", "read", true},
		{"files", "read__all", true},
		{"files", "_read", true},
		{"a-b", "C-d_9", true},
		{"s", strings.Repeat("n", 61), true},
		{"s", strings.Repeat("n", 62), false},
		{"a__b", "c", false},
		{"a_", "c", false},
		{"a.b", "c", false},
		{"files", "calendar.read", false},
		{"日本", "道具", false},
		{"Internet Search (X)", "go", false},
		{strings.Repeat("s", 42), strings.Repeat("n", 40), false},
		{"s", long + "_one", false},
	} {
		got := publicName(c.server, c.name)
		if plain := got == c.server+separator+c.name; plain != c.plain {
			t.Errorf("publicName(%q, %q) is %q", c.server, c.name, got)
		}
		checkName(t, c.server, c.name)
	}
	seen := map[string][2]string{}
	for _, server := range []string{"a", "A", "a_", "a__b", "a.b", "a b", "日", "月", ""} {
		for _, name := range []string{"b", "B", "b__c", "_b", "b.c", "b c", "日", "月", "c", long + "_one", long + "_two", ""} {
			public := publicName(server, name)
			if other, twice := seen[public]; twice {
				t.Errorf("%q is the name of %q and of %q", public, other, []string{server, name})
			}
			seen[public] = [2]string{server, name}
		}
	}
}

func checkName(t *testing.T, server, name string) {
	t.Helper()
	public := publicName(server, name)
	if len(public) > maxName || !plain(public) {
		t.Errorf("publicName(%q, %q) is %q, which model APIs refuse", server, name, public)
	}
	if !mayBe(public, server) {
		t.Errorf("%q is not taken for a name of %q", public, server)
	}
}

// H7: any two different tools have different names, which lead back to their servers.
func FuzzPublicName(f *testing.F) {
	f.Add("a", "b__c", "a__b", "c")
	f.Add("a_", "b", "a", "_b")
	f.Add("日本", "x", "__", "x")
	f.Add(strings.Repeat("s", 60), "one", strings.Repeat("s", 60), "two")
	f.Fuzz(func(t *testing.T, server1, name1, server2, name2 string) {
		checkName(t, server1, name1)
		checkName(t, server2, name2)
		same := server1 == server2 && name1 == name2
		if got := publicName(server1, name1) == publicName(server2, name2); got != same {
			t.Errorf("%q %q and %q %q: one name is %v", server1, name1, server2, name2, got)
		}
	})
}

// H7: the prefix of a colliding URI makes a valid URI, and is nobody else's.
func TestURIPrefix(t *testing.T) {
	servers := []string{"a", "a_b", "a:b", "a/b", "a b", "日本", "a::b", "a%2Fb", "{a}"}
	for i, s := range servers {
		p := uriPrefix(s)
		scheme, rest, _ := strings.Cut(p, ":")
		if scheme != "roundhouse" || strings.Trim(strings.ToLower(rest), "abcdefghijklmnopqrstuvwxyz0123456789-._~%:/") != "" {
			t.Errorf("%q is no beginning of a URI", p)
		}
		for j, other := range servers {
			if i != j && strings.HasPrefix(uriPrefix(other)+"x", p) {
				t.Errorf("%q is also how URIs of %q begin", p, other)
			}
		}
	}
}

// H7: templates say which server a URI may belong to.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		template, uri string
		want          bool
	}{
		{"file:///{path}", "file:///a/b", true},
		{"file:///{+path}", "file:///", true},
		{"file:///{path}", "file://a", false},
		{"item://{id}/of/{name}", "item://1/of/x", true},
		{"item://{id}/of/{name}", "item://1/x", false},
		{"a.b://x", "a.b://x", true},
		{"a.b://x", "aXb://x", false},
		{"x://(a+)+{v}", "x://(a+)+1", true},
		{"{a}{b}", "anything\nat all", false},
		{"x://{", "x://{", true},
		{"x://{{a}}", "x://{1}", true},
	} {
		if got := fits(c.template, c.uri); got != c.want {
			t.Errorf("fits(%q, %q) is %v", c.template, c.uri, got)
		}
	}
}
