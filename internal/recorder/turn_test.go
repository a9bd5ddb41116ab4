package recorder_test

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/secret"
	"roundhouse/internal/store"
)

// C2, C6, C14, A.16 row 1: an answer that is no stream goes to the client as it came,
// once its turn is stored with both bodies as they were; what names the session does not
// go upstream, and all else of the request keeps its bytes.
func TestTurn(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header()["Set-Cookie"] = []string{"a=1", "b=2"}
		rw.Header().Set("Connection", "X-Hop")
		rw.Header().Set("X-Hop", "1")
		saysJSON(200, chatAnswer)(rw, r)
	})
	g := w.post("/v1/chat/completions?a=%2B&b", chatAsk, "Authorization", "Bearer client-key", "X-Two", "1", "X-Two", "2", "Accept-Encoding", "br, zstd", "Te", "trailers")
	if g.status != 200 || g.body != chatAnswer || len(g.header["Set-Cookie"]) != 2 || g.header.Get("X-Hop") != "" || g.header.Get("Content-Length") != fmt.Sprint(len(chatAnswer)) {
		t.Errorf("got %+v", g)
	}
	sent := w.requests()[0]
	h := sent.header
	if sent.uri != "/v1/chat/completions?a=%2B&b" || sent.body != chatAskCut || len(h["X-Two"]) != 2 || h.Get("Accept-Encoding") != "identity" ||
		h.Get("Te") != "" || h.Get("X-Session-Id") != "" || h.Get("Authorization") != "Bearer client-key" || h.Get("Anthropic-Version") != "" {
		t.Errorf("sent %+v", sent)
	}
	c := w.one("s1")
	if c.ID != g.header.Get("X-Roundhouse-Turn") || c.Policy != store.Train || c.API != "chat" || c.Endpoint != "/v1/chat/completions" || c.Model != "m" || c.Upstream != "main" || c.Stream || c.Attempt != 1 {
		t.Errorf("stored %+v", c)
	}
	r := c.Result
	if r.Outcome != store.Complete || r.Status != 200 || r.Finish != "stop" || string(r.Usage) != `{"prompt_tokens":3,"completion_tokens":1}` || r.Delivery != store.Full || r.Delivered != int64(len(chatAnswer)) || r.End.IsZero() || r.First.IsZero() {
		t.Errorf("stored %+v", r)
	}
	if text(t, c.Request) != chatAsk || text(t, r.Raw) != chatAnswer || text(t, r.Answer()) != chatAnswer {
		t.Error("the bodies are not those that came")
	}
	if c.Header.Get("Authorization") != "" {
		t.Error("a credential is stored")
	}
}

// C6: an answer that comes sooner than a large request can be made ready for the store is
// stored behind it.
func TestAnAnswerWaitsForItsIntent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(saysJSON(200, chatAnswer))
	noise := make([]byte, 6<<20) // what cannot be compressed takes longer
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	large := strings.Replace(chatAsk, `"content":"`, `"content":"`+hex.EncodeToString(noise), 1)
	if g := w.post("/v1/chat/completions", large); g.status != 200 || g.body != chatAnswer {
		t.Errorf("got %d %.200s", g.status, g.body)
	}
	if c := w.one("s1"); c.Result.Outcome != store.Complete || c.Request.Size() != int64(len(large)) {
		t.Errorf("stored %d bytes, %+v", c.Request.Size(), c.Result)
	}
}

