package instance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/pool"
)

// A world is Pools in a bubble, whose instances are nothing but their units.
type world struct {
	*testing.T
	pools *Pools

	mu        sync.Mutex
	units     []*fakeUnit          // in the order of their starts
	alive     map[string]int       // units that live, by server; one that starts does, too
	most      map[string]int       // how many may
	at        map[string]bool      // endpoints of which units live
	launches  map[string][]instant // when starts began
	took      map[string]time.Duration
	jitter    *rand.Rand      // of the time that starts take; nil is none
	lingers   time.Duration   // that ends take
	refuse    error           // of starts
	down      map[string]bool // endpoints
	lives     time.Duration   // that instances do, from their start; 0 is until they are closed
	hangs     map[string]bool
	slow      map[string]time.Duration
	cannot    map[string]error // of asks, by tool; "" is the ping
	askedFor  []string
	catalogue *Catalogue

	handed func(server, session string) // an instance is reserved for a session, with Pools.mu held; or nil
}

// ward is the log of a world's Pools, which tells each change while it is made.
type ward struct{ w *world }

func (ward) Enabled(context.Context, slog.Level) bool { return true }
func (x ward) WithAttrs([]slog.Attr) slog.Handler     { return x }
func (x ward) WithGroup(string) slog.Handler          { return x }

func (x ward) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "instance "+string(Leased) || x.w.handed == nil {
		return nil
	}
	said := map[string]string{}
	r.Attrs(func(a slog.Attr) bool {
		said[a.Key] = a.Value.String()
		return true
	})
	x.w.handed(said["server"], said["session"])
	return nil
}

type instant = time.Duration // since the start of the test

func inWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			T: t, alive: map[string]int{}, at: map[string]bool{}, down: map[string]bool{}, most: map[string]int{}, launches: map[string][]instant{}, took: map[string]time.Duration{}, cannot: map[string]error{}, hangs: map[string]bool{}, slow: map[string]time.Duration{},
			catalogue: &Catalogue{Handshake: &pool.Handshake{Version: "2025-11-25"}},
		}
		w.pools = New(Config{Launcher: w, Log: slog.New(ward{w})})
		defer func() {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			w.pools.Drain(over)
			w.pools.Join()
			for name, n := range w.alive {
				if n != 0 {
					t.Errorf("%d instances of %s outlived the pool", n, name)
				}
			}
		}()
		test(w)
	})
}

// server adds an exclusive server of which there may be max instances.
func (w *world) server(name string, max int, change func(*config.Instances)) *config.Server {
	s := &config.Server{
		Name: name, Transport: config.Stdio, Command: name, Sharing: config.Exclusive, StartTimeout: time.Minute,
		Instances: config.Instances{Max: max, IdleTimeout: 5 * time.Minute, MaxWait: time.Minute, OnRelease: config.ReleaseDestroy},
	}
	if change != nil {
		change(&s.Instances)
	}
	w.mu.Lock()
	w.most[name] = s.Instances.Max
	w.mu.Unlock()
	w.pools.Configure([]*config.Server{s})
	return s
}

var testBegan = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of every bubble

