package responses

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"roundhouse/internal/config"
)

// ErrEgress is in every refusal of an Egress.
var ErrEgress = errors.New("roundhouse does not connect there")

// egressTimeout is how long connecting to all addresses of a host may take.
const egressTimeout = 10 * time.Second

// Egress says where requests may send roundhouse with a server_url (B.5.10): to public
// addresses with https, and to what the configuration allows with http too. What a name
// means is looked up for each connection, and the address that was checked is the one
// that is dialled, so a name whose meaning changes gains nothing. It implements
// config.Dialer; its methods may be called concurrently.
type Egress struct {
	// Constant after NewEgress.
	allow  []config.EgressRule
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// NewEgress returns the rules of the configuration.
func NewEgress(cfg config.Egress) *Egress {
	return &Egress{
		allow: cfg.Allow,
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		dial: (&net.Dialer{}).DialContext,
	}
}

// Check says whether a request may name this URL: the error has ErrEgress, and quotes no
// more of the URL than its host. A host that cannot be looked up passes, since that it is
// not there is found out when it is dialled.
func (e *Egress) Check(ctx context.Context, text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return fmt.Errorf("%w: it must be an address such as https://host/path", ErrEgress)
	case u.User != nil:
		return fmt.Errorf("%w: %s has credentials in its address; they belong into authorization or headers", ErrEgress, u.Host)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	addrs, err := e.resolve(ctx, u.Hostname(), port)
	switch {
	case errors.Is(err, ErrEgress):
		return err
	case u.Scheme == "https":
		return nil
	case e.allowsName(u.Hostname(), port):
		return nil
	case len(addrs) > 0 && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !e.allowsAddr(a, port) }):
		return nil
	}
	return fmt.Errorf("%w: %s is not reached with https; allow it with llm.responses.egress.allow, if you trust the way there", ErrEgress, u.Host)
}

// DialContext connects to a host, or refuses with ErrEgress.
func (e *Egress) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, egressTimeout)
	defer cancel()
	addrs, err := e.resolve(ctx, host, port)
	if err != nil {
		return nil, err
	}
	var failed []error
	for i, addr := range addrs {
		conn, err := e.dialOne(ctx, network, addr, port, len(addrs)-i)
		if err == nil {
			return conn, nil
		}
		failed = append(failed, err)
	}
	return nil, fmt.Errorf("connect to %s: %w", address, errors.Join(failed...))
}

// dialOne connects to one address, and leaves their share of the time to those behind it.
func (e *Egress) dialOne(ctx context.Context, network string, addr netip.Addr, port string, left int) (net.Conn, error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(left))
		defer cancel()
	}
	return e.dial(ctx, network, net.JoinHostPort(addr.String(), port))
}

// resolve returns the addresses of a host, all of which may be dialled. One that may not
// makes the host refused: a name that has both kinds is a way around these rules, or a
// mistake.
func (e *Egress) resolve(ctx context.Context, host, port string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	if addr, err := netip.ParseAddr(host); err == nil {
		addrs = []netip.Addr{addr}
	} else if numeric(host) {
		return nil, fmt.Errorf("%w: %q is an address in a form that programs read differently", ErrEgress, host)
	} else if addrs, err = e.lookup(ctx, host); err != nil {
		return nil, fmt.Errorf("look up %s: %w", host, err)
	}
	if e.allowsName(host, port) {
		return addrs, nil
	}
	for i, addr := range addrs {
		addrs[i] = addr.Unmap()
		if !public(addrs[i]) && !e.allowsAddr(addrs[i], port) {
			return nil, fmt.Errorf("%w: %s is at %s, which is no public address; allow it with llm.responses.egress.allow, if that is meant", ErrEgress, host, addrs[i])
		}
	}
	return addrs, nil
}

// numeric reports whether a host that is no address would be taken for one by programs
// that read them as C's inet_aton does: 127.1, 0x7f000001, 0177.0.0.1 or 2130706433.
func numeric(host string) bool {
	host = strings.TrimSuffix(host, ".")
	last := strings.ToLower(host[strings.LastIndexByte(host, '.')+1:])
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// allowsName reports whether the configuration allows a host by its name.
func (e *Egress) allowsName(host, port string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return slices.ContainsFunc(e.allow, func(r config.EgressRule) bool {
		if r.Host == "" || r.Port != "" && r.Port != port {
			return false
		}
		match, _ := path.Match(r.Host, host) // the configuration has checked the pattern
		return match
	})
}

// allowsAddr reports whether the configuration allows an address.
func (e *Egress) allowsAddr(addr netip.Addr, port string) bool {
	return slices.ContainsFunc(e.allow, func(r config.EgressRule) bool {
		return r.Net.IsValid() && r.Net.Contains(addr.Unmap().WithZone("")) && (r.Port == "" || r.Port == port)
	})
}

// reserved are addresses that look public and are not for the public: of protocols, of
// documentation, of carriers and benchmarks, and where a cloud answers its machines.
var reserved = prefixes(
	"0.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

// global are the only addresses of version 6 that are given out to the public; translated
// holds those that a gateway turns into version 4.
var global, translated = netip.MustParsePrefix("2000::/3"), netip.MustParsePrefix("64:ff9b::/96")

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

// public reports whether an address is one that anybody could have.
func public(addr netip.Addr) bool {
	addr = addr.Unmap()
	if translated.Contains(addr) {
		bytes := addr.As16()
		return public(netip.AddrFrom4([4]byte(bytes[12:])))
	}
	if addr.Zone() != "" || !addr.IsGlobalUnicast() || addr.IsPrivate() || addr.Is6() && !global.Contains(addr) {
		return false
	}
	return !slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(addr) })
}
