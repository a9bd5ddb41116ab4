package shim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// maxUnwritten is how many bytes for the client may wait before nothing more is read
// from the daemon.
const maxUnwritten = 1 << 20

// errOut says that the client cannot be written to.
var errOut = errors.New("write to the client")

// outbox writes frames to the client. Whoever puts one and finds nobody writing writes
// it, and whatever is put meanwhile, so that a frame reaches the client without another
// goroutine being woken.
type outbox struct {
	w      *bufio.Writer   // of whoever writes
	broken func(err error) // told an error of w, which wraps errOut

	mu      sync.Mutex
	quiet   *sync.Cond // nobody writes
	writing bool
	frames  [][]byte
	bytes   int  // in frames, and being written
	closed  bool // nothing is written any more
}

func newOutbox(w io.Writer, broken func(err error)) *outbox {
	o := &outbox{w: bufio.NewWriterSize(w, 16<<10), broken: broken}
	o.quiet = sync.NewCond(&o.mu)
	return o
}

// put writes a frame, which has no line end, or leaves it to whoever is writing.
func (o *outbox) put(raw []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.frames = append(o.frames, raw)
	o.bytes += len(raw)
	if o.writing {
		return
	}
	o.writing = true
	for len(o.frames) > 0 && !o.closed {
		frames := o.frames
		o.frames = nil
		o.mu.Unlock()
		n, err := o.write(frames)
		if err != nil {
			o.broken(err)
		}
		o.mu.Lock()
		o.bytes -= n
		o.closed = o.closed || err != nil
	}
	o.writing = false
	o.quiet.Broadcast()
}

func (o *outbox) write(frames [][]byte) (n int, err error) {
	for _, raw := range frames {
		_, _ = o.w.Write(raw) // Flush has the error
		_ = o.w.WriteByte('\n')
		n += len(raw)
	}
	if err := o.w.Flush(); err != nil {
		return n, fmt.Errorf("%w: %w", errOut, err)
	}
	return n, nil
}

// wait waits while somebody else is writing and much is to be written.
func (o *outbox) wait() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing && o.bytes > maxUnwritten && !o.closed {
		o.quiet.Wait()
	}
}

// close waits until nobody writes, but not longer than limit, and writes nothing from
// then on.
func (o *outbox) close(limit time.Duration) {
	late := time.AfterFunc(limit, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.closed = true
		o.quiet.Broadcast()
	})
	defer late.Stop()
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.writing && !o.closed {
		o.quiet.Wait()
	}
	o.closed = true
	o.quiet.Broadcast()
}
