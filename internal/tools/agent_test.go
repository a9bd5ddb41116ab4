package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/loop"
	"roundhouse/internal/model"
	"roundhouse/internal/store"
	"roundhouse/internal/wire"
)

// patience bounds what must happen; the machine may be busy.
const patience = time.Minute

// prompt is what a model is asked.
type prompt struct {
	Model    string
	Messages []spoken
	raw      string
}

type spoken struct {
	Role    string
	Content json.RawMessage
}

// task is the last thing that a user has said.
func (p *prompt) task() string {
	for _, m := range slices.Backward(p.Messages) {
		var said string
		if m.Role == "user" && json.Unmarshal(m.Content, &said) == nil {
			return said
		}
	}
	return ""
}

// round is how many turns of the model there were.
func (p *prompt) round() (n int) {
	for _, m := range p.Messages {
		if m.Role == "assistant" {
			n++
		}
	}
	return n
}

// turn is what a model does: it says something, and calls tools.
type turn struct {
	text  string
	calls []string // "tool arguments"
	fails bool     // the upstream answers with an error
}

// withModel runs test in a world with a model that think thinks for, over real sockets.
func withModel(t *testing.T, think func(p *prompt) turn, test func(w *world)) {
	t.Helper()
	engine := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var raw json.RawMessage
		var p prompt
		if err := errors.Join(json.NewDecoder(r.Body).Decode(&raw), json.Unmarshal(raw, &p)); err != nil {
			t.Error(err)
		}
		p.raw = string(raw)
		did := think(&p)
		if did.fails {
			http.Error(rw, `{"error":{"message":"out of memory"}}`, http.StatusInternalServerError)
			return
		}
		delta, finish := map[string]any{"role": "assistant", "content": did.text}, "stop"
		var calls []any
		for i, c := range did.calls {
			name, arguments, _ := strings.Cut(c, " ")
			calls = append(calls, map[string]any{"index": i, "id": fmt.Sprintf("c%d_%d", p.round(), i), "type": "function", "function": map[string]any{"name": name, "arguments": arguments}})
			delta["tool_calls"], finish = calls, "tool_calls"
		}
		rw.Header().Set("Content-Type", "text/event-stream")
		for _, choice := range []any{map[string]any{"index": 0, "delta": delta}, map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": finish}} {
			chunk, err := json.Marshal(map[string]any{"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": []any{choice}})
			if err != nil {
				t.Error(err)
			}
			fmt.Fprintf(rw, "data: %s\n\n", chunk)
		}
		fmt.Fprint(rw, "data: [DONE]\n\n")
	}))
	defer engine.Close()
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "roundhouse.db")})
	if err != nil {
		t.Fatal(err)
	}
	llm := config.Defaults().LLM
	llm.Upstreams = []*config.Upstream{{Name: "main", BaseURL: engine.URL, Images: true, Timeouts: config.UpstreamTimeouts{Connect: patience, FirstByte: patience, Idle: patience}}}
	models := model.New(model.Config{LLM: llm, Store: st, Dir: t.TempDir(), WriteDeadline: patience})
	w := &world{T: t}
	var agents *loop.Engine
	end := w.begin(16, Config{Model: "default", Engine: func() *loop.Engine { return agents }})
	agents = loop.New(loop.Config{Models: models, Sessions: w.m, Limits: llm.Responses})
	test(w)
	end()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if left := models.Close(ctx); left > 0 {
		t.Errorf("%d model calls are left", left)
	}
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}

// goes is a model that does what the task says: each line is a turn, "say …" or "call tool
// arguments", and the last one it says.
func goes(p *prompt) turn {
	lines := strings.Split(p.task(), "\n")
	line := lines[min(p.round(), len(lines)-1)]
	what, rest, _ := strings.Cut(line, " ")
	switch what {
	case "call":
		return turn{text: "I call", calls: []string{rest}}
	case "fail":
		return turn{fails: true}
	}
	return turn{text: rest}
}

