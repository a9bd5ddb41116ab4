package responses

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"roundhouse/internal/front"
	"roundhouse/internal/loop"
	"roundhouse/internal/store"
)

// X6: a response under way is deleted also if who asks for that leaves before it has ended.
func TestDeleteDoesNotDependOnWhoWaits(t *testing.T) {
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "roundhouse.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	f := New(Config{Store: st})
	ctx, leave := context.WithCancel(t.Context())
	answered, ended := make(chan struct{}), make(chan struct{})
	var r *run
	r = newRun(&request{store: true}, &loop.Task{Principal: "local"}, func(error) {
		leave()
		go func() {
			defer close(ended)
			select {
			case <-answered: // too early
			case <-time.After(50 * time.Millisecond):
			}
			r.become(statusCancelled, &loop.Outcome{Status: loop.Cancelled})
		}()
	})
	r.keep = func(object []byte, events []entry, running bool) error { return f.save(r, object, events, running) }
	if err := f.enter(r); err != nil {
		t.Fatal(err)
	}
	defer f.leave(r)
	r.become(statusInProgress, nil)
	w := httptest.NewRecorder()
	x := &exchange{f, w, httptest.NewRequestWithContext(ctx, http.MethodDelete, "/", nil), front.Caller{Principal: "local"}}
	p, err := f.find(ctx, "local", r.id)
	if err == nil {
		err = x.remove(p)
	}
	close(answered)
	if err != nil || w.Code != http.StatusOK {
		t.Errorf("%d, %v", w.Code, err)
	}
	<-ended
	if _, err := st.Response(t.Context(), "local", r.id); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("it is stored: %v", err)
	}
	if _, err := f.find(t.Context(), "local", r.id); !isUnknown(err) {
		t.Errorf("it is found: %v", err)
	}
}
