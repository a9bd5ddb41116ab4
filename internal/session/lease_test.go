package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// exclusive is a server of which there may be max instances.
func exclusive(name string, max int) *config.Server {
	s := server(name)
	s.Sharing = config.Exclusive
	s.Instances = config.Instances{Max: max, IdleTimeout: 5 * time.Minute, MaxWait: time.Minute, OnRelease: config.ReleaseDestroy}
	s.Cleanup.Timeout = 5 * time.Second
	return s
}

const echo = `{"name":"echo","ms":0}`

// leases lists which session has which instance, as "session=instance".
func (w *world) leases() (all []string) {
	for _, i := range w.m.List("local", true) {
		for _, l := range i.Leases {
			all = append(all, i.ID+"="+l.Instance)
		}
	}
	slices.Sort(all)
	return all
}

func (w *world) expectLeases(want ...string) {
	w.Helper()
	if got := w.leases(); !slices.Equal(got, want) {
		w.Fatalf("the leases are %v; want %v", got, want)
	}
}

func (w *world) works(answer string) {
	w.Helper()
	if !strings.Contains(answer, `"result"`) {
		w.Fatalf("got %s", answer)
	}
}

// I2, I3: a session's first call leases an instance, which all its clients share and no
// other session has; one that finds none waits until another session ends.
func TestEachSessionHasAnInstanceOfItsOwn(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 2)}, func(w *world) {
		a, again, b, c := w.client("browser", "a"), w.client("browser", "a"), w.client("browser", "b"), w.client("browser", "c")
		w.works(a.do(1, wire.ToolsCall, echo))
		w.works(again.do(1, wire.ToolsCall, echo))
		w.works(b.do(1, wire.ToolsCall, echo))
		w.expectLeases("a=browser#1", "b=browser#2")
		var wg sync.WaitGroup
		wg.Go(func() { w.works(c.do(1, wire.ToolsCall, echo)) })
		synctest.Wait()
		w.expectLeases("a=browser#1", "b=browser#2")
		if err := w.m.End(t.Context(), "local", false, "a", false); err != nil {
			t.Error(err)
		}
		wg.Wait()
		w.expectLeases("b=browser#2", "c=browser#3")
	})
}

// I1: a handshake and lists need no lease, also when all instances are lent; in the
// aggregate neither.
func TestListingNeedsNoLease(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		a := w.client("browser", "a")
		all := w.client("", "b")
		for _, answer := range []string{a.do(1, wire.ToolsList, "{}"), all.do(1, wire.ToolsList, "{}")} {
			if !strings.Contains(answer, "echo") {
				t.Error(answer)
			}
		}
		w.expectLeases()
		w.works(a.do(2, wire.ToolsCall, echo))
		late := w.client("browser", "c")
		if answer := late.do(1, wire.ToolsList, "{}"); !strings.Contains(answer, "echo") {
			t.Error(answer)
		}
		if answer := late.do(2, wire.PromptsList, "{}"); !strings.Contains(answer, "-32601") {
			t.Error(answer) // the server has no prompts
		}
		w.expectLeases("a=browser#1")
		if n := len(w.links); n != 1 {
			t.Errorf("%d instances were started", n)
		}
	})
}

// I1, R9: a list that no instance could give is the server's error, and is asked for again.
func TestAListThatAnInstanceCouldNotGiveIsAskedForAgain(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		lists := 0
		w.on = func(l *link, f wire.Frame) bool {
			if f.Method != wire.ToolsList {
				return false
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if lists++; lists > 3 { // twice at the start, and once for the client
				return false
			}
			l.wg.Go(func() { l.say(wire.ErrorReply(f.ID(), wire.ErrorObject(-1, "not now"))) })
			return true
		}
		a := w.client("browser", "a")
		if answer := a.do(1, wire.ToolsList, "{}"); !strings.Contains(answer, "not now") {
			t.Error(answer)
		}
		if answer := a.do(2, wire.ToolsList, "{}"); !strings.Contains(answer, `{"name":"echo"}`) {
			t.Error(answer)
		}
		w.expectLeases()
	})
}

// I3: the error of one who waited too long reaches the client.
func TestAClientThatWaitsTooLongIsToldWhoHasTheInstances(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		a, b := w.client("browser", "a"), w.client("browser", "b")
		w.works(a.do(1, wire.ToolsCall, echo))
		answer := b.do(1, wire.ToolsCall, echo)
		if !strings.Contains(answer, `"code":-32003`) || !strings.Contains(answer, "1 of 1 are lent to 1 session") {
			t.Error(answer)
		}
	})
}

