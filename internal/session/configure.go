package session

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/mux"
	"roundhouse/internal/pool"
)

// settings are Settings with an index. They are read-only.
type settings struct {
	Settings
	byName map[string]*config.Server
}

func newSettings(s Settings) *settings {
	x := &settings{s, map[string]*config.Server{}}
	for _, server := range s.Servers {
		x.byName[server.Name] = server
	}
	return x
}

// usable returns the server of that name if it is to be used, else nil.
func (x *settings) usable(name string) *config.Server {
	s, _ := x.server(name) // nil with an error
	return s
}

// sameConnection reports whether two configurations of a server, of which one may be
// nil, ask for the same connection.
func sameConnection(a, b *config.Server) bool {
	return a != nil && b != nil && pool.SameConnection(a, b)
}

// view is what a new configuration changes in what sessions see of a server.
type view int

const (
	sameView     view = iota
	filteredView      // its tools and prompts
	newView           // everything
)

// changedView compares a server before and after; nil is one that is not to be used.
func changedView(before, after *config.Server) view {
	switch {
	case before == nil && after == nil:
		return sameView
	case !sameConnection(before, after) || rebound(before, after):
		return newView
	case sameFilter(before, after):
		return sameView
	}
	return filteredView
}

func sameFilter(a, b *config.Server) bool {
	// An include list that is empty lets nothing through, one that is absent everything.
	return slices.Equal(a.ExcludeTools, b.ExcludeTools) && slices.Equal(a.IncludeTools, b.IncludeTools) && (a.IncludeTools == nil) == (b.IncludeTools == nil)
}

// rebound reports whether a new configuration gives clients other bindings than before:
// which of them share one depends on it, unless they have one lease.
func rebound(before, after *config.Server) bool {
	if before.Sharing == config.Exclusive && after.Sharing == config.Exclusive {
		return false
	}
	return before.Sharing != after.Sharing || before.Interactive != after.Interactive || !slices.Equal(before.ForwardHeaders, after.ForwardHeaders)
}

// Configure replaces the settings. Servers whose configuration is the same keep their
// connections. Where a filter changed, sessions see the lists anew, and the server is
// told nothing (V4). Otherwise the next request starts the server anew; calls in flight
// at the old one may go on for DrainDelay. Clients hear list_changed for what they see.
// It does not wait for any of this, and must not be called twice at a time.
func (m *Manager) Configure(s Settings) {
	now, begun := newSettings(s), time.Now()
	if m.cfg.Instances != nil {
		m.cfg.Instances.Configure(s.Servers)
	}
	m.mu.Lock()
	before := m.live.Load()
	m.live.Store(now) // under mu: nobody binds by the old settings any more
	var bindings, unbound []*binding
	var clients []*Client
	apart := map[*Client]bool{} // those of injected servers, which are as they were
	for _, x := range m.sessions {
		if x.state != Active && x.state != Dormant {
			continue
		}
		x.armLocked(x.lastActivity)
		unbound = append(unbound, x.unbindLocked(before, now)...)
		for _, b := range x.order {
			if x.injectedLocked(b.name) == nil && !b.unbound {
				bindings = append(bindings, b)
			}
		}
		for c := range x.clients {
			clients = append(clients, c)
			if x.injectedLocked(c.scope) != nil {
				apart[c] = true
			}
		}
	}
	m.mu.Unlock()

	var old []outdated
	for _, b := range unbound {
		old = append(old, b.configure(nil)...)
		b.discard()
	}
	for _, b := range bindings {
		old = append(old, b.configure(now.usable(b.name))...)
	}
	m.spawn(func() { m.retire(old, s.DrainDelay) })
	views := changedViews(before, now)
	for name, v := range views {
		if v == newView && name != "" {
			m.cfg.Pool.Discard(name, begun)
		}
	}
	for _, c := range clients {
		v := views[c.scope]
		if apart[c] {
			v = sameView
		}
		if !sameTools(before, now, c.session.principal) {
			v = max(v, filteredView)
		}
		c.tellView(v)
	}
}

// sameTools reports whether a principal may see and call the same as before.
func sameTools(before, now *settings, principal string) bool {
	a, b := before.Filters[principal], now.Filters[principal]
	return reflect.DeepEqual(a, b)
}

