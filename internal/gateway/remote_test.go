package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/front"
	"roundhouse/internal/pool"
	"roundhouse/internal/session"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// A far is a server of Streamable HTTP in memory. Its tool runs for arguments.ms, asks
// its client for arguments.ask, and answers with arguments.n. It keeps a ledger of what
// it executed.
type far struct {
	net *pipes
	// fault may answer a request in the server's place: the nth tools/call, or any other
	// request with n 0. It returns false to let the server answer. It is called without
	// the lock; nil never answers.
	fault func(w http.ResponseWriter, r *http.Request, f wire.Frame, n int) bool

	mu         sync.Mutex
	down       bool // no connection can be made
	conns      []net.Conn
	sessions   map[string]bool
	handshakes int
	calls      int
	ledger     []string               // arguments.n of each call that was executed
	cancelled  []string               // ids in notifications/cancelled
	answers    map[string]chan string // of clients, by the id of what they were asked
}

func (x *far) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var f wire.Frame
	n := 0
	if r.Method == http.MethodPost {
		if f, err = wire.Parse(body); err != nil {
			panic(fmt.Sprintf("the server got %q", body))
		}
	}
	x.mu.Lock()
	if f.Method == wire.ToolsCall {
		x.calls++
		n = x.calls
	}
	x.mu.Unlock()
	if x.fault != nil && x.fault(w, r, f, n) {
		return
	}
	if f.Method == wire.MethodInitialize {
		x.mu.Lock()
		x.handshakes++
		id := fmt.Sprintf("session-%d", x.handshakes)
		x.sessions[id] = true
		x.mu.Unlock()
		w.Header().Set("Mcp-Session-Id", id)
		answerJSON(w, f, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"far","version":"1"}}`)
		return
	}
	x.mu.Lock()
	known := x.sessions[r.Header.Get("Mcp-Session-Id")]
	x.mu.Unlock()
	switch {
	case !known:
		http.Error(w, "session not found", http.StatusNotFound)
	case r.Method == http.MethodGet:
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case r.Method == http.MethodDelete:
		x.mu.Lock()
		delete(x.sessions, r.Header.Get("Mcp-Session-Id"))
		x.mu.Unlock()
	case f.Method == wire.ToolsList:
		answerJSON(w, f, `{"tools":[{"name":"count"}]}`)
	case f.Method == wire.ToolsCall:
		x.execute(w, r, f)
	case f.Kind == wire.Response:
		x.mu.Lock()
		answer := x.answers[string(f.ID())]
		x.mu.Unlock()
		answer <- string(f.Result())
		w.WriteHeader(http.StatusAccepted)
	default:
		if f.Method == wire.Cancelled {
			routing, _ := f.Routing()
			x.mu.Lock()
			x.cancelled = append(x.cancelled, string(routing.RequestID.Of(f.Raw)))
			x.mu.Unlock()
		}
		w.WriteHeader(http.StatusAccepted)
	}
}

func answerJSON(w http.ResponseWriter, f wire.Frame, result string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(wire.Result(f.ID(), []byte(result))) // who is gone needs no answer
}

type farArguments struct {
	N   string
	MS  int
	Ask string
	Log string // a log message before the answer
}

// note enters a call into the ledger.
func (x *far) note(f wire.Frame) (a farArguments) {
	var p struct{ Arguments farArguments }
	if err := json.Unmarshal(f.Params(), &p); err != nil {
		panic(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ledger = append(x.ledger, p.Arguments.N)
	return p.Arguments
}

func (x *far) execute(w http.ResponseWriter, r *http.Request, f wire.Frame) {
	a := x.note(f)
	if a.MS == 0 && a.Ask == "" && a.Log == "" {
		answerJSON(w, f, `{"content":[],"n":"`+a.N+`"}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	say := func(raw []byte) {
		_, _ = fmt.Fprintf(w, "data: %s\n\n", raw)
		w.(http.Flusher).Flush()
	}
	if a.Log != "" {
		say(wire.NewNotification(wire.Message, []byte(`{"level":"info","data":"`+a.Log+`"}`)))
	}
	heard := "null"
	if a.Ask != "" {
		answer := make(chan string, 1)
		x.mu.Lock()
		id := fmt.Sprint(len(x.answers) + 1)
		x.answers[id] = answer
		x.mu.Unlock()
		say(wire.NewRequest([]byte(id), a.Ask, []byte(`{"message":"`+a.N+`"}`)))
		heard = <-answer
	}
	select {
	case <-time.After(time.Duration(a.MS) * time.Millisecond):
		say(wire.Result(f.ID(), []byte(`{"content":[],"n":"`+a.N+`","heard":`+heard+`}`)))
	case <-r.Context().Done():
	}
}

