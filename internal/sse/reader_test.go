package sse_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"roundhouse/internal/sse"
)

// pieces gives a text in pieces of a size, one a read.
type pieces struct {
	text string
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b, p.text[:min(p.size, len(p.text))])
	p.text = p.text[n:]
	return n, nil
}

// readAll says what a reader makes of a stream.
func readAll(src io.Reader, max int) (said []string) {
	r := sse.NewReader(src, max)
	for {
		e, err := r.Next()
		if err != nil {
			return append(said, fmt.Sprintf("end: id %q, retry %s, rest %q, %v", r.LastID(), r.Retry(), r.Rest(), err))
		}
		if e.TooLong() {
			said = append(said, fmt.Sprintf("%s of %d bytes, id %q", e.Type, e.Size, r.LastID()))
			continue
		}
		said = append(said, fmt.Sprintf("%s %q, id %q", e.Type, e.Data, r.LastID()))
	}
}

// Cases 15, 22, C-1 to C-18: everything legal is read, wherever reads cut it.
func TestEventsAreReadWhereverTheyAreCut(t *testing.T) {
	end := func(id, rest string) string { return fmt.Sprintf("end: id %q, retry 0s, rest %q, EOF", id, rest) }
	utf := "message \"北🙂\", id \"\""
	for _, c := range []struct {
		name, stream string
		want         []string
	}{
		{"nothing", "", []string{end("", "")}},
		{"LF", "data: 北🙂\n\n", []string{utf, end("", "")}},
		{"CRLF", "data: 北🙂\r\n\r\n", []string{utf, end("", "")}},
		{"CR", "data: 北🙂\r\r", []string{utf, end("", "")}},
		{"line ends mixed", "data: 北🙂\r\ndata:x\n\rdata: y\r\n\ndata:z\r\r\n", []string{`message "北🙂\nx", id ""`, `message "y", id ""`, `message "z", id ""`, end("", "")}},
		{"byte order mark", "\xef\xbb\xbfdata: 北🙂\n\n", []string{utf, end("", "")}},
		{"half a byte order mark", "\xef\xbbdata: x\n\ndata: 北🙂\n\n", []string{utf, end("", "")}},
		{"mark inside", "data: 北🙂\n\n\xef\xbb\xbfdata: x\n\n", []string{utf, end("", "")}},
		{"no space", "data:北🙂\n\n", []string{utf, end("", "")}},
		{"two spaces", "data:  a\n\n", []string{`message " a", id ""`, end("", "")}},
		{"several lines", "data: a\ndata:\ndata\ndata: b\n\n", []string{`message "a\n\n\nb", id ""`, end("", "")}},
		{"comments", ": PROCESSING\n\ndata: a\n: ping\ndata: b\n\n:end\n\n: data: c\n\n", []string{`message "a\nb", id ""`, end("", "")}},
		{"unknown fields", "dat: a\ndatas: b\nDATA: c\n data: d\nfoo\neventual: x\ndata: 1\n\n", []string{`message "1", id ""`, end("", "")}},
		{"types", "event: ping\ndata: 1\n\ndata: 2\n\nevent: a\nevent:\ndata: 3\n\nevent: x\n\ndata: 4\n\n",
			[]string{`ping "1", id ""`, `message "2", id ""`, `message "3", id ""`, `message "4", id ""`, end("", "")}},
		{"colons in data", "data: {\"a\":\"b:c\"}\n\n", []string{`message "{\"a\":\"b:c\"}", id ""`, end("", "")}},
		{"ids", "id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\nid: 4\n\n", []string{`message "a", id "1"`, `message "b", id "1"`, `message "c", id ""`, end("4", "")}},
		{"id with NUL", "id: 1\n\nid: 2\x003\ndata: a\n\n", []string{`message "a", id "1"`, end("1", "")}},
		{"id of an event that was cut off", "id: 1\n\nid: 2\ndata: a\n", []string{end("1", "a")}},
		{"id that is too long", "id: 1\n\nid: " + strings.Repeat("x", 5000) + "\ndata: a\n\n", []string{`message "a", id ""`, end("", "")}},
		{"primer", "id: 7\ndata:\n\n", []string{`message "", id "7"`, end("7", "")}},
		{"last event without a blank line", "data: a\n\ndata: b\ndata: c", []string{`message "a", id ""`, end("", "b\nc")}},
		{"too long", "id: 1\ndata: 0123456789\n\ndata: 012345678\ndata:\n\ndata: 01234567\ndata:\n\n",
			[]string{`message of 10 bytes, id "1"`, `message of 10 bytes, id "1"`, `message "01234567\n", id "1"`, end("1", "")}},
	} {
		limit := 1 << 20
		if c.name == "too long" {
			limit = 9
		}
		for _, size := range []int{1, 2, 3, 5, 1 << 20} {
			if got := readAll(&pieces{c.stream, size}, limit); !slices.Equal(got, c.want) {
				t.Errorf("%s, in pieces of %d:\n got %q\nwant %q", c.name, size, got, c.want)
			}
		}
	}
}

func TestRetryIsTakenInMilliseconds(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"1500": 1500 * time.Millisecond, "0": 0, "": 0, "1.5": 0, "-1": 0, "1s": 0,
		"99999999": time.Hour, "99999999999999999999999": time.Hour,
	} {
		r := sse.NewReader(strings.NewReader("retry: "+value+"\n"), 1)
		if _, err := r.Next(); err != io.EOF || r.Retry() != want {
			t.Errorf("retry %q: got %s and error %v", value, r.Retry(), err)
		}
	}
}

