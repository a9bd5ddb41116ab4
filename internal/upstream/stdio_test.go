package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/wire"
)

// A fakeInput is a server's stdin, whose writes wait until they are let through.
type fakeInput struct {
	pass   chan struct{} // lets one write through each; nil lets all
	closed chan struct{}

	mu     sync.Mutex
	writes []string
	fail   error // what writes end with, if not nil
}

func newFakeInput(pass chan struct{}) *fakeInput {
	return &fakeInput{pass: pass, closed: make(chan struct{})}
}

func (f *fakeInput) Write(p []byte) (int, error) {
	if f.pass != nil {
		select {
		case <-f.pass:
		case <-f.closed:
			return 0, io.ErrClosedPipe
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return 0, f.fail
	}
	f.writes = append(f.writes, string(p))
	return len(p), nil
}

func (f *fakeInput) Close() error {
	close(f.closed) // The link closes once only, or this panics.
	return nil
}

func (f *fakeInput) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.writes)
}

// A running link, for tests in a bubble.
type running struct {
	*Stdio
	*recorder
	server net.Conn // the server's end of its stdout
	result chan error
}

// start runs a link; its output is a net.Pipe, whose deadlines are in virtual time.
func start(t *testing.T, config StdioConfig, h *recorder) *running {
	ours, theirs := net.Pipe()
	config.Out = ours
	r := &running{Stdio: NewStdio(config), recorder: h, server: theirs, result: make(chan error, 1)}
	go func() { r.result <- r.Run(h) }()
	t.Cleanup(func() {
		ours.Close()
		theirs.Close()
	})
	synctest.Wait()
	return r
}

func (r *running) say(t *testing.T, lines string) {
	t.Helper()
	if _, err := io.WriteString(r.server, lines); err != nil {
		t.Error(err)
	}
}

var errTest = errors.New("test")

func TestMessagesAreCoalescedAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newFakeInput(make(chan struct{}))
		r := start(t, StdioConfig{In: in}, &recorder{})
		long := strings.Repeat("x", writeBytes)
		for _, m := range []string{"first", "a", "b", "c", long + "long", "d", long[:writeBytes-1], "e"} {
			if err := r.Send(t.Context(), NewMessage([]byte(m))); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for range 6 {
			in.pass <- struct{}{}
		}
		synctest.Wait()
		want := []string{"first\n", "a\nb\nc\n", long + "long", "\n", "d\n" + long[:writeBytes-1] + "\n", "e\n"}
		if got := in.seen(); !slices.Equal(got, want) {
			t.Errorf("got %.50q", got)
		}
		r.Abort(errTest)
		<-r.result
	})
}

// R2, R5: a message counts as sent from just before its first byte may leave, and
// those that never came so far can be told apart after the loss.
func TestSentTellsWhatMayHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newFakeInput(make(chan struct{}))
		r := start(t, StdioConfig{In: in}, &recorder{})
		var messages []*Message
		for i := range 3 {
			m := NewMessage([]byte{byte('a' + i)})
			messages = append(messages, m)
			if m.Sent() {
				t.Error("sent before Send")
			}
			if err := r.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		check := func(want ...bool) {
			t.Helper()
			for i, m := range messages {
				if m.Sent() != want[i] {
					t.Errorf("message %d: sent is %v", i, m.Sent())
				}
			}
		}
		check(true, false, false) // the first write waits in the pipe
		r.Abort(errTest)
		if err := <-r.result; err != errTest {
			t.Errorf("Run gives %v", err)
		}
		check(true, false, false)
		late := NewMessage([]byte("late"))
		if err := r.Send(t.Context(), late); err != ErrClosed || late.Sent() {
			t.Errorf("after the end Send gives %v, sent is %v", err, late.Sent())
		}
	})
}

// R5: what waits behind a write when the process ends is not written, also if a
// descendant reads on.
func TestNothingIsSentAfterTheProcessEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newFakeInput(make(chan struct{}))
		exited := make(chan struct{})
		r := start(t, StdioConfig{In: in, Exited: exited}, &recorder{})
		first, second := NewMessage([]byte("first")), NewMessage([]byte("second"))
		for _, m := range []*Message{first, second} {
			if err := r.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		close(exited)
		synctest.Wait()
		in.pass <- struct{}{}
		if err := <-r.result; err != ErrExited || !first.Sent() || second.Sent() {
			t.Errorf("Run gives %v; sent: %v, %v", err, first.Sent(), second.Sent())
		}
	})
}

func TestSendWaitsOnlyWhileTheQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newFakeInput(make(chan struct{}))
		r := start(t, StdioConfig{In: in, QueueBytes: 10}, &recorder{})
		send := func(ctx context.Context, text string) chan error {
			result := make(chan error, 1)
			go func() { result <- r.Send(ctx, NewMessage([]byte(text))) }()
			synctest.Wait()
			return result
		}
		waits := func(c chan error) bool {
			synctest.Wait()
			return len(c) == 0
		}
		if waits(send(t.Context(), "a message longer than the whole queue")) {
			t.Error("the empty queue does not take a long message")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		second, third, fourth := send(t.Context(), "second"), send(ctx, "third"), send(t.Context(), "4")
		if !waits(second) || !waits(third) || !waits(fourth) {
			t.Error("the full queue takes a message")
		}
		cancel(errTest)
		if err := <-third; !errors.Is(err, errTest) {
			t.Errorf("a Send that gives up ends with %v", err)
		}
		if !waits(second) || !waits(fourth) {
			t.Error("others gave up, too")
		}
		in.pass <- struct{}{}
		if waits(second) || waits(fourth) {
			t.Error("there is room, but Send waits")
		}
		fifth := send(t.Context(), "fifth")
		if !waits(fifth) {
			t.Error("the full queue takes a message")
		}
		r.Abort(errTest)
		if err := <-fifth; err != ErrClosed {
			t.Errorf("at the end a Send that waits gives %v", err)
		}
		<-r.result
		if got := in.seen(); len(got) != 1 {
			t.Errorf("written: %q", got)
		}
	})
}

// A Handler's own answers never wait for a server that waits for us.
func TestPostNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newFakeInput(make(chan struct{}))
		r := start(t, StdioConfig{In: in, QueueBytes: 4}, &recorder{})
		posted := 0
		for range 10 {
			if r.Post(NewMessage([]byte("xxx"))) {
				posted++
			}
		}
		if posted != 3 || r.Post(NewMessage([]byte("\n"))) {
			t.Errorf("%d messages were queued", posted)
		}
		for len(in.seen()) == 0 || strings.Count(strings.Join(in.seen(), ""), "xxx") < posted {
			in.pass <- struct{}{}
			synctest.Wait()
		}
		r.Abort(errTest)
		<-r.result
		if r.Post(NewMessage([]byte("xxx"))) {
			t.Error("a message was queued after the end")
		}
	})
}

func TestSendRefusesWhatWouldBreakTheFraming(t *testing.T) {
	s := NewStdio(StdioConfig{In: newFakeInput(nil), Out: strings.NewReader("")})
	if err := s.Send(t.Context(), NewMessage([]byte("{}\n{}"))); err == nil || errors.Is(err, ErrClosed) {
		t.Errorf("a line end gives %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errTest)
	if err := s.Send(ctx, NewMessage([]byte("{}"))); !errors.Is(err, errTest) {
		t.Errorf("an ended context gives %v", err)
	}
}

// R1: the process's end is a loss. What is in the pipe counts however slow the
// handler is, and a descendant that keeps stdout open delays nothing for long.
func TestExitEndsTheLinkAfterWhatIsInThePipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exited := make(chan struct{})
		h := &recorder{}
		h.pause = func() { time.Sleep(time.Second) }
		r := start(t, StdioConfig{In: newFakeInput(nil), Exited: exited}, h)
		go func() {
			r.say(t, one+"\n")
			close(exited)
			r.say(t, two+"\n") // net.Pipe has no buffer: this is what stands in the pipe
			r.say(t, said+"\n"+asked)
		}()
		begin := time.Now()
		if err := <-r.result; err != ErrExited {
			t.Errorf("Run gives %v", err)
		}
		if took := time.Since(begin); took != 4*time.Second+defaultDrainWait {
			t.Errorf("it took %v", took)
		}
		if got, want := r.seen(), []string{"frame " + one, "frame " + two, "frame " + said, "frame " + asked}; !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
		if err := r.Send(t.Context(), NewMessage([]byte("{}"))); err != ErrClosed {
			t.Errorf("Send gives %v", err)
		}
	})
}

// R2: DrainWait bounds the waiting in all, not each read.
func TestLateOutputDoesNotExtendTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exited := make(chan struct{})
		r := start(t, StdioConfig{In: newFakeInput(nil), Exited: exited}, &recorder{})
		close(exited)
		begin := time.Now()
		for range 2 {
			time.Sleep(100 * time.Millisecond)
			r.say(t, one+"\n")
		}
		if err := <-r.result; err != ErrExited || len(r.seen()) != 2 {
			t.Errorf("Run gives %v and %q", err, r.seen())
		}
		if took := time.Since(begin); took != defaultDrainWait {
			t.Errorf("it took %v", took)
		}
	})
}

