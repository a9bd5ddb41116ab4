package shim_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse/internal/shim"
)

// W1, H8: frames pass as bytes, in both directions, whatever is in them.
func TestFramesPassAsBytes(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.accept()
		for _, frame := range []string{
			hello,
			`{ "x": 1.0, "method":"tools/call","params":{"b":1,"a":1e400, "a2":12345678901234567890},"id":"a\u0062","jsonrpc":"2.0" }`,
			`{"jsonrpc":"2.0","id":1.0,"method":"no/such","params":[1,2]}`,
			`{"jsonrpc":"2.0","method":"notifications/x","params":{"é":"\u00e9\/"}}`,
			`{"this":"is no frame"}`,
			`nor is this`,
		} {
			f.send(frame)
			l.want(frame)
		}
		for _, frame := range []string{
			`{ "result": {"n":1.50,"dup":1,"dup":2},"id":1.0,"jsonrpc":"2.0"}`,
			`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"\ud83d\ude00"}}`,
			`{"jsonrpc":"2.0","id":5,"method":"sampling/createMessage","params":{"x":[]}}`,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}`,
		} {
			l.send(frame)
			f.want(frame)
		}
	})
}

// W3: a batch is taken apart; each of its frames passes as it is.
func TestABatchIsTakenApart(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.send("[" + request(1, "a/b") + " , " + request(2, "a/b") + "]")
		l.want(request(1, "a/b"), request(2, "a/b"))
		l.close()
		got := f.sorted(2)
		contains(t, got[0], `"id":1`)
		contains(t, got[1], `"id":2`)
	})
}

// H8, case 5: a call that was sent gets an error and is never sent again; what the
// client sends from then on waits for the next line.
func TestALostLineInterruptsWhatWasSent(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.leave()
		f.send(request(1, "tools/call"), request(2, "tools/call"))
		l.want(request(1, "tools/call"), request(2, "tools/call"))
		l.send(answer(2))
		f.want(answer(2))
		l.close()
		f.wantError("1", "interrupted", "maybe")
		f.send(request(3, "tools/call"))
		f.quiet()
		f.come()
		l = f.again()
		l.want(request(3, "tools/call"))
		l.send(answer(3))
		f.want(answer(3))
	})
}

// H8: a frame whose end did not reach the daemon was not executed, so it is sent to
// the next one instead of being given up.
func TestAFrameThatWasCutOffIsSentAgain(t *testing.T) {
	runAs(t, &fixture{narrow: true}, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.send(request(1, "tools/call"))
		if _, err := io.ReadFull(l.conn, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		l.close()
		f.again().want(request(1, "tools/call"))
	})
}

// H8: the handshake is repeated with the client's own bytes, and log level and
// subscriptions are restored; the client sees none of the answers, but is told that
// lists and resources may have changed.
func TestANewLineStandsWhereTheOldOneStood(t *testing.T) {
	const level = `{"jsonrpc":"2.0","id":%s,"method":"logging/setLevel","params":{"level":%q}}`
	const subscribe = `{"jsonrpc":"2.0","id":%s,"method":"resources/subscribe","params":{"uri":%q}}`
	const unsubscribe = `{"jsonrpc":"2.0","id":%s,"method":"resources/unsubscribe","params":{"uri":%q}}`
	refusal := `{"jsonrpc":"2.0","id":%d,"error":{"code":-32602,"message":"no"}}`
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		ask := func(id int, format, value string, ok bool) {
			f.send(fmt.Sprintf(format, fmt.Sprint(id), value))
			l.next()
			reply := answer(id)
			if !ok {
				reply = fmt.Sprintf(refusal, id)
			}
			l.send(reply)
			f.want(reply)
		}
		ask(1, level, "debug", true)
		ask(2, level, "warning", true)
		ask(3, level, "nonsense", false)
		ask(4, subscribe, "a://1", true)
		ask(5, subscribe, "a://2", true)
		ask(6, subscribe, "a://3", false)
		ask(7, subscribe, "a://1", true)
		ask(8, subscribe, "a://4", true)
		ask(9, unsubscribe, "a://2", true)
		l.close()
		l = f.accept()
		l.want(hello)
		l.send(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`, welcome)
		l.want(initialized)
		ids := []string{`"roundhouse:again:0"`, `"roundhouse:again:1"`, `"roundhouse:again:2"`}
		l.want(fmt.Sprintf(level, ids[0], "warning"), fmt.Sprintf(subscribe, ids[1], "a://1"), fmt.Sprintf(subscribe, ids[2], "a://4"))
		f.want(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`,
			`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, `{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a://1"}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a://4"}}`)
		for _, id := range ids {
			l.send(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`)
		}
		f.quiet()
		f.send(request(10, "tools/call"))
		l.want(request(10, "tools/call"))
		l.send(answer(10))
		f.want(answer(10))
	})
}

// H8: what the daemon offers may differ after a restart; the client is told of the
// lists of both answers, and the last answer is what counts then.
func TestANewDaemonMayOfferOtherLists(t *testing.T) {
	changed := strings.Replace(welcome, `"tools":{"listChanged":true},"resources":{"subscribe":true}`, `"prompts":{}`, 1)
	run(t, func(t *testing.T, f *fixture) {
		f.connected().close()
		for _, lists := range [][]string{{"tools", "prompts", "resources"}, {"prompts"}} {
			l := f.accept()
			l.want(hello)
			l.send(changed)
			l.want(initialized)
			for _, list := range lists {
				f.want(`{"jsonrpc":"2.0","method":"notifications/` + list + `/list_changed"}`)
			}
			f.quiet()
			l.close()
		}
	})
}

// H8: a handshake that was not answered is sent again; the client notices nothing.
func TestAHandshakeInFlightIsSentAgain(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.accept()
		f.send(hello)
		l.want(hello)
		l.close()
		l = f.accept()
		l.want(hello)
		l.send(welcome)
		f.want(welcome)
		f.quiet()
	})
}

// H8: the session of a lost line is named, so that the daemon can enter it again.
func TestTheSessionIsResumed(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.connected().close()
		f.again().close()
		f.again()
		if got := strings.Join(f.resumed, " "); got != " session-1 session-2" {
			t.Errorf("the dials resume %q", got)
		}
	})
}

// M7, H8: what a server had asked is taken back, and a late answer reaches nobody,
// least of all another request with the same id.
func TestQuestionsOfALostLineAreTakenBack(t *testing.T) {
	ask := `{"jsonrpc":"2.0","id":17,"method":"roots/list"}`
	reply := `{"jsonrpc":"2.0","id":17,"result":{"roots":[]}}`
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		l.send(ask, `{"jsonrpc":"2.0","id":18,"method":"roots/list"}`, `{"jsonrpc":"2.0","id":19,"method":"roots/list"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":19}}`)
		f.want(ask, `{"jsonrpc":"2.0","id":18,"method":"roots/list"}`, `{"jsonrpc":"2.0","id":19,"method":"roots/list"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":19}}`)
		f.send(`{"jsonrpc":"2.0","id":18,"result":{"roots":[]}}`)
		l.want(`{"jsonrpc":"2.0","id":18,"result":{"roots":[]}}`)
		l.close()
		f.want(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":17,"reason":"the connection to the server was lost"}}`)
		l = f.again()
		f.send(reply, request(1, "ping"))
		l.want(request(1, "ping"))
	})
}

// M7: an answer that was not written before the line was lost is for nobody on the next.
func TestAnAnswerThatWasNotWrittenIsDropped(t *testing.T) {
	ask := `{"jsonrpc":"2.0","id":17,"method":"roots/list"}`
	runAs(t, &fixture{narrow: true}, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.leave()
		l.close()
		f.send(request(1, "tools/call"))
		synctest.Wait()
		f.come()
		l = f.again()
		l.send(ask) // while nobody takes request 1
		f.want(ask)
		f.send(`{"jsonrpc":"2.0","id":17,"result":{"roots":[]}}`)
		synctest.Wait()
		l.close()
		l = f.again()
		l.want(request(1, "tools/call"))
		f.send(request(2, "ping"))
		l.want(request(2, "ping"))
	})
}

