//go:build unix

package process

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// executable reports whether path is a file that somebody may execute. Whether
// we may is for the kernel to say.
func executable(path string, _ []string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		return "", &fs.PathError{Op: "execute", Path: path, Err: syscall.EISDIR}
	case info.Mode()&0o111 == 0:
		return "", fmt.Errorf("%w: it has no execute bit", &fs.PathError{Op: "execute", Path: path, Err: fs.ErrPermission})
	}
	return path, nil
}
