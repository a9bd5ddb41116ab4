package front

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
)

// tokens lets callers in. It is constant after newTokens; none means that nobody
// needs to authenticate.
type tokens []token

type token struct {
	sum    [sha256.Size]byte // of the token itself, which is not kept
	caller Caller
}

var (
	errNoToken    = fault.New(fault.Unauthorized, "a token is needed; send it as Authorization: Bearer TOKEN")
	errTokenForm  = fault.New(fault.Unauthorized, "the credentials are not understood; send exactly one header of the form Authorization: Bearer TOKEN")
	errWrongToken = fault.New(fault.Unauthorized, "the token is not known; use one of those in auth.tokens")
)

// newTokens checks the configured tokens. Its error joins every problem and names
// entries by position, never by token.
func newTokens(list []config.Token) (tokens, error) {
	var ts tokens
	var errs []error
	first := make(map[[sha256.Size]byte]int, len(list))
	for i, entry := range list {
		text := entry.Token.Reveal()
		sum := sha256.Sum256([]byte(text))
		if entry.Principal == "" {
			errs = append(errs, fmt.Errorf("auth.tokens[%d]: the principal is empty", i))
		}
		if text == "" {
			errs = append(errs, fmt.Errorf("auth.tokens[%d]: the token is empty", i))
		} else if !sendable(text) {
			errs = append(errs, fmt.Errorf("auth.tokens[%d]: the token holds a character that no bearer token can have; use letters, digits and punctuation of ASCII, without spaces", i))
		}
		if j, ok := first[sum]; ok {
			errs = append(errs, fmt.Errorf("auth.tokens[%d]: the token is the same as that of auth.tokens[%d]", i, j))
		} else {
			first[sum] = i
		}
		ts = append(ts, token{sum, Caller{entry.Principal, entry.Admin, entry.Inject}})
	}
	return ts, errors.Join(errs...)
}

// sendable reports whether a client can put text into a header as one word.
func sendable(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// authenticate finds the caller by the values of the Authorization header. Every
// token is compared, each by its hash and in constant time, so how long it takes
// says nothing about any of them.
func (ts tokens) authenticate(values []string) (Caller, error) {
	if len(values) == 0 {
		return Caller{}, errNoToken
	}
	scheme, text, _ := strings.Cut(values[0], " ")
	text = strings.TrimLeft(text, " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || text == "" {
		return Caller{}, errTokenForm
	}
	sum := sha256.Sum256([]byte(text))
	found := -1
	for i := range ts {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], ts[i].sum[:]), i, found)
	}
	if found < 0 {
		return Caller{}, errWrongToken
	}
	return ts[found].caller, nil
}
