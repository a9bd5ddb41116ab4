package shim

import (
	"errors"
	"fmt"

	"roundhouse/internal/config"
	"roundhouse/internal/process"
)

// command is a server's own command, ready to be executed.
type command struct {
	path string
	args []string // with the command itself
	env  []string
	dir  string
}

// CheckDirect returns why Direct would not run a server, or nil.
func CheckDirect(s *config.Server, workspace string) error {
	_, err := directCommand(s, workspace)
	return err
}

// directCommand returns how to run a server without the daemon, or why it must not be
// run so.
func directCommand(s *config.Server, workspace string) (command, error) {
	switch {
	case s.DisabledReason != "":
		return command{}, fmt.Errorf("server %q is disabled: %s", s.Name, s.DisabledReason)
	case s.Transport != config.Stdio:
		return command{}, fmt.Errorf("server %q is not one that is started", s.Name)
	case s.IncludeTools != nil || s.ExcludeTools != nil:
		return command{}, errors.New("its tool filter needs the daemon")
	}
	r, err := s.Resolve(workspace)
	if err != nil {
		return command{}, err
	}
	extra := map[string]string{}
	for name, value := range r.Env {
		extra[name] = value.Reveal()
	}
	c := command{env: process.Environ(extra, r.InheritEnv), dir: r.Cwd}
	if c.path, err = process.LookPath(r.Command, r.Cwd, c.env); err != nil {
		return command{}, err
	}
	c.args = append([]string{r.Command}, r.Args...)
	return c, nil
}
