package model

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/dialect"
	"roundhouse/internal/store"
)

// C10: the engines of the configuration are those that dialect knows.
func TestEnginesAreKnown(t *testing.T) {
	var known []string
	for _, e := range dialect.Engines() {
		known = append(known, string(e))
	}
	if !slices.Equal(known, config.Engines) {
		t.Errorf("dialect knows %v, the configuration %v", known, config.Engines)
	}
	for _, name := range config.Engines {
		if e := newUpstream(&config.Upstream{Engine: name}).profile.Engine; !slices.Contains(dialect.Engines(), e) {
			t.Errorf("the upstream of the engine %q has the engine %q", name, e)
		}
	}
}

// C12: a glob matches a whole name; * stands for any text, slashes too.
func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"m", "m", true}, {"m", "m2", false}, {"m", "", false}, {"*", "", true}, {"*", "org/m", true}, {"gpt-*", "gpt-4o", true}, {"gpt-*", "xgpt-4", false},
		{"*/m", "a/b/m", true}, {"a*b*c", "a-b-b-c", true}, {"a*b*c", "a-c-b", false}, {"?", "x", true}, {"?", "", false}, {"m[1]", "m[1]", true},
	} {
		if got := matches(c.glob, c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.glob, c.name, got)
		}
	}
}

// C11: what is long goes to a file, which is gone afterwards; nothing is kept beyond the
// limit, which is told.
func TestSpool(t *testing.T) {
	for _, size := range []int{0, 1, spoolMemory, spoolMemory + 1, 3 * spoolMemory} {
		dir := t.TempDir()
		s := &spool{dir: dir, limit: 3 * spoolMemory}
		want := bytes.Repeat([]byte("0123456789abcde"), size/15+1)[:size]
		for part := range slices.Chunk(want, 100_000) {
			s.add(part)
		}
		got, err := s.bytes()
		if err != nil || s.err != nil || !bytes.Equal(got, want) || (s.file != nil) != (size > spoolMemory) {
			t.Errorf("%d bytes: got %d, %v, %v", size, len(got), err, s.err)
		}
		packed, err := s.pack()
		if text, unpackErr := packed.Bytes(); err != nil || unpackErr != nil || !bytes.Equal(text, want) {
			t.Errorf("%d bytes: packed %d, %v, %v", size, len(text), err, unpackErr)
		}
		s.add(make([]byte, 3*spoolMemory+1-size))
		if s.err != errTooLong || s.size != int64(size) {
			t.Errorf("%d bytes: beyond the limit it is %v with %d bytes", size, s.err, s.size)
		}
		s.close()
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left are %v, %v", left, err)
		}
	}
}

func outletFor(left func()) *outlet {
	m := New(Config{LLM: config.LLM{MaxQueued: 8 << 20}, WriteDeadline: 10 * time.Second, KeepAlive: 15 * time.Second})
	return newOutlet(m, left)
}

// A.14: a client that takes nothing is given up after the deadline; one that takes
// something now and then is waited for.
func TestPatienceWithAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := false
		o := outletFor(func() { gone = true })
		o.begin(200, nil)
		answer, err := o.answer(t.Context(), "t1")
		if err != nil {
			t.Fatal(err)
		}
		piece := make([]byte, outletBytes)
		o.write(piece)
		go func() {
			time.Sleep(9 * time.Second)
			_, _ = io.ReadFull(answer, piece) // all that there is
		}()
		begun := time.Now()
		o.write(piece)
		if took := time.Since(begun); took != 9*time.Second || gone {
			t.Errorf("the client that came after 9 s was waited for %s; gone: %v", took, gone)
		}
		o.write(piece)
		if took := time.Since(begun); took != 19*time.Second || !gone {
			t.Errorf("the client that stalls was waited for %s; gone: %v", took, gone)
		}
		o.write(piece)
		o.finish(nil, io.EOF)
		if n, err := answer.Read(piece); n != 0 || err != ErrAborted {
			t.Errorf("the client that was given up reads %d bytes, %v", n, err)
		}
		if n, full := o.delivered(); full || n > outletBytes {
			t.Errorf("delivered are %d bytes, all: %v", n, full)
		}
		if o.queued.used != 0 {
			t.Errorf("%d bytes are still counted", o.queued.used)
		}
	})
}

