package session

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/wire"
)

// cleaners makes servers answer clean-ups with result, or with "" not at all, and list a
// tool of that name. It returns how many came.
func (w *world) cleaners(listed, result string) func() int {
	n := 0
	w.on = func(l *link, f wire.Frame) bool {
		var p struct{ Name string }
		switch f.Method {
		case wire.ToolsList:
			l.wg.Go(func() {
				l.say(wire.Result(f.ID(), fmt.Appendf(nil, `{"tools":[{"name":"echo"},{"name":%q}]}`, listed)))
			})
			return true
		case wire.ToolsCall:
			if err := json.Unmarshal(f.Params(), &p); err != nil || p.Name == "echo" {
				return false
			}
			w.mu.Lock()
			n++
			w.mu.Unlock()
			if result != "" {
				l.wg.Go(func() { l.say(wire.Result(f.ID(), []byte(result))) })
			}
			return true
		}
		return false
	}
	return func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return n
	}
}

const fine = `{"content":[]}`

// N5: who is told at the end of a session, and what becomes of that.
func TestCleanup(t *testing.T) {
	for _, test := range []struct {
		name    string
		sharing config.Sharing
		cleanup config.Cleanup
		listed  string
		unused  bool
		result  string
		want    Outcome // "" is none at all
		sent    int
	}{
		{"configured", config.Session, config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}}, "x", false, fine, CleanupOK, 1},
		{"of an instance", config.Exclusive, config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}}, "x", false, fine, CleanupOK, 1},
		{"by its name", config.Session, config.Cleanup{}, "cleanup_session", false, fine, CleanupOK, 1},
		{"none", config.Session, config.Cleanup{}, "close", false, fine, "", 0},
		{"unused", config.Session, config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}}, "x", true, fine, CleanupSkipped, 0},
		{"an unused instance is not even leased", config.Exclusive, config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}}, "x", true, fine, "", 0},
		{"shared", config.Shared, config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}}, "x", false, fine, CleanupSkipped, 0},
		{"shared by its name", config.Shared, config.Cleanup{}, "cleanup_session", false, fine, CleanupSkipped, 0},
		{"shared and wanted", config.Shared, config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}, Shared: true}, "x", false, fine, CleanupOK, 1},
		{"shared, wanted and unused", config.Shared, config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}, Shared: true}, "x", true, fine, CleanupSkipped, 0},
		{"refused", config.Session, config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}}, "x", false, `{"isError":true,"content":[{"type":"text","text":"no"}]}`, CleanupFailed, 1},
		{"silent", config.Session, config.Cleanup{ToolCall: config.ToolCall{Tool: "close"}}, "x", false, "", CleanupTimeout, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := exclusive("browser", 1)
			s.Sharing = test.sharing
			s.Cleanup, s.Cleanup.Timeout = test.cleanup, 5*time.Second
			inWorld(t, usual, []*config.Server{s}, func(w *world) {
				sent := w.cleaners(test.listed, test.result)
				c := w.client("browser", "a")
				c.do(1, wire.ToolsList, "{}")
				if !test.unused {
					w.works(c.do(2, wire.ToolsCall, echo))
				}
				begun := time.Now()
				w.works(w.ended("a"))
				w.works(w.endedAgain("a"))
				if took := time.Since(begun); took > 5*time.Second {
					t.Errorf("it took %s", took)
				}
				if n := sent(); n != test.sent {
					t.Errorf("%d clean-ups were sent; want %d", n, test.sent)
				}
				want := map[Outcome]int64{}
				if test.want != "" {
					want[test.want] = 1
				}
				if got := w.m.Stats().Cleanups; !maps.Equal(got, want) {
					t.Errorf("counted are %v; want %v", got, want)
				}
			})
		})
	}
}

// endedAgain ends a session that has ended.
func (w *world) endedAgain(id string) string {
	if answer := w.ended(id); strings.Contains(answer, "no session is called") {
		return `"result"`
	}
	return "it ended twice"
}

