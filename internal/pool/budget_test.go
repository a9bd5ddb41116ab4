package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/fault"
)

// budgeted is a pool that enforces a budget and publishes.
func budgeted(servers, processes int) Config {
	c := withEvents()
	c.Budget = config.Budget{Mode: config.BudgetEnforce, Servers: servers, Processes: processes}
	return c
}

// held names the servers that hold a slot.
func (w *world) held() (names []string) {
	for _, h := range w.pool.Budget().Held {
		names = append(names, h.Server)
	}
	return names
}

func (w *world) expectHeld(want ...string) {
	w.Helper()
	synctest.Wait()
	if got := w.held(); !slices.Equal(got, want) {
		w.Errorf("held by %v, want %v", got, want)
	}
}

func (w *world) expectRefused(want ...string) {
	w.Helper()
	got := []string{}
	for _, r := range w.pool.Budget().Refused {
		got = append(got, r.Server)
	}
	if !slices.Equal(got, want) {
		w.Errorf("refused are %v, want %v", got, want)
	}
}

// refused acquires what the budget must refuse.
func (w *world) refused(h *Holder, server *config.Server) *fault.Error {
	w.Helper()
	_, err := h.Acquire(context.Background(), want(server, nil))
	expectReason(w, err, fault.BudgetExhausted)
	return fault.Of(err)
}

// B2: a new name over the budget is refused, with an error that names the budget, who
// holds it and who was refused. Names that hold a slot are served on.
func TestANewNameOverTheBudgetIsRefused(t *testing.T) {
	inWorld(t, budgeted(2, 0), func(w *world) {
		a, _ := w.server("a")
		b, _ := w.own("b")
		c, _ := w.server("c")
		d, _ := w.server("d")
		h := w.pool.NewHolder("x")
		w.acquire(h, a)
		w.acquire(h, b)
		w.refused(h, c)
		err := w.refused(h, d)
		if err.Server != "d" || !strings.Contains(err.Message, "all 2 of pool.budget.servers are held, by a (connections: 1, used by sessions: 1), b (") {
			t.Errorf("the message is %q", err.Message)
		}
		var o struct {
			Code int
			Data struct {
				Budget struct {
					Limit string
					Most  int
				}
				Held    []HeldSlot
				Refused []string
			}
		}
		if e := json.Unmarshal(err.RPC(), &o); e != nil {
			t.Fatal(e)
		}
		if o.Code != -32004 || err.Reason.Status() != 429 || o.Data.Budget.Limit != "servers" || o.Data.Budget.Most != 2 ||
			!slices.Equal(o.Data.Refused, []string{"c", "d"}) || len(o.Data.Held) != 2 || o.Data.Held[1] != (HeldSlot{"b", 1, 1, 1}) {
			t.Errorf("the error is %s", err.RPC())
		}

		more := *a
		more.Args = []string{"another fingerprint"}
		w.acquire(h, &more)
		w.acquire(w.pool.NewHolder("y"), b) // U2: each its own connection, one slot
		w.expectHeld("a", "b")
		if w.started() != 4 {
			t.Errorf("%d processes, want 4", w.started())
		}
	})
}

// B1: modes that do not enforce refuse nothing.
func TestABudgetThatIsNotEnforcedRefusesNothing(t *testing.T) {
	for _, mode := range []config.BudgetMode{config.BudgetOff, config.BudgetWarn} {
		c := budgeted(1, 1)
		c.Budget.Mode = mode
		inWorld(t, c, func(w *world) {
			a, _ := w.server("a")
			b, _ := w.server("b")
			w.acquire(w.pool.NewHolder("x"), a)
			w.acquire(w.pool.NewHolder("x"), b)
			warned := slices.Contains(w.told(), event.BudgetWarning)
			if warned != (mode == config.BudgetWarn) {
				t.Errorf("%s: warned %v", mode, warned)
			}
		})
	}
}