// R2: a descendant that goes on writing does not hold the loss back.
func TestExitEndsTheLinkThoughADescendantWrites(t *testing.T) {
	for name, pause := range map[string]time.Duration{"slowly": 20 * time.Millisecond, "as fast as it can": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				exited := make(chan struct{})
				r := start(t, StdioConfig{In: newFakeInput(nil), Exited: exited}, &recorder{})
				var wg sync.WaitGroup
				wg.Go(func() {
					noise := []byte(strings.Repeat("noise", 1000) + "\n")
					for {
						if _, err := r.server.Write(noise); err != nil {
							return
						}
						time.Sleep(pause)
					}
				})
				close(exited)
				begin := time.Now()
				if err := <-r.result; err != ErrExited {
					t.Errorf("Run gives %v", err)
				}
				if took := time.Since(begin); took > defaultDrainWait {
					t.Errorf("it took %v", took)
				}
				r.server.Close()
				wg.Wait()
			})
		})
	}
}

// R1: a server that closes its stdout is lost, also if it lives on.
func TestEndOfOutputEndsTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newFakeInput(make(chan struct{}))
		r := start(t, StdioConfig{In: in}, &recorder{})
		stuck := NewMessage([]byte("{}"))
		if err := r.Send(t.Context(), stuck); err != nil {
			t.Fatal(err)
		}
		r.say(t, one)
		r.server.Close()
		if err := <-r.result; err != io.EOF {
			t.Errorf("Run gives %v", err)
		}
		if got := r.seen(); !slices.Equal(got, []string{"frame " + one}) {
			t.Errorf("got %q", got)
		}
		<-in.closed
	})
}

// R1: a broken stdin is a loss, and what the server still wrote counts.
func TestBrokenInputEndsTheLinkAfterWhatIsInThePipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newFakeInput(nil)
		in.fail = errTest
		r := start(t, StdioConfig{In: in, DrainWait: time.Second}, &recorder{})
		m := NewMessage([]byte("{}"))
		if err := r.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := r.Send(t.Context(), NewMessage([]byte("{}"))); err != ErrClosed {
			t.Errorf("Send gives %v", err)
		}
		begin := time.Now()
		r.say(t, one+"\n")
		if err := <-r.result; !errors.Is(err, errTest) {
			t.Errorf("Run gives %v", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it took %v", took)
		}
		if got := r.seen(); !slices.Equal(got, []string{"frame " + one}) || !m.Sent() {
			t.Errorf("got %q, sent is %v", got, m.Sent())
		}
	})
}

// Case 44: nothing that the server does or leaves undone delays Abort.
func TestAbortIsPrompt(t *testing.T) {
	other := errors.New("another")
	synctest.Test(t, func(t *testing.T) {
		for _, exit := range []bool{false, true} {
			exited := make(chan struct{})
			r := start(t, StdioConfig{In: newFakeInput(make(chan struct{})), Exited: exited, DrainWait: time.Hour}, &recorder{})
			if err := r.Send(t.Context(), NewMessage([]byte("{}"))); err != nil {
				t.Fatal(err)
			}
			if exit {
				close(exited)
			}
			synctest.Wait()
			begin := time.Now()
			r.Abort(errTest)
			r.Abort(other)
			if err := <-r.result; err != errTest || time.Since(begin) != 0 {
				t.Errorf("Run gives %v after %v", err, time.Since(begin))
			}
			r.Abort(other)
		}
	})
	synctest.Test(t, func(t *testing.T) { // without deadlines
		out, _ := io.Pipe()
		s := NewStdio(StdioConfig{In: newFakeInput(nil), Out: out})
		go s.Abort(errTest)
		if err := s.Run(&recorder{}); err != errTest {
			t.Errorf("Run gives %v", err)
		}
	})
	s := NewStdio(StdioConfig{In: newFakeInput(nil), Out: strings.NewReader(one + "\n")})
	s.Abort(errTest)
	h := &recorder{}
	if err := s.Run(h); err != errTest || len(h.seen()) != 0 {
		t.Errorf("aborted before, Run gives %v and %q", err, h.seen())
	}
}

// An output without deadlines is drained and closed, too.
func TestExitEndsTheLinkWithoutDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, server := io.Pipe()
		exited := make(chan struct{})
		s := NewStdio(StdioConfig{In: newFakeInput(nil), Out: out, Exited: exited})
		go func() {
			close(exited)
			io.WriteString(server, one+"\n")
		}()
		h := &recorder{}
		begin := time.Now()
		if err := s.Run(h); err != ErrExited || !slices.Equal(h.seen(), []string{"frame " + one}) {
			t.Errorf("Run gives %v and %q", err, h.seen())
		}
		if took := time.Since(begin); took != defaultDrainWait {
			t.Errorf("it took %v", took)
		}
	})
}

