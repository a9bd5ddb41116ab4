package process

import (
	"bytes"
	"sync"
)

// Ring keeps the last bytes that were written to it. It grows to its size as it
// fills. It is safe for concurrent use.
type Ring struct {
	size int // constant after NewRing

	// Guarded by mu.
	mu    sync.Mutex
	buf   []byte
	next  int // where the next byte goes once buf is full
	total int64
}

// NewRing returns a ring of at most size bytes; less than 1 is 256 KiB (P5).
func NewRing(size int) *Ring {
	if size < 1 {
		size = 256 << 10
	}
	return &Ring{size: size}
}

// Write appends b and never fails.
func (r *Ring) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(b)
	r.total += int64(n)
	if len(b) > r.size {
		b = b[len(b)-r.size:]
	}
	grow := min(r.size-len(r.buf), len(b))
	r.buf = append(r.buf, b[:grow]...)
	for b = b[grow:]; len(b) > 0; {
		c := copy(r.buf[r.next:], b)
		r.next = (r.next + c) % r.size
		b = b[c:]
	}
	return n, nil
}

// Bytes returns a copy of what is kept, oldest first.
func (r *Ring) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(bytes.Clone(r.buf[r.next:]), r.buf[:r.next]...)
}

// After returns a copy of what was written after the first offset bytes, as far as it
// is kept, and how many bytes were written in all. What it returns is shorter than
// their difference if some of it is lost.
func (r *Ring) After(offset int64) (text []byte, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := int(min(max(r.total-offset, 0), int64(len(r.buf))))
	if older := r.next - n; older < 0 {
		text = append(text, r.buf[len(r.buf)+older:]...)
		n = r.next
	}
	return append(text, r.buf[r.next-n:r.next]...), r.total
}

// Total returns how many bytes were written, kept or not.
func (r *Ring) Total() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// Lines returns the last n lines that are kept, or fewer, without their line
// ends. A last line that is not complete counts; a first line whose beginning was
// overwritten does not, unless it is the only one.
func (r *Ring) Lines(n int) []string {
	text := r.Bytes()
	lost := r.Total() > int64(len(text))
	text = bytes.TrimSuffix(text, []byte("\n"))
	if n < 1 || len(text) == 0 {
		return nil
	}
	lines := bytes.Split(text, []byte("\n"))
	if lost && len(lines) > 1 {
		lines = lines[1:]
	}
	lines = lines[max(0, len(lines)-n):]
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = string(bytes.TrimSuffix(l, []byte("\r")))
	}
	return out
}
