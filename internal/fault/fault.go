// Package fault holds the one error type that reaches callers of roundhouse.
//
// A Reason is one word, the same in JSON-RPC error data, HTTP bodies, logs and
// metric labels; the table below gives its JSON-RPC code and HTTP status (the
// table "Errors" in the specification's defaults). Packages return *Error where
// the caller's next step depends on the reason, and plain wrapped errors elsewhere.
package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"
)

// Reason names why something was refused or failed.
type Reason string

// The reasons; each is documented by its row in the table.
const (
	UnknownSession      Reason = "unknown_session"
	UnknownServer       Reason = "unknown_server"
	UnknownTurn         Reason = "unknown_turn"
	NameTaken           Reason = "name_taken"
	SessionSealed       Reason = "session_sealed"
	SessionLimit        Reason = "session_limit"
	TaskLimit           Reason = "task_limit"
	InstanceWaitTimeout Reason = "instance_wait_timeout"
	BudgetExhausted     Reason = "budget_exhausted"
	Interrupted         Reason = "interrupted"
	StartFailed         Reason = "start_failed"
	StartTimeout        Reason = "start_timeout"
	CircuitOpen         Reason = "circuit_open"
	// NeedsLogin is a server's refusal of our credentials, or of having none.
	NeedsLogin      Reason = "needs_login"
	CallTimeout     Reason = "call_timeout"
	TooLarge        Reason = "too_large"
	ForbiddenTool   Reason = "forbidden_tool"
	AmbiguousOwner  Reason = "ambiguous_owner"
	Draining        Reason = "draining"
	Unauthorized    Reason = "unauthorized"
	ForbiddenOrigin Reason = "forbidden_origin"
	// BadRequest is a request that its sender must change: malformed JSON-RPC
	// (-32600) or a malformed own-API request.
	BadRequest Reason = "bad_request"
	// Forbidden is an own-API operation that needs an admin token.
	Forbidden Reason = "forbidden"
	// Internal is a defect of ours.
	Internal Reason = "internal"
)

type row struct {
	code   int  // JSON-RPC
	status int  // HTTP, own API
	retry  bool // an HTTP answer always carries Retry-After
}

var table = map[Reason]row{
	UnknownSession:      {-32001, http.StatusNotFound, false},
	UnknownServer:       {-32001, http.StatusNotFound, false},
	UnknownTurn:         {-32001, http.StatusNotFound, false},
	NameTaken:           {-32002, http.StatusConflict, false},
	SessionSealed:       {-32002, http.StatusGone, false},
	SessionLimit:        {-32003, http.StatusTooManyRequests, true},
	TaskLimit:           {-32003, http.StatusTooManyRequests, true},
	InstanceWaitTimeout: {-32003, http.StatusTooManyRequests, true},
	BudgetExhausted:     {-32004, http.StatusTooManyRequests, false},
	Interrupted:         {-32010, http.StatusBadGateway, false},
	StartFailed:         {-32011, http.StatusBadGateway, false},
	StartTimeout:        {-32011, http.StatusGatewayTimeout, false},
	CircuitOpen:         {-32012, http.StatusServiceUnavailable, true},
	NeedsLogin:          {-32017, http.StatusBadGateway, false},
	CallTimeout:         {-32013, http.StatusGatewayTimeout, false},
	TooLarge:            {-32014, http.StatusRequestEntityTooLarge, false},
	ForbiddenTool:       {-32602, http.StatusNotFound, false},
	AmbiguousOwner:      {-32015, http.StatusConflict, false},
	Draining:            {-32016, http.StatusServiceUnavailable, true},
	Unauthorized:        {-32000, http.StatusUnauthorized, false},
	ForbiddenOrigin:     {-32000, http.StatusForbidden, false},
	BadRequest:          {-32600, http.StatusBadRequest, false},
	Forbidden:           {-32000, http.StatusForbidden, false},
	Internal:            {-32603, http.StatusInternalServerError, false},
}

