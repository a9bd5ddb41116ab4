package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"roundhouse/bench/load"
)

// The proxies between clients and a model's engine, in tables and JSON.
const (
	plainProxy   = "plain-proxy"
	nginxProxy   = "nginx"
	offProxy     = "roundhouse-off"
	observeProxy = "roundhouse-observe"
	trainProxy   = "roundhouse-train"
)

// proxyNames are all of them, in the order of the table.
var proxyNames = []string{plainProxy, nginxProxy, offProxy, observeProxy, trainProxy}

const (
	streamTokens = 100 // of a stream
	streamPace   = 5 * time.Millisecond
)

// streamPlan says how much of the streams is measured.
type streamPlan struct {
	streams []int
	rounds  int
	warmup  time.Duration // before each measurement
	window  time.Duration // of each measurement
}

var (
	fullStreamPlan  = streamPlan{streams: []int{32, 128}, rounds: 3, warmup: time.Second, window: 3 * time.Second}
	quickStreamPlan = streamPlan{streams: []int{32, 128}, rounds: 1, warmup: 700 * time.Millisecond, window: 1500 * time.Millisecond}
)

// streamCell is what is measured once in every round.
type streamCell struct {
	proxy   string
	streams int
}

// streamSample is one measurement of a proxy.
type streamSample struct {
	TokensPerSecond float64       `json:"tokens_per_second"`
	FirstP50        time.Duration `json:"first_p50_ns"` // from a request to its first token
	FirstP99        time.Duration `json:"first_p99_ns"`
	EndP50          time.Duration `json:"end_p50_ns"` // from the last token to the end of the stream
	EndP99          time.Duration `json:"end_p99_ns"`
	CPU             time.Duration `json:"cpu_ns"`       // of the proxy, per token
	Memory          int64         `json:"memory_bytes"` // that the proxy has grown by, per stream
	OtherCPU        float64       `json:"other_cpu"`    // processors that neither proxy, engine nor clients kept busy
}

// streamRow is a cell: each value is the median of the cell's samples.
type streamRow struct {
	Proxy   string `json:"proxy"`
	Streams int    `json:"streams"`
	streamSample
	Samples []streamSample `json:"samples"` // one per round
}

// streamRequirements are the bars for each number of streams.
var streamRequirements = []struct {
	bar
	proxy, baseline string
	value           func(streamSample) float64
}{
	{bar{Name: "tokens/s of roundhouse-train to those of plain-proxy", Relation: ">=", Limit: 0.8},
		trainProxy, plainProxy, func(s streamSample) float64 { return s.TokensPerSecond }},
	{bar{Name: "first token of roundhouse-train to that of plain-proxy", Relation: "<=", Limit: 1.2},
		trainProxy, plainProxy, func(s streamSample) float64 { return float64(s.FirstP50) }},
	{bar{Name: "CPU per token of roundhouse-train to that of nginx", Relation: "<=", Limit: 1.5},
		trainProxy, nginxProxy, func(s streamSample) float64 { return float64(s.CPU) }},
}

// streamReport is what was measured of streams.
type streamReport struct {
	Rounds  int           `json:"rounds"`
	Window  time.Duration `json:"window_ns"`
	Rows    []streamRow   `json:"rows"`
	Missing []string      `json:"missing,omitempty"` // proxies that were not measured, and why
}

// measureStreams measures all proxies that there are. Each is started for its measurement
// alone, so that what its memory has grown by is the streams'.
func measureStreams(ctx context.Context, dir string, bin binaries, p streamPlan, progress func(string, ...any)) (r streamReport, bars []bar, err error) {
	r = streamReport{Rounds: p.rounds, Window: p.window}
	engine, err := startFront(ctx, dir, "engine", "", "", func(addr string) []string {
		return []string{bin.engine, "-http", addr, "-tokens", fmt.Sprint(streamTokens), "-pace", streamPace.String()}
	})
	if err != nil {
		return r, nil, fmt.Errorf("start the engine: %w", err)
	}
	defer func() { err = errors.Join(err, engine.stop()) }()
	proxies, missing := findProxies(bin, engine)
	r.Missing = missing
	results := make(map[streamCell][]streamSample)
	for round := range p.rounds {
		for _, streams := range p.streams {
			progress("round %d of %d: %d streams", round+1, p.rounds, streams)
			for i := range proxies {
				proxy := proxies[(i+round)%len(proxies)]
				c := streamCell{proxy.name, streams}
				s, err := p.measureProxy(ctx, filepath.Join(dir, fmt.Sprintf("streams-%d-%d-%d", round, streams, i)), proxy, engine, streams)
				if err != nil {
					return r, nil, fmt.Errorf("measure %s with %d streams: %w", proxy.name, streams, err)
				}
				results[c] = append(results[c], s)
			}
		}
	}
	r.Rows, bars = judgeStreams(p, results)
	return r, bars, nil
}

