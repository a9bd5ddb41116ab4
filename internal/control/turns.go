package control

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"roundhouse/internal/event"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/sse"
	"roundhouse/internal/store"
	"roundhouse/internal/trace"
)

// Turns is a page of the list of recorded calls, which are rows of the format calls
// without headers, bodies and tokens.
type Turns struct {
	Turns []json.RawMessage `json:"turns"`          // in the order in which they began
	Next  string            `json:"next,omitempty"` // the ?after= of the next page, if there is one
}

// turns lists the recorded calls of a session, or without one in the path all those of
// the caller, or for an admin everybody's. With ?follow=true they come as an event stream
// as they end.
func (c *Control) turns(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	follow, err := flag(r, "follow")
	var f store.CallFilter
	if err == nil {
		f, err = c.callFilter(r, caller, "follow", "limit")
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	if follow {
		if !r.URL.Query().Has("incarnation") {
			f.Session.Incarnation = 0 // of the lives that the id will have, too
		}
		c.tail(w, r, f)
		return
	}
	list, err := c.listTurns(r, f)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	front.WriteJSON(w, http.StatusOK, list)
}

func (c *Control) listTurns(r *http.Request, f store.CallFilter) (Turns, error) {
	list := Turns{Turns: []json.RawMessage{}}
	limit, err := whole(r.URL.Query(), "limit", defaultPage, 1, maxPage)
	if err != nil || c.cfg.Store == nil {
		return list, err
	}
	f.Summary = true
	last := int64(0)
	for call, err := range c.cfg.Store.Calls(r.Context(), f) {
		if err != nil {
			return list, err
		}
		if len(list.Turns) == limit {
			list.Next = fmt.Sprintf("c%d", last)
			break
		}
		list.Turns, last = append(list.Turns, trace.Summary(call)), call.Position
	}
	return list, nil
}

// callFilter reads which calls a query chooses; its members and those named may be there.
func (c *Control) callFilter(r *http.Request, caller front.Caller, others ...string) (store.CallFilter, error) {
	q := r.URL.Query()
	if err := known(q, append(others, "principal", "session", "incarnation", "state", "outcome", "delivered", "model", "since", "until", "after")...); err != nil {
		return store.CallFilter{}, err
	}
	f, err := calls(q, caller)
	switch id := r.PathValue("id"); {
	case err != nil:
		return f, err
	case id != "" && f.Session.ID != "":
		return f, fault.New(fault.BadRequest, "the path names the session, and so does the query; name it once")
	case id != "":
		s, err := c.recorded(r, caller)
		f.Session = store.Of(s.SessionKey)
		return f, err
	case f.Session.ID != "":
		return f, c.exists(r, f.Session)
	}
	return f, nil
}

// exists refuses a filter for a session that is not there: the answer would be empty and
// look right.
func (c *Control) exists(r *http.Request, f store.SessionFilter) error {
	if c.cfg.Store != nil {
		for _, err := range c.cfg.Store.Sessions(r.Context(), f) {
			return err
		}
	}
	return fault.New(fault.UnknownSession, "nothing is recorded of such a session %q", f.ID)
}

// calls reads the filters of calls, in which lists are separated by commas.
func calls(q map[string][]string, caller front.Caller) (f store.CallFilter, err error) {
	var errs [5]error
	f.Session, errs[0] = sessionFilter(q, caller)
	f.Outcomes, errs[1] = words(q, "outcome", store.Outcomes())
	f.Deliveries, errs[2] = words(q, "delivered", store.Deliveries())
	f.Models = list(q, "model")
	f.Since, errs[3] = moment(q, "since")
	f.Until, errs[4] = moment(q, "until")
	if after := strings.Join(q["after"], ","); after != "" {
		number, ok := strings.CutPrefix(after, "c")
		if f.After, err = strconv.ParseInt(number, 10, 64); !ok || err != nil || f.After < 0 {
			return f, fault.New(fault.BadRequest, "after must be the cursor of a call, such as c12")
		}
	}
	for _, err := range errs {
		if err != nil {
			return f, err
		}
	}
	return f, nil
}

// list reads a list of the query; nil if it is not there.
func list(q map[string][]string, name string) (items []string) {
	for _, text := range q[name] {
		for item := range strings.SplitSeq(text, ",") {
			if item != "" {
				items = append(items, item)
			}
		}
	}
	return items
}

// words reads a list of words, of which "any" stands for all.
func words[T ~string](q map[string][]string, name string, all []T) (chosen []T, err error) {
	for _, item := range list(q, name) {
		if item == "any" {
			return all, nil
		}
		i := 0
		for i < len(all) && string(all[i]) != item {
			i++
		}
		if i == len(all) {
			return nil, fault.New(fault.BadRequest, "%s may be %s or any, not %.50q", name, strings.Trim(fmt.Sprint(all), "[]"), item)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// moment reads a time, or how long ago it was.
func moment(q map[string][]string, name string) (time.Time, error) {
	text := strings.Join(q[name], ",")
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return time.Now().Add(-ago), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.Year() < 1970 || t.Year() > 2200 {
		return t, fault.New(fault.BadRequest, "%s must be a time such as 2026-01-02T15:04:05Z, or how long ago it was, such as 24h", name)
	}
	return t, nil
}

// turn gives one recorded call with its native request and response.
func (c *Control) turn(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	call, err := c.findTurn(r, caller)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	row, err := trace.Row(call)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	front.WriteJSON(w, http.StatusOK, row)
}

// findTurn finds the call that the path names. Ids that roundhouse gives are one of a
// kind; the query may say whose it is, all the same.
func (c *Control) findTurn(r *http.Request, caller front.Caller) (store.Call, error) {
	q, id := r.URL.Query(), r.PathValue("turn")
	filter, err := sessionFilter(q, caller)
	if err == nil {
		err = known(q, "principal", "session", "incarnation", "state")
	}
	if err != nil {
		return store.Call{}, err
	}
	var found []store.Call
	if c.cfg.Store != nil {
		for call, err := range c.cfg.Store.Calls(r.Context(), store.CallFilter{Session: filter, ID: id}) {
			if err != nil {
				return store.Call{}, err
			}
			found = append(found, call)
		}
	}
	switch len(found) {
	case 0:
		return store.Call{}, fault.New(fault.UnknownTurn, "no turn is called %q", id)
	case 1:
		return found[0], nil
	}
	return store.Call{}, fault.New(fault.BadRequest, "several sessions have a turn %q; choose with ?session= and ?principal=", id)
}

// tail streams calls as they begin and end, from now on or after the event that
// Last-Event-ID names, as far as it is kept. Each event is a row as in the list.
func (c *Control) tail(w http.ResponseWriter, r *http.Request, f store.CallFilter) {
	c.stream(w, r, func(out *sse.Writer, mark string, e event.Event) {
		switch {
		case e.Kind == event.EventsLost:
			sendEvent(out, mark, e)
		case e.Kind != event.TurnRecorded, f.Session.Principal != nil && *f.Session.Principal != e.Principal, f.Session.ID != "" && f.Session.ID != e.Session:
		default:
			row, err := c.summary(r, f, e)
			if err != nil {
				c.cfg.Log.Error("a turn cannot be shown to those who follow it", "session", e.Session, "turn", e.Turn, "err", err)
			}
			if row != nil {
				out.Event(mark, row)
			}
		}
	})
}

// summary reads the call that an event tells of, if the filter chooses it.
func (c *Control) summary(r *http.Request, f store.CallFilter, e event.Event) (json.RawMessage, error) {
	f.Session.Principal, f.Session.ID, f.ID, f.Summary = &e.Principal, e.Session, e.Turn, true
	for call, err := range c.cfg.Store.Calls(r.Context(), f) {
		if err != nil {
			return nil, err
		}
		return trace.Summary(call), nil
	}
	return nil, nil // another one, or it could not be stored
}
