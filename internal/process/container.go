package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// containerLabel marks the container of a server with the server's own marker, which is
	// what proves that it is ours: a name may be that of a container that was there before.
	containerLabel = "roundhouse.process"
	// engineWait is how long docker or podman may take for an answer.
	engineWait = 5 * time.Second
)

// container is what the command `docker run` or `podman run` of a server starts outside
// its tree, where no signal of ours reaches it. The exported fields are what the journal
// keeps for the next start, which must find the same engine.
type container struct {
	Path string   `json:"path"`           // of docker or podman
	Args []string `json:"args,omitempty"` // the global flags, before "run"
	Env  []string `json:"env,omitempty"`  // of the environment, what chooses the engine
	Dir  string   `json:"dir"`

	label string   // filter that finds it
	env   []string // complete
}

// engineVars are the variables that choose an engine. The journal keeps these alone, for
// others may be secrets.
var engineVars = []string{
	"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION",
	"CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINER_SSHKEY", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
	"HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
}

// engineSwitches are the global flags of docker and podman without a value.
var engineSwitches = []string{
	"-D", "--debug", "--tls", "--tlsverify", "-r", "--remote", "--syslog", "--noout", "--transient-store", "--trace",
}

// contain recognises a command that runs a container, and marks that container: with a
// label, and for people with a name if the command gives none. It is nil for all other
// commands.
func (l *launch) contain() *container {
	name := strings.TrimSuffix(strings.ToLower(filepath.Base(l.argv[0])), ".exe")
	if name != "docker" && name != "podman" {
		return nil
	}
	args := l.argv[1:]
	flags := 0
	for flags < len(args) && strings.HasPrefix(args[flags], "-") {
		arg := args[flags]
		whole := strings.Contains(arg, "=") || slices.Contains(engineSwitches, arg) ||
			len(arg) > 2 && !strings.HasPrefix(arg, "--") // such as -Htcp://host
		flags++
		if !whole {
			flags++
		}
	}
	run := flags
	if run < len(args) && args[run] == "container" {
		run++
	}
	if run >= len(args) || args[run] != "run" {
		return nil
	}
	own := []string{"--label", containerLabel + "=" + l.marker}
	if !slices.ContainsFunc(args[run+1:], func(a string) bool { return a == "--name" || strings.HasPrefix(a, "--name=") }) {
		own = append(own, "--name", "roundhouse-"+l.marker)
	}
	c := &container{Path: l.path, Args: slices.Clone(args[:flags]), Dir: l.dir}
	for _, name := range engineVars {
		if v := lookupEnv(l.env, name); v != "" {
			c.Env = append(c.Env, name+"="+v)
		}
	}
	l.argv = slices.Insert(l.argv, run+2, own...)
	c.own(l.marker, l.env)
	return c
}

// own completes a container with what the journal does not keep.
func (c *container) own(marker string, env []string) {
	c.label = "label=" + containerLabel + "=" + marker
	c.env = mergeEnv(env) // without the marker: these commands are not of the server's tree
}

// remove stops the container, with grace between TERM and KILL, removes it, and says
// which it was; one that is gone already is no error. When ctx ends, there is no grace. It
// takes some seconds longer than that at most, when the engine does not answer.
func (c *container) remove(ctx context.Context, grace time.Duration) ([]string, error) {
	must := context.WithoutCancel(ctx)
	out, err := c.engine(must, engineWait, "ps", "--all", "--quiet", "--filter", c.label)
	ids := strings.Fields(out)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	seconds := int((max(grace, 0) + time.Second - 1) / time.Second)
	stop := append([]string{"stop", "-t", fmt.Sprint(seconds)}, ids...)
	_, stopped := c.engine(ctx, grace+engineWait, stop...)
	if _, err = c.engine(must, engineWait, append([]string{"rm", "-f"}, ids...)...); err == nil {
		return ids, nil // whatever became of the stop
	}
	// With --rm the engine removes it, too, and may have been faster.
	if out, again := c.engine(must, engineWait, "ps", "--all", "--quiet", "--filter", c.label); again == nil && out == "" {
		return ids, nil
	}
	return nil, errors.Join(stopped, err)
}

// engine runs docker or podman to its end and returns its stdout.
func (c *container) engine(ctx context.Context, bound time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Path, slices.Concat(c.Args, args)...)
	cmd.Env = c.env
	if _, err := os.Stat(c.Dir); err == nil { // A session's directory may be gone by now.
		cmd.Dir = c.Dir
	}
	cmd.SysProcAttr = apart()
	cmd.WaitDelay = slack
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run %s %s: %w: %s", c.Path, strings.Join(args, " "), errors.Join(context.Cause(ctx), err), bytes.TrimSpace(said.Bytes()))
	}
	return strings.TrimSpace(out.String()), nil
}

// sweepContainers removes the containers that the records of dead daemons name (P4), all at
// once, lists them, and counts those of which it could not be made sure.
func sweepContainers(records []record, grace time.Duration, log *slog.Logger) (swept []string, left int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, r := range records {
		if r.Container == nil {
			continue
		}
		wg.Go(func() {
			r.Container.own(r.Marker, append(Environ(nil, false), r.Container.Env...))
			ids, err := r.Container.remove(context.Background(), grace)
			if err != nil {
				log.Warn("the container of a dead daemon's server could not be removed", "server", r.Server, "filter", r.Container.label, "err", err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				swept = append(swept, fmt.Sprintf("server %s, container %s", r.Server, id))
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) { // Without the command there is nothing to try again.
				left++
			}
		})
	}
	wg.Wait()
	return swept, left
}
