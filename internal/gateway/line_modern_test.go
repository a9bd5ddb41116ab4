package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/relay"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// stranger is a shim whose client shakes no hands.
type stranger struct {
	*shimEnd
	*guest
}

// stranger opens a line.
func (w *world) stranger(header http.Header) *stranger {
	w.Helper()
	e, err := w.openLine(header)
	if err != nil {
		w.Fatal(err)
	}
	return &stranger{e, &guest{peer: &peer{version: wire.Version20260728}, caps: "{}"}}
}

// asks sends a request.
func (s *stranger) asks(id, method, members string) {
	s.Helper()
	s.shimEnd.send(s.body(id, method, members))
}

func (s *stranger) cancels(id string) {
	s.Helper()
	s.shimEnd.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `,"reason":"enough","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`)
	synctest.Wait()
}

// M8, H8: a client without a handshake is served on a line, by a server of the older era
// that sees nothing of it; ids are its own, payloads bytes.
func TestALineServesRequestsWithoutAHandshake(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		s := w.stranger(nil)
		s.asks(`"server-discover-probe-1"`, wire.Discover, "")
		s.want(`{"jsonrpc":"2.0","id":"server-discover-probe-1","result":{"resultType":"complete","supportedVersions":["2026-07-28",`, `"instructions":"Be kind."`, `"name":"s"`)
		s.meta = `,"progressToken":"p"`
		s.asks("1.50", wire.ToolsCall, echo(`{"big":9007199254740993,"ms":1000,"steps":1}`))
		s.want(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`)
		if got := s.next(); got != `{"jsonrpc":"2.0","id":1.50,"result":{"resultType":"complete","content":[],"server":"s","process":1,"name":"echo","arguments":{"big":9007199254740993,"ms":1000,"steps":1}}}` {
			t.Errorf("got %s", got)
		}
		s.asks("2", wire.ToolsList, "")
		s.want(`"id":2,"result":{`, `"resultType":"complete"`, `"ttlMs":0`, `"cacheScope":"private"`, `"name":"echo"`)
		if got := w.proc("s").got(wire.ToolsCall); len(got) != 1 || strings.Contains(got[0], wire.MetaPrefix) {
			t.Errorf("the server got %s", got)
		}
		if n := len(w.proc("s").got(wire.MethodInitialize)); n != 1 {
			t.Errorf("the server saw %d handshakes", n)
		}
		synctest.Wait()
		list := w.list()
		if len(list) != 1 || list[0].ID != s.session || list[0].Named || list[0].Streams != 1 || list[0].InFlight != 0 ||
			len(list[0].Clients) != 1 || list[0].Clients[0].Name != "guest/1" || list[0].Clients[0].Version != wire.Version20260728 {
			t.Errorf("the sessions are %+v", list)
		}
		_ = s.conn.Close()
		synctest.Wait()
		if list := w.list(); len(list) != 0 {
			t.Errorf("the sessions are %+v", list)
		}
	})
}

// H1: what is wrong with a request is said in its answer; there are no headers to compare.
func TestALineChecksRequestsWithoutAHandshake(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		s := w.stranger(nil)
		newer := *s.guest
		newer.peer = &peer{version: "2099-01-01"}
		bad := *s.guest
		bad.caps = "[]"
		for _, c := range []struct {
			frame, id string
			code      int
		}{
			{`{"jsonrpc":"2.0","id":"d","method":"server/discover"}`, `"d"`, wire.InvalidParams},
			{`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{}}`, "1", wire.InvalidParams},
			{newer.body("2", wire.ToolsList, ""), "2", wire.UnsupportedVersion},
			{bad.body("3", wire.ToolsList, ""), "3", wire.InvalidParams},
			{s.body("4", wire.ResourcesSubscribe, `"uri":"x:1"`), "4", wire.MethodNotFound},
			{s.body("5", wire.MethodInitialize, ""), "5", wire.MethodNotFound},
			{s.body("6", wire.SubscriptionsListen, ""), "6", wire.InvalidParams},
			{strings.Replace(s.body("7", wire.ToolsCall, echo("{}")), `"name"`, `"name":"x","name"`, 1), "7", wire.InvalidParams},
			{s.body("8", "no/such", ""), "8", wire.MethodNotFound},
		} {
			s.shimEnd.send(c.frame)
			s.want(`"id":`+c.id+`,"error"`, fmt.Sprintf(`"code":%d`, c.code))
		}
		s.shimEnd.send(`{"jsonrpc":"2.0","id":9,"method":"tools/list"}`) // it has been said which version is spoken
		s.want(`"id":9,"error"`, "-32602", "protocolVersion")
	})
}

// M8: a client may find out on its line what is served, or try out in vain, and then
// shake hands; what it sends says of each request which era it is of.
func TestALineServesBothEras(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		s := w.stranger(nil)
		s.asks("0", wire.Discover, "")
		s.want(`"id":0,"result"`)
		s.shimEnd.send(shimHello)
		s.want(`"id":"hello","result":{"protocolVersion":"2025-11-25"`)
		s.shimEnd.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, fmt.Sprintf(caller, 1, "{}"))
		if got := s.next(); strings.Contains(got, "resultType") || !strings.Contains(got, `"id":1,"result"`) {
			t.Errorf("got %s", got)
		}
		s.shimEnd.send(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
		s.want(`"id":2,"result":{}`)
		s.asks("1", wire.ToolsCall, echo("{}"))
		s.want(`"id":1,"result":{"resultType":"complete"`)
		s.shimEnd.send(`{"jsonrpc":"2.0","id":3,"method":"server/discover"}`) // which the server has not
		s.want(`"id":3,"error"`, "no server/discover")
		if list := w.list(); len(list) != 1 || list[0].ID != s.session {
			t.Errorf("the sessions are %+v", list)
		}
		if n := len(w.all()); n != 1 {
			t.Errorf("%d servers run", n)
		}
	})
}

// W1: an id that is in flight on a line is its sender's error, and touches nothing; on
// two lines the same ids are normal.
func TestIDsAreALinesOwn(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		s, other := w.stranger(nil), w.stranger(nil)
		for _, e := range []*stranger{s, other} {
			e.asks("1", wire.ToolsCall, echo(`{"ms":1000}`))
		}
		synctest.Wait()
		s.asks("1", wire.ToolsCall, echo(`{}`))
		s.want(`"id":1,"error"`, "in flight already")
		s.want(`"id":1,"result"`)
		other.want(`"id":1,"result"`)
		s.asks("1", wire.ToolsCall, echo(`{}`))
		s.want(`"id":1,"result"`)
	})
}

// M2: notifications/cancelled counts on a line, for its own requests, whatever they wait
// for. No answer follows.
func TestALineCancelsRequestsWithoutAHandshake(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		w.scripts["s"].set(func(s *script) { s.delay, s.caps = 30*time.Second, everyList })
		s, other := w.stranger(nil), w.stranger(nil)
		s.asks("1", wire.Discover, "")
		s.asks("2", wire.ToolsCall, echo(`{}`))
		time.Sleep(time.Second)
		s.cancels("1")
		s.cancels("2")
		if n := w.sessions.Stats().InFlight; n != 0 {
			t.Errorf("%d requests are in flight", n)
		}
		time.Sleep(time.Minute)
		other.asks("1", wire.ToolsCall, echo(`{"ms":5000}`))
		s.asks("1", wire.ToolsCall, echo(`{"ms":5000}`))
		s.asks("3", wire.SubscriptionsListen, `"notifications":{"toolsListChanged":true}`)
		s.want(wire.Acknowledged)
		synctest.Wait()
		for _, id := range []string{"1", "3", "4", "null"} {
			s.cancels(id)
		}
		changes(w.proc("s"))
		other.want(`"id":1,"result"`)
		s.quiet()
		p := w.proc("s")
		if got := p.got(wire.Cancelled); len(got) != 1 || !strings.Contains(got[0], `"reason":"enough"`) || strings.Contains(got[0], wire.MetaPrefix) {
			t.Errorf("the server got %s", got)
		}
		if got := p.got(wire.ToolsCall); len(got) != 2 {
			t.Errorf("the server got %s", got)
		}
		if st := w.sessions.Stats(); st.InFlight != 0 {
			t.Errorf("left: %+v", st)
		}
	})
}

// M2: a request that was cancelled before it has entered the session leaves nothing there.
func TestALineDoesNotBeginWhatWasCancelled(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		s := w.stranger(nil)
		s.asks("1", wire.ToolsCall, echo("{}"))
		s.want(`"id":1,"result"`)
		synctest.Wait()
		var l *line
		rl.mu.Lock()
		for each := range rl.lines {
			l = each
		}
		rl.mu.Unlock()
		f, err := wire.Parse([]byte(s.body("2", wire.ToolsCall, echo("{}"))))
		if err != nil {
			t.Fatal(err)
		}
		meta, err := f.Routing()
		if err != nil {
			t.Fatal(err)
		}
		x, err := l.begun(f, meta)
		if err != nil {
			t.Fatal(err)
		}
		x.settle(nil)
		x.run()
		s.quiet()
		if list := w.list(); len(w.proc("s").got(wire.ToolsCall)) != 1 || list[0].InFlight != 0 || len(list[0].Clients) != 1 {
			t.Errorf("the sessions are %+v", list)
		}
	})
}

// M4, M9: a listener on a line first hears what it will be told of, then that, marked with
// its id; one that is told of nothing is over at once.
func TestAListenerOnALine(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		w.scripts["s"].caps = everyList
		s := w.stranger(nil)
		s.asks(`"listen:0"`, wire.SubscriptionsListen, `"notifications":{"toolsListChanged":true,"resourceSubscriptions":["x:1"]}`)
		s.asks("7", wire.SubscriptionsListen, `"notifications":{"promptsListChanged":true}`)
		mark := func(id string) string { return `"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}` }
		acks := []string{s.next(), s.next()}
		slices.Sort(acks)
		for i, want := range []string{
			`{` + mark(`"listen:0"`) + `,"notifications":{"toolsListChanged":true,"resourceSubscriptions":["x:1"]}}`,
			`{` + mark("7") + `,"notifications":{"promptsListChanged":true}}`,
		} {
			if !strings.Contains(acks[i], wire.Acknowledged) || !strings.Contains(acks[i], want) {
				t.Errorf("got %s", acks[i])
			}
		}
		changes(w.proc("s"))
		w.proc("s").say(updated("x:1"))
		w.proc("s").say(updated("x:2"))
		var got []string
		for range 3 {
			got = append(got, s.next())
		}
		slices.Sort(got)
		if want := []string{
			`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed","params":{` + mark("7") + `}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{` + mark(`"listen:0"`) + `,"uri":"x:1"}}`,
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{` + mark(`"listen:0"`) + `}}`,
		}; !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
		s.quiet()
		s.asks("8", wire.SubscriptionsListen, `"notifications":{}`)
		s.want(wire.Acknowledged, mark("8"))
		s.want(`"id":8,"result":{`, mark("8"), `"resultType":"complete"`)
	})
}

// M9: what comes before the acknowledgement waits for it, and what comes behind the
// answer is dropped.
func TestALineKeepsTheOrderOfWhatBelongsToARequest(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		e, err := w.openLine(nil)
		if err != nil {
			t.Fatal(err)
		}
		var l *line
		rl.mu.Lock()
		for each := range rl.lines {
			l = each
		}
		rl.mu.Unlock()
		f, err := wire.Parse([]byte(`{"jsonrpc":"2.0","id":5,"method":"subscriptions/listen","params":{}}`))
		if err != nil {
			t.Fatal(err)
		}
		x := &lineVisit{line: l, call: &call{frame: f}, cancel: func() {}, holding: true}
		l.mu.Lock()
		l.visits["5"], l.open = x, 1
		l.mu.Unlock()
		note := func(method string) { x.Note(mux.Pieces{wire.NewNotification(method, nil)}) }
		for range 2 * maxQueuedFrames {
			note(wire.PromptsListChanged)
		}
		note(wire.ToolsListChanged)
		e.quiet()
		if len(x.held) != maxQueuedFrames {
			t.Errorf("%d frames are kept", len(x.held))
		}
		x.acknowledge(session.Watch{Tools: true})
		e.want(wire.Acknowledged)
		e.want(wire.ToolsListChanged)
		x.End(fault.New(fault.Interrupted, "m"))
		e.quiet()
		x.fail(fault.New(fault.Interrupted, "m"))
		e.want(`"id":5,"error"`)
		note(wire.ToolsListChanged)
		x.fail(fault.New(fault.Interrupted, "m"))
		x.acknowledge(session.Watch{Tools: true})
		e.quiet()
		if l.open != 0 || len(l.visits) != 0 {
			t.Errorf("%d requests are open", l.open)
		}
	})
}

// N2: the session of a line is that of its requests. The first one may name it.
func TestRequestsOnALineNameTheirSession(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		named, free := w.stranger(http.Header{relay.SessionHeader: {"mine"}}), w.stranger(nil)
		free.meta = `,"roundhouse/session":"yours","roundhouse/workspace":"/w"`
		for _, s := range []*stranger{named, free} {
			s.asks("1", wire.ToolsCall, echo("{}"))
			s.want(`"id":1,"result"`)
		}
		for _, s := range []*stranger{named, free} {
			s.meta = `,"roundhouse/session":"other"`
			s.asks("2", wire.ToolsCall, echo("{}"))
			s.want(`"id":2,"error"`, "roundhouse/session")
		}
		free.meta = `,"roundhouse/session":"yours"`
		free.asks("3", wire.ToolsCall, echo("{}"))
		free.want(`"id":3,"result"`)
		for i, id := range []string{"mine", "yours"} {
			if list := w.list(); len(list) != 2 || list[i].ID != id || !list[i].Named || list[i].Workspace != []string{"", "/w"}[i] {
				t.Errorf("the sessions are %+v", list)
			}
		}
	})
}

// Case 27: a server that sessions do not share is served to requests without a handshake
// on a line, which tells senders apart.
func TestALineHasAnUnsharedServerToItself(t *testing.T) {
	server := shared("s")
	server.Sharing = config.Session
	inWorld(t, settings{}, []*config.Server{server}, func(w *world) {
		rl := NewRelay(RelayConfig{Gateway: w.gateway})
		rl.Register(w.front)
		defer rl.Close(context.Background())
		for range 2 {
			s := w.stranger(nil)
			for _, id := range []string{"1", "2"} {
				s.asks(id, wire.ToolsCall, echo("{}"))
				s.want(`"id":` + id + `,"result"`)
			}
		}
		if n := len(w.all()); n != 2 {
			t.Errorf("%d servers run", n)
		}
	})
}

// M2, N4: the end of a line cancels what is in flight on it, at once also if it broke;
// the session of a broken one waits to be entered again, as nobody's.
func TestTheEndOfALineCancelsRequestsWithoutAHandshake(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		w.scripts["s"].caps = everyList
		s := w.stranger(nil)
		s.asks("1", wire.ToolsCall, echo(`{"ms":100000000}`))
		s.asks("2", wire.SubscriptionsListen, `"notifications":{"resourceSubscriptions":["x:1"]}`)
		s.want(wire.Acknowledged)
		close(s.stop)
		for id := 901; id <= 902; id++ { // the reader takes the first answer
			s.asks(fmt.Sprint(id), wire.ToolsCall, echo("{}"))
			synctest.Wait()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		p := w.proc("s")
		if list := w.list(); rl.Lines() != 0 || len(list) != 1 || list[0].InFlight != 0 || len(list[0].Clients) != 1 || len(p.got(wire.Cancelled)) != 1 || len(p.got(wire.ResourcesUnsubscribe)) != 1 {
			t.Errorf("there are %d lines; the sessions are %+v; the server got %q", rl.Lines(), list, p.got(wire.Cancelled))
		}
		again := w.stranger(http.Header{relay.ResumeHeader: {s.session}})
		time.Sleep(2 * lineGrace) // longer than the session waits for a request
		if list := w.list(); len(list) != 0 {
			t.Errorf("the sessions are %+v", list)
		}
		again.asks("1", wire.ToolsCall, echo(`{}`))
		again.want(`"id":1,"result"`)
		if list := w.list(); again.session != s.session || len(list) != 1 || list[0].Named || list[0].ID != s.session {
			t.Errorf("the sessions are %+v", list)
		}
		third := w.stranger(http.Header{relay.ResumeHeader: {s.session}})
		third.asks("1", wire.ToolsCall, echo(`{}`))
		third.want(`"id":1,"result"`)
		synctest.Wait()
		if list := w.list(); len(list) != 1 || len(list[0].Clients) != 2 {
			t.Errorf("the sessions are %+v", list)
		}
		for _, e := range []*stranger{again, third} {
			_ = e.conn.Close()
		}
		synctest.Wait()
		if list := w.list(); len(list) != 0 {
			t.Errorf("the sessions are %+v", list)
		}
	})
}

// G1, H8: while the daemon stops, a request is refused in a way that says that it was not
// sent, whether its line had one before or not; a listening ends with its line, without a
// word, so that the shim can go on with it.
func TestRequestsWithoutAHandshakeWhileStopping(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		w.scripts["s"].caps = everyList
		s, fresh := w.stranger(nil), w.stranger(nil)
		s.asks("1", wire.SubscriptionsListen, `"notifications":{"toolsListChanged":true}`)
		s.want(wire.Acknowledged)
		w.sessions.Drain()
		for _, e := range []*stranger{s, fresh} {
			e.asks("2", wire.ToolsCall, echo(`{}`))
			e.want(`"id":2,"error"`, `"reason":"draining"`, `"sent":"no"`)
		}
		w.sessions.Shutdown(context.Background())
		if got := s.next(); got != "" {
			t.Errorf("the shim got %s", got)
		}
		rl.Close(context.Background())
	})
}

// A client on a line is not to be had over HTTP.
func TestAClientOnALineIsNotServedOverHTTP(t *testing.T) {
	withRelay(t, settings{}, func(w *world, _ *Relay) {
		w.connected(nil)
		p := w.dialed("/mcp/s")
		p.id = w.list()[0].Clients[0].ID
		for _, r := range []*http.Request{p.request(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"ping"}`), p.request(http.MethodGet, ""), p.request(http.MethodDelete, "")} {
			if got := p.do(r); got.status != http.StatusNotFound {
				t.Errorf("%s: %d %s", r.Method, got.status, got.body)
			}
		}
		if len(w.list()) != 1 {
			t.Error("the client was ended")
		}
	})
}

