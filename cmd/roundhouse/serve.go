package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"roundhouse/internal/config"
	"roundhouse/internal/daemon"
)

func serveCommand() *cobra.Command {
	var o config.Options
	var level, format string
	var autostart, install, uninstall, force bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Serve reads an mcpServers file and serves every server in it to any number of
sessions, at /mcp/NAME, and all of them together at /mcp.

When the file changes it is read anew, as it is after a SIGHUP or 'roundhouse config
reload': servers that are the same run on, others end when their calls have. A broken
file changes nothing.

The first SIGINT or SIGTERM lets calls in flight finish (shutdown.grace), the
second does not, the third ends at once.

With --install it does not serve, but writes the files by which the user's service
manager runs it as this command line says: units of systemd (a service, and a socket
that starts it when a local program needs it), or an agent of launchd. The servers'
PATH is the one of now. --uninstall removes these files.`,
		Example: `  roundhouse serve --config .mcp.json
  roundhouse serve --config .mcp.json --listen 127.0.0.1:7420
  roundhouse serve --config .mcp.json --install
  roundhouse serve --uninstall`,
		Args: arguments(0, 0, "no arguments; name the file with --config"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if install && uninstall || force && !install {
				return usageError{errors.New("--install and --uninstall exclude each other, and --force goes with --install")}
			}
			if uninstall {
				m, err := serviceManager(service{})
				if err != nil {
					return err
				}
				return m.uninstall(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			if autostart {
				cmd.SetErr(&boundedLog{file: os.Stderr})
			}
			log, err := newLogger(cmd.ErrOrStderr(), level, format)
			if err != nil {
				return err
			}
			if o.File == "" {
				return usageError{fmt.Errorf("no configuration: give --config FILE or set ROUNDHOUSE_CONFIG, for example to your .mcp.json")}
			}
			cfg, err := config.Load(o)
			if err != nil {
				return err
			}
			for _, p := range cfg.Problems {
				fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: %s\n", p)
			}
			collectLater()
			leaveProcessors(cfg)
			if install {
				s, err := newService(o, cfg, changed(cmd, "log-level", "log-format"))
				if err != nil {
					return err
				}
				m, err := serviceManager(s)
				if err != nil {
					return err
				}
				return m.install(cmd.Context(), force, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			ctx, hurry, stop := signals(cmd.Context(), cmd.ErrOrStderr())
			defer stop()
			hangup, stopHangup := hangups()
			defer stopHangup()
			return daemon.Run(ctx, hurry, daemon.Options{
				Config: cfg, Version: currentVersion(), Log: log, Autostart: autostart,
				Load: func() (*config.Config, error) { return config.Load(o) }, Hangup: hangup,
				Ready:   func(addr net.Addr) { welcome(cmd.ErrOrStderr(), cfg, addr) },
				Stopped: func(s daemon.Summary) { fmt.Fprintf(cmd.ErrOrStderr(), "roundhouse: stopped: %s\n", s) },
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.File, "config", os.Getenv("ROUNDHOUSE_CONFIG"), "the configuration `file` (also ROUNDHOUSE_CONFIG)")
	f.StringVar(&o.Overrides.Listen, "listen", "", "the `address` to listen on (default 127.0.0.1:7420; also ROUNDHOUSE_LISTEN)")
	f.StringVar(&o.Overrides.StateDir, "state-dir", "", "the `directory` for the daemon's own files (also ROUNDHOUSE_STATE_DIR)")
	f.StringVar(&o.Overrides.Socket, "socket", "", "the `path` of the unix socket for local programs (also ROUNDHOUSE_SOCKET)")
	f.BoolVar(&o.Overrides.NoPool, "no-pool", false, "give every session its own servers (also ROUNDHOUSE_NO_POOL=1)")
	f.StringVar(&level, "log-level", "warn", "what to log: debug, info, warn or error")
	f.StringVar(&format, "log-format", "text", "how to log: text or json")
	f.BoolVar(&install, "install", false, "write the files of a service that serves so, and do not serve")
	f.BoolVar(&uninstall, "uninstall", false, "remove the files that --install wrote, and do not serve")
	f.BoolVar(&force, "force", false, "with --install, replace files that it did not write")
	f.BoolVar(&autostart, "autostart", false, "started by connect: serve the socket, and end when idle")
	_ = f.MarkHidden("autostart") // it exists
	return cmd
}

// changed returns those of the flags that were given, as arguments.
func changed(cmd *cobra.Command, names ...string) (args []string) {
	for _, name := range names {
		if f := cmd.Flag(name); f.Changed {
			args = append(args, "--"+name+"="+f.Value.String())
		}
	}
	return args
}

// boundedLog is the log file of a daemon that nobody watches. It begins anew when it
// has become long.
type boundedLog struct {
	file *os.File // opened for appending

	mu   sync.Mutex
	size int
}

const maxAutostartLog = 4 << 20 // bytes

// Write implements io.Writer.
func (l *boundedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size += len(p); l.size > maxAutostartLog {
		l.size = len(p)
		_ = l.file.Truncate(0) // a terminal or a pipe cannot be, and need not
	}
	return l.file.Write(p)
}

func newLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level must be debug, info, warn or error, not %q", level)}
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, usageError{fmt.Errorf("--log-format must be text or json, not %q", format)}
}

// signals returns a context that ends at the first SIGINT or SIGTERM, which it
// acknowledges on w, and one that ends at the second; the third ends the process as
// if nobody listened.
func signals(parent context.Context, w io.Writer) (first, second context.Context, stop func()) {
	first, endFirst := context.WithCancelCause(parent)
	second, endSecond := context.WithCancelCause(context.WithoutCancel(parent))
	c := make(chan os.Signal, 3) // room for all that count, however fast they come
	done := make(chan struct{})
	joined := make(chan struct{})
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer close(joined)
		for _, then := range []func(os.Signal){
			func(s os.Signal) {
				fmt.Fprintf(w, "roundhouse: stopping: %s signal received; another one ends calls in flight, a third one everything\n", s)
				endFirst(fmt.Errorf("%s signal received", s))
			},
			func(s os.Signal) { endSecond(fmt.Errorf("%s signal received", s)) },
			raise,
		} {
			select {
			case s := <-c:
				then(s)
			case <-done:
				return
			}
		}
	}()
	return first, second, func() {
		signal.Stop(c)
		close(done)
		<-joined
		endFirst(nil)
		endSecond(nil)
	}
}

// raise ends us by a signal, as if nobody listened for it.
func raise(s os.Signal) {
	signal.Reset(s)
	if p, err := os.FindProcess(os.Getpid()); err == nil && p.Signal(s) == nil {
		time.Sleep(time.Second) // it is on its way, unless somebody had us ignore it
	}
	os.Exit(1)
}

// hangups returns a channel of SIGHUP, nil if somebody had us ignore it, as nohup does.
func hangups() (c chan os.Signal, stop func()) {
	if signal.Ignored(syscall.SIGHUP) {
		return nil, func() {}
	}
	c = make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c, func() { signal.Stop(c) }
}

// welcome says where everything is, for people.
func welcome(w io.Writer, cfg *config.Config, addr net.Addr) {
	if addr.Network() == "unix" {
		fmt.Fprintf(w, "roundhouse: serving local programs at %s\n", addr)
		return
	}
	base := "http://" + addr.String()
	fmt.Fprintf(w, "roundhouse: serving %s\n", base)
	fmt.Fprintf(w, "roundhouse:   %s/mcp  (all servers)\n", base)
	for _, s := range cfg.Servers {
		if s.DisabledReason == "" {
			fmt.Fprintf(w, "roundhouse:   %s/mcp/%s  (%s)\n", base, pathEscape(s.Name), s.Sharing)
		}
	}
	fmt.Fprintf(w, "roundhouse: point a client at it, for example:\n")
	option, member := "", ""
	if len(cfg.Auth.Tokens) > 0 {
		option = ` --header "Authorization: Bearer TOKEN"`
		member = `, "headers": {"Authorization": "Bearer TOKEN"}`
	}
	fmt.Fprintf(w, "roundhouse:   claude mcp add --transport http roundhouse %s/mcp%s\n", base, option)
	fmt.Fprintf(w, "roundhouse:   {\"mcpServers\": {\"roundhouse\": {\"type\": \"http\", \"url\": \"%s/mcp\"%s}}}\n", base, member)
	if len(cfg.Auth.Tokens) > 0 {
		fmt.Fprintf(w, "roundhouse:   where TOKEN is one of auth.tokens\n")
	}
}

// pathEscape escapes a server's name for a URL path as people write it.
func pathEscape(name string) string {
	return strings.NewReplacer("%", "%25", " ", "%20", "?", "%3F", "#", "%23").Replace(name)
}
