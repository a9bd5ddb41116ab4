package mux

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"roundhouse/internal/wire"
)

// discard is an outlet of which only the number of answers matters.
type discard struct{ done int }

func (d *discard) Note(Pieces) {}
func (d *discard) Done(Pieces) { d.done++ }

// silent is a peer that is never told anything.
type silent struct{ _ byte }

func (*silent) Notify(Pieces)    {}
func (*silent) Ask(*Ask, Outlet) {}
func (*silent) Unask(*Ask)       {}

// BenchmarkCall is one request and its answer on their way through the mux alone;
// parsing is measured in wire. The answer is as large as the request.
func BenchmarkCall(b *testing.B) {
	for _, size := range []int{16, 16 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			text := strings.Repeat("x", size)
			f, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + text + `"},"_meta":{"progressToken":7}}}`))
			if err != nil {
				b.Fatal(err)
			}
			r, err := f.Routing()
			if err != nil {
				b.Fatal(err)
			}
			answer := []byte(`{"jsonrpc":"2.0","result":{"text":"` + text + `"},"id":`)
			start := len(answer)

			m := New(Config{Post: func([]byte) {}, Server: "echo", Metrics: NewMetrics()})
			var p silent
			var out discard
			b.SetBytes(int64(2 * size))
			b.ReportAllocs()
			for b.Loop() {
				c, err := m.Begin(&p, f, r, &out)
				if err != nil {
					b.Fatal(err)
				}
				answer = strconv.AppendUint(answer[:start], c.id, 10)
				id := wire.Span{Start: start, End: len(answer)}
				answer = append(answer, '}')
				m.Receive(wire.Frame{Raw: answer, Kind: wire.Response, IDSpan: id, ResultSpan: wire.Span{Start: 26, End: start - 6}}, nil)
			}
			if out.done != b.N {
				b.Fatalf("%d answers for %d calls", out.done, b.N)
			}
		})
	}
}
