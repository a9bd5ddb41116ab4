package front

import (
	"errors"
	"net/http"
	"strconv"

	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// Values of response headers that never change, shared as in grantOrigin.
var (
	jsonType  = []string{"application/json"}
	nosniff   = []string{"nosniff"}
	challenge = []string{"Bearer"}
)

// WriteError answers a request of roundhouse's own API with err: the status and
// the body of its fault, Retry-After and WWW-Authenticate where they belong. An
// error that is no fault is an internal one, except that of a body limit.
func WriteError(w http.ResponseWriter, err error) {
	writeFault(w, 0, asFault(err))
}

// WriteRPCError answers with a JSON-RPC error response for the request id, which
// is raw JSON (nil is null). status is the HTTP status, or 0 for that of err's
// reason. Headers are those of WriteError.
func WriteRPCError(w http.ResponseWriter, status int, id []byte, err error) {
	e := asFault(err)
	writeBody(w, faultHeader(w, status, e), wire.ErrorReply(id, e.RPC()))
}

// WriteJSON answers with v as JSON. A v that JSON cannot say is answered as an
// internal error, so status is not sent before v is known to be sound. Raw values keep
// their escapes: nobody takes the answer for a web page.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	body, err := wire.Encode(v)
	if err != nil {
		WriteError(w, fault.New(fault.Internal, "write the answer as JSON: %w", err))
		return
	}
	writeBody(w, status, body)
}

// writeFault answers with e in the form of roundhouse's own API; a status other
// than 0 takes the place of its reason's.
func writeFault(w http.ResponseWriter, status int, e *fault.Error) {
	writeBody(w, faultHeader(w, status, e), e.HTTP())
}

// faultHeader sets the headers that e asks for and returns the status to send.
func faultHeader(w http.ResponseWriter, status int, e *fault.Error) int {
	if status == 0 {
		status = e.Reason.Status()
	}
	if s := e.RetrySeconds(); s > 0 {
		w.Header()["Retry-After"] = []string{strconv.Itoa(s)}
	}
	if status == http.StatusUnauthorized {
		w.Header()["Www-Authenticate"] = challenge
	}
	return status
}

// writeBody sends the whole answer. An error of the write means that the caller
// is gone, who is then the only one to miss it.
func writeBody(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = jsonType
	h["X-Content-Type-Options"] = nosniff
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// asFault finds the fault in err. A reader that met a body limit gives net/http's
// error, which is as good as ours.
func asFault(err error) *fault.Error {
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge(e.Limit, -1)
	}
	return fault.Of(err)
}
