package recorder_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/store"
)

// C1, C2, A.16 rows 3 to 7, 12: what is not recorded passes with its bytes, status and
// headers both ways, for random bytes cut at random, except that what names a session is
// cut out of JSON.
func TestWhatIsNotRecordedKeepsItsBytes(t *testing.T) {
	w := newWorld(t, nil)
	random := rand.New(rand.NewPCG(1, 2))
	words := []string{"data: ", "data:", "\n", "\r\n", "\r", "[DONE]", "event: ping\n", ": c\n\n", `{"choices":[{"finish_reason":"stop","output_ids":[1]}]}`, "<|im_end|>", "\xff\xfe", "é", "\x00"}
	for i, c := range []struct{ method, path, ask, sent string }{
		{"POST", "/v1/chat/completions", `{"model":"m", "messages":[]}`, `{"model":"m", "messages":[]}`},
		{"POST", "/v1/chat/completions", `{"model":"m","session_id":"x","return_token_ids":false,"a":1.0}`, `{"model":"m","return_token_ids":false,"a":1.0}`},
		{"POST", "/v1/chat/completions", `{"not": json`, `{"not": json`},
		{"POST", "/v1/chat/completions/", `[1,2]`, `[1,2]`},
		{"POST", "/v1/messages/count_tokens?beta=true", `{ "session_id" : "x", "messages":[ ] }`, `{ "messages":[ ] }`},
		{"POST", "/sessions/x/v1/embeddings", ` {"input":"a" }`, ` {"input":"a" }`},
		{"POST", "/v1/files", "\xff\x00binary", "\xff\x00binary"},
		{"PUT", "/v1/any/th%2Fing?x=%26&y", `[ ]`, `[ ]`},
		{"GET", "/v1/messages", "", ""},
		{"DELETE", "/v1/files/1", "", ""},
	} {
		var pieces []string
		for range 1 + random.IntN(40) {
			pieces = append(pieces, words[random.IntN(len(words))])
		}
		status := []int{200, 201, 404, 500}[i%4]
		w.answers(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header()["X-Two"] = []string{"1", "2"}
			rw.Header().Set("Content-Type", "text/event-stream")
			rw.WriteHeader(status)
			saysStream(pieces...)(rw, r)
		})
		kind := "application/json"
		if strings.HasPrefix(c.path, "/v1/files") {
			kind = "application/octet-stream"
		}
		before := len(w.requests())
		g := w.do(c.method, c.path, c.ask, "X-Two", "a", "X-Two", "b", "Content-Type", kind, "Accept-Encoding", "br")
		if g.err != nil || g.status != status || g.body != strings.Join(pieces, "") || len(g.header["X-Two"]) != 2 || g.header.Get("X-Accel-Buffering") != "" {
			t.Errorf("%s %s: got %+v, want %q", c.method, c.path, g, pieces)
		}
		sent := w.requests()[before]
		if uri := strings.TrimPrefix(c.path, "/sessions/x"); sent.uri != uri || sent.method != c.method || sent.body != c.sent || len(sent.header["X-Two"]) != 2 || sent.header.Get("Accept-Encoding") != "br" {
			t.Errorf("%s %s: sent %+v, want %q", c.method, c.path, sent, c.sent)
		}
	}
	if stored := calls(t, w); len(stored) > 0 {
		t.Errorf("stored %+v", stored)
	}
}

// C2, C10: what is not recorded is not changed for its engine either: tools that only
// Anthropic has stay, and nothing is asked for.
func TestWhatIsNotRecordedIsNotFittedToItsEngine(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) { cfg.Upstreams[0].Engine = "vllm" })
	w.answers(saysJSON(200, `{}`))
	const ask = `{"model":"m","tools":[{"type":"web_search_20250305","name":"web_search"},{"name":"f","input_schema":{}}],"messages":[]}`
	for i, session := range []string{"", "/sessions/s1"} {
		w.post(session+"/v1/messages", ask, "X-Roundhouse-Record", []string{"off", "train"}[i])
		w.settle()
		if sent := w.requests()[i].body; (sent == ask) != (session == "") {
			t.Errorf("%q: sent %s", session, sent)
		}
	}
	w.post("/v1/chat/completions", chatAskCut)
	if sent := w.requests()[2].body; sent != chatAskCut {
		t.Errorf("sent %s", sent)
	}
}

