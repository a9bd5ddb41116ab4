package store

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func keep(t *testing.T, s *Store, v Response) {
	t.Helper()
	if err := s.SaveResponse(t.Context(), v); err != nil {
		t.Fatal(err)
	}
}

// X6: responses are replaced and belong to their principal.
func TestResponsesComeBack(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		begin(t, s, call("c")) // which makes the session
		v := Response{Principal: "alice", ID: "r", Session: key.ID, Created: start, Running: true, Body: Pack([]byte("{}"))}
		keep(t, s, v)
		running, err := s.RunningResponses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, running, []Response{v})
		v.Running, v.Body, v.Events = false, Pack([]byte(`{"status":"completed"}`)), Pack([]byte("[]"))
		keep(t, s, v)
		keep(t, s, Response{Principal: "bob", ID: "r", Session: "no such session", Created: start})
		got, err := s.Response(t.Context(), "alice", "r")
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, got, v)
		got, err = s.Response(t.Context(), "bob", "r")
		if err != nil || got.Session != "" {
			t.Errorf("%+v, %v", got, err)
		}
		running, err = s.RunningResponses(t.Context())
		if err != nil || len(running) > 0 {
			t.Errorf("%v, %v", running, err)
		}
		if err := s.DeleteResponse(t.Context(), "bob", "r"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Response(t.Context(), "alice", "r"); err != nil {
			t.Errorf("another principal deleted it: %v", err)
		}
		if err := s.DeleteResponse(t.Context(), "alice", "r"); err != nil {
			t.Fatal(err)
		}
		_, err = s.Response(t.Context(), "alice", "r")
		wantErr(t, err, ErrNotFound)
		wantErr(t, s.SaveResponse(t.Context(), Response{Principal: "alice"}), ErrInvalid)
	})
}

// B.5.8: a request for approval is answered by one response, also after a restart; a write
// that is repeated is the same answer.
func TestAnApprovalIsAnsweredOnce(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		for _, by := range []string{"r1", "r1"} {
			if err := s.AnswerApproval(t.Context(), "alice", "mcpr_1", by); err != nil {
				t.Fatal(err)
			}
		}
		wantErr(t, s.AnswerApproval(t.Context(), "alice", "mcpr_1", "r2"), ErrConflict)
		if err := s.AnswerApproval(t.Context(), "bob", "mcpr_1", "r2"); err != nil {
			t.Errorf("another principal's: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, open().AnswerApproval(t.Context(), "alice", "mcpr_1", "r2"), ErrConflict)
	})
}

// B.6: old responses go, their events before them, and the oldest if there is no room; what
// has not ended stays.
func TestOldResponsesGo(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		now := time.Now()
		const n = 250 // more than one step
		for i := range n {
			keep(t, s, Response{Principal: "alice", ID: fmt.Sprint("r", i), Created: now.Add(-time.Duration(i) * time.Hour), Running: i == n-1, Body: Pack([]byte("{}")), Events: Pack([]byte("[]"))})
		}
		left := func() (responses, events int) {
			t.Helper()
			for i := range n {
				v, err := s.Response(t.Context(), "alice", fmt.Sprint("r", i))
				if err == nil {
					responses++
					events += int(v.Events.Size()) / 2
				}
			}
			return responses, events
		}
		trim := func(limits ResponseLimits, responses, events int) {
			t.Helper()
			if err := s.TrimResponses(t.Context(), limits); err != nil {
				t.Fatal(err)
			}
			r, e := left()
			wantEqual(t, [2]int{r, e}, [2]int{responses, events})
		}
		trim(ResponseLimits{}, n, n)
		trim(ResponseLimits{EventsAge: 9*time.Hour + 30*time.Minute}, n, 11)
		trim(ResponseLimits{Age: 99*time.Hour + 30*time.Minute}, 101, 11)
		v, err := s.Response(t.Context(), "alice", "r0")
		if err != nil {
			t.Fatal(err)
		}
		trim(ResponseLimits{Bytes: int64(len(v.Body.packed) + len(v.Events.packed))}, 2, 2)
		if _, err := s.Response(t.Context(), "alice", "r0"); err != nil {
			t.Error("the newest is gone")
		}
	})
}

// A response goes with its session, and what is not stored of that does not matter.
func TestAResponseGoesWithItsSession(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		begin(t, s, call("c"))
		keep(t, s, Response{Principal: "alice", ID: "with", Session: key.ID, Created: start, Body: Pack([]byte(strings.Repeat("x", 100)))})
		keep(t, s, Response{Principal: "alice", ID: "without", Created: start})
		if err := s.DeleteSession(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		_, err := s.Response(t.Context(), "alice", "with")
		wantErr(t, err, ErrNotFound)
		if _, err := s.Response(t.Context(), "alice", "without"); err != nil {
			t.Error(err)
		}
	})
}
