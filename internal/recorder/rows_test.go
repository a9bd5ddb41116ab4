package recorder_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/store"
	"roundhouse/internal/trace"
)

// C7, A.16 row 11: a call that roundhouse refuses is an attempt all the same, with the error
// that its client got; nothing is sent.
func TestRefusedCallsAreAttempts(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) { cfg.Upstreams[0].Models = []string{"m"} })
	w.answers(saysJSON(200, chatAnswer))
	for session, c := range map[string]struct {
		path, body string
		status     int
		header     []string
	}{
		"unknown":  {"/sessions/unknown/v1/chat/completions", `{"model":"x","messages":[]}`, 404, nil},
		"twice":    {"/sessions/twice/v1/messages", `{"model":"m","model":"m2","messages":[]}`, 400, nil},
		"encoded":  {"/sessions/encoded/v1/chat/completions", "\x1f\x8b", 415, []string{"Content-Encoding", "gzip", "X-Roundhouse-Record", "train"}},
		"observed": {"/sessions/observed/v1/chat/completions", `{"model":"x"}`, 404, []string{"X-Roundhouse-Record", "observe"}},
	} {
		g := w.post(c.path, c.body, c.header...)
		if g.status != c.status || !strings.Contains(g.body, `"error"`) {
			t.Errorf("%s: got %+v", session, g)
		}
		one := w.one(session)
		if r := one.Result; r.Outcome != store.Refused || r.Status != g.status || r.Error == "" || r.Delivery != store.None || text(t, one.Request) != c.body {
			t.Errorf("%s: stored %+v", session, one)
		}
	}
	if g := w.post("/sessions/off/v1/chat/completions", `{"model":"x"}`, "X-Roundhouse-Record", "off"); g.status != 404 || len(w.calls("off")) != 0 {
		t.Errorf("off: got %+v, stored %+v", g, w.calls("off"))
	}
	if n := len(w.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// A.16 row 20: an answer without ids, or with ids that do not fit together, is a turn of
// messages; the client sees the same as ever.
func TestTurnsWithoutTokens(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) { cfg.Upstreams[0].Engine = "vllm" })
	const before, choice, after = `{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"`, `,"token_ids":[7],"logprobs":{"content":[{"token":"a","logprob":-1},{"token":"b","logprob":-1}]}`, `}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`
	const chunk = `data: {"choices":[{"index":0,"delta":{"content":"Hi"}%s}]}` + "\n\n"
	finish := chunkFinish + `data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}` + "\n\n"
	for name, c := range map[string]struct {
		ask, got, flag string
		script         http.HandlerFunc
	}{
		"none":                 {chatAsk, before + after, "no_tokens", saysJSON(200, before+after)},
		"lengths that differ":  {chatAsk, before + after, "token_mismatch", saysJSON(200, before+choice+after)},
		"none, stream":         {chatStream, fmt.Sprintf(chunk, "") + chunkFinish + chunkDone, "no_tokens", saysStream(fmt.Sprintf(chunk, ""), finish, chunkDone)},
		"one is lost, stream":  {chatStream, fmt.Sprintf(chunk, "") + chunkFinish + chunkDone, "token_mismatch", saysStream(fmt.Sprintf(chunk, `,"token_ids":[7]`), finish, chunkDone)},
		"broken ids, answered": {chatAsk, before + after, "token_mismatch", saysJSON(200, before+`,"token_ids":["x"]`+after)},
	} {
		w.answers(c.script)
		session := strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ",", "")
		g := w.post("/v1/chat/completions", strings.Replace(c.ask, `"s1"`, `"`+session+`"`, 1))
		if g.status != 200 || g.err != nil || strings.ReplaceAll(g.body, ": keepalive\n", "") != c.got {
			t.Errorf("%s: got %+v", name, g)
		}
		r := w.one(session).Result
		if r.Outcome != store.Complete || r.OutputIDs != nil || r.Logprobs != nil || !slices.Contains(r.Flags, c.flag) || !strings.Contains(text(t, r.Answer()), `"Hi"`) {
			t.Errorf("%s: stored %+v", name, r)
		}
	}
}

