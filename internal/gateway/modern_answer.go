package gateway

import (
	"bytes"
	"net/http"

	"roundhouse/internal/era"
	"roundhouse/internal/wire"
)

// statusOf is the HTTP status of an answer of 2026-07-28 that comes alone: errors by which
// the protocol itself refuses a request have one of their own.
func statusOf(raw []byte) int {
	if !bytes.Contains(raw, []byte(`"error"`)) {
		return http.StatusOK
	}
	f, err := wire.Parse(raw)
	if err != nil || !f.ErrorSpan.Present() {
		return http.StatusOK
	}
	switch era.ErrorCode(f.ErrorValue()) {
	case wire.MethodNotFound:
		return http.StatusNotFound
	case wire.ParseError, wire.InvalidRequest, wire.HeaderMismatch, wire.MissingCapability, wire.UnsupportedVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}
