// Package sse writes event streams (WHATWG HTML, section 9.2) on bytes.
package sse

import (
	"bufio"
	"fmt"
	"net/http"
	"time"
)

// Writer writes events to one HTTP response. It is used by one goroutine. Every
// write has a deadline, so that a reader that has stalled is found out; after an
// error the stream is of no more use.
type Writer struct {
	w        http.ResponseWriter
	rc       *http.ResponseController
	buf      *bufio.Writer
	deadline time.Duration
}

// NewWriter sends the headers of an event stream. deadline is for one flush; 0 is
// none.
func NewWriter(w http.ResponseWriter, deadline time.Duration) *Writer {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	return &Writer{w: w, rc: http.NewResponseController(w), buf: bufio.NewWriterSize(w, 4096), deadline: deadline}
}

// Event adds an event to what the next Flush sends. id "" gives it none. The parts
// of data follow each other and must hold no line end.
func (s *Writer) Event(id string, data ...[]byte) {
	if id != "" {
		s.buf.WriteString("id: ")
		s.buf.WriteString(id)
		s.buf.WriteByte('\n')
	}
	s.arm()
	s.buf.WriteString("data: ")
	for _, d := range data {
		s.buf.Write(d)
	}
	s.buf.WriteString("\n\n")
}

// Comment adds a comment, which readers ignore, to what the next Flush sends.
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
	return nil
}

// arm gives the next write its time; large events are written before the flush.
func (s *Writer) arm() {
	if s.deadline > 0 {
		_ = s.rc.SetWriteDeadline(time.Now().Add(s.deadline)) // not every ResponseWriter can
	}
}