// C1, A.2, A.16 rows 8 to 10: what manages an engine, or is no model API's, is never
// forwarded; the Responses API is 501 where no upstream speaks it.
func TestWhatIsNeverForwarded(t *testing.T) {
	w := newWorld(t, nil)
	for path, status := range map[string]int{
		"/v1/load_lora_adapter": 404, "/v1/sleep": 404, "/v1/x%2Fterminate": 404, "/v1/%2e%2e/terminate": 404,
		"/v1/responses": 501, "/v1/responses/r1": 501, "/v1/responses/r1/cancel": 501,
	} {
		g := w.post(path, `{"model":"m"}`)
		if g.status != status || !strings.Contains(g.body, `"error"`) || status == 501 && g.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: got %+v", path, g)
		}
	}
	if sent := w.requests(); len(sent) > 0 {
		t.Errorf("sent %+v", sent)
	}
}

// C1: Responses go to an upstream that speaks it, unless a tool is of the type mcp.
func TestResponses(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) { cfg.Upstreams[0].Responses = true })
	const answer = `{"id":"r1","object":"response","status":"completed","model":"m","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hello"}]}],"usage":{"input_tokens":1,"output_tokens":1}}`
	w.answers(saysJSON(200, answer))
	if g := w.post("/sessions/s1/v1/responses", `{"model":"m","input":"hi"}`); g.body != answer {
		t.Errorf("got %+v", g)
	}
	if c := w.one("s1"); c.API != "responses" || c.Result.Outcome != store.Complete {
		t.Errorf("stored %+v", c)
	}
	if g := w.do("GET", "/v1/responses/r1", ""); g.status != 200 {
		t.Errorf("got %+v", g)
	}
	before := len(w.requests())
	if g := w.post("/v1/responses", `{"model":"m","input":"hi","tools":[{"type":"mcp","server_label":"x"}]}`); g.status != 501 || len(w.requests()) != before {
		t.Errorf("got %+v", g)
	}
}

// C2, A.3: a session is named by path, header or body; names that differ, or cannot be
// one, are refused in the API's own form.
func TestNamingASession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(saysJSON(200, chatAnswer))
	ask := func(member string) string { return `{"model":"m"` + member + `,"messages":[]}` }
	for session, post := range map[string]func() got{
		"path":   func() got { return w.post("/sessions/path/v1/chat/completions", ask("")) },
		"header": func() got { return w.post("/v1/chat/completions", ask(""), "X-Session-Id", "header") },
		"7":      func() got { return w.post("/v1/chat/completions", ask(`,"session_id":7`)) },
		"all": func() got {
			return w.post("/sessions/all/v1/chat/completions", ask(`,"session_id":"all"`), "X-Session-Id", "all")
		},
	} {
		if g := post(); g.status != 200 {
			t.Errorf("%s: got %+v", session, g)
		}
		w.one(session)
	}
	before := len(w.requests())
	for _, g := range []got{
		w.post("/sessions/a/v1/chat/completions", ask(`,"session_id":"b"`)),
		w.post("/v1/chat/completions", ask(`,"session_id":"b"`), "X-Session-Id", "a"),
		w.post("/v1/chat/completions", ask(`,"session_id":""`)),
		w.post("/v1/chat/completions", ask(`,"session_id":true`)),
		w.post("/v1/chat/completions", ask(`,"session_id":"a b"`)),
		w.post("/v1/chat/completions", ask(`,"session_id":"a","session_id":"b"`)),
		w.post("/v1/messages", ask(`,"Session_ID":"b"`)),
		w.post("/v1/messages/count_tokens", ask(`,"session_id":"b"`), "X-Session-Id", "a"),
	} {
		if g.status != 400 || !strings.Contains(g.body, `"type":"invalid_request_error"`) {
			t.Errorf("got %+v", g)
		}
	}
	if len(w.requests()) != before {
		t.Error("a request that was refused was sent")
	}
}

