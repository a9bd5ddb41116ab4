package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"
)

// The suite that every engine must pass (J5). Each test runs without faults, with
// commits that fail before they are stored, and with commits that fail although they
// are stored: callers must see no difference.

// faults are the modes of a run. Under a fault every write fails once.
var faults = map[string]hooks{
	"no fault":          {pragmas: noSync},
	"failed not stored": {pragmas: noSync, before: failFirst},
	"failed yet stored": {pragmas: noSync, after: failFirst},
}

// noSync is for tests that do not ask what the disk has.
var noSync = []string{"synchronous(off)"}

var errFault = errors.New("a fault of the test")

func failFirst(again bool) error {
	if again {
		return nil
	}
	return errFault
}

// engine is one database of an engine; it can be opened again after a Close.
type engine func(t *testing.T, h hooks) *Store

// engines give a new database each.
var engines = map[string]func(t *testing.T) engine{
	"sqlite": func(t *testing.T) engine {
		path := filepath.Join(t.TempDir(), "test.db")
		return func(t *testing.T, h hooks) *Store { return openAt(t, path, h) }
	},
}

func openAt(t testing.TB, path string, h hooks) *Store {
	t.Helper()
	s, err := open(t.Context(), Config{Path: path}, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func suite(t *testing.T, test func(t *testing.T, open func() *Store)) {
	t.Helper()
	for engineName, make := range engines {
		for faultName, fault := range faults {
			t.Run(engineName+"/"+faultName, func(t *testing.T) {
				t.Parallel()
				e := make(t)
				test(t, func() *Store { return e(t, fault) })
			})
		}
	}
}

var (
	key   = SessionKey{Principal: "alice", ID: "s1", Incarnation: 1}
	start = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
)

func call(id string) Call {
	return Call{
		Session: key, ID: id, Attempt: 1, API: "chat", Endpoint: "/v1/chat/completions", Model: "m", Upstream: "u",
		Policy: Train, Stream: true, Start: start, Header: http.Header{"X-Many": {"a", "b"}}, Request: Pack([]byte(`{"q":"` + id + `"}`)),
	}
}

func result(text string) Result {
	return Result{
		Outcome: Complete, Status: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Raw: Pack([]byte("data: " + text)),
		Response: Pack([]byte(text)), Finish: "stop", Usage: []byte(`{"prompt_tokens":3}`), PromptIDs: []int32{1, -2, math.MaxInt32},
		OutputIDs: []int32{7, 8}, Logprobs: []float64{-0.1, -2}, Weights: "w1", First: start.Add(time.Second), End: start.Add(2 * time.Second),
		Flags: []string{"a", "b"},
	}
}

func begin(t *testing.T, s *Store, v Call) {
	t.Helper()
	if err := s.Begin(t.Context(), v); err != nil {
		t.Fatal(err)
	}
}

func commit(t *testing.T, s *Store, id string, v Result) {
	t.Helper()
	if err := s.Commit(t.Context(), key, id, v); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, s *Store, id string) Call {
	t.Helper()
	v, err := s.Call(t.Context(), key, id)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func all(t *testing.T, s *Store, f CallFilter) (out []string) {
	t.Helper()
	for v, err := range s.Calls(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, v.ID)
	}
	return out
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("the error is %v, not %v", err, want)
	}
}

func wantEqual[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

// J1: a call comes back as it was stored, from the same store and from the next.
func TestACallComesBackAsItWasStored(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		begin(t, s, call("c1"))
		if v := read(t, s, "c1"); v.Result != nil {
			t.Errorf("a call that is under way has the result %+v", v.Result)
		}
		commit(t, s, "c1", result("answer"))
		if err := s.Deliver(t.Context(), key, "c1", Partial, 17); err != nil {
			t.Fatal(err)
		}
		want := call("c1")
		want.Position = 1
		r := result("answer")
		r.Delivery, r.Delivered = Partial, 17
		want.Result = &r
		wantEqual(t, read(t, s, "c1"), want)
		s.Close()
		s = open()
		wantEqual(t, read(t, s, "c1"), want)
		body, err := read(t, s, "c1").Request.Bytes()
		if err != nil || string(body) != `{"q":"c1"}` {
			t.Errorf("the request is %q, %v", body, err)
		}
	})
}

