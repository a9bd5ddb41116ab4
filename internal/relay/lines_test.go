package relay_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"roundhouse/internal/relay"
	"roundhouse/internal/wire"
)

func lines(text string, max int) *relay.Lines {
	return relay.NewLines(bufio.NewReaderSize(strings.NewReader(text), 16), max)
}

// W1: what is read is what was written, whatever its length is to the buffer's.
func TestLinesAreTheBytes(t *testing.T) {
	for n := 1; n < 70; n++ {
		want := strings.Repeat("x", n)
		l := lines(want+"\n\n \r\n"+want+"\r\n", 70)
		for _, want := range []string{want, want + "\r"} {
			if got, err := l.Next(); err != nil || string(got) != want {
				t.Fatalf("%d bytes: %q, %v", n, got, err)
			}
		}
		if _, err := l.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("%d bytes: %v at the end", n, err)
		}
	}
}

// H8: a frame whose end was not written has not been read, so it may be sent again.
func TestACutLineIsNoFrame(t *testing.T) {
	for _, text := range []string{"a", "\na", strings.Repeat("a", 40), strings.Repeat("a", 100)} {
		if line, err := lines(text, 50).Next(); line != nil || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %q, %v", text, line, err)
		}
	}
}

// Case 11: a line over the limit costs its own call only.
func TestALineOverTheLimitNamesItsCall(t *testing.T) {
	frame := func(size int) string {
		head, tail := `{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":"`, `"}}`
		return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
	}
	const limit = 100
	for size := limit - 1; size < limit+40; size++ {
		l := lines(frame(size)+"\nnext\n", limit)
		line, err := l.Next()
		tooLong, over := errors.AsType[*relay.TooLong](err)
		switch {
		case size <= limit && (err != nil || string(line) != frame(size)):
			t.Errorf("%d bytes: %q, %v", size, line, err)
		case size > limit && (!over || string(tooLong.ID) != "7" || tooLong.Kind != wire.Request || tooLong.Size != int64(size)):
			t.Errorf("%d bytes: %q, %+v", size, line, err)
		}
		if line, err := l.Next(); err != nil || string(line) != "next" {
			t.Errorf("%d bytes: then %q, %v", size, line, err)
		}
	}
}

func TestAnErrorOfTheConnectionPasses(t *testing.T) {
	broken := errors.New("broken")
	for _, text := range []string{"", "abc", strings.Repeat("a", 100)} {
		r := io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken))
		if _, err := relay.NewLines(bufio.NewReaderSize(r, 16), 50).Next(); !errors.Is(err, broken) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nbb\n\nccc"), 2)
	f.Add([]byte("{\"id\":1}\r\n"), 3)
	f.Fuzz(func(t *testing.T, data []byte, limit int) {
		limit = 1 + limit&63
		l := relay.NewLines(bufio.NewReaderSize(bytes.NewReader(data), 16), limit)
		var want [][]byte
		whole := data[:bytes.LastIndexByte(data, '\n')+1]
		for line := range bytes.SplitSeq(whole, []byte("\n")) {
			if len(bytes.TrimSpace(line)) > 0 || len(line) > limit {
				want = append(want, line)
			}
		}
		for _, w := range want {
			got, err := l.Next()
			tooLong, over := errors.AsType[*relay.TooLong](err)
			if over != (len(w) > limit) || over && tooLong.Size != int64(len(w)) || !over && !bytes.Equal(got, w) {
				t.Fatalf("%q: got %q, %v; want %q", data, got, err, w)
			}
		}
		if _, err := l.Next(); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%q: at the end %v", data, err)
		}
	})
}
