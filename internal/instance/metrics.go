package instance

import "github.com/prometheus/client_golang/prometheus"

// Collectors returns what is exported of instances.
func (p *Pools) Collectors() []prometheus.Collector { return []prometheus.Collector{levels{p}} }

// levels collects what there is at the moment of a scrape.
type levels struct{ p *Pools }

var (
	instancesDesc = prometheus.NewDesc("roundhouse_instance_instances", "Instances of exclusive servers by their state.", []string{"server", "state"}, nil)
	limitDesc     = prometheus.NewDesc("roundhouse_instance_limit", "How many instances of a server there may be.", []string{"server"}, nil)
	waitingDesc   = prometheus.NewDesc("roundhouse_instance_waiting", "Calls and sessions that wait for an instance.", []string{"server"}, nil)
)

// Describe implements prometheus.Collector.
func (levels) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{instancesDesc, limitDesc, waitingDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Instances of a configuration that was replaced
// count with those of the new one.
func (l levels) Collect(ch chan<- prometheus.Metric) {
	l.p.mu.Lock()
	counts := map[string]map[State]int{}
	waiting, limits := map[string]int{}, map[string]int{}
	for v := range l.p.eachLocked() {
		if counts[v.name] == nil {
			counts[v.name] = map[State]int{}
		}
		for _, s := range []State{Starting, Warm, Leased, Resetting, Ending} {
			counts[v.name][s] += v.count(s)
		}
		waiting[v.name] += len(v.waiters)
		limits[v.name] = max(limits[v.name], v.most())
	}
	l.p.mu.Unlock()
	for name, states := range counts {
		for s, n := range states {
			ch <- prometheus.MustNewConstMetric(instancesDesc, prometheus.GaugeValue, float64(n), name, string(s))
		}
		ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(limits[name]), name)
		ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(waiting[name]), name)
	}
}
