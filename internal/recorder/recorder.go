// Package recorder is the model face of roundhouse: the model APIs over HTTP. It says by
// method and path what a request is, names its session, and has package model send it:
// generations are recorded as the policy says, everything else below /v1 passes through
// with its bytes. Errors of roundhouse's own are told in the API's own form.
package recorder

import (
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"roundhouse/internal/dialect"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/model"
)

// Config is what New needs.
type Config struct {
	Models        *model.Models
	MaxBody       int64         // bytes of a request
	WriteDeadline time.Duration // how long a write to a client may take; 0 is for ever
	Log           *slog.Logger  // nil discards
}

// Recorder serves the model APIs. It is constant, and starts nothing.
type Recorder struct {
	cfg Config
	log *slog.Logger
}

// New returns a Recorder.
func New(cfg Config) *Recorder {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Recorder{cfg, log}
}

// Register adds the routes.
func (rc *Recorder) Register(f *front.Front) {
	for _, pattern := range []string{"/v1/", "/sessions/{id}/v1/", "/api/hello", "/sessions/{id}/api/hello"} {
		f.HandleModel(pattern, rc.Serve)
	}
}

// exchange is one request.
type exchange struct {
	*Recorder
	w      http.ResponseWriter
	r      *http.Request
	caller front.Caller
	path   string // below the session's, escaped
	api    dialect.API
}

// Serve serves a request of a model API. It says what it is (C1).
func (rc *Recorder) Serve(w http.ResponseWriter, r *http.Request, c front.Caller) {
	path := r.URL.EscapedPath()
	if r.PathValue("id") != "" {
		path = belowSession(path)
	}
	endpoint := dialect.Classify(r.Method, path)
	x := &exchange{rc, w, r, c, path, endpoint.API}
	var answer *model.Answer
	var err error
	switch endpoint.Class {
	case dialect.Generation:
		answer, err = x.generate()
	case dialect.Auxiliary:
		answer, err = x.forward()
	default:
		err = refuse(http.StatusNotFound, "%.10s %.200s is none of a model API's paths, or manages an engine, which is not done through roundhouse", r.Method, path)
	}
	if err != nil {
		x.fail(err)
		return
	}
	if answer != nil { // or it was answered
		x.relay(answer)
	}
}

// belowSession cuts /sessions/ID off a path.
func belowSession(path string) string {
	_, path, _ = strings.Cut(strings.TrimLeft(path, "/"), "/")
	_, path, _ = strings.Cut(strings.TrimLeft(path, "/"), "/")
	return "/" + path
}

// refuse is a failure in the form of the API.
func refuse(status int, format string, args ...any) *model.Error {
	return &model.Error{Failure: dialect.Failure{Status: status, Message: fault.New(fault.BadRequest, format, args...).Message}}
}

// generate has a generation sent, and recorded if it is to be.
func (x *exchange) generate() (*model.Answer, error) {
	body, release, err := x.body()
	if err != nil {
		return nil, err
	}
	defer release()
	request, unread := dialect.ParseRequest(x.api, body)
	c := model.Call{
		Principal: x.caller.Principal, API: x.api, Path: x.path, RawQuery: x.r.URL.RawQuery, Header: x.r.Header, Body: body, Request: request,
	}
	inBody := ""
	if request != nil {
		inBody = request.Session
		if request.HasMCPTool {
			return nil, refuse(http.StatusNotImplemented, "tools of the type \"mcp\" are run for POST /v1/responses only, and need an upstream in llm")
		}
	}
	if c.Session, err = front.SessionName(x.r, inBody); err != nil {
		return nil, err
	}
	if c.Policy, err = front.RecordPolicy(x.r); err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	if unread != nil && !errors.Is(unread, dialect.ErrUnreadable) {
		return nil, x.cfg.Models.Refuse(x.r.Context(), c, refuse(http.StatusBadRequest, "%v", unread))
	}
	if n, err := strconv.ParseUint(x.r.Header.Get("X-Stainless-Retry-Count"), 10, 16); err == nil { // what is none was tried once
		c.Retries = int(n)
	}
	return x.cfg.Models.Do(x.r.Context(), c)
}