// M1, M2, N4: whatever clients of both eras do on lines at once, each request is answered
// once or cancelled, and nothing is left of any of them.
func TestLinesUnderStress(t *testing.T) {
	withRelay(t, settings{}, func(w *world, rl *Relay) {
		w.scripts["s"].caps = everyList
		var wg sync.WaitGroup
		for n := range 8 {
			s := w.stranger(nil)
			dice := rand.New(rand.NewPCG(uint64(n), 1))
			wg.Go(func() {
				open, done := map[string]bool{}, map[string]bool{}
				read := func() {
					for len(s.frames) > 0 {
						f, err := wire.Parse([]byte(<-s.frames))
						if err != nil {
							t.Error(err)
							return
						}
						id := string(f.ID())
						if f.Kind == wire.Response && (done[id] || !open[id]) {
							t.Errorf("line %d: %s came for nobody", n, f.Raw)
						}
						if f.Kind == wire.Response {
							done[id] = true
							delete(open, id)
						}
					}
				}
				for k := range 150 {
					id := strconv.Itoa(k)
					switch dice.IntN(6) {
					case 0:
						s.asks(id, wire.SubscriptionsListen, `"notifications":{"toolsListChanged":true,"resourceSubscriptions":["x:1"]}`)
						open[id] = true
					case 1:
						s.shimEnd.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, max(0, k-dice.IntN(5))))
					case 2:
						s.asks(id, wire.ToolsList, "")
						open[id] = true
					case 3:
						if k > 100 {
							s.shimEnd.send(fmt.Sprintf(caller, k, `{"ms":5}`)) // for which nobody has shaken hands
							open[id] = true
						}
					default:
						s.asks(id, wire.ToolsCall, echo(fmt.Sprintf(`{"ms":%d,"steps":3}`, dice.IntN(20))))
						open[id] = true
					}
					time.Sleep(time.Duration(dice.IntN(6)) * time.Millisecond)
					read()
				}
				if n%2 == 0 {
					_ = s.conn.Close() // with requests in flight
				} else {
					time.Sleep(time.Second)
					read()
				}
			})
		}
		for range 20 {
			time.Sleep(15 * time.Millisecond)
			w.proc("s").say(updated("x:1"))
		}
		wg.Wait()
		synctest.Wait()
		if st := w.sessions.Stats(); st.InFlight != 0 || len(w.list()) != 4 {
			t.Errorf("left: %+v", st)
		}
	})
}
