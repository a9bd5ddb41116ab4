package control_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"roundhouse/internal/control"
	"roundhouse/internal/event"
	"roundhouse/internal/sse"
	"roundhouse/internal/store"
	"roundhouse/internal/trace"
)

// keyOf names the first life of a principal's session.
func keyOf(principal, id string) store.SessionKey {
	return store.SessionKey{Principal: principal, ID: id, Incarnation: 1}
}

// turn is a call of chat completions whose prompt is what was said, each by the other.
func turn(k store.SessionKey, id string, said ...string) store.Call {
	var messages []string
	for i, text := range said[:len(said)-1] {
		messages = append(messages, fmt.Sprintf(`{"role":%q,"content":%q}`, []string{"user", "assistant"}[i%2], text))
	}
	return store.Call{
		Session: k, ID: id, Attempt: 1, API: "chat", Endpoint: "/v1/chat/completions", Model: "m", Upstream: "u", Policy: store.Train, Start: time.Now(),
		Header: http.Header{"X-A": {"b"}}, Request: store.Pack(fmt.Appendf(nil, `{ "model":"m","messages":[%s]}`, strings.Join(messages, ","))),
		Result: &store.Result{
			Outcome: store.Complete, Status: 200, Delivery: store.Full, End: time.Now(),
			Raw: store.Pack(fmt.Appendf(nil, `{"choices":[{"message":{"role":"assistant","content":%q}}]}`, said[len(said)-1])),
		},
	}
}

