package control

import (
	"bytes"
	"net/http"
	"slices"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/front"
	"roundhouse/internal/pool"
	"roundhouse/internal/session"
	"roundhouse/internal/wire"
)

// Added is a server that was added to a session, as the answer to that shows it.
type Added struct {
	Server
	Problems []config.Problem `json:"problems"` // warnings about its entry
}

var errInject = fault.New(fault.Forbidden, "to add servers to a session, or remove them, is to run programs as the daemon's user, and needs a token with \"inject\": true or \"admin\": true")

// injector returns whose session the path names, if the caller may change its servers.
func (c *Control) injector(r *http.Request, caller front.Caller) (string, error) {
	if !caller.Admin && !caller.Inject {
		return "", errInject
	}
	return c.owner(r, caller)
}

// injectServer adds the server of the body to a session, and answers with it.
func (c *Control) injectServer(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	principal, err := c.injector(r, caller)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	name, entry, err := readInjection(w, r)
	if err != nil {
		front.WriteError(w, err)
		return
	}
	server, warnings, err := c.cfg.Config().Inject(name, entry)
	if err != nil {
		front.WriteError(w, fault.New(fault.BadRequest, "the server cannot be added:\n%w", err))
		return
	}
	id := r.PathValue("id")
	if err := c.cfg.Sessions.Inject(principal, id, server); err != nil {
		front.WriteError(w, err)
		return
	}
	added := Added{describeInjected(session.Injected{Principal: principal, Session: id, Server: server}, nil), append([]config.Problem{}, warnings...)}
	front.WriteJSON(w, http.StatusCreated, added)
}

// removeServer takes a server off a session that was added to it.
func (c *Control) removeServer(w http.ResponseWriter, r *http.Request, caller front.Caller) {
	principal, err := c.injector(r, caller)
	if err == nil {
		err = c.cfg.Sessions.Remove(principal, r.PathValue("id"), r.PathValue("name"))
	}
	if err != nil {
		front.WriteError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// readInjection reads a body whose members are a name and an entry.
func readInjection(w http.ResponseWriter, r *http.Request) (name string, entry []byte, err error) {
	body, err := front.ReadBody(w, r, maxChange)
	if err != nil {
		return "", nil, err
	}
	body = bytes.TrimSpace(body)
	if err := wire.Valid(body); err != nil || body[0] != '{' {
		return "", nil, errInjection
	}
	named := false
	for m, err := range wire.Members(body) {
		switch {
		case err != nil:
			return "", nil, errInjection
		case m.Key == "name" && !named:
			named = true
			if name, err = wire.Text(m.Value.Of(body)); err != nil {
				return "", nil, errInjection
			}
		case m.Key == "server" && entry == nil:
			entry = m.Value.Of(body)
		default:
			return "", nil, errInjection
		}
	}
	if !named || len(entry) == 0 || entry[0] != '{' {
		return "", nil, errInjection
	}
	return name, entry, nil
}

var errInjection = fault.New(fault.BadRequest, `the body must be an object with the members "name" and "server", which is an entry as in mcpServers`)

// describeInjected describes a server of one session, with those of all connections that
// are its own.
func describeInjected(x session.Injected, all []pool.Info) Server {
	own := slices.DeleteFunc(slices.Clone(all), func(i pool.Info) bool {
		return !i.Injected || !slices.Contains(x.Connections, i.ID) || len(i.Sessions) > 0 && !slices.Contains(i.Sessions, x.Session)
	})
	v := describe(x.Server, own)
	v.Injected, v.Session, v.Principal = true, x.Session, x.Principal
	return v
}
