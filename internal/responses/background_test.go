package responses_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/store"
)

// X6, B.6: a response in the background goes on without its client, and is streamed from any
// of its events on, while it runs and later.
func TestBackground(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{}`}), says("done"))
	release := make(chan struct{})
	w.does("a.act", func(string, <-chan struct{}, func(int)) (string, string) {
		<-release
		return `{"content":[{"type":"text","text":"ok"}]}`, ""
	})
	w.refused(400, "background needs store", "POST", "", `{"model":"m","input":"x","background":true,"store":false}`)

	ctx, leave := context.WithCancel(t.Context())
	resp := w.send(ctx, `{"model":"m","input":"x","background":true,"stream":true,`+toolA+`}`)
	w.await("call a.act")
	leave()
	resp.Body.Close()
	var running store.Response
	w.until("it is stored", func() bool {
		list, err := w.store.RunningResponses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 1 {
			running = list[0]
		}
		return len(list) == 1
	})
	path := "/" + running.ID
	want(t, w.good("GET", path, ""), "status", "in_progress", "background", true)
	readers := make(chan got, 2)
	for _, from := range []string{"", "&starting_after=3"} {
		go func() { readers <- w.call("GET", path+"?stream=true"+from, "") }()
	}
	close(release)
	whole, rest := <-readers, <-readers
	if len(whole.body) < len(rest.body) {
		whole, rest = rest, whole
	}
	numbers, told := whole.numbers(t)
	if told[0] != "created" || told[1] != "queued" || told[2] != "in_progress" || told[len(told)-1] != "completed" || numbers[len(numbers)-1] != len(numbers)-1 {
		t.Errorf("got %v %q", numbers, told)
	}
	if n, _ := rest.numbers(t); !slices.Equal(n, numbers[4:]) || !strings.HasSuffix(whole.body, rest.body) {
		t.Errorf("behind event 3 there are %v of %v", n, numbers)
	}
	w.until("it has left", func() bool { return w.face.Running() == 0 })
	if later := w.call("GET", path+"?stream=true", ""); later.body != whole.body {
		t.Errorf("it is another stream later:\n%s\nthan:\n%s", later.body, whole.body)
	}
	if past := w.call("GET", path+fmt.Sprintf("?stream=true&starting_after=%d", len(numbers)+5), ""); past.status != 200 || past.body != "" {
		t.Errorf("behind the end: %d %s", past.status, past.body)
	}
	want(t, w.good("GET", path, ""), "status", "completed", "output.1.output", "ok")
	w.refused(400, "starting_after", "GET", path+"?stream=true&starting_after=x", "")
	w.refused(400, "stream=true only", "GET", path+"?starting_after=1", "")
	w.refused(400, "stream must be", "GET", path+"?stream=perhaps", "")
	foreground := w.post(`{"model":"m","input":"x"}`).object(t)
	w.refused(404, "background", "GET", "/"+id(foreground)+"?stream=true", "")

	// B.6: what is no longer kept is an error, and nobody waits for it.
	if err := w.store.TrimResponses(t.Context(), store.ResponseLimits{EventsAge: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	w.refused(410, "no longer kept", "GET", path+"?stream=true", "")
	want(t, w.good("GET", path, ""), "status", "completed")
}

// B.6: readers stop at every end, whichever it is.
func TestReadersStopAtEveryEnd(t *testing.T) {
	for end, script := range map[string][]http.HandlerFunc{
		"completed":  {says("x")},
		"incomplete": {stream(delta(map[string]any{"content": "x"}), finish("length"))},
		"failed":     {fails(500, `{}`)},
		"cancelled":  {calls(call{"c1", "a__act", `{}`})},
	} {
		w := newWorld(t, nil)
		w.answers(script...)
		w.does("a.act", hangs)
		o := w.post(`{"model":"m","input":"x","background":true,` + toolA + `}`).object(t)
		reader := make(chan got)
		go func() { reader <- w.call("GET", "/"+id(o)+"?stream=true", "") }()
		if end == "cancelled" {
			w.await("call a.act")
			want(t, w.good("POST", "/"+id(o)+"/cancel", ""), "status", "cancelled", "output.1.type", "mcp_call", "output.1.status", "incomplete")
			w.await("cancelled a") // the tool was told
			want(t, w.good("POST", "/"+id(o)+"/cancel", ""), "status", "cancelled")
			w.until("it has left", func() bool { return w.face.Running() == 0 })
			want(t, w.good("POST", "/"+id(o)+"/cancel", ""), "status", "cancelled")
			if n := w.noted(); count(n, "cleanup a") != 1 {
				t.Errorf("the ledger is %q", n)
			}
		}
		select {
		case g := <-reader:
			_, told := g.numbers(t)
			if last := strings.Replace(end, "cancelled", "incomplete", 1); len(told) == 0 || told[len(told)-1] != last {
				t.Errorf("%s: got %q", end, told)
			}
		case <-time.After(patience):
			t.Fatalf("%s: the reader waits", end)
		}
		o = w.good("GET", "/"+id(o), "")
		want(t, o, "status", end)
		if end == "completed" {
			want(t, w.good("POST", "/"+id(o)+"/cancel", ""), "status", "completed")
			o = w.post(`{"model":"m","input":"x"}`).object(t)
			w.refused(400, "background", "POST", "/"+id(o)+"/cancel", "")
		}
	}
}

// B.6: what an earlier daemon left in the middle has failed, with what it had done; a client
// that has seen more events than were stored gets the end, too.
func TestARestartFailsWhatWasRunning(t *testing.T) {
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__echo", `{}`}), calls(call{"c2", "a__act", `{}`}))
	w.does("a.act", hangs)
	w.does("a.echo", func(string, <-chan struct{}, func(int)) (string, string) {
		time.Sleep(1100 * time.Millisecond) // so long nothing is stored again
		return `{"content":[{"type":"text","text":"ok"}]}`, ""
	})
	o := w.post(`{"model":"m","input":"x","background":true,` + toolA + `}`).object(t)
	w.await("call a.act")
	left, err := w.store.RunningResponses(t.Context())
	if err != nil || len(left) != 1 {
		t.Fatalf("%v, %v", left, err)
	}
	w.good("POST", "/"+id(o)+"/cancel", "")
	w.until("it has left", func() bool { return w.face.Running() == 0 })
	if err := w.store.SaveResponse(t.Context(), left[0]); err != nil {
		t.Fatal(err)
	}
	broken := store.Response{Principal: "local", ID: "resp_broken", Created: time.Now(), Running: true, Body: store.Pack([]byte("{"))}
	if err := w.store.SaveResponse(t.Context(), broken); err != nil {
		t.Fatal(err)
	}
	if err := w.face.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := w.store.RunningResponses(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	path := "/" + id(o)
	want(t, w.good("GET", path, ""), "status", "failed", "error.code", "server_error", "background", true, "model", "m",
		"output.0.type", "mcp_list_tools", "output.1.output", "ok", "output.2", nil)
	numbers, told := w.call("GET", path+"?stream=true", "").numbers(t)
	if n := len(numbers); told[n-1] != "failed" || numbers[n-1] != n-1 {
		t.Errorf("got %v %q", numbers, told)
	}
	numbers, told = w.call("GET", path+"?stream=true&starting_after=40", "").numbers(t)
	if !slices.Equal(numbers, []int{41}) || !slices.Equal(told, []string{"failed"}) {
		t.Errorf("behind event 40: %v %q", numbers, told)
	}
	w.refused(400, "is failed", "POST", "", `{"model":"m","input":"x","previous_response_id":"`+id(o)+`"}`)
	w.refused(404, "no response", "GET", "/resp_broken", "")
}
