package control

import (
	"net/http"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/front"
)

// Reloaded says what came of reading the configuration anew.
type Reloaded struct {
	At       time.Time        `json:"at"`
	Refused  bool             `json:"refused"`  // the file is broken: what was read before stays
	Problems []config.Problem `json:"problems"` // of the file as it is now
	Added    []string         `json:"added"`    // servers
	Changed  []string         `json:"changed"`  // servers
	Removed  []string         `json:"removed"`  // servers
	// NeedsRestart are the settings with which the daemon does not run yet, because it
	// cannot change them.
	NeedsRestart []string `json:"needsRestart"`
}

// reload reads the configuration anew. That it is refused is no error of the request.
func (c *Control) reload(w http.ResponseWriter, _ *http.Request, caller front.Caller) {
	if !caller.Admin {
		front.WriteError(w, errAdmin)
		return
	}
	front.WriteJSON(w, http.StatusOK, c.cfg.Reload())
}
