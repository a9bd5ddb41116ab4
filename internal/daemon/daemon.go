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
	"os"
	"slices"
	"sync"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/control"
	"roundhouse/internal/event"
	"roundhouse/internal/front"
	"roundhouse/internal/gateway"
	"roundhouse/internal/instance"
	"roundhouse/internal/loop"
	"roundhouse/internal/model"
	"roundhouse/internal/pool"
	"roundhouse/internal/process"
	"roundhouse/internal/recorder"
	"roundhouse/internal/responses"
	"roundhouse/internal/session"
	"roundhouse/internal/socket"
	"roundhouse/internal/store"
	"roundhouse/internal/tools"
)

// Options are what Run needs beside the configuration.
type Options struct {
	Config  *config.Config
	Version string
	Log     *slog.Logger
	// Load reads the configuration anew, from where Config came; nil is for a daemon whose
	// configuration cannot change.
	Load func() (*config.Config, error)
	// Hangup asks with each signal to read the configuration anew; nil is fine.
	Hangup <-chan os.Signal
	// Autostart is set by "roundhouse connect" where no daemon runs (H8). Such a daemon
	// listens on the socket, on TCP only if somebody chose the address, and ends when it
	// was idle for autostart.idleExit. If another one has the socket it ends at once,
	// without an error.
	Autostart bool
	// Ready is called with the address once requests are served, that of the socket if
	// there is no other; nil is fine.
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

// recordLinger is how long what is recorded, but holds up no answer, may wait for what does
// (C6): each sync of the disk takes time from all streams.
const recordLinger = 20 * time.Millisecond

// Run serves until ctx ends, then shuts down in order (G1) and returns nil; when
// hurry ends too, calls in flight get no more grace. A start that fails takes the
// same way down and returns why it failed.
func Run(ctx, hurry context.Context, o Options) error {
	cfg, log := o.Config, o.Log
	var down undo
	defer down.run()

	local, err := takeSocket(o)
	if errors.Is(err, socket.ErrTaken) {
		log.Info("another daemon serves already", "socket", cfg.Socket)
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen for local programs: %w", err)
	}
	if local != nil {
		down.add(func() { _ = local.Close() }) // it is closed already if it was served
	}

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

	database, err := openStore(ctx, o, local != nil)
	if ctx.Err() != nil { // told to stop before it had started
		log.Info("stopping", "cause", context.Cause(ctx))
		return nil
	}
	if err != nil {
		return err
	}
	s := &server{Options: o, database: database}
	down.add(s.closeStore) // it is closed already if more was started than that

	events := event.NewFeed()
	shared := pool.New(pool.Config{
		Dial: pool.NewDialer(processes, log), DrainDelay: cfg.Pool.DrainDelay, MaxIdle: cfg.Pool.MaxIdle, Budget: cfg.Pool.Budget,
		Circuit: cfg.Pool.Circuit, Version: o.Version, Log: log, Events: events,
	})
	starter := instance.NewStarter(instance.StarterConfig{Pool: shared, Processes: processes, Log: log})
	down.add(starter.Close)
	instances := instance.New(instance.Config{Launcher: starter, Log: log})
	settings := tools.Config{
		Grace: func() time.Duration { return s.reloader.current.Load().Shutdown.Grace },
		Describe: func(ctx context.Context, principal string) ([]session.Info, error) {
			return s.control.Describe(ctx, principal)
		},
		Model: cfg.LLM.Tasks.Model, Log: log,
	}
	if len(cfg.LLM.Upstreams) > 0 {
		settings.Engine = func() *loop.Engine { return s.engine }
	}
	own := tools.New(settings)
	sessions := session.NewManager(session.Config{
		Settings: sessionSettings(cfg), Pool: shared, Instances: instances, Own: own.Own(), Store: database, Version: o.Version, Log: log, Events: events,
	})
	models := model.New(model.Config{
		LLM: cfg.LLM, Store: database, Occupy: sessions.Occupy, Dir: cfg.StateDir, Log: log, Events: events, KeepAlive: cfg.Gateway.KeepAlive, WriteDeadline: cfg.Gateway.WriteDeadline,
	})
	s.pool, s.instances, s.sessions, s.models = shared, instances, sessions, models
	s.engine = loop.New(loop.Config{Models: models, Sessions: sessions, Limits: cfg.LLM.Responses, Log: log, Events: events})
	s.reloader = newReloader(s, events)
	down.add(func() { s.stop(hurry) })

	s.gateway = gateway.New(gateway.Config{Sessions: sessions, MaxBody: cfg.Gateway.MaxBody, KeepAlive: cfg.Gateway.KeepAlive, WriteDeadline: cfg.Gateway.WriteDeadline, Log: log})
	s.relay = gateway.NewRelay(gateway.RelayConfig{Gateway: s.gateway, File: cfg.File})
	s.recorder = recorder.New(recorder.Config{Models: models, MaxBody: cfg.LLM.MaxBody, WriteDeadline: cfg.Gateway.WriteDeadline, Log: log})
	s.responses = responses.New(responses.Config{
		Config: s.reloader.current.Load, Models: models, Store: database, Pass: s.recorder.Serve, Egress: responses.NewEgress(cfg.LLM.Responses.Egress),
		Engine:  s.engine,
		MaxBody: cfg.LLM.MaxBody, KeepAlive: cfg.Gateway.KeepAlive, WriteDeadline: cfg.Gateway.WriteDeadline, Log: log,
	})
	s.control = control.New(control.Config{
		Config: s.reloader.current.Load, Reload: s.reloader.reload, Reloaded: s.reloader.last.Load, Pool: shared, Instances: instances, Sessions: sessions, Processes: processes, Events: events,
		Metrics: gather(processes, shared, instances, sessions, own, s.engine, s.responses, s.gateway, s.relay, events),
		Store:   database, Models: models, Log: log,
		Version: o.Version, KeepAlive: cfg.Gateway.KeepAlive, WriteDeadline: cfg.Gateway.WriteDeadline,
	})

	if err := s.responses.Recover(ctx); err != nil {
		log.Error("the responses that an earlier daemon left are still in progress", "err", err)
	}
	if err := sessions.Restore(ctx, s.gateway.Resume); err != nil {
		return err
	}

	listener, err := listenTCP(ctx, o)
	if ctx.Err() != nil { // told to stop before it had started
		if listener != nil {
			err = listener.Close()
		}
		log.Info("stopping", "cause", context.Cause(ctx), "err", err)
		return nil
	}
	if err == nil && listener != nil {
		down.add(func() {
			if !s.serving { // else it stays open until the end of stop, which comes later (G1)
				_ = listener.Close()
			}
		})
		s.tcp, err = s.addDoor(listener, access(cfg))
	}
	if err == nil && local != nil {
		_, err = s.addDoor(local, front.Config{}) // the socket itself says who is there
	}
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	if o.Autostart {
		watch.Go(func() {
			awaitIdle(ctx, cfg.Autostart.IdleExit, s.busy)
			end(errIdle)
		})
	}
	watch.Go(func() { models.Tidy(ctx, cfg.Sessions.ExpireAfter) })
	watch.Go(func() { s.responses.Tidy(ctx) })
	if o.Load != nil {
		w := watchFile(cfg.File, log)
		watch.Go(func() { s.reloader.run(ctx, w, o.Hangup) })
	}
	err = s.serve(ctx)
	end(nil)
	watch.Wait()
	return err
}

// storeWait is how long a daemon waits for the database of one that is about to end.
const storeWait = 10 * time.Second

// openStore opens the database, for sessions and for what is recorded. A daemon beside
// another one that has it does without, if it is to record nothing; the result is nil then.
// With first the socket is ours, so whoever has the database is on his way out.
func openStore(ctx context.Context, o Options, first bool) (*store.Store, error) {
	open := func() (*store.Store, error) {
		return store.Open(ctx, store.Config{Path: o.Config.Store, Log: o.Log, Linger: recordLinger})
	}
	s, err := open()
	for begun := time.Now(); first && errors.Is(err, store.ErrInUse) && ctx.Err() == nil && time.Since(begun) < storeWait; s, err = open() {
		time.Sleep(50 * time.Millisecond)
	}
	const mend = "give this one a state directory (--state-dir) or a database (\"store\") of its own"
	switch {
	case !errors.Is(err, store.ErrInUse):
		return s, err
	case len(o.Config.LLM.Upstreams) > 0:
		return nil, fmt.Errorf("%w; %s", err, mend)
	}
	o.Log.Warn("another daemon uses the database; the sessions of this one will not outlive it; "+mend, "database", o.Config.Store)
	return nil, nil
}

// sessionSettings are those parts of a configuration that sessions go by.
func sessionSettings(cfg *config.Config) session.Settings {
	return session.Settings{
		Servers: cfg.Servers, Limits: cfg.Sessions, Filters: cfg.Auth.Filters(), ListWait: cfg.Gateway.ListWait, InteractiveTimeout: cfg.Gateway.InteractiveTimeout,
		Grace: cfg.Shutdown.Grace, DrainDelay: cfg.Pool.DrainDelay,
	}
}

// access is whom a configuration lets in.
func access(cfg *config.Config) front.Config {
	return front.Config{Tokens: cfg.Auth.Tokens, PublicNames: cfg.PublicNames, AllowedOrigins: cfg.AllowedOrigins, Beyond: cfg.BeyondLoopback()}
}

// server is the running daemon.
type server struct {
	Options
	database  *store.Store // nil if there is none
	pool      *pool.Pool
	instances *instance.Pools
	sessions  *session.Manager
	models    *model.Models
	gateway   *gateway.Gateway
	recorder  *recorder.Recorder
	engine    *loop.Engine // nil before models are there
	responses *responses.Face
	relay     *gateway.Relay
	control   *control.Control
	reloader  *reloader
	tcp       *front.Front // of the door that is not the socket's; nil if there is none
	doors     []*door
	serving   bool // the doors were opened
	silent    silent
}

// busy reports whether somebody needs the daemon: a session is awake, a model called, or
// a shim connected, whose session may be dormant.
func (s *server) busy() bool {
	return s.relay.Lines() > 0 || s.responses.Running() > 0 || s.models.Running() > 0 || s.sessions.Stats().Sessions[session.Active] > 0
}

// serve opens the doors until ctx ends or one of them fails.
func (s *server) serve(ctx context.Context) error {
	failed := make(chan error, len(s.doors))
	s.serving = true
	for _, d := range s.doors {
		go d.serve(failed) // joined by stop
	}
	s.control.SetReady(true)
	addr := s.doors[0].listener.Addr()
	s.Log.Info("serving", "address", addr.String(), "version", s.Version, "servers", len(s.Config.Servers))
	if s.Ready != nil {
		s.Ready(addr)
	}
	select {
	case <-ctx.Done():
		s.Log.Info("stopping", "cause", context.Cause(ctx))
		return nil
	case err := <-failed:
		return err
	}
}

// stop is the way down (G1): refuse new requests on the open listener, end the
// standing streams, let calls in flight, of models too, finish within the grace, end the
// sessions, then the instances, the pool, the recorder and the database, then the listener,
// all under one deadline.
func (s *server) stop(hurry context.Context) {
	begun := time.Now()
	limits := s.reloader.current.Load().Shutdown
	total, cancel := context.WithTimeout(context.Background(), limits.Total)
	defer cancel()
	grace, cancelGrace := context.WithTimeout(total, limits.Grace)
	defer cancelGrace()
	defer context.AfterFunc(hurry, cancelGrace)()
	if s.serving {
		s.control.SetReady(false)
		for _, d := range s.doors {
			d.front.Drain(5 * time.Second)
		}
		s.gateway.CloseStreams()
		s.control.CloseStreams()
	}
	s.sessions.Drain()
	if s.responses != nil { // the start came so far
		s.responses.Wait(grace) // its calls of models and tools are in flight, too
		s.responses.Close()
	}
	var cut int // calls of models that the grace was not long enough for
	var waits sync.WaitGroup
	waits.Go(func() {
		cut = s.models.Wait(grace)
		s.models.Close(total)
	})
	left := s.sessions.Wait(grace)
	open := s.pool.Live()
	var ended int
	var report pool.DrainReport
	for _, step := range []struct {
		what string
		end  func()
	}{
		{"sessions", func() { ended = s.sessions.Shutdown(total) }},
		{"instances", func() { s.instances.Drain(total) }},
		{"connections", func() {
			report = s.pool.Drain(total, false)
			s.instances.Join()
		}},
		{"recorder", waits.Wait},
		{"database", s.closeStore},
		{"listeners", func() { s.closeDoors(total) }},
	} {
		at := time.Now()
		step.end()
		s.Log.Debug("ended", "what", step.what, "took", time.Since(at).Round(time.Millisecond))
	}
	sum := Summary{Sessions: ended, Interrupted: left + cut, Connections: open, Killed: report.Forced, Took: time.Since(begun)}
	s.Log.Info("stopped", "sessions", sum.Sessions, "interrupted", sum.Interrupted, "connections", sum.Connections, "killed", sum.Killed, "took", sum.Took.Round(time.Millisecond))
	if s.serving && s.Stopped != nil {
		s.Stopped(sum)
	}
}

// closeStore closes the database, if there is one. The second time it does nothing.
func (s *server) closeStore() {
	if s.database == nil {
		return
	}
	if err := s.database.Close(); err != nil {
		s.Log.Error("the database could not be closed", "err", err)
	}
	s.database = nil
}

// closeDoors closes the doors, if they were opened.
func (s *server) closeDoors(ctx context.Context) {
	if !s.serving {
		return
	}
	s.relay.Close(ctx)
	s.silent.close()
	for _, d := range s.doors {
		d.close(ctx, s.Log)
	}
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