// forget makes the server forget all sessions, as a restart does.
func (x *far) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.sessions)
}

// executed returns the ledger, sorted.
func (x *far) executed() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Sorted(slices.Values(x.ledger))
}

func (x *far) dial(ctx context.Context, network, address string) (net.Conn, error) {
	x.mu.Lock()
	down := x.down
	x.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("connection refused")}
	}
	conn, err := x.net.dial(ctx, network, address)
	if err == nil {
		x.mu.Lock()
		x.conns = append(x.conns, conn)
		x.mu.Unlock()
	}
	return conn, err
}

// stop takes the server off the network: connections break, and new ones cannot be made.
func (x *far) stop() {
	x.mu.Lock()
	x.down = true
	conns := x.conns
	x.conns = nil
	x.mu.Unlock()
	x.forget()
	for _, c := range conns {
		_ = c.Close()
	}
}

// start takes the server back.
func (x *far) start() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.down = false
}

// seen is what a far has seen so far.
type seen struct{ sessions, handshakes, calls, cancelled int }

func (x *far) seen() seen {
	x.mu.Lock()
	defer x.mu.Unlock()
	return seen{len(x.sessions), x.handshakes, x.calls, len(x.cancelled)}
}

// farLink is a link to a far.
type farLink struct{ *upstream.HTTP }

func (l farLink) Post(m *upstream.Message) { l.HTTP.Post(m) }
func (l farLink) Facts() pool.LinkFacts    { return pool.LinkFacts{} }
func (l farLink) Output(int) []string      { return nil }
func (l farLink) Note(string)              {}

// remote returns a server that is reached over HTTP.
func remote(name string, sharing config.Sharing) *config.Server {
	return &config.Server{Name: name, Transport: config.HTTP, Sharing: sharing, StartTimeout: time.Minute}
}

// inFarWorld runs test in a bubble with one server, called far, that is reached over
// real HTTP.
func inFarWorld(t *testing.T, x *far, server *config.Server, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		x.net, x.sessions, x.answers = newPipes(), map[string]bool{}, map[string]chan string{}
		transport := upstream.NewTransport()
		transport.DialContext = x.dial
		w := &world{T: t, listener: newPipes()}
		w.pool = pool.New(pool.Config{DrainDelay: 30 * time.Second, Dial: func(context.Context, *config.Server) (pool.Link, error) {
			h, err := upstream.NewHTTP(upstream.HTTPConfig{URL: "http://far/mcp", Transport: transport})
			return farLink{h}, err
		}})
		w.sessions = session.NewManager(session.Config{
			Pool: w.pool,
			Settings: session.Settings{
				Servers: []*config.Server{server}, ListWait: 15 * time.Second, InteractiveTimeout: time.Minute,
				Limits: config.Sessions{Max: 100, IdleTimeout: time.Hour},
			},
		})
		w.gateway = New(Config{Sessions: w.sessions})
		var err error
		if w.front, err = front.New(front.Config{}); err != nil {
			t.Fatal(err)
		}
		w.gateway.Register(w.front)
		w.browser = &http.Client{Transport: &http.Transport{DialContext: w.listener.dial, MaxIdleConnsPerHost: 100}}
		var wg sync.WaitGroup
		servers := []*http.Server{{Handler: w.front}, {Handler: x}}
		wg.Go(func() { _ = servers[0].Serve(w.listener) })
		wg.Go(func() { _ = servers[1].Serve(x.net) })
		test(w)
		w.end()
		w.browser.CloseIdleConnections()
		transport.CloseIdleConnections()
		for _, s := range servers {
			_ = s.Close()
		}
		wg.Wait()
	})
}

