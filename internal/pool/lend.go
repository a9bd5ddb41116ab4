package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// What an instance needs of its connection. Its Holder, of no session, keeps the
// connection; the session that it is lent to has an attachment of its own meanwhile.

// Lend attaches a session to the connection, beside whoever keeps it, with the settings,
// the filter and the listener of w. The attachment is like any other of the session. An
// error means that the connection has ended.
func (a *Attachment) Lend(h *Holder, w Want) (*Attachment, error) {
	p, e := a.holder.pool, a.entry
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.drained:
		return nil, drainingFault()
	case h.released:
		return nil, ErrReleased
	case e.state != Active || a.detached.Load():
		err := fault.New(fault.Interrupted, "the connection to server %q has ended", e.name)
		err.Server, err.Sent, err.Err = e.name, fault.SentNo, e.err
		return nil, err
	}
	return p.attachLocked(h, e, w), nil
}

// End ends the connection, whoever is attached to it; they hear of it, and calls in flight
// get reason.
func (a *Attachment) End(reason *fault.Error) {
	p := a.holder.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked(a.entry, reason)
}

// Close is Release, and returns when nothing lives any more of the connections that were
// made for this holder alone, or could not be ended in the configured time.
func (h *Holder) Close() {
	h.Release()
	h.pool.mu.Lock()
	owned := h.owned
	h.pool.mu.Unlock()
	for _, e := range owned {
		e.running.Wait()
	}
}

// Ping asks the server for a sign of life of roundhouse's own. Any answer is one.
func (a *Attachment) Ping(ctx context.Context) error {
	c, err := a.live(ctx)
	if err != nil {
		return err
	}
	if _, err = c.request(ctx, wire.Ping, c.params()); err != nil {
		if _, answered := errors.AsType[*RPCError](err); !answered {
			return fmt.Errorf("ping: %w", err)
		}
	}
	return nil
}

// Call makes a call of roundhouse's own and throws the result away. A result that says it
// is an error is one. ctx bounds it.
func (a *Attachment) Call(ctx context.Context, call config.ToolCall) error {
	c, err := a.live(ctx)
	if err != nil {
		return err
	}
	params, err := json.Marshal(struct {
		Meta      json.RawMessage `json:"_meta,omitempty"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}{c.ownMeta(), call.Tool, argumentsOf(call)})
	if err != nil {
		return fmt.Errorf("call %s: %w", call.Tool, err)
	}
	raw, err := c.request(ctx, wire.ToolsCall, params)
	if err != nil {
		return fmt.Errorf("call %s: %w", call.Tool, err)
	}
	if failed, _ := memberOf(raw, "isError"); string(failed) == "true" {
		return fmt.Errorf("call %s: the tool answered with an error: %s", call.Tool, firstText(raw))
	}
	return nil
}

func argumentsOf(call config.ToolCall) json.RawMessage {
	if call.Arguments == nil {
		return json.RawMessage("{}")
	}
	return call.Arguments
}

// ownMeta is the _meta of our own requests, nil in the older era.
func (c *connection) ownMeta() json.RawMessage {
	if c.meta == nil {
		return nil
	}
	return append(append([]byte("{"), c.meta...), '}')
}

// firstText returns the first text of a tool's result, cut to what an error may quote.
func firstText(result []byte) string {
	var r struct {
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
	}
	if json.Unmarshal(result, &r) != nil {
		return ""
	}
	for _, x := range r.Content {
		if x.Text != "" {
			return x.Text[:min(len(x.Text), quotedText)]
		}
	}
	return ""
}

// quotedText is how many bytes of a tool's own error an error of ours quotes.
const quotedText = 300
