package front_test

import (
	"net/http"
	"testing"

	"roundhouse/internal/config"
	"roundhouse/internal/front"
	"roundhouse/internal/secret"
)

// sink is a ResponseWriter that costs nothing itself.
type sink struct{ header http.Header }

func (s sink) Header() http.Header         { return s.header }
func (s sink) WriteHeader(int)             {}
func (s sink) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkServeHTTP is what the door adds to a request; "mux alone" is what
// net/http's routing costs without it.
func BenchmarkServeHTTP(b *testing.B) {
	none := func(http.ResponseWriter, *http.Request, front.Caller) {}
	door := func(cfg front.Config) http.Handler {
		f, err := front.New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		f.Handle("/mcp", none)
		f.Handle("/mcp/{server}", none)
		return f
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/mcp/{server}", func(http.ResponseWriter, *http.Request) {})
	var many []config.Token
	for i := range 50 {
		many = append(many, config.Token{Principal: "p", Token: secret.New("token-" + string(rune('A'+i)))})
	}
	public := front.Config{PublicNames: []string{"box.example"}, Tokens: twoTokens}
	auth := []string{"Authorization", "Bearer " + aliceToken}
	for _, c := range []struct {
		name   string
		h      http.Handler
		path   string
		header []string
	}{
		{"mux alone", mux, "/mcp", nil},
		{"mux alone, wildcard", mux, "/mcp/files", nil},
		{"no tokens", door(front.Config{}), "/mcp", nil},
		{"no tokens, wildcard", door(front.Config{}), "/mcp/files", nil},
		{"2 tokens", door(front.Config{Tokens: twoTokens}), "/mcp", auth},
		{"50 tokens", door(front.Config{Tokens: many}), "/mcp", []string{"Authorization", "Bearer token-A"}},
		{"public name, 2 tokens", door(public), "/mcp", append(auth, "Host", "box.example:443")},
		{"page, no tokens", door(front.Config{}), "/mcp", []string{"Origin", "http://localhost:7420", "Sec-Fetch-Site", "cross-site"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := request("POST "+c.path, c.header...)
			token := r.Header["Authorization"]
			w := sink{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				if token != nil {
					r.Header["Authorization"] = token // the door takes it out
				}
				c.h.ServeHTTP(w, r)
			}
		})
	}
}
