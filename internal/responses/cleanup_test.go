package responses_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/config"
)

const threeServers = `"tools":[{"type":"mcp","server_label":"a","require_approval":"never"},{"type":"mcp","server_label":"b","require_approval":"never"},{"type":"mcp","server_label":"c","require_approval":"never"}]`

// hanging is a tool that hangs until its call is cancelled, or its server goes.
func hanging(w *world) handler {
	return func(_ string, done <-chan struct{}, _ func(int)) (string, string) {
		w.note("hangs")
		<-done
		return `{"content":[]}`, ""
	}
}

// waits is a model that does not begin to answer before its request ends.
func waits(w *world) http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) {
		w.note("model waits")
		<-r.Context().Done()
	}
}

// checkLedger checks what servers saw: each that was opened is closed once, each of used got
// one clean-up before that and no other did, and nothing was called after it.
func checkLedger(t *testing.T, w *world, opened []string, used ...string) {
	t.Helper()
	for _, s := range opened {
		w.await("close " + s)
	}
	lines := w.noted()
	closing := 0
	for _, s := range []string{"a", "b", "c"} {
		wanted := 0
		if slices.Contains(used, s) {
			wanted = 1
		}
		cleanup := slices.Index(lines, "cleanup "+s)
		if n := count(lines, "cleanup "+s); n != wanted {
			t.Errorf("%s got %d clean-ups, want %d: %q", s, n, wanted, lines)
		}
		if n, m := count(lines, "open "+s), count(lines, "close "+s); n != m || n > 1 {
			t.Errorf("%s was opened %d times and closed %d times: %q", s, n, m, lines)
		}
		closed := slices.Index(lines, "close "+s)
		if wanted == 1 && cleanup > closed {
			t.Errorf("%s was closed before its clean-up: %q", s, lines)
		}
		for i, line := range lines {
			if strings.HasPrefix(line, "call "+s+".") && cleanup >= 0 && i > cleanup {
				t.Errorf("%s was called after its clean-up: %q", s, lines)
			}
		}
		closing = max(closing, cleanup)
	}
	for i, line := range lines {
		if strings.HasPrefix(line, "close ") && i < closing {
			t.Errorf("a server was closed before the last clean-up: %q", lines)
		}
	}
}

// X3: the matrix of which tool sessions are used: none, one, unused, first, last, all, and
// the same one again.
func TestEachUsedToolSessionGetsOneCleanup(t *testing.T) {
	t.Parallel()
	for _, used := range []string{"", "a", "b", "c", "ab", "ac", "bc", "abc", "aa", "abca"} {
		for _, rounds := range []string{"one turn", "a turn each"} {
			t.Run(fmt.Sprintf("%q in %s", used, rounds), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, nil)
				var script []http.HandlerFunc
				var all []call
				for i, s := range used {
					c := call{fmt.Sprint("c", i), string(s) + "__echo", fmt.Sprintf(`{"n":%d}`, i)}
					all = append(all, c)
					if rounds == "a turn each" {
						script = append(script, calls(c))
					}
				}
				if rounds == "one turn" && len(all) > 0 {
					script = append(script, calls(all...))
				}
				w.answers(append(script, says("done"))...)
				g := w.post(`{"model":"m","input":"go",` + threeServers + `}`)
				want(t, g.object(t), "status", "completed")
				checkLedger(t, w, []string{"a", "b", "c"}, strings.Split(used, "")...)
			})
		}
	}
}