// I3: a call that is cancelled while it waits leaves the queue, so that its session gets no
// instance that it does not want; another call of the session still does.
func TestACancelledCallDoesNotLeaseAnInstance(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		a, b, c := w.client("browser", "a"), w.client("browser", "b"), w.client("browser", "c")
		w.works(a.do(1, wire.ToolsCall, echo))
		var wg sync.WaitGroup
		x := newTray()
		wg.Go(func() { b.Session().Do(b, frame(7, wire.ToolsCall, echo), x) })
		synctest.Wait()
		wg.Go(func() { w.works(c.do(1, wire.ToolsCall, echo)) })
		synctest.Wait()
		cancel, err := wire.Parse(wire.NewNotification(wire.Cancelled, []byte(`{"requestId":7}`)))
		if err != nil {
			t.Fatal(err)
		}
		b.Session().Do(b, cancel, x)
		synctest.Wait()
		w.works(w.ended("a"))
		wg.Wait()
		w.expectLeases("c=browser#2")
		var later sync.WaitGroup
		later.Go(func() { w.works(b.do(8, wire.ToolsCall, echo)) })
		synctest.Wait()
		w.works(w.ended("c"))
		later.Wait()
		w.expectLeases("b=browser#3")
	})
}

// ended ends a session; what it returns is like the answer of a call.
func (w *world) ended(id string) string {
	if err := w.m.End(context.Background(), "local", false, id, true); err != nil {
		return err.Error()
	}
	return `"result"`
}

// N3, I2: a session that sleeps gives its instance back, and has another when it wakes.
func TestADormantSessionHasNoInstance(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		a, b := w.client("browser", "a"), w.client("browser", "b")
		w.works(a.do(1, wire.ToolsCall, echo))
		time.Sleep(11 * time.Minute)
		w.expectLeases()
		w.works(b.do(1, wire.ToolsCall, echo))
		time.Sleep(11 * time.Minute)
		w.works(a.do(2, wire.ToolsCall, echo))
		w.expectLeases("a=browser#3")
	})
}

// I4, N6: a session whose instance has ended by itself gets another with its next call, whose
// result says so, once.
func TestASessionThatLostItsInstanceGetsAnotherAndIsTold(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		w.on = func(l *link, f wire.Frame) bool {
			if f.Method == wire.ToolsCall {
				l.wg.Go(func() {
					l.say(wire.Result(f.ID(), []byte(`{"content":[{"type":"text","text":"page"}],"n":9007199254740993}`)))
				})
			}
			return f.Method == wire.ToolsCall
		}
		a := w.client("browser", "a")
		w.works(a.do(1, wire.ToolsCall, echo))
		w.link("browser").Abort(errors.New("signal: killed"))
		synctest.Wait()
		w.expectLeases()
		answer := a.do(2, wire.ToolsCall, echo)
		for _, want := range []string{`"content":[{"type":"text","text":"roundhouse: the instance of browser`, `"},{"type":"text","text":"page"}],"n":9007199254740993}`} {
			if !strings.Contains(answer, want) {
				t.Errorf("%s\nlacks %s", answer, want)
			}
		}
		w.expectLeases("a=browser#2")
		if answer := a.do(3, wire.ToolsCall, echo); strings.Contains(answer, "roundhouse") {
			t.Error(answer)
		}
	})
}

// N6: the loss of an instance is said with the first result of a tool that can say it: an
// error cannot, nor can an answer that nobody wants any more.
func TestALossIsSaidWithTheFirstResult(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		w.on = func(l *link, f wire.Frame) bool {
			switch {
			case f.Method != wire.ToolsCall:
				return false
			case strings.Contains(string(f.Params()), `"no"`):
				l.wg.Go(func() { l.say(wire.ErrorReply(f.ID(), wire.ErrorObject(wire.InvalidParams, "no"))) })
			case !strings.Contains(string(f.Params()), `"never"`):
				l.wg.Go(func() { l.say(wire.Result(f.ID(), []byte(fine))) })
			}
			return true
		}
		a := w.client("browser", "a")
		w.works(a.do(1, wire.ToolsCall, echo))
		w.link("browser").Abort(errors.New("signal: killed"))
		synctest.Wait()
		if answer := a.do(2, wire.ToolsCall, `{"name":"echo","no":1}`); !strings.Contains(answer, `"error"`) {
			t.Error(answer)
		}
		x := newTray()
		a.Session().Do(a, frame(3, wire.ToolsCall, `{"name":"echo","never":1}`), x)
		cancel, err := wire.Parse(wire.NewNotification(wire.Cancelled, []byte(`{"requestId":3}`)))
		if err != nil {
			t.Fatal(err)
		}
		a.Session().Do(a, cancel, x)
		<-x.done
		if answer := a.do(4, wire.ToolsCall, echo); !strings.Contains(answer, "the instance of browser that this session used has ended") {
			t.Error(answer)
		}
		if answer := a.do(5, wire.ToolsCall, echo); strings.Contains(answer, "roundhouse") {
			t.Error(answer)
		}
	})
}