// Launch implements Launcher.
func (w *world) Launch(ctx context.Context, s *config.Server, index int, lost func(error), _ func()) (Unit, error) {
	w.mu.Lock()
	w.alive[s.Name]++
	if n := w.alive[s.Name]; n > w.most[s.Name] {
		w.Errorf("%d instances of %s live at once", n, s.Name)
	}
	w.launches[s.Name] = append(w.launches[s.Name], time.Since(testBegan))
	took, refuse := w.took[s.Name], w.refuse
	if fleet := s.Instances.Endpoints; len(fleet) > 0 && w.down[fleet[index].Reveal()] {
		refuse = fault.New(fault.StartFailed, "%s cannot be reached", fleet[index].Reveal())
	}
	if w.jitter != nil {
		took += time.Duration(1 + w.jitter.Int64N(int64(time.Millisecond)))
	}
	w.mu.Unlock()
	err := refuse
	if took > 0 {
		select {
		case <-time.After(took):
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.alive[s.Name]--
		return nil, err
	}
	u := &fakeUnit{w: w, server: s.Name, index: index, number: len(w.units) + 1, lost: lost}
	if fleet := s.Instances.Endpoints; len(fleet) > 0 {
		u.endpoint = fleet[index].Reveal()
		if w.at[u.endpoint] {
			w.Errorf("%s is used twice at once", u.endpoint)
		}
		w.at[u.endpoint] = true
	}
	w.units = append(w.units, u)
	if w.lives > 0 {
		time.AfterFunc(w.lives, func() { u.die(true) })
	}
	return u, nil
}

// fakeUnit is an instance that does nothing.
type fakeUnit struct {
	w      *world
	server string
	index  int
	number int
	lost   func(error)

	endpoint string // of a fleet's, or ""

	mu     sync.Mutex
	frozen bool // it answers nothing any more
	dead   bool
	closed bool
}

// Ask implements Unit.
func (u *fakeUnit) Ask(ctx context.Context, call config.ToolCall) error {
	u.w.unlocked("Ask")
	u.w.mu.Lock()
	u.w.askedFor = append(u.w.askedFor, call.Tool)
	err, hangs, slow := u.w.cannot[call.Tool], u.w.hangs[call.Tool], u.w.slow[call.Tool]
	u.w.mu.Unlock()
	u.mu.Lock()
	frozen, dead := u.frozen, u.dead
	u.mu.Unlock()
	if frozen || hangs {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if dead {
		return errors.New("it is dead")
	}
	return err
}

// unlocked reports an error if the pool does something that may be slow with its lock
// held: others hold it for moments only.
func (w *world) unlocked(what string) {
	for range 10_000_000 { // a second or more
		if w.pools.mu.TryLock() {
			w.pools.mu.Unlock()
			return
		}
		runtime.Gosched()
	}
	w.Errorf("%s is called with Pools.mu held", what)
}

// Lend implements Unit; nobody attaches in these tests.
func (u *fakeUnit) Lend(*pool.Holder, pool.Want) (*pool.Attachment, error) {
	return nil, errors.ErrUnsupported
}

// Catalogue implements Unit.
func (u *fakeUnit) Catalogue(context.Context) (*Catalogue, error) { return u.w.catalogue, nil }

// Connection implements Unit.
func (u *fakeUnit) Connection() string { return fmt.Sprint(u.server, "::", u.number) }

// Close implements Unit.
func (u *fakeUnit) Close(*fault.Error) {
	u.w.unlocked("Close")
	u.mu.Lock()
	if u.closed {
		u.w.Errorf("unit %d is closed twice", u.number)
	}
	u.closed = true
	u.mu.Unlock()
	if u.w.lingers > 0 {
		time.Sleep(u.w.lingers)
	}
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	u.w.alive[u.server]--
	delete(u.w.at, u.endpoint)
}

// die ends the unit by itself; told says that its end is seen.
func (u *fakeUnit) die(told bool) {
	u.mu.Lock()
	u.dead = true
	u.mu.Unlock()
	if told {
		u.lost(errors.New("killed"))
	}
}

func (u *fakeUnit) gone() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closed
}

// lease acquires an instance for a session, which must work.
func (w *world) lease(s *config.Server, session string) *Lease {
	w.Helper()
	l, err := w.acquire(s, session)
	if err != nil {
		w.Fatal(err)
	}
	return l
}

func (w *world) acquire(s *config.Server, session string) (*Lease, error) {
	return w.pools.Acquire(w.Context(), s, Borrower{"local", session})
}

func (l *Lease) number() int { return l.in.unit.(*fakeUnit).number }

// begun lists when the starts of a server's instances began.
func (w *world) begun(name string) []instant {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.launches[name])
}

// counts are the numbers of starting, warm and leased instances.
func (w *world) counts() [3]int {
	i := w.pools.Snapshot("", true)[0]
	return [3]int{i.Starting, i.Warm, i.Leased}
}

func (w *world) expect(what string, starting, warm, leased int) {
	w.Helper()
	synctest.Wait()
	if got, want := w.counts(), [3]int{starting, warm, leased}; got != want {
		w.Fatalf("%s: starting, warm and leased are %v; want %v", what, got, want)
	}
}

// set changes the world.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}
