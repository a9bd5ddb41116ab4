package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"roundhouse/internal/event"
	"roundhouse/internal/store"
	"roundhouse/internal/wire"
)

// storeTimeout bounds how long the end of an answer waits for the store. It is long: a
// store that fails says so much sooner.
const storeTimeout = 30 * time.Second

// finish stores the turn, and only then lets the client have its end, or a native error
// in its place (C4, C5).
func (t *turn) finish(e ending) {
	err := t.commit(&e)
	if err != nil {
		t.missed(&e, err)
	}
	close(t.ended)
	t.tell(&e)
	t.m.cfg.Events.Publish(event.Event{Kind: event.TurnRecorded, Principal: t.key.Principal, Session: t.key.ID, Turn: t.id, Outcome: string(e.result.Outcome)})
}

// commit stores what became of the call, behind its intent (C6).
func (t *turn) commit(e *ending) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), storeTimeout)
	defer cancel()
	<-t.intended
	v := &e.result
	v.First, v.End = t.first, time.Now()
	var err error
	if t.raw.err != nil && v.Outcome.Trainable() {
		v.Outcome, v.Error = store.Unparsed, t.raw.err.Error()
	}
	if v.Raw, err = t.raw.pack(); err != nil {
		return err
	}
	if v.Response.Digest() == v.Raw.Digest() {
		v.Response = store.Body{} // Raw is it
	}
	err = t.m.cfg.Store.Commit(ctx, t.key, t.id, *v)
	if errors.Is(err, store.ErrUnknown) && ctx.Err() == nil {
		err = t.m.cfg.Store.Commit(ctx, t.key, t.id, *v) // it may be repeated
	}
	if err == nil {
		return nil // then the intent is stored, too
	}
	// A result without an intent is refused, and the intent's fate says why there is none.
	select {
	case cause := <-t.begun:
		if cause != nil {
			return fmt.Errorf("store the intent: %w", cause)
		}
	case <-ctx.Done():
	}
	return err
}

// missed is what becomes of a turn that could not be stored (C3, C5).
func (t *turn) missed(e *ending, err error) {
	t.m.log.Error("a model call could not be recorded", "session", t.key.ID, "turn", t.id, "policy", string(t.policy), "err", err)
	late := errors.Is(err, store.ErrSealed)
	if t.trains() {
		e.failure = refuse(http.StatusInternalServerError, err, "the turn could not be recorded, and its answer is withheld")
		e.failure.Failure.Code = "store_failed"
		if late {
			e.failure = sealed(err)
		}
	}
	e.result.Outcome = store.StoreFailed
	if !late {
		t.m.owe(t, e.result.Status, err)
	}
}

// tell gives the client the end.
func (t *turn) tell(e *ending) {
	switch {
	case e.failure != nil && !t.out.hasBegun():
		t.out.fail(e.failure)
		return
	case e.failure != nil && e.stream != nil:
		t.out.write(e.stream.Failure(e.failure.Failure))
		e.tail, e.abort = nil, true
	case !t.out.hasBegun():
		t.out.begin(e.result.Status, e.header)
	}
	if e.abort {
		t.out.finish(e.tail, ErrAborted)
	} else {
		t.out.finish(e.tail, io.EOF)
	}
}

// deliver stores how much of a turn's answer its client got (C8).
func (m *Models) deliver(k store.SessionKey, id string, n int64, full bool) {
	d := store.Partial
	switch {
	case full:
		d = store.Full
	case n == 0:
		d = store.None
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	if err := m.cfg.Store.Deliver(ctx, k, id, d, n); err != nil {
		// It counts as not known, as after a crash.
		m.log.Warn("how much of an answer was delivered could not be stored", "session", k.ID, "turn", id, "err", err)
	}
}

// usageOf returns what an answer says of its tokens, as it says it.
func usageOf(response []byte) json.RawMessage {
	if len(response) == 0 {
		return nil
	}
	for m, err := range wire.Members(response) {
		if err == nil && m.Key == "usage" && response[m.Value.Start] == '{' {
			return response[m.Value.Start:m.Value.End]
		}
	}
	return nil
}
