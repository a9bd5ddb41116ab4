package gateway

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// H4: each answer that is late is noticed once, at its time, whatever came and went
// before it; one that came in time is not.
func TestPatienceNoticesWhatIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := patience{limit: 15 * time.Second}
		begun := time.Now()
		var mu sync.Mutex        // the timer has a goroutine for each time it fires
		var late []time.Duration // since begun
		var waits [4]wait
		notice := func() {
			mu.Lock()
			defer mu.Unlock()
			late = append(late, time.Since(begun))
		}
		for i := range waits { // at 0, 1, 2 and 3 s
			p.begin(&waits[i], notice)
			time.Sleep(time.Second)
		}
		p.end(&waits[0]) // the first
		p.end(&waits[2]) // in between
		p.end(&waits[2])
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if want := []time.Duration{16 * time.Second, 18 * time.Second}; !slices.Equal(late, want) {
			t.Errorf("noticed after %v, want %v", late, want)
		}
		p.end(&waits[1]) // it was late
		late = nil
		p.begin(&waits[0], notice) // after a rest
		p.begin(&waits[1], notice)
		p.end(&waits[1]) // the last
		p.begin(&waits[1], notice)
		time.Sleep(16 * time.Second)
		synctest.Wait()
		if want := 49 * time.Second; !slices.Equal(late, []time.Duration{want, want}) {
			t.Errorf("noticed after %v, want twice %v", late, want)
		}
		if p.first != nil || p.last != nil || p.armed {
			t.Error("something is left")
		}
	})
}