// X3, case 62: every way in which a request can end leaves one release for each acquisition,
// and one clean-up for what was used.
func TestEveryEndCleansUpOnce(t *testing.T) {
	t.Parallel()
	opened := []string{"a", "b", "c"}
	ends := []struct {
		name   string
		script func(w *world) []http.HandlerFunc
		until  string // the lines of the ledger at which the client leaves, or the daemon stops; "" is never
		opened []string
		used   []string
		prep   func(w *world)
	}{
		{"before listing", func(w *world) []http.HandlerFunc { return []http.HandlerFunc{says("x")} }, "opening a, opening b, opening c", nil, nil, func(w *world) {
			for _, s := range w.servers {
				w.slow[s.Name] = make(chan struct{})
			}
		}},
		{"while opening", func(w *world) []http.HandlerFunc { return []http.HandlerFunc{says("x")} }, "open a, open b, opening c", []string{"a", "b"}, nil, func(w *world) { w.slow["c"] = make(chan struct{}) }},
		{"round 1", func(w *world) []http.HandlerFunc { return []http.HandlerFunc{waits(w)} }, "model waits", opened, nil, nil},
		{"during a tool", func(w *world) []http.HandlerFunc {
			return []http.HandlerFunc{calls(call{"c", "b__act", "{}"}), says("x")}
		}, "hangs", opened, []string{"b"}, func(w *world) { w.tools["b.act"] = hanging(w) }},
		{"between rounds", func(w *world) []http.HandlerFunc {
			return []http.HandlerFunc{calls(call{"c", "a__echo", "{}"}), waits(w)}
		}, "model waits", opened, []string{"a"}, nil},
		{"during the last bytes", func(w *world) []http.HandlerFunc {
			return []http.HandlerFunc{calls(call{"c", "a__echo", "{}"}), func(rw http.ResponseWriter, r *http.Request) {
				stream(delta(map[string]any{"content": "almost"}))(rw, r)
				waits(w)(rw, r)
			}}
		}, "model waits", opened, []string{"a"}, nil},
		{"an error on round 1", func(w *world) []http.HandlerFunc { return []http.HandlerFunc{fails(400, `{"error":{"message":"no"}}`)} }, "", opened, nil, nil},
		{"an error on round 2", func(w *world) []http.HandlerFunc {
			return []http.HandlerFunc{calls(call{"c", "c__echo", "{}"}), fails(400, `{"error":{"message":"no"}}`)}
		}, "", opened, []string{"c"}, nil},
		{"the model is cut off", func(w *world) []http.HandlerFunc {
			return []http.HandlerFunc{calls(call{"c", "c__echo", "{}"}), stream(delta(map[string]any{"content": "x"}), cut)}
		}, "", opened, []string{"c"}, nil},
		{"a server that does not open", func(w *world) []http.HandlerFunc {
			return []http.HandlerFunc{calls(call{"c", "a__echo", "{}"}), says("x")}
		}, "", []string{"a", "c"}, []string{"a"}, func(w *world) { w.broken["b"] = errBroken }},
	}
	for _, end := range ends {
		for _, how := range []string{"client", "daemon"} {
			if end.until == "" && how == "daemon" {
				continue
			}
			for _, streams := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, stream %v", end.name, how, streams), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, end.prep)
					w.answers(end.script(w)...)
					ctx, leave := context.WithCancel(context.Background())
					defer leave()
					body := fmt.Sprintf(`{"model":"m","input":"go","stream":%v,%s}`, streams, threeServers)
					done := make(chan struct{})
					go func() {
						defer close(done)
						resp, err := w.trySend(ctx, body)
						if err != nil {
							return // the client left
						}
						defer resp.Body.Close()
						_, _ = readEvents(resp.Body)
					}()
					if end.until != "" {
						for line := range strings.SplitSeq(end.until, ", ") {
							w.await(line)
						}
						if how == "daemon" {
							w.face.Close()
						} else {
							leave()
						}
					}
					<-done
					w.until("no response is under way", func() bool { return w.face.Running() == 0 })
					checkLedger(t, w, end.opened, end.used...)
					if list := w.sessions.List("", true); len(list) > 0 {
						t.Errorf("sessions are left: %+v", list)
					}
				})
			}
		}
	}
}

