// Package shim is the program between a host that speaks MCP over stdio and the
// daemon (H8): "roundhouse connect". It relays frames as bytes, and reads of them only
// what it needs to outlive a daemon: when its line is lost it tells the client which
// calls may have been executed, dials again, repeats the handshake, and goes on. A client
// that shakes no hands has nothing to repeat but what it listens to.
//
// What the client sees of a restart: calls that had been sent get an error (interrupted,
// sent: maybe) and are never sent again; those that had not been wait for the next line.
// Requests of the server that the client has not answered are taken back. Lists
// may have changed, so the client is told that they have.
package shim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/relay"
	"roundhouse/internal/socket"
	"roundhouse/internal/wire"
)

// ErrNoDaemon says that the first line could not be had in time. Nothing of the
// client's was read.
var ErrNoDaemon = errors.New("no daemon can be had")

// Line is one connection to the daemon, on which frames go both ways.
type Line struct {
	Conn    net.Conn
	In      *bufio.Reader // what the daemon sends
	Session string        // that a handshake on it enters
}

// Config says how a shim works.
type Config struct {
	In  io.Reader // the client's frames
	Out io.Writer // for the client

	// Dial opens a line. resume is the session of the line before, or "". Where no
	// daemon listens its error is socket.ErrNobody.
	Dial func(ctx context.Context, resume string) (*Line, error)
	// Start starts a daemon if none is starting already; nil starts none. It is called
	// where nobody listens and somebody waits, so it may be called often.
	Start func() error
	// Say tells people something, in one line; nil discards.
	Say func(format string, args ...any)

	Wait     time.Duration // how long a request waits for a daemon; 0 is 10 s
	Fallback bool          // if the first line cannot be had within Wait, Run returns ErrNoDaemon
}

// DefaultWait is Config.Wait where it is 0.
const DefaultWait = 10 * time.Second

const (
	firstDelay = 25 * time.Millisecond // before the second attempt to dial; doubled for each further one
	lastDelay  = 2 * time.Second
	steady     = 2 * time.Second // a line that lived so long was a good one: the next dial is at once
	parting    = time.Second     // for what the daemon still sends when the client has closed its end

	maxQueuedBytes = 4 << 20 // from the client; more is not read
	maxQueuedNotes = 256     // notifications that wait for a daemon; the oldest is dropped
	maxFrame       = wire.MaxFrame + 1<<20
)

// shim is one run.
type shim struct {
	cfg Config
	out *outbox

	// Owned by the goroutine of run.
	resume string        // the session of the last line
	delay  time.Duration // before the next dial

	room   chan struct{} // the queue has become shorter
	demand chan struct{} // a request waits for a line

	buf []byte // of whoever has set writing

	mu       sync.Mutex
	idle     *sync.Cond // writing has become false
	writing  bool       // somebody writes to the line
	line     *Line      // that frames are written to, or nil
	away     bool       // there is no daemon: requests wait for a limited time
	leaving  bool       // the line's daemon is stopping: it gets no new requests
	eof      bool       // the client has closed its end
	wanted   bool       // a line is needed, not only wished for
	cause    error      // why there is no line
	queue    []*frame
	queued   int                 // bytes in the queue
	sent     map[string]*frame   // requests in flight on the line, by raw id
	asked    map[string]struct{} // requests of the server that the client has not answered
	swallow  map[string]struct{} // ids of our own requests
	anew     map[string]struct{} // ids of listens sent again that the daemon has not acknowledged
	memories memories
}

// frame is one of the client's on its way. Its timer, of a request that waits while
// there is no line, is guarded by shim.mu.
type frame struct {
	wire.Frame
	timer *time.Timer
	stops int // how many daemons refused it because they were stopping
}

// Run relays until the client closes its end or ctx ends, and returns nil then; an
// error is that of Out, or ErrNoDaemon with its cause. A read of In may be left behind
// when ctx ends, and a write of Out that nobody takes: the process is about to end.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Wait <= 0 {
		cfg.Wait = DefaultWait
	}
	if cfg.Say == nil {
		cfg.Say = func(string, ...any) {}
	}
	s := &shim{
		cfg: cfg, wanted: true, away: true,
		room: make(chan struct{}, 1), demand: make(chan struct{}, 1),
		sent: map[string]*frame{}, asked: map[string]struct{}{}, swallow: map[string]struct{}{}, anew: map[string]struct{}{},
	}
	s.idle = sync.NewCond(&s.mu)
	var first *Line
	if cfg.Fallback {
		var err error
		if first, err = s.first(ctx); err != nil {
			return err
		}
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	s.out = newOutbox(cfg.Out, end)
	go s.read(ctx, end) // ends with In
	over := make(chan struct{})
	go func() { // joined below, unless the client takes nothing
		defer close(over)
		s.run(ctx, first)
	}()
	select {
	case <-over:
	case <-ctx.Done():
		select {
		case <-over:
		case <-time.After(parting):
		}
	}
	s.out.close(parting)
	if err := context.Cause(ctx); errors.Is(err, errOut) {
		return err
	}
	return nil
}