// judgeStreams makes rows and bars from the samples.
func judgeStreams(p streamPlan, results map[streamCell][]streamSample) (rows []streamRow, bars []bar) {
	for _, streams := range p.streams {
		for _, name := range proxyNames {
			if samples := results[streamCell{name, streams}]; len(samples) > 0 {
				rows = append(rows, streamRow{name, streams, medianStreamSample(samples), samples})
			}
		}
		for _, req := range streamRequirements {
			b := req.bar
			b.Streams = streams
			judge(&b, results[streamCell{req.proxy, streams}], results[streamCell{req.baseline, streams}], req.value)
			bars = append(bars, b)
		}
	}
	return rows, bars
}

// proxy is a way to the engine.
type proxy struct {
	name  string
	ready string // the path that answers 200 when it serves; "" if it needs only to accept
	// command makes what it needs in dir, and returns the command that serves on addr.
	command func(dir, addr string) ([]string, error)
}

// findProxies returns the proxies in the order of proxyNames, and why some are missing.
func findProxies(bin binaries, engine *front) (proxies []proxy, missing []string) {
	proxies = append(proxies, proxy{plainProxy, "", func(_, addr string) ([]string, error) {
		return []string{bin.plainproxy, addr, engine.endpoint}, nil
	}})
	if nginx, err := findNginx(); err != nil {
		missing = append(missing, fmt.Sprintf("%s is not measured: %v", nginxProxy, err))
	} else {
		proxies = append(proxies, proxy{nginxProxy, "", func(dir, addr string) ([]string, error) {
			config := filepath.Join(dir, "nginx.conf")
			text := fmt.Sprintf(nginxConfig, strings.TrimPrefix(engine.endpoint, "http://"), addr)
			return []string{nginx, "-p", dir, "-c", config, "-e", "stderr"}, os.WriteFile(config, []byte(text), 0o600)
		}})
	}
	if bin.roundhouse == "" {
		return proxies, append(missing, "roundhouse is not measured: it could not be built")
	}
	for name, policy := range map[string]string{offProxy: "off", observeProxy: "observe", trainProxy: "train"} {
		proxies = append(proxies, proxy{name, "/readyz", func(dir, addr string) ([]string, error) {
			config := filepath.Join(dir, "roundhouse.json")
			text, err := json.Marshal(map[string]any{
				"mcpServers": map[string]any{}, "stateDir": filepath.Join(dir, "state"),
				"llm": map[string]any{
					"upstreams": map[string]any{"engine": map[string]any{"baseURL": engine.endpoint}},
					"record":    map[string]any{"policy": policy},
				},
			})
			if err != nil {
				return nil, err
			}
			return []string{bin.roundhouse, "serve", "--config", config, "--listen", addr}, os.WriteFile(config, text, 0o600)
		}})
	}
	slices.SortFunc(proxies, func(a, b proxy) int { return slices.Index(proxyNames, a.name) - slices.Index(proxyNames, b.name) })
	return proxies, missing
}

// findNginx returns the path of nginx, which is no command for everybody on some systems.
func findNginx() (string, error) {
	path, err := exec.LookPath("nginx")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/nginx")
	}
	if err != nil {
		return "", errors.New("nginx is not installed (Debian: apt install nginx-light)")
	}
	return path, nil
}

// nginxConfig is that of nginx with the address of the engine and its own, buffering off.
const nginxConfig = `daemon off;
worker_processes auto;
pid nginx.pid;
error_log stderr;
events { worker_connections 1024; }
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	upstream engine { server %s; keepalive 256; }
	server {
		listen %s;
		keepalive_requests 1000000;
		location / {
			proxy_pass http://engine;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_buffering off;
		}
	}
}
`

