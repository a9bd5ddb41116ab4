package recorder_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"roundhouse/internal/config"
)

// BenchmarkStreams has 32 and 128 clients at once read streams of 100 tokens, one each 5 ms,
// through a bare httputil.ReverseProxy and through the recorder with each policy. An
// operation is one stream. first-µs is the median time to the first token, KiB/stream the
// memory that one more open stream takes, cpu-µs/token the processor time of client,
// engine and what is between them.
func BenchmarkStreams(b *testing.B) { benchStreams(b, 5*time.Millisecond) }

// BenchmarkFastStreams is the same with an engine that does not wait: what a stream costs
// then are its calls of the disk.
func BenchmarkFastStreams(b *testing.B) { benchStreams(b, 0) }

// benchTokens is how many tokens a stream has.
const benchTokens = 100

func benchStreams(b *testing.B, pace time.Duration) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		out := http.NewResponseController(w)
		for range benchTokens {
			io.WriteString(w, chunkHello)
			if out.Flush() != nil {
				return
			}
			time.Sleep(pace)
		}
		io.WriteString(w, chunkFinish+chunkDone)
	}))
	defer engine.Close()
	target, err := url.Parse(engine.URL)
	if err != nil {
		b.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		FlushInterval: -1,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true},
	}
	bare := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The proxy must not be at fault for the upstream's early answer (C16).
		_ = http.NewResponseController(w).EnableFullDuplex()
		proxy.ServeHTTP(w, r)
	}))
	defer bare.Close()
	for _, clients := range []int{32, 128} {
		for _, by := range []string{"proxy", "off", "observe", "train"} {
			b.Run(fmt.Sprintf("%s-%d", by, clients), func(b *testing.B) {
				url := bare.URL
				if by != "proxy" {
					w := newWorld(b, func(cfg *config.LLM) {
						cfg.Record.Policy = config.RecordPolicy(by)
						cfg.Upstreams[0].BaseURL = engine.URL
					})
					url = w.url
				}
				streams(b, clients, url)
			})
		}
	}
}

func streams(b *testing.B, clients int, url string) {
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	defer transport.CloseIdleConnections()
	var left atomic.Int64
	left.Store(int64(max(b.N, clients)))
	var mu sync.Mutex
	var firsts []time.Duration
	var peak atomic.Uint64
	ready := make(chan struct{})
	var wg sync.WaitGroup
	for i := range clients {
		path := fmt.Sprintf("%s/sessions/bench-%d/v1/chat/completions", url, i)
		wg.Go(func() {
			<-ready
			for left.Add(-1) >= 0 {
				begun := time.Now()
				req, err := http.NewRequest(http.MethodPost, path, strings.NewReader(strings.Replace(chatStream, `"session_id":"s1",`, "", 1)))
				if err != nil {
					b.Error(err)
					return
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					b.Error(err)
					return
				}
				body := bufio.NewReader(resp.Body)
				_, err = body.ReadString('\n')
				first := time.Since(begun)
				_, restErr := io.Copy(io.Discard, body)
				resp.Body.Close()
				if err != nil || restErr != nil {
					b.Errorf("%v, %v", err, restErr)
					return
				}
				mu.Lock()
				firsts = append(firsts, first)
				mu.Unlock()
			}
		})
	}
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	spent := cpuTime(b)
	close(ready)
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				runtime.ReadMemStats(&now)
				peak.Store(max(peak.Load(), now.HeapInuse+now.StackInuse))
			}
		}
	})
	wg.Wait()
	b.StopTimer()
	spent = cpuTime(b) - spent
	close(done)
	watch.Wait()
	slices.Sort(firsts)
	if len(firsts) > 0 {
		b.ReportMetric(float64(firsts[len(firsts)/2].Microseconds()), "first-µs")
	}
	if start := before.HeapInuse + before.StackInuse; peak.Load() > start {
		b.ReportMetric(float64(peak.Load()-start)/1024/float64(clients), "KiB/stream")
	}
	b.ReportMetric(float64(spent.Nanoseconds())/1000/float64(benchTokens*max(len(firsts), 1)), "cpu-µs/token")
	b.ReportMetric(float64(benchTokens*len(firsts))/b.Elapsed().Seconds(), "tokens/s")
}

// cpuTime is the processor time that this process has taken.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
