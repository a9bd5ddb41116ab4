package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/mux"
	"roundhouse/internal/wire"
)

const everyList = `{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true}}`

// hear opens a subscriptions/listen and waits for what it says first.
func (g *guest) hear(id, notifications string) *pending {
	g.w.Helper()
	x := g.begin(g.ask(id, wire.SubscriptionsListen, `"notifications":`+notifications))
	synctest.Wait()
	return x
}

// changes makes a server announce a change of each of its lists, which did change.
func changes(p *proc) {
	p.script.set(func(s *script) {
		name := fmt.Sprint("new", len(s.tools))
		s.tools, s.prompts, s.resources = append(s.tools, name), append(s.prompts, name), append(s.resources, "x:"+name)
	})
	for _, method := range []string{wire.ToolsListChanged, wire.PromptsListChanged, wire.ResourcesListChanged} {
		p.say(string(wire.NewNotification(method, nil)))
	}
	time.Sleep(time.Second)
	synctest.Wait()
}

func updated(uri string) string {
	return string(wire.NewNotification(wire.ResourceUpdated, fmt.Appendf(nil, `{"uri":%q}`, uri)))
}

// M4, M9: a listener first hears what it will be told of, then that and nothing else,
// each with its own id as it spelled it. Two listeners with one id are normal.
func TestListenersHearWhatTheyAskedFor(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].caps = everyList
		g := w.guest("/mcp/a")
		tools := g.hear("1", `{"toolsListChanged":true,"promptsListChanged":false}`)
		rest := g.hear("1", `{"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["x:1","x:2"]}`)
		one := g.hear(`"\u0061"`, `{"resourceSubscriptions":["x:1"]}`)
		p := w.proc("a")
		changes(p)
		p.say(updated("x:1"))
		p.say(string(wire.NewNotification(wire.ResourceUpdated, []byte(`{"_meta":{"a":1.0,"io.modelcontextprotocol/subscriptionId":9},"uri":"x:2/part"}`))))
		p.say(updated("x:3"))
		p.say(logLine("not for listeners"))
		synctest.Wait()
		notice := func(id, method, meta, params string) string {
			return `{"jsonrpc":"2.0","method":"notifications/` + method + `","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + meta + `}` + params + `}}`
		}
		for _, c := range []struct {
			x    *pending
			want []string
		}{
			{tools, []string{
				notice("1", "subscriptions/acknowledged", "", `,"notifications":{"toolsListChanged":true}`),
				notice("1", "tools/list_changed", "", ""),
			}},
			{rest, []string{
				notice("1", "subscriptions/acknowledged", "", `,"notifications":{"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["x:1","x:2"]}`),
				notice("1", "prompts/list_changed", "", ""),
				notice("1", "resources/list_changed", "", ""),
				notice("1", "resources/updated", "", `,"uri":"x:1"`),
				notice("1", "resources/updated", `,"a":1.0`, `,"uri":"x:2/part"`),
			}},
			{one, []string{
				notice(`"\u0061"`, "subscriptions/acknowledged", "", `,"notifications":{"resourceSubscriptions":["x:1"]}`),
				notice(`"\u0061"`, "resources/updated", "", `,"uri":"x:1"`),
			}},
		} {
			if got := c.x.frames(); !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if len(c.x.ids()) != 0 {
				t.Errorf("events have the ids %s", c.x.ids())
			}
		}
		// One subscription upstream for each URI (M4), ended with the last listener.
		if n := len(p.got(wire.ResourcesSubscribe)); n != 2 {
			t.Errorf("%d subscriptions", n)
		}
		rest.hangUp()
		if got := p.got(wire.ResourcesUnsubscribe); len(got) != 1 || !strings.Contains(got[0], "x:2") {
			t.Errorf("unsubscribed %s", got)
		}
		one.hangUp()
		tools.hangUp()
		if got := p.got(wire.ResourcesUnsubscribe); len(got) != 2 || !strings.Contains(got[1], "x:1") {
			t.Errorf("unsubscribed %s", got)
		}
	})
}

// M3: what the server does not announce, or refuses, is not granted; a listener with
// nothing to hear of is told so and let go.
func TestListenersAreGrantedWhatTheServerHas(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].caps = `{"tools":{"listChanged":true},"prompts":{"listChanged":false}}`
		g := w.guest("/mcp/a")
		x := g.hear("1", `{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}`)
		if got := x.frames(); len(got) != 1 || !strings.Contains(got[0], `"notifications":{"toolsListChanged":true}`) || x.ended() {
			t.Errorf("got %s", got)
		}
		if n := w.sessions.List("local", false)[0].Streams; n != 1 { // H5: its session makes no room for others
			t.Errorf("%d streams", n)
		}
		x.hangUp()
		for _, nothing := range []string{`{}`, `{"promptsListChanged":true}`, `{"toolsListChanged":false,"x":1}`} {
			x := g.hear("1", nothing)
			if got := x.methods(); !slices.Equal(got, []string{wire.Acknowledged, "answer"}) || !x.ended() || !strings.Contains(x.frames()[0], `"notifications":{}`) {
				t.Errorf("%s: got %s", nothing, x.frames())
			}
		}
		for _, bad := range []string{`1`, `[]`, `{"toolsListChanged":1}`, `{"resourceSubscriptions":"x"}`, `{"toolsListChanged":true,"toolsListChanged":false}`, `{"ToolsListChanged":true}`} {
			g.send("1", wire.SubscriptionsListen, `"notifications":`+bad).refused(w, http.StatusBadRequest, wire.InvalidParams)
		}
		g.send("1", wire.SubscriptionsListen, "").refused(w, http.StatusBadRequest, wire.InvalidParams)
	})
}

