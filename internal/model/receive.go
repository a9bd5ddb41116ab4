package model

import (
	"cmp"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"roundhouse/internal/dialect"
	"roundhouse/internal/store"
)

// ending is what an exchange came to: what to store of it, and what the client gets once
// it is stored.
type ending struct {
	result store.Result

	tail  []byte // for the client
	abort bool   // after tail the connection is broken off
	// failure takes the place of tail, nil if there is none. In a stream it is told by
	// stream; it is not told behind an answer that has begun and is none, of which the
	// client has the upstream's own bytes.
	failure *Error
	stream  *dialect.Stream
	// header is that of an answer which has not begun, and is tail as a whole. Its status
	// is the result's.
	header http.Header
	rest   io.ReadCloser // what is left of the upstream's answer, nil if there was none
}

// receive passes on the answer.
func (t *turn) receive(resp *http.Response, w *watch) ending {
	h := answerHeader(resp.Header)
	encoding := encodingOf(resp.Header)
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return t.relay(resp, h, w, store.UpstreamError, fmt.Sprintf("the upstream answered %d", resp.StatusCode))
	case encoding != "" && t.trains():
		return t.unreadable(resp, h, fmt.Sprintf("the upstream's answer is encoded (%s) although that was not asked for", encoding))
	case encoding != "":
		return t.relay(resp, h, w, store.Unparsed, "the answer is encoded: "+encoding)
	case IsStream(resp.Header, t.call.Request != nil && t.call.Request.Stream):
		return t.receiveStream(resp, h, w)
	}
	return t.receiveWhole(resp, h, w)
}

// IsStream reports whether an answer with this header is an event stream. Where the header
// does not say what it is, it is what was asked for, for as such clients read it (A.9).
func IsStream(h http.Header, asked bool) bool {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return media == "text/event-stream" || media == "" && asked
}

// encodingOf returns how an answer is encoded, "" if it is not.
func encodingOf(h http.Header) string {
	if e := strings.Join(h["Content-Encoding"], ","); !strings.EqualFold(e, "identity") {
		return e
	}
	return ""
}

// relay passes on an answer that is no turn, byte for byte (A.7).
func (t *turn) relay(resp *http.Response, h http.Header, w *watch, outcome store.Outcome, why string) ending {
	e := ending{result: store.Result{Outcome: outcome, Status: resp.StatusCode, Header: h, Error: why}}
	t.out.begin(resp.StatusCode, h)
	buf := make([]byte, readBytes)
	for {
		n, err := t.read(w, resp.Body, buf)
		t.out.write(buf[:n])
		if err == io.EOF {
			return e
		}
		if err != nil {
			e.abort = true
			e.result.Error = cmp.Or(e.result.Error, err.Error())
			return e
		}
	}
}

// readBytes is how much is read at once.
const readBytes = 32 << 10

// unreadable is the ending of an answer that roundhouse cannot read, and so not record.
func (t *turn) unreadable(resp *http.Response, h http.Header, why string) ending {
	return ending{
		result:  store.Result{Outcome: store.Unparsed, Status: resp.StatusCode, Header: h, Error: why},
		failure: refuse(http.StatusBadGateway, nil, "%s; nothing of it was recorded", why),
	}
}

// receiveWhole reads an answer that is no stream. The client gets it once it is stored.
func (t *turn) receiveWhole(resp *http.Response, h http.Header, w *watch) ending {
	buf := make([]byte, readBytes)
	var err error
	for err == nil && t.raw.err == nil {
		_, err = t.read(w, resp.Body, buf)
	}
	var body []byte
	if err == io.EOF || err == nil {
		err = t.raw.err
	}
	if err == nil {
		body, err = t.raw.bytes()
	}
	if err != nil {
		return t.cut(resp, h, err)
	}
	r := t.forward.Whole(body, t.options())
	if kind := resp.Header.Get("Content-Type"); kind != "" && r.Outcome == dialect.Unparsed && t.call.Request != nil && t.call.Request.Stream {
		r.Reason += fmt.Sprintf("; a stream was asked for, and its Content-Type is %.100q", kind)
	}
	e := t.judged(&r, resp, h)
	if e.failure == nil {
		setLength(h, len(r.Tail))
		e.header, e.tail = h, r.Tail
	}
	return e
}

