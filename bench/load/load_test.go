package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestMain serves as the child process of the stdio tests when the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("LOAD_TEST_CHILD") == "" {
		os.Exit(m.Run())
	}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := readLine(lines, nil)
		if err != nil {
			os.Exit(0)
		}
		fmt.Println(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"noise"}}`)
		if answer := echo(line); answer != "" {
			fmt.Println(answer)
		}
	}
}

// echo answers a message as the echo server would, or returns "" for a notification.
func echo(message []byte) string {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ Arguments struct{ Text string } }
	}
	if err := json.Unmarshal(message, &m); err != nil {
		return `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not JSON"}}`
	}
	switch m.Method {
	case "initialize":
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`, m.ID)
	case "tools/call":
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, m.ID, m.Params.Arguments.Text)
	}
	return ""
}

// serve returns the endpoint of a server with one session, "s1". Answers to calls go
// through answer; all else is answered as it should be.
func serve(t *testing.T, answer func(w http.ResponseWriter, message string)) (endpoint string, deleted *atomic.Bool) {
	deleted = new(atomic.Bool)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read a request: %v", err)
		}
		initialize := strings.Contains(string(body), `"initialize"`)
		if !initialize && (r.Header.Get("Mcp-Session-Id") != "s1" || r.Header.Get("Mcp-Protocol-Version") != "2025-11-25") {
			http.Error(w, "wrong session or version", http.StatusBadRequest)
			return
		}
		reply := echo(body)
		switch {
		case r.Method == http.MethodDelete:
			deleted.Store(true)
			w.WriteHeader(http.StatusNoContent)
		case reply == "":
			w.WriteHeader(http.StatusAccepted)
		case initialize:
			w.Header().Set("Mcp-Session-Id", "s1")
			answerJSON(w, reply)
		default:
			answer(w, reply)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, deleted
}

func answerJSON(w http.ResponseWriter, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	io.WriteString(w, message)
}

// answerEvents answers with an event stream which holds all that may precede an
// answer: a comment, an event without data, and a notification.
func answerEvents(w http.ResponseWriter, message string) {
	w.Header().Set("Content-Type", "text/event-stream")
	first, rest, _ := strings.Cut(message, ",")
	fmt.Fprint(w, ": hello\n\nid: 0\ndata: \n\n",
		"event: message\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\r\n\r\n",
		"id: 2\ndata: "+first+",\ndata:"+rest+"\n\n")
	w.(http.Flusher).Flush()
	fmt.Fprint(w, ": bye\n\n")
}

func TestHTTPSessionsUnderstandJSONAndEventStreams(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, string){"json": answerJSON, "events": answerEvents} {
		for _, size := range []int{MinPayload, 100 << 10} {
			t.Run(fmt.Sprint(name, "/", size), func(t *testing.T) {
				endpoint, deleted := serve(t, answer)
				var sessions []Session
				for range 3 {
					s, err := DialHTTP(t.Context(), endpoint)
					if err != nil {
						t.Fatal(err)
					}
					sessions = append(sessions, s)
				}
				checkRun(t, sessions, size)
				if !deleted.Load() {
					t.Error("the session was not deleted")
				}
			})
		}
	}
}

// A client without a handshake says in each request what it is, and its headers agree
// with the body.
func TestModernSessionsSayInEachRequestWhatTheyAre(t *testing.T) {
	var methods []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			Method string
			Params struct {
				Name string
				Meta map[string]any `json:"_meta"`
			}
		}
		body, err := io.ReadAll(r.Body)
		if err := errors.Join(err, json.Unmarshal(body, &m)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		if m.Params.Meta["io.modelcontextprotocol/protocolVersion"] != modernVersion || r.Header.Get("Mcp-Protocol-Version") != modernVersion ||
			r.Header.Get("Mcp-Method") != m.Method || r.Header.Get("Mcp-Name") != m.Params.Name || r.Method != http.MethodPost {
			t.Errorf("%s %v with %s", r.Method, r.Header, body)
		}
		methods = append(methods, m.Method)
		if m.Method == "server/discover" {
			answerJSON(w, `{"jsonrpc":"2.0","id":0,"result":{"supportedVersions":["2026-07-28"]}}`)
			return
		}
		answerEvents(w, echo(body))
	}))
	defer srv.Close()
	s, err := DialModernHTTP(t.Context(), srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Call([]byte("0123456789abcdef")); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if want := []string{"server/discover", "tools/call", "tools/call"}; !slices.Equal(methods, want) {
		t.Errorf("requests %q, want %q", methods, want)
	}
}

func TestDialModernHTTPFailsWithoutTheVersion(t *testing.T) {
	for _, answer := range []string{
		`{"jsonrpc":"2.0","id":0,"result":{"supportedVersions":["2025-11-25"]}}`,
		`{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no"}}`, `{"jsonrpc":"2.0","id":0,"result":[]}`, `{}`,
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answerJSON(w, answer) }))
		if s, err := DialModernHTTP(t.Context(), srv.URL); err == nil {
			t.Errorf("no error for %s", answer)
			s.Close()
		}
		srv.Close()
	}
}

func TestStdioSessionsSkipNotificationsAndEndTheirProcess(t *testing.T) {
	t.Setenv("LOAD_TEST_CHILD", "1")
	for _, size := range []int{MinPayload, 100 << 10} {
		var sessions []Session
		for range 2 {
			s, err := StartStdio(t.Context(), os.Args[0])
			if err != nil {
				t.Fatal(err)
			}
			sessions = append(sessions, s)
		}
		checkRun(t, sessions, size)
		if state := sessions[0].(*Stdio).cmd.ProcessState; state == nil || !state.Success() {
			t.Errorf("the process after Close: %v", state)
		}
	}
}

