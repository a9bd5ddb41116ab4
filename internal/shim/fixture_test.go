package shim_test

import (
	"bufio"
	"context"
	"encoding/json"
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

	"roundhouse/internal/relay"
	"roundhouse/internal/shim"
	"roundhouse/internal/socket"
)

const (
	hello       = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	welcome     = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// fixture is a shim between a client, which is the test, and daemons, which are the
// test too. It lives in a bubble.
type fixture struct {
	t   *testing.T
	cfg shim.Config

	in     *io.PipeWriter // the client's output
	out    *relay.Lines
	cancel context.CancelFunc
	done   chan error

	mu      sync.Mutex
	absent  error // of Dial, or nil
	hang    bool  // dials take until they are given up
	narrow  bool  // lines hold nothing on the way to the daemon
	slow    bool  // nothing is held on the way to the client
	lines   chan *line
	dials   []time.Time
	resumed []string
	starts  int
	onStart func()
}

// line is the daemon's end of a line.
type line struct {
	t    *testing.T
	conn net.Conn
	in   *relay.Lines
}

// run runs a test in virtual time, with a shim that ends with it.
func run(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	runAs(t, &fixture{}, test)
}

// runAs is run with settings of the fixture: absent, narrow and slow.
func runAs(t *testing.T, set *fixture, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, absent: set.absent, narrow: set.narrow, slow: set.slow, lines: make(chan *line, 100), done: make(chan error, 1)}
		f.start()
		defer func() {
			f.cancel()
			_ = f.in.Close() // its reader ends
			<-f.done
			for len(f.lines) > 0 {
				(<-f.lines).close()
			}
		}()
		test(t, f)
	})
}