// B1: the slot is held as long as anything of the name lives: while a first dial runs,
// while it drains, and while its processes still end.
func TestASlotIsHeldUntilTheLastProcessIsGone(t *testing.T) {
	inWorld(t, budgeted(1, 0), func(w *world) {
		a, s := w.server("a")
		b, _ := w.server("b")
		s.set(func(s *script) { s.dialDelay, s.linger = 5*time.Second, 10*time.Second })
		h := w.pool.NewHolder("x")
		p := w.begin(context.Background(), h, want(a, nil))
		synctest.Wait()
		w.refused(h, b) // it is being dialled
		sleep(5 * time.Second)
		p.att.Release()
		sleep(testDrainDelay - time.Second)
		w.refused(h, b) // it drains
		sleep(time.Second)
		if left := w.pool.Snapshot(); len(left) != 1 || !left[0].Dying {
			t.Errorf("left are %+v", left)
		}
		w.refused(h, b) // its process lingers
		sleep(10*time.Second - time.Nanosecond)
		w.refused(h, b)
		w.expectHeld("a")
		sleep(time.Nanosecond)
		w.expectHeld()
		w.acquire(h, b)
		w.expectHeld("b")
	})
}

// B4: a dial that fails gives back what it took, and nothing that others hold: the slot
// of a name stays while another connection of that name lives.
func TestAFailedDialFreesWhatItReservedAndNothingElse(t *testing.T) {
	inWorld(t, budgeted(2, 0), func(w *world) {
		a, s := w.server("a")
		bad := *a
		bad.Args = []string{"bad"}
		b, sb := w.server("b")
		c, _ := w.server("c")
		h := w.pool.NewHolder("x")
		w.acquire(h, a)
		s.set(func(s *script) { s.failArg = "bad" })
		sb.set(func(s *script) { s.dialErr = errRefused })
		for range 5 {
			if _, err := h.Acquire(context.Background(), want(&bad, nil)); !fault.Is(err, fault.StartFailed) {
				t.Errorf("the bad one got %v", err)
			}
			w.expectHeld("a")
			if _, err := h.Acquire(context.Background(), want(b, nil)); !fault.Is(err, fault.StartFailed) {
				t.Errorf("b got %v", err)
			}
			w.expectHeld("a")
		}
		w.acquire(h, c)
		w.refused(h, b)
	})
}

// B1, S4: a dial that is given up holds its slot until what it started is gone.
func TestAnAbandonedDialHoldsItsSlot(t *testing.T) {
	inWorld(t, budgeted(1, 1), func(w *world) {
		a, s := w.own("a")
		b, _ := w.server("b")
		s.set(func(s *script) { s.dialDelay, s.deaf, s.linger = 10*time.Second, true, 5*time.Second })
		h := w.pool.NewHolder("x")
		ctx, cancel := context.WithCancel(context.Background())
		w.begin(ctx, h, want(a, nil))
		synctest.Wait()
		cancel()
		synctest.Wait()
		w.expectGone("a")
		w.refused(h, b)
		sleep(12 * time.Second)
		w.refused(h, b)
		w.expectHeld("a")
		sleep(3 * time.Second)
		w.expectHeld()
		w.acquire(h, b)
	})
}

// B1, R3: a lost connection keeps its slot while it waits for the next attempt.
func TestARecoveryKeepsTheSlot(t *testing.T) {
	inWorld(t, budgeted(1, 1), func(w *world) {
		a, s := w.server("a")
		a.Recovery = config.Recovery{Attempts: 3, Delay: 10 * time.Second, MaxDelay: 10 * time.Second}
		b, _ := w.server("b")
		h := w.pool.NewHolder("x")
		w.acquire(h, a)
		s.set(func(s *script) { s.dialErr = errRefused })
		w.proc().die("exit status 1")
		for range 4 {
			sleep(4 * time.Second)
			w.expectState("a", Recovering, 1)
			w.refused(h, b)
		}
		s.set(func(s *script) { s.dialErr = nil })
		sleep(30 * time.Second)
		w.expectState("a", Active, 1)
		w.refused(h, b)
	})
}

// B1: a restart keeps the slot, and so does every moment between two connections.
func TestARestartKeepsTheSlot(t *testing.T) {
	inWorld(t, budgeted(1, 1), func(w *world) {
		a, s := w.server("a")
		b, _ := w.server("b")
		h := w.pool.NewHolder("x")
		w.acquire(h, a)
		s.set(func(s *script) { s.linger, s.dialDelay = 2*time.Second, 2*time.Second })
		done := make(chan []Restarted, 1)
		go func() { done <- w.pool.Restart(context.Background(), "a") }()
		for range 8 {
			sleep(time.Second / 2)
			w.refused(h, b)
		}
		if r := <-done; !r[0].OK {
			t.Errorf("%+v", r)
		}
		if held := w.pool.Budget().Held; len(held) != 1 || held[0] != (HeldSlot{"a", 1, 1, 1}) {
			t.Errorf("held by %+v", held)
		}
	})
}

