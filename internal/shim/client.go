package shim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/relay"
	"roundhouse/internal/wire"
)

// read takes the client's frames until it closes its end.
func (s *shim) read(ctx context.Context, end context.CancelCauseFunc) {
	in := relay.NewLines(bufio.NewReaderSize(s.cfg.In, relay.BufferSize), wire.MaxFrame)
	for {
		raw, err := in.Next()
		if tooLong, ok := errors.AsType[*relay.TooLong](err); ok {
			s.refuseLong(tooLong)
			continue
		}
		if err != nil { // whatever it is, nothing more comes
			s.closeInput(end)
			return
		}
		raws, _, err := wire.SplitBatch(raw)
		if err != nil {
			raws = [][]byte{raw} // the daemon says what is wrong
		}
		for _, raw := range raws { // a batch is taken apart, and answered one by one
			s.take(raw)
		}
		s.write()
		if !s.waitForRoom(ctx) {
			return
		}
	}
}

// closeInput ends the run: at once if there is no line, else when what waits is
// written and the daemon has closed the line, but soon.
func (s *shim) closeInput(end context.CancelCauseFunc) {
	s.mu.Lock()
	s.eof = true
	up := s.line != nil
	s.mu.Unlock()
	if !up {
		end(io.EOF)
		return
	}
	time.AfterFunc(parting, func() { end(io.EOF) })
	s.write()
}

// waitForRoom waits until the queue is short enough.
func (s *shim) waitForRoom(ctx context.Context) bool {
	for {
		s.mu.Lock()
		full := s.queued > maxQueuedBytes
		s.mu.Unlock()
		if !full {
			return true
		}
		select {
		case <-s.room:
		case <-ctx.Done():
			return false
		}
	}
}

// refuseLong answers a request that is over the limit (case 11); anything else that
// long is dropped, and its sender told on the side.
func (s *shim) refuseLong(e *relay.TooLong) {
	s.cfg.Say("%v; it was dropped", e)
	if e.Kind == wire.Request {
		s.fail(e.ID, fault.New(fault.TooLarge, "%w", e))
	}
}

// take puts one of the client's frames into the queue. What is no frame goes its way
// too, so that the daemon can say what is wrong with it.
func (s *shim) take(raw []byte) {
	f, err := wire.Parse(raw)
	if err != nil {
		f = wire.Frame{Raw: raw}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f.Kind {
	case wire.Response:
		if _, asked := s.asked[string(f.ID())]; !asked {
			return // who asked is gone
		}
		delete(s.asked, string(f.ID()))
	case wire.Notification:
		if f.Method == wire.Cancelled {
			if s.withdrawLocked(f) {
				return
			}
			s.memories.unlisten(cancelledBy(f))
		}
		if s.line == nil {
			s.forgetNoteLocked()
		}
	}
	s.memories.read(f)
	q := &frame{Frame: f}
	s.queue = append(s.queue, q)
	s.queued += len(f.Raw)
	if s.away {
		s.waitLocked(q)
	}
}

// waitLocked lets a request wait for a line, but not for ever.
func (s *shim) waitLocked(f *frame) {
	if f.Kind != wire.Request {
		return
	}
	s.wanted = true
	signal(s.demand)
	if f.timer == nil {
		f.timer = time.AfterFunc(s.cfg.Wait, func() { s.expire(f) })
	}
}

// expire answers a request for which no daemon was found in time.
func (s *shim) expire(f *frame) {
	s.mu.Lock()
	if f.timer == nil || !s.unqueueLocked(f) {
		s.mu.Unlock()
		return
	}
	if f.Method == wire.MethodInitialize {
		s.memories.forgetHello()
	}
	cause := s.cause
	s.mu.Unlock()
	signal(s.room)
	s.fail(f.ID(), &fault.Error{
		Reason: fault.Interrupted, Sent: fault.SentNo, Err: cause,
		Message: fmt.Sprintf("no roundhouse daemon could be reached within %s, so the request was not sent: %v", s.cfg.Wait, cause),
	})
}

// withdrawLocked takes a request that was not written yet out of the queue, if
// that is what the notification cancels: no answer follows (M2).
func (s *shim) withdrawLocked(f wire.Frame) bool {
	id := cancelledBy(f)
	i := slices.IndexFunc(s.queue, func(q *frame) bool { return q.Kind == wire.Request && string(q.ID()) == id })
	return i >= 0 && s.queue[i].Method != wire.MethodInitialize && s.unqueueLocked(s.queue[i])
}

// cancelledBy returns the id of the request that a notification cancels, or "".
func cancelledBy(f wire.Frame) string {
	r, err := f.Routing()
	if err != nil {
		return ""
	}
	return string(r.RequestID.Of(f.Raw))
}

// forgetNoteLocked makes room for another notification that waits for a line.
func (s *shim) forgetNoteLocked() {
	notes := 0
	var oldest *frame
	for _, q := range s.queue {
		if q.Kind == wire.Notification {
			if notes++; oldest == nil {
				oldest = q
			}
		}
	}
	if notes >= maxQueuedNotes {
		s.unqueueLocked(oldest)
	}
}

// unqueueLocked takes a frame out of the queue, and reports whether it was there.
func (s *shim) unqueueLocked(f *frame) bool {
	i := slices.Index(s.queue, f)
	if i < 0 {
		return false
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	s.queued -= len(f.Raw)
	s.stopLocked(f)
	return true
}

func (s *shim) stopLocked(f *frame) {
	if f.timer != nil {
		f.timer.Stop()
		f.timer = nil
	}
}

func (s *shim) pushFrontLocked(f *frame) {
	s.queue = slices.Insert(s.queue, 0, f)
	s.queued += len(f.Raw)
}
