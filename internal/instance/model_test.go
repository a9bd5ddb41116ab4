package instance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
)

// I1, I2, I3: whatever happens in whatever order, no more instances live than may, no two
// sessions have one, and nobody waits for what is free. The world counts what lives.
func TestRandomUseKeepsTheBounds(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, func(w *world) { randomUse(w, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func randomUse(w *world, r *rand.Rand) {
	w.lingers = time.Duration(r.IntN(3)) * time.Second
	kinds := []config.OnRelease{config.ReleaseDestroy, config.ReleaseReset, config.ReleaseKeep}
	s := w.server("browser", 1+r.IntN(4), func(i *config.Instances) {
		i.Min, i.OnRelease, i.MaxUses = r.IntN(3), kinds[r.IntN(3)], r.IntN(4)
		i.Reset, i.Probe = config.ToolCall{Tool: "reset"}, config.ToolCall{Tool: "probe"}
		i.MaxWait = time.Duration(1+r.IntN(60)) * time.Second
		i.MaxLifetime = time.Duration(r.IntN(3)) * 20 * time.Second
	})
	var mu sync.Mutex
	held := map[*Lease]string{}
	has := map[int]string{} // number of a unit → who has it
	var cancels []context.CancelFunc
	var wg sync.WaitGroup
	take := func(n int) {
		ctx, cancel := context.WithCancel(w.Context())
		cancels = append(cancels, cancel)
		who := fmt.Sprint("s", n)
		wg.Go(func() {
			l, err := w.pools.Acquire(ctx, s, Borrower{fmt.Sprint("p", n%2), who})
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if other := has[l.number()]; other != "" {
				w.Errorf("%s and %s have the same instance", other, who)
			}
			has[l.number()], held[l] = who, who
		})
	}
	release := func() {
		mu.Lock()
		defer mu.Unlock()
		for l := range held {
			delete(held, l)
			delete(has, l.number())
			l.Release()
			return
		}
	}
	for n := range 200 {
		switch r.IntN(9) {
		case 0, 1, 2:
			take(n)
		case 3, 4:
			release()
		case 5:
			if len(cancels) > 0 {
				cancels[r.IntN(len(cancels))]()
			}
		case 6: // some unit dies, is stopped, or is well
			w.mu.Lock()
			units := w.units
			w.mu.Unlock()
			if len(units) > 0 {
				u := units[max(0, len(units)-1-r.IntN(4))]
				if r.IntN(2) == 0 {
					u.die(r.IntN(2) == 0)
				} else {
					u.mu.Lock()
					u.frozen = !u.frozen
					u.mu.Unlock()
				}
			}
		case 7:
			w.set(func() {
				w.refuse, w.took["browser"] = nil, time.Duration(r.IntN(4))*time.Second
				clear(w.cannot)
				switch r.IntN(5) {
				case 0:
					w.refuse = errGone
				case 1:
					w.cannot["reset"] = errGone
				}
			})
		case 8:
			time.Sleep(time.Duration(r.IntN(8000)) * time.Millisecond)
		}
		if r.IntN(2) == 0 {
			synctest.Wait()
			i := w.pools.Snapshot("", true)[0]
			if i.Starting+i.Warm+i.Leased > i.Max {
				w.Fatalf("%+v", i)
			}
		}
	}
	// When all is well again and everybody gives back, whoever still waits is served.
	w.set(func() { w.refuse = nil; clear(w.cannot) })
	for range 400 {
		release()
		time.Sleep(time.Second)
	}
	wg.Wait()
	if i := w.pools.Snapshot("", true)[0]; len(i.Waiting) > 0 {
		w.Errorf("somebody waits for ever: %+v", i)
	}
	for _, cancel := range cancels {
		cancel()
	}
}
