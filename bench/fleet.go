package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"roundhouse/bench/load"
)

// A fleet is what sessions need that use several servers each, as agents do.
const (
	fleetSessions = 20
	fleetServers  = 5
)

// fleet is what lives while every session has called every one of its servers: the
// servers and whatever stands between.
type fleet struct {
	Name      string `json:"name"`
	Processes int    `json:"processes"`
	// Memory is in bytes; pages that processes share are counted once, in parts.
	Memory int64 `json:"memory_bytes"`
}

// measureFleets measures a set of servers for each session, and roundhouse in front of
// one set, if it could be built.
func measureFleets(ctx context.Context, dir string, bin binaries) ([]fleet, error) {
	own, err := measureFleet("own servers", os.Getpid(), func(_, _ int) (load.Session, error) {
		return load.StartStdio(ctx, bin.echoserver, "-stdio")
	})
	if err != nil || bin.roundhouse == "" {
		return []fleet{own}, err
	}
	servers := map[string]any{}
	for i := range fleetServers {
		servers[fleetServer(i)] = map[string]any{"command": bin.echoserver, "args": []string{"-stdio"}}
	}
	config, err := writeConfig(dir, "fleet", servers)
	if err != nil {
		return []fleet{own}, err
	}
	f, err := startFront(ctx, dir, "fleet", "", "/readyz", func(addr string) []string {
		return []string{bin.roundhouse, "serve", "--config", config, "--listen", addr}
	})
	if err != nil {
		return []fleet{own}, fmt.Errorf("start roundhouse: %w", err)
	}
	shared, err := measureFleet("roundhouse", f.cmd.Process.Pid, func(session, server int) (load.Session, error) {
		return load.DialHTTP(ctx, fmt.Sprintf("%s/sessions/%d/mcp/%s", f.endpoint, session, fleetServer(server)))
	})
	return []fleet{own, shared}, errors.Join(err, f.stop())
}

func fleetServer(i int) string { return fmt.Sprintf("echo%d", i) }

// measureFleet opens all sessions, has each call each of its servers, and measures what
// is below pid then, and for roundhouse pid itself.
func measureFleet(name string, pid int, open func(session, server int) (load.Session, error)) (m fleet, err error) {
	m.Name = name
	for session := range fleetSessions {
		for server := range fleetServers {
			s, err := open(session, server)
			if err == nil {
				defer s.Close() // what it could say is of no interest after the measurement
				_, err = s.Call([]byte("x"))
			}
			if err != nil {
				return m, fmt.Errorf("%s: session %d, server %d: %w", name, session, server, err)
			}
		}
	}
	all, err := descendants(pid)
	if err != nil {
		return m, err
	}
	if pid != os.Getpid() {
		all = append(all, process{pid: pid})
	}
	for _, p := range all {
		n, err := proportional(p.pid)
		if err != nil {
			return m, err
		}
		m.Processes++
		m.Memory += n
	}
	return m, nil
}

// proportional returns the memory of a process in bytes, of pages that it shares its
// part.
func proportional(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return parseProportional(text)
}

// parseProportional parses the content of a /proc/PID/smaps_rollup file.
func parseProportional(text []byte) (int64, error) {
	for line := range bytes.Lines(text) {
		rest, found := bytes.CutPrefix(line, []byte("Pss:"))
		if !found {
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(rest)), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("unexpected line of smaps_rollup %q", line)
		}
		return kilobytes << 10, nil
	}
	return 0, errors.New("smaps_rollup has no line Pss")
}