// A.17: a write may be repeated, and another one under its key is refused.
func TestWritesAreIdempotent(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		for range 2 {
			begin(t, s, call("c1"))
		}
		for range 2 {
			commit(t, s, "c1", result("answer"))
		}
		for range 2 {
			if err := s.Deliver(t.Context(), key, "c1", Full, 5); err != nil {
				t.Fatal(err)
			}
		}
		other := call("c1")
		other.Request = Pack([]byte("another"))
		wantErr(t, s.Begin(t.Context(), other), ErrConflict)
		wantErr(t, s.Commit(t.Context(), key, "c1", result("another")), ErrConflict)
		wantErr(t, s.Commit(t.Context(), key, "c2", result("answer")), ErrNotFound)
		wantEqual(t, all(t, s, CallFilter{}), []string{"c1"})
		wantEqual(t, read(t, s, "c1").Result.Answer(), Pack([]byte("answer")))
	})
}

// J5, C15: rows of a sealed session never change, and what comes late is refused.
func TestASealedSessionRefusesWhatComesLate(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		begin(t, s, call("done"))
		commit(t, s, "done", result("answer"))
		begin(t, s, call("open"))
		if lost, err := s.Seal(t.Context(), key); err != nil || lost != 1 {
			t.Fatalf("sealed with %d calls lost, %v", lost, err)
		}
		if lost, err := s.Seal(t.Context(), key); err != nil || lost != 0 {
			t.Fatalf("sealed again with %d calls lost, %v", lost, err)
		}
		before := []Call{read(t, s, "done"), read(t, s, "open")}
		if before[1].Result == nil || before[1].Result.Outcome != Lost {
			t.Errorf("the call under way became %+v", before[1].Result)
		}
		wantErr(t, s.Begin(t.Context(), call("late")), ErrSealed)
		wantErr(t, s.Commit(t.Context(), key, "open", result("late")), ErrSealed)
		wantErr(t, s.Commit(t.Context(), key, "done", result("other")), ErrSealed)
		wantErr(t, s.Deliver(t.Context(), key, "done", Full, 1), ErrSealed)
		begin(t, s, call("done"))              // it is there
		commit(t, s, "done", result("answer")) // it is there
		again := call("next")                  // another life
		again.Session.Incarnation = 2          //
		begin(t, s, again)                     //
		s.Close()                              //
		s = open()                             //
		wantEqual(t, []Call{read(t, s, "done"), read(t, s, "open")}, before)
		v, err := s.Session(t.Context(), "alice", "s1")
		if err != nil || v.Incarnation != 2 || !v.Sealed.IsZero() {
			t.Errorf("the newest life is %+v, %v", v, err)
		}
		_, err = s.Seal(t.Context(), SessionKey{Principal: "alice", ID: "nobody", Incarnation: 1})
		wantErr(t, err, ErrNotFound)
	})
}

// C7: calls that are open at a start are lost; those of before are as they were.
func TestCallsOpenAtAStartAreLost(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		begin(t, s, call("done"))
		commit(t, s, "done", result("answer"))
		begin(t, s, call("open"))
		s.Close()
		s = open()
		r := read(t, s, "open").Result
		if r == nil || r.Outcome != Lost || !r.End.IsZero() || r.Delivery != Pending {
			t.Errorf("it became %+v", r)
		}
		if r := read(t, s, "done").Result; r.Outcome != Complete {
			t.Errorf("the other became %+v", r)
		}
		wantErr(t, s.Commit(t.Context(), key, "open", result("late")), ErrConflict)
	})
}

