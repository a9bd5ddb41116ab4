package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"roundhouse/internal/wire"
)

const (
	defaultQueueBytes = 4 << 20
	defaultDrainWait  = 250 * time.Millisecond

	// writeBytes is how much is coalesced into one write, and readBytes how much is
	// read at once: what a pipe holds by default.
	writeBytes = 64 << 10
	readBytes  = 64 << 10

	// drainBytes bounds what is read after the server was lost. No pipe of ours
	// holds more; what exceeds it is written by somebody who is still alive.
	drainBytes = 1 << 20
)

// StdioConfig describes a link over the standard input and output of a process.
type StdioConfig struct {
	// In is the server's stdin. The link closes it; Close must end a Write that waits.
	In io.WriteCloser
	// Out is the server's stdout. It is interrupted by SetReadDeadline if it has that
	// method, else by Close, which must end a Read that waits. Otherwise the link
	// leaves it open; closing it after Run is its owner's.
	Out io.Reader
	// Exited is closed when the server's process has ended; nil means never.
	Exited <-chan struct{}
	// MaxLine is the longest line that is read, in bytes without its line end;
	// 0 is wire.MaxFrame.
	MaxLine int
	// QueueBytes is how much may wait to be written before Send waits; 0 is 4 MiB. A
	// longer message is taken when nothing else waits.
	QueueBytes int
	// DrainWait is how long, after the process ended or its stdin broke, Run waits in
	// all for output that is still in the pipe; 0 is 250 ms.
	DrainWait time.Duration
}

// Stdio is a link over the standard input and output of a process. All methods may
// be called concurrently, also from a Handler.
//
// It ends with Run, which must be called once: when the server's output ends, when
// its process has ended or its stdin breaks, or by Abort. From then on Send refuses.
type Stdio struct {
	// Constant after NewStdio.
	config   StdioConfig
	deadline deadliner // Out, if its reads can be interrupted by a deadline; else nil
	direct   *direct   // In, if it can be written to without waiting; else nil

	gate chan struct{} // held by the Send that queues next, so that Sends wait in order
	wake chan struct{} // tells the writer that something changed
	room chan struct{} // tells the Send that holds the gate that something was written

	closed  chan struct{} // closed by refuseLocked: no more messages are taken
	lost    chan struct{} // closed by lose
	aborted chan struct{} // closed by Abort
	written chan struct{} // closed when the writer is done

	closeIn func() error // closes In once, and returns the same error again

	buf []byte // owned by whoever has set writing: what is written

	mu       sync.Mutex
	running  bool
	writing  bool       // the writer, or a Send, has taken messages and writes them
	queue    []*Message // not yet taken
	queued   int        // bytes in queue and in the hands of who writes
	closing  bool       // closed is closed
	stopped  bool       // what is queued is not to be written any more
	lossErr  error      // set before lost is closed, and constant from then on
	lostAt   time.Time  // likewise
	abortErr error      // set before aborted is closed, and constant from then on
}

type deadliner interface{ SetReadDeadline(time.Time) error }

// NewStdio returns a link. It does nothing before Run, except to queue.
func NewStdio(config StdioConfig) *Stdio {
	if config.MaxLine == 0 {
		config.MaxLine = wire.MaxFrame
	}
	if config.QueueBytes == 0 {
		config.QueueBytes = defaultQueueBytes
	}
	if config.DrainWait == 0 {
		config.DrainWait = defaultDrainWait
	}
	s := &Stdio{
		config:  config,
		gate:    make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
		room:    make(chan struct{}, 1),
		closed:  make(chan struct{}),
		lost:    make(chan struct{}),
		aborted: make(chan struct{}),
		written: make(chan struct{}),
		closeIn: sync.OnceValue(config.In.Close),
	}
	s.direct = newDirect(config.In)
	// Files that the runtime cannot poll have the method, but refuse it.
	if d, ok := config.Out.(deadliner); ok && d.SetReadDeadline(time.Time{}) == nil {
		s.deadline = d
	}
	return s
}

// Send queues m, or writes it at once if nothing waits and the pipe has room. It waits
// only while the queue is full, and never for the pipe itself; those who wait are served
// in order. Its error is ErrClosed, or the cause of ctx; m was not sent and will not be
// then. Without an error, m.Sent tells later whether it may have left.
func (s *Stdio) Send(ctx context.Context, m *Message) error {
	if bytes.IndexByte(m.Bytes, '\n') >= 0 {
		return errors.New("queue message: it has a line end in it")
	}
	if ctx.Err() != nil {
		return fmt.Errorf("queue message: %w", context.Cause(ctx))
	}
	mine, err := s.admit(ctx, m)
	if mine {
		s.writeNow(m)
	}
	return err
}