// C4, A.16 row 2: a stream flows to the client as it comes; from the terminal event on it
// is held until the turn is stored.
func TestStreamIsHeldAtItsEnd(t *testing.T) {
	t.Parallel()
	for _, api := range []struct{ path, ask, first, finish, end string }{
		{"/v1/chat/completions", chatStream, chunkHello, chunkFinish, chunkDone},
		{"/v1/messages", messageStream, messageStart + messageEnd, messageFin[:strings.Index(messageFin, "event: message_stop")], messageFin[strings.Index(messageFin, "event: message_stop"):]},
	} {
		t.Run(api.path, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(cfg *config.LLM) { cfg.Upstreams[0].Timeouts.Idle = time.Minute }) // so that waiting takes too long
			step := make(chan bool)
			w.answers(func(rw http.ResponseWriter, r *http.Request) {
				flow := func(s string) { saysStream(s)(rw, r) }
				flow(api.first)
				<-step
				flow(": ping\n\n" + api.finish)
				<-step
				flow(api.end)
				<-r.Context().Done() // an upstream that does not end its answer is not waited for (C-29)
			})
			r := w.open(api.path, api.ask)
			r.until(api.first)
			step <- true
			r.until(": keepalive\n")
			if strings.Contains(r.got.String(), "stop") && strings.Contains(r.got.String(), api.finish) {
				t.Errorf("the terminal event was not held: %q", r.got.String())
			}
			if calls := w.intents(1); calls[0].Result != nil {
				t.Errorf("the turn is stored before its end: %+v", calls)
			}
			step <- true
			ends := time.Now()
			body, err := r.rest()
			if took := time.Since(ends); took > 40*time.Second {
				t.Errorf("the upstream was waited for, for %s", took)
			}
			if body = strings.ReplaceAll(body, ": keepalive\n", ""); err != nil || body != api.first+": ping\n\n"+api.finish+api.end {
				t.Errorf("got %q, %v", body, err)
			}
			if r.resp.ContentLength != -1 || r.resp.Header.Get("X-Accel-Buffering") != "no" || r.resp.Header.Get("Cache-Control") != "no-transform" {
				t.Errorf("header %v", r.resp.Header)
			}
			c := w.one("s1")
			if c.Result.Outcome != store.Complete || !c.Stream || c.Result.Delivery != store.Full || !strings.Contains(text(t, c.Result.Answer()), "Hello") {
				t.Errorf("stored %+v", c.Result)
			}
			if api.path == "/v1/messages" && w.requests()[0].header.Get("Anthropic-Version") != "2023-06-01" {
				t.Error("no version is named")
			}
		})
	}
}

// C4: a recorded stream never carries a length, since its end may be another than the
// upstream's.
func TestStreamHasNoLength(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Length", fmt.Sprint(len(chunkHello+chunkFinish)))
		saysStream(chunkHello+chunkFinish)(rw, r)
	})
	g := w.post("/v1/chat/completions", chatStream)
	if g.header.Get("Content-Length") != "" || !strings.Contains(g.body, `"object":"error"`) {
		t.Errorf("got %+v", g)
	}
}

// C4, C5, A.9, A.16 rows 2 and 21: an answer that does not say what it is, and for which a
// stream was asked, is one, as clients read it: it flows, is held at its end, and ends with an
// error in the middle if it has none.
func TestStreamThatDoesNotSaySo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	seen := make(chan bool)
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		flow := func(s string) {
			io.WriteString(rw, s)
			_ = http.NewResponseController(rw).Flush()
		}
		rw.Header()["Content-Type"] = nil
		flow(chunkHello)
		select {
		case <-seen:
		case <-r.Context().Done(): // of a test that has failed
		}
		flow(chunkFinish)
		if r.URL.RawQuery != "cut" {
			flow(chunkDone)
		}
	})
	for session, query := range map[string]string{"whole": "", "cut": "?cut"} {
		r := w.open("/v1/chat/completions"+query, strings.Replace(chatStream, `"s1"`, `"`+session+`"`, 1))
		r.until(chunkHello)
		seen <- true
		body, err := r.rest()
		body = strings.ReplaceAll(body, ": keepalive\n", "")
		if kind, ok := r.resp.Header["Content-Type"]; ok {
			t.Errorf("%s: the answer says that it is %q", session, kind)
		}
		switch result := w.one(session).Result; {
		case query == "":
			if err != nil || body != chunkHello+chunkFinish+chunkDone || result.Outcome != store.Complete || !strings.Contains(text(t, result.Response), `"Hello"`) {
				t.Errorf("%s: got %q, %v, stored %+v", session, body, err, result)
			}
		case err == nil || strings.Contains(body, "finish_reason") || !strings.Contains(body, `"object":"error"`) || result.Outcome != store.UpstreamCut:
			t.Errorf("%s: got %q, %v, stored %+v", session, body, err, result)
		}
	}
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header()["Content-Type"] = nil
		io.WriteString(rw, chatAnswer)
	})
	if g := w.post("/v1/chat/completions", chatAsk); g.status != 200 || g.body != chatAnswer {
		t.Errorf("no stream was asked for, and it got %+v", g)
	}
	// One that says something else is none, which is said.
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/plain")
		io.WriteString(rw, chunkHello+chunkFinish+chunkDone)
	})
	g := w.post("/v1/chat/completions", strings.Replace(chatStream, `"s1"`, `"plain"`, 1))
	if r := w.one("plain").Result; g.status != 500 || !strings.Contains(g.body, "text/plain") || r.Outcome != store.Unparsed || !strings.Contains(r.Error, "text/plain") {
		t.Errorf("got %+v, stored %+v", g, r)
	}
}

