package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"roundhouse/internal/config"
)

// mark is in every file that serve --install writes; others it leaves alone. (No comment
// of XML may hold two hyphens.)
const mark = "Written by roundhouse, whose command serve can install and uninstall it."

// service is a daemon as the service manager of the system is to run it.
type service struct {
	executable string
	args       []string // of serve, with it
	path       string   // PATH, in which servers' commands are looked up
	socket     string   // where local programs look for it
	stopWithin time.Duration
}

// serviceFile is a file of a service manager.
type serviceFile struct {
	path string
	text []byte
}

// manager is the user's service manager: its files, and how it is told of them.
type manager struct {
	files []serviceFile // without a text until the service is known
	// installed and removed tell the manager, if that is to be done, and say what is
	// left to do.
	installed, removed func(ctx context.Context, say func(format string, args ...any))
	leaving            func(ctx context.Context) // before the files are removed
}

// serviceManager returns the one of this system. The service may be the zero one if its
// files are not to be written.
func serviceManager(s service) (*manager, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, fmt.Errorf("find the home directory: %w", err)
	}
	switch runtime.GOOS {
	case "linux":
		dir, err := os.UserConfigDir()
		if err != nil {
			return nil, fmt.Errorf("find the configuration directory: %w", err)
		}
		return systemd(s, filepath.Join(dir, "systemd", "user"), os.Getenv("XDG_RUNTIME_DIR")), nil
	case "darwin":
		return launchd(s, home, os.Getuid()), nil
	}
	return nil, errors.New("roundhouse knows no service manager on this system; start 'roundhouse serve' by other means")
}

// newService describes the daemon that a command line describes. What was chosen by
// flags and variables is in its command line, because a service manager has none of
// them.
func newService(o config.Options, cfg *config.Config, more []string) (service, error) {
	executable, err := os.Executable()
	if err != nil {
		return service{}, fmt.Errorf("find this program's file: %w", err)
	}
	s := service{
		executable: executable,
		args:       []string{"serve", "--config=" + cfg.File},
		path:       os.Getenv("PATH"),
		socket:     cfg.Socket,
		stopWithin: cfg.Shutdown.Total + 15*time.Second,
	}
	given := func(flag, variable, value string) {
		if flag != "" || os.Getenv(variable) != "" {
			s.args = append(s.args, value)
		}
	}
	given(o.Overrides.Listen, "ROUNDHOUSE_LISTEN", "--listen="+cfg.Listen)
	given(o.Overrides.StateDir, "ROUNDHOUSE_STATE_DIR", "--state-dir="+cfg.StateDir)
	given(o.Overrides.Socket, "ROUNDHOUSE_SOCKET", "--socket="+cfg.Socket)
	if noPool, _ := strconv.ParseBool(os.Getenv("ROUNDHOUSE_NO_POOL")); noPool || o.Overrides.NoPool {
		s.args = append(s.args, "--no-pool")
	}
	s.args = append(s.args, more...)
	return s, nil
}

// install writes the files of the service, all or, if one is in the way that is not
// ours, none.
func (m *manager) install(ctx context.Context, force bool, stdout, stderr io.Writer) error {
	if !force {
		for _, f := range m.files {
			if there, ours, err := isOurs(f.path); err != nil {
				return err
			} else if there && !ours {
				return fmt.Errorf("%s is in the way: it was not written by 'roundhouse serve --install'; move it away, or replace it with --force", f.path)
			}
		}
	}
	for _, f := range m.files {
		if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
			return fmt.Errorf("make the directory of the service: %w", err)
		}
		if err := replaceFile(f.path, f.text); err != nil {
			return fmt.Errorf("write the service: %w", err)
		}
		fmt.Fprintln(stdout, f.path)
	}
	m.installed(ctx, sayTo(stderr))
	return nil
}

// uninstall removes the files that install wrote.
func (m *manager) uninstall(ctx context.Context, stdout, stderr io.Writer) error {
	say := sayTo(stderr)
	var mine []string
	for _, f := range m.files {
		switch there, ours, err := isOurs(f.path); {
		case err != nil:
			return err
		case there && !ours:
			say("%s was not written by 'roundhouse serve --install' and is left alone", f.path)
		case ours:
			mine = append(mine, f.path)
		}
	}
	if len(mine) == 0 {
		say("there is no service to remove")
		return nil
	}
	m.leaving(ctx)
	for _, path := range mine {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove the service: %w", err)
		}
		fmt.Fprintln(stdout, path)
	}
	m.removed(ctx, say)
	return nil
}

func sayTo(w io.Writer) func(format string, args ...any) {
	return func(format string, args ...any) { fmt.Fprintf(w, "roundhouse: "+format+"\n", args...) }
}

// isOurs reports whether there is a file, and whether install wrote it.
func isOurs(path string) (there, ours bool, err error) {
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, false, nil
	case err != nil:
		return true, false, fmt.Errorf("look at the service that is there: %w", err)
	}
	return true, bytes.Contains(b, []byte(mark)), nil
}

// replaceFile writes a file whole or not at all. A link that is there is replaced, not
// followed.
func replaceFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".roundhouse-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}

// toolWait bounds one command to a service manager.
const toolWait = 10 * time.Second

// succeeds runs a command without any output and reports whether it did what it should.
func succeeds(ctx context.Context, name string, args ...string) bool {
	ctx, cancel := context.WithTimeout(ctx, toolWait)
	defer cancel()
	return exec.CommandContext(ctx, name, args...).Run() == nil
}