// record stores calls, those without a result as being under way.
func (w *world) record(calls ...store.Call) {
	w.t.Helper()
	for _, c := range calls {
		err := w.store.Begin(w.t.Context(), c)
		if err == nil && c.Result != nil {
			err = w.store.Commit(w.t.Context(), c.Session, c.ID, *c.Result)
			if err == nil && c.Result.Delivery != store.Pending {
				err = w.store.Deliver(w.t.Context(), c.Session, c.ID, c.Result.Delivery, 9)
			}
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// row is what the tests look at in a recorded call's row, or a trajectory's.
type row struct {
	V         int
	Format    trace.Format
	Cursor    string
	Session   string `json:"session_id"`
	Principal string
	Call      string `json:"call_id"`
	Outcome   store.Outcome
	Delivered store.Delivery
	Calls     []string `json:"call_ids"`
	Request   json.RawMessage
	Response  json.RawMessage
	Header    http.Header `json:"request_headers"`
	Tokens    []int32
	Mask      []int
	Messages  []json.RawMessage
	Reward    json.RawMessage

	Kind event.Kind // of what is no row
	Lost uint64
}

func (r row) String() string { return r.Session + "/" + r.Call + strings.Join(r.Calls, "+") }

type turnList struct {
	Turns []row
	Next  string
}

// C15: the calls of a session, in the order in which they began, a page at a time, and
// one with its native request and response, as they came.
func TestTurnsOfASession(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	k := keyOf("local", "s")
	late := turn(k, "t3", "hi", "ho", "hm", "ha")
	late.Result = nil
	cut := turn(k, "t2", "hi", "ho", "hm", "h")
	cut.Result.Outcome, cut.Result.Delivery = store.UpstreamCut, store.Partial
	w.record(turn(k, "t1", "hi", "ho"), cut, late, turn(keyOf("local", "other"), "t4", "x", "y"))

	all := get[turnList](w, "", "/api/v1/sessions/s/turns")
	if got := fmt.Sprint(all.Turns); got != "[s/t1 s/t2 s/t3]" || all.Next != "" {
		t.Errorf("got %s and %q", got, all.Next)
	}
	first := all.Turns[0]
	if first.V != trace.Version || first.Format != trace.Calls || first.Delivered != store.Full || first.Request != nil || first.Header != nil {
		t.Errorf("the first is %+v", first)
	}
	if all.Turns[1].Outcome != store.UpstreamCut || all.Turns[2].Outcome != "" {
		t.Errorf("got %+v", all.Turns)
	}
	page := get[turnList](w, "", "/api/v1/sessions/s/turns?limit=2")
	if len(page.Turns) != 2 || page.Next != page.Turns[1].Cursor {
		t.Errorf("a page is %+v", page)
	}
	if page = get[turnList](w, "", "/api/v1/sessions/s/turns?limit=2&after="+page.Next); fmt.Sprint(page.Turns) != "[s/t3]" || page.Next != "" {
		t.Errorf("the next is %+v", page)
	}
	for query, want := range map[string]string{
		"outcome=complete": "[s/t1]", "outcome=any": "[s/t1 s/t2]", "outcome=complete,upstream_cut": "[s/t1 s/t2]", "delivered=partial,none": "[s/t2]",
		"model=x": "[]", "model=m,x": "[s/t1 s/t2 s/t3]", "since=1h": "[s/t1 s/t2 s/t3]", "until=1h": "[]", "since=2199-01-01T00:00:00Z": "[]", "state=open": "[s/t1 s/t2 s/t3]",
	} {
		if got := get[turnList](w, "", "/api/v1/sessions/s/turns?"+query); fmt.Sprint(got.Turns) != want {
			t.Errorf("%s: %v, want %s", query, got.Turns, want)
		}
	}
	if got := get[turnList](w, "", "/api/v1/turns?limit=1000"); fmt.Sprint(got.Turns) != "[s/t1 s/t2 s/t3 other/t4]" {
		t.Errorf("all are %v", got.Turns)
	}

	w.record(turn(keyOf("local", "page"), "t5", "<a> & <b>", "ho"))
	if r := w.send("", "GET", "/api/v1/turns/t5", ""); !strings.Contains(string(r.body), `"content":"<a> & <b>"`) {
		t.Errorf("its letters are others: %s", r.body)
	}

	one := get[row](w, "", "/api/v1/turns/t1")
	if string(one.Request) != `{"model":"m","messages":[{"role":"user","content":"hi"}]}` || !strings.Contains(string(one.Response), `"ho"`) || one.Header.Get("X-A") != "b" {
		t.Errorf("one is %+v", one)
	}
	for query, want := range map[string]string{
		"outcome=done": `outcome may be complete`, "delivered=yes": `delivered may be pending full partial none or any`, "limit=0": "from 1 to 1000",
		"after=12": "such as c12", "since=monday": "24h", "until=2999-01-01T00:00:00Z": "24h", "modle=m": `no \"modle\"; it may have after, delivered,`, "session=s": "name it once", "state=x": "open or sealed",
		"incarnation=2": `nothing is recorded of the incarnation 2 of a session \"s\"`, "incarnation=x": "from 1 on", "follow=perhaps": "true or false",
	} {
		if r := w.send("", "GET", "/api/v1/sessions/s/turns?"+query, ""); r.status != 400 && r.status != 404 || !strings.Contains(string(r.body), want) {
			t.Errorf("%s: %d %s", query, r.status, r.body)
		}
	}
	if r := w.send("", "GET", "/api/v1/turns/none", ""); r.reason() != "unknown_turn" {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// C3: the verdict of a session, also of one that was never more than recorded.
func TestVerdictOfASession(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER"}}}`)
	k := keyOf("local", "s")
	w.record(turn(k, "t1", "hi", "ho"))
	s := get[control.Session](w, "", "/api/v1/sessions/s")
	if s.ID != "s" || s.State != "recorded" || s.Recording == nil || !s.Recording.Verdict.Complete || s.Recording.Calls != 1 || s.Recording.Turns != 1 || s.Recording.State != "open" {
		t.Errorf("%+v, %+v", s, s.Recording)
	}
	lost := turn(k, "t2", "hm", "")
	lost.Result.Outcome = store.Lost
	w.record(lost)
	w.client("", "a", "s")
	s = get[control.Session](w, "", "/api/v1/sessions/s")
	if v := s.Recording.Verdict; s.State != "active" || v.Complete || !slices.Equal(v.Why, []string{`call "t2" ended as lost`}) || s.Recording.Outcomes[store.Lost] != 1 {
		t.Errorf("%+v, %+v", s, s.Recording)
	}
	w.client("", "a", "silent")
	if s := get[control.Session](w, "", "/api/v1/sessions/silent"); s.State != "active" || s.Recording != nil {
		t.Errorf("%+v", s)
	}
	list := get[control.Traces](w, "", "/api/v1/traces?limit=1")
	if len(list.Traces) != 1 || list.Traces[0].ID != "s" || list.Traces[0].Calls != 2 || list.Next != "" {
		t.Errorf("%+v", list)
	}
}

// The list of what is recorded comes a page at a time.
func TestTracesInPages(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	for i := range 5 {
		w.record(turn(keyOf("local", fmt.Sprint("s", i)), "t", "hi", "ho"))
	}
	var ids []string
	for next := "0"; next != ""; {
		page := get[control.Traces](w, "", "/api/v1/traces?limit=2&after="+next)
		for _, x := range page.Traces {
			ids = append(ids, x.ID)
		}
		next = page.Next
	}
	if !slices.Equal(ids, []string{"s0", "s1", "s2", "s3", "s4"}) {
		t.Errorf("got %v", ids)
	}
	if r := w.send("", "GET", "/api/v1/traces?outcome=complete", ""); r.status != 400 {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// C15: a sealed recording takes nothing more; calls under way are lost.
func TestSeal(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	k := keyOf("local", "s")
	open := turn(k, "t2", "hm", "")
	open.Result = nil
	w.record(turn(k, "t1", "hi", "ho"), open)
	r := w.send("", "POST", "/api/v1/sessions/s/seal", "")
	var sealed control.Sealed
	if err := json.Unmarshal(r.body, &sealed); err != nil || r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if sealed.Lost != 1 || sealed.State != "sealed" || sealed.SealedAt == nil || sealed.Outcomes[store.Lost] != 1 || sealed.Verdict.Complete {
		t.Errorf("%+v", sealed)
	}
	if err := w.store.Commit(t.Context(), k, "t2", *turn(k, "t2", "hm", "x").Result); !errors.Is(err, store.ErrSealed) {
		t.Errorf("a late commit: %v", err)
	}
	before := sealed.SealedAt
	r = w.send("", "POST", "/api/v1/sessions/s/seal", "")
	if err := json.Unmarshal(r.body, &sealed); err != nil || sealed.Lost != 0 || !sealed.SealedAt.Equal(*before) {
		t.Errorf("again: %d %s", r.status, r.body)
	}
	if l := get[control.Traces](w, "", "/api/v1/traces?state=sealed"); len(l.Traces) != 1 {
		t.Errorf("%+v", l)
	}
	if l := get[control.Traces](w, "", "/api/v1/traces?state=open"); len(l.Traces) != 0 {
		t.Errorf("%+v", l)
	}
}

// N1, N4: a session that had model calls alone ends like any other, and only once; what is
// recorded of it stays.
func TestEndOfARecordedSession(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	w.record(turn(keyOf("local", "s"), "t1", "hi", "ho"))
	for i, want := range []int{204, 404} {
		if r := w.send("", "DELETE", "/api/v1/sessions/s", ""); r.status != want {
			t.Errorf("%d: %d %s", i, r.status, r.body)
		}
	}
	s, err := w.store.Session(t.Context(), "local", "s")
	if err != nil || s.State != store.Closed {
		t.Errorf("the session is %+v, %v", s, err)
	}
	if turns := get[control.Turns](w, "", "/api/v1/sessions/s/turns"); len(turns.Turns) != 1 {
		t.Errorf("%+v", turns)
	}
}

// C15: what is recorded of a session can be deleted, all lives of its id or one.
func TestDeleteTurns(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	for i := 1; i <= 3; i++ {
		k := keyOf("local", "s")
		k.Incarnation = i
		w.record(turn(k, fmt.Sprint("t", i), "hi", "ho"))
	}
	w.record(turn(keyOf("local", "kept"), "t4", "hi", "ho"))
	if s := get[control.Session](w, "", "/api/v1/sessions/s"); s.Recording.Incarnation != 3 {
		t.Errorf("%+v", s.Recording)
	}
	if l := get[turnList](w, "", "/api/v1/sessions/s/turns?incarnation=2"); fmt.Sprint(l.Turns) != "[s/t2]" {
		t.Errorf("%+v", l)
	}
	for _, step := range []struct {
		query, left string
		status      int
	}{
		{"?incarnation=3", "[s/t1 s/t2 kept/t4]", 204},
		{"?incarnation=3", "[s/t1 s/t2 kept/t4]", 404},
		{"", "[kept/t4]", 204},
		{"", "[kept/t4]", 404},
	} {
		r := w.send("", "DELETE", "/api/v1/sessions/s/turns"+step.query, "")
		if l := get[turnList](w, "", "/api/v1/turns"); r.status != step.status || fmt.Sprint(l.Turns) != step.left {
			t.Errorf("%q: %d %s, %v is left", step.query, r.status, r.body, l.Turns)
		}
	}
}

// N2: what is recorded of another principal's session is unknown; an admin says whose he
// means where that is not clear.
func TestRecordingsBelongToTheirPrincipal(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {}}`)
	w.record(turn(keyOf("alice", "a"), "ta", "hi", "ho"), turn(keyOf("alice", "both"), "tb", "hi", "ho"), turn(keyOf("bob", "both"), "tc", "hi", "ho"), turn(keyOf("bob", "twin"), "ta", "hi", "ho"))
	for _, path := range []string{"sessions/a", "sessions/a/turns", "turns/tb", "sessions/a/trajectories", "sessions/a/check", "export?session=a", "sessions/a/turns?follow=true"} {
		r := w.send(bob, "GET", "/api/v1/"+path, "")
		if r.status != 404 || r.reason() != "unknown_session" && r.reason() != "unknown_turn" {
			t.Errorf("bob gets %s: %d %s", path, r.status, r.body)
		}
		if path = strings.ReplaceAll(path, "sessions/a", "sessions/none"); path != "turns/tb" {
			same := w.send(bob, "GET", "/api/v1/"+strings.ReplaceAll(path, "session=a", "session=none"), "")
			if same.status != r.status || strings.ReplaceAll(string(same.body), "none", "a") != string(r.body) {
				t.Errorf("what is not there: %d %s; what is another's: %d %s", same.status, same.body, r.status, r.body)
			}
		}
	}
	for _, r := range []reply{w.send(bob, "POST", "/api/v1/sessions/a/seal", ""), w.send(bob, "DELETE", "/api/v1/sessions/a/turns", "")} {
		if r.status != 404 {
			t.Errorf("bob: %d %s", r.status, r.body)
		}
	}
	if l := get[turnList](w, bob, "/api/v1/turns"); fmt.Sprint(l.Turns) != "[both/tc twin/ta]" {
		t.Errorf("bob sees %v", l.Turns)
	}
	if l := get[control.Traces](w, alice, "/api/v1/traces"); len(l.Traces) != 2 || l.Traces[1].Principal != "alice" {
		t.Errorf("alice sees %+v", l)
	}
	if x := w.send(bob, "GET", "/api/v1/export?format=calls", ""); strings.Count(string(x.body), "\n") != 2 || strings.Contains(string(x.body), "alice") {
		t.Errorf("bob exports %s", x.body)
	}
	if x := get[row](w, bob, "/api/v1/turns/ta"); x.Session != "twin" {
		t.Errorf("bob's turn is %+v", x)
	}

	if l := get[turnList](w, root, "/api/v1/sessions/a/turns"); fmt.Sprint(l.Turns) != "[a/ta]" {
		t.Errorf("an admin sees %v", l.Turns)
	}
	if r := w.send(root, "GET", "/api/v1/sessions/both/turns", ""); r.status != 400 || !strings.Contains(string(r.body), "alice, bob") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if l := get[turnList](w, root, "/api/v1/sessions/both/turns?principal=bob"); fmt.Sprint(l.Turns) != "[both/tc]" {
		t.Errorf("an admin sees %v", l.Turns)
	}
	if r := w.send(root, "GET", "/api/v1/turns/ta", ""); r.status != 400 || !strings.Contains(string(r.body), "?session=") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if x := get[row](w, root, "/api/v1/turns/ta?session=a"); x.Principal != "alice" {
		t.Errorf("an admin's turn is %+v", x)
	}
}

// rows reads an export.
func rows(t *testing.T, body []byte) (all []row) {
	t.Helper()
	for lines := bufio.NewScanner(strings.NewReader(string(body))); lines.Scan(); {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		all = append(all, r)
	}
	return all
}

// J3: an export has one line of JSON for each row, filters them, joins rewards, and goes
// on after a cursor.
func TestExport(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	k := keyOf("local", "s")
	one, two := turn(k, "t1", "hi", "ho"), turn(k, "t2", "hi", "ho", "hm", "ha")
	one.Result.PromptIDs, one.Result.OutputIDs, one.Result.Logprobs = []int32{1, 2}, []int32{3}, []float64{-0.5}
	two.Result.PromptIDs, two.Result.OutputIDs, two.Result.Logprobs = []int32{1, 2, 3, 4}, []int32{5, 6}, []float64{-1, -2}
	pending := turn(k, "t3", "else", "x")
	pending.Result.Delivery = store.Pending
	w.record(one, two, pending, turn(keyOf("local", "other"), "t4", "hi", "ho"))
	if err := w.store.SaveSession(t.Context(), store.Session{SessionKey: k, Created: time.Now(), LastActivity: time.Now(), Metadata: []byte(`{"score":7}`)}); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"":                                      "[s/t1+t2 s/t3 other/t4]",
		"format=messages&session=s":             "[s/t1+t2 s/t3]",
		"format=messages&delivered=full":        "[s/t1+t2 other/t4]",
		"format=messages&outcome=truncated":     "[]",
		"format=messages&model=x":               "[]",
		"format=tokens":                         "[s/t1+t2]",
		"format=tokens&delivered=any":           "[s/t1+t2]",
		"format=calls":                          "[s/t1 s/t2 s/t3 other/t4]",
		"format=calls&delivered=pending":        "[s/t3]",
		"format=calls&until=1h":                 "[]",
		"format=calls&principal=local&since=1h": "[s/t1 s/t2 s/t3 other/t4]",
	} {
		r := w.send("", "GET", "/api/v1/export?"+query, "")
		if got := rows(t, r.body); fmt.Sprint(got) != want || r.status != 200 || r.header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%s: %d %v, want %s", query, r.status, got, want)
		}
		for i, row := range rows(t, r.body) {
			rest := w.send("", "GET", "/api/v1/export?"+query+"&after="+row.Cursor, "")
			if want := bytesAfter(r.body, i+1); string(rest.body) != want {
				t.Errorf("%s after %s: %s, want %s", query, row.Cursor, rest.body, want)
			}
		}
	}
	r := w.send("", "GET", "/api/v1/export?format=tokens&reward_key=score", "")
	got := rows(t, r.body)
	if len(got) != 1 || fmt.Sprint(got[0].Tokens, got[0].Mask) != "[1 2 3 4 5 6] [0 0 1 0 1 1]" || string(got[0].Reward) != "7" {
		t.Errorf("%s", r.body)
	}
	r = w.send("", "POST", "/api/v1/export?format=messages&reward_key=score", `{"session_id":"other","reward":{"x":1}}`+"\n")
	if got := rows(t, r.body); len(got) != 3 || string(got[0].Reward) != "7" || string(got[2].Reward) != `{"x":1}` {
		t.Errorf("%s", r.body)
	}
	tokens := get[struct {
		Trajectories []row
		Skipped      map[string]int
	}](w, "", "/api/v1/sessions/s/trajectories?format=tokens&delivered=any")
	if fmt.Sprint(tokens.Trajectories) != "[s/t1+t2]" || tokens.Skipped["no_token_ids"] != 1 {
		t.Errorf("%+v", tokens)
	}
	for query, want := range map[string]string{
		"format=csv": "messages, tokens and calls", "after=c1": "no cursor of the format messages", "format=calls&after=s1.1": "no cursor of the format calls",
		"deliverd=full": "it may have", "session=sS": "nothing is recorded",
	} {
		if r := w.send("", "GET", "/api/v1/export?"+query, ""); r.status != 400 && r.status != 404 || !strings.Contains(string(r.body), want) {
			t.Errorf("%s: %d %s", query, r.status, r.body)
		}
	}
	if r := w.send("", "POST", "/api/v1/export", "x\n"); r.status != 400 || !strings.Contains(string(r.body), "line 1") {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func bytesAfter(body []byte, lines int) string {
	all := strings.SplitAfter(string(body), "\n")
	return strings.Join(all[lines:], "")
}

// timed remembers the deadline of writes.
type timed struct {
	*httptest.ResponseRecorder
	set, last time.Time
}

// SetWriteDeadline is called by http.ResponseController.
func (w *timed) SetWriteDeadline(at time.Time) error {
	if w.last = at; !at.IsZero() {
		w.set = at
	}
	return nil
}

// J3: each write of an export has its time, and none is left for what the connection does
// next.
func TestExportLeavesNoDeadline(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	w.record(turn(keyOf("local", "s"), "t1", "hi", "ho"))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/api/v1/export?format=calls", nil)
	r.RemoteAddr = "127.0.0.1:9"
	out := &timed{ResponseRecorder: httptest.NewRecorder()}
	w.front.ServeHTTP(out, r)
	if out.Code != 200 || out.Body.Len() == 0 || out.set.IsZero() || !out.last.IsZero() {
		t.Errorf("%d with %d bytes; the deadline was %v and is %v", out.Code, out.Body.Len(), out.set, out.last)
	}
}

// What a format cannot take is said behind the rows.
func TestExportSaysWhatItSkipped(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	w.record(turn(keyOf("local", "s"), "t1", "hi", "ho"))
	res, err := http.Get(w.url + "/api/v1/export?format=tokens")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
	if got := res.Trailer.Get("X-Roundhouse-Skipped"); got != `{"no_token_ids":1}` {
		t.Errorf("the trailer is %q", got)
	}
}

// J3, G1: an export that cannot go on is broken off, so that nobody takes a part for the
// whole: neither its reader nor a shutdown waits for the other.
func TestExportBreaksOffAtAShutdown(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	for i := range 64 {
		c := turn(keyOf("local", "s"), fmt.Sprint("t", i), "hi", "ho")
		c.Request = store.Pack([]byte(`"` + strings.Repeat("x", 1<<20) + `"`))
		w.record(c)
	}
	res, err := http.Get(w.url + "/api/v1/export?format=calls")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	first := bufio.NewReader(res.Body)
	if line, err := first.ReadString('\n'); err != nil || len(rows(t, []byte(line[:0]))) != 0 {
		t.Fatal(err)
	}
	w.control.CloseStreams()
	n, err := io.Copy(io.Discard, first)
	if err == nil || n >= 63<<20 {
		t.Errorf("%d more bytes and the error %v", n, err)
	}
}

// J4: the proof of a recording over HTTP.
func TestCheckOfASession(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`)
	k := keyOf("local", "s")
	w.record(turn(k, "t1", "hi", "ho"), turn(k, "t2", "hi", "ho", "hm", "ha"))
	if r := get[trace.Report](w, "", "/api/v1/sessions/s/check"); r.Hole || r.Turns != 2 || r.Trajectories != 1 || r.MergeRatio != 1 || !r.Verdict.Complete {
		t.Errorf("%+v", r)
	}
	failed := turn(k, "t3", "x", "y")
	failed.Result.Outcome = store.StoreFailed
	w.record(failed)
	if r := get[trace.Report](w, "", "/api/v1/sessions/s/check"); !r.Hole || r.Outcomes[store.StoreFailed] != 1 {
		t.Errorf("%+v", r)
	}
}

// follows opens a stream of calls.
func (w *world) follows(token, path, mark string) (<-chan row, chan string) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if mark != "" {
		req.Header.Set("Last-Event-ID", mark)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if ct := res.Header.Get("Content-Type"); res.StatusCode != 200 || ct != "text/event-stream" {
		w.t.Fatalf("GET %s: %d, %s", path, res.StatusCode, ct)
	}
	told, marks := make(chan row, 100), make(chan string, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(told)
		defer res.Body.Close()
		for stream := sse.NewReader(res.Body, 1<<20); ; {
			e, err := stream.Next()
			if err != nil {
				return
			}
			var r row
			if err := json.Unmarshal(e.Data, &r); err != nil {
				w.t.Errorf("%s: %v", e.Data, err)
			}
			marks <- stream.LastID()
			told <- r
		}
	})
	w.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return told, marks
}

// ended records calls and tells of them, as package model does.
func (w *world) ended(calls ...store.Call) {
	w.t.Helper()
	w.record(calls...)
	for _, c := range calls {
		w.feed.Publish(event.Event{Kind: event.TurnRecorded, Principal: c.Session.Principal, Session: c.Session.ID, Turn: c.ID, Outcome: string(c.Result.Outcome)})
	}
}

func nextRow(t *testing.T, told <-chan row) row {
	t.Helper()
	select {
	case r, ok := <-told:
		if !ok {
			t.Fatal("the stream has ended")
		}
		return r
	case <-time.After(patience):
		t.Fatal("nothing comes")
	}
	return row{}
}

// C15: calls can be followed as they end: those of a session, of a principal, of all for
// an admin, or those that a filter chooses; who comes back misses none.
func TestTurnsAreFollowed(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {}}`)
	w.record(turn(keyOf("alice", "a"), "t0", "hi", "ho"))
	toRoot, _ := w.follows(root, "/api/v1/turns?follow=true", "")
	toAlice, marks := w.follows(alice, "/api/v1/sessions/a/turns?follow=true", "")
	toBob, _ := w.follows(bob, "/api/v1/turns?follow=true&outcome=truncated", "")
	short := turn(keyOf("bob", "b"), "t2", "hi", "ho")
	short.Result.Outcome = store.Truncated
	w.ended(turn(keyOf("alice", "a"), "t1", "hi", "ho"), short, turn(keyOf("bob", "a"), "t3", "hi", "ho"), turn(keyOf("alice", "other"), "t4", "hi", "ho"), turn(keyOf("alice", "a"), "t5", "hi", "ho"))
	for _, want := range []string{"a/t1", "b/t2", "a/t3", "other/t4", "a/t5"} {
		if r := nextRow(t, toRoot); r.String() != want || r.Outcome == "" || r.Request != nil {
			t.Errorf("an admin hears %+v, not %s", r, want)
		}
	}
	for _, want := range []string{"a/t1", "a/t5"} {
		if r := nextRow(t, toAlice); r.String() != want || r.Principal != "alice" {
			t.Errorf("alice hears %+v, not %s", r, want)
		}
	}
	if r := nextRow(t, toBob); r.String() != "b/t2" {
		t.Errorf("bob hears %+v", r)
	}
	again, _ := w.follows(alice, "/api/v1/sessions/a/turns?follow=true", <-marks)
	if r := nextRow(t, again); r.String() != "a/t5" {
		t.Errorf("after t1 comes %+v", r)
	}
	foreign, _ := w.follows(alice, "/api/v1/sessions/a/turns?follow=true", "another-1")
	if r := nextRow(t, foreign); r.Kind != event.EventsLost {
		t.Errorf("after another daemon's comes %+v", r)
	}
	w.control.CloseStreams() // G1
	for range toAlice {
		t.Error("something comes after all")
	}
}

// Without recording there is nothing, and an export says why.
func TestNothingIsRecorded(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {}}`, func(c *control.Config) { c.Store = nil })
	for path, want := range map[string]string{
		"traces": `{"traces":[]}`, "turns": `{"turns":[]}`, "turns/x": "unknown_turn", "sessions/x/turns": "unknown_session", "sessions/x/trajectories": `\"llm\"`,
		"sessions/x/check": "unknown_session", "export": `\"llm\"`, "sessions/x": "unknown_session",
	} {
		if r := w.send("", "GET", "/api/v1/"+path, ""); !strings.Contains(string(r.body), want) {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
	for method, path := range map[string]string{"POST": "seal", "DELETE": "turns"} {
		if r := w.send("", method, "/api/v1/sessions/x/"+path, ""); r.reason() != "unknown_session" {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}