// admit takes m in its turn, once there is room. mine says that the caller is to write it.
func (s *Stdio) admit(ctx context.Context, m *Message) (mine bool, err error) {
	select {
	case s.gate <- struct{}{}:
		defer func() { <-s.gate }()
	case <-s.closed:
		return false, ErrClosed
	case <-ctx.Done():
		return false, fmt.Errorf("wait to queue message: %w", context.Cause(ctx))
	}
	for {
		if taken, mine, err := s.enqueue(m); taken || err != nil {
			return mine, err
		}
		select {
		case <-s.room:
		case <-s.closed:
			return false, ErrClosed
		case <-ctx.Done():
			return false, fmt.Errorf("wait to queue message: %w", context.Cause(ctx))
		}
	}
}

// enqueue takes m if there is room: into the queue, or, if it is mine, into the hands of
// the caller, which saves the detour by way of the writer.
func (s *Stdio) enqueue(m *Message) (taken, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false, false, ErrClosed
	}
	if s.queued > 0 && s.queued+len(m.Bytes) > s.config.QueueBytes {
		return false, false, nil
	}
	s.queued += len(m.Bytes)
	if s.direct != nil && s.running && !s.writing && len(s.queue) == 0 && len(m.Bytes) < writeBytes {
		s.writing = true
		return true, true, nil
	}
	s.queue = append(s.queue, m)
	s.wakeLocked()
	return true, false, nil
}

// wakeLocked wakes the writer if there may be something for it to do. Whoever writes
// sees to that at the end.
func (s *Stdio) wakeLocked() {
	if !s.writing {
		signal(s.wake)
	}
}

// Run reads the server's output into h until the link ends, and returns why: ErrExited,
// io.EOF, an error of reading, ErrBrokenInput, or that of Abort. What the server has
// already written is delivered first, except after Abort (R1). When Run returns, all
// goroutines of the link have ended, In is closed, and h is not called any more.
func (s *Stdio) Run(h Handler) error {
	s.mu.Lock()
	again := s.running
	s.running = true
	s.mu.Unlock()
	if again {
		panic("upstream: Run was called twice")
	}

	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(s.write)
	wg.Go(func() { s.watch(done) })
	err := s.read(h)
	s.stop()
	close(done)
	s.closeIn() // Its error says nothing that matters now.
	wg.Wait()

	if isClosed(s.aborted) {
		return s.abortErr
	}
	if isClosed(s.config.Exited) {
		return ErrExited
	}
	if isClosed(s.lost) {
		return s.lossErr
	}
	return err
}

// Abort ends Run with err from elsewhere, promptly, also when the server neither reads
// nor writes. Only the first call counts, and none after Run has returned.
func (s *Stdio) Abort(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isClosed(s.aborted) {
		return
	}
	s.stopLocked()
	s.abortErr = err
	close(s.aborted)
}

// CloseInput closes the server's stdin, which asks it to end, after what is queued was
// written. It waits for that no longer than DrainWait; if the server does not read, the
// rest is dropped. Further calls return the same error.
func (s *Stdio) CloseInput() error {
	s.mu.Lock()
	s.refuseLocked()
	running := s.running
	s.mu.Unlock()
	if running {
		timeout := time.NewTimer(s.config.DrainWait)
		defer timeout.Stop()
		select {
		case <-s.written:
		case <-timeout.C:
		}
	}
	s.stop()
	if err := s.closeIn(); err != nil {
		return fmt.Errorf("close the server's stdin: %w", err)
	}
	return nil
}

// refuseLocked makes Send refuse from now on; what is queued is still written.
func (s *Stdio) refuseLocked() {
	if !s.closing {
		s.closing = true
		close(s.closed)
	}
	s.wakeLocked()
}

// stopLocked makes Send refuse, and the writer leave what is queued.
func (s *Stdio) stopLocked() {
	s.stopped = true
	s.queue = nil
	s.refuseLocked()
}

func (s *Stdio) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopLocked()
}

// lose notes why the link is about to end; the first reason counts. Output that is
// on its way is still read.
func (s *Stdio) lose(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isClosed(s.lost) {
		return
	}
	s.stopLocked()
	s.lossErr, s.lostAt = err, time.Now()
	close(s.lost)
}

// write is the writer: it writes what is queued until the link takes no more.
func (s *Stdio) write() {
	defer close(s.written)
	var batch []*Message
	for {
		batch = s.take(batch[:0])
		if len(batch) == 0 {
			s.closeIn() // The server sees the end of its input, or is gone.
			return
		}
		if err := s.writeBatch(batch); err != nil {
			s.writeFailed(err)
			return
		}
		written := 0
		for _, m := range batch {
			written += len(m.Bytes)
		}
		s.wrote(written, nil)
		clear(batch)
	}
}

