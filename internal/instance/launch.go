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
	"roundhouse/internal/process"
)

// Starter is the Launcher whose instances are connections of a pool: to processes that it
// starts, or to endpoints. Close it when nothing of it is used any more.
type Starter struct {
	cfg StarterConfig // constant after NewStarter

	mu   sync.Mutex
	root *process.Dir // of the directories of instances; nil before the first
}

// StarterConfig says how a Starter works.
type StarterConfig struct {
	Pool *pool.Pool // required
	// Processes makes the directory in which those of the instances are, so that it goes
	// with the daemon however that ends. Nil makes one of which no next start knows.
	Processes *process.Manager
	// Base is where it is made; "" is where temporary files go. Sockets are made in the
	// directories of instances, so the path should be short.
	Base string
	Log  *slog.Logger // nil discards
}

// NewStarter returns a Starter.
func NewStarter(cfg StarterConfig) *Starter {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Processes == nil {
		cfg.Processes = new(process.Manager) // without a journal
	}
	return &Starter{cfg: cfg}
}

// Close removes what is left of the directories.
func (s *Starter) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root != nil {
		s.removed(s.root.Path(), s.root.Remove())
		s.root = nil
	}
}

// removed logs that a directory could not be removed.
func (s *Starter) removed(dir string, err error) {
	if err != nil {
		s.cfg.Log.Error("a directory of an instance is left", "dir", dir, "err", err)
	}
}

// directory makes an empty directory for an instance. Names come again, so that instances
// which come and go are known by few.
func (s *Starter) directory() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.root == nil {
			root, err := s.cfg.Processes.MakeDir(s.cfg.Base)
			if err != nil {
				return "", err
			}
			s.root = root
		}
		dir, err := numbered(s.root.Path())
		if !errors.Is(err, fs.ErrNotExist) {
			return dir, err
		}
		// Somebody tidies up where temporary files go.
		s.removed(s.root.Path(), s.root.Remove())
		s.root = nil
	}
}

// numbered makes the first directory of a number that is free.
func numbered(root string) (string, error) {
	for n := 0; ; n++ {
		dir := filepath.Join(root, strconv.Itoa(n))
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
	u := &unit{starter: s, holder: s.cfg.Pool.NewHolder(""), dir: at.Dir, lost: lost, news: news}
	slow := fault.New(fault.StartTimeout, "an instance of server %q was not warm within %s; startTimeout of the server sets the limit", server.Name, server.StartTimeout)
	slow.Server = server.Name
	warming, cancel := context.WithTimeoutCause(ctx, server.StartTimeout, slow)
	defer cancel()
	// The dial has the same limit, and its error says what the server wrote.
	u.att, err = u.holder.Acquire(ctx, pool.Want{Server: own, Capabilities: noCapabilities, Listener: u})
	if err == nil && server.Instances.Warmup.Tool != "" {
		if err = u.att.Call(warming, server.Instances.Warmup); err != nil {
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
	c := &Catalogue{Handshake: h, Lists: map[pool.Kind]*pool.Listing{}, Failed: map[pool.Kind]error{}}
	for _, k := range []pool.Kind{pool.Tools, pool.Prompts, pool.Resources, pool.Templates} {
		switch l, err := u.att.List(ctx, k); {
		case err == nil && l != nil:
			c.Lists[k] = l
		case ctx.Err() != nil:
			return nil, fmt.Errorf("list the %s: %w", k, context.Cause(ctx))
		case err != nil:
			c.Failed[k] = err
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
		u.starter.removed(u.dir, os.RemoveAll(u.dir))
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
