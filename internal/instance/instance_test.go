package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// I3: those who wait get instances in the order in which they came, each at once when one
// is free; who gives up is skipped at once, and nobody is forgotten.
func TestAHundredWaitersAreServedInTheOrderInWhichTheyCame(t *testing.T) {
	for _, release := range []config.OnRelease{config.ReleaseDestroy, config.ReleaseReset, config.ReleaseKeep} {
		t.Run(string(release), func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := w.server("browser", 5, func(i *config.Instances) {
					i.OnRelease, i.MaxWait, i.Reset = release, time.Hour, config.ToolCall{Tool: "reset"}
				})
				const waiters, hold = 100, 10 * time.Second
				var mu sync.Mutex
				var order []int
				var wg sync.WaitGroup
				begun := time.Now()
				for n := range waiters {
					ctx, cancel := context.WithCancel(w.Context())
					gaveUp := n%7 == 6
					wg.Go(func() {
						defer cancel()
						l, err := w.pools.Acquire(ctx, s, Borrower{"local", fmt.Sprint("s", n)})
						if gaveUp {
							if !errors.Is(err, context.Canceled) {
								t.Errorf("waiter %d: %v", n, err)
							}
							return
						}
						if err != nil {
							t.Errorf("waiter %d: %v", n, err)
							return
						}
						mu.Lock()
						order = append(order, n)
						mu.Unlock()
						time.Sleep(hold)
						l.Release()
					})
					time.Sleep(time.Millisecond) // so that instances become free one after the other
					if gaveUp {
						cancel()
						synctest.Wait()
					}
				}
				wg.Wait()
				if !slices.IsSorted(order) || len(order) != waiters-waiters/7 {
					t.Errorf("the order is %v", order)
				}
				rounds := (len(order) + 4) / 5
				if took := time.Since(begun); took > time.Duration(rounds)*hold+waiters*time.Millisecond {
					t.Errorf("%d waiters on 5 instances took %s", len(order), took)
				}
			})
		})
	}
}

// I3: who gives up in the moment in which he gets an instance does not lose it for others.
func TestAnInstanceThatComesWhenItsWaiterGivesUpGoesToTheNext(t *testing.T) {
	for range 50 {
		inWorld(t, func(w *world) {
			s := w.server("browser", 1, nil)
			first := w.lease(s, "first")
			ctx, cancel := context.WithCancel(w.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				if l, err := w.pools.Acquire(ctx, s, Borrower{"local", "second"}); err == nil {
					l.Release()
				}
			})
			synctest.Wait()
			wg.Go(func() {
				l := w.lease(s, "third")
				l.Release()
			})
			synctest.Wait()
			wg.Go(cancel)
			wg.Go(first.Release)
			wg.Wait()
		})
	}
}

// I3: the error of one who waited too long says who has the instances, and for how long.
func TestTheErrorOfAWaitNamesTheHolders(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 2, nil)
		w.lease(s, "a")
		time.Sleep(10 * time.Minute)
		w.lease(s, "b")
		begun := time.Now()
		_, err := w.acquire(s, "c")
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("it waited for %s", took)
		}
		if !fault.Is(err, fault.InstanceWaitTimeout) || !strings.Contains(err.Error(), "2 of 2 are lent to 2 sessions, the longest for 11m0s") {
			t.Error(err)
		}
		if data := fault.Of(err).Data; data["leased"] != 2 || data["sessions"] != 2 || data["longestMs"] != int64(660_000) {
			t.Error(data)
		}
	})
}

// I3: whether who comes now has to wait for others: not while one is warm, ends, or may be
// started, unless those are for others who wait already.
func TestAServerIsCrowdedWhenAllIsLent(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 2, nil)
		crowded := func(want bool) {
			w.Helper()
			if w.pools.Crowded(s) != want {
				w.Errorf("crowded is %t", !want)
			}
		}
		crowded(false)
		var leases []*Lease
		for range 2 {
			l, err := w.pools.Acquire(w.Context(), s, Borrower{Principal: "p", Session: "one"})
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, l)
		}
		crowded(true)
		w.mu.Lock()
		w.lingers = time.Second
		w.mu.Unlock()
		leases[0].Release()
		crowded(false) // it ends
		got := make(chan *Lease)
		go func() {
			l, err := w.pools.Acquire(w.Context(), s, Borrower{Principal: "p", Session: "two"})
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		synctest.Wait()
		crowded(true) // that one's place has been promised
		(<-got).Release()
		leases[1].Release()
	})
}

