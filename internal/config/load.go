package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Options is where a configuration comes from. A flag wins over the environment,
// the environment over the file, the file over the defaults. The zero value reads
// no file.
type Options struct {
	File      string                      // the file to read; "" is none
	Env       func(string) (string, bool) // environment variables; nil is os.LookupEnv
	Overrides Overrides                   // from flags
}

// Overrides are settings from flags. A zero field was not given.
type Overrides struct {
	Listen   string
	StateDir string // relative to the working directory
	NoPool   bool
}

// The environment variables that are settings. An empty one is not given.
const (
	envListen   = "ROUNDHOUSE_LISTEN"
	envStateDir = "ROUNDHOUSE_STATE_DIR"
	envNoPool   = "ROUNDHOUSE_NO_POOL" // 1 or true, 0 or false
)

func osEnv(name string) (string, bool) { return os.LookupEnv(name) }

// Load reads the configuration: the file, if there is one, then the environment
// and the flags. It never writes. The error is an *Invalid if the file cannot be
// read or one of roundhouse's own settings is wrong; what is wrong with one server
// only disables that server, and stands in Config.Problems with all warnings.
func Load(o Options) (*Config, error) {
	if o.File == "" {
		r := newReader("", o)
		d := &document{Config: *defaults(r.env)}
		return r.finish(d, o.Overrides)
	}
	data, err := readFile(o.File)
	if err != nil {
		if pathError, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathError.Err // The problem names the file already.
		}
		return nil, &Invalid{[]Problem{{Severity: Error, File: o.File, Message: fmt.Sprintf("the file cannot be read: %v", err)}}}
	}
	return Parse(o.File, data, o)
}

// readFile reads at most one byte more than maxFileSize, which Parse refuses.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFileSize+1))
}

// Parse is Load for the text of a file. Relative directories in it are relative
// to the directory of name, and problems call the file by that name; o.File has
// no effect.
func Parse(name string, data []byte, o Options) (*Config, error) {
	r := newReader(name, o)
	d := &document{Config: *defaults(r.env)}
	absolute, err := filepath.Abs(name)
	if err != nil {
		return nil, &Invalid{[]Problem{{Severity: Error, File: name, Message: "the file's directory is not known: give an absolute path"}}}
	}
	d.File, r.dir = absolute, filepath.Dir(absolute)

	if root, ok := r.parse(data); ok {
		found := documentObject.read(r, root, d)
		if !found.has("mcpServers") && !found.has("servers") {
			r.errorAtKey(root, `there is no "mcpServers"; expected an object such as {"mcpServers": {"name": {"command": "…"}}}`)
		}
	}
	return r.finish(d, o.Overrides)
}

func newReader(file string, o Options) *reader {
	r := &reader{file: file, env: o.Env}
	if r.env == nil {
		r.env = osEnv
	}
	return r
}

// finish applies environment and flags, reads the servers and gives the verdict.
func (r *reader) finish(d *document, flags Overrides) (*Config, error) {
	r.overrideListen(d, flags)
	r.overrideStateDir(d, flags)
	r.overridePool(d, flags)
	r.readServers(d)
	problems := r.sorted()
	if r.fatal {
		return nil, &Invalid{problems}
	}
	c := d.Config
	c.Problems = problems
	return &c, nil
}

// errorOutside reports an error that has no place in the file; from is the flag
// or the variable at fault.
func (r *reader) errorOutside(from, message string) {
	r.report(Error, from, -1, "", message)
}

func (r *reader) overrideListen(d *document, flags Overrides) {
	from := ""
	if v, _ := r.env(envListen); v != "" {
		d.Listen, from = v, envListen
	}
	if flags.Listen != "" {
		d.Listen, from = flags.Listen, "--listen"
	}
	if err := checkListen(d.Listen); err != nil {
		r.errorOutside(from, err.Error())
		return
	}
	if !d.BeyondLoopback() || len(d.Auth.Tokens) > 0 {
		return
	}
	const message = `listening beyond loopback needs authentication: add "auth": {"tokens": [{"principal": "…", "token": "${VAR}"}]}, or listen on 127.0.0.1`
	if from != "" {
		r.errorOutside(from, message)
		return
	}
	r.errorAt(d.listenAt, message)
}

func (r *reader) overrideStateDir(d *document, flags Overrides) {
	dir, from := flags.StateDir, "--state-dir"
	if dir == "" {
		dir, _ = r.env(envStateDir)
		from = envStateDir
	}
	if dir != "" {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			r.errorOutside(from, "the working directory is not known: give an absolute path")
		}
		d.StateDir = absolute
	}
	if d.StateDir == "" {
		r.errorOutside("stateDir", "the home directory is not known; set HOME, or give a stateDir")
	}
}

func (r *reader) overridePool(d *document, flags Overrides) {
	v, _ := r.env(envNoPool)
	switch {
	case slices.Contains([]string{"1", "true"}, v), flags.NoPool:
		d.Pool.Enabled = false
	case !slices.Contains([]string{"", "0", "false"}, v):
		r.errorOutside(envNoPool, "must be 1 or 0")
	}
}
