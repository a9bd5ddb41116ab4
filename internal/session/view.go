package session

import (
	"context"
	"reflect"
	"slices"
	"strings"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/wire"
)

// What a session sees and may call of a server's tools and prompts is what three filters
// let through: the server's own, the principal's and the session's. They are looked at
// whenever something is listed or called, so a filter that changes needs no more than a
// word to the clients (V3, V4).

// Tools is a filter of tools and prompts by server. The zero value lets everything through.
type Tools = config.ToolFilter

// permits reports whether f lets through a server's tool or prompt.
func permits(f *Tools, server, name string) bool {
	names := func(entry string) bool {
		// An ambiguous literal name could stand for another server's, which does no harm
		// in an exclude list only.
		return entry == server+separator+"*" || entry == publicName(server, name)
	}
	if slices.ContainsFunc(f.Exclude, func(entry string) bool { return names(entry) || entry == server+separator+name }) {
		return false
	}
	return f.Include == nil || slices.ContainsFunc(f.Include, func(entry string) bool {
		entry, _, _ = strings.Cut(entry, "(")
		return names(entry)
	})
}

// narrow returns what the session's own filter and its principal's let through of the
// binding's server, nil if that is everything.
func (b *binding) narrow() func(name string) bool {
	theirs, filtered := b.s.m.live.Load().Filters[b.s.principal]
	own := b.s.tools.Load()
	switch {
	case filtered && own != nil:
		return func(name string) bool { return permits(&theirs, b.name, name) && permits(own, b.name, name) }
	case filtered:
		return func(name string) bool { return permits(&theirs, b.name, name) }
	case own != nil:
		return func(name string) bool { return permits(own, b.name, name) }
	}
	return nil
}

// SetTools replaces a session's filter, and stores it: no crash may let through again what
// somebody was told is not (N6). The session's clients are told that what they see has
// changed, the servers nothing (V4). Another principal's session is unknown.
func (m *Manager) SetTools(ctx context.Context, principal, id string, f *Tools) error {
	m.mu.Lock()
	s := m.findLocked(principal, false, id)
	m.mu.Unlock()
	if s == nil {
		return unknownSession(id)
	}
	s.setTools(f)
	if !s.settle(ctx, storeTimeout) {
		return fault.New(fault.Internal, "session %q has the filter from now on, but the database has not stored it yet, for the reason that the daemon's log gives; a restart before that would bring back the one before: ask for the change again until it works", id)
	}
	return nil
}

func (s *Session) setTools(f *Tools) {
	if f.Include == nil && len(f.Exclude) == 0 {
		f = nil
	}
	if before := s.tools.Swap(f); reflect.DeepEqual(before, f) {
		return
	}
	s.m.mu.Lock()
	s.changedLocked()
	clients := make([]*Client, 0, len(s.clients))
	for c := range s.clients {
		clients = append(clients, c)
	}
	s.m.mu.Unlock()
	for _, c := range clients {
		c.listChanged(mux.Tools)
		c.listChanged(mux.Prompts)
	}
}

// ParseTools reads a session's filter: an object with the arrays include and exclude, or
// null for none. What stands twice, or is not known, is refused rather than left without effect.
func ParseTools(raw []byte) (*Tools, error) {
	if string(raw) == "null" {
		return &Tools{}, nil
	}
	if len(raw) == 0 || raw[0] != '{' {
		return nil, errTools
	}
	var f Tools
	for m, err := range wire.Members(raw) {
		if err != nil {
			return nil, errTools
		}
		list := map[string]*[]string{"include": &f.Include, "exclude": &f.Exclude}[m.Key]
		if list == nil || *list != nil {
			return nil, errTools
		}
		value := m.Value.Of(raw)
		if value[0] != '[' {
			return nil, errTools
		}
		*list = []string{}
		for entry, err := range wire.Elements(value) {
			text, bad := wire.Text(entry.Of(value))
			if err != nil || bad != nil {
				return nil, errTools
			}
			if err := config.CheckTool(text); err != nil {
				return nil, fault.New(fault.BadRequest, "tools: %q %w", text, err)
			}
			*list = append(*list, text)
		}
	}
	return &f, nil
}

var errTools = fault.New(fault.BadRequest, `tools must be an object such as {"include": ["files__read"], "exclude": ["search__*"]}, or null`)
