package gateway

import (
	"bufio"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// heap returns the bytes in use after a collection.
func heap() int64 {
	least := int64(math.MaxInt64)
	for range 5 { // pools of package sync empty themselves over several collections
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		least = min(least, int64(m.HeapAlloc))
	}
	return least
}

// refs counts the sessions' references to connections.
func (w *world) refs() (n int) {
	for _, i := range w.pool.Snapshot() {
		n += i.Refs
	}
	return n
}

// reading opens the standing stream on a connection of its own, without a goroutine
// on the client's side, and returns it when it is quiet.
func (p *peer) reading() net.Conn {
	p.w.Helper()
	r := p.request(http.MethodGet, "")
	conn, err := p.w.listener.dial(r.Context(), "", "")
	if err != nil {
		p.w.Fatal(err)
	}
	if err := r.Write(conn); err != nil {
		p.w.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if resp, err := http.ReadResponse(in, r); err != nil || resp.StatusCode != http.StatusOK {
		p.w.Fatalf("%v %v", resp, err)
	}
	for line := ""; !strings.HasPrefix(line, "data:"); {
		if line, err = in.ReadString('\n'); err != nil {
			p.w.Fatal(err)
		}
	}
	synctest.Wait()
	return conn
}

// arrive returns an initialized client. Its request comes without a connection, which
// is quicker where connections are not what the test is about.
func (w *world) arrive(path string) *peer {
	w.Helper()
	p := w.dialed(path)
	answer := httptest.NewRecorder()
	w.front.ServeHTTP(answer, p.request(http.MethodPost, hello(p.version, clientCaps)))
	if p.id = answer.Header().Get(sessionHeader); answer.Code != http.StatusOK || p.id == "" {
		w.Fatalf("initialize at %s: %d %s", path, answer.Code, answer.Body)
	}
	return p
}

// H5, case 2: clients that say hello and go away without a word are never the reason
// for a refusal, and leave nothing that grows.
func TestAbandonedClientsLeaveNothing(t *testing.T) {
	for path, most := range map[string]int{"/mcp/a": 1000, "/mcp": 200} { // of five times as many clients
		t.Run(path, func(t *testing.T) {
			limits := config.Sessions{Max: most, IdleTimeout: 10 * time.Minute, ExpireAfter: 24 * time.Hour}
			inWorld(t, settings{limits: limits}, oneServer(), func(w *world) {
				w.browser.Transport.(*http.Transport).DisableKeepAlives = true
				w.connect(path).send(wire.ToolsList, "{}") // the server runs, all pools are warm
				goroutines, empty := runtime.NumGoroutine(), heap()
				var full int64
				for i := range 5 * most {
					if i%10 == 0 {
						w.connect(path)
					} else {
						w.arrive(path)
					}
					if i == most*3/2-1 {
						synctest.Wait()
						full = heap()
					}
				}
				synctest.Wait()
				if n := runtime.NumGoroutine(); n > goroutines+10 {
					t.Errorf("%d goroutines, %d before", n, goroutines)
				}
				if st := w.sessions.Stats(); st.Sessions[session.Active] != most || st.Clients != most || st.Evicted != int64(4*most+1) {
					t.Errorf("%+v", st)
				}
				if n := w.refs(); n > most {
					t.Errorf("%d references", n)
				}
				if grown := heap() - full; grown > 4<<20 { // a table that doubles may be in it
					t.Errorf("the heap grew by %d bytes with %d more clients", grown, most*7/2)
				}
				each := (full - empty) / int64(most)
				t.Logf("an idle session takes %d bytes", each)
				if each > 8<<10 {
					t.Errorf("an idle session takes %d bytes", each)
				}
				time.Sleep(11 * time.Minute)
				synctest.Wait()
				if st := w.sessions.Stats(); st.Sessions[session.Dormant] != most || w.refs() != 0 {
					t.Errorf("after the idle timeout: %+v, %d references", st, w.refs())
				}
				time.Sleep(24 * time.Hour)
				synctest.Wait()
				if st := w.sessions.Stats(); st.Sessions[session.Dormant] != 0 || st.Clients != 0 {
					t.Errorf("after a day: %+v", st)
				}
				if left := heap() - empty; left > 1<<20 {
					t.Errorf("%d bytes are left of %d clients", left, 5*most)
				}
			})
		})
	}
}

// H5, case 2: the same with standing streams whose clients vanish without a FIN: the
// write deadline finds out.
func TestClientsThatVanishWithAnOpenStreamLeaveNothing(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.browser.Transport.(*http.Transport).DisableKeepAlives = true
		w.connect("/mcp/a").tool("echo", "{}")
		goroutines, empty := runtime.NumGoroutine(), heap()
		const n = 2000 // some 350 at a time, until the write deadline
		for range n {
			w.arrive("/mcp/a").reading() // and never reads again, nor closes
			time.Sleep(30 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if now := runtime.NumGoroutine(); now > goroutines+10 {
			t.Errorf("%d goroutines, %d before", now, goroutines)
		}
		for _, s := range w.sessions.List("local", false) {
			if s.Streams != 0 {
				t.Fatalf("a stream is still open: %+v", s)
			}
		}
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		if left := heap() - empty; left > 1<<20 {
			t.Errorf("%d bytes are left of %d clients", left, n)
		}
	})
}

// H5: an open stream costs two goroutines, ours and net/http's.
func TestAStreamCostsTwoGoroutines(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		w.browser.Transport.(*http.Transport).DisableKeepAlives = true
		const n = 200
		var peers []*peer
		for range n {
			peers = append(peers, w.connect("/mcp/a"))
		}
		synctest.Wait()
		before := runtime.NumGoroutine()
		for _, p := range peers {
			defer p.reading().Close()
		}
		if each := float64(runtime.NumGoroutine()-before) / n; each > 2 {
			t.Errorf("a stream costs %v goroutines", each)
		}
	})
}

