package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/relay"
	"roundhouse/internal/wire"
)

// serve relays on a line until it is lost, and returns why it was.
func (s *shim) serve(ctx context.Context, line *Line) error {
	defer context.AfterFunc(ctx, func() { _ = line.Conn.Close() })()
	defer line.Conn.Close() // whatever is wrong with it is why it was lost
	in := line.lines()
	s.hold()
	if err := s.repeat(line, in); err != nil {
		return err
	}
	if s.resume != "" {
		s.cfg.Say("connected to a daemon again")
	}
	s.resume = line.Session
	s.mu.Lock()
	s.line = line
	s.mu.Unlock()
	var waiting sync.WaitGroup
	waiting.Go(s.write) // what came while there was no line
	err := s.relay(in)
	_ = line.Conn.Close() // whoever writes to it may be stuck
	waiting.Wait()
	return err
}

// hold stops the clocks of requests that wait: there is a daemon now, and however
// long it takes with the handshake, it answers.
func (s *shim) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
	select {
	case <-s.demand: // it is met
	default:
	}
	for _, f := range s.queue {
		s.stopLocked(f)
	}
}

// relay passes on what the daemon sends.
func (s *shim) relay(in *relay.Lines) error {
	for {
		raw, err := in.Next()
		if tooLong, ok := errors.AsType[*relay.TooLong](err); ok {
			s.dropLong(tooLong)
			continue
		}
		if err != nil {
			return err
		}
		s.pass(raw)
	}
}

// dropLong settles what a frame of the daemon was about that is too long for us.
func (s *shim) dropLong(e *relay.TooLong) {
	s.cfg.Say("the daemon sent %v; it was dropped", e)
	if e.Kind == wire.Response && e.ID != nil {
		s.pass(wire.ErrorReply(e.ID, fault.New(fault.TooLarge, "the answer is too large: %w", e).RPC()))
	}
}

// pass hands one of the daemon's frames to the client, unless it is not for it.
func (s *shim) pass(raw []byte) {
	f, err := wire.Parse(raw)
	if err == nil && f.Method == wire.Acknowledged {
		for _, raw := range s.acknowledged(f) {
			s.out.put(raw)
		}
		return
	}
	if err != nil || s.note(f) {
		s.out.put(raw)
		s.out.wait()
	}
	if f.Kind == wire.Response && s.isLeaving() {
		s.write() // it may have been the last thing that the daemon owed
	}
}

func (s *shim) isLeaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving
}

// note reads what a frame of the daemon changes, and reports whether it is for the
// client.
func (s *shim) note(f wire.Frame) bool {
	id := string(f.ID())
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f.Kind {
	case wire.Request:
		s.asked[id] = struct{}{}
	case wire.Notification:
		if f.Method == wire.Cancelled {
			delete(s.asked, cancelledBy(f))
		}
	case wire.Response:
		if _, ours := s.swallow[id]; ours {
			delete(s.swallow, id)
			return false
		}
		if s.memories.listens(id) {
			if isStopping(f, wire.SubscriptionsListen) {
				s.leaving = true // the next daemon gets it
				return false
			}
			s.memories.unlisten(id)
		}
		request := s.sent[id]
		delete(s.sent, id)
		again := request != nil && request.stops < maxStops && isStopping(f, request.Method)
		if again { // the next daemon gets it
			request.stops++
			s.leaving = true
			s.pushFrontLocked(request)
			s.waitLocked(request)
		} else if request != nil {
			s.memories.answered(request.Frame, f)
		}
		return !again
	}
	return true
}

