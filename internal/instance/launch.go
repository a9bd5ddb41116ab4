package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
)

// Starter is the Launcher whose instances are connections of a pool: to processes that it
// starts, or to endpoints. Close it when nothing of it is used any more.
type Starter struct {
	// Constant after NewStarter.
	pool *pool.Pool
	base string
	log  *slog.Logger

	mu   sync.Mutex
	root string // of the directories of instances; "" before the first
}

// NewStarter returns a Starter that keeps the directories of instances in one that it
// makes in base, or with "" where temporary files go. Sockets are made in them, so the
// path should be short. A nil log discards.
func NewStarter(p *pool.Pool, base string, log *slog.Logger) *Starter {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Starter{pool: p, base: base, log: log}
}

// Close removes what is left of the directories.
func (s *Starter) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root != "" {
		s.remove(s.root)
		s.root = ""
	}
}

func (s *Starter) remove(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		s.log.Error("a directory of an instance is left", "dir", dir, "err", err)
	}
}

// directory makes an empty directory for an instance. Names come again, so that instances
// which come and go are known by few.
func (s *Starter) directory() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root == "" {
		root, err := os.MkdirTemp(s.base, "roundhouse-")
		if err != nil {
			return "", err
		}
		s.root = root
	}
	for n := 0; ; n++ {
		dir := filepath.Join(s.root, strconv.Itoa(n))
		if err := os.Mkdir(dir, 0o700); !errors.Is(err, fs.ErrExist) {
			return dir, err
		}
	}
}

// place finds what an instance has for itself (I7).
func (s *Starter) place(server *config.Server, index int) (config.Place, error) {
	at := config.Place{Index: index}
	if server.NeedsPort() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return at, fmt.Errorf("find a free port: %w", err)
		}
		at.Port = l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			return at, fmt.Errorf("free the port: %w", err)
		}
	}
	if server.Transport != config.Stdio {
		return at, nil
	}
	var err error
	if at.Dir, err = s.directory(); err != nil {
		return at, fmt.Errorf("make the directory of an instance: %w", err)
	}
	return at, nil
}

// noCapabilities are those of an instance: it is there before the client whom it could ask.
var noCapabilities = []byte("{}")

// Launch implements Launcher.
func (s *Starter) Launch(ctx context.Context, server *config.Server, index int, lost func(error), news func()) (Unit, error) {
	at, err := s.place(server, index)
	if err != nil {
		return nil, err
	}
	own := server.ResolveInstance(at)
	if urls := server.Instances.Endpoints; len(urls) > 0 {
		own.URL = urls[index]
	}
	own.Recovery = config.Recovery{}              // a new process would not be the one that the session knows
	own.IncludeTools, own.ExcludeTools = nil, nil // each session filters for itself
	u := &unit{starter: s, holder: s.pool.NewHolder(""), dir: at.Dir, lost: lost, news: news}
	slow := fault.New(fault.StartTimeout, "an instance of server %q was not ready within %s; startTimeout of the server sets the limit", server.Name, server.StartTimeout)
	slow.Server = server.Name
	ctx, cancel := context.WithTimeoutCause(ctx, server.StartTimeout, slow)
	defer cancel()
	u.att, err = u.holder.Acquire(ctx, pool.Want{Server: own, Capabilities: noCapabilities, Listener: u})
	if err == nil && server.Instances.Warmup.Tool != "" {
		if err = u.att.Call(ctx, server.Instances.Warmup); err != nil {
			err = failedWarmup(server.Name, err)
		}
	}
	if err != nil {
		u.Close(fault.Of(err))
		return nil, err
	}
	return u, nil
}

func failedWarmup(server string, err error) error {
	if _, ours := errors.AsType[*fault.Error](err); ours {
		return err
	}
	f := fault.New(fault.StartFailed, "an instance of server %q could not be warmed up: %w", server, err)
	f.Server = server
	return f
}

// unit is an instance with a connection of a pool.
type unit struct {
	// Constant once Launch has returned it.
	starter *Starter
	holder  *pool.Holder
	att     *pool.Attachment
	dir     string // its own, or ""
	lost    func(error)
	news    func()
}

// Ask implements Unit.
func (u *unit) Ask(ctx context.Context, call config.ToolCall) error {
	if call.Tool == "" {
		return u.att.Ping(ctx)
	}
	return u.att.Call(ctx, call)
}

// Lend implements Unit.
func (u *unit) Lend(h *pool.Holder, w pool.Want) (*pool.Attachment, error) {
	return u.att.Lend(h, w)
}

// Catalogue implements Unit.
func (u *unit) Catalogue(ctx context.Context) (*Catalogue, error) {
	h, err := u.att.Handshake(ctx)
	if err != nil {
		return nil, err
	}
	c := &Catalogue{Handshake: h, Lists: map[pool.Kind]*pool.Listing{}}
	for _, k := range []pool.Kind{pool.Tools, pool.Prompts, pool.Resources, pool.Templates} {
		switch l, err := u.att.List(ctx, k); {
		case err == nil && l != nil:
			c.Lists[k] = l
		case ctx.Err() != nil:
			return nil, fmt.Errorf("list the %s: %w", k, context.Cause(ctx))
		}
	}
	return c, nil
}

// Connection implements Unit.
func (u *unit) Connection() string { return u.att.ID() }

// Close implements Unit.
func (u *unit) Close(why *fault.Error) {
	if u.att != nil {
		u.att.End(why)
	}
	u.holder.Close()
	if u.dir != "" {
		u.starter.remove(u.dir)
	}
}

// ListChanged implements pool.Listener.
func (u *unit) ListChanged(*pool.Attachment, mux.List) { u.news() }

// Lost implements pool.Listener.
func (u *unit) Lost(_ *pool.Attachment, err *fault.Error) { u.lost(err) }

// Renewed implements pool.Listener. What was restarted by hand is not warmed up, and no
// session gets it that has not got it.
func (u *unit) Renewed(*pool.Attachment) { u.lost(errRestarted) }

var errRestarted = errors.New("the instance was restarted")
