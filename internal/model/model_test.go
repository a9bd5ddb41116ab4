package model

import (
	"bytes"
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/dialect"
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
		if n, full := o.delivered(); full || n > outletBytes {
			t.Errorf("delivered are %d bytes, all: %v", n, full)
		}
		if o.queued.used != 0 {
			t.Errorf("%d bytes are still counted", o.queued.used)
		}
	})
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
