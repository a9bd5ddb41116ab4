package dialect

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"time"

	"roundhouse/internal/wire"
)

// Failure is an error of roundhouse's own, told as a model API tells its own, in the
// form that the official clients of both languages raise on (A.10).
type Failure struct {
	// Status is the HTTP status, also inside a stream, whose own is long sent.
	Status int
	// Code is a word for programs; "" is one that the status implies.
	Code    string
	Message string
	// RetryAfter is how long the client is to wait before it tries again, 0 to leave
	// that to it.
	RetryAfter time.Duration
}

// Header returns the header of an answer that is the failure.
func (f Failure) Header() http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	if f.RetryAfter > 0 {
		seconds := (f.RetryAfter + time.Second - 1) / time.Second
		h.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	switch f.Status {
	case http.StatusConflict, http.StatusGone, http.StatusNotImplemented:
		// Clients would try these again, of which nothing can come (C15).
		h.Set("X-Should-Retry", "false")
	}
	return h
}

// Body returns the body of an answer that is the failure.
func (f Failure) Body(api API) []byte {
	if api == Messages {
		return slices.Concat([]byte(`{"type":"error","error":{"type":"`), []byte(anthropicType(f.Status)),
			[]byte(`","message":`), wire.Quote(f.Message), []byte(`}}`))
	}
	return slices.Concat([]byte(`{`), f.openai(), []byte(`}`))
}

// openai returns the members of OpenAI's error. They are there twice, in the form that
// clients raise on and in the flat one that engines use, since recorders of others
// know a failed turn by that (A.7).
func (f Failure) openai() []byte {
	flat := slices.Concat([]byte(`"message":`), wire.Quote(f.Message), []byte(`,"type":"`), []byte(openaiType(f.Status)),
		[]byte(`","param":null,"code":`), wire.Quote(f.code()))
	return slices.Concat([]byte(`"error":{`), flat, []byte(`},"object":"error",`), flat)
}

func (f Failure) code() string { return cmp.Or(f.Code, openaiType(f.Status)) }

// event returns the failure as the last event of a stream.
func (f Failure) event(api API, sequence int64) []byte {
	switch api {
	case Messages:
		return slices.Concat([]byte("event: error\ndata: "), f.Body(api), []byte("\n\n"))
	case Responses:
		// The member error is not of the API: without it the clients do not raise.
		return slices.Concat([]byte("event: error\ndata: "), []byte(`{"type":"error","sequence_number":`), strconv.AppendInt(nil, sequence, 10),
			[]byte(`,"code":`), wire.Quote(f.code()), []byte(`,"message":`), wire.Quote(f.Message),
			[]byte(`,"param":null,"error":{"message":`), wire.Quote(f.Message), []byte(`,"type":"`), []byte(openaiType(f.Status)),
			[]byte(`","param":null,"code":`), wire.Quote(f.code()), []byte("}}\n\n"))
	}
	return slices.Concat([]byte("data: "), f.Body(api), []byte("\n\n"))
}

func openaiType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusConflict:
		return "conflict_error"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusBadGateway:
		return "upstream_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	case http.StatusNotImplemented:
		return "not_implemented_error"
	}
	if status >= 500 {
		return "internal_server_error"
	}
	return "invalid_request_error"
}

func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}
