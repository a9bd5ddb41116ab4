package control

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/store"
	"roundhouse/internal/trace"
)

// Recording is what is recorded of a session's model calls (C15).
type Recording struct {
	ID           string                `json:"session"`
	Principal    string                `json:"principal"`
	Incarnation  int                   `json:"incarnation"` // 1 for the first life of the id
	State        string                `json:"state"`       // "open", "sealed", or "closed" if the id has begun another life
	CreatedAt    time.Time             `json:"createdAt"`
	LastActivity time.Time             `json:"lastActivityAt"`
	SealedAt     *time.Time            `json:"sealedAt,omitempty"`
	Metadata     json.RawMessage       `json:"metadata,omitempty"`
	Calls        int                   `json:"calls"`
	Turns        int                   `json:"turns"`    // calls that are whole
	UnderWay     int                   `json:"underWay"` // calls without an outcome
	Outcomes     map[store.Outcome]int `json:"outcomes"`
	Verdict      trace.Verdict         `json:"verdict"` // C3
}

// recordsNothing reports that the store has no recording, and that none can come.
func (c *Control) recordsNothing(ctx context.Context) (bool, error) {
	if len(c.cfg.Config().LLM.Upstreams) > 0 {
		return false, nil
	}
	for _, err := range c.cfg.Store.Sessions(ctx, store.SessionFilter{Recorded: true}) {
		return false, err
	}
	return true, nil
}

// errNothingRecorded is for what would be empty without saying why.
var errNothingRecorded = fault.New(fault.BadRequest, `this daemon records nothing: its configuration has no "llm" section`)

// recorders returns which principals have a recording of that id, or with recorded unset
// any session that is stored.
func (c *Control) recorders(ctx context.Context, id string, recorded bool) (principals []string, err error) {
	if c.cfg.Store == nil {
		return nil, nil
	}
	for s, err := range c.cfg.Store.Sessions(ctx, store.SessionFilter{ID: id, Recorded: recorded}) {
		if err != nil {
			return nil, err
		}
		principals = append(principals, s.Principal)
	}
	return principals, nil
}

// recorded finds the recording that the path names: that of the id's newest life, or of
// the one that ?incarnation= says.
func (c *Control) recorded(r *http.Request, caller front.Caller) (store.Session, error) {
	principal, err := c.owner(r, caller)
	if err != nil {
		return store.Session{}, err
	}
	lives, err := c.incarnations(r, principal, true)
	if err != nil {
		return store.Session{}, err
	}
	return newest(lives), nil
}

func newest(lives []store.Session) store.Session {
	return slices.MaxFunc(lives, func(a, b store.Session) int { return a.Incarnation - b.Incarnation })
}

// incarnations finds what is stored of the principal's session that the path names, one row
// for each life of the id, or only that of ?incarnation=; with recorded only those of which
// something is recorded. There is at least one.
func (c *Control) incarnations(r *http.Request, principal string, recorded bool) (lives []store.Session, err error) {
	id := r.PathValue("id")
	filter := store.SessionFilter{Principal: &principal, ID: id, Recorded: recorded}
	if filter.Incarnation, err = whole(r.URL.Query(), "incarnation", 0, 1, math.MaxInt32); err != nil {
		return nil, err
	}
	if c.cfg.Store != nil {
		for s, err := range c.cfg.Store.Sessions(r.Context(), filter) {
			if err != nil {
				return nil, err
			}
			lives = append(lives, s)
		}
	}
	switch {
	case len(lives) == 0 && filter.Incarnation > 0:
		return nil, fault.New(fault.UnknownSession, "nothing is recorded of the incarnation %d of a session %q", filter.Incarnation, id)
	case len(lives) == 0:
		return nil, fault.New(fault.UnknownSession, "nothing is recorded of a session %q", id)
	}
	return lives, nil
}

// recordingOf describes what is recorded of the principal's session that the path names;
// nil is nothing.
func (c *Control) recordingOf(r *http.Request, principal string) (*Recording, error) {
	lives, err := c.incarnations(r, principal, true)
	switch {
	case fault.Is(err, fault.UnknownSession):
		return nil, nil
	case err != nil:
		return nil, err
	}
	v, err := c.describeRecording(r.Context(), newest(lives))
	return &v, err
}

// describeRecording counts a session's calls and judges them.
func (c *Control) describeRecording(ctx context.Context, s store.Session) (Recording, error) {
	v := Recording{
		ID: s.ID, Principal: s.Principal, Incarnation: s.Incarnation, State: "open", CreatedAt: s.Created,
		LastActivity: s.LastActivity, Metadata: s.Metadata, Outcomes: map[store.Outcome]int{},
	}
	if s.State == store.Closed {
		v.State = "closed"
	}
	if !s.Sealed.IsZero() {
		v.State, v.SealedAt = "sealed", &s.Sealed
	}
	calls := c.cfg.Store.Calls(ctx, store.CallFilter{Session: store.Of(s.SessionKey), Summary: true})
	var err error
	v.Verdict, err = trace.Judge(s, func(yield func(store.Call, error) bool) {
		for call, err := range calls {
			if err == nil {
				v.count(call)
			}
			if !yield(call, err) {
				return
			}
		}
	})
	return v, err
}

