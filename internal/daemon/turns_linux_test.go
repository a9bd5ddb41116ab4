package daemon_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"roundhouse/internal/store"
)

// killsVar is the environment variable for how often TestKilledDaemonLosesNoTurn kills.
const killsVar = "ROUNDHOUSE_KILLS"

// The pieces of a streamed answer; the last two tell a client that the turn has ended.
const (
	chunk     = `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"word "}}]}` + "\n\n"
	lastChunk = `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	doneChunk = "data: [DONE]\n\n"
)

// engine streams an answer of some words to whoever asks, each after the given wait.
func engine(t *testing.T, words int, wait func() time.Duration) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		out := http.NewResponseController(w)
		for range words {
			io.WriteString(w, chunk)
			_ = out.Flush() // a caller who is gone is no matter here
			time.Sleep(wait())
		}
		io.WriteString(w, lastChunk+doneChunk)
	}))
	t.Cleanup(s.Close)
	return s
}

func recording(upstream string) string {
	return `{"llm": {"upstreams": {"engine": {"baseURL": "` + upstream + `"}}, "record": {"policy": "train"}}}`
}

const streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`

// C6, A.19: whenever the daemon is killed while many streams flow, a turn whose end a
// client has seen is stored, and every intent has an outcome at the next start.
func TestKilledDaemonLosesNoTurn(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	kills, streams := 3, 16
	if text := os.Getenv(killsVar); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", killsVar, err)
		}
		streams = 64
	}
	n := newNest(t)
	upstream := engine(t, 3, func() time.Duration { return time.Duration(rand.IntN(3000)) * time.Microsecond })
	outcomes := map[store.Outcome]int{}
	ended := 0
	met := func() bool { return ended > 0 && outcomes[store.Complete] >= ended && outcomes[store.Lost] > 0 }
	for round := 0; round < kills || !met() && round < kills+20; round++ { // on a busy machine few kills may come into a stream
		d := n.serve(recording(upstream.URL))
		seen := d.streamUntilKilled(round, streams)
		ended += len(seen)

		st, err := store.Open(t.Context(), store.Config{Path: n.path("state/roundhouse.db")})
		if err != nil {
			t.Fatal(err)
		}
		for turn, session := range seen {
			c, err := st.Call(t.Context(), store.SessionKey{Principal: "local", ID: session, Incarnation: 1}, turn)
			if err != nil || c.Result == nil || c.Result.Outcome != store.Complete {
				t.Errorf("a client has seen the end of turn %s, which is not stored: %+v, %v", turn, c.Result, err)
			}
		}
		outcomes = map[store.Outcome]int{}
		for c, err := range st.Calls(t.Context(), store.CallFilter{Summary: true}) {
			if err != nil {
				t.Fatal(err)
			}
			if c.Result == nil {
				t.Errorf("turn %s has no outcome", c.ID)
				continue
			}
			outcomes[c.Result.Outcome]++
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills: clients saw %d ends; stored are %v", kills, ended, outcomes)
	if !met() {
		t.Errorf("the kills did not meet what they were meant for")
	}
}

// streamUntilKilled has many clients stream turn after turn, and kills the daemon at some
// moment. It returns the sessions of the turns whose end a client has seen, by id.
func (d *daemon) streamUntilKilled(round, streams int) map[string]string {
	d.t.Helper()
	seen := map[string]string{}
	var mu sync.Mutex
	var some atomic.Bool
	var clients sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: streams}
	defer transport.CloseIdleConnections()
	for i := range streams {
		session := fmt.Sprintf("run-%d-%d", round, i)
		clients.Go(func() {
			for {
				turn, ended := streamOne(transport, d.url+"/sessions/"+session+"/v1/chat/completions")
				if !ended {
					return
				}
				some.Store(true)
				mu.Lock()
				seen[turn] = session
				mu.Unlock()
			}
		})
	}
	eventually(d.t, "a client has seen an end", some.Load)
	time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	d.signal(syscall.SIGKILL)
	d.wait()
	clients.Wait()
	return seen
}

// streamOne makes one call and reports whether its end was seen, however the connection
// went on.
func streamOne(transport http.RoundTripper, url string) (turn string, ended bool) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(streamBody))
	if err != nil {
		panic(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", false
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		ended = ended || strings.Contains(lines.Text(), "finish_reason") || strings.Contains(lines.Text(), "[DONE]")
	}
	return resp.Header.Get("X-Roundhouse-Turn"), ended
}

// G1, H3: at the first signal calls of models get the grace; what takes longer, here than
// until the second signal, is cut off with a native error, and stored as lost.
func TestModelCallsGetTheGrace(t *testing.T) {
	t.Parallel()
	n := newNest(t)
	asks := make(chan chan struct{}, 2)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, chunk)
		_ = http.NewResponseController(w).Flush() // it is read to its end
		end := make(chan struct{})
		asks <- end
		select {
		case <-end:
			io.WriteString(w, lastChunk+doneChunk)
		case <-r.Context().Done():
		}
	}))
	defer upstream.Close()
	config := strings.Replace(recording(upstream.URL), "{", `{"shutdown": {"grace": "2m", "total": "3m"}, `, 1)
	d := n.serve(config)
	answers := [2]chan answer{make(chan answer, 1), make(chan answer, 1)}
	var ends [2]chan struct{}
	for i, session := range []string{"quick", "slow"} {
		go func() { answers[i] <- d.do("POST", "/sessions/"+session+"/v1/chat/completions", streamBody) }()
		ends[i] = <-asks
	}
	d.signal(syscall.SIGTERM)
	eventually(t, "readyz says that the daemon stops", func() bool { return d.do("GET", "/readyz", "").status == 503 })
	if a := d.do("POST", "/sessions/late/v1/chat/completions", streamBody); a.status != 503 {
		t.Errorf("a new call while stopping: %d %s", a.status, a.body)
	}
	close(ends[0])
	if a := receive(t, answers[0]); a.err != nil || !strings.HasSuffix(string(a.body), doneChunk) {
		t.Errorf("the quick call got %s, %v", a.body, a.err)
	}
	d.signal(syscall.SIGTERM)
	if a := receive(t, answers[1]); a.err == nil || !strings.Contains(string(a.body), "shutting down") {
		t.Errorf("the slow call got %s, %v", a.body, a.err)
	}
	d.wantExit(0)
	st, err := store.Open(t.Context(), store.Config{Path: n.path("state/roundhouse.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for c, err := range st.Calls(t.Context(), store.CallFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]store.Outcome{"quick": store.Complete, "slow": store.Lost}[c.Session.ID]
		if c.Result == nil || c.Result.Outcome != want {
			t.Errorf("%s is stored as %+v, want %s", c.Session.ID, c.Result, want)
		}
	}
}
