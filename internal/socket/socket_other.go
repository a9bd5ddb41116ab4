//go:build !linux && !darwin

package socket

import (
	"context"
	"errors"
	"log/slog"
	"net"
)

// Supported reports whether this system has the door.
const Supported = false

// Listener accepts nothing here.
type Listener struct{ net.Listener }

var errUnsupported = errors.New("roundhouse has no local socket on this system; use its URL")

// Listen fails here.
func Listen(string, *slog.Logger) (*Listener, error) { return nil, errUnsupported }

// Inherited returns nil here.
func Inherited(*slog.Logger) (*Listener, error) { return nil, nil }

// Dial fails here.
func Dial(context.Context, string) (net.Conn, error) { return nil, errUnsupported }
