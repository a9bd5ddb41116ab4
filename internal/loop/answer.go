package loop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"roundhouse/internal/dialect"
	"roundhouse/internal/model"
	"roundhouse/internal/sse"
)

// answerReader makes items of one answer of an upstream, in the words of its API.
type answerReader interface {
	// event takes an event of a stream.
	event(data []byte) error
	// whole takes an answer that is no stream.
	whole(body []byte) error
	// ended reports whether the upstream has said that, and how, the answer has ended.
	ended() bool
}

// ask has the upstream answer a body, which asks for a stream, and reads the answer, which
// is one if it does not say something else. What comes of it when ctx ends is the cause of
// that.
func (r *Run) ask(ctx context.Context, api dialect.API, path string, body []byte, to answerReader) error {
	answer, err := r.call(ctx, api, path, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	read := readWhole
	if model.IsStream(answer.Header, true) {
		read = readStream
	}
	switch err = read(answer, to); {
	case ctx.Err() != nil && err != nil:
		return context.Cause(ctx)
	case errors.Is(err, model.ErrAborted), err == nil && !to.ended():
		return errCut
	}
	return err
}

var errCut = &Failure{Status: http.StatusBadGateway, Code: "upstream_error", Message: "the model's answer broke off"}

// unreadable is the failure of an answer that is not of the API.
func unreadable(err error) *Failure {
	return &Failure{Status: http.StatusBadGateway, Code: "upstream_error", Message: "the model's answer cannot be read: " + err.Error()}
}

// maxEvent is how long one event of a stream may be, in bytes.
const maxEvent = 64 << 20

func readStream(answer io.Reader, to answerReader) error {
	events := sse.NewReader(answer, maxEvent)
	for {
		e, err := events.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		data := bytes.TrimSpace(e.Data)
		if len(data) == 0 || string(data) == "[DONE]" {
			continue
		}
		if err := to.event(data); err != nil {
			return err
		}
	}
}

func readWhole(answer io.Reader, to answerReader) error {
	body, err := io.ReadAll(answer)
	if err != nil {
		return err
	}
	return to.whole(body)
}

// call has the upstream answer a body, which is the turn of the session.
func (r *Run) call(ctx context.Context, api dialect.API, path string, body []byte) (*model.Answer, error) {
	request, err := dialect.ParseRequest(api, body)
	if err != nil {
		return nil, &Failure{Status: http.StatusBadRequest, Code: "invalid_request_error", Message: err.Error()}
	}
	answer, err := r.engine.cfg.Models.Do(ctx, model.Call{
		Principal: r.t.Principal, Session: r.t.Session, Policy: r.t.Policy, API: api, Path: path, Header: upstreamHeader(r.t.Header), Body: body, Request: request,
	})
	if err != nil {
		return nil, err
	}
	if answer.Status >= 200 && answer.Status <= 299 {
		return answer, nil
	}
	defer answer.Close()
	said, err := io.ReadAll(io.LimitReader(answer, 1<<20))
	if err != nil && len(said) == 0 {
		return nil, err
	}
	f := upstreamFailure(answer.Status, said)
	if seconds, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && seconds > 0 {
		f.RetryAfter = min(time.Duration(seconds), 24*60*60) * time.Second
	}
	return nil, f
}

// dropped are headers of a caller that are about its own request rather than about the
// model's.
var dropped = []string{"Accept", "Accept-Encoding", "Content-Encoding", "Content-Length", "Content-Type", "Idempotency-Key", "Prefer"}

func upstreamHeader(h http.Header) http.Header {
	h = h.Clone()
	if h == nil {
		h = http.Header{}
	}
	for _, name := range dropped {
		h.Del(name)
	}
	for name := range h {
		if len(name) > 12 && name[:12] == "X-Stainless-" {
			h.Del(name)
		}
	}
	h.Set("Content-Type", "application/json")
	return h
}

// upstreamFailure is what an upstream says of an error.
func upstreamFailure(status int, said []byte) *Failure {
	var v struct {
		Error struct {
			Message string          `json:"message"`
			Type    string          `json:"type"`
			Code    json.RawMessage `json:"code"`
		} `json:"error"`
		Message string `json:"message"`
	}
	f := &Failure{Status: status, Code: "upstream_error", Message: fmt.Sprintf("the model's upstream answered %d", status)}
	if json.Unmarshal(said, &v) != nil {
		if said = bytes.TrimSpace(said); len(said) > 0 && len(said) < 1000 {
			f.Message += ": " + string(said)
		}
		return f
	}
	if m := v.Error.Message; m != "" {
		f.Message = m
	} else if v.Message != "" {
		f.Message = v.Message
	}
	var code string
	switch {
	case json.Unmarshal(v.Error.Code, &code) == nil && code != "":
		f.Code = code
	case v.Error.Type != "":
		f.Code = v.Error.Type
	}
	return f
}
