//go:build race

package daemon_test

// The real binary looks for races when its test does.
func init() { buildFlags = append(buildFlags, "-race") }
