package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"roundhouse/internal/secret"
)

// NeedsWorkspace reports whether any field holds ${WORKSPACE}, so that the
// server's connection depends on the session's workspace (K6).
func (s *Server) NeedsWorkspace() bool {
	needs := false
	s.mapTexts(func(text string) string {
		needs = needs || strings.Contains(text, workspaceVariable)
		return text
	})
	return needs
}

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

// mapTexts returns a copy of s with f applied to every field that may hold
// ${WORKSPACE}.
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