// C14: the version of the Anthropic API is named only where the client does not, and nobody
// else is named as the client.
func TestVersionOfTheClient(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(saysJSON(200, `{"type":"message","content":[],"stop_reason":"end_turn"}`))
	w.post("/v1/messages", messageStream, "Anthropic-Version", "2031-01-01", "Anthropic-Beta", "a", "Anthropic-Beta", "b", "User-Agent", "")
	if h := w.requests()[0].header; h["User-Agent"] != nil || !slices.Equal(h["Anthropic-Version"], []string{"2031-01-01"}) || !slices.Equal(h["Anthropic-Beta"], []string{"a", "b"}) {
		t.Errorf("sent %v", h)
	}
}

// C14: an upstream's own key takes the place of all that the client identifies itself with;
// without one the client's goes on.
func TestKeysOfUpstreams(t *testing.T) {
	t.Parallel()
	names := []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie"}
	sent := []string{}
	for _, name := range names {
		sent = append(sent, name, "client")
	}
	for engine, want := range map[string]string{"vllm": "Bearer own|||", "anthropic": "|own||", "": "client|client|client|client"} {
		w := newWorld(t, func(cfg *config.LLM) {
			if u := cfg.Upstreams[0]; engine != "" {
				u.Engine, u.APIKey = engine, secret.New("own")
			}
		})
		w.answers(saysJSON(200, chatAnswer))
		for _, path := range []string{"/v1/chat/completions", "/v1/messages/count_tokens"} {
			w.post(path, chatAsk, sent...)
		}
		for _, r := range w.requests() {
			var got []string
			for _, name := range names {
				got = append(got, strings.Join(r.header[name], ","))
			}
			if strings.Join(got, "|") != want {
				t.Errorf("%q, %s: sent %q", engine, r.uri, got)
			}
		}
	}
}

// intents waits until so many calls have begun.
func (w *world) intents(n int) []store.Call {
	w.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if all := calls(w.t, w); len(all) >= n {
			return all
		}
		if time.Now().After(end) {
			w.t.Fatal("no intent is stored")
		}
	}
}

