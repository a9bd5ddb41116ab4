package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/pool"
	"roundhouse/internal/session"
	"roundhouse/internal/store"
	"roundhouse/internal/wire"
)

func (c *Control) sessions(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	list, err := c.describe(r.Context(), caller)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	front.WriteJSON(w, http.StatusOK, map[string]any{"sessions": list})
}

// Describe lists a principal's sessions as GET /api/v1/sessions does.
func (c *Control) Describe(ctx context.Context, principal string) ([]session.Info, error) {
	return c.describe(ctx, front.Caller{Principal: principal})
}

// describe lists the sessions with what their connections use and what is recorded of them
// (N7). It waits for nothing but the process table and the store.
func (c *Control) describe(ctx context.Context, caller front.Caller) ([]session.Info, error) {
	list := c.cfg.Sessions.List(caller.Principal, caller.Admin)
	if list == nil {
		list = []session.Info{}
	}
	session.AddUsage(list, c.connectionsOf(list))
	return list, c.addRecorded(ctx, list, caller)
}

// connectionsOf returns the pool's connections, with what their processes use, if one of
// the sessions is attached to any.
func (c *Control) connectionsOf(list []session.Info) []pool.Info {
	if !slices.ContainsFunc(list, func(i session.Info) bool { return len(i.Connections) > 0 }) {
		return nil
	}
	return c.cfg.Pool.SnapshotOf(c.view())
}

// living are the states of sessions that the manager has.
var living = []string{string(session.Active), string(session.Dormant), string(session.Draining)}

// addRecorded adds to sessions what the store knows of their recordings.
func (c *Control) addRecorded(ctx context.Context, list []session.Info, caller front.Caller) error {
	if c.cfg.Store == nil || len(list) == 0 {
		return nil
	}
	f := store.SessionFilter{States: living}
	if !caller.Admin {
		f.Principal = &caller.Principal
	}
	turns, err := c.cfg.Store.Turns(ctx, f)
	if err != nil {
		return err
	}
	sealed := map[store.SessionKey]bool{}
	f.Sealed = new(true)
	for s, err := range c.cfg.Store.Sessions(ctx, f) {
		if err != nil {
			return err
		}
		sealed[s.SessionKey] = true
	}
	for i := range list {
		k := store.SessionKey{Principal: list[i].Principal, ID: list[i].ID, Incarnation: list[i].Incarnation}
		list[i].Turns, list[i].Sealed = turns[k], sealed[k]
	}
	return nil
}

// owner returns whose session the path names. That is the caller's own one, or for
// an admin the only one of that id, or that of ?principal=. It may be alive or recorded.
func (c *Control) owner(r *http.Request, caller front.Caller) (string, error) {
	if p := r.URL.Query().Get("principal"); p != "" {
		if p != caller.Principal && !caller.Admin {
			return "", errAdmin
		}
		return p, nil
	}
	if !caller.Admin {
		return caller.Principal, nil
	}
	owners, err := c.recorders(r.Context(), r.PathValue("id"), true)
	if err != nil {
		return "", err
	}
	for _, s := range c.cfg.Sessions.List("", true) {
		if s.ID == r.PathValue("id") {
			owners = append(owners, s.Principal)
		}
	}
	if len(owners) == 0 { // it may be stored that there was one
		if owners, err = c.recorders(r.Context(), r.PathValue("id"), false); err != nil {
			return "", err
		}
	}
	slices.Sort(owners)
	owners = slices.Compact(owners)
	switch {
	case len(owners) == 0 || slices.Contains(owners, caller.Principal):
		return caller.Principal, nil
	case len(owners) == 1:
		return owners[0], nil
	}
	return "", fault.New(fault.BadRequest, "several principals have a session of this id; choose with ?principal= or --principal one of %s", strings.Join(owners, ", "))
}

// Session is a session as the API shows it: what lives of it, and what is recorded.
type Session struct {
	session.Info
	Recording *Recording `json:"recording,omitempty"`
}

