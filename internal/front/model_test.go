package front_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"roundhouse/internal/front"
)

// C14: a model API's clients may send their token as X-Api-Key, and it reaches no face;
// what is another key does. Bodies are the handler's to limit.
func TestModelRoutes(t *testing.T) {
	f, err := front.New(front.Config{Tokens: twoTokens, MaxBody: 4})
	if err != nil {
		t.Fatal(err)
	}
	f.HandleModel("/v1/", func(w http.ResponseWriter, r *http.Request, c front.Caller) {
		body, _ := io.ReadAll(r.Body)
		io.WriteString(w, c.Principal+" "+r.Header.Get("Authorization")+" "+r.Header.Get("X-Api-Key")+" "+string(body))
	})
	for _, c := range []struct {
		header []string
		want   string // "" is refused
	}{
		{[]string{"X-Api-Key", aliceToken}, "alice   a long body"},
		{[]string{"Authorization", "Bearer " + aliceToken}, "alice   a long body"},
		{[]string{"Authorization", "Bearer " + aliceToken, "X-Api-Key", "sk-upstream"}, "alice  sk-upstream a long body"},
		{[]string{"Authorization", "Bearer " + aliceToken, "X-Api-Key", aliceToken}, "alice   a long body"},
		{[]string{"X-Api-Key", "sk-upstream"}, ""},
		{[]string{"Authorization", "Bearer sk-upstream", "X-Api-Key", aliceToken}, ""},
		{[]string{"X-Api-Key", aliceToken, "X-Api-Key", aliceToken}, ""},
		{nil, ""},
	} {
		r := request("POST /v1/messages", c.header...)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader("a long body")), 11
		res := serve(f, r)
		body, _ := io.ReadAll(res.Body)
		if c.want != "" && string(body) != c.want || c.want == "" && res.StatusCode != 401 {
			t.Errorf("%q: %d %q, want %q", c.header, res.StatusCode, body, c.want)
		}
	}
}