// calls reads what is stored while calls are under way.
func calls(t testing.TB, w *world) (all []store.Call) {
	t.Helper()
	for c, err := range w.store.Calls(t.Context(), store.CallFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// C3, C5, C7, A.7, A.8, A.16: what each answer is worth, what the client gets of it, and
// what is stored.
func TestSituations(t *testing.T) {
	t.Parallel()
	const (
		badReason  = `data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"error"}]}` + "\n\n"
		errorEvent = `data: {"error":{"message":"boom","type":"server_error"}}` + "\n\n"
		stopEmpty  = `event: message_delta` + "\n" + `data: {"type":"message_delta","delta":{"stop_reason":"stop_sequence","stop_sequence":null},"usage":{"output_tokens":1}}` + "\n\n"
		native     = `"object":"error"`
	)
	chat, messages := "/v1/chat/completions", "/v1/messages"
	worlds := map[config.RecordPolicy]*world{config.RecordTrain: newWorld(t, nil), config.RecordObserve: newWorld(t, nil)}
	for n, c := range []struct {
		name       string
		path, ask  string
		script     http.HandlerFunc
		status     int
		body       string   // exactly, or
		holds      []string // what it holds
		lacks      string
		aborted    bool
		outcome    store.Outcome // "" for none stored
		observed   string        // the body under observe, if it is another
		observeCut bool          // whether the transfer is broken off under observe
	}{
		{name: "13: an error of the upstream", path: chat, ask: chatAsk, script: saysJSON(429, `{"error":{"message":"slow"},"output_ids":[1]}`), status: 429, body: `{"error":{"message":"slow"},"output_ids":[1]}`, outcome: store.UpstreamError},
		{name: "14: an error as a stream", path: chat, ask: chatStream, script: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(503)
			io.WriteString(w, errorEvent+chunkDone)
		}, status: 503, body: errorEvent + chunkDone, outcome: store.UpstreamError},
		{name: "15: an error envelope behind 200", path: chat, ask: chatAsk, script: saysJSON(200, `{"object":"error","message":"x"}`), status: 200, body: `{"object":"error","message":"x"}`, outcome: store.UpstreamError},
		{name: "16: an error event and the end", path: chat, ask: chatStream, script: saysStream(chunkHello, errorEvent, chunkDone), status: 200, body: chunkHello + errorEvent + chunkDone, outcome: store.UpstreamError},
		{name: "17: an error event without the end", path: chat, ask: chatStream, script: saysStream(chunkHello, errorEvent), status: 200, body: chunkHello + errorEvent, aborted: true, outcome: store.UpstreamError},
		{name: "18: no JSON", path: chat, ask: chatAsk, script: saysJSON(200, `not-json`), status: 500, holds: []string{native}, outcome: store.Unparsed, observed: "not-json"},
		{name: "18: an array", path: chat, ask: chatAsk, script: saysJSON(200, `[]`), status: 500, holds: []string{native}, outcome: store.Unparsed, observed: "[]"},
		{name: "19: no choices", path: chat, ask: chatAsk, script: saysJSON(200, `{"id":"x"}`), status: 500, holds: []string{native}, outcome: store.Unparsed, observed: `{"id":"x"}`},
		{name: "21: no end", path: chat, ask: chatStream, script: saysStream(chunkHello, chunkFinish), status: 200, holds: []string{chunkHello, native}, lacks: "finish_reason", aborted: true, outcome: store.UpstreamCut, observed: chunkHello + chunkFinish},
		{name: "22: no finish reason", path: chat, ask: chatStream, script: saysStream(chunkHello, chunkDone), status: 200, holds: []string{chunkHello, native}, lacks: "[DONE]", aborted: true, outcome: store.UpstreamCut, observed: chunkHello + chunkDone},
		{name: "23: a malformed line", path: chat, ask: chatStream, script: saysStream(chunkHello, "data: {broken\n\n", chunkFinish, chunkDone), status: 200, holds: []string{chunkHello, native}, lacks: "broken", aborted: true, outcome: store.Unparsed, observed: chunkHello + "data: {broken\n\n" + chunkFinish + chunkDone},
		{name: "24: an empty stream", path: chat, ask: chatStream, script: saysStream(""), status: 200, holds: []string{native}, aborted: true, outcome: store.UpstreamCut, observed: "\x00"},
		{name: "24: only comments", path: messages, ask: messageStream, script: saysStream(": ping\n\n"), status: 200, holds: []string{": ping\n\n", "event: error"}, aborted: true, outcome: store.UpstreamCut, observed: ": ping\n\n"},
		{name: "25: JSON for a stream", path: chat, ask: chatStream, script: saysJSON(200, chatAnswer), status: 200, body: chatAnswer, outcome: store.Complete},
		{name: "28: the reason error", path: chat, ask: chatStream, script: saysStream(chunkHello, badReason, chunkDone), status: 200, holds: []string{chunkHello, native}, lacks: "[DONE]", aborted: true, outcome: store.UpstreamError, observed: chunkHello + badReason + chunkDone},
		{name: "29: a stop sequence that is none", path: messages, ask: messageStream, script: saysStream(messageStart, messageEnd, stopEmpty, messageFin[strings.Index(messageFin, "event: message_stop"):]), status: 200, holds: []string{messageStart, "event: error"}, lacks: "message_stop", aborted: true, outcome: store.UpstreamError, observed: messageStart + messageEnd + stopEmpty + messageFin[strings.Index(messageFin, "event: message_stop"):]},
		{name: "33: a connection that breaks off", path: chat, ask: chatStream, script: saysStream(chunkHello, cutHere), status: 200, holds: []string{chunkHello, native}, aborted: true, outcome: store.UpstreamCut, observed: chunkHello, observeCut: true},
		{name: "33: in the middle of a body", path: chat, ask: chatAsk, script: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, "{")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, status: 502, holds: []string{native}, outcome: store.UpstreamCut},
		{name: "36: a marker without a space", path: chat, ask: chatStream, script: saysStream(chunkHello, chunkFinish, "data:[DONE]\n\n"), status: 200, body: chunkHello + chunkFinish + "data:[DONE]\n\n", outcome: store.Complete},
		{name: "37: events behind the end", path: chat, ask: chatStream, script: saysStream(chunkHello, chunkFinish, chunkDone+chunkHello), status: 200, body: chunkHello + chunkFinish + chunkDone, outcome: store.Complete},
		{name: "42: an answer that is encoded", path: chat, ask: chatAsk, script: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			saysJSON(200, "\x01\x02")(w, r)
		}, status: 502, holds: []string{native}, outcome: store.Unparsed, observed: "\x01\x02"},
	} {
		for _, policy := range []config.RecordPolicy{config.RecordTrain, config.RecordObserve} {
			t.Run(c.name+"/"+string(policy), func(t *testing.T) {
				w, session := worlds[policy], fmt.Sprint("case-", n)
				w.answers(c.script)
				g := w.post(c.path, strings.Replace(c.ask, `"s1"`, `"`+session+`"`, 1), "X-Roundhouse-Record", string(policy))
				g.body = strings.ReplaceAll(g.body, ": keepalive\n", "")
				want, status, aborted := c.body, c.status, c.aborted
				if policy == config.RecordObserve {
					aborted = c.observeCut
				}
				if policy == config.RecordObserve && c.observed != "" {
					want, status = strings.Trim(c.observed, "\x00"), 200
				}
				if g.status != status || (g.err != nil) != aborted {
					t.Errorf("got %+v", g)
				}
				if policy == config.RecordTrain && len(c.holds) > 0 {
					for _, part := range c.holds {
						if !strings.Contains(g.body, part) {
							t.Errorf("got %q without %q", g.body, part)
						}
					}
					if c.lacks != "" && strings.Contains(g.body, c.lacks) {
						t.Errorf("got %q with %q", g.body, c.lacks)
					}
				} else if len(c.holds) == 0 && g.body != want || policy == config.RecordObserve && c.observed != "" && g.body != want {
					t.Errorf("got %q, want %q", g.body, want)
				}
				if r := w.one(session).Result; r.Outcome != c.outcome || !c.outcome.Trainable() && r.Error == "" {
					t.Errorf("stored %+v", r)
				}
			})
		}
	}
}

