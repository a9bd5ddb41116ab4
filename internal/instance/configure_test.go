package instance

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/secret"
)

// I1: a changed configuration ends what is not lent; what is lent ends when it is given back.
// Other numbers change nothing of what there is.
func TestAChangedConfigurationReplacesInstances(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 2, func(i *config.Instances) { i.Min = 1; i.OnRelease = config.ReleaseKeep })
		l := w.lease(s, "a")
		more := *s
		more.Instances.MaxWait = time.Hour
		w.pools.Configure([]*config.Server{&more})
		w.expect("after a change of numbers", 0, 1, 1)

		w.set(func() { w.most["browser"] = 4 }) // for a while there are both
		other := more
		other.Command = "other"
		w.pools.Configure([]*config.Server{&other})
		synctest.Wait()
		if _, err := w.acquire(s, "b"); !fault.SafeToRetry(err) {
			t.Error(err)
		}
		if got := w.lease(&other, "b"); got.number() == 1 || got.number() == 2 {
			t.Error("an old instance is lent")
		}
		l.Release()
		synctest.Wait()
		if !w.units[0].gone() || !w.units[1].gone() {
			t.Error("the old instances live")
		}
		if infos := w.pools.Snapshot("", true); len(infos) != 1 {
			t.Errorf("%+v", infos)
		}
		w.pools.Configure(nil)
		if _, err := w.acquire(&other, "c"); err == nil {
			t.Error("a server that is not configured any more is lent")
		}
	})
}

// fleet are endpoints.
func fleet(urls ...string) (all []secret.String) {
	for _, u := range urls {
		all = append(all, secret.New(u))
	}
	return all
}

// I2, I3, I8: an endpoint that a session has from before a change of the configuration is
// nobody else's until it was given back and is gone; then it goes to who waits for it. Who
// waits too long is told who has it.
func TestAnEndpointIsNobodyElsesUntilItWasGivenBack(t *testing.T) {
	for name, change := range map[string]func(s *config.Server){
		"one more endpoint": func(s *config.Server) { s.Instances.Max, s.Instances.Endpoints = 2, fleet("http://one", "http://two") },
		"another place":     func(s *config.Server) { s.Instances.Max, s.Instances.Endpoints = 2, fleet("http://two", "http://one") },
		"a header":          func(s *config.Server) { s.Headers = map[string]secret.String{"X": secret.New("y")} },
		"another name":      func(s *config.Server) { s.Name = "renamed" },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := w.server("computer", 1, func(i *config.Instances) { i.Endpoints, i.MaxWait = fleet("http://one"), 10*time.Second })
				l := w.lease(s, "a")
				changed := *s
				change(&changed)
				w.set(func() { w.lingers, w.most["computer"], w.most["renamed"] = time.Second, 3, 1 })
				w.pools.Configure([]*config.Server{&changed})
				for n := range changed.Instances.Max - 1 {
					w.lease(&changed, fmt.Sprint("other", n))
				}
				if !w.pools.Crowded(&changed) {
					t.Error("it is not crowded, though all endpoints are lent")
				}
				if _, err := w.acquire(&changed, "b"); !fault.Is(err, fault.InstanceWaitTimeout) || !strings.Contains(err.Error(), fmt.Sprintf("%[1]d of %[1]d are lent to %[2]s", changed.Instances.Max, sessions(changed.Instances.Max))) {
					t.Error(err)
				}
				begun := time.Now()
				time.AfterFunc(5*time.Second, l.Release)
				if got := w.lease(&changed, "b"); got.in.unit.(*fakeUnit).endpoint != "http://one" || time.Since(begun) != 6*time.Second {
					t.Errorf("after %s %s is lent", time.Since(begun), got.in.unit.(*fakeUnit).endpoint)
				}
			})
		})
	}
}

// I2, I5: an endpoint that nobody who waits may have makes room, also while a session still
// has another one from before a change of the configuration.
func TestAKeptEndpointMakesRoomBesideOneThatIsStillLent(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("computer", 2, func(i *config.Instances) {
			i.Endpoints, i.OnRelease = fleet("http://one", "http://two"), config.ReleaseKeep
		})
		w.lease(s, "a")
		changed := *s
		changed.Headers = map[string]secret.String{"X": secret.New("y")}
		w.set(func() { w.most["computer"] = 3 })
		w.pools.Configure([]*config.Server{&changed})
		w.lease(&changed, "b").Release()
		begun := time.Now()
		l, err := w.pools.Acquire(w.Context(), &changed, Borrower{"somebody else", "c"})
		if err != nil || time.Since(begun) != 0 {
			t.Fatalf("after %s: %v", time.Since(begun), err)
		}
		if got := l.in.unit.(*fakeUnit).endpoint; got != "http://two" {
			t.Errorf("lent is %s", got)
		}
	})
}

// I7: no two processes of a server have the same index, also while one of a configuration
// before is still lent.
func TestAnIndexIsOfOneProcessAtATime(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, nil)
		old := w.lease(s, "a")
		changed := *s
		changed.Command = "other"
		w.set(func() { w.most["browser"] = 2 })
		w.pools.Configure([]*config.Server{&changed})
		now := w.lease(&changed, "b")
		if a, b := old.in.index, now.in.index; a != 0 || b != 1 {
			t.Errorf("the indexes are %d and %d", a, b)
		}
		old.Release()
		now.Release()
		synctest.Wait()
		if got := w.lease(&changed, "c").in.index; got != 0 {
			t.Errorf("the next one has the index %d", got)
		}
	})
}
