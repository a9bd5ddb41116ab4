package tools

import (
	"context"
	"encoding/json"

	"roundhouse/internal/session"
)

// stats is the tool that shows the sessions of the caller's principal (N7). It blocks
// nothing, and waits for nothing.
func (t *Tools) stats() tool {
	return tool{
		name:        "session_stats",
		description: "Show your roundhouse sessions: how many there are and may be, and of each its state, age, tasks, calls in flight, the instances that it has, and what its servers use.",
		annotations: `{"readOnlyHint": true, "openWorldHint": false}`,
		run:         t.showSessions,
	}
}

func (t *Tools) showSessions(ctx context.Context, c *session.OwnCall) (result, error) {
	m, s := c.Manager(), c.Client.Session()
	describe := t.cfg.Describe
	if describe == nil {
		describe = func(_ context.Context, principal string) ([]session.Info, error) {
			return m.List(principal, false), nil
		}
	}
	list, err := describe(ctx, s.Principal())
	if err != nil {
		return result{}, err
	}
	stats := struct {
		Session string `json:"session,omitempty"` // the caller's
		session.Stats
		List []session.Info `json:"list"`
	}{s.ID(), m.Stats(), list}
	if c.Nameless() {
		stats.Session = ""
	}
	raw := encode(stats)
	return said(string(raw), json.RawMessage(raw)), nil
}

// cleanup is the tool that ends a session (N4).
func (t *Tools) cleanup() tool {
	return tool{
		name:        "session_cleanup",
		description: "End a roundhouse session: its calls and tasks may finish for a while, then its servers are cleaned up and what it has is given back.",
		annotations: `{"destructiveHint": true, "idempotentHint": true, "openWorldHint": false}`,
		properties:  `"session_id": {"type": "string", "description": "The session to end; without it, that of this connection."}`,
		run:         t.endSession,
	}
}

func (t *Tools) endSession(ctx context.Context, c *session.OwnCall) (result, error) {
	var a struct {
		Session string `json:"session_id"`
	}
	if err := read(c.Arguments, &a); err != nil {
		return result{}, err
	}
	id, err := place(c, a.Session)
	if err != nil {
		return result{}, err
	}
	m, own := c.Manager(), c.Client.Session()
	end := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.cfg.Grace()) // a session ends once, also when its caller has gone
		defer cancel()
		return m.End(ctx, own.Principal(), false, id, false)
	}
	if id == own.ID() { // its end waits for this call
		c.After(func() {
			if err := end(); err != nil {
				t.cfg.Log.Warn("a session could not be ended", "session", id, "err", err)
			}
		})
		return said("session "+id+" ends now", ended{id, "draining"}), nil
	}
	if err := end(); err != nil {
		return result{}, err
	}
	return said("session "+id+" has ended", ended{id, session.Closed}), nil
}

type ended struct {
	Session string        `json:"session"`
	State   session.State `json:"state"`
}

// release is the tool that gives an instance back (I2).
func (t *Tools) release() tool {
	return tool{
		name:        "session_release",
		description: "Give back the instance of a server that a roundhouse session has, such as its browser. The session's next call to that server gets another one.",
		annotations: `{"destructiveHint": true, "openWorldHint": false}`,
		properties: `"server": {"type": "string", "description": "The server whose instance is given back."}, ` +
			`"session_id": {"type": "string", "description": "The session that has it; without it, that of this connection."}`,
		required: []string{"server"},
		run: func(_ context.Context, c *session.OwnCall) (result, error) {
			server, id, err := instanceOf(c)
			if err != nil {
				return result{}, err
			}
			if err := c.Manager().ReleaseLease(c.Client.Session().Principal(), false, id, server); err != nil {
				return result{}, err
			}
			return said("session "+id+" has no instance of "+server+" any more", struct {
				Session string `json:"session"`
				Server  string `json:"server"`
			}{id, server}), nil
		},
	}
}

// instanceOf reads the arguments of a tool that is about a server's instance, and names the
// session that has it.
func instanceOf(c *session.OwnCall) (server, id string, err error) {
	var a struct {
		Server  string `json:"server"`
		Session string `json:"session_id"`
	}
	if err := read(c.Arguments, &a); err != nil {
		return "", "", err
	}
	id, err = place(c, a.Session)
	return a.Server, id, err
}

// screenshot is the tool that shows a session's instance (A1).
func (t *Tools) screenshot() tool {
	return tool{
		name:        "screenshot",
		description: "Take a picture of the instance that a roundhouse session has, such as its browser. A session that has none gets one.",
		annotations: `{"readOnlyHint": true}`,
		properties:  `"server": {"type": "string", "description": "The server whose instance is shown; it need not be given where there is only one."}, ` + sessionID,
		run: func(ctx context.Context, c *session.OwnCall) (result, error) {
			server, id, err := instanceOf(c)
			if err != nil {
				return result{}, err
			}
			b, err := c.Client.Branch(id, "")
			if err != nil {
				return result{}, err
			}
			defer b.Leave()
			picture, err := b.Session().Snapshot(ctx, server, true)
			if err != nil {
				return result{}, err
			}
			var r result
			if err := json.Unmarshal(picture.Content, &r.content); err != nil {
				return result{}, err
			}
			return r, nil
		},
	}
}