// M3: what a server does not say is not there.
func TestListeningToAServerThatAnnouncesNothing(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].caps = `{"tools":{},"prompts":{},"resources":{}}`
		x := w.guest("/mcp/a").hear("1", `{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}`)
		if got := x.frames(); len(got) != 2 || !strings.Contains(got[0], `"notifications":{}`) {
			t.Errorf("got %s", got)
		}
	})
}

// M9, N4: a listening ends with a result when its session does, and when the daemon
// closes what stands.
func TestListeningEndsInOrder(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"session": func(w *world) { _ = w.sessions.End(w.Context(), "local", false, "stateless", false) },
		"daemon":  func(w *world) { w.gateway.CloseStreams() },
	} {
		inWorld(t, settings{}, oneServer(), func(w *world) {
			w.scripts["a"].caps = everyList
			x := w.guest("/mcp/a").hear(`"L"`, `{"toolsListChanged":true}`)
			begun := time.Now()
			end(w)
			synctest.Wait()
			got := x.frames()
			if !x.ended() || len(got) != 2 || got[1] != `{"jsonrpc":"2.0","id":"L","result":{"_meta":{"io.modelcontextprotocol/subscriptionId":"L"},"resultType":"complete"}}` {
				t.Errorf("%s: got %s", name, got)
			}
			if time.Since(begun) != 0 {
				t.Errorf("%s: it took %s", name, time.Since(begun))
			}
		})
	}
}

// N3, H4, M4: listening is kept alive by comments, is no activity, and goes on when the
// session wakes.
func TestListeningKeepsNobodyAwake(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].caps = everyList
		g := w.guest("/mcp/a")
		x := g.hear("1", `{"toolsListChanged":true,"resourceSubscriptions":["x:1"]}`)
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if st := w.sessions.Stats(); st.Sessions["dormant"] != 1 || x.ended() || x.comments() < 70 {
			t.Fatalf("%+v; %d comments", st, x.comments())
		}
		g.send("2", wire.ToolsCall, echo("{}"))
		changes(w.proc("a"))
		w.proc("a").say(updated("x:1"))
		synctest.Wait()
		if got := x.methods(); !slices.Equal(got, []string{wire.Acknowledged, wire.ToolsListChanged, wire.ResourceUpdated}) {
			t.Errorf("got %s", got)
		}
		x.hangUp()
	})
}

// H4: a listener that does not read is dropped, and delays nobody.
func TestAStalledListenerIsDropped(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.scripts["a"].caps = everyList
		g := w.guest("/mcp/a")
		conn := stalled(g.peer, g.ask("1", wire.SubscriptionsListen, `"notifications":{"resourceSubscriptions":["x:1"]}`))
		defer conn.Close()
		begun := time.Now()
		for range 3 * burst * maxQueuedFrames {
			w.proc("a").say(updated("x:1"))
		}
		synctest.Wait()
		g.send("2", wire.ToolsCall, echo("{}"))
		if took := time.Since(begun); took != 0 {
			t.Errorf("others were delayed by %s", took)
		}
		if n := w.gateway.queued.Load(); n != 0 {
			t.Errorf("%d bytes are queued for nobody", n)
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if n := w.sessions.List("local", false)[0].Streams; n != 0 {
			t.Errorf("%d streams are still open", n)
		}
	})
}

// M9: a change that comes before the acknowledgement waits for it.
func TestNothingComesBeforeTheAcknowledgement(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		k := &call{frame: mustParse(t, `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen"}`)}
		x := newExchange(w.gateway, k)
		x.held = true
		x.Push(mux.Pieces{wire.NewNotification(wire.ToolsListChanged, nil)})
		if notes, _, over := x.take(); notes != nil || over {
			t.Errorf("got %s", notes)
		}
		k.watch.Tools = true
		x.acknowledge(k.watch)
		notes, _, _ := x.take()
		if len(notes) != 2 || !strings.Contains(string(notes[0]), wire.Acknowledged) || !strings.Contains(string(notes[1]), wire.ToolsListChanged) {
			t.Errorf("got %s", notes)
		}
		x.drop()
	})
}

func mustParse(t *testing.T, raw string) wire.Frame {
	f, err := wire.Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// H7: who listens to the aggregate hears of all servers, and of one that came too late
// for a list, once.
func TestListeningToTheAggregate(t *testing.T) {
	servers := oneServer()
	servers = append(servers, shared("slow"))
	inWorld(t, settings{}, servers, func(w *world) {
		w.scripts["a"].caps, w.scripts["a"].resources = everyList, []string{"x:1"}
		w.scripts["slow"].caps, w.scripts["slow"].resources = everyList, []string{"x:1"}
		w.scripts["slow"].delay = 40 * time.Second
		g := w.guest("/mcp")
		x := g.hear("1", `{"toolsListChanged":true,"resourcesListChanged":true}`)
		for range 2 {
			if got := names(g.send("2", wire.ToolsList, "").last(w).Result, "tools", "name"); len(got) != 1 {
				t.Fatalf("got %s", got)
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := x.methods(); !slices.Equal(got, []string{wire.Acknowledged, wire.ToolsListChanged, wire.ResourcesListChanged}) {
			t.Errorf("got %s", got)
		}
		y := g.hear("1", `{"resourceSubscriptions":["x:1","nobody:has"]}`)
		changes(w.proc("a"))
		w.proc("a").say(updated("x:1"))
		synctest.Wait()
		if got := x.methods(); len(got) != 5 {
			t.Errorf("got %s", got)
		}
		if got := y.frames(); len(got) != 2 || !strings.Contains(got[0], `"resourceSubscriptions":["x:1"]`) || !strings.Contains(got[1], `"uri":"x:1"`) {
			t.Errorf("got %s", got)
		}
		x.hangUp()
		y.hangUp()
	})
}
