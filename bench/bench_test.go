package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseStatCountsFieldsAfterTheCommandName(t *testing.T) {
	const line = "42 (a) R (b c) S 7 42 42 0 -1 4194304 100 0 0 0 150 25 9 9 20 0 8 0 12345 1000000 3 18446744073709551615 1 1\n"
	p, err := parseStat([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	want := process{pid: 42, parent: 7, started: 12345, cpu: 1750 * time.Millisecond, resident: 3 * int64(os.Getpagesize())}
	if p != want {
		t.Errorf("%+v, want %+v", p, want)
	}
	for state, ended := range map[string]bool{" Z 7": true, " R 7": false} {
		p, err := parseStat([]byte(strings.Replace(strings.Replace(line, " S 7", state, 1), " 0 8 0 ", " 0 1 0 ", 1)))
		if err != nil || p.ended != ended {
			t.Errorf("%s: %+v, %v", state, p, err)
		}
	}
	if p, err := parseStat([]byte(strings.Replace(line, " S 7", " Z 7", 1))); err != nil || p.ended {
		t.Errorf("one that has threads: %+v, %v", p, err)
	}
	for _, bad := range []string{"", "42 (x", "x (y) S 1 2", "42 (x) S 1 2 3", ") ("} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestParseBusyLeavesIdleAndWaitingOut(t *testing.T) {
	busy, err := parseBusy([]byte("cpu  1 2 4 1000 2000 8 16 32 0 0\ncpu0 …"))
	if err != nil || busy != 63*tick {
		t.Errorf("%v, %v, want 63 ticks", busy, err)
	}
	if _, err := parseBusy([]byte("intr 1 2 3 4 5 6 7 8 9")); err == nil {
		t.Error("no error for another line")
	}
}

func TestDescendantsAreFoundAndEnded(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("needs /proc")
	}
	cmd := exec.Command("sh", "-c", "sleep 1000 & echo started; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	below, err := descendants(cmd.Process.Pid)
	if err != nil || len(below) != 1 || !below[0].alive() {
		t.Errorf("descendants: %+v, %v, want one that is alive", below, err)
	}
	// The shell dies without a word to its child.
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // It reports the kill.
	if err := endAll(below); err == nil || !strings.Contains(err.Error(), "outlived its parent") {
		t.Errorf("endAll: %v", err)
	}
	for _, p := range below {
		for deadline := time.Now().Add(30 * time.Second); p.alive() && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	if err := endAll(below); err != nil {
		t.Errorf("endAll of ended processes: %v", err)
	}
}

// at makes the samples of a cell with one value in all that bars look at.
func at(values ...float64) []sample {
	var samples []sample
	for _, v := range values {
		samples = append(samples, sample{Calls: 1, CallsPerSecond: v, P50: time.Duration(v), FrontCPU: time.Duration(v)})
	}
	return samples
}

func TestBarsJudgeTheMedianOfRatiosWithinRounds(t *testing.T) {
	p := plan{sessions: []int{1, 64}, payloads: []int{16}, rounds: 3}
	results := map[cell][]sample{
		// By round 2, 1.5, 1.5 times as fast, although the ratio of medians is 1.
		{roundhouseFront, 64, 16}: at(200, 300, 150),
		{sdkHTTPFront, 64, 16}:    at(100, 200, 100),
		{typedProxyFront, 64, 16}: at(1000, 1500, 600),
		{roundhouseFront, 1, 16}:  at(150, 150, 150),
		{sdkHTTPFront, 1, 16}:     at(100, 100, 100),
	}
	r := newReport(p, results)
	want := []struct {
		verdict verdict
		ratio   float64
	}{{pass, 1.5}, {pass, 0.2}, {fail, 1.5}}
	if len(r.Bars) != len(want) {
		t.Fatalf("%d bars", len(r.Bars))
	}
	for i, w := range want {
		if b := r.Bars[i]; b.Verdict != w.verdict || b.Ratio != w.ratio {
			t.Errorf("%s: %s with %v, want %s with %v", b.Name, b.Verdict, b.Ratio, w.verdict, w.ratio)
		}
	}
	if r.passed() {
		t.Error("the report passed with a failed bar")
	}
}

// A bar that could not be measured must not look like one that passed.
func TestWithoutRoundhouseBarsAreSkippedAndTheReportDoesNotPass(t *testing.T) {
	p := plan{sessions: []int{1, 64}, payloads: []int{16}, rounds: 1}
	r := newReport(p, map[cell][]sample{{sdkHTTPFront, 64, 16}: at(100), {sdkHTTPFront, 1, 16}: at(100)})
	for _, b := range r.Bars {
		if b.Verdict != skipped {
			t.Errorf("%s: %s", b.Name, b.Verdict)
		}
	}
	if r.passed() {
		t.Error("the report passed")
	}
}

func TestReportIsWrittenForPeopleAndMachines(t *testing.T) {
	p := plan{sessions: []int{1}, payloads: []int{16}, rounds: 3, window: time.Second}
	r := newReport(p, map[cell][]sample{
		{stdioFront, 1, 16}:      at(7000, 9000, 8000),
		{roundhouseFront, 1, 16}: at(2000, 1000, 3000),
	})
	var table strings.Builder
	if err := r.writeTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"calls/s", " 8000 ", " 2000 ", "SKIP  p50 of roundhouse to that of sdk-http, 1 session, 16 bytes: not measured (bar: <= 1.4)"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in:\n%s", want, table.String())
		}
	}
	file := filepath.Join(t.TempDir(), "bench.json")
	if err := r.writeJSON(file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Rows) != 2 || back.Rows[0].CallsPerSecond != 8000 || len(back.Rows[0].Samples) != 3 || len(back.Bars) != 3 {
		t.Errorf("read back: %+v", back)
	}
}

// The whole path, with real processes, for a moment: every front answers correctly, is
// measured in every round, and leaves nothing behind.
func TestEveryFrontIsMeasuredAndEnded(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the servers")
	}
	dir := t.TempDir()
	bin, err := build(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	fronts, err := startFronts(t.Context(), dir, bin)
	if err != nil {
		t.Fatal(err)
	}
	p := plan{sessions: []int{2}, payloads: []int{16}, rounds: 2, warmup: 20 * time.Millisecond, window: 100 * time.Millisecond}
	results, err := p.measure(t.Context(), fronts, t.Logf)
	if err != nil {
		t.Error(err)
	}
	below, err := descendants(os.Getpid())
	if err != nil || len(below) <= len(frontNames) { // Fronts but for stdio, and the servers behind four of them.
		t.Errorf("processes during the run: %+v, %v", below, err)
	}
	if err := stopFronts(fronts); err != nil {
		t.Error(err)
	}
	for _, p := range below {
		if p.alive() {
			t.Errorf("process %d is still alive", p.pid)
		}
	}
	for _, name := range frontNames {
		samples := results[cell{name, 2, 16}]
		if len(samples) != 2 || samples[0].Calls == 0 || samples[0].Resident == 0 {
			t.Errorf("%s: %+v", name, samples)
		}
	}
}

func TestAFrontThatEndsAtOnceIsExplainedByItsOutput(t *testing.T) {
	_, err := startFront(t.Context(), t.TempDir(), "broken", "/", "", func(string) []string {
		return []string{"sh", "-c", "echo no such flag >&2; exit 2"}
	})
	if err == nil || !strings.Contains(err.Error(), "exit status 2") || !strings.Contains(err.Error(), "no such flag") {
		t.Errorf("startFront: %v", err)
	}
}

// The memory of a process is its part of what it shares.
func TestParseProportional(t *testing.T) {
	const text = "55d0-7ffc ---p 00000000 00:00 0  [rollup]\nRss:                3380 kB\nPss:                1226 kB\nPss_Dirty:           512 kB\n"
	if n, err := parseProportional([]byte(text)); err != nil || n != 1226<<10 {
		t.Errorf("%d %v", n, err)
	}
	for _, bad := range []string{"", "Rss: 1 kB\n", "Pss: x kB\n"} {
		if n, err := parseProportional([]byte(bad)); err == nil {
			t.Errorf("%q gives %d", bad, n)
		}
	}
}

func TestStreamBarsJudgeWithinRounds(t *testing.T) {
	at := func(values ...time.Duration) (samples []streamSample) {
		for _, v := range values {
			samples = append(samples, streamSample{TokensPerSecond: float64(v), FirstP50: v, CPU: v})
		}
		return samples
	}
	rows, bars := judgeStreams(streamPlan{streams: []int{32}}, map[streamCell][]streamSample{
		{trainProxy, 32}: at(100, 110, 120),
		{plainProxy, 32}: at(100, 100, 100),
	})
	if len(rows) != 2 || rows[0].Proxy != plainProxy || rows[1].CPU != 110 {
		t.Errorf("rows: %+v", rows)
	}
	if len(bars) != 3 || bars[0].Verdict != pass || bars[0].Ratio != 1.1 || bars[1].Verdict != pass || bars[2].Verdict != skipped {
		t.Errorf("bars: %+v", bars)
	}
	var text strings.Builder
	r := report{Bars: bars, Streams: streamReport{Rows: rows, Missing: []string{"nginx is not there"}}}
	if err := r.writeTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tokens/s", "nginx is not there\n", "SKIP  CPU per token of roundhouse-train to that of nginx, 32 streams: not measured (bar: <= 1.5)"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in:\n%s", want, text.String())
		}
	}
	if r.passed() {
		t.Error("the report passed with a bar that was not measured")
	}
}

// The whole path for a moment: streams come whole through every proxy that there is.
func TestEveryProxyIsMeasuredAndEnded(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the servers")
	}
	dir := t.TempDir()
	bin, err := build(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	p := streamPlan{streams: []int{2}, rounds: 1, warmup: 50 * time.Millisecond, window: 1500 * time.Millisecond}
	r, bars, err := measureStreams(t.Context(), dir, bin, p, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows)+len(r.Missing) != len(proxyNames) || len(bars) != 3 {
		t.Errorf("rows %+v, missing %q, %d bars", r.Rows, r.Missing, len(bars))
	}
	for _, row := range r.Rows {
		if row.TokensPerSecond == 0 {
			t.Errorf("no token came: %+v", row)
		}
	}
	below, err := descendants(os.Getpid())
	if err != nil || len(below) > 0 {
		t.Errorf("left: %+v, %v", below, err)
	}
}
