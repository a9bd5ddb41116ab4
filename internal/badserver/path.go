package badserver

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// The process as it started: a test may have changed its environment or its
// directory by the time it asks for the server.
var (
	startEnv                = os.Environ()
	startDir, startDirErr   = os.Getwd()
	userCache, userCacheErr = os.UserCacheDir()
)

// Path returns the path of the server's executable, which it builds on the first
// call of a test process. The file is kept in the user's cache directory under the
// hash of its content: test processes that run at once never overwrite each
// other's, and many runs leave one file for each version of the server. Path may be called concurrently.
func Path(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var build = sync.OnceValues(func() (string, error) {
	if startDirErr != nil {
		return "", fmt.Errorf("build badserver: %w", startDirErr)
	}
	if userCacheErr != nil {
		return "", fmt.Errorf("build badserver: %w", userCacheErr)
	}
	cache := filepath.Join(userCache, "roundhouse-badserver")
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", fmt.Errorf("build badserver: %w", err)
	}
	tmp, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", fmt.Errorf("build badserver: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()

	built := filepath.Join(tmp, "badserver")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", built, "roundhouse/internal/badserver/cmd")
	cmd.Dir, cmd.Env = startDir, startEnv
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build badserver: %w\n%s", err, out)
	}
	content, err := os.ReadFile(built)
	if err != nil {
		return "", fmt.Errorf("build badserver: %w", err)
	}
	path := filepath.Join(cache, fmt.Sprintf("badserver-%x", sha256.Sum256(content)))
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	if err := os.Rename(built, path); err != nil {
		return "", fmt.Errorf("build badserver: %w", err)
	}
	return path, nil
})