// G1, H8: a request that a stopping daemon refused without executing it goes to the
// next one. Those that it still works on are waited for.
func TestARequestRefusedByAStoppingDaemonGoesToTheNext(t *testing.T) {
	stopping := `{"jsonrpc":"2.0","id":2,"error":{"code":-32016,"message":"m","data":{"reason":"draining","sent":"no"}}}`
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.send(request(1, "tools/call"), request(2, "tools/call"))
		l.want(request(1, "tools/call"), request(2, "tools/call"))
		l.send(stopping)
		f.quiet()
		f.send(request(3, "tools/call"), `{"jsonrpc":"2.0","method":"notifications/x"}`)
		l.want(`{"jsonrpc":"2.0","method":"notifications/x"}`) // it may be about request 1
		f.noLine()
		l.send(answer(1))
		f.want(answer(1))
		l.wantEnd()
		l = f.again()
		l.want(request(2, "tools/call"), request(3, "tools/call"))
		l.send(answer(2), answer(3))
		f.want(answer(2), answer(3))
	})
}

// R2: an error that does not say that the call was not sent is the client's, and one
// that every daemon gives in turn is too, in the end.
func TestOtherErrorsOfAStoppingDaemonPass(t *testing.T) {
	maybe := `{"jsonrpc":"2.0","id":1,"error":{"code":-32016,"message":"m","data":{"reason":"draining"}}}`
	no := `{"jsonrpc":"2.0","id":2,"error":{"code":-32016,"message":"m","data":{"reason":"draining","sent":"no"}}}`
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.send(request(1, "tools/call"))
		l.want(request(1, "tools/call"))
		l.send(maybe)
		f.want(maybe)
		f.send(request(2, "tools/call"))
		for range 3 {
			l.want(request(2, "tools/call"))
			l.send(no)
			l.wantEnd()
			l = f.again()
		}
		l.want(request(2, "tools/call"))
		l.send(no)
		f.want(no)
	})
}

