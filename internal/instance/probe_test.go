package instance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

var probed = config.ToolCall{Tool: "probe"}

// I3, I4: who waits for a probe may give up at once. The instance is probed to the end all
// the same, before anybody gets it; one that is only slow is lent then.
func TestASlowProbeGoesOnWithoutTheOneWhoWaitedForIt(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, func(i *config.Instances) { i.Probe = probed })
		w.set(func() { w.slow["probe"] = 3 * time.Second })
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if _, err := w.pools.Acquire(ctx, s, Borrower{"local", "a"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if took := time.Since(begun); took != time.Second {
			t.Errorf("who gave up waited for %s", took)
		}
		w.expect("after that", 0, 0, 0)
		time.Sleep(4 * time.Second)
		w.expect("after the probe", 0, 1, 0)
		if l := w.lease(s, "b"); l.number() != 1 {
			t.Errorf("it is instance %d", l.number())
		}
	})
}

// I3, I4: an instance that hangs is no trap for all who come: one of them waits for its
// probe, and whether he has that patience or not the next ones get another.
func TestAnInstanceThatHangsIsNotOfferedAgain(t *testing.T) {
	for name, impatient := range map[string]func(w *world, s *config.Server) error{
		"who gave up": func(w *world, s *config.Server) error {
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			_, err := w.pools.Acquire(ctx, s, Borrower{"local", "a"})
			return err
		},
		"whose maxWait was over": func(w *world, s *config.Server) error {
			hasty := *s
			hasty.Instances.MaxWait = time.Second
			_, err := w.acquire(&hasty, "a")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := w.server("browser", 2, func(i *config.Instances) { i.Probe, i.OnRelease = probed, config.ReleaseKeep })
				w.lease(s, "before").Release()
				u := w.units[0]
				u.mu.Lock()
				u.frozen = true
				u.mu.Unlock()
				begun := time.Now()
				if err := impatient(w, s); err == nil {
					t.Error("it was lent")
				}
				if took := time.Since(begun); took != time.Second {
					t.Errorf("he waited for %s", took)
				}
				l := w.lease(s, "b")
				if l.number() == 1 {
					t.Error("the next one gets it")
				}
				if took := time.Since(begun); took != time.Second {
					t.Errorf("the next one waited for it, until %s", took)
				}
				time.Sleep(probeWait)
				synctest.Wait()
				if !u.gone() {
					t.Error("it lives")
				}
			})
		})
	}
}

// I3: the error of one whose maxWait was over during a probe says who has the instances, and
// that one was probed; he waits no longer than that.
func TestTheErrorOfAWaitThatEndsDuringAProbe(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 2, func(i *config.Instances) { i.Probe, i.MaxWait = probed, 2*time.Second })
		w.lease(s, "a")
		w.set(func() { w.hangs["probe"] = true })
		begun := time.Now()
		_, err := w.acquire(s, "b")
		if took := time.Since(begun); took != s.Instances.MaxWait {
			t.Errorf("it took %s", took)
		}
		if !fault.Is(err, fault.InstanceWaitTimeout) || !strings.Contains(err.Error(), "1 of 2 are lent to 1 session, the longest for 2s, 0 are starting, 1 are being made new or probed") {
			t.Error(err)
		}
	})
}

// I3, I6: who does not get an instance because none starts, or none is well, is told why.
func TestTheErrorOfAWaitSaysWhyThereIsNone(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.refuse = fault.New(fault.StartFailed, "no display") })
		s := w.server("browser", 2, func(i *config.Instances) { i.Min, i.MaxWait = 1, time.Second })
		time.Sleep(time.Minute + 5*time.Second) // in the middle of a pause
		if _, err := w.acquire(s, "a"); !fault.Is(err, fault.InstanceWaitTimeout) || !strings.Contains(err.Error(), "the last start failed: no display") {
			t.Error(err)
		}
	})
	inWorld(t, func(w *world) {
		s := w.server("browser", 2, func(i *config.Instances) { i.Probe = probed })
		w.set(func() { w.cannot["probe"], w.took["browser"] = errors.New("no such tool"), 100*time.Millisecond })
		begun := time.Now()
		if _, err := w.acquire(s, "a"); !fault.Is(err, fault.InstanceWaitTimeout) || !strings.Contains(err.Error(), "gave no sign of life (instances.probe): no such tool") {
			t.Error(err)
		}
		if took := time.Since(begun); took != s.Instances.MaxWait {
			t.Errorf("it took %s", took)
		}
	})
}

