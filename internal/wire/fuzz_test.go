package wire

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// seeds are frames of each kind, and near misses.
var seeds = []string{
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":[1,2.5e3,"é\n"]},"_meta":{"progressToken":"t","roundhouse/session":"s"}}}`,
	` {"method":"notifications/progress","params":{"progressToken":1,"progress":0.5},"jsonrpc":"2.0"} `,
	`{"jsonrpc":"2.0","result":{"content":[{"type":"text","text":"\ud83d\ude00\\\""}]},"id":"\u0031"}`,
	`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"},"extra":[[],{}]}`,
	`{"jsonrpc":"2.0","ID":1,"method":"a","params":["x"]}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"n\u0061me":"x","Name":"y"}}`,
	`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"a"}]`,
	`{"level":"info","msg":"x"}`,
	"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}",
}

func addSeeds(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
}

// nesting returns how deep the brackets of a valid text nest.
func nesting(raw []byte) (deepest int) {
	depth, inside := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '"':
			inside = !inside
		case inside && c == '\\':
			i++
		case !inside && (c == '{' || c == '['):
			depth++
			deepest = max(deepest, depth)
		case !inside && (c == '}' || c == ']'):
			depth--
		}
	}
	return deepest
}

// W2, W4: Parse reads an envelope as encoding/json does, which takes the last of
// duplicates and folds case; a text that the two would read differently is refused.
func FuzzParse(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		valid := json.Valid(raw) && utf8.Valid(raw) && nesting(raw) <= maxDepth
		if err := Valid(raw); (err == nil) != valid {
			t.Fatalf("valid is %v, Valid says %v", valid, err)
		}
		frame, err := Parse(raw)
		if !bytes.Equal(raw, before) {
			t.Fatal("the text was changed")
		}
		if err != nil {
			failure := err.(*ParseFailure)
			if failure.Code == InvalidRequest && !valid || failure.Code == ParseError && valid {
				t.Fatalf("valid is %v, the failure %v", valid, failure)
			}
			if failure.ID != nil && !isID(failure.ID) {
				t.Fatalf("the id is %s", failure.ID)
			}
			return
		}
		var want struct {
			Version string          `json:"jsonrpc"`
			Method  string          `json:"method"`
			ID      json.RawMessage `json:"id"`
			Params  json.RawMessage `json:"params"`
			Result  json.RawMessage `json:"result"`
			Error   json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(raw, &want); err != nil || !valid {
			t.Fatalf("accepted, but: %v", err)
		}
		if want.Version != "2.0" || want.Method != frame.Method || !bytes.Equal(want.ID, frame.ID()) ||
			!bytes.Equal(want.Params, frame.Params()) || !bytes.Equal(want.Result, frame.Result()) || !bytes.Equal(want.Error, frame.ErrorValue()) {
			t.Fatalf("got %+v, want %+v", frame, want)
		}
	})
}

// W4: parse, splice an id, splice it back: the bytes are the same.
func FuzzSplice(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s), []byte(`"r-1"`))
	}
	f.Fuzz(func(t *testing.T, raw, id []byte) {
		frame, err := Parse(raw)
		if err != nil || !frame.IDSpan.Present() || !isID(id) || Valid(id) != nil || !bytes.Equal(id, trim(id)) {
			return
		}
		original := bytes.Clone(frame.Raw)
		changed, err := Parse(Splice(nil, frame.Raw, Edit{frame.IDSpan, id}))
		if err != nil || !bytes.Equal(changed.ID(), id) || changed.Kind != frame.Kind || changed.Method != frame.Method {
			t.Fatalf("with another id: %s, %v", changed.Raw, err)
		}
		if back := Splice(nil, changed.Raw, Edit{changed.IDSpan, frame.ID()}); !bytes.Equal(back, original) {
			t.Fatalf("got %s, want %s", back, original)
		}
	})
}