// N6: what is kept of sessions that are over, and of which nothing is recorded, is bounded.
func TestClosedSessionsAreForgotten(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		at := func(id, state string, active time.Time) Session {
			return Session{SessionKey: SessionKey{Principal: "alice", ID: id, Incarnation: 1}, State: state, Created: start, LastActivity: active}
		}
		if err := s.SaveSession(t.Context(), at("old", Closed, start), at("recorded", Closed, start), at("sealed", Closed, start), at("alive", "dormant", start),
			at("a", Closed, start.Add(2*time.Hour)), at("b", Closed, start.Add(3*time.Hour)), at("c", Closed, start.Add(4*time.Hour))); err != nil {
			t.Fatal(err)
		}
		v := call("x")
		v.Session.ID = "recorded"
		begin(t, s, v)
		if _, err := s.Seal(t.Context(), SessionKey{Principal: "alice", ID: "sealed", Incarnation: 1}); err != nil {
			t.Fatal(err)
		}
		n, err := s.ForgetSessions(t.Context(), start.Add(time.Hour), 2)
		if err != nil || n != 2 {
			t.Errorf("%d were forgotten: %v", n, err)
		}
		ids := func(f SessionFilter) (ids []string) {
			for v, err := range s.Sessions(t.Context(), f) {
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, v.ID)
			}
			return ids
		}
		wantEqual(t, ids(SessionFilter{}), []string{"recorded", "sealed", "alive", "b", "c"})
		wantEqual(t, ids(SessionFilter{Recorded: true}), []string{"recorded", "sealed"})
	})
}

// N6: sessions come back; what others write of them stays.
func TestSessionsComeBack(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		v := Session{
			SessionKey: key, Kind: "rollout", Workspace: "/w", State: "active", Created: start, LastActivity: start.Add(time.Hour),
			Metadata: []byte(`{"reward":1}`), Clients: []byte(`[{"id":"x"}]`),
		}
		save := func(v Session) {
			t.Helper()
			if err := s.SaveSession(t.Context(), v); err != nil {
				t.Fatal(err)
			}
		}
		save(v)
		if _, err := s.Seal(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		for _, why := range []string{"first", "second"} {
			if err := s.MarkIncomplete(t.Context(), key, why); err != nil {
				t.Fatal(err)
			}
		}
		v.State, v.Clients = Closed, nil
		save(v)
		other := v
		other.SessionKey = SessionKey{Principal: "bob", ID: "s1", Incarnation: 1}
		other.State = "active"
		save(other)
		s.Close()
		s = open()
		var got []Session
		for v, err := range s.Sessions(t.Context(), SessionFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, v)
		}
		if len(got) != 2 || got[0].Sealed.IsZero() || got[0].Incomplete != "first" || got[0].State != Closed {
			t.Fatalf("the sessions are %+v", got)
		}
		for i, want := range []Session{v, other} {
			got[i].Position, got[i].Sealed, got[i].Incomplete = 0, time.Time{}, ""
			wantEqual(t, got[i], want)
		}
		_, err := s.Session(t.Context(), "carol", "s1") // N2: another principal's is unknown
		wantErr(t, err, ErrNotFound)
		n := 0
		for range s.Sessions(t.Context(), SessionFilter{States: []string{"active", "dormant"}}) {
			n++
		}
		wantEqual(t, n, 1)
	})
}

// C15: a deleted session is gone with all it had, and its id is free.
func TestADeletedSessionIsGone(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		for i := range 120 { // more than one step
			begin(t, s, call(fmt.Sprint(i)))
		}
		commit(t, s, "1", result("answer"))
		if err := s.SaveResponse(t.Context(), Response{Principal: "alice", Session: key.ID, ID: "r", Created: start, Body: Pack([]byte("{}"))}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.DeleteSession(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		wantEqual(t, all(t, s, CallFilter{}), nil)
		_, err := s.Response(t.Context(), "alice", "r")
		wantErr(t, err, ErrNotFound)
		begin(t, s, call("again"))
		if p := read(t, s, "again").Position; p != 121 {
			t.Errorf("the position after 120 deleted calls is %d: a cursor would miss it", p)
		}
	})
}

// C15: a session whose removal was cut short is gone all the same, and its rows go later.
func TestASessionThatIsHalfDeletedIsGone(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		begin(t, s, call("1"))
		err := s.submit(t.Context(), "delete a session, and crash", 0, func(c *conn) error {
			k, _, err := c.session(key)
			if err != nil && !errors.Is(err, ErrNotFound) { // which it is in a repetition
				return err
			}
			_, err = c.change(hideSession, k)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for v, err := range s.Sessions(t.Context(), SessionFilter{}) {
			t.Errorf("there is %+v, %v", v, err)
		}
		_, err = s.Session(t.Context(), key.Principal, key.ID)
		wantErr(t, err, ErrNotFound)
		wantEqual(t, all(t, s, CallFilter{}), nil)
		begin(t, s, call("2"))
		wantEqual(t, all(t, s, CallFilter{}), []string{"2"})
		if removed, err := s.Retain(t.Context(), Retention{}); err != nil || removed.Calls != 1 {
			t.Errorf("removed %+v, %v", removed, err)
		}
		wantEqual(t, all(t, s, CallFilter{}), []string{"2"})
	})
}

