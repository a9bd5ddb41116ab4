package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"roundhouse/internal/control"
	"roundhouse/internal/pool"
	"roundhouse/internal/sse"
)

// stream is a followed log. It is read by one goroutine.
type stream struct {
	lines chan pool.Line // closed at its end
	end   context.CancelFunc
}

// follow opens a stream of a server's output.
func (w *world) follow(token, path string) *stream {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if ct := res.Header.Get("Content-Type"); res.StatusCode != 200 || ct != "text/event-stream" {
		w.t.Fatalf("GET %s: %d, %s", path, res.StatusCode, ct)
	}
	s := &stream{make(chan pool.Line, 1000), cancel}
	go func() {
		defer close(s.lines)
		defer res.Body.Close()
		for events := sse.NewReader(res.Body, 1<<20); ; {
			e, err := events.Next()
			if err != nil {
				return
			}
			var l pool.Line
			if err := json.Unmarshal(e.Data, &l); err != nil {
				w.t.Errorf("event %q: %v", e.Data, err)
			}
			s.lines <- l
		}
	}()
	return s
}

// until reads on to a line that contains part, and returns it and what came before.
func (s *stream) until(t *testing.T, part string) (pool.Line, []string) {
	t.Helper()
	var before []string
	late := time.After(patience)
	for {
		select {
		case l, ok := <-s.lines:
			if !ok {
				t.Fatalf("the stream has ended after %q", before)
			}
			if strings.Contains(l.Text, part) {
				return l, before
			}
			before = append(before, l.Text)
		case <-late:
			t.Fatalf("no line has %q, there are %q", part, before)
		}
	}
}

func (s *stream) ended(t *testing.T) {
	t.Helper()
	for late := time.After(patience); ; {
		select {
		case _, ok := <-s.lines:
			if !ok {
				return
			}
		case <-late:
			t.Fatal("the stream does not end")
		}
	}
}

// P5, R6: a followed log begins with the last lines and goes on beyond a crash, a start
// that fails and a restart of the server, until somebody ends it.
func TestFollowedLogs(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {
		"a":      {"command": "sh", "args": ["-c", "echo one >&2; echo two >&2; echo \"pid $$\" >&2; exec SERVER"]},
		"failed": {"command": "SERVER", "args": ["-fail-start"]}}}`)
	early := w.follow("", "/api/v1/servers/a/logs?follow=true")
	c := w.client("", "a", "")
	id := w.connections("", "a")[0].ID
	if l, before := early.until(t, "pid"); l.Connection != id || len(before) != 2 || before[0] != "one" || before[1] != "two" {
		t.Errorf("the first lines are %q, %+v", before, l)
	}
	late := w.follow("", "/api/v1/servers/a/logs?follow=1&lines=1")
	first, before := late.until(t, "pid")
	if len(before) != 0 {
		t.Errorf("with one line of before: %q", before)
	}
	w.follow("", "/api/v1/servers/a/logs?follow=1&lines=0").end()

	if r := w.send("", "POST", "/api/v1/servers/a/restart", ""); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	second, before := late.until(t, "pid")
	if second == first || len(before) != 2 || before[0] != "one" {
		t.Errorf("after a restart: %+v, %q", second, before)
	}
	c.call("exit", `{"code": 9}`)
	eventually(t, "the crash is seen", func() bool { return w.connections("", "a")[0].Generation == 3 })
	c.call("echo", `{"text": "x"}`)
	late.until(t, "pid")
	for range 2 {
		early.until(t, "pid")
	}

	failed := w.follow("", "/api/v1/servers/failed/logs?follow=true")
	for range 2 {
		w.send("", "POST", "/mcp/failed", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
		failed.until(t, "")
	}
	failed.end()
	failed.ended(t)
	// G1: a daemon that stops does not wait for those who follow.
	w.control.CloseStreams()
	w.control.CloseStreams()
	early.ended(t)
	late.ended(t)
	w.follow("", "/api/v1/servers/a/logs?follow=true").ended(t)
}

// A silent stream is kept alive, so that a reader can tell it from one that is cut.
func TestFollowedLogsAreKeptAlive(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER"}}}`, func(c *control.Config) { c.KeepAlive = time.Millisecond })
	client := &http.Client{Timeout: patience}
	res, err := client.Get(w.url + "/api/v1/servers/a/logs?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b := make([]byte, 3)
	if _, err := io.ReadFull(res.Body, b); err != nil || !bytes.HasPrefix(b, []byte(": ")) {
		t.Errorf("%q, %v", b, err)
	}
}

