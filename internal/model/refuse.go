package model

import (
	"context"
	"errors"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/store"
)

// Refuse is for calls that cannot be sent: it records the attempt as refused (C7, A.16
// row 11), if the call is one to record, and returns why it was, which is for the client.
func (m *Models) Refuse(ctx context.Context, c Call, why *Error) error {
	p := &prepared{call: c, start: time.Now()}
	if err := m.decide(ctx, p); err != nil {
		return why
	}
	return m.refused(ctx, p, why)
}

// refused records a call that was prepared as far as its policy and session.
func (m *Models) refused(ctx context.Context, p *prepared, why *Error) error {
	if p.policy == config.RecordOff {
		return why
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	t := newTurn(m, p, ctx)
	t.cancel(nil)
	r := store.Result{Outcome: store.Refused, Status: why.Failure.Status, Error: why.Error(), End: time.Now()}
	err := m.cfg.Store.Begin(ctx, t.intent())
	if err == nil {
		err = m.cfg.Store.Commit(ctx, p.key, t.id, r)
	}
	if err == nil {
		err = m.cfg.Store.Deliver(ctx, p.key, t.id, store.None, 0)
	}
	if err != nil && !errors.Is(err, store.ErrSealed) {
		// No turn is missing, but that the client was refused one.
		m.log.Warn("a call that was refused could not be recorded", "session", p.key.ID, "turn", t.id, "err", err)
	}
	return why
}
