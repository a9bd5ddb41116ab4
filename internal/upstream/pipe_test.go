package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse/internal/wire"
)

// pipes returns the two ends of a server's stdin and stdout, as pipes of the system.
func pipes(t testing.TB) (stdin, in, out, stdout *os.File) {
	t.Helper()
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout, err = os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range []*os.File{stdin, in, out, stdout} {
			f.Close()
		}
	})
	return stdin, in, out, stdout
}

func within(t *testing.T, limit time.Duration, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(limit):
		t.Fatalf("nothing happened within %v", limit)
		return nil
	}
}

// R1, R2: the output of a process that was killed is delivered from the pipe, and the
// link ends within a second, also when a descendant keeps stdout open.
func TestKilledProcessEndsTheLink(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the server is a shell script")
	}
	for _, descendant := range []string{"", "sleep 5 & "} {
		stdin, in, out, stdout := pipes(t)
		// It answers once, and then neither reads nor writes.
		cmd := exec.Command("sh", "-c", descendant+`read line; echo banner; echo "$line"; exec sleep 5`)
		cmd.Stdin, cmd.Stdout = stdin, stdout
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stdin.Close()
		stdout.Close()
		exited := make(chan struct{})
		go func() {
			cmd.Wait()
			close(exited)
		}()
		s := NewStdio(StdioConfig{In: in, Out: out, Exited: exited})
		h := &recorder{}
		answered := make(chan error, 2)
		h.pause = func() { answered <- nil }
		result := make(chan error, 1)
		go func() { result <- s.Run(h) }()
		if err := s.Send(t.Context(), NewMessage([]byte(one))); err != nil {
			t.Fatal(err)
		}
		within(t, 10*time.Second, answered)
		within(t, 10*time.Second, answered)
		// More than the pipe holds: the writer is stuck when the process is killed.
		stuck := NewMessage([]byte(`"` + strings.Repeat("x", 1<<20) + `"`))
		if err := s.Send(t.Context(), stuck); err != nil {
			t.Fatal(err)
		}
		behind := NewMessage([]byte("{}"))
		if err := s.Send(t.Context(), behind); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); !stuck.Sent() && time.Now().Before(deadline); {
			runtime.Gosched()
		}
		cmd.Process.Kill()
		err := within(t, 5*time.Second, result)
		if !errors.Is(err, ErrExited) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Run gives %v", err)
		}
		if got := h.seen(); !slices.Equal(got, []string{"noise banner", "frame " + one}) {
			t.Errorf("got %q", got)
		}
		if !stuck.Sent() || behind.Sent() {
			t.Errorf("sent: %v, and the one behind: %v", stuck.Sent(), behind.Sent())
		}
	}
}

// R1: all that a server left in the pipe before it went is delivered.
func TestWhatIsInThePipeIsDelivered(t *testing.T) {
	_, in, out, stdout := pipes(t)
	lines := strings.Repeat(one+"\n", 1000)
	if _, err := io.WriteString(stdout, lines+two); err != nil { // and stdout stays open
		t.Fatal(err)
	}
	exited := make(chan struct{})
	close(exited)
	h := &recorder{}
	s := NewStdio(StdioConfig{In: in, Out: out, Exited: exited})
	if err := s.Run(h); err != ErrExited {
		t.Errorf("Run gives %v", err)
	}
	if got := h.seen(); len(got) != 1001 || got[1000] != "frame "+two {
		t.Errorf("%d frames were delivered", len(got))
	}
}

// Case 44: a server that neither reads nor writes delays neither Abort nor CloseInput.
func TestStuckPipesAreInterrupted(t *testing.T) {
	_, in, out, _ := pipes(t)
	s := NewStdio(StdioConfig{In: in, Out: out, DrainWait: time.Millisecond})
	result := make(chan error, 1)
	go func() { result <- s.Run(&recorder{}) }()
	m := NewMessage([]byte(strings.Repeat("x", 1<<20)))
	if err := s.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.CloseInput() }()
	if err := within(t, 5*time.Second, closed); err != nil {
		t.Errorf("CloseInput gives %v", err)
	}
	s.Abort(errTest)
	if err := within(t, 5*time.Second, result); err != errTest {
		t.Errorf("Run gives %v", err)
	}
}

// R1: a server that closes its stdin is lost; what it says before counts.
func TestClosedStdinEndsTheLink(t *testing.T) {
	stdin, in, out, stdout := pipes(t)
	stdin.Close()
	if _, err := io.WriteString(stdout, one+"\n"); err != nil {
		t.Fatal(err)
	}
	s := NewStdio(StdioConfig{In: in, Out: out, DrainWait: time.Millisecond})
	if err := s.Send(t.Context(), NewMessage([]byte("{}"))); err != nil {
		t.Fatal(err)
	}
	h := &recorder{}
	result := make(chan error, 1)
	go func() { result <- s.Run(h) }()
	if err := within(t, 5*time.Second, result); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Run gives %v", err)
	}
	if got := h.seen(); !slices.Equal(got, []string{"frame " + one}) {
		t.Errorf("got %q", got)
	}
}

// A counter is a Handler that tells of each frame.
type counter chan struct{}

func (c counter) Frame(wire.Frame, []byte)          { c <- struct{}{} }
func (c counter) Failed([]byte, error, bool)        { panic("failed") }
func (c counter) Oversize([]byte, wire.Kind, int64) { panic("oversize") }
func (c counter) Noise(line []byte)                 { panic(string(line)) }

// BenchmarkRoundTrip sends a frame to a server that echoes it, through pipes: one at a
// time, and as many as fit.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{100, 16 << 10} {
		for _, inFlight := range []int{1, 64} {
			b.Run(fmt.Sprintf("%dB/%d", size, inFlight), func(b *testing.B) {
				stdin, in, out, stdout := pipes(b)
				go func() {
					io.Copy(struct{ io.Writer }{stdout}, struct{ io.Reader }{stdin})
					stdout.Close()
				}()
				s := NewStdio(StdioConfig{In: in, Out: out})
				frames := make(counter, inFlight)
				result := make(chan error, 1)
				go func() { result <- s.Run(frames) }()
				const head, end = `{"jsonrpc":"2.0","id":1,"result":"`, `"}`
				raw := []byte(head + strings.Repeat("x", size-len(head)-len(end)) + end)
				b.SetBytes(int64(len(raw)))
				b.ReportAllocs()
				waiting := 0
				for b.Loop() {
					if err := s.Send(context.Background(), NewMessage(raw)); err != nil {
						b.Fatal(err)
					}
					if waiting++; waiting == inFlight {
						<-frames
						waiting--
					}
				}
				for range waiting {
					<-frames
				}
				if err := s.CloseInput(); err != nil {
					b.Fatal(err)
				}
				<-result
			})
		}
	}
}
