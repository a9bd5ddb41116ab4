package model

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"roundhouse/internal/store"
)

// spoolMemory is how many bytes of a body are held in memory; what is longer goes to a
// file (C11).
const spoolMemory = 4 << 20

// errTooLong is a body that is longer than its spool may be.
var errTooLong = errors.New("it is longer than llm.maxBody")

// spool keeps a body until it can be stored. Close frees it. It is not safe for
// concurrent use.
type spool struct {
	dir   string // for the file; "" is the system's
	limit int64

	mem  bytes.Buffer
	file *os.File // nil while everything is in mem
	size int64
	err  error // why something is missing, and nothing more is kept
}

// add keeps the bytes, unless it is full or broken, which err says.
func (s *spool) add(p []byte) {
	switch {
	case s.err != nil:
	case s.size+int64(len(p)) > s.limit:
		s.err = errTooLong
	case s.file == nil && s.size+int64(len(p)) <= spoolMemory:
		s.mem.Write(p)
		s.size += int64(len(p))
	default:
		s.err = s.spill(p)
	}
}

func (s *spool) spill(p []byte) error {
	if s.file == nil {
		f, err := os.CreateTemp(s.dir, "roundhouse-body-*")
		if err != nil {
			return fmt.Errorf("spool a body to disk: %w", err)
		}
		s.file = f
		if runtime.GOOS != "windows" {
			_ = os.Remove(f.Name()) // it is gone when it is closed, also after a crash
		}
		if _, err := f.Write(s.mem.Bytes()); err != nil {
			return fmt.Errorf("spool a body to disk: %w", err)
		}
		s.mem = bytes.Buffer{}
	}
	if _, err := s.file.Write(p); err != nil {
		return fmt.Errorf("spool a body to disk: %w", err)
	}
	s.size += int64(len(p))
	return nil
}

// reader reads the body from its beginning.
func (s *spool) reader() io.Reader {
	if s.file == nil {
		return bytes.NewReader(s.mem.Bytes())
	}
	return io.NewSectionReader(s.file, 0, s.size)
}

// bytes returns the whole body, which is not to be changed.
func (s *spool) bytes() ([]byte, error) {
	if s.file == nil {
		return s.mem.Bytes(), nil
	}
	body := make([]byte, s.size)
	if _, err := io.ReadFull(s.reader(), body); err != nil {
		return nil, fmt.Errorf("read a spooled body: %w", err)
	}
	return body, nil
}

// pack compresses the body for the store.
func (s *spool) pack() (store.Body, error) {
	if s.file == nil {
		return store.Pack(s.mem.Bytes()), nil
	}
	return store.PackFrom(s.reader())
}

func (s *spool) close() {
	s.mem = bytes.Buffer{}
	if s.file == nil {
		return
	}
	_ = s.file.Close() // nothing of it is needed
	if runtime.GOOS == "windows" {
		_ = os.Remove(s.file.Name())
	}
	s.file = nil
}
