package session

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
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// N1, N7: what a session is can be seen, by its principal and by admins only.
func TestASessionCanBeSeenByItsPrincipal(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		created := time.Now()
		c := w.client("a", "run-1")
		time.Sleep(time.Minute)
		x := newTray()
		c.Session().Do(c, frame(1, wire.ToolsCall, `{"name":"echo","ms":60000}`), x)
		closed := c.StreamOpened()
		time.Sleep(time.Second)
		s, err := w.m.Get("local", false, "run-1")
		if err != nil {
			t.Fatal(err)
		}
		if s.State != Active || !s.Named || !s.CreatedAt.Equal(created) || !s.LastActivity.Equal(created.Add(time.Minute)) || s.InFlight != 1 || s.Calls != 2 || s.Streams != 1 || len(s.Connections) != 1 {
			t.Errorf("%+v", s)
		}
		if len(s.Clients) != 1 || s.Clients[0].Name != "c/2" || s.Clients[0].Version != wire.Version20250618 || s.Clients[0].Server != "a" || s.Clients[0].ID != c.ID() {
			t.Errorf("%+v", s.Clients)
		}
		closed()
		closed()
		<-x.done
		synctest.Wait() // the session learns of it after the client
		if s, _ := w.m.Get("", true, "run-1"); s.Streams != 0 || s.InFlight != 0 || !s.LastActivity.Equal(time.Now()) {
			t.Errorf("%+v", s)
		}
		if _, err := w.m.Get("other", false, "run-1"); !fault.Is(err, fault.UnknownSession) {
			t.Errorf("another principal got %v", err)
		}
		if err := w.m.End(w.Context(), "other", false, "run-1", true); !fault.Is(err, fault.UnknownSession) {
			t.Errorf("another principal's end got %v", err)
		}
		if n := len(w.m.List("other", false)); n != 0 {
			t.Errorf("another principal sees %d sessions", n)
		}
		if err := w.m.End(w.Context(), "other", true, "run-1", true); err != nil {
			t.Errorf("an admin's end got %v", err)
		}
	})
}

// N7: looking blocks nothing, and nothing blocks looking: also while a server starts.
func TestLookingWhileAServerStarts(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		w.delay = 30 * time.Second
		begun := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { w.client("a", "") })
		synctest.Wait()
		if s := w.m.List("local", false); len(s) != 1 || s[0].InFlight != 1 || len(s[0].Clients) != 1 || w.m.Stats().Clients != 1 {
			t.Errorf("%+v", s)
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("looking took %s", took)
		}
		wg.Wait()
	})
}

// N2, H5: a session whose first client still shakes hands makes no room for another.
func TestASessionThatIsBeingOpenedMakesNoRoom(t *testing.T) {
	inWorld(t, config.Sessions{Max: 1, IdleTimeout: time.Hour}, []*config.Server{server("a")}, func(w *world) {
		w.delay = 30 * time.Second
		var wg sync.WaitGroup
		wg.Go(func() { w.client("a", "") })
		synctest.Wait()
		_, err := w.initialize("", "")
		if !fault.Is(err, fault.SessionLimit) || !strings.Contains(err.Error(), "1 sessions") {
			t.Errorf("the newcomer got %v", err)
		}
		wg.Wait()
		w.client("", "") // now it is idle
		if st := w.m.Stats(); st.Evicted != 1 || st.Sessions[Active] != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// M4, M5: whatever a client does while it leaves, or while its session ends, nothing
// of it stays at a connection that others use.
func TestNothingOfALeavingClientStaysAtTheServer(t *testing.T) {
	for name, leave := range map[string]func(w *world, c *Client){
		"DELETE": func(_ *world, c *Client) { c.Delete() },
		"end": func(w *world, c *Client) {
			if err := w.m.End(context.Background(), "local", false, c.Session().ID(), true); err != nil {
				w.Error(err)
			}
		},
	} {
		for _, scope := range []string{"a", ""} {
			t.Run(name+"/"+scope, func(t *testing.T) {
				inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
					keeper := w.client("a", "") // keeps the connection
					if a := keeper.do(1, wire.LoggingSetLevel, `{"level":"error"}`); !strings.Contains(a, "result") {
						t.Fatal(a)
					}
					for i := range 100 {
						w.client(scope, "run") // so that the session outlives the DELETE
						c := w.client(scope, "run")
						if i%10 == 0 { // what waits for the restarted server goes on when its client is gone
							w.slow(time.Second)
							go w.pool.Restart(context.Background(), "a") // ends with the restart
							synctest.Wait()
						}
						var wg sync.WaitGroup
						for id, request := range []wire.Frame{
							frame(1, wire.ResourcesSubscribe, fmt.Sprintf(`{"uri":"x://%d"}`, i)),
							frame(2, wire.LoggingSetLevel, `{"level":"debug"}`),
							frame(3, wire.ToolsCall, `{"name":"a__echo","ms":1}`),
							frame(4, wire.ToolsList, `{}`),
						} {
							wg.Go(func() {
								x := newTray()
								c.Session().Do(c, request, x)
								if p := <-x.done; p.Empty() {
									t.Errorf("request %d got no answer", id+1)
								}
							})
						}
						if i%10 == 0 {
							synctest.Wait()
						}
						wg.Go(func() { leave(w, c) })
						wg.Wait()
						w.slow(0)
						time.Sleep(2 * time.Second)
						synctest.Wait()
					}
					l := w.link("a")
					l.mu.Lock()
					defer l.mu.Unlock()
					if len(l.subs) != 0 {
						t.Errorf("subscriptions are left: %v", l.subs)
					}
					if last := l.lvls[len(l.lvls)-1]; last != `"error"` {
						t.Errorf("the level is still %s", last)
					}
				})
			})
		}
	}
}

// M0: a binding keeps nobody who has left, also when his request comes to it late.
func TestABindingForgetsWhoHasLeft(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		w.client("", "run")
		c := w.client("", "run")
		w.slow(30 * time.Second)
		x := newTray()
		var wg sync.WaitGroup
		wg.Go(func() { c.Session().Do(c, frame(1, wire.ToolsCall, `{"name":"a__echo","ms":1}`), x) })
		synctest.Wait()
		c.Delete()
		if a := string((<-x.done).AppendTo(nil)); !strings.Contains(a, `"unknown_session"`) {
			t.Errorf("the call got %s", a)
		}
		wg.Wait()
		for _, b := range c.Session().order {
			if b.peers[c] != nil {
				t.Error("the binding keeps the client")
			}
		}
		if n := len(w.link("a").seen); n == 0 || strings.Contains(fmt.Sprint(w.link("a").seen), wire.ToolsCall) {
			t.Errorf("the server got %v", w.link("a").seen)
		}
	})
}