// Reasons lists every reason in alphabetical order, for documentation and tests.
func Reasons() []Reason { return slices.Sorted(maps.Keys(table)) }

// Code returns the JSON-RPC error code of r; unknown reasons are internal errors.
func (r Reason) Code() int { return r.row().code }

// Status returns the HTTP status that roundhouse's own API gives for r.
func (r Reason) Status() int { return r.row().status }

func (r Reason) row() row {
	if x, ok := table[r]; ok {
		return x
	}
	return table[Internal]
}

// Sent says whether a call may have reached the server (R2 in the pool specification).
type Sent string

// The values of Sent; the zero value means that the question does not arise.
const (
	SentNo    Sent = "no"
	SentMaybe Sent = "maybe"
)

// Error is a failure with a reason. It is a value to read after it was made and
// must not be changed then.
type Error struct {
	Reason     Reason
	Message    string         // a whole sentence or clause for people, saying what to do next
	Server     string         // the server concerned, or ""
	Generation uint64         // of the connection concerned, or 0
	Sent       Sent           // whether the call may have been executed, or ""
	RetryAfter time.Duration  // when to try again, or 0
	Data       map[string]any // further members of the error's data, or nil
	Err        error          // the cause, or nil; it is not shown to callers
}

// New returns an error with a formatted message; every %w in format is a cause.
func New(r Reason, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	cause := errors.Unwrap(err)
	if _, several := err.(interface{ Unwrap() []error }); several {
		cause = err
	}
	return &Error{Reason: r, Message: err.Error(), Err: cause}
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Of returns the *Error inside err. Any other error becomes an Internal one with
// the same text; nil gives nil.
func Of(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Reason: Internal, Message: err.Error(), Err: err}
}

// Is reports whether err holds an *Error with the reason r.
func Is(err error, r Reason) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Reason == r
}

// SafeToRetry reports whether err says that the call certainly was not sent.
// Unknown means no.
func SafeToRetry(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Sent == SentNo
}

// RetrySeconds returns the value of the HTTP header Retry-After: RetryAfter in
// whole seconds, rounded up. It is at least 1 for the reasons whose answer always
// carries that header, and 0, for no header, where nothing is known.
func (e *Error) RetrySeconds() int {
	if e.RetryAfter > 0 {
		return int((e.RetryAfter + time.Second - 1) / time.Second)
	}
	if e.Reason.row().retry {
		return 1
	}
	return 0
}

// RPC returns the JSON-RPC error object: code, message, and data with the reason.
func (e *Error) RPC() []byte {
	data := e.body()
	b, err := json.Marshal(struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	}{e.Reason.Code(), e.Message, data})
	if err != nil { // Data held something that JSON cannot say
		b, _ = json.Marshal(map[string]any{
			"code": e.Reason.Code(), "message": e.Message, "data": map[string]any{"reason": e.Reason},
		})
	}
	return b
}

// HTTP returns the body of roundhouse's own API for e:
// {"error":{"reason":…,"message":…,…}}.
func (e *Error) HTTP() []byte {
	data := e.body()
	data["message"] = e.Message
	b, err := json.Marshal(map[string]any{"error": data})
	if err != nil {
		b, _ = json.Marshal(map[string]any{"error": map[string]any{"reason": e.Reason, "message": e.Message}})
	}
	return b
}

func (e *Error) body() map[string]any {
	data := map[string]any{}
	maps.Copy(data, e.Data)
	data["reason"] = e.Reason
	if e.Server != "" {
		data["server"] = e.Server
	}
	if e.Generation != 0 {
		data["generation"] = e.Generation
	}
	if e.Sent != "" {
		data["sent"] = e.Sent
	}
	if e.RetryAfter > 0 {
		data["retryAfterMs"] = e.RetryAfter.Milliseconds()
	}
	return data
}
