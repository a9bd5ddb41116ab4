package gateway

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/sse"
	"roundhouse/internal/wire"
)

// Limits of what waits in one stream, and in all streams together (H4). While
// somebody reads a stream without delay, bursts may be many times as long.
const (
	maxQueuedFrames = 256
	maxQueuedBytes  = 1 << 20
	maxQueuedTotal  = 512 << 20
	burst           = 16
	slowAfter       = time.Second // a reader that writes for so long delays the stream
)

// stream is an ordered run of frames to one client: the answer to one POST with
// what precedes it, or the standing stream of GET. Frames wait in its queue until a
// reader, which is one HTTP response, takes them; a stream that has begun as an
// event stream outlives its reader, so that the client can resume it (H2).
//
// Its lock may be held when that of its transport is taken, not the other way round.
type stream struct {
	t     *transport
	batch bool // JSON answers form an array
	wake  chan struct{}

	mu     sync.Mutex
	number uint64 // 0 is the standing stream, and a POST's that has not begun as an event stream
	// header adds to the response's headers and gives the status of a JSON answer;
	// nil adds nothing.
	header func(http.Header) int
	queue  []queued
	room   [1]queued // of queue at first: most answers come alone
	bytes  int
	open   int    // answers that are still to come; the standing stream never ends
	seq    uint64 // of the last event that was handed to a reader
	reader *reader
	parked time.Time // when it had all its answers and no reader any more
	lost   bool      // nobody can read it any more: frames are dropped
	worked bool      // what leads to the answers has been done
	slow   bool      // the client has waited for the keep-alive interval

	early   sync.WaitGroup // the writing that began before worked
	waiting wait           // of serve
}

type queued struct {
	p      mux.Pieces
	answer bool
}

// reader is one HTTP response that takes a stream's frames.
type reader struct {
	once    sync.Once
	done    chan struct{}
	writing atomic.Int64 // when it began to write, in Unix nanoseconds; 0 while it does not
}

func newReader() *reader { return &reader{done: make(chan struct{})} }

// slow reports whether the client takes its time with what it was sent last.
func (r *reader) slow() bool {
	begun := r.writing.Load()
	return begun != 0 && time.Since(time.Unix(0, begun)) > slowAfter
}

// stop makes the reader end its response soon.
func (r *reader) stop() { r.once.Do(func() { close(r.done) }) }

// newStream returns the stream of a POST that waits for n answers.
func newStream(t *transport, n int, batch bool) *stream {
	s := &stream{t: t, batch: batch, open: n, wake: make(chan struct{}, 1)}
	s.queue = s.room[:0]
	return s
}

// Note implements mux.Outlet.
func (s *stream) Note(p mux.Pieces) { s.put(p, false) }

// Done implements mux.Outlet. No answer follows a cancelled call: the POST ends
// without one.
func (s *stream) Done(p mux.Pieces) { s.put(p, true) }

func (s *stream) answer(raw []byte) { s.put(mux.Pieces{raw}, true) }

// put queues a frame. It never waits: a queue that is full for its client costs the
// stalled reader its connection, and the oldest frames that are no answers. What
// comes after the last answer is dropped.
func (s *stream) put(p mux.Pieces, answer bool) {
	s.mu.Lock()
	if s.open == 0 {
		s.mu.Unlock()
		return
	}
	if answer {
		s.open--
	}
	slow := false
	if !s.lost && !p.Empty() {
		slow = s.queueLocked(queued{p, answer})
	}
	parked := s.parkLocked()
	s.mu.Unlock()
	s.signal()
	if slow {
		s.t.g.metrics.cut.Inc()
		s.t.g.cfg.Log.Warn("a client reads too slowly; its stream was closed", "client", s.t.id)
	}
	if parked && !s.t.scheduleExpiry() {
		s.drop()
	}
}

// parkLocked notes when an event stream with all its answers is left without a
// reader, and reports whether it is now.
func (s *stream) parkLocked() bool {
	if s.open > 0 || s.number == 0 || s.reader != nil {
		return false
	}
	s.parked = time.Now()
	return true
}

// countLocked keeps the totals of what is queued.
func (s *stream) countLocked(n int) {
	s.bytes += n
	s.t.g.queued.Add(int64(n))
}

// queueLocked appends a frame, within the limits (H4). It reports whether a reader
// was given up for that.
func (s *stream) queueLocked(q queued) (slow bool) {
	n := q.p.Len()
	times := 1
	if s.reader != nil && !s.reader.slow() || s.awaitedLocked() {
		times = burst
	}
	own := func() bool {
		return len(s.queue) > 0 && (len(s.queue) >= times*maxQueuedFrames || s.bytes+n > times*maxQueuedBytes)
	}
	all := func() bool { return s.t.g.queued.Load()+int64(n) > maxQueuedTotal }
	if len(s.queue) > 0 && (own() || all()) {
		slow = s.reader != nil
		if slow {
			s.reader.stop()
			s.reader = nil
		}
		s.dropNotesLocked(func() bool { return own() || all() })
	}
	// When the clients together have reached their limit, only what is taken at once
	// is queued: by a reader that keeps up, or as the answer that a POST waits for.
	keepsUp := s.reader != nil && len(s.queue) == 0
	if all() && !keepsUp && !s.awaitedLocked() {
		return slow
	}
	s.queue = append(s.queue, q)
	s.countLocked(n)
	return slow
}

// awaitedLocked reports whether a POST waits for what comes, and has not begun its
// answer.
func (s *stream) awaitedLocked() bool { return s.number == 0 && s != &s.t.standing }

