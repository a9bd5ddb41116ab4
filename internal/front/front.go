// Package front is the door of the HTTP listener. Every request passes it before
// a face sees it: Host and Origin are checked (H6), a daemon that stops turns new
// work away (H3), the caller is authenticated, and what goes wrong is answered in
// one form. It also holds what all faces need at the door: naming the session of
// a request, reading a body under a limit, and writing errors.
package front

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// LocalPrincipal is who every caller is when no tokens are configured.
const LocalPrincipal = "local"

// DefaultMaxBody is the limit of a request body where Config.MaxBody is 0: 64 MiB.
const DefaultMaxBody int64 = 64 << 20

// Config says whom the door lets in.
type Config struct {
	Tokens         []config.Token // none means that every caller is LocalPrincipal with admin rights
	PublicNames    []string       // host names accepted beside loopback: name (any port), name:port, [ipv6] or [ipv6]:port
	AllowedOrigins []string       // browser origins accepted beside our own, compared exactly: scheme://host or scheme://host:port
	Beyond         bool           // listens beyond loopback: needs Tokens, and any IP literal is an accepted Host
	MaxBody        int64          // bytes, the most that any route accepts but those of HandleModel; 0 is DefaultMaxBody
	Log            *slog.Logger   // refused requests; nil discards
}

// access is that part of a Config which may change. It is read-only.
type access struct {
	names   map[string]bool // public names, lower case
	origins map[string]bool // allowed origins
	tokens  tokens
}

// newAccess checks whom to let in. The error joins every problem; no token appears in
// it.
func newAccess(cfg Config) (*access, error) {
	names, nameErr := publicNames(cfg.PublicNames)
	origins, originErr := allowedOrigins(cfg.AllowedOrigins)
	toks, tokenErr := newTokens(cfg.Tokens)
	var beyondErr error
	if cfg.Beyond && len(cfg.Tokens) == 0 {
		beyondErr = errors.New("listening beyond loopback needs auth.tokens")
	}
	if err := errors.Join(beyondErr, tokenErr, nameErr, originErr); err != nil {
		return nil, err
	}
	return &access{names, origins, toks}, nil
}

// Caller is who sent a request. It says nothing about sessions: a session id is
// no credential (N2).
type Caller struct {
	Principal string
	Admin     bool // may see and control what belongs to other principals
	Inject    bool // may add servers to its sessions; an admin may in any case
}

// HandlerFunc answers a request of an authenticated caller. Where tokens are
// configured r has no Authorization header any more; where none are, one that the
// client sent is still there and is not ours.
type HandlerFunc func(w http.ResponseWriter, r *http.Request, c Caller)

// Front is the http.Handler of a listener. Routes and exemptions are added first,
// with Handle, HandleOpen and DrainExempt; from then on ServeHTTP, Drain and Configure
// may be called concurrently. It starts no goroutine and needs no closing.
type Front struct {
	// Constant after New.
	beyond  bool
	maxBody int64

	// Constant once requests are served.
	mux    *http.ServeMux // every handler in it is a *route
	exempt *http.ServeMux // matches what passes while draining; every handler in it is a pass
	routes []string       // the patterns in mux, in the order in which they were added
	roots  []string       // their first path segments, sorted

	access   atomic.Pointer[access]
	draining atomic.Pointer[fault.Error] // the answer to new requests, or nil
	refusals refusals
}

// route is an entry of Front.mux: the last part of the door and what lies behind
// it. Exactly one of closed and open is set.
type route struct {
	front  *Front
	closed HandlerFunc      // needs authentication
	open   http.HandlerFunc // does not
	model  bool             // it is a model API's, and limits the body itself
}

// ServeHTTP authenticates, limits the body, and calls the handler. Front.ServeHTTP
// has made the other checks before the mux called it, with a verdict for w.
func (rt *route) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := w.(*verdict)
	v.routed = true
	rt.serve(v.to, r)
}

func (rt *route) serve(w http.ResponseWriter, r *http.Request) {
	f := rt.front
	if rt.open != nil {
		if f.limitBody(w, r) {
			rt.open(w, r)
		}
		return
	}
	if rt.model && len(f.access.Load().tokens) > 0 {
		takeKey(r)
	}
	c, ok := f.authenticate(w, r)
	if ok && (rt.model || f.limitBody(w, r)) {
		rt.closed(w, r, c)
	}
}

