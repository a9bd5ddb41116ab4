package upstream

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"roundhouse/internal/wire"
)

// BenchmarkHTTPCall makes calls over loopback, one at a time; the server's part counts
// too. The last case is net/http alone, with the same server, for comparison.
func BenchmarkHTTPCall(b *testing.B) {
	kind := ""
	text := `{"jsonrpc":"2.0","id":1,"result":{"x":"` + strings.Repeat("x", 200) + `"}}`
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", kind)
		if kind == typeStream {
			io.WriteString(w, "event: message\ndata: ")
		}
		io.WriteString(w, text)
		io.WriteString(w, "\n\n")
	}))
	defer web.Close()
	call := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{}}}`)
	for _, kind = range []string{typeJSON, typeStream} {
		b.Run(kind, func(b *testing.B) {
			h, err := NewHTTP(HTTPConfig{URL: web.URL})
			if err != nil {
				b.Fatal(err)
			}
			answers := make(counter)
			ended := make(chan error, 1)
			go func() { ended <- h.Run(answers) }()
			b.ReportAllocs()
			for b.Loop() {
				m := &Message{Bytes: call, ID: []byte("1"), Method: wire.ToolsCall}
				if err := h.Send(context.Background(), m); err != nil {
					b.Fatal(err)
				}
				<-answers
			}
			h.Abort(errTest)
			<-ended
			h.Close(context.Background())
		})
	}
	b.Run("net/http alone", func(b *testing.B) {
		kind = typeJSON
		b.ReportAllocs()
		for b.Loop() {
			res, err := http.Post(web.URL, typeJSON, strings.NewReader(string(call)))
			if err != nil {
				b.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	})
}
