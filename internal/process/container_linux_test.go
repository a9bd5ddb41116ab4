package process

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// engineScript is a docker whose containers are files of the directory that DOCKER_HOST
// names, so that they outlive their clients; with --rm they end with the client's input. It
// notes its calls there, and fails while there is a file "down".
const engineScript = `#!/bin/sh
echo "$*" >>"$DOCKER_HOST/calls"
if [ -e "$DOCKER_HOST/down" ]; then echo "cannot connect to the engine" >&2; exit 1; fi
if [ "$1" = --context ]; then shift 2; fi
verb=$1; shift
case $verb in
run)
	file=$DOCKER_HOST/id$$ label= name= end=
	for arg; do
		case $last in --label) label=$arg ;; --name) name=$arg ;; esac
		if [ "$arg" = --rm ]; then end=yes; fi
		last=$arg
	done
	if grep -qs "name=$name;" "$DOCKER_HOST"/id*; then echo "the name is in use" >&2; exit 125; fi
	echo "label=$label; name=$name;" >"$file"
	echo up
	cat
	if [ -n "$end" ]; then rm "$file"; fi ;;
ps)
	for file in $(grep -ls "$4;" "$DOCKER_HOST"/id*); do basename "$file"; done ;;
rm)
	shift
	for id; do rm "$DOCKER_HOST/$id"; done ;;
esac
`