// pass marks an entry of Front.exempt.
type pass struct{}

// ServeHTTP does nothing; the entry only has to match.
func (pass) ServeHTTP(http.ResponseWriter, *http.Request) {}

// New returns a Front without routes. The error joins every problem of cfg; no
// token appears in it.
func New(cfg Config) (*Front, error) {
	who, err := newAccess(cfg)
	if cfg.MaxBody < 0 {
		err = errors.Join(err, fmt.Errorf("the body limit is negative: %d", cfg.MaxBody))
	}
	if err != nil {
		return nil, err
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	f := &Front{
		beyond: cfg.Beyond, maxBody: cmp.Or(cfg.MaxBody, DefaultMaxBody),
		mux: http.NewServeMux(), exempt: http.NewServeMux(),
		refusals: refusals{log: log},
	}
	f.access.Store(who)
	f.DrainExempt("/healthz")
	return f, nil
}

// Configure changes whom the door lets in: the tokens, public names and origins of cfg.
// Requests that are inside stay, streams too. After an error, which is as New's,
// everything is as before.
func (f *Front) Configure(cfg Config) error {
	cfg.Beyond = f.beyond
	who, err := newAccess(cfg)
	if err != nil {
		return err
	}
	f.access.Store(who)
	return nil
}

// Beyond reports whether others than this machine's programs reach the listener.
func (f *Front) Beyond() bool { return f.beyond }

// Handle adds a route for authenticated callers. pattern is one of net/http's
// ServeMux; a conflict with an earlier one panics.
func (f *Front) Handle(pattern string, h HandlerFunc) {
	f.add(pattern, &route{front: f, closed: h})
}

// HandleModel is Handle for a model API. Its handler limits the body itself, and says in
// the API's own form that one is too large; and a token may come as X-Api-Key, where
// clients of the Anthropic API have their keys.
func (f *Front) HandleModel(pattern string, h HandlerFunc) {
	f.add(pattern, &route{front: f, closed: h, model: true})
}

// takeKey puts an X-Api-Key where a token is looked for, if there is none.
func takeKey(r *http.Request) {
	if key := r.Header["X-Api-Key"]; r.Header["Authorization"] == nil && len(key) == 1 {
		r.Header["Authorization"] = []string{"Bearer " + key[0]}
	}
}

// HandleOpen adds a route that needs no authentication. Host and Origin are
// checked as everywhere.
func (f *Front) HandleOpen(pattern string, h http.HandlerFunc) {
	f.add(pattern, &route{front: f, open: h})
}

// Patterns lists the routes as they were added, for documentation and tests.
func (f *Front) Patterns() []string { return slices.Clone(f.routes) }

func (f *Front) add(pattern string, rt *route) {
	f.mux.Handle(pattern, rt)
	f.routes = append(f.routes, pattern)
	path := pattern[strings.IndexByte(pattern, '/')+1:]
	root, _, _ := strings.Cut(path, "/")
	if strings.HasPrefix(root, "{") {
		root = ""
	}
	roots := append(f.roots, "/"+root)
	slices.Sort(roots)
	f.roots = slices.Compact(roots)
}

// DrainExempt lets requests that match one of the patterns of net/http's ServeMux
// through while draining, such as "DELETE /mcp". /healthz always is. A pattern
// given twice panics.
func (f *Front) DrainExempt(patterns ...string) {
	for _, p := range patterns {
		f.exempt.Handle(p, pass{})
	}
}

// Drain makes every new request fail with the reason draining from now on (H3),
// saying that the caller may try again after retryAfter (0 says 1 s), except those
// of DrainExempt. Requests already inside are not touched. It may be called again
// to change retryAfter; there is no way back.
func (f *Front) Drain(retryAfter time.Duration) {
	f.draining.Store(&fault.Error{
		Reason: fault.Draining, RetryAfter: retryAfter,
		Message: "roundhouse is shutting down and takes no new requests; try again after it has restarted",
	})
}

// ServeHTTP checks Host and Origin, answers preflights, turns new work away while
// draining, authenticates, and only then calls the route.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if status, err := f.checkSource(r); err != nil {
		f.refuse(w, r, status, err)
		return
	}
	if r.Header["Origin"] != nil {
		grantOrigin(w, r)
		if isPreflight(r) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	if e := f.draining.Load(); e != nil && !f.passesDrain(r) {
		WriteError(w, e)
		return
	}

	v := verdict{to: w}
	f.mux.ServeHTTP(&v, r)
	if v.routed {
		return
	}
	if _, ok := f.authenticate(w, r); ok {
		f.unmatched(w, r, &v)
	}
}

