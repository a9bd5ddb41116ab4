package pool

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"roundhouse/internal/config"
	"roundhouse/internal/era"
	"roundhouse/internal/secret"
)

// identity is everything that defines a connection (K1), in one canonical form:
// sets are sorted, header names are folded, and what is absent or empty is the zero
// value. It is hashed as fmt prints it with %#v: maps in the order of their keys, and
// every string quoted, with bytes that are no UTF-8 as escapes, so that two identities
// never print the same. It therefore holds no pointers.
type identity struct {
	Name         string
	Transport    config.Transport
	Command      string
	Args         []string
	Env          map[string]string
	Cwd          string
	InheritEnv   bool
	URL          string
	Headers      map[string]string
	SSEFallback  bool
	Interactive  config.Interactive
	StartTimeout time.Duration
	CallTimeout  time.Duration
	Close        [3]time.Duration
	Recovery     config.Recovery
	Health       config.Health
	OAuth        oauthIdentity
	AuthProvider string
	Audience     string
	Account      string
	Principal    string
	Era          era.Era
	EraSetting   config.Era
	Capabilities string // of the older era, which declares them once
	Workspace    string // the server is told of it as its root
}

type oauthIdentity struct {
	Enabled       bool
	ClientID      string
	ClientSecret  string
	Scopes        []string
	Audiences     []string
	Authorization string
	Token         string
	Redirect      string
	Registration  string
	TokenParam    string
}

// fingerprint returns the keyed hash of what w asks for: 128 bits as hex (K4).
func fingerprint(key []byte, w Want) string {
	s, o := w.Server, w.Server.OAuth
	id := identity{
		Name:         s.Name,
		Transport:    s.Transport,
		Command:      s.Command,
		Args:         append([]string(nil), s.Args...),
		Env:          reveal(s.Env),
		Cwd:          s.Cwd,
		InheritEnv:   s.InheritEnv,
		URL:          s.URL.Reveal(),
		Headers:      map[string]string{},
		SSEFallback:  s.SSEFallback,
		Interactive:  s.Interactive,
		StartTimeout: s.StartTimeout,
		CallTimeout:  s.CallTimeout,
		Close:        [3]time.Duration{s.CloseEOFWait, s.CloseTermWait, s.CloseKillWait},
		Recovery:     s.Recovery,
		Health:       s.Health,
		OAuth: oauthIdentity{
			o.Enabled, o.ClientID, o.ClientSecret.Reveal(), sorted(o.Scopes), sorted(o.Audiences),
			o.AuthorizationURL, o.TokenURL, o.RedirectURI, o.RegistrationURL, o.TokenParamName,
		},
		AuthProvider: s.AuthProviderType,
		Audience:     s.TargetAudience,
		Account:      s.TargetServiceAccount,
		Era:          w.Era,
		EraSetting:   s.Era,
		Workspace:    w.Workspace,
	}
	if w.Era != era.Modern {
		id.Capabilities = string(w.Capabilities)
	}
	for name, value := range s.Headers {
		if s.Sharing == config.Session && strings.EqualFold(name, "X-Session-Id") {
			continue // it says which session the connection is for, not what server it leads to
		}
		id.Headers[strings.ToLower(name)] = value.Reveal()
	}
	if !s.ShareAcrossPrincipals {
		id.Principal = w.Principal
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%#v", id)
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// SameConnection reports whether two configurations of a server ask for the same
// connection, so that at most their filters and their descriptions differ.
func SameConnection(a, b *config.Server) bool {
	return a.Sharing == b.Sharing && a.ShareAcrossPrincipals == b.ShareAcrossPrincipals && slices.Equal(a.Instances.Endpoints, b.Instances.Endpoints) &&
		fingerprint(nil, Want{Server: a}) == fingerprint(nil, Want{Server: b})
}

func reveal(m map[string]secret.String) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = v.Reveal()
	}
	return out
}

func sorted(set []string) []string {
	m := make(map[string]struct{}, len(set))
	for _, s := range set {
		m[s] = struct{}{}
	}
	return slices.Sorted(maps.Keys(m))
}

// SplitID takes a connection id apart at its last "::" (K5); names may contain "::".
func SplitID(id string) (name, fp string) {
	i := strings.LastIndex(id, "::")
	if i < 0 {
		return id, ""
	}
	return id[:i], id[i+2:]
}
