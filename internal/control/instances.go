package control

import (
	"net/http"

	"roundhouse/internal/front"
	"roundhouse/internal/instance"
)

// instances lists the instances of exclusive servers, who has them and who waits. Whose
// they are is shown of the caller's own sessions, and to admins.
func (c *Control) instances(w http.ResponseWriter, _ *http.Request, caller front.Caller) {
	infos := []instance.Info{}
	if c.cfg.Instances != nil {
		infos = c.cfg.Instances.Snapshot(caller.Principal, caller.Admin)
	}
	front.WriteJSON(w, http.StatusOK, map[string]any{"servers": infos})
}

// releaseLease gives back the instance of a server that a session has.
func (c *Control) releaseLease(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	principal, err := c.owner(r, caller)
	if err == nil {
		err = c.cfg.Sessions.ReleaseLease(principal, false, r.PathValue("id"), r.PathValue("server"))
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