// W2: if Routing accepts params, then a reader that folds case and takes the last of
// duplicates finds the very same values.
func FuzzRouting(f *testing.F) {
	for _, s := range seeds {
		if frame, err := Parse([]byte(s)); err == nil && frame.ParamsSpan.Present() {
			f.Add(frame.Params())
		}
	}
	f.Fuzz(func(t *testing.T, params []byte) {
		frame, err := Parse(NewRequest([]byte(`1`), ToolsCall, params))
		if err != nil {
			return
		}
		r, err := frame.Routing()
		if err != nil || !r.Name.Present() && frame.Params()[0] == '[' {
			return
		}
		var want struct {
			Name      json.RawMessage `json:"name"`
			URI       json.RawMessage `json:"uri"`
			Meta      json.RawMessage `json:"_meta"`
			Arguments json.RawMessage `json:"arguments"`
			RequestID json.RawMessage `json:"requestId"`
			Level     json.RawMessage `json:"level"`
			Cursor    json.RawMessage `json:"cursor"`
			Ref       json.RawMessage `json:"ref"`
			Of        json.RawMessage `json:"progressToken"`
		}
		if err := json.Unmarshal(frame.Params(), &want); err != nil {
			t.Fatal(err)
		}
		same := func(span Span, value json.RawMessage) {
			if !bytes.Equal(span.Of(frame.Raw), value) {
				t.Fatalf("got %s, want %s", span.Of(frame.Raw), value)
			}
		}
		same(r.Name, want.Name)
		same(r.URI, want.URI)
		same(r.Meta, want.Meta)
		same(r.Arguments, want.Arguments)
		same(r.RequestID, want.RequestID)
		same(r.Level, want.Level)
		same(r.Cursor, want.Cursor)
		same(r.Ref, want.Ref)
		same(r.ProgressOf, want.Of)
		if len(want.Meta) == 0 || want.Meta[0] != '{' {
			return
		}
		var meta struct {
			Token   json.RawMessage `json:"progressToken"`
			Session json.RawMessage `json:"roundhouse/session"`
			Version json.RawMessage `json:"io.modelcontextprotocol/protocolVersion"`
		}
		if err := json.Unmarshal(want.Meta, &meta); err != nil {
			t.Fatal(err)
		}
		same(r.ProgressToken, meta.Token)
		same(r.Session, meta.Session)
		same(r.ProtocolVersion, meta.Version)
		if r.Session.Present() {
			rest, err := Parse(Splice(nil, frame.Raw, Edit{At: r.SessionMember}))
			if err != nil {
				t.Fatalf("without the session: %v", err)
			}
			if again, err := rest.Routing(); err != nil || again.Session.Present() || !bytes.Equal(again.ProgressToken.Of(rest.Raw), meta.Token) {
				t.Fatalf("without the session: %s, %v", rest.Raw, err)
			}
		}
	})
}

// P7: the scanner finds what Parse finds, in pieces of any size.
func FuzzIDScanner(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, raw []byte, size uint8) {
		s := scanInPieces(raw, int(size)+1)
		whole := scanInPieces(raw, len(raw)+1)
		if s.Kind() != whole.Kind() || !bytes.Equal(s.ID(), whole.ID()) {
			t.Fatalf("in pieces: %s %s, whole: %s %s", s.Kind(), s.ID(), whole.Kind(), whole.ID())
		}
		if id := s.ID(); id != nil && (!isID(id) || Valid(id) != nil) {
			t.Fatalf("the id is %s", id)
		}
		frame, err := Parse(raw)
		if err != nil {
			return
		}
		if s.Kind() != frame.Kind {
			t.Fatalf("got %s, want %s", s.Kind(), frame.Kind)
		}
		if id := frame.ID(); isID(id) && len(id) <= maxScannedID && !bytes.Equal(s.ID(), id) {
			t.Fatalf("got %s, want %s", s.ID(), id)
		}
	})
}

// Text decodes as encoding/json does, and Quote undoes it.
func FuzzText(f *testing.F) {
	for _, s := range []string{`"a\u00e9\ud83d\ude00"`, `"\ud800"`, `"\"\\\/\b\f\n\r\t"`, "\"\xff\"", `"日本`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, literal []byte) {
		got, err := Text(literal)
		if err != nil {
			return
		}
		var want string
		if err := json.Unmarshal(literal, &want); err != nil || got != want {
			t.Fatalf("got %q, want %q, %v", got, want, err)
		}
		if again, err := Text(Quote(got)); err != nil || again != got {
			t.Fatalf("quoted: %q, %v", again, err)
		}
	})
}

// Members and Elements find what encoding/json finds, and any member can be cut.
func FuzzMembers(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, obj []byte) {
		if !utf8.Valid(obj) {
			return
		}
		last := map[string]json.RawMessage{}
		for m, err := range Members(obj) {
			if err != nil {
				if Valid(obj) == nil && trim(obj)[0] == '{' {
					t.Fatal(err)
				}
				return
			}
			last[m.Key] = m.Value.Of(obj)
			if Valid(obj) == nil {
				if err := Valid(Splice(nil, obj, Edit{At: CutMember(obj, m)})); err != nil {
					t.Fatalf("without %s: %v", m.Key, err)
				}
			}
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(obj, &want); err != nil {
			t.Fatal(err)
		}
		if len(want) != len(last) {
			t.Fatalf("got %q, want %q", last, want)
		}
		for key, value := range want {
			if !bytes.Equal(last[key], value) {
				t.Fatalf("%s: got %s, want %s", key, last[key], value)
			}
		}
	})
}
