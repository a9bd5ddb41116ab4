package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

// report is the result of a run, as it is written to the JSON file.
type report struct {
	GoVersion string        `json:"go_version"` // set by writeJSON
	CPUs      int           `json:"cpus"`
	Rounds    int           `json:"rounds"`
	Window    time.Duration `json:"window_ns"`
	OtherCPU  float64       `json:"other_cpu"` // the median over all samples
	Rows      []row         `json:"rows"`
	Bars      []bar         `json:"bars"`
	Fleets    []fleet       `json:"fleets"`
	Streams   streamReport  `json:"streams"`
}

// row is a cell: each value is the median of the cell's samples.
type row struct {
	Front    string `json:"front"`
	Sessions int    `json:"sessions"`
	Payload  int    `json:"payload_bytes"`
	sample
	Samples []sample `json:"samples"` // one per round
}

// bar is a requirement on the median of a ratio, which is taken within each round.
type bar struct {
	Name     string  `json:"name"`
	Sessions int     `json:"sessions,omitempty"` // with Payload, of calls
	Payload  int     `json:"payload_bytes,omitempty"`
	Streams  int     `json:"streams,omitempty"` // of streams
	Relation string  `json:"relation"`          // ">=" or "<="
	Limit    float64 `json:"limit"`
	Ratio    float64 `json:"ratio"` // 0 if it was not measured
	Verdict  verdict `json:"verdict"`
}

type verdict string

const (
	pass    verdict = "PASS"
	fail    verdict = "FAIL"
	skipped verdict = "SKIP" // a front that it compares was not measured
)

// requirements are the bars for each payload, without what was measured.
var requirements = []struct {
	bar
	front, baseline string
	value           func(sample) float64
}{
	{bar{Name: "calls/s of roundhouse to those of sdk-http", Sessions: 64, Relation: ">=", Limit: 1.4},
		roundhouseFront, sdkHTTPFront, func(s sample) float64 { return s.CallsPerSecond }},
	{bar{Name: "front CPU per call of roundhouse to that of typed-proxy", Sessions: 64, Relation: "<=", Limit: 0.2},
		roundhouseFront, typedProxyFront, func(s sample) float64 { return float64(s.FrontCPU) }},
	{bar{Name: "p50 of roundhouse to that of sdk-http", Sessions: 1, Relation: "<=", Limit: 1.4},
		roundhouseFront, sdkHTTPFront, func(s sample) float64 { return float64(s.P50) }},
}

// newReport makes the report of a run from its samples.
func newReport(p plan, results map[cell][]sample) report {
	r := report{Rounds: p.rounds, Window: p.window}
	var other []float64
	for _, payload := range p.payloads {
		for _, sessions := range p.sessions {
			for _, name := range frontNames {
				samples := results[cell{name, sessions, payload}]
				if len(samples) == 0 {
					continue
				}
				r.Rows = append(r.Rows, row{name, sessions, payload, medianSample(samples), samples})
				for _, s := range samples {
					other = append(other, s.OtherCPU)
				}
			}
		}
		for _, req := range requirements {
			b := req.bar
			b.Payload = payload
			judge(&b, results[cell{req.front, b.Sessions, payload}], results[cell{req.baseline, b.Sessions, payload}], req.value)
			r.Bars = append(r.Bars, b)
		}
	}
	r.OtherCPU = median(other)
	return r
}

// judge sets Ratio and Verdict from the samples of both fronts, round by round.
func judge[S any](b *bar, front, baseline []S, value func(S) float64) {
	var ratios []float64
	for i := range min(len(front), len(baseline)) {
		if base := value(baseline[i]); base > 0 {
			ratios = append(ratios, value(front[i])/base)
		}
	}
	if len(ratios) == 0 {
		b.Verdict = skipped
		return
	}
	b.Ratio = median(ratios)
	b.Verdict = fail
	if b.Relation == ">=" && b.Ratio >= b.Limit || b.Relation == "<=" && b.Ratio <= b.Limit {
		b.Verdict = pass
	}
}

// passed reports whether every bar was measured and passed.
func (r report) passed() bool {
	return !slices.ContainsFunc(r.Bars, func(b bar) bool { return b.Verdict != pass })
}

// median returns the middle of values, or the upper of two in the middle. It returns
// the zero value for none and leaves values as they are.
func median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	return sorted[len(sorted)/2]
}