// N2: a newcomer replaces the dormant session that was active longest ago; then an
// idle one without a stream, those that nobody named first.
func TestWhoMakesRoom(t *testing.T) {
	limits := config.Sessions{Max: 5, IdleTimeout: 10 * time.Minute, ExpireAfter: 24 * time.Hour}
	inWorld(t, settings{limits: limits}, oneServer(), func(w *world) {
		named := func(name string) *peer {
			p := w.dialed("/mcp/a")
			p.header.Set("X-Session-Id", name)
			p.hello()
			return p
		}
		alive := func(p *peer) bool { return p.send(wire.Ping, "{}").status == http.StatusOK }
		step := func() { time.Sleep(time.Minute) }
		dormant1 := w.connect("/mcp/a")
		step()
		dormant2 := w.connect("/mcp/a")
		time.Sleep(11 * time.Minute)
		idleNamed := named("idle-named")
		step()
		idle := w.connect("/mcp/a")
		step()
		watched := w.connect("/mcp/a")
		stream := watched.listen("")
		all := []*peer{dormant1, dormant2, idleNamed, idle, watched}
		for i, want := range []*peer{dormant1, dormant2, idle} {
			step()
			newcomer := named("newcomer-" + string(rune('a'+i)))
			newcomer.beginTool("echo", `{"ms":3600000}`)
			synctest.Wait()
			for _, p := range slices.Clone(all) {
				switch {
				case p == want && alive(p):
					t.Errorf("newcomer %d: the one that should have made room is there", i)
				case p != want && !alive(p):
					t.Errorf("newcomer %d: another one made room", i)
				}
			}
			all = slices.DeleteFunc(all, func(p *peer) bool { return p == want })
		}
		step()
		named("newcomer-d").beginTool("echo", `{"ms":3600000}`)
		synctest.Wait()
		if alive(idleNamed) {
			t.Error("the named idle session did not make room")
		}
		r := w.dialed("/mcp/a").post(hello(wire.Version20251125, "{}"))
		if r.status != http.StatusTooManyRequests || r.header.Get("Retry-After") == "" || !strings.Contains(r.body, `"session_limit"`) || r.header.Get(sessionHeader) != "" {
			t.Errorf("with all sessions busy or watched: %d %v %s", r.status, r.header, r.body)
		}
		if !alive(watched) {
			t.Error("the session with a stream made room")
		}
		stream.hangUp()
	})
}
