package model

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"roundhouse/internal/config"
	"roundhouse/internal/store"
)

// replay answers a marked retry of a call that is recorded already, or waits for the one
// that is under way (C9). It returns nil if there is none: then the call is made.
func (m *Models) replay(ctx context.Context, p *prepared) (*Answer, error) {
	if p.call.Retries == 0 || p.call.Request == nil || p.call.Request.Stream {
		return nil, nil
	}
	body := store.Pack(p.call.Body)
	earlier, err := m.cfg.Store.Replay(ctx, p.key, p.call.Path, body)
	var cut *Error
	if err == nil && earlier.Result == nil {
		if cut = m.await(ctx, earlier.ID); cut == nil && ctx.Err() == nil {
			earlier, err = m.cfg.Store.Call(ctx, p.key, earlier.ID)
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case cut != nil:
		return nil, cut
	case errors.Is(err, store.ErrNotFound), err == nil && (earlier.Result == nil || !earlier.Result.Outcome.Trainable()):
		return nil, nil
	case err != nil && p.policy == config.RecordTrain:
		return nil, refuse(http.StatusInternalServerError, err, "the session's recording cannot be read")
	case err != nil:
		m.log.Error("an earlier attempt cannot be read", "session", p.key.ID, "err", err)
		return nil, nil
	}
	answer, err := earlier.Result.Answer().Bytes()
	if err != nil {
		return nil, refuse(http.StatusInternalServerError, err, "the recorded answer cannot be read")
	}
	again := &recorded{m: m, key: p.key, id: earlier.ID, answer: answer}
	stored := make(chan struct{})
	close(stored)
	if again.leave, err = m.enter(&active{cancel: again.cancel, session: p.key, stored: stored}); err != nil {
		return nil, err
	}
	h := earlier.Result.Header.Clone()
	setLength(h, len(answer))
	return &Answer{Status: earlier.Result.Status, Header: h, Turn: earlier.ID, source: again}, nil
}

// await waits for a turn under way, while ctx lasts. If the turn was cut short by us, it
// returns how a client is told: the session or the daemon ends for those who wait, too.
func (m *Models) await(ctx context.Context, id string) *Error {
	m.mu.Lock()
	t := m.turns[id]
	m.mu.Unlock()
	if t == nil {
		return nil
	}
	select {
	case <-t.ended:
		return cutShort(context.Cause(t.ctx))
	case <-ctx.Done():
		return nil
	}
}

// recorded is an answer from the store.
type recorded struct {
	m      *Models
	key    store.SessionKey
	id     string
	answer []byte
	handed int  // bytes that were read
	passed int  // of them, those that were certainly sent on
	full   bool // the client has read the end
	leave  func()

	cancelled atomic.Bool // what is left is not to be sent
}

// cancel breaks the answer off. It is no call's: the turn stays as it is.
func (r *recorded) cancel(error) { r.cancelled.Store(true) }

func (r *recorded) read(p []byte) (int, error) {
	r.passed = r.handed
	if r.handed == len(r.answer) {
		r.full = true
		return 0, io.EOF
	}
	if r.cancelled.Load() {
		return 0, ErrAborted
	}
	n := copy(p, r.answer[r.handed:])
	r.handed += n
	return n, nil
}

func (r *recorded) ready() bool { return true }

// close stores that the turn's client has its answer now, if it has (C8).
func (r *recorded) close() {
	if r.leave == nil {
		return
	}
	defer r.leave()
	r.leave = nil
	r.m.deliver(r.key, r.id, int64(r.passed), r.full)
}
