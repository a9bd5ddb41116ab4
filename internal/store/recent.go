package store

import (
	"strings"
	"sync"
)

// What is kept of sessions that were asked for.
const (
	maxRecent      = 1024    // sessions
	maxRecentBytes = 4 << 10 // of what one session's row holds of JSON
)

// recent keeps the newest life of sessions that were asked for, and of which there is none,
// which has the incarnation 0: each model call asks for its own, and to read it takes as long
// as to prepare all the rest. The writer, which alone changes sessions, drops what it has
// changed before it answers, so nobody sees what is older than a write that has returned.
type recent struct {
	mu    sync.Mutex
	rows  map[sessionName]Session // nil when the store is closed
	drops uint64                  // how often something was dropped
}

type sessionName struct{ principal, id string }

// get returns what is kept. If that is nothing, put takes what was read afterwards, unless
// something was dropped meanwhile: it might have been this.
func (r *recent) get(name sessionName) (v Session, put func(Session), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, ok := r.rows[name]; ok {
		return v, nil, true
	}
	drops := r.drops
	return Session{}, func(v Session) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.rows == nil || r.drops != drops || len(v.Metadata)+len(v.Clients) > maxRecentBytes {
			return
		}
		if len(r.rows) >= maxRecent {
			clear(r.rows)
		}
		r.rows[name] = v
	}, false
}

// drop forgets what changes say.
func (r *recent) drop(c *changes) {
	if !c.all && len(c.names) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drops++
	if c.all {
		clear(r.rows)
	}
	for _, name := range c.names {
		delete(r.rows, name)
	}
	*c = changes{}
}

// close forgets everything for good.
func (r *recent) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = nil
}

// changes are the sessions that a transaction changes.
type changes struct {
	names []sessionName
	all   bool // it cannot be said which
}

// note notes what a statement that writes changes.
func (c *changes) note(query string, args []any) {
	switch {
	case query == saveSession:
		c.names = append(c.names, sessionName{args[0].(string), args[1].(string)})
	case strings.Contains(query, "UPDATE sessions") || strings.Contains(query, "INTO sessions") || strings.Contains(query, "DELETE FROM sessions"):
		c.all = true
	}
}
