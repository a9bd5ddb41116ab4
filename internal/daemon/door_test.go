package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// H8: a daemon that was started for shims ends when it was idle for as long as it was
// told, counted from when it was last busy.
func TestAwaitIdle(t *testing.T) {
	const after = 30 * time.Minute
	for name, busyFor := range map[string]time.Duration{"never busy": 0, "busy for a while": 47 * time.Minute, "busy for days": 50 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			awaitIdle(t.Context(), after, func() bool { return time.Since(begun) < busyFor })
			if idle := time.Since(begun) - busyFor; idle < after-after/10 || idle > after+after/10 {
				t.Errorf("%s: it ended when it was idle for %s", name, idle)
			}
		})
	}
}

func TestAwaitIdleEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begun := time.Now()
		awaitIdle(ctx, time.Minute, func() bool { return true })
		if took := time.Since(begun); took != time.Hour {
			t.Errorf("it ended after %s", took)
		}
	})
}
