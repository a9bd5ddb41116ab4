package session

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Names in the aggregate (H7): "server__tool" where that is a name which model APIs
// accept and which can be taken apart again; else a short form with a hash of both
// names. The short form does not depend on what else is listed.

const (
	separator = "__"
	maxName   = 64 // of model APIs
	hashChars = 8
)

// publicName returns the name under which a server's tool or prompt is listed.
func publicName(server, name string) string {
	full := server + separator + name
	if len(full) <= maxName && plain(full) && !ambiguous(server) {
		return full
	}
	sum := sha256.Sum256([]byte(server + "\x00" + name))
	hash := "_" + hex.EncodeToString(sum[:])[:hashChars]
	full = safe(server) + separator + safe(name)
	return full[:min(len(full), maxName-len(hash))] + hash
}

// ambiguous reports whether a server's name could be mistaken for the beginning of
// another "server__tool": a__b with c, against a with b__c.
func ambiguous(server string) bool {
	return strings.Contains(server, separator) || strings.HasSuffix(server, "_")
}

func plain(s string) bool { return s == safe(s) }

// safe replaces what model APIs refuse in names, byte by byte.
func safe(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, s)
}

// mayBe reports whether a public name can belong to a server, so that a call need
// not start all of them. It errs on the side of yes.
func mayBe(public, server string) bool {
	prefix := safe(server) + separator
	if limit := maxName - 1 - hashChars; len(prefix) > limit {
		prefix = prefix[:limit]
	}
	return strings.HasPrefix(public, prefix)
}
