package pool

import (
	"context"
	"errors"
	"time"

	"roundhouse/internal/era"
	"roundhouse/internal/fault"
	"roundhouse/internal/upstream"
	"roundhouse/internal/wire"
)

// watch asks the server for a sign of life whenever it has said nothing for the
// interval, and takes the connection for lost when too many questions in a row had no
// answer (R1). This is no use of the connection (T2).
//
// A server that works on a call may answer nothing else meanwhile, and often does not.
// While a client's call is in flight nothing is therefore asked, and a question beside
// which a call began does not count: what becomes of calls is callTimeout's matter.
func (c *connection) watch() {
	h := c.server.Health
	misses, ponged, question := 0, false, c.question()
	heard := c.heard.Load()
	for {
		select {
		case <-time.After(h.Interval):
		case <-c.ctx.Done():
			return
		}
		if now := c.heard.Load(); now != heard {
			heard, misses = now, 0
			continue
		}
		if c.mux.InFlight() > 0 {
			continue
		}
		lastCall := c.mux.LastCall()
		ctx, cancel := context.WithTimeout(c.ctx, h.Timeout)
		_, err := c.request(ctx, question, c.params())
		cancel()
		switch {
		case c.ctx.Err() != nil:
			return
		case err == nil:
			misses = 0
			ponged = ponged || question == c.question()
		case c.heard.Load() != heard, refused(err): // an error is an answer, too
			misses = 0
		case c.mux.LastCall().Equal(lastCall):
			misses++
		}
		heard = c.heard.Load()
		if misses >= h.Misses {
			err := fault.New(fault.Interrupted, "server %q did not answer when it was asked %d times for a sign of life, and is taken for dead; the next call starts it anew", c.server.Name, misses)
			err.Data = c.evidence()
			c.link.Abort(err)
			return
		}
		// Some servers ignore ping. One that never answered it is asked for what it has
		// answered at the start.
		if misses > 0 && !ponged {
			if lists := c.declared(); len(lists) > 0 {
				question = kindInfo[lists[0]].method
			}
		}
	}
}

// question is what a server is asked for a sign of life; the newer era has no ping.
func (c *connection) question() string {
	if c.hand.Era == era.Modern {
		return wire.Discover
	}
	return wire.Ping
}

// refused reports whether a remote server answered a request with an HTTP status.
func refused(err error) bool {
	_, status := errors.AsType[*upstream.StatusError](err)
	return status
}
