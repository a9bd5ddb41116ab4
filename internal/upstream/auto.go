package upstream

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"

	"roundhouse/internal/wire"
)

// Auto is a link for a server of which it is not known whether it speaks Streamable HTTP
// or the older HTTP with SSE (case 51). It is an HTTP link, and becomes an SSE link if
// the server answers initialize with 400, 404 or 405, as old servers do. A JSON-RPC error
// with such a status is none of theirs. All methods may be called concurrently, also from
// a Handler.
type Auto struct {
	http *HTTP // constant after NewAuto
	sse  *SSE  // likewise; used if http is not

	mu       sync.Mutex
	fallen   bool     // sse is used
	first    *Message // the initialize request, once it was sent
	abortErr error    // of Abort, if it was called
}

// errFallback ends the HTTP link of an Auto that tries SSE.
var errFallback = errors.New("the server does not speak Streamable HTTP")

// NewAuto returns a link. It sends nothing before the first Send. An error says what is
// wrong with the URL.
func NewAuto(config HTTPConfig) (*Auto, error) {
	h, err := NewHTTP(config)
	if err != nil {
		return nil, err
	}
	s, err := NewSSE(config)
	if err != nil {
		return nil, err
	}
	return &Auto{http: h, sse: s}, nil
}

// remote returns the link in use.
func (a *Auto) remote() *remote {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fallen {
		return a.sse.remote
	}
	return a.http.remote
}

// Send is that of HTTP.
func (a *Auto) Send(ctx context.Context, m *Message) error {
	if m.Method == wire.MethodInitialize {
		a.mu.Lock()
		a.first = m
		a.mu.Unlock()
	}
	return a.remote().Send(ctx, m)
}

// Post is that of HTTP.
func (a *Auto) Post(m *Message) bool { return a.remote().Post(m) }

// Cancel is that of HTTP.
func (a *Auto) Cancel(m *Message) { a.remote().Cancel(m) }

// Taken is that of HTTP.
func (a *Auto) Taken(ctx context.Context) error { return a.remote().Taken(ctx) }

// Modern is that of HTTP. The link becomes an SSE link all the same if initialize is
// refused after Modern("").
func (a *Auto) Modern(version string) { a.http.Modern(version) }

// Run is that of HTTP or SSE.
func (a *Auto) Run(h Handler) error {
	err := a.http.Run(&fallback{Handler: h, auto: a})
	if !errors.Is(err, errFallback) {
		return err
	}
	a.mu.Lock()
	a.fallen = true
	first := a.first
	if a.abortErr != nil {
		a.sse.Abort(a.abortErr)
	}
	a.mu.Unlock()
	// It waits for nothing, and fails only if the link was aborted, as Run tells then.
	_ = a.sse.Send(context.Background(), first)
	return a.sse.Run(h)
}

// Abort is that of HTTP.
func (a *Auto) Abort(err error) {
	a.mu.Lock()
	if a.abortErr == nil {
		a.abortErr = err
	}
	a.mu.Unlock()
	a.remote().Abort(err)
}

// Close is that of HTTP.
func (a *Auto) Close(ctx context.Context) {
	a.http.Close(ctx)
	a.sse.Close(ctx)
}

// fallback is the Handler of an Auto's HTTP link: it sees how initialize fails.
type fallback struct {
	Handler
	auto *Auto
}

// Failed implements Handler.
func (f *fallback) Failed(call []byte, err error, sent bool) {
	f.auto.mu.Lock()
	first := f.auto.first
	f.auto.mu.Unlock()
	if status, ok := errors.AsType[*StatusError](err); ok && first != nil && bytes.Equal(call, first.ID) {
		switch status.Status {
		case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
			f.auto.http.Abort(errFallback)
			return
		}
	}
	f.Handler.Failed(call, err, sent)
}
