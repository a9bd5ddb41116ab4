package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// numbered reads the number of a call, and has later ones take less time.
func numbered(l *link, arguments json.RawMessage, of int) int {
	var a struct{ N int }
	_ = json.Unmarshal(arguments, &a)
	l.sleep(time.Duration(of-a.N) * time.Second)
	return a.N
}

// A3, A4: one after another keeps the order, at the same time takes the time of the
// slowest; either way the results come in the order of the calls, and progress rises.
func TestABatchAnswersInOrder(t *testing.T) {
	for mode, want := range map[string]struct {
		took    time.Duration
		inOrder bool
	}{
		"":                    {15 * time.Second, true},
		`,"concurrent":false`: {15 * time.Second, true},
		`,"concurrent":true`:  {5 * time.Second, false},
	} {
		inWorld(t, 16, func(w *world) {
			var mu sync.Mutex
			var ended []int
			w.call = func(l *link, _ string, arguments json.RawMessage) (string, error) {
				n := numbered(l, arguments, 5)
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, n)
				return saying(fmt.Sprint(n)), nil
			}
			out, begun := newTray(), time.Now()
			r := w.tool(w.client("local", "roundhouse", ""), out, "batch", batchOf("files", 5, mode))
			if took := time.Since(begun); took != want.took {
				t.Errorf("%s: it took %s", mode, took)
			}
			if got := r.texts(); !slices.Equal(got, []string{"0", "1", "2", "3", "4"}) {
				t.Errorf("%s: %s", mode, r.raw)
			}
			if slices.IsSorted(ended) != want.inOrder {
				t.Errorf("%s: they ended in the order %v", mode, ended)
			}
			var progress []string
			for i := range 5 {
				progress = append(progress, fmt.Sprintf(`{"progressToken":"p","progress":%d,"total":5,"message":"%d of 5 done"}`, i+1, i+1))
			}
			if got := out.said(wire.Progress); !slices.Equal(got, progress) {
				t.Errorf("%s: %v", mode, got)
			}
		})
	}
}

// A3: at the same time means within the limit of tasks.
func TestConcurrentCallsStayWithinTheLimitOfTasks(t *testing.T) {
	for _, mode := range []string{`,"concurrent":true`, `,"concurrent":true,"isolate":true`} {
		inWorld(t, 3, func(w *world) {
			var mu sync.Mutex
			now, most := 0, 0
			w.call = func(l *link, _ string, _ json.RawMessage) (string, error) {
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				l.sleep(time.Second)
				mu.Lock()
				now--
				mu.Unlock()
				return saying("x"), nil
			}
			r := w.tool(w.client("local", "roundhouse", ""), nil, "batch", batchOf("files", 10, mode))
			if most != 3 || len(r.texts()) != 10 {
				t.Errorf("%s: %d at once: %s", mode, most, r.raw)
			}
		})
	}
}

// A3: a call that fails, in whatever way, is its own result and stops no other.
func TestOneFailureStopsNoOther(t *testing.T) {
	for _, mode := range []string{``, `,"concurrent":true`, `,"isolate":true`} {
		inWorld(t, 16, func(w *world) {
			w.call = func(_ *link, _ string, arguments json.RawMessage) (string, error) {
				if string(arguments) == `{"n":1}` {
					return "", errors.New("boom")
				}
				return saying(string(arguments)), nil
			}
			calls := `{"server":"files","tool":"do","arguments":{"n":0}},{"server":"files","tool":"do","arguments":{"n":1}},{"server":"nope","tool":"do"},` +
				`{"server":"files","tool":"do","arguments":null},{"server":"files","tool":"do","arguments":{"n":4}}`
			r := w.tool(w.client("local", "", ""), nil, "roundhouse__batch", `{"calls":[`+calls+`]`+mode+`}`)
			got := r.Result.Structured.Results
			if len(got) != 5 || r.Result.IsError {
				t.Fatal(mode, r.raw)
			}
			for i, failed := range []bool{false, true, true, false, false} {
				if got[i].IsError != failed || strings.HasPrefix(got[i].Text, "Task failed: ") != failed {
					t.Errorf("%s: call %d: %+v", mode, i, got[i])
				}
			}
			if !strings.Contains(got[1].Text, "boom") || !strings.Contains(got[2].Text, "nope") || got[3].Text != "{}" {
				t.Error(mode, r.raw)
			}
		})
	}
}