// C3: what stands nearest to the request says how it is recorded.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                       string
		config, upstream, unnamed  config.RecordPolicy
		metadata, session, request string
		want                       store.Policy // "" is not recorded
	}{
		{name: "configuration", config: "observe", session: "s", want: store.Observe},
		{name: "upstream", config: "observe", upstream: "train", session: "s", want: store.Train},
		{name: "session", config: "observe", upstream: "off", metadata: `{"record":"train"}`, session: "s", want: store.Train},
		{name: "request", config: "observe", metadata: `{"record":"off"}`, session: "s", request: "train", want: store.Train},
		{name: "request says off", config: "train", metadata: `{"record":"train"}`, session: "s", request: "off"},
		{name: "off", config: "off", session: "s"},
		{name: "unnamed", config: "train"},
		{name: "unnamed, observed", config: "train", unnamed: "observe", want: store.Observe},
		{name: "unnamed, trained", config: "off", unnamed: "observe", request: "train", want: store.Train},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, func(cfg *config.LLM) {
				cfg.Record.Policy, cfg.Upstreams[0].Policy = c.config, c.upstream
				if c.unnamed != "" {
					cfg.Record.Unnamed = c.unnamed
				}
			})
			if c.metadata != "" {
				s := store.Session{SessionKey: store.SessionKey{Principal: "local", ID: c.session, Incarnation: 1}, Metadata: []byte(c.metadata)}
				if err := w.store.SaveSession(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			w.answers(saysJSON(200, chatAnswer))
			var header []string
			if c.request != "" {
				header = append(header, "X-Roundhouse-Record", c.request)
			}
			if c.session != "" {
				header = append(header, "X-Session-Id", c.session)
			}
			if g := w.post("/v1/chat/completions", `{"model":"m","messages":[]}`, header...); g.body != chatAnswer {
				t.Errorf("got %+v", g)
			}
			w.settle()
			var policy store.Policy
			for _, stored := range calls(t, w) {
				policy = stored.Policy
				if c.session == "" && stored.Session.ID != "unnamed:"+time.Now().UTC().Format(time.DateOnly) {
					t.Errorf("stored in %q", stored.Session.ID)
				}
			}
			if policy != c.want {
				t.Errorf("the policy is %q, want %q", policy, c.want)
			}
			if h := w.requests()[0].header; h.Get("X-Session-Id") != "" || h.Get("X-Roundhouse-Record") != "" {
				t.Errorf("sent %v", h)
			}
		})
	}
	w := newWorld(t, nil)
	for _, header := range [][]string{{"X-Roundhouse-Record", "yes"}, {"X-Roundhouse-Record", "train"}} {
		if g := w.post("/v1/chat/completions", `{"model":"m","messages":[]}`, header...); g.status != 400 || len(w.requests()) > 0 {
			t.Errorf("%v: got %+v", header, g)
		}
	}
}

