package responses

import "github.com/prometheus/client_golang/prometheus"

// metrics count what became of responses.
type metrics struct {
	ended    *prometheus.CounterVec // by status
	unstored prometheus.Counter
}

func newMetrics() metrics {
	return metrics{
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "roundhouse_responses_ended_total", Help: "Responses that have ended, by their status.",
		}, []string{"status"}),
		unstored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "roundhouse_responses_unstored_total", Help: "Times that a response could not be stored which was to be.",
		}),
	}
}

var runningDesc = prometheus.NewDesc("roundhouse_responses_running", "Responses that are under way, or clean up.", nil, nil)

// Collectors returns what is exported of responses.
func (f *Face) Collectors() []prometheus.Collector {
	return []prometheus.Collector{f.metrics.ended, f.metrics.unstored, running{f}}
}

// running collects how many there are at the moment of a scrape.
type running struct{ f *Face }

// Describe implements prometheus.Collector.
func (running) Describe(ch chan<- *prometheus.Desc) { ch <- runningDesc }

// Collect implements prometheus.Collector.
func (r running) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(runningDesc, prometheus.GaugeValue, float64(r.f.Running()))
}
