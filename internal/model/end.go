package model

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"roundhouse/internal/store"
)

// cutShort returns how a client is told that its call was ended by a cause of ours, nil
// for any other cause.
func cutShort(cause error) *Error {
	switch cause {
	case errShutdown:
		return errStopping
	case errEnded:
		e := refuse(http.StatusNotFound, nil, "the session was ended while this call was under way")
		e.Failure.Code = "unknown_session"
		return e
	case store.ErrSealed:
		return sealed(cause)
	}
	return nil
}

// of returns the calls of a session that are under way: of all its lives if the key's
// incarnation is 0, and otherwise also those that are not recorded.
func (m *Models) of(k store.SessionKey) (calls []*active) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for a := range m.active {
		s := a.session
		if s.Principal == k.Principal && s.ID == k.ID && (k.Incarnation == 0 || s.Incarnation == k.Incarnation || a.turn == nil) {
			calls = append(calls, a)
		}
	}
	return calls
}

// lastDelivery is how long Seal waits for what is known of deliveries any moment.
const lastDelivery = 2 * time.Second

// Seal closes a session's recording for good (C15) and returns how many of its calls
// were under way, of which none is recorded any more. Those under the policy train could
// only fail, so they are cancelled, and their clients told at once. Of a turn that is
// stored its delivery is stored before.
func (m *Models) Seal(ctx context.Context, k store.SessionKey) (lost int, err error) {
	late := time.After(lastDelivery)
	for _, a := range m.of(k) {
		select {
		case <-a.stored:
			// Its client has the end, or takes it just now.
			select {
			case <-a.done:
			case <-late:
			}
		default:
		}
	}
	if lost, err = m.cfg.Store.Seal(ctx, k); err != nil {
		return 0, err
	}
	for _, a := range m.of(k) {
		if a.turn != nil && a.turn.trains() {
			a.cancel(store.ErrSealed)
		}
	}
	return lost, nil
}

// End ends what there is of a session (N4). Whoever names it again begins its next life
// (N1); the calls of this one are waited for until ctx ends, or not at all if force is
// set, and then cancelled. End returns when they have ended. It reports false if there
// was nothing: no call, and no recording that was not closed.
func (m *Models) End(ctx context.Context, principal, id string, force bool) (found bool, err error) {
	late := ctx.Done()
	ctx = context.WithoutCancel(ctx) // the rest is done in any case
	if found, err = m.closeRecording(ctx, principal, id); err != nil {
		return false, err
	}
	calls := m.of(store.SessionKey{Principal: principal, ID: id})
	for _, a := range calls {
		if force {
			break
		}
		select {
		case <-a.done:
		case <-late:
			force = true
		}
	}
	for _, a := range calls {
		a.cancel(errEnded) // which is nothing to those that have ended
	}
	m.letGo(calls)
	for _, a := range calls {
		if a.turn != nil { // one of them may have begun the life that is to end
			err = errors.Join(err, m.closeLife(ctx, a.session))
		}
	}
	return found || len(calls) > 0, err
}

// letGo waits for calls that were cancelled. Their clients have as long to take what there
// is for them as they have for a write.
func (m *Models) letGo(calls []*active) {
	late := time.NewTimer(m.cfg.WriteDeadline)
	defer late.Stop()
	for i, a := range calls {
		select {
		case <-a.done:
			continue
		case <-late.C:
		}
		for _, a := range calls[i:] {
			if a.turn != nil {
				a.turn.out.leave()
			}
		}
		<-a.done
	}
}

// closeRecording closes the newest life of a session, and reports whether it was open.
func (m *Models) closeRecording(ctx context.Context, principal, id string) (open bool, err error) {
	if m.cfg.Store == nil {
		return false, nil
	}
	reading, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	s, err := m.cfg.Store.Session(reading, principal, id)
	switch {
	case errors.Is(err, store.ErrNotFound), err == nil && s.State == store.Closed:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("end session %q: %w", id, err)
	}
	return true, m.closeLife(ctx, s.SessionKey)
}

// closeLife closes one life of a session, unless nothing is recorded of it.
func (m *Models) closeLife(ctx context.Context, k store.SessionKey) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := m.cfg.Store.CloseSession(ctx, k); err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("end session %q: %w", k.ID, err)
	}
	return nil
}