// B1: the cap on processes counts children, whatever their names; servers elsewhere
// have none.
func TestTheCapOnProcesses(t *testing.T) {
	inWorld(t, budgeted(0, 3), func(w *world) {
		a, _ := w.own("a")
		b, _ := w.server("b")
		far, _ := w.server("far")
		far.Transport = config.WebSocket
		var holders []*Holder
		for i := range 3 {
			h := w.pool.NewHolder(fmt.Sprint(i))
			w.acquire(h, a)
			w.acquire(h, far)
			holders = append(holders, h)
		}
		if err := w.refused(holders[0], b); !strings.Contains(err.Message, "all 3 of pool.budget.processes are held") {
			t.Errorf("the message is %q", err.Message)
		}
		w.refused(w.pool.NewHolder("more"), a) // of a name that holds a slot
		holders[1].Release()
		synctest.Wait()
		w.acquire(holders[0], b)
	})
}

// S1: attaching to what lives makes no budget call, even when the budget is full and
// over, and a full budget refuses none who attach.
func TestAttachingToALiveEntryAsksNoBudget(t *testing.T) {
	inWorld(t, budgeted(1, 1), func(w *world) {
		a, _ := w.server("a")
		w.acquire(w.pool.NewHolder("x"), a)
		w.pool.mu.Lock()
		w.pool.cfg.Budget.Servers, w.pool.cfg.Budget.Processes = -1, -1 // whatever asks is refused, or crashes
		w.pool.budget.refused = nil
		w.pool.mu.Unlock()
		for i := range 10 {
			w.acquire(w.pool.NewHolder(fmt.Sprint(i)), a)
		}
		w.expectState("a", Active, 11)
	})
}

// B2: a refusal is listed until that server is acquired.
func TestRefusalsAreListedUntilTheNextSuccessfulAcquire(t *testing.T) {
	inWorld(t, budgeted(1, 0), func(w *world) {
		a, _ := w.server("a")
		b, s := w.server("b")
		h := w.pool.NewHolder("x")
		att := w.acquire(h, a)
		w.refused(h, b)
		sleep(time.Minute)
		w.refused(h, b)
		if r := w.pool.Budget().Refused; len(r) != 1 || r[0].Server != "b" || r[0].Count != 2 || !r[0].At.Equal(time.Now()) || r[0].Reason == "" {
			t.Errorf("refused are %+v", r)
		}
		att.Release()
		sleep(testDrainDelay)
		w.expectRefused("b")
		s.set(func(s *script) { s.dialErr = errRefused })
		_, _ = h.Acquire(context.Background(), want(b, nil))
		w.expectRefused("b")
		s.set(func(s *script) { s.dialErr = nil })
		w.acquire(h, b)
		w.expectRefused()
	})
}

// B3: the warning comes once at 75 %, and again only after less than 37.5 % were held.
func TestTheWarningOfTheBudget(t *testing.T) {
	inWorld(t, budgeted(8, 0), func(w *world) {
		var holders []*Holder
		var servers []*config.Server
		for i := range 8 {
			server, _ := w.own(fmt.Sprint("s", i))
			servers = append(servers, server)
			holders = append(holders, w.pool.NewHolder(fmt.Sprint(i)))
		}
		warnings := func() (n int) {
			for _, k := range w.told() {
				if k == event.BudgetWarning {
					n++
				}
			}
			return n
		}
		up := func(i int) { holders[i] = w.pool.NewHolder(fmt.Sprint(i)); w.acquire(holders[i], servers[i]) }
		down := func(i int) { holders[i].Release(); synctest.Wait() }
		for i := range 5 {
			up(i)
		}
		if n := warnings(); n != 0 {
			t.Errorf("%d warnings with 5 of 8", n)
		}
		up(5)
		if n := warnings(); n != 1 {
			t.Errorf("%d warnings at 6 of 8", n)
		}
		up(6)
		up(7)
		for i := range 5 { // 3 of 8 are left, which is 37.5 %
			down(i)
		}
		for i := range 5 {
			up(i)
		}
		if n := warnings(); n != 0 {
			t.Errorf("%d warnings after 3 of 8", n)
		}
		for i := range 6 {
			down(i)
		}
		for i := range 4 {
			up(i)
		}
		if n := warnings(); n != 1 {
			t.Errorf("%d warnings after 2 of 8", n)
		}
	})
}

