package upstream

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// refusalBytes is how much of the body of a refused request is read, and
	// refusalWait for how long.
	refusalBytes = 64 << 10
	refusalWait  = 5 * time.Second
)

// StatusError says that a server refused a request with an HTTP status.
type StatusError struct {
	Method     string        // of the request
	URL        string        // of the request: scheme, host and path only
	Status     int           // the HTTP status
	Body       string        // the beginning of the answer, at most 512 bytes for people to see
	RetryAfter time.Duration // how long the server asks to wait, or 0
}

// Error names the request, the status and the beginning of the answer.
func (e *StatusError) Error() string {
	text := fmt.Sprintf("%s %s was answered with %d %s", e.Method, e.URL, e.Status, http.StatusText(e.Status))
	text = strings.TrimSpace(text)
	if e.Body != "" {
		text += ": " + e.Body
	}
	return text
}

// AuthError says that a server wants a login, or other credentials than it was given.
type AuthError struct {
	Status *StatusError // 401 or 403
	// Challenge is what WWW-Authenticate says, its lines joined by commas; "" without
	// one. It is the server's word and not to be trusted (case 68).
	Challenge string
}

// Error says what to do.
func (e *AuthError) Error() string {
	return e.Status.Error() + "; the server needs a login, or other credentials in its headers"
}

// Unwrap returns the *StatusError.
func (e *AuthError) Unwrap() error { return e.Status }

// refusal makes an error of an answer with a bad status, of which body was read.
func (e *endpoint) refusal(res *http.Response, body []byte) error {
	if session := res.Request.Header.Get(headerSession); session != "" {
		body = bytes.ReplaceAll(body, []byte(session), []byte("***")) // It is as good as a password.
	}
	status := &StatusError{
		Method: res.Request.Method,
		URL:    shown(res.Request.URL),
		Status: res.StatusCode,
		Body:   e.mask(string(clean(body))),
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		status.RetryAfter = min(time.Duration(s), 24*60*60) * time.Second
	}
	if s := res.StatusCode; s == http.StatusUnauthorized || s == http.StatusForbidden {
		return &AuthError{Status: status, Challenge: strings.Join(res.Header.Values("WWW-Authenticate"), ", ")}
	}
	return status
}

// readRefusal reads the beginning of the body of an answer with a bad status.
func readRefusal(res *http.Response) []byte {
	// To close the body is what ends a Read that waits.
	timeout := time.AfterFunc(refusalWait, func() { res.Body.Close() })
	defer timeout.Stop()
	body, _ := io.ReadAll(io.LimitReader(res.Body, refusalBytes)) // What was read before an error is shown.
	return body
}