// engine puts the docker of engineScript in front of PATH and returns its directory.
func (f *fixture) engine() string {
	f.Helper()
	bin := f.TempDir()
	for _, name := range []string{"docker", "podman"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(engineScript), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	f.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return f.TempDir()
}

// engineSpec describes a server of the engine in dir.
func (f *fixture) engineSpec(dir string, command ...string) Spec {
	return f.spec("").with(func(s *Spec) {
		s.Command, s.Args = command[0], command[1:]
		s.Env = Environ(map[string]string{tagVar: f.tag, "DOCKER_HOST": dir}, false)
	})
}

func containers(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "id*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// calls returns what the engine was called with.
func calls(t *testing.T, dir string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// P2, P8, case 42: a container that outlives its client is stopped and removed at the
// end, by the same engine, and until then the journal names it.
func TestCloseRemovesTheContainer(t *testing.T) {
	f := newFixture(t)
	dir := f.engine()
	for _, command := range []string{"docker", "podman"} {
		s := f.engineSpec(dir, command, "--context", "far", "run", "-i", "image", "-v")
		s.EOFWait, s.TermWait = time.Minute, 1200*time.Millisecond
		args := slices.Clone(s.Args)
		p := f.start(s)
		f.line(p)
		if !slices.Equal(s.Args, args) {
			t.Errorf("the configured arguments became %q", s.Args)
		}
		if len(containers(t, dir)) != 1 {
			t.Fatalf("containers %q", containers(t, dir))
		}
		id := filepath.Base(containers(t, dir)[0])
		if r := p.Close(t.Context()); r.Stage != "eof" || r.Err != nil {
			t.Errorf("report %+v", r)
		}
		if left := containers(t, dir); len(left) > 0 {
			t.Errorf("left %q", left)
		}
		filter := "label=roundhouse.process=" + p.tree.marker
		want := []string{
			"--context far run --label roundhouse.process=" + p.tree.marker + " --name roundhouse-" + p.tree.marker + " -i image -v",
			"--context far ps --all --quiet --filter " + filter,
			"--context far stop -t 2 " + id,
			"--context far rm -f " + id,
		}
		if got := calls(t, dir); !slices.Equal(got[max(0, len(got)-4):], want) {
			t.Errorf("calls\n%q, want\n%q", got, want)
		}
	}
	if b, err := os.ReadFile(f.m.journal.file.Name()); err != nil || len(parseRecords(b)) != 0 {
		t.Errorf("journal %q, %v", b, err)
	}
}

// P2: a container that ended with its client needs nothing, and nobody is warned.
func TestContainerThatIsGone(t *testing.T) {
	f := newFixture(t)
	dir := f.engine()
	p := f.start(f.engineSpec(dir, "docker", "run", "-i", "--rm", "image"))
	f.line(p)
	if r := p.Close(t.Context()); r.Err != nil {
		t.Errorf("report %+v", r)
	}
	if got := calls(t, dir); len(got) != 2 || !strings.HasPrefix(got[1], "ps ") {
		t.Errorf("calls %q", got)
	}
	if log := f.log.String(); strings.Contains(log, "level=WARN") {
		t.Errorf("log %s", log)
	}
}

// P4: a name that the command gives is kept, and a container of that name which was there
// before is not ours.
func TestContainerOfTheSameNameIsLeftAlone(t *testing.T) {
	f := newFixture(t)
	dir := f.engine()
	theirs := filepath.Join(dir, "idTheirs")
	if err := os.WriteFile(theirs, []byte("label=; name=files;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := f.start(f.engineSpec(dir, "docker", "run", "-i", "--name", "files", "image"))
	within(t, p.Exited(), "the client to fail")
	p.Close(t.Context())
	if left := containers(t, dir); !slices.Equal(left, []string{theirs}) {
		t.Errorf("left %q", left)
	}
	if got := calls(t, dir)[0]; strings.Contains(got, "roundhouse-") {
		t.Errorf("call %q", got)
	}
}

// P2: when nobody waits, a container has no time to stop.
func TestHurriedCloseRemovesTheContainer(t *testing.T) {
	f := newFixture(t)
	dir := f.engine()
	p := f.start(f.engineSpec(dir, "docker", "run", "-i", "image"))
	f.line(p)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := p.Close(ctx); r.Err != nil {
		t.Errorf("report %+v", r)
	}
	if left := containers(t, dir); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	if got := calls(t, dir); slices.ContainsFunc(got, func(c string) bool { return strings.HasPrefix(c, "stop") }) {
		t.Errorf("calls %q", got)
	}
}

// P2: an engine that fails is told of in a warning and in the report, and nothing waits for it.
func TestContainerThatCannotBeRemoved(t *testing.T) {
	f := newFixture(t)
	dir := f.engine()
	p := f.start(f.engineSpec(dir, "docker", "run", "-i", "image"))
	f.line(p)
	down(t, dir)
	if r := p.Close(t.Context()); r.Err == nil || !strings.Contains(r.Err.Error(), "cannot connect to the engine") {
		t.Errorf("report %+v", r)
	}
	if log := f.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "roundhouse.process="+p.tree.marker) {
		t.Errorf("log %s", log)
	}
}

func down(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "down"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// P4, case 42: the next start removes the container of a daemon that was killed, through the
// engine that its server had, and no other; while the engine fails, the journal is kept.
func TestNextStartRemovesContainers(t *testing.T) {
	f := newFixture(t)
	dir := f.engine()
	t.Setenv("DOCKER_HOST", dir)
	d := f.daemon("docker run -i image")
	t.Setenv("DOCKER_HOST", "/nowhere")
	eventually(t, "the container", func() bool {
		list := containers(t, dir)
		if len(list) != 1 {
			return false
		}
		b, err := os.ReadFile(list[0])
		return err == nil && strings.HasSuffix(string(b), "\n") // it is whole
	})
	ours := filepath.Base(containers(t, dir)[0])
	theirs := filepath.Join(dir, "idTheirs")
	if err := os.WriteFile(theirs, []byte("label=roundhouse.process=ANOTHER; name=roundhouse-ANOTHER;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.kill()

	down(t, dir)
	m, err := NewManager(Config{StateDir: d.state})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if len(d.journals(t)) != 1 || len(containers(t, dir)) != 2 {
		t.Errorf("journals %q, containers %q", d.journals(t), containers(t, dir))
	}

	if err := os.Remove(filepath.Join(dir, "down")); err != nil {
		t.Fatal(err)
	}
	if m, err = NewManager(Config{StateDir: d.state}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(m.Swept(), "server server0, container "+ours) {
		t.Errorf("swept %q", m.Swept())
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if left := containers(t, dir); !slices.Equal(left, []string{theirs}) || len(d.journals(t)) != 0 {
		t.Errorf("journals %q, containers %q", d.journals(t), left)
	}
}

// P2: which commands run a container, and which global flags come before that.
func TestContainerCommands(t *testing.T) {
	for _, test := range []struct {
		argv  string
		flags int // before "run"; -1 for a command that runs none
	}{
		{"docker run image", 0},
		{"/usr/bin/podman run image", 0},
		{"Docker.EXE container run image", 0},
		{"docker -H ssh://run --debug --log-level=info run image", 4},
		{"docker -Htcp://host:1 --config run run image", 3},
		{"podman --remote --url unix:///run/podman.sock run image", 3},
		{"docker", -1},
		{"docker --context run", -1},
		{"docker mcp gateway run", -1},
		{"docker exec -i name run", -1},
		{"mydocker run image", -1},
		{"npx docker run", -1},
	} {
		l := launch{marker: "M", argv: strings.Fields(test.argv)}
		c := l.contain()
		if c == nil {
			if test.flags >= 0 || strings.Join(l.argv, " ") != test.argv {
				t.Errorf("%s: not recognised, or changed to %q", test.argv, l.argv)
			}
			continue
		}
		want := strings.Replace(test.argv, " run image", " run --label roundhouse.process=M --name roundhouse-M image", 1)
		if got := strings.Join(l.argv, " "); len(c.Args) != test.flags || got != want {
			t.Errorf("%s: flags %q, %s", test.argv, c.Args, got)
		}
	}
}