// A.14, C11: a client that takes everything has the rest, however much others have waiting in
// memory.
func TestMemoryThatOthersFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := outletFor(func() { t.Error("it counts as one that left") })
		o.begin(200, nil)
		answer, err := o.answer(t.Context(), "t1")
		if err != nil {
			t.Fatal(err)
		}
		others := o.queued.limit
		o.queued.add(others)
		begun := time.Now()
		go func() {
			for range 3 {
				o.write(make([]byte, outletBytes))
			}
			o.finish([]byte("end"), io.EOF)
		}()
		body, err := io.ReadAll(answer)
		if err != nil || len(body) != 3*outletBytes+3 || time.Since(begun) > 0 {
			t.Errorf("got %d bytes, %v, after %s", len(body), err, time.Since(begun))
		}
		if o.queued.used != others {
			t.Errorf("%d bytes are still counted", o.queued.used-others)
		}
	})
}

// N4: the answer of a retry is broken off when its session ends, and whoever waits for it to
// be called back is called outside of every lock.
func TestReplayIsCancelled(t *testing.T) {
	var m *Models
	m = New(Config{Occupy: func(string, string) func() { return func() { m.Running() } }})
	r := &recorded{m: m, answer: []byte("abc")}
	if _, err := m.enter(&active{cancel: r.cancel, session: store.SessionKey{ID: "s"}}); err != nil {
		t.Fatal(err)
	}
	piece := make([]byte, 2)
	if n, err := r.read(piece); n != 2 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.Close(ctx)
	if n, err := r.read(piece); n != 0 || err != ErrAborted {
		t.Errorf("read %d, %v", n, err)
	}
	if _, err := m.enter(&active{session: store.SessionKey{ID: "s"}}); err != errStopping {
		t.Errorf("a call after the end: %v", err)
	}
}

// C4: comments come while the end is held, and only then.
func TestKeepAliveWhileTheEndIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := outletFor(func() {})
		o.begin(200, nil)
		answer, err := o.answer(t.Context(), "t1")
		if err != nil {
			t.Fatal(err)
		}
		o.write([]byte("data\n\n"))
		go func() {
			time.Sleep(time.Minute)
			o.hold()
			time.Sleep(31 * time.Second)
			o.finish([]byte("end\n\n"), io.EOF)
		}()
		body, err := io.ReadAll(answer)
		if want := "data\n\n" + strings.Repeat(keepAliveComment, 2) + "end\n\n"; err != nil || string(body) != want {
			t.Errorf("got %q, %v", body, err)
		}
		if n, full := o.delivered(); !full || n != int64(len("data\n\nend\n\n")) {
			t.Errorf("delivered are %d bytes, all: %v", n, full)
		}
	})
}

// C8: a client that leaves while it waits for the head is known to be gone.
func TestClientLeavesBeforeTheHead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 0
		o := outletFor(func() { left++ })
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		if _, err := o.answer(ctx, "t1"); err != context.Canceled || left != 1 {
			t.Errorf("got %v, left %d times", err, left)
		}
		o.begin(200, nil)
		o.finish([]byte("late"), io.EOF)
		if n, full := o.delivered(); n != 0 || full {
			t.Errorf("delivered are %d bytes, all: %v", n, full)
		}
	})
}

// C8: a client that leaves as soon as it has the last byte got everything.
func TestClientLeavesWithTheLastByte(t *testing.T) {
	for range 200 {
		o := outletFor(func() { t.Error("it counts as one that left early") })
		o.begin(200, nil)
		ctx, leave := context.WithCancel(t.Context())
		answer, err := o.answer(ctx, "t1")
		if err != nil {
			t.Fatal(err)
		}
		go o.finish([]byte("all"), io.EOF)
		body := make([]byte, 3)
		if _, err := io.ReadFull(answer, body); err != nil {
			t.Fatal(err)
		}
		leave()
		if _, err := answer.Read(body); err != io.EOF {
			t.Fatalf("the end is %v", err)
		}
	}
}

// C8: what counts as delivered is what was read before something was asked for again, not
// what waits.
func TestDelivered(t *testing.T) {
	o := outletFor(func() {})
	o.begin(200, nil)
	answer, err := o.answer(t.Context(), "t1")
	if err != nil {
		t.Fatal(err)
	}
	o.write([]byte("abcdef"))
	piece := make([]byte, 2)
	for i, want := range []int64{0, 2, 4} {
		if _, err := answer.Read(piece); err != nil {
			t.Fatal(err)
		}
		if n, full := o.delivered(); n != want || full {
			t.Errorf("after %d reads delivered are %d bytes, all: %v", i+1, n, full)
		}
	}
	_ = answer.Close()
	if n, full := o.delivered(); n != 4 || full || o.queued.used != 0 {
		t.Errorf("in the end delivered are %d bytes, all: %v, and %d are counted", n, full, o.queued.used)
	}
}