// authenticate returns who sent r, or answers it and returns false. A token of
// ours is taken out of r, wherever it stands, so that no face can forward it.
func (f *Front) authenticate(w http.ResponseWriter, r *http.Request) (Caller, bool) {
	known := f.access.Load().tokens
	if len(known) == 0 {
		return Caller{Principal: LocalPrincipal, Admin: true}, true
	}
	c, err := known.authenticate(r.Header["Authorization"])
	if err != nil {
		f.refuse(w, r, 0, err)
		return Caller{}, false
	}
	delete(r.Header, "Authorization")
	for _, key := range r.Header["X-Api-Key"] {
		if _, err := known.authenticate([]string{"Bearer " + key}); err == nil {
			delete(r.Header, "X-Api-Key") // it is ours, and no upstream's
		}
	}
	return c, true
}

// limitBody holds the body of r to maxBody, or answers r and returns false if it
// is already known to be larger. (net/http ends a body of known length there.)
func (f *Front) limitBody(w http.ResponseWriter, r *http.Request) bool {
	if r.ContentLength > f.maxBody {
		leaveBody(w, r)
		WriteError(w, tooLarge(f.maxBody, r.ContentLength))
		return false
	}
	if r.ContentLength < 0 {
		r.Body = http.MaxBytesReader(w, r.Body, f.maxBody)
	}
	return true
}

func (f *Front) passesDrain(r *http.Request) bool {
	h, _ := f.exempt.Handler(r)
	_, ok := h.(pass)
	return ok
}

// unmatched answers an authenticated request that no route took. v is what the mux
// said: a redirect to the clean form of the path, a method that the path does not have,
// or nothing here.
func (f *Front) unmatched(w http.ResponseWriter, r *http.Request, v *verdict) {
	switch {
	case v.status >= 300 && v.status < 400:
		w.Header().Set("Location", v.header.Get("Location"))
		w.WriteHeader(v.status)
	case v.status == http.StatusMethodNotAllowed:
		allow := v.header.Get("Allow")
		w.Header().Set("Allow", allow)
		writeFault(w, v.status, fault.New(fault.BadRequest, "%.20s is not a method of %.200q; it has %s", r.Method, r.URL.Path, allow))
	default:
		writeFault(w, http.StatusNotFound, fault.New(fault.BadRequest, "there is nothing at %.200q; known are %s", r.URL.Path, strings.Join(f.roots, ", ")))
	}
}

// verdict is the ResponseWriter that the mux gets. A route takes the real one out of it;
// when the mux answers itself, the verdict keeps what that decided and drops its text.
type verdict struct {
	to     http.ResponseWriter
	routed bool // a route has taken over

	header http.Header // nil until it is asked for
	status int
}

func (v *verdict) Header() http.Header {
	if v.header == nil {
		v.header = http.Header{}
	}
	return v.header
}

func (v *verdict) WriteHeader(status int)      { v.status = status }
func (v *verdict) Write(p []byte) (int, error) { return len(p), nil }

// refuse answers a request that may not pass the door, with status or, where that
// is 0, the status of err's reason.
func (f *Front) refuse(w http.ResponseWriter, r *http.Request, status int, err error) {
	e := asFault(err)
	f.refusals.note(r, e.Reason)
	writeFault(w, status, e)
}

// refusals logs refused requests, at most one line a second: anybody can cause
// them, so their number must not fill a disk.
type refusals struct {
	log *slog.Logger // constant

	last     atomic.Int64 // when a line was last written, in Unix nanoseconds
	unlogged atomic.Int64 // refused since then
}

func (l *refusals) note(r *http.Request, reason fault.Reason) {
	now, last := time.Now().UnixNano(), l.last.Load()
	if now-last < int64(time.Second) || !l.last.CompareAndSwap(last, now) {
		l.unlogged.Add(1)
		return
	}
	// The query is left out: some clients put credentials there.
	l.log.Warn("request refused", "reason", string(reason), "method", clip(r.Method), "path", clip(r.URL.Path),
		"host", clip(r.Host), "origin", clip(r.Header.Get("Origin")), "remote", r.RemoteAddr,
		"unlogged", l.unlogged.Swap(0))
}

func clip(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