// I6, case 36: instances that start, but are of no use, are started again at growing
// distances, not for ever as fast as they end; when one is lent that is forgotten.
func TestInstancesThatAreOfNoUseBackOff(t *testing.T) {
	for name, harm := range map[string]func(w *world){
		"they end at once":      func(w *world) { w.lives = 10 * time.Millisecond },
		"they end a bit later":  func(w *world) { w.lives = time.Second },
		"their probe fails":     func(w *world) { w.cannot["probe"], w.took["browser"] = errors.New("no"), 10*time.Millisecond },
		"they hang when probed": func(w *world) { w.hangs["probe"] = true },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.set(func() { harm(w) })
				s := w.server("browser", 2, func(i *config.Instances) { i.Min, i.Probe, i.MaxWait = 1, probed, time.Hour })
				var wg sync.WaitGroup
				if w.lives == 0 {
					wg.Go(func() { w.lease(s, "a").Release() })
				}
				time.Sleep(5 * time.Minute)
				if n := len(w.begun("browser")); n < 6 || n > 40 {
					t.Errorf("%d starts in 5 min", n)
				}
				w.set(func() { w.lives, w.cannot, w.hangs = 0, map[string]error{}, map[string]bool{} })
				wg.Wait()
				time.Sleep(time.Minute)
				w.lease(s, "b").Release()
				w.pools.mu.Lock()
				failures := w.pools.servers["browser"].failures
				w.pools.mu.Unlock()
				if failures != 0 {
					t.Errorf("%d failures count after a lease", failures)
				}
			})
		})
	}
}

// I6: a lease ends the pause: what starts is of use.
func TestALeaseEndsThePauseAfterStartsThatFailed(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 2, func(i *config.Instances) { i.Min, i.OnRelease = 1, config.ReleaseKeep })
		a := w.lease(s, "a")
		w.expect("with one lent", 0, 1, 1)
		a.Release()
		w.set(func() { w.refuse = fault.New(fault.StartFailed, "no display") })
		w.units[1].die(true) // the other one, which was to be kept ready
		time.Sleep(time.Minute)
		before := len(w.begun("browser"))
		w.lease(s, "b")
		synctest.Wait()
		if n := len(w.begun("browser")) - before; n != 1 {
			t.Errorf("%d starts after the lease", n)
		}
	})
}

// I6, R4: a configuration that is read anew, and a restart by hand, forgive what failed.
func TestFailedStartsAreForgiven(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.refuse = fault.New(fault.StartFailed, "no display") })
		s := w.server("browser", 2, func(i *config.Instances) { i.Min = 1 })
		for what, forgive := range map[string]func(){
			"a configuration": func() { w.pools.Configure([]*config.Server{s}) },
			"a restart":       func() { w.pools.Pardon("browser") },
		} {
			time.Sleep(2 * time.Minute)
			before := len(w.begun("browser"))
			forgive()
			synctest.Wait()
			time.Sleep(1500 * time.Millisecond) // the pause is the first again
			synctest.Wait()
			if n := len(w.begun("browser")) - before; n != 2 {
				t.Errorf("after %s %d are started", what, n)
			}
		}
		w.pools.Pardon("nobody")
	})
}

// I6: one that is made new will be warm, so that none is started in its place.
func TestOneThatIsMadeNewCountsAsOneThatIsKeptReady(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 4, func(i *config.Instances) {
			i.Min, i.OnRelease, i.Reset = 1, config.ReleaseReset, config.ToolCall{Tool: "reset"}
		})
		w.set(func() { w.slow["reset"] = time.Second })
		a := w.lease(s, "a")
		w.lease(s, "b")
		w.expect("with two lent", 0, 1, 2)
		a.Release()
		w.lease(s, "c")
		w.expect("with one being made new", 0, 0, 2)
		time.Sleep(2 * time.Second)
		w.expect("then", 0, 1, 2)
	})
}

// I3: one that is made new is not waited for while another may be started: that may take its
// time and come to nothing.
func TestAResetThatHangsHoldsNobodyUp(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 2, func(i *config.Instances) { i.OnRelease, i.Reset = config.ReleaseReset, config.ToolCall{Tool: "reset"} })
		w.set(func() { w.hangs["reset"] = true })
		w.lease(s, "a").Release()
		begun := time.Now()
		if w.lease(s, "b"); time.Since(begun) != 0 {
			t.Errorf("it waited for %s", time.Since(begun))
		}
	})
}

// I1: a configuration that allows fewer ends those that are too many when they are given
// back, also where they would be lent again.
func TestFewerInstancesThanBefore(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 3, func(i *config.Instances) { i.OnRelease, i.IdleTimeout = config.ReleaseKeep, 0 })
		var leases []*Lease
		for n := range 3 {
			leases = append(leases, w.lease(s, fmt.Sprint(n)))
		}
		leases[0].Release()
		w.expect("before", 0, 1, 2)
		fewer := *s
		fewer.Instances.Max = 1
		w.pools.Configure([]*config.Server{&fewer})
		w.expect("when one may be lent", 0, 0, 2)
		leases[1].Release()
		w.expect("with one given back", 0, 0, 1)
		leases[2].Release()
		w.expect("with all given back", 0, 1, 0)
	})
}