// measureProxy starts a proxy, has clients read streams through it, and ends it.
func (p streamPlan) measureProxy(ctx context.Context, dir string, proxy proxy, engine *front, streams int) (s streamSample, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return s, fmt.Errorf("make a directory: %w", err)
	}
	addr, err := freeAddr()
	if err != nil {
		return s, err
	}
	command, err := proxy.command(dir, addr)
	if err != nil {
		return s, fmt.Errorf("configure it: %w", err)
	}
	f, err := startFrontAt(ctx, dir, proxy.name, addr, "", proxy.ready, command)
	if err != nil {
		return s, fmt.Errorf("start it: %w", err)
	}
	defer func() { err = errors.Join(err, f.stop()) }()
	idle, err := proxyUsage(f, engine)
	if err != nil {
		return s, err
	}
	clients := load.StartStreams(ctx, load.StreamPlan{
		Addr: addr, Clients: streams, Tokens: streamTokens,
		Spread: streamTokens * streamPace, Pause: streamTokens * streamPace / 10,
	})
	s, err = p.watch(clients, f, engine)
	s.Memory = (s.Memory - idle.resident) / int64(streams)
	result, streamErr := clients.Stop()
	if err = errors.Join(streamErr, err); err != nil {
		return s, fmt.Errorf("%w%s", err, f.logTail())
	}
	s.FirstP50, s.FirstP99 = load.Quantile(result.First, 0.50), load.Quantile(result.First, 0.99)
	s.EndP50, s.EndP99 = load.Quantile(result.End, 0.50), load.Quantile(result.End, 0.99)
	return s, nil
}

// watch measures what proxy and clients do in a window of time; its Memory is the whole.
func (p streamPlan) watch(clients *load.Streams, f, engine *front) (s streamSample, err error) {
	if err := clients.Wait(p.warmup); err != nil {
		return s, err
	}
	clients.Measure()
	begun, first := time.Now(), clients.Tokens()
	before, err := proxyUsage(f, engine)
	if err != nil {
		return s, err
	}
	if err := clients.Wait(p.window); err != nil {
		return s, err
	}
	after, err := proxyUsage(f, engine)
	tokens, elapsed := clients.Tokens()-first, time.Since(begun).Seconds()
	other := after.machine - before.machine - (after.servers - before.servers) - (after.load - before.load)
	return streamSample{
		TokensPerSecond: float64(tokens) / elapsed,
		CPU:             (after.front - before.front) / time.Duration(max(tokens, 1)),
		Memory:          after.resident,
		OtherCPU:        max(0, other.Seconds()/elapsed),
	}, err
}

// proxyUsage is what a proxy and all processes below it have used, as that of the front;
// the engine's time is in that of the servers, too.
func proxyUsage(f, engine *front) (usage, error) {
	below, err := descendants(f.cmd.Process.Pid)
	if err != nil {
		return usage{}, err
	}
	pids := []int{f.cmd.Process.Pid}
	for _, p := range below {
		pids = append(pids, p.pid)
	}
	u, err := readUsage(pids, nil)
	if err != nil {
		return usage{}, err
	}
	e, err := readProcess(engine.cmd.Process.Pid)
	u.servers += e.cpu
	return u, err
}

func medianStreamSample(samples []streamSample) streamSample {
	return streamSample{
		TokensPerSecond: medianOf(samples, func(s streamSample) float64 { return s.TokensPerSecond }),
		FirstP50:        medianOf(samples, func(s streamSample) time.Duration { return s.FirstP50 }),
		FirstP99:        medianOf(samples, func(s streamSample) time.Duration { return s.FirstP99 }),
		EndP50:          medianOf(samples, func(s streamSample) time.Duration { return s.EndP50 }),
		EndP99:          medianOf(samples, func(s streamSample) time.Duration { return s.EndP99 }),
		CPU:             medianOf(samples, func(s streamSample) time.Duration { return s.CPU }),
		Memory:          medianOf(samples, func(s streamSample) int64 { return s.Memory }),
		OtherCPU:        medianOf(samples, func(s streamSample) float64 { return s.OtherCPU }),
	}
}

// writeTable writes the report for people.
func (r streamReport) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "streams\tproxy\ttokens/s\tfirst p50 µs\tfirst p99 µs\tend p50 µs\tend p99 µs\tproxy CPU µs/token\tKiB/stream\t")
	var other []float64
	for i, row := range r.Rows {
		if i > 0 && row.Streams != r.Rows[i-1].Streams {
			fmt.Fprintln(t, "\t\t\t\t\t\t\t\t\t")
		}
		fmt.Fprintf(t, "%d\t%s\t%.0f\t%s\t%s\t%s\t%s\t%s\t%d\t\n", row.Streams, row.Proxy, row.TokensPerSecond,
			micros(row.FirstP50), micros(row.FirstP99), micros(row.EndP50), micros(row.EndP99), micros(row.CPU), row.Memory>>10)
		for _, s := range row.Samples {
			other = append(other, s.OtherCPU)
		}
	}
	err := t.Flush()
	for _, why := range r.Missing {
		_, e := fmt.Fprintln(w, why)
		err = errors.Join(err, e)
	}
	_, e := fmt.Fprintf(w, "\nstreams of %d tokens, one each %v; medians of %d × %v; everything else on the machine used %.2f CPUs meanwhile\n\n",
		streamTokens, streamPace, r.Rounds, r.Window, median(other))
	return errors.Join(err, e)
}
