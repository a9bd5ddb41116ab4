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

// I1, I2, I3, I4, I6: whatever happens in whatever order, no more instances live than may, no
// two sessions have one, who came first is served first, who gave up is in nobody's way, and
// nobody waits for what is free. The world counts what lives. Every fourth time a hundred wait
// for five.
func TestRandomUseKeepsTheBounds(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, func(w *world) {
				r := rand.New(rand.NewPCG(seed, 1))
				if seed%4 == 0 {
					randomUse(w, r, 5, time.Hour, 100)
				} else {
					randomUse(w, r, 1+r.IntN(4), time.Duration(1+r.IntN(60))*time.Second, 0)
				}
			})
		})
	}
}

// crowd is who asks for instances, numbered in the order in which they came.
type crowd struct {
	w *world

	mu      sync.Mutex
	held    map[*Lease]int // who has it
	has     map[int]int    // the number of a unit → who has it
	cancels []context.CancelFunc
	gaveUp  map[string]bool // by name
	wg      sync.WaitGroup
}

func name(n int) string { return fmt.Sprint("s", n) }

// take lets the next one ask, and returns when he waits or has an instance.
func (c *crowd) take(s *config.Server) {
	ctx, cancel := context.WithCancel(c.w.Context())
	n := len(c.cancels)
	c.cancels = append(c.cancels, cancel)
	c.wg.Go(func() {
		l, err := c.w.pools.Acquire(ctx, s, Borrower{fmt.Sprint("p", n%2), name(n)})
		if err != nil {
			return
		}
		c.served(n, l)
	})
	synctest.Wait()
}

// handed checks, with Pools.mu held, that nobody who came before waits any more when an
// instance is reserved for somebody. (He may wait again when that one has it: if the one
// that was reserved for him is dead.)
func (c *crowd) handed(server, session string) {
	var n int
	if _, err := fmt.Sscanf(session, "s%d", &n); err != nil {
		c.w.Errorf("an instance is reserved for %q: %v", session, err)
	}
	for _, x := range c.w.pools.servers[server].waiters {
		var before int
		if _, err := fmt.Sscanf(x.Session, "s%d", &before); err != nil || before < n {
			c.w.Errorf("%s gets an instance before %s (%v)", session, x.Session, err)
		}
	}
}

// served checks that nobody else has the instance.
func (c *crowd) served(n int, l *Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other, taken := c.has[l.number()]; taken {
		c.w.Errorf("%s and %s have the same instance", name(other), name(n))
	}
	c.has[l.number()], c.held[l] = n, n
}

func (c *crowd) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.held {
		delete(c.held, l)
		delete(c.has, l.number())
		l.Release()
		return
	}
}

// giveUp lets somebody lose interest, who waits no more at once.
func (c *crowd) giveUp(n int) {
	c.cancels[n]()
	c.gaveUp[name(n)] = true
	synctest.Wait()
}

// check looks at the pool while nothing happens.
func (c *crowd) check() {
	synctest.Wait()
	c.w.pools.mu.Lock()
	defer c.w.pools.mu.Unlock()
	v := c.w.pools.servers["browser"]
	if n := v.count(Starting, Warm, Leased); n > v.most() || len(v.all) > v.most() {
		c.w.Fatalf("%d of %d start, are warm or lent; %d live", n, v.most(), len(v.all))
	}
	for _, x := range v.waiters {
		if c.gaveUp[x.Session] {
			c.w.Errorf("%s waits, but has given up", x.Session)
		}
	}
	if len(v.waiters) == 0 {
		return
	}
	if in := v.pickLocked(v.waiters[0]); in != nil {
		c.w.Errorf("%s waits, while %s is free", v.waiters[0].Session, in.id)
	}
	free := c.w.pools.placesLocked(v)
	if len(free) > 0 && (v.pause == nil || v.promisesLocked(free[0])) && v.count(Starting) < len(v.waiters) {
		c.w.Errorf("%s waits, and nothing is started for him", v.waiters[0].Session)
	}
}

// randomUse does this and that. No two things happen at the same time, unless one follows
// from the other, so that it is clear who was first.
func randomUse(w *world, r *rand.Rand, most int, maxWait time.Duration, atOnce int) {
	w.lingers, w.jitter = time.Duration(r.IntN(3))*time.Second, rand.New(rand.NewPCG(r.Uint64(), 1))
	kinds := []config.OnRelease{config.ReleaseDestroy, config.ReleaseReset, config.ReleaseKeep}
	var urls []string // every third time
	for n := range (most + r.IntN(2)) * (r.IntN(3) / 2) {
		urls = append(urls, fmt.Sprint("http://", n))
	}
	s := w.server("browser", most, func(i *config.Instances) {
		i.Endpoints = fleet(urls...)
		i.Min, i.OnRelease, i.MaxUses = r.IntN(3), kinds[r.IntN(3)], r.IntN(4)
		i.Reset, i.Probe = config.ToolCall{Tool: "reset"}, config.ToolCall{Tool: "probe"}
		i.MaxWait = maxWait
		i.MaxLifetime = time.Duration(r.IntN(3)) * 20 * time.Second
	})
	c := &crowd{w: w, held: map[*Lease]int{}, has: map[int]int{}, gaveUp: map[string]bool{}}
	w.pools.mu.Lock()
	w.handed = c.handed
	w.pools.mu.Unlock()
	for range atOnce {
		c.take(s)
	}
	for range 200 {
		switch r.IntN(9) {
		case 0, 1, 2:
			c.take(s)
		case 3, 4:
			c.release()
		case 5:
			if len(c.cancels) > 0 {
				c.giveUp(r.IntN(len(c.cancels)))
			}
		case 6: // some unit dies, is stopped, or is well
			w.mu.Lock()
			units := w.units
			w.mu.Unlock()
			if len(units) > 0 {
				u := units[max(0, len(units)-1-r.IntN(5))]
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
				for _, u := range urls {
					w.down[u] = r.IntN(3) == 0
				}
			})
		case 8:
			time.Sleep(time.Duration(r.Int64N(int64(8 * time.Second))))
		}
		synctest.Wait()
		if r.IntN(2) == 0 {
			c.check()
		}
	}
	// When all is well again and everybody gives back, whoever still waits is served.
	w.set(func() { w.refuse = nil; clear(w.cannot); clear(w.down) })
	for range 400 {
		c.release()
		time.Sleep(time.Second)
		c.check()
	}
	c.wg.Wait()
	if i := w.pools.Snapshot("", true)[0]; len(i.Waiting) > 0 {
		w.Errorf("somebody waits for ever: %+v", i)
	}
	for _, cancel := range c.cancels {
		cancel()
	}
}