// dropNotesLocked drops the oldest frames that are no answers, for as long as it must.
func (s *stream) dropNotesLocked(must func() bool) {
	for i := 0; i < len(s.queue) && must(); {
		if s.queue[i].answer {
			i++
			continue
		}
		s.t.g.metrics.dropped.Inc()
		s.countLocked(-s.queue[i].p.Len())
		s.queue = slices.Delete(s.queue, i, i+1)
	}
}

// takeLocked takes what waits out of the queue.
func (s *stream) takeLocked() []queued {
	items := s.queue
	s.queue = nil
	s.countLocked(-s.bytes)
	return items
}

// serve answers a POST. work leads to the answers, and may take its time on the
// way: if it takes longer than the keep-alive interval the answer begins without
// waiting for it.
func (s *stream) serve(w http.ResponseWriter, r *http.Request, work func()) {
	patience := &s.t.g.patience
	patience.begin(&s.waiting, func() { s.tooSlow(w, r) })
	defer patience.end(&s.waiting)
	work()
	s.mu.Lock()
	s.worked = true
	early := s.slow
	s.mu.Unlock()
	if early {
		s.early.Wait()
	} else {
		s.serveAnswers(w, r)
	}
}

// tooSlow runs when a client has waited for the keep-alive interval: the answer
// becomes an event stream, so that comments keep the connection alive (H4). If serve is
// still at work somebody else writes it.
func (s *stream) tooSlow(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.slow = true
	worked := s.worked
	if !worked {
		s.early.Go(func() { s.serveEvents(w, r) })
	}
	s.mu.Unlock()
	if worked {
		s.signal()
	}
}

// serveAnswers writes JSON when the answers come alone, and an event stream as soon
// as something precedes them (H2), or when they are slow.
func (s *stream) serveAnswers(w http.ResponseWriter, r *http.Request) {
	for {
		select {
		case <-s.wake:
		case <-r.Context().Done():
			s.drop()
			return
		}
		s.mu.Lock()
		over, alone, slow := s.open == 0, true, s.slow
		for _, q := range s.queue {
			alone = alone && q.answer
		}
		var items []queued
		if over && alone {
			items = s.takeLocked()
		}
		s.mu.Unlock()
		switch {
		case over && alone:
			s.serveJSON(w, items)
			return
		case !alone || slow:
			s.serveEvents(w, r)
			return
		}
	}
}

// signal wakes whoever reads the stream.
func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
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

// drop forgets a stream that nobody can read any more.
func (s *stream) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
	s.takeLocked()
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
	me := newReader()
	s.takeOver(me, nil)
	s.t.adopt(s)
	s.write(w, r, me, nil, s.t.primes())
}

// read serves a GET with the stream. A client that resumes gets what it missed after
// an event first.
func (s *stream) read(w http.ResponseWriter, r *http.Request, me *reader, after *eventID, prime bool) {
	replay, ok := s.takeOver(me, after)
	if !ok {
		fail(w, 0, nil, fault.New(fault.UnknownSession, "this MCP session has ended"))
		return
	}
	s.write(w, r, me, replay, prime)
}

// write writes the stream's frames as events until it ends, the client leaves, or
// another reader takes over from me.
func (s *stream) write(w http.ResponseWriter, r *http.Request, me *reader, replay []event, prime bool) {
	defer s.leave(me)
	me.writing.Store(time.Now().UnixNano())
	g := s.t.g
	out := sse.NewWriter(w, g.cfg.WriteDeadline)
	for _, e := range replay {
		out.Event(s.t.eventID(e.eventID), e.p[:]...)
	}
	if prime { // last, so that whoever resumes after it has had what was replayed
		out.Event(s.t.eventID(s.nextEvent()))
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
		me.writing.Store(0)
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
		me.writing.Store(time.Now().UnixNano())
	}
}

// takeOver makes me the stream's reader, and returns what its client missed after an
// event: all that earlier readers were handed since then. It fails when the client
// has ended.
func (s *stream) takeOver(me *reader, after *eventID) (replay []event, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost {
		return nil, false
	}
	if s.reader != nil {
		s.reader.stop()
	}
	s.reader = me
	if after != nil {
		replay = s.t.missed(*after)
	}
	return replay, true
}

// leave ends a reader. An event stream goes on without one for as long as it may be
// resumed.
func (s *stream) leave(me *reader) {
	s.mu.Lock()
	if s.reader == me {
		s.reader = nil
	}
	parked := s.parkLocked()
	s.mu.Unlock()
	if parked && !s.t.scheduleExpiry() {
		s.drop()
	}
}

// hasReader reports whether somebody reads the stream.
func (s *stream) hasReader() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reader != nil
}

// nextEvent takes a number for an event without a frame. Each has a new one: clients
// that see the same id again think that the stream makes no progress.
func (s *stream) nextEvent() eventID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	return eventID{s.number, s.seq}
}

// pass hands what waits to the reader, with ids under which it can be replayed.
func (s *stream) pass(me *reader, out *sse.Writer) (mine, over bool) {
	s.mu.Lock()
	if s.reader != me {
		s.mu.Unlock()
		return false, false
	}
	items := s.takeLocked()
	events := make([]event, len(items))
	for i, q := range items {
		s.seq++
		events[i] = event{eventID{s.number, s.seq}, q.p, time.Now()}
	}
	s.t.keep(events)
	number := s.number
	over = s.open == 0 && s != &s.t.standing
	s.mu.Unlock()
	for _, e := range events {
		out.Event(s.t.eventID(e.eventID), e.p[:]...)
	}
	if over {
		s.t.finish(number)
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
