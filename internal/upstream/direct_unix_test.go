//go:build unix

package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// linked runs a link over pipes of the system, and ends it with the test. The server's
// ends are returned.
func linked(t *testing.T) (s *Stdio, stdin, stdout *os.File) {
	t.Helper()
	stdin, in, out, stdout := pipes(t)
	s = NewStdio(StdioConfig{In: in, Out: out, DrainWait: time.Millisecond})
	running := begin(s)
	t.Cleanup(func() {
		s.Abort(errTest)
		within(t, 10*time.Second, running)
	})
	return s, stdin, stdout
}

// begin returns when the link runs; before that nothing that is sent is written. What comes
// of Run is sent to running.
func begin(s *Stdio) (running <-chan error) {
	result := make(chan error, 1)
	go func() { result <- s.Run(&recorder{}) }()
	for {
		s.mu.Lock()
		up := s.running
		s.mu.Unlock()
		if up {
			return result
		}
		time.Sleep(time.Millisecond)
	}
}

// lies returns what lies in a pipe now.
func lies(t *testing.T, pipe *os.File) string {
	t.Helper()
	conn, err := pipe.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	n := 0
	if err := conn.Read(func(fd uintptr) bool {
		n, _ = syscall.Read(int(fd), buf)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return string(buf[:max(n, 0)])
}

// A message that nothing is before is in the pipe when Send returns, and so is the next.
func TestSendWritesAtOnce(t *testing.T) {
	s, stdin, _ := linked(t)
	for i := range 3 {
		m := NewMessage([]byte(one))
		if err := s.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if got := lies(t, stdin); got != one+"\n" || !m.Sent() {
			t.Errorf("after Send %d the pipe holds %q; sent: %t", i+1, got, m.Sent())
		}
	}
}

// H4, R2: a pipe without room makes no Send wait. What it could not take follows in order
// once it is read, and what stands behind that counts as not sent until then.
func TestSendNeverWaitsForThePipe(t *testing.T) {
	s, stdin, _ := linked(t)
	var messages []*Message
	var want strings.Builder
	for i := range 20 { // more than a pipe holds
		m := NewMessage(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"result":"%s"}`, i, strings.Repeat("x", 30<<10)))
		messages = append(messages, m)
		want.Write(append(m.Bytes, '\n'))
	}
	for _, m := range messages {
		if err := s.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if first, last := messages[0].Sent(), messages[19].Sent(); !first || last {
		t.Errorf("sent: the first %t, the last %t", first, last)
	}
	if !s.Post(NewMessage([]byte(one))) {
		t.Error("Post did not queue")
	}
	want.WriteString(one + "\n")
	got := make([]byte, want.Len())
	if _, err := io.ReadFull(stdin, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Error("what was read is not what was sent")
	}
	for i, m := range messages {
		if !m.Sent() {
			t.Errorf("message %d was read and counts as not sent", i)
		}
	}
}

// R1, R2: a Send that finds the server's stdin broken ends the link; its message may have
// left.
func TestSendIntoABrokenPipeEndsTheLink(t *testing.T) {
	stdin, in, out, _ := pipes(t)
	s := NewStdio(StdioConfig{In: in, Out: out, DrainWait: time.Millisecond})
	running := make(chan error, 1)
	go func() { running <- s.Run(&recorder{}) }()
	if err := s.Send(t.Context(), NewMessage([]byte(one))); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdin).ReadString('\n'); err != nil || line != one+"\n" {
		t.Fatalf("read %q, %v", line, err)
	}
	stdin.Close()
	m := NewMessage([]byte(two))
	if err := s.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := within(t, 10*time.Second, running); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Run gives %v", err)
	}
	if !m.Sent() {
		t.Error("the message counts as not sent")
	}
	if err := s.Send(t.Context(), NewMessage([]byte(one))); err != ErrClosed {
		t.Errorf("a later Send gives %v", err)
	}
}

// What was taken is written before the input is closed, as far as somebody reads it,
// though its sender only wrote the beginning.
func TestCloseInputWaitsForTheRest(t *testing.T) {
	stdin, in, out, _ := pipes(t)
	s := NewStdio(StdioConfig{In: in, Out: out, DrainWait: 10 * time.Second})
	running := begin(s)
	var want strings.Builder
	for i := range 8 {
		m := NewMessage(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"result":"%s"}`, i, strings.Repeat("x", 50<<10)))
		want.Write(append(m.Bytes, '\n'))
		if err := s.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	closed := make(chan error, 1)
	go func() { closed <- s.CloseInput() }()
	got, err := io.ReadAll(stdin) // to the end of the input
	if err != nil || string(got) != want.String() {
		t.Errorf("%d of %d bytes came, %v", len(got), want.Len(), err)
	}
	if err := within(t, 10*time.Second, closed); err != nil {
		t.Errorf("CloseInput gives %v", err)
	}
	s.Abort(errTest)
	within(t, 10*time.Second, running)
}

// Messages of many senders, of all sizes, through a pipe that is read slowly, are neither
// mixed nor lost, and each sender's stay in order.
func TestDirectSendersDoNotMix(t *testing.T) {
	const senders, each = 8, 60
	s, stdin, _ := linked(t)
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for j := range each {
				text := fmt.Appendf(nil, `{"sender":%d,"number":%d,"text":"%s"}`, i, j, strings.Repeat("x", (i*each+j)*7919%(40<<10)))
				if err := s.Send(context.Background(), NewMessage(text)); err != nil {
					t.Error(err)
				}
				if j%5 == 0 {
					s.Post(NewMessage([]byte(one)))
				}
			}
		})
	}
	lines := bufio.NewReaderSize(stdin, 100)
	var next [senders]int
	for seen := 0; seen < senders*each; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == one+"\n" {
			continue
		}
		var sender, number int
		if _, err := fmt.Sscanf(line, `{"sender":%d,"number":%d,`, &sender, &number); err != nil || number != next[sender] {
			t.Fatalf("%.60q came as the line after %d of its sender, %v", line, next[sender]-1, err)
		}
		if want := (sender*each + number) * 7919 % (40 << 10); strings.Count(line, "x") != want+1 { // one in "text"
			t.Fatalf("message %d of sender %d has %d bytes of text, want %d", number, sender, strings.Count(line, "x")-1, want)
		}
		next[sender]++
		seen++
	}
	wg.Wait()
}
