package session

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// pictured is an exclusive server with a tool that shows what an instance looks like.
func pictured(name string, max int) *config.Server {
	s := exclusive(name, max)
	s.Instances.Snapshot = config.ToolCall{Tool: "shoot", Arguments: json.RawMessage(`{"full":true}`)}
	return s
}

const shot = `{"content":[{"type":"image","data":"aGk=","mimeType":"image/png","n":9007199254740993}],"x":1}`

// shooters makes servers answer calls of shoot with what result returns, "" being not at all.
func (w *world) shooters(result func() string) {
	w.on = func(l *link, f wire.Frame) bool {
		if f.Method != wire.ToolsCall || !strings.Contains(string(f.Params()), `"shoot"`) {
			return false
		}
		if !strings.HasPrefix(string(f.Params()), `{"name":"shoot","arguments":{"full":true},`) {
			w.Errorf("the server was asked with %s", f.Params())
		}
		if answer := result(); answer != "" {
			l.wg.Go(func() { l.say(wire.Result(f.ID(), []byte(answer))) })
		}
		return true
	}
}

// failsWith reports whether an error has a reason, which may be a call's.
func failsWith(err error, r fault.Reason) bool {
	call, ok := errors.AsType[*CallError](err)
	return fault.Is(err, r) || ok && call.Reason == r
}

// A2, I2: the picture is of the session's own instance, and its content is the server's. A
// session without an instance leases one only if that is wanted.
func TestSnapshotShowsTheSessionsInstance(t *testing.T) {
	inWorld(t, usual, []*config.Server{pictured("browser", 2), exclusive("blind", 1), server("files")}, func(w *world) {
		w.shooters(func() string { return shot })
		a := w.client("", "a").Session()
		if _, err := a.Snapshot(w.Context(), "browser", false); !failsWith(err, fault.UnknownServer) || !strings.Contains(err.Error(), `session "a" has no instance`) {
			t.Error(err)
		}
		w.expectLeases()
		for _, name := range []string{"browser", ""} {
			p, err := a.Snapshot(w.Context(), name, true)
			if err != nil {
				t.Fatal(err)
			}
			if p.Server != "browser" || string(p.Content) != `[{"type":"image","data":"aGk=","mimeType":"image/png","n":9007199254740993}]` {
				t.Errorf("%s: %s", p.Server, p.Content)
			}
			w.expectLeases("a=browser#1")
		}
		for _, name := range []string{"blind", "files"} {
			if _, err := a.Snapshot(w.Context(), name, true); !failsWith(err, fault.UnknownServer) || !strings.Contains(err.Error(), "instances.snapshot") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if i, err := w.m.Get("local", false, "a"); err != nil || len(i.Clients) != 1 || i.InFlight != 0 {
			t.Errorf("%+v, %v", i, err)
		}
	})
}

// A2: without a name it is the instance that the session has; where that is not clear it is
// none.
func TestSnapshotWithoutANameIsOfWhatTheSessionHas(t *testing.T) {
	inWorld(t, usual, []*config.Server{pictured("one", 1), pictured("two", 1)}, func(w *world) {
		w.shooters(func() string { return shot })
		c := w.client("two", "a")
		a := c.Session()
		if _, err := a.Snapshot(w.Context(), "", true); !failsWith(err, fault.BadRequest) || !strings.Contains(err.Error(), "one, two") {
			t.Error(err)
		}
		w.works(c.do(1, wire.ToolsCall, echo))
		if p, err := a.Snapshot(w.Context(), "", false); err != nil || p.Server != "two" {
			t.Error(p, err)
		}
		w.expectLeases("a=two#1")
	})
}

// A2, V3: a picture is a call of the session: its filters hold, it keeps the session awake,
// and the server is told afterwards that the session has used it (N3, N5).
func TestSnapshotIsACallOfTheSession(t *testing.T) {
	s := pictured("browser", 1)
	s.Cleanup.Tool = "close"
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		w.shooters(func() string { return shot })
		a := w.client("", "a").Session()
		a.setTools(&Tools{Exclude: []string{"browser__shoot"}})
		if _, err := a.Snapshot(w.Context(), "browser", true); !failsWith(err, fault.ForbiddenTool) {
			t.Error(err)
		}
		a.setTools(&Tools{})
		time.Sleep(9 * time.Minute)
		if _, err := a.Snapshot(w.Context(), "browser", true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Minute)
		w.expectLeases("a=browser#1")
		w.works(w.ended("a"))
		if got, want := w.m.Stats().Cleanups, map[Outcome]int64{CleanupOK: 1}; !maps.Equal(got, want) {
			t.Errorf("clean-ups: %v", got)
		}
	})
}