// H8: when the handshake is refused after a restart, as by a server that does not
// start any more, those who wait are told why, and the next request tries again.
func TestAHandshakeThatIsRefusedIsToldToThoseWhoWait(t *testing.T) {
	refusal := `{"code":-32011,"message":"server x did not start","data":{"reason":"start_failed"}}`
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.leave()
		l.close()
		f.send(request(1, "tools/call"), request(2, "tools/call"))
		synctest.Wait()
		f.come()
		l = f.accept()
		l.want(hello)
		time.Sleep(time.Minute) // a server may take its time to start
		f.quiet()
		f.send(request(3, "tools/call"))
		synctest.Wait()
		l.send(`{"jsonrpc":"2.0","id":0,"error":` + refusal + `}`)
		l.wantEnd()
		for id := 1; id <= 3; id++ {
			f.want(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":%s}`, id, refusal))
		}
		f.send(request(4, "tools/call"))
		f.again().want(request(4, "tools/call"))
	})
}

// H8: a daemon is started at first and for a request, never by a shim that idles, so
// that a daemon that somebody ended stays ended.
func TestADaemonIsStartedForRequestsOnly(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.leave()
		l.close()
		time.Sleep(time.Minute)
		if f.starts > 0 {
			t.Errorf("a daemon was started %d times while nobody needed it", f.starts)
		}
		f.mu.Lock()
		f.onStart = func() { f.absent = nil }
		f.mu.Unlock()
		f.send(request(1, "tools/call"))
		f.again().want(request(1, "tools/call"))
		if f.starts != 1 {
			t.Errorf("a daemon was started %d times", f.starts)
		}
	})
}

