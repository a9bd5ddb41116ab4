//go:build unix

package upstream

import (
	"fmt"
	"io"
	"syscall"
	"time"
)

// direct writes to a pipe without waiting for room in it. One goroutine at a time may
// use it, and none while another Write waits.
type direct struct {
	conn syscall.RawConn
	try  func(fd uintptr) bool // attempt; one value, lest each write allocates one

	// Of the attempt under way.
	bytes []byte
	n     int
	err   error
}

// newDirect returns what writes to w without waiting, or nil if w cannot do that: it must
// be a file that the runtime polls, which never blocks a thread.
func newDirect(w io.Writer) *direct {
	file, ok := w.(interface {
		syscall.Conn
		SetWriteDeadline(time.Time) error
	})
	if !ok || file.SetWriteDeadline(time.Time{}) != nil {
		return nil
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return nil
	}
	d := &direct{conn: conn}
	d.try = d.attempt
	return d
}

// write writes as much of b as there is room for, which may be nothing.
func (d *direct) write(b []byte) (n int, err error) {
	d.bytes = b
	err = d.conn.Write(d.try)
	d.bytes = nil
	if err == nil {
		err = d.err
	}
	if err != nil {
		return 0, fmt.Errorf("write without waiting: %w", err)
	}
	return d.n, nil
}

// attempt always reports that it is done: the caller does not wait for more room.
func (d *direct) attempt(fd uintptr) bool {
	for {
		d.n, d.err = syscall.Write(int(fd), d.bytes)
		switch d.err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			d.n, d.err = 0, nil
		}
		return true
	}
}
