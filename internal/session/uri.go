package session

import (
	"net/url"
	"regexp"
	"strings"

	"roundhouse/internal/fault"
	"roundhouse/internal/pool"
	"roundhouse/internal/wire"
)

// Resources in the aggregate keep their URIs. Where two servers list the same one,
// the second's is shown behind a prefix, by which it can always be named.

// uriPrefix is what such a URI begins with. It makes a valid URI of every name, and
// of none the beginning of another's.
func uriPrefix(server string) string { return "roundhouse:" + url.PathEscape(server) + "/" }

// byURI sends a request about a resource to the server that has it.
func (s *Session) byURI(k *call, f wire.Frame, r wire.Routing) {
	uri, err := wire.Text(r.URI.Of(f.Raw))
	if err != nil {
		k.fail(&wire.ParseFailure{Code: wire.InvalidParams, Message: "params.uri must be a string"})
		return
	}
	b, own, err := s.resolveURI(k.c, uri)
	if err != nil {
		k.fail(err)
		return
	}
	k.uri = uri
	if own != uri {
		if f, r, err = edited(f, wire.Edit{At: r.URI, With: wire.Quote(own)}); err != nil {
			k.fail(err)
			return
		}
	}
	s.forward(k, b, f, r)
}

// resolveURI finds who has a resource: the server that its prefix names, the first
// that lists it, the first with a template that fits, or the only one with resources.
func (s *Session) resolveURI(c *Client, uri string) (*binding, string, error) {
	bindings, err := s.members(c)
	if err != nil {
		return nil, "", err
	}
	for _, b := range bindings {
		if own, ok := strings.CutPrefix(uri, uriPrefix(b.name)); ok {
			return b, own, nil
		}
	}
	for _, kind := range []pool.Kind{pool.Resources, pool.Templates} {
		parts, err := s.gather(c, kind)
		if err != nil {
			return nil, "", err
		}
		for _, p := range parts {
			if p.listing == nil {
				continue
			}
			for _, it := range p.listing.Items {
				if kind == pool.Resources && it.Key == uri || kind == pool.Templates && fits(it.Key, uri) {
					return p.b, uri, nil
				}
			}
		}
		if only := onlyOne(parts); kind == pool.Templates && only != nil {
			return only, uri, nil
		}
	}
	return nil, "", fault.New(fault.ForbiddenTool, "no server has the resource %s", uri)
}

func onlyOne(parts []part) *binding {
	var only *binding
	for _, p := range parts {
		if p.listing == nil {
			continue
		}
		if only != nil {
			return nil
		}
		only = p.b
	}
	return only
}

var expression = regexp.MustCompile(`\{[^{}]*\}`)

// fits reports whether a URI can come from a URI template (RFC 6570). Every
// expression may expand to any text; the server has the last word.
func fits(template, uri string) bool {
	var pattern strings.Builder
	pattern.WriteString("^")
	rest := template
	for _, at := range expression.FindAllStringIndex(template, -1) {
		literal := template[len(template)-len(rest) : at[0]]
		pattern.WriteString(regexp.QuoteMeta(literal) + ".*")
		rest = template[at[1]:]
	}
	pattern.WriteString(regexp.QuoteMeta(rest) + "$")
	re, err := regexp.Compile(pattern.String())
	return err == nil && re.MatchString(uri)
}
