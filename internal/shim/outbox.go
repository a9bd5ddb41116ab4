package shim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"
)

// maxUnwritten is how many bytes for the client may wait before nothing more is read
// from the daemon.
const maxUnwritten = 1 << 20

// errOut says that the client cannot be written to.
var errOut = errors.New("write to the client")

// outbox is what waits to be written to the client. put never blocks; whoever reads
// from the daemon calls wait after it.
type outbox struct {
	w    *bufio.Writer
	wake chan struct{} // something was put, or the box was closed
	room chan struct{} // something was taken

	mu     sync.Mutex
	frames [][]byte
	bytes  int
	closed bool
}

func newOutbox(w io.Writer) *outbox {
	return &outbox{w: bufio.NewWriterSize(w, 16<<10), wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put adds a frame, without a line end. After close it is dropped.
func (o *outbox) put(raw []byte) {
	o.mu.Lock()
	if !o.closed {
		o.frames = append(o.frames, raw)
		o.bytes += len(raw)
	}
	o.mu.Unlock()
	signal(o.wake)
}

// wait waits until there is room, or done is closed.
func (o *outbox) wait(done <-chan struct{}) {
	for {
		o.mu.Lock()
		full := o.bytes > maxUnwritten
		o.mu.Unlock()
		if !full {
			return
		}
		select {
		case <-o.room:
		case <-done:
			return
		}
	}
}

// close lets run end when everything is written.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	signal(o.wake)
}

// run writes until the box is closed. The error, if the client cannot be written to,
// is errOut.
func (o *outbox) run() error {
	for range o.wake {
		o.mu.Lock()
		frames, closed := o.frames, o.closed
		o.frames = nil
		o.mu.Unlock()
		n := 0
		for _, raw := range frames {
			_, _ = o.w.Write(raw) // Flush has the error
			_ = o.w.WriteByte('\n')
			n += len(raw)
		}
		if err := o.w.Flush(); err != nil {
			return fmt.Errorf("%w: %w", errOut, err)
		}
		o.mu.Lock()
		o.bytes -= n
		o.mu.Unlock()
		signal(o.room)
		if closed {
			return nil
		}
	}
	return nil
}