// N6, R6: a session whose instance somebody has restarted is told so, once.
func TestASessionWhoseInstanceWasRestartedIsTold(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1), server("files")}, func(w *world) {
		w.on = func(l *link, f wire.Frame) bool {
			if f.Method == wire.ToolsCall {
				l.wg.Go(func() { l.say(wire.Result(f.ID(), []byte(fine))) })
			}
			return f.Method == wire.ToolsCall
		}
		a, shared := w.client("browser", "a"), w.client("files", "a")
		w.works(a.do(1, wire.ToolsCall, echo))
		w.works(shared.do(1, wire.ToolsCall, echo))
		for _, name := range []string{"browser", "files"} {
			if done := w.pool.Restart(w.Context(), name); len(done) != 1 || !done[0].OK {
				t.Fatalf("%+v", done)
			}
		}
		synctest.Wait()
		if answer := a.do(2, wire.ToolsCall, echo); !strings.Contains(answer, "the instance of browser that this session used was restarted; this result is from a new one") {
			t.Error(answer)
		}
		for _, answer := range []string{a.do(3, wire.ToolsCall, echo), shared.do(2, wire.ToolsCall, echo)} {
			if strings.Contains(answer, "roundhouse") {
				t.Error(answer)
			}
		}
	})
}

// I2: an instance can be given back before the session ends.
func TestALeaseCanBeReleased(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1), server("files")}, func(w *world) {
		a := w.client("browser", "a")
		w.works(a.do(1, wire.ToolsCall, echo))
		if err := w.m.ReleaseLease("other", false, "a", "browser"); !fault.Is(err, fault.UnknownSession) {
			t.Error(err)
		}
		if err := w.m.ReleaseLease("local", false, "a", "files"); !fault.Is(err, fault.UnknownServer) {
			t.Error(err)
		}
		if err := w.m.ReleaseLease("local", false, "a", "browser"); err != nil {
			t.Error(err)
		}
		w.expectLeases()
		w.works(a.do(2, wire.ToolsCall, echo))
		w.expectLeases("a=browser#2")
	})
}

// N4: what a session has is given back in the reverse order of acquisition, which is not
// that in which its clients came.
func TestLeasesAreReleasedInReverseOrder(t *testing.T) {
	var logged lines
	inWorld(t, usual, []*config.Server{exclusive("one", 1), exclusive("two", 1), exclusive("three", 1)}, func(w *world) {
		w.m.cfg.Log = slog.New(slog.NewTextHandler(&logged, nil))
		clients := map[string]*Client{}
		for _, name := range []string{"one", "two", "three"} {
			clients[name] = w.client(name, "a")
		}
		for _, name := range []string{"two", "three", "one"} {
			w.works(clients[name].do(1, wire.ToolsCall, echo))
		}
		w.works(w.ended("a"))
	})
	var order []string
	for _, line := range logged.all {
		if strings.Contains(line, "instance released") {
			order = append(order, line[strings.Index(line, "instance=")+len("instance="):strings.LastIndex(line, "#")])
		}
	}
	if !slices.Equal(order, []string{`"one`, `"three`, `"two`}) && !slices.Equal(order, []string{"one", "three", "two"}) {
		t.Error(order)
	}
}

// lines keeps what is logged.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(b))
	return len(b), nil
}

// I1: a changed configuration gives the session another instance with its next call, when
// the old one has nothing in flight any more.
func TestAChangedConfigurationReplacesTheInstance(t *testing.T) {
	old := exclusive("browser", 1)
	inWorld(t, usual, []*config.Server{old}, func(w *world) {
		a := w.client("browser", "a")
		w.works(a.do(1, wire.ToolsCall, echo))
		changed := *old
		changed.Args = []string{"--new"}
		w.m.Configure(Settings{Servers: []*config.Server{&changed}, Limits: usual, ListWait: 15 * time.Second, DrainDelay: 30 * time.Second})
		time.Sleep(time.Second)
		w.expectLeases()
		w.works(a.do(2, wire.ToolsCall, echo))
		w.expectLeases("a=browser#1") // the first of the new pool
		if l := w.link("browser"); !slices.Equal(l.server.Args, changed.Args) {
			t.Error(l.server.Args)
		}
	})
}

