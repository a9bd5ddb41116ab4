package load

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestParseFrameFindsTopLevelMembersOnly(t *testing.T) {
	const message = ` { "result" : {"id":9,"error":"\"}","x":[1,{"result":null}]} , "jsonrpc":"2.0", "id" : 1.0e3 }`
	f, err := parseFrame([]byte(message))
	if err != nil {
		t.Fatal(err)
	}
	if string(f.id) != "1.0e3" || f.err != nil || string(f.result) != `{"id":9,"error":"\"}","x":[1,{"result":null}]}` {
		t.Errorf("id %s, result %s, error %s", f.id, f.result, f.err)
	}
}

func TestParseFrameRefusesWhatIsNoObject(t *testing.T) {
	for _, message := range []string{"", "[]", "1", `{`, `{"id"`, `{"id":`, `{"id":}`, `{"id":1`, `{"id":1,`, `{"id":1,}`, `{"id":"\"}`, `{"id":[1}`, `{"id":1 2}`, `{id:1}`} {
		if _, err := parseFrame([]byte(message)); err == nil {
			t.Errorf("%s: no error", message)
		}
	}
}

// On every valid object parseFrame agrees with encoding/json, and it panics on nothing.
func FuzzParseFrame(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a\\\"b"}]}}`))
	f.Add([]byte(`{"id":null,"error":{"code":-1},"x":{}}`))
	f.Add([]byte(` {} `))
	f.Add([]byte(`{"id":1,"id":2,"i\u0064":3}`))
	f.Fuzz(func(t *testing.T, message []byte) {
		got, err := parseFrame(message)
		var want map[string]json.RawMessage
		if json.Unmarshal(message, &want) != nil || want == nil {
			return
		}
		if err != nil {
			t.Fatalf("%q: %v", message, err)
		}
		if bytes.Contains(message, []byte(`\`)) {
			return // Escaped keys mean the same to encoding/json.
		}
		for key, value := range map[string][]byte{"id": got.id, "result": got.result, "error": got.err} {
			if !bytes.Equal(value, want[key]) {
				t.Fatalf("%q: %s is %q, want %q", message, key, value, want[key])
			}
		}
	})
}
