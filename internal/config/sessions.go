package config

import (
	"cmp"
	"strings"
	"time"
	"unicode"
)

// Sessions is the "sessions" section.
type Sessions struct {
	Max         int           // sessions at once; 1000
	IdleTimeout time.Duration // to dormant; 10 min
	ExpireAfter time.Duration // of idleness, to closed; 24 h
	MaxLifetime time.Duration // from the beginning to the end, which waits for what runs; 0 is no limit
	MaxTasks    int           // that run in one session at once (A5); 16
	// Kinds are the limits of sessions of a kind, by its name; what is 0 there is as above.
	Kinds map[string]SessionLimits
}

// SessionLimits are the limits of one session (N3). In a kind, and for a session that has
// its own, 0 leaves a limit as it is otherwise.
type SessionLimits struct {
	IdleTimeout time.Duration
	ExpireAfter time.Duration
	MaxLifetime time.Duration
	MaxTasks    int
}

// Of returns the limits of sessions of a kind; "" and one that is not configured have the
// general ones.
func (s Sessions) Of(kind string) SessionLimits {
	return SessionLimits{s.IdleTimeout, s.ExpireAfter, s.MaxLifetime, s.MaxTasks}.With(s.Kinds[kind])
}

// With returns the limits with those of own in the place of its own.
func (l SessionLimits) With(own SessionLimits) SessionLimits {
	return SessionLimits{
		cmp.Or(own.IdleTimeout, l.IdleTimeout), cmp.Or(own.ExpireAfter, l.ExpireAfter),
		cmp.Or(own.MaxLifetime, l.MaxLifetime), cmp.Or(own.MaxTasks, l.MaxTasks),
	}
}

var sessionsSection = section[document]{object: object[document]{fields: []field[document]{{
	name: "max",
	doc:  "The most sessions at once.",
	kind: count[document]{at: func(d *document) *int { return &d.Sessions.Max }},
}, {
	name: "idleTimeout",
	doc:  "How long a session without a call or task stays awake before it becomes dormant: it gives its connections back, and takes them again with its next call.",
	kind: duration[document]{at: func(d *document) *time.Duration { return &d.Sessions.IdleTimeout }},
}, {
	name: "expireAfter",
	doc:  "How long a session may be idle before it is closed.",
	kind: duration[document]{at: func(d *document) *time.Duration { return &d.Sessions.ExpireAfter }},
}, {
	name: "maxLifetime",
	doc:  "How long after its beginning a session is closed, however busy it is; its calls and tasks have shutdown.grace to end. \"0s\" is no limit.",
	kind: duration[document]{zero: true, at: func(d *document) *time.Duration { return &d.Sessions.MaxLifetime }},
}, {
	name: "maxTasks",
	doc:  "The most tasks that run in one session at once.",
	kind: count[document]{at: func(d *document) *int { return &d.Sessions.MaxTasks }},
}, {
	name: "kinds",
	doc:  "Limits of sessions of a kind, by its name. A session is of a kind if POST /api/v1/sessions has made it so.",
	kind: custom[document]{from: readKinds, shape: func(*document) schema {
		return schema{"type": "object", "additionalProperties": kindObject.schema(&SessionLimits{})}
	}},
}}}}

// kindObject are the limits of one kind, each in the place of the general one.
var kindObject = object[SessionLimits]{fields: []field[SessionLimits]{{
	name: "idleTimeout",
	doc:  "In the place of sessions.idleTimeout.",
	kind: inherited[SessionLimits]{duration[SessionLimits]{at: func(l *SessionLimits) *time.Duration { return &l.IdleTimeout }}},
}, {
	name: "expireAfter",
	doc:  "In the place of sessions.expireAfter.",
	kind: inherited[SessionLimits]{duration[SessionLimits]{at: func(l *SessionLimits) *time.Duration { return &l.ExpireAfter }}},
}, {
	name: "maxLifetime",
	doc:  "In the place of sessions.maxLifetime.",
	kind: inherited[SessionLimits]{duration[SessionLimits]{at: func(l *SessionLimits) *time.Duration { return &l.MaxLifetime }}},
}, {
	name: "maxTasks",
	doc:  "In the place of sessions.maxTasks.",
	kind: inherited[SessionLimits]{count[SessionLimits]{at: func(l *SessionLimits) *int { return &l.MaxTasks }}},
}}}

// maxKind is the length of the longest name of a kind, in bytes.
const maxKind = 64

// ValidKind reports whether name can be a session's kind: 1 to 64 bytes, none of them a
// control character.
func ValidKind(name string) bool {
	return name != "" && len(name) <= maxKind && !strings.ContainsFunc(name, unicode.IsControl)
}

func readKinds(r *reader, n node, d *document) {
	members, _ := r.uniqueMembers(n)
	for _, m := range members {
		var l SessionLimits
		if !ValidKind(m.key) {
			r.errorAtKey(m, "a kind's name must have 1 to %d bytes and no control character; rename it", maxKind)
		}
		kindObject.read(r, m, &l)
		if d.Sessions.Kinds == nil {
			d.Sessions.Kinds = map[string]SessionLimits{}
		}
		d.Sessions.Kinds[m.key] = l
	}
}
