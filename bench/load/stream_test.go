package load

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const (
	streamToken = `data: {"choices":[{"delta":{"content":"x"}}]}` + "\n\n"
	streamDone  = "data: [DONE]\n\n"
)

// serveStream answers with an event stream.
func serveStream(t *testing.T, body string, answered func()) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, body)
		answered()
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestStreamsAreReadOneAfterTheOther(t *testing.T) {
	var streams atomic.Int64
	enough := make(chan struct{})
	addr := serveStream(t, strings.Repeat(streamToken, 3)+streamDone, func() {
		if streams.Add(1) == 20 {
			close(enough)
		}
	})
	s := StartStreams(t.Context(), StreamPlan{Addr: addr, Clients: 2, Tokens: 3, Pause: time.Millisecond})
	<-enough
	r, err := s.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(r.First)) != streams.Load() || len(r.End) != len(r.First) || s.Tokens() != 3*streams.Load() {
		t.Errorf("%d first tokens, %d ends, %d tokens of %d streams", len(r.First), len(r.End), s.Tokens(), streams.Load())
	}
}

func TestStreamsThatAreNotWholeEndTheRun(t *testing.T) {
	for name, body := range map[string]string{"a token is missing": streamToken + streamDone, "the end is missing": streamToken + streamToken} {
		s := StartStreams(t.Context(), StreamPlan{Addr: serveStream(t, body, func() {}), Clients: 1, Tokens: 2})
		if err := s.Wait(30 * time.Second); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := s.Stop(); err == nil || !strings.Contains(err.Error(), "a stream ended") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
