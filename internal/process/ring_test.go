package process

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// P5: whatever is written in whatever pieces, the ring holds the last bytes.
func FuzzRing(f *testing.F) {
	f.Add(7, []byte("hello world"), 3)
	f.Add(1, []byte(""), 1)
	f.Fuzz(func(t *testing.T, size int, text []byte, step int) {
		if size < 1 || size > 1<<16 || step < 1 || step > 1<<16 {
			t.Skip()
		}
		r := NewRing(size)
		for rest := range slices.Chunk(text, step) {
			if n, err := r.Write(rest); n != len(rest) || err != nil {
				t.Fatal(n, err)
			}
		}
		if want := text[max(0, len(text)-size):]; !bytes.Equal(r.Bytes(), want) {
			t.Errorf("ring of %d holds %q, want %q", size, r.Bytes(), want)
		}
		if r.Total() != int64(len(text)) {
			t.Errorf("total %d, want %d", r.Total(), len(text))
		}
		r.Lines(3)
	})
}

// P5: who reads on from where he stopped gets every byte once, as far as it is kept.
func FuzzRingAfter(f *testing.F) {
	f.Add(7, []byte("hello world"), 3, 2)
	f.Fuzz(func(t *testing.T, size int, text []byte, step, every int) {
		if size < 1 || size > 1<<16 || step < 1 || step > 1<<16 || every < 1 {
			t.Skip()
		}
		r := NewRing(size)
		var offset, written int64
		i := 0
		for rest := range slices.Chunk(text, step) {
			fmt.Fprintf(r, "%s", rest)
			written += int64(len(rest))
			if i++; i%every != 0 {
				continue
			}
			got, total := r.After(offset)
			if want := text[max(offset, written-int64(size)):written]; !bytes.Equal(got, want) || total != written {
				t.Fatalf("after %d of %d: %q, %d; want %q", offset, written, got, total, want)
			}
			offset = total
		}
		if got, _ := r.After(written + 1); len(got) != 0 {
			t.Errorf("beyond the end: %q", got)
		}
	})
}

func TestRingLines(t *testing.T) {
	for _, c := range []struct {
		size, n int
		text    string
		want    []string
	}{
		{100, 2, "one\ntwo\r\nthree\n", []string{"two", "three"}},
		{100, 5, "one\n\nhal", []string{"one", "", "hal"}},
		{100, 0, "one\n", nil},
		{100, 3, "", nil},
		{6, 9, "beginning\nlast\n", []string{"last"}},
		{4, 9, "onlyone", []string{"yone"}},
	} {
		r := NewRing(c.size)
		fmt.Fprint(r, c.text)
		if got := r.Lines(c.n); !slices.Equal(got, c.want) {
			t.Errorf("%q: last %d lines %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestRingIsConcurrent(t *testing.T) {
	r := NewRing(64)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				fmt.Fprintln(r, strings.Repeat("x", 9))
				r.Lines(2)
				r.Bytes()
			}
		})
	}
	wg.Wait()
	if r.Total() != 4*100*10 {
		t.Errorf("total %d", r.Total())
	}
}