// count calls the far server's tool with a number of its own.
func (p *peer) count(n string) message {
	p.w.Helper()
	return p.send(wire.ToolsCall, `{"name":"count","arguments":{"n":"`+n+`"}}`).last(p.w)
}

// A verdict is how calls may end: with the server's answer, or with an error.
type verdict struct{ reason, sent string }

func verdictOn(w *world, m message) verdict {
	w.Helper()
	if m.Error == nil {
		return verdict{}
	}
	e := m.fault(w)
	if e.Data["server"] != "far" || !strings.Contains(e.Message, `"far"`) {
		w.Errorf("%+v does not name the server", e)
	}
	reason, _ := e.Data["reason"].(string)
	sent, _ := e.Data["sent"].(string)
	return verdict{reason, sent}
}

// Cases 4 and 35, R2, R5: whatever goes wrong at the server, every sharer's call gets
// its answer, or an error with a reason, within a second; none is executed twice; and
// sharers begin one new session at most.
func TestFaultsOfARemoteServer(t *testing.T) {
	t.Parallel()
	answered, maybe, unsent := verdict{}, verdict{"interrupted", "maybe"}, verdict{"interrupted", "no"}
	third := func(do func(x *far, w http.ResponseWriter, f wire.Frame)) func(*far) {
		return func(x *far) {
			x.fault = func(w http.ResponseWriter, _ *http.Request, f wire.Frame, n int) bool {
				if n == 3 {
					do(x, w, f)
				}
				return n == 3
			}
		}
	}
	for name, c := range map[string]struct {
		fault      func(x *far)
		third      verdict // on the third call
		others     verdict // on every other
		executed   int
		handshakes int
	}{
		"no fault": {fault: func(*far) {}, executed: 10, handshakes: 1},
		"404 on the third call": {fault: third(func(x *far, w http.ResponseWriter, _ wire.Frame) {
			x.forget()
			http.Error(w, "gone", http.StatusNotFound)
		}), executed: 10, handshakes: 2},
		"400 instead of 404": {fault: third(func(x *far, w http.ResponseWriter, _ wire.Frame) {
			x.forget()
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: No valid session ID provided"},"id":null}`)
		}), executed: 10, handshakes: 2},
		"404 always": {fault: func(x *far) {
			x.fault = func(w http.ResponseWriter, _ *http.Request, _ wire.Frame, n int) bool {
				if n > 0 {
					http.Error(w, "gone", http.StatusNotFound)
				}
				return n > 0
			}
		}, third: unsent, others: unsent, executed: 0, handshakes: -1},
		"404 on GET only": {fault: func(x *far) {
			x.fault = func(w http.ResponseWriter, r *http.Request, _ wire.Frame, _ int) bool {
				if r.Method == http.MethodGet {
					http.Error(w, "gone", http.StatusNotFound)
				}
				return r.Method == http.MethodGet
			}
		}, executed: 10, handshakes: 1},
		"502 after the call": {fault: third(func(x *far, w http.ResponseWriter, f wire.Frame) {
			x.note(f)
			http.Error(w, "bad gateway", http.StatusBadGateway)
		}), third: maybe, others: answered, executed: 10, handshakes: 1},
		"a stream without a result": {fault: third(func(x *far, w http.ResponseWriter, f wire.Frame) {
			x.note(f)
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, ": hello\n\n")
		}), third: maybe, others: answered, executed: 10, handshakes: 1},
		"a connection that breaks": {fault: third(func(x *far, _ http.ResponseWriter, f wire.Frame) {
			x.note(f)
			panic(http.ErrAbortHandler)
		}), third: maybe, others: answered, executed: 10, handshakes: 1},
	} {
		for _, sharing := range []config.Sharing{config.Shared, config.Session} {
			t.Run(name+" "+string(sharing), func(t *testing.T) {
				x := &far{}
				c.fault(x)
				inFarWorld(t, x, remote("far", sharing), func(w *world) {
					// At once, in two rounds.
					peers := []*peer{w.connect("/mcp/far"), w.connect("/mcp/far"), w.connect("/mcp/far"), w.connect("/mcp/far"), w.connect("/mcp/far")}
					var mu sync.Mutex
					got := map[verdict]int{}
					for round := range 2 {
						var wg sync.WaitGroup
						for i, p := range peers {
							wg.Go(func() {
								begun := time.Now()
								m := p.count(fmt.Sprint(round, i))
								if took := time.Since(begun); took > time.Second {
									t.Errorf("a call took %s", took)
								}
								v := verdictOn(w, m)
								if v == answered && m.Result["n"] != fmt.Sprint(round, i) {
									t.Errorf("call %d %d got %v", round, i, m.Result)
								}
								mu.Lock()
								defer mu.Unlock()
								got[v]++
							})
						}
						wg.Wait()
					}
					want := map[verdict]int{c.others: 9}
					want[c.third]++
					if fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("the calls ended so: %v, want %v", got, want)
					}
					done := x.executed()
					if len(done) != c.executed || len(slices.Compact(slices.Clone(done))) != c.executed {
						t.Errorf("the ledger has %q", done)
					}
					switch {
					case c.handshakes < 0:
					case sharing == config.Shared && x.seen().handshakes != c.handshakes:
						t.Errorf("%d handshakes, want %d", x.seen().handshakes, c.handshakes)
					case sharing == config.Session && (x.seen().handshakes < 5 || x.seen().handshakes > 5*c.handshakes):
						t.Errorf("%d handshakes of five sessions", x.seen().handshakes)
					}
				})
			})
		}
	}
}

