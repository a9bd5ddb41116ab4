package gateway

import (
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/session"
)

// The resumption ring: what a client that lost its connection can still get (H2).
const (
	ringEvents = 256
	ringBytes  = 1 << 20
	ringAge    = 5 * time.Minute
)

// transport is the HTTP side of one client: its standing stream, the streams of
// POSTs that have begun as event streams, and the ring. It implements
// session.Stream.
type transport struct {
	g        *Gateway
	id       string // of the client
	before   uint64 // the streams and events of an earlier daemon have lower numbers; 0 if there was none
	standing stream

	mu      sync.Mutex
	client  *session.Client // set when initialize has succeeded
	posts   map[uint64]*stream
	numbers uint64
	ring    []event
	bytes   int
	timer   *time.Timer // of the next expiry, or nil
	due     time.Time   // when timer fires
	ended   bool
}

// event is one frame as it was sent, or at least tried.
type event struct {
	eventID
	p  mux.Pieces
	at time.Time
}

func newTransport(g *Gateway, id string) *transport {
	t := &transport{g: g, id: id}
	t.standing = stream{t: t, wake: make(chan struct{}, 1), open: 1}
	return t
}

// Resume is the Stream of a client that an earlier daemon has served (N6). What that one
// sent is not here; its event ids mean nothing but that the client has missed something.
func (g *Gateway) Resume(c *session.Client) session.Stream {
	t := newTransport(g, c.ID())
	t.before = uint64(time.Now().UnixMicro())
	t.numbers, t.standing.seq = t.before, t.before
	t.begin(c)
	return t
}

func (t *transport) begin(c *session.Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.client = c
}

// Push implements session.Stream.
func (t *transport) Push(p mux.Pieces) { t.standing.Note(p) }

// End implements session.Stream: the standing stream ends, and nothing is kept. A
// POST that somebody reads still gets its answers.
func (t *transport) End(*fault.Error) {
	t.mu.Lock()
	t.ended = true
	t.ring, t.bytes = nil, 0
	if t.timer != nil {
		t.timer.Stop()
	}
	posts := t.posts
	t.posts = nil
	t.mu.Unlock()
	for _, s := range posts {
		s.mu.Lock()
		unread := s.reader == nil
		s.mu.Unlock()
		if unread {
			s.drop()
		}
	}
	s := &t.standing
	s.drop()
	s.mu.Lock()
	if s.reader != nil {
		s.reader.stop()
	}
	s.mu.Unlock()
}

// eventID is what a client names to resume: of whom, of which stream, after what.
type eventID struct{ stream, seq uint64 }

func (t *transport) tag() string { return t.id[:8] }

func (t *transport) eventID(e eventID) string {
	return fmt.Sprintf("%s-%d-%d", t.tag(), e.stream, e.seq)
}

// parse reads an event id of this client's; another client's is refused (H2).
func (t *transport) parse(id string) (eventID, bool) {
	tag, rest, _ := strings.Cut(id, "-")
	a, b, ok := strings.Cut(rest, "-")
	if !ok || tag != t.tag() {
		return eventID{}, false
	}
	number, err1 := strconv.ParseUint(a, 10, 64)
	seq, err2 := strconv.ParseUint(b, 10, 64)
	return eventID{number, seq}, err1 == nil && err2 == nil
}

// adopt gives a POST's stream, which has a reader, its number, under which it can be
// resumed.
func (t *transport) adopt(s *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.numbers++
	s.number = t.numbers
	if t.ended {
		return
	}
	if t.posts == nil {
		t.posts = map[uint64]*stream{}
	}
	t.posts[s.number] = s
}

// finish forgets a stream of which everything was handed out; the ring has the rest.
func (t *transport) finish(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.posts, number)
}

// keep puts events into the ring.
func (t *transport) keep(events []event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || len(events) == 0 {
		return
	}
	for _, e := range events {
		t.ring = append(t.ring, e)
		t.bytes += e.p.Len()
	}
	drop := 0
	for len(t.ring)-drop > ringEvents || t.bytes > ringBytes {
		t.bytes -= t.ring[drop].p.Len()
		drop++
	}
	t.forgetLocked(drop)
	t.armLocked(time.Now().Add(ringAge))
}

