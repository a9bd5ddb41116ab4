package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/pool"
)

// Outcome is how a clean-up went (N5).
type Outcome string

// The outcomes.
const (
	CleanupOK      Outcome = "ok"
	CleanupFailed  Outcome = "failed"
	CleanupTimeout Outcome = "timeout"
	CleanupSkipped Outcome = "skipped" // nothing was called, or it would concern other sessions
)

var outcomes = []Outcome{CleanupOK, CleanupFailed, CleanupTimeout, CleanupSkipped}

// CleanupInfo describes a clean-up.
type CleanupInfo struct {
	Server     string    `json:"server"`
	Tool       string    `json:"tool"`
	Outcome    Outcome   `json:"outcome"`
	Reason     string    `json:"reason,omitempty"` // why it was skipped, or failed
	At         time.Time `json:"at"`
	DurationMs int64     `json:"durationMs"`
}

const (
	cleanupTool  = "cleanup_session" // of servers that name none in their configuration
	cleanupLimit = 10 * time.Second  // for all clean-ups of a session together
	cleanupsKept = 32                // in a session's description
)

// cleanUp tells the servers behind bindings that the session has used them for the last
// time, before their connections are released (N5): each once for what was called since
// the last time, also through connections that a new configuration has replaced, all at
// once, on a context of its own. Calls must have ended. Nobody is
// told who was not used, nor on a shared connection, where other sessions would suffer,
// unless the configuration wants that.
func (s *Session) cleanUp(order []*binding) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
	defer cancel()
	var wg sync.WaitGroup
	for _, b := range order {
		for _, att := range b.attachments() {
			wg.Go(func() { b.cleanUp(ctx, att) })
		}
	}
	wg.Wait()
}

// use notes that a tool is called through an attachment (N5), and returns what the result
// is to say of an instance that the session has no more, once. An attachment that was given
// back in this moment refuses the call.
func (b *binding) use(att *pool.Attachment) (loss string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.hasLocked(att) {
		return ""
	}
	b.used[att] = true
	if b.att == att {
		loss, b.loss = b.loss, ""
	}
	return loss
}

// cleanUp is the clean-up of one attachment. If another end of its use is at it, it waits
// for that: what comes next gives the connection back.
func (b *binding) cleanUp(ctx context.Context, att *pool.Attachment) {
	b.mu.Lock()
	for other := b.cleaning[att]; other != nil; other = b.cleaning[att] {
		b.mu.Unlock()
		<-other // it has a limit of its own
		b.mu.Lock()
	}
	used, known := b.used[att]
	if !b.hasLocked(att) || known && !used {
		b.mu.Unlock()
		return // another end has done it
	}
	b.used[att] = false
	mine := make(chan struct{})
	b.cleaning[att] = mine
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.cleaning, att)
		b.mu.Unlock()
		close(mine)
	}()
	server := att.Settings()
	call := server.Cleanup.ToolCall
	if call.Tool == "" {
		if !att.HasTool(cleanupTool) {
			return
		}
		call = config.ToolCall{Tool: cleanupTool}
	}
	done := CleanupInfo{Server: b.name, Tool: call.Tool, Outcome: CleanupSkipped, At: time.Now()}
	switch {
	case !used:
		done.Reason = "no tool was called"
	case !att.Own() && !server.Cleanup.Shared:
		done.Reason = "other sessions use the connection; cleanup.shared of the server sets it"
	case !att.Live():
		done.Reason = "the connection has ended"
	default:
		one, cancel := context.WithTimeout(ctx, server.Cleanup.Timeout)
		err := att.Call(one, call)
		cancel()
		switch {
		case err == nil:
			done.Outcome = CleanupOK
		case errors.Is(err, context.DeadlineExceeded):
			done.Outcome, done.Reason = CleanupTimeout, "no answer in time"
		default:
			done.Outcome, done.Reason = CleanupFailed, err.Error()
		}
		done.DurationMs = time.Since(done.At).Milliseconds()
	}
	b.s.cleaned(done)
}

// cleaned logs, counts and keeps the outcome of a clean-up.
func (s *Session) cleaned(done CleanupInfo) {
	m := s.m
	log := m.cfg.Log.Info
	if done.Outcome == CleanupFailed || done.Outcome == CleanupTimeout {
		log = m.cfg.Log.Warn
	}
	log("clean-up "+string(done.Outcome), "session", s.id, "server", done.Server, "tool", done.Tool, "reason", done.Reason)
	m.cfg.Events.Publish(event.Event{Kind: event.SessionCleanup, Principal: s.principal, Session: s.id, Server: done.Server, Outcome: string(done.Outcome), Reason: done.Reason})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cleanups[done.Outcome]++
	s.changedLocked()
	s.cleanups = append(s.cleanups, done)
	s.cleanups = s.cleanups[max(0, len(s.cleanups)-cleanupsKept):]
}
