package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse/internal/fault"
)

// caller is a client in the storm.
type caller struct {
	c      *chaos
	dice   *rand.Rand
	path   string
	header map[string]string
	newer  bool
	id     int
}

// live opens sessions, calls, and leaves them in one of the ways in which clients do.
func (c *chaos) live(ctx context.Context, who int) {
	dice := c.dice(who)
	for n := 0; pause(ctx, dice, 500*time.Millisecond); n++ {
		x := &caller{c: c, dice: dice, path: "/mcp", header: map[string]string{}, newer: dice.IntN(3) == 0}
		if dice.IntN(2) == 0 {
			x.path = fmt.Sprintf("/mcp/s%d", dice.IntN(len(chaosServers)))
		}
		session := ""
		if x.newer || dice.IntN(3) > 0 {
			session = fmt.Sprintf("w%d-%d", who, n)
			if dice.IntN(4) == 0 {
				session = fmt.Sprintf("common-%d", dice.IntN(5))
			}
			x.header["X-Session-Id"] = session
		}
		if !x.newer && !x.initialize() {
			continue
		}
		stream, hangUp := context.WithCancel(ctx)
		var listening sync.WaitGroup
		if !x.newer && dice.IntN(4) == 0 {
			header := maps.Clone(x.header)
			listening.Go(func() { c.send(stream, "GET", x.path, "", header) })
		}
		for range dice.IntN(12) {
			if !pause(ctx, dice, 300*time.Millisecond) || !x.call() {
				break
			}
		}
		switch dice.IntN(3) {
		case 0:
			if !x.newer {
				c.send(context.WithoutCancel(ctx), "DELETE", x.path, "", x.header)
			}
		case 1:
			if session != "" {
				c.own("DELETE", "/api/v1/sessions/"+session)
			}
		}
		hangUp()
		listening.Wait()
	}
}

// initialize makes a handshake; false says that there is none.
func (x *caller) initialize() bool {
	caps := []string{`{}`, `{"sampling":{}}`, `{"elicitation":{},"roots":{}}`}[x.dice.IntN(3)]
	a := x.post("initialize", fmt.Sprintf(`"protocolVersion":"2025-11-25","capabilities":%s,"clientInfo":{"name":"chaos","version":"1"}`, caps), 0)
	id := a.header.Get("Mcp-Session-Id")
	if !x.judge("initialize", a) || id == "" {
		return false
	}
	x.header["Mcp-Session-Id"] = id
	x.header["Mcp-Protocol-Version"] = "2025-11-25"
	return true
}

// call makes one request; false says that the client's session is no more.
func (x *caller) call() bool {
	server := fmt.Sprintf("s%d__", x.dice.IntN(len(chaosServers)))
	if x.path != "/mcp" {
		server = ""
	}
	switch n := x.dice.IntN(20); {
	case n < 12:
		return x.book(server)
	case n < 14:
		return x.judge("echo", x.tool(server+"echo", `{"text":"x"}`, 0))
	case n < 16:
		return x.judge("slow", x.tool(server+"slow", fmt.Sprintf(`{"ms":%d}`, x.dice.IntN(500)), 0))
	case n < 17:
		return x.judge("flap", x.tool(server+"flap", `{"n":3}`, 0))
	default:
		return x.judge("list", x.post([]string{"tools/list", "prompts/list", "resources/list"}[x.dice.IntN(3)], "", 0))
	}
}

// book calls the ledger, and records how often its line may be there.
func (x *caller) book(server string) bool {
	nonce := fmt.Sprintf("n%d", x.c.nonce.Add(1))
	mode, most := "answer", time.Duration(0)
	switch n := x.dice.IntN(30); {
	case n < 1:
		mode = "crash"
	case n < 2:
		mode = "close_stdout"
	case n < 3:
		mode = "error"
	case n < 4:
		mode = "hang"
	case n < 7:
		most = time.Duration(1 + x.dice.IntN(30_000_000)) // the caller gives up
	}
	late := x.c.ending.Load()
	a := x.tool(server+"ledger", fmt.Sprintf(`{"file":%q,"mode":%q,"note":%q}`, x.c.ledger, mode, nonce), most)
	_, sent := a.failure()
	o := outcome{most: 1, why: fmt.Sprintf("%s: %d %s %v", mode, a.status, a.body, a.err)}
	switch {
	case a.err != nil && (most > 0 || late || x.c.ending.Load()):
		x.c.count("ledger: hung up")
		x.c.record(nonce, o)
		return most > 0
	case a.text() == "written" || strings.Contains(a.text(), "refuses"):
		o.least = 1
	case sent != fault.SentMaybe:
		o.most = 0
	}
	x.c.record(nonce, o)
	return x.judge("ledger", a)
}

// failure is what an error of JSON-RPC or of the API says.
func (a answer) failure() (fault.Reason, fault.Sent) {
	var e struct {
		Error struct {
			Reason fault.Reason
			Data   struct {
				Reason fault.Reason
				Sent   fault.Sent
			}
		}
	}
	if json.Unmarshal(a.body, &e) != nil {
		return "", ""
	}
	return e.Error.Reason + e.Error.Data.Reason, e.Error.Data.Sent
}

// judge checks that a is an answer: a result, or an error with a reason that callers
// may meet. False says that the client need not go on.
func (x *caller) judge(what string, a answer) bool {
	c := x.c
	if a.err != nil {
		if !c.ending.Load() {
			c.t.Errorf("%s on %s has no answer: %v", what, x.path, a.err)
		}
		return false
	}
	var reply struct {
		Result json.RawMessage
		Error  struct{ Code int }
	}
	if err := json.Unmarshal(a.body, &reply); err != nil {
		c.t.Errorf("%s on %s: %d %q: %v", what, x.path, a.status, a.body, err)
		return false
	}
	reason, sent := a.failure()
	switch {
	case reply.Result != nil:
		c.count(what + ": a result")
		return true
	case reason == fault.Internal || reason == fault.BadRequest || !slices.Contains(fault.Reasons(), reason):
		c.t.Errorf("%s on %s: %d %s", what, x.path, a.status, a.body)
	}
	c.count(strings.TrimSpace(fmt.Sprintf("%s: %s %s", what, reason, sent)))
	return reason != fault.UnknownSession && reason != fault.Draining
}

func (x *caller) tool(name, arguments string, most time.Duration) answer {
	x.header["Mcp-Name"] = name
	return x.post("tools/call", fmt.Sprintf(`"name":%q,"arguments":%s`, name, arguments), most)
}

// post sends a request, for whose answer it waits at most so long; 0 is as long as
// anything may take.
func (x *caller) post(method, params string, most time.Duration) answer {
	if most == 0 {
		most = 2 * patience
	}
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	x.id++
	if x.newer {
		x.header["Mcp-Protocol-Version"], x.header["Mcp-Method"] = "2026-07-28", method
		if params != "" {
			params += ","
		}
		params += `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"chaos","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	}
	a := x.c.send(ctx, "POST", x.path, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s}}`, x.id, method, params), x.header)
	if method != "tools/call" {
		delete(x.header, "Mcp-Name")
	}
	return a
}
