package gateway

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/secret"
	"roundhouse/internal/wire"
)

// answer answers a server's request with the id that the client saw.
func (p *peer) answer(id, result string) {
	p.w.Helper()
	if r := p.post(string(wire.Result([]byte(id), []byte(result)))); r.status != http.StatusAccepted {
		p.w.Fatalf("an answer got %d %s", r.status, r.body)
	}
	synctest.Wait()
}

// answersOf returns the responses that a server got.
func answersOf(p *proc) (list []string) {
	for _, raw := range p.got("") {
		if !strings.Contains(raw, `"method"`) {
			list = append(list, raw)
		}
	}
	return list
}

// M6, M7, case 33: what a server asks during a call goes to that call's client, on
// that call's stream, and the answer comes back under the server's own id. It counts
// from the client that was asked only.
func TestAServersRequestGoesToTheOwnerOfTheCall(t *testing.T) {
	for _, method := range []string{wire.SamplingCreate, wire.ElicitationCreate, wire.RootsList} {
		for _, path := range []string{"/mcp/a", "/mcp"} {
			t.Run(method+path, func(t *testing.T) {
				inWorld(t, settings{}, oneServer(), func(w *world) {
					name := "echo"
					if path == "/mcp" {
						name = "a__echo"
					}
					p, q := w.connect(path), w.connect(path)
					mine, others := p.listen(""), q.listen("")
					call := p.beginTool(name, `{"ask":"`+method+`","params":{"n":9007199254740993},"ms":1}`)
					time.Sleep(time.Millisecond)
					synctest.Wait()
					if got := call.frames(); len(got) == 0 || !strings.Contains(got[0], method) || !strings.Contains(got[0], "9007199254740993") {
						t.Fatalf("the call's stream has %q", got)
					}
					id := string(decode(w, call.frames()[0]).ID)
					q.answer(id, `{"stolen":true}`)
					q.answer(`"ask-1"`, `{"stolen":true}`)
					p.answer(id, `{"answer":1.50}`)
					p.answer(id, `{"answer":"again"}`)
					if got := answersOf(w.proc("a")); len(got) != 1 || got[0] != `{"jsonrpc":"2.0","id":"ask-1","result":{"answer":1.50}}` {
						t.Errorf("the server got %q", got)
					}
					if got := append(mine.methods(), others.methods()...); len(got) != 0 {
						t.Errorf("standing streams got %q", got)
					}
					mine.hangUp()
					others.hangUp()
				})
			})
		}
	}
}

// M6, case 33: when two clients have calls in flight nobody can be asked: the server
// gets an error at once, and from then on one client's calls run at a time.
func TestAnAmbiguousOwnerIsAnsweredAtOnce(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p, q := w.connect("/mcp/a"), w.connect("/mcp/a")
		other := q.beginTool("echo", `{"ms":5000}`)
		call := p.beginTool("echo", `{"ms":1000,"ask":"sampling/createMessage"}`)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := answersOf(w.proc("a")); len(got) != 1 || !strings.Contains(got[0], `"ambiguous_owner"`) {
			t.Errorf("the server got %q", got)
		}
		if got := append(call.methods(), other.methods()...); slices.Contains(got, wire.SamplingCreate) {
			t.Errorf("clients got %q", got)
		}
		again := p.beginTool("echo", `{"ask":"sampling/createMessage"}`) // waits for q's call
		time.Sleep(time.Second)
		if len(again.frames()) != 0 {
			t.Errorf("too early: %q", again.frames())
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := again.methods(); len(got) == 0 || got[0] != wire.SamplingCreate {
			t.Errorf("the next attempt got %q", got)
		}
		time.Sleep(time.Second)
	})
}

// M6, case 34: outside any call nobody is asked; ping and roots are answered by us.
func TestOutsideACallNobodyIsAsked(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		stream := p.listen("")
		p.tool("echo", "{}")
		for _, method := range []string{wire.Ping, wire.RootsList, wire.ElicitationCreate} {
			w.proc("a").ask(method, nil)
		}
		w.proc("a").say(logLine("for nobody"))
		synctest.Wait()
		got := answersOf(w.proc("a"))
		slices.Sort(got)
		if len(got) != 3 || !strings.Contains(got[0], `"result":{}`) || !strings.Contains(got[1], `"result":{"roots":[]}`) || !strings.Contains(got[2], `"ambiguous_owner"`) {
			t.Errorf("the server got %q", got)
		}
		if len(stream.frames()) != 0 {
			t.Errorf("the client got %q", stream.frames())
		}
		stream.hangUp()
	})
}

