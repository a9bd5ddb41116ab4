package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/instance"
	"roundhouse/internal/pool"
	"roundhouse/internal/secret"
	"roundhouse/internal/store"
	"roundhouse/internal/wire"
)

// A kept is a world whose sessions are stored. It may go through several daemons.
type kept struct {
	*world
	path    string
	store   *store.Store
	starter *instance.Starter
	limits  config.Sessions
	servers []*config.Server
	streams map[string]*tray // of restored clients
}

func inKeptWorld(t *testing.T, limits config.Sessions, servers []*config.Server, test func(w *kept)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &kept{path: filepath.Join(t.TempDir(), "test.db"), limits: limits, servers: servers}
		w.begin(t)
		test(w)
		w.stop()
	})
}

// begin starts a daemon.
func (w *kept) begin(t *testing.T) {
	t.Helper()
	var err error
	if w.store, err = store.Open(t.Context(), store.Config{Path: w.path}); err != nil {
		t.Fatal(err)
	}
	w.world, w.streams = &world{T: t}, map[string]*tray{}
	w.pool = pool.New(pool.Config{Dial: w.dial, DrainDelay: 30 * time.Second})
	w.starter = instance.NewStarter(instance.StarterConfig{Pool: w.pool, Base: t.TempDir()})
	w.instances = instance.New(instance.Config{Launcher: w.starter})
	w.m = NewManager(Config{
		Pool: w.pool, Instances: w.instances, Store: w.store, Version: "test",
		Settings: Settings{Servers: w.servers, Limits: w.limits, ListWait: 15 * time.Second, InteractiveTimeout: time.Minute, DrainDelay: 30 * time.Second},
	})
	if err := w.m.Restore(t.Context(), func(c *Client) Stream {
		w.streams[c.ID()] = newTray()
		return w.streams[c.ID()]
	}); err != nil {
		t.Fatal(err)
	}
}

// stop ends the daemon in order.
func (w *kept) stop() {
	w.m.Drain()
	w.m.Shutdown(context.Background())
	w.instances.Drain(context.Background())
	w.pool.Drain(context.Background(), true)
	w.instances.Join()
	w.starter.Close()
	if err := w.store.Close(); err != nil {
		w.Error(err)
	}
}

// kill ends the daemon as kill -9 does: what is not stored by now never will be.
func (w *kept) kill() {
	w.Helper()
	if err := w.store.Close(); err != nil {
		w.Error(err)
	}
	w.stop()
}

// restarts are the ways from one daemon to the next.
var restarts = map[string]func(w *kept){"stop": (*kept).stop, "kill": (*kept).kill}

// afterEach runs test once for each way from one daemon to the next, which again takes.
func afterEach(t *testing.T, limits config.Sessions, servers func() []*config.Server, test func(w *kept, again func())) {
	for name, end := range restarts {
		t.Run(name, func(t *testing.T) {
			inKeptWorld(t, limits, servers(), func(w *kept) {
				test(w, func() {
					end(w)
					w.begin(w.T)
				})
			})
		})
	}
}

// known finds a client of the session after a restart by the id that it had before.
func (w *kept) known(c *Client) *Client {
	w.Helper()
	found, err := w.m.Client("local", c.scope, c.ID())
	if err != nil {
		w.Fatalf("client %s is not known any more: %v", c.ID(), err)
	}
	return found
}

// N6: after a restart, and a kill, sessions and their clients go on under their ids: shared
// servers are attached to again with the first use, and nothing is before that.
func TestSessionsGoOnAfterARestart(t *testing.T) {
	servers := func() []*config.Server { return []*config.Server{server("files"), server("other")} }
	afterEach(t, usual, servers, func(w *kept, again func()) {
		named, minted := w.client("files", "run-1"), w.client("", "")
		w.works(named.do(1, wire.ToolsCall, echo))
		w.works(minted.do(1, wire.ToolsCall, `{"name":"files__echo"}`))
		if err := w.m.SetTools(context.Background(), "local", "run-1", &Tools{Exclude: []string{"other__*"}}); err != nil {
			w.Fatal(err)
		}
		before, err := w.m.Get("local", false, "run-1")
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Minute)
		again()
		if len(w.links) != 0 {
			w.Errorf("%d servers run before the first use", len(w.links))
		}
		after, err := w.m.Get("local", false, "run-1")
		if err != nil {
			w.Fatal(err)
		}
		if after.State != Dormant || after.RestoredAt == nil || !after.CreatedAt.Equal(before.CreatedAt) || !after.LastActivity.Equal(before.LastActivity) || !after.Named ||
			after.Calls != before.Calls || after.Tools == nil || len(after.Clients) != 1 || after.Clients[0].Version != before.Clients[0].Version || after.Clients[0].Name != "c/2" || len(after.Lost) != 0 {
			w.Errorf("%+v\nafter %+v", after, before)
		}
		if told := w.streams[named.ID()].pushed; len(told) != 3 || !strings.Contains(told[0], wire.ToolsListChanged) {
			w.Errorf("the client is told %v", told)
		}
		w.works(w.known(named).do(2, wire.ToolsCall, echo))
		w.works(w.known(minted).do(2, wire.ToolsCall, `{"name":"files__echo"}`))
		if info, _ := w.m.Get("local", false, minted.ID()); info.Named {
			w.Errorf("%+v", info)
		}
		again() // a second time
		w.works(w.known(named).do(3, wire.ToolsCall, echo))
		w.known(minted).Delete()
		if _, err := w.m.Get("local", false, minted.ID()); !fault.Is(err, fault.UnknownSession) { // N1
			w.Errorf("after its client's DELETE: %v", err)
		}
	})
}

