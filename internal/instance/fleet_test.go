package instance

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// at returns the endpoint of a lease.
func (l *Lease) at() string { return l.in.unit.(*fakeUnit).endpoint }

// I3, I4, I8: an endpoint that cannot be reached is none: the others are lent, at once, and
// who finds them all lent waits for one of them. It is lent again when it can be reached.
func TestAnEndpointThatIsDownIsPassedBy(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.down["http://one"] = true })
		s := w.server("computer", 3, func(i *config.Instances) { i.Endpoints = fleet("http://one", "http://two", "http://three") })
		begun := time.Now()
		if _, err := w.pools.Describe(w.Context(), s); err != nil {
			t.Error(err)
		}
		two, three := w.lease(s, "a"), w.lease(s, "b")
		if two.at() != "http://two" || three.at() != "http://three" || time.Since(begun) != 0 {
			t.Errorf("after %s %s and %s are lent", time.Since(begun), two.at(), three.at())
		}
		time.AfterFunc(10*time.Second, two.Release)
		if two = w.lease(s, "c"); two.at() != "http://two" || time.Since(begun) != 10*time.Second {
			t.Errorf("after %s %s is lent", time.Since(begun), two.at())
		}
		if _, err := w.acquire(s, "d"); !fault.Is(err, fault.InstanceWaitTimeout) || !strings.Contains(err.Error(), "2 of 3 are lent to 2 sessions") ||
			!strings.Contains(err.Error(), "the last start failed: http://one cannot be reached") {
			t.Error(err)
		}
		two.Release() // while there is a pause because of the first one
		begun = time.Now()
		if two = w.lease(s, "e"); two.at() != "http://two" || time.Since(begun) != 0 {
			t.Errorf("after %s %s is lent", time.Since(begun), two.at())
		}
		w.set(func() { clear(w.down) })
		one := w.lease(s, "f")
		if one.at() != "http://one" {
			t.Errorf("%s is lent", one.at())
		}
		one.Release()
		two.Release()
		synctest.Wait()
		if one = w.lease(s, "g"); one.at() != "http://one" {
			t.Errorf("%s is lent, though the first is well again", one.at())
		}
	})
}

// I8: with fewer instances than endpoints each of these is tried, too; when all are down that
// is told at once, after one attempt each, and from then on they are tried in turn, at growing
// distances (I6).
func TestAFleetThatIsDown(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.down = map[string]bool{"http://one": true, "http://two": true, "http://three": true} })
		s := w.server("computer", 1, func(i *config.Instances) { i.Endpoints = fleet("http://one", "http://two", "http://three") })
		begun := time.Now()
		if _, err := w.acquire(s, "a"); !fault.Is(err, fault.StartFailed) || time.Since(begun) != 0 {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		if n := len(w.begun("computer")); n != 3 {
			t.Errorf("%d starts", n)
		}
		for range 3 {
			if _, err := w.acquire(s, "a"); !fault.Is(err, fault.StartFailed) {
				t.Error(err)
			}
		}
		if n := len(w.begun("computer")); n != 6 || time.Since(begun) < 5*time.Second {
			t.Errorf("%d starts in %s", n, time.Since(begun))
		}
		w.set(func() { delete(w.down, "http://three") })
		for range 3 {
			if l, err := w.acquire(s, "a"); err == nil {
				if l.at() != "http://three" {
					t.Errorf("%s is lent", l.at())
				}
				l.Release()
				synctest.Wait()
			}
		}
		if l := w.lease(s, "b"); l.at() != "http://three" {
			t.Errorf("%s is lent", l.at())
		}
	})
}