func taskOf(task, more string) string { return `{"task":` + string(wire.Quote(task)) + more + `}` }

// A2, X8: a model works with the session's tools until it is done; what it says and does is
// told, and the answer is all its text, and a picture of the instance that it used.
func TestRunTask(t *testing.T) {
	withModel(t, goes, func(w *world) {
		w.call = func(l *link, tool string, arguments json.RawMessage) (string, error) {
			if tool == "look" {
				return `{"content":[{"type":"image","data":"AAAA","mimeType":"image/png"}]}`, nil
			}
			return saying("the title is Home"), nil
		}
		c, out := w.client("local", "roundhouse", "s"), newTray()
		r := w.tool(c, out, "run_task", taskOf("call browser__do {\"n\":1}\nsay It is Home.", ""))
		if len(r.Result.Content) != 2 || r.Result.Content[0].Text != "I call\nIt is Home." || r.Result.Content[1].Type != "image" || r.Result.IsError {
			t.Error(r.raw)
		}
		var told []string
		for i, params := range out.said(wire.Progress) {
			var p struct {
				Progress float64
				Message  string
			}
			if err := json.Unmarshal([]byte(params), &p); err != nil || p.Progress != float64(i+1) {
				t.Error(params, err)
			}
			told = append(told, p.Message)
		}
		if want := []string{"I call", `> browser do {"n":1}`, "< browser do: the title is Home", "It is Home."}; !slices.Equal(told, want) {
			t.Errorf("it was told %q", told)
		}
		if got := w.seen(); len(got) != 2 || strings.Fields(got[0])[0] != strings.Fields(got[1])[0] {
			t.Errorf("%v", got)
		}
		if !strings.Contains(r.raw, `"status":"completed"`) || !strings.Contains(r.raw, `"rounds":2`) || !strings.Contains(r.raw, `"toolCalls":1`) {
			t.Error(r.raw)
		}
		if i, err := w.m.Get("local", false, "s"); err != nil || len(i.Leases) != 1 || len(i.Tasks) != 0 {
			t.Errorf("%+v %v", i, err)
		}
	})
}

// A2: only the newest pictures are shown to the model, the others are words; a task that
// used no instance has no picture.
func TestATaskSeesTheNewestPictures(t *testing.T) {
	var mu sync.Mutex
	var shown []int
	think := func(p *prompt) turn {
		mu.Lock()
		shown = append(shown, strings.Count(p.raw, "data:image/png;base64,"))
		mu.Unlock()
		return goes(p)
	}
	withModel(t, think, func(w *world) {
		w.call = func(_ *link, _ string, arguments json.RawMessage) (string, error) {
			return `{"content":[{"type":"image","data":"AAAA","mimeType":"image/png"}]}`, nil
		}
		r := w.tool(w.client("local", "", ""), nil, "roundhouse__run_task", taskOf(strings.Repeat("call files__do {}\n", 5)+"say done", ""))
		if len(r.Result.Content) != 1 || r.Result.IsError {
			t.Error(r.raw)
		}
		if want := []int{0, 1, 2, 3, 3, 3}; !slices.Equal(shown, want) {
			t.Errorf("it was shown %v pictures", shown)
		}
	})
}

// A2: a task that fails says why, what was said until then, and shows what there was.
func TestATaskThatFails(t *testing.T) {
	withModel(t, goes, func(w *world) {
		w.call = func(_ *link, tool string, _ json.RawMessage) (string, error) {
			if tool == "look" {
				return `{"content":[{"type":"image","data":"AAAA","mimeType":"image/png"}]}`, nil
			}
			return saying("x"), nil
		}
		c := w.client("local", "roundhouse", "")
		r := w.tool(c, nil, "run_task", taskOf("call browser__do {}\nfail", ""))
		if got := r.Result.Content; !r.Result.IsError || len(got) != 3 || !strings.HasPrefix(got[0].Text, "Error during task execution: ") ||
			!strings.Contains(got[0].Text, "out of memory") || got[1].Text != "I call" || got[2].Type != "image" {
			t.Error(r.raw)
		}
		r = w.tool(w.client("local", "roundhouse", ""), nil, "run_task", taskOf("fail", ""))
		if !r.Result.IsError || len(r.Result.Content) != 1 {
			t.Error(r.raw)
		}
		r = w.tool(c, nil, "run_task", taskOf("say x", `,"server":"nope"`))
		if !r.Result.IsError || !strings.Contains(r.Result.Content[0].Text, "Error during task execution: ") || !strings.Contains(r.Result.Content[0].Text, "nope") {
			t.Error(r.raw)
		}
	})
}

