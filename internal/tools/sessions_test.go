package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// A1: our tools are there under their own names on a server of ours, and under its name
// in the aggregate, for clients of both eras; they have schemas that are objects.
func TestOurToolsAreListed(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		names := []string{"session_stats", "session_cleanup", "session_release", "screenshot", "batch"}
		for _, scope := range []string{"roundhouse", ""} {
			visitor, err := w.m.Visit(session.Visit{Principal: "local", Scope: scope, Capabilities: []byte("{}")})
			if err != nil {
				t.Fatal(err)
			}
			for era, c := range map[string]*session.Client{"older": w.client("local", scope, ""), "newer": visitor} {
				out := newTray()
				c.Session().Do(c, request(1, wire.ToolsList, "{}"), out)
				var answer struct {
					Result struct {
						ResultType string
						Tools      []struct {
							Name, Description string
							InputSchema       struct {
								Type       string
								Properties map[string]struct{ Type string }
							}
						}
					}
				}
				raw := (<-out.done).AppendTo(nil)
				if err := json.Unmarshal(raw, &answer); err != nil {
					t.Fatal(err, string(raw))
				}
				var got []string
				for _, x := range answer.Result.Tools {
					name, ours := x.Name, true
					if scope == "" {
						name, ours = strings.CutPrefix(x.Name, "roundhouse__")
					}
					if !ours {
						continue
					}
					got = append(got, name)
					if x.Description == "" || x.InputSchema.Type != "object" {
						t.Errorf("%+v", x)
					}
					for argument, schema := range x.InputSchema.Properties {
						if schema.Type == "" {
							t.Errorf("%s: %s has no type", name, argument)
						}
					}
				}
				if !slices.Equal(got, names) {
					t.Errorf("%q, %s: %v", scope, era, got)
				}
				if (answer.Result.ResultType == "complete") != (era == "newer") {
					t.Errorf("%q, %s: %s", scope, era, raw)
				}
				if r := w.tool(c, nil, map[string]string{"": "roundhouse__"}[scope]+"session_stats", "{}"); r.Result.IsError || len(r.Result.Content) != 1 {
					t.Errorf("%q, %s: %s", scope, era, r.raw)
				}
			}
			visitor.Leave()
		}
	})
}

// V3: a session's filter holds for our tools, too; what it hides and what there is not
// get the same answer.
func TestFiltersHoldForOurTools(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		ours, all := w.client("local", "roundhouse", "s"), w.client("local", "", "s")
		if err := w.m.SetTools(context.Background(), "local", "s", &session.Tools{Include: []string{"files__*", "roundhouse__session_stats"}}); err != nil {
			t.Fatal(err)
		}
		out := newTray()
		all.Session().Do(all, request(1, wire.ToolsList, "{}"), out)
		if list := string((<-out.done).AppendTo(nil)); strings.Count(list, `"roundhouse__`) != 1 || !strings.Contains(list, `"files__do"`) {
			t.Error(list)
		}
		for _, r := range []reply{w.tool(ours, nil, "batch", `{"calls":[]}`), w.tool(all, nil, "roundhouse__batch", `{"calls":[]}`), w.tool(ours, nil, "nothing", "{}")} {
			if r.Error.Code != wire.InvalidParams || !strings.HasPrefix(r.Error.Message, "unknown tool: ") {
				t.Error(r.raw)
			}
		}
		if r := w.tool(ours, nil, "session_stats", "{}"); r.Result.IsError || r.Error.Code != 0 {
			t.Error(r.raw)
		}
	})
}

// N7, N2: the sessions of the caller's principal are told, and nobody else's, without
// waiting for anything.
func TestSessionStats(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		w.call = func(l *link, _ string, _ json.RawMessage) (string, error) {
			l.sleep(time.Hour)
			return saying("x"), nil
		}
		w.client("bob", "roundhouse", "theirs")
		busy, out := w.client("alice", "roundhouse", "busy"), newTray()
		busy.Session().Do(busy, request(1, wire.ToolsCall, `{"name":"batch","arguments":`+batchOf("browser", 2, "")+`}`), out)
		synctest.Wait()
		begun := time.Now()
		r := w.tool(w.client("alice", "roundhouse", "mine"), nil, "session_stats", "{}")
		if time.Since(begun) > 0 {
			t.Error("it took its time")
		}
		var stats struct {
			Session string
			Max     int
			Tasks   int
			List    []session.Info
		}
		if err := json.Unmarshal([]byte(r.Result.Content[0].Text), &stats); err != nil {
			t.Fatal(err, r.raw)
		}
		if stats.Session != "mine" || stats.Max != 100 || stats.Tasks != 1 || len(stats.List) != 2 {
			t.Errorf("%+v", stats)
		}
		if i := stats.List[0]; i.ID != "busy" || len(i.Tasks) != 1 || len(i.Leases) != 1 || i.InFlight == 0 {
			t.Errorf("%+v", i)
		}
		busy.Delete()
		<-out.done
	})
}

