//go:build unix

package store

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the kernel's lock of f, which ends with the file or with us.
func tryLock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrInUse
	}
	return err
}
