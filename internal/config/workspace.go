package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"roundhouse/internal/secret"
)

// NeedsWorkspace reports whether any field holds ${WORKSPACE}, so that the
// server's connection depends on the session's workspace (K6).
func (s *Server) NeedsWorkspace() bool { return s.holds(workspaceVariable) }

// Resolve returns a copy of s in which ${WORKSPACE} is replaced by the session's
// workspace, an absolute directory. It fails if a workspace is needed and there
// is none; s itself never changes.
func (s *Server) Resolve(workspace string) (*Server, error) {
	if s.NeedsWorkspace() {
		switch {
		case workspace == "":
			return nil, fmt.Errorf(`server %q needs a workspace (%s) and this session names none: start it with "roundhouse connect %s" in a directory, or name one in the session's metadata`,
				s.Name, workspaceVariable, s.Name)
		case !filepath.IsAbs(workspace):
			return nil, fmt.Errorf("server %q needs a workspace, and the session's is not an absolute directory", s.Name)
		}
	}
	return s.mapTexts(func(text string) string {
		return strings.ReplaceAll(text, workspaceVariable, workspace)
	}), nil
}

// The variables of an instance, which stand in an exclusive server until
// Server.ResolveInstance replaces them (I7).
const (
	instancePrefix = "${INSTANCE_"
	instanceDir    = instancePrefix + "DIR}"
	instanceIndex  = instancePrefix + "INDEX}"
	instancePort   = instancePrefix + "PORT}"
)

// Place is what one instance of an exclusive server has for itself (I7).
type Place struct {
	Dir   string // absolute; "" for a server that is no process of ours
	Index int    // from 0; no two that live have the same
	Port  int    // of the loopback interface
}

// NeedsPort reports whether any field holds ${INSTANCE_PORT}.
func (s *Server) NeedsPort() bool { return s.holds(instancePort) }

func (s *Server) holds(variable string) bool {
	holds := false
	s.mapTexts(func(text string) string {
		holds = holds || strings.Contains(text, variable)
		return text
	})
	return holds
}

// ResolveInstance returns a copy of s for the instance at p. Its process has its
// temporary files in the instance's directory, unless s says where. s itself never
// changes.
func (s *Server) ResolveInstance(p Place) *Server {
	values := strings.NewReplacer(instanceDir, p.Dir, instanceIndex, strconv.Itoa(p.Index), instancePort, strconv.Itoa(p.Port))
	c := s.mapTexts(values.Replace)
	if c.Transport != Stdio {
		return c
	}
	if c.Env == nil {
		c.Env = map[string]secret.String{}
	}
	for _, name := range []string{"TMPDIR", "TMP", "TEMP"} {
		if _, ok := c.Env[name]; !ok {
			c.Env[name] = secret.New(p.Dir)
		}
	}
	return c
}

// mapTexts returns a copy of s with f applied to every field that may hold
// variables of a session or an instance.
func (s *Server) mapTexts(f func(string) string) *Server {
	hidden := func(m map[string]secret.String) map[string]secret.String {
		m = maps.Clone(m)
		for name, value := range m {
			m[name] = secret.New(f(value.Reveal()))
		}
		return m
	}
	c := *s
	c.Command, c.Cwd = f(s.Command), f(s.Cwd)
	c.Args = slices.Clone(s.Args)
	for i, arg := range c.Args {
		c.Args[i] = f(arg)
	}
	c.Env, c.Headers = hidden(s.Env), hidden(s.Headers)
	c.URL = secret.New(f(s.URL.Reveal()))
	c.IncludeTools, c.ExcludeTools = slices.Clone(s.IncludeTools), slices.Clone(s.ExcludeTools)
	c.OAuth.Scopes, c.OAuth.Audiences = slices.Clone(s.OAuth.Scopes), slices.Clone(s.OAuth.Audiences)
	return &c
}
