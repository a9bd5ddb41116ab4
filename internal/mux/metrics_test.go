package mux

import (
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/fault"
)

// counted reads the calls by outcome, and how many durations were observed.
func counted(t *testing.T, m *Metrics) (outcomes map[string]int, durations uint64) {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(m.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	outcomes = map[string]int{}
	for _, f := range families {
		for _, x := range f.Metric {
			if h := x.GetHistogram(); h != nil {
				durations = h.GetSampleCount()
				continue
			}
			for _, l := range x.Label {
				if n := int(x.Counter.GetValue()); l.GetName() == "outcome" && n > 0 {
					outcomes[l.GetValue()] = n
				}
			}
		}
	}
	return outcomes, durations
}

// STYLE 19: each call of a client is counted once, by its outcome; roundhouse's own are
// not, nor is one that never had its turn.
func TestCallsAreCountedByOutcome(t *testing.T) {
	metrics := NewMetrics()
	w := newWorld(t, Config{Server: "s", Metrics: metrics})
	a, b := &client{name: "a"}, &client{name: "b"}
	c, _ := w.call(a, "1")
	w.result(c)
	c, _ = w.call(a, "2")
	w.receive(`{"jsonrpc":"2.0","id":%d,"error":{"code":-1,"message":"no"}}`, c.id)
	c, _ = w.call(a, "3")
	w.m.Refuse(c.Message.ID, fault.New(fault.Interrupted, "cut off"))
	c, _ = w.call(a, "4")
	c.Fail(fault.New(fault.CallTimeout, "too long"))
	w.call(b, "5")
	w.m.Leave(b, nil)
	f, r := frame(t, `{"jsonrpc":"2.0","id":0,"method":"tools/list"}`)
	if _, err := w.m.Begin(nil, f, r, &slot{}); err != nil {
		t.Fatal(err)
	}
	w.call(a, "6")
	w.m.Lose(fault.New(fault.Interrupted, "lost"))
	outcomes, durations := counted(t, metrics)
	want := map[string]int{"result": 1, "error": 1, "refused": 1, "cancelled": 2, "lost": 1}
	if !maps.Equal(outcomes, want) || durations != 6 {
		t.Errorf("counted %v and %d durations, want %v", outcomes, durations, want)
	}

	metrics = NewMetrics()
	w = newWorld(t, Config{Server: "s", Metrics: metrics, Policy: Serialize})
	w.call(a, "1")
	queued, _ := w.call(b, "2")
	queued.Fail(fault.New(fault.CallTimeout, "too long"))
	if outcomes, durations := counted(t, metrics); len(outcomes) != 0 || durations != 0 {
		t.Errorf("a call that waited for its turn was counted: %v, %d", outcomes, durations)
	}
}