// M6: on a session's own connection the session's client is asked outside calls too.
func TestOnItsOwnConnectionAClientIsAskedAtAnyTime(t *testing.T) {
	own := shared("a")
	own.Sharing = config.Session
	inWorld(t, settings{}, []*config.Server{own}, func(w *world) {
		p := w.connect("/mcp/a")
		stream := p.listen("")
		w.proc("a").ask(wire.RootsList, nil)
		synctest.Wait()
		if got := stream.methods(); !slices.Equal(got, []string{wire.RootsList}) {
			t.Fatalf("the client got %q", got)
		}
		p.answer(string(decode(w, stream.frames()[0]).ID), `{"roots":[{"uri":"file:///w"}]}`)
		if got := answersOf(w.proc("a")); len(got) != 1 || !strings.Contains(got[0], "file:///w") {
			t.Errorf("the server got %q", got)
		}
		stream.hangUp()
	})
}

// M6: a server that is not to ask is refused, and is told of no capabilities.
func TestAServerThatMayNotAskIsRefused(t *testing.T) {
	server := shared("a")
	server.Interactive = config.Refuse
	inWorld(t, settings{}, []*config.Server{server}, func(w *world) {
		w.connect("/mcp/a").tool("echo", `{"ask":"sampling/createMessage"}`)
		synctest.Wait()
		if got := answersOf(w.proc("a")); len(got) != 1 || !strings.Contains(got[0], "-32601") {
			t.Errorf("the server got %q", got)
		}
		if got := w.proc("a").got(wire.MethodInitialize); !strings.Contains(got[0], `"capabilities":{}`) {
			t.Errorf("declared: %s", got)
		}
	})
}

// M3: clients that declare different capabilities do not share a connection, however
// they spell them; the same ones do.
func TestClientsShareWithTheirLikeOnly(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		for _, caps := range []string{`{"roots":{},"sampling":{}}`, `{ "sampling" : {}, "roots":{} }`, `{}`, `{"roots":{}}`, `{"roots":{"listChanged":true}}`} {
			if r := w.dialed("/mcp/a").post(hello(wire.Version20251125, caps)); r.status != 200 {
				t.Fatal(r.body)
			}
		}
		if n := len(w.all()); n != 3 {
			t.Errorf("%d processes", n)
		}
	})
}

// M7: what a client leaves unanswered is answered at the deadline, and the client is
// told; a late answer counts no more.
func TestAnUnansweredRequestEndsAtItsDeadline(t *testing.T) {
	inWorld(t, settings{interactive: time.Minute}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		stream := p.listen("")
		call := p.beginTool("echo", `{"ask":"elicitation/create","ms":1}`)
		time.Sleep(59 * time.Second)
		if got := answersOf(w.proc("a")); len(got) != 0 {
			t.Errorf("too early: %q", got)
		}
		time.Sleep(2 * time.Second)
		p.answer(string(decode(w, call.frames()[0]).ID), `{"late":true}`)
		if got := answersOf(w.proc("a")); len(got) != 1 || !strings.Contains(got[0], "did not answer within 1m0s") {
			t.Errorf("the server got %q", got)
		}
		if got := stream.methods(); !slices.Equal(got, []string{wire.Cancelled}) {
			t.Errorf("the client was told %q", got)
		}
		stream.hangUp()
	})
}

// M7, case 33: a client that leaves answers with an error.
func TestAClientThatLeavesAnswersWithAnError(t *testing.T) {
	for name, leave := range map[string]func(w *world, p *peer){
		"DELETE": func(w *world, p *peer) { p.do(p.request(http.MethodDelete, "")) },
		"end": func(w *world, p *peer) {
			if err := w.sessions.End(w.Context(), "local", false, w.sessions.List("local", false)[0].ID, true); err != nil {
				w.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, settings{}, oneServer(), func(w *world) {
				p := w.connect("/mcp/a")
				call := p.beginTool("echo", `{"ask":"elicitation/create","ms":1}`)
				time.Sleep(time.Second)
				leave(w, p)
				synctest.Wait()
				if got := answersOf(w.proc("a")); len(got) != 1 || !strings.Contains(got[0], "left") || !strings.Contains(got[0], `"ask-1"`) {
					t.Errorf("the server got %q", got)
				}
				if !call.ended() {
					t.Error("the call goes on")
				}
			})
		})
	}
}

