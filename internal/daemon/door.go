package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"roundhouse/internal/front"
	"roundhouse/internal/socket"
)

// headerTimeout bounds how long a connection may take to send its request headers.
// Bodies and answers have no total limit (case 24).
const headerTimeout = 30 * time.Second

// door is a listener, whom it lets in, and what serves there.
type door struct {
	listener net.Listener
	front    *front.Front
	http     *http.Server
	served   chan struct{} // closed when http does not serve any more
}

// addDoor makes a door with all routes; serve opens it. It owns the listener from now
// on, if it returns no error.
func (s *server) addDoor(listener net.Listener, cfg front.Config) (*front.Front, error) {
	cfg.MaxBody, cfg.Log = s.Config.Gateway.MaxBody, s.Log
	f, err := front.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("set up the listener's door: %w", err)
	}
	s.gateway.Register(f)
	s.relay.Register(f)
	s.responses.Register(f)
	s.recorder.Register(f)
	s.control.Register(f)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.doors = append(s.doors, &door{
		listener: listener, front: f, served: make(chan struct{}),
		http: &http.Server{
			Handler:           f,
			ReadHeaderTimeout: headerTimeout,
			IdleTimeout:       2 * time.Minute,
			Protocols:         &protocols,
			ConnState:         s.silent.changed,
			ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
		},
	})
	return f, nil
}

// serve serves until the door is closed. It reports what else ended it.
func (d *door) serve(failed chan<- error) {
	defer close(d.served)
	if err := d.http.Serve(d.listener); !errors.Is(err, http.ErrServerClosed) {
		failed <- fmt.Errorf("serve on %s: %w", d.listener.Addr(), err)
	}
}

// close lets the requests inside end until ctx does.
func (d *door) close(ctx context.Context, log *slog.Logger) {
	if err := d.http.Shutdown(ctx); err != nil {
		log.Warn("connections were cut off", "err", errors.Join(err, d.http.Close()))
	}
	<-d.served
}

// takeSocket takes the socket for this user's own programs (H8): that of the service
// manager if it has opened one for us. A daemon that was started for local programs needs
// it; another one can do without, and says so.
func takeSocket(o Options) (*socket.Listener, error) {
	if l, err := socket.Inherited(o.Log); l != nil || err != nil {
		if err == nil && l.Addr().String() != o.Config.Socket {
			o.Log.Warn("the service manager's socket is not where local programs look for it", "socket", l.Addr().String(), "expected", o.Config.Socket)
		}
		return l, err
	}
	if !socket.Supported && !o.Autostart {
		return nil, nil
	}
	l, err := socket.Listen(o.Config.Socket, o.Log)
	if err == nil || o.Autostart {
		return l, err
	}
	if errors.Is(err, socket.ErrTaken) {
		o.Log.Warn("another daemon serves local programs ('roundhouse connect' and other commands); this one is reached by its URL only", "socket", o.Config.Socket)
	} else {
		o.Log.Warn("no socket for local programs; this daemon is reached by its URL only", "err", err)
	}
	return nil, nil
}

// listenTCP opens the HTTP listener. A daemon that was started for a shim has one only
// if somebody chose its address, and it does without when that is taken.
func listenTCP(ctx context.Context, o Options) (net.Listener, error) {
	if o.Autostart && !o.Config.ListenGiven {
		return nil, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Config.Listen)
	switch {
	case err == nil:
		return l, nil
	case o.Autostart && ctx.Err() == nil:
		o.Log.Warn("the listener's address cannot be used; only local programs reach this daemon", "address", o.Config.Listen, "err", err)
		return nil, nil
	}
	return nil, fmt.Errorf("listen on %s: %w; choose another address with --listen", o.Config.Listen, err)
}

// errIdle ends a daemon that was started for a shim and that nobody needs.
var errIdle = errors.New("idle for autostart.idleExit")

// awaitIdle returns when nothing was busy for the given time, as far as a look at
// every tenth of it tells, or when ctx ends.
func awaitIdle(ctx context.Context, after time.Duration, busy func() bool) {
	tick := time.NewTicker(max(after/10, time.Millisecond))
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if busy() {
			last = time.Now()
		} else if time.Since(last) >= after {
			return
		}
	}
}
