package control

import (
	"context"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"roundhouse/internal/fault"
	"roundhouse/internal/front"
)

// registerObservation adds what is there to look into the daemon: metrics for
// Prometheus, and the profiles of the Go runtime. Metrics name all servers, and profiles
// what is in memory, so both are for admins, and profiles on loopback only (STYLE 19).
func (c *Control) registerObservation(f *front.Front) {
	if c.cfg.Metrics != nil {
		metrics := promhttp.HandlerFor(c.cfg.Metrics, promhttp.HandlerOpts{})
		f.Handle("GET /metrics", adminOnly(metrics.ServeHTTP))
		f.DrainExempt("GET /metrics")
	}
	beyond := f.Beyond()
	f.Handle("GET /debug/pprof/", adminOnly(func(w http.ResponseWriter, r *http.Request) {
		if beyond {
			front.WriteError(w, fault.New(fault.Forbidden, "profiles are served to this machine only, and this listener is reached from elsewhere; use the daemon's socket"))
			return
		}
		c.profile(w, r)
	}))
}

// adminOnly turns other callers away.
func adminOnly(h http.HandlerFunc) front.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, caller front.Caller) {
		if !caller.Admin {
			front.WriteError(w, errAdmin)
			return
		}
		h(w, r)
	}
}

// profile serves a profile, or the list of them. One that takes a while ends when the
// daemon does.
func (c *Control) profile(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)()
	r = r.WithContext(ctx)
	switch r.URL.Path {
	case "/debug/pprof/profile":
		pprof.Profile(w, r)
	case "/debug/pprof/trace":
		pprof.Trace(w, r)
	case "/debug/pprof/cmdline": // of no use to a profile, and it may hold what is secret
		front.WriteError(w, fault.New(fault.BadRequest, "the command line is not served"))
	case "/debug/pprof/symbol":
		pprof.Symbol(w, r)
	default:
		pprof.Index(w, r)
	}
}