// Case 44: stdin is closed after what is queued, at once when nothing is, and at
// last also if the server does not read.
func TestCloseInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newFakeInput(make(chan struct{}))
		r := start(t, StdioConfig{In: in}, &recorder{})
		for _, text := range []string{"a", "b"} {
			if err := r.Send(t.Context(), NewMessage([]byte(text))); err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan error, 1)
		go func() { closed <- r.CloseInput() }()
		synctest.Wait()
		if err := r.Send(t.Context(), NewMessage([]byte("c"))); err != ErrClosed {
			t.Errorf("Send gives %v", err)
		}
		begin := time.Now()
		for range 2 {
			select {
			case in.pass <- struct{}{}:
			case <-in.closed:
			}
		}
		if err := <-closed; err != nil || time.Since(begin) != 0 {
			t.Errorf("CloseInput gives %v after %v", err, time.Since(begin))
		}
		if got := strings.Join(in.seen(), ""); got != "a\nb\n" {
			t.Errorf("written: %q", got)
		}
		if err := r.CloseInput(); err != nil {
			t.Errorf("the second CloseInput gives %v", err)
		}
		r.say(t, one+"\n") // what the server says at its end
		r.server.Close()
		if err := <-r.result; err != io.EOF || len(r.seen()) != 1 {
			t.Errorf("Run gives %v and %q", err, r.seen())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		in := newFakeInput(make(chan struct{}))
		r := start(t, StdioConfig{In: in, DrainWait: time.Second}, &recorder{})
		if err := r.Send(t.Context(), NewMessage([]byte("{}"))); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := r.CloseInput(); err != nil || time.Since(begin) != time.Second {
			t.Errorf("stuck, CloseInput gives %v after %v", err, time.Since(begin))
		}
		synctest.Wait()
		if len(r.result) != 0 {
			t.Error("closing the input ended the link")
		}
		r.server.Close()
		if err := <-r.result; err != io.EOF {
			t.Errorf("Run gives %v", err)
		}
	})
	in := newFakeInput(nil)
	s := NewStdio(StdioConfig{In: in, Out: strings.NewReader(one)})
	if err := s.CloseInput(); err != nil || !isClosed(in.closed) {
		t.Errorf("before Run, CloseInput gives %v", err)
	}
	if err := s.Run(&recorder{}); err != io.EOF {
		t.Errorf("Run gives %v", err)
	}
}

func TestMessagesQueuedBeforeRunAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, server := io.Pipe()
		in := newFakeInput(nil)
		s := NewStdio(StdioConfig{In: in, Out: out})
		if err := s.Send(t.Context(), NewMessage([]byte("{}"))); err != nil {
			t.Fatal(err)
		}
		go func() {
			synctest.Wait()
			server.Close()
		}()
		if err := s.Run(&recorder{}); err != io.EOF || !slices.Equal(in.seen(), []string{"{}\n"}) {
			t.Errorf("Run gives %v, written: %q", err, in.seen())
		}
	})
}

// A handler may send, also while others do; no two frames are mixed.
func TestManySendersDoNotMix(t *testing.T) {
	const senders, each = 8, 100
	ours, server := net.Pipe()
	defer ours.Close()
	defer server.Close()
	in, fromIn := net.Pipe()
	go io.Copy(server, fromIn) // the server answers with what it is told
	s := NewStdio(StdioConfig{In: in, Out: ours, QueueBytes: 4096})
	var want []string
	var wg sync.WaitGroup
	for i := range senders {
		for j := range each {
			want = append(want, fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d.%d","result":"%s"}`, i, j, strings.Repeat("x", i*j)))
		}
		mine := slices.Clone(want[i*each:])
		wg.Go(func() {
			for _, text := range mine {
				if err := s.Send(t.Context(), NewMessage([]byte(text))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	h := &collector{done: func() { s.Abort(errTest) }, count: senders * each}
	if err := s.Run(h); err != errTest {
		t.Errorf("Run gives %v", err)
	}
	wg.Wait()
	fromIn.Close()
	got := h.frames
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d frames came back, and not as they went", len(got))
	}
}

// A collector is a Handler that calls done when it has seen count frames.
type collector struct {
	done   func()
	count  int
	frames []string
}

func (c *collector) Frame(f wire.Frame, _ []byte) {
	c.frames = append(c.frames, string(f.Raw))
	if len(c.frames) == c.count {
		c.done()
	}
}

func (c *collector) Failed([]byte, error, bool) { c.frames = append(c.frames, "failed") }

func (c *collector) Oversize([]byte, wire.Kind, int64) { c.frames = append(c.frames, "oversize") }

func (c *collector) Noise(line []byte) {
	c.frames = append(c.frames, "noise "+string(bytes.Clone(line)))
}
