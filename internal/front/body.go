package front

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"roundhouse/internal/fault"
)

// eagerBody is how much of a body, in bytes, is allocated on the word of its
// Content-Length alone. The rest of a larger one is allocated when that much has
// come, so that announcing a body costs us no memory.
const eagerBody = 1 << 20

// ReadBody reads the whole body of r, of at most limit bytes, into one buffer that
// the caller owns; a body of known length is held in exactly its size. One that
// is larger is a fault of the reason too_large with limit and, where known, size;
// it is not read, and an HTTP/1.1 connection closes after the answer. A body that
// ends early is a fault of the reason bad_request.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	size := r.ContentLength
	if size > limit {
		leaveBody(w, r)
		return nil, tooLarge(limit, size)
	}
	if size < 0 {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
		if err != nil {
			return nil, bodyFault(err)
		}
		return body, nil
	}
	body := make([]byte, min(size, eagerBody))
	n, err := io.ReadFull(r.Body, body)
	if err == nil && size > eagerBody {
		body = append(make([]byte, 0, size), body...)[:size]
		var rest int
		rest, err = io.ReadFull(r.Body, body[n:])
		n += rest
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil, fault.New(fault.BadRequest, "the body ended after %d of %d bytes", n, size)
	}
	if err != nil {
		return nil, bodyFault(err)
	}
	return body, nil
}

// leaveBody makes an HTTP/1.1 connection close after the answer, because the body
// of r will not be read. net/http waits for the client to see the answer.
func leaveBody(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}

// tooLarge is the fault of a body; a size below 0 is unknown.
func tooLarge(limit, size int64) *fault.Error {
	data := map[string]any{"limit": limit}
	message := fmt.Sprintf("the request body is larger than the limit of %d bytes", limit)
	if size >= 0 {
		data["size"] = size
		message = fmt.Sprintf("the request body of %d bytes is larger than the limit of %d", size, limit)
	}
	return &fault.Error{Reason: fault.TooLarge, Message: message, Data: data}
}

// bodyFault turns an error of reading a body into one that says whose it is.
func bodyFault(err error) error {
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge(e.Limit, -1)
	}
	return fault.New(fault.BadRequest, "the body could not be read: %w", err)
}
