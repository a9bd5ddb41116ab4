package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestSpliceAppliesEditsInOrder(t *testing.T) {
	raw := []byte("0123456789")
	for _, c := range []struct {
		edits []Edit
		want  string
	}{
		{nil, "0123456789"},
		{[]Edit{{Span{0, 0}, []byte("<")}, {Span{10, 10}, []byte(">")}}, "<0123456789>"},
		{[]Edit{{Span{2, 4}, []byte("xyz")}, {Span{4, 4}, []byte("+")}, {Span{4, 5}, nil}}, "01xyz+56789"},
		{[]Edit{{Span{0, 10}, []byte("a")}}, "a"},
	} {
		if got := string(Splice([]byte("pre:"), raw, c.edits...)); got != "pre:"+c.want {
			t.Errorf("%v: got %s", c.edits, got)
		}
	}
	if string(raw) != "0123456789" {
		t.Errorf("the text was changed to %s", raw)
	}
}

func TestSpliceAllocatesNothingWhereThereIsRoom(t *testing.T) {
	dst, raw, with := make([]byte, 0, 64), []byte("0123456789"), []byte("abc")
	if n := testing.AllocsPerRun(100, func() { dst = Splice(dst[:0], raw, Edit{Span{1, 2}, with}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := testing.AllocsPerRun(100, func() { Splice(nil, raw, Edit{Span{1, 2}, with}) }); n != 1 {
		t.Errorf("%v allocations without room, want 1", n)
	}
}

func TestSpliceRefusesEditsThatOverlap(t *testing.T) {
	for _, edits := range [][]Edit{
		{{At: Span{2, 4}}, {At: Span{3, 5}}}, {{At: Span{4, 5}}, {At: Span{1, 2}}}, {{At: Span{3, 2}}}, {{At: Span{9, 11}}}, {{At: Span{-1, 2}}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%v is accepted", edits)
				}
			}()
			Splice(nil, []byte("0123456789"), edits...)
		}()
	}
}

func TestMembersStepsThroughAnObjectAsWritten(t *testing.T) {
	obj := []byte(` { "b" : 1, "a":"x", "b":[2,3] , "\u00e9\ud800" : {"c":{}} } `)
	var got []string
	for m, err := range Members(obj) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %s", m.Key, m.KeySpan.Of(obj), m.Value.Of(obj)))
	}
	want := []string{`b "b" 1`, `a "a" "x"`, `b "b" [2,3]`, "é\ufffd " + `"\u00e9\ud800" {"c":{}}`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestMembersAndElementsEndWithTheFirstError(t *testing.T) {
	for _, bad := range []string{``, `1`, `{"a":1,"b"}`, `{"a":1`, `{"a":1}x`, `[1]`} {
		seen := 0
		var last error
		for _, err := range Members([]byte(bad)) {
			if last != nil {
				t.Errorf("%s: something follows an error", bad)
			}
			seen, last = seen+1, err
		}
		if last == nil || seen > 2 {
			t.Errorf("%s: %d members, %v", bad, seen, last)
		}
	}
	var last error
	for _, err := range Elements([]byte(`[1,2,}`)) {
		last = err
	}
	if last == nil {
		t.Error("a broken array is accepted")
	}
	for range Members([]byte(`{"a":1,"b":2}`)) {
		break // a caller may stop
	}
	for range Elements([]byte(`[1,2]`)) {
		break
	}
}

func TestCutMemberLeavesAnObject(t *testing.T) {
	obj := []byte(` { "a" : 1 , "b" : [ 2 ] , "c":{"d":3} } `)
	for m, err := range Members(obj) {
		if err != nil {
			t.Fatal(err)
		}
		rest := Splice(nil, obj, Edit{At: CutMember(obj, m)})
		var keys []string
		for k, err := range Members(rest) {
			if err != nil {
				t.Errorf("without %s: %s: %v", m.Key, rest, err)
			}
			keys = append(keys, k.Key)
		}
		if want := strings.ReplaceAll("abc", m.Key, ""); strings.Join(keys, "") != want {
			t.Errorf("without %s: %s", m.Key, rest)
		}
	}
}

// W3: batches are taken apart.
func TestSplitBatch(t *testing.T) {
	frames, batch, err := SplitBatch([]byte(" [ {\"id\":1} ,\n2,\"[\" ]\n"))
	if err != nil || !batch || string(bytes.Join(frames, []byte("|"))) != `{"id":1}|2|"["` {
		t.Errorf("got %q, %v, %v", frames, batch, err)
	}
	frames, batch, err = SplitBatch([]byte(" {\"id\":[1]}\n"))
	if err != nil || batch || len(frames) != 1 || string(frames[0]) != `{"id":[1]}` {
		t.Errorf("got %q, %v, %v", frames, batch, err)
	}
	for _, bad := range []string{`[]`, `[1`, `[1,]`, `[1]2`} {
		if frames, batch, err := SplitBatch([]byte(bad)); err == nil || !batch || frames != nil {
			t.Errorf("%s: %q, %v, %v", bad, frames, batch, err)
		}
	}
}

// W3: raw CR and LF are dropped, nothing else.
func TestFlattenDropsLineEndsOnly(t *testing.T) {
	raw := []byte("{\r\n\t\"a\": \"\\n\\r\",\n\"b\": 1\r}")
	if got := string(Flatten(raw)); got != "{\t\"a\": \"\\n\\r\",\"b\": 1}" {
		t.Errorf("got %q", got)
	}
	flat := []byte(`{"a":1}`)
	if got := Flatten(flat); &got[0] != &flat[0] || len(got) != len(flat) {
		t.Error("a flat text is copied or cut")
	}
	if got := Flatten(nil); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}

func TestNewFrames(t *testing.T) {
	id, payload := []byte(`"1"`), []byte(`{"a":1}`)
	for _, c := range []struct {
		got  []byte
		kind Kind
		want string
	}{
		{Result(id, payload), Response, `{"jsonrpc":"2.0","id":"1","result":{"a":1}}`},
		{ErrorReply(id, payload), Response, `{"jsonrpc":"2.0","id":"1","error":{"a":1}}`},
		{ErrorReply(nil, payload), Response, `{"jsonrpc":"2.0","id":null,"error":{"a":1}}`},
		{NewRequest(id, Ping, nil), Request, `{"jsonrpc":"2.0","id":"1","method":"ping"}`},
		{NewRequest(id, "a\"b", payload), Request, `{"jsonrpc":"2.0","id":"1","method":"a\"b","params":{"a":1}}`},
		{NewNotification(Initialized, nil), Notification, `{"jsonrpc":"2.0","method":"notifications/initialized"}`},
		{NewNotification(Cancelled, payload), Notification, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"a":1}}`},
	} {
		f, err := Parse(c.got)
		if string(c.got) != c.want || err != nil || f.Kind != c.kind {
			t.Errorf("got %s, a %s, %v; want %s", c.got, f.Kind, err, c.want)
		}
	}
}

// Raw values keep their escapes, or that they have none, and nothing stands behind the text.
func TestEncode(t *testing.T) {
	got, err := Encode(map[string]any{"a": json.RawMessage(`"<\u003c&"`), "b": "<&>"})
	if want := `{"a":"<\u003c&","b":"<&>"}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if got, err := Encode(make(chan int)); err == nil {
		t.Errorf("a channel is encoded to %s", got)
	}
}

func TestTextAndQuote(t *testing.T) {
	for literal, want := range map[string]string{
		`""`: "", `"a/b"`: "a/b", `"\"\\\/\b\f\n\r\t"`: "\"\\/\b\f\n\r\t", `"\u00e9\u65E5"`: "é日", `"\ud83d\ude00x"`: "😀x", `"日"`: "日", `"\u0000"`: "\x00",
	} {
		if got, err := Text([]byte(literal)); err != nil || got != want {
			t.Errorf("%s: %q, %v", literal, got, err)
		}
	}
	for _, bad := range []string{``, `a`, `1`, `"`, `"a`, `"a"b`, ` "a"`, `"a" `, `"\ud800"`, `"\udc00\ud800"`, `"\ud800\u0041"`, `"\ud800x"`, "\"\xff\"", "\"\n\"", `null`} {
		if got, err := Text([]byte(bad)); err == nil {
			t.Errorf("%s is decoded to %q", bad, got)
		}
	}
	if got := string(Quote("a\"\\\n\r\t\x01\x1f<&>é\u2028\x7f")); got != "\"a\\\"\\\\\\n\\r\\t\\u0001\\u001f<&>é\u2028\x7f\"" {
		t.Errorf("got %s", got)
	}
	if got, err := Text(Quote("a\xffb")); err != nil || got != "a\ufffdb" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestKeepLeavesTheMembersAsTheyAreSpelled(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{}`, `{}`}, {` { "x" : 1 } `, `{}`}, {`{"a":1}`, `{"a":1}`}, {`{"x":1,"a" : 1.0 , "x":{},"\u0062":[ ],"\u0078":2}`, `{"a" : 1.0,"\u0062":[ ]}`},
	} {
		got, err := Keep([]byte(c.in), func(key string) bool { return key != "x" })
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.in, got, err, c.want)
		}
	}
	if _, err := Keep([]byte(`{"a":}`), func(string) bool { return true }); err == nil {
		t.Error("broken JSON was taken")
	}
}
