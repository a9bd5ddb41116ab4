package wire

import (
	"fmt"
	"strings"
	"testing"
)

// walked is Index, by way of Members and Elements.
func walked(raw []byte, at Span, key Span, deep int) (items []Item) {
	it := Item{Key: key, Value: at}
	inside := func(value, key Span) {
		value = Span{at.Start + value.Start, at.Start + value.End}
		if key.Present() {
			key = Span{at.Start + key.Start, at.Start + key.End}
		}
		it.Count++
		items = append(items, walked(raw, value, key, deep-1)...)
	}
	if deep > 0 && raw[at.Start] == '{' {
		for m := range Members(at.Of(raw)) {
			inside(m.Value, m.KeySpan)
		}
	} else if deep > 0 && raw[at.Start] == '[' {
		for e := range Elements(at.Of(raw)) {
			inside(e, Span{})
		}
	}
	it.Items = len(items)
	return append([]Item{it}, items...)
}

// checkIndex compares Index with Valid, Members and Elements.
func checkIndex(t *testing.T, raw []byte) {
	t.Helper()
	for _, deep := range []int{0, 1, 3, maxDepth + 1} {
		items, err := Index([]Item{{Count: 7}}, raw, deep)
		if valid := Valid(raw); fmt.Sprint(err) != fmt.Sprint(valid) {
			t.Fatalf("%d deep: Index says %v, Valid %v", deep, err, valid)
		} else if err != nil {
			continue
		}
		text := trim(raw)
		start := source(raw).space(0)
		want := append([]Item{{Count: 7}}, walked(raw, Span{start, start + len(text)}, Span{}, deep)...)
		if fmt.Sprint(items) != fmt.Sprint(want) {
			t.Fatalf("%d deep: got\n%v\nwant\n%v", deep, items, want)
		}
	}
}

func TestIndexTellsWhereAllValuesStand(t *testing.T) {
	for _, raw := range []string{
		` {"a": [1, {"b" : "\u0063"} , []] , "a":{} } `, `[]`, `-1.5e3`, `"x"`, `{"a":1,}`, `{"a":1}}`, `[1 2]`, `{"a"}`, "[\"\xff\"]", ``, ` `, `{`, `[`,
		strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1),
	} {
		checkIndex(t, []byte(raw))
	}
	raw := []byte(`{"n\u0061me":[true,"\ud800"]}`)
	items, err := Index(nil, raw, 2)
	if err != nil || len(items) != 4 || Name(items[1].Key.Of(raw)) != "name" || string(items[2].Value.Of(raw)) != "true" || items[2].Key.Present() {
		t.Errorf("got %v, %v", items, err)
	}
}

func FuzzIndex(f *testing.F) {
	addSeeds(f)
	f.Fuzz(checkIndex)
}