// A3: isolated calls have a session and an instance each, which end with them; others
// share the session's.
func TestIsolatedCallsHaveAnInstanceEach(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		c := w.client("local", "roundhouse", "mine")
		r := w.tool(c, nil, "batch", batchOf("browser", 3, `,"isolate":true`))
		if got := r.texts(); !slices.Equal(got, []string{`{"n":0}`, `{"n":1}`, `{"n":2}`}) {
			t.Error(r.raw)
		}
		if got := w.seen(); len(got) != 3 || got[0] == got[1] || got[1] == got[2] || got[0] == got[2] {
			t.Errorf("they were served by %v", got)
		}
		synctest.Wait()
		if got := w.sessions("local"); !slices.Equal(got, []string{"mine"}) {
			t.Errorf("there are sessions %v", got)
		}
		for _, i := range w.m.List("local", false) {
			if len(i.Leases) > 0 {
				t.Errorf("%+v", i.Leases)
			}
		}
		before := len(w.seen())
		w.tool(c, nil, "batch", batchOf("browser", 3, `,"concurrent":true`))
		if got := w.seen()[before:]; len(got) != 3 || got[0] != got[1] || got[1] != got[2] {
			t.Errorf("they were served by %v", got)
		}
	})
}

// A3, X4: the result of isolated calls does not wait for the clean-up of the last ones; while
// an earlier one is cleaned up its place is taken.
func TestIsolatedCallsAreCleanedUpBehindTheirResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, cleanup: config.Cleanup{ToolCall: config.ToolCall{Tool: "tidy"}, Timeout: 5 * time.Second}}
		defer w.begin(16, Config{})()
		var tidied, most atomic.Int64
		w.call = func(_ *link, tool string, _ json.RawMessage) (string, error) {
			most.Store(max(most.Load(), int64(len(w.sessions("local")))))
			if tool == "tidy" {
				time.Sleep(4 * time.Second)
				tidied.Add(1)
			}
			return saying("fine"), nil
		}
		c := w.client("local", "roundhouse", "mine")
		begun := time.Now()
		r := w.tool(c, nil, "batch", batchOf("browser", 2, `,"isolate":true`))
		if took := time.Since(begun); took != 4*time.Second || len(r.texts()) != 2 || tidied.Load() != 1 {
			t.Errorf("after %s and %d clean-ups: %s", took, tidied.Load(), r.raw)
		}
		time.Sleep(5 * time.Second)
		if n := len(w.sessions("local")); n != 1 || tidied.Load() != 2 || most.Load() != 2 {
			t.Errorf("%d sessions, %d at most, %d clean-ups", n, most.Load(), tidied.Load())
		}
	})
}

// A3: an empty list has an empty list of results.
func TestAnEmptyBatch(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		r := w.tool(w.client("local", "roundhouse", ""), nil, "batch", `{"calls":[],"concurrent":true}`)
		if !strings.Contains(r.raw, `{"content":[],"structuredContent":{"results":[]}}`) {
			t.Error(r.raw)
		}
	})
}

