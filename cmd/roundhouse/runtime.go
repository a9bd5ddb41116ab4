package main

import (
	"os"
	"runtime"
	"runtime/debug"

	"roundhouse/internal/config"
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

// leaveProcessors has the daemon run on as many processors at the same time as
// processors says. GOMAXPROCS in the environment wins.
func leaveProcessors(cfg *config.Config) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(processors(runtime.GOMAXPROCS(0), len(cfg.LLM.Upstreams) > 0))
	}
}

// processors returns on how many of a machine's processors the daemon runs at the same
// time: half of them. The servers, engines and agents that it stands between need the
// others, and a call that passes through it from goroutine to goroutine wakes an idle
// processor each time, which costs more than it saves: on a machine with two, a call
// takes a quarter less of its CPU time without. What writes to disk holds its processor
// for a while, so where model calls are recorded there is a second one.
func processors(available int, records bool) int {
	least := 1
	if records {
		least = 2
	}
	return min(available, max(least, available/2))
}