// session shows a session: one that lives, or what is stored of one that has ended.
func (c *Control) session(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	principal, err := c.owner(r, caller)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	info, err := c.cfg.Sessions.Get(principal, false, r.PathValue("id"))
	if fault.Is(err, fault.UnknownSession) {
		if lives, none := c.incarnations(r, principal, false); none == nil {
			info, err = session.Stored(newest(lives))
		}
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	recording, err := c.recordingOf(r, principal)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	if recording != nil {
		info.Turns, info.Sealed = recording.Turns, recording.SealedAt != nil
		if info.State == session.Recorded {
			info.LastActivity = recording.LastActivity
		}
	}
	one := []session.Info{info}
	session.AddUsage(one, c.connectionsOf(one))
	front.WriteJSON(w, http.StatusOK, Session{one[0], recording})
}

// maxMetadata is the size of the largest metadata of a session, in bytes.
const maxMetadata = 16 << 10

// createSession begins a session without a client, as the body describes it, and answers
// with it (N1).
func (c *Control) createSession(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	principal := cmp.Or(r.URL.Query().Get("principal"), caller.Principal)
	if principal != caller.Principal && !caller.Admin {
		front.WriteError(w, errAdmin)
		return
	}
	spec, err := readSpec(w, r)
	if err == nil && !caller.Admin {
		err = within(spec.Limits, c.cfg.Config().Sessions.Of(spec.Kind))
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	spec.Principal = principal
	info, err := c.cfg.Sessions.Create(r.Context(), spec)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	front.WriteJSON(w, http.StatusCreated, Session{Info: info})
}

// readSpec reads a body that describes a session.
func readSpec(w http.ResponseWriter, r *http.Request) (spec session.Spec, err error) {
	body, err := front.ReadBody(w, r, maxChange)
	if err != nil {
		return spec, err
	}
	var v struct {
		ID        string          `json:"id"`
		Kind      string          `json:"kind"`
		Workspace string          `json:"workspace"`
		Metadata  json.RawMessage `json:"metadata"`
		Limits    struct {
			IdleTimeout span `json:"idleTimeout"`
			ExpireAfter span `json:"expireAfter"`
			MaxLifetime span `json:"maxLifetime"`
			MaxTasks    int  `json:"maxTasks"`
		} `json:"limits"`
	}
	if body = bytes.TrimSpace(body); len(body) == 0 {
		body = []byte("{}")
	}
	if wire.Valid(body) != nil || body[0] != '{' {
		return spec, errSpec
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return spec, fault.New(fault.BadRequest, "the session cannot be read: %w; %s", err, errSpec.Message)
	}
	switch {
	case v.ID != "" && !wire.ValidSessionID(v.ID):
		return spec, fault.New(fault.BadRequest, "the id is malformed: it must be 1 to 128 of A-Z a-z 0-9 . _ : -")
	case v.Kind != "" && !config.ValidKind(v.Kind):
		return spec, fault.New(fault.BadRequest, "the kind must have 1 to 64 bytes and no control character")
	case v.Workspace != "" && !filepath.IsAbs(v.Workspace):
		return spec, fault.New(fault.BadRequest, "the workspace must be an absolute path")
	case len(v.Metadata) > maxMetadata:
		return spec, fault.New(fault.TooLarge, "the metadata have %d bytes; %d is the limit", len(v.Metadata), maxMetadata)
	case len(v.Metadata) > 0 && v.Metadata[0] != '{':
		return spec, fault.New(fault.BadRequest, "the metadata must be an object")
	case v.Limits.MaxTasks < 0:
		return spec, fault.New(fault.BadRequest, "limits.maxTasks must be at least 1")
	}
	if v.Workspace != "" {
		v.Workspace = filepath.Clean(v.Workspace)
	}
	return session.Spec{
		ID: v.ID, Kind: v.Kind, Workspace: v.Workspace, Metadata: v.Metadata,
		Limits: config.SessionLimits{
			IdleTimeout: time.Duration(v.Limits.IdleTimeout), ExpireAfter: time.Duration(v.Limits.ExpireAfter),
			MaxLifetime: time.Duration(v.Limits.MaxLifetime), MaxTasks: v.Limits.MaxTasks,
		},
	}, nil
}

var errSpec = fault.New(fault.BadRequest, `the body is an object that may have the members "id", "kind", "workspace", "metadata" (an object) and "limits" ("idleTimeout", "expireAfter", "maxLifetime", "maxTasks")`)

// span is a duration as a configuration spells it; 0 is none.
type span time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil || d <= 0 {
		return errors.New(`a limit must be a duration such as "30s", "5m" or "24h"`)
	}
	*s = span(d)
	return nil
}

// within refuses limits that are wider than those of the session's kind: they are for
// admins, who set those.
func within(own, general config.SessionLimits) error {
	wider := func(own, general int64) bool { return own > general && general > 0 }
	if wider(int64(own.IdleTimeout), int64(general.IdleTimeout)) || wider(int64(own.ExpireAfter), int64(general.ExpireAfter)) ||
		wider(int64(own.MaxLifetime), int64(general.MaxLifetime)) || wider(int64(own.MaxTasks), int64(general.MaxTasks)) {
		return fault.New(fault.Forbidden, "limits that are wider than those of the session's kind in the configuration need a token with \"admin\": true")
	}
	return nil
}

// endSession ends a session and answers when it has ended.
func (c *Control) endSession(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	force, err := flag(r, "force")
	var principal string
	if err == nil {
		principal, err = c.owner(r, caller)
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	// The end goes on when the caller is gone: a session ends once.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(r.Context()), c.cfg.Config().Shutdown.Grace, errors.New("the grace for calls in flight is over"))
	defer cancel()
	err = c.cfg.Sessions.End(ctx, principal, false, r.PathValue("id"), force)
	if unknown := fault.Is(err, fault.UnknownSession); err == nil || unknown {
		// It may have had model calls alone, of which the manager knows nothing.
		found, endErr := c.cfg.Models.End(ctx, principal, r.PathValue("id"), force)
		if endErr != nil || found && unknown {
			err = endErr
		}
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