// A5: while a call of a batch runs it is a task of the session, and none is left when it
// has ended, been cancelled, or its caller has gone.
func TestCallsOfABatchAreTasks(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		w.call = func(l *link, _ string, _ json.RawMessage) (string, error) {
			l.sleep(time.Minute)
			return saying("x"), nil
		}
		tasks := func(session string) int {
			i, err := w.m.Get("local", false, session)
			if err != nil {
				t.Fatal(err)
			}
			return len(i.Tasks)
		}
		for _, end := range []string{"by itself", "cancelled", "left"} {
			c, out := w.client("local", "roundhouse", "s"), newTray()
			c.Session().Do(c, request(1, wire.ToolsCall, `{"name":"batch","arguments":`+batchOf("files", 3, `,"concurrent":true`)+`}`), out)
			synctest.Wait()
			if n := tasks("s"); n != 3 {
				t.Errorf("%s: %d tasks", end, n)
			}
			cancelled := func() (n int) {
				for _, what := range w.seen() {
					if strings.HasSuffix(what, " cancelled") {
						n++
					}
				}
				return n
			}
			before, want := cancelled(), 3
			switch end {
			case "by itself":
				time.Sleep(61 * time.Second)
				want = 0
			case "cancelled":
				f, err := wire.Parse(wire.NewNotification(wire.Cancelled, []byte(`{"requestId":1}`)))
				if err != nil {
					t.Fatal(err)
				}
				c.Session().Do(c, f, nil)
			case "left":
				c.Delete()
			}
			synctest.Wait()
			if n := tasks("s"); n != 0 {
				t.Errorf("%s: %d tasks are left", end, n)
			}
			if n := cancelled() - before; n != want {
				t.Errorf("%s: %d calls were cancelled at the server", end, n)
			}
			if p := <-out.done; end == "cancelled" != p.Empty() {
				t.Errorf("%s: %s", end, p.AppendTo(nil))
			}
		}
	})
}

// A2, A5: a task that panics has failed, in the words of its tool; it is unregistered, and the others are not touched.
func TestATaskThatPanics(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		c := w.client("local", "roundhouse", "s")
		for _, atOnce := range []int{1, 2} {
			panics := false
			got := w.t.carryOut(slices.Repeat([]job{{complaint: "Oh no: "}}, 3), atOnce, func(i int) (o outcome) {
				err := w.m.RunTask(w.Context(), session.TaskSpec{Principal: "local", Session: "s"}, func(context.Context, *session.Task) {
					if i == 1 {
						panics = true
						panic("oh")
					}
					o = readResult([]byte(saying("fine")))
				})
				if err != nil {
					t.Error(err)
				}
				return o
			}, func(int) {})
			if !panics || got[0].words() != "fine" || got[2].words() != "fine" || !got[1].isError || got[1].words() != "Oh no: roundhouse has a defect: oh" {
				t.Errorf("%+v", got)
			}
			if i, err := w.m.Get("local", false, "s"); err != nil || len(i.Tasks) > 0 {
				t.Error(i, err)
			}
		}
		c.Delete()
	})
}

// A4: a batch in another session begins it; in that of a request that belongs to none a
// session begins, whose name the result says.
func TestABatchInAnotherSession(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		c := w.client("local", "roundhouse", "mine")
		w.tool(c, nil, "batch", batchOf("browser", 2, `,"session_id":"new"`))
		if got := w.sessions("local"); !slices.Equal(got, []string{"mine", "new"}) {
			t.Errorf("there are sessions %v", got)
		}
		if i, err := w.m.Get("local", false, "new"); err != nil || len(i.Leases) != 1 {
			t.Error(i, err)
		}
		v, err := w.m.Visit(session.Visit{Principal: "local", Scope: "roundhouse", Capabilities: []byte("{}")})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Leave()
		r := w.tool(v, nil, "batch", batchOf("browser", 2, ""))
		name, _ := r.Result.Meta["roundhouse/session"].(string)
		i, err := w.m.Get("local", false, name)
		if err != nil || len(i.Leases) != 1 || !slices.Equal(r.texts(), []string{`{"n":0}`, `{"n":1}`}) {
			t.Error(r.raw, i, err)
		}
		if !strings.Contains(r.raw, `"resultType":"complete"`) {
			t.Error(r.raw)
		}
	})
}

