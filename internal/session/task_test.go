package session

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// start runs a task of a session in a goroutine until end is called, which returns
// RunTask's error; the task then has ended.
func (w *world) start(session string) (task *Task, end func() error) {
	w.Helper()
	over, got := make(chan struct{}), make(chan *Task, 1)
	done := make(chan error, 1)
	go func() {
		done <- w.m.RunTask(context.Background(), TaskSpec{Principal: "local", Session: session, What: "test"}, func(_ context.Context, t *Task) {
			got <- t
			<-over
		})
	}()
	select {
	case task = <-got:
	case err := <-done:
		w.Fatal(err)
	}
	return task, func() error {
		close(over)
		return <-done
	}
}

// tasks returns how many tasks a session runs, -1 if there is no such session.
func (w *world) tasks(session string) int {
	info, err := w.m.Get("local", false, session)
	if err != nil {
		return -1
	}
	return len(info.Tasks)
}

// A5: a task is registered before it starts, and not any more when it has ended, also
// when it panicked.
func TestTasksAreRegisteredWhileTheyRun(t *testing.T) {
	inWorld(t, usual, nil, func(w *world) {
		spec := TaskSpec{Principal: "local", Session: "a", What: "count"}
		if err := w.m.RunTask(w.Context(), spec, func(_ context.Context, task *Task) {
			info, err := w.m.Get("local", false, "a")
			if err != nil || len(info.Tasks) != 1 || info.Tasks[0].What != "count" || info.InFlight != 0 || task.Session().ID() != "a" {
				t.Errorf("%+v, %v", info, err)
			}
			if st := w.m.Stats(); st.Tasks != 1 {
				t.Errorf("%+v", st)
			}
		}); err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = w.m.RunTask(w.Context(), spec, func(context.Context, *Task) { panic("test") })
		}()
		if n := w.tasks("a"); n != 0 {
			t.Errorf("%d tasks are left", n)
		}
	})
}

// N3: a session with a task never falls asleep or expires, and its idle time counts from
// the end of the task.
func TestASessionWithATaskIsNeverReaped(t *testing.T) {
	inWorld(t, config.Sessions{Max: 1, IdleTimeout: time.Minute, ExpireAfter: time.Hour}, nil, func(w *world) {
		_, end := w.start("a")
		time.Sleep(5 * time.Hour)
		if s, err := w.m.Get("local", false, "a"); err != nil || s.State != Active {
			t.Fatalf("%+v, %v", s, err)
		}
		if _, err := w.initialize("", "b"); !fault.Is(err, fault.SessionLimit) { // N2
			t.Errorf("a newcomer got %v", err)
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute - time.Second)
		if s, _ := w.m.Get("local", false, "a"); s.State != Active {
			t.Errorf("a second before its time it is %s", s.State)
		}
		time.Sleep(time.Minute)
		if s, _ := w.m.Get("local", false, "a"); s.State != Dormant {
			t.Errorf("it is %s", s.State)
		}
	})
}

// N4, defect of the reference: a draining session whose last task ends closes by itself;
// until then the task may work on, and nothing new begins.
func TestADrainingSessionClosesWithItsLastTask(t *testing.T) {
	inWorld(t, usual, []*config.Server{server("files")}, func(w *world) {
		c := w.client("files", "a")
		one, endOne := w.start("a")
		_, endTwo := w.start("a")
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := w.m.End(context.Background(), "local", false, "a", false); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if s, err := w.m.Get("local", false, "a"); err != nil || s.State != Draining {
			t.Fatalf("%+v, %v", s, err)
		}
		if a := c.do(1, wire.ToolsCall, echo); !strings.Contains(a, "unknown_session") {
			t.Errorf("a new request got %s", a)
		}
		err := w.m.RunTask(w.Context(), TaskSpec{Principal: "local", Session: "a"}, func(context.Context, *Task) {})
		if err == nil {
			t.Error("a new task began")
		}
		v, err := one.Branch(c, "files")
		if err != nil {
			t.Fatal(err)
		}
		w.works(v.do(1, wire.ToolsCall, echo))
		v.Leave()
		if err := endOne(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := w.tasks("a"); n != 1 {
			t.Errorf("with one task left it has %d", n)
		}
		if err := endTwo(); err != nil {
			t.Error(err)
		}
		wg.Wait() // in no time
		if _, err := w.m.Get("local", false, "a"); !fault.Is(err, fault.UnknownSession) {
			t.Errorf("it has not closed: %v", err)
		}
	})
}

// N4: who ends a session with force, or has no time left, does not wait for one who does.
func TestForceCutsTheWaitOfAnotherEnd(t *testing.T) {
	for name, force := range map[string]bool{"force": true, "grace": false} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, usual, nil, func(w *world) {
				cause := make(chan error, 1)
				go func() {
					_ = w.m.RunTask(context.Background(), TaskSpec{Principal: "local", Session: "a"}, func(ctx context.Context, _ *Task) {
						<-ctx.Done()
						cause <- context.Cause(ctx)
					})
				}()
				synctest.Wait()
				var wg sync.WaitGroup
				wg.Go(func() { _ = w.m.End(context.Background(), "local", false, "a", false) })
				synctest.Wait()
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				if err := w.m.End(ctx, "local", false, "a", force); err != nil {
					t.Error(err)
				}
				wg.Wait()
				if err := <-cause; !errors.Is(err, errEnded) {
					t.Errorf("the task ended because of %v", err)
				}
			})
		})
	}
}