// count takes in one call.
func (v *Recording) count(call store.Call) {
	v.Calls++
	active := call.Start
	if r := call.Result; r == nil {
		v.UnderWay++
	} else {
		v.Outcomes[r.Outcome]++
		if r.Outcome.Trainable() {
			v.Turns++
		}
		if r.End.After(active) {
			active = r.End
		}
	}
	if active.After(v.LastActivity) {
		v.LastActivity = active
	}
}

// The numbers of entries in one page of a list.
const (
	defaultPage = 100
	maxPage     = 1000
)

// Traces is a page of the list of recorded sessions.
type Traces struct {
	Traces []Recording `json:"traces"`         // in the order in which they began
	Next   string      `json:"next,omitempty"` // the ?after= of the next page, if there is one
}

// traces lists what is recorded: the caller's own, or for an admin everybody's.
func (c *Control) traces(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	list, err := c.listTraces(r, caller)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	front.WriteJSON(w, http.StatusOK, list)
}

func (c *Control) listTraces(r *http.Request, caller front.Caller) (Traces, error) {
	q := r.URL.Query()
	list := Traces{Traces: []Recording{}}
	filter, err := sessionFilter(q, caller)
	if err == nil {
		err = known(q, "principal", "session", "incarnation", "state", "after", "limit")
	}
	if err != nil {
		return list, err
	}
	after, err := whole(q, "after", 0, 0, math.MaxInt)
	if err != nil {
		return list, err
	}
	limit, err := whole(q, "limit", defaultPage, 1, maxPage)
	if err != nil || c.cfg.Store == nil {
		return list, err
	}
	filter.After, filter.Recorded = int64(after), true
	var last store.Session
	for s, err := range c.cfg.Store.Sessions(r.Context(), filter) {
		if err != nil {
			return list, err
		}
		if len(list.Traces) == limit {
			list.Next = strconv.FormatInt(last.Position, 10)
			break
		}
		v, err := c.describeRecording(r.Context(), s)
		if err != nil {
			return list, err
		}
		list.Traces, last = append(list.Traces, v), s
	}
	return list, nil
}

// check proves how complete a recording is (J4).
func (c *Control) check(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	s, err := c.recorded(r, caller)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	report, err := trace.Check(r.Context(), c.cfg.Store, s.SessionKey)
	if err != nil {
		front.WriteError(w, gone(err))
		return
	}
	front.WriteJSON(w, http.StatusOK, report)
}

// Sealed says what came of sealing a recording.
type Sealed struct {
	Recording
	Lost int `json:"lost"` // calls that were under way, and are not recorded any more
}

// seal closes a recording for good (C15), that of a session which has none, too: its id is
// not given again (N1).
func (c *Control) seal(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	principal, err := c.owner(r, caller)
	var lives []store.Session
	if err == nil {
		lives, err = c.incarnations(r, principal, false)
	}
	var s store.Session
	var sealed Sealed
	if err == nil {
		s = newest(lives)
		sealed.Lost, err = c.cfg.Models.Seal(r.Context(), s.SessionKey)
	}
	if err == nil {
		s, err = c.recorded(r, caller)
	}
	if err == nil {
		sealed.Recording, err = c.describeRecording(r.Context(), s)
	}
	if err != nil {
		front.WriteError(w, gone(err))
		return
	}
	front.WriteJSON(w, http.StatusOK, sealed)
}

// deleteTurns removes what is recorded of a session, all lives of its id if none is
// named. It goes on when the caller is gone, lest a part of it stay.
func (c *Control) deleteTurns(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	principal, err := c.owner(r, caller)
	var lives []store.Session
	if err == nil {
		lives, err = c.incarnations(r, principal, true)
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	ctx := context.WithoutCancel(r.Context())
	for _, s := range lives {
		if err := c.cfg.Store.DeleteSession(ctx, s.SessionKey); err != nil {
			front.WriteError(w, err)
			return
		}
	}
	c.cfg.Sessions.Resave(principal, r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
}

// gone tells of what was deleted while it was read as of what was never there.
func gone(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return fault.New(fault.UnknownSession, "the session's recording is not there any more")
	}
	return err
}

// sessionFilter reads which sessions a query chooses. Another principal's are for admins.
func sessionFilter(q url.Values, caller front.Caller) (f store.SessionFilter, err error) {
	f.ID = q.Get("session")
	switch p := q.Get("principal"); {
	case p != "" && p != caller.Principal && !caller.Admin:
		return f, errAdmin
	case p != "":
		f.Principal = &p
	case !caller.Admin:
		f.Principal = &caller.Principal
	}
	switch q.Get("state") {
	case "":
	case "open":
		f.Sealed = new(false)
	case "sealed":
		f.Sealed = new(true)
	default:
		return f, fault.New(fault.BadRequest, "state must be open or sealed")
	}
	f.Incarnation, err = whole(q, "incarnation", 0, 1, math.MaxInt32)
	return f, err
}

// whole reads a whole number of the query.
func whole(q url.Values, name string, fallback, least, most int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	switch {
	case err == nil && least <= n && n <= most:
		return n, nil
	case most >= math.MaxInt32:
		return 0, fault.New(fault.BadRequest, "%s must be a number from %d on", name, least)
	}
	return 0, fault.New(fault.BadRequest, "%s must be a number from %d to %d", name, least, most)
}

// known refuses members of the query that mean nothing: a filter that is misspelled would
// choose too much.
func known(q url.Values, names ...string) error {
	for name := range q {
		if !slices.Contains(names, name) {
			slices.Sort(names)
			return fault.New(fault.BadRequest, "the query has no %.50q; it may have %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}
