package control

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/trace"
)

// skippedTrailer comes behind an export: which turns the format could not take.
const skippedTrailer = "X-Roundhouse-Skipped"

// exportPatience is how long a reader of an export may take nothing. It is long, since
// nothing is held up: one session's turns are in memory, and no read of the store is open.
const exportPatience = 10 * time.Minute

// export streams rows to train on, one line of JSON each (J3). The body of a POST is a
// file of rewards. An export that cannot go on breaks off its connection, and may be
// resumed after the last cursor.
func (c *Control) export(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	x, err := c.newExport(r, caller)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Trailer", skippedTrailer)
	if sent, err := c.write(w, r, x); err != nil {
		if !sent {
			h.Del("Trailer")
			front.WriteError(w, err)
			return
		}
		if r.Context().Err() == nil {
			c.cfg.Log.Error("an export broke off", "principal", caller.Principal, "err", err)
		}
		panic(http.ErrAbortHandler)
	}
	skipped, err := json.Marshal(x.Skipped())
	if err != nil {
		panic(err) // words and numbers
	}
	h.Set(skippedTrailer, string(skipped))
}

// newExport reads what to export.
func (c *Control) newExport(r *http.Request, caller front.Caller) (*trace.Export, error) {
	if c.cfg.Store == nil {
		return nil, errNothingRecorded
	}
	o, err := c.exportOptions(r, caller)
	if err != nil {
		return nil, err
	}
	if nothing, err := c.recordsNothing(r.Context()); nothing || err != nil {
		return nil, cmp.Or(err, error(errNothingRecorded))
	}
	if r.Method == http.MethodPost {
		if o.Rewards, err = trace.ReadRewards(r.Body); err != nil {
			if _, large := errors.AsType[*http.MaxBytesError](err); large {
				return nil, err
			}
			return nil, fault.New(fault.BadRequest, "%w", err)
		}
	}
	x, err := trace.NewExport(c.cfg.Store, o)
	if errors.Is(err, trace.ErrOptions) {
		return nil, fault.New(fault.BadRequest, "%w", err)
	}
	return x, err
}

// exportOptions reads the query.
func (c *Control) exportOptions(r *http.Request, caller front.Caller) (trace.Options, error) {
	q := r.URL.Query()
	after := q.Get("after") // its form is the format's
	q.Del("after")
	r = r.Clone(r.Context())
	r.URL.RawQuery = q.Encode()
	f, err := c.callFilter(r, caller, "format", "reward_key")
	if err != nil {
		return trace.Options{}, err
	}
	o := trace.Options{
		Format: trace.Format(q.Get("format")), Session: f.Session, Outcomes: f.Outcomes, Deliveries: f.Deliveries, Models: f.Models,
		Since: f.Since, Until: f.Until, RewardKey: q.Get("reward_key"), After: after,
	}
	if o.Format == "" {
		o.Format = trace.Messages
	}
	return o, nil
}

// write streams the rows until their end, or until the daemon is about to end (G1). It
// says whether anything was sent.
func (c *Control) write(w http.ResponseWriter, r *http.Request, x *trace.Export) (sent bool, err error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	conn := http.NewResponseController(w)
	done := make(chan struct{})
	joined := make(chan struct{})
	go func() { // joined below
		defer close(joined)
		select {
		case <-c.closing.Done():
			cancel(errClosing)
			_ = conn.SetWriteDeadline(time.Now()) // a write that waits for its reader waits no more
		case <-done:
		}
	}()
	defer func() {
		close(done)
		<-joined
	}()
	body := &patient{conn: conn, ctx: ctx, w: w}
	out := bufio.NewWriterSize(body, 64<<10)
	for line, err := range x.Lines(ctx) {
		if err == nil {
			_, err = out.Write(append(line, '\n'))
		}
		if err != nil {
			return body.sent, err
		}
	}
	err = out.Flush()
	return body.sent, err
}

var errClosing = fault.New(fault.Draining, "roundhouse is shutting down")

// patient gives each write exportPatience, until its context ends.
type patient struct {
	conn *http.ResponseController
	ctx  context.Context
	w    io.Writer
	sent bool
}

func (p *patient) Write(b []byte) (int, error) {
	_ = p.conn.SetWriteDeadline(time.Now().Add(exportPatience)) // not every ResponseWriter can
	if p.ctx.Err() != nil {
		return 0, context.Cause(p.ctx)
	}
	p.sent = true
	n, err := p.w.Write(b)
	if err == nil {
		// The next rows may take longer, and the connection goes on to the next request.
		_ = p.conn.SetWriteDeadline(time.Time{})
	}
	return n, err
}

// trajectories gives a session's rows of the format messages, or tokens, as one answer.
func (c *Control) trajectories(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	x, err := c.newExport(r, caller)
	rows := []json.RawMessage{}
	if err == nil {
		for line, lineErr := range x.Lines(r.Context()) {
			if err = lineErr; err != nil {
				break
			}
			rows = append(rows, line)
		}
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	front.WriteJSON(w, http.StatusOK, map[string]any{"trajectories": rows, "skipped": x.Skipped()})
}