// H8: what goes wrong with the start of a daemon is what the client is told.
func TestAFailedStartIsToldToTheClient(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		f.accept().close()
		f.setAbsent(errors.New("the socket belongs to another user"))
		f.send(request(1, "tools/call"))
		contains(t, f.wantError("1", "interrupted", "no"), "the socket belongs to another user")
		if f.starts > 0 {
			t.Error("a daemon was started where one cannot listen")
		}
	})
}

// H8: with a fallback the first line is had before anything of the client's is read.
func TestFallbackReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, cfg: shim.Config{Fallback: true}, lines: make(chan *line, 1), done: make(chan error, 1)}
		f.leave()
		f.start()
		begun := time.Now()
		err := <-f.done
		if !errors.Is(err, shim.ErrNoDaemon) || time.Since(begun) != 10*time.Second {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		contains(t, err.Error(), "no daemon listens")
		if _, err := io.WriteString(f.in, hello); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the client's frame was read: %v", err)
		}
		if f.starts == 0 {
			t.Error("no daemon was started")
		}
	})
}

// H8, case 44: the end of the client ends the shim at once, with a daemon or without.
func TestEndOfInput(t *testing.T) {
	for _, absent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := &fixture{t: t, lines: make(chan *line, 1), done: make(chan error, 1)}
			if absent {
				f.leave()
			}
			f.start()
			if !absent {
				l := f.connected()
				f.send(request(1, "tools/call"))
				l.want(request(1, "tools/call"))
				defer l.wantEnd()
			}
			begun := time.Now()
			if err := f.in.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-f.done; err != nil || time.Since(begun) > 0 {
				t.Errorf("after %s: %v", time.Since(begun), err)
			}
			if raw, err := f.out.Next(); !errors.Is(err, io.EOF) {
				t.Errorf("the client got %s, %v", raw, err)
			}
		})
	}
}

// What the client sent last still reaches the daemon.
func TestTheLastFramesAreFlushed(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.send(request(1, "tools/call"), request(2, "tools/call"))
		if err := f.in.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l.want(request(1, "tools/call"), request(2, "tools/call"))
		l.wantEnd()
	})
}

// H8: a signal ends the shim at once, whatever is in flight.
func TestASignal(t *testing.T) {
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.send(request(1, "tools/call"))
		l.want(request(1, "tools/call"))
		begun := time.Now()
		f.cancel()
		l.wantEnd()
		if err := <-f.done; err != nil || time.Since(begun) > 0 {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		f.done <- nil // for the clean-up
	})
}

// Case 11: a frame over the limit costs its own call, in either direction.
func TestFramesOverTheLimit(t *testing.T) {
	huge := strings.Repeat("x", 66<<20)
	run(t, func(t *testing.T, f *fixture) {
		l := f.connected()
		f.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"a":"` + huge + `"}}`)
		contains(t, f.wantError("1", "too_large", ""), "over the limit")
		f.send(request(2, "tools/call"))
		l.want(request(2, "tools/call"))
		l.send(`{"jsonrpc":"2.0","id":2,"result":{"a":"` + huge + `"}}`)
		contains(t, f.wantError("2", "too_large", ""), "over the limit")
		f.send(request(3, "tools/call"))
		l.want(request(3, "tools/call"))
		l.send(answer(3))
		f.want(answer(3))
	})
}

// H4: a client that does not read holds the daemon up, not the shim's memory.
func TestAClientThatDoesNotReadStopsTheReading(t *testing.T) {
	runAs(t, &fixture{slow: true}, func(t *testing.T, f *fixture) {
		l := f.connected()
		note := `{"jsonrpc":"2.0","method":"notifications/message","params":{"a":"` + strings.Repeat("x", 64<<10) + `"}}`
		written := 0
		go func() {
			for written < 100 {
				if _, err := io.WriteString(l.conn, note+"\n"); err != nil {
					return
				}
				written++
			}
		}()
		synctest.Wait()
		if written < 1 || written > 20 {
			t.Errorf("%d frames of 64 KiB were read", written)
		}
		for range 100 {
			f.want(note)
		}
	})
}