// N6: a new connection is told the subscriptions and levels from before the restart.
func TestSubscriptionsAndLevelsOutliveARestart(t *testing.T) {
	servers := func() []*config.Server { return []*config.Server{server("files")} }
	afterEach(t, usual, servers, func(w *kept, again func()) {
		c := w.client("files", "run-1")
		w.works(c.do(1, wire.ResourcesSubscribe, `{"uri":"x://1"}`))
		w.works(c.do(2, wire.ResourcesSubscribe, `{"uri":"x://2"}`))
		w.works(c.do(3, wire.ResourcesUnsubscribe, `{"uri":"x://2"}`))
		w.works(c.do(4, wire.LoggingSetLevel, `{"level":"error"}`))
		synctest.Wait() // what a client has told a server is stored a moment after its answer
		for range 2 {   // the second time nothing was done in between
			again()
		}
		w.works(w.known(c).do(5, wire.ToolsCall, echo))
		synctest.Wait()
		l := w.link("files")
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.subs) != 1 || !l.subs["x://1"] || !slices.Equal(l.lvls, []string{`"error"`}) {
			w.Errorf("the server knows %v and %v", l.subs, l.lvls)
		}
	})
}

// N6: what a session had of an exclusive server is said to be lost, in the next result and
// once, and a fresh instance is lent; the API says so for good.
func TestALostInstanceIsSaidOnce(t *testing.T) {
	servers := func() []*config.Server { return []*config.Server{server("files"), exclusive("browser", 1)} }
	afterEach(t, usual, servers, func(w *kept, again func()) {
		c := w.client("", "run-1")
		const browse, read = `{"name":"browser__echo"}`, `{"name":"files__echo"}`
		w.on = func(l *link, f wire.Frame) bool {
			if f.Method != wire.ToolsCall {
				return false
			}
			answer := wire.Result(f.ID(), []byte(fine))
			if strings.Contains(string(f.Params()), `"no"`) {
				answer = wire.ErrorReply(f.ID(), wire.ErrorObject(wire.InvalidParams, "no"))
			}
			l.wg.Go(func() { l.say(answer) })
			return true
		}
		on := w.on
		w.works(c.do(1, wire.ToolsCall, browse))
		again()
		w.on = on
		info, err := w.m.Get("local", false, "run-1")
		if err != nil || len(info.Lost) != 1 || info.Lost[0].Server != "browser" || info.Lost[0].Instance == "" || info.Lost[0].Told {
			w.Fatalf("%+v, %v", info, err)
		}
		c = w.known(c)
		if a := c.do(2, wire.ToolsList, `{}`); strings.Contains(a, "restarted") {
			w.Errorf("a list says %s", a)
		}
		if a := c.do(3, wire.ToolsCall, `{"name":"files__echo","no":1}`); strings.Contains(a, "restarted") || !strings.Contains(a, `"error"`) {
			w.Errorf("an error says %s", a)
		}
		first, second := c.do(4, wire.ToolsCall, read), c.do(5, wire.ToolsCall, browse)
		if !strings.Contains(first, "roundhouse was restarted: the instance of browser") || strings.Contains(second, "restarted") {
			w.Errorf("the results are\n%s\n%s", first, second)
		}
		if info, _ := w.m.Get("local", false, "run-1"); len(info.Lost) != 1 || !info.Lost[0].Told || len(info.Leases) != 1 {
			w.Errorf("%+v", info)
		}
		w.works(w.ended("run-1"))
	})
}

