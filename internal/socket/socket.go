// Package socket is the daemon's door for programs of the same user on the same
// machine (H8): a unix socket that one daemon at a time owns, and behind which both
// ends know whose process the other one is. Linux and macOS have it; elsewhere
// Supported is false, and Listen and Dial fail.
package socket

import "errors"

// The errors that callers tell apart.
var (
	// ErrTaken says that a living daemon owns the socket.
	ErrTaken = errors.New("another daemon owns the socket")
	// ErrNobody says that no daemon listens at the socket.
	ErrNobody = errors.New("no daemon listens at the socket")
)
