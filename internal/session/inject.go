package session

import (
	"cmp"
	"slices"

	"roundhouse/internal/config"
	"roundhouse/internal/event"
	"roundhouse/internal/fault"
)

// A session may have servers of its own beside those of the configuration, which are
// added and removed while it runs. They are there for its clients alone, in every way as
// if they were configured, are forgotten with the session, and outlast its sleep. One
// stays until it is removed, also if the configuration comes to have another of its name.

// Injected is a server that a session has for itself.
type Injected struct {
	Principal   string // of the session
	Session     string
	Server      *config.Server // read-only
	Connections []string       // ids of the session's connections to it
}

// Inject adds a server, from config.Config.Inject, to a session, whose clients hear of it.
// A name that the configuration or the session has already is taken; another principal's
// session is unknown.
func (m *Manager) Inject(principal, id string, server *config.Server) error {
	m.mu.Lock()
	s, err := m.runningLocked(principal, id)
	if err == nil && (m.live.Load().byName[server.Name] != nil || s.injectedLocked(server.Name) != nil) {
		err = fault.New(fault.NameTaken, "the configuration or the session has a server that is called %q already; choose another name", server.Name)
	}
	if err != nil {
		m.mu.Unlock()
		return err
	}
	s.injected = append(slices.Clip(s.injected), server)
	s.changedLocked()
	clients := s.seersLocked(server.Name)
	m.mu.Unlock()
	m.cfg.Log.Info("server injected", "session", id, "principal", principal, "server", server.Name)
	m.cfg.Events.Publish(event.Event{Kind: event.ServerInjected, Principal: principal, Session: id, Server: server.Name})
	for _, c := range clients {
		c.listsChanged()
	}
	return nil
}

// Remove takes an injected server off its session: calls in flight there are interrupted,
// and after its clean-up the connection ends. A configured server of the name, which has
// come meanwhile, takes its place.
func (m *Manager) Remove(principal, id, name string) error {
	m.mu.Lock()
	s, err := m.runningLocked(principal, id)
	if err == nil && s.injectedLocked(name) == nil {
		unknown := fault.New(fault.UnknownServer, "no server that is called %q was added to session %q", name, id)
		unknown.Server, err = name, unknown
	}
	if err != nil {
		m.mu.Unlock()
		return err
	}
	s.injected = slices.DeleteFunc(slices.Clone(s.injected), func(x *config.Server) bool { return x.Name == name })
	s.changedLocked()
	bound := s.forgetServerLocked(name)
	clients := s.seersLocked(name)
	m.mu.Unlock()
	s.dismiss(bound, name)
	m.cfg.Log.Info("server removed", "session", id, "principal", principal, "server", name)
	m.cfg.Events.Publish(event.Event{Kind: event.ServerRemoved, Principal: principal, Session: id, Server: name})
	for _, c := range clients {
		c.listsChanged()
	}
	return nil
}

// forgetServerLocked takes a server's bindings off the session; dismiss ends them.
func (s *Session) forgetServerLocked(name string) (bound []*binding) {
	for k, b := range s.bindings {
		if b.name == name {
			delete(s.bindings, k)
			bound = append(bound, b)
		}
	}
	s.order = slices.DeleteFunc(slices.Clone(s.order), func(b *binding) bool { return b.name == name })
	return bound
}

// dismiss ends bindings of a server that the session has no more: calls in flight there are
// interrupted, and after its clean-up the connection ends.
func (s *Session) dismiss(bound []*binding, name string) {
	why := fault.New(fault.Interrupted, "server %q was removed from the session", name)
	why.Server, why.Sent = name, fault.SentMaybe
	for _, b := range bound {
		b.silence(why)
	}
	s.cleanUp(bound)
	for _, b := range bound {
		b.configure(nil) // nothing attaches any more
		b.rest(why)
	}
}

// Injected lists the servers that sessions of a principal have for themselves, or with
// admin all of them, by name and session.
func (m *Manager) Injected(principal string, admin bool) []Injected {
	m.mu.Lock()
	var list []Injected
	var bound [][]*binding
	for _, s := range m.sessions {
		if s.principal != principal && !admin {
			continue
		}
		for _, server := range s.injected {
			list = append(list, Injected{Principal: s.principal, Session: s.id, Server: server, Connections: []string{}})
			bound = append(bound, slices.DeleteFunc(slices.Clone(s.order), func(b *binding) bool { return b.name != server.Name }))
		}
	}
	m.mu.Unlock()
	for i, bindings := range bound {
		for _, b := range bindings {
			list[i].Connections = append(list[i].Connections, b.connections()...)
		}
	}
	slices.SortFunc(list, func(a, b Injected) int {
		return cmp.Or(cmp.Compare(a.Server.Name, b.Server.Name), cmp.Compare(a.Session, b.Session), cmp.Compare(a.Principal, b.Principal))
	})
	return list
}

// runningLocked finds a principal's session that does not end.
func (m *Manager) runningLocked(principal, id string) (*Session, error) {
	s := m.findLocked(principal, false, id)
	if s == nil {
		return nil, unknownSession(id)
	}
	return s, s.refusalLocked()
}

// injectedLocked returns the session's own server of that name, or nil.
func (s *Session) injectedLocked(name string) *config.Server {
	for _, server := range s.injected {
		if server.Name == name {
			return server
		}
	}
	return nil
}

// serverLocked finds the server that a name means in the session.
func (s *Session) serverLocked(name string) (*config.Server, error) {
	if server := s.injectedLocked(name); server != nil {
		return server, nil
	}
	if server := s.broughtLocked(name); server != nil {
		return server, nil
	}
	return s.m.server(name)
}

// server is serverLocked without the lock.
func (s *Session) server(name string) (*config.Server, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.serverLocked(name)
}

// Servers returns the names of all usable servers of the session, its own ones last.
func (s *Session) Servers() []string {
	list := s.servers()
	names := make([]string, len(list))
	for i, server := range list {
		names[i] = server.Name
	}
	return names
}

// servers returns all usable servers of the session, its own ones last.
func (s *Session) servers() []*config.Server {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	var list []*config.Server
	for _, server := range s.m.live.Load().Servers {
		if server.DisabledReason == "" && s.injectedLocked(server.Name) == nil {
			list = append(list, server)
		}
	}
	return append(list, s.injected...)
}

// serverFor finds the server that a name means to a client that is about to enter the
// principal's session, which need not exist yet; "" is the aggregate, and nil, and so is
// roundhouse itself.
func (m *Manager) serverFor(principal, id, name string) (*config.Server, error) {
	if name == "" || m.isOwn(name) {
		return nil, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[key{principal, id}]; s != nil {
		return s.serverLocked(name)
	}
	return m.server(name)
}

// seersLocked returns the session's clients that see a server.
func (s *Session) seersLocked(name string) []*Client {
	var clients []*Client
	for c := range s.clients {
		if c.scope == "" || c.scope == name {
			clients = append(clients, c)
		}
	}
	return clients
}