// A.11, A.16 row 38: of n answers in one each is put together by itself and the client has
// them all; together they are one call, and no turn of tokens.
func TestSeveralChoices(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) { cfg.Upstreams[0].Engine = "vllm" })
	piece := func(index int, text string, id int) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{"content":%q},"token_ids":[%d]}]}`+"\n\n", index, text, id)
	}
	ends := `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" + `data: {"choices":[{"index":1,"delta":{},"finish_reason":"length"}]}` + "\n\n"
	w.answers(saysStream(piece(0, "A", 1), piece(1, "B", 2), piece(0, "a", 3), piece(1, "b", 4), ends, chunkDone))
	g := w.post("/v1/chat/completions", strings.Replace(chatStream, `"stream"`, `"n":2,"stream"`, 1))
	if g.err != nil || strings.Contains(g.body, "token_ids") || strings.Count(g.body, `"index":1`) != 3 || !strings.HasSuffix(g.body, chunkDone) {
		t.Errorf("got %+v", g)
	}
	r := w.one("s1").Result
	answer := text(t, r.Answer())
	if r.Outcome != store.Truncated || !slices.Contains(r.Flags, "choices") || r.OutputIDs != nil || !strings.Contains(answer, `"Aa"`) || !strings.Contains(answer, `"Bb"`) {
		t.Errorf("stored %+v\n%s", r, answer)
	}
}

// C10, A.6, A.16 row 39: an end-of-text string that comes in pieces reaches neither the client
// nor the turn, in either dialect; what only looks like one does.
func TestEndOfTextInPieces(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) { cfg.Upstreams[0].EndOfText = "<|end|>" })
	chat := func(s string) string {
		return `data: {"choices":[{"index":0,"delta":{"content":"` + s + `"}}]}` + "\n\n"
	}
	message := func(s string) string {
		return "event: content_block_delta\ndata: " + `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"` + s + `"}}` + "\n\n"
	}
	for _, c := range []struct{ session, path, ask, stream, want string }{
		{"chat", "/v1/chat/completions", chatStream, chat("1 < 2<|") + chat("en") + chat("d|>") + chunkFinish + chunkDone, "1 < 2"},
		{"looks-like", "/v1/chat/completions", chatStream, chat("a<|en") + chat("ter") + chunkFinish + chunkDone, "a<|enter"},
		{"messages", "/v1/messages", messageStream, messageStart + message(" you<") + message("|end|") + message(">") + messageEnd + messageFin, "Hello you"},
	} {
		w.answers(saysStream(c.stream))
		g := w.post(c.path, strings.Replace(c.ask, `"s1"`, `"`+c.session+`"`, 1))
		if g.err != nil || strings.Contains(g.body, "|end|") || strings.Contains(g.body, "<|\"") && c.session != "looks-like" {
			t.Errorf("%s: got %+v", c.session, g)
		}
		if r := w.one(c.session).Result; r.Outcome != store.Complete || !strings.Contains(text(t, r.Answer()), `"`+c.want+`"`) {
			t.Errorf("%s: stored %+v\n%s", c.session, r, text(t, r.Answer()))
		}
	}
}

// A.14, A.16 row 40: a long conversation is no reason to refuse; where the limit is, the
// refusal is the API's own (TestLargeBodies).
func TestLongRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(saysJSON(200, chatAnswer))
	long := strings.Replace(chatAsk, "h\\u00e9", strings.Repeat("long ", 1<<20), 1)
	if g := w.post("/v1/chat/completions", long); g.status != 200 || g.body != chatAnswer {
		t.Errorf("got %d %.200s, %v", g.status, g.body, g.err)
	}
	if c := w.one("s1"); c.Result.Outcome != store.Complete || text(t, c.Request) != long {
		t.Errorf("stored %+v", c.Result)
	}
}

// A.14, A.16 row 41: an event that is too long ends the turn with an error of the API's own;
// under observe it passes.
func TestEventThatIsTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(cfg *config.LLM) { cfg.MaxBody = 2 << 20 })
	const mebi = 1 << 20
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		saysStream(chunkHello, `data: {"choices":[],"x":"`)(rw, r)
		piece := strings.Repeat("x", mebi)
		for range 3 {
			if _, err := io.WriteString(rw, piece); err != nil {
				return
			}
		}
		saysStream(`"}`+"\n\n", chunkFinish, chunkDone)(rw, r)
	})
	g := w.post("/v1/chat/completions", chatStream)
	if g.err == nil || len(g.body) > mebi || !strings.HasPrefix(g.body, chunkHello) || !strings.Contains(g.body, `"object":"error"`) || strings.Contains(g.body, "finish_reason") {
		t.Errorf("got %d bytes %.300s, %v", len(g.body), g.body, g.err)
	}
	if r := w.one("s1").Result; r.Outcome != store.Unparsed || !strings.Contains(r.Error, "longer than") {
		t.Errorf("stored %+v", r)
	}
	g = w.post("/v1/chat/completions", strings.Replace(chatStream, `"s1"`, `"s2"`, 1), "X-Roundhouse-Record", "observe")
	if g.err != nil || len(g.body) < 3*mebi || !strings.HasSuffix(g.body, chunkDone) {
		t.Errorf("observed: got %d bytes, %v", len(g.body), g.err)
	}
	if r := w.one("s2").Result; r.Outcome != store.Unparsed {
		t.Errorf("stored %+v", r)
	}
}

