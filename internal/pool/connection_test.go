package pool

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// P9: a server whose answer to initialize is of no use has not started, and the
// error says why. Its process is ended.
func TestAnswersToInitializeThatAreOfNoUse(t *testing.T) {
	for _, c := range []struct{ answer, err string }{
		{`"result":{"protocolVersion":"1999-01-01","capabilities":{}}`, `the protocol version "1999-01-01"`},
		{`"result":{"capabilities":{}}`, "no protocolVersion"},
		{`"result":{"protocolVersion":7}`, "protocolVersion"},
		{`"result":{"protocolVersion":"2025-06-18","capabilities":[]}`, "capabilities"},
		{`"result":[]`, "no object"},
		{`"error":{"code":-32602,"message":"not today"}`, `"not today" (code -32602)`},
	} {
		t.Run(c.answer, func(t *testing.T) {
			inWorld(t, defaults, func(w *world) {
				server, s := w.server("files")
				s.set(func(s *script) { s.silent = true })
				p := w.begin(context.Background(), w.pool.NewHolder("a"), want(server, nil))
				synctest.Wait()
				w.proc().say(`{"jsonrpc":"2.0","id":1,` + c.answer + `}`)
				synctest.Wait()
				if !p.ended() {
					t.Fatal("the acquire goes on")
				}
				expectReason(t, p.err, fault.StartFailed)
				if p.err == nil || !strings.Contains(p.err.Error(), c.err) {
					t.Errorf("the error is %v, want %q", p.err, c.err)
				}
				if w.alive() > 0 {
					t.Error("the process lives")
				}
			})
		})
	}
}

// H4: callTimeout ends a call with an error and tells the server; the others go on.
func TestCallTimeoutEndsOneCall(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		server.CallTimeout = 10 * time.Second
		a := w.acquire(w.pool.NewHolder("a"), server)
		slow, quick := w.call(a, "hang"), w.call(a, "sleep:9s")
		sleep(10*time.Second - time.Nanosecond)
		if quick.got() == "" || len(slow) > 0 {
			t.Error("the quick call has no answer, or the slow one has one")
		}
		sleep(time.Nanosecond)
		if reason, sent, data := reasonOf(t, slow.got()); reason != fault.CallTimeout || sent != fault.SentMaybe || data["server"] != "files" {
			t.Errorf("the slow call got %s, %s, %v", reason, sent, data)
		}
		if n := w.asked(wire.Cancelled); n != 1 {
			t.Errorf("the server was told of %d cancelled calls, want one", n)
		}
		w.expectState("files", Active, 1)
	})
}

// H4: progress puts the end off, up to four times the limit.
func TestProgressExtendsCallTimeout(t *testing.T) {
	inWorld(t, defaults, func(w *world) {
		server, _ := w.server("files")
		server.CallTimeout = 10 * time.Second
		a := w.acquire(w.pool.NewHolder("a"), server)
		f, r := request(wire.ToolsCall, `{"name":"hang","_meta":{"progressToken":"mine"}}`)
		out := make(answer, 1)
		if _, err := a.Do(context.Background(), &client{}, f, r, out); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for range 7 {
			sleep(6 * time.Second)
			if took := time.Since(begun); len(out) > 0 {
				if took < 40*time.Second {
					t.Errorf("the call ended after %s although it made progress", took)
				}
				break
			}
			w.proc().say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d,"progress":1}}`, 3))
		}
		if reason, _, _ := reasonOf(t, out.got()); reason != fault.CallTimeout {
			t.Errorf("the call got %s", reason)
		}
	})
}

// M3, K6: a server that asks outside any call is told of the session's workspace as
// its root, and of none if it does not depend on one.
func TestRootsAreTheWorkspace(t *testing.T) {
	for workspace, want := range map[string]string{
		"":             `{"roots":[]}`,
		"/home/me/a b": `{"roots":[{"uri":"file:///home/me/a%20b"}]}`,
	} {
		inWorld(t, defaults, func(w *world) {
			server, _ := w.server("files")
			x := Want{Server: server, Principal: "local", Capabilities: []byte(`{"roots":{}}`), Workspace: workspace, Listener: &ear{}}
			w.acquireWith(w.pool.NewHolder("a"), x)
			w.proc().say(`{"jsonrpc":"2.0","id":"r","method":"roots/list"}`)
			synctest.Wait()
			if got := w.proc().answered(); got != `{"jsonrpc":"2.0","id":"r","result":`+want+`}` {
				t.Errorf("the server got %s, want %s", got, want)
			}
		})
	}
}
