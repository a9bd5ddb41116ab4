package session

import "github.com/prometheus/client_golang/prometheus"

// Collectors returns what is exported of sessions.
func (m *Manager) Collectors() []prometheus.Collector { return []prometheus.Collector{levels{m}} }

// levels collects what there is at the moment of a scrape.
type levels struct{ m *Manager }

var (
	sessionsDesc = prometheus.NewDesc("roundhouse_session_sessions", "Sessions by their state.", []string{"state"}, nil)
	limitDesc    = prometheus.NewDesc("roundhouse_session_limit", "How many sessions there may be.", nil, nil)
	clientsDesc  = prometheus.NewDesc("roundhouse_session_clients", "Clients of all sessions.", nil, nil)
	inFlightDesc = prometheus.NewDesc("roundhouse_session_requests_in_flight", "Requests of clients that are not answered yet.", nil, nil)
	tasksDesc    = prometheus.NewDesc("roundhouse_session_tasks", "Tasks that run in sessions.", nil, nil)
	cleanupsDesc = prometheus.NewDesc("roundhouse_session_cleanups_total", "Clean-ups of servers that a session has used for the last time, by how they went.", []string{"outcome"}, nil)
	unsavedDesc  = prometheus.NewDesc("roundhouse_session_unsaved", "Sessions that have changed since they were stored; if there are some for long, the database fails.", nil, nil)
	evictedDesc  = prometheus.NewDesc("roundhouse_session_evictions_total", "Sessions that were ended to make room for others.", nil, nil)
)

// Describe implements prometheus.Collector.
func (levels) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sessionsDesc, limitDesc, clientsDesc, inFlightDesc, tasksDesc, unsavedDesc, evictedDesc, cleanupsDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l levels) Collect(ch chan<- prometheus.Metric) {
	st := l.m.Stats()
	for state, n := range st.Sessions {
		ch <- prometheus.MustNewConstMetric(sessionsDesc, prometheus.GaugeValue, float64(n), string(state))
	}
	ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(st.Max))
	ch <- prometheus.MustNewConstMetric(clientsDesc, prometheus.GaugeValue, float64(st.Clients))
	ch <- prometheus.MustNewConstMetric(inFlightDesc, prometheus.GaugeValue, float64(st.InFlight))
	ch <- prometheus.MustNewConstMetric(tasksDesc, prometheus.GaugeValue, float64(st.Tasks))
	ch <- prometheus.MustNewConstMetric(unsavedDesc, prometheus.GaugeValue, float64(st.Unsaved))
	ch <- prometheus.MustNewConstMetric(evictedDesc, prometheus.CounterValue, float64(st.Evicted))
	for _, o := range outcomes {
		ch <- prometheus.MustNewConstMetric(cleanupsDesc, prometheus.CounterValue, float64(st.Cleanups[o]), string(o))
	}
}
