package process

import "github.com/prometheus/client_golang/prometheus"

// metrics count what becomes of servers.
type metrics struct {
	starts, ends *prometheus.CounterVec
}

func newMetrics() metrics {
	return metrics{
		starts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "roundhouse_process_starts_total", Help: "Starts of servers: ok or failed.",
		}, []string{"outcome"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "roundhouse_process_ends_total", Help: "Servers that were ended, by the last step that it took: the end of their input (eof), TERM, or KILL.",
		}, []string{"stage"}),
	}
}

// Collectors returns what is exported of processes.
func (m *Manager) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.metrics.starts, m.metrics.ends,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "roundhouse_process_children", Help: "Servers that run as processes, or of which something is left.",
		}, func() float64 {
			m.mu.Lock()
			defer m.mu.Unlock()
			return float64(len(m.live))
		}),
	}
}