// body reads the whole body, and counts it as held in memory until release (C11).
func (x *exchange) body() (body []byte, release func(), err error) {
	held, r := &reservation{models: x.cfg.Models}, x.r
	switch n := x.r.ContentLength; {
	case n > x.cfg.MaxBody: // it is refused at once
	case n >= 0:
		if err := held.add(n); err != nil {
			return nil, nil, err
		}
	default:
		// net/http wants to find its own body in its own request when that was not read whole.
		r = new(*x.r)
		r.Body = &counted{ReadCloser: x.r.Body, held: held}
	}
	body, err = front.ReadBody(x.w, r, x.cfg.MaxBody)
	if held.err != nil {
		err = held.err
	}
	if err != nil {
		held.release()
		return nil, nil, err
	}
	return body, held.release, nil
}

// fail tells the client of an error before an answer began.
func (x *exchange) fail(err error) {
	f := dialect.Failure{Status: http.StatusInternalServerError, Message: "roundhouse has failed"}
	if e, ok := errors.AsType[*model.Error](err); ok {
		f = e.Failure
		if e.Err != nil {
			x.log.Warn("a model call failed", "path", x.path, "status", f.Status, "err", err)
		}
	} else if x.r.Context().Err() != nil {
		return // nobody is there to be told
	} else if e, ok := errors.AsType[*fault.Error](err); ok {
		f = dialect.Failure{Status: e.Reason.Status(), Code: string(e.Reason), Message: e.Message, RetryAfter: e.RetryAfter}
	} else {
		x.log.Error("a model call failed", "path", x.path, "err", err)
	}
	h := x.w.Header()
	maps.Copy(h, f.Header())
	body := f.Body(x.api)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(f.Status)
	_, _ = x.w.Write(body) // a client that is gone misses it alone
}

// relay passes an answer on, piece by piece. An answer that breaks off breaks off the
// connection.
func (x *exchange) relay(answer *model.Answer) {
	defer answer.Close()
	h := x.w.Header()
	for name, values := range answer.Header {
		if _, ours := h[name]; !ours { // who may read it from a browser is said already
			h[name] = values
		}
	}
	if answer.Turn != "" {
		h.Set("X-Roundhouse-Turn", answer.Turn)
	}
	x.w.WriteHeader(answer.Status)
	out := http.NewResponseController(x.w)
	if h.Get("Content-Length") == "" && x.r.Method != http.MethodHead && !answer.Ready() {
		_ = out.Flush() // a client waits for the header of a stream; what goes wrong shows at the first write
	}
	size := 32 << 10
	if strings.HasPrefix(h.Get("Content-Type"), "text/event-stream") {
		size = 4 << 10 // events are small, and many streams may be open
	}
	buf := make([]byte, size)
	var limited time.Time
	for {
		n, err := answer.Read(buf)
		if n > 0 {
			// Not for each token: a write may have an eighth less than the deadline.
			if now := time.Now(); now.Sub(limited) > x.cfg.WriteDeadline/8 {
				limited = now
				x.limit(out, now.Add(x.cfg.WriteDeadline))
			}
			if _, err := x.w.Write(buf[:n]); err != nil {
				return // the client is gone, as Close tells
			}
			if err := out.Flush(); err != nil {
				return
			}
			if x.r.ProtoMajor > 1 {
				// HTTP/2 breaks a stream off when its time is over, even if nothing is being written.
				limited = time.Time{}
				x.limit(out, limited)
			}
		}
		switch {
		case err == io.EOF:
			x.limit(out, time.Time{}) // the connection goes on to the next request
			return
		case err != nil:
			panic(http.ErrAbortHandler)
		}
	}
}

func (x *exchange) limit(out *http.ResponseController, t time.Time) {
	if x.cfg.WriteDeadline > 0 {
		_ = out.SetWriteDeadline(t) // not every ResponseWriter can
	}
}
