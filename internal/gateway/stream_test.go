package gateway

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/mux"
	"roundhouse/internal/wire"
)

// logLine is a log notification of a server with a text.
func logLine(text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":%q}}`, text)
}

// transportOf returns the gateway's side of a client.
func transportOf(p *peer) *transport {
	p.w.Helper()
	c, err := p.w.sessions.Client("local", strings.TrimPrefix(strings.TrimPrefix(p.path, "/mcp"), "/"), p.id)
	if err != nil {
		p.w.Fatal(err)
	}
	return c.Stream().(*transport)
}

// push sends a frame that belongs to no call to a client.
func push(p *peer, text string) {
	transportOf(p).Push(mux.Pieces{[]byte(logLine(text))})
	synctest.Wait()
}

func texts(x *pending) (list []any) {
	for _, f := range x.frames() {
		list = append(list, decode(x.w, f).Params["data"])
	}
	return list
}

// M2: a cancelled call's POST ends without an answer, and the server is told at once.
func TestACancelledCallEndsWithoutAnAnswer(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p, q := w.connect("/mcp/a"), w.connect("/mcp/a")
		body := `{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"echo","arguments":{"ms":60000}}}`
		mine, other := p.begin(p.request(http.MethodPost, body)), q.begin(q.request(http.MethodPost, body))
		streaming := p.beginTool("echo", `{"ms":20000,"steps":20}`)
		time.Sleep(1500 * time.Millisecond)
		for _, params := range []string{`{"requestId":77}`, `{"requestId":"0"}`, `{"requestId":"hello"}`, `{}`} {
			p.notify(wire.Cancelled, params) // unknown, another type, finished (case 30)
		}
		p.notify(wire.Cancelled, `{"requestId":0,"reason":"enough"}`)
		p.notify(wire.Cancelled, `{"requestId":1}`)
		synctest.Wait()
		if !mine.ended() || len(mine.frames()) != 0 || mine.status() != 200 {
			t.Errorf("the cancelled call: ended %v, status %d, frames %q", mine.ended(), mine.status(), mine.frames())
		}
		if !streaming.ended() || slices.Contains(streaming.methods(), "answer") {
			t.Errorf("the cancelled stream: ended %v, frames %q", streaming.ended(), streaming.methods())
		}
		got := w.proc("a").got(wire.Cancelled)
		if len(got) != 2 || !strings.Contains(got[0], `"reason":"enough"`) {
			t.Errorf("the server got %q", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := other.methods(); !slices.Equal(got, []string{"answer"}) {
			t.Errorf("the other client's call with the same id got %q", got)
		}
	})
}

// M2: when its client hangs up a call runs on.
func TestADisconnectIsNoCancel(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		x, y := p.beginTool("echo", `{"ms":10000}`), p.beginTool("echo", `{"ms":10000,"steps":5}`)
		time.Sleep(3 * time.Second)
		x.hangUp()
		y.hangUp()
		time.Sleep(10 * time.Second)
		if n := len(w.proc("a").got(wire.Cancelled)); n != 0 {
			t.Errorf("the server got %d cancellations", n)
		}
		if n := w.sessions.Stats().InFlight; n != 0 {
			t.Errorf("%d calls are still counted", n)
		}
	})
}

// H2: Last-Event-ID resumes a POST's stream: what was missed, then what comes.
func TestAPostStreamIsResumed(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		x := p.beginTool("echo", `{"ms":10000,"steps":10}`)
		time.Sleep(3500 * time.Millisecond)
		x.hangUp()
		time.Sleep(3 * time.Second)
		last := x.ids()[1] // the empty event, and one step
		again := p.listen(last)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := again.methods(); len(got) != 10 || got[9] != "answer" || !again.ended() {
			t.Errorf("resumed: %q, ended %v", got, again.ended())
		}
		if progress := decode(w, again.frames()[0]).Params["progress"]; progress != 2.0 {
			t.Errorf("resumed with step %v", progress)
		}
		ids := append(x.ids()[:2], again.ids()...)
		if unique := slices.Compact(slices.Sorted(slices.Values(ids))); len(unique) != 12 {
			t.Errorf("event ids are not unique: %q", ids)
		}
		// The whole answer was handed out by now, and can still be had.
		third := p.listen(last)
		if got := third.methods(); len(got) != 10 || !third.ended() {
			t.Errorf("resumed after the end: %q, ended %v", got, third.ended())
		}
		// Behind its end there is nothing, which is said with 405.
		ids = third.ids()
		if r := p.listen(ids[len(ids)-1]); r.status() != http.StatusMethodNotAllowed {
			t.Errorf("resumed behind the end: %d", r.status())
		}
	})
}