// unbindLocked returns the bindings that the session's clients do not find any more. They
// stay the session's until discard.
func (s *Session) unbindLocked(before, now *settings) (unbound []*binding) {
	for k, b := range s.bindings {
		was, is := before.byName[b.name], now.byName[b.name]
		if s.injectedLocked(b.name) == nil && was != nil && is != nil && rebound(was, is) {
			delete(s.bindings, k)
			b.unbound = true
			unbound = append(unbound, b)
		}
	}
	return unbound
}

// discard takes a binding that clients do not find any more off its session, unless it has
// something to give back.
func (b *binding) discard() {
	if len(b.attachments()) > 0 {
		return
	}
	s := b.s
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if b.unbound {
		s.order = slices.DeleteFunc(slices.Clone(s.order), func(x *binding) bool { return x == b })
	}
}

// changedViews compares all servers, by name, and under "" what the aggregate shows.
func changedViews(before, now *settings) map[string]view {
	views := map[string]view{}
	for _, all := range []*settings{before, now} {
		for name := range all.byName {
			views[name] = changedView(before.usable(name), now.usable(name))
		}
	}
	most := sameView
	for _, v := range views {
		most = max(most, v)
	}
	views[""] = most
	return views
}

// tellView tells the client which lists it sees differently now.
func (c *Client) tellView(v view) {
	switch v {
	case newView:
		c.listsChanged()
	case filteredView:
		c.listChanged(mux.Tools)
		c.listChanged(mux.Prompts)
	}
}

// outdated is an attachment of a binding whose connection the configuration has replaced.
type outdated struct {
	b   *binding
	att *pool.Attachment
}

// configure makes the binding use the server as it is now, nil if it is not to be used.
// It returns the attachment that this has made outdated, if there is one.
func (b *binding) configure(server *config.Server) []outdated {
	if server != nil {
		server = b.variant(server)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	same := sameConnection(b.server, server)
	b.server = server
	switch att := b.att; {
	case att == nil:
		return nil
	case same:
		att.Reconfigure(server)
		return nil
	default:
		b.noteLossLocked(att, "was given back, since the configuration of the server has changed")
		b.att = nil
		b.old[att] = false
		return []outdated{{b, att}}
	}
}

// retireLook is how often outdated connections are looked at.
const retireLook = 20 * time.Millisecond

// retire gives outdated attachments back as soon as no call is in flight on their
// connections, and all of them when the time is over. Sessions that subscribed to
// something take the new connection at once.
func (m *Manager) retire(old []outdated, within time.Duration) {
	for _, x := range old {
		x.b.renew()
	}
	over := time.Now().Add(within)
	for {
		late := !time.Now().Before(over)
		old = slices.DeleteFunc(old, func(x outdated) bool {
			done := late || !x.att.Busy()
			if done {
				x.b.retire(x.att)
				x.b.discard()
			}
			return done
		})
		if len(old) == 0 {
			return
		}
		time.Sleep(retireLook)
	}
}

// renew attaches anew if a client has subscribed to something, which it would hear no
// more of otherwise.
func (b *binding) renew() {
	b.mu.Lock()
	peers := slices.Collect(maps.Values(b.peers))
	b.mu.Unlock()
	if slices.ContainsFunc(peers, (*peer).subscribed) {
		b.s.m.spawn(func() {
			_, _ = b.attach(b.s.ctx) // the next call says why not
		})
	}
}

func (p *peer) subscribed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.uris) > 0
}

// retire gives an outdated attachment back.
func (b *binding) retire(att *pool.Attachment) {
	b.mu.Lock()
	_, mine := b.old[att]
	if mine {
		b.old[att] = true // an end of the session meanwhile waits for the clean-up
	}
	peers := slices.Collect(maps.Values(b.peers))
	b.mu.Unlock()
	if !mine {
		return // the session has given it back
	}
	why := fault.New(fault.Interrupted, "the configuration of server %q has changed, and the call took longer than pool.drainDelay after that", b.name)
	why.Server, why.Sent = b.name, fault.SentMaybe
	for _, p := range peers {
		att.Leave(p, why)
	}
	b.cleanUp(context.Background(), att)
	b.mu.Lock()
	delete(b.old, att)
	b.mu.Unlock()
	b.letGo(att, att.Retire)
}

// unwanted is the error for a server that is not to be used, or not by this binding.
func (b *binding) unwanted() error {
	if _, err := b.s.server(b.name); err != nil {
		return err
	}
	err := fault.New(fault.Interrupted, "the configuration of server %q has changed; try again", b.name)
	err.Server, err.Sent = b.name, fault.SentNo
	return err
}
