package daemon

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// observed is a part of the daemon that says what is to be exported of it.
type observed interface{ Collectors() []prometheus.Collector }

// gather returns what /metrics shows: the metrics of the parts, and those of the process
// and its runtime.
func gather(parts ...observed) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, p := range parts {
		r.MustRegister(p.Collectors()...)
	}
	return r
}
