package session

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// create begins a session of local's.
func (w *world) create(spec Spec) Info {
	w.Helper()
	spec.Principal = "local"
	info, err := w.m.Create(context.Background(), spec)
	if err != nil {
		w.Fatal(err)
	}
	return info
}

// state returns a session's state, Closed if there is none.
func (w *world) state(id string) State {
	synctest.Wait()
	info, err := w.m.Get("local", false, id)
	if err != nil {
		return Closed
	}
	return info.State
}

var kinds = config.Sessions{
	Max: 10, IdleTimeout: 10 * time.Minute, ExpireAfter: 24 * time.Hour, MaxTasks: 3,
	Kinds: map[string]config.SessionLimits{"rollout": {IdleTimeout: time.Minute, ExpireAfter: time.Hour, MaxTasks: 1}},
}

// N1, N3: a session that was created has its own limits, else its kind's, else the general
// ones, also after a reload and a restart.
func TestSessionsHaveTheLimitsOfTheirKind(t *testing.T) {
	inKeptWorld(t, kinds, []*config.Server{server("files")}, func(w *kept) {
		info := w.create(Spec{ID: "r", Kind: "rollout", Workspace: "/w", Metadata: []byte(`{"seed":7}`), Limits: config.SessionLimits{ExpireAfter: 3 * time.Hour}})
		if info.Kind != "rollout" || !info.Named || info.Workspace != "/w" || string(info.Metadata) != `{"seed":7}` || info.Limits.IdleTimeout != "1m0s" || info.Limits.ExpireAfter != "3h0m0s" || info.Limits.MaxTasks != 1 {
			t.Errorf("%+v", info)
		}
		if row, err := w.store.Session(w.Context(), "local", "r"); err != nil || string(row.Metadata) != `{"seed":7}` { // before the answer
			t.Errorf("%+v, %v", row, err)
		}
		plain := w.create(Spec{}).ID
		time.Sleep(time.Minute)
		if w.state("r") != Dormant || w.state(plain) != Active {
			t.Errorf("after a minute they are %s and %s", w.state("r"), w.state(plain))
		}
		w.kill()
		w.begin(w.T)
		if info, _ := w.m.Get("local", false, "r"); info.Kind != "rollout" || info.Workspace != "/w" || info.Limits.ExpireAfter != "3h0m0s" || info.Limits.IdleTimeout != "1m0s" {
			t.Errorf("%+v", info)
		}
		c := w.client("files", "r")
		w.works(c.do(1, wire.ToolsCall, echo))
		more := kinds
		more.Kinds = map[string]config.SessionLimits{"rollout": {IdleTimeout: time.Hour}}
		w.m.Configure(Settings{Servers: w.servers, Limits: more, DrainDelay: time.Second})
		time.Sleep(50 * time.Minute)
		if s := w.state("r"); s != Active {
			t.Errorf("with an hour to sleep in it is %s", s)
		}
		time.Sleep(3 * time.Hour)
		if s := w.state("r"); s != Closed {
			t.Errorf("after its own three hours it is %s", s)
		}
		if _, err := w.m.Create(w.Context(), Spec{Principal: "local", ID: plain}); !fault.Is(err, fault.NameTaken) {
			t.Errorf("a taken id got %v", err)
		}
	})
}

// N3, N4: a session whose life is over takes nothing new, and closes when what runs has
// ended, or had its grace, however busy it was.
func TestASessionLivesNoLongerThanItMay(t *testing.T) {
	limits := usual
	limits.MaxLifetime = time.Hour
	inWorld(t, limits, []*config.Server{server("files")}, func(w *world) {
		c := w.client("files", "a")
		for range 4 {
			time.Sleep(14 * time.Minute)
			w.works(c.do(1, wire.ToolsCall, echo))
		}
		_, end := w.start("a")
		time.Sleep(9 * time.Minute)
		if s := w.state("a"); s != Draining {
			t.Errorf("with a task it is %s", s)
		}
		if _, err := w.initialize("files", "a"); err == nil {
			t.Error("a new client came in")
		}
		_ = end()
		if s := w.state("a"); s != Closed {
			t.Errorf("without a task it is %s", s)
		}
		c = w.client("files", "a")                                                    // its id is free
		w.on = func(_ *link, f wire.Frame) bool { return f.Method == wire.ToolsCall } // it is never answered
		time.Sleep(59 * time.Minute)
		begun := time.Now()
		if answer := c.do(2, wire.ToolsCall, echo); !strings.Contains(answer, "maxLifetime") || time.Since(begun) > 12*time.Minute {
			t.Errorf("a call that does not end, after %s: %s", time.Since(begun), answer)
		}
		synctest.Wait()
		if s := w.state("a"); s != Closed {
			t.Errorf("after the grace of a call that does not end it is %s", s)
		}
	})
}

// N3: a session is not idle while a model is called in its name; that wakes none, and ends
// with the call.
func TestModelCallsAreActivity(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		c := w.client("browser", "a")
		w.works(c.do(1, wire.ToolsCall, echo))
		release := w.m.Occupy("local", "a")
		w.m.Occupy("other", "a")()
		w.m.Occupy("local", "none")()
		time.Sleep(time.Hour)
		if info, _ := w.m.Get("local", false, "a"); info.State != Active || len(info.Leases) != 1 {
			t.Errorf("%+v", info)
		}
		release()
		time.Sleep(9 * time.Minute)
		if s := w.state("a"); s != Active {
			t.Errorf("after nine minutes it is %s", s)
		}
		time.Sleep(2 * time.Minute)
		if s := w.state("a"); s != Dormant {
			t.Errorf("after eleven minutes it is %s", s)
		}
		w.m.Occupy("local", "a")()
		if s := w.state("a"); s != Dormant {
			t.Errorf("a model call made it %s", s)
		}
	})
}
