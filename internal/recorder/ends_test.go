package recorder_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/store"
)

// key is that of the session s1 in its first life.
var key = store.SessionKey{Principal: "local", ID: "s1", Incarnation: 1}

// endless answers a stream with its beginning, and says on gone when its client has left.
func endless(gone chan<- string) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		saysStream(chunkHello)(rw, r)
		<-r.Context().Done()
		gone <- "gone"
	}
}

// C15, A.15: what is under way when its session is sealed cannot be recorded any more. Under
// train that is an error, so its client is told at once and the engine need not go on; under
// observe the answer goes its way.
func TestSealEndsWhatCannotBeRecorded(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) {
		// What is not cancelled ends so late that the test fails.
		cfg.Upstreams[0].Timeouts = config.UpstreamTimeouts{Connect: time.Minute, FirstByte: time.Minute, Idle: time.Minute}
	})
	gone, release := make(chan string, 2), make(chan bool)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.RawQuery {
		case "stream":
			endless(gone)(rw, r)
		case "observed":
			saysStream(chunkHello)(rw, r)
			select {
			case <-release:
			case <-r.Context().Done(): // of a test that has failed
			}
			saysStream(chunkFinish, chunkDone)(rw, r)
		default:
			<-r.Context().Done()
			gone <- "gone"
		}
	})
	whole := make(chan got, 1)
	go func() { whole <- w.post("/v1/chat/completions", chatAsk) }()
	stream := w.open("/v1/chat/completions?stream", chatStream)
	stream.until(chunkHello)
	observed := w.open("/v1/chat/completions?observed", chatStream, "X-Roundhouse-Record", "observe")
	observed.until(chunkHello)
	w.intents(3)

	begun := time.Now()
	lost, err := w.models.Seal(t.Context(), key)
	if err != nil || lost != 3 {
		t.Fatalf("sealed with %d calls lost, %v", lost, err)
	}
	if body, err := stream.rest(); err == nil || !strings.Contains(body, "session_sealed") {
		t.Errorf("the stream ended with %q, %v", body, err)
	}
	if g := <-whole; g.status != 409 || g.header.Get("X-Should-Retry") != "false" || !strings.Contains(g.body, "session_sealed") {
		t.Errorf("got %+v", g)
	}
	for range 2 {
		select {
		case <-gone:
		case <-time.After(time.Minute):
			t.Fatal("the engine goes on")
		}
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("they were told after %s", took)
	}
	close(release)
	if body, err := observed.rest(); err != nil || !strings.HasSuffix(body, chunkDone) {
		t.Errorf("the observed stream ended with %q, %v", body, err)
	}
	for _, c := range w.calls("s1") {
		if c.Result.Outcome != store.Lost {
			t.Errorf("stored %+v", c.Result)
		}
	}
}

// C8, J5: a client that has its answer, and seals its session at once, has the delivery on
// record: without it the turn would be in no row of tokens.
func TestSealComesAfterTheLastDelivery(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(saysJSON(200, chatAnswer))
	for i := range 30 {
		session := fmt.Sprint("last-", i)
		if g := w.post("/v1/chat/completions", strings.Replace(chatAsk, `"s1"`, `"`+session+`"`, 1)); g.status != 200 {
			t.Fatalf("got %+v", g)
		}
		if lost, err := w.models.Seal(t.Context(), store.SessionKey{Principal: "local", ID: session, Incarnation: 1}); err != nil || lost != 0 {
			t.Fatalf("sealed with %d calls lost, %v", lost, err)
		}
		if r := w.one(session).Result; r.Delivery != store.Full {
			t.Fatalf("%s: stored %+v", session, r)
		}
	}
}