// N6: neither headers that are forwarded, nor anything of an injected server but its name
// is stored; a client's next request brings the one, and the other is said to be lost.
func TestSecretsAreNotStored(t *testing.T) {
	remote := server("remote")
	remote.Sharing, remote.ForwardHeaders = config.Session, []string{"X-Key"}
	inKeptWorld(t, usual, []*config.Server{remote}, func(w *kept) {
		header := func(value string) func(string) []string {
			return func(name string) []string { return map[string][]string{"X-Key": {value}}[name] }
		}
		f := frame(1, wire.MethodInitialize, `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"2"}}`)
		c, _, err := w.m.Initialize(w.Context(), Hello{ClientID: NewID(), Principal: "local", Session: "run-1", Scope: "", Frame: f, Stream: newTray(), Lasting: true, Header: header("sentinel-one")})
		if err != nil {
			w.Fatal(err)
		}
		own := server("own")
		own.Injected, own.Sharing, own.Env = true, config.Session, map[string]secret.String{"KEY": secret.New("sentinel-two")}
		if err := w.m.Inject("local", "run-1", own); err != nil {
			w.Fatal(err)
		}
		w.works(c.do(2, wire.ToolsCall, `{"name":"remote__echo"}`))
		w.works(c.do(3, wire.ToolsCall, `{"name":"own__echo"}`))
		synctest.Wait()
		row, err := w.store.Session(w.Context(), "local", "run-1")
		if err != nil || strings.Contains(fmt.Sprintf("%+v %s", row, row.Clients), "sentinel") || !strings.Contains(string(row.Clients), `"own"`) {
			w.Fatalf("stored is %s, %v", row.Clients, err)
		}
		w.kill()
		w.begin(w.T)
		c = w.known(c)
		if !c.Headless() {
			w.Error("the client does not miss its header")
		}
		c.Recall(header("sentinel-three"))
		c.Recall(header("sentinel-four")) // counts no more
		w.works(c.do(4, wire.ToolsCall, `{"name":"remote__echo"}`))
		if got := w.link("remote").server.Headers["X-Key"].Reveal(); got != "sentinel-three" || c.Headless() {
			w.Errorf("the server gets %q", got)
		}
		if info, _ := w.m.Get("local", false, "run-1"); len(info.Lost) != 1 || info.Lost[0].Server != "own" || info.Lost[0].Instance != "" || len(info.Injected) != 0 {
			w.Errorf("%+v", info)
		}
	})
}

// N1: an id that is named again after its end begins its next life, also before that is
// stored and after a restart; one that was sealed is over for good.
func TestAnEndedIDBeginsAnewUnlessItIsSealed(t *testing.T) {
	afterEach(t, usual, func() []*config.Server { return nil }, func(w *kept, again func()) {
		lives := func(want int) {
			w.Helper()
			w.client("", "run-1")
			if info, err := w.m.Get("local", false, "run-1"); err != nil || info.Incarnation != want {
				w.Errorf("life %d, not %d: %v", info.Incarnation, want, err)
			}
		}
		lives(1)
		w.works(w.ended("run-1"))
		lives(2)
		again()
		lives(2)
		w.works(w.ended("run-1"))
		synctest.Wait()
		again()
		if _, err := w.m.Get("local", false, "run-1"); !fault.Is(err, fault.UnknownSession) {
			w.Errorf("an ended session came back: %v", err)
		}
		row, err := w.store.Session(w.Context(), "local", "run-1")
		if err != nil {
			w.Fatal(err)
		}
		if info, err := Stored(row); err != nil || info.State != Closed || info.Ended == "" || info.Incarnation != 2 {
			w.Errorf("%+v, %v", info, err)
		}
		lives(3)
		synctest.Wait()
		if _, err := w.store.Seal(w.Context(), store.SessionKey{Principal: "local", ID: "run-1", Incarnation: 3}); err != nil {
			w.Fatal(err)
		}
		w.client("", "run-1") // that is about its recording
		w.works(w.ended("run-1"))
		_, err = w.initialize("", "run-1")
		if !fault.Is(err, fault.SessionSealed) || fault.SessionSealed.Status() != 410 {
			w.Errorf("a sealed id got %v", err)
		}
		again()
		if _, err := w.initialize("", "run-1"); !fault.Is(err, fault.SessionSealed) {
			w.Errorf("after a restart it got %v", err)
		}
	})
}