// N6, I1: a session whose instance another configuration has taken away is told so with the
// first result of the new one, once; a call that still ends at the old one says nothing.
func TestASessionWhoseInstanceTheConfigurationReplacedIsTold(t *testing.T) {
	for name, change := range map[string]func(s *config.Server){
		"arguments":   func(s *config.Server) { s.Args = []string{"--new"} },
		"interactive": func(s *config.Server) { s.Interactive = config.Refuse },
	} {
		t.Run(name, func(t *testing.T) { testReplaced(t, change) })
	}
}

func testReplaced(t *testing.T, change func(s *config.Server)) {
	old := exclusive("browser", 1)
	inWorld(t, usual, []*config.Server{old}, func(w *world) {
		w.on = func(l *link, f wire.Frame) bool {
			if f.Method == wire.ToolsCall {
				l.wg.Go(func() {
					if strings.Contains(string(f.Params()), "slow") {
						time.Sleep(5 * time.Second)
					}
					l.say(wire.Result(f.ID(), []byte(fine)))
				})
			}
			return f.Method == wire.ToolsCall
		}
		a, b := w.client("browser", "a"), w.client("browser", "b")
		slow := newTray()
		a.Session().Do(a, frame(1, wire.ToolsCall, `{"name":"echo","slow":1}`), slow)
		synctest.Wait()
		changed := *old
		change(&changed)
		w.configure(&changed)
		answer := a.do(2, wire.ToolsCall, echo)
		if !strings.Contains(answer, "the instance of browser that this session used was given back, since the configuration of the server has changed; this result is from a new one") {
			t.Error(answer)
		}
		for _, answer := range []string{string((<-slow.done).AppendTo(nil)), a.do(3, wire.ToolsCall, echo)} {
			if w.works(answer); strings.Contains(answer, "roundhouse") {
				t.Error(answer)
			}
		}
		w.works(w.ended("a"))
		if answer := b.do(1, wire.ToolsCall, echo); strings.Contains(answer, "roundhouse") {
			t.Errorf("one that had none is told: %s", answer)
		}
	})
}

var _ pool.Link = (*link)(nil)

// I2, I3, N3, N7: more sessions than instances. While they wait, an idle session that has an
// instance goes to sleep, with a clean-up that hangs, and who waits longest gets its place; what
// is asked about sessions and instances meanwhile is answered at once, and a lease can be taken
// away. In the reference a waiter held the lock of all sessions, so that no clean-up could begin,
// and its statistics waited, too.
func TestMoreSessionsThanInstances(t *testing.T) {
	s := exclusive("browser", 5)
	s.Instances.MaxWait, s.Cleanup.Tool = time.Hour, "close"
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		w.cleaners("x", "") // which takes until its limit
		var clients []*Client
		for n := range 10 {
			clients = append(clients, w.client("browser", fmt.Sprint("s", n)))
		}
		var mu sync.Mutex
		var served []int
		var wg sync.WaitGroup
		for n, c := range clients {
			wg.Go(func() {
				w.works(c.do(1, wire.ToolsCall, echo))
				mu.Lock()
				defer mu.Unlock()
				served = append(served, n)
			})
			synctest.Wait()
			time.Sleep(time.Second)
		}
		if len(served) != 5 {
			t.Errorf("%v have an instance of 5", served)
		}
		look := func(waiting int) {
			begun := time.Now()
			i := w.instances.Snapshot("", true)[0]
			if n := len(w.m.List("local", true)); n != 10 || i.Leased+len(i.Waiting) > 10 || len(i.Waiting) != waiting {
				t.Errorf("%d sessions, %d leases, %d wait; want %d", n, i.Leased, len(i.Waiting), waiting)
			}
			if st := w.m.Stats(); st.InFlight != waiting {
				t.Errorf("%d are in flight", st.InFlight)
			}
			if _, err := w.m.Get("local", false, "s9"); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took != 0 {
				t.Errorf("looking took %s", took)
			}
		}
		look(5)
		if err := w.m.ReleaseLease("local", false, "s3", "browser"); err != nil { // its clean-up takes 5 s
			t.Error(err)
		}
		synctest.Wait()
		look(4)
		time.Sleep(9*time.Minute + 48*time.Second) // s0 has begun to clean up, and still does
		look(4)
		time.Sleep(2500 * time.Millisecond)
		look(3)
		time.Sleep(time.Hour)
		wg.Wait()
		if !slices.IsSorted(served) || len(served) != 10 {
			t.Errorf("the order is %v", served)
		}
		look(0)
	})
}
