package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/control"
	"roundhouse/internal/event"
)

// reloader reads the configuration anew, and has the daemon go by it.
type reloader struct {
	// Constant.
	load   func() (*config.Config, error)
	begun  *config.Config // with which the daemon was started
	server *server
	log    *slog.Logger
	events *event.Feed

	current atomic.Pointer[config.Config]    // that the daemon goes by
	last    atomic.Pointer[control.Reloaded] // nil before the first reload

	mu      sync.Mutex // held during a reload: one at a time
	refusal string     // why the file was refused last time, or ""
}

func newReloader(s *server, events *event.Feed) *reloader {
	r := &reloader{load: s.Load, begun: s.Config, server: s, log: s.Log, events: events}
	r.current.Store(s.Config)
	if r.load == nil {
		r.load = func() (*config.Config, error) { return s.Config, nil }
	}
	return r
}

// reload reads the configuration and applies it. A broken one is refused as a whole,
// and changes nothing; what is wrong with one server disables that one.
func (r *reloader) reload() control.Reloaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	cfg, err := r.load()
	return r.take(cfg, err)
}

// look is reload if the file says something else than last time.
func (r *reloader) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	cfg, err := r.load()
	if err != nil && err.Error() == r.refusal || err == nil && r.refusal == "" && reflect.DeepEqual(cfg, r.current.Load()) {
		return
	}
	r.take(cfg, err)
}

// take takes the outcome of load. It is called with mu held.
func (r *reloader) take(cfg *config.Config, err error) control.Reloaded {
	done := control.Reloaded{At: time.Now(), Problems: []config.Problem{}, Added: []string{}, Changed: []string{}, Removed: []string{}, NeedsRestart: []string{}}
	defer func() { r.last.Store(&done) }()
	if err != nil {
		done.Refused = true
		done.Problems = problemsOf(err)
		r.refusal = err.Error()
		r.log.Error("the configuration is broken; what was read before stays", "file", r.begun.File, "err", err)
		r.events.Publish(event.Event{Kind: event.ReloadRefused, Reason: err.Error()})
		return done
	}
	r.refusal = ""
	done.Problems = append(done.Problems, cfg.Problems...)
	done.Added, done.Changed, done.Removed = differences(r.current.Load().Servers, cfg.Servers)
	done.NeedsRestart = needsRestart(r.begun, cfg)
	if err := r.server.configure(cfg); err != nil {
		r.log.Warn("who may connect stays as it is until a restart", "err", err)
		done.NeedsRestart = append(done.NeedsRestart, "auth")
	}
	r.current.Store(cfg)
	for _, p := range cfg.Problems {
		r.log.Warn("a problem in the configuration", "problem", p.String())
	}
	if len(done.NeedsRestart) > 0 {
		r.log.Warn("some settings change only when the daemon is restarted", "settings", done.NeedsRestart)
	}
	r.log.Info("configuration reloaded", "file", cfg.File, "added", done.Added, "changed", done.Changed, "removed", done.Removed)
	r.events.Publish(event.Event{Kind: event.ConfigReloaded, Added: done.Added, Changed: done.Changed, Removed: done.Removed})
	return done
}

func problemsOf(err error) []config.Problem {
	if invalid, ok := errors.AsType[*config.Invalid](err); ok {
		return invalid.Problems
	}
	return []config.Problem{{Severity: config.Error, Message: err.Error()}}
}

// differences compares servers by name. Where an entry stands in the file makes no
// difference.
func differences(before, after []*config.Server) (added, changed, removed []string) {
	added, changed, removed = []string{}, []string{}, []string{}
	find := func(all []*config.Server, name string) *config.Server {
		if i := slices.IndexFunc(all, func(s *config.Server) bool { return s.Name == name }); i >= 0 {
			return all[i]
		}
		return nil
	}
	for _, now := range after {
		was := find(before, now.Name)
		if was == nil {
			added = append(added, now.Name)
			continue
		}
		moved := *was
		moved.Position = now.Position
		if !reflect.DeepEqual(&moved, now) {
			changed = append(changed, now.Name)
		}
	}
	for _, was := range before {
		if find(after, was.Name) == nil {
			removed = append(removed, was.Name)
		}
	}
	return added, changed, removed
}

// needsRestart names the settings that differ from those with which the daemon was
// started, and that it cannot change.
func needsRestart(begun, now *config.Config) []string {
	names := []string{}
	differs := func(name string, was, is any) {
		if !reflect.DeepEqual(was, is) {
			names = append(names, name)
		}
	}
	differs("listen", begun.Listen, now.Listen)
	differs("socket", begun.Socket, now.Socket)
	differs("stateDir", begun.StateDir, now.StateDir)
	differs("store", begun.Store, now.Store)
	differs("llm", begun.LLM, now.LLM)
	differs("gateway.maxBody", begun.Gateway.MaxBody, now.Gateway.MaxBody)
	differs("gateway.keepAlive", begun.Gateway.KeepAlive, now.Gateway.KeepAlive)
	differs("gateway.writeDeadline", begun.Gateway.WriteDeadline, now.Gateway.WriteDeadline)
	differs("autostart.idleExit", begun.Autostart.IdleExit, now.Autostart.IdleExit)
	return names
}

// configure has the daemon go by another configuration. Its error is about who may
// connect, which then stays as it was; the rest is done.
func (s *server) configure(cfg *config.Config) error {
	s.pool.Configure(cfg.Pool)
	s.sessions.Configure(sessionSettings(cfg))
	if s.tcp == nil {
		return nil
	}
	if err := s.tcp.Configure(access(cfg)); err != nil {
		return fmt.Errorf("change who may connect: %w", err)
	}
	return nil
}

// settleTime is how long the file is left alone after something happened in its
// directory: who writes it may not have finished.
const settleTime = 200 * time.Millisecond

// run reloads the configuration when its file has changed, and at each hangup, until
// ctx ends. It closes the watch.
func (r *reloader) run(ctx context.Context, w *fileWatch, hangup <-chan os.Signal) {
	defer w.close()
	r.look() // it may have changed before it was watched
	happened, failed := w.news()
	var settled <-chan time.Time
	for {
		select {
		case <-hangup:
			r.reload()
			w.follow()
		case e := <-happened:
			if settled == nil && w.concerns(e) {
				settled = time.After(settleTime)
			}
		case err := <-failed:
			r.log.Warn("watching the configuration file", "err", err)
			if settled == nil {
				settled = time.After(settleTime)
			}
		case <-settled:
			settled = nil
			r.look()
			w.follow()
		case <-ctx.Done():
			return
		}
	}
}
