package control

import (
	"net/http"
	"strconv"

	"roundhouse/internal/event"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/pool"
)

// Restarted is how the restart of one connection went (R6, R7).
type Restarted struct {
	EntryIndex *int   `json:"entryIndex,omitempty"`
	Restarted  bool   `json:"restarted"`
	Skipped    bool   `json:"skipped,omitempty"` // it was not tried
	DurationMs *int64 `json:"durationMs,omitempty"`
	Reason     string `json:"reason,omitempty"` // why not
}

// RestartReply is the answer to a restart: of one connection by itself, of several, or
// none, as a list.
type RestartReply struct {
	Server     string `json:"server,omitempty"`
	ServerName string `json:"serverName,omitempty"` // the same in qwen-code's API
	*Restarted
	Entries []Restarted `json:"entries,omitzero"`
}

// restartServer is roundhouse's own form of restart.
func (c *Control) restartServer(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	c.restart(w, r, caller, "entry", RestartReply{Server: r.PathValue("name")})
}

// restartWorkspace is qwen-code's form of restart.
func (c *Control) restartWorkspace(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	c.restart(w, r, caller, "entryIndex", RestartReply{ServerName: r.PathValue("name")})
}

// restart restarts all connections of a server, or the one that the query's member
// called index names.
func (c *Control) restart(w http.ResponseWriter, r *http.Request, caller front.Caller, index string, reply RestartReply) {
	results, err := c.restartNamed(r, caller, index)
	switch {
	case err != nil:
		front.WriteError(w, err)
		return
	case len(results) == 1:
		reply.Restarted = &results[0]
	default:
		reply.Entries = results
	}
	front.WriteJSON(w, http.StatusOK, reply)
}

func (c *Control) restartNamed(r *http.Request, caller front.Caller, index string) ([]Restarted, error) {
	name, only := r.PathValue("name"), r.URL.Query().Get(index)
	s, err := c.find(r)
	switch {
	case err == nil && !caller.Admin:
		return nil, errAdmin
	case err != nil && (!caller.Admin || !c.cfg.Pool.Retire(name)):
		return nil, err
	case err != nil || s.DisabledReason != "":
		c.cfg.Pool.Retire(name)
		c.cfg.Events.Publish(event.Event{Kind: event.RestartRefused, Server: name, Reason: pool.SkipDisabled})
		return []Restarted{{Skipped: true, Reason: pool.SkipDisabled}}, nil
	}
	if only == "" || only == "*" {
		results := describeRestarts(c.cfg.Pool.Restart(r.Context(), name))
		if c.cfg.Instances != nil {
			c.cfg.Instances.Pardon(name)
		}
		return results, nil
	}
	n, err := strconv.Atoi(only)
	if err != nil || n < 0 {
		return nil, fault.New(fault.BadRequest, "%s must be the index of a connection, or * for all", index)
	}
	results := describeRestarts(c.cfg.Pool.RestartOne(r.Context(), name, n))
	if len(results) == 0 {
		err := fault.New(fault.UnknownServer, "server %q has no connection with the index %d; GET /api/v1/servers/{name} lists them", name, n)
		err.Server = name
		return nil, err
	}
	return results, nil
}

func describeRestarts(all []pool.Restarted) []Restarted {
	list := make([]Restarted, 0, len(all))
	for _, x := range all {
		r := Restarted{EntryIndex: new(x.Index), Restarted: x.OK, Skipped: x.Skipped, Reason: x.Reason}
		if !x.Skipped {
			r.DurationMs = new(x.Duration.Milliseconds())
		}
		list = append(list, r)
	}
	return list
}
