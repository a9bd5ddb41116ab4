package wire

import (
	"bytes"
	"fmt"
	"testing"
)

// toolResult returns a response of about size bytes with one text in it.
func toolResult(size int) []byte {
	text := bytes.Repeat([]byte(`All work and no play makes a line of text. \n`), size/45+1)[:max(size-90, 0)/45*45]
	return Result([]byte(`12`), fmt.Appendf(nil, `{"content":[{"type":"text","text":"%s"}],"isError":false}`, text))
}

func BenchmarkParse(b *testing.B) {
	for _, size := range []int{100, 16 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			raw := toolResult(size)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("structured16384", func(b *testing.B) {
		tool := []byte(`{"name":"read_file","description":"Reads a file.","inputSchema":{"type":"object","properties":{"path":{"type":"string"},"limit":{"type":"integer","minimum":1}},"required":["path"]}},`)
		list := bytes.TrimSuffix(bytes.Repeat(tool, 16<<10/len(tool)), []byte(","))
		raw := Result([]byte(`12`), fmt.Appendf(nil, `{"tools":[%s]}`, list))
		b.SetBytes(int64(len(raw)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Parse(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkParseAndRouting(b *testing.B) {
	raw := NewRequest([]byte(`12`), ToolsCall, []byte(`{"name":"read_file","arguments":{"path":"/srv/x"},"_meta":{"progressToken":7}}`))
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		f, err := Parse(raw)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := f.Routing(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIDScanner(b *testing.B) {
	raw := toolResult(1 << 20)
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		var s IDScanner
		s.Write(raw)
	}
}