func (f *fixture) start() {
	in, clientOut := io.Pipe()
	clientIn, out := io.Pipe()
	f.in = clientOut
	var reader io.Reader = clientIn
	if !f.slow {
		reader = roomy(clientIn)
	}
	f.out = relay.NewLines(bufio.NewReader(reader), 100<<20)
	f.cfg.In, f.cfg.Out, f.cfg.Dial = in, out, f.dial
	f.cfg.Start = func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.starts++
		if f.onStart != nil {
			f.onStart()
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	go func() {
		err := shim.Run(ctx, f.cfg)
		_ = out.Close()
		_ = in.Close()
		f.done <- err
	}()
}

func (f *fixture) dial(ctx context.Context, resume string) (*shim.Line, error) {
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials = append(f.dials, time.Now())
	f.resumed = append(f.resumed, resume)
	if f.absent != nil {
		return nil, f.absent
	}
	ours, theirs := net.Pipe()
	var in io.Reader = theirs
	if !f.narrow {
		in = roomy(theirs)
	}
	f.lines <- &line{f.t, theirs, relay.NewLines(bufio.NewReader(in), 100<<20)}
	return &shim.Line{Conn: ours, In: bufio.NewReader(ours), Session: fmt.Sprintf("session-%d", len(f.dials))}, nil
}

// chunks is what was read from a connection and is still to be read by the test.
type chunks struct {
	all  chan []byte
	rest []byte
}

// roomy reads a connection as a socket does, which holds what nobody has read yet.
func roomy(r io.Reader) io.Reader {
	c := &chunks{all: make(chan []byte, 100_000)}
	go func() { // ends with the connection
		defer close(c.all)
		for {
			b := make([]byte, 4<<10)
			n, err := r.Read(b)
			if err != nil {
				return
			}
			c.all <- b[:n]
		}
	}()
	return c
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		next, ok := <-c.all
		if !ok {
			return 0, io.EOF
		}
		c.rest = next
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// leave lets dials fail from now on, come lets them succeed.
func (f *fixture) leave() { f.setAbsent(socket.ErrNobody) }
func (f *fixture) come()  { f.setAbsent(nil) }

func (f *fixture) setAbsent(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.absent = err
}

// send writes frames of the client.
func (f *fixture) send(frames ...string) {
	f.t.Helper()
	for _, frame := range frames {
		if _, err := io.WriteString(f.in, frame+"\n"); err != nil {
			f.t.Fatal(err)
		}
	}
}

// want reads frames for the client.
func (f *fixture) want(frames ...string) {
	f.t.Helper()
	for _, want := range frames {
		if got := f.next(); got != want {
			f.t.Fatalf("the client got\n%s\nwant\n%s", got, want)
		}
	}
}

func (f *fixture) next() string {
	f.t.Helper()
	got, err := f.out.Next()
	if err != nil {
		f.t.Fatal(err)
	}
	return string(got)
}

// wantError reads an error answer, and returns its text.
func (f *fixture) wantError(id, reason, sent string) string {
	f.t.Helper()
	raw := f.next()
	var e struct {
		ID    json.RawMessage
		Error struct {
			Message string
			Data    struct{ Reason, Sent string }
		}
	}
	if err := json.Unmarshal([]byte(raw), &e); err != nil || string(e.ID) != id || e.Error.Data.Reason != reason || e.Error.Data.Sent != sent {
		f.t.Fatalf("the client got\n%s\nwant an error for %s, %s, sent: %s", raw, id, reason, sent)
	}
	return e.Error.Message
}

// quiet checks that the client gets nothing for now.
func (f *fixture) quiet() {
	f.t.Helper()
	got := make(chan string, 1)
	go func() {
		raw, _ := f.out.Next() // an error comes at the end of the test
		got <- string(raw)
	}()
	synctest.Wait()
	select {
	case raw := <-got:
		f.t.Fatalf("the client got %s", raw)
	default:
	}
	// The read goes on: whatever it gets is given back to the next reader.
	pending := f.out
	r, w := io.Pipe()
	f.out = relay.NewLines(bufio.NewReader(r), 100<<20)
	go func() {
		raw := <-got
		for raw != "" {
			if _, err := io.WriteString(w, raw+"\n"); err != nil {
				return
			}
			next, err := pending.Next()
			if err != nil {
				break
			}
			raw = string(next)
		}
		_ = w.Close()
	}()
	f.t.Cleanup(func() { _ = r.Close() })
}

// accept waits for the next line.
func (f *fixture) accept() *line {
	f.t.Helper()
	select {
	case l := <-f.lines:
		return l
	case <-time.After(time.Hour):
		f.t.Fatal("no line was opened within an hour")
		return nil
	}
}

// noLine checks that nobody dials successfully for now.
func (f *fixture) noLine() {
	f.t.Helper()
	synctest.Wait()
	if len(f.lines) > 0 {
		f.t.Fatal("there is another line")
	}
}

// connected brings the client through its handshake on the first line.
func (f *fixture) connected() *line {
	f.t.Helper()
	l := f.accept()
	f.send(hello)
	l.want(hello)
	l.send(welcome)
	f.want(welcome)
	f.send(initialized)
	l.want(initialized)
	return l
}

// again is the daemon's part of a handshake that is repeated, with the same answer,
// and the client's: it learns that lists may have changed.
func (f *fixture) again() *line {
	f.t.Helper()
	l := f.accept()
	l.want(hello)
	l.send(welcome)
	l.want(initialized)
	f.want(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`)
	return l
}

func (l *line) send(frames ...string) {
	l.t.Helper()
	for _, frame := range frames {
		if _, err := io.WriteString(l.conn, frame+"\n"); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *line) want(frames ...string) {
	l.t.Helper()
	for _, want := range frames {
		if got := l.next(); got != want {
			l.t.Fatalf("the daemon got\n%s\nwant\n%s", got, want)
		}
	}
}

func (l *line) next() string {
	l.t.Helper()
	got, err := l.in.Next()
	if err != nil {
		l.t.Fatal(err)
	}
	return string(got)
}

// wantEnd checks that the shim closes the line without another frame.
func (l *line) wantEnd() {
	l.t.Helper()
	if got, err := l.in.Next(); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		l.t.Fatalf("the daemon got %q, %v", got, err)
	}
}

func (l *line) close() { _ = l.conn.Close() }

func request(id int, method string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"name":"t%d"}}`, id, method, id)
}

func answer(id int) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, id) }

// sorted reads n frames for the client in any order.
func (f *fixture) sorted(n int) []string {
	f.t.Helper()
	var all []string
	for range n {
		all = append(all, f.next())
	}
	slices.Sort(all)
	return all
}

func contains(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%q is not in %q", part, text)
	}
}
