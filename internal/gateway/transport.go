package gateway

import (
	"fmt"
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
	standing stream

	mu      sync.Mutex
	client  *session.Client // set when initialize has succeeded
	posts   map[uint64]*stream
	numbers uint64
	ring    []event
	bytes   int
	timer   *time.Timer
	ended   bool
}

// event is one frame as it was sent, or at least tried.
type event struct {
	stream, seq uint64
	p           mux.Pieces
	at          time.Time
}

func newTransport(g *Gateway, id string) *transport {
	t := &transport{g: g, id: id}
	t.standing = stream{t: t, wake: make(chan struct{}, 1), open: 1}
	return t
}

func (t *transport) begin(c *session.Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.client = c
}

// Push implements session.Stream.
func (t *transport) Push(p mux.Pieces) { t.standing.Note(p) }

// End implements session.Stream: the standing stream ends, and nothing is kept.
func (t *transport) End(*fault.Error) {
	t.mu.Lock()
	t.ended = true
	t.ring, t.bytes = nil, 0
	if t.timer != nil {
		t.timer.Stop()
	}
	t.mu.Unlock()
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

func (t *transport) eventID(stream, seq uint64) string {
	return fmt.Sprintf("%s-%d-%d", t.tag(), stream, seq)
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

// adopt gives a POST's stream its number, under which it can be resumed.
func (t *transport) adopt(s *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.numbers++
	s.number = t.numbers
	if t.posts == nil {
		t.posts = map[uint64]*stream{}
	}
	t.posts[s.number] = s
}

// finish forgets a stream of which everything was handed out; the ring has the rest.
func (t *transport) finish(s *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.posts, s.number)
}

// keep puts an event into the ring.
func (t *transport) keep(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	t.ring = append(t.ring, e)
	t.bytes += e.p.Len()
	drop := 0
	for drop < len(t.ring) && (len(t.ring)-drop > ringEvents || t.bytes > ringBytes) {
		t.bytes -= t.ring[drop].p.Len()
		drop++
	}
	t.ring = append(t.ring[:0:0], t.ring[drop:]...)
	t.armLocked()
}

func (t *transport) armLocked() {
	if t.timer == nil {
		t.timer = time.AfterFunc(ringAge, t.expire)
	}
}

// scheduleExpiry lets an answered stream that nobody resumes be forgotten in time.
func (t *transport) scheduleExpiry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.armLocked()
	}
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
	t.ring = append(t.ring[:0:0], t.ring[old:]...)
	var streams []*stream
	for _, s := range t.posts {
		streams = append(streams, s)
	}
	if len(t.ring) > 0 && !t.ended {
		t.armLocked()
	}
	t.mu.Unlock()
	for _, s := range streams {
		s.mu.Lock()
		stale := s.open == 0 && s.reader == nil
		s.mu.Unlock()
		if stale {
			s.drop()
			t.finish(s)
		}
	}
}

// listen serves a GET: the standing stream, or the stream of a POST that the client
// resumes after an event.
func (t *transport) listen(w http.ResponseWriter, r *http.Request, last eventID) {
	t.mu.Lock()
	var replay []event
	if last != (eventID{}) {
		for _, e := range t.ring {
			if e.stream == last.stream && e.seq > last.seq {
				replay = append(replay, e)
			}
		}
	}
	s := t.posts[last.stream]
	finished := last.stream != 0 && s == nil && len(replay) > 0
	t.mu.Unlock()
	switch {
	case finished: // the answer is among what is replayed
		rest := newStream(t, 0, false)
		rest.number = last.stream
		rest.read(w, r, replay, false)
	case s != nil:
		s.read(w, r, replay, false)
	case last.stream != 0:
		// The POST has been answered, or its call cancelled, and nothing is kept of it.
		// 405 tells official clients to let it be; the standing stream stays as it is.
		fail(w, http.StatusMethodNotAllowed, nil, fault.New(fault.BadRequest, "nothing is left of the stream that the Last-Event-ID names; open a stream without it"))
	default:
		t.standing.read(w, r, replay, t.primes())
	}
}

// enroll registers a reader; standing ones are refused once the streams are closed.
func (g *Gateway) enroll(r *reader, standing bool) bool {
	if !standing {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return false
	}
	g.readers[r] = struct{}{}
	return true
}

func (g *Gateway) discharge(r *reader) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.readers, r)
}
