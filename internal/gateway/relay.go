package gateway

import (
	"context"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/relay"
	"roundhouse/internal/session"
)

// lineGrace is how long the session of a line that broke waits for the shim to come
// back.
const lineGrace = 30 * time.Second

// RelayConfig says how a Relay works.
type RelayConfig struct {
	Gateway *Gateway // required; its sessions, limits and log are used
	File    string   // the daemon's configuration file, told to admins; "" is not told
}

// Relay serves shims (H8): it turns a request to /relay or /relay/{server} into a line
// of frames, which is one client.
//
// A line that ends in order is a client that has left: it is deleted, and a session
// that nobody named ends with its last client. The session of a line that broke waits
// 30 s; a line that resumes it in that time enters it again.
type Relay struct {
	g    *Gateway
	file string
	wg   sync.WaitGroup // the handlers of lines

	mu      sync.Mutex
	closing bool
	lines   map[*line]struct{}
	broken  map[owned]*line // by the session that waits
}

// owned names a session: ids belong to their principal.
type owned struct{ principal, session string }

// NewRelay returns a Relay without lines. Register makes it reachable; Close ends it.
func NewRelay(cfg RelayConfig) *Relay {
	return &Relay{g: cfg.Gateway, file: cfg.File, lines: map[*line]struct{}{}, broken: map[owned]*line{}}
}

// Register adds the routes; it may be called for several fronts.
func (rl *Relay) Register(f *front.Front) {
	f.Handle("GET /relay", rl.open)
	f.Handle("GET /relay/{server}", rl.open)
}

// Lines returns how many shims are connected.
func (rl *Relay) Lines() int {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	return len(rl.lines)
}

// Close lets no new line begin, cuts those that are left, and waits until nothing runs
// for them any more. Sessions are to be ended before it; their lines close then by
// themselves, when what waited was written. When ctx ends the waiting for that does.
func (rl *Relay) Close(ctx context.Context) {
	rl.mu.Lock()
	rl.closing = true
	rest := make([]*line, 0, len(rl.lines))
	for l := range rl.lines {
		rest = append(rest, l)
	}
	for _, l := range rl.broken {
		rest = append(rest, l)
	}
	rl.mu.Unlock()
	for _, l := range rest {
		l.end()
	}
	stop := context.AfterFunc(ctx, func() {
		for _, l := range rest {
			l.cancel(errClosing)
		}
	})
	defer stop()
	rl.wg.Wait()
}

// enroll registers a line; its handler must call rl.wg.Done.
func (rl *Relay) enroll(l *line) bool {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	if rl.closing {
		return false
	}
	rl.lines[l] = struct{}{}
	rl.wg.Add(1)
	return true
}

func (rl *Relay) discharge(l *line) {
	rl.mu.Lock()
	defer rl.mu.Unlock()
	delete(rl.lines, l)
}

// wait keeps the client of a line that broke until its session is resumed, or it is
// too late. It returns at once when the relay closes.
func (rl *Relay) wait(l *line) {
	k := owned{l.hello.Principal, l.session}
	rl.mu.Lock()
	if rl.closing {
		rl.mu.Unlock()
		return
	}
	rl.broken[k] = l
	rl.mu.Unlock()
	grace := time.NewTimer(lineGrace)
	defer grace.Stop()
	select {
	case <-l.resumed:
	case <-l.ended:
	case <-grace.C:
	}
	rl.mu.Lock()
	defer rl.mu.Unlock()
	if rl.broken[k] == l {
		delete(rl.broken, k)
	}
}

// resume tells the line that broke in a session that another one has taken its place.
func (rl *Relay) resume(principal, id string) {
	rl.mu.Lock()
	old := rl.broken[owned{principal, id}]
	delete(rl.broken, owned{principal, id})
	rl.mu.Unlock()
	if old != nil {
		close(old.resumed)
	}
}

// open answers the request for a line and serves it.
func (rl *Relay) open(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), relay.Protocol) {
		front.WriteError(w, fault.New(fault.BadRequest, "this is for 'roundhouse connect'; point an MCP client to /mcp or /mcp/{server}"))
		return
	}
	l, err := rl.newLine(r, caller)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	if !rl.enroll(l) {
		front.WriteError(w, errClosing)
		return
	}
	defer rl.wg.Done()
	defer rl.discharge(l)
	answer := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + relay.Protocol +
		"\r\n" + relay.SessionHeader + ": " + l.session + "\r\n"
	if caller.Admin && rl.file != "" {
		answer += relay.ConfigHeader + ": " + url.PathEscape(rl.file) + "\r\n"
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		front.WriteError(w, fault.New(fault.BadRequest, "a line for 'roundhouse connect' needs HTTP/1.1: %w", err))
		return
	}
	rl.g.cfg.Log.Info("shim connected", "server", l.hello.Scope, "session", l.session, "client", l.hello.ClientID, "from", unescaped(r, relay.ClientHeader))
	cause := l.serve(conn, rw.Reader, answer+"\r\n")
	rl.g.cfg.Log.Info("shim disconnected", "session", l.session, "client", l.hello.ClientID, "cause", cause)
}

// newLine reads what the request says of the shim.
func (rl *Relay) newLine(r *http.Request, caller front.Caller) (*line, error) {
	hello := session.Hello{
		ClientID: session.NewID(), Principal: caller.Principal, Scope: r.PathValue("server"),
		// Two clients of one shim never have the same: microseconds pass between them.
		AsksAfter: uint64(time.Now().UnixMicro()),
	}
	var err error
	if hello.Session, err = front.SessionName(r); err != nil {
		return nil, err
	}
	if dir := unescaped(r, relay.WorkspaceHeader); dir != "" {
		if !filepath.IsAbs(dir) {
			return nil, fault.New(fault.BadRequest, "%s must be an absolute path", relay.WorkspaceHeader)
		}
		hello.Workspace = filepath.Clean(dir)
	}
	old := r.Header.Get(relay.ResumeHeader)
	if hello.Session == "" && rl.lives(caller.Principal, old) {
		hello.Resumes = old
	}
	return newLine(rl, hello), nil
}

// lives reports whether a session can be entered again.
func (rl *Relay) lives(principal, id string) bool {
	if id == "" {
		return false
	}
	info, err := rl.g.cfg.Sessions.Get(principal, false, id)
	return err == nil && (info.State == session.Active || info.State == session.Dormant)
}

// unescaped is a header's value as it was before it was escaped, or "".
func unescaped(r *http.Request, name string) string {
	text, err := url.PathUnescape(r.Header.Get(name))
	if err != nil {
		return ""
	}
	return text
}