// C12: the upstream is chosen by the model, for auxiliary requests too, and the list of
// models is that of all.
func TestUpstreamsByModel(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/base/v1/models" {
			saysJSON(200, `{"object":"list","data":[{"id":"gpt-1","x":1.0},{"id":"m"}]}`)(w, r)
			return
		}
		saysJSON(200, fmt.Sprintf(`{"other":%q,"key":%q,"x":%q,"body":%q}`, r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("X-Extra"), body))(w, r)
	}))
	defer other.Close()
	w := newWorld(t, func(cfg *config.LLM) {
		u := upstreamAt("other", other.URL+"/base")
		u.Models = []string{"gpt-*", "org/?-*"}
		cfg.Upstreams = append(cfg.Upstreams, u)
		cfg.Upstreams[0].Models = []string{"m"}
	})
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		saysJSON(200, `{"data":[{"id":"m","owner":"é"}]}`)(rw, r)
	})
	for path, model := range map[string]string{"/v1/chat/completions": "gpt-4", "/v1/messages/count_tokens": "gpt-x", "/v1/embeddings": "org/a-1/2"} {
		if g := w.post(path, `{"model":"`+model+`","messages":[]}`); !strings.Contains(g.body, `"other":"/base`+path) {
			t.Errorf("%s: got %+v", model, g)
		}
	}
	if g := w.do("GET", "/v1/models/gpt-4", ""); !strings.Contains(g.body, "/base/v1/models/gpt-4") {
		t.Errorf("got %+v", g)
	}
	if g := w.do("GET", "/v1/models", ""); !strings.Contains(g.body, `[{"id":"m","owner":"é"},{"id":"gpt-1","x":1.0}]`) {
		t.Errorf("got %+v", g)
	}
	if g := w.post("/v1/chat/completions", `{"model":"else","messages":[]}`); g.status != 404 || !strings.Contains(g.body, "model_not_found") {
		t.Errorf("got %+v", g)
	}
}

// C15, N1: what comes after a session was sealed is refused before anything is sent.
func TestSealedSession(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(saysJSON(200, chatAnswer))
	w.post("/v1/chat/completions", chatAsk)
	if _, err := w.store.Seal(t.Context(), w.one("s1").Session); err != nil {
		t.Fatal(err)
	}
	before := len(w.requests())
	if g := w.post("/v1/chat/completions", chatAsk); g.status != 409 || g.header.Get("X-Should-Retry") != "false" || len(w.requests()) != before {
		t.Errorf("got %+v", g)
	}
	// N1: when it has ended, too, its id is not used again.
	if found, err := w.models.End(t.Context(), "local", "s1", false); !found || err != nil {
		t.Errorf("the end: %v, %v", found, err)
	}
	if g := w.post("/v1/chat/completions", chatAsk); g.status != 410 || g.header.Get("X-Should-Retry") != "false" || !strings.Contains(g.body, "session_sealed") || len(w.requests()) != before {
		t.Errorf("got %+v", g)
	}
}

// C8, A.16 rows 30, 31: a client that leaves does not end its turn under train, and
// cancels it under observe; what it got is stored.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"train", "observe"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			gone, cancelled := make(chan bool), make(chan bool, 1)
			w.answers(func(rw http.ResponseWriter, r *http.Request) {
				saysStream(chunkHello)(rw, r)
				<-gone
				late := time.After(time.Minute)
				if policy == "train" {
					late = time.After(100 * time.Millisecond)
				}
				select {
				case <-late:
				case <-r.Context().Done():
				}
				cancelled <- r.Context().Err() != nil
				saysStream(chunkHello, chunkFinish, chunkDone)(rw, r)
			})
			r := w.open("/v1/chat/completions", chatStream, "X-Roundhouse-Record", policy)
			r.until(chunkHello)
			r.resp.Body.Close()
			gone <- true
			if policy == "train" == <-cancelled {
				t.Error("the upstream's request was not treated as it should be")
			}
			want := store.Complete
			if policy == "observe" {
				want = store.ClientGone
			}
			if c := w.one("s1"); c.Result.Outcome != want || c.Result.Delivery == store.Full || c.Result.Delivered > int64(len(chunkHello)) {
				t.Errorf("stored %+v", c.Result)
			}
		})
	}
}

