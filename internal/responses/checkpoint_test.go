package responses

import (
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/loop"
)

// B.6: what a response in the background has done is stored each second, but less often where
// storing takes long, as it does when very much has been told.
func TestCheckpointsTakeLittleOfTheTime(t *testing.T) {
	for takes, wanted := range map[time.Duration]int{0: 100, time.Second: 5} {
		synctest.Test(t, func(t *testing.T) {
			r := newRun(&request{background: true}, &loop.Task{}, nil)
			stored := 0
			r.keep = func([]byte, []entry, bool) error {
				time.Sleep(takes)
				stored++
				return nil
			}
			for began := time.Now(); time.Since(began) < 100*time.Second; time.Sleep(100 * time.Millisecond) {
				r.checkpoint()
			}
			if stored != wanted {
				t.Errorf("storing takes %s: stored %d times, want %d", takes, stored, wanted)
			}
		})
	}
}
