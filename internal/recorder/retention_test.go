package recorder_test

import (
	"context"
	"testing"
	"time"

	"roundhouse/internal/config"
)

// C15: sessions that have been idle are closed, and go when their time is over.
func TestRetention(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) { cfg.Record.Retention.Age = time.Nanosecond })
	w.answers(saysJSON(200, chatAnswer))
	w.post("/v1/chat/completions", chatAsk)
	w.one("s1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.models.Tidy(ctx, time.Nanosecond)
	}()
	for end := time.Now().Add(20 * time.Second); len(calls(t, w)) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing is removed")
		}
	}
	cancel()
	<-done
}
