package sse_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/sse"
)

func TestEventsAreExactBytes(t *testing.T) {
	large := strings.Repeat("0123456789", 20_000) // larger than every buffer on the way
	for _, test := range []struct {
		name string
		send func(*sse.Writer)
		want string
	}{
		{"no event", func(*sse.Writer) {}, ""},
		{"event", func(s *sse.Writer) { s.Event("", []byte(`{"a":1}`)) }, "data: {\"a\":1}\n\n"},
		{"event with an id", func(s *sse.Writer) { s.Event("x-1-2", []byte(`{}`)) }, "id: x-1-2\ndata: {}\n\n"},
		{"event without data", func(s *sse.Writer) { s.Event("7") }, "id: 7\ndata: \n\n"},
		{
			"event in parts", func(s *sse.Writer) { s.Event("", []byte(`{"id":`), []byte(`"ü"`), nil, []byte(`}`)) },
			"data: {\"id\":\"ü\"}\n\n",
		},
		{
			"two events", func(s *sse.Writer) { s.Event("1", []byte("a")); s.Event("2", []byte("b")) },
			"id: 1\ndata: a\n\nid: 2\ndata: b\n\n",
		},
		{"comment", func(s *sse.Writer) { s.Comment("keep-alive") }, ": keep-alive\n\n"},
		{"large event", func(s *sse.Writer) { s.Event("", []byte(large), []byte(large)) }, "data: " + large + large + "\n\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			s := sse.NewWriter(w, time.Minute)
			test.send(s)
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
			if got := w.Body.String(); got != test.want {
				t.Errorf("got %.200q, want %.200q", got, test.want)
			}
		})
	}
}

// A line end between JSON tokens must not end the event, or the reader gets half a
// frame: CR alone is a line end in event streams.
func TestLineEndsInDataStayInTheEvent(t *testing.T) {
	for _, test := range []struct {
		parts []string
		want  string // as the reader sees it
	}{
		{[]string{"{\r\"a\":1}"}, "{\n\"a\":1}"},
		{[]string{"{\n\"a\":1}"}, "{\n\"a\":1}"},
		{[]string{"{\r\n\"a\":1\r\n}"}, "{\n\n\"a\":1\n\n}"},
		{[]string{"{\r", "\n\"a\":1}"}, "{\n\n\"a\":1}"},
		{[]string{"{", "\r\"a\":1", "}\n"}, "{\n\"a\":1}\n"},
		{[]string{"\n"}, "\n"},
	} {
		w := httptest.NewRecorder()
		s := sse.NewWriter(w, 0)
		var parts [][]byte
		for _, p := range test.parts {
			parts = append(parts, []byte(p))
		}
		s.Event("", parts...)
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		if got := readEvents(w.Body.String()); len(got) != 1 || got[0] != test.want {
			t.Errorf("%q was read as %q, want %q", test.parts, got, test.want)
		}
	}
}

// readEvents returns the data of the events in a stream, as a reader sees them.
func readEvents(stream string) (events []string) {
	stream = strings.ReplaceAll(strings.ReplaceAll(stream, "\r\n", "\n"), "\r", "\n")
	var data []string
	for line := range strings.Lines(stream) {
		line = strings.TrimSuffix(line, "\n")
		if value, ok := strings.CutPrefix(line, "data:"); ok {
			data = append(data, strings.TrimPrefix(value, " "))
		}
		if line == "" && data != nil {
			events, data = append(events, strings.Join(data, "\n")), nil
		}
	}
	return events
}

func TestHeadersOfTheStream(t *testing.T) {
	w := httptest.NewRecorder()
	if err := sse.NewWriter(w, 0).Flush(); err != nil {
		t.Fatal(err)
	}
	if w.Code != http.StatusOK || !w.Flushed {
		t.Errorf("status %d, flushed %v", w.Code, w.Flushed)
	}
	for name, want := range map[string]string{
		"Content-Type":      "text/event-stream",
		"Cache-Control":     "no-cache, no-transform",
		"X-Accel-Buffering": "no",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestNothingIsSentBeforeFlush(t *testing.T) {
	w := httptest.NewRecorder()
	s := sse.NewWriter(w, 0)
	s.Event("", []byte("a"))
	if w.Body.Len() != 0 || w.Flushed {
		t.Errorf("%q was sent already", w.Body)
	}
}

// timed is a ResponseWriter that notes deadlines, and how much was written with each.
type timed struct {
	*httptest.ResponseRecorder
	deadlines []time.Time
	written   []int
}

func (w *timed) SetWriteDeadline(t time.Time) error {
	w.deadlines = append(w.deadlines, t)
	w.written = append(w.written, 0)
	return nil
}

func (w *timed) Write(p []byte) (int, error) {
	if n := len(w.written); n > 0 {
		w.written[n-1] += len(p)
	}
	return w.ResponseRecorder.Write(p)
}

func TestWithoutADeadlineNoneIsSet(t *testing.T) {
	w := &timed{ResponseRecorder: httptest.NewRecorder()}
	s := sse.NewWriter(w, 0)
	s.Event("", []byte("a"))
	if err := s.Flush(); err != nil || len(w.deadlines) != 0 {
		t.Errorf("error %v, deadlines %v", err, w.deadlines)
	}
}

func TestEachPieceOfALargeEventHasItsOwnDeadline(t *testing.T) {
	for _, data := range [][]byte{
		bytes.Repeat([]byte("a"), 1<<20),
		bytes.Repeat([]byte("a\n"), 1<<19),
	} {
		w := &timed{ResponseRecorder: httptest.NewRecorder()}
		s := sse.NewWriter(w, time.Hour)
		s.Event("", data)
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		for i, n := range w.written {
			if n > 512<<10 {
				t.Errorf("deadline %d is for %d bytes", i, n)
			}
		}
	}
}

// broken is a ResponseWriter whose writes fail.
type broken struct{ http.ResponseWriter }

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestFlushReportsWritesThatFailedBefore(t *testing.T) {
	s := sse.NewWriter(broken{httptest.NewRecorder()}, 0)
	s.Event("", bytes.Repeat([]byte("a"), 1<<20))
	for range 2 { // It does not recover.
		if err := s.Flush(); !errors.Is(err, errBroken) {
			t.Errorf("error %v", err)
		}
	}
}

func TestAResponseThatCannotFlushIsAnError(t *testing.T) {
	s := sse.NewWriter(struct{ http.ResponseWriter }{httptest.NewRecorder()}, 0)
	if err := s.Flush(); !errors.Is(err, http.ErrNotSupported) {
		t.Errorf("error %v", err)
	}
}

func BenchmarkEvent(b *testing.B) {
	w := &discard{header: http.Header{}}
	s := sse.NewWriter(w, time.Minute)
	head, id, tail := []byte(`{"jsonrpc":"2.0","id":`), []byte("17"), bytes.Repeat([]byte("x"), 16<<10)
	b.SetBytes(int64(len(tail)))
	b.ReportAllocs()
	for b.Loop() {
		s.Event("0123abcd-1-1", head, id, tail)
		if err := s.Flush(); err != nil {
			b.Fatal(err)
		}
	}
}

type discard struct{ header http.Header }

func (w *discard) Header() http.Header              { return w.header }
func (w *discard) Write(p []byte) (int, error)      { return len(p), nil }
func (w *discard) WriteHeader(int)                  {}
func (w *discard) Flush()                           {}
func (w *discard) SetWriteDeadline(time.Time) error { return nil }
