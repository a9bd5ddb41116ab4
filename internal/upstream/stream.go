package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"roundhouse/internal/wire"
)

const (
	// resumeWait is how long a stream that was cut off rests before it is continued, if
	// the server does not say. It doubles with each attempt in vain, up to maxResumeWait.
	resumeWait    = 500 * time.Millisecond
	maxResumeWait = 30 * time.Second

	// maxResumes is how many attempts in vain to continue a call's stream there are.
	// A server that has asked to be polled, by retry, may have more to come.
	maxResumes = 5
	maxPolls   = 100

	// steady is how long a stream must have lived for its end not to count as a failure.
	steady = 30 * time.Second
)

// position is where a stream can be continued.
type position struct {
	id    string
	retry time.Duration
}

// canResume reports whether there is an id, and one that fits into a header.
func (p position) canResume() bool {
	return p.id != "" && !strings.ContainsFunc(p.id, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// wait returns how long to wait before attempt n, from 0.
func (p position) wait(n int) time.Duration {
	d := min(resumeWait<<min(n, 10), maxResumeWait)
	d += time.Duration(rand.Int64N(int64(d/5) + 1)) // jitter: servers come back to many clients
	return max(d, p.retry)
}

// follow reads a call's stream until the answer has come, and continues it where it was
// cut off, if the server gave it ids. The call is not sent again (R5).
func (h *HTTP) follow(x *exchange, body io.ReadCloser) {
	var at position
	for attempt := 0; ; {
		before := at.id
		over := h.read(x, body, &at)
		h.release(body)
		if over || x.ctx.Err() != nil {
			return
		}
		if at.id != before {
			attempt = 0
		}
		var err error
		if body, err = h.resume(x, &at, &attempt); err != nil {
			if x.ctx.Err() == nil {
				h.fail(x, err, true)
				h.unreachable(err)
			}
			return
		}
	}
}

// resume opens a call's stream again.
func (h *HTTP) resume(x *exchange, at *position, attempt *int) (io.ReadCloser, error) {
	if x.modern != "" || !at.canResume() {
		return nil, ErrInterrupted
	}
	limit := maxResumes
	if at.retry > 0 {
		limit = maxPolls
	}
	for {
		if *attempt == limit {
			return nil, fmt.Errorf("%w, and could not be continued in %d attempts", ErrInterrupted, limit)
		}
		if !sleep(x.ctx, at.wait(*attempt)) {
			return nil, context.Cause(x.ctx)
		}
		*attempt++
		res, err := h.get(x.ctx, at.id)
		switch {
		case err == nil:
			return res.Body, nil
		case !isTemporary(err) || isUnreachable(err):
			return nil, fmt.Errorf("%w, and could not be continued: %w", ErrInterrupted, err)
		}
	}
}

// isTemporary reports whether a GET may succeed when it is tried again.
func isTemporary(err error) bool {
	status, ok := errors.AsType[*StatusError](err)
	if !ok {
		return !errors.Is(err, errNoStream)
	}
	return status.Status >= 500 && status.Status != http.StatusNotImplemented || status.Status == http.StatusTooManyRequests
}

func isUnreachable(err error) bool {
	_, ok := errors.AsType[connectError](err)
	return ok
}

// errNoStream means that an answer to GET is no event stream.
var errNoStream = errors.New("the answer is no event stream")

// get opens a stream, to be continued behind the event lastID unless that is "".
func (h *HTTP) get(ctx context.Context, lastID string) (*http.Response, error) {
	header := h.headers(typeStream)
	if lastID != "" {
		header[headerLastID] = []string{lastID}
	}
	res, err := h.endpoint.do(ctx, request{method: http.MethodGet, header: header})
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		body := readRefusal(res)
		res.Body.Close()
		return nil, h.endpoint.refusal(res, body)
	}
	if kind, err := mediaType(res); err != nil || kind != typeStream {
		res.Body.Close()
		return nil, fmt.Errorf("GET %s: %w", shown(res.Request.URL), errNoStream)
	}
	h.countOpen(1)
	return res, nil
}

// stand keeps the GET stream open on which the server sends what belongs to no call. A
// server that has none, or does not want us to have it, is left alone. That it refuses
// the stream is no sign that the session is lost: the next message will tell (case 4).
func (h *HTTP) stand() {
	var at position
	for attempt := 0; ; attempt++ {
		begun := time.Now()
		res, err := h.get(h.ctx, at.id)
		switch {
		case err == nil:
			before := at.id
			h.read(nil, res.Body, &at)
			h.release(res.Body)
			if at.id != before || time.Since(begun) > steady {
				attempt = 0
			}
		case h.ctx.Err() != nil:
		case isTemporary(err):
			h.log.Debug("the server's stream is not to be had for now", "err", err)
			h.unreachable(err)
		case at.id != "":
			at.id = "" // It may be the id that the server does not want.
		default:
			h.log.Debug("the server has no stream for what belongs to no call", "err", err)
			return
		}
		if !at.canResume() {
			at.id = ""
		}
		if !sleep(h.ctx, at.wait(attempt)) {
			return
		}
	}
}

// sleep waits for d and reports whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// read delivers the events of one stream until it ends, and notes where it can be
// continued. x is the call that the stream belongs to, or nil. It reports whether the
// call is over: answered, or failed.
func (h *HTTP) read(x *exchange, body io.Reader, at *position) (over bool) {
	r := newEventReader(body, h.maxFrame)
	for {
		e, err := r.Next()
		if id := r.LastID(); id != "" {
			at.id = id
		}
		if r.Retry() > 0 {
			at.retry = r.Retry()
		}
		answered := false
		switch {
		case errors.Is(err, io.EOF) && wire.Valid(r.Rest()) == nil:
			// Some servers forget the blank line behind the last event; JSON can tell
			// that it is complete.
			return h.deliver(x, r.Rest()) || over
		case err != nil:
			return over
		case e.Type != "message" || e.Size == 0:
		case e.TooLong():
			answered = h.tooLong(x, r.scan, e.Size)
			r.scan = wire.IDScanner{}
		default:
			answered = h.deliver(x, e.Data)
		}
		if answered && !over {
			over = true
			stop := time.AfterFunc(linger, x.cancel)
			defer stop.Stop()
		}
	}
}
