package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/ncruces/go-sqlite3"
)

// refusal is the answer to a write that the state of the store does not allow. It is
// found before anything is written, so it leaves its neighbours in the transaction
// alone.
type refusal string

// Error returns the words.
func (r refusal) Error() string { return string(r) }

// The refusals. Trying again changes nothing.
const (
	// ErrSealed refuses what comes late: the session's recording is sealed (C15, J5).
	ErrSealed refusal = "the session is sealed"
	// ErrConflict refuses another content under a key that is taken.
	ErrConflict refusal = "something else is stored under this key"
	// ErrNotFound says that there is nothing under this key, to read or to add to.
	ErrNotFound refusal = "nothing is stored under this key"
	// ErrInvalid refuses what no reader could make sense of.
	ErrInvalid refusal = "this cannot be stored"
)

// The failures of a write, and of Open.
var (
	// ErrUnknown is a write of which nobody knows whether it is stored: it was under way
	// when its caller's context ended, or the disk failed and could not be asked again.
	ErrUnknown = errors.New("it is not known whether this is stored")
	// ErrFull is a disk, or a database, without room for the write. Nothing of it is stored.
	ErrFull = errors.New("the disk is full")
	// ErrClosed is a write after Close, or a read.
	ErrClosed = errors.New("the store is closed")
	// ErrInUse is a database that another process, or another Store, has open.
	ErrInUse = errors.New("another roundhouse uses this database")
	// ErrNewer is a database of a later version of roundhouse. It was not touched.
	ErrNewer = errors.New("this database was written by a newer version of roundhouse")
	// ErrForeign is a file that is not a database of roundhouse. It was not touched.
	ErrForeign = errors.New("this file is not a database of roundhouse")
)

// failure gives an error of the driver the meaning that callers look for.
func failure(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sqlite3.FULL):
		return fmt.Errorf("%s: %w: %w", doing, ErrFull, err)
	case errors.Is(err, sqlite3.NOTADB):
		return fmt.Errorf("%s: %w: %w", doing, ErrForeign, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// ended is the error of a wait whose context is over.
func ended(ctx context.Context, doing string) error {
	return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
}
