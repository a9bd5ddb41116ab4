// Package load drives MCP servers with calls of an echo tool and measures them. It
// speaks raw JSON-RPC over Streamable HTTP and over the stdio of a child process,
// with as little work per call as it can, because it shares the machine with what
// it measures.
package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// MinPayload is the smallest payload in bytes. Every payload begins with a tag of
// this length that names its session and call, so that an answer which goes to the
// wrong call is noticed.
const MinPayload = 16

// protocolVersion is what the clients ask for: the newest one with an initialize
// handshake.
const protocolVersion = "2025-11-25"

// grace is how long the last calls of a run may take after its duration is over.
const grace = 20 * time.Second

const initializeBody = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"` + protocolVersion +
	`","capabilities":{},"clientInfo":{"name":"roundhouse-bench","version":"1"}}}`

// modernVersion is the protocol version whose clients make no handshake: they say in
// each request, by modernMeta, what others say once.
const modernVersion = "2026-07-28"

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + modernVersion +
	`","io.modelcontextprotocol/clientInfo":{"name":"roundhouse-bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`

const discoverBody = `{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{` + modernMeta + `}}`

const initializedBody = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// Session is one MCP session, or what takes its place without a handshake: one client that makes calls. Only SetDeadline may be called while
// another method runs.
type Session interface {
	// Call calls the echo tool with payload, which must need no escapes in JSON,
	// checks that the answer carries the call's id and the payload, and returns the
	// time from the start of sending to the end of the answer. A session that
	// returned an error can only be closed.
	Call(payload []byte) (time.Duration, error)
	// SetDeadline makes calls fail that wait at or after t.
	SetDeadline(t time.Time) error
	// Close ends the session and frees all it holds. It waits for a bounded time.
	Close() error
}

// Plan is what Run does.
type Plan struct {
	Sessions []Session     // All call at the same time, each one call after the other.
	Payload  int           // The bytes of text in each call, at least MinPayload.
	Duration time.Duration // No call starts after it, except each session's first.
}

// Result is what Run measured. Every call of it was answered correctly: Run fails
// at the first that is not.
type Result struct {
	Elapsed   time.Duration   // From the start to the last answer.
	Latencies []time.Duration // One per call, ascending.
}

// CallsPerSecond returns the throughput of all sessions together.
func (r Result) CallsPerSecond() float64 {
	return float64(len(r.Latencies)) / r.Elapsed.Seconds()
}

// Quantile returns the latency that a share q (0 to 1) of the calls did not exceed,
// by nearest rank. It returns 0 if there were no calls.
func (r Result) Quantile(q float64) time.Duration { return Quantile(r.Latencies, q) }

// Quantile returns the duration that a share q (0 to 1) of sorted ones does not exceed,
// by nearest rank, and 0 if there are none.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return sorted[min(max(int(q*float64(n)+0.5)-1, 0), n-1)]
}

// Run carries out p. It returns the first error of any session, or the cause of
// ctx's end; after an error the sessions can only be closed.
func Run(ctx context.Context, p Plan) (Result, error) {
	if p.Payload < MinPayload {
		return Result{}, fmt.Errorf("payload of %d bytes is below %d", p.Payload, MinPayload)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	begin := time.Now()
	end := begin.Add(p.Duration)
	for _, s := range p.Sessions {
		if err := s.SetDeadline(end.Add(grace)); err != nil {
			return Result{}, fmt.Errorf("set the deadline of a session: %w", err)
		}
	}
	finished := make(chan struct{})
	var watcher, workers sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-finished:
		case <-ctx.Done():
			for _, s := range p.Sessions {
				// A session that cannot take it is closed, and its worker has failed.
				_ = s.SetDeadline(begin)
			}
		}
	})
	latencies := make([][]time.Duration, len(p.Sessions))
	for i, s := range p.Sessions {
		workers.Go(func() {
			var err error
			if latencies[i], err = callUntil(ctx, s, i, p.Payload, end); err != nil {
				cancel(fmt.Errorf("session %d: %w", i, err))
			}
		})
	}
	workers.Wait()
	elapsed := time.Since(begin)
	close(finished)
	watcher.Wait()
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	all := slices.Concat(latencies...)
	slices.Sort(all)
	return Result{Elapsed: elapsed, Latencies: all}, nil
}

// callUntil makes one call after the other until end, and at least one.
func callUntil(ctx context.Context, s Session, session, size int, end time.Time) ([]time.Duration, error) {
	payload := []byte(strings.Repeat("roundhouse-", size/11+1)[:size])
	var latencies []time.Duration
	for call := uint64(0); ctx.Err() == nil && (call == 0 || time.Now().Before(end)); call++ {
		tag(payload, uint16(session), call)
		latency, err := s.Call(payload)
		if err != nil {
			return nil, err
		}
		latencies = append(latencies, latency)
	}
	return latencies, nil
}

// tag overwrites the first MinPayload bytes of payload.
func tag(payload []byte, session uint16, call uint64) {
	const digits = "0123456789abcdef"
	n := uint64(session)<<48 | call&(1<<48-1)
	for i := MinPayload - 1; i >= 0; i-- {
		payload[i] = digits[n&15]
		n >>= 4
	}
}

// negotiated returns the protocol version in the answer to initializeBody, or "" if
// message is no answer.
func negotiated(message []byte) (string, error) {
	f, err := parseFrame(message)
	if err != nil {
		return "", fmt.Errorf("read the answer to initialize: %w: %s", err, head(message))
	}
	if f.err != nil {
		return "", fmt.Errorf("initialize failed: %s", head(f.err))
	}
	if f.result == nil {
		return "", nil
	}
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(f.result, &result); err != nil {
		return "", fmt.Errorf("read the result of initialize: %w", err)
	}
	if result.ProtocolVersion == "" {
		return "", errors.New("the result of initialize names no protocol version")
	}
	return result.ProtocolVersion, nil
}

// discovered says whether message answers discoverBody, and fails if the server does
// not know modernVersion.
func discovered(message []byte) (bool, error) {
	f, err := parseFrame(message)
	if err != nil {
		return false, fmt.Errorf("read the answer to server/discover: %w: %s", err, head(message))
	}
	if f.err != nil {
		return false, fmt.Errorf("server/discover failed: %s", head(f.err))
	}
	if f.result == nil {
		return false, nil
	}
	var result struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err := json.Unmarshal(f.result, &result); err != nil {
		return false, fmt.Errorf("read the result of server/discover: %w", err)
	}
	if !slices.Contains(result.SupportedVersions, modernVersion) {
		return false, fmt.Errorf("the server knows the versions %q, not %s", result.SupportedVersions, modernVersion)
	}
	return true, nil
}