// Case 4: a server that refuses every call of every session is tried once more and then
// told of: two handshakes for a round of calls, not a loop.
func TestAServerThatRefusesEveryCallIsNotTriedForEver(t *testing.T) {
	x := &far{fault: func(w http.ResponseWriter, _ *http.Request, _ wire.Frame, n int) bool {
		if n > 0 {
			http.Error(w, "gone", http.StatusNotFound)
		}
		return n > 0
	}}
	inFarWorld(t, x, remote("far", config.Shared), func(w *world) {
		p := w.connect("/mcp/far")
		if got := verdictOn(w, p.count("1")); got != (verdict{"interrupted", "no"}) {
			t.Errorf("got %v", got)
		}
		time.Sleep(time.Minute)
		if got := x.seen(); got.calls != 2 || got.handshakes != 2 {
			t.Errorf("the server saw %+v", got)
		}
	})
}

// R2, case 35: calls that are being executed when the session is lost get an error that
// says so within a second, and are not executed again; the call that found out is
// answered by a new session.
func TestALostSessionInterruptsTheCallsInFlight(t *testing.T) {
	x := &far{}
	inFarWorld(t, x, remote("far", config.Shared), func(w *world) {
		p, q := w.connect("/mcp/far"), w.connect("/mcp/far")
		slow := p.beginTool("count", `{"n":"slow","ms":60000,"log":"hello"}`)
		time.Sleep(time.Second)
		x.forget()
		begun := time.Now()
		if m := q.count("quick"); m.Result["n"] != "quick" {
			t.Errorf("the client got %s", m.Error)
		}
		<-slow.done
		if took := time.Since(begun); took > time.Second {
			t.Errorf("it took %s", took)
		}
		frames := slow.frames()
		if got := verdictOn(w, decode(w, frames[len(frames)-1])); got != (verdict{"interrupted", "maybe"}) {
			t.Errorf("the call in flight got %v", got)
		}
		if got := x.executed(); !slices.Equal(got, []string{"quick", "slow"}) || x.seen().handshakes != 2 {
			t.Errorf("executed %q, %+v", got, x.seen())
		}
	})
}

// R1, R2: a server that is down costs each call a clear error at once, and works again
// when it is back, without a restart of ours.
func TestAServerThatIsDownAndComesBack(t *testing.T) {
	x := &far{}
	inFarWorld(t, x, remote("far", config.Shared), func(w *world) {
		p, q := w.connect("/mcp/far"), w.connect("/mcp/far")
		p.count("before")
		x.stop()
		time.Sleep(5 * time.Second) // for the link to see that there is no way back
		for _, p := range []*peer{p, q, p} {
			begun := time.Now()
			m := p.count("down")
			e := m.fault(w)
			if e.Data["reason"] != "start_failed" || !strings.Contains(e.Message, `server "far" cannot be reached`) || !strings.Contains(e.Message, "connection refused") {
				t.Errorf("got %+v", e)
			}
			if took := time.Since(begun); took > time.Second {
				t.Errorf("it took %s", took)
			}
		}
		x.start()
		for _, p := range []*peer{p, q} {
			if m := p.count("after"); m.Result["n"] != "after" {
				t.Errorf("the client got %s", m.Error)
			}
		}
		if got := x.executed(); !slices.Equal(got, []string{"after", "after", "before"}) {
			t.Errorf("executed %q", got)
		}
	})
}

