package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
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
	Socket   string // relative to the working directory
	NoPool   bool
}

// The environment variables that are settings. An empty one is not given.
const (
	envListen   = "ROUNDHOUSE_LISTEN"
	envStateDir = "ROUNDHOUSE_STATE_DIR"
	envSocket   = "ROUNDHOUSE_SOCKET"
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
		if !found.has("mcpServers") && !found.has("servers") && !found.has("llm") {
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
	r.overrideSocket(d, flags)
	r.overridePool(d, flags)
	r.settleStore(d)
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
	d.ListenGiven = d.ListenGiven || from != ""
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
	if dir := r.overridePath(envStateDir, "--state-dir", flags.StateDir); dir != "" {
		d.StateDir, d.ownState = dir, true
	}
	if d.StateDir == "" {
		r.errorOutside("stateDir", "the home directory is not known; set HOME, or give a stateDir")
	}
}

// overrideSocket settles where the socket is: a daemon and the programs that look
// for it come to the same path if they read the same configuration.
func (r *reader) overrideSocket(d *document, flags Overrides) {
	if path := r.overridePath(envSocket, "--socket", flags.Socket); path != "" {
		d.Socket = path
	}
	if d.Socket != "" || runtime.GOOS == "windows" {
		return
	}
	dir := d.StateDir
	if run := runtimeDir(r.env); run != "" && !d.ownState {
		dir = filepath.Join(run, "roundhouse")
	}
	d.Socket = filepath.Join(dir, "roundhouse.sock")
}

// runtimeDir is the user's directory for sockets, or "". Hosts that start MCP servers
// with a few chosen variables leave out XDG_RUNTIME_DIR, so its usual value counts
// too.
func runtimeDir(env func(string) (string, bool)) string {
	if dir, _ := env("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return dir
	}
	if runtime.GOOS == "linux" {
		dir := filepath.Join("/run/user", strconv.Itoa(os.Getuid()))
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}

// overridePath returns the absolute path that a flag or else a variable gives, or "".
func (r *reader) overridePath(variable, flag, path string) string {
	from := flag
	if path == "" {
		path, _ = r.env(variable)
		from = variable
	}
	if path == "" {
		return ""
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		r.errorOutside(from, "the working directory is not known: give an absolute path")
	}
	return absolute
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