// A3, A4: with nothing to do no session begins, and none is named.
func TestAnEmptyBatchBeginsNoSession(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		v, err := w.m.Visit(session.Visit{Principal: "local", Scope: "roundhouse", Capabilities: []byte("{}")})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Leave()
		if r := w.tool(v, nil, "batch", `{"calls":[]}`); r.Result.IsError || len(r.Result.Content) > 0 || r.Result.Meta["roundhouse/session"] != nil {
			t.Error(r.raw)
		}
	})
}

// A1: another principal's session is unknown, so the name begins one of the caller's own.
func TestABatchInAnothersSession(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		w.tool(w.client("alice", "roundhouse", "s"), nil, "batch", batchOf("browser", 1, ""))
		w.tool(w.client("bob", "roundhouse", ""), nil, "batch", batchOf("browser", 1, `,"session_id":"s"`))
		if got := w.seen(); len(got) != 2 || got[0] == got[1] {
			t.Errorf("%v", got)
		}
	})
}

// A batch of batches would have no bound.
func TestWhatABatchRefuses(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		c := w.client("local", "roundhouse", "")
		for arguments, want := range map[string]string{
			`{"calls":[{"server":"roundhouse","tool":"batch","arguments":{"calls":[]}}]}`: "own tools",
			`{"calls":[{"server":"files"}]}`:                                              "calls[0] must name",
			`{"calls":[{"server":"files","tool":"do","arguments":[]}]}`:                   "must be an object",
			`{"calls":[{"server":"files","tool":"do","x":1}]}`:                            "unknown field",
			`{"calls":"x"}`:                  "calls",
			`{}`:                             `"calls" is missing`,
			`{"calls":[],"Concurrent":true}`: "unknown; there are: calls, concurrent, isolate, session_id",
			`{"calls":[],"isolate":true,"session_id":"x"}`:                                 "leave session_id out",
			`{"calls":[],"calls":[]}`:                                                      "stands twice",
			`{"calls":[],"session_id":"a b"}`:                                              "session_id must be",
			`{"calls":[` + strings.Repeat(`{"server":"a","tool":"b"},`, maxCalls) + `{}]}`: "1000 calls",
		} {
			r := w.tool(c, nil, "batch", arguments)
			if !r.Result.IsError || len(r.Result.Content) != 1 || !strings.Contains(r.Result.Content[0].Text, want) {
				t.Errorf("%.100s: %s", arguments, r.raw)
			}
		}
		if got := w.seen(); len(got) > 0 {
			t.Error(got)
		}
	})
}

// N4: a session that nobody named ends with its client, also while a batch runs in it.
func TestASessionEndsWithItsClientDuringABatch(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		w.call = func(l *link, _ string, _ json.RawMessage) (string, error) {
			l.sleep(time.Hour)
			return saying("x"), nil
		}
		c, out := w.client("local", "roundhouse", ""), newTray()
		c.Session().Do(c, request(1, wire.ToolsCall, `{"name":"batch","arguments":`+batchOf("browser", 2, `,"concurrent":true`)+`}`), out)
		synctest.Wait()
		c.Delete()
		<-out.done
		synctest.Wait()
		if got := w.sessions("local"); len(got) > 0 {
			t.Errorf("there are sessions %v", got)
		}
	})
}

// Progress grows, whatever is told.
func TestProgressGrows(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		c, out := w.client("local", "roundhouse", ""), newTray()
		grows := session.OwnTool{Name: "x", Listed: []byte(`{"name":"x"}`), Run: func(_ context.Context, c *session.OwnCall) ([]byte, error) {
			for _, n := range []float64{1, 0.5, 1, 2.5} {
				c.Progress(n, 0, "")
			}
			return []byte("{}"), nil
		}}
		w.own[0] = grows
		w.tool(c, out, "x", "{}")
		if got := out.said(wire.Progress); !slices.Equal(got, []string{`{"progressToken":"p","progress":1}`, `{"progressToken":"p","progress":2.5}`}) {
			t.Error(got)
		}
	})
}