// M7: the client is told when the server takes its request back, or dies.
func TestARequestIsTakenBack(t *testing.T) {
	for name, end := range map[string]func(s *proc){
		"cancelled": func(s *proc) {
			s.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"ask-1"}}`)
		},
		"lost": func(s *proc) { s.die() },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, settings{}, oneServer(), func(w *world) {
				p := w.connect("/mcp/a")
				stream := p.listen("")
				call := p.beginTool("echo", `{"ask":"elicitation/create","ms":1}`)
				time.Sleep(time.Second)
				id := decode(w, call.frames()[0]).ID
				end(w.proc("a"))
				synctest.Wait()
				var told []string
				for _, f := range stream.frames() {
					if m := decode(w, f); m.Method == wire.Cancelled && fmt.Sprint(m.Params["requestId"]) == string(id) {
						told = append(told, f)
					}
				}
				if len(told) != 1 {
					t.Errorf("the client was told %q", stream.frames())
				}
				stream.hangUp()
			})
		})
	}
}

// M6: a client's progress on what it was asked reaches the server under its token.
func TestProgressOfTheClientReachesTheServer(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p := w.connect("/mcp/a")
		call := p.beginTool("echo", `{"ask":"sampling/createMessage","params":{"_meta":{"progressToken":"theirs"}},"ms":1}`)
		time.Sleep(time.Second)
		m := decode(w, call.frames()[0])
		token := m.Params["_meta"].(map[string]any)["progressToken"]
		if token == "theirs" {
			t.Error("the server's token reached the client, where another server's may be the same")
		}
		p.notify(wire.Progress, fmt.Sprintf(`{"progressToken":%v,"progress":1}`, token))
		p.notify(wire.Progress, `{"progressToken":"theirs","progress":2}`)
		synctest.Wait()
		if got := w.proc("a").got(wire.Progress); len(got) != 1 || !strings.Contains(got[0], `"progressToken":"theirs"`) {
			t.Errorf("the server got %q", got)
		}
	})
}

// M5: each client has its own log level, and gets what the server logs during its calls.
func TestLogLevelsAreEachClientsOwn(t *testing.T) {
	inWorld(t, settings{}, oneServer(), func(w *world) {
		p, q := w.connect("/mcp/a"), w.connect("/mcp/a")
		p.result(wire.LoggingSetLevel, `{"level":"warning"}`)
		q.result(wire.LoggingSetLevel, `{"level":"debug"}`)
		line := func(level string) string {
			return fmt.Sprintf(`{"ms":1,"lines":[%s]}`, wire.Quote(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"`+level+`","data":1}}`))
		}
		for _, c := range []struct {
			p     *peer
			level string
			want  int
		}{{p, "debug", 1}, {p, "error", 2}, {q, "debug", 2}} {
			if got := c.p.send(wire.ToolsCall, `{"name":"echo","arguments":`+line(c.level)+`}`); len(got.frames) != c.want {
				t.Errorf("%s: %q", c.level, got.frames)
			}
		}
		if got := w.proc("a").got(wire.LoggingSetLevel); len(got) != 2 || !strings.Contains(got[1], "debug") {
			t.Errorf("the server got %q", got)
		}
	})
}

// M6: a dedicated server gives each session whose client can be asked a connection of
// its own; those who cannot be asked share one.
func TestADedicatedServer(t *testing.T) {
	server := shared("a")
	server.Interactive = config.Dedicate
	inWorld(t, settings{}, []*config.Server{server}, func(w *world) {
		for _, caps := range []string{`{}`, `{}`, `{"sampling":{}}`, `{"sampling":{}}`} {
			if r := w.dialed("/mcp/a").post(hello(wire.Version20251125, caps)); r.status != 200 {
				t.Fatal(r.body)
			}
		}
		if n := len(w.all()); n != 3 {
			t.Errorf("%d processes", n)
		}
	})
}

// K1, case 69: of a client's headers only those that the server wants go there, and
// clients that send different ones do not share.
func TestForwardedHeaders(t *testing.T) {
	server := shared("a")
	server.ForwardHeaders = []string{"X-Tenant"}
	server.Headers = map[string]secret.String{"x-tenant": secret.New("nobody"), "X-Key": secret.New("k")}
	inWorld(t, settings{}, []*config.Server{server}, func(w *world) {
		for _, tenant := range []string{"red", "red", "blue", ""} {
			p := w.dialed("/mcp/a")
			r := p.request("POST", hello(wire.Version20251125, `{}`))
			if tenant != "" {
				r.Header.Set("X-Tenant", tenant)
			}
			r.Header.Set("Cookie", "secret=1")
			if got := p.do(r); got.status != 200 {
				t.Fatal(got.body)
			}
		}
		got := map[string]int{}
		for _, p := range w.all() {
			for name, value := range p.server.Headers {
				got[name+"="+value.Reveal()]++
			}
		}
		want := map[string]int{"X-Tenant=red": 1, "X-Tenant=blue": 1, "x-tenant=nobody": 1, "X-Key=k": 3}
		if !maps.Equal(got, want) {
			t.Errorf("the servers got %v", got)
		}
	})
}
