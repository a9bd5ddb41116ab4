package relay

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"roundhouse/internal/wire"
)

// BufferSize is how much is read at once, in bytes.
const BufferSize = 32 << 10

// Lines reads frames line by line. It must not be used concurrently.
type Lines struct {
	r   *bufio.Reader
	max int
}

// NewLines returns a reader of lines up to max bytes, without the line end.
func NewLines(r *bufio.Reader, max int) *Lines { return &Lines{r, max} }

// TooLong is the error for a line over the limit. Its bytes are gone; the next line
// can be read.
type TooLong struct {
	ID    []byte    // of the frame, if it could be found, else nil
	Kind  wire.Kind // of the frame, as far as it was seen
	Size  int64     // in bytes
	Limit int
}

// Error says how long the line was.
func (e *TooLong) Error() string {
	return fmt.Sprintf("a frame of %d bytes is over the limit of %d", e.Size, e.Limit)
}

// Next returns the next line that is not blank, without its line end. The line is the
// caller's. A last line without a line end is no frame: it was cut off, and
// io.ErrUnexpectedEOF stands for it. So a frame that was not written to its end has
// not been read.
func (l *Lines) Next() ([]byte, error) {
	for {
		line, err := l.next()
		if err != nil || len(bytes.TrimSpace(line)) > 0 {
			return line, err
		}
	}
}

func (l *Lines) next() ([]byte, error) {
	piece, err := l.r.ReadSlice('\n')
	if err == nil && len(piece) <= l.max+1 {
		return bytes.Clone(piece[:len(piece)-1]), nil
	}
	line := bytes.Clone(piece)
	for errors.Is(err, bufio.ErrBufferFull) && len(line) <= l.max {
		piece, err = l.r.ReadSlice('\n')
		line = append(line, piece...)
	}
	switch {
	case len(line) > l.max+1 || errors.Is(err, bufio.ErrBufferFull):
		return nil, l.skip(line, err)
	case err == nil:
		return line[:len(line)-1], nil
	case len(line) > 0 && errors.Is(err, io.EOF):
		return nil, io.ErrUnexpectedEOF
	}
	return nil, err
}

// skip reads to the end of a line that is too long, of which head was read.
func (l *Lines) skip(head []byte, err error) error {
	var scan wire.IDScanner
	scan.Write(head)
	size := int64(len(head))
	for errors.Is(err, bufio.ErrBufferFull) {
		var piece []byte
		piece, err = l.r.ReadSlice('\n')
		scan.Write(piece)
		size += int64(len(piece))
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	return &TooLong{ID: scan.ID(), Kind: scan.Kind(), Size: size - 1, Limit: l.max}
}
