package store

import (
	"sync"
	"time"
)

// Trouble tells a log of work that fails because the database does, and is tried again: one
// line when that begins, one a minute while it goes on, and one when it is over. The zero
// value is one of work that goes well. Its methods may be called at any time.
type Trouble struct {
	mu   sync.Mutex
	told time.Time // when the last line said so; zero while all is well
}

// troubleTold is the time between two lines.
const troubleTold = time.Minute

// Note has log say that the work has failed, unless it has said so lately.
func (t *Trouble) Note(log func(msg string, args ...any), msg string, args ...any) {
	t.mu.Lock()
	now := time.Now()
	due := t.told.IsZero() || now.Sub(t.told) >= troubleTold
	if due {
		t.told = now
	}
	t.mu.Unlock()
	if due {
		log(msg, args...)
	}
}

// Over has log say that the work goes well again, if it has failed.
func (t *Trouble) Over(log func(msg string, args ...any), msg string, args ...any) {
	t.mu.Lock()
	failed := !t.told.IsZero()
	t.told = time.Time{}
	t.mu.Unlock()
	if failed {
		log(msg, args...)
	}
}