// A1, N4: a session ends when it is told to, after what it does; that of another
// principal is unknown, and one that ends itself gets its answer first.
func TestSessionCleanup(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		w.call = func(l *link, _ string, _ json.RawMessage) (string, error) {
			l.sleep(5 * time.Second)
			return saying("x"), nil
		}
		busy, out := w.client("local", "roundhouse", "busy"), newTray()
		busy.Session().Do(busy, request(1, wire.ToolsCall, `{"name":"batch","arguments":`+batchOf("browser", 1, "")+`}`), out)
		synctest.Wait()
		if r := w.tool(w.client("bob", "roundhouse", ""), nil, "session_cleanup", `{"session_id":"busy"}`); r.Error.Data.Reason != "unknown_session" {
			t.Error(r.raw)
		}
		me, begun := w.client("local", "roundhouse", "me"), time.Now()
		if r := w.tool(me, nil, "session_cleanup", `{"session_id":"busy"}`); !strings.Contains(r.raw, `"state":"closed"`) {
			t.Error(r.raw)
		}
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("it took %s", took)
		}
		if r := w.read(<-out.done); !slices.Equal(r.texts(), []string{"x"}) {
			t.Error(r.raw)
		}
		if r := w.tool(me, nil, "session_cleanup", `{}`); !strings.Contains(r.raw, `"state":"draining"`) {
			t.Error(r.raw)
		}
		synctest.Wait()
		if got := w.sessions("local"); len(got) > 0 {
			t.Errorf("there are sessions %v", got)
		}
	})
}

// A1: two sessions that end each other do not wait for ever.
func TestSessionsThatEndEachOther(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		a, b := w.client("local", "roundhouse", "a"), w.client("local", "roundhouse", "b")
		outs := []*tray{newTray(), newTray()}
		begun := time.Now()
		a.Session().Do(a, request(1, wire.ToolsCall, `{"name":"session_cleanup","arguments":{"session_id":"b"}}`), outs[0])
		b.Session().Do(b, request(1, wire.ToolsCall, `{"name":"session_cleanup","arguments":{"session_id":"a"}}`), outs[1])
		for _, out := range outs {
			<-out.done
		}
		synctest.Wait()
		// One may have begun to end before it could end the other.
		if took := time.Since(begun); took > 11*time.Second || len(w.sessions("local")) > 1 {
			t.Errorf("it took %s; there are sessions %v", took, w.sessions("local"))
		}
	})
}

// I2: an instance is given back, and the next call leases another.
func TestSessionRelease(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		c := w.client("local", "roundhouse", "s")
		if r := w.tool(c, nil, "session_release", `{"server":"browser"}`); r.Error.Data.Reason != "unknown_server" {
			t.Error(r.raw)
		}
		w.tool(c, nil, "batch", batchOf("browser", 1, ""))
		if r := w.tool(w.client("local", "roundhouse", ""), nil, "session_release", `{"server":"browser","session_id":"s"}`); r.Result.IsError || r.Error.Code != 0 {
			t.Error(r.raw)
		}
		w.tool(c, nil, "batch", batchOf("browser", 1, ""))
		if got := w.seen(); len(got) != 2 || got[0] == got[1] {
			t.Errorf("they were served by %v", got)
		}
	})
}

