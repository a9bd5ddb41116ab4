package mux

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ending is how a call ended.
type ending int8

const (
	endResult    ending = iota // of the tool: a result that says isError, too
	endError                   // JSON-RPC error of the server
	endRefused                 // by the transport, alone
	endCancelled               // by its client, its client's end, or a limit of time
	endLost                    // with the connection
	endings
)

var endingNames = [endings]string{endResult: "result", endError: "error", endRefused: "refused", endCancelled: "cancelled", endLost: "lost"}

// Metrics counts the clients' calls of all connections that share it. Its methods may be
// called at any time, on a nil Metrics too, which counts nothing.
type Metrics struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics returns Metrics that have counted nothing.
func NewMetrics() *Metrics {
	return &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "roundhouse_mux_calls_total", Help: "Clients' calls that have ended.",
		}, []string{"server", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "roundhouse_mux_call_duration_seconds", Help: "From a call's turn to its end.",
			Buckets: []float64{.001, .005, .025, .1, .25, 1, 2.5, 10, 30, 120, 600},
		}, []string{"server"}),
	}
}

// Collectors returns what is exported.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.duration}
}

// counts are the metrics of one server, found once, so that counting a call neither
// looks anything up nor allocates.
type counts struct {
	calls    [endings]prometheus.Counter
	duration prometheus.Observer
}

func (m *Metrics) of(server string) *counts {
	if m == nil {
		return nil
	}
	c := &counts{duration: m.duration.WithLabelValues(server)}
	for i, name := range endingNames {
		c.calls[i] = m.calls.WithLabelValues(server, name)
	}
	return c
}

// ended counts a call that had its turn.
func (c *counts) ended(how ending, took time.Duration) {
	if c != nil {
		c.calls[how].Inc()
		c.duration.Observe(took.Seconds())
	}
}
