package store

import "testing"

// C8, C9: of several deliveries of one answer the one that got furthest stays.
func TestTheMostThatWasDeliveredStays(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		begin(t, s, call("c1"))
		commit(t, s, "c1", result("answer"))
		for i, step := range []struct {
			deliver, want Delivery
			bytes, after  int64
		}{
			{None, None, 0, 0}, {Partial, Partial, 3, 3}, {None, Partial, 0, 3}, {Partial, Partial, 2, 3}, {Partial, Partial, 4, 4},
			{Full, Full, 6, 6}, {Partial, Full, 4, 6}, {Full, Full, 6, 6},
		} {
			if err := s.Deliver(t.Context(), key, "c1", step.deliver, step.bytes); err != nil {
				t.Fatal(err)
			}
			if r := read(t, s, "c1").Result; r.Delivery != step.want || r.Delivered != step.after {
				t.Errorf("after step %d there is %s of %d bytes", i, r.Delivery, r.Delivered)
			}
		}
	})
}

// N1: a session that is closed keeps what is recorded, and takes the ends of its calls.
func TestAClosedSession(t *testing.T) {
	suite(t, func(t *testing.T, open func() *Store) {
		s := open()
		wantErr(t, s.CloseSession(t.Context(), key), ErrNotFound)
		begin(t, s, call("c1"))
		for range 2 {
			if err := s.CloseSession(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		commit(t, s, "c1", result("answer"))
		v, err := s.Session(t.Context(), key.Principal, key.ID)
		if err != nil || v.State != Closed || read(t, s, "c1").Result.Outcome != Complete {
			t.Errorf("the session is %+v, %v", v, err)
		}
	})
}
