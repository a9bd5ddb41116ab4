//go:build !linux

package process

import "os"

// ReaperMain must be the first call of main, and of TestMain in packages that
// start processes. On this platform there are no reapers, and it returns at once.
func ReaperMain() {}

// reaperExecutable returns our own binary, which nobody runs here.
func reaperExecutable(configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	return os.Executable()
}