// A1: a picture is that of the session's own instance; a session that has none gets one.
func TestScreenshot(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		broken := false
		w.call = func(l *link, tool string, _ json.RawMessage) (string, error) {
			if broken {
				return "", errors.New("no screen")
			}
			return `{"content":[{"type":"image","data":"` + l.name + `","mimeType":"image/png"}]}`, nil
		}
		c := w.client("local", "", "s")
		w.tool(c, nil, "roundhouse__batch", batchOf("browser", 1, ""))
		broken = true
		if r := w.tool(c, nil, "roundhouse__screenshot", `{}`); !r.Result.IsError || !strings.Contains(r.Result.Content[0].Text, "no screen") {
			t.Error(r.raw)
		}
		broken = false
		own := strings.Fields(w.seen()[0])[0]
		if r := w.tool(c, nil, "roundhouse__screenshot", `{}`); !strings.Contains(r.raw, `"content":[{"type":"image","data":"`+own+`","mimeType":"image/png"}]`) {
			t.Error(r.raw)
		}
		other := w.tool(c, nil, "roundhouse__screenshot", `{"session_id":"t","server":"browser"}`)
		if !strings.Contains(other.raw, `"image"`) || strings.Contains(other.raw, own) {
			t.Error(other.raw)
		}
		if r := w.tool(c, nil, "roundhouse__screenshot", `{"server":"files"}`); r.Error.Data.Reason != "unknown_server" {
			t.Error(r.raw)
		}
	})
}

// A1: a request that belongs to no session is told to name one, where none would be of
// use that nobody knows.
func TestWhatNeedsASession(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		for _, call := range []struct{ tool, arguments string }{{"screenshot", "{}"}, {"session_release", `{"server":"browser"}`}, {"session_cleanup", "{}"}} {
			v, err := w.m.Visit(session.Visit{Principal: "local", Scope: "roundhouse", Capabilities: []byte("{}")})
			if err != nil {
				t.Fatal(err)
			}
			if r := w.tool(v, nil, call.tool, call.arguments); !r.Result.IsError || !strings.Contains(r.Result.Content[0].Text, "session_id") {
				t.Error(r.raw)
			}
			v.Leave()
		}
	})
}

// M7: what a server asks during a call of a batch, the caller is asked, on the stream of
// his call; his answer reaches the server.
func TestACallerIsAskedDuringABatch(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		answers := make(chan string, 1)
		w.call = func(l *link, _ string, _ json.RawMessage) (string, error) {
			l.say(wire.NewRequest([]byte(`"q"`), wire.ElicitationCreate, []byte(`{"message":"sure?","requestedSchema":{"type":"object","properties":{}}}`)))
			return saying(<-answers), nil
		}
		w.answered = func(f wire.Frame) { answers <- string(f.Result()) }
		c, out := w.client("local", "", "s"), newTray()
		c.Session().Do(c, request(1, wire.ToolsCall, `{"name":"roundhouse__batch","arguments":`+batchOf("browser", 1, "")+`}`), out)
		synctest.Wait()
		out.mu.Lock()
		asked := slices.IndexFunc(out.notes, func(f wire.Frame) bool { return f.Method == wire.ElicitationCreate })
		var id []byte
		if asked >= 0 {
			id = out.notes[asked].ID()
		}
		out.mu.Unlock()
		if id == nil {
			t.Fatal("nobody was asked")
		}
		f, err := wire.Parse(wire.Result(id, []byte(`{"action":"accept","content":{}}`)))
		if err != nil {
			t.Fatal(err)
		}
		c.Session().Do(c, f, nil)
		if r := w.read(<-out.done); !slices.Equal(r.texts(), []string{`{"action":"accept","content":{}}`}) {
			t.Error(r.raw)
		}
	})
}

// What the tools are used for is counted, by how it went.
func TestCallsAreCounted(t *testing.T) {
	inWorld(t, 16, func(w *world) {
		c := w.client("local", "roundhouse", "")
		w.tool(c, nil, "batch", `{"calls":[{"server":"files","tool":"do"},{"server":"files","tool":"do"},{"server":"nope","tool":"do"}]}`)
		w.tool(c, nil, "batch", `{}`)
		w.tool(c, nil, "session_cleanup", `{"session_id":"nobody"}`)
		r := prometheus.NewRegistry()
		r.MustRegister(w.t.Collectors()...)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				var line strings.Builder
				line.WriteString(strings.TrimPrefix(f.GetName(), "roundhouse_tools_"))
				for _, l := range m.GetLabel() {
					line.WriteString(" " + l.GetValue())
				}
				got = append(got, fmt.Sprint(line.String(), " ", m.GetCounter().GetValue()))
			}
		}
		want := []string{"calls_total failed batch 1", "calls_total ok batch 1", "calls_total error session_cleanup 1", "tasks_total failed 1", "tasks_total ok 2"}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("it counts %q", got)
		}
	})
}
