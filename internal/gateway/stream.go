package gateway

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"roundhouse/internal/mux"
	"roundhouse/internal/sse"
	"roundhouse/internal/wire"
)

// Limits of what waits for one client, and of all clients together (H4).
const (
	maxQueuedFrames = 256
	maxQueuedBytes  = 1 << 20
	maxQueuedTotal  = 512 << 20
)

// stream is an ordered run of frames to one client: the answer to one POST with
// what precedes it, or the standing stream of GET. Frames wait in its queue until a
// reader, which is one HTTP response, takes them; a stream that has begun as an
// event stream outlives its reader, so that the client can resume it (H2).
type stream struct {
	t      *transport
	number uint64 // 0 is the standing stream
	batch  bool   // JSON answers form an array
	wake   chan struct{}

	mu sync.Mutex
	// header adds to the response's headers and gives the status of a JSON answer;
	// nil adds nothing.
	header func(http.Header) int
	queue  []queued
	bytes  int
	open   int    // answers that are still to come; the standing stream never ends
	seq    uint64 // of the last event that was handed to a reader
	reader *reader
	lost   bool // nobody can read it any more: frames are dropped
}

type queued struct {
	p      mux.Pieces
	answer bool
}

// reader is one HTTP response that takes a stream's frames.
type reader struct {
	once sync.Once
	done chan struct{}
}

func newReader() *reader { return &reader{done: make(chan struct{})} }

// stop makes the reader end its response soon.
func (r *reader) stop() { r.once.Do(func() { close(r.done) }) }

// newStream returns the stream of a POST that waits for n answers.
func newStream(t *transport, n int, batch bool) *stream {
	return &stream{t: t, batch: batch, open: n, wake: make(chan struct{}, 1)}
}

// Note implements mux.Outlet.
func (s *stream) Note(p mux.Pieces) { s.put(p, false) }

// Done implements mux.Outlet. No answer follows a cancelled call: the POST ends
// without one.
func (s *stream) Done(p mux.Pieces) { s.put(p, true) }

func (s *stream) answer(raw []byte) { s.put(mux.Pieces{raw}, true) }

// put queues a frame. It never waits: a queue that is full for its client costs the
// stalled reader its connection, and the oldest frames that are no answers.
func (s *stream) put(p mux.Pieces, answer bool) {
	s.mu.Lock()
	if answer && s.open > 0 {
		s.open--
	}
	if !s.lost && !p.Empty() {
		s.fitLocked(p.Len())
		s.queue = append(s.queue, queued{p, answer})
		s.count(p.Len())
	}
	over := s.open == 0 && s.number != 0
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	if over {
		s.t.scheduleExpiry()
	}
}

func (s *stream) count(n int) {
	s.bytes += n
	s.t.g.queued.Add(int64(n))
}

// fitLocked makes room for n bytes.
func (s *stream) fitLocked(n int) {
	full := func() bool {
		return len(s.queue) > 0 && (len(s.queue) >= maxQueuedFrames || s.bytes+n > maxQueuedBytes || s.t.g.queued.Load()+int64(n) > maxQueuedTotal)
	}
	if !full() {
		return
	}
	if s.reader != nil {
		s.reader.stop()
		s.reader = nil
		s.t.g.cfg.Log.Warn("a client reads too slowly; its stream was closed", "client", s.t.id)
	}
	for i := 0; i < len(s.queue) && full(); {
		if s.queue[i].answer {
			i++
			continue
		}
		s.count(-s.queue[i].p.Len())
		s.queue = slices.Delete(s.queue, i, i+1)
	}
}

// take returns what waits and whether the stream has ended with it.
func (s *stream) take() (items []queued, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items = s.queue
	s.queue = nil
	s.count(-s.bytes)
	return items, s.open == 0
}

// serve answers a POST. work leads to the answers, and may take its time on the
// way: if it takes longer than the keep-alive interval the answer begins without
// waiting for it.
func (s *stream) serve(w http.ResponseWriter, r *http.Request, work func()) {
	begun := make(chan struct{})
	early := time.AfterFunc(s.t.g.cfg.KeepAlive, func() {
		defer close(begun)
		s.serveEvents(w, r)
	})
	work()
	if early.Stop() {
		s.serveAnswers(w, r)
	} else {
		<-begun
	}
}

