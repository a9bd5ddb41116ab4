// Package fidelity sends a corpus of odd frames through the whole of roundhouse, and
// compares what arrives byte by byte (W1).
package fidelity

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"roundhouse/internal/config"
	"roundhouse/internal/daemon"
	"roundhouse/internal/process"
)

func TestMain(m *testing.M) {
	process.ReaperMain()
	if len(os.Args) == 4 && os.Args[1] == bridgeWord {
		if err := bridge(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// W1, W2: what a client and a server say to each other arrives as it was sent, but for
// ids and progress tokens, which are other ones on the other side; frames that two
// readers could read differently are refused.
func TestFramesArriveAsTheyWereSent(t *testing.T) {
	exchanges := corpus(t)
	if len(exchanges) < 40 {
		t.Fatalf("the corpus has %d exchanges only", len(exchanges))
	}
	byName := map[string]*server{}
	for _, transport := range transports {
		for i, x := range exchanges {
			isModern := strings.HasPrefix(transport, modern)
			if isModern && x.changes() {
				continue
			}
			byName[fmt.Sprintf("%s/%d", transport, i)] = &server{x: x, modern: isModern, got: make(chan arrival, 16), standing: make(chan string), gone: make(chan struct{})}
		}
	}
	all := serve(t, byName)
	entries := map[string]any{}
	for name := range byName {
		transport, number, _ := strings.Cut(name, "/")
		entries[transport+"-"+number] = all.entry(transport, name)
	}
	url := start(t, entries)
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			played := 0
			for i, x := range exchanges {
				s := byName[fmt.Sprintf("%s/%d", transport, i)]
				if s == nil {
					continue
				}
				played++
				t.Run(x.name, func(t *testing.T) {
					t.Parallel()
					name := fmt.Sprintf("%s-%d", transport, i)
					run(t, s, transport, url+"/mcp/"+name, name)
				})
			}
			if played < 40 {
				t.Errorf("%d exchanges only", played)
			}
		})
	}
}

