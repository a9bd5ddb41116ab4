package pool

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/process"
)

// OutputAfter implements outputReader with what was noted.
func (p *proc) OutputAfter(offset int64) ([]byte, int64) {
	p.w.unlocked("outputReader.OutputAfter")
	var text strings.Builder
	for _, n := range p.noted() {
		text.WriteString(n + "\n")
	}
	return []byte(text.String())[min(offset, int64(len(text.String()))):], int64(len(text.String()))
}

// follows checks what a follower reads now, as texts.
func follows(t *testing.T, f *Follower, want ...string) []Line {
	t.Helper()
	synctest.Wait()
	lines := f.Next()
	var got []string
	for _, l := range lines {
		got = append(got, l.Text)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the follower reads %q, want %q", got, want)
	}
	return lines
}

// P5: a follower begins with the last lines and gets every later line once, beyond
// restarts, losses, and starts that fail between two looks.
func TestFollowerOutlivesConnections(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, s := w.server("files")
		f := w.pool.Follow("files", 2)
		follows(t, f)

		a := w.acquire(w.pool.NewHolder("a"), server)
		first := w.proc()
		for _, l := range []string{"1", "2", "3"} {
			first.Note(l)
		}
		if lines := follows(t, f, "1", "2", "3"); len(lines) > 0 && lines[0].Connection != a.ID() {
			t.Errorf("the connection is %q, want %q", lines[0].Connection, a.ID())
		}
		follows(t, w.pool.Follow("files", 2), "2", "3")
		follows(t, w.pool.Follow("files", 0))
		follows(t, w.pool.Follow("file", 9))

		first.Note("4")
		w.pool.Restart(context.Background(), "files")
		w.proc().Note("5")
		follows(t, f, "4", "5")

		second := w.proc()
		second.Note("6")
		second.die("exit status 7")
		follows(t, f, "6")
		sleep(time.Second)
		follows(t, f)
		follows(t, w.pool.Follow("files", 2), "5", "6")

		w.acquire(w.pool.NewHolder("b"), server)
		w.proc().Note("7")
		follows(t, f, "7")

		s.set(func(s *script) { s.stillborn, s.output = true, []string{"why"} })
		w.pool.Restart(context.Background(), "files")
		sleep(time.Second)
		follows(t, f, "why")
		follows(t, f)
		w.pool.Restart(context.Background(), "files")
		sleep(time.Second)
		follows(t, f, "why")
	})
}

// Lines of several connections come together, and a long follower forgets those that
// are no more.
func TestFollowerOfSeveralConnections(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.own("browser")
		f := w.pool.Follow("browser", 9)
		for i := range 3 {
			h := w.pool.NewHolder(fmt.Sprint(i))
			w.acquire(h, server)
			one := w.proc()
			h2 := w.pool.NewHolder("other")
			w.acquire(h2, server)
			w.proc().Note("b")
			one.Note("a")
			one.Note("a")
			lines := follows(t, f, "a", "a", "b")
			if len(lines) == 3 && (lines[0].Connection != lines[1].Connection || lines[1].Connection == lines[2].Connection) {
				t.Errorf("the lines are %+v", lines)
			}
			h.Release()
			one.Note("end")
			h2.Release()
			sleep(time.Minute)
			follows(t, f, "end")
			follows(t, f)
			if len(f.tails)+len(f.shown) > 0 {
				t.Errorf("it remembers %d and %d", len(f.tails), len(f.shown))
			}
		}
	})
}

// ringLink is a link of which only the output is of interest.
type ringLink struct {
	Link
	ring *process.Ring
}

func (l ringLink) OutputAfter(offset int64) ([]byte, int64) { return l.ring.After(offset) }

// A line is given when its end has come, or the connection's, or when it is very long;
// one of which the beginning is lost is not given.
func TestFollowerGivesWholeLines(t *testing.T) {
	ring := process.NewRing(2 * longestRest)
	c, tl := &connection{link: ringLink{ring: ring}}, &tail{}
	expect := func(write string, ended bool, want ...string) {
		t.Helper()
		_, _ = io.WriteString(ring, write) // a ring takes everything
		if got := tl.read(c, ended); !slices.Equal(got, want) {
			t.Errorf("after %.20q: %.60q, want %.60q", write, got, want)
		}
	}
	expect("on", false)
	expect("e\ntw", false, "one")
	expect("o\r\n\n", false, "two", "")
	expect("", false)
	long := strings.Repeat("x", longestRest)
	expect(long, false)
	expect("y", false, long+"y")
	expect("\nhalf", false, "")
	_, _ = io.WriteString(ring, strings.Repeat("z\n", 2*longestRest)+"after")
	if got := tl.read(c, false); len(got) != longestRest-3 || got[0] != "z" || got[len(got)-1] != "z" {
		t.Errorf("of a flood it gives %d lines", len(got))
	}
	expect("", true, "after")
	expect("", true)
}
