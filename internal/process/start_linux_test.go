package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Cases 6 and 13: a failed start says why, and leaves no process, no descriptor and
// no line of the journal.
func TestFailedStartLeavesNothing(t *testing.T) {
	f := newFixture(t)
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx    context.Context
		change func(*Spec)
		want   []string
	}{
		"missing command": {t.Context(), func(s *Spec) { s.Command = "no-such-command"; s.Env = append(s.Env, "PATH=/opt/nowhere:/bin") },
			[]string{`"no-such-command"`, `PATH "/opt/nowhere:/bin"`}},
		"missing path":        {t.Context(), func(s *Spec) { s.Command = "./no-such-command" }, []string{`"./no-such-command"`, "no such file"}},
		"no execute bit":      {t.Context(), func(s *Spec) { s.Command = write("plain", "", 0o600) }, []string{"plain", "permission denied"}},
		"missing interpreter": {t.Context(), func(s *Spec) { s.Command = write("script", "#!/no/such/interpreter\n", 0o700) }, []string{"interpreter"}},
		"not a program":       {t.Context(), func(s *Spec) { s.Command = write("noise", "\x7fELFnoise", 0o700) }, []string{"exec format error"}},
		"missing directory":   {t.Context(), func(s *Spec) { s.Dir = filepath.Join(dir, "none") }, []string{"working directory", "none"}},
		"directory is a file": {t.Context(), func(s *Spec) { s.Dir = write("file", "", 0o600) }, []string{"working directory", "file"}},
		"no command":          {t.Context(), func(s *Spec) { s.Command = "" }, []string{"no command"}},
		"NUL in an argument":  {t.Context(), func(s *Spec) { s.Args = []string{"a\x00b"} }, []string{"NUL"}},
		"cancelled":           {cancelled, func(*Spec) {}, []string{"context canceled"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := f.spec("exec sleep 600").with(c.change)
			before := openFiles(t)
			_, err := f.m.Start(c.ctx, s)
			if err == nil {
				t.Fatal("it started")
			}
			for _, w := range append(c.want, f.Name()) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q lacks %q", err, w)
				}
			}
			if after := openFiles(t); len(after) > len(before) {
				t.Errorf("open files before %v, after %v", before, after)
			}
			f.empty(t)
		})
	}
}

// Whatever moment of a start the context ends at, the start is whole or leaves nothing.
func TestCancelledStartLeavesNothing(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec("exec cat")) // Opens what the runtime opens once.
	p.Close(t.Context())
	before := openFiles(t)
	for delay := time.Duration(0); delay < 40*time.Millisecond; delay += 2 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), delay)
		p, err := f.m.Start(ctx, f.spec("exec sleep 600"))
		cancel()
		if err == nil {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			p.Close(ctx)
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", delay, err)
		}
		f.empty(t)
	}
	if after := openFiles(t); len(after) > len(before) {
		t.Errorf("open files before %v, after %v", before, after)
	}
}

// empty checks that nothing of the fixture lives or is in the journal.
func (f *fixture) empty(t *testing.T) {
	t.Helper()
	if left := f.tagged(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	b, err := os.ReadFile(f.m.journal.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(b)); got != "" {
		t.Errorf("journal: %s", got)
	}
	if kids := ownChildren(); len(kids) > 0 {
		t.Errorf("we have children: %v", kids)
	}
}

func openFiles(t *testing.T) []string {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		target, _ := os.Readlink("/proc/self/fd/" + e.Name())
		out = append(out, e.Name()+" "+target)
	}
	return out
}

// P8, case 13: a server gets its environment, our marker and nothing else of ours.
func TestServerSeesItsOwnWorld(t *testing.T) {
	f := newFixture(t)
	t.Setenv("OPENAI_API_KEY", "sk-secret")
	s := f.spec("exec env")
	s.Env = Environ(map[string]string{tagVar: f.tag, "X": "1", reaperVar: "no", markerVar: "no"}, false)
	out := f.output(s)
	if !strings.Contains(out, "X=1\n") || !strings.Contains(out, "PATH=") {
		t.Errorf("environment: %s", out)
	}
	for _, bad := range []string{"OPENAI_API_KEY", reaperVar, "GOMAXPROCS", markerVar + "=no"} {
		if strings.Contains(out, bad) {
			t.Errorf("environment has %s: %s", bad, out)
		}
	}
	if strings.Count(out, markerVar+"=") != 1 {
		t.Errorf("marker: %s", out)
	}

	// No signal is ignored or blocked, and its pipes block. Real-time signals do not
	// count: make leaves some of the C library's own ignored in what it starts.
	const ordinary = 1<<31 - 1 // signals 1 to 31
	for line := range strings.Lines(f.output(f.spec("exec grep -hE 'SigIgn|SigBlk|flags' /proc/self/status /proc/self/fdinfo/0 /proc/self/fdinfo/1 /proc/self/fdinfo/2"))) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		var n uint64
		verb := "%x"
		if name == "flags" {
			verb = "%o"
		}
		if _, err := fmt.Sscanf(strings.TrimSpace(value), verb, &n); err != nil {
			t.Fatal(err)
		}
		if name != "flags" && n&ordinary != 0 || name == "flags" && n&unix.O_NONBLOCK != 0 {
			t.Error(line)
		}
	}
	// It has its stdio and nothing of what we or our parent left open; 3 is the
	// directory that ls reads.
	if err := unix.Dup3(0, 77, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(77)
	if got := strings.Fields(f.output(f.spec("exec ls /proc/self/fd"))); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Errorf("descriptors %q", got)
	}

	dir := t.TempDir()
	if got := f.output(f.spec("pwd -P").with(func(s *Spec) { s.Dir = dir })); strings.TrimSpace(got) != dir {
		t.Errorf("directory %q", got)
	}
}