// A2: a picture that does not come is an error in time, and is cancelled at the server; so is
// one that nobody wants any more, and one whose session ends.
func TestSnapshotHasADeadline(t *testing.T) {
	ends := map[string]struct {
		end  func(w *world, cancel context.CancelCauseFunc)
		want fault.Reason
		took time.Duration
	}{
		"no answer":   {func(*world, context.CancelCauseFunc) {}, fault.CallTimeout, snapshotLimit},
		"the caller":  {func(_ *world, cancel context.CancelCauseFunc) { cancel(errCancelled) }, "", time.Second},
		"the session": {func(w *world, _ context.CancelCauseFunc) { w.ended("a") }, fault.UnknownSession, time.Second},
		"the lease":   {func(w *world, _ context.CancelCauseFunc) { _ = w.m.ReleaseLease("local", true, "a", "browser") }, fault.Interrupted, time.Second},
	}
	for name, test := range ends {
		t.Run(name, func(t *testing.T) {
			inWorld(t, usual, []*config.Server{pictured("browser", 1)}, func(w *world) {
				w.shooters(func() string { return "" })
				c := w.client("browser", "a")
				w.works(c.do(1, wire.ToolsCall, echo))
				ctx, cancel := context.WithCancelCause(w.Context())
				defer cancel(nil)
				time.AfterFunc(time.Second, func() { test.end(w, cancel) })
				begun := time.Now()
				_, err := c.Session().Snapshot(ctx, "browser", true)
				if test.want == "" && !errors.Is(err, errCancelled) || test.want != "" && !failsWith(err, test.want) {
					t.Error(err)
				}
				if took := time.Since(begun); took != test.took {
					t.Errorf("it took %s", took)
				}
				synctest.Wait()
				l := w.link("browser")
				l.mu.Lock()
				defer l.mu.Unlock()
				if name != "the session" && name != "the lease" && !slices.Contains(l.seen, wire.Cancelled) {
					t.Errorf("the server saw %v", l.seen)
				}
			})
		})
	}
}

// A2, I3: a picture waits for an instance like any call, and fails like one; a tool that
// refuses is an error.
func TestSnapshotFails(t *testing.T) {
	inWorld(t, usual, []*config.Server{pictured("browser", 1)}, func(w *world) {
		w.shooters(func() string { return `{"content":[{"type":"text","text":"no page"}],"isError":true}` })
		a, b := w.client("browser", "a"), w.client("browser", "b")
		if _, err := a.Session().Snapshot(w.Context(), "", true); err == nil || !strings.Contains(err.Error(), "no page") {
			t.Error(err)
		}
		begun := time.Now()
		if _, err := b.Session().Snapshot(w.Context(), "", true); !failsWith(err, fault.InstanceWaitTimeout) || !strings.Contains(err.Error(), "1 of 1 are lent to 1 session") {
			t.Error(err)
		}
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("it waited for %s", took)
		}
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(w.Context())
		wg.Go(func() {
			if _, err := b.Session().Snapshot(ctx, "", true); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
		synctest.Wait()
		if i := w.instances.Snapshot("", true)[0]; len(i.Waiting) > 0 {
			t.Errorf("%+v", i.Waiting)
		}
	})
}

// A2, N4: a task that has its time while its session ends shows what it has used, too; when
// that time is over nothing does.
func TestATaskTakesAPictureWhileItsSessionEnds(t *testing.T) {
	inWorld(t, usual, []*config.Server{pictured("browser", 1)}, func(w *world) {
		w.shooters(func() string { return shot })
		c := w.client("browser", "a")
		w.works(c.do(1, wire.ToolsCall, echo))
		task, end := w.start("a")
		grace, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		ended := make(chan error)
		go func() { ended <- w.m.End(grace, "local", false, "a", false) }()
		synctest.Wait()
		if p, err := task.Session().Snapshot(w.Context(), "", false); err != nil || p.Server != "browser" {
			t.Errorf("%v, %v", p, err)
		}
		cancel()
		synctest.Wait()
		if _, err := task.Session().Snapshot(w.Context(), "browser", true); err == nil {
			t.Error("there is a picture after the end")
		}
		_ = end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