// C15: retention takes whole closed sessions, the oldest first.
func TestRetentionTakesTheOldestClosedSessions(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		for i, state := range []string{Closed, "active", Closed, Closed} {
			k := SessionKey{ID: fmt.Sprint("s", i), Incarnation: 1}
			active := time.Now().Add(time.Duration(i-3) * time.Hour)
			if err := s.SaveSession(t.Context(), Session{SessionKey: k, State: state, Created: start, LastActivity: active}); err != nil {
				t.Fatal(err)
			}
			v := call("c")
			v.Session, v.Request = k, Pack(noise(1<<20))
			begin(t, s, v)
			if err := s.Commit(t.Context(), k, "c", result("x")); err != nil {
				t.Fatal(err)
			}
		}
		left := func() (ids []string) {
			for v, err := range s.Sessions(t.Context(), SessionFilter{}) {
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, v.ID)
			}
			return ids
		}
		retain := func(r Retention) Removed {
			t.Helper()
			removed, err := s.Retain(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return removed
		}
		wantEqual(t, retain(Retention{Age: 100 * time.Hour, Bytes: 1 << 30}), Removed{})
		wantEqual(t, retain(Retention{Age: 150 * time.Minute}), Removed{Sessions: 1, Calls: 1})
		wantEqual(t, left(), []string{"s1", "s2", "s3"})
		wantEqual(t, retain(Retention{Bytes: 5 << 19}), Removed{Sessions: 1, Calls: 1})
		wantEqual(t, left(), []string{"s1", "s3"})
		wantEqual(t, retain(Retention{Bytes: 1}), Removed{Sessions: 1, Calls: 1})
		wantEqual(t, left(), []string{"s1"}) // what is not closed stays
	})
}

// C15: a session that only its recording made is over when it is sealed, or was quiet
// for long, and no call of it is under way.
func TestRetentionTakesRecordingsThatAreOver(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		for id, ago := range map[string]time.Duration{"new": 0, "old": 48 * time.Hour, "sealed": time.Hour, "busy": 48 * time.Hour, "busy again": 48 * time.Hour} {
			v := call("c")
			v.Session, v.Start = SessionKey{ID: id, Incarnation: 1}, time.Now().Add(-ago)
			begin(t, s, v)
			if id == "busy" {
				continue
			}
			if err := s.Commit(t.Context(), v.Session, "c", result("x")); err != nil {
				t.Fatal(err)
			}
			if id == "busy again" {
				v.ID, v.Start = "d", time.Now()
				begin(t, s, v)
				if err := s.Commit(t.Context(), v.Session, "d", result("x")); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := s.Seal(t.Context(), SessionKey{ID: "sealed", Incarnation: 1}); err != nil {
			t.Fatal(err)
		}
		left := func(f SessionFilter) (ids []string) {
			for v, err := range s.Sessions(t.Context(), f) {
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, v.ID)
			}
			slices.Sort(ids)
			return ids
		}
		wantEqual(t, left(SessionFilter{Sealed: new(true)}), []string{"sealed"})
		wantEqual(t, left(SessionFilter{Sealed: new(false)}), []string{"busy", "busy again", "new", "old"})
		for _, step := range []struct {
			limits Retention
			left   []string
		}{
			{Retention{Age: 100 * time.Hour, Quiet: time.Hour}, []string{"busy", "busy again", "new", "old", "sealed"}},
			{Retention{Age: 2 * time.Hour, Quiet: 24 * time.Hour}, []string{"busy", "busy again", "new", "sealed"}},
			{Retention{Bytes: 1, Quiet: 24 * time.Hour}, []string{"busy", "busy again", "new"}},
			{Retention{Bytes: 1}, []string{"busy", "busy again", "new"}},
		} {
			if _, err := s.Retain(t.Context(), step.limits); err != nil {
				t.Fatal(err)
			}
			wantEqual(t, left(SessionFilter{}), step.left)
		}
	})
}

