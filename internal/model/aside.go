package model

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"roundhouse/internal/dialect"
)

// aside is what an engine is asked beside a call, for the ids of the prompt (C10). It is
// made by askAside, and stopped once.
type aside struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the others are set

	ids []int32
	err error
}

// askAside begins to ask. ctx is the call's, so what cuts the call short does this, too.
func (t *turn) askAside() *aside {
	ctx, cancel := context.WithCancel(t.ctx)
	a := &aside{cancel: cancel, done: make(chan struct{})}
	go func() { // joined by stop
		defer close(a.done)
		a.ids, a.err = t.promptIDs(ctx)
	}()
	return a
}

// promptIDs asks for the prompt's ids: its text first, then the ids of that.
func (t *turn) promptIDs(ctx context.Context) ([]int32, error) {
	// The prompt is about as long as the request, and so are its ids.
	size := 2 * int64(len(t.forward.Body))
	if !t.m.queued.take(size) {
		return nil, errors.New("too many bytes wait in memory (llm.maxQueued)")
	}
	defer t.m.queued.give(size)
	template, err := t.askFor(ctx, dialect.TemplatePath, t.forward.Body)
	if err != nil {
		return nil, err
	}
	request, err := t.forward.Tokenize(template)
	if err != nil {
		return nil, err
	}
	tokens, err := t.askFor(ctx, dialect.TokenizePath, request)
	if err != nil {
		return nil, err
	}
	return dialect.ReadTokenized(tokens)
}

// askFor sends one request and reads its answer.
func (t *turn) askFor(ctx context.Context, path string, body []byte) ([]byte, error) {
	req, err := t.upstream.request(ctx, Message{
		Method: http.MethodPost, Path: path, Header: t.call.Header, Body: bytes.NewReader(body), Length: int64(len(body)),
	}, t.edit)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", path, err)
	}
	resp, err := t.upstream.transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", path, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, t.m.cfg.LLM.MaxBody))
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask %s: %w", path, err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("ask %s: the answer is %d", path, resp.StatusCode)
	}
	return answer, nil
}

// addPrompt adds the prompt's ids to a result that lacks them, if they come in time. One
// that stays without is marked by its flag, and is a turn all the same.
func (t *turn) addPrompt(r *dialect.Result) {
	if t.aside == nil || !r.NeedsPrompt() {
		return
	}
	late := time.NewTimer(t.m.cfg.AsideDeadline)
	defer late.Stop()
	var err error
	select {
	case <-t.aside.done:
		if err = t.aside.err; err == nil {
			err = r.SetPrompt(t.aside.ids)
		}
	case <-late.C:
		err = fmt.Errorf("they did not come within %v of the answer", t.m.cfg.AsideDeadline)
	}
	if err != nil {
		t.m.log.Warn("a turn is stored without the ids of its prompt", "session", t.key.ID, "turn", t.id, "upstream", t.upstream.cfg.Name, "err", err)
	}
}

// stop ends the asking.
func (a *aside) stop() {
	a.cancel()
	<-a.done
}
