package model

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/dialect"
	"roundhouse/internal/store"
)

// turn is a recorded call under way. It goes on without its client, if need be, and ends
// when what became of it is stored, as far as it can be.
type turn struct {
	// Constant.
	*prepared
	m      *Models
	id     string
	ctx    context.Context // of the upstream's request; its cause says why it ended
	cancel context.CancelCauseFunc
	out    *outlet
	ended  chan struct{} // closed when the turn is stored, or certainly not

	// Owned by run.
	raw      spool  // the answer as it came
	aside    *aside // what the engine is asked besides, nil if nothing is
	first    time.Time
	intended chan struct{} // closed when the intent has its place in the store's queue, or never will
	begun    chan error    // the intent's fate, for one receiver
}

func newTurn(m *Models, p *prepared, ctx context.Context) *turn {
	t := &turn{
		prepared: p, m: m, id: strings.ToLower(rand.Text()), ended: make(chan struct{}),
		raw:      spool{dir: m.cfg.Dir, limit: m.cfg.LLM.MaxBody},
		intended: make(chan struct{}), begun: make(chan error, 1),
	}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.out = newOutlet(m, t.clientLeft)
	return t
}

func (t *turn) trains() bool { return t.policy == config.RecordTrain }

// clientLeft cancels the request, if it is not to be drained (C8).
func (t *turn) clientLeft() {
	switch gone := t.m.cfg.LLM.Record.ClientGone; {
	case gone == config.ClientGoneCancel, gone == config.ClientGoneAuto && !t.trains():
		t.cancel(errClientGone)
	}
}

// run is the life of the turn.
func (t *turn) run() {
	defer t.cancel(nil)
	defer t.raw.close()
	var begin sync.WaitGroup
	defer begin.Wait() // it has ended if its result is stored
	begin.Go(t.begin)
	e := t.exchange()
	t.finish(e)
	t.m.settle(context.WithoutCancel(t.ctx))
	if e.rest != nil {
		t.drain(e.rest)
	}
	<-t.out.over
	n, full := t.out.delivered()
	t.m.deliver(t.key, t.id, n, full)
}

// begin stores the intent while the request is on its way. Without it a call under train
// comes to nothing, so it need not go on.
func (t *turn) begin() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), storeTimeout)
	defer cancel()
	wait, err := t.m.cfg.Store.Intend(t.intent())
	close(t.intended)
	if err == nil {
		err = wait(ctx)
	}
	if err != nil && t.trains() {
		t.cancel(err)
	}
	t.begun <- err
}

// drain reads what an upstream sends behind the end of an answer, so that the connection
// can be used again, and closes it if that takes long (C-29).
func (t *turn) drain(rest io.ReadCloser) {
	late := time.AfterFunc(time.Second, func() { t.cancel(nil) })
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, rest, readBytes) // it means nothing any more
	_ = rest.Close()
}

// intent is the call's row.
func (t *turn) intent() store.Call {
	upstream := ""
	if t.upstream != nil {
		upstream = t.upstream.cfg.Name
	}
	return store.Call{
		Session: t.key, ID: t.id, Attempt: t.call.Retries + 1, API: t.call.API.String(), Endpoint: t.call.Path, Model: t.call.model(),
		Upstream: upstream, Policy: store.Policy(t.policy), Stream: t.call.Request != nil && t.call.Request.Stream,
		Start: t.start, Header: t.call.Header, Request: store.Pack(t.call.Body),
	}
}

// exchange sends the request and passes on what comes back, up to what is released only
// when the turn is stored.
func (t *turn) exchange() ending {
	msg := Message{
		Method: http.MethodPost, Path: t.call.Path, RawQuery: t.call.RawQuery, Header: t.call.Header,
		Body: bytes.NewReader(t.forward.Body), Length: int64(len(t.forward.Body)),
	}
	if t.forward.AsksForPrompt() {
		t.aside = t.askAside()
		defer t.aside.stop()
	}
	resp, watch, err := t.upstream.send(t.ctx, t.cancel, msg, t.edit)
	if err != nil {
		return t.unsent(err)
	}
	defer watch.stop()
	e := t.receive(resp, watch)
	e.rest = resp.Body
	return e
}

// edit changes the header of a recorded request (C14).
func (t *turn) edit(h http.Header) {
	h.Set("Accept-Encoding", "identity")
	if t.call.API == dialect.Messages && h["Anthropic-Version"] == nil {
		h.Set("Anthropic-Version", "2023-06-01")
	}
}

// unsent is the ending of a call that got no answer.
func (t *turn) unsent(err error) ending {
	e := ending{result: store.Result{Outcome: store.UpstreamError, Error: err.Error()}}
	e.failure, _ = errors.AsType[*Error](err)
	t.interrupted(&e, context.Cause(t.ctx))
	return e
}

// read reads the next bytes of the answer, and keeps them. At the end the error is
// io.EOF or says why it came too early.
func (t *turn) read(w *watch, body io.Reader, p []byte) (int, error) {
	n, err := w.read(body, p)
	if n > 0 && t.first.IsZero() {
		t.first = time.Now()
	}
	t.raw.add(p[:n])
	if err != nil && err != io.EOF && t.ctx.Err() != nil {
		err = context.Cause(t.ctx)
	}
	return n, err
}
