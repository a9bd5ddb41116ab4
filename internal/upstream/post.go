package upstream

import "bytes"

// Post queues m without ever waiting, for a Handler's own answers: a server that
// waits for us to read must not make us wait for it to read. It may exceed the
// queue's size twofold. It reports whether m was queued; it is not when the link has
// ended, or when the server reads nothing at all.
func (s *Stdio) Post(m *Message) bool {
	if bytes.IndexByte(m.Bytes, '\n') >= 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.queued > 2*s.config.QueueBytes {
		return false
	}
	s.queue = append(s.queue, m)
	s.queued += len(m.Bytes)
	s.wakeLocked()
	return true
}

// Cancel does nothing: a server on the other end of a pipe learns from
// notifications/cancelled that a call is.
func (s *Stdio) Cancel(*Message) {}
