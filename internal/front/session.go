package front

import (
	"net/http"

	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// SessionName returns the id of the session that r is for, or "" if nothing names
// one. It may be named by the {id} of the route's pattern, by the header
// X-Session-Id, and by others, which the caller found in the body or its _meta
// ("" is none). A malformed name, also an empty header, and two names that differ
// are faults of the reason bad_request. That a session is named says nothing about
// whether the caller may use it.
func SessionName(r *http.Request, others ...string) (string, error) {
	var n naming
	if id := r.PathValue("id"); id != "" {
		n.add(id, "the URL path")
	}
	for _, id := range r.Header["X-Session-Id"] {
		n.add(id, "the header X-Session-Id")
	}
	for _, id := range others {
		if id != "" {
			n.add(id, "the request body")
		}
	}
	return n.id, n.err
}

// naming collects what names a session and keeps the first error.
type naming struct {
	id     string
	source string // of id
	err    error
}

func (n *naming) add(id, source string) {
	switch {
	case n.err != nil:
	case !wire.ValidSessionID(id):
		n.fail("the session id in %s is malformed: it must be 1 to %d of A-Z a-z 0-9 . _ : -", source, wire.MaxSessionID)
	case n.source == "":
		n.id, n.source = id, source
	case n.id != id:
		n.fail("%s names the session %q, but %s names %q; name one session", n.source, n.id, source, id)
	}
}

func (n *naming) fail(format string, args ...any) {
	n.id, n.err = "", fault.New(fault.BadRequest, format, args...)
}
