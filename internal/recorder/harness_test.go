package recorder_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/front"
	"roundhouse/internal/model"
	"roundhouse/internal/recorder"
	"roundhouse/internal/store"
)

// world is a recorder behind real sockets, with a scripted upstream.
type world struct {
	t        testing.TB
	url      string
	upstream *httptest.Server
	store    *store.Store
	models   *model.Models

	mu       sync.Mutex
	script   http.HandlerFunc
	received []received
}

// received is a request as the upstream got it.
type received struct {
	method, uri string
	header      http.Header
	body        string
}

// newWorld starts one. change may change the configuration, in which the upstream is
// "main" and the policy is train; nil changes nothing.
func newWorld(t testing.TB, change func(*config.LLM)) *world {
	t.Helper()
	w := &world{t: t}
	w.upstream = httptest.NewServer(http.HandlerFunc(w.serve))
	t.Cleanup(w.upstream.Close)
	cfg := config.Defaults().LLM
	cfg.Record.Policy = config.RecordTrain
	cfg.Upstreams = []*config.Upstream{upstreamAt("main", w.upstream.URL)}
	if change != nil {
		change(&cfg)
	}
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "roundhouse.db")})
	if err != nil {
		t.Fatal(err)
	}
	w.store = st
	w.models = model.New(model.Config{LLM: cfg, Store: st, Dir: t.TempDir(), KeepAlive: 50 * time.Millisecond, WriteDeadline: 300 * time.Millisecond, AsideDeadline: 500 * time.Millisecond})
	f, err := front.New(front.Config{})
	if err != nil {
		t.Fatal(err)
	}
	recorder.New(recorder.Config{Models: w.models, MaxBody: cfg.MaxBody, WriteDeadline: time.Second}).Register(f)
	door := httptest.NewUnstartedServer(f)
	door.Config.Protocols = new(http.Protocols)
	door.Config.Protocols.SetHTTP1(true)
	door.Config.Protocols.SetUnencryptedHTTP2(true) // as the daemon has it
	door.Start()
	w.url = door.URL
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		w.upstream.CloseClientConnections()
		if left := w.models.Close(ctx); left > 0 {
			t.Errorf("%d calls are left", left)
		}
		door.Close()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func upstreamAt(name, url string) *config.Upstream {
	return &config.Upstream{Name: name, BaseURL: url, Timeouts: config.UpstreamTimeouts{Connect: 5 * time.Second, FirstByte: 5 * time.Second, Idle: 5 * time.Second}}
}

func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.t.Error(err)
	}
	w.mu.Lock()
	w.received = append(w.received, received{r.Method, r.RequestURI, r.Header.Clone(), string(body)})
	script := w.script
	w.mu.Unlock()
	script(rw, r)
}

// answers sets what the upstream does from now on.
func (w *world) answers(script http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.script = script
}

// requests returns what the upstream got.
func (w *world) requests() []received {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]received(nil), w.received...)
}

// saysJSON answers with a JSON body.
func saysJSON(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// saysStream answers with an event stream, piece by piece.
func saysStream(pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, p := range pieces {
			if p == cutHere {
				panic(http.ErrAbortHandler)
			}
			io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// cutHere among the pieces of a stream breaks the connection off.
const cutHere = "\x00cut"

// got is what a client saw.
type got struct {
	status int
	header http.Header
	body   string
	err    error // of the transfer
}

// post sends a request to path, with the header in pairs.
func (w *world) post(path, body string, header ...string) got {
	w.t.Helper()
	return w.do(http.MethodPost, path, body, header...)
}

func (w *world) do(method, path, body string, header ...string) got {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	if body != "" && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return exchange(&http.Transport{DisableCompression: true, DisableKeepAlives: true}, req)
}

// send sends a body of unknown length, on a connection that is to stay, for which net/http
// reads what is left of a body. It may be called by several goroutines.
func (w *world) send(path, kind string, body io.Reader) got {
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+path, body)
	if err != nil {
		return got{err: err}
	}
	req.Header.Set("Content-Type", kind)
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	return exchange(transport, req)
}

// exchange sends a request and reads its answer.
func exchange(transport *http.Transport, req *http.Request) got {
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return got{err: err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return got{resp.StatusCode, resp.Header, string(text), err}
}

// calls returns what is stored of a session, when nothing is under way any more.
func (w *world) calls(session string) []store.Call {
	w.t.Helper()
	w.settle()
	var calls []store.Call
	for c, err := range w.store.Calls(w.t.Context(), store.CallFilter{Session: store.SessionFilter{ID: session}}) {
		if err != nil {
			w.t.Fatal(err)
		}
		calls = append(calls, c)
	}
	return calls
}

// settle waits until no call is under way.
func (w *world) settle() {
	w.t.Helper()
	for end := time.Now().Add(30 * time.Second); w.models.Running() > 0; {
		if time.Now().After(end) {
			w.t.Fatalf("%d calls are still under way", w.models.Running())
		}
		time.Sleep(time.Millisecond)
	}
}

// one returns the only call of a session.
func (w *world) one(session string) store.Call {
	w.t.Helper()
	calls := w.calls(session)
	if len(calls) != 1 || calls[0].Result == nil {
		w.t.Fatalf("there are %d calls of %q: %+v", len(calls), session, calls)
	}
	return calls[0]
}

func text(t testing.TB, b store.Body) string {
	t.Helper()
	bytes, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes)
}

// Bodies of the two APIs.
const (
	chatAsk     = `{ "model":"m", "session_id":"s1" , "messages":[{"role":"user","content":"h\u00e9"}], "seed":12345678901234567890 }`
	chatAskCut  = `{ "model":"m", "messages":[{"role":"user","content":"h\u00e9"}], "seed":12345678901234567890 }`
	chatStream  = `{"model":"m","session_id":"s1","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	chatAnswer  = `{"id":"c1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`
	chunkHello  = `data: {"id":"c1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Hello"}}]}` + "\n\n"
	chunkFinish = `data: {"id":"c1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	chunkDone   = "data: [DONE]\n\n"

	messageStream = `{"model":"m","session_id":"s1","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}`
	messageStart  = "event: message_start\ndata: " + `{"type":"message_start","message":{"id":"m1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"usage":{"input_tokens":3,"output_tokens":1}}}` + "\n\n" +
		"event: content_block_start\ndata: " + `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}` + "\n\n" +
		"event: content_block_delta\ndata: " + `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}` + "\n\n"
	messageEnd = "event: content_block_stop\ndata: " + `{"type":"content_block_stop","index":0}` + "\n\n"
	messageFin = "event: message_delta\ndata: " + `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":1}}` + "\n\n" +
		"event: message_stop\ndata: " + `{"type":"message_stop"}` + "\n\n"
)

// reading reads a stream while it comes.
type reading struct {
	t    testing.TB
	resp *http.Response
	got  bytes.Buffer
}

// open sends a request and returns when the header of its answer has come.
func (w *world) open(path, body string, header ...string) *reading {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { resp.Body.Close() })
	return &reading{t: w.t, resp: resp}
}

// until reads until it has come.
func (r *reading) until(text string) {
	r.t.Helper()
	buf := make([]byte, 1024)
	for !strings.Contains(r.got.String(), text) {
		n, err := r.resp.Body.Read(buf)
		r.got.Write(buf[:n])
		if err != nil {
			r.t.Fatalf("%q did not come: %v after %q", text, err, r.got.String())
		}
	}
}

// rest reads to the end.
func (r *reading) rest() (string, error) {
	_, err := io.Copy(&r.got, r.resp.Body)
	return r.got.String(), err
}
