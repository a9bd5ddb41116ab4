package store

import (
	"context"
	"path/filepath"
	"testing"
	"time"
)

// lingering is a store whose intents and deliveries wait for others.
func lingering(t *testing.T, d time.Duration) (s *Store, transactions *int) {
	t.Helper()
	n := 0 // the writer's, and ours when a write has been answered
	s = openAt(t, filepath.Join(t.TempDir(), "test.db"), hooks{pragmas: noSync, before: func(bool) error { n++; return nil }})
	s.linger = d
	n = 0
	return s, &n
}

func intend(t *testing.T, s *Store, v Call) (wait func(context.Context) error) {
	t.Helper()
	wait, err := s.Intend(v)
	if err != nil {
		t.Fatal(err)
	}
	return wait
}

// C6: an intent and a delivery share the transaction of a result, which does not linger, and
// the call's own intent comes before its result.
func TestAResultTakesWhatLingersWithIt(t *testing.T) {
	s, transactions := lingering(t, time.Hour)
	stored := intend(t, s, call("a"))
	commit(t, s, "a", result("x"))
	if err := stored(t.Context()); err != nil {
		t.Error(err)
	}
	if *transactions != 1 {
		t.Errorf("an intent and its result took %d transactions", *transactions)
	}
	delivered := make(chan error)
	go func() { delivered <- s.Deliver(t.Context(), key, "a", Full, 1) }()
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) == 1
	})
	stored = intend(t, s, call("b"))
	commit(t, s, "b", result("y"))
	if err := <-delivered; err != nil {
		t.Error(err)
	}
	if err := stored(t.Context()); err != nil {
		t.Error(err)
	}
	if *transactions != 2 {
		t.Errorf("two calls took %d transactions", *transactions)
	}
}

// C6: an intent that finds no company is stored all the same.
func TestWhatLingersIsStoredInTheEnd(t *testing.T) {
	s, _ := lingering(t, time.Millisecond)
	for _, id := range []string{"a", "b"} {
		if err := intend(t, s, call(id))(t.Context()); err != nil {
			t.Error(err)
		}
		read(t, s, id)
	}
}

// Close does not wait until what lingers is due, and forgets none of it.
func TestCloseStoresWhatLingers(t *testing.T) {
	s, _ := lingering(t, time.Hour)
	stored := intend(t, s, call("a"))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := stored(t.Context()); err != nil {
		t.Error(err)
	}
}