// H2: the answer of a call is kept for five minutes, no more and no less.
func TestWhatIsKeptForResumptionExpires(t *testing.T) {
	for _, c := range []struct {
		wait time.Duration
		left bool
	}{{4*time.Minute + 50*time.Second, true}, {5*time.Minute + time.Second, false}} {
		inWorld(t, settings{}, oneServer(), func(w *world) {
			p := w.connect("/mcp/a")
			push(p, "arms the timer early")
			p.listen("").hangUp()
			time.Sleep(4 * time.Minute)
			x := p.beginTool("echo", `{"ms":10000,"steps":10}`)
			time.Sleep(1500 * time.Millisecond)
			x.hangUp()
			time.Sleep(8500 * time.Millisecond) // it is answered
			time.Sleep(c.wait)
			again := p.listen(x.ids()[0])
			if got := again.methods(); c.left && len(got) != 11 {
				t.Errorf("after %s: %q", c.wait, got)
			}
			if !c.left {
				if again.status() != http.StatusMethodNotAllowed {
					t.Errorf("after %s: %d %q", c.wait, again.status(), again.frames())
				}
				if n := w.gateway.queued.Load(); n != 0 {
					t.Errorf("%d bytes are still queued", n)
				}
				if tr := transportOf(p); len(tr.posts) != 0 || len(tr.ring) != 0 || tr.bytes != 0 {
					t.Errorf("kept: %d streams, %d events, %d bytes", len(tr.posts), len(tr.ring), tr.bytes)
				}
			}
		})
	}
}

// H2: GET has what belongs to no call; a second replaces the first, also while
// nobody has noticed that the first client is gone.
func TestASecondGetReplacesTheFirst(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		push(p, "before")
		first := p.listen("")
		push(p, "one")
		second := p.listen("")
		push(p, "two")
		if got := texts(first); !slices.Equal(got, []any{"before", "one"}) || !first.ended() {
			t.Errorf("first: %q, ended %v", got, first.ended())
		}
		if got := texts(second); !slices.Equal(got, []any{"two"}) || second.ended() {
			t.Errorf("second: %q, ended %v", got, second.ended())
		}
		second.hangUp()
		if n := w.sessions.List("local", false)[0].Streams; n != 0 {
			t.Errorf("%d streams are still counted", n)
		}
	})
}

// H2: the standing stream is resumed, without loss and without doubles.
func TestTheStandingStreamIsResumed(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		first := p.listen("")
		push(p, "one")
		push(p, "two")
		first.hangUp()
		push(p, "three")
		ids := first.ids()
		second := p.listen(ids[len(ids)-2]) // after "one"
		push(p, "four")
		if got := texts(second); !slices.Equal(got, []any{"two", "three", "four"}) {
			t.Errorf("resumed: %q", got)
		}
		// What was replayed stands before the empty event: who resumes after that has it.
		second.mu.Lock()
		if e := second.events[0]; e.data == "" {
			t.Errorf("the stream begins with the empty event %q", e.id)
		}
		second.mu.Unlock()
		second.hangUp()
	})
}

// H2, case 65: another client's event id is refused, and so is one that is none.
func TestAForeignEventIDIsRefused(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p, q := w.connect("/mcp/a"), w.connect("/mcp/a")
		mine := p.listen("")
		for _, id := range []string{mine.ids()[0], "x", "1-2", "--", q.id[:8] + "-0", q.id[:8] + "-0-x", q.id[:8] + "--1-1"} {
			if r := q.listen(id); r.status() != http.StatusBadRequest {
				t.Errorf("%q: %d", id, r.status())
			}
		}
		if mine.ended() {
			t.Error("the other's attempt ended the stream")
		}
		mine.hangUp()
	})
}

// H2: versions before 2025-11-25 get no empty event.
func TestOnlyNewClientsGetAnEmptyEvent(t *testing.T) {
	for version, want := range map[string]int{wire.Version20251125: 1, wire.Version20250618: 0, wire.Version20241105: 0} {
		inWorld(t, settings{}, oneServer(), func(w *world) {
			p := w.dialed("/mcp/a")
			p.version = version
			p.hello()
			x := p.listen("")
			if n := len(x.ids()); n != want {
				t.Errorf("%s: %d events", version, n)
			}
			x.hangUp()
		})
	}
}

// stalled opens a stream with a request and stops reading after the headers.
func stalled(p *peer, r *http.Request) net.Conn {
	p.w.Helper()
	conn, err := p.w.listener.dial(r.Context(), "", "")
	if err != nil {
		p.w.Fatal(err)
	}
	if err := r.Write(conn); err != nil {
		p.w.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), r)
	if err != nil || resp.StatusCode != http.StatusOK {
		p.w.Fatalf("%v %v", resp, err)
	}
	return conn
}

// H4: a client that stops reading is dropped by the write deadline, and delays nobody.
func TestAStalledReaderIsDroppedAndDelaysNobody(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p, q := w.connect("/mcp/a"), w.connect("/mcp/a")
		conn := stalled(p, p.request(http.MethodGet, ""))
		defer conn.Close()
		push(p, "x")
		time.Sleep(2 * time.Second)
		begun := time.Now()
		for range 3 * maxQueuedFrames {
			push(p, "x")
		}
		q.tool("echo", "{}")
		if took := time.Since(begun); took != 0 {
			t.Errorf("others were delayed by %s", took)
		}
		tr := transportOf(p)
		if n := len(tr.standing.queue); n > maxQueuedFrames {
			t.Errorf("%d frames are queued", n)
		}
		time.Sleep(11 * time.Second)
		if n := w.sessions.List("local", false)[0].Streams; n != 0 {
			t.Errorf("%d streams are still open", n)
		}
	})
}

