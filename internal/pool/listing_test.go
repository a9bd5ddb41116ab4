package pool

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"roundhouse/internal/wire"
)

// A list that came in one page and is not filtered is passed on as it is; otherwise
// its items are, byte for byte.
func TestListingsKeepTheirBytes(t *testing.T) {
	const a = `{"name":"a","big":12345678901234567890,"x":{"$ref":"#/$defs/y"}}`
	const b = `{ "title":"B", "name":"\u0062" }`
	raw := []byte(`{"_meta":{"n":1.0},"tools":[` + a + ` , ` + b + `]}`)
	items, next, whole, err := parsePage(Tools, raw)
	if err != nil || next != nil || !whole {
		t.Fatalf("parsePage: %v, next %q, whole %v", err, next, whole)
	}
	l := &Listing{Items: items, Raw: raw}
	if got := l.Result(Tools); !bytes.Equal(got, raw) {
		t.Errorf("the whole result is %s", got)
	}
	if l.Only(func(string) bool { return true }) != l {
		t.Error("a filter that takes nothing away makes another listing")
	}
	only := l.Only(func(key string) bool { return key == "b" })
	if got := string(only.Result(Tools)); got != `{"tools":[`+b+`]}` {
		t.Errorf("the filtered result is %s", got)
	}
	if got := string((&Listing{}).Result(Templates)); got != `{"resourceTemplates":[]}` {
		t.Errorf("the empty result is %s", got)
	}
	if got := string((&Listing{Items: items}).Result(Prompts)); got != `{"prompts":[`+a+`,`+b+`]}` {
		t.Errorf("the joined result is %s", got)
	}
}

// W2: what could be read in two ways is not passed on as it was: items without
// exactly one key are left out, and a list that stands twice is made anew.
func TestAmbiguousListsAreNotPassedOnAsTheyAre(t *testing.T) {
	for _, c := range []struct {
		name, raw string
		keys      []string
	}{
		{"no key", `{"tools":[{"title":"a"},{"name":"b"}]}`, []string{"b"}},
		{"a key that is no text", `{"tools":[{"name":1},{"name":"b"}]}`, []string{"b"}},
		{"two keys", `{"tools":[{"name":"a","name":"danger"},{"name":"b"}]}`, []string{"b"}},
		{"a key in another case", `{"tools":[{"name":"a","Name":"danger"},{"name":"b"}]}`, []string{"b"}},
		{"an escaped second key", `{"tools":[{"name":"a","n\u0061me":"danger"},{"name":"b"}]}`, []string{"b"}},
		{"an item that is no object", `{"tools":["a",{"name":"b"}]}`, []string{"b"}},
		{"two lists", `{"tools":[{"name":"danger"}],"tools":[{"name":"b"}]}`, []string{"b"}},
		{"a list in another case", `{"tools":[{"name":"b"}],"TOOLS":[{"name":"danger"}]}`, []string{"b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			items, _, whole, err := parsePage(Tools, []byte(c.raw))
			if err != nil || whole {
				t.Fatalf("whole %v, %v", whole, err)
			}
			if got := keysOf(&Listing{Items: items}); !slices.Equal(got, c.keys) {
				t.Errorf("the keys are %q, want %q", got, c.keys)
			}
		})
	}
}

func FuzzParsePage(f *testing.F) {
	for _, seed := range []string{
		`{"tools":[{"name":"a"}],"nextCursor":"x"}`, `{"tools":[]}`, `{"tools":null,"nextCursor":null}`, `[]`, ``, `{"tools":[{"name":"a","name":"b"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		items, next, whole, err := parsePage(Tools, raw)
		if err != nil {
			return
		}
		if next != nil && !json.Valid(next) {
			t.Errorf("the cursor %q is no JSON", next)
		}
		for _, it := range items {
			if key, err := wire.Text(it.KeySpan.Of(it.Raw)); err != nil || key != it.Key {
				t.Errorf("the key %q is not where the span says (%q, %v)", it.Key, key, err)
			}
		}
		if !json.Valid(raw) {
			return // the frame that it came in was checked before
		}
		if made := (&Listing{Items: items}).Result(Tools); !json.Valid(made) {
			t.Errorf("the result %s is no JSON", made)
		}
		var std struct{ Tools []struct{ Name string } }
		if !whole || json.Unmarshal(raw, &std) != nil {
			return
		}
		if len(std.Tools) != len(items) {
			t.Fatalf("encoding/json reads %d tools, we read %d", len(std.Tools), len(items))
		}
		for i, it := range items {
			if std.Tools[i].Name != it.Key && bytes.IndexByte(it.Raw, '\\') < 0 {
				t.Errorf("encoding/json reads the name %q, we read %q", std.Tools[i].Name, it.Key)
			}
		}
	})
}