// I3: what a session waits for, others do not: the pool answers and takes back meanwhile.
// In the reference a waiter held the lock of all sessions, so that every release waited.
func TestAWaiterBlocksNobody(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, nil)
		w.set(func() { w.took["browser"] = 30 * time.Second })
		var wg sync.WaitGroup
		for n := range 10 {
			wg.Go(func() {
				l := w.lease(s, fmt.Sprint(n))
				l.Release()
			})
		}
		synctest.Wait()
		begun := time.Now()
		if got := w.pools.Snapshot("", true)[0]; got.Starting != 1 || len(got.Waiting) != 10 {
			t.Errorf("%+v", got)
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("a snapshot took %s", took)
		}
		w.set(func() { w.took["browser"] = 0 })
		wg.Wait()
	})
}

// I2: giving back twice is harmless, and does not give back what another session has by then.
// In the reference a second clean-up waited for itself for ever.
func TestASecondReleaseDoesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, func(i *config.Instances) { i.OnRelease = config.ReleaseKeep })
		a := w.lease(s, "a")
		a.Release()
		a.Release()
		b := w.lease(s, "b")
		a.Release()
		w.expect("after a third release", 0, 0, 1)
		b.Release()
	})
}

// I5: by default nothing that a session had is seen by another. In the reference an instance
// came back as it was.
func TestAnInstanceThatIsGivenBackIsDestroyed(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, nil)
		a := w.lease(s, "a")
		a.Release()
		if b := w.lease(s, "b"); b.number() == a.number() {
			t.Error("the second session has the instance of the first")
		}
	})
}

// I5: a reset makes an instance new, and a probe says whether it did; else it is destroyed.
func TestAnInstanceIsResetAndProbedBeforeItIsWarm(t *testing.T) {
	for _, broken := range []string{"", "reset", "probe"} {
		t.Run(broken, func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := w.server("browser", 1, func(i *config.Instances) {
					i.OnRelease, i.Reset, i.Probe = config.ReleaseReset, config.ToolCall{Tool: "reset"}, config.ToolCall{Tool: "probe"}
				})
				a := w.lease(s, "a")
				if broken != "" {
					w.set(func() { w.cannot[broken] = errors.New("no") })
				}
				a.Release()
				synctest.Wait()
				w.set(func() { clear(w.cannot) })
				b := w.lease(s, "b")
				if same := a.number() == b.number(); same != (broken == "") {
					t.Errorf("the same instance: %v", same)
				}
				if want := []string{"probe", "reset", "probe", "probe"}; broken == "" && !slices.Equal(w.askedFor, want) {
					t.Errorf("it was asked %v; want %v", w.askedFor, want)
				}
			})
		})
	}
}

// I5: what is kept as it is goes to sessions of the same principal only; others get a new one,
// for which a kept one makes place.
func TestAKeptInstanceIsForItsPrincipalOnly(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, func(i *config.Instances) { i.OnRelease = config.ReleaseKeep })
		get := func(principal string) int {
			l, err := w.pools.Acquire(w.Context(), s, Borrower{principal, "s"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Release()
			return l.number()
		}
		if a, b, c := get("ann"), get("ann"), get("bob"); a != 1 || b != 1 || c != 2 {
			t.Errorf("they had the instances %d, %d, %d", a, b, c)
		}
	})
}

// I4, case 41: an instance that is dead, or alive and silent, is not lent; the next one is.
func TestADeadWarmInstanceIsNotLent(t *testing.T) {
	for name, harm := range map[string]func(u *fakeUnit){
		"dead":        func(u *fakeUnit) { u.die(true) },
		"dead unseen": func(u *fakeUnit) { u.die(false) },
		"stopped":     func(u *fakeUnit) { u.mu.Lock(); u.frozen = true; u.mu.Unlock() },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := w.server("browser", 2, func(i *config.Instances) { i.Min = 1 })
				w.expect("before", 0, 1, 0)
				time.Sleep(time.Minute) // it started well
				harm(w.units[0])
				begun := time.Now()
				l := w.lease(s, "a")
				if l.number() == 1 {
					t.Error("the dead one is lent")
				}
				if took := time.Since(begun); took > probeWait {
					t.Errorf("that took %s", took)
				}
				synctest.Wait()
				if !w.units[0].gone() {
					t.Error("the dead one is not closed")
				}
			})
		})
	}
}

// I4: one whose probe fails again and again keeps his place before those who came later.
func TestAFailedProbeKeepsThePlaceInTheQueue(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, func(i *config.Instances) { i.Probe, i.MaxWait = config.ToolCall{Tool: "probe"}, time.Hour })
		w.set(func() { w.hangs["probe"] = true })
		var order []string
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			wg.Go(func() {
				l := w.lease(s, name)
				order = append(order, name) // one has it at a time
				l.Release()
			})
			time.Sleep(time.Second)
		}
		time.Sleep(20 * time.Second)
		w.set(func() { w.hangs["probe"] = false })
		wg.Wait()
		if !slices.Equal(order, []string{"a", "b"}) {
			t.Error(order)
		}
	})
}