// A.16 row 34, C12: an upstream that cannot be reached is told natively, and its attempt
// is stored.
func TestUnreachableUpstream(t *testing.T) {
	w := newWorld(t, nil)
	w.upstream.Close()
	for path, ask := range map[string]string{"/v1/chat/completions": chatAsk, "/v1/messages": messageStream} {
		g := w.post(path, ask)
		if g.status != 502 || !strings.Contains(g.body, "error") || strings.Contains(g.body, "127.0.0.1") {
			t.Errorf("got %+v", g)
		}
	}
	for _, c := range w.calls("s1") {
		if c.Result.Outcome != store.UpstreamError || c.Result.Status != 0 {
			t.Errorf("stored %+v", c.Result)
		}
	}
}

// C12, A.14, A.16 row 35: there is a limit for the first byte and between bytes; for the
// whole there is none unless it is set.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	flows := func(pieces int) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			for i := 0; i < pieces && r.Context().Err() == nil; i++ {
				saysStream(chunkHello)(rw, r)
				time.Sleep(150 * time.Millisecond)
			}
			<-r.Context().Done()
		}
	}
	for name, c := range map[string]struct {
		limits config.UpstreamTimeouts // those that are 0 are long
		ask    string
		script http.HandlerFunc
		status int
		pieces int // at least so many come
	}{
		"first byte":                {config.UpstreamTimeouts{FirstByte: 200 * time.Millisecond}, chatAsk, flows(0), 504, 0},
		"between bytes of a stream": {config.UpstreamTimeouts{Idle: time.Second}, chatStream, flows(8), 200, 8}, // which take longer than that
		"between bytes of an answer": {config.UpstreamTimeouts{Idle: 200 * time.Millisecond}, chatAsk, func(rw http.ResponseWriter, r *http.Request) {
			saysJSON(200, "{")(rw, r)
			rw.(http.Flusher).Flush()
			<-r.Context().Done()
		}, 504, 0},
		"of the whole, if there is one": {config.UpstreamTimeouts{Total: 400 * time.Millisecond}, chatStream, flows(200), 200, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(cfg *config.LLM) {
				l := &cfg.Upstreams[0].Timeouts
				l.FirstByte, l.Idle, l.Total = cmp.Or(c.limits.FirstByte, time.Minute), cmp.Or(c.limits.Idle, time.Minute), c.limits.Total
			})
			w.answers(c.script)
			g := w.post("/v1/chat/completions", c.ask)
			if g.status != c.status || (g.err != nil) != (c.status == 200) || strings.Count(g.body, chunkHello) < c.pieces || !strings.Contains(g.body, "timeout_error") {
				t.Errorf("got %+v", g)
			}
			if r := w.one("s1").Result; r.Outcome.Trainable() || r.Error == "" {
				t.Errorf("stored %+v", r)
			}
		})
	}
}

