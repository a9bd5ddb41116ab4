package control

import (
	"bytes"
	"net/http"

	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// maxChange is the largest body of a change of a session, in bytes.
const maxChange = 1 << 20

// changeSession changes what the body names of a session, which is its filter (V4), and
// answers with the session as it is then.
func (c *Control) changeSession(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	tools, err := readChange(w, r)
	var principal string
	if err == nil {
		principal, err = c.owner(r, caller)
	}
	if err == nil {
		err = c.cfg.Sessions.SetTools(r.Context(), principal, r.PathValue("id"), tools)
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	c.session(w, r, caller)
}

// readChange reads a body whose one member is the filter.
func readChange(w http.ResponseWriter, r *http.Request) (*session.Tools, error) {
	body, err := front.ReadBody(w, r, maxChange)
	if err != nil {
		return nil, err
	}
	body = bytes.TrimSpace(body)
	if err := wire.Valid(body); err != nil || body[0] != '{' {
		return nil, errChange
	}
	var tools *session.Tools
	for m, err := range wire.Members(body) {
		if err != nil || m.Key != "tools" || tools != nil {
			return nil, errChange
		}
		if tools, err = session.ParseTools(m.Value.Of(body)); err != nil {
			return nil, err
		}
	}
	if tools == nil {
		return nil, errChange
	}
	return tools, nil
}

var errChange = fault.New(fault.BadRequest, `the body must be an object with the one member "tools"`)