// forgetLocked takes the oldest n events out of the ring; their bytes are counted off.
func (t *transport) forgetLocked(n int) {
	clear(t.ring[:n])
	t.ring = t.ring[n:]
	if len(t.ring) == 0 {
		t.ring = nil
	}
}

// missed returns what the ring has of a stream after an event.
func (t *transport) missed(after eventID) (events []event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.ring {
		if e.stream == after.stream && e.seq > after.seq {
			events = append(events, e)
		}
	}
	return events
}

// armLocked makes expire run when it is due, or before.
func (t *transport) armLocked(due time.Time) {
	switch {
	case t.ended:
	case t.timer == nil:
		t.timer, t.due = time.AfterFunc(time.Until(due), t.expire), due
	case due.Before(t.due):
		t.timer.Reset(time.Until(due))
		t.due = due
	}
}

// scheduleExpiry lets an answered stream that nobody resumes be forgotten in time.
// It reports false when the client has ended, and nobody can resume it.
func (t *transport) scheduleExpiry() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armLocked(time.Now().Add(ringAge))
	return !t.ended
}

// expire drops what is too old to be resumed.
func (t *transport) expire() {
	t.mu.Lock()
	t.timer = nil
	old := 0
	for old < len(t.ring) && time.Since(t.ring[old].at) >= ringAge {
		t.bytes -= t.ring[old].p.Len()
		old++
	}
	t.forgetLocked(old)
	if len(t.ring) > 0 {
		t.armLocked(t.ring[0].at.Add(ringAge))
	}
	posts := maps.Clone(t.posts)
	t.mu.Unlock()
	for number, s := range posts {
		s.mu.Lock()
		parked := s.open == 0 && s.reader == nil
		left := time.Until(s.parked.Add(ringAge))
		s.mu.Unlock()
		switch {
		case parked && left <= 0:
			t.finish(number)
			s.drop()
		case parked:
			t.mu.Lock()
			t.armLocked(time.Now().Add(left))
			t.mu.Unlock()
		}
	}
}

// listen serves a GET: the standing stream, or, for a client that resumes after an
// event, the stream that the event is of.
func (t *transport) listen(w http.ResponseWriter, r *http.Request, last *eventID) {
	me := newReader()
	if last != nil && 0 < last.stream && last.stream < t.before && !t.standing.hasReader() {
		last = nil // that stream has gone with the earlier daemon: the client gets a fresh one
	}
	if last == nil || last.stream == 0 {
		if err := t.g.enroll(me); err != nil {
			fail(w, 0, nil, err)
			return
		}
		defer t.g.discharge(me)
		t.standing.read(w, r, me, last, t.primes())
		return
	}
	t.mu.Lock()
	s := t.posts[last.stream]
	t.mu.Unlock()
	switch {
	case s != nil:
		s.read(w, r, me, last, false)
	case len(t.missed(*last)) > 0: // the answer is among what is replayed
		rest := newStream(t, 0, false)
		rest.number = last.stream
		rest.read(w, r, me, last, false)
	default:
		// The POST has been answered, or its call cancelled, and nothing is kept of it.
		// 405 tells official clients to let it be; the standing stream stays as it is.
		fail(w, http.StatusMethodNotAllowed, nil, fault.New(fault.BadRequest, "nothing is left of the stream that the Last-Event-ID names; open a stream without it"))
	}
}

// enroll registers the reader of a standing stream; once the streams are closed
// there are no more.
func (g *Gateway) enroll(r *reader) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return errClosing
	}
	g.readers[r] = struct{}{}
	return nil
}

func (g *Gateway) discharge(r *reader) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.readers, r)
}

// errClosing refuses what is new while the daemon stops.
var errClosing = &fault.Error{Reason: fault.Draining, RetryAfter: 5 * time.Second, Message: "roundhouse is shutting down and takes no new requests; try again after it has restarted"}