// A.16 row 43, case 71: turns of one session with the same prompt at the same time are two
// siblings, be their answers alike or not.
func TestTurnsAtTheSameTime(t *testing.T) {
	w := newWorld(t, nil)
	both := make(chan bool)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		select { // neither is answered before both have come
		case both <- true:
		case <-both:
		}
		saysJSON(200, chatAnswer)(rw, r)
	})
	answers := make(chan got, 2)
	for range 2 {
		go func() { answers <- w.post("/v1/chat/completions", chatAsk) }()
	}
	a, b := <-answers, <-answers
	if a.body != chatAnswer || b.body != chatAnswer || a.header.Get("X-Roundhouse-Turn") == b.header.Get("X-Roundhouse-Turn") {
		t.Errorf("got %+v and %+v", a, b)
	}
	w.settle()
	report, err := trace.Check(t.Context(), w.store, key)
	if err != nil || report.Calls != 2 || report.Turns != 2 || report.Trajectories != 2 || !report.Verdict.Complete || report.Hole {
		t.Errorf("stored %+v, %v", report, err)
	}
}

// A.8, A.18 R1: an engine's error that is dressed as an end is never a complete-looking
// answer and never a good turn, in either dialect, streamed or whole. What it sends behind
// the end is not sent on.
func TestErrorDressedAsAnEnd(t *testing.T) {
	w := newWorld(t, nil)
	stop := func(reason, sequence string) string {
		return "event: message_delta\ndata: " + `{"type":"message_delta","delta":{"stop_reason":"` + reason + `","stop_sequence":` + sequence + `},"usage":{"output_tokens":1}}` + "\n\n"
	}
	messageStop := messageFin[strings.Index(messageFin, "event: message_stop"):]
	for i, c := range []struct {
		path, ask string
		script    http.HandlerFunc
		good      bool
	}{
		{"/v1/chat/completions", chatStream, saysStream(chunkHello, strings.Replace(chunkFinish, "stop", "error", 1), chunkDone), false},
		{"/v1/chat/completions", chatStream, saysStream(chunkHello, strings.Replace(chunkFinish, "stop", "abort", 1), chunkDone), false},
		{"/v1/chat/completions", chatAsk, saysJSON(200, strings.Replace(chatAnswer, `"stop"`, `"error"`, 1)), false},
		{"/v1/messages", messageStream, saysStream(messageStart, messageEnd, stop("stop_sequence", "null"), messageStop), false},
		{"/v1/messages", messageStream, saysStream(messageStart, messageEnd, stop("error", "null"), messageStop), false},
		{"/v1/messages", messageStream, saysJSON(200, `{"type":"message","content":[],"stop_reason":"stop_sequence","stop_sequence":null}`), false},
		{"/v1/messages", messageStream, saysStream(messageStart, messageEnd, stop("stop_sequence", `"END"`), messageStop), true},
	} {
		w.answers(c.script)
		session := fmt.Sprint("end-", i)
		g := w.post(c.path, strings.Replace(c.ask, `"s1"`, `"`+session+`"`, 1))
		streamed := g.status == 200
		ended := strings.Contains(g.body, "[DONE]") || strings.Contains(g.body, "message_stop")
		switch r := w.one(session).Result; {
		case c.good:
			if g.err != nil || !ended || r.Outcome != store.Complete {
				t.Errorf("%d: got %+v, stored %+v", i, g, r)
			}
		case ended || !strings.Contains(g.body, `"error"`) || streamed != (g.err != nil) || r.Outcome != store.UpstreamError || r.Error == "":
			t.Errorf("%d: got %+v, stored %+v", i, g, r)
		}
	}
}