// N1, N4: when a session ends, its calls under way are waited for as long as there is time,
// and then cancelled; whoever names it again begins its next life. Calls that are not
// recorded are ended, too.
func TestEndOfASession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if found, err := w.models.End(t.Context(), "local", "s1", false); found || err != nil {
		t.Errorf("a session that there is not: %v, %v", found, err)
	}
	gone, release := make(chan string, 8), make(chan bool)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done(): // of a test that has failed
		}
		saysJSON(200, chatAnswer)(rw, r)
	})
	quick := make(chan got, 1)
	go func() { quick <- w.post("/v1/chat/completions", chatAsk) }()
	w.intents(1)
	ended := make(chan error, 1)
	go func() {
		_, err := w.models.End(t.Context(), "local", "s1", false)
		ended <- err
	}()
	for { // until the end has begun
		if s, err := w.store.Session(t.Context(), "local", "s1"); err == nil && s.State == store.Closed {
			break
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-ended:
		t.Fatalf("it was not waited for: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if g := <-quick; g.status != 200 || <-ended != nil {
		t.Errorf("got %+v", g)
	}

	w.answers(endless(gone))
	recorded, passing := w.open("/v1/chat/completions", chatStream), w.open("/v1/chat/completions", chatStream, "X-Roundhouse-Record", "off")
	recorded.until(chunkHello)
	passing.until(chunkHello)
	w.intents(2)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if found, err := w.models.End(ctx, "local", "s1", false); !found || err != nil {
		t.Errorf("the second end: %v, %v", found, err)
	}
	if n := w.models.Running(); n != 0 {
		t.Errorf("%d calls go on", n)
	}
	if body, err := recorded.rest(); err == nil || !strings.Contains(body, "unknown_session") {
		t.Errorf("the recorded stream ended with %q, %v", body, err)
	}
	if _, err := passing.rest(); err == nil {
		t.Error("the other stream ended well")
	}
	lives := map[int]store.Outcome{}
	for _, c := range w.calls("s1") {
		lives[c.Session.Incarnation] = c.Result.Outcome
	}
	if len(lives) != 2 || lives[1] != store.Complete || lives[2] != store.Lost {
		t.Errorf("stored %v", lives)
	}

	// By force nothing is waited for.
	third := w.open("/v1/chat/completions", chatStream)
	third.until(chunkHello)
	if found, err := w.models.End(t.Context(), "local", "s1", true); !found || err != nil {
		t.Errorf("the third end: %v, %v", found, err)
	}
	if found, err := w.models.End(t.Context(), "local", "s1", true); found || err != nil {
		t.Errorf("the fourth end: %v, %v", found, err)
	}
}

// C8, C9: an answer that its client did not get, and gets when it tries again, is delivered.
func TestRetryDelivers(t *testing.T) {
	w := newWorld(t, nil)
	call := store.Call{Session: key, ID: "t1", Attempt: 1, API: "chat", Endpoint: "/v1/chat/completions", Policy: store.Train, Start: time.Now(), Request: store.Pack([]byte(chatAsk))}
	result := store.Result{Outcome: store.Complete, Status: 200, Raw: store.Pack([]byte(chatAnswer)), Header: http.Header{"Content-Type": {"application/json"}}, End: time.Now()}
	err := w.store.Begin(t.Context(), call)
	if err == nil {
		err = w.store.Commit(t.Context(), key, call.ID, result)
	}
	if err == nil {
		err = w.store.Deliver(t.Context(), key, call.ID, store.None, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if g := w.post("/v1/chat/completions", chatAsk, "X-Stainless-Retry-Count", "1"); g.body != chatAnswer || g.header.Get("X-Roundhouse-Turn") != "t1" {
		t.Errorf("got %+v", g)
	}
	if r := w.one("s1").Result; r.Delivery != store.Full || r.Delivered != int64(len(chatAnswer)) {
		t.Errorf("stored %+v", r)
	}
}

// C11: a body whose length is not known before counts while it is read.
func TestBodyOfUnknownLengthCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(cfg *config.LLM) { cfg.MaxQueued = 1 << 20 })
	w.answers(saysJSON(200, `{}`))
	var read atomic.Int64
	for path, kind := range map[string]string{"/v1/chat/completions": "openai", "/v1/messages/count_tokens": "anthropic"} {
		read.Store(0)
		pieces := io.MultiReader(strings.NewReader(`{"a":"`), readerFunc(func(p []byte) (int, error) {
			read.Add(int64(len(p)))
			for i := range p {
				p[i] = 'x'
			}
			return len(p), nil
		}))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path, pieces)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(string(body), "llm.maxQueued") {
			t.Errorf("%s: got %d %s", kind, resp.StatusCode, body)
		}
		if n := read.Load(); n > 32<<20 {
			t.Errorf("%s: %d bytes were read", kind, n)
		}
	}
	if n := len(w.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	// What was counted is given back, and what fits goes through.
	for range 8 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/messages/count_tokens", io.MultiReader(strings.NewReader(`{"a":"`+strings.Repeat("x", 500<<10)+`"}`)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("got %+v, %v", resp, err)
		}
		resp.Body.Close()
	}
	if !slices.ContainsFunc(w.requests(), func(r received) bool { return len(r.body) > 500<<10 }) {
		t.Error("nothing arrived")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// C8, C9, J5: a client that has its answer by a retry, and seals its session at once, has
// the delivery on record, too.
func TestSealComesAfterTheDeliveryOfARetry(t *testing.T) {
	w := newWorld(t, nil)
	for i := range 30 {
		k := store.SessionKey{Principal: "local", ID: fmt.Sprint("again-", i), Incarnation: 1}
		ask := strings.Replace(chatAsk, `"s1"`, `"`+k.ID+`"`, 1)
		call := store.Call{Session: k, ID: "t1", Policy: store.Train, Endpoint: "/v1/chat/completions", Start: time.Now(), Request: store.Pack([]byte(ask))}
		err := w.store.Begin(t.Context(), call)
		if err == nil {
			err = w.store.Commit(t.Context(), k, call.ID, store.Result{Outcome: store.Complete, Status: 200, Header: http.Header{"Content-Type": {"application/json"}}, Raw: store.Pack([]byte(chatAnswer)), End: time.Now()})
		}
		if err == nil {
			err = w.store.Deliver(t.Context(), k, call.ID, store.None, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		if g := w.post("/v1/chat/completions", ask, "X-Stainless-Retry-Count", "1"); g.body != chatAnswer {
			t.Fatalf("got %+v", g)
		}
		if _, err := w.models.Seal(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if r := w.one(k.ID).Result; r.Delivery != store.Full {
			t.Fatalf("%s: stored %+v", k.ID, r)
		}
	}
}

// N4, C9, C15: a retry that waits for a call ends as that does, when its session ends or is
// sealed: the engine is not asked again.
func TestRetryOfACallThatIsEnded(t *testing.T) {
	for code, end := range map[string]func(*world) error{
		"unknown_session": func(w *world) error {
			_, err := w.models.End(w.t.Context(), "local", "s1", true)
			return err
		},
		"session_sealed": func(w *world) error {
			_, err := w.models.Seal(w.t.Context(), key)
			return err
		},
	} {
		t.Run(code, func(t *testing.T) {
			w := newWorld(t, nil)
			w.answers(func(rw http.ResponseWriter, r *http.Request) {
				if len(w.requests()) > 1 {
					saysJSON(200, chatAnswer)(rw, r)
					return
				}
				<-r.Context().Done()
			})
			first, second := make(chan got, 1), make(chan got, 1)
			go func() { first <- w.post("/v1/chat/completions", chatAsk) }()
			w.intents(1)
			go func() { second <- w.post("/v1/chat/completions", chatAsk, "X-Stainless-Retry-Count", "1") }()
			waits(t)
			if err := end(w); err != nil {
				t.Fatal(err)
			}
			for _, g := range []got{<-first, <-second} {
				if !strings.Contains(g.body, code) {
					t.Errorf("got %+v", g)
				}
			}
			if n := len(w.requests()); n != 1 {
				t.Errorf("the engine was asked %d times", n)
			}
		})
	}
}

// waits waits until a retry waits for the call under way. Nothing else tells that it does.
func waits(t *testing.T) {
	t.Helper()
	waiting := regexp.MustCompile(`\[select[^]]*\]:\nroundhouse/internal/model\.\(\*Models\)\.await`)
	stacks := make([]byte, 4<<20)
	for end := time.Now().Add(30 * time.Second); !waiting.Match(stacks[:runtime.Stack(stacks, true)]); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the retry does not wait")
		}
	}
}

// C9: no SDK tries a stream again that began, so what is marked so is made anew, and flows.
func TestStreamsAreNotReplayed(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(saysStream(chunkHello, chunkFinish, chunkDone))
	for _, count := range []string{"0", "1"} {
		g := w.post("/v1/chat/completions", chatStream, "X-Stainless-Retry-Count", count)
		if g.status != 200 || strings.ReplaceAll(g.body, ": keepalive\n", "") != chunkHello+chunkFinish+chunkDone {
			t.Errorf("got %+v", g)
		}
	}
	if n := len(w.calls("s1")); n != 2 || len(w.requests()) != 2 {
		t.Errorf("the engine was asked %d times, and %d calls are stored", len(w.requests()), n)
	}
}

// C9: only a number above 0 marks a retry.
func TestWhatMarksARetry(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(saysJSON(200, chatAnswer))
	for _, count := range []string{"0", "-1", "x", "99999999999999999999"} {
		if g := w.post("/v1/chat/completions", chatAsk, "X-Stainless-Retry-Count", count); g.status != 200 {
			t.Errorf("got %+v", g)
		}
	}
	for _, c := range w.calls("s1") {
		if c.Attempt != 1 {
			t.Errorf("it counts as attempt %d", c.Attempt)
		}
	}
	if n := len(w.requests()); n != 4 {
		t.Errorf("the engine was asked %d times", n)
	}
}
