package config

import (
	"fmt"
	"path/filepath"
)

// Inject reads the entry of a server that is added to one session while the daemon runs,
// as Load reads the entries of the file, with this configuration's defaults. Three things
// differ: the daemon's environment is withheld from it, since whoever writes the entry
// need not be who configures the daemon; it is its session's alone (K1), so that it takes
// no other sharing; and it comes after its clients, of whose headers it gets none. The
// warnings are those of the entry. The error is an *Invalid with every problem.
func (c *Config) Inject(name string, text []byte) (*Server, []Problem, error) {
	r := newReader("", Options{})
	r.injecting = true
	dir := "." // where no file is, the daemon's own directory
	if c.File != "" {
		dir = filepath.Dir(c.File)
	}
	var err error
	if r.dir, err = filepath.Abs(dir); err != nil {
		return nil, nil, fmt.Errorf("find the directory of the configuration: %w", err)
	}
	root, ok := r.parse(text)
	if !ok {
		return nil, nil, &Invalid{r.problems}
	}
	root.path, root.key = "server", name
	r.scope = &scope{server: name, path: root.path}
	s := r.readServer(root, &document{Config: *c})
	if s != nil && s.DisabledReason == disabledByFile {
		r.scope.disabled = false
		r.errorAtKey(root, "is disabled, so that there is nothing to add")
	}
	problems := r.sorted()
	for i := range problems {
		problems[i].Line, problems[i].Column = 0, 0 // it stands in no file
	}
	if s == nil || s.DisabledReason != "" {
		return nil, nil, &Invalid{problems}
	}
	s.Position = ""
	return s, problems, nil
}

// checkInjected refuses what would have no effect on a server that is injected.
func (e *entry) checkInjected(r *reader, found seen) {
	if !r.injecting {
		return
	}
	if n, ok := found["sharing"]; ok && e.chosen != "" && e.chosen != Session {
		r.errorAt(n, `a server that is injected is its session's alone; write "session", or remove it`)
	}
	if n, ok := found["forwardHeaders"]; ok {
		r.errorAtKey(n, "a server that is injected gets no headers of its clients, which may have come before it; write headers")
	}
	if e.InheritEnv {
		r.errorAt(found["inheritEnv"], "%v", errWithheld)
	}
}