// N4, N5: however a session lets go of a server, that is told once, before its connection is
// gone.
func TestEveryEndCleansUpOnce(t *testing.T) {
	ends := map[string]func(w *world, c *Client){
		"end":            func(w *world, _ *Client) { w.ended("a") },
		"DELETE":         func(_ *world, c *Client) { c.Delete() },
		"sleep":          func(*world, *Client) { time.Sleep(11 * time.Minute) },
		"expiry":         func(*world, *Client) { time.Sleep(25 * time.Hour) },
		"shutdown":       func(w *world, _ *Client) { w.m.Drain(); w.m.Shutdown(w.Context()) },
		"released lease": func(w *world, _ *Client) { _ = w.m.ReleaseLease("local", false, "a", "browser") },
		"configuration": func(w *world, _ *Client) {
			w.m.Configure(Settings{Limits: usual, DrainDelay: 30 * time.Second})
			time.Sleep(time.Second)
		},
		"two ends at once": func(w *world, c *Client) {
			go w.ended("a") // joined by the bubble
			c.Delete()
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			s := exclusive("browser", 1)
			s.Cleanup.Tool = "close"
			inWorld(t, usual, []*config.Server{s}, func(w *world) {
				sent := w.cleaners("x", fine)
				c := w.client("browser", "a")
				w.works(c.do(1, wire.ToolsCall, echo))
				synctest.Wait() // the call has ended
				end(w, c)
				synctest.Wait()
				if n := sent(); n != 1 {
					t.Errorf("%d clean-ups were sent", n)
				}
				if got := w.m.Stats().Cleanups; got[CleanupOK] != 1 || len(got) != 1 {
					t.Errorf("%v", got)
				}
				select {
				case <-w.link("browser").aborted:
				default:
					t.Error("the instance lives")
				}
			})
		})
	}
}

// N4, N5: two ends of one use at the same time clean up once, and neither gives the connection
// back before that is over.
func TestTwoEndsAtOnceCleanUpOnce(t *testing.T) {
	s := exclusive("browser", 1)
	s.Cleanup.Tool = "close"
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		sent := w.cleaners("x", "") // which takes until its limit
		w.works(w.client("browser", "a").do(1, wire.ToolsCall, echo))
		var wg sync.WaitGroup
		wg.Go(func() { _ = w.m.ReleaseLease("local", false, "a", "browser") })
		synctest.Wait()
		wg.Go(func() { w.ended("a") })
		time.Sleep(4 * time.Second)
		select {
		case <-w.link("browser").aborted:
			t.Error("the instance has ended before its clean-up")
		default:
		}
		wg.Wait()
		if n := sent(); n != 1 {
			t.Errorf("%d clean-ups were sent", n)
		}
		if got := w.m.Stats().Cleanups; got[CleanupTimeout] != 1 || len(got) != 1 {
			t.Errorf("%v", got)
		}
	})
}

// N5: a connection that a new configuration has replaced has a clean-up of its own, however
// the session lets go of it and whether or not the new one was used, too.
func TestAReplacedConnectionIsCleanedUpForItself(t *testing.T) {
	ends := map[string]func(w *world){
		"its calls end":  func(*world) { time.Sleep(20 * time.Second) },
		"its time ends":  func(*world) { time.Sleep(time.Minute) },
		"end":            func(w *world) { w.works(w.ended("a")) },
		"released lease": func(w *world) { _ = w.m.ReleaseLease("local", false, "a", "browser") },
	}
	for name, end := range ends {
		for _, more := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, %d calls of the new one", name, more), func(t *testing.T) {
				s := exclusive("browser", 1)
				s.Cleanup.Tool = "close"
				inWorld(t, usual, []*config.Server{s}, func(w *world) {
					sent := w.cleaners("x", fine)
					c, ms := w.client("browser", "a"), 10_000
					if name == "its time ends" {
						ms = 3600_000
					}
					w.call(c, ms)
					synctest.Wait()
					changed := *s
					changed.Args = []string{"--new"}
					w.configure(&changed)
					for id := range more {
						w.works(c.do(id, wire.ToolsCall, echo))
					}
					end(w)
					if name == "its calls end" || name == "its time ends" {
						synctest.Wait()
						if n := sent(); n != 1 {
							t.Errorf("%d clean-ups were sent before the end", n)
						}
						w.works(w.ended("a"))
					}
					if n := sent(); n != 1+more {
						t.Errorf("%d clean-ups were sent", n)
					}
					if got := w.m.Stats().Cleanups; got[CleanupOK] != int64(1+more) || len(got) != 1 {
						t.Errorf("%v", got)
					}
				})
			})
		}
	}
}

