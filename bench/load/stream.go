package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// StreamPlan is what StartStreams does.
type StreamPlan struct {
	Addr    string        // of the HTTP server, such as "127.0.0.1:7420"
	Clients int           // each on one TCP connection, and in a session of its own
	Tokens  int           // that a whole stream has; another number is an error
	Spread  time.Duration // over which the clients' first streams begin
	Pause   time.Duration // at most, between two streams of one client; how long is random
}

// Streams are clients that read one streamed chat completion after the other.
type Streams struct {
	// Constant.
	plan   StreamPlan
	cancel context.CancelCauseFunc
	ctx    context.Context

	clients sync.WaitGroup
	ending  atomic.Bool // no further stream is begun
	tokens  atomic.Int64

	mu    sync.Mutex
	since time.Time // streams that began before do not count
	first []time.Duration
	end   []time.Duration
}

// StreamResult is what was measured since Measure was called.
type StreamResult struct {
	// First has for each stream the time from sending its request to its first token,
	// End that from its last token to its end, in ascending order.
	First, End []time.Duration
}

// StartStreams starts the clients. Stop ends them.
func StartStreams(ctx context.Context, p StreamPlan) *Streams {
	s := &Streams{plan: p, since: time.Now()}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	for i := range p.Clients {
		s.clients.Go(func() {
			if err := s.client(i); err != nil {
				s.cancel(fmt.Errorf("client %d: %w", i, err))
			}
		})
	}
	return s
}

// Measure forgets the streams that have begun so far.
func (s *Streams) Measure() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since, s.first, s.end = time.Now(), nil, nil
}

// Tokens returns how many tokens have come so far.
func (s *Streams) Tokens() int64 { return s.tokens.Load() }

// Wait waits for d, or until a client has failed.
func (s *Streams) Wait(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// Stop lets the streams that are under way end, and returns what was measured, or the
// first error of any client.
func (s *Streams) Stop() (StreamResult, error) {
	s.ending.Store(true)
	s.clients.Wait()
	err := context.Cause(s.ctx)
	s.cancel(nil)
	slices.Sort(s.first)
	slices.Sort(s.end)
	return StreamResult{s.first, s.end}, err
}

// client reads streams until Stop.
func (s *Streams) client(i int) error {
	random := rand.New(rand.NewPCG(uint64(i), 0)) // the same for all that is compared
	if err := s.Wait(s.plan.Spread * time.Duration(i) / time.Duration(s.plan.Clients)); err != nil {
		return err
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(s.ctx, "tcp", s.plan.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(s.ctx, func() { conn.Close() })
	defer stop()
	const body = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nX-Session-Id: bench-%d\r\nContent-Length: %d\r\n\r\n%s",
		s.plan.Addr, i, len(body), body)
	in := bufio.NewReaderSize(conn, 4<<10)
	events := bufio.NewReaderSize(nil, 4<<10)
	for !s.ending.Load() {
		if err := s.stream(conn, request, in, events); err != nil {
			if s.ctx.Err() != nil {
				err = context.Cause(s.ctx)
			}
			return err
		}
		if err := s.Wait(time.Duration(random.Int64N(int64(s.plan.Pause) + 1))); err != nil {
			return err
		}
	}
	return nil
}

// stream reads one stream.
func (s *Streams) stream(conn net.Conn, request []byte, in, events *bufio.Reader) error {
	begun := time.Now()
	if err := conn.SetDeadline(begun.Add(grace)); err != nil {
		return err
	}
	if _, err := conn.Write(request); err != nil {
		return fmt.Errorf("send the request: %w", err)
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return fmt.Errorf("wait for the response: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // only to explain the status
		return fmt.Errorf("status %s: %s", resp.Status, bytes.TrimSpace(text))
	}
	var first, last time.Time
	tokens, done := 0, false
	events.Reset(resp.Body)
	for {
		line, err := events.ReadSlice('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("read a stream: %w", err)
		}
		switch {
		case bytes.Contains(line, []byte(`"content"`)):
			last = time.Now()
			if tokens == 0 {
				first = last
			}
			tokens++
			s.tokens.Add(1)
		case bytes.HasPrefix(line, []byte("data: [DONE]")):
			done = true
		}
	}
	ended := time.Now()
	if tokens != s.plan.Tokens || !done {
		return fmt.Errorf("a stream ended after %d tokens of %d, done: %t", tokens, s.plan.Tokens, done)
	}
	if resp.Close {
		return errors.New("the server closes the connection")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if begun.After(s.since) {
		s.first, s.end = append(s.first, first.Sub(begun)), append(s.end, ended.Sub(last))
	}
	return nil
}