// I6: warm instances are replaced in the background; starts under way count.
func TestWarmInstancesAreReplenished(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.took["browser"] = 10 * time.Second })
		s := w.server("browser", 4, func(i *config.Instances) { i.Min = 2 })
		w.expect("at the start", 2, 0, 0)
		time.Sleep(time.Minute)
		w.expect("then", 0, 2, 0)
		a := w.lease(s, "a")
		w.expect("with one lent", 1, 1, 1)
		time.Sleep(time.Minute)
		w.lease(s, "b")
		w.lease(s, "c")
		w.expect("with three lent", 1, 0, 3)
		time.Sleep(time.Minute)
		w.expect("with all that there may be", 0, 1, 3)
		a.Release()
		time.Sleep(time.Minute)
		w.expect("with one given back", 0, 2, 2)
	})
}

// I6: starts that fail back off, and are none of whoever waits for something else.
func TestFailingStartsBackOff(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.refuse = fault.New(fault.StartFailed, "no display") })
		s := w.server("browser", 3, func(i *config.Instances) { i.Min = 1 })
		time.Sleep(5 * time.Minute)
		n := len(w.begun("browser"))
		if n < 8 || n > 16 {
			t.Errorf("%d starts in 5 min", n)
		}
		begun := time.Now()
		if _, err := w.acquire(s, "a"); !fault.Is(err, fault.StartFailed) {
			t.Error(err)
		}
		if took := time.Since(begun); took > mostPause {
			t.Errorf("the error came after %s", took)
		}
		w.set(func() { w.refuse = nil })
		w.lease(s, "b")
		time.Sleep(time.Second)
		w.expect("after a start that worked", 0, 1, 1)
	})
}

// I6: starts that fail side by side are one failure: the pause grows with each further
// attempt, not with how many are wanted.
func TestStartsThatFailTogetherAreOneFailure(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.refuse, w.took["browser"] = fault.New(fault.StartFailed, "no display"), time.Millisecond })
		w.server("browser", 4, func(i *config.Instances) { i.Min = 4 })
		time.Sleep(10 * time.Second)
		var rounds []time.Duration
		for _, at := range w.begun("browser") {
			if at = at.Truncate(100 * time.Millisecond); len(rounds) == 0 || at != rounds[len(rounds)-1] {
				rounds = append(rounds, at)
			}
		}
		if want := []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}; !slices.Equal(rounds, want) {
			t.Errorf("starts began after %v; want %v", rounds, want)
		}
	})
}

// I6: a start that was under way when another one failed does not count when it fails, too,
// however late that is, but it has its pause.
func TestAStartThatFailsLateHasItsPause(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.refuse = fault.New(fault.StartFailed, "no display") })
		s := w.server("browser", 2, nil)
		w.set(func() { w.took["browser"] = 10 * time.Second })
		for n := range 2 {
			go func() { _, _ = w.acquire(s, fmt.Sprint(n)) }() // joined by the bubble
			synctest.Wait()
			w.set(func() { w.took["browser"] = 0 })
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.pools.mu.Lock()
		defer w.pools.mu.Unlock()
		if v := w.pools.servers["browser"]; v.failures != 1 || v.pause == nil {
			t.Errorf("%d failures count, and there is a pause: %t", v.failures, v.pause != nil)
		}
	})
}

// I1: more than the warm ones that are kept ready go after the idle time; old ones, and
// those that were used often, in any case.
func TestInstancesGoWhenTheirTimeIsOver(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 5, func(i *config.Instances) { i.Min, i.OnRelease = 1, config.ReleaseKeep })
		for _, l := range []*Lease{w.lease(s, "a"), w.lease(s, "b"), w.lease(s, "c")} {
			l.Release()
		}
		time.Sleep(4*time.Minute + 59*time.Second)
		warm := w.counts()[1]
		if warm < 3 {
			t.Errorf("%d are warm before the idle time", warm)
		}
		time.Sleep(2 * time.Second)
		if warm := w.counts()[1]; warm != 1 {
			t.Errorf("%d are warm after the idle time", warm)
		}
		time.Sleep(time.Hour)
		if warm := w.counts()[1]; warm != 1 {
			t.Errorf("%d are warm an hour later", warm)
		}
	})
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, func(i *config.Instances) { i.OnRelease, i.MaxUses = config.ReleaseKeep, 2 })
		var had []int
		for range 4 {
			l := w.lease(s, "a")
			had = append(had, l.number())
			l.Release()
		}
		if !slices.Equal(had, []int{1, 1, 2, 2}) {
			t.Errorf("with two uses each they had the instances %v", had)
		}
	})
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, func(i *config.Instances) {
			i.OnRelease, i.MaxLifetime, i.IdleTimeout = config.ReleaseKeep, time.Hour, 0
		})
		l := w.lease(s, "a")
		l.Release()
		time.Sleep(59 * time.Minute)
		w.expect("before the lifetime is over", 0, 1, 0)
		l = w.lease(s, "a")
		time.Sleep(2 * time.Hour)
		w.expect("while it is lent", 0, 0, 1)
		l.Release()
		w.expect("after that", 0, 0, 0)
	})
}

