package pool

import (
	"context"
	"io"
	"testing"
	"testing/synctest"

	"roundhouse/internal/fault"
)

// R2, S1: whoever waited for a connection that was lost as soon as it was there learns
// whose it was, and that nothing was sent.
func TestWhoComesAsAConnectionIsLostIsToldThatNothingWasSent(t *testing.T) {
	told := 0
	for range 200 { // whether the loss or the waiter comes first is a matter of chance
		inWorld(t, defaults, func(w *world) {
			server, s := w.server("files")
			s.set(func(s *script) { s.list = func(string, string) string { return "" } })
			p := w.begin(context.Background(), w.pool.NewHolder("a"), want(server, nil))
			synctest.Wait()
			if _, err := io.WriteString(w.proc().out, `{"jsonrpc":"2.0","id":2,"result":`+toolsResult("echo")+"}\n"); err != nil {
				t.Fatal(err)
			}
			w.proc().die("exit status 1")
			synctest.Wait()
			err := p.err
			if err == nil { // it came before the loss
				_, err = p.att.List(context.Background(), Tools)
			}
			e := fault.Of(err)
			if e == nil || e.Reason == fault.StartFailed { // the start itself failed
				return
			}
			told++
			if e.Reason != fault.Interrupted || e.Server != "files" || e.Sent != fault.SentNo {
				t.Errorf("the error is %s, server %q, sent %q: %v", e.Reason, e.Server, e.Sent, e)
			}
		})
	}
	t.Logf("%d times of 200", told)
}
