package gateway

import "github.com/prometheus/client_golang/prometheus"

// metrics count what clients send, and what they do not take.
type metrics struct {
	posts   prometheus.Counter
	frames  prometheus.Counter // on lines
	cut     prometheus.Counter
	dropped prometheus.Counter
}

func newMetrics() metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return metrics{
		posts:   counter("roundhouse_gateway_posts_total", "Bodies that were posted: one frame each, or a batch."),
		frames:  counter("roundhouse_gateway_line_frames_total", "Frames that came from shims."),
		cut:     counter("roundhouse_gateway_cut_streams_total", "Streams that were closed because their client read too slowly."),
		dropped: counter("roundhouse_gateway_dropped_notifications_total", "Notifications that were dropped because their client read too slowly."),
	}
}

// Collectors returns what is exported of the MCP face over HTTP.
func (g *Gateway) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		g.metrics.posts, g.metrics.frames, g.metrics.cut, g.metrics.dropped,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "roundhouse_gateway_standing_streams", Help: "Standing streams of clients: GET, and subscriptions/listen.",
		}, func() float64 {
			g.mu.Lock()
			defer g.mu.Unlock()
			return float64(len(g.readers))
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "roundhouse_gateway_queued_bytes", Help: "Bytes that wait to be read by all clients together.",
		}, func() float64 { return float64(g.queued.Load()) }),
	}
}

// Collectors returns what is exported of the lines of shims.
func (rl *Relay) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "roundhouse_gateway_lines", Help: "Shims that are connected.",
		}, func() float64 { return float64(rl.Lines()) }),
	}
}