// N5: how a session's clean-ups went can be seen after its end, and after a restart.
func TestCleanupsAreStored(t *testing.T) {
	browser := exclusive("browser", 1)
	browser.Cleanup = config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}, Timeout: 5 * time.Second}
	inKeptWorld(t, usual, []*config.Server{browser}, func(w *kept) {
		w.cleaners("close", fine)
		for _, id := range []string{"ended", "stopped"} {
			c := w.client("browser", id)
			w.works(c.do(1, wire.ToolsCall, echo))
			if id == "ended" {
				w.works(w.ended(id))
			}
		}
		w.stop()
		w.begin(w.T)
		row, err := w.store.Session(w.Context(), "local", "ended")
		if err != nil {
			w.Fatal(err)
		}
		ended, err := Stored(row)
		if err != nil || len(ended.Cleanups) != 1 || ended.Cleanups[0].Outcome != CleanupOK {
			w.Errorf("%+v, %v", ended, err)
		}
		if stopped, err := w.m.Get("local", false, "stopped"); err != nil || len(stopped.Cleanups) != 1 || stopped.Cleanups[0].Outcome != CleanupOK || len(stopped.Lost) != 1 {
			w.Errorf("%+v, %v", stopped, err)
		}
	})
}

// N1, N6: a session that only model calls have named goes on with its MCP clients.
func TestARecordingGoesOnAsASession(t *testing.T) {
	inKeptWorld(t, usual, nil, func(w *kept) {
		k := store.SessionKey{Principal: "local", ID: "run-1", Incarnation: 1}
		begun := time.Now()
		if err := w.store.Begin(w.Context(), store.Call{Session: k, ID: "c", Attempt: 1, Policy: store.Train, Start: begun}); err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.client("", "run-1")
		synctest.Wait()
		row, err := w.store.Session(w.Context(), "local", "run-1")
		if err != nil || row.Incarnation != 1 || row.State != string(Active) || !row.Created.Equal(begun) {
			w.Errorf("%+v, %v", row, err)
		}
	})
}

// N3: what is stored of a session's last activity is at most half a minute old, and a
// request alone stores nothing.
func TestActivityIsStoredLazily(t *testing.T) {
	inKeptWorld(t, usual, []*config.Server{server("files")}, func(w *kept) {
		c := w.client("files", "run-1")
		w.works(c.do(1, wire.ToolsCall, echo))
		synctest.Wait()
		active := func() time.Time {
			synctest.Wait()
			row, err := w.store.Session(w.Context(), "local", "run-1")
			if err != nil {
				w.Fatal(err)
			}
			return row.LastActivity
		}
		before := active()
		time.Sleep(keepLazily / 3)
		w.works(c.do(2, wire.ToolsCall, echo))
		used := time.Now()
		if got := active(); !got.Equal(before) {
			w.Errorf("a request was stored at once: %s", got)
		}
		time.Sleep(keepLazily)
		if got := active(); !got.Equal(used) {
			w.Errorf("stored is %s, not %s", got, used)
		}
	})
}

// N3: a restart ends what is over by then: what has expired, and sessions that nobody named
// whose shim does not come back; and it keeps no more sessions than there may be.
func TestARestartKeepsWhatIsNotOver(t *testing.T) {
	limits := config.Sessions{Max: 2, IdleTimeout: time.Minute, ExpireAfter: time.Hour}
	inKeptWorld(t, limits, nil, func(w *kept) {
		w.client("", "old")
		time.Sleep(30 * time.Minute)
		shim, err := w.initializeFor("", "", false)
		if err != nil {
			w.Fatal(err)
		}
		w.kill()
		time.Sleep(31 * time.Minute)
		w.begin(w.T)
		synctest.Wait()
		if list := w.m.List("local", true); len(list) != 1 || list[0].ID != shim.ID() || len(list[0].Clients) != 0 {
			w.Errorf("%+v", list)
		}
		time.Sleep(orphanGrace + time.Second)
		synctest.Wait()
		if list := w.m.List("local", true); len(list) != 0 {
			w.Errorf("%+v", list)
		}
		w.client("", "a")
		time.Sleep(time.Second)
		w.client("", "b")
		w.kill()
		broken := store.Session{SessionKey: store.SessionKey{Principal: "local", ID: "broken", Incarnation: 1}, State: string(Active), Created: time.Now(), LastActivity: time.Now(), Clients: []byte(`[1]`)}
		w.limits.Max = 2
		db, err := store.Open(w.Context(), store.Config{Path: w.path})
		if err != nil {
			w.Fatal(err)
		}
		if err := errors.Join(db.SaveSession(w.Context(), broken), db.Close()); err != nil {
			w.Fatal(err)
		}
		w.begin(w.T)
		if list := w.m.List("local", true); len(list) != 1 || list[0].ID != "b" {
			w.Errorf("%+v", list)
		}
		for _, id := range []string{"a", "broken"} {
			if row, err := w.store.Session(w.Context(), "local", id); err != nil || row.State != store.Closed {
				w.Errorf("%+v, %v", row, err)
			}
		}
	})
}

