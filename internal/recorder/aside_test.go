package recorder_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/store"
)

// llama answers as llama.cpp's server does: prompts only on the side, where template and
// tokenize stand in for its own answers unless they are nil.
func llama(answer, template, tokenize http.HandlerFunc) http.HandlerFunc {
	if template == nil {
		template = saysJSON(200, `{"prompt":"<user>hi<model>"}`)
	}
	if tokenize == nil {
		tokenize = saysJSON(200, `{"tokens":[2,105,9]}`)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/apply-template":
			template(w, r)
		case "/tokenize":
			tokenize(w, r)
		default:
			answer(w, r)
		}
	}
}

const (
	llamaAsk    = `{"model":"m","session_id":"s1","messages":[{"role":"user","content":"hi"}]}`
	llamaStream = `{"model":"m","session_id":"s1","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	llamaAnswer = `{"choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop","logprobs":{"content":[{"id":7,"token":"Hi","logprob":-0.5}]}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`
	llamaClean  = `{"choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`
	llamaChunk  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":null,"logprobs":{"content":[{"id":7,"token":"Hi","logprob":-0.5}]}}]}` + "\n\n"
	llamaFinish = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" + `data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}` + "\n\n"
)

func ofLlama(cfg *config.LLM) { cfg.Upstreams[0].Engine = "llamacpp" }

// C10, J1: an engine that tells a prompt's ids on the side alone is asked beside the call,
// with the call's own request and credentials; the client sees nothing of it.
func TestPromptIsAskedForOnTheSide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ask, got string
		answer   http.HandlerFunc
	}{
		"whole":  {llamaAsk, llamaClean, saysJSON(200, llamaAnswer)},
		"stream": {llamaStream, `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"finish_reason":null}]}` + "\n\n" + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n" + chunkDone, saysStream(llamaChunk, llamaFinish, chunkDone)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, ofLlama)
			w.answers(llama(c.answer, nil, nil))
			if g := w.post("/v1/chat/completions?x=1", c.ask, "Authorization", "Bearer client-key"); g.status != 200 || strings.ReplaceAll(g.body, ": keepalive\n", "") != c.got {
				t.Errorf("got %+v", g)
			}
			r := w.one("s1").Result
			if !slices.Equal(r.PromptIDs, []int32{2, 105, 9}) || !slices.Equal(r.OutputIDs, []int32{7}) || !slices.Equal(r.Logprobs, []float64{-0.5}) || len(r.Flags) != 0 {
				t.Errorf("stored %+v", r)
			}
			sent := map[string]received{}
			for _, one := range w.requests() {
				sent[one.uri] = one
			}
			call, template, tokenize := sent["/v1/chat/completions?x=1"], sent["/apply-template"], sent["/tokenize"]
			if len(sent) != 3 || template.body != call.body || strings.Contains(call.body, "session_id") {
				t.Errorf("sent %+v", sent)
			}
			if tokenize.body != `{"model":"m","content":"<user>hi<model>","add_special":true,"parse_special":true}` {
				t.Errorf("sent %s", tokenize.body)
			}
			for _, one := range sent {
				if one.header.Get("Authorization") != "Bearer client-key" || one.header.Get("Content-Type") != "application/json" {
					t.Errorf("sent %+v", one)
				}
			}
		})
	}
}

// C10, A.16 row 20: what cannot be had on the side is missing from the turn, with a mark,
// and nothing else is.
func TestPromptThatCannotBeHad(t *testing.T) {
	t.Parallel()
	hangs := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, script := range map[string]http.HandlerFunc{
		"not known":         llama(saysJSON(200, llamaAnswer), saysJSON(404, `{"error":"File Not Found"}`), nil),
		"refused":           llama(saysJSON(200, llamaAnswer), nil, saysJSON(501, `{}`)),
		"no text":           llama(saysJSON(200, llamaAnswer), saysJSON(200, `{"prompt":[1]}`), nil),
		"no ids":            llama(saysJSON(200, llamaAnswer), nil, saysJSON(200, `{"tokens":["a"]}`)),
		"another number":    llama(saysJSON(200, llamaAnswer), nil, saysJSON(200, `{"tokens":[2,105]}`)),
		"no answer":         llama(saysJSON(200, llamaAnswer), hangs, nil),
		"no second answer":  llama(saysJSON(200, llamaAnswer), nil, hangs),
		"a broken transfer": llama(saysJSON(200, llamaAnswer), saysStream(`{"prompt":"a`, cutHere), nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, ofLlama)
			w.answers(script)
			if g := w.post("/v1/chat/completions", llamaAsk); g.status != 200 || g.body != llamaClean {
				t.Errorf("got %+v", g)
			}
			r := w.one("s1").Result
			if r.Outcome != store.Complete || r.PromptIDs != nil || !slices.Equal(r.OutputIDs, []int32{7}) || !slices.Equal(r.Flags, []string{"no_prompt_ids"}) {
				t.Errorf("stored %+v", r)
			}
		})
	}
}

// C10: nobody asks on the side for a call that is not recorded, or of which no ids are
// wanted; and what is asked ends with its call.
func TestPromptIsNotAskedFor(t *testing.T) {
	w := newWorld(t, ofLlama)
	w.answers(llama(saysJSON(200, llamaAnswer), nil, nil))
	for _, policy := range []string{"observe", "off"} {
		if g := w.post("/v1/chat/completions", llamaAsk, "X-Roundhouse-Record", policy); g.body != llamaAnswer {
			t.Errorf("got %+v", g)
		}
	}
	if n := len(w.requests()); n != 2 {
		t.Errorf("there were %d requests", n)
	}
	var ended atomic.Bool
	w.answers(llama(saysJSON(400, `{"error":{"message":"no"}}`), func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			ended.Store(true)
		case <-time.After(time.Minute):
		}
	}, nil))
	if g := w.post("/v1/chat/completions", strings.Replace(llamaAsk, `"s1"`, `"s2"`, 1)); g.status != 400 {
		t.Errorf("got %+v", g)
	}
	w.one("s2")
	for end := time.Now().Add(30 * time.Second); !ended.Load(); time.Sleep(time.Millisecond) {
		if len(w.requests()) == 3 { // it was cancelled before it was sent
			break
		}
		if time.Now().After(end) {
			t.Fatal("what was asked goes on")
		}
	}
}

// J1: the version of the weights is on record where the engine tells it; a client's own
// metadata is none.
func TestVersionOfTheWeights(t *testing.T) {
	answer := strings.Replace(chatAnswer, `"model"`, `"metadata":{"weight_version":"step-12"},"model"`, 1)
	for engine, want := range map[string]string{"sglang": "step-12", "openai": ""} {
		w := newWorld(t, func(cfg *config.LLM) { cfg.Upstreams[0].Engine = engine })
		w.answers(saysJSON(200, answer))
		if g := w.post("/v1/chat/completions", chatAsk); g.body != answer {
			t.Errorf("%s: got %+v", engine, g)
		}
		if r := w.one("s1").Result; r.Weights != want {
			t.Errorf("%s: stored %q", engine, r.Weights)
		}
	}
}