// acknowledged takes the daemon's word that a client listens, and returns what the
// client is told: that, or if it has been told before, what it may have missed.
func (s *shim) acknowledged(f wire.Frame) [][]byte {
	ack := readAck(f)
	id := string(ack.Meta.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.anew[id]; again {
		delete(s.anew, id)
		return ack.news()
	}
	if request := s.sent[id]; request != nil && request.Method == wire.SubscriptionsListen {
		delete(s.sent, id) // nothing is owed until it ends
		s.memories.listening = append(s.memories.listening, request.Frame)
	}
	return [][]byte{f.Raw}
}

// maxStops is how many daemons in a row may refuse a request because they are
// stopping.
const maxStops = 3

// isStopping reports whether an error says that a request was not executed because
// the daemon is stopping. A handshake never is.
func isStopping(f wire.Frame, method string) bool {
	if !f.ErrorSpan.Present() {
		return false
	}
	var e struct {
		Data struct {
			Reason fault.Reason
			Sent   fault.Sent
		}
	}
	return json.Unmarshal(f.ErrorValue(), &e) == nil && e.Data.Reason == fault.Draining &&
		(e.Data.Sent == fault.SentNo || method == wire.MethodInitialize)
}

// write writes what waits in the queue to the line, if there is one, unless somebody
// does already; so a frame of the client's reaches the daemon without another goroutine
// being woken. When the client has closed its end, or the daemon is stopping and owes
// nothing more, it closes ours.
func (s *shim) write() {
	s.mu.Lock()
	line := s.line
	if line == nil || s.writing {
		s.mu.Unlock()
		return
	}
	s.writing = true
	f, over := s.nextLocked()
	for f != nil {
		s.mu.Unlock()
		signal(s.room)
		err := s.writeLine(line.Conn, f.Raw)
		s.mu.Lock()
		if err != nil {
			// The daemon has not got its end, so it has not read it at all.
			delete(s.sent, string(f.ID()))
			s.pushFrontLocked(f)
			over = true // what it has sent still counts
			break
		}
		f, over = s.nextLocked()
	}
	s.writing = false
	s.idle.Broadcast()
	s.mu.Unlock()
	if over {
		hangUp(line)
	}
}

// writeLine writes a frame and a line end, small ones at once.
func (s *shim) writeLine(w io.Writer, raw []byte) error {
	if len(raw) < relay.BufferSize {
		s.buf = append(append(s.buf[:0], raw...), '\n')
		_, err := w.Write(s.buf)
		return err
	}
	if _, err := w.Write(raw); err != nil {
		return err
	}
	_, err := w.Write([]byte{'\n'})
	return err
}

// nextLocked takes the next frame for the line, or nil. A daemon that stops gets no new
// requests. over says that the line is to be closed.
func (s *shim) nextLocked() (f *frame, over bool) {
	i := 0
	if s.leaving {
		i = slices.IndexFunc(s.queue, func(f *frame) bool { return f.Kind != wire.Request })
	}
	if i < 0 || i >= len(s.queue) {
		return nil, s.eof || s.leaving && len(s.sent) == 0
	}
	f = s.queue[i]
	s.unqueueLocked(f)
	if f.Kind == wire.Request {
		s.sent[string(f.ID())] = f
	}
	return f, false
}

// hangUp closes our direction of a line; the daemon then closes its own.
func hangUp(line *Line) {
	half, ok := line.Conn.(interface{ CloseWrite() error })
	if ok {
		_ = half.CloseWrite() // it may be closed already
		ok = line.Conn.SetReadDeadline(time.Now().Add(parting)) == nil
	}
	if !ok {
		_ = line.Conn.Close() // there is no better way
	}
}

// errHandshake is the daemon's error answer to a handshake that was repeated.
type errHandshake struct {
	object   []byte
	stopping bool // the next daemon may accept it
}

func (e *errHandshake) Error() string {
	var v struct{ Message string }
	if json.Unmarshal(e.object, &v) != nil || v.Message == "" {
		return "the handshake was refused"
	}
	return "the handshake was refused: " + v.Message
}

// repeat brings a new line to where the client believes to be: handshake,
// log level and subscriptions, whose answers the client does not see, and listens.
func (s *shim) repeat(line *Line, in *relay.Lines) error {
	s.mu.Lock()
	m := s.memories
	m.listening = slices.Clone(m.listening) // the client may cancel some
	for _, f := range m.listening {
		s.anew[string(f.ID())] = struct{}{}
	}
	s.mu.Unlock()
	if m.answer != nil { // else its own handshake waits in the queue, or is still to come, if ever
		if err := s.repeatHandshake(line, in, m); err != nil {
			return err
		}
	}
	for _, f := range m.listening {
		if err := s.writeLine(line.Conn, f.Raw); err != nil { // nobody else writes yet
			return fmt.Errorf("listen again: %w", err)
		}
	}
	return nil
}

func (s *shim) repeatHandshake(line *Line, in *relay.Lines, m memories) error {
	if err := s.writeLine(line.Conn, m.hello.Raw); err != nil { // nobody else writes yet
		return fmt.Errorf("repeat the handshake: %w", err)
	}
	answer, err := s.awaitHello(in, string(m.hello.ID()))
	if err != nil {
		if refused, ok := errors.AsType[*errHandshake](err); ok && !refused.stopping {
			s.failWaiting(refused.object)
		}
		return fmt.Errorf("repeat the handshake: %w", err)
	}
	frames, ids := m.rest()
	s.mu.Lock()
	for _, id := range ids {
		s.swallow[id] = struct{}{}
	}
	s.mu.Unlock()
	for _, raw := range frames {
		if err := s.writeLine(line.Conn, raw); err != nil {
			return fmt.Errorf("restore subscriptions: %w", err)
		}
	}
	for _, raw := range m.news(answer) {
		s.out.put(raw)
	}
	s.mu.Lock()
	s.memories.answer = answer
	s.mu.Unlock()
	return nil
}

// awaitHello reads until the handshake is answered.
func (s *shim) awaitHello(in *relay.Lines, id string) (result []byte, err error) {
	for {
		raw, err := in.Next()
		if err != nil {
			return nil, err
		}
		f, err := wire.Parse(raw)
		if err != nil || f.Kind != wire.Response || string(f.ID()) != id {
			s.pass(raw)
			continue
		}
		if f.ErrorSpan.Present() {
			return nil, &errHandshake{f.ErrorValue(), isStopping(f, wire.MethodInitialize)}
		}
		return f.Result(), nil
	}
}

// failWaiting answers the requests that wait with the error that the handshake got.
func (s *shim) failWaiting(object []byte) {
	s.mu.Lock()
	var ids [][]byte
	for _, f := range slices.Clone(s.queue) {
		if f.Kind == wire.Request {
			s.unqueueLocked(f)
			ids = append(ids, f.ID())
		}
	}
	s.mu.Unlock()
	signal(s.room)
	for _, id := range ids {
		s.out.put(wire.ErrorReply(id, object))
	}
}