// C9: a marked retry gets the recorded answer, or waits for the one under way; without
// the mark, or with another body, the call is made anew.
func TestRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	arrived, release := make(chan bool, 8), make(chan bool)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		arrived <- true
		<-release
		rw.Header().Set("X-Request-Id", "r1")
		saysJSON(200, chatAnswer)(rw, r)
	})
	first, second := make(chan got, 1), make(chan got, 1)
	go func() { first <- w.post("/v1/chat/completions", chatAsk) }()
	<-arrived
	w.intents(1)
	go func() { second <- w.post("/v1/chat/completions", chatAsk, "X-Stainless-Retry-Count", "1") }()
	time.Sleep(50 * time.Millisecond)
	close(release)
	a, b := <-first, <-second
	third := w.post("/v1/chat/completions", chatAsk, "X-Stainless-Retry-Count", "2")
	for _, g := range []got{a, b, third} {
		if g.status != 200 || g.body != chatAnswer || g.header.Get("X-Request-Id") != "r1" || g.header.Get("X-Roundhouse-Turn") != a.header.Get("X-Roundhouse-Turn") {
			t.Errorf("got %+v", g)
		}
	}
	if sent := w.requests(); len(sent) != 1 {
		t.Errorf("%d requests were sent", len(sent))
	}
	w.post("/v1/chat/completions", chatAsk)
	w.post("/v1/chat/completions", strings.Replace(chatAsk, "12345", "12346", 1), "X-Stainless-Retry-Count", "1")
	if sent := w.requests(); len(sent) != 3 {
		t.Errorf("%d requests were sent", len(sent))
	}
}

// C11: a request that is too large is refused in the API's own form; large ones and large
// answers go through disk, and are stored whole.
func TestLargeBodies(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) { cfg.MaxBody = 12 << 20 })
	large := strings.Repeat("0123456789abcdef", 6<<20/16)
	answer := strings.Replace(chatAnswer, "Hello", large, 1)
	w.answers(saysJSON(200, answer))
	if g := w.post("/v1/chat/completions", strings.Replace(chatAsk, "h\\u00e9", large, 1)); g.status != 200 || g.body != answer {
		t.Errorf("got %d with %d bytes, %v", g.status, len(g.body), g.err)
	}
	if c := w.one("s1"); text(t, c.Result.Raw) != answer || !strings.Contains(text(t, c.Request), large) {
		t.Error("the bodies are not those that came")
	}
	before := len(w.requests())
	for _, body := range []io.Reader{bytes.NewReader(make([]byte, 13<<20)), io.MultiReader(bytes.NewReader(make([]byte, 13<<20)))} {
		resp, err := http.Post(w.url+"/v1/messages", "application/json", body)
		if err != nil {
			continue // the server may close before it has taken everything
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 413 || !strings.Contains(string(text), "request_too_large") {
			t.Errorf("got %d %s", resp.StatusCode, text)
		}
	}
	if len(w.requests()) != before {
		t.Error("a request that is too large was sent")
	}
}

// C11, A.14, A.16 row 32: a client that stalls does not hold up its turn for long, and what
// it does not take is not kept.
func TestStalledClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	long := strings.Replace(chunkHello, "Hello", strings.Repeat("x", 64<<10), 1)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		for range 120 {
			saysStream(long)(rw, r)
		}
		saysStream(chunkFinish, chunkDone)(rw, r)
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(chatStream), chatStream) // and read nothing
	for len(w.requests()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if c := w.one("s1"); c.Result.Outcome != store.Complete || c.Result.Delivery != store.Partial {
		t.Errorf("stored %v, delivered %v", c.Result.Outcome, c.Result.Delivery)
	}
}

