package loop

import "github.com/prometheus/client_golang/prometheus"

// counts is what an Engine counts.
type counts struct {
	running prometheus.Gauge
	runs    *prometheus.CounterVec // by status
	rounds  prometheus.Counter
	calls   *prometheus.CounterVec // by the status of their items
}

func newCounts() *counts {
	c := &counts{
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "roundhouse_loop_running", Help: "Responses and tasks that are under way, and those that are being cleaned up."}),
		runs:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "roundhouse_loop_runs_total", Help: "Responses and tasks that have ended, by how."}, []string{"status"}),
		rounds:  prometheus.NewCounter(prometheus.CounterOpts{Name: "roundhouse_loop_rounds_total", Help: "Calls of models for responses and tasks."}),
		calls:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "roundhouse_loop_tool_calls_total", Help: "Calls of servers' tools for responses and tasks, by how they ended; incomplete ones were not made, or interrupted."}, []string{"status"}),
	}
	for _, s := range []Status{Completed, Incomplete, Failed, Cancelled} {
		c.runs.WithLabelValues(string(s))
	}
	for _, s := range []string{StatusCompleted, StatusFailed, StatusIncomplete} {
		c.calls.WithLabelValues(s)
	}
	return c
}

// Collectors returns what is exported of loops.
func (e *Engine) Collectors() []prometheus.Collector {
	return []prometheus.Collector{e.counts.running, e.counts.runs, e.counts.rounds, e.counts.calls}
}