// X2: what tool_choice demands and does not open ends the request; what was opened is
// closed, and nobody is asked or cleaned up.
func TestADemandedServerThatDoesNotOpenClosesAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.broken["b"] = errBroken
		w.slow["c"] = make(chan struct{}) // for ever: nobody waits for it
		w.servers[2].StartTimeout = time.Hour
	})
	w.answers(says("x"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp := w.send(ctx, `{"model":"m","input":"go","tool_choice":{"type":"mcp","server_label":"b"},`+threeServers+`}`)
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusFailedDependency || !strings.Contains(string(body), `server \"b\"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	w.until("it is over", func() bool { return w.face.Running() == 0 })
	var opened []string // those that were still being opened when the other failed need not have been
	for _, line := range w.noted() {
		if s, ok := strings.CutPrefix(line, "open "); ok {
			opened = append(opened, s)
		}
	}
	checkLedger(t, w, opened)
	if n := len(w.prompts()); n > 0 {
		t.Errorf("the model was asked %d times", n)
	}
}

// B.4, risk 1: that a clean-up has failed is logged, counted and kept, and changes nothing of
// the answer.
func TestAFailedCleanupIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c", "a__echo", "{}"}), says("done"))
	w.does("a.cleanup_session", func(string, <-chan struct{}, func(int)) (string, string) {
		return "", `{"code":-32000,"message":"it is stuck"}`
	})
	want(t, w.post(`{"model":"m","input":"go",`+threeServers+`}`).object(t), "status", "completed")
	checkLedger(t, w, []string{"a", "b", "c"}, "a")
	if n := w.sessions.Stats().Cleanups["failed"]; n != 1 {
		t.Errorf("%d failed clean-ups are counted", n)
	}
	events, _, _ := w.events.After(0)
	found := false
	for _, e := range events {
		found = found || e.Outcome == "failed" && e.Server == "a" && strings.Contains(e.Reason, "it is stuck")
	}
	if !found {
		t.Errorf("no event tells of it: %+v", events)
	}
}

// B.4, risk 2; X4: a clean-up that hangs has an end, and delays neither the answer nor
// anybody else.
func TestAHangingCleanupDelaysNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		for _, s := range w.servers {
			s.Cleanup.Timeout = 500 * time.Millisecond
		}
	})
	release := make(chan struct{})
	defer close(release)
	w.does("a.cleanup_session", func(_ string, done <-chan struct{}, _ func(int)) (string, string) {
		w.note("clean-up hangs")
		select {
		case <-release:
		case <-done:
		}
		return `{"content":[]}`, ""
	})
	w.answers(calls(call{"c", "a__echo", "{}"}), says("done"))
	for _, streams := range []string{"false", "true"} {
		before := w.sessions.Stats().Cleanups["timeout"]
		g := w.post(`{"model":"m","input":"go","stream":` + streams + `,` + threeServers + `}`)
		if !strings.Contains(g.body, "done") {
			t.Error(g.body)
		}
		if n := w.sessions.Stats().Cleanups["timeout"]; n != before {
			t.Error("the answer has waited for the clean-up")
		}
		w.until("the clean-up timed out", func() bool { return w.sessions.Stats().Cleanups["timeout"] == before+1 })
		w.until("it is over", func() bool { return w.face.Running() == 0 })
		w.answers(calls(call{"c", "a__echo", "{}"}), says("done"))
	}
	w.until("all is closed", func() bool { return count(w.noted(), "close a") == 2 })
}

// B.4, risk 3; X2: whichever way a response takes, there is one owner of its tool sessions:
// named sessions keep theirs until they end, and a second response uses them again.
func TestANamedSessionKeepsItsToolSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	script := []http.HandlerFunc{calls(call{"c", "a__echo", "{}"}), says("done")}
	w.answers(append(script, script...)...)
	for range 2 {
		want(t, w.post(`{"model":"m","input":"go",`+threeServers+`}`, "X-Session-Id", "mine").object(t), "status", "completed")
	}
	w.until("it is over", func() bool { return w.face.Running() == 0 })
	n := w.noted()
	if count(n, "open a") != 1 || count(n, "call a.echo") != 2 || count(n, "cleanup a") != 0 || count(n, "close a") != 0 {
		t.Errorf("the ledger is %q", n)
	}
	if err := w.sessions.End(context.Background(), "local", false, "mine", true); err != nil {
		t.Fatal(err)
	}
	checkLedger(t, w, []string{"a", "b", "c"}, "a")
}

// X2: with toolSessions "request" a named session keeps nothing.
func TestToolSessionsOfARequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.llm.Responses.ToolSessions = config.ToolSessionsRequest })
	w.answers(calls(call{"c", "b__echo", "{}"}), says("done"))
	want(t, w.post(`{"model":"m","input":"go",`+threeServers+`}`, "X-Session-Id", "mine").object(t), "status", "completed")
	checkLedger(t, w, []string{"a", "b", "c"}, "b")
	if _, err := w.sessions.Get("local", false, "mine"); err != nil {
		t.Errorf("the session itself is gone: %v", err)
	}
}

// B.4, risk 4; X3: what was acquired last is given back first, in whatever order the request
// names servers. Instances tell in what order that is.
func TestReleaseIsInTheReverseOrderOfAcquisition(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"abc", "bca", "cab"} {
		t.Run(order, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(w *world) {
				for _, s := range w.servers {
					s.Sharing, s.Instances = config.Exclusive, config.Instances{Max: 1, IdleTimeout: time.Minute, MaxWait: patience, OnRelease: config.ReleaseDestroy}
				}
			})
			var script []http.HandlerFunc
			for name := range strings.SplitSeq(order, "") {
				script = append(script, calls(call{"1", name + "__echo", "{}"}))
			}
			w.answers(append(script, says("done"))...)
			want(t, w.post(`{"model":"m","input":"go",`+threeServers+`}`).object(t), "status", "completed")
			w.until("it is over", func() bool { return w.face.Running() == 0 })
			released := ""
			for line := range strings.Lines(w.log.String()) {
				if _, rest, ok := strings.Cut(line, `msg="instance released"`); ok {
					_, name, _ := strings.Cut(rest, "server=")
					released = name[:1] + released
				}
			}
			if released != order {
				t.Errorf("acquired in the order %s, released in the reverse of %s", order, released)
			}
			for _, name := range []string{"a", "b", "c"} {
				if n := count(w.noted(), "cleanup "+name); n != 1 {
					t.Errorf("%s got %d clean-ups", name, n)
				}
			}
		})
	}
}

// X2: servers are opened at the same time.
func TestServersAreOpenedAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		for _, s := range w.servers {
			w.slow[s.Name] = make(chan struct{})
		}
	})
	w.answers(says("done"))
	go func() {
		for _, s := range w.servers {
			w.await("opening " + s.Name)
		}
		for _, s := range w.servers {
			close(w.slow[s.Name])
		}
	}()
	want(t, w.post(`{"model":"m","input":"go",`+threeServers+`}`).object(t), "status", "completed")
}

// X3, B.6: a response in the background that is cancelled in the middle of a call cleans up
// once, and its call is cancelled at the server.
func TestACancelledResponseCleansUpOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.does("b.act", hanging(w))
	w.answers(calls(call{"1", "a__echo", "{}"}, call{"2", "b__act", "{}"}), says("done"))
	o := w.good("POST", "", `{"model":"m","input":"go","background":true,`+threeServers+`}`)
	w.await("hangs")
	want(t, w.good("POST", "/"+at(o, "id").(string)+"/cancel", ""), "status", "cancelled")
	w.await("cancelled b")
	w.until("it is over", func() bool { return w.face.Running() == 0 })
	checkLedger(t, w, []string{"a", "b", "c"}, "a", "b")
}
