package session

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// Picture is what an instance looks like, as the tool in its server's instances.snapshot
// shows it (A2).
type Picture struct {
	Server  string
	Content json.RawMessage // of the tool's result: an array, as the server sent it
}

// snapshotLimit is how long an instance may take to show what it looks like.
const snapshotLimit = 30 * time.Second

// Snapshot takes a picture of the session's instance of a server. With "" that is the one
// instance which the session has, or, if it has none, one of the only server that declares
// instances.snapshot. With lease a session that has none leases one, as its first call would
// (I2).
//
// It is a call of the session like those of its clients: the filters hold, it is activity,
// it counts as a use that is cleaned up after, and it ends with the session. ctx bounds it;
// once there is an instance, 30 s do, too. Errors: fault.UnknownServer where there is
// nothing to take a picture of, fault.BadRequest where it is not clear of what,
// fault.CallTimeout, the *CallError with which a lease or the call fails, or the cause of
// ctx. A tool that answers with an error is one, too.
func (s *Session) Snapshot(ctx context.Context, server string, lease bool) (*Picture, error) {
	shown, leased, err := s.pictured(server)
	if err != nil {
		return nil, err
	}
	limit := snapshotLimit
	switch {
	case leased:
	case !lease:
		return nil, s.noInstance(shown.Name)
	default:
		limit += shown.Instances.MaxWait
	}
	slow := fault.New(fault.CallTimeout, "the instance of server %q did not show within %s what it looks like", shown.Name, snapshotLimit)
	slow.Server = shown.Name
	ctx, cancel := context.WithTimeoutCause(ctx, limit, slow)
	defer cancel()
	if ctx.Err() != nil { // the instance had better hear nothing of it
		return nil, context.Cause(ctx)
	}
	if err := s.enterForTask(); err != nil {
		return nil, err
	}
	g, err := s.welcome(shown.Name, Invitation{})
	if err != nil {
		return nil, err
	}
	defer g.Leave()
	tool := shown.Instances.Snapshot
	if tool.Arguments == nil {
		tool.Arguments = json.RawMessage("{}")
	}
	result, err := g.Call(ctx, tool.Tool, tool.Arguments, nil)
	if err != nil {
		return nil, fmt.Errorf("take a picture of server %q: %w", shown.Name, err)
	}
	var r struct {
		Content json.RawMessage `json:"content"`
		IsError bool            `json:"isError"`
	}
	switch err := json.Unmarshal(result, &r); {
	case err != nil:
		return nil, fmt.Errorf("read the picture of server %q: %w", shown.Name, err)
	case r.IsError:
		return nil, fmt.Errorf("take a picture of server %q: the tool %s answered with an error: %s", shown.Name, tool.Tool, r.Content)
	}
	return &Picture{Server: shown.Name, Content: r.Content}, nil
}

// pictured finds the server of which a picture is wanted, and whether the session has an
// instance of it.
func (s *Session) pictured(name string) (server *config.Server, leased bool, err error) {
	if name != "" {
		if server, err = s.server(name); err != nil {
			return nil, false, err
		}
		if !hasPicture(server) {
			err := fault.New(fault.UnknownServer, "server %q declares no tool that shows what it looks like; instances.snapshot of the server does", name)
			err.Server = name
			return nil, false, err
		}
		return server, s.has(name), nil
	}
	var all, mine []*config.Server
	for _, x := range s.servers() {
		if !hasPicture(x) {
			continue
		}
		all = append(all, x)
		if s.has(x.Name) {
			mine = append(mine, x)
		}
	}
	found := all
	if len(mine) > 0 {
		found = mine
	}
	switch len(found) {
	case 0:
		return nil, false, fault.New(fault.UnknownServer, "no server declares a tool that shows what it looks like; instances.snapshot of a server does")
	case 1:
		return found[0], len(mine) == 1, nil
	}
	names := make([]string, len(found))
	for i, x := range found {
		names[i] = x.Name
	}
	return nil, false, fault.New(fault.BadRequest, "there is a picture of several servers (%s); name one", strings.Join(names, ", "))
}

// enterForTask is enter, also for a session that is to end, while its tasks have their time (N4).
func (s *Session) enterForTask() error {
	return s.enterUnless(func() error {
		if s.lingersLocked() {
			return nil
		}
		return s.refusalLocked()
	})
}

// lingersLocked reports whether tasks still go on in the session.
func (s *Session) lingersLocked() bool { return len(s.tasks) > 0 && s.ctx.Err() == nil }

func hasPicture(server *config.Server) bool {
	return server.Sharing == config.Exclusive && server.Instances.Snapshot.Tool != ""
}

// has reports whether the session has an instance of a server.
func (s *Session) has(server string) bool {
	s.m.mu.Lock()
	order := slices.Clone(s.order)
	s.m.mu.Unlock()
	return slices.ContainsFunc(order, func(b *binding) bool { return b.name == server && len(b.leased()) > 0 })
}

func (s *Session) noInstance(server string) *fault.Error {
	err := fault.New(fault.UnknownServer, "session %q has no instance of a server that is called %q", s.id, server)
	err.Server = server
	return err
}