// C5, C6, A.16 rows 26, 27, 44: a turn that cannot be stored is withheld under train, and
// let through under observe.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"train", "observe"} {
		t.Run(policy, func(t *testing.T) {
			w := newWorld(t, nil)
			fails := make(chan bool)
			w.answers(func(rw http.ResponseWriter, r *http.Request) {
				<-fails
				saysJSON(200, chatAnswer)(rw, r)
			})
			go func() {
				for len(w.requests()) == 0 {
					time.Sleep(time.Millisecond)
				}
				_ = w.store.Close()
				fails <- true
			}()
			g := w.post("/v1/chat/completions", chatAsk, "X-Roundhouse-Record", policy)
			if policy == "train" && (g.status != 500 || !strings.Contains(g.body, "store_failed")) || policy == "observe" && g.body != chatAnswer {
				t.Errorf("got %+v", g)
			}
			w.settle()
		})
		t.Run(policy+", an error of the upstream's", func(t *testing.T) {
			w := newWorld(t, nil)
			fails := make(chan bool)
			w.answers(func(rw http.ResponseWriter, r *http.Request) {
				<-fails
				saysJSON(429, `{"error":{"message":"slow"}}`)(rw, r)
			})
			done := make(chan got, 1)
			go func() { done <- w.post("/v1/chat/completions", chatAsk, "X-Roundhouse-Record", policy) }()
			w.intents(1)
			_ = w.store.Close()
			close(fails)
			if g := <-done; g.status != 429 || g.body != `{"error":{"message":"slow"}}` || g.err != nil {
				t.Errorf("got %+v", g)
			}
			w.settle()
		})
		t.Run(policy+", stream", func(t *testing.T) {
			w := newWorld(t, nil)
			fails := make(chan bool)
			w.answers(func(rw http.ResponseWriter, r *http.Request) {
				saysStream(chunkHello)(rw, r)
				<-fails
				saysStream(chunkFinish, chunkDone)(rw, r)
			})
			r := w.open("/v1/chat/completions", chatStream, "X-Roundhouse-Record", policy)
			r.until(chunkHello)
			_ = w.store.Close()
			close(fails)
			body, err := r.rest()
			if policy == "train" && (err == nil || !strings.Contains(body, "store_failed") || strings.Contains(body, "finish_reason")) ||
				policy == "observe" && (err != nil || body != chunkHello+chunkFinish+chunkDone) {
				t.Errorf("got %q, %v", body, err)
			}
			w.settle()
		})
	}
}
