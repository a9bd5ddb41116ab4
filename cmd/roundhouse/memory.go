package main

import (
	"os"
	"runtime/debug"
)

// collectLater lets the daemon's heap grow to five times what lives before garbage is
// collected. What lives is a few MiB, so that with Go's own setting the collector
// runs many times a second under load and takes a fifth of a call's CPU time. GOGC
// in the environment wins.
func collectLater() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}