// N6: a store that fails holds up no session, and has all of them when it works again.
func TestSessionsGoOnWithoutTheStore(t *testing.T) {
	inKeptWorld(t, usual, []*config.Server{server("files")}, func(w *kept) {
		if err := w.store.Close(); err != nil {
			w.Fatal(err)
		}
		c, err := w.initialize("files", "")
		if err != nil {
			w.Fatal(err)
		}
		w.works(c.do(1, wire.ToolsCall, echo))
		if _, err := w.initialize("files", "named"); !fault.Is(err, fault.Internal) { // it might be sealed
			w.Errorf("a name that cannot be looked up got %v", err)
		}
		synctest.Wait()
		if st := w.m.Stats(); st.Unsaved != 1 {
			w.Errorf("%+v", st)
		}
		c.Delete()
	})
}

// N6: while the store fails no more ends wait for it than are of use.
func TestEndsThatCannotBeStoredDoNotPileUp(t *testing.T) {
	inKeptWorld(t, usual, nil, func(w *kept) {
		if err := w.store.Close(); err != nil {
			t.Fatal(err)
		}
		for range leavingMost + 100 {
			w.client("", "").Delete()
		}
		synctest.Wait()
		if st := w.m.Stats(); st.Unsaved != leavingMost {
			t.Errorf("%d wait to be stored", st.Unsaved)
		}
	})
}

// N5, N6: an ordered stop stores all sessions as they end, however many there are.
func TestAStopStoresEverySession(t *testing.T) {
	limits := usual
	limits.Max = leavingMost + 200
	inKeptWorld(t, limits, nil, func(w *kept) {
		var clients sync.WaitGroup // at the same time, so that they are stored together
		for range leavingMost + 100 {
			clients.Go(func() {
				if _, err := w.initialize("", ""); err != nil {
					w.Error(err)
				}
			})
		}
		clients.Wait()
		synctest.Wait()
		time.Sleep(keepLazily / 3)
		used := time.Now()
		for _, info := range w.m.List("local", true) {
			c, err := w.m.Client("local", "", info.ID)
			if err != nil {
				w.Fatal(err)
			}
			c.do(1, wire.ToolsList, "{}")
		}
		w.stop()
		w.begin(w.T)
		old := 0
		for _, info := range w.m.List("local", true) {
			if info.LastActivity.Before(used) {
				old++
			}
		}
		if old > 0 {
			w.Errorf("%d are stored as they were before their last request", old)
		}
	})
}

// N1, N6: while the end of a session is not stored its id begins no other one, and who asks
// for it is told to come again. Ends are written before all else.
func TestAnEndThatIsNotStoredKeepsTheId(t *testing.T) {
	roomy := usual
	roomy.Max = 3 * maxDrafts
	inKeptWorld(t, roomy, nil, func(w *kept) {
		w.client("", "gone")
		for i := range 2 * maxDrafts {
			w.client("", fmt.Sprint("stays-", i))
		}
		if err := w.store.Close(); err != nil {
			w.Fatal(err)
		}
		w.works(w.ended("gone"))
		begun := time.Now()
		if _, err := w.initialize("", "gone"); !fault.Is(err, fault.SessionLimit) || time.Since(begun) != storeTimeout {
			w.Errorf("after %s: %v", time.Since(begun), err)
		}
		synctest.Wait()
		w.m.mu.Lock()
		for _, s := range w.m.sessions {
			s.changedLocked()
		}
		drafts := w.m.draftsLocked()
		for _, d := range drafts { // as after a write that failed
			w.m.unsaved[d.s] = true
		}
		clear(w.m.saving)
		w.m.mu.Unlock()
		if len(drafts) != maxDrafts || drafts[0].s.id != "gone" {
			w.Errorf("%d are written, first %q", len(drafts), drafts[0].s.id)
		}
	})
}

// N6, retention: what is stored of closed sessions is bounded.
func TestClosedSessionsAreForgotten(t *testing.T) {
	inKeptWorld(t, usual, nil, func(w *kept) {
		w.client("", "gone")
		w.works(w.ended("gone"))
		time.Sleep(closedKept - time.Hour)
		if _, err := w.store.Session(w.Context(), "local", "gone"); err != nil {
			w.Error(err)
		}
		time.Sleep(2*time.Hour + time.Second)
		synctest.Wait()
		if _, err := w.store.Session(w.Context(), "local", "gone"); !errors.Is(err, store.ErrNotFound) {
			w.Errorf("it is still there: %v", err)
		}
	})
}
