package store

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// C3, C15, J5: a session that is asked for over and over is as the last write left it.
func TestASessionIsNeverOlderThanWhatWasWritten(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		ctx := t.Context()
		// newest is the session as the list has it, which keeps nothing.
		newest := func() (v Session) {
			for row, err := range s.Sessions(ctx, SessionFilter{ID: key.ID}) {
				if err != nil {
					t.Fatal(err)
				}
				v = row
			}
			return v
		}
		next := key
		next.Incarnation++
		now := time.Now()
		save := func(k SessionKey, state string) error {
			return s.SaveSession(ctx, Session{SessionKey: k, State: state, Created: now, LastActivity: now})
		}
		for range 2 {
			_, err := s.Session(ctx, key.Principal, key.ID)
			wantErr(t, err, ErrNotFound)
		}
		for _, step := range []struct {
			name  string
			write func() error
		}{
			{"begins with a call", func() error { return s.Begin(ctx, call("a")) }},
			{"is saved", func() error { return save(key, "live") }},
			{"lacks a turn", func() error { return s.MarkIncomplete(ctx, key, "lost") }},
			{"is sealed", func() error { _, err := s.Seal(ctx, key); return err }},
			{"is closed", func() error { return s.CloseSession(ctx, key) }},
			{"begins again", func() error { v := call("b"); v.Session = next; return s.Begin(ctx, v) }},
			{"is deleted", func() error { return s.DeleteSession(ctx, next) }},
		} {
			if err := step.write(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			for range 2 {
				got, err := s.Session(ctx, key.Principal, key.ID)
				if err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				if want := newest(); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("a session that %s is\n%v, want\n%v", step.name, got, want)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := s.Session(ctx, key.Principal, key.ID)
		wantErr(t, err, ErrClosed)
	})
}

// The same with readers that come between a write's beginning and its end.
func TestASessionIsNeverOlderThanWhatWasWrittenMeanwhile(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		now := time.Now()
		for i := range 50 {
			state := fmt.Sprint(i)
			var readers sync.WaitGroup
			for range 3 {
				readers.Go(func() {
					_, _ = s.Session(t.Context(), key.Principal, key.ID) // with the old state or the new one
				})
			}
			if err := s.SaveSession(t.Context(), Session{SessionKey: key, State: state, Created: now, LastActivity: now}); err != nil {
				t.Fatal(err)
			}
			readers.Wait()
			if v, err := s.Session(t.Context(), key.Principal, key.ID); err != nil || v.State != state {
				t.Errorf("the state is %q, %v, want %q", v.State, err, state)
			}
		}
	})
}

// What was read before a change that has come to an end is not kept, nor what is large, nor
// anything of a store that is closed.
func TestWhatIsKeptOfSessions(t *testing.T) {
	r := recent{rows: map[sessionName]Session{}}
	name := sessionName{"p", "s"}
	ask := func(meanwhile func(), v Session) (kept bool) {
		_, put, ok := r.get(name)
		if ok {
			t.Fatal("it is kept already")
		}
		meanwhile()
		put(v)
		_, _, kept = r.get(name)
		r.drop(&changes{names: []sessionName{name}})
		return kept
	}
	nothing := func() {}
	small := Session{State: "live"}
	if !ask(nothing, small) {
		t.Error("it is not kept")
	}
	if ask(nothing, Session{Metadata: make([]byte, maxRecentBytes+1)}) {
		t.Error("a large one is kept")
	}
	for _, c := range []changes{{names: []sessionName{name}}, {all: true}} {
		if ask(func() { r.drop(&c) }, small) {
			t.Errorf("an old one is kept after %+v", c)
		}
	}
	for i := range 2 * maxRecent {
		_, put, _ := r.get(sessionName{"p", fmt.Sprint(i)})
		put(small)
	}
	if len(r.rows) > maxRecent {
		t.Errorf("%d are kept", len(r.rows))
	}
	if ask(r.close, small) {
		t.Error("it is kept although the store is closed")
	}
}