// A.15, A.18 R2 and R3: the clients are real ones that close, or reset, their connection
// before the head, in the middle, or behind the end; none of that is an error of the turn's,
// and nothing more is written. The next request finds a server that works.
func TestClientsThatReallyLeave(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for i, c := range []struct {
		until string // what is read before the client leaves
		reset bool
	}{{"", false}, {"", true}, {"Hello", false}, {"Hello", true}, {"[DONE]", true}} {
		arrived, left := make(chan bool, 1), make(chan bool)
		w.answers(func(rw http.ResponseWriter, r *http.Request) {
			arrived <- true
			if c.until == "" {
				<-left
			}
			saysStream(chunkHello)(rw, r)
			if c.until == "Hello" {
				<-left
			}
			// More than the buffers of a connection take, so that writing to it fails.
			for range 64 {
				saysStream(strings.Replace(chunkHello, "Hello", strings.Repeat("x", 32<<10), 1))(rw, r)
			}
			saysStream(chunkFinish, chunkDone)(rw, r)
		})
		session := fmt.Sprint("left-", i)
		body := strings.Replace(chatStream, `"s1"`, `"`+session+`"`, 1)
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		<-arrived
		read, buf := strings.Builder{}, make([]byte, 64<<10)
		for c.until != "" && !strings.Contains(read.String(), c.until) {
			n, err := conn.Read(buf)
			read.Write(buf[:n])
			if err != nil {
				t.Fatalf("%d: %v after %.300s", i, err, read.String())
			}
		}
		if c.reset {
			_ = conn.(*net.TCPConn).SetLinger(0)
		}
		conn.Close()
		close(left)
		// Buffers take some bytes of which nobody knows that they do not arrive, but not all.
		r := w.one(session).Result
		if full := r.Delivery == store.Full; r.Outcome != store.Complete || full && c.until != "[DONE]" || r.Delivered > r.Raw.Size() || (r.Delivered == 0) != (r.Delivery == store.None) {
			t.Errorf("%d: stored %+v", i, r)
		}
	}
	w.answers(saysJSON(200, chatAnswer))
	if g := w.post("/v1/chat/completions", chatAsk); g.body != chatAnswer {
		t.Errorf("got %+v", g)
	}
}

// C8: who only wants the answer of a client that left may have its call cancelled.
func TestLeavingMayCancel(t *testing.T) {
	w := newWorld(t, func(cfg *config.LLM) { cfg.Record.ClientGone = config.ClientGoneCancel })
	gone := make(chan string, 1)
	w.answers(endless(gone))
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v1/chat/completions", strings.NewReader(chatStream))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, len(chunkHello))); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Fatal("the engine goes on")
	}
	if r := w.one("s1").Result; r.Outcome != store.ClientGone || r.Delivery != store.Partial {
		t.Errorf("stored %+v", r)
	}
}

// A.16 row 33, C5: a client is told that a stream broke off, and not from where it came;
// the store knows both.
func TestAStreamThatIsReset(t *testing.T) {
	w := newWorld(t, nil)
	seen := make(chan bool)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		saysStream(chunkHello)(rw, r)
		select {
		case <-seen:
		case <-r.Context().Done(): // of a test that has failed
		}
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	})
	stream := w.open("/v1/chat/completions", chatStream)
	stream.until(chunkHello)
	close(seen)
	body, err := stream.rest()
	if err == nil || !strings.Contains(body, `the upstream \"main\" broke off its answer`) || strings.Contains(body, "127.0.0.1") {
		t.Errorf("the stream ended with %q, %v", body, err)
	}
	if r := w.one("s1").Result; r.Outcome != store.UpstreamCut || !strings.Contains(r.Error, "127.0.0.1") {
		t.Errorf("stored %+v", r)
	}
}

// A.13: the request's Upgrade is not sent on, so an upstream that changes the protocol all
// the same gives no answer.
func TestAProtocolThatNobodyAskedFor(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"); err != nil {
			t.Error(err)
		}
		_, _ = io.Copy(io.Discard, conn) // until it is given up
	})
	for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
		if g := w.post(path, chatStream, "Connection", "Upgrade", "Upgrade", "x"); g.status != 502 || !strings.Contains(g.body, "changes the protocol") {
			t.Errorf("%s: got %+v", path, g)
		}
	}
	if r := w.one("s1").Result; r.Outcome != store.UpstreamError {
		t.Errorf("stored %+v", r)
	}
}