// A2, A3: a task for which there is no session fails in the same words as any other.
func TestATaskWithoutASession(t *testing.T) {
	withModel(t, goes, func(w *world) {
		c := w.client("local", "roundhouse", "")
		for range 99 {
			w.client("local", "files", "").StreamOpened() // so that none makes room
		}
		r := w.tool(c, nil, "run_task", taskOf("say x", `,"session_id":"another"`))
		if !r.Result.IsError || !strings.HasPrefix(r.Result.Content[0].Text, "Error during task execution: all 100 sessions") {
			t.Error(r.raw)
		}
		r = w.tool(c, nil, "run_tasks", `{"tasks":["say x"],"session_id":"another"}`)
		if len(r.Result.Content) != 2 || !strings.HasPrefix(r.Result.Content[1].Text, "Task failed: all 100 sessions") {
			t.Error(r.raw)
		}
	})
}

// A2: a task may be limited to one server, and have a model of its own.
func TestATasksServerAndModel(t *testing.T) {
	var mu sync.Mutex
	var asked []*prompt
	think := func(p *prompt) turn {
		mu.Lock()
		asked = append(asked, p)
		mu.Unlock()
		return goes(p)
	}
	withModel(t, think, func(w *world) {
		c := w.client("local", "roundhouse", "")
		w.tool(c, nil, "run_task", taskOf("say x", ""))
		w.tool(c, nil, "run_task", taskOf("say x", `,"server":"files","model":"other"`))
		if len(asked) != 2 || asked[0].Model != "default" || asked[1].Model != "other" {
			t.Fatalf("%+v", asked)
		}
		for _, name := range []string{"files__do", "browser__do", "roundhouse"} {
			if got, want := strings.Contains(asked[0].raw, name), name != "roundhouse"; got != want {
				t.Errorf("%s: %v, not %v", name, got, want)
			}
			if got, want := strings.Contains(asked[1].raw, name), name == "files__do"; got != want {
				t.Errorf("%s: %v, not %v", name, got, want)
			}
		}
		for arguments, want := range map[string]string{`{"task":" "}`: "must say", `{"task":"x","tasks":[]}`: "unknown", `{}`: "missing"} {
			if r := w.tool(c, nil, "run_task", arguments); !r.Result.IsError || !strings.Contains(r.Result.Content[0].Text, want) {
				t.Error(arguments, r.raw)
			}
		}
	})
}

