package model

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/dialect"
	"roundhouse/internal/store"
)

// prepared is a call with everything that is decided before it is sent.
type prepared struct {
	call     Call
	upstream *Upstream // nil if none serves the model
	policy   config.RecordPolicy
	key      store.SessionKey // unless policy is off
	forward  *dialect.Call
	start    time.Time
}

// prepare decides where a call goes and how it is recorded. The error is an *Error.
func (m *Models) prepare(ctx context.Context, c Call) (*prepared, error) {
	p := &prepared{call: c, start: time.Now()}
	var refusal *Error
	p.upstream, refusal = m.choose(c.API, c.model())
	if err := m.decide(ctx, p); err != nil {
		return nil, err
	}
	if encoding := encodingOf(c.Header); refusal == nil && c.Request == nil && p.policy == config.RecordTrain && encoding != "" {
		refusal = refuse(http.StatusUnsupportedMediaType, nil, "a request that is recorded must not be encoded (Content-Encoding: %.50s)", encoding)
	}
	if refusal != nil {
		return nil, m.refused(ctx, p, refusal)
	}
	p.forward = p.body()
	return p, nil
}

// decide settles the policy and the session (C3). What stands nearer to the request wins:
// its own word, its session's, the upstream's, the configuration's.
func (m *Models) decide(ctx context.Context, p *prepared) error {
	c, record := &p.call, m.cfg.LLM.Record
	refuses := c.Request != nil && c.Request.NoTokens
	p.key = store.SessionKey{Principal: c.Principal, ID: c.Session, Incarnation: 1}
	switch {
	case c.Policy == config.RecordOff, c.Policy == "" && refuses, m.cfg.Store == nil:
		p.policy = config.RecordOff
		return nil
	case c.Session != "" && p.upstream == nil:
		p.policy = cmp.Or(c.Policy, record.Policy)
	case c.Session != "":
		p.policy = cmp.Or(c.Policy, p.upstream.cfg.Policy, record.Policy)
	case record.Unnamed != config.RecordOff:
		p.policy = cmp.Or(c.Policy, record.Unnamed)
		p.key.ID = "unnamed:" + p.start.UTC().Format(time.DateOnly)
	case c.Policy != "":
		return refuse(http.StatusBadRequest, nil, "the request is to be recorded and names no session; name one by X-Session-Id or /sessions/ID/v1/…, or set llm.record.unnamed")
	default:
		p.policy = config.RecordOff
		return nil
	}
	return m.consult(ctx, p)
}

// consult reads what is stored of the session.
func (m *Models) consult(ctx context.Context, p *prepared) error {
	s, err := m.cfg.Store.Session(ctx, p.key.Principal, p.key.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil // it begins with this call
	case err != nil && p.policy == config.RecordTrain:
		return refuse(http.StatusInternalServerError, err, "the session's recording cannot be read")
	case err != nil:
		m.log.Error("a session's recording cannot be read", "session", p.key.ID, "err", err)
		return nil
	}
	p.key.Incarnation = s.Incarnation
	if own := policyOf(s.Metadata); own != "" && p.call.Policy == "" {
		p.policy = own
	}
	switch {
	case p.policy == config.RecordOff:
	case s.State == store.Closed && !s.Sealed.IsZero():
		e := sealed(store.ErrSealed) // its id is not used again (N1)
		e.Failure.Status = http.StatusGone
		return e
	case s.State == store.Closed:
		p.key.Incarnation++ // an id that is used again after its end
	case !s.Sealed.IsZero():
		return sealed(store.ErrSealed)
	}
	return nil
}

// sealed is the answer to what comes late (C15). It is not to be tried again.
func sealed(err error) *Error {
	e := refuse(http.StatusConflict, err, "the session's recording is sealed and takes no more calls; use another session")
	e.Failure.Code = "session_sealed"
	return e
}

// policyOf returns the policy that a session's metadata asks for, "" if it asks for none.
func policyOf(metadata json.RawMessage) config.RecordPolicy {
	var asks struct {
		Record config.RecordPolicy `json:"record"`
	}
	if json.Unmarshal(metadata, &asks) != nil {
		return ""
	}
	switch asks.Record {
	case config.RecordTrain, config.RecordObserve, config.RecordOff:
		return asks.Record
	}
	return ""
}

// body is what goes upstream. What is not recorded is not changed, except that what names
// a session is not sent (C2).
func (p *prepared) body() *dialect.Call {
	c := &p.call
	switch {
	case c.Request == nil:
		return dialect.Opaque(c.API, c.Body)
	case p.policy == config.RecordOff && !c.Request.NoTokens:
		return c.Request.Forward(dialect.Profile{}, false)
	case p.policy == config.RecordOff:
		// An engine that does not know what turned recording off need not see it.
		return c.Request.Forward(dialect.Profile{Engine: p.upstream.profile.Engine}, false)
	}
	return c.Request.Forward(p.upstream.profile, p.policy == config.RecordTrain)
}
