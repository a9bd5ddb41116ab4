package upstream

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// Case 4, R2: an answer in JSON of which a part has come when another call finds the
// session lost is read to its end; a stream is not waited for.
func TestAnAnswerThatHasBegunOutlivesTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		slow := func(kind string, takes time.Duration) func(http.ResponseWriter, *http.Request, string) {
			return func(w http.ResponseWriter, r *http.Request, id string) {
				w.Header().Set("Content-Type", kind)
				w.(http.Flusher).Flush()
				select {
				case <-time.After(takes):
					_, _ = io.WriteString(w, result(id))
				case <-r.Context().Done():
				}
			}
		}
		f.handle("json", slow(typeJSON, settleWait/2))
		f.handle("stream", slow(typeStream, time.Hour))
		f.handle("lost", func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(http.StatusNotFound) })
		r := f.start(t)
		r.shake()
		r.call("1", "json")
		r.call("2", "stream")
		synctest.Wait()
		begun := time.Now()
		lost := r.call("3", "lost")
		if err := r.failure(); !errors.Is(err, ErrSessionLost) || lost.Sent() {
			t.Errorf("the call failed with %v", err)
		}
		if err := r.end(); !errors.Is(err, ErrSessionLost) {
			t.Errorf("the link ended with %v", err)
		}
		if took := time.Since(begun); took != settleWait/2 {
			t.Errorf("it took %s", took)
		}
		r.wants("frame of 1: " + result("1"))
	})
}
