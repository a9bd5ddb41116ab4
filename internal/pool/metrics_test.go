package pool

import (
	"context"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse/internal/config"
)

// counts gathers the pool's counters: by name, and by the values of their labels.
func counts(t *testing.T, p *Pool) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(p.Collectors()...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if m.Counter == nil || m.Counter.GetValue() == 0 {
				continue
			}
			var key strings.Builder
			key.WriteString(strings.TrimPrefix(f.GetName(), "roundhouse_pool_"))
			for _, l := range m.Label {
				key.WriteString(" " + l.GetValue())
			}
			all[key.String()] = m.Counter.GetValue()
		}
	}
	return all
}

// STYLE 19: dials, losses, recoveries, restarts and refusals are counted once each.
func TestWhatHappensToConnectionsIsCounted(t *testing.T) {
	cfg := guarded
	cfg.Budget = config.Budget{Mode: config.BudgetEnforce, Servers: 2}
	inWorld(t, cfg, func(w *world) {
		files, s := w.lasting("files")
		keeps, k := w.lasting("keeps")
		third, _ := w.server("third")
		h := w.pool.NewHolder("a")
		w.acquire(h, files)
		sleep(time.Minute)
		w.proc().die("signal: killed") // recovers at once
		synctest.Wait()
		w.pool.Restart(context.Background(), "files")
		s.set(func(s *script) { s.dialErr = errRefused })
		w.pool.Restart(context.Background(), "files") // fails, and takes the entry with it
		w.open(keeps, k)                              // five dials, and one refusal
		s.set(func(s *script) { s.dialErr = nil })
		w.acquire(w.pool.NewHolder("b"), files)
		sleep(time.Minute)
		w.acquire(w.pool.NewHolder("c"), keeps)
		w.refused(h, third)

		want := map[string]float64{
			"dials_total ok files": 4, "dials_total failed files": 1, "dials_total failed keeps": 5, "dials_total ok keeps": 1,
			"losses_total files": 1, "recoveries_total ok files": 1, "restarts_total ok files": 1, "restarts_total failed files": 1,
			"refusals_total circuit keeps": 1, "refusals_total budget third": 1,
		}
		if got := counts(t, w.pool); !maps.Equal(got, want) {
			t.Errorf("counted %v, want %v", got, want)
		}
	})
}