// C16: an upstream that answers before it has read a long body does not cut its answer,
// nor the body of another request.
func TestUpstreamThatAnswersAtOnce(t *testing.T) {
	early := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(rw).EnableFullDuplex()
		saysStream(chunkHello)(rw, r)
		if n, err := io.Copy(io.Discard, r.Body); err != nil || n < 400<<10 {
			t.Errorf("%d bytes arrived, %v", n, err)
		}
		saysStream(chunkFinish, chunkDone)(rw, r)
	}))
	defer early.Close()
	w := newWorld(t, func(cfg *config.LLM) { cfg.Upstreams[0].BaseURL = early.URL })
	streams := 150 // of which a proxy that streams the body through cuts several
	if n, err := strconv.Atoi(os.Getenv("ROUNDHOUSE_STREAMS")); err == nil {
		streams = n
	}
	long := strings.Repeat("x", 400<<10)
	var cut atomic.Int64
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < streams; i += 4 {
				path, kind := "/v1/chat/completions", "application/json"
				if i%2 == 0 {
					path, kind = "/v1/files", "application/octet-stream"
				}
				g := w.send(path, kind, &hesitant{strings.NewReader(`{"model":"m","stream":true,"session_id":"s1","messages":[],"x":"` + long + `"}`), 64 << 10})
				g.body = strings.ReplaceAll(g.body, ": keepalive\n", "")
				if g.err != nil || g.body != chunkHello+chunkFinish+chunkDone {
					if cut.Add(1) < 5 {
						t.Errorf("%d: got %q, %v", i, g.body, g.err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := cut.Load(); n > 0 {
		t.Errorf("%d of %d streams were cut", n, streams)
	}
	for _, c := range w.calls("s1") {
		if c.Result.Outcome != store.Complete {
			t.Errorf("stored %+v", c.Result)
		}
	}
}

// hesitant waits a moment in the middle, after so many bytes, so that an answer may come
// before the rest has been sent.
type hesitant struct {
	*strings.Reader
	left int
}

func (h *hesitant) Read(p []byte) (int, error) {
	if h.left == 0 {
		time.Sleep(2 * time.Millisecond)
		h.left = -1
	}
	if h.left > 0 {
		p = p[:min(len(p), h.left)]
	}
	n, err := h.Reader.Read(p)
	if h.left > 0 {
		h.left -= n
	}
	return n, err
}

// C11: requests that have no room in memory are told to come again.
func TestNoRoomInMemory(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) { cfg.MaxQueued = 200 })
	arrived, release := make(chan bool, 1), make(chan bool)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		arrived <- true
		<-release
		saysJSON(200, `{}`)(rw, r)
	})
	done := make(chan got, 1)
	go func() { done <- w.post("/v1/messages/count_tokens", chatAsk) }()
	<-arrived
	if g := w.post("/v1/chat/completions", chatAsk); g.status != 503 || g.header.Get("Retry-After") == "" {
		t.Errorf("got %+v", g)
	}
	close(release)
	if g := <-done; g.status != 200 {
		t.Errorf("got %+v", g)
	}
	// What has been answered takes no room.
	w.answers(saysJSON(200, chatAnswer))
	for range 3 {
		w.settle()
		if g := w.post("/v1/chat/completions", chatAsk); g.status != 200 {
			t.Errorf("got %+v", g)
		}
	}
}

// C4: a model may think for longer than a write may take, whatever protocol its client speaks.
func TestStreamThatPauses(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		saysStream(chunkHello)(rw, r)
		time.Sleep(1500 * time.Millisecond) // the deadline of a write is 1 s
		saysStream(chunkFinish, chunkDone)(rw, r)
	})
	for _, policy := range []string{"train", "off"} {
		for _, version := range []int{1, 2} {
			t.Run(fmt.Sprint(policy, version), func(t *testing.T) {
				t.Parallel()
				transport := &http.Transport{Protocols: new(http.Protocols)}
				transport.Protocols.SetHTTP1(version == 1)
				transport.Protocols.SetUnencryptedHTTP2(version == 2)
				defer transport.CloseIdleConnections()
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/chat/completions", strings.NewReader(chatStream))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("X-Roundhouse-Record", policy)
				if g := exchange(transport, req); g.err != nil || strings.ReplaceAll(g.body, ": keepalive\n", "") != chunkHello+chunkFinish+chunkDone {
					t.Errorf("got %+v", g)
				}
			})
		}
	}
}
