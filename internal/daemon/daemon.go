// Package daemon builds roundhouse from a Config and owns the order in which its
// parts start and stop.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/control"
	"roundhouse/internal/front"
	"roundhouse/internal/gateway"
	"roundhouse/internal/pool"
	"roundhouse/internal/process"
	"roundhouse/internal/session"
)

// Options are what Run needs beside the configuration.
type Options struct {
	Config  *config.Config
	Version string
	Log     *slog.Logger
	// Ready is called with the address once requests are served; nil is fine.
	Ready func(addr net.Addr)
	// Stopped is called when everything has ended that Ready spoke of; nil is fine.
	Stopped func(Summary)
}

// Summary says how a daemon ended.
type Summary struct {
	Sessions    int           // that were open
	Interrupted int           // calls that got an error because their grace was over
	Connections int           // to servers, that were open
	Killed      int           // those of them whose servers had to be killed at the deadline
	Took        time.Duration // from the signal
}

// String is the summary for people, in one line.
func (s Summary) String() string {
	text := fmt.Sprintf("%s and %s ended", counted(s.Sessions, "session"), counted(s.Connections, "connection"))
	if s.Interrupted > 0 {
		text += fmt.Sprintf(", %s interrupted", counted(s.Interrupted, "call"))
	}
	if s.Killed > 0 {
		text += fmt.Sprintf(", %s killed at the deadline", counted(s.Killed, "server"))
	}
	return text + ", in " + s.Took.Round(time.Millisecond).String()
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// undo is a stack of what must be done to take back what was started.
type undo []func()

func (u *undo) add(f func()) { *u = append(*u, f) }

func (u *undo) run() {
	for _, f := range slices.Backward(*u) {
		f()
	}
	*u = nil
}

// Run serves until ctx ends, then shuts down in order (G1) and returns nil; when
// hurry ends too, calls in flight get no more grace. A start that fails takes the
// same way down and returns why it failed.
func Run(ctx, hurry context.Context, o Options) error {
	cfg, log := o.Config, o.Log
	var down undo
	defer down.run()

	processes, err := process.NewManager(process.Config{StateDir: cfg.StateDir, Log: log})
	if err != nil {
		return fmt.Errorf("prepare for child processes: %w", err)
	}
	down.add(func() {
		if err := processes.Close(); err != nil {
			log.Error("child processes are left", "err", err)
		}
	})
	for _, what := range processes.Swept() {
		log.Warn("ended what an earlier daemon left", "process", what)
	}

	shared := pool.New(pool.Config{Dial: pool.StdioDialer(processes), DrainDelay: cfg.Pool.DrainDelay, MaxIdle: cfg.Pool.MaxIdle, Version: o.Version, Log: log})
	sessions := session.NewManager(session.Config{
		Pool: shared, Servers: cfg.Servers, Limits: cfg.Sessions, ListWait: cfg.Gateway.ListWait,
		InteractiveTimeout: cfg.Gateway.InteractiveTimeout, Version: o.Version, Log: log,
	})
	s := &server{Options: o, pool: shared, sessions: sessions}
	down.add(func() { s.stop(hurry) })

	s.front, err = front.New(front.Config{
		Tokens: cfg.Auth.Tokens, PublicNames: cfg.PublicNames, AllowedOrigins: cfg.AllowedOrigins,
		Beyond: cfg.BeyondLoopback(), MaxBody: cfg.Gateway.MaxBody, Log: log,
	})
	if err != nil {
		return fmt.Errorf("set up the listener's door: %w", err)
	}
	s.gateway = gateway.New(gateway.Config{Sessions: sessions, MaxBody: cfg.Gateway.MaxBody, KeepAlive: cfg.Gateway.KeepAlive, WriteDeadline: cfg.Gateway.WriteDeadline, Log: log})
	s.gateway.Register(s.front)
	s.control = control.New(control.Config{Config: cfg, Pool: shared, Sessions: sessions, Version: o.Version, Grace: cfg.Shutdown.Grace})
	s.control.Register(s.front)

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if ctx.Err() != nil { // told to stop before it had started
		if err == nil {
			err = listener.Close()
		}
		log.Info("stopping", "cause", context.Cause(ctx), "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w; choose another address with --listen", cfg.Listen, err)
	}
	return s.serve(ctx, listener)
}

// server is the running daemon.
type server struct {
	Options
	pool     *pool.Pool
	sessions *session.Manager
	front    *front.Front
	gateway  *gateway.Gateway
	control  *control.Control
	http     *http.Server
	served   chan error
	silent   silent
}

// headerTimeout bounds how long a connection may take to send its request headers.
// Bodies and answers have no total limit (case 24).
const headerTimeout = 30 * time.Second

func (s *server) serve(ctx context.Context, listener net.Listener) error {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler:           s.front,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       2 * time.Minute,
		Protocols:         &protocols,
		ConnState:         s.silent.changed,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
	}
	s.served = make(chan error, 1)
	go func() { s.served <- s.http.Serve(listener) }() // joined by stop
	s.control.SetReady(true)
	s.Log.Info("serving", "address", listener.Addr().String(), "version", s.Version, "servers", len(s.Config.Servers))
	if s.Ready != nil {
		s.Ready(listener.Addr())
	}
	select {
	case <-ctx.Done():
		s.Log.Info("stopping", "cause", context.Cause(ctx))
		return nil
	case err := <-s.served:
		s.served <- err
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
}

// stop is the way down (G1): refuse new requests on the open listener, end the
// standing streams, let calls in flight finish within the grace, end the sessions,
// then the pool, then the listener, all under one deadline.
func (s *server) stop(hurry context.Context) {
	begun := time.Now()
	limits := s.Config.Shutdown
	total, cancel := context.WithTimeout(context.Background(), limits.Total)
	defer cancel()
	grace, cancelGrace := context.WithTimeout(total, limits.Grace)
	defer cancelGrace()
	defer context.AfterFunc(hurry, cancelGrace)()
	if s.http != nil {
		s.control.SetReady(false)
		s.front.Drain(5 * time.Second)
		s.gateway.CloseStreams()
	}
	s.sessions.Drain()
	left := s.sessions.Wait(grace)
	open := s.connections()
	ended := s.sessions.Shutdown(total)
	report := s.pool.Drain(total, false)
	if s.http != nil {
		s.silent.close()
		if err := s.http.Shutdown(total); err != nil {
			s.Log.Warn("connections were cut off", "err", errors.Join(err, s.http.Close()))
		}
		<-s.served
	}
	sum := Summary{Sessions: ended, Interrupted: left, Connections: open, Killed: report.Forced, Took: time.Since(begun)}
	s.Log.Info("stopped", "sessions", sum.Sessions, "interrupted", sum.Interrupted, "connections", sum.Connections, "killed", sum.Killed, "took", sum.Took.Round(time.Millisecond))
	if s.http != nil && s.Stopped != nil {
		s.Stopped(sum)
	}
}

// connections counts the connections that live.
func (s *server) connections() int {
	n := 0
	for _, i := range s.pool.Snapshot() {
		if !i.Dying && i.State != pool.Failed && i.State != pool.Closed {
			n++
		}
	}
	return n
}

// silent holds the connections that have not sent anything yet, such as those that
// browsers open in advance. Shutdown of net/http gives each of them five seconds to
// speak, which would be all that a daemon without work still waits for. The zero
// value is ready.
type silent struct {
	mu    sync.Mutex
	over  bool
	conns map[net.Conn]struct{}
}

// changed is the server's ConnState.
func (s *silent) changed(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	over := s.over
	switch {
	case state != http.StateNew:
		delete(s.conns, c)
	case !over:
		if s.conns == nil {
			s.conns = map[net.Conn]struct{}{}
		}
		s.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	if over && state == http.StateNew {
		_ = c.Close() // it has said nothing that could be answered
	}
}

// close closes them, and from now on every new one.
func (s *silent) close() {
	s.mu.Lock()
	s.over = true
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	for c := range conns {
		_ = c.Close() // it has said nothing that could be answered
	}
}