// serveAnswers writes JSON when the answers come alone, and an event stream as soon
// as something precedes them (H2), or when they let the client wait, so that comments
// keep the connection alive (H4).
func (s *stream) serveAnswers(w http.ResponseWriter, r *http.Request) {
	keep := time.NewTimer(s.t.g.cfg.KeepAlive)
	defer keep.Stop()
	for {
		select {
		case <-s.wake:
		case <-keep.C:
			s.serveEvents(w, r)
			return
		case <-r.Context().Done():
			s.drop()
			return
		}
		s.mu.Lock()
		over, alone := s.open == 0, true
		for _, q := range s.queue {
			alone = alone && q.answer
		}
		s.mu.Unlock()
		switch {
		case over && alone:
			items, _ := s.take()
			s.serveJSON(w, items)
			return
		case !alone:
			s.serveEvents(w, r)
			return
		}
	}
}

func (s *stream) setHeader(f func(http.Header) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.header = f
}

func (s *stream) addHeader(h http.Header) (status int) {
	s.mu.Lock()
	f := s.header
	s.mu.Unlock()
	if f == nil {
		return http.StatusOK
	}
	return f(h)
}

// drop forgets a stream whose client left before it was given an event id.
func (s *stream) drop() {
	s.mu.Lock()
	s.lost = true
	s.mu.Unlock()
	s.take()
}

func (s *stream) serveJSON(w http.ResponseWriter, items []queued) {
	status := s.addHeader(w.Header())
	switch {
	case len(items) == 0: // every call was cancelled
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
	case s.batch:
		parts := [][]byte{[]byte("[")}
		for i, q := range items {
			if i > 0 {
				parts = append(parts, []byte(","))
			}
			parts = append(parts, q.p[:]...)
		}
		writeJSON(w, status, append(parts, []byte("]"))...)
	default:
		p := items[0].p
		writeJSON(w, status, p[:]...)
	}
}

// serveEvents turns the answer of a POST into an event stream and reads it.
func (s *stream) serveEvents(w http.ResponseWriter, r *http.Request) {
	s.addHeader(w.Header())
	s.t.adopt(s)
	s.read(w, r, nil, s.t.primes())
}

// read writes the stream's frames as events until it ends, the client leaves, or
// another reader takes over. It begins with the events of replay.
func (s *stream) read(w http.ResponseWriter, r *http.Request, replay []event, prime bool) {
	me := newReader()
	if !s.t.g.enroll(me, s.number == 0) {
		w.WriteHeader(http.StatusOK)
		return
	}
	defer s.t.g.discharge(me)
	s.mu.Lock()
	if s.reader != nil {
		s.reader.stop()
	}
	s.reader = me
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		if s.reader == me {
			s.reader = nil
		}
		s.mu.Unlock()
	}()

	g := s.t.g
	out := sse.NewWriter(w, g.cfg.WriteDeadline)
	if prime {
		out.Event(s.t.eventID(s.number, s.nextSeq()))
	}
	for _, e := range replay {
		out.Event(s.t.eventID(e.stream, e.seq), e.p[:]...)
	}
	if out.Flush() != nil {
		return
	}
	keep := time.NewTimer(g.cfg.KeepAlive)
	defer keep.Stop()
	for {
		mine, over := s.pass(me, out)
		if !mine || out.Flush() != nil || over {
			return
		}
		keep.Reset(g.cfg.KeepAlive)
		select {
		case <-s.wake:
		case <-keep.C:
			out.Comment("keep-alive")
		case <-me.done:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// nextSeq takes a number for an event without a frame. Each has a new one: clients
// that see the same id again think that the stream makes no progress.
func (s *stream) nextSeq() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	return s.seq
}

// pass hands what waits to the reader, with ids under which it can be replayed.
func (s *stream) pass(me *reader, out *sse.Writer) (mine, over bool) {
	s.mu.Lock()
	if s.reader != me {
		s.mu.Unlock()
		return false, false
	}
	items := s.queue
	s.queue = nil
	s.count(-s.bytes)
	first := s.seq + 1
	s.seq += uint64(len(items))
	over = s.open == 0 && s.number != 0
	s.mu.Unlock()
	for i, q := range items {
		e := event{s.number, first + uint64(i), q.p, time.Now()}
		s.t.keep(e)
		out.Event(s.t.eventID(e.stream, e.seq), e.p[:]...)
	}
	if over {
		s.t.finish(s)
	}
	return true, over
}

// primes reports whether an event stream begins with an empty event that carries
// an id, as protocol version 2025-11-25 wants it.
func (t *transport) primes() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.client != nil && t.client.Version() >= wire.Version20251125
}
