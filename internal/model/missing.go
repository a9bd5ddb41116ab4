package model

import (
	"context"
	"errors"
	"time"

	"roundhouse/internal/store"
)

// missing is a call that could not be stored, and what is to be stored of it: that it was
// made, and that it is missing.
type missing struct {
	intent store.Call // without what may be large
	fate   store.Result
}

// maxOwed is how many calls that could not be stored are remembered until the store works
// again. Each takes a few hundred bytes.
const maxOwed = 16 << 10

// owe remembers a call that could not be stored.
func (m *Models) owe(t *turn, status int, why error) {
	intent := t.call
	v := missing{
		store.Call{
			Session: t.key, ID: t.id, Attempt: intent.Retries + 1, API: intent.API.String(), Endpoint: intent.Path, Model: intent.model(),
			Upstream: t.upstream.cfg.Name, Policy: store.Policy(t.policy), Start: t.start,
		},
		store.Result{Outcome: store.StoreFailed, Status: status, Error: why.Error(), End: time.Now()},
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.owed) == maxOwed {
		m.log.Error("too many calls could not be recorded; one of them will be known from this line only", "session", t.key.ID, "turn", t.id)
		return
	}
	m.owed = append(m.owed, v)
}

// settle stores what is owed, as far as the store takes it. It is cheap if nothing is.
func (m *Models) settle(ctx context.Context) {
	m.mu.Lock()
	owed := m.owed
	m.owed = nil
	m.mu.Unlock()
	if len(owed) == 0 {
		return
	}
	for i, v := range owed {
		if err := m.note(ctx, v); err != nil {
			m.trouble.Note(m.log.Warn, "what is missing from a recording could not be noted; this is tried again", "calls", len(owed)-i, "err", err)
			m.mu.Lock()
			m.owed = append(m.owed, owed[i:]...)
			m.mu.Unlock()
			return
		}
	}
	m.trouble.Over(m.log.Info, "what is missing from recordings has been noted", "calls", len(owed))
}

// note stores that a call is missing. A session that was sealed meanwhile takes the mark
// alone. What is stored of the call already stays.
func (m *Models) note(ctx context.Context, v missing) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	st, key := m.cfg.Store, v.intent.Session
	done := func(err error) bool {
		return err == nil || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrSealed) || errors.Is(err, store.ErrNotFound)
	}
	if err := st.Begin(ctx, v.intent); !done(err) {
		return err
	}
	if err := st.Commit(ctx, key, v.intent.ID, v.fate); !done(err) {
		return err
	}
	if err := st.MarkIncomplete(ctx, key, "turn "+v.intent.ID+" could not be stored"); !done(err) {
		return err
	}
	return nil
}