// first gets the first line while nothing of the client's is read, so that another
// program can take the client over.
func (s *shim) first(ctx context.Context) (*Line, error) {
	limited, cancel := context.WithTimeout(ctx, s.cfg.Wait)
	defer cancel()
	line := s.connect(limited)
	switch {
	case line != nil:
		return line, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("%w within %s: %w", ErrNoDaemon, s.cfg.Wait, s.why())
}

// run keeps a line until ctx ends or the client closes its end.
func (s *shim) run(ctx context.Context, line *Line) {
	for {
		if line == nil {
			if line = s.connect(ctx); line == nil {
				return
			}
		}
		begun := time.Now()
		err := s.serve(ctx, line)
		line = nil
		if s.lose(err, ctx.Err() != nil) {
			return
		}
		if time.Since(begun) >= steady {
			s.delay = 0
		} else {
			s.grow()
		}
	}
}

// connect dials until it has a line; it returns nil when ctx ends.
func (s *shim) connect(ctx context.Context) *Line {
	for {
		if !s.pause(ctx) {
			return nil
		}
		line, err := s.cfg.Dial(ctx, s.resume)
		if err == nil {
			return line
		}
		if ctx.Err() != nil && s.why() != nil {
			return nil // the error before says more than that of a dial cut short
		}
		s.grow()
		if errors.Is(err, socket.ErrNobody) && s.cfg.Start != nil && s.isWanted() {
			if startErr := s.cfg.Start(); startErr != nil {
				err = startErr
			}
		}
		s.setCause(err)
	}
}

// pause waits before a dial, but not while a new request waits.
func (s *shim) pause(ctx context.Context) bool {
	if s.delay == 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(s.delay*3/4 + rand.N(s.delay/2))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.demand:
		s.delay = firstDelay
	case <-ctx.Done():
		return false
	}
	return true
}

func (s *shim) grow() { s.delay = min(max(2*s.delay, firstDelay), lastDelay) }

func (s *shim) setCause(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cause = err
}

func (s *shim) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

func (s *shim) isWanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted
}

// lose takes back what a lost line leaves, and reports whether the run is over: it was
// stopped, or the client has closed its end. Nobody waits for anything then.
func (s *shim) lose(why error, stopped bool) (over bool) {
	s.mu.Lock()
	for s.writing { // not for long: the line is closed
		s.idle.Wait()
	}
	s.line, s.away, s.leaving = nil, true, false
	s.cause, s.wanted = why, false
	sent, asked := s.sent, s.asked
	s.sent, s.asked, s.swallow, s.anew = map[string]*frame{}, map[string]struct{}{}, map[string]struct{}{}, map[string]struct{}{}
	over = s.eof || stopped
	for id, f := range sent {
		switch f.Method {
		case wire.MethodInitialize, wire.Discover, wire.SubscriptionsListen: // it changes nothing, so it may be sent again
			s.pushFrontLocked(f)
			delete(sent, id)
		}
	}
	kept := s.queue[:0]
	for _, f := range s.queue {
		if f.Kind == wire.Response { // whoever asked is gone
			s.queued -= len(f.Raw)
			continue
		}
		s.waitLocked(f)
		kept = append(kept, f)
	}
	clear(s.queue[len(kept):])
	s.queue = kept
	s.mu.Unlock()
	if over {
		return true
	}
	s.cfg.Say("the line to the daemon was lost (%v); dialing again", why)
	for id := range sent {
		s.fail([]byte(id), &fault.Error{
			Reason: fault.Interrupted, Sent: fault.SentMaybe, Err: why,
			Message: "the connection to the roundhouse daemon was lost while the request was in flight; it may have been executed, so it was not sent again",
		})
	}
	for id := range asked {
		s.out.put(wire.NewNotification(wire.Cancelled, fmt.Appendf(nil, `{"requestId":%s,"reason":"the connection to the server was lost"}`, id)))
	}
	return false
}

// fail answers one of the client's requests with an error.
func (s *shim) fail(id []byte, err *fault.Error) { s.out.put(wire.ErrorReply(id, err.RPC())) }

// signal marks a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// lines returns a reader of what the daemon sends.
func (l *Line) lines() *relay.Lines { return relay.NewLines(l.In, maxFrame) }