// An event is there with the last byte of its blank line, also when that is a CR.
func TestEventsDoNotWaitForTheNextByte(t *testing.T) {
	for _, blank := range []string{"\n\n", "\r\r", "\r\n\r"} {
		in, out := io.Pipe()
		go io.WriteString(out, "data: a"+blank)
		if e, err := sse.NewReader(in, 10).Next(); err != nil || string(e.Data) != "a" {
			t.Errorf("%q: got %q and error %v", blank, e.Data, err)
		}
		in.Close()
	}
}

// Cases C-13 to C-19: no line is too long below the limit.
func TestLongLinesAreRead(t *testing.T) {
	long := strings.Repeat("0123456789", 500_000)
	for _, size := range []int{1000, 1 << 20} {
		r := sse.NewReader(&pieces{"data: " + long + "\n\ndata: x\n\n", size}, 64<<20)
		e, err := r.Next()
		if err != nil || string(e.Data) != long {
			t.Fatalf("got %d bytes and error %v", len(e.Data), err)
		}
		if e, err = r.Next(); err != nil || string(e.Data) != "x" {
			t.Errorf("got %q and error %v", e.Data, err)
		}
	}
}

func TestTheDataOfEventsThatAreTooLongIsSkippedInPieces(t *testing.T) {
	for _, size := range []int{1, 3, 100} {
		var skipped bytes.Buffer
		r := sse.NewReader(&pieces{"data: a\n\ndata: 0123\ndata: 4567\ndata: 89\n\ndata: b\n\n", size}, 8)
		r.Skipped = func(piece []byte) { skipped.Write(piece) }
		for {
			if _, err := r.Next(); err != nil {
				break
			}
		}
		if got := skipped.String(); got != "0123\n4567\n89" {
			t.Errorf("in pieces of %d: got %q", size, got)
		}
	}
}

func TestTheReceiverOwnsTheData(t *testing.T) {
	r := sse.NewReader(strings.NewReader("data: first\n\ndata: other\n\n"), 100)
	first, _ := r.Next()
	if _, err := r.Next(); err != nil || string(first.Data) != "first" {
		t.Errorf("the first event became %q", first.Data)
	}
}

func TestAnErrorOfReadingComesAfterTheEvents(t *testing.T) {
	broken := errors.New("broken")
	r := sse.NewReader(io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(broken)), 100)
	if e, err := r.Next(); err != nil || string(e.Data) != "a" {
		t.Errorf("got %q and error %v", e.Data, err)
	}
	for range 2 {
		if _, err := r.Next(); err != broken {
			t.Errorf("got %v", err)
		}
	}
}

// What the writer writes, the reader reads.
func FuzzReader(f *testing.F) {
	f.Add("data: a\n\n", uint8(1))
	f.Add("\xef\xbb\xbfid: 1\r\nevent: x\rdata:a\ndata\n\r\n: c\n\nretry: 10\n\n", uint8(3))
	f.Add("data: 0123456789012345678901234567890123456789\n\nid:\x00\ndata:", uint8(7))
	f.Fuzz(func(t *testing.T, stream string, size uint8) {
		const limit = 32
		whole := readAll(strings.NewReader(stream), limit)
		cut := readAll(&pieces{stream, int(size) + 1}, limit)
		if !slices.Equal(whole, cut) {
			t.Errorf("the whole stream says %q, in pieces of %d it says %q", whole, int(size)+1, cut)
		}
		if single := readAll(iotest.OneByteReader(strings.NewReader(stream)), limit); !slices.Equal(whole, single) {
			t.Errorf("the whole stream says %q, byte by byte it says %q", whole, single)
		}
		if want := standard(stream, limit); !slices.Equal(whole[:len(whole)-1], want) {
			t.Errorf("the stream says %q, by the standard %q", whole, want)
		}
	})
}

// standard reads a stream in the simplest way that follows the standard's words.
func standard(stream string, limit int) (said []string) {
	stream = strings.TrimPrefix(stream, "\xef\xbb\xbf")
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(stream, "\n")
	id, typ, data := "", "", []string(nil)
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			text := strings.Join(data, "\n")
			if typ == "" {
				typ = "message"
			}
			switch {
			case data == nil:
			case len(text) > limit:
				said = append(said, fmt.Sprintf("%s of %d bytes, id %q", typ, len(text), id))
			default:
				said = append(said, fmt.Sprintf("%s %q, id %q", typ, text, id))
			}
			typ, data = "", nil
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "data":
			data = append(data, value)
		case "event":
			typ = value
		case "id":
			if !strings.Contains(value, "\x00") {
				id = value
			}
		}
	}
	return said
}

func BenchmarkReader(b *testing.B) {
	for _, size := range []int{200, 4 << 10, 1 << 20} {
		event := "id: 12345\nevent: message\ndata: " + strings.Repeat("x", size) + "\n\n"
		stream := []byte(strings.Repeat(event, max(1, (1<<20)/len(event))))
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			for b.Loop() {
				r := sse.NewReader(bytes.NewReader(stream), 64<<20)
				for {
					if _, err := r.Next(); err != nil {
						break
					}
				}
			}
		})
	}
}
