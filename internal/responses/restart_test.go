package responses_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"roundhouse/internal/store"
)

// left returns what is stored of the one response that is under way, as a daemon that dies
// now would leave it.
func (w *world) left() store.Response {
	w.Helper()
	var list []store.Response
	w.until("one response under way is stored", func() bool {
		var err error
		if list, err = w.store.RunningResponses(w.Context()); err != nil {
			w.Fatal(err)
		}
		return len(list) == 1
	})
	return list[0]
}

// dies has the world go on as if the daemon had died and another one had started: with what
// was left in the store, and with what else is stored as it is.
func (w *world) dies(left store.Response) {
	w.Helper()
	w.until("all have left", func() bool { return w.face.Running() == 0 })
	if err := w.store.SaveResponse(w.Context(), left); err != nil {
		w.Fatal(err)
	}
	if err := w.face.Recover(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// X6, B.6: a response that is not in the background has failed, too, if the daemon dies in
// its middle; one that is not to be stored is unknown.
func TestARestartFailsWhatAClientWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{}`}))
	w.does("a.act", hangs)
	ctx, leave := context.WithCancel(t.Context())
	resp := w.send(ctx, `{"model":"m","input":"x","stream":true,`+toolA+`}`)
	defer resp.Body.Close()
	first := make([]byte, 4096)
	n, err := resp.Body.Read(first)
	if err != nil {
		t.Fatal(err)
	}
	left := w.left() // who has seen the first event finds it
	if !strings.Contains(string(first[:n]), left.ID) {
		t.Errorf("stored is %s, told is %s", left.ID, first[:n])
	}
	w.await("call a.act")
	leave()
	w.dies(left)
	path := "/" + left.ID
	want(t, w.good("GET", path, ""), "id", left.ID, "status", "failed", "error.code", "server_error", "background", false, "output.0", nil)
	want(t, w.good("GET", path+"/input_items", ""), "data.0.content.0.text", "x")
	w.refused(400, "is failed", "POST", "", `{"model":"m","input":"x","previous_response_id":"`+left.ID+`"}`)
	w.good("DELETE", path, "")

	w.answers(says("y"))
	w.post(`{"model":"m","input":"x","store":false}`)
	if list, err := w.store.RunningResponses(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// B.6: nobody waits for a response of which the store has no end, though nobody works on it.
func TestAResponseWhoseEndIsNotStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{}`}))
	w.does("a.act", hangs)
	o := w.post(`{"model":"m","input":"x","background":true,` + toolA + `}`).object(t)
	w.await("call a.act")
	left := w.left()
	w.good("POST", "/"+id(o)+"/cancel", "")
	w.until("it has left", func() bool { return w.face.Running() == 0 })
	if err := w.store.SaveResponse(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	want(t, w.good("GET", "/"+id(o), ""), "status", "failed", "error.code", "server_error")
	want(t, w.good("POST", "/"+id(o)+"/cancel", ""), "status", "failed")
	if _, told := w.call("GET", "/"+id(o)+"?stream=true", "").numbers(t); told[len(told)-1] != "failed" {
		t.Errorf("got %q", told)
	}
}

// B.5.8: what was approved can be approved again if the daemon dies before the call is begun,
// but not once it is.
func TestApprovalsOfResponsesThatADaemonLeaves(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		w := newWorld(t, nil)
		w.answers(calls(call{"c1", "a__act", `{}`}))
		o := w.post(`{"model":"m","input":"go",` + asking + `}`).object(t)
		yes := map[string]any{"type": "mcp_approval_response", "approval_request_id": at(o, "output.1.id"), "approve": true}
		w.does("a.act", hangs)
		opens := make(chan struct{})
		w.mu.Lock()
		w.slow["b"] = opens
		w.mu.Unlock()
		both := `"tools":[{"type":"mcp","server_label":"a"},{"type":"mcp","server_label":"b"}]`
		ctx, leave := context.WithCancel(t.Context())
		resp := w.send(ctx, `{"model":"m","stream":true,"input":`+again(t, o, yes)+`,`+both+`}`)
		w.await("opening b") // until that is open no call is made
		if begun {
			close(opens)
			w.await("call a.act")
		}
		left := w.left()
		leave()
		resp.Body.Close()
		if !begun {
			w.until("it has ended", func() bool {
				list, err := w.store.RunningResponses(t.Context())
				return err == nil && len(list) == 0
			})
			close(opens) // not before, else the call would be made
			w.until("it has left", func() bool { return w.face.Running() == 0 })
			// The end took the answer back, which a daemon that dies cannot do.
			if err := w.store.AnswerApproval(t.Context(), "local", at(o, "output.1.id").(string), left.ID); err != nil {
				t.Fatal(err)
			}
		}
		w.dies(left)
		w.does("a.act", nil)
		w.answers(says("done"))
		g := w.post(`{"model":"m","input":` + again(t, o, yes) + `,` + asking + `}`)
		if wanted := map[bool]int{false: http.StatusOK, true: http.StatusBadRequest}[begun]; g.status != wanted {
			t.Errorf("begun %t: %d %s", begun, g.status, g.body)
		}
		if n := count(w.noted(), "call a.act"); n != 1 {
			t.Errorf("begun %t: the call was made %d times", begun, n)
		}
	}
}

// B.5.8: a call that was approved is not made where that it was begun cannot be stored, since a
// daemon that dies would have it made once more.
func TestApprovedCallsNeedTheStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.answers(calls(call{"c1", "a__act", `{}`}), says("done"))
	o := w.post(`{"model":"m","input":"go",` + asking + `}`).object(t)
	yes := map[string]any{"type": "mcp_approval_response", "approval_request_id": at(o, "output.1.id"), "approve": true}
	opens := make(chan struct{})
	w.mu.Lock()
	w.slow["b"] = opens
	w.mu.Unlock()
	answer := make(chan got)
	go func() {
		answer <- w.post(`{"model":"m","input":` + again(t, o, yes) + `,"tools":[{"type":"mcp","server_label":"a"},{"type":"mcp","server_label":"b"}]}`)
	}()
	w.await("opening b") // until that is open no call is made
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	close(opens)
	if g := <-answer; !strings.Contains(g.body, "not_stored") {
		t.Errorf("%d %s", g.status, g.body)
	}
	if n := count(w.noted(), "call a.act"); n != 0 {
		t.Errorf("the call was made %d times", n)
	}
}
