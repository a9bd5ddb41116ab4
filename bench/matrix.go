package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"roundhouse/bench/load"
)

// plan says how much is measured.
type plan struct {
	sessions []int
	payloads []int // bytes
	rounds   int
	warmup   time.Duration // before each measurement, with the same sessions
	window   time.Duration // of each measurement
}

var (
	fullPlan = plan{
		sessions: []int{1, 16, 64}, payloads: []int{16, 16 << 10},
		rounds: 3, warmup: 250 * time.Millisecond, window: 1500 * time.Millisecond,
	}
	quickPlan = plan{
		sessions: fullPlan.sessions, payloads: fullPlan.payloads,
		rounds: 1, warmup: 150 * time.Millisecond, window: 700 * time.Millisecond,
	}
)

// cell is one combination that is measured once in every round.
type cell struct {
	front             string
	sessions, payload int
}

// sample is one measurement of a cell. CPU times are per call.
type sample struct {
	Calls          int           `json:"calls"`
	CallsPerSecond float64       `json:"calls_per_second"`
	P50            time.Duration `json:"p50_ns"`
	P99            time.Duration `json:"p99_ns"`
	FrontCPU       time.Duration `json:"front_cpu_ns"` // of the front process alone; 0 for stdio, which has none
	ServerCPU      time.Duration `json:"all_cpu_ns"`   // of the front and all processes below or behind it
	LoadCPU        time.Duration `json:"load_cpu_ns"`  // of the load generator, this process
	Resident       int64         `json:"resident_bytes"`
	OtherCPU       float64       `json:"other_cpu"` // processors that everything else on the machine kept busy
}

// measure runs all rounds. Fronts are measured one after the other within each
// combination of sessions and payload, so that what is compared is close in time, and
// each round begins with another front.
func (p plan) measure(ctx context.Context, fronts []*front, progress func(string, ...any)) (map[cell][]sample, error) {
	results := make(map[cell][]sample)
	for round := range p.rounds {
		for _, payload := range p.payloads {
			for _, sessions := range p.sessions {
				progress("round %d of %d: %d bytes, %d sessions", round+1, p.rounds, payload, sessions)
				for i := range fronts {
					f := fronts[(i+round)%len(fronts)]
					c := cell{f.name, sessions, payload}
					s, err := p.measureCell(ctx, f, c)
					if err != nil {
						return nil, fmt.Errorf("measure %s with %d sessions and %d bytes: %w%s",
							f.name, sessions, payload, err, f.logTail())
					}
					results[c] = append(results[c], s)
				}
			}
		}
	}
	return results, nil
}

// measureCell opens the cell's sessions, warms them up, measures, and closes them.
func (p plan) measureCell(ctx context.Context, f *front, c cell) (_ sample, err error) {
	var sessions []load.Session
	defer func() {
		for _, s := range sessions {
			err = errors.Join(err, s.Close())
		}
	}()
	for range c.sessions {
		s, err := f.open(ctx)
		if err != nil {
			return sample{}, err
		}
		sessions = append(sessions, s)
	}
	if _, err := load.Run(ctx, load.Plan{Sessions: sessions, Payload: c.payload, Duration: p.warmup}); err != nil {
		return sample{}, err
	}
	front, below, err := processes(f, sessions)
	if err != nil {
		return sample{}, err
	}
	before, err := readUsage(front, below)
	if err != nil {
		return sample{}, err
	}
	result, err := load.Run(ctx, load.Plan{Sessions: sessions, Payload: c.payload, Duration: p.window})
	if err != nil {
		return sample{}, err
	}
	after, err := readUsage(front, below)
	if err != nil {
		return sample{}, err
	}
	return newSample(result, before, after), nil
}

// processes returns the ids of the front process (none for stdio) and of all
// processes that serve its sessions below or behind it.
func processes(f *front, sessions []load.Session) (front, below []int, err error) {
	if f.cmd == nil {
		for _, s := range sessions {
			below = append(below, s.(*load.Stdio).PID())
		}
		return nil, below, nil
	}
	front = []int{f.cmd.Process.Pid}
	children, err := descendants(front[0])
	for _, p := range children {
		below = append(below, p.pid)
	}
	if f.upstream != nil {
		below = append(below, f.upstream.cmd.Process.Pid)
	}
	return front, below, err
}

// usage is what was used up to a moment.
type usage struct {
	front, servers, load, machine time.Duration
	resident                      int64 // bytes, of the front and the servers
}

func readUsage(front, below []int) (usage, error) {
	var u usage
	for _, pid := range front {
		p, err := readProcess(pid)
		if err != nil {
			return u, err
		}
		u.front += p.cpu
		u.resident += p.resident
	}
	u.servers = u.front
	for _, pid := range below {
		p, err := readProcess(pid)
		if err != nil {
			return u, err
		}
		u.servers += p.cpu
		u.resident += p.resident
	}
	self, err := readProcess(os.Getpid())
	if err != nil {
		return u, err
	}
	u.load = self.cpu
	u.machine, err = machineBusy()
	return u, err
}

func newSample(r load.Result, before, after usage) sample {
	calls := len(r.Latencies)
	perCall := func(d time.Duration) time.Duration { return d / time.Duration(max(calls, 1)) }
	servers, generator := after.servers-before.servers, after.load-before.load
	// Readings in whole ticks can make the rest a little negative.
	other := max(0, after.machine-before.machine-servers-generator)
	return sample{
		Calls:          calls,
		CallsPerSecond: r.CallsPerSecond(),
		P50:            r.Quantile(0.50),
		P99:            r.Quantile(0.99),
		FrontCPU:       perCall(after.front - before.front),
		ServerCPU:      perCall(servers),
		LoadCPU:        perCall(generator),
		Resident:       after.resident,
		OtherCPU:       other.Seconds() / r.Elapsed.Seconds(),
	}
}