// medianSample returns the medians of the samples' values, each on its own.
func medianSample(samples []sample) sample {
	return sample{
		Calls:          medianOf(samples, func(s sample) int { return s.Calls }),
		CallsPerSecond: medianOf(samples, func(s sample) float64 { return s.CallsPerSecond }),
		P50:            medianOf(samples, func(s sample) time.Duration { return s.P50 }),
		P99:            medianOf(samples, func(s sample) time.Duration { return s.P99 }),
		FrontCPU:       medianOf(samples, func(s sample) time.Duration { return s.FrontCPU }),
		ServerCPU:      medianOf(samples, func(s sample) time.Duration { return s.ServerCPU }),
		LoadCPU:        medianOf(samples, func(s sample) time.Duration { return s.LoadCPU }),
		Resident:       medianOf(samples, func(s sample) int64 { return s.Resident }),
		OtherCPU:       medianOf(samples, func(s sample) float64 { return s.OtherCPU }),
	}
}

func medianOf[S any, T cmp.Ordered](samples []S, value func(S) T) T {
	values := make([]T, len(samples))
	for i, s := range samples {
		values[i] = value(s)
	}
	return median(values)
}

// writeTable writes the report for people.
func (r report) writeTable(w io.Writer) error {
	if len(r.Rows) > 0 {
		if err := r.writeCalls(w); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	if len(r.Streams.Rows) > 0 {
		if err := r.Streams.writeTable(w); err != nil {
			return fmt.Errorf("write the table of streams: %w", err)
		}
	}
	for _, b := range r.Bars {
		measured := "not measured"
		if b.Verdict != skipped {
			measured = fmt.Sprintf("%.2f", b.Ratio)
		}
		if _, err := fmt.Fprintf(w, "%s  %s, %s: %s (bar: %s %g)\n", b.Verdict, b.Name, b.load(), measured, b.Relation, b.Limit); err != nil {
			return fmt.Errorf("write the bars: %w", err)
		}
	}
	return nil
}

// writeCalls writes what calls of tools took.
func (r report) writeCalls(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "payload\tsessions\tfront\tcalls/s\tp50 µs\tp99 µs\tfront CPU µs/call\tall CPU µs/call\tload CPU µs/call\tRSS MiB\t")
	for i, row := range r.Rows {
		if i > 0 && row.Sessions != r.Rows[i-1].Sessions {
			fmt.Fprintln(t, "\t\t\t\t\t\t\t\t\t\t")
		}
		frontCPU := "-"
		if row.Front != stdioFront {
			frontCPU = micros(row.FrontCPU)
		}
		fmt.Fprintf(t, "%d\t%d\t%s\t%.0f\t%s\t%s\t%s\t%s\t%s\t%d\t\n", row.Payload, row.Sessions, row.Front,
			row.CallsPerSecond, micros(row.P50), micros(row.P99), frontCPU, micros(row.ServerCPU), micros(row.LoadCPU), row.Resident>>20)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s, %d CPUs; medians of %d × %v; everything else on the machine used %.2f CPUs meanwhile\n\n",
		runtime.Version(), runtime.NumCPU(), r.Rounds, r.Window, r.OtherCPU)
	for _, f := range r.Fleets {
		_, e := fmt.Fprintf(w, "%d sessions with %d servers each, %s: %d processes, %d MiB\n", fleetSessions, fleetServers, f.Name, f.Processes, f.Memory>>20)
		err = errors.Join(err, e)
	}
	_, e := fmt.Fprintln(w)
	return errors.Join(err, e)
}

// load says with what a bar is measured.
func (b *bar) load() string {
	switch {
	case b.Streams > 0:
		return fmt.Sprintf("%d streams", b.Streams)
	case b.Sessions == 1:
		return fmt.Sprintf("1 session, %d bytes", b.Payload)
	}
	return fmt.Sprintf("%d sessions, %d bytes", b.Sessions, b.Payload)
}

func micros(d time.Duration) string {
	return fmt.Sprintf("%.1f", float64(d)/float64(time.Microsecond))
}

// writeJSON writes the report for machines.
func (r report) writeJSON(path string) error {
	r.GoVersion, r.CPUs = runtime.Version(), runtime.NumCPU()
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}