// C15: a session of which a call begins, or that goes on, while it is looked at is not over.
func TestRetentionSparesWhatGoesOnMeanwhile(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		v := call("c")
		v.Start = time.Now().Add(-time.Hour)
		begin(t, s, v)
		commit(t, s, "c", result("x"))
		found, err := s.oldest(t.Context(), Retention{Quiet: time.Minute})
		if err != nil || len(found) != 1 {
			t.Fatalf("found %+v, %v", found, err)
		}
		d := call("d")
		d.Start = time.Now().Add(-time.Second)
		begin(t, s, d)
		if hid, err := s.hide(t.Context(), found[0]); hid || err != nil {
			t.Errorf("hidden: %v, %v", hid, err)
		}
		commit(t, s, "d", result("y"))
		if found, err = s.oldest(t.Context(), Retention{Quiet: time.Nanosecond}); err != nil || len(found) != 1 {
			t.Fatalf("found %+v, %v", found, err)
		}
		k := v.Session
		if err := s.SaveSession(t.Context(), Session{SessionKey: k, State: "live", Created: v.Start, LastActivity: v.Start}); err != nil {
			t.Fatal(err)
		}
		if hid, err := s.hide(t.Context(), found[0]); hid || err != nil {
			t.Errorf("hidden: %v, %v", hid, err)
		}
		if err := s.CloseSession(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if hid, err := s.hide(t.Context(), found[0]); !hid || err != nil {
			t.Errorf("hidden: %v, %v", hid, err)
		}
	})
}

// noise is bytes that do not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

// C9: an attempt finds the earlier one that had the same body.
func TestAnAttemptFindsTheEarlierOne(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		find := func(endpoint, body string) string {
			t.Helper()
			v, err := s.Replay(t.Context(), key, endpoint, Pack([]byte(body)))
			if errors.Is(err, ErrNotFound) {
				return ""
			}
			if err != nil {
				t.Fatal(err)
			}
			if v.Result == nil {
				return v.ID + " under way"
			}
			return v.ID
		}
		const chat = "/v1/chat/completions"
		put := func(id, body string, r *Result) {
			v := call(id)
			v.Request = Pack([]byte(body))
			begin(t, s, v)
			if r != nil {
				commit(t, s, id, *r)
			}
		}
		good, bad := result("answer"), result("answer")
		bad.Outcome = UpstreamError
		wantEqual(t, find(chat, "b"), "")
		put("failed", "b", &bad)
		wantEqual(t, find(chat, "b"), "")
		put("open", "b", nil)
		wantEqual(t, find(chat, "b"), "open under way")
		put("whole", "b", &good)
		put("open again", "b", nil)
		wantEqual(t, find(chat, "b"), "whole")
		wantEqual(t, find(chat, "other"), "")
		wantEqual(t, find("/v1/messages", "b"), "")

		// Of samples of one prompt those that arrived are not taken for the one that did not.
		deliver := func(id string, d Delivery) {
			t.Helper()
			if err := s.Deliver(t.Context(), key, id, d, 1); err != nil {
				t.Fatal(err)
			}
		}
		put("missed", "n", &good)
		put("arrived", "n", &good)
		deliver("arrived", Full)
		wantEqual(t, find(chat, "n"), "missed")
		deliver("missed", Partial)
		put("newer", "n", &good)
		wantEqual(t, find(chat, "n"), "missed")
		deliver("missed", Full)
		deliver("newer", Full)
		put("open sample", "n", nil)
		wantEqual(t, find(chat, "n"), "open sample under way")
		commit(t, s, "open sample", bad)
		wantEqual(t, find(chat, "n"), "newer")
	})
}