// checkRun runs and closes sessions.
func checkRun(t *testing.T, sessions []Session, size int) {
	t.Helper()
	r, err := Run(t.Context(), Plan{Sessions: sessions, Payload: size, Duration: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Latencies) < len(sessions) || r.Quantile(0.5) <= 0 || r.Quantile(1) < r.Quantile(0.5) || r.CallsPerSecond() <= 0 {
		t.Errorf("implausible result: %d calls, p50 %v, max %v", len(r.Latencies), r.Quantile(0.5), r.Quantile(1))
	}
	for _, s := range sessions {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A benchmark that counts wrong answers as calls would reward a broken front.
func TestWrongAnswersFailTheRun(t *testing.T) {
	replaced := func(old, with string) func(http.ResponseWriter, string) {
		return func(w http.ResponseWriter, message string) {
			answerJSON(w, strings.Replace(message, old, with, 1))
		}
	}
	cases := map[string]struct {
		answer func(http.ResponseWriter, string)
		want   string
	}{
		"another id":      {replaced(`"id":1`, `"id":2`), "has id 2"},
		"id as string":    {replaced(`"id":1`, `"id":"1"`), `has id "1"`},
		"another payload": {replaced(`"text":"0000`, `"text":"0001`), "did not return its payload"},
		"an error":        {replaced(`"result"`, `"error"`), "call 1 failed"},
		"no answer":       {replaced(`"result"`, `"params"`), "is no answer"},
		"truncated":       {replaced(`}]}}`, ``), "read the answer to call 1"},
		"status": {func(w http.ResponseWriter, _ string) {
			http.Error(w, "no such session", http.StatusNotFound)
		}, "404 Not Found: no such session"},
		"content type": {func(w http.ResponseWriter, message string) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, message)
		}, "text/html"},
		"stream without answer": {func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, ": nothing\n\n")
		}, "ended before the answer"},
		"closed connection": {func(w http.ResponseWriter, message string) {
			w.Header().Set("Connection", "close")
			answerJSON(w, message)
		}, "closes the connection"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			endpoint, _ := serve(t, c.answer)
			s, err := DialHTTP(t.Context(), endpoint)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Run(t.Context(), Plan{Sessions: []Session{s}, Payload: MinPayload, Duration: time.Minute})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Run: %v, want an error with %q", err, c.want)
			}
			s.Close()
		})
	}
}

func TestDialHTTPFailsOnARefusedInitialize(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answerJSON(w, `{"jsonrpc":"2.0","id":0,"error":{"code":-32600,"message":"draining"}}`)
	}))
	defer srv.Close()
	if _, err := DialHTTP(t.Context(), srv.URL); err == nil || !strings.Contains(err.Error(), "draining") {
		t.Errorf("DialHTTP: %v", err)
	}
}

// fakeSession answers after delay and fails at its failAt-th call, if that is not 0.
type fakeSession struct {
	delay  time.Duration
	failAt int

	calls    int // owned by the worker of Run
	deadline chan time.Time
}

func newFake(delay time.Duration, failAt int) *fakeSession {
	return &fakeSession{delay: delay, failAt: failAt, deadline: make(chan time.Time, 2)}
}

var errFake = errors.New("fake failure")

func (f *fakeSession) Call([]byte) (time.Duration, error) {
	f.calls++
	if f.calls == f.failAt {
		return 0, errFake
	}
	answered := time.After(f.delay)
	for {
		select {
		case <-answered:
			return f.delay, nil
		case t := <-f.deadline:
			if !t.After(time.Now()) {
				return 0, os.ErrDeadlineExceeded
			}
		}
	}
}

func (f *fakeSession) SetDeadline(t time.Time) error { f.deadline <- t; return nil }
func (f *fakeSession) Close() error                  { return nil }

func TestRunMeasuresUntilTheLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := Run(t.Context(), Plan{
			Sessions: []Session{newFake(300*time.Millisecond, 0), newFake(100*time.Millisecond, 0)},
			Payload:  MinPayload, Duration: time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Elapsed != 1200*time.Millisecond || len(r.Latencies) != 14 {
			t.Errorf("%d calls in %v, want 14 in 1.2s", len(r.Latencies), r.Elapsed)
		}
		if p50, p99 := r.Quantile(0.5), r.Quantile(0.99); p50 != 100*time.Millisecond || p99 != 300*time.Millisecond {
			t.Errorf("p50 %v, p99 %v", p50, p99)
		}
	})
}

func TestRunEndsAtOnceWhenASessionFailsOrTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := Run(t.Context(), Plan{
			Sessions: []Session{newFake(time.Hour, 0), newFake(time.Second, 3)},
			Payload:  MinPayload, Duration: time.Minute,
		})
		if !errors.Is(err, errFake) || !strings.Contains(err.Error(), "session 1") || time.Since(begin) != 2*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}

		begin = time.Now()
		stopped := errors.New("stopped")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, stopped)
		defer cancel()
		_, err = Run(ctx, Plan{Sessions: []Session{newFake(time.Hour, 0)}, Payload: MinPayload, Duration: time.Minute})
		if !errors.Is(err, stopped) || time.Since(begin) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}

func TestRunRefusesAPayloadWithoutRoomForItsTag(t *testing.T) {
	if _, err := Run(t.Context(), Plan{Payload: MinPayload - 1}); err == nil {
		t.Error("no error")
	}
}

func TestPayloadTagsDiffer(t *testing.T) {
	seen := make(map[string]bool)
	for _, session := range []uint16{0, 1, 63} {
		for _, call := range []uint64{0, 1, 1 << 40} {
			b := make([]byte, MinPayload)
			tag(b, session, call)
			seen[string(b)] = true
		}
	}
	if len(seen) != 9 {
		t.Errorf("%d different tags of 9", len(seen))
	}
}
