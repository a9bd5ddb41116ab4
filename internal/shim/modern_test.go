package shim_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

func modern(id, method, members string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + members + meta + `}}`
}

func listen(id string) string { return modern(id, "subscriptions/listen", `"notifications":{},`) }

func notice(id, method, members string) string {
	return `{"jsonrpc":"2.0","method":"notifications/` + method + `","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}` + members + `}}`
}

func ack(id, granted string) string {
	return notice(id, "subscriptions/acknowledged", `,"notifications":{`+granted+`}`)
}

func result(id string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"result":{"resultType":"complete"}}`
}

func cancelled(id string) string {
	return `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`
}

// listening makes the client listen.
func (f *fixture) listening(l *line, id, granted string) {
	f.t.Helper()
	f.send(listen(id))
	l.want(listen(id))
	l.send(ack(id, granted))
	f.want(ack(id, granted))
}

// H8: a client without a handshake has nothing to repeat. Its calls in flight get an error
// and are never sent again; what changes nothing is.
func TestANewLineForAClientWithoutAHandshake(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.accept()
		f.send(modern(`"probe"`, "server/discover", ""))
		l.want(modern(`"probe"`, "server/discover", ""))
		l.close()
		l = f.accept()
		l.want(modern(`"probe"`, "server/discover", ""))
		l.send(result(`"probe"`))
		f.want(result(`"probe"`))
		f.send(modern("1", "tools/call", ""), listen("2"))
		l.want(modern("1", "tools/call", ""), listen("2"))
		l.close()
		f.wantError("1", "interrupted", "maybe")
		l = f.accept()
		l.want(listen("2"))
		l.send(ack("2", ""))
		f.want(ack("2", "")) // the first that the client hears of it
		f.quiet()
		f.send(modern("3", "tools/call", ""))
		l.want(modern("3", "tools/call", ""))
		l.send(result("3"))
		f.want(result("3"))
	})
}

// H8: what a client listens to is restored, in its own bytes; the client sees no second
// acknowledgement, but is told that what it listens to may have changed.
func TestListensAreRestored(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.accept()
		f.listening(l, `"listen:0"`, `"toolsListChanged":true`)
		f.listening(l, "1", `"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["a:\"1","a:2"]`)
		f.listening(l, "2", `"toolsListChanged":true`)
		f.listening(l, "3", `"toolsListChanged":true`)
		f.listening(l, "4", `"toolsListChanged":true`)
		f.send(cancelled("2"), modern("5", "tools/list", ""))
		l.want(cancelled("2"), modern("5", "tools/list", ""))
		l.send(result("3"), result("5")) // one is cancelled, the other ends in order
		f.want(result("3"), result("5"))
		f.leave()
		l.close()
		synctest.Wait()
		f.send(cancelled("4"))
		time.Sleep(time.Hour)
		if f.starts > 0 {
			t.Error("a daemon was started for somebody who only listens")
		}
		f.come()
		l = f.accept()
		l.want(listen(`"listen:0"`), listen("1"), cancelled("4"))
		l.send(ack("1", `"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["a:\"1","a:2"]`))
		f.want(notice("1", "prompts/list_changed", ""), notice("1", "resources/list_changed", ""),
			notice("1", "resources/updated", `,"uri":"a:\"1"`), notice("1", "resources/updated", `,"uri":"a:2"`))
		l.send(ack(`"listen:0"`, `"toolsListChanged":true`), notice(`"listen:0"`, "tools/list_changed", ""))
		f.want(notice(`"listen:0"`, "tools/list_changed", ""), notice(`"listen:0"`, "tools/list_changed", ""))
		// A line later everything stands as before.
		l.close()
		l = f.accept()
		l.want(listen(`"listen:0"`), listen("1"))
		refusal := `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"m"}}`
		l.send(refusal, ack(`"listen:0"`, ``)) // it ends, and the client is told
		f.want(refusal)
		f.quiet()
		l.close()
		f.accept().want(listen(`"listen:0"`))
	})
}

// G1, H8: a daemon that stops does not wait for those who only listen, and what it refuses
// of them goes to the next.
func TestListensGoToTheNextDaemon(t *testing.T) {
	stopping := func(id int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":{"code":-32016,"message":"m","data":{"reason":"draining","sent":"no"}}}`, id)
	}
	run(t, func(t *testing.T, f *fixture) {
		l := f.accept()
		f.listening(l, "1", `"toolsListChanged":true`)
		f.send(modern("2", "tools/call", ""))
		l.want(modern("2", "tools/call", ""))
		l.send(stopping(2))
		l.wantEnd()
		l = f.accept()
		l.want(listen("1"))
		l.want(modern("2", "tools/call", ""))
		l.send(stopping(1), stopping(2))
		l.wantEnd()
		l = f.accept()
		l.want(listen("1"), modern("2", "tools/call", ""))
		l.send(ack("1", `"toolsListChanged":true`), result("2"))
		f.want(notice("1", "tools/list_changed", ""), result("2"))
		f.quiet()
	})
}

// M8: a client that finds no version of its own shakes hands; it may listen all the same.
func TestBothErasOnOneLine(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.accept()
		f.listening(l, "7", `"toolsListChanged":true`)
		f.send(hello)
		l.want(hello)
		l.send(welcome)
		f.want(welcome)
		f.send(initialized)
		l.want(initialized)
		l.close()
		l = f.again()
		l.want(listen("7"))
	})
}
