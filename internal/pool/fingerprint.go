package pool

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"roundhouse/internal/config"
	"roundhouse/internal/secret"
)

// identity is everything that defines a connection (K1), in one canonical form:
// maps are marshalled with sorted keys, sets are sorted, header names are folded,
// and what is absent, null or empty is left out.
type identity struct {
	Name         string            `json:"name"`
	Transport    config.Transport  `json:"transport"`
	Command      string            `json:"command,omitempty"`
	Args         []string          `json:"args,omitempty"`
	Env          map[string]string `json:"env,omitempty"`
	Cwd          string            `json:"cwd,omitempty"`
	InheritEnv   bool              `json:"inheritEnv,omitempty"`
	URL          string            `json:"url,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
	Interactive  string            `json:"interactive,omitempty"`
	StartTimeout int64             `json:"startTimeout,omitempty"`
	CallTimeout  int64             `json:"callTimeout,omitempty"`
	Close        [3]int64          `json:"close"`
	OAuth        *oauthIdentity    `json:"oauth,omitempty"`
	AuthProvider string            `json:"authProviderType,omitempty"`
	Audience     string            `json:"targetAudience,omitempty"`
	Account      string            `json:"targetServiceAccount,omitempty"`
	Principal    string            `json:"principal,omitempty"`
	Capabilities json.RawMessage   `json:"capabilities,omitempty"`
}

type oauthIdentity struct {
	Enabled       bool     `json:"enabled,omitempty"`
	ClientID      string   `json:"clientId,omitempty"`
	ClientSecret  string   `json:"clientSecret,omitempty"`
	Scopes        []string `json:"scopes,omitempty"`
	Audiences     []string `json:"audiences,omitempty"`
	Authorization string   `json:"authorization,omitempty"`
	Token         string   `json:"token,omitempty"`
	Redirect      string   `json:"redirect,omitempty"`
	Registration  string   `json:"registration,omitempty"`
	TokenParam    string   `json:"tokenParam,omitempty"`
}

// fingerprint returns the keyed hash of what w asks for: 128 bits as hex (K4).
func fingerprint(key []byte, w Want) string {
	s := w.Server
	id := identity{
		Name:         s.Name,
		Transport:    s.Transport,
		Command:      s.Command,
		Args:         s.Args,
		Env:          reveal(s.Env),
		Cwd:          s.Cwd,
		InheritEnv:   s.InheritEnv,
		URL:          s.URL.Reveal(),
		Headers:      map[string]string{},
		Interactive:  string(s.Interactive),
		StartTimeout: int64(s.StartTimeout),
		CallTimeout:  int64(s.CallTimeout),
		Close:        [3]int64{int64(s.CloseEOFWait), int64(s.CloseTermWait), int64(s.CloseKillWait)},
		AuthProvider: s.AuthProviderType,
		Audience:     s.TargetAudience,
		Account:      s.TargetServiceAccount,
		Capabilities: w.Capabilities,
	}
	for name, value := range s.Headers {
		id.Headers[strings.ToLower(name)] = value.Reveal()
	}
	if !s.ShareAcrossPrincipals {
		id.Principal = w.Principal
	}
	if o := s.OAuth; o.Enabled || o.ClientID != "" || !o.ClientSecret.Empty() || len(o.Scopes)+len(o.Audiences) > 0 ||
		o.AuthorizationURL+o.TokenURL+o.RedirectURI+o.RegistrationURL+o.TokenParamName != "" {
		id.OAuth = &oauthIdentity{
			o.Enabled, o.ClientID, o.ClientSecret.Reveal(), sorted(o.Scopes), sorted(o.Audiences),
			o.AuthorizationURL, o.TokenURL, o.RedirectURI, o.RegistrationURL, o.TokenParamName,
		}
	}
	b, err := json.Marshal(id)
	if err != nil {
		panic("pool: a server's identity cannot be marshalled: " + err.Error()) // Capabilities is valid JSON by contract
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(b)
	return hex.EncodeToString(mac.Sum(nil)[:16])
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