// start runs a daemon with these servers until the test is over and returns its URL.
func start(t *testing.T, entries map[string]any) string {
	t.Helper()
	dir := t.TempDir()
	text, err := json.Marshal(map[string]any{"mcpServers": entries, "listen": "127.0.0.1:0", "stateDir": dir, "socket": filepath.Join(dir, "socket")})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse("corpus", text, config.Options{Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range cfg.Problems {
		t.Errorf("%+v", p)
	}
	ready := make(chan net.Addr, 1)
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { // joined below
		ended <- daemon.Run(ctx, ctx, daemon.Options{Config: cfg, Log: slog.New(slog.DiscardHandler), Ready: func(a net.Addr) { ready <- a }})
	}()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case a := <-ready:
		return "http://" + a.String()
	case err := <-ended:
		ended <- err
		t.Fatalf("the daemon ended: %v", err)
		return ""
	}
}

// A talk is an exchange as it goes on.
type talk struct {
	*testing.T
	server           *server
	client           *client
	newline          string             // as the server may write it
	clients, servers values             // what each side knows
	answer           <-chan string      // to the request, or nil before
	standing         <-chan string      // what comes for no call, or nil if nobody listens
	reply            func(frame string) // answers the request
}

// run plays one exchange.
func run(t *testing.T, s *server, transport, url, name string) {
	c, greeting := connect(t, url, name)
	if set, ok := s.x.setup["initialize"]; ok && greeting != set {
		t.Errorf("initialize brought\n%s\nwant\n%s", greeting, set)
	}
	k := &talk{T: t, server: s, client: c, newline: "\r\n",
		clients: values{"id": s.x.setup["id"], "token": s.x.setup["token"], "session": name},
		servers: values{"ask": `"a\u0073k-1.0"`, "asktoken": `1.5E+1`}}
	if strings.HasSuffix(transport, "stdio") {
		k.newline = ""
	}
	if slices.ContainsFunc(s.x.steps, func(s step) bool { return s.mark == "<<" }) {
		k.standing = c.send(http.MethodGet, "")
	}
	for _, step := range s.x.steps {
		k.step(step)
	}
	if k.answer != nil {
		if frame, ok := next(t, k.answer, "the end of the answer"); ok {
			t.Errorf("the client got besides: %s", frame)
		}
	}
	select {
	case a := <-s.got:
		t.Errorf("the server got besides: %s", a.frame)
	default:
	}
	if frame, ok := next(t, c.send(http.MethodDelete, ""), "the end of the session"); ok {
		t.Errorf("the end brought %s", frame)
	}
}

// isRequest tells the client's requests from its other frames.
var isRequest = regexp.MustCompile(`"id"\s*(«nl»)?:\s*(«nl»)?\s*«id»`)

func (k *talk) step(s step) {
	k.Helper()
	where := fmt.Sprintf("%s:%d", k.server.x.file, s.line)
	switch s.mark {
	case ">", "=>":
		answer := k.client.send(http.MethodPost, k.clients.fill(k.T, s.text, "\r\n"))
		if isRequest.MatchString(s.text) {
			k.answer = answer // in a while
		} else if frame, ok := next(k.T, answer, where+": the end of nothing"); ok {
			k.Errorf("%s: the client got %s", where, frame)
		}
		if s.mark == "=>" {
			return
		}
		a, _ := next(k.T, k.server.got, where+": the frame at the server")
		if a.reply != nil {
			k.reply = a.reply
		}
		k.compare(where, k.servers, s.as, k.unsaid(a.frame, s.as)...)
	case "<", "=<":
		if s.mark == "<" {
			k.reply(k.said(k.servers.fill(k.T, s.text, k.newline)))
		}
		frame, _ := next(k.T, k.answer, where+": the frame at the client")
		k.compare(where, k.clients, s.as, frame)
	case "<<":
		k.server.standing <- k.servers.fill(k.T, s.text, k.newline)
		frame, _ := next(k.T, k.standing, where+": the frame at the client")
		k.compare(where, k.clients, s.as, frame)
	case "!":
		code, frame, _ := strings.Cut(s.text, " ")
		k.answer = k.client.send(http.MethodPost, k.clients.fill(k.T, frame, "\r\n"))
		got, _ := next(k.T, k.answer, where+": the refusal")
		var answer struct {
			ID     json.RawMessage
			Error  struct{ Code json.Number }
			Result json.RawMessage
		}
		if err := json.Unmarshal([]byte(got), &answer); err != nil || string(answer.Error.Code) != code || answer.Result != nil {
			k.Errorf("%s: the refusal is %s", where, got)
		}
	}
}

// compare wants one of several readings of what came.
func (k *talk) compare(where string, v values, want string, got ...string) {
	k.Helper()
	if !slices.ContainsFunc(got, func(reading string) bool { return v.match(want, reading) }) {
		k.Fatalf("%s: arrived as\n%s\nwant\n%s", where, got[0], want)
	}
}

// triple is what the bridge adds to the _meta of each request of the client's.
const triple = `"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"roots":{},"sampling":{}},"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"}`

// unsaid takes away what the bridge has added, once; there are several ways in which it
// may have come there. A request without it is not taken for one with it.
func (k *talk) unsaid(frame, want string) (readings []string) {
	if !k.server.modern || !isRequest.MatchString(want) || strings.Contains(want, `"params":[`) {
		return []string{frame}
	}
	for _, added := range []struct{ what, was string }{
		{`,"params":{"_meta":{` + triple + `}}`, ""}, {`{"_meta":{` + triple + `}}`, "null"}, {`"_meta":{` + triple + `},`, ""}, {`"_meta":{` + triple + `}`, ""},
		{`{` + triple + `}`, "null"}, {triple + `,`, ""}, {triple, ""},
	} {
		if before, after, ok := strings.Cut(frame, added.what); ok {
			readings = append(readings, before+added.was+after)
		}
	}
	if readings == nil {
		k.Fatalf("the request does not say who sends it: %s", frame)
	}
	return readings
}

// said adds to a result what a server of 2026-07-28 says there, where it is simple to add.
func (k *talk) said(frame string) string {
	if !k.server.modern || strings.Contains(frame, `"result":{}`) {
		return frame
	}
	return strings.Replace(frame, `"result":{"`, `"result":{"resultType":"complete","`, 1)
}

// changes reports whether the bridge between the eras changes an exchange: what a server
// asks and announces has another form there, log levels, tasks and what is no object of
// structured content too, and a cancellation is none over HTTP.
func (x *exchange) changes() bool {
	if x.setup["initialize"] != "" {
		return true
	}
	return slices.ContainsFunc(x.steps, func(s step) bool {
		return s.mark == "<<" || slices.ContainsFunc([]string{"«ask»", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", `"tasks/`, "notifications/cancelled", "notifications/message", `"requestState"`, `"structuredContent":[`},
			func(word string) bool { return strings.Contains(s.text, word) })
	})
}