// P8: bytes that are not UTF-8 and empty arguments arrive as they are.
func TestArgumentsArriveUnchanged(t *testing.T) {
	f := newFixture(t)
	s := f.spec(`printf '%s|' "$@"; printf %s "$V"`)
	s.Args = append(s.Args, "zero", "a b", "", "\xff\xfe", "$HOME\n")
	s.Env = append(s.Env, "V=\xf0x=y")
	if got, want := f.output(s), "a b||\xff\xfe|$HOME\n|\xf0x=y"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// P1: what the API shows is the whole tree.
func TestDescendantsListsTheTree(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec(`sh -c 'sleep 600 & echo ready; wait' & wait`))
	f.line(p)
	var list []Info
	eventually(t, "the sleep", func() bool { list = p.m.View().Trees[p].Members; return len(list) == 3 && list[2].Name == "sleep" })
	if list[0].PID != p.PID() || list[1].PPID != p.PID() || list[2].PPID != list[1].PID {
		t.Errorf("tree %+v", list)
	}
	for _, i := range list {
		if d := i.Start.Sub(p.Started()).Abs(); d > 30*time.Second {
			t.Errorf("%+v started %v from now", i, d)
		}
	}
}

// P5: stderr is drained into a bounded ring, and complete after Close.
func TestStderrIsDrainedAndBounded(t *testing.T) {
	f := newFixture(t)
	s := f.spec(`dd if=/dev/zero bs=65536 count=32 2>/dev/null | tr '\0' x >&2; echo >&2; echo last words >&2; exit 1`)
	s.StderrBytes = 4096
	p := f.start(s)
	within(t, p.Exited(), "exit")
	p.Close(t.Context())
	if n, total := len(p.Stderr().Bytes()), p.Stderr().Total(); n != 4096 || total != 32*65536+12 {
		t.Errorf("kept %d of %d", n, total)
	}
	if got := p.Stderr().Lines(1); !slices.Equal(got, []string{"last words"}) {
		t.Errorf("last line %q", got)
	}
}

// Deadlines work on stdout, so that a reader can be stopped.
func TestStdoutHasDeadlines(t *testing.T) {
	f := newFixture(t)
	p := f.start(f.spec("exec cat"))
	if err := p.Stdout().SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdout().Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
}

// Case 13: the sentinel of a missing command.
func TestMissingCommandIsNotExist(t *testing.T) {
	_, err := LookPath("no-such-command", "/", []string{"PATH=:relative:/bin"})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

// BenchmarkStart measures a start until the first answer and a close, and the
// memory of a reaper; BenchmarkPlainStart is the same without a reaper.
func BenchmarkStart(b *testing.B) {
	m, err := NewManager(Config{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p, err := m.Start(b.Context(), Spec{Server: "cat", Command: "cat", Env: Environ(nil, false)})
		if err != nil {
			b.Fatal(err)
		}
		echo(b, p.Stdin(), p.Stdout())
		b.StopTimer()
		for name, kilobytes := range memory(b, p.tree.reaper.Pid) {
			b.ReportMetric(kilobytes, name+"-kB")
		}
		b.StartTimer()
		if r := p.Close(b.Context()); r.Err != nil {
			b.Fatal(r.Err)
		}
	}
}

func BenchmarkPlainStart(b *testing.B) {
	for b.Loop() {
		c := exec.Command("cat")
		in, _ := c.StdinPipe()
		out, _ := c.StdoutPipe()
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		echo(b, in, out)
		in.Close()
		if err := c.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

// memory returns what of a process is resident, and what of that is its own.
func memory(b *testing.B, pid int) map[string]float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		var kilobytes float64
		for prefix, name := range map[string]string{"Rss:": "resident", "Private_Dirty:": "private"} {
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
					b.Fatal(err)
				}
				out[name] = kilobytes
			}
		}
	}
	return out
}

func echo(b *testing.B, in io.Writer, out io.Reader) {
	if _, err := in.Write([]byte("x")); err != nil {
		b.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		b.Fatal(err)
	}
}