// asker is a mux.Peer that keeps what it is asked.
type asker struct{ asked *mux.Ask }

func (a *asker) Notify(mux.Pieces)              {}
func (a *asker) Ask(q *mux.Ask, out mux.Outlet) { a.asked = q }
func (a *asker) Unask(*mux.Ask)                 {}

// M7: a server's request that reaches a client which has left is answered.
func TestAnAskThatComesTooLateIsAnswered(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		c := w.client("a", "run")
		c.Delete()
		var posted []string
		m := mux.New(mux.Config{Sole: true, Post: func(b []byte) { posted = append(posted, string(b)) }})
		var peer asker
		m.Join(&peer)
		m.Receive(frame(7, wire.RootsList, "{}"), nil)
		c.ask(peer.asked, nil)
		if len(posted) != 1 || !strings.Contains(posted[0], `"id":7,"error"`) {
			t.Errorf("the server got %q", posted)
		}
	})
}

// N4: a request of a client that has left is answered, and does no harm.
func TestARequestAfterItsClientsEndIsRefused(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		c, other := w.client("a", "run"), w.client("a", "run")
		c.Delete()
		c.Delete()
		for _, method := range []string{wire.ToolsCall, wire.ToolsList, wire.LoggingSetLevel} {
			if a := c.do(1, method, `{"name":"echo"}`); !strings.Contains(a, `"unknown_session"`) {
				t.Errorf("%s: %s", method, a)
			}
		}
		if a := other.do(1, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(a, `"result"`) {
			t.Errorf("the other client of the session got %s", a)
		}
		if err := w.m.End(w.Context(), "local", false, "run", true); err != nil {
			t.Error(err)
		}
		if a := other.do(2, wire.ToolsCall, `{"name":"echo"}`); !strings.Contains(a, `"unknown_session"`) {
			t.Errorf("after the end: %s", a)
		}
		if why := other.Stream().(*tray).ended; why == nil || why.Reason != fault.UnknownSession {
			t.Errorf("the stream ended with %v", why)
		}
	})
}

// N4: a name that was ended begins a new session, at once.
func TestAnEndedNameBeginsAnew(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		first := w.client("a", "run").Session()
		if err := w.m.End(w.Context(), "local", false, "run", false); err != nil {
			t.Error(err)
		}
		if second := w.client("a", "run").Session(); second == first || second.ID() != "run" {
			t.Error("the name leads to the ended session")
		}
	})
}

// N4: shutdown ends what is under way, and joins it.
func TestShutdownEndsWhatIsUnderWay(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a"), server("b")}, func(w *world) {
		c := w.client("a", "")
		x := newTray()
		c.Session().Do(c, frame(1, wire.ToolsCall, `{"name":"echo","ms":600000}`), x)
		w.delay = time.Hour
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := w.initialize("b", ""); !fault.Is(err, fault.Draining) {
				t.Errorf("a handshake under way got %v", err)
			}
		})
		synctest.Wait()
		w.m.Drain()
		begun := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if n := w.m.Wait(ctx); n != 2 || time.Since(begun) != 5*time.Second {
			t.Errorf("%d calls were left after %s", n, time.Since(begun))
		}
		if n := w.m.Shutdown(context.Background()); n != 2 {
			t.Errorf("%d sessions ended", n)
		}
		wg.Wait()
		if a := string((<-x.done).AppendTo(nil)); !strings.Contains(a, `"draining"`) {
			t.Errorf("the call got %s", a)
		}
		if _, err := w.initialize("a", ""); !fault.Is(err, fault.Draining) {
			t.Errorf("a newcomer got %v", err)
		}
		if time.Since(begun) != 5*time.Second {
			t.Errorf("it took %s", time.Since(begun))
		}
	})
}

