package session

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/wire"
)

// begunBy returns the name of the session that a call which stands alone has begun.
func (w *world) begunBy(answer string) string {
	w.Helper()
	w.works(answer)
	_, after, _ := strings.Cut(answer, `"roundhouse/session":"`)
	name, _, ok := strings.Cut(after, `"`)
	if !ok {
		w.Fatalf("no session began: %s", answer)
	}
	return name
}

// A6, I3: calls that stand alone do not keep each other from instances: the oldest of the
// sessions that they begin, and nobody has named, gives its one up. Who names it later is
// told so. One that was named keeps what it has.
func TestCallsThatStandAloneMakeRoomForEachOther(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 2)}, func(w *world) {
		var x calls
		x.serve(w, "")
		var names []string
		for range 6 {
			time.Sleep(time.Second)
			begun := time.Now()
			names = append(names, w.begunBy(w.stateless("browser", wire.ToolsCall, `{"name":"go"}`)))
			if took := time.Since(begun); took > time.Second {
				t.Errorf("call %d took %s", len(names), took)
			}
		}
		named := func(name string) string {
			w.Helper()
			answer := w.stateless("browser", wire.ToolsCall, `{"name":"go","arguments":{"session_id":"`+name+`"}}`)
			w.works(answer)
			return answer
		}
		if answer := named(names[5]); strings.Contains(answer, "begin anew") {
			t.Errorf("the last one has lost its instance: %s", answer)
		}
		w.begunBy(w.stateless("browser", wire.ToolsCall, `{"name":"go"}`)) // takes that of names[4]
		w.works(w.ended(names[5]))
		if answer := named(names[4]); !strings.Contains(answer, "given to another call") {
			t.Errorf("nothing says that the instance is another one: %s", answer)
		}
		if answer := named(names[4]); strings.Contains(answer, "given to another call") {
			t.Errorf("it is said twice: %s", answer)
		}
		w.client("browser", "b").do(1, wire.ToolsCall, `{"name":"go"}`)
	})
}

// A6, I3: a session that was named keeps its instance, whatever calls stand alone.
func TestASessionThatWasNamedMakesNoRoom(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		var x calls
		x.serve(w, "")
		name := w.begunBy(w.stateless("browser", wire.ToolsCall, `{"name":"go"}`))
		w.works(w.stateless("browser", wire.ToolsCall, `{"name":"go","arguments":{"session_id":"`+name+`"}}`))
		if answer := w.stateless("browser", wire.ToolsCall, `{"name":"go"}`); !strings.Contains(answer, "1 of 1 are lent") {
			t.Error(answer)
		}
		w.expectLeases(name + "=browser#1")
	})
}

// A6, N2: a session that a call began and nobody named does not outlive its idle timeout;
// one that was named falls asleep, as others do.
func TestASessionThatNobodyNamesEndsWhenItIsIdle(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 2)}, func(w *world) {
		var x calls
		x.serve(w, "")
		left := w.begunBy(w.stateless("browser", wire.ToolsCall, `{"name":"go"}`))
		kept := w.begunBy(w.stateless("browser", wire.ToolsCall, `{"name":"go"}`))
		w.works(w.stateless("browser", wire.ToolsCall, `{"name":"go","arguments":{"session_id":"`+kept+`"}}`))
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if s := w.state(left); s != Closed {
			t.Errorf("the one that nobody named is %s", s)
		}
		if s := w.state(kept); s != Dormant {
			t.Errorf("the one that was named is %s", s)
		}
	})
}

// A6, N6: a restart makes no difference to whether a session was named.
func TestARestartKnowsWhichSessionsNobodyNamed(t *testing.T) {
	servers := func() []*config.Server { return []*config.Server{exclusive("browser", 3)} }
	afterEach(t, usual, servers, func(w *kept, again func()) {
		var x calls
		x.serve(w.world, "")
		call := func(name string) string {
			return w.stateless("browser", wire.ToolsCall, `{"name":"go","arguments":{"session_id":"`+name+`"}}`)
		}
		left := w.begunBy(w.stateless("browser", wire.ToolsCall, `{"name":"go"}`))
		named := w.begunBy(w.stateless("browser", wire.ToolsCall, `{"name":"go"}`))
		later := w.begunBy(w.stateless("browser", wire.ToolsCall, `{"name":"go"}`))
		w.works(call(named))
		synctest.Wait()
		again()
		x.serve(w.world, "")
		if answer := call(later); !strings.Contains(answer, "roundhouse was restarted") {
			t.Errorf("it does not go on: %s", answer)
		}
		synctest.Wait()
		again()
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		for name, want := range map[string]State{left: Closed, named: Dormant, later: Dormant} {
			if s := w.state(name); s != want {
				t.Errorf("%s is %s; want %s", name, s, want)
			}
		}
	})
}

// X2: what a response rests stays as it is while a client may want it, which a model call does
// not.
func TestRestLeavesWhatOthersUse(t *testing.T) {
	inWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *world) {
		c := w.client("browser", "a")
		w.works(c.do(1, wire.ToolsCall, echo))
		w.m.Rest("local", "a")
		w.expectLeases("a=browser#1")
		if err := w.m.RunTask(w.Context(), TaskSpec{Principal: "local", Session: "b"}, func(context.Context, *Task) {}); err != nil {
			t.Fatal(err)
		}
		defer w.m.Occupy("local", "b")()
		if s := w.state("b"); s != Active {
			t.Errorf("before it is %s", s)
		}
		w.m.Rest("local", "b")
		if s := w.state("b"); s != Dormant {
			t.Errorf("with nothing but a model call it is %s", s)
		}
	})
}