// A3: no more tasks run in a session than its limit; who waits has his place when one ends.
func TestTasksHaveALimit(t *testing.T) {
	inWorld(t, config.Sessions{Max: 9, MaxTasks: 2}, nil, func(w *world) {
		_, endOne := w.start("a")
		_, endTwo := w.start("a")
		spec := TaskSpec{Principal: "local", Session: "a"}
		err := w.m.RunTask(w.Context(), spec, func(context.Context, *Task) { t.Error("a third task ran") })
		if !fault.Is(err, fault.TaskLimit) || fault.Of(err).RetrySeconds() == 0 {
			t.Errorf("the third got %v", err)
		}
		spec.Wait = true
		hurried, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if err := w.m.RunTask(hurried, spec, func(context.Context, *Task) { t.Error("it ran") }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one who waits in vain got %v", err)
		}
		ran := make(chan error, 5)
		var running, most atomic.Int32
		for range 5 {
			go func() {
				ran <- w.m.RunTask(context.Background(), spec, func(context.Context, *Task) {
					most.Store(max(most.Load(), running.Add(1)))
					time.Sleep(time.Second)
					running.Add(-1)
				})
			}()
		}
		synctest.Wait()
		_, _ = endOne(), endTwo()
		for range 5 {
			if err := <-ran; err != nil {
				t.Error(err)
			}
		}
		if most.Load() != 2 {
			t.Errorf("%d tasks ran at once", most.Load())
		}
	})
}

// A3, N4: a task without a session has one of its own, which ends with it.
func TestATaskMayHaveASessionOfItsOwn(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		c := w.client("", "")
		if err := w.m.RunTask(w.Context(), TaskSpec{Principal: "local"}, func(_ context.Context, task *Task) {
			v, err := task.Branch(c, "browser")
			if err != nil {
				t.Fatal(err)
			}
			defer v.Leave()
			w.works(v.do(1, wire.ToolsCall, echo))
			if s, err := w.m.Get("local", false, task.Session().ID()); err != nil || s.Named || len(s.Leases) != 1 || len(s.Tasks) != 1 {
				t.Errorf("%+v, %v", s, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		c.Delete()
		synctest.Wait()
		if list := w.m.List("local", true); len(list) != 0 {
			t.Errorf("left: %+v", list)
		}
	})
}

// N4: a session that nobody named outlives its last client while it runs a task, and its
// tasks end with a shutdown.
func TestASessionEndsWithItsLastTaskWhenItsClientHasLeft(t *testing.T) {
	inWorld(t, usual, nil, func(w *world) {
		c := w.client("", "")
		_, end := w.start(c.Session().ID())
		c.Delete()
		synctest.Wait()
		if n := w.tasks(c.Session().ID()); n != 1 {
			t.Errorf("it has %d tasks", n)
		}
		_ = end()
		synctest.Wait()
		if n := w.tasks(c.Session().ID()); n != -1 {
			t.Error("it has not ended")
		}

		c = w.client("", "")
		stopped := make(chan error, 1)
		go func() {
			_ = w.m.RunTask(context.Background(), TaskSpec{Principal: "local", Session: c.Session().ID()}, func(ctx context.Context, _ *Task) {
				<-ctx.Done()
				stopped <- context.Cause(ctx)
			})
		}()
		synctest.Wait()
		c.Delete()
		w.m.Drain()
		grace, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if n := w.m.Wait(grace); n != 1 { // G1
			t.Errorf("%d were left after the grace", n)
		}
		w.m.Shutdown(context.Background())
		if err := <-stopped; err == nil {
			t.Error("the task was not told why")
		}
	})
}

// N7, defect of the reference: what there is can be looked at while a session waits for an
// instance, another one's clean-up hangs, a task runs, and a session ends; nobody waits for
// that.
func TestLookingWaitsForNothing(t *testing.T) {
	browser := exclusive("browser", 1)
	browser.Cleanup = config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}, Timeout: 5 * time.Second}
	inWorld(t, usual, []*config.Server{browser}, func(w *world) {
		w.cleaners("close", "") // which never answer
		look := func(when string, want map[string]State) {
			t.Helper()
			synctest.Wait()
			begun := time.Now()
			st, list := w.m.Stats(), w.m.List("local", true)
			for id, state := range want {
				if info, err := w.m.Get("local", false, id); err != nil || info.State != state {
					t.Errorf("%s: %s is %s, %v", when, id, info.State, err)
				}
			}
			if n := st.Sessions[Active] + st.Sessions[Draining] + st.Sessions[Dormant]; n != len(want) || len(list) != n {
				t.Errorf("%s: %+v", when, st)
			}
			if took := time.Since(begun); took > 0 {
				t.Errorf("%s: looking took %s", when, took)
			}
		}
		a, b := w.client("browser", "a"), w.client("browser", "b")
		w.works(a.do(1, wire.ToolsCall, echo))
		var wg sync.WaitGroup
		wg.Go(func() { w.works(b.do(1, wire.ToolsCall, echo)) })
		_, end := w.start("c")
		look("while b waits", map[string]State{"a": Active, "b": Active, "c": Active})
		wg.Go(func() { w.works(w.ended("a")) })
		wg.Go(func() { _ = w.m.End(context.Background(), "local", false, "c", false) })
		look("while a's clean-up hangs", map[string]State{"a": Draining, "b": Active, "c": Draining})
		time.Sleep(5 * time.Second)
		look("when b has the instance", map[string]State{"b": Active, "c": Draining})
		_ = end()
		wg.Wait()
		look("at the end", map[string]State{"b": Active})
	})
}