// I1: what a server has is known without a lease; the one that was started for it stays
// warm.
func TestDescribingNeedsNoLease(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, nil)
		w.set(func() { w.took["browser"] = time.Second })
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if c, err := w.pools.Describe(w.Context(), s); err != nil || c != w.catalogue {
					t.Error(c, err)
				}
			})
		}
		wg.Wait()
		w.expect("then", 0, 1, 0)
		l := w.lease(s, "a")
		begun := time.Now()
		if _, err := w.pools.Describe(w.Context(), s); err != nil || time.Since(begun) != 0 {
			t.Error("with all instances lent", err, time.Since(begun))
		}
		l.Release()
	})
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, nil)
		w.set(func() { w.refuse = fault.New(fault.StartFailed, "no display") })
		for range 5 {
			if _, err := w.pools.Describe(w.Context(), s); !fault.Is(err, fault.StartFailed) {
				t.Error(err)
			}
		}
		if n := len(w.begun("browser")); n != 1 {
			t.Errorf("%d starts", n)
		}
	})
}

// I9: the end refuses, waits for what is lent, ends everything, and says what was still
// lent to whom.
func TestADrainWaitsForLeasesAndNamesThoseThatAreLeft(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 3, nil)
		a := w.lease(s, "a")
		b := w.lease(s, "b")
		time.AfterFunc(2*time.Second, a.Release)
		c := w.lease(s, "c")
		var refused error
		var wg sync.WaitGroup
		wg.Go(func() { _, refused = w.acquire(s, "d") })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		time.AfterFunc(time.Second, c.Release)
		begun := time.Now()
		r := w.pools.Drain(ctx)
		w.pools.Join()
		wg.Wait()
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("it took %s", took)
		}
		if r.Ended != 3 || !slices.Equal(r.Lent, []Lent{{b.Instance(), "local", "b"}}) {
			t.Errorf("%+v", r)
		}
		if !fault.Is(refused, fault.Draining) {
			t.Error(refused)
		}
		if _, err := w.acquire(s, "e"); !fault.Is(err, fault.Draining) {
			t.Error(err)
		}
		b.Release()
	})
}

// I4, I9: a drain waits for a probe and no longer, and the one for whom it was gets nothing.
func TestADrainDuringAProbeWaitsForThatOnly(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, func(i *config.Instances) { i.Min = 1 })
		w.expect("at first", 0, 1, 0)
		w.units[0].frozen = true
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := w.acquire(s, "a"); !fault.Is(err, fault.Draining) {
				t.Error(err)
			}
		})
		synctest.Wait()
		begun := time.Now()
		over, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		if r := w.pools.Drain(over); len(r.Lent) > 0 || time.Since(begun) != probeWait {
			t.Errorf("%+v after %s", r, time.Since(begun))
		}
		wg.Wait()
	})
}

// I9: a drain does not wait when nothing is lent, and gives starts up.
func TestADrainWithoutLeasesIsQuick(t *testing.T) {
	inWorld(t, func(w *world) {
		w.set(func() { w.took["browser"] = time.Hour })
		s := w.server("browser", 3, func(i *config.Instances) { i.Min = 2 })
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := w.acquire(s, "a"); !fault.Is(err, fault.Draining) {
				t.Error(err)
			}
		})
		synctest.Wait()
		begun := time.Now()
		w.pools.Drain(w.Context())
		w.pools.Join()
		wg.Wait()
		if took := time.Since(begun); took != 0 {
			t.Errorf("it took %s", took)
		}
	})
}

// S: what belongs to other principals is not shown.
func TestASnapshotShowsNoOneElsesSessions(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.server("browser", 1, nil)
		w.lease(s, "secret-session")
		if got := fmt.Sprint(w.pools.Snapshot("other", false)); strings.Contains(got, "secret-session") {
			t.Error(got)
		}
		if got := fmt.Sprint(w.pools.Snapshot("local", false)); !strings.Contains(got, "secret-session") {
			t.Error(got)
		}
	})
}