// J3: filters, in the order of the intents, from a position on.
func TestCallsAreChosen(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		for i := range 4 {
			v := call(fmt.Sprint("c", i))
			v.Model = fmt.Sprint("m", i%2)
			v.Start = start.Add(time.Duration(i) * time.Hour)
			begin(t, s, v)
		}
		commit(t, s, "c2", result("2"))
		r := result("1")
		r.Outcome = Truncated
		commit(t, s, "c1", r)
		if err := s.Deliver(t.Context(), key, "c1", Full, 1); err != nil {
			t.Fatal(err)
		}
		alice, bob := "alice", "bob"
		for _, test := range []struct {
			filter CallFilter
			want   []string
		}{
			{CallFilter{}, []string{"c0", "c1", "c2", "c3"}},
			{CallFilter{After: 2}, []string{"c2", "c3"}},
			{CallFilter{Models: []string{"m0"}}, []string{"c0", "c2"}},
			{CallFilter{Models: []string{"m0", "m1"}}, []string{"c0", "c1", "c2", "c3"}},
			{CallFilter{Outcomes: []Outcome{Complete}}, []string{"c2"}},
			{CallFilter{Outcomes: []Outcome{Complete, Truncated}}, []string{"c1", "c2"}},
			{CallFilter{Deliveries: []Delivery{Full}}, []string{"c1"}},
			{CallFilter{Deliveries: []Delivery{Pending}}, []string{"c0", "c2", "c3"}},
			{CallFilter{Since: start.Add(time.Hour), Until: start.Add(3 * time.Hour)}, []string{"c1", "c2"}},
			{CallFilter{Session: SessionFilter{Principal: &alice}}, []string{"c0", "c1", "c2", "c3"}},
			{CallFilter{Session: SessionFilter{Principal: &bob}}, nil},
			{CallFilter{Session: Of(key), Summary: true}, []string{"c0", "c1", "c2", "c3"}},
			{CallFilter{Session: SessionFilter{States: []string{Closed}}}, nil},
		} {
			wantEqual(t, all(t, s, test.filter), test.want)
		}
		for v, err := range s.Calls(t.Context(), CallFilter{ID: "c2", Summary: true}) {
			if err != nil || v.Header != nil || v.Result.OutputIDs != nil || v.Request.Size() != 10 || v.Request.Digest() != call("c2").Request.Digest() {
				t.Errorf("the summary is %+v, %v", v, err)
			}
		}
	})
}

// What no reader could make sense of is refused before it is queued.
func TestNonsenseIsRefused(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		begin(t, s, call("c"))
		r := result("x")
		r.Logprobs = r.Logprobs[:1]
		wantErr(t, s.Commit(t.Context(), key, "c", r), ErrInvalid) // case 71: lengths that differ
		wantErr(t, s.Commit(t.Context(), key, "c", Result{Outcome: "fine"}), ErrInvalid)
		wantErr(t, s.Deliver(t.Context(), key, "c", Pending, 0), ErrInvalid)
		v := call("d")
		v.Session.Incarnation = 0
		wantErr(t, s.Begin(t.Context(), v), ErrInvalid)
		v = call("d")
		v.Policy = "off"
		wantErr(t, s.Begin(t.Context(), v), ErrInvalid)
		wantErr(t, s.SaveSession(t.Context(), Session{}), ErrInvalid)
		wantErr(t, s.SaveSession(t.Context(), Session{SessionKey: key, Metadata: []byte("{")}), ErrInvalid)
		wantErr(t, s.Commit(t.Context(), key, "c", Result{Outcome: Refused, Usage: []byte("{")}), ErrInvalid)
	})
}

// A.16 row 43, case 71: hundreds of turns of one session at once, in the order of
// their intents.
func TestManyTurnsAtOnce(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				id := fmt.Sprint(i)
				if err := s.Begin(context.Background(), call(id)); err != nil {
					t.Error(err)
				}
				if err := s.Commit(context.Background(), key, id, result(id)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		n := 0
		var last int64
		for v, err := range s.Calls(t.Context(), CallFilter{}) {
			if err != nil {
				t.Fatal(err)
			}
			answer, err := v.Result.Answer().Bytes()
			if err != nil || string(answer) != v.ID || v.Position <= last {
				t.Errorf("call %q at %d has the answer %q, %v", v.ID, v.Position, answer, err)
			}
			last = v.Position
			n++
		}
		wantEqual(t, n, 100)
	})
}