// C5, C6: without its intent nothing can come of a call under train, so the engine need
// not go on, and the client is told at once; under observe it has its answer.
func TestCallWithoutItsIntent(t *testing.T) {
	const answer = `{"choices":[{"message":{"role":"assistant"},"finish_reason":"stop"}]}`
	release, asked := make(chan bool), make(chan bool, 2)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- true
		select {
		case <-r.Context().Done():
		case <-release:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
		}
	}))
	defer engine.Close()
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "test.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	limits := config.UpstreamTimeouts{Connect: time.Minute, FirstByte: time.Minute, Idle: time.Minute}
	m := New(Config{LLM: config.LLM{MaxBody: 1 << 20, MaxQueued: 1 << 20, Upstreams: []*config.Upstream{{Name: "main", BaseURL: engine.URL, Timeouts: limits}}}, Store: st})
	defer m.Close(t.Context())
	request, err := dialect.ParseRequest(dialect.Chat, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range []config.RecordPolicy{config.RecordTrain, config.RecordObserve} {
		p, err := m.prepare(t.Context(), Call{
			Principal: "local", Session: string(policy), Policy: policy, API: dialect.Chat, Path: "/v1/chat/completions", Header: http.Header{}, Body: []byte(`{}`), Request: request,
		})
		if err != nil {
			t.Fatal(err)
		}
		// The session is sealed between the look at it and the intent.
		earlier := store.Call{Session: p.key, ID: "earlier", Policy: store.Train, Start: time.Now()}
		if err := st.Begin(t.Context(), earlier); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Seal(t.Context(), p.key); err != nil {
			t.Fatal(err)
		}
		if policy == config.RecordObserve {
			close(release)
		}
		got, err := m.record(t.Context(), p)
		if policy == config.RecordTrain {
			if e, ok := errors.AsType[*Error](err); !ok || e.Failure.Status != http.StatusConflict {
				t.Errorf("train: got %v, %v", got, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(got); err != nil || string(body) != answer {
			t.Errorf("observe: got %q, %v", body, err)
		}
		_ = got.Close()
	}
}

// N4: a session's end by force does not wait for a client that takes its answer slowly; the
// client sees that it has not got everything.
func TestEndDoesNotWaitForASlowClient(t *testing.T) {
	const answer = `{"choices":[{"message":{"role":"assistant"},"finish_reason":"stop"}]}`
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	defer engine.Close()
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "test.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	limits := config.UpstreamTimeouts{Connect: time.Minute, FirstByte: time.Minute, Idle: time.Minute}
	m := New(Config{
		LLM:   config.LLM{MaxBody: 1 << 20, MaxQueued: 1 << 20, Upstreams: []*config.Upstream{{Name: "main", BaseURL: engine.URL, Timeouts: limits}}},
		Store: st, WriteDeadline: 50 * time.Millisecond,
	})
	defer m.Close(t.Context())
	request, err := dialect.ParseRequest(dialect.Chat, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	call := Call{
		Principal: "local", Session: "s", Policy: config.RecordTrain, API: dialect.Chat, Path: "/v1/chat/completions", Header: http.Header{}, Body: []byte(`{}`), Request: request,
	}
	for _, read := range []int{0, 1} { // and the rest never
		got, err := m.Do(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(got, make([]byte, read)); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := m.End(t.Context(), "local", "s", true)
			ended <- err
		}()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			_ = got.Close()
			t.Fatal("the end waits")
		}
		if body, err := io.ReadAll(got); err != ErrAborted {
			t.Errorf("got %q, %v", body, err)
		}
		_ = got.Close()
	}
}

// C6: of calls whose loss cannot be noted the log tells once, not with each call, and again
// when they have been noted.
func TestWhatIsOwedIsToldOfNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "test.db")
		open := func() *store.Store {
			st, err := store.Open(t.Context(), store.Config{Path: path})
			if err != nil {
				t.Fatal(err)
			}
			return st
		}
		st := open()
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		m := New(Config{Store: st, Log: slog.New(slog.NewTextHandler(&log, nil))})
		m.owed = []missing{{
			store.Call{Session: store.SessionKey{Principal: "local", ID: "s", Incarnation: 1}, ID: "t", Attempt: 1, Policy: store.Train, Start: time.Now()},
			store.Result{Outcome: store.StoreFailed, End: time.Now()},
		}}
		told := func() (failed, over int) {
			return strings.Count(log.String(), "could not be noted"), strings.Count(log.String(), "has been noted")
		}
		for range 3 {
			m.settle(t.Context())
		}
		if failed, over := told(); failed != 1 || over != 0 {
			t.Errorf("while it fails:\n%s", log.String())
		}
		m.cfg.Store = open()
		defer m.cfg.Store.Close()
		for range 2 {
			m.settle(t.Context())
		}
		if failed, over := told(); failed != 1 || over != 1 {
			t.Errorf("in the end:\n%s", log.String())
		}
	})
}