// A reader that leaves leaves nothing behind, also while there is nothing to send.
func TestFollowEndsWithItsReader(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER"}}}`, func(c *control.Config) { c.KeepAlive = time.Hour })
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan string)
	go func() {
		r := httptest.NewRequestWithContext(ctx, "GET", "http://localhost/api/v1/servers/a/logs?follow=true", nil)
		w.front.ServeHTTP(httptest.NewRecorder(), r)
		close(done)
	}()
	select {
	case <-done:
		t.Error("the stream ended by itself")
	case <-time.After(20 * time.Millisecond):
	}
	leave()
	receive(t, done)
}

// Case 63: who may not read a log may not follow it either, and what is wrong with the
// request is said before a stream begins.
func TestFollowIsRefused(t *testing.T) {
	w := newWorld(t, `{`+auth+`"mcpServers": {"a": {"command": "SERVER"}}}`)
	for _, c := range []struct {
		token, path string
		status      int
	}{
		{alice, "a/logs?follow=true", 403},
		{"", "a/logs?follow=true", 401},
		{root, "none/logs?follow=true", 404},
		{root, "a/logs?follow=perhaps", 400},
		{root, "a/logs?follow=true&lines=-1", 400},
		{root, "a/logs?follow=false&lines=0", 400},
	} {
		if r := w.send(c.token, "GET", "/api/v1/servers/"+c.path, ""); r.status != c.status || r.reason() == "" {
			t.Errorf("%s: %d %s", c.path, r.status, r.body)
		}
	}
}

// Pool specification, section 9: the processes of a connection are listed for those who
// ask for them.
func TestProcessesOfConnections(t *testing.T) {
	w := newWorld(t, `{"mcpServers": {"a": {"command": "SERVER", "args": ["-grandchild", "background"]}}}`)
	w.client("", "a", "s1")
	if i := w.connections("", "a")[0]; i.Processes != nil || i.Descendants != 1 {
		t.Errorf("unasked: %+v", i)
	}
	if s := get[control.Server](w, "", "/api/v1/servers/a"); s.Connections[0].Processes != nil {
		t.Errorf("with the server: %+v", s)
	}
	i := get[connectionList](w, "", "/api/v1/connections?processes=true").Connections[0]
	processes := i.Processes
	if runtime.GOOS == "linux" {
		if len(processes) != 3 || processes[0].Role != pool.RoleReaper || processes[1].PPID != processes[0].PID {
			t.Fatalf("%+v", i)
		}
		processes = processes[1:]
	}
	if len(processes) != 2 || processes[0].Role != pool.RoleServer || processes[1].Role != pool.RoleChild {
		t.Fatalf("%+v", i)
	}
	server, child := processes[0], processes[1]
	if server.PID != i.PID || child.PPID != server.PID || server.Name == "" {
		t.Errorf("%+v", i.Processes)
	}
	if runtime.GOOS == "linux" && (server.RSSBytes < 1<<20 || child.RSSBytes <= 0) {
		t.Errorf("no memory: %+v", i.Processes)
	}
	if r := w.send("", "GET", "/api/v1/connections?processes=2", ""); r.status != 400 {
		t.Errorf("%d %s", r.status, r.body)
	}
}