// B3: what one pass over all servers is refused is one event.
func TestRefusalsOfOnePassAreOneEvent(t *testing.T) {
	inWorld(t, budgeted(1, 0), func(w *world) {
		var servers []*config.Server
		for i := range 6 {
			server, _ := w.server(fmt.Sprint("s", i))
			servers = append(servers, server)
		}
		w.acquire(w.pool.NewHolder("x"), servers[0])
		w.told()
		pass := func() {
			for _, h := range []*Holder{w.pool.NewHolder("y"), w.pool.NewHolder("z")} {
				for _, server := range servers[1:] {
					go func() { _, _ = h.Acquire(context.Background(), want(server, nil)) }()
				}
			}
			sleep(time.Second)
		}
		for range 2 {
			pass()
			all := w.news()
			if len(all) != 1 || all[0].Kind != event.BudgetRefused {
				t.Fatalf("a pass published %+v", all)
			}
			slices.Sort(all[0].Refused)
			if !slices.Equal(all[0].Refused, []string{"s1", "s2", "s3", "s4", "s5"}) || all[0].Reason == "" {
				t.Errorf("the event is %+v", all[0])
			}
		}
		_, _ = w.pool.NewHolder("y").Acquire(context.Background(), want(servers[1], nil))
		w.pool.Drain(context.Background(), true) // what was gathered is told before the end
		if got := w.told(); !slices.Contains(got, event.BudgetRefused) {
			t.Errorf("at the drain: %v", got)
		}
	})
}

// B1: however sessions race, no more names and processes live at any time than the
// budget has, everybody gets a connection or a refusal, and nothing is held in the end.
func TestTheBudgetHoldsUnderRandomUse(t *testing.T) {
	seeds := 20
	if testing.Short() {
		seeds = 8
	}
	for seed := range seeds {
		const names, processes = 3, 5
		inWorld(t, budgeted(names, processes), func(w *world) {
			random := rand.New(rand.NewPCG(uint64(seed), 7))
			var servers []*config.Server
			for i := range 6 {
				server, s := w.server(fmt.Sprint("s", i))
				if i%3 == 2 {
					server.Sharing = config.Session
				}
				server.StartTimeout = 5 * time.Second
				s.set(func(s *script) {
					s.dialDelay, s.initDelay = time.Duration(random.IntN(3000))*time.Millisecond, time.Duration(random.IntN(2000))*time.Millisecond
					s.linger, s.deaf, s.failArg = time.Duration(random.IntN(4000))*time.Millisecond, random.IntN(2) == 0, "bad"
					s.stillborn = random.IntN(8) == 0
				})
				servers = append(servers, server)
			}
			var holders []*Holder
			for range 150 {
				server := *servers[random.IntN(len(servers))]
				if n := random.IntN(6); n < 2 {
					server.Args = []string{[]string{"bad", "other"}[n]}
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(8000))*time.Millisecond)
				h := w.pool.NewHolder(fmt.Sprint(len(holders)))
				holders = append(holders, h)
				w.begin(ctx, h, want(&server, nil))
				leaves := random.IntN(2) == 0
				context.AfterFunc(ctx, func() {
					cancel()
					if leaves {
						h.Release()
					}
				})
				switch random.IntN(12) {
				case 0:
					name := servers[random.IntN(len(servers))].Name
					go w.pool.Restart(context.Background(), name)
				case 1:
					if w.started() > 0 {
						w.proc().die("signal: killed")
					}
				case 2:
					holders[random.IntN(len(holders))].Release()
				}
				sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
				w.expectWithin(names, processes)
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			for _, h := range holders {
				h.Release()
			}
			sleep(10 * time.Minute)
			w.expectHeld()
			last, _ := w.server("last")
			w.acquire(w.pool.NewHolder("last"), last)
		})
	}
}

// expectWithin looks at the processes themselves.
func (w *world) expectWithin(names, processes int) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	alive := map[string]bool{}
	n := 0
	for _, p := range w.procs {
		if !p.dead() {
			alive[p.server.Name] = true
			n++
		}
	}
	if len(alive) > names || n > processes {
		w.Errorf("%d processes of %d servers live, the budget has %d and %d", n, len(alive), processes, names)
	}
}