// A3: several tasks, in either mode: results in their order, a failure is one of them, and
// progress rises with each step and each end.
func TestRunTasks(t *testing.T) {
	for _, mode := range []string{``, `,"concurrent":true`, `,"concurrent":true,"isolate":true`} {
		withModel(t, goes, func(w *world) {
			c, out := w.client("local", "roundhouse", "s"), newTray()
			arguments := `{"tasks":["call browser__do {\"n\":1}\nsay one","fail","call browser__do {\"n\":3}\nsay three"]` + mode + `}`
			r := w.tool(c, out, "run_tasks", arguments)
			if got := r.texts(); len(got) != 3 || got[0] != "I call\none" || !strings.HasPrefix(got[1], "Task failed: ") || got[2] != "I call\nthree" || r.Result.IsError {
				t.Error(mode, r.raw)
			}
			last, ends := 0.0, 0
			for _, params := range out.said(wire.Progress) {
				var p struct {
					Progress, Total float64
					Message         string
				}
				if err := json.Unmarshal([]byte(params), &p); err != nil || p.Progress <= last || p.Total != 3 {
					t.Error(mode, params, err)
				}
				if last = p.Progress; strings.HasSuffix(p.Message, " of 3 done") {
					ends++
				}
			}
			if last != 3 || ends != 3 {
				t.Errorf("%s: the last progress is %v, and %d ends were told", mode, last, ends)
			}
			var browsers []string
			for _, call := range w.seen() {
				if name := strings.Fields(call)[0]; strings.HasPrefix(name, "browser") && !slices.Contains(browsers, name) {
					browsers = append(browsers, name)
				}
			}
			if want := map[bool]int{true: 2, false: 1}[strings.Contains(mode, "isolate")]; len(browsers) != want {
				t.Errorf("%s: browsers %v", mode, browsers)
			}
			got := w.sessions("local")
			for late := time.Now().Add(30 * time.Second); len(got) > 1 && time.Now().Before(late); got = w.sessions("local") {
				time.Sleep(time.Millisecond) // those of isolated tasks end behind the result
			}
			if !slices.Equal(got, []string{"s"}) {
				t.Errorf("%s: there are sessions %v", mode, got)
			}
		})
	}
	withModel(t, goes, func(w *world) {
		r := w.tool(w.client("local", "roundhouse", "s"), nil, "run_tasks", `{"tasks":[]}`)
		if !strings.Contains(r.raw, `{"content":[],"structuredContent":{"results":[]}}`) {
			t.Error(r.raw)
		}
	})
}

// A5, M2: a task is registered while it runs, and ends with the wish for its answer: the
// tool that it calls is told.
func TestATaskIsCancelled(t *testing.T) {
	withModel(t, goes, func(w *world) {
		called := make(chan struct{})
		w.call = func(l *link, _ string, _ json.RawMessage) (string, error) {
			close(called)
			<-l.aborted
			return saying("x"), nil
		}
		c, out := w.client("local", "roundhouse", "s"), newTray()
		c.Session().Do(c, request(1, wire.ToolsCall, `{"name":"run_task","arguments":`+taskOf("call files__do {}\nsay x", "")+`}`), out)
		<-called
		if i, err := w.m.Get("local", false, "s"); err != nil || len(i.Tasks) != 1 || i.Tasks[0].What == "" {
			t.Errorf("%+v %v", i, err)
		}
		f, err := wire.Parse(wire.NewNotification(wire.Cancelled, []byte(`{"requestId":1}`)))
		if err != nil {
			t.Fatal(err)
		}
		c.Session().Do(c, f, nil)
		if p := <-out.done; !p.Empty() {
			t.Errorf("%s", p.AppendTo(nil))
		}
		for deadline := time.Now().Add(patience); w.m.Stats().Tasks > 0 || !slices.ContainsFunc(w.seen(), func(s string) bool { return strings.HasSuffix(s, " cancelled") }); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%+v %v", w.m.Stats(), w.seen())
			}
		}
	})
}

// N4: a session that nobody named ends with its client, also while a model works in it.
func TestASessionEndsWithItsClientDuringATask(t *testing.T) {
	withModel(t, goes, func(w *world) {
		called := make(chan struct{})
		w.call = func(l *link, _ string, _ json.RawMessage) (string, error) {
			close(called)
			<-l.aborted
			return saying("x"), nil
		}
		c, out := w.client("local", "roundhouse", ""), newTray()
		c.Session().Do(c, request(1, wire.ToolsCall, `{"name":"run_task","arguments":`+taskOf("call browser__do {}\nsay x", "")+`}`), out)
		<-called
		c.Delete()
		<-out.done
		for deadline := time.Now().Add(patience); len(w.sessions("local")) > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%+v", w.m.List("local", false))
			}
		}
	})
}

// Without models there are no tools that run them.
func TestToolsWithoutModels(t *testing.T) {
	for _, x := range New(Config{}).Own() {
		if strings.HasPrefix(x.Name, "run_") {
			t.Error(x.Name)
		}
	}
}