// cut is the ending of an answer that broke off before anything of it could be passed on.
func (t *turn) cut(resp *http.Response, h http.Header, err error) ending {
	e := ending{
		result:  store.Result{Outcome: store.UpstreamCut, Status: resp.StatusCode, Header: h, Error: err.Error()},
		failure: t.brokeOff(err),
	}
	if err == t.raw.err {
		e.result.Outcome = store.Unparsed
		e.failure = refuse(http.StatusBadGateway, err, "the upstream's answer cannot be kept: %v", err)
	}
	t.interrupted(&e, err)
	return e
}

// brokeOff says that an answer has no end. The cause may hold the address, which is no
// client's business.
func (t *turn) brokeOff(cause error) *Error {
	if isTimeout(cause) {
		return refuse(http.StatusGatewayTimeout, cause, "the upstream %q did not end its answer in time", t.upstream.cfg.Name)
	}
	return refuse(http.StatusBadGateway, cause, "the upstream %q broke off its answer", t.upstream.cfg.Name)
}

// interrupted changes the ending of an answer that ended because of us.
func (t *turn) interrupted(e *ending, cause error) {
	if cause == errClientGone {
		e.result.Outcome, e.result.Error = store.ClientGone, cause.Error()
	} else if failure := cutShort(cause); failure != nil {
		e.result.Outcome, e.result.Error, e.failure = store.Lost, cause.Error(), failure
	}
}

// maxEvent is how long one event of a stream may be, unless llm.maxBody is less.
const maxEvent = 64 << 20

func (t *turn) options() dialect.Options {
	limit := int(t.m.cfg.LLM.MaxBody)
	return dialect.Options{Lenient: !t.trains(), MaxEvent: min(limit, maxEvent), MaxAnswer: limit}
}

// receiveStream passes on a stream up to its terminal event, which is held (C4).
func (t *turn) receiveStream(resp *http.Response, h http.Header, w *watch) ending {
	h.Del("Content-Length")
	if h["X-Accel-Buffering"] == nil {
		h.Set("X-Accel-Buffering", "no")
	}
	if control := h.Get("Cache-Control"); !strings.Contains(control, "no-transform") {
		h.Set("Cache-Control", strings.TrimPrefix(control+", no-transform", ", "))
	}
	t.out.begin(resp.StatusCode, h)
	s := t.forward.Stream(t.options())
	cause := t.feed(s, resp.Body, w)
	r := s.End(cause)
	e := t.judged(&r, resp, h)
	e.stream, e.tail, e.abort = s, r.Tail, r.Abort
	if cause != nil && !store.Outcome(r.Outcome).Trainable() {
		if e.failure != nil && cause != t.raw.err {
			e.failure = t.brokeOff(cause)
		}
		t.interrupted(&e, cause)
	}
	return e
}

// feed reads a stream until the API's last event, and passes on what may go. It returns
// why the stream ended too early, nil if it did not.
func (t *turn) feed(s *dialect.Stream, body io.Reader, w *watch) error {
	buf := make([]byte, 4<<10) // events are small, and many streams may be open
	for {
		n, err := t.read(w, body, buf)
		out, broken := s.Feed(buf[:n])
		t.out.write(out)
		if s.Holding() {
			t.out.hold()
		}
		switch {
		case broken != nil, s.Done(), err == io.EOF:
			return nil
		case err != nil:
			return err
		case t.raw.err != nil && t.trains():
			return t.raw.err
		}
	}
}

// judged is the ending of an answer that was read.
func (t *turn) judged(r *dialect.Result, resp *http.Response, h http.Header) ending {
	t.addPrompt(r)
	e := ending{result: store.Result{
		Outcome: store.Outcome(r.Outcome), Status: resp.StatusCode, Error: r.Reason, Header: h,
		Finish: r.Finish, Weights: r.Weights, Usage: usageOf(r.Response), Flags: r.Flags,
	}}
	if len(r.Tokens) == 1 {
		// Several answers in one are no turn of a trajectory; what came has their tokens.
		e.result.PromptIDs, e.result.OutputIDs, e.result.Logprobs = r.Tokens[0].Prompt, r.Tokens[0].Output, r.Tokens[0].Logprobs
	}
	e.result.Response = store.Pack(r.Response)
	if !r.Release {
		status := http.StatusBadGateway
		if r.Outcome == dialect.Unparsed {
			status = http.StatusInternalServerError
		}
		e.failure = refuse(status, nil, "the answer of the upstream %q is no turn that could be recorded: %s", t.upstream.cfg.Name, cmp.Or(r.Reason, string(r.Outcome)))
	}
	return e
}
