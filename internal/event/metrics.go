package event

import "github.com/prometheus/client_golang/prometheus"

// Collectors returns what is exported of a feed, which must not be nil.
func (f *Feed) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "roundhouse_event_published_total", Help: "Events.",
		}, func() float64 { return float64(f.Last()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "roundhouse_event_dropped_total", Help: "Events that a follower did not get because he was too slow or away too long.",
		}, func() float64 { return float64(f.dropped.Load()) }),
	}
}
