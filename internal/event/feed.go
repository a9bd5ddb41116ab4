package event

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// kept is how many events a Feed keeps for followers who are slow or come back.
const kept = 1024

// Feed keeps the last events. It has no subscribers who could hold it up: everybody
// who follows it asks for what came after the last event that he knows, and hears how
// many he has missed. Its methods may be called at any time, on a nil Feed too, which
// keeps nothing.
type Feed struct {
	run     string        // tells the marks of this feed from those of an earlier daemon's; constant
	dropped atomic.Uint64 // events that a follower did not get

	mu   sync.Mutex
	ring []Event       // event n is at (n-1)%kept
	last uint64        // id of the last event, 0 before the first
	more chan struct{} // closed at the next event; nil if nobody waits
}

// NewFeed returns a Feed without events.
func NewFeed() *Feed { return &Feed{run: rand.Text()[:8]} }

// Publish adds an event, with an id and, unless it has one, the time. It never waits
// for a follower.
func (f *Feed) Publish(e Event) {
	if f == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	e.ID = f.last
	if len(f.ring) < kept {
		f.ring = append(f.ring, e)
	} else {
		f.ring[(e.ID-1)%kept] = e
	}
	if f.more != nil {
		close(f.more)
		f.more = nil
	}
}

// Last returns the id of the last event, or 0 before the first.
func (f *Feed) Last() uint64 {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// After returns the events after the one with that id, the oldest first, how many of
// them are no longer kept, and a channel that is closed when there is a later one.
func (f *Feed) After(id uint64) (events []Event, lost uint64, more <-chan struct{}) {
	if f == nil {
		return nil, 0, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if id+kept < f.last {
		lost = f.last - kept - id
		f.dropped.Add(lost)
		id += lost
	}
	for ; id < f.last; id++ {
		events = append(events, f.ring[id%kept])
	}
	if f.more == nil {
		f.more = make(chan struct{})
	}
	return events, lost, f.more
}

// Mark returns the name of an event by which a follower can come back to it.
func (f *Feed) Mark(e Event) string { return fmt.Sprintf("%s-%d", f.run, e.ID) }

// Find returns the id of the event that a mark names. ok is false for what is no mark
// of this feed, such as one of an earlier daemon's.
func (f *Feed) Find(mark string) (id uint64, ok bool) {
	if f == nil {
		return 0, false
	}
	run, number, _ := strings.Cut(mark, "-")
	id, err := strconv.ParseUint(number, 10, 64)
	if err != nil || run != f.run || id > f.Last() {
		return 0, false
	}
	return id, true
}
