package fidelity

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait for something that must happen; the machine may be busy.
const patience = time.Minute

// A client speaks Streamable HTTP, as bytes.
type client struct {
	t       *testing.T
	url     string
	name    string // of its session
	session string // of the protocol, once it is initialized
}

const hello = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"sampling":{},"elicitation":{},"roots":{}},"clientInfo":{"name":"c","version":"1"}}}`

// connect makes a client and returns the result of its initialize, too.
func connect(t *testing.T, url, name string) (*client, string) {
	t.Helper()
	c := &client{t: t, url: url, name: name}
	res, err := c.do(http.MethodPost, hello)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	result, ok := strings.CutPrefix(string(body), `{"jsonrpc":"2.0","id":"hello","result":`)
	if c.session = res.Header.Get("Mcp-Session-Id"); c.session == "" || err != nil || !ok {
		t.Fatalf("%s: %d: %v: %s", url, res.StatusCode, err, body)
	}
	if frame, ok := next(t, c.send(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`), "the end of nothing"); ok {
		t.Fatalf("initialized brought %s", frame)
	}
	return c, strings.TrimSuffix(result, "}")
}

func (c *client) do(method, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(c.t.Context(), method, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodGet {
		r.Header.Set("Accept", "text/event-stream")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Session-Id", c.name)
	if c.session != "" {
		r.Header.Set("Mcp-Session-Id", c.session)
		r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	return http.DefaultClient.Do(r)
}

// send makes a request of HTTP and returns the frames that come back. The channel
// closes with the end of the answer.
func (c *client) send(method, body string) <-chan string {
	frames := make(chan string)
	go func() { // ends with the answer, or the test
		defer close(frames)
		res, err := c.do(method, body)
		if err != nil {
			if c.t.Context().Err() == nil {
				c.t.Errorf("%s %s: %v", method, c.url, err)
			}
			return
		}
		defer res.Body.Close()
		give := func(frame string) {
			select {
			case frames <- frame:
			case <-c.t.Context().Done():
			}
		}
		if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
			body, _ := io.ReadAll(res.Body) // what is cut off does not match
			if len(body) > 0 {
				give(string(body))
			}
			return
		}
		var data []string
		lines := bufio.NewReader(res.Body)
		for {
			line, err := lines.ReadString('\n')
			line = strings.TrimRight(line, "\r\n")
			if text, ok := strings.CutPrefix(line, "data:"); ok {
				data = append(data, strings.TrimPrefix(text, " "))
			}
			if frame := strings.Join(data, "\n"); line == "" && err == nil {
				data = nil
				if frame != "" {
					give(frame)
				}
			}
			if err != nil {
				return
			}
		}
	}()
	return frames
}

// next returns the next of what has to come; ok is false at the end.
func next[T any](t *testing.T, from <-chan T, what string) (v T, ok bool) {
	t.Helper()
	select {
	case v, ok = <-from:
		return v, ok
	case <-time.After(patience):
		t.Fatalf("%s did not come within %s", what, patience)
		return v, false
	}
}
