package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"roundhouse/internal/store"
)

// modelCommands are commands of the scripts that record model calls.
var modelCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	// engine runs an LLM endpoint until the script's end and lets ENGINE name it.
	"engine": func(ts *testscript.TestScript, neg bool, args []string) {
		s := httptest.NewServer(http.HandlerFunc(complete))
		ts.Defer(s.Close)
		ts.Setenv("ENGINE", s.URL)
	},
	// ask SESSION TEXT… asks the model, in a session of that name, what is to be said after
	// these texts of a user and the model's answers to each but the last. It wants an answer.
	"ask": func(ts *testscript.TestScript, neg bool, args []string) {
		if status := ask(ts, args[0], args[1:]...); (status == http.StatusOK) == neg {
			ts.Fatalf("the status is %d", status)
		}
	},
	// follow SESSION REGEXP asks in a session until that is in the output of what is watched,
	// which may not follow yet.
	"follow": func(ts *testscript.TestScript, neg bool, args []string) {
		for want, w := regexp.MustCompile("(?m)"+args[1]), ts.Value(watchedKey{}).(*background); !want.MatchString(w.log.String()); {
			ask(ts, args[0], "hi")
		}
	},
	// watched REGEXP looks once at the output of what is watched.
	"watched": func(ts *testscript.TestScript, neg bool, args []string) {
		log := ts.Value(watchedKey{}).(*background).log.String()
		if regexp.MustCompile("(?m)"+args[0]).MatchString(log) == neg {
			ts.Fatalf("it says %s", log)
		}
	},
}

// complete answers as vLLM does: to n messages "answer n", which is the token n, behind a
// prompt of one token for each message; a stream has no tokens. It fails if the last one says so.
func complete(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Messages []struct{ Content string }
		Stream   bool
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil || len(request.Messages) == 0 {
		http.Error(w, `{"error":{"message":"what?"}}`, http.StatusBadRequest)
		return
	}
	n := len(request.Messages)
	if request.Messages[n-1].Content == "fail" {
		http.Error(w, `{"error":{"message":"out of memory"}}`, http.StatusInternalServerError)
		return
	}
	var prompt []string
	for _, m := range request.Messages {
		id := 100 + len(m.Content)
		if number, ok := strings.CutPrefix(m.Content, "answer "); ok {
			id, _ = strconv.Atoi(number)
		}
		prompt = append(prompt, strconv.Itoa(id))
	}
	if request.Stream {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, `data: {"id":"c%d","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"answer %d"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n", n, n)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id":"c%d","object":"chat.completion","model":"m","prompt_token_ids":[%s],"choices":[{"index":0,"message":{"role":"assistant","content":"answer %d"},
"finish_reason":"stop","token_ids":[%d],"logprobs":{"content":[{"token":"x","logprob":-0.5,"top_logprobs":[]}]}}],"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d}}`,
		n, strings.Join(prompt, ","), n, n, n, n+1)
}

// ask makes a model call and returns the status of its answer, once all is stored.
func ask(ts *testscript.TestScript, session string, said ...string) int {
	var messages []map[string]string
	for i, text := range said {
		if i > 0 {
			messages = append(messages, map[string]string{"role": "assistant", "content": fmt.Sprint("answer ", len(messages))})
		}
		messages = append(messages, map[string]string{"role": "user", "content": text})
	}
	body, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	ts.Check(err)
	answer, header, status := send(ts, "POST", "/sessions/"+session+"/v1/chat/completions", body)
	ts.Logf("asked %s %q: %d %s", session, said, status, answer)
	turn := header.Get("X-Roundhouse-Turn")
	for deadline := time.Now().Add(patience); turn != ""; time.Sleep(time.Millisecond) {
		var row turnRow
		if b, _, status := send(ts, "GET", "/api/v1/turns/"+turn, nil); status == http.StatusOK {
			ts.Check(json.Unmarshal(b, &row))
		}
		if row.Outcome != "" && row.Delivered != store.Pending {
			break
		}
		if time.Now().After(deadline) {
			ts.Fatalf("turn %s is not stored: %+v", turn, row)
		}
	}
	return status
}

// send makes a request of the daemon.
func send(ts *testscript.TestScript, method, path string, body []byte) (answer []byte, header http.Header, status int) {
	req, err := http.NewRequest(method, ts.Getenv("ROUNDHOUSE_URL")+path, bytes.NewReader(body))
	ts.Check(err)
	req.Header.Set("Content-Type", "application/json")
	if token := ts.Getenv("ROUNDHOUSE_TOKEN"); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer res.Body.Close()
	answer, err = io.ReadAll(res.Body)
	ts.Check(err)
	return answer, res.Header, res.StatusCode
}
