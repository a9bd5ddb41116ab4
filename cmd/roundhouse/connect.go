package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"roundhouse/internal/config"
	"roundhouse/internal/shim"
	"roundhouse/internal/socket"
)

// The values of connect --fallback.
const (
	fallbackDirect = "direct"
	fallbackOff    = "off"
)

// connection is the command line of connect.
type connection struct {
	shim.Endpoint // Server, Session, URL and TokenFile are flags
	file          string
	socket        string
	wait          time.Duration
	fallback      string
	noAutostart   bool

	stderr io.Writer
}

func connectCommand() *cobra.Command {
	c := &connection{}
	cmd := &cobra.Command{
		Use:   "connect [SERVER]",
		Short: "Speak MCP over stdio, for hosts that start commands",
		Long: `Connect is an MCP server on its standard streams, as hosts start them: it relays to
the server of that name in the daemon, or without a name to all servers together.

It finds the daemon by its unix socket, and starts one if none runs. It outlives
the daemon: a request that was in flight when the daemon ended gets an error, all
others wait for the next daemon. If none can be had at first, the server's own
command takes its place.`,
		Example: `  roundhouse connect everything
  roundhouse connect --session review everything
  roundhouse connect`,
		Args: arguments(0, 1, "at most one argument, the server"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if args[0] == "" {
					return usageError{errors.New("the server's name is empty; leave it out for all servers")}
				}
				c.Server = args[0]
			}
			if c.fallback != fallbackDirect && c.fallback != fallbackOff {
				return usageError{fmt.Errorf("--fallback must be %s or %s, not %q", fallbackDirect, fallbackOff, c.fallback)}
			}
			c.stderr = cmd.ErrOrStderr()
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return c.run(ctx, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Session, "session", "", "the `name` of the session to enter; without it each connect has one of its own")
	f.StringVar(&c.URL, "url", os.Getenv("ROUNDHOUSE_URL"), "the `URL` of a daemon, instead of the socket (also ROUNDHOUSE_URL)")
	f.StringVar(&c.TokenFile, "token-file", "", "the `file` with the token for --url, read for each connection (without it, ROUNDHOUSE_TOKEN)")
	f.StringVar(&c.file, "config", os.Getenv("ROUNDHOUSE_CONFIG"), "the configuration `file` of a daemon that is started (also ROUNDHOUSE_CONFIG; default roundhouse/roundhouse.json in the user's configuration directory)")
	f.StringVar(&c.socket, "socket", "", "the `path` of the daemon's socket (also ROUNDHOUSE_SOCKET)")
	f.DurationVar(&c.wait, "wait", shim.DefaultWait, "how long a request waits for a daemon")
	f.StringVar(&c.fallback, "fallback", fallbackDirect, "what to do if no daemon can be had: direct runs the server's command, off does not")
	f.BoolVar(&c.noAutostart, "no-autostart", false, "start no daemon")
	return cmd
}

func (c *connection) run(ctx context.Context, in io.Reader, out io.Writer) error {
	local := readLocal(c.file, c.socket)
	c.Token = os.Getenv("ROUNDHOUSE_TOKEN")
	c.Client = parentName()
	c.Workspace, _ = os.Getwd() // "" is none
	c.Socket = local.config.Socket
	if local.chosen && local.err == nil {
		c.Config = local.config.File
	}
	if c.URL == "" && !socket.Supported {
		c.URL = "http://" + local.config.Listen
	}
	sc := shim.Config{In: in, Out: out, Dial: c.Dial, Wait: c.wait, Say: func(format string, args ...any) {
		fmt.Fprintf(c.stderr, "roundhouse: "+format+"\n", args...)
	}}
	if c.URL == "" && !c.noAutostart && local.config.Autostart.Enabled {
		sc.Start = starter(local)
	}
	server := local.server(c.Server)
	sc.Fallback = c.fallback == fallbackDirect && server != nil && shim.CheckDirect(server, c.Workspace) == nil
	err := shim.Run(ctx, sc)
	switch {
	case ctx.Err() != nil:
		return nil // told to stop
	case !errors.Is(err, shim.ErrNoDaemon):
		return err
	}
	fmt.Fprintf(c.stderr, "roundhouse: warning: %v; running server %q directly, so it is shared with nobody\n", err, c.Server)
	status, err := shim.Direct(server, c.Workspace)
	if err == nil && status != 0 {
		err = shownError{status}
	}
	return err
}

// local is what this user's own configuration says.
type local struct {
	config *config.Config // that of the file, or without one or with a broken one, the defaults
	chosen bool           // somebody named the file
	err    error          // why the file is of no use, or nil
}

// readLocal reads the configuration, from which the socket is known even if the file
// cannot be used. Where none is named, the user's own file is read.
func readLocal(file, socketPath string) local {
	l := local{chosen: file != ""}
	o := config.Options{File: file, Overrides: config.Overrides{Socket: socketPath}}
	if !l.chosen {
		o.File = userFile()
		if _, err := os.Stat(o.File); errors.Is(err, fs.ErrNotExist) {
			l.err = fmt.Errorf("there is no configuration to start a daemon with: write %s, or name your file with --config or ROUNDHOUSE_CONFIG", o.File)
			o.File = ""
		}
	}
	cfg, err := config.Load(o)
	if err != nil && o.File != "" {
		l.err = err
		o.File = ""
		cfg, err = config.Load(o)
	}
	if err != nil { // not even a home directory is known
		cfg, l.err = config.Defaults(), err
	}
	l.config = cfg
	return l
}

// server finds a server in the file.
func (l local) server(name string) *config.Server {
	i := slices.IndexFunc(l.config.Servers, func(s *config.Server) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return l.config.Servers[i]
}

// userFile is the configuration file of whoever names none.
func userFile() string {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "roundhouse", "roundhouse.json")
}

// starter returns what starts a daemon with the configuration, or says why it cannot.
func starter(l local) func() error {
	if l.err != nil {
		return func() error { return l.err }
	}
	cfg := l.config
	s := &shim.Starter{
		Args: []string{"serve", "--autostart", "--config", cfg.File, "--socket", cfg.Socket, "--state-dir", cfg.StateDir},
		Dir:  filepath.Dir(cfg.File),
		Log:  filepath.Join(cfg.StateDir, "autostart.log"),
	}
	return s.Start
}

// parentName says who started us, for people.
func parentName() string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", os.Getppid())) // Linux only
	return fmt.Sprintf("%s (pid %d), through pid %d", cmp.Or(string(bytes.TrimSpace(name)), "host"), os.Getppid(), os.Getpid())
}