// H4: frames and bytes in one queue are limited; the oldest that are no answers go.
func TestAQueueIsBounded(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		for i := range 1000 {
			push(p, fmt.Sprint(i))
		}
		tr := transportOf(p)
		if n := len(tr.standing.queue); n != maxQueuedFrames {
			t.Errorf("%d frames are queued", n)
		}
		x := p.listen("")
		if got := texts(x); got[0] != fmt.Sprint(1000-maxQueuedFrames) {
			t.Errorf("the oldest frame is %v", got[0])
		}
		x.hangUp()
		for range 5 {
			push(p, strings.Repeat("x", maxQueuedBytes/3))
		}
		if n := w.gateway.queued.Load(); n > maxQueuedBytes || n == 0 {
			t.Errorf("%d bytes are queued", n)
		}
		for range 5 {
			x = p.listen("")
			push(p, strings.Repeat("x", ringBytes/3))
			x.hangUp()
		}
		if tr.bytes > ringBytes || len(tr.ring) > ringEvents || len(tr.ring) == 0 {
			t.Errorf("the ring holds %d events, %d bytes", len(tr.ring), tr.bytes)
		}
	})
}

// H4: all queues together are limited; who keeps up is not affected.
func TestAllQueuesTogetherAreBounded(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p, q := w.connect("/mcp/a"), w.connect("/mcp/a")
		x := q.listen("")
		parked := p.beginTool("echo", `{"ms":2000,"steps":2}`)
		time.Sleep(1500 * time.Millisecond)
		parked.hangUp()
		w.gateway.queued.Add(maxQueuedTotal) // what many others have
		push(p, "nobody reads this")
		push(q, "somebody reads this")
		time.Sleep(time.Second)
		q.tool("echo", "{}")
		if n := w.gateway.queued.Load(); n > maxQueuedTotal {
			t.Errorf("%d bytes over the limit are queued", n-maxQueuedTotal)
		}
		if got := texts(x); !slices.Equal(got, []any{"somebody reads this"}) {
			t.Errorf("the reader that keeps up got %q", got)
		}
		w.gateway.queued.Add(-maxQueuedTotal)
		x.hangUp()
	})
}

// H4: nothing stays counted, whoever leaves first (inWorld looks at the sum).
func TestNothingStaysQueued(t *testing.T) {
	big := strings.Repeat("x", 1000)
	for name, leave := range map[string]func(p *peer, x *pending){
		"the client hangs up and deletes": func(p *peer, x *pending) {
			x.hangUp()
			p.tool("echo", `{"lines":[`+string(wire.Quote(logLine(big)))+`]}`)
			time.Sleep(5 * time.Second)
			p.do(p.request(http.MethodDelete, ""))
		},
		"the client deletes and reads on": func(p *peer, x *pending) {
			p.do(p.request(http.MethodDelete, ""))
			synctest.Wait()
			if m := x.methods(); m[len(m)-1] != "answer" {
				p.w.Errorf("the call got %q", m)
			}
		},
		"the session is ended": func(p *peer, x *pending) {
			x.hangUp()
			if err := p.w.sessions.End(p.w.Context(), "local", false, p.w.sessions.List("local", false)[0].ID, true); err != nil {
				p.w.Error(err)
			}
		},
		"the server dies": func(p *peer, x *pending) {
			x.hangUp()
			p.w.proc("a").die()
			time.Sleep(6 * time.Minute)
		},
		"progress comes after the answer": func(p *peer, x *pending) {
			time.Sleep(time.Minute)
			out := newStream(transportOf(p), 1, false)
			out.Done(mux.Pieces{[]byte(`{}`)})
			out.Note(mux.Pieces{[]byte(big)})
			out.drop()
			out.Note(mux.Pieces{[]byte(big)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, settings{}, oneServer(), func(w *world) {
				p := w.connect("/mcp/a")
				push(p, big)
				x := p.beginTool("echo", `{"ms":20000,"steps":20}`)
				time.Sleep(3500 * time.Millisecond)
				leave(p, x)
				synctest.Wait()
			})
		})
	}
}

// A late frame of a POST is dropped, not queued (H4).
func TestWhatFollowsTheLastAnswerIsDropped(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		s := newStream(transportOf(w.connect("/mcp/a")), 1, false)
		s.Done(mux.Pieces{[]byte(`{}`)})
		s.Note(mux.Pieces{[]byte(`{"late":true}`)})
		if len(s.queue) != 1 || s.bytes != 2 {
			t.Errorf("%d frames, %d bytes", len(s.queue), s.bytes)
		}
		s.drop()
	})
}

// H2: a GET that comes just after its client's end does not stay open.
func TestAStreamOfAnEndedClientDoesNotOpen(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		tr := transportOf(p)
		p.do(p.request(http.MethodDelete, ""))
		if _, ok := tr.standing.takeOver(newReader(), nil); ok {
			t.Error("the standing stream took a reader")
		}
	})
}