// take moves messages from the queue to batch, at least one and up to writeBytes; it
// waits for the first, and until nobody else writes. None means that there will be none.
func (s *Stdio) take(batch []*Message) []*Message {
	for {
		s.mu.Lock()
		n, size := 0, 0
		for !s.writing && n < len(s.queue) && (n == 0 || size+len(s.queue[n].Bytes) <= writeBytes) {
			size += len(s.queue[n].Bytes)
			n++
		}
		batch = append(batch, s.queue[:n]...)
		s.queue = slices.Delete(s.queue, 0, n)
		over := s.closing && !s.writing
		s.writing = s.writing || n > 0
		s.mu.Unlock()
		if n > 0 || over {
			return batch
		}
		<-s.wake
	}
}

// wrote is the end of writing: that many bytes have left, and rest is to be written next,
// unless it is nil.
func (s *Stdio) wrote(n int, rest *Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	s.queued -= n
	if rest != nil && !s.stopped {
		s.queue = slices.Insert(s.queue, 0, rest)
	}
	if len(s.queue) > 0 || s.closing {
		signal(s.wake)
	}
	signal(s.room)
}

// writeBatch writes messages with one write; a long one it does not copy.
func (s *Stdio) writeBatch(batch []*Message) error {
	for _, m := range batch {
		m.sent.Store(true)
	}
	s.buf = s.buf[:0]
	if first := batch[0].Bytes; len(first) > writeBytes { // It came alone.
		if _, err := s.config.In.Write(first); err != nil {
			return err
		}
	} else {
		s.buf = append(s.buf, first...)
	}
	for _, m := range batch[1:] {
		s.buf = append(append(s.buf, '\n'), m.Bytes...)
	}
	s.buf = append(s.buf, '\n')
	_, err := s.config.In.Write(s.buf)
	return err
}

// writeNow writes a message of the caller's as far as the pipe has room, and leaves the
// rest to the writer.
func (s *Stdio) writeNow(m *Message) {
	m.sent.Store(true)
	s.buf = append(append(s.buf[:0], m.Bytes...), '\n')
	n, err := s.direct.write(s.buf)
	if err != nil {
		s.writeFailed(err)
	}
	var rest *Message
	if err == nil && n < len(s.buf) {
		rest = &Message{Bytes: m.Bytes[n:]}
	}
	s.wrote(min(n, len(m.Bytes)), rest)
}

// writeFailed notes that the server's stdin is broken, unless we closed it.
func (s *Stdio) writeFailed(err error) {
	s.mu.Lock()
	stopped := s.stopped
	s.mu.Unlock()
	if !stopped {
		s.lose(fmt.Errorf("%w: %w", ErrBrokenInput, err))
	}
	s.closeIn()
}

// watch interrupts the reader when the link was aborted, or was lost DrainWait ago.
func (s *Stdio) watch(done <-chan struct{}) {
	select {
	case <-s.config.Exited:
		s.lose(ErrExited)
	case <-s.lost:
	case <-s.aborted:
	case <-done:
		return
	}
	if !isClosed(s.aborted) {
		var drained <-chan time.Time
		if s.deadline != nil {
			s.limitRead(s.config.DrainWait)
		} else {
			timer := time.NewTimer(s.config.DrainWait)
			defer timer.Stop()
			drained = timer.C
		}
		select {
		case <-drained:
		case <-s.aborted:
		case <-done:
			return
		}
	}
	if s.deadline != nil {
		s.limitRead(0)
	} else if c, ok := s.config.Out.(io.Closer); ok {
		c.Close() // It is our only means to end a Read; the owner may close again.
	}
}

// limitRead makes a Read that is under way, or the next one, end after d.
func (s *Stdio) limitRead(d time.Duration) {
	// NewStdio has seen that it works; if the file is closed, reads end anyway.
	_ = s.deadline.SetReadDeadline(time.Now().Add(d))
}

// read is the reader: it reads lines until there are no more, or, when the link was
// lost, until it waited for DrainWait in all. Only the waiting counts: a slow Handler
// loses nothing that is in the pipe.
func (s *Stdio) read(h Handler) error {
	lines := lineReader{handler: h, max: s.config.MaxLine}
	var waited time.Duration // for output since the loss
	drained := 0             // bytes read since then
	for {
		if isClosed(s.lost) && s.deadline != nil {
			s.limitRead(s.config.DrainWait - waited)
		}
		if isClosed(s.aborted) { // To be looked at after the deadline was set, see watch.
			return nil
		}
		start := time.Now()
		n, err := s.config.Out.Read(lines.space())
		if isClosed(s.lost) {
			if start.Before(s.lostAt) {
				start = s.lostAt
			}
			waited += time.Since(start)
			drained += n
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = nil // It may have passed while the handler was busy; waited knows better.
			}
		}
		lines.add(n)
		if err == nil && waited < s.config.DrainWait && drained < drainBytes {
			continue
		}
		if isClosed(s.aborted) {
			return nil
		}
		lines.end()
		if err == nil || errors.Is(err, io.EOF) {
			return io.EOF
		}
		return fmt.Errorf("read the server's stdout: %w", err)
	}
}

// signal wakes whoever waits for c, or the next one who does.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// isClosed reports whether a channel that nothing is sent to was closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
