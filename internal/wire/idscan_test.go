package wire

import (
	"bytes"
	"strings"
	"testing"
)

func scanInPieces(raw []byte, size int) *IDScanner {
	var s IDScanner
	for len(raw) > 0 {
		n := min(size, len(raw))
		s.Write(raw[:n])
		raw = raw[n:]
	}
	return &s
}

// P7: servers may write the result before the id.
func TestIDScannerFindsTheIDWhereverItStands(t *testing.T) {
	big := `{"id":2,"text":"` + strings.Repeat(`\"}],{"id":3,\\`, 1000) + `","jsonrpc":"1.0","a":[{"method":"x"}]}`
	for _, c := range []struct {
		raw  string
		kind Kind
		id   string
	}{
		{`{"jsonrpc":"2.0","id":1,"result":` + big + `}`, Response, `1`},
		{`{"jsonrpc":"2.0","result":` + big + `,"id":1}`, Response, `1`},
		{`{"result":` + big + `, "jsonrpc" : "2.0" , "id" : "a\"},b" }` + "\r", Response, `"a\"},b"`},
		{`{"error":` + big + `,"id":1.0,"jsonrpc":"2.0"}`, Response, `1.0`},
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + big + `}`, Request, `1`},
		{`{"jsonrpc":"2.0","params":` + big + `,"method":"x"}`, Notification, ``},
		{`{"jsonrpc":"2.0","id":1,"result":"it never ends`, Response, `1`},
		{`{"jsonrpc":"2.0","id":null,"error":` + big + `}`, Response, ``},
		{`{"jsonrpc":"2.0","id":{"id":1},"error":` + big + `}`, Response, ``},
		{`{"jsonrpc":"2.0","id":tru,"error":{}}`, Response, ``},
		{`{"jsonrpc":"2.0","id":1,"id":1,"result":1}`, Response, ``},
		{`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 254) + `","result":1}`, Response, `"` + strings.Repeat("x", 254) + `"`},
		{`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 255) + `","result":1}`, Response, ``},
		{`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 255) + `","method":"a"}`, Request, ``},
		{`{"` + strings.Repeat("k", 1000) + `":1,"jsonrpc":"2.0","id":1,"result":1}`, Response, `1`},
		{`{"level":"info","id":1,"result":` + big + `}`, Invalid, `1`},
		{`{"jsonrpc":"2.0","id":1,"result":1,"error":1}`, Response, `1`}, // no frame, but its call must not wait for ever
		{`{"jsonrpc":"2.0","id":1,"error":1,"error":1}`, Response, `1`},
		{`{"jsonrpc":"2.0","id":1,"result":1,"method":"a"}`, Invalid, `1`},
		{`{"jsonrpc":"2.0","id":1}`, Invalid, `1`},
		{`[{"jsonrpc":"2.0","id":1,"result":1}]`, Invalid, ``},
		{`banner {"jsonrpc":"2.0","id":1,"result":1}`, Invalid, ``},
		{`{"jsonrpc":"2.0","id":1,"result":1} {"id":2}`, Response, `1`},
		{``, Invalid, ``},
	} {
		for _, size := range []int{1, 2, 7, 64 << 10} {
			s := scanInPieces([]byte(c.raw), size)
			if s.Kind() != c.kind || string(s.ID()) != c.id {
				t.Errorf("%.60s in pieces of %d: %s with the id %s", c.raw, size, s.Kind(), s.ID())
			}
		}
	}
}

// P7: memory stays bounded however long the line is.
func TestIDScannerKeepsLittle(t *testing.T) {
	piece := bytes.Repeat([]byte(`"x":[1,{"a":"b"}],`), 1000)
	var s IDScanner
	s.Write([]byte(`{"id":12,`))
	s.Write(piece)
	if n := testing.AllocsPerRun(10, func() { s.Write(piece) }); n != 0 {
		t.Errorf("%v allocations per piece", n)
	}
	s.Write([]byte(`"` + strings.Repeat("long", 1<<20)))
	if cap(s.text) > 2*maxScannedID {
		t.Errorf("%d bytes are kept", cap(s.text))
	}
	if string(s.ID()) != "12" {
		t.Errorf("the id is %s", s.ID())
	}
}
