// Package sse reads and writes event streams (WHATWG HTML, section 9.2) on bytes.
package sse

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"time"
)

// Writer writes events to one HTTP response. It is used by one goroutine. Every
// write has a deadline, so that a reader that has stalled is found out; after an
// error the stream is of no more use.
type Writer struct {
	rc       *http.ResponseController
	buf      *bufio.Writer
	deadline time.Duration
	left     int // bytes that may still be written in the time that was given last
}

// pieceBytes is how much of a large event must go out within one deadline: a reader
// that is slow has not stalled.
const pieceBytes = 64 << 10

// NewWriter sends the headers of an event stream, with the first Flush at the latest.
// deadline is for one flush, or for 64 KiB of a large event; 0 is none. None runs
// between a Flush and the next event: in HTTP/2 it would end an idle stream.
func NewWriter(w http.ResponseWriter, deadline time.Duration) *Writer {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	return &Writer{rc: http.NewResponseController(w), buf: bufio.NewWriterSize(w, 4096), deadline: deadline}
}

// Event adds an event to what the next Flush sends. id "" gives it none; it must hold
// no line end. The parts of data follow each other. They may hold line ends, as JSON
// does between tokens: readers see an LF for each CR and each LF.
func (s *Writer) Event(id string, data ...[]byte) {
	s.arm()
	if id != "" {
		s.buf.WriteString("id: ")
		s.buf.WriteString(id)
		s.buf.WriteByte('\n')
	}
	s.buf.WriteString("data: ")
	for _, d := range data {
		if bytes.IndexByte(d, '\n') < 0 && bytes.IndexByte(d, '\r') < 0 {
			s.write(d)
			continue
		}
		for n := bytes.IndexAny(d, "\r\n"); n >= 0; n = bytes.IndexAny(d, "\r\n") {
			s.write(d[:n])
			s.buf.WriteString("\ndata: ")
			d = d[n+1:]
		}
		s.write(d)
	}
	s.buf.WriteString("\n\n")
}

// Named adds an event with a type. Neither holds a line end.
func (s *Writer) Named(kind string, data []byte) {
	s.arm()
	s.buf.WriteString("event: ")
	s.buf.WriteString(kind)
	s.buf.WriteByte('\n')
	s.buf.WriteString("data: ")
	s.write(data)
	s.buf.WriteString("\n\n")
}

// Comment adds a comment, which readers ignore, to what the next Flush sends. The
// text must hold no line end.
func (s *Writer) Comment(text string) {
	s.arm()
	s.buf.WriteString(": ")
	s.buf.WriteString(text)
	s.buf.WriteString("\n\n")
}

// Flush sends what was added. Its error covers the writes before it.
func (s *Writer) Flush() error {
	s.arm()
	if err := s.buf.Flush(); err != nil {
		return fmt.Errorf("write to the event stream: %w", err)
	}
	if err := s.rc.Flush(); err != nil {
		return fmt.Errorf("flush the event stream: %w", err)
	}
	s.limit(time.Time{})
	return nil
}

// write adds data, and gives each piece of it time of its own.
func (s *Writer) write(d []byte) {
	for len(d) > 0 {
		if s.left == 0 {
			s.arm()
		}
		n := min(len(d), s.left)
		s.buf.Write(d[:n])
		s.left -= n
		d = d[n:]
	}
}

// arm gives the next piece its time.
func (s *Writer) arm() {
	s.left = pieceBytes
	s.limit(time.Now().Add(s.deadline))
}

func (s *Writer) limit(t time.Time) {
	if s.deadline > 0 {
		_ = s.rc.SetWriteDeadline(t) // not every ResponseWriter can
	}
}
