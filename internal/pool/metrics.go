package pool

import (
	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/mux"
)

// metrics count what happens to connections. They may be used with and without the lock.
type metrics struct {
	calls      *mux.Metrics
	dials      *prometheus.CounterVec
	losses     *prometheus.CounterVec
	recoveries *prometheus.CounterVec
	restarts   *prometheus.CounterVec
	refusals   *prometheus.CounterVec
}

func newMetrics() metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"server"}, labels...))
	}
	return metrics{
		calls:      mux.NewMetrics(),
		dials:      counter("roundhouse_pool_dials_total", "Attempts to connect that have ended: ok, failed, or unwanted by then.", "outcome"),
		losses:     counter("roundhouse_pool_losses_total", "Connections that ended without our having ended them."),
		recoveries: counter("roundhouse_pool_recoveries_total", "Recoveries after a loss that have ended: ok, failed, or unwanted by then.", "outcome"),
		restarts:   counter("roundhouse_pool_restarts_total", "Restarts that somebody asked for: ok, failed, or skipped.", "outcome"),
		refusals:   counter("roundhouse_pool_refusals_total", "Acquires that were refused because of the budget or of an open circuit.", "reason"),
	}
}

// The outcomes of dials, recoveries and restarts.
const (
	outcomeOK       = "ok"
	outcomeFailed   = "failed"
	outcomeUnwanted = "unwanted"
	outcomeSkipped  = "skipped"
)

// Why an acquire was refused.
const (
	refusedBudget  = "budget"
	refusedCircuit = "circuit"
)

// Collectors returns what is exported of the pool and of the calls on its connections.
func (p *Pool) Collectors() []prometheus.Collector {
	m := p.metrics
	return append(m.calls.Collectors(), m.dials, m.losses, m.recoveries, m.restarts, m.refusals, levels{p})
}

// levels collects what there is at the moment of a scrape.
type levels struct{ p *Pool }

var (
	connectionsDesc = prometheus.NewDesc("roundhouse_pool_connections", "Connections by their state, and those that end (dying).", []string{"server", "state"}, nil)
	attachmentsDesc = prometheus.NewDesc("roundhouse_pool_attachments", "References of sessions to connections.", []string{"server"}, nil)
	inFlightDesc    = prometheus.NewDesc("roundhouse_pool_calls_in_flight", "Clients' calls that are open, waiting ones too.", []string{"server"}, nil)
	budgetHeldDesc  = prometheus.NewDesc("roundhouse_pool_budget_held", "What is held of the budget.", []string{"limit"}, nil)
	budgetLimitDesc = prometheus.NewDesc("roundhouse_pool_budget_limit", "The limits of the budget; 0 is none.", []string{"limit"}, nil)
)

// Describe implements prometheus.Collector.
func (levels) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectionsDesc, attachmentsDesc, inFlightDesc, budgetHeldDesc, budgetLimitDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l levels) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	type of struct{ server, state string }
	connections := map[of]int{}
	attachments, inFlight := map[string]int{}, map[string]int{}
	for _, i := range l.p.Snapshot() {
		state := string(i.State)
		if i.Dying {
			state = "dying"
		} else {
			attachments[i.Server] += i.Refs
		}
		connections[of{i.Server, state}]++
		inFlight[i.Server] += i.InFlight
	}
	for k, n := range connections {
		gauge(connectionsDesc, n, k.server, k.state)
	}
	for server, n := range attachments {
		gauge(attachmentsDesc, n, server)
	}
	for server, n := range inFlight {
		gauge(inFlightDesc, n, server)
	}
	b := l.p.Budget()
	processes := 0
	for _, h := range b.Held {
		processes += h.Processes
	}
	gauge(budgetHeldDesc, len(b.Held), string(serverLimit))
	gauge(budgetHeldDesc, processes, string(processLimit))
	gauge(budgetLimitDesc, b.Servers, string(serverLimit))
	gauge(budgetLimitDesc, b.Processes, string(processLimit))
}