// N4, N5, K7: so has one that clients would not find any more, since the sharing of its server
// is another: nothing of it outlives the session, or a lease that is taken away.
func TestAConnectionOfAnotherSharingIsCleanedUp(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"its calls end":  func(*world) { time.Sleep(20 * time.Second) },
		"end":            func(w *world) { w.works(w.ended("a")) },
		"released lease": func(w *world) { w.works(fmt.Sprintf(`%v"result"`, w.m.ReleaseLease("local", false, "a", "browser"))) },
	} {
		t.Run(name, func(t *testing.T) {
			s := exclusive("browser", 1)
			s.Cleanup.Tool = "close"
			inWorld(t, usual, []*config.Server{s}, func(w *world) {
				sent := w.cleaners("x", fine)
				c := w.client("browser", "a")
				w.call(c, 10_000)
				synctest.Wait()
				w.expectLeases("a=browser#1")
				changed := *s
				changed.Sharing = config.Shared
				w.configure(&changed)
				w.works(c.do(1, wire.ToolsCall, echo))
				w.expectLeases("a=browser#1")
				end(w)
				synctest.Wait()
				w.expectLeases()
				if n := sent(); n != 1 {
					t.Errorf("%d clean-ups were sent", n)
				}
				if got := w.m.Stats().Cleanups; got[CleanupOK] != 1 {
					t.Errorf("%v", got)
				}
				if i := w.instances.Snapshot("", true); len(i) > 0 {
					t.Errorf("there is still %+v", i)
				}
				time.Sleep(time.Second)
				w.m.mu.Lock()
				defer w.m.mu.Unlock()
				if order := c.session.order; len(order) != len(c.session.bindings) {
					t.Errorf("the session keeps %d bindings of %d", len(order), len(c.session.bindings))
				}
			})
		})
	}
}

// N4, N5: the end of a session waits for the clean-up of a connection that a new configuration
// has replaced, before it gives that back.
func TestTheEndWaitsForTheCleanupOfAReplacedConnection(t *testing.T) {
	s := exclusive("browser", 1)
	s.Cleanup.Tool = "close"
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		sent := w.cleaners("x", "") // which takes until its limit
		w.works(w.client("browser", "a").do(1, wire.ToolsCall, echo))
		w.configure()
		time.Sleep(time.Second)
		begun := time.Now()
		w.works(w.ended("a"))
		if took := time.Since(begun); took > 4*time.Second || took < 3*time.Second {
			t.Errorf("the end took %s", took)
		}
		if n := sent(); n != 1 {
			t.Errorf("%d clean-ups were sent", n)
		}
		if got := w.m.Stats().Cleanups; got[CleanupTimeout] != 1 || len(got) != 1 {
			t.Errorf("%v", got)
		}
	})
}

// N3, N5: what is used again after a sleep is told again.
func TestEachUseOfAServerHasItsCleanup(t *testing.T) {
	s := exclusive("browser", 1)
	s.Cleanup.Tool = "close"
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		sent := w.cleaners("x", fine)
		c := w.client("browser", "a")
		for id := range 3 {
			w.works(c.do(id, wire.ToolsCall, echo))
			time.Sleep(11 * time.Minute)
		}
		if n := sent(); n != 3 {
			t.Errorf("%d clean-ups were sent", n)
		}
		info, err := w.m.Get("local", false, "a")
		if err != nil || len(info.Cleanups) != 3 || info.Cleanups[2].Outcome != CleanupOK {
			t.Errorf("%+v, %v", info.Cleanups, err)
		}
	})
}

// N5: clean-ups run in parallel, each with its own limit, and all together with one.
func TestCleanupsRunInParallelWithinTheirLimits(t *testing.T) {
	var servers []*config.Server
	for n := range 4 {
		s := exclusive(fmt.Sprint("s", n), 1)
		s.Cleanup.Tool = "close"
		if n == 3 {
			s.Cleanup.Timeout = time.Hour
		}
		servers = append(servers, s)
	}
	inWorld(t, usual, servers, func(w *world) {
		w.cleaners("x", "")
		for _, s := range servers {
			w.works(w.client(s.Name, "a").do(1, wire.ToolsCall, echo))
		}
		begun := time.Now()
		w.works(w.ended("a"))
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("it took %s", took)
		}
		if got := w.m.Stats().Cleanups; got[CleanupTimeout] != 4 {
			t.Errorf("%v", got)
		}
	})
}

// N3, N5: a request that wakes a session waits until its servers have been told.
func TestARequestDuringACleanupWaitsForIt(t *testing.T) {
	s := exclusive("browser", 1)
	s.Cleanup.Tool = "close"
	inWorld(t, usual, []*config.Server{s}, func(w *world) {
		w.cleaners("x", "")
		c := w.client("browser", "a")
		w.works(c.do(1, wire.ToolsCall, echo))
		time.Sleep(10*time.Minute + time.Second)
		begun := time.Now()
		w.works(c.do(2, wire.ToolsCall, echo))
		if took := time.Since(begun); took != 4*time.Second {
			t.Errorf("it waited for %s", took)
		}
		w.expectLeases("a=browser#2")
	})
}
