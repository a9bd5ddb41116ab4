//go:build !linux && !darwin

package shim

import "errors"

// Starter starts nothing on this system, where a daemon cannot be reached without a
// URL.
type Starter struct {
	Args []string
	Dir  string
	Log  string
}

// Start fails.
func (*Starter) Start() error { return errors.New("a daemon is not started by itself on this system") }