// M6, case 33: on a connection that is shared both of two clients in flight are asked at
// the same time, each with its own call, and log messages are the call's likewise.
func TestARemoteServerAsksBothOfTwoClients(t *testing.T) {
	for _, method := range []string{wire.SamplingCreate, wire.ElicitationCreate, wire.RootsList} {
		x := &far{}
		inFarWorld(t, x, remote("far", config.Shared), func(w *world) {
			peers := []*peer{w.connect("/mcp/far"), w.connect("/mcp/far")}
			var calls []*pending
			for i, p := range peers {
				calls = append(calls, p.beginTool("count", fmt.Sprintf(`{"n":"%d","ask":%q,"ms":100,"log":"log of %d"}`, i, method, i)))
			}
			time.Sleep(time.Second)
			for i := range slices.Backward(peers) {
				frames := calls[i].frames()
				if len(frames) != 2 || !strings.Contains(frames[0], fmt.Sprint("log of ", i)) || !strings.Contains(frames[1], fmt.Sprintf(`"params":{"message":"%d"}`, i)) {
					t.Fatalf("%s: client %d got %q", method, i, frames)
				}
				peers[i].answer(string(decode(w, frames[1]).ID), fmt.Sprintf(`{"from":%d}`, i))
			}
			for i, c := range calls {
				<-c.done
				m := decode(w, c.frames()[2])
				if heard, _ := m.Result["heard"].(map[string]any); m.Result["n"] != fmt.Sprint(i) || heard["from"] != float64(i) {
					t.Errorf("%s: client %d got %v", method, i, m.Result)
				}
			}
			if got := x.seen().handshakes; got != 1 {
				t.Errorf("%d sessions", got)
			}
		})
	}
}

// M2: a cancelled call is cancelled at the server, that one alone.
func TestACallOfARemoteServerIsCancelledAlone(t *testing.T) {
	x := &far{}
	inFarWorld(t, x, remote("far", config.Shared), func(w *world) {
		p, q := w.connect("/mcp/far"), w.connect("/mcp/far")
		mine, other := p.beginTool("count", `{"n":"1","ms":5000}`), q.beginTool("count", `{"n":"2","ms":5000}`)
		time.Sleep(time.Second)
		p.notify(wire.Cancelled, `{"requestId":1}`)
		<-mine.done
		<-other.done
		if got := append(mine.frames(), other.frames()...); len(got) != 1 || decode(w, got[0]).Result["n"] != "2" {
			t.Errorf("the clients got %q", got)
		}
		if got := x.seen().cancelled; got != 1 {
			t.Errorf("the server got %d cancellations", got)
		}
	})
}

// U1: by default every session has a session of its own at a remote server, which ends
// with it; a shared one ends when nobody has used it for the drain delay.
func TestSessionsAtARemoteServerEnd(t *testing.T) {
	for sharing, want := range map[config.Sharing]int{config.Session: 2, config.Shared: 1} {
		x := &far{}
		inFarWorld(t, x, remote("far", sharing), func(w *world) {
			p, q := w.connect("/mcp/far"), w.connect("/mcp/far")
			p.count("1")
			q.count("2")
			if x.seen().sessions != want {
				t.Errorf("%s: %d sessions at the server", sharing, x.seen().sessions)
			}
			p.do(p.request(http.MethodDelete, ""))
			synctest.Wait()
			if left := x.seen().sessions; left != 1 {
				t.Errorf("%s: %d sessions are left at the server", sharing, left)
			}
			q.do(q.request(http.MethodDelete, ""))
			time.Sleep(31 * time.Second)
			if left := x.seen().sessions; left != 0 {
				t.Errorf("%s: %d sessions are left at the server in the end", sharing, left)
			}
		})
	}
}
