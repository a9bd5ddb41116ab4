//go:build !unix

package upstream

import "io"

// direct writes to a pipe without waiting for room in it, where the system can do that.
type direct struct{}

func newDirect(io.Writer) *direct { return nil }

// write is never called.
func (*direct) write([]byte) (int, error) { panic("upstream: there is no direct write here") }