// H5: a client that hangs up during its handshake leaves nothing.
func TestAHandshakeThatIsGivenUpLeavesNothing(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		w.delay = time.Hour
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { // joined below
			f, _ := wire.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`))
			_, _, err := w.m.Initialize(ctx, Hello{ClientID: NewID(), Principal: "local", Scope: "a", Frame: f})
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if st := w.m.Stats(); st.Clients != 0 || len(w.m.List("", true)) != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// K6: a server that works in the workspace gets the session's, and without one a
// reason.
func TestAServerWorksInTheSessionsWorkspace(t *testing.T) {
	s := server("a")
	s.Cwd = "${WORKSPACE}"
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		if _, err := w.initialize("a", ""); !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), "workspace") {
			t.Errorf("without a workspace: %v", err)
		}
		for _, dir := range []string{"/one", "/two", "/one"} {
			f := frame(1, wire.MethodInitialize, `{"protocolVersion":"2025-11-25"}`)
			if _, _, err := w.m.Initialize(w.Context(), Hello{ClientID: NewID(), Principal: "local", Scope: "a", Workspace: dir, Frame: f}); err != nil {
				t.Fatal(err)
			}
			if got := w.link("a").server.Cwd; dir == "/two" && got != dir {
				t.Errorf("the server works in %s, not %s", got, dir)
			}
		}
		if len(w.links) != 2 {
			t.Errorf("%d processes for two workspaces", len(w.links))
		}
	})
}

// N3: what falls asleep and wakes up at the same time is given back once and used
// never after that.
func TestFallingAsleepAndWakingUpAtOnce(t *testing.T) {
	var servers []*config.Server
	for i := range 40 {
		servers = append(servers, server(fmt.Sprintf("s%d", i)))
	}
	inWorld(t, config.Sessions{Max: 10, IdleTimeout: time.Second}, servers, func(w *world) {
		c := w.client("", "run")
		for i := range 200 {
			c.do(0, wire.ToolsList, "{}")
			time.Sleep(time.Second) // the timer fires now
			if a := c.do(i, wire.ToolsCall, `{"name":"s0__echo","ms":1}`); !strings.Contains(a, `"result"`) {
				t.Fatalf("call %d: %s", i, a)
			}
		}
		time.Sleep(2 * time.Second)
		for _, i := range w.pool.Snapshot() {
			if i.Refs != 0 {
				t.Errorf("%+v", i)
			}
		}
	})
}

// N2: a dormant session makes room before an idle one that was active before it.
func TestADormantSessionMakesRoomFirst(t *testing.T) {
	inWorld(t, config.Sessions{Max: 3, IdleTimeout: time.Hour}, nil, func(w *world) {
		idle := w.client("", "")
		time.Sleep(time.Second)
		left := w.client("", "left")
		time.Sleep(time.Second)
		left.Delete() // a named session without clients is dormant
		w.client("", "")
		w.client("", "")
		synctest.Wait()
		if _, err := w.m.Get("local", false, "left"); err == nil {
			t.Error("the dormant session is still there")
		}
		if _, err := w.m.Client("local", "", idle.ID()); err != nil {
			t.Error("the idle session made room")
		}
	})
}

// S4, N3: who asks for a connection when the session has just woken up does not get the
// error of an acquire from before its sleep; when the session has ended he learns why.
func TestAnAcquireFromBeforeASleepFailsNobodyAfterIt(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("a")}, func(w *world) {
		c := w.client("", "")
		s := c.Session()
		b, err := s.bind(c, server("a"))
		if err != nil {
			t.Fatal(err)
		}
		attach := func() (*pool.Attachment, error) {
			busy := make(chan struct{})
			b.mu.Lock()
			b.busy = busy
			b.mu.Unlock()
			var wg sync.WaitGroup
			var att *pool.Attachment
			var err error
			wg.Go(func() { att, err = b.attach(w.Context()) })
			synctest.Wait()
			b.mu.Lock()
			b.busy, b.err = nil, pool.ErrReleased
			b.mu.Unlock()
			close(busy)
			wg.Wait()
			return att, err
		}
		if att, err := attach(); err != nil || !att.Live() {
			t.Errorf("while the session is awake: %v", err)
		}
		b.rest(errEnded)
		if err := w.m.End(w.Context(), "local", false, s.ID(), true); err != nil {
			t.Fatal(err)
		}
		if _, err := attach(); !fault.Is(err, fault.UnknownSession) {
			t.Errorf("when it has ended: %v", err)
		}
	})
}
